/* write.c - what goes to a client: headers, events of a stream, complete answers.
 *
 * Long output is written in steps: the part of a stream that is behind (the echo of a long
 * prompt, token ids, events that repeat an item), and a complete answer longer than
 * COMPLETE_BYTES. The next step is made when the client has taken the one before. So an answer
 * costs the memory that it is made from (budget.h), never its own length, and no other request
 * waits for it. */
#include "request.h"
#include "util/check.h"
#include "util/clock.h"
#include "util/err.h"

#include <event2/event.h>
#include <stdio.h>
#include <string.h>

/* Of Retry-After, which follows from the backlog and the measured rates: these only keep a client
 * from coming back at once, and from giving up because of a guess. */
#define RETRY_AFTER_MIN_S 1u
#define RETRY_AFTER_MAX_S 60u

#define STEP_BYTES 32768u         /* of one step */
#define COMPLETE_BYTES STEP_BYTES /* of an answer that is written at once, with its length */
#define UNSENT_MAX 65536u         /* not yet taken by the client: the next step waits */
/* by how much a step may be longer (parts.c), and the answer's HTTP head */
#define PIECE_BYTES 25600u
#define STEP_MIN_BYTES 1024u
#define BEHIND_BYTES 16384u /* a stream that is further behind is written in steps */

/* --- headers ------------------------------------------------------------- */

uint32_t router_retry_after_s(const struct router *r)
{
	return registry_retry_after_s(&r->registry, r->attempts.queued_tokens, RETRY_AFTER_MIN_S,
	                              RETRY_AFTER_MAX_S);
}

void router_error_headers(struct router *r, const struct api_error *e, char *out, size_t size)
{
	uint32_t s = router_retry_after_s(r),
			 least_s = e->retry_after_s < RETRY_AFTER_MAX_S ? e->retry_after_s : RETRY_AFTER_MAX_S;
	s = e->by_key ? e->retry_after_s : s > least_s ? s : least_s;
	out[0] = 0;
	if (e->status == 429 || e->status == 503)
		snprintf(out, size, "Retry-After: %u\r\n", s);
}

void request_headers(const struct request *q, const struct api_error *e, char *out)
{
	size_t n = 0;
	out[0] = 0;
	if (e)
		router_error_headers(q->r, e, out, REQUEST_HEADERS_MAX);
	n = strlen(out);
	n += who_headers(&q->who, q->id, out + n, REQUEST_HEADERS_MAX - n);
	if (*q->id && q->dialect->id_header)
		n += (size_t)snprintf(out + n, REQUEST_HEADERS_MAX - n, "%s: %s\r\n", q->dialect->id_header,
		                      q->id);
	if (q->tenant)
		tenant_headers(q->tenant, clock_us(), out + n);
}

/* --- turns --------------------------------------------------------------- */

/* A timer of no time, so that the loop looks at its descriptors before the next turn; with an event
 * that activates itself it would not. */
void requests_wake(struct router *r)
{
	static const struct timeval now = {0, 0};
	CHECK(event_add(r->turns.ev, &now) == 0);
}

void request_work_soon(struct request *q)
{
	struct router *r = q->r;
	if (!list_empty(&q->turn))
		return;
	if (list_empty(&r->turns.waiting))
		requests_wake(r);
	list_push_back(&r->turns.waiting, &q->turn);
}

static void on_taken(void *arg)
{
	request_work_soon(arg);
}

/* The next step is made as soon as there is room. */
static void write_soon(struct request *q)
{
	http_on_taken(q->conn, on_taken, q);
	request_work_soon(q);
}

/* How long a step may be now. 0: none; on_taken is called when there is room. */
static size_t step_bytes(const struct request *q)
{
	size_t room = http_unsent(q->conn) < UNSENT_MAX ? http_room(q->conn) : 0;
	if (room < PIECE_BYTES + STEP_MIN_BYTES)
		return 0;
	return room - PIECE_BYTES < STEP_BYTES ? room - PIECE_BYTES : STEP_BYTES;
}

/* --- streams ------------------------------------------------------------- */

/* Does nothing if the stream has begun. */
static void begin_stream(struct request *q)
{
	char extra[REQUEST_HEADERS_MAX];
	if (http_is_streaming(q->conn))
		return;
	request_headers(q, NULL, extra);
	http_stream_begin(q->conn, "text/event-stream; charset=utf-8", extra);
}

/* See dialect.behind; 0: the stream is not behind. */
static size_t bytes_behind(const struct answer *ans)
{
	size_t (*behind)(const struct answer *) = ans->request->dialect->behind;
	return behind ? behind(ans) : 0;
}

/* Sends the next events of a stream: up to about max_size bytes of what it is behind with, then of
 * its text. 0 or ERR_FULL. */
static int send_stream_events(struct answer *ans, size_t max_size)
{
	struct request *q = ans->request;
	struct buf *out = &q->r->out;
	size_t n = ans->message ? 0 : ans->text.len;
	if (!ans->message && ans->finish == ANSWER_FINISH_NONE && q->prep.p.stop)
		n -= stop_held(q->prep.p.stop, &ans->scan);
	buf_reset(out);
	if (q->dialect->chunk(ans, n, max_size, out)) {
		/* what was written need not be kept */
		if (n < ans->text.len)
			memmove(ans->text.data, ans->text.data + n, ans->text.len - n);
		ans->text.len -= n;
		ans->given.ids = ans->n_tokens;
		if (!q->dialect->keeps) {
			if (ans->message)
				message_given(ans->message);
			ans->rows.n = 0;
		}
	}
	if (out->full)
		return ERR_FULL;
	return out->len ? http_stream_add(q->conn, out->data, out->len) : 0;
}

void write_answer_in_steps(struct answer *ans)
{
	struct request *q = ans->request;
	begin_stream(q);
	q->n_behind += !ans->behind;
	ans->behind = 1;
	write_soon(q);
}

int write_answer(struct answer *ans)
{
	struct request *q = ans->request;
	if (ans->behind) {
		/* Tokens that wait while their stream is behind are bounded like those that the client does
		 * not take; those that are kept anyway, by the request's quota. */
		size_t bytes = ans->text.len + ans->rows.n * row_bytes(ans->rows.top);
		return !q->dialect->keeps && bytes > q->r->conf.http.out_bytes_max ? ERR_FULL : 0;
	}
	if (q->dialect->is_empty(ans))
		return 0;
	begin_stream(q);
	do {
		size_t behind = bytes_behind(ans);
		if (behind > BEHIND_BYTES || (behind && !prompt_rows_complete(&q->prep, ans->prompt))) {
			write_answer_in_steps(ans);
			return 0;
		}
		if (send_stream_events(ans, BEHIND_BYTES) < 0)
			return ERR_FULL;
	} while (bytes_behind(ans));
	return 0;
}

enum write_verdict write_behind(struct request *q)
{
	uint32_t i = 0;
	size_t max_size = step_bytes(q);
	while (i < q->n_answers &&
	       !(q->answers[i].behind && prompt_rows_complete(&q->prep, q->answers[i].prompt)))
		i++;
	if (i == q->n_answers || !max_size)
		return WRITE_LATER;
	struct answer *ans = &q->answers[i];
	if (send_stream_events(ans, max_size) < 0) {
		api_fault(&q->prep.error, 503, CLIENT_TOO_SLOW);
		return WRITE_REFUSED;
	}
	if (!bytes_behind(ans)) {
		ans->behind = 0;
		if (--q->n_behind == 0) {
			http_on_taken(q->conn, NULL, NULL);
			return WRITE_ALL;
		}
	}
	if (step_bytes(q))
		request_work_soon(q);
	return WRITE_LATER;
}

/* It is too late to tell the client that there is no room or no memory for the rest. */
static void cut_answer(struct request *q)
{
	request_log_end(q, "answer_cut", 503, "",
	                "there is no room or no memory for the rest of the answer");
	http_drop(q->conn);
}

void write_stream_end(struct request *q)
{
	struct buf *out = &q->r->out;
	begin_stream(q);
	buf_reset(out);
	if (q->dialect->stream_end)
		q->dialect->stream_end(q, out);
	if (out->len && http_stream_add(q->conn, out->data, out->len) < 0)
		cut_answer(q);
	else
		http_stream_end(q->conn);
}

/* --- complete answers ---------------------------------------------------- */

/* Sends router.out, the next step of the answer. */
static enum write_verdict send_step(struct request *q, int is_last)
{
	struct buf *out = &q->r->out;
	if (out->full || http_stream_add(q->conn, out->data, out->len) < 0) {
		cut_answer(q);
		return WRITE_CUT;
	}
	if (is_last) {
		http_stream_end(q->conn);
		return WRITE_ALL;
	}
	return WRITE_LATER;
}

enum write_verdict write_complete(struct request *q)
{
	struct buf *out = &q->r->out;
	char extra[REQUEST_HEADERS_MAX];
	size_t max_size = step_bytes(q);
	request_headers(q, NULL, extra);
	buf_reset(out);
	if (reply_more(q, out, max_size ? max_size : COMPLETE_BYTES)) {
		http_reply(q->conn, 200, "application/json", extra, out->data, out->len);
		return WRITE_ALL;
	}
	if (!max_size) {
		api_fault(
			&q->prep.error, 503,
			"this server has no room for the answer now (output_bytes_max); try again in a second");
		return WRITE_REFUSED;
	}
	http_stream_begin(q->conn, "application/json", extra);
	enum write_verdict v = send_step(q, 0);
	if (v == WRITE_LATER)
		write_soon(q);
	return v;
}

enum write_verdict write_more(struct request *q)
{
	size_t max_size = step_bytes(q);
	if (!max_size)
		return WRITE_LATER;
	buf_reset(&q->r->out);
	enum write_verdict v = send_step(q, reply_more(q, &q->r->out, max_size));
	if (v == WRITE_LATER && step_bytes(q))
		request_work_soon(q);
	return v;
}
