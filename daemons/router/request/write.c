/* write.c - what goes to a client in steps: what a stream is behind with (what it echoes of a long
 * prompt, its ids, events that repeat an item), and a whole answer longer than WHOLE_BYTES. A step
 * comes when the client has taken the one before. So an answer costs the memory that it is made
 * from (budget.h), never its own length, and nobody waits for it. */
#include "request.h"
#include "util/err.h"

#include <string.h>

#define STEP_BYTES 32768u      /* of one step */
#define WHOLE_BYTES STEP_BYTES /* of an answer that is written at once, with its length */
#define UNSENT_MAX 65536u      /* not yet taken by the client: the next step waits */
/* by how much a step may be longer (parts.c), and the answer's HTTP head */
#define PIECE_BYTES 25600u
#define STEP_MIN_BYTES 1024u

static void on_taken(void *arg)
{
	request_work_soon(arg);
}

void write_soon(struct request *q)
{
	http_on_taken(q->conn, on_taken, q);
	request_work_soon(q);
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

void write_begin_stream(struct request *q)
{
	char extra[REQUEST_HEADERS_MAX];
	if (http_is_streaming(q->conn))
		return;
	request_headers(q, NULL, extra);
	http_stream_begin(q->conn, "text/event-stream; charset=utf-8", extra);
}

enum write_verdict write_behind(struct request *q)
{
	uint32_t i = 0;
	size_t max_size = step_bytes(q);
	while (i < q->n_answers &&
	       !(q->answers[i].behind && prompt_is_told(&q->prep, q->answers[i].prompt)))
		i++;
	if (i == q->n_answers || !max_size)
		return WRITE_LATER;
	struct answer *ans = &q->answers[i];
	if (answer_send_event(ans, max_size) < 0) {
		api_fault(&q->prep.error, 503, CLIENT_TOO_SLOW);
		return WRITE_REFUSED;
	}
	if (!answer_behind(ans)) {
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

void write_stream_end(struct request *q)
{
	struct buf *out = &q->r->out;
	write_begin_stream(q);
	buf_reset(out);
	if (q->dialect->stream_end)
		q->dialect->stream_end(q, out);
	if (out->len && http_stream_add(q->conn, out->data, out->len) < 0)
		request_cut(q);
	else
		http_stream_end(q->conn);
}

/* --- whole answers ------------------------------------------------------- */

/* router.out is the next step of the answer. */
static enum write_verdict deliver(struct request *q, int is_last)
{
	struct buf *out = &q->r->out;
	if (out->full || http_stream_add(q->conn, out->data, out->len) < 0) {
		request_cut(q);
		return WRITE_CUT;
	}
	if (is_last) {
		http_stream_end(q->conn);
		return WRITE_ALL;
	}
	return WRITE_LATER;
}

enum write_verdict write_whole(struct request *q)
{
	struct buf *out = &q->r->out;
	char extra[REQUEST_HEADERS_MAX];
	size_t max_size = step_bytes(q);
	/* its attempts have ended: they do not count while the client reads */
	request_uncount(q);
	request_headers(q, NULL, extra);
	buf_reset(out);
	if (reply_more(q, out, max_size ? max_size : WHOLE_BYTES)) {
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
	enum write_verdict v = deliver(q, 0);
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
	enum write_verdict v = deliver(q, reply_more(q, &q->r->out, max_size));
	if (v == WRITE_LATER && step_bytes(q))
		request_work_soon(q);
	return v;
}
