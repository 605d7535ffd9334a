/* write.c - a call's answer on its way to the client.
 *
 * What is short is written at once. What may be long is written in steps (pace.h), each when the
 * client has taken the one before: the beginning of a stream that echoes a long prompt or tells its
 * ids, and a whole answer past WHOLE_BYTES. So an answer costs the memory that it is made from
 * (budget.h), never its own length, and nobody waits for it. */
#include "call.h"
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

static void begin_stream(struct call *c)
{
	char extra[160];
	if (c->streaming)
		return;
	c->streaming = 1;
	call_headers(c, 200, 0, extra, sizeof extra);
	http_stream_begin(c->conn, "text/event-stream; charset=utf-8", extra);
}

/* --- steps --------------------------------------------------------------- */

static void on_taken(void *arg)
{
	struct call *c = arg;
	pace_add(&c->r->pace, &c->paced);
}

static void go_on_soon(struct call *c)
{
	http_on_taken(c->conn, on_taken, c);
	pace_add(&c->r->pace, &c->paced);
}

/* How long a step may be now. 0: on_taken comes, when the client or others have made room. */
static size_t step_bytes(const struct call *c)
{
	size_t room = http_unsent(c->conn) < UNSENT_MAX ? http_room(c->conn) : 0;
	if (room < PIECE_BYTES + STEP_MIN_BYTES)
		return 0;
	return room - PIECE_BYTES < STEP_BYTES ? room - PIECE_BYTES : STEP_BYTES;
}

/* --- streams ------------------------------------------------------------- */

/* The first n bytes of the text, and all else, are the client's now. */
static void given(struct choice *ch, size_t n)
{
	if (n < ch->text.len)
		memmove(ch->text.data, ch->text.data + n, ch->text.len - n);
	ch->text.len -= n;
	if (ch->message)
		message_given(ch->message);
	ch->ids_given = ch->n_tokens;
	ch->rows.n = 0;
}

static int send_event(struct call *c, struct choice *ch)
{
	struct buf *out = &c->r->out;
	size_t n = ch->message ? 0 : ch->text.len;
	if (!ch->message && ch->finish == SEQ_FINISH_NONE && c->p.stop)
		n -= stop_held(c->p.stop, &ch->scan);
	buf_reset(out);
	if (reply_chunk(c, ch, n, out))
		given(ch, n);
	return out->full ? ERR_FULL : http_stream_add(c->conn, out->data, out->len);
}

/* Tokens that wait behind what their stream begins with are bounded as those that the client
 * does not take. */
static int waits(const struct call *c, const struct choice *ch)
{
	size_t bytes = ch->text.len + ch->rows.n * row_bytes(ch->rows.top);
	return bytes > c->r->conf.out_bytes_max ? ERR_FULL : 0;
}

int call_chunk(struct call *c, struct choice *ch)
{
	if (!c->conn)
		return ERR_CLOSED;
	if (ch->opening)
		return waits(c, ch);
	if (ch->message && reply_is_empty(ch))
		return 0;
	size_t opening = reply_opening_bytes(ch);
	if (opening > OPENING_BYTES || (opening && !prompt_is_told(c, ch->prompt))) {
		ch->opening = 1;
		c->n_opening++;
		begin_stream(c);
		go_on_soon(c);
		return 0;
	}
	begin_stream(c);
	do
		if (send_event(c, ch) < 0)
			return ERR_FULL;
	while (reply_opening_bytes(ch));
	return 0;
}

void call_prompt_told(struct call *c)
{
	if (c->n_opening)
		pace_add(&c->r->pace, &c->paced);
}

static void too_slow(struct call *c)
{
	struct api_error e = {0};
	api_fault(&e, 503, CALL_NOT_TAKEN);
	call_fail(c, &e);
}

/* An event of the first choice that still has to send what it begins with. */
static int open_some(struct call *c)
{
	uint32_t i = 0;
	while (i < c->n_choices && !(c->choices[i].opening && prompt_is_told(c, c->choices[i].prompt)))
		i++;
	if (i == c->n_choices || !step_bytes(c))
		return 0;
	struct choice *ch = &c->choices[i];
	if (send_event(c, ch) < 0) {
		too_slow(c);
		return 0;
	}
	if (reply_opening_bytes(ch))
		return step_bytes(c) > 0;
	ch->opening = 0;
	if (--c->n_opening)
		return step_bytes(c) > 0;
	http_on_taken(c->conn, NULL, NULL);
	if (c->n_ended == c->n_choices)
		call_finish(c);
	return 0;
}

static void end_stream(struct call *c)
{
	struct buf *out = &c->r->out;
	begin_stream(c);
	buf_reset(out);
	if (c->p.include_usage)
		reply_usage_chunk(c, out);
	buf_adds(out, "data: [DONE]\n\n");
	if (http_stream_add(c->conn, out->data, out->len) < 0)
		http_drop(c->conn);
	else
		http_stream_end(c->conn);
	call_free(c);
}

/* --- whole answers ------------------------------------------------------- */

/* Its sequences are nobody's any more: they do not count while the client reads. */
static void release_sequences(struct call *c)
{
	c->r->n_sequences -= c->counted;
	c->counted = 0;
}

/* What is in router.out. 1: the call goes on; 0: it is gone. */
static int deliver(struct call *c, int end)
{
	struct buf *out = &c->r->out;
	if (out->full || http_stream_add(c->conn, out->data, out->len) < 0)
		http_drop(c->conn);
	else if (end)
		http_stream_end(c->conn);
	else
		return 1;
	call_free(c);
	return 0;
}

void call_write(struct call *c)
{
	struct buf *out = &c->r->out;
	char extra[160];
	c->over = 1;
	release_sequences(c);
	call_headers(c, 200, 0, extra, sizeof extra);
	buf_reset(out);
	size_t most = step_bytes(c);
	if (reply_more(c, out, most ? most : WHOLE_BYTES)) {
		http_reply(c->conn, 200, "application/json", extra, out->data, out->len);
		call_free(c);
		return;
	}
	if (!most) {
		struct api_error e = {0};
		api_fault(
			&e, 503,
			"this server has no room for the answer now (output_bytes_max); try again in a second");
		call_fail(c, &e);
		return;
	}
	c->writing = 1;
	c->deadline_us = clock_us() + c->r->conf.request_timeout_us;
	http_stream_begin(c->conn, "application/json", extra);
	if (deliver(c, 0))
		go_on_soon(c);
}

static int write_some(struct call *c)
{
	size_t most = step_bytes(c);
	if (!most)
		return 0;
	buf_reset(&c->r->out);
	return deliver(c, reply_more(c, &c->r->out, most)) && step_bytes(c);
}

void call_finish(struct call *c)
{
	if (!c->p.stream)
		call_write(c);
	else if (!c->n_opening)
		end_stream(c);
	else
		c->deadline_us = clock_us() + c->r->conf.request_timeout_us;
}

int call_step(struct paced *p)
{
	struct call *c = (struct call *)((char *)p - offsetof(struct call, paced));
	if (c->writing)
		return write_some(c);
	if (c->n_started < c->n_choices) {
		int more = call_start_some(c);
		return more < 0 ? 0 : more || c->n_opening;
	}
	return c->n_opening ? open_some(c) : 0;
}
