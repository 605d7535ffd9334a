/* write.c - a request's answer on its way to the client.
 *
 * What is short is written at once. What may be long is written in steps (pace.h), each when the
 * client has taken the one before: the beginning of a stream that echoes a long prompt or tells its
 * ids, and a whole answer past WHOLE_BYTES. So an answer costs the memory that it is made from
 * (budget.h), never its own length, and nobody waits for it. */
#include "request.h"
#include "util/clock.h"
#include "util/err.h"

#include <string.h>

#define STEP_BYTES 32768u      /* of one step */
#define WHOLE_BYTES STEP_BYTES /* of an answer that is written at once, with its length */
#define UNSENT_MAX 65536u      /* not yet taken by the client: the next step waits */
/* by which a step may be longer (parts.c), and the answer's HTTP head */
#define PIECE_BYTES 25600u
#define STEP_MIN_BYTES 1024u
#define OPENING_BYTES 16384u /* of what a stream begins with: more is written in steps */

static void begin_stream(struct request *q)
{
	char extra[160];
	if (q->streaming)
		return;
	q->streaming = 1;
	request_headers(q, 200, 0, extra, sizeof extra);
	http_stream_begin(q->conn, "text/event-stream; charset=utf-8", extra);
}

/* --- steps --------------------------------------------------------------- */

static void on_taken(void *arg)
{
	struct request *q = arg;
	pace_add(&q->r->pace, &q->paced);
}

static void go_on_soon(struct request *q)
{
	http_on_taken(q->conn, on_taken, q);
	pace_add(&q->r->pace, &q->paced);
}

/* How long a step may be now. 0: on_taken comes, when the client or others have made room. */
static size_t step_bytes(const struct request *q)
{
	size_t room = http_unsent(q->conn) < UNSENT_MAX ? http_room(q->conn) : 0;
	if (room < PIECE_BYTES + STEP_MIN_BYTES)
		return 0;
	return room - PIECE_BYTES < STEP_BYTES ? room - PIECE_BYTES : STEP_BYTES;
}

/* --- streams ------------------------------------------------------------- */

/* The first n bytes of the text, and all else, are the client's now. */
static void given(struct answer *ans, size_t n)
{
	if (n < ans->text.len)
		memmove(ans->text.data, ans->text.data + n, ans->text.len - n);
	ans->text.len -= n;
	if (ans->message)
		message_given(ans->message);
	ans->ids_given = ans->n_tokens;
	ans->rows.n = 0;
}

static int send_event(struct request *q, struct answer *ans)
{
	struct buf *out = &q->r->out;
	size_t n = ans->message ? 0 : ans->text.len;
	if (!ans->message && ans->finish == ANSWER_FINISH_NONE && q->p.stop)
		n -= stop_held(q->p.stop, &ans->scan);
	buf_reset(out);
	if (reply_chunk(q, ans, n, out))
		given(ans, n);
	return out->full ? ERR_FULL : http_stream_add(q->conn, out->data, out->len);
}

/* Tokens that wait behind what their stream begins with are bounded as those that the client
 * does not take. */
static int waits(const struct request *q, const struct answer *ans)
{
	size_t bytes = ans->text.len + ans->rows.n * row_bytes(ans->rows.top);
	return bytes > q->r->conf.out_bytes_max ? ERR_FULL : 0;
}

int answer_send(struct request *q, struct answer *ans)
{
	if (!q->conn)
		return ERR_CLOSED;
	if (ans->opening)
		return waits(q, ans);
	if (ans->message && reply_is_empty(ans))
		return 0;
	size_t opening = reply_opening_bytes(ans);
	if (opening > OPENING_BYTES || (opening && !prompt_is_told(q, ans->prompt))) {
		ans->opening = 1;
		q->n_opening++;
		begin_stream(q);
		go_on_soon(q);
		return 0;
	}
	begin_stream(q);
	do
		if (send_event(q, ans) < 0)
			return ERR_FULL;
	while (reply_opening_bytes(ans));
	return 0;
}

void request_prompt_told(struct request *q)
{
	if (q->n_opening)
		pace_add(&q->r->pace, &q->paced);
}

static void too_slow(struct request *q)
{
	struct api_error e = {0};
	api_fault(&e, 503, REQUEST_NOT_TAKEN);
	request_fail(q, &e);
}

/* An event of the first answer that still has to send what it begins with. */
static int open_some(struct request *q)
{
	uint32_t i = 0;
	while (i < q->n_answers && !(q->answers[i].opening && prompt_is_told(q, q->answers[i].prompt)))
		i++;
	if (i == q->n_answers || !step_bytes(q))
		return 0;
	struct answer *ans = &q->answers[i];
	if (send_event(q, ans) < 0) {
		too_slow(q);
		return 0;
	}
	if (reply_opening_bytes(ans))
		return step_bytes(q) > 0;
	ans->opening = 0;
	if (--q->n_opening)
		return step_bytes(q) > 0;
	http_on_taken(q->conn, NULL, NULL);
	if (q->n_ended == q->n_answers)
		request_finish(q);
	return 0;
}

static void end_stream(struct request *q)
{
	struct buf *out = &q->r->out;
	begin_stream(q);
	buf_reset(out);
	if (q->p.include_usage)
		reply_usage_chunk(q, out);
	buf_adds(out, "data: [DONE]\n\n");
	if (http_stream_add(q->conn, out->data, out->len) < 0)
		http_drop(q->conn);
	else
		http_stream_end(q->conn);
	request_free(q);
}

/* --- whole answers ------------------------------------------------------- */

/* Its attempts are nobody's any more: they do not count while the client reads. */
static void release_answers(struct request *q)
{
	q->r->n_answers -= q->counted;
	q->counted = 0;
}

/* What is in router.out. 1: the request goes on; 0: it is gone. */
static int deliver(struct request *q, int end)
{
	struct buf *out = &q->r->out;
	if (out->full || http_stream_add(q->conn, out->data, out->len) < 0)
		http_drop(q->conn);
	else if (end)
		http_stream_end(q->conn);
	else
		return 1;
	request_free(q);
	return 0;
}

void request_write(struct request *q)
{
	struct buf *out = &q->r->out;
	char extra[160];
	q->over = 1;
	release_answers(q);
	request_headers(q, 200, 0, extra, sizeof extra);
	buf_reset(out);
	size_t most = step_bytes(q);
	if (reply_more(q, out, most ? most : WHOLE_BYTES)) {
		http_reply(q->conn, 200, "application/json", extra, out->data, out->len);
		request_free(q);
		return;
	}
	if (!most) {
		struct api_error e = {0};
		api_fault(
			&e, 503,
			"this server has no room for the answer now (output_bytes_max); try again in a second");
		request_fail(q, &e);
		return;
	}
	q->writing = 1;
	q->deadline_us = clock_us() + q->r->conf.request_timeout_us;
	http_stream_begin(q->conn, "application/json", extra);
	if (deliver(q, 0))
		go_on_soon(q);
}

static int write_some(struct request *q)
{
	size_t most = step_bytes(q);
	if (!most)
		return 0;
	buf_reset(&q->r->out);
	return deliver(q, reply_more(q, &q->r->out, most)) && step_bytes(q);
}

void request_finish(struct request *q)
{
	if (!q->p.stream)
		request_write(q);
	else if (!q->n_opening)
		end_stream(q);
	else
		q->deadline_us = clock_us() + q->r->conf.request_timeout_us;
}

int request_step(struct paced *p)
{
	struct request *q = (struct request *)((char *)p - offsetof(struct request, paced));
	if (q->writing)
		return write_some(q);
	if (q->n_started < q->n_answers) {
		int more = request_start_some(q);
		return more < 0 ? 0 : more || q->n_opening;
	}
	return q->n_opening ? open_some(q) : 0;
}
