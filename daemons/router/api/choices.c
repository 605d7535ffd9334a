/* choices.c - see choices.h. */
#include "choices.h"
#include "daemons/router/request/request.h"

#include <string.h>

#define EVENT "data: " /* begins the head; complete answers leave it out */

void choices_head(struct request *q, const char *object)
{
	struct buf *head = &q->reply.head;
	char fingerprint[20];
	ADD(head, EVENT "{\"id\":\"");
	buf_adds(head, q->id);
	ADD(head, "\",\"object\":\"");
	buf_adds(head, object);
	ADD(head, "\",\"created\":");
	buf_add_uint(head, (uint64_t)q->prep.created_s);
	ADD(head, ",\"model\":");
	buf_add_json(head, q->prep.model->name, strlen(q->prep.model->name));
	if (registry_fingerprint(&q->r->registry, fingerprint, sizeof fingerprint))
		buf_printf(head, ",\"system_fingerprint\":\"%s\"", fingerprint);
	ADD(head, ",\"choices\":[");
}

void choices_add_finish(const struct answer *ans, enum answer_finish finish, struct buf *out)
{
	size_t len;
	if (finish == ANSWER_FINISH_NONE) {
		ADD(out, ",\"finish_reason\":null");
		return;
	}
	int calls = ans->finish == ANSWER_FINISH_STOP && ans->message && message_count(ans->message) &&
	            !ans->request->prep.message.named;
	ADD(out, ",\"finish_reason\":\"");
	buf_adds(out, calls ? "tool_calls" : answer_finish_name(ans->finish));
	ADD(out, "\",\"stop_reason\":");
	if (ans->stopped >= 0) {
		const char *s = stop_string(ans->request->prep.p.stop, (size_t)ans->stopped, &len);
		buf_add_json(out, s, len);
	} else if (ans->stop_id >= 0) {
		buf_add_uint(out, (uint64_t)ans->stop_id);
	} else {
		ADD(out, "null");
	}
}

/* The value of "usage". */
static void add_choices_usage(struct reply_usage u, struct buf *out)
{
	ADD(out, "{\"prompt_tokens\":");
	buf_add_uint(out, u.prompt);
	ADD(out, ",\"completion_tokens\":");
	buf_add_uint(out, u.generated);
	ADD(out, ",\"total_tokens\":");
	buf_add_uint(out, u.prompt + u.generated);
	ADD(out, ",\"prompt_tokens_details\":{\"cached_tokens\":");
	buf_add_uint(out, u.cached);
	ADD(out, "}}");
}

/* --- streams ------------------------------------------------------------- */

void choices_event_begin(const struct answer *ans, struct buf *out)
{
	const struct buf *head = &ans->request->reply.head;
	buf_add(out, head->data, head->len);
	ADD(out, "{\"index\":");
	buf_add_uint(out, ans->index);
}

void choices_event_end(const struct answer *ans, enum choices_event which, struct buf *out)
{
	struct request *q = ans->request;
	const struct params *p = &q->prep.p;
	if (!q->reply.warned)
		reply_add_warnings(q, out);
	q->reply.warned = 1;
	if (which == CHOICES_ENDS ? p->timings : which == CHOICES_GOES_ON && p->timings_per_token)
		reply_add_timings(q, out);
	if (p->continuous_usage) {
		struct reply_usage u = reply_usage(q);
		u.generated -= which == CHOICES_OPENS ? ans->n_tokens : 0;
		ADD(out, ",\"usage\":");
		add_choices_usage(u, out);
	} else if (p->include_usage) {
		ADD(out, ",\"usage\":null");
	}
	ADD(out, "}\n\n");
}

void choices_add_prompt_ids(struct answer *ans, struct buf *out)
{
	const struct buf *ids = &ans->prompt->ids;
	if (ans->request->prep.p.return_token_ids && !ans->given.prompt_ids) {
		ADD(out, ",\"prompt_token_ids\":[");
		buf_add(out, ids->data, ids->len);
		buf_addc(out, ']');
	}
	ans->given.prompt_ids = 1;
}

void choices_add_ids(const struct answer *ans, int is_last, struct buf *out)
{
	if (!ans->request->prep.p.return_token_ids)
		return;
	ADD(out, ",\"token_ids\":[");
	for (uint32_t i = ans->given.ids; is_last && i < ans->n_tokens; i++) {
		if (i > ans->given.ids)
			buf_addc(out, ',');
		buf_add_uint(out, ans->attempt->got.out[i]);
	}
	buf_addc(out, ']');
}

size_t choices_prompt_ids_behind(const struct answer *ans)
{
	int wanted = ans->request->prep.p.return_token_ids && !ans->given.prompt_ids;
	return wanted ? ans->prompt->ids.len : 0;
}

void choices_stream_end(struct request *q, struct buf *out)
{
	if (q->prep.p.include_usage) {
		buf_add(out, q->reply.head.data, q->reply.head.len);
		ADD(out, "],\"usage\":");
		add_choices_usage(reply_usage(q), out);
		ADD(out, "}\n\n");
	}
	ADD(out, "data: [DONE]\n\n");
}

void choices_stream_error(struct request *q, const struct api_error *e, struct buf *out)
{
	(void)q;
	ADD(out, EVENT);
	api_error_json(e, out);
	ADD(out, "\n\ndata: [DONE]\n\n");
}

/* --- complete answers ---------------------------------------------------- */

void choices_put_prompt(const struct request *q, const struct prompt *prompt,
                        struct answer_parts *p)
{
	if (q->prep.p.return_token_ids) {
		buf_adds(&p->text, ",\"prompt_token_ids\":[");
		parts_bytes(p, prompt->ids.data, prompt->ids.len);
		buf_addc(&p->text, ']');
	}
	if (q->prep.p.prompt_logprobs < 0)
		return;
	buf_adds(&p->text, ",\"prompt_logprobs\":[");
	parts_rows(p, &prompt->rows, 0, prompt->rows.n, ROW_PROMPT,
	           (uint32_t)q->prep.p.prompt_logprobs);
	buf_addc(&p->text, ']');
}

void choices_put_ids(const struct answer *ans, struct answer_parts *p)
{
	if (!ans->request->prep.p.return_token_ids)
		return;
	buf_adds(&p->text, ",\"token_ids\":[");
	if (ans->attempt)
		parts_ids(p, ans->attempt->got.out, ans->n_tokens);
	buf_addc(&p->text, ']');
}

int choices_parts(struct request *q, uint32_t stage, struct answer_parts *p,
                  void (*put_choice)(struct answer *ans, struct answer_parts *p),
                  void (*put_end)(struct request *q, struct answer_parts *p))
{
	if (stage == 0) {
		const struct buf *head = &q->reply.head;
		size_t skip = sizeof EVENT - 1;
		buf_add(&p->text, head->data + skip, head->len - skip);
	} else if (stage <= q->n_answers) {
		buf_printf(&p->text, "%s{\"index\":%u,", stage > 1 ? "," : "", stage - 1);
		put_choice(&q->answers[stage - 1], p);
		buf_addc(&p->text, '}');
	} else if (stage == q->n_answers + 1) {
		buf_addc(&p->text, ']');
		if (put_end)
			put_end(q, p);
		reply_add_warnings(q, &p->text);
		if (q->prep.p.timings)
			reply_add_timings(q, &p->text);
		buf_adds(&p->text, ",\"usage\":");
		add_choices_usage(reply_usage(q), &p->text);
		buf_addc(&p->text, '}');
	}
	return stage <= q->n_answers + 1;
}
