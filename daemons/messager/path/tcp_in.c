/* tcp_in.c - see tcp_in.h.
 *
 * tcp_in_step alone changes the state and frees the object. The payload of a frame goes straight
 * into the pool if that is host memory and nothing is encrypted, else by a staging buffer; in both
 * cases it counts as arrived only after its tag was found right. Two connections never
 * write the same pieces straight into the pool: the older one is cut, since its sender has given it
 * up. */
#include "tcp_in.h"

#include "tcp_priv.h"
#include "util/check.h"
#include "util/clock.h"
#include "util/least.h"
#include "util/log.h"
#include "util/mem.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { OUT_BYTES = FRAME_HEAD_BYTES * 32, REFUSAL_LOG_US = 10000000 };

enum where { TO_POOL, TO_STAGING, TO_NOWHERE };

struct tcp_in {
	struct tcp_transport *t;
	struct list node, stranger; /* in intake.conns; in tcp_transport.strangers */
	enum tcp_in_state state;
	struct tcp_intake *i; /* NULL: STRANGER */
	int fd;
	struct event *ev_read, *ev_write;
	uint64_t limit_us; /* when it must be UP */
	char from[64], why[160];
	struct hello said;
	unsigned char hello[HELLO_BYTES], nonce[NONCE_BYTES], in[HELLO_BYTES];
	size_t have; /* bytes in `in` */
	struct frame_keys keys, back_keys;
	uint64_t number, acked, back_number; /* number: of the last whole frame */
	/* the frame that arrives: in_frame 0: its header */
	struct {
		int in_frame;
		struct frame f;
		size_t got, wire_bytes;
		struct tcp_incoming *n; /* NULL: none, or it is not wanted */
		enum where where;
		enum frame_refusal refusal;
		unsigned char tag[FRAME_TAG_BYTES];
	};
	unsigned char *staging;
	size_t staging_bytes;
	unsigned char out[OUT_BYTES];
	size_t out_have;
};

enum tcp_in_event {
	TCP_IN_ON_READABLE,
	TCP_IN_ON_WRITABLE,
	TCP_IN_ON_LATE, /* it is not UP in time, or must make room */
	TCP_IN_ON_END   /* its intake ends, or another connection takes its place */
};

typedef enum tcp_in_state tcp_in_step_fn(struct tcp_in *c, enum tcp_in_event e);
static tcp_in_step_fn step_stranger, step_proving, step_up;

#define TO(s) (1u << TCP_IN_##s)
static const struct {
	unsigned next; /* states that may follow */
	tcp_in_step_fn *step;
} states[TCP_IN_STATE_COUNT] = {
	[TCP_IN_STRANGER] = {TO(PROVING) | TO(CLOSED), step_stranger},
	[TCP_IN_PROVING] = {TO(UP) | TO(CLOSED), step_proving},
	[TCP_IN_UP] = {TO(CLOSED), step_up},
	[TCP_IN_CLOSED] = {0, NULL},
};

static const char *state_name(enum tcp_in_state s)
{
	static const char *const names[] = {
#define X(name, text) [TCP_IN_##name] = text,
		TCP_IN_STATES(X)
#undef X
	};
	CHECK(s < TCP_IN_STATE_COUNT);
	return names[s];
}

/* Why the step that calls this returns CLOSED. Of a stranger nothing is known but its address, so
 * that a log line for each would let anyone fill the log. */
__attribute__((format(printf, 2, 3))) static void refuse(struct tcp_in *c, const char *fmt, ...)
{
	struct tcp_transport *t = c->t;
	uint64_t now_us = clock_us();
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(c->why, sizeof c->why, fmt, ap);
	va_end(ap);
	if (c->i) {
		tcp_side_error(&c->i->side, "from %s, %s: %s", c->from, state_name(c->state), c->why);
		return;
	}
	t->refused++;
	if (t->refusal_logged_us && now_us - t->refusal_logged_us < REFUSAL_LOG_US)
		return;
	t->refusal_logged_us = now_us;
	log_warn("path_stranger", "transport=tcp from=%s why=%s refused=%" PRIu64, c->from,
	         log_quote(c->why), t->refused);
}

static void tcp_in_free(struct tcp_in *c)
{
	event_free(c->ev_read);
	event_free(c->ev_write);
	close(c->fd);
	frame_keys_fini(&c->keys);
	frame_keys_fini(&c->back_keys);
	free(c->staging);
	sodium_memzero(c, sizeof *c);
	free(c);
}

static void leave_strangers(struct tcp_in *c)
{
	list_remove(&c->stranger);
	c->t->n_strangers--;
}

static void tcp_in_enter(struct tcp_in *c, enum tcp_in_state s)
{
	enum tcp_in_state from = c->state;
	if (!(states[from].next & 1u << s))
		PANIC("data connection in state %s cannot become %s", state_name(from), state_name(s));
	log_debug("path_connection", "transport=tcp peer=%s from=%s was=%s is=%s",
	          log_quote(c->i ? c->i->side.peer.name : ""), c->from, state_name(from),
	          state_name(s));
	c->state = s;
	if (from != TCP_IN_UP && s != TCP_IN_PROVING)
		leave_strangers(c);
	if (s == TCP_IN_PROVING) {
		list_push_back(&c->i->conns, &c->node);
	} else if (s == TCP_IN_UP) {
		tcp_side_count(&c->i->side, 1);
	} else {
		if (from == TCP_IN_UP) {
			snprintf(c->i->side.why, sizeof c->i->side.why, "%s", c->why);
			tcp_side_count(&c->i->side, -1);
		}
		list_remove(&c->node);
	}
}

/* The only function that changes the state. The connection may be freed afterwards. */
static void tcp_in_step(struct tcp_in *c, enum tcp_in_event e)
{
	enum tcp_in_state next = TCP_IN_CLOSED;
	if (e != TCP_IN_ON_END)
		next = states[c->state].step(c, e);
	if (next != c->state)
		tcp_in_enter(c, next);
	if (next == TCP_IN_CLOSED)
		tcp_in_free(c);
}

static void on_socket(evutil_socket_t fd, short what, void *arg)
{
	(void)fd;
	tcp_in_step(arg, what & EV_READ ? TCP_IN_ON_READABLE : TCP_IN_ON_WRITABLE);
}

/* --- handshake ----------------------------------------------------------- */

void tcp_in_accept(struct tcp_transport *t, int fd, const struct sockaddr *from, socklen_t bytes)
{
	if (t->n_strangers >= t->opts.strangers)
		tcp_in_step(tcp_in_of_stranger(t->strangers.next), TCP_IN_ON_LATE);
	struct tcp_in *c = mem_zalloc(sizeof *c);
	c->t = t;
	c->fd = fd;
	c->limit_us = clock_us() + t->opts.handshake_us;
	tcp_address_text(from, bytes, c->from, sizeof c->from);
	tcp_set_options(t, fd);
	list_init(&c->node);
	c->ev_read = event_new(t->base, fd, EV_READ | EV_PERSIST, on_socket, c);
	c->ev_write = event_new(t->base, fd, EV_WRITE | EV_PERSIST, on_socket, c);
	CHECK(c->ev_read && c->ev_write);
	list_push_back(&t->strangers, &c->stranger);
	t->n_strangers++;
	tcp_start_tick(t);
	event_add(c->ev_read, NULL);
}

/* Reads until c->in has `want` bytes. 1: it has; 0: some are missing; ERR_CLOSED. */
static int receive(struct tcp_in *c, size_t want)
{
	ssize_t n = recv(c->fd, c->in + c->have, want - c->have, 0);
	if (n > 0) {
		c->have += (size_t)n;
	} else if (n == 0 && c->state == TCP_IN_UP && c->have == 0) {
		snprintf(c->why, sizeof c->why, "closed by the sender");
		return ERR_CLOSED;
	} else if (n == 0 || (errno != EAGAIN && errno != EINTR)) {
		refuse(c, "%s", n == 0 ? "closed by the sender" : strerror(errno));
		return ERR_CLOSED;
	}
	if (c->have < want)
		return 0;
	c->have = 0;
	return 1;
}

static enum tcp_in_state step_stranger(struct tcp_in *c, enum tcp_in_event e)
{
	unsigned char welcome[WELCOME_BYTES];
	int got = e == TCP_IN_ON_READABLE ? receive(c, HELLO_BYTES) : ERR_TIMEOUT;
	if (got == 0)
		return TCP_IN_STRANGER;
	if (got == ERR_TIMEOUT)
		refuse(c, "no HELLO in time");
	if (got < 0)
		return TCP_IN_CLOSED;
	memcpy(c->hello, c->in, HELLO_BYTES);
	struct tcp_intake *i = NULL;
	if (hello_get(c->hello, &c->said) < 0 || !(i = map_get(c->t->pairs, &c->said.pair))) {
		refuse(c, "not a HELLO of a pair that is known");
		return TCP_IN_CLOSED;
	}
	c->i = i;
	if (hello_verify(c->hello, i->setup.secret) < 0)
		refuse(c, "HELLO without the pair's secret");
	else if (c->said.connection >= TCP_CONNECTIONS_MAX)
		refuse(c, "connection %u: the limit is %u", c->said.connection, TCP_CONNECTIONS_MAX);
	else if (i->setup.encrypt && c->said.cipher == CIPHER_NONE)
		refuse(c, "not encrypted: encryption is required");
	else if (c->said.cipher == CIPHER_AES256GCM && !c->t->aes)
		refuse(c, "%s: this CPU does not have it", cipher_name(c->said.cipher));
	else {
		randombytes_buf(c->nonce, sizeof c->nonce);
		welcome_put(welcome, c->hello, c->nonce, i->setup.secret);
		/* an empty send buffer has room for it */
		if (send(c->fd, welcome, sizeof welcome, MSG_NOSIGNAL) == (ssize_t)sizeof welcome)
			return TCP_IN_PROVING;
		refuse(c, "cannot send WELCOME: %s", strerror(errno));
	}
	return TCP_IN_CLOSED;
}

/* The sender made this connection again and has given the other up. */
static void replace(const struct tcp_in *c)
{
	list_each_safe(it, next, &c->i->conns) {
		struct tcp_in *other = tcp_in_of(it);
		if (other != c && other->state == TCP_IN_UP && other->said.connection == c->said.connection)
			tcp_in_close(other);
	}
}

static enum tcp_in_state step_proving(struct tcp_in *c, enum tcp_in_event e)
{
	const unsigned char *secret = c->i->setup.secret;
	int got = e == TCP_IN_ON_READABLE ? receive(c, PROOF_BYTES) : ERR_TIMEOUT;
	if (got == 0)
		return TCP_IN_PROVING;
	if (got == ERR_TIMEOUT)
		refuse(c, "no PROOF in time");
	if (got < 0)
		return TCP_IN_CLOSED;
	if (proof_verify(c->in, c->hello, c->nonce, secret) < 0) {
		refuse(c, "wrong PROOF: a replayed HELLO?");
		return TCP_IN_CLOSED;
	}
	if (frame_keys_init(&c->keys, c->said.cipher, FRAMES_OUT, c->hello, c->nonce, secret) < 0 ||
	    frame_keys_init(&c->back_keys, CIPHER_NONE, FRAMES_BACK, c->hello, c->nonce, secret) < 0) {
		refuse(c, "libcrypto has no %s", cipher_name(c->said.cipher));
		return TCP_IN_CLOSED;
	}
	replace(c);
	c->i->side.state.restarts += c->i->made >> c->said.connection & 1u;
	c->i->made |= 1u << c->said.connection;
	return TCP_IN_UP;
}

/* --- up: what goes out --------------------------------------------------- */

static int has_room(const struct tcp_in *c, size_t frames)
{
	return OUT_BYTES - c->out_have >= frames * FRAME_HEAD_BYTES;
}

static void answer(struct tcp_in *c, struct frame f)
{
	CHECK(has_room(c, 1));
	f.number = ++c->back_number;
	frame_put(c->out + c->out_have, &f, &c->back_keys);
	c->out_have += FRAME_HEAD_BYTES;
}

/* Sends the answers. 0 (some may wait until the socket is writable) or ERR_CLOSED. Without room for
 * a refusal of another frame and for its acknowledgement nothing more is read. */
static int flush(struct tcp_in *c)
{
	if (c->number > c->acked) {
		c->acked = c->number;
		answer(c, (struct frame){.type = FRAME_ACK, .sum = c->acked});
	}
	ssize_t n = c->out_have ? send(c->fd, c->out, c->out_have, MSG_NOSIGNAL) : 0;
	if (n < 0 && errno != EAGAIN && errno != EINTR) {
		refuse(c, "cannot send: %s", strerror(errno));
		return ERR_CLOSED;
	}
	if (n > 0) {
		memmove(c->out, c->out + n, c->out_have - (size_t)n);
		c->out_have -= (size_t)n;
	}
	int waits = c->out_have > 0;
	if (waits != !!event_pending(c->ev_write, EV_WRITE, NULL))
		waits ? event_add(c->ev_write, NULL) : event_del(c->ev_write);
	int reads = has_room(c, 2);
	if (reads != !!event_pending(c->ev_read, EV_READ, NULL))
		reads ? event_add(c->ev_read, NULL) : event_del(c->ev_read);
	return 0;
}

/* --- up: what comes in --------------------------------------------------- */

/* The lease's own rules for a frame. */
static enum frame_refusal look(const struct tcp_in *c)
{
	const struct frame *f = &c->f;
	const struct tcp_incoming *n = c->n;
	if (!n)
		return REFUSED_CLOSED;
	const struct kv_layout *l = n->o.layout;
	if (f->layer >= l->layers || f->n == 0 || f->n > n->o.blocks || f->first > n->o.blocks - f->n ||
	    f->length != (uint64_t)f->n * l->piece_bytes[f->layer])
		return REFUSED_MALFORMED;
	for (uint32_t b = f->first; b < f->first + f->n; b++)
		if (incoming_look(n, f->layer, b) < 0)
			return REFUSED_STALE;
	return REFUSED_NOT;
}

static void drop(struct tcp_in *c, enum frame_refusal why)
{
	c->n = NULL;
	c->where = TO_NOWHERE;
	c->refusal = why;
	if (why == REFUSED_MALFORMED)
		tcp_side_error(&c->i->side,
		               "from %s: a frame of %u bytes for layer %u, blocks %u and %u more is not of "
		               "lease %u",
		               c->from, c->f.length, c->f.layer, c->f.first, c->f.n, c->f.handle);
}

/* Other connections that write pieces of the same frame. */
static void cut_overlapping(const struct tcp_in *c)
{
	list_each_safe(it, next, &c->i->conns) {
		struct tcp_in *o = tcp_in_of(it);
		if (o != c && o->in_frame && o->n == c->n && o->f.layer == c->f.layer &&
		    o->f.first < c->f.first + c->f.n && c->f.first < o->f.first + o->f.n)
			tcp_in_close(o);
	}
}

static int staging_grow(struct tcp_in *c, size_t bytes)
{
	if (c->staging_bytes >= bytes)
		return 0;
	unsigned char *more = mem_try_grow(c->staging, bytes, 1);
	if (!more)
		return ERR_NOMEM;
	c->staging = more;
	c->staging_bytes = bytes;
	return 0;
}

/* The header has arrived: whither with the payload? 0, or ERR_*: the connection ends. */
static int begin_frame(struct tcp_in *c)
{
	struct frame *f = &c->f;
	int encrypted = c->keys.cipher != CIPHER_NONE;
	if (frame_get(c->in, f, &c->keys) < 0) {
		refuse(c, "a frame's header is forged or damaged");
		return ERR_CORRUPT;
	}
	if (f->number != c->number + 1 || f->length > FRAME_PAYLOAD_MAX ||
	    (f->type != FRAME_DATA && f->type != FRAME_CANARY)) {
		refuse(c, "frame %" PRIu64 " of type %d with %u bytes after frame %" PRIu64 " (limit %u)",
		       f->number, f->type, f->length, c->number, FRAME_PAYLOAD_MAX);
		return ERR_INVALID;
	}
	c->in_frame = 1;
	c->got = 0;
	c->wire_bytes = f->length + FRAME_TAG_BYTES;
	c->refusal = REFUSED_NOT;
	c->n = f->type == FRAME_DATA ? intake_find(c->i, f->handle, f->generation) : NULL;
	c->where = c->n && c->n->o.to->pool->host && !encrypted ? TO_POOL : TO_STAGING;
	if (f->type == FRAME_DATA) {
		enum frame_refusal why = look(c);
		if (why)
			drop(c, why);
		else
			cut_overlapping(c);
	}
	if (c->where == TO_STAGING && staging_grow(c, f->length) < 0) {
		refuse(c, "no memory for a frame of %u bytes", f->length);
		return ERR_NOMEM;
	}
	frame_open_begin(&c->keys, c->in, f->number);
	return 0;
}

/* Payload bytes that are missing. */
static size_t payload_left(const struct tcp_in *c)
{
	return c->got < c->f.length ? c->f.length - c->got : 0;
}

/* Where the next bytes of the payload go, at most `left`, if that is the pool; each piece is looked
 * at again right before it is written. Returns the number of runs; 0: the frame is dropped. */
static int pool_runs(struct tcp_in *c, struct iovec *iov, size_t left, size_t *ret_bytes)
{
	const struct tcp_incoming *n = c->n;
	const struct kv_layout *l = n->o.layout;
	const size_t piece = l->piece_bytes[c->f.layer];
	size_t sum = 0;
	int used = 0;
	while (sum < left && used < TCP_IOV_MAX - 1) {
		size_t at = c->got + sum, part = least(piece - at % piece, left - sum);
		uint32_t b = c->f.first + (uint32_t)(at / piece);
		int seen = incoming_look(n, c->f.layer, b);
		if (seen < 0) {
			drop(c, REFUSED_STALE);
			return 0;
		}
		unsigned char *to = c->t->scratch + sum;
		if (!seen)
			to = n->o.to->pool->host + at % piece +
			     kv_piece_offset(l, n->o.to->blocks, c->f.layer, n->dst[b]);
		if (used && (unsigned char *)iov[used - 1].iov_base + iov[used - 1].iov_len == to)
			iov[used - 1].iov_len += part;
		else
			iov[used++] = (struct iovec){to, part};
		sum += part;
	}
	*ret_bytes = sum;
	return used;
}

/* Where the next bytes go: the payload, then its tag. Returns the number of runs. */
static int next_runs(struct tcp_in *c, struct iovec *iov, size_t most)
{
	size_t left = least(c->wire_bytes - c->got, least(most, TCP_READ_MAX)),
		   payload = least(left, payload_left(c)), sum = 0;
	int used = payload && c->where == TO_POOL ? pool_runs(c, iov, payload, &sum) : 0;
	if (payload && !used) {
		iov[used++] = (struct iovec){c->where == TO_STAGING ? c->staging + c->got : c->t->scratch,
		                             payload};
		sum = payload;
	}
	if (sum == payload && left > payload)
		iov[used++] = (struct iovec){c->tag + (c->got + payload - c->f.length), left - payload};
	return used;
}

/* The payload is in the staging buffer. 0, or ERR_*: the connection ends. */
static int end_staged(struct tcp_in *c)
{
	struct err err;
	if (!c->n)
		return 0;
	int r = incoming_write(c->n, &c->f, c->staging, &err);
	if (r == ERR_STALE)
		drop(c, REFUSED_STALE);
	else if (r < 0)
		refuse(c, "%s", err.text);
	if (r == ERR_CLOSED && c->t->opts.lost)
		c->t->opts.lost(err.text);
	return r == ERR_STALE ? 0 : r;
}

/* The payload is complete. 0, or ERR_*: the connection ends. */
static int end_frame(struct tcp_in *c)
{
	struct tcp_incoming *n = c->n;
	if (c->where != TO_NOWHERE && frame_open_end(&c->keys, c->tag) < 0) {
		refuse(c, "frame %" PRIu64 " is forged or damaged", c->f.number);
		return ERR_CORRUPT;
	}
	if (c->where == TO_STAGING && end_staged(c) < 0)
		return ERR_CORRUPT;
	if (n && c->where != TO_NOWHERE) {
		enum frame_refusal why = look(c); /* their generations may have changed meanwhile */
		if (why)
			drop(c, why);
		else
			incoming_arrived(n, c->f.layer, c->f.first, c->f.n);
	}
	if (c->refusal)
		answer(c, (struct frame){.type = FRAME_REFUSE,
		                         .handle = c->f.handle,
		                         .generation = c->f.generation,
		                         .n = c->refusal});
	c->number++;
	c->in_frame = 0;
	c->n = NULL;
	return 0;
}

/* Receives a part of the payload. The number of bytes, 0: there are none now, or ERR_*. */
static ssize_t receive_payload(struct tcp_in *c, size_t most)
{
	struct iovec iov[TCP_IOV_MAX];
	struct msghdr m = {.msg_iov = iov};
	m.msg_iovlen = (size_t)next_runs(c, iov, most);
	ssize_t n = recvmsg(c->fd, &m, 0);
	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return 0;
	if (n <= 0) {
		refuse(c, "%s in frame %" PRIu64, n == 0 ? "closed by the sender" : strerror(errno),
		       c->f.number);
		return ERR_CLOSED;
	}
	if (c->where != TO_NOWHERE) /* while they are in the cache */
		for (size_t i = 0, left = least((size_t)n, payload_left(c)), part; left; left -= part) {
			part = least(left, iov[i].iov_len);
			frame_open_add(&c->keys, iov[i++].iov_base, part);
		}
	c->got += (size_t)n;
	return n;
}

/* Receives up to turn_bytes. 0 or ERR_*. */
static int read_turn(struct tcp_in *c)
{
	size_t left = c->t->opts.turn_bytes;
	while (left && has_room(c, 2)) {
		ssize_t n = FRAME_HEAD_BYTES;
		if (!c->in_frame) {
			int got = receive(c, FRAME_HEAD_BYTES);
			if (got <= 0)
				return got;
			if (begin_frame(c) < 0)
				return ERR_CORRUPT;
		}
		if (c->got < c->wire_bytes && (n = receive_payload(c, left)) <= 0)
			return (int)n;
		if (c->got == c->wire_bytes && end_frame(c) < 0)
			return ERR_CORRUPT;
		left -= least(left, (uint64_t)n);
	}
	return 0;
}

static enum tcp_in_state step_up(struct tcp_in *c, enum tcp_in_event e)
{
	if (e == TCP_IN_ON_READABLE && read_turn(c) < 0)
		return TCP_IN_CLOSED;
	return flush(c) < 0 ? TCP_IN_CLOSED : TCP_IN_UP;
}

/* --- for its intake ------------------------------------------------------ */

struct tcp_in *tcp_in_of(struct list *node)
{
	return list_entry(node, struct tcp_in, node);
}

struct tcp_in *tcp_in_of_stranger(struct list *node)
{
	return list_entry(node, struct tcp_in, stranger);
}

void tcp_in_tick(struct tcp_in *c, uint64_t now_us)
{
	if (now_us >= c->limit_us)
		tcp_in_step(c, TCP_IN_ON_LATE);
}

void tcp_in_close(struct tcp_in *c)
{
	snprintf(c->why, sizeof c->why, "closed: it ends, or was made again");
	tcp_in_step(c, TCP_IN_ON_END);
}

void tcp_in_forget(struct tcp_in *c, const struct tcp_incoming *n)
{
	if (c->in_frame && c->n == n)
		drop(c, REFUSED_CLOSED);
}

int tcp_in_is_up(const struct tcp_in *c)
{
	return c->state == TCP_IN_UP;
}

const char *tcp_in_from(const struct tcp_in *c)
{
	return c->from;
}

enum cipher tcp_in_cipher(const struct tcp_in *c)
{
	return c->keys.cipher;
}

int tcp_in_fd(const struct tcp_in *c)
{
	return c->fd;
}
