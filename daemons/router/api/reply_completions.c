/* reply_completions.c - answers to /v1/completions. A stream may begin with the echo of a long
 * prompt, in several events. */
#include "choices.h"
#include "daemons/router/request/request.h"

#define ECHO_PIECE 8192u /* of an event: bytes of the prompt's text */
#define ROWS_PIECE 128u  /* and log-probabilities of its tokens */

static void completions_head(struct request *q)
{
	choices_head(q, "text_completion");
}

/* Does the answer have its prompt's log-probabilities before its own? */
static int echoes_rows(const struct request *q)
{
	return q->prep.p.echo && q->prep.p.logprobs >= 0;
}

/* --- streams ------------------------------------------------------------- */

static size_t completions_behind(const struct answer *ans)
{
	const struct request *q = ans->request;
	size_t n = choices_prompt_ids_behind(ans);
	if (q->prep.p.echo)
		n += ans->prompt->text.len - ans->given.echo;
	if (echoes_rows(q))
		n += (ans->prompt->tokens.n - ans->given.rows) * (64 + 48 * (size_t)q->prep.p.logprobs);
	return n;
}

/* The piece of a stream's beginning that goes into one event. */
struct opening {
	size_t echo;   /* bytes, from given.echo on */
	uint32_t rows; /* from given.rows on */
	int is_last;
};

static struct opening next_opening(const struct answer *ans)
{
	const struct request *q = ans->request;
	const struct prompt *p = ans->prompt;
	struct opening o = {0};
	size_t text = q->prep.p.echo ? p->text.len - ans->given.echo : 0;
	uint32_t rows = echoes_rows(q) ? p->rows.n - ans->given.rows : 0;
	o.echo = text ? buf_json_piece(p->text.data + ans->given.echo, text, ECHO_PIECE) : 0;
	o.rows = rows < ROWS_PIECE ? rows : ROWS_PIECE;
	o.is_last = o.echo == text && o.rows == rows;
	return o;
}

/* Adds one of the arrays: rows of the prompt in this opening, then those of the answer. */
static void add_row_array(const struct answer *ans, const struct opening *o, enum row_shape shape,
                          struct buf *out)
{
	const struct request *q = ans->request;
	uint32_t most = (uint32_t)q->prep.p.logprobs, own = o->is_last ? ans->rows.n : 0;
	if (o->rows)
		logprob_rows(q->prep.model, &ans->prompt->rows, ans->given.rows, ans->given.rows + o->rows,
		             shape, most, out);
	if (o->rows && own)
		buf_addc(out, ',');
	logprob_rows(q->prep.model, &ans->rows, 0, own, shape, most, out);
}

static void add_row_arrays(const struct answer *ans, const struct opening *o, struct buf *out)
{
	if (ans->request->prep.p.logprobs < 0 || (!o->rows && !(o->is_last && ans->rows.n))) {
		ADD(out, ",\"logprobs\":null");
		return;
	}
	ADD(out, ",\"logprobs\":{\"tokens\":[");
	add_row_array(ans, o, ROW_NAME, out);
	ADD(out, "],\"token_logprobs\":[");
	add_row_array(ans, o, ROW_VALUE, out);
	ADD(out, "],\"top_logprobs\":[");
	add_row_array(ans, o, ROW_TOP, out);
	ADD(out, "],\"text_offset\":[");
	add_row_array(ans, o, ROW_OFFSET, out);
	ADD(out, "]}");
}

static int completions_chunk(struct answer *ans, size_t text_len, size_t max_size, struct buf *out)
{
	struct opening o = next_opening(ans);
	(void)max_size; /* a piece is short enough */
	choices_event_begin(ans, out);
	ADD(out, ",\"text\":\"");
	if (o.echo)
		buf_add_json_part(out, ans->prompt->text.data + ans->given.echo, o.echo);
	if (o.is_last && text_len)
		buf_add_json_part(out, ans->text.data, text_len);
	buf_addc(out, '"');
	add_row_arrays(ans, &o, out);
	choices_add_finish(ans, o.is_last ? ans->finish : ANSWER_FINISH_NONE, out);
	choices_add_prompt_ids(ans, out);
	choices_add_ids(ans, o.is_last, out);
	ADD(out, "}]");
	choices_event_end(ans,
	                  !o.is_last                          ? CHOICES_OPENS
	                  : ans->finish == ANSWER_FINISH_NONE ? CHOICES_GOES_ON
	                                                      : CHOICES_ENDS,
	                  out);
	ans->given.echo += o.echo;
	ans->given.rows += o.rows;
	return o.is_last;
}

static int completions_is_empty(const struct answer *ans)
{
	(void)ans; /* each token has an event, even if it has no text */
	return 0;
}

/* --- complete answers ---------------------------------------------------- */

static void put_row_array(const struct answer *ans, const char *name, enum row_shape shape,
                          struct answer_parts *p)
{
	const struct request *q = ans->request;
	const struct row_list *of_prompt = &ans->prompt->rows;
	uint32_t most = (uint32_t)q->prep.p.logprobs;
	buf_printf(&p->text, "\"%s\":[", name);
	if (echoes_rows(q))
		parts_rows(p, of_prompt, 0, of_prompt->n, shape, most);
	if (echoes_rows(q) && of_prompt->n && ans->rows.n)
		buf_addc(&p->text, ',');
	parts_rows(p, &ans->rows, 0, ans->rows.n, shape, most);
	buf_addc(&p->text, ']');
}

static void completions_put_choice(struct answer *ans, struct answer_parts *p)
{
	static const char *const names[] = {"tokens", "token_logprobs", "top_logprobs", "text_offset"};
	static const enum row_shape shapes[] = {ROW_NAME, ROW_VALUE, ROW_TOP, ROW_OFFSET};
	const struct buf *echo = &ans->prompt->text;
	int has_rows = ans->request->prep.p.logprobs >= 0;
	buf_adds(&p->text, "\"text\":\"");
	if (ans->request->prep.p.echo && echo->len)
		parts_inside(p, echo->data, echo->len);
	parts_inside(p, ans->text.data ? ans->text.data : "", ans->text.len);
	buf_adds(&p->text, has_rows ? "\",\"logprobs\":{" : "\",\"logprobs\":null");
	for (unsigned i = 0; has_rows && i < 4; i++) {
		buf_adds(&p->text, i ? "," : "");
		put_row_array(ans, names[i], shapes[i], p);
	}
	buf_adds(&p->text, has_rows ? "}" : "");
	choices_add_finish(ans, ans->finish, &p->text);
	choices_put_prompt(ans->request, ans->prompt, p);
	choices_put_ids(ans, p);
}

static int completions_parts(struct request *q, uint32_t stage, struct answer_parts *p)
{
	return choices_parts(q, stage, p, completions_put_choice, NULL);
}

const struct dialect dialect_completions = {.id_prefix = "cmpl-",
                                            .splits = SPLITS_NEVER,
                                            .head = completions_head,
                                            .chunk = completions_chunk,
                                            .is_empty = completions_is_empty,
                                            .behind = completions_behind,
                                            .stream_end = choices_stream_end,
                                            .parts = completions_parts,
                                            .error = api_error_json,
                                            .stream_error = choices_stream_error};
