/* tcp_out.c - see tcp_out.h.
 *
 * tcp_out_step alone changes the state, and what a state needs is made and released there. What
 * fails in a step is noted by `cut`, and the connection waits for its next attempt. */
#include "tcp_out.h"

#include "tcp_priv.h"
#include "util/check.h"
#include "util/clock.h"
#include "util/least.h"
#include "util/log.h"
#include "util/mem.h"

#include <errno.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
	FRAMES_MAX = 256, /* unacknowledged on one connection */
	IN_BYTES = FRAME_HEAD_BYTES * 16
};

/* A frame that was begun and is not acknowledged. */
struct sent {
	struct tcp_outgoing *o; /* NULL: it has ended, or a canary */
	uint32_t layer, first, n, bytes;
	uint64_t canary_us; /* when it was sent; 0: no canary */
};

struct lookup {
	struct tcp_out *c; /* NULL: cancelled */
	struct tcp_transport *t;
	struct evdns_getaddrinfo_request *request;
	int asking, found; /* asking: within evdns_getaddrinfo; found: 1 or -1 */
};

struct tcp_out {
	struct tcp_path *p;
	uint32_t number;
	enum tcp_out_state state;
	int fd;
	struct event *ev_read, *ev_write, *ev_timer;
	uint32_t failures; /* since it was last up for a while */
	uint64_t up_us;    /* since when; 0: never */
	char why[160];     /* it was cut */
	struct lookup *lookup;
	struct sockaddr_storage to;
	socklen_t to_bytes;
	unsigned char hello[HELLO_BYTES], in[IN_BYTES];
	size_t have; /* bytes in `in` */
	struct frame_keys keys, back_keys;
	uint64_t back_number; /* of the next frame from the receiver */
	/* frames [acked + 1, next) are in sent[number % FRAMES_MAX] */
	struct sent sent[FRAMES_MAX];
	uint64_t acked, next, progress_us;
	/* the frame that is being written: frame_bytes 0: none */
	struct {
		size_t frame_bytes, at;
		const unsigned char *payload; /* NULL: straight from the pool */
		unsigned char head[FRAME_HEAD_BYTES], tag[FRAME_TAG_BYTES];
	};
	unsigned char *staging;
	size_t staging_bytes;
};

enum tcp_out_event {
	TCP_OUT_ON_TIMER,
	TCP_OUT_ON_RESOLVED, /* c->to */
	TCP_OUT_ON_UNRESOLVED,
	TCP_OUT_ON_READABLE,
	TCP_OUT_ON_WRITABLE,
	TCP_OUT_ON_END
};

typedef enum tcp_out_state tcp_out_step_fn(struct tcp_out *c, enum tcp_out_event e);
static tcp_out_step_fn step_waiting, step_resolving, step_connecting, step_greeting, step_up;

#define TO(s) (1u << TCP_OUT_##s)
static const struct {
	unsigned next; /* states that may follow */
	tcp_out_step_fn *step;
} states[TCP_OUT_STATE_COUNT] = {
	[TCP_OUT_WAITING] = {TO(RESOLVING) | TO(CONNECTING) | TO(CLOSED), step_waiting},
	[TCP_OUT_RESOLVING] = {TO(CONNECTING) | TO(WAITING) | TO(CLOSED), step_resolving},
	[TCP_OUT_CONNECTING] = {TO(GREETING) | TO(WAITING) | TO(CLOSED), step_connecting},
	[TCP_OUT_GREETING] = {TO(UP) | TO(WAITING) | TO(CLOSED), step_greeting},
	[TCP_OUT_UP] = {TO(WAITING) | TO(CLOSED), step_up},
	[TCP_OUT_CLOSED] = {0, NULL},
};

static const char *state_name(enum tcp_out_state s)
{
	static const char *const names[] = {
#define X(name, text) [TCP_OUT_##name] = text,
		TCP_OUT_STATES(X)
#undef X
	};
	CHECK(s < TCP_OUT_STATE_COUNT);
	return names[s];
}

/* Why the step that calls this returns WAITING. */
__attribute__((format(printf, 2, 3))) static void cut(struct tcp_out *c, const char *fmt, ...)
{
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(c->why, sizeof c->why, fmt, ap);
	va_end(ap);
	tcp_side_error(&c->p->side, "connection %u, %s: %s", c->number, state_name(c->state), c->why);
	snprintf(c->p->side.why, sizeof c->p->side.why, "%s", c->why);
}

/* --- what a state has ---------------------------------------------------- */

static void set_timer(struct tcp_out *c, uint64_t us)
{
	const struct timeval tv = clock_timeval(us);
	event_add(c->ev_timer, &tv);
}

/* Before the next attempt: at first all pairs of a host that starts begin at about the same time */
static uint64_t backoff_us(const struct tcp_out *c)
{
	const struct tcp_opts *o = &c->p->side.t->opts;
	if (c->failures == 0)
		return tcp_jitter(o->backoff_us) / 4;
	return tcp_jitter(least(o->backoff_us << least(c->failures - 1, 10), o->backoff_max_us));
}

static void await_next(struct tcp_out *c)
{
	c->failures++;
	set_timer(c, backoff_us(c));
}

static void lookup_cancel(struct tcp_out *c)
{
	if (!c->lookup)
		return;
	struct lookup *l = c->lookup;
	c->lookup = NULL;
	l->c = NULL;
	evdns_getaddrinfo_cancel(l->request);
}

/* Releases the socket. What was not acknowledged is to be sent again. */
static void disconnect(struct tcp_out *c)
{
	struct tcp_path *p = c->p;
	if (c->fd >= 0) {
		event_free(c->ev_read);
		event_free(c->ev_write);
		close(c->fd);
	}
	c->fd = -1;
	c->ev_read = c->ev_write = NULL;
	for (uint64_t i = c->acked + 1; i < c->next; i++) {
		const struct sent *s = &c->sent[i % FRAMES_MAX];
		if (s->canary_us) {
			p->canary_out = 0;
			p->side.state.canaries_lost++;
		} else if (s->o) {
			outgoing_again(s->o, s->layer, s->first, s->n);
		}
	}
	c->acked = 0;
	c->next = 1;
	c->frame_bytes = c->have = 0;
	frame_keys_fini(&c->keys);
	frame_keys_fini(&c->back_keys);
}

static void tcp_out_enter(struct tcp_out *c, enum tcp_out_state s)
{
	enum tcp_out_state from = c->state;
	if (!(states[from].next & 1u << s))
		PANIC("data connection in state %s cannot become %s", state_name(from), state_name(s));
	log_debug("path_connection", "transport=tcp peer=%s connection=%u from=%s to=%s",
	          log_quote(c->p->side.peer.name), c->number, state_name(from), state_name(s));
	c->state = s;
	if (from == TCP_OUT_UP) {
		tcp_side_count(&c->p->side, -1);
		if (clock_us() - c->up_us > 1000000)
			c->failures = 0;
	}
	if (s == TCP_OUT_WAITING || s == TCP_OUT_CLOSED) {
		lookup_cancel(c);
		disconnect(c);
		event_del(c->ev_timer);
	}
	if (s == TCP_OUT_WAITING) {
		await_next(c);
		path_kick(c->p);
	} else if (s == TCP_OUT_UP) {
		event_del(c->ev_timer);
		c->p->side.state.restarts += c->up_us != 0;
		c->up_us = c->progress_us = clock_us();
		tcp_side_count(&c->p->side, 1);
		tcp_out_wake(c);
	} else if (s != TCP_OUT_CLOSED) {
		set_timer(c, c->p->side.t->opts.handshake_us);
	}
}

/* The only function that changes the state. */
static void tcp_out_step(struct tcp_out *c, enum tcp_out_event e)
{
	enum tcp_out_state next = TCP_OUT_CLOSED;
	if (e != TCP_OUT_ON_END)
		next = states[c->state].step(c, e);
	if (next != c->state)
		tcp_out_enter(c, next);
}

static void on_socket(evutil_socket_t fd, short what, void *arg)
{
	(void)fd;
	tcp_out_step(arg, what & EV_READ ? TCP_OUT_ON_READABLE : TCP_OUT_ON_WRITABLE);
}

static void on_timer(evutil_socket_t fd, short what, void *arg)
{
	(void)fd, (void)what;
	tcp_out_step(arg, TCP_OUT_ON_TIMER);
}

/* --- to the receiver's address ------------------------------------------- */

static enum tcp_out_state connect_to(struct tcp_out *c)
{
	struct tcp_transport *t = c->p->side.t;
	c->fd = socket(c->to.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	if (c->fd < 0) {
		cut(c, "no socket: %s", strerror(errno));
		return TCP_OUT_WAITING;
	}
	tcp_set_options(t, c->fd);
	c->ev_read = event_new(t->base, c->fd, EV_READ | EV_PERSIST, on_socket, c);
	c->ev_write = event_new(t->base, c->fd, EV_WRITE | EV_PERSIST, on_socket, c);
	CHECK(c->ev_read && c->ev_write);
	if (connect(c->fd, (struct sockaddr *)&c->to, c->to_bytes) < 0 && errno != EINPROGRESS) {
		cut(c, "cannot connect: %s", strerror(errno));
		return TCP_OUT_WAITING;
	}
	event_add(c->ev_write, NULL);
	return TCP_OUT_CONNECTING;
}

/* The port is the receiver's, as SETUP says; the host is that of the control link. */
static void set_to(struct tcp_out *c, const struct sockaddr *a, size_t bytes)
{
	in_port_t port = htons((uint16_t)c->p->setup.port);
	memcpy(&c->to, a, bytes);
	c->to_bytes = (socklen_t)bytes;
	if (a->sa_family == AF_INET6)
		((struct sockaddr_in6 *)&c->to)->sin6_port = port;
	else
		((struct sockaddr_in *)&c->to)->sin_port = port;
	c->p->to = c->to;
}

static void on_resolved(int result, struct evutil_addrinfo *found, void *arg)
{
	struct lookup *l = arg;
	struct tcp_out *c = l->c;
	l->t->n_lookups--;
	l->found = -1;
	if (c && result == 0 && found && found->ai_addrlen <= sizeof c->to &&
	    (found->ai_family == AF_INET || found->ai_family == AF_INET6)) {
		set_to(c, found->ai_addr, found->ai_addrlen);
		l->found = 1;
	}
	if (found)
		evutil_freeaddrinfo(found);
	if (l->asking)
		return;
	int ok = l->found > 0;
	free(l);
	if (c) {
		c->lookup = NULL;
		tcp_out_step(c, ok ? TCP_OUT_ON_RESOLVED : TCP_OUT_ON_UNRESOLVED);
	}
}

/* Asks again at each attempt: the host may have moved. */
static enum tcp_out_state resolve(struct tcp_out *c)
{
	struct tcp_transport *t = c->p->side.t;
	const struct evutil_addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
	if (!t->dns)
		t->dns = evdns_base_new(t->base, EVDNS_BASE_INITIALIZE_NAMESERVERS |
		                                     EVDNS_BASE_DISABLE_WHEN_INACTIVE);
	if (!t->dns) {
		cut(c, "cannot resolve %s: no resolver (/etc/resolv.conf)", c->p->side.peer.host);
		return TCP_OUT_WAITING;
	}
	struct lookup *l = mem_zalloc(sizeof *l);
	*l = (struct lookup){.c = c, .t = t, .asking = 1};
	t->n_lookups++;
	l->request = evdns_getaddrinfo(t->dns, c->p->side.peer.host, NULL, &hints, on_resolved, l);
	l->asking = 0;
	if (!l->found) {
		c->lookup = l;
		return TCP_OUT_RESOLVING;
	}
	int ok = l->found > 0;
	free(l);
	if (ok)
		return connect_to(c);
	cut(c, "cannot resolve %s", c->p->side.peer.host);
	return TCP_OUT_WAITING;
}

static enum tcp_out_state step_waiting(struct tcp_out *c, enum tcp_out_event e)
{
	struct sockaddr_storage at;
	int bytes = sizeof at;
	enum tcp_out_state next = TCP_OUT_WAITING;
	if (e != TCP_OUT_ON_TIMER)
		return TCP_OUT_WAITING;
	if (evutil_parse_sockaddr_port(c->p->side.peer.host, (struct sockaddr *)&at, &bytes) < 0) {
		next = resolve(c);
	} else {
		set_to(c, (struct sockaddr *)&at, (size_t)bytes);
		next = connect_to(c);
	}
	if (next == TCP_OUT_RESOLVING)
		return TCP_OUT_RESOLVING;
	if (next == TCP_OUT_CONNECTING)
		return TCP_OUT_CONNECTING;
	disconnect(c);
	await_next(c);
	return TCP_OUT_WAITING;
}

static enum tcp_out_state step_resolving(struct tcp_out *c, enum tcp_out_event e)
{
	if (e == TCP_OUT_ON_RESOLVED)
		return connect_to(c) == TCP_OUT_CONNECTING ? TCP_OUT_CONNECTING : TCP_OUT_WAITING;
	cut(c, "cannot resolve %s%s", c->p->side.peer.host,
	    e == TCP_OUT_ON_TIMER ? ": no answer in time" : "");
	return TCP_OUT_WAITING;
}

/* --- handshake ----------------------------------------------------------- */

static enum tcp_out_state step_connecting(struct tcp_out *c, enum tcp_out_event e)
{
	int error = 0;
	socklen_t bytes = sizeof error;
	struct hello h = {c->p->setup.pair, c->number, path_cipher(c->p), {0}};
	if (e != TCP_OUT_ON_WRITABLE) {
		cut(c, "cannot connect: no answer in time");
		return TCP_OUT_WAITING;
	}
	if (getsockopt(c->fd, SOL_SOCKET, SO_ERROR, &error, &bytes) < 0 || error) {
		cut(c, "cannot connect: %s", strerror(error ? error : errno));
		return TCP_OUT_WAITING;
	}
	randombytes_buf(h.nonce, sizeof h.nonce);
	hello_put(c->hello, &h, c->p->setup.secret);
	/* an empty send buffer has room for it */
	if (send(c->fd, c->hello, HELLO_BYTES, MSG_NOSIGNAL) != (ssize_t)HELLO_BYTES) {
		cut(c, "cannot send HELLO: %s", strerror(errno));
		return TCP_OUT_WAITING;
	}
	event_del(c->ev_write);
	event_add(c->ev_read, NULL);
	return TCP_OUT_GREETING;
}

/* Reads up to `most` bytes in all into c->in. 0 (some may be missing), or ERR_CLOSED. */
static int receive(struct tcp_out *c, size_t most)
{
	ssize_t n = recv(c->fd, c->in + c->have, most - c->have, 0);
	if (n > 0)
		c->have += (size_t)n;
	else if (n == 0 || (errno != EAGAIN && errno != EINTR)) {
		cut(c, "%s", n == 0 ? "closed by the receiver" : strerror(errno));
		return ERR_CLOSED;
	}
	return 0;
}

static enum tcp_out_state step_greeting(struct tcp_out *c, enum tcp_out_event e)
{
	const unsigned char *secret = c->p->setup.secret;
	unsigned char proof[PROOF_BYTES];
	if (e != TCP_OUT_ON_READABLE) {
		cut(c, "no WELCOME in time");
		return TCP_OUT_WAITING;
	}
	if (receive(c, WELCOME_BYTES) < 0)
		return TCP_OUT_WAITING;
	if (c->have < WELCOME_BYTES)
		return TCP_OUT_GREETING;
	c->have = 0;
	if (welcome_verify(c->in, c->hello, secret) < 0) {
		cut(c, "the receiver could not prove that it has the secret");
		return TCP_OUT_WAITING;
	}
	proof_put(proof, c->hello, c->in, secret);
	if (send(c->fd, proof, sizeof proof, MSG_NOSIGNAL) != (ssize_t)sizeof proof) {
		cut(c, "cannot send PROOF: %s", strerror(errno));
		return TCP_OUT_WAITING;
	}
	enum cipher cipher = path_cipher(c->p);
	if (frame_keys_init(&c->keys, cipher, FRAMES_OUT, c->hello, c->in, secret) < 0 ||
	    frame_keys_init(&c->back_keys, CIPHER_NONE, FRAMES_BACK, c->hello, c->in, secret) < 0) {
		cut(c, "libcrypto has no %s", cipher_name(cipher));
		return TCP_OUT_WAITING;
	}
	c->back_number = 1;
	return TCP_OUT_UP;
}

/* --- up: what comes in --------------------------------------------------- */

static int acked(struct tcp_out *c, uint64_t upto)
{
	struct tcp_path *p = c->p;
	uint64_t whole = c->next - 1 - (c->frame_bytes != 0), now_us = clock_us();
	if (upto > whole) {
		cut(c, "%" PRIu64 " frames acknowledged of %" PRIu64, upto, whole);
		return ERR_INVALID;
	}
	for (; c->acked < upto; c->progress_us = now_us) {
		const struct sent *s = &c->sent[++c->acked % FRAMES_MAX];
		if (s->canary_us) {
			struct path_state *st = &p->side.state;
			p->canary_out = 0;
			st->canaries++;
			st->canary_us = now_us > s->canary_us ? now_us - s->canary_us : 1;
			st->canary_mbit_s = (uint64_t)TCP_CANARY_BYTES * 8 / st->canary_us;
		} else if (s->o) {
			outgoing_acked(s->o, s->bytes);
		}
	}
	return 0;
}

static int take_frames(struct tcp_out *c)
{
	size_t at = 0;
	for (; c->have - at >= FRAME_HEAD_BYTES; at += FRAME_HEAD_BYTES) {
		struct frame f;
		if (frame_get(c->in + at, &f, &c->back_keys) < 0 || f.number != c->back_number++ ||
		    f.length != 0 || (f.type != FRAME_ACK && f.type != FRAME_REFUSE)) {
			cut(c, "a forged or damaged answer");
			return ERR_CORRUPT;
		}
		if (f.type == FRAME_REFUSE)
			path_refused(c->p, &f);
		else if (acked(c, f.sum) < 0)
			return ERR_INVALID;
	}
	memmove(c->in, c->in + at, c->have - at);
	c->have -= at;
	return 0;
}

/* --- up: what goes out --------------------------------------------------- */

static int has_room(const struct tcp_out *c)
{
	return c->next - c->acked - 1 < FRAMES_MAX;
}

static int staging_grow(struct tcp_out *c, size_t bytes)
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

/* Copies the pieces into the staging buffer, which has room for them. 0 or ERR_*, then the outgoing
 * has failed. */
static int stage(struct tcp_out *c, struct tcp_outgoing *o, const struct sent *s)
{
	const struct kv_layout *l = o->o.layout;
	const size_t piece = l->piece_bytes[s->layer];
	struct kern_ticket last = {0};
	char why[256] = "";
	int rc = KERN_OK;
	for (uint32_t i = 0, run; i < s->n && !rc; i += run) {
		const uint32_t *src = o->src + s->first + i;
		for (run = 1; i + run < s->n && src[run] == src[0] + run;)
			run++;
		const struct kern_piece part = {(uintptr_t)(c->staging + i * piece),
		                                kv_piece_offset(l, o->o.from->blocks, s->layer, src[0]),
		                                run * piece};
		const struct kern_copy copy = {.from = o->o.from->pool, .piece = &part, .n = 1};
		rc = kern_copy(&copy, &last, why, sizeof why);
	}
	char later[64]; /* discarded: the first error is reported */
	int waited = kern_wait(&last, rc ? later : why, rc ? sizeof later : sizeof why);
	rc = rc ? rc : waited;
	if (rc)
		outgoing_fail(o, rc == KERN_ELOST ? ERR_CLOSED : ERR_IO, "cannot read layer %u: %s",
		              s->layer, why);
	return rc ? ERR_IO : 0;
}

/* The payload's runs in the pool, or the staging buffer. */
static int payload_runs(const struct tcp_out *c, const struct sent *s, size_t at, struct iovec *iov,
                        int max)
{
	if (!c->payload)
		return outgoing_runs(s->o, s->layer, s->first, s->n, at, iov, max);
	iov[0] = (struct iovec){(void *)(c->payload + at), s->bytes - at};
	return 1;
}

/* The tag of the payload; encrypted, that goes from where it lies, which may be the staging buffer,
 * into the staging buffer. */
static void seal(struct tcp_out *c, const struct sent *s)
{
	struct iovec iov[TCP_IOV_MAX];
	frame_seal_begin(&c->keys, c->head, c->next);
	for (size_t at = 0; at < s->bytes;) {
		int n = payload_runs(c, s, at, iov, TCP_IOV_MAX);
		for (int i = 0; i < n; at += iov[i++].iov_len)
			frame_seal_add(&c->keys, iov[i].iov_base, iov[i].iov_len, c->staging + at);
	}
	frame_seal_end(&c->keys, c->tag);
	if (c->keys.cipher != CIPHER_NONE)
		c->payload = c->staging;
}

/* Makes the frame of *s, whose bytes are readable, the one that is written. */
static void begin_frame(struct tcp_out *c, const struct sent *s)
{
	struct frame f = {.type = s->canary_us ? FRAME_CANARY : FRAME_DATA,
	                  .length = s->bytes,
	                  .number = c->next,
	                  .layer = s->layer,
	                  .first = s->first,
	                  .n = s->n};
	if (s->o) {
		f.handle = s->o->handle;
		f.generation = s->o->generation;
	}
	c->at = 0;
	c->frame_bytes = FRAME_HEAD_BYTES + s->bytes + FRAME_TAG_BYTES;
	frame_put(c->head, &f, &c->keys);
	seal(c, s);
	if (c->acked + 1 == c->next)
		c->progress_us = clock_us();
	c->sent[c->next++ % FRAMES_MAX] = *s;
}

static int begin_canary(struct tcp_out *c)
{
	const struct sent s = {.bytes = TCP_CANARY_BYTES, .canary_us = clock_us()};
	c->p->canary_due = 0;
	if (staging_grow(c, s.bytes) < 0) {
		c->p->side.state.canaries_lost++;
		return 0;
	}
	c->p->canary_out = 1;
	c->payload = c->p->side.t->canary;
	begin_frame(c, &s);
	return 1;
}

/* 1: there is a frame to write. */
static int next_frame(struct tcp_out *c)
{
	struct sent s = {0};
	if (!has_room(c))
		return 0;
	if (c->p->canary_due)
		return begin_canary(c);
	while ((s.o = path_take(c->p, &s.layer, &s.first, &s.n))) {
		struct tcp_outgoing *o = s.o;
		s.bytes = (uint32_t)(s.n * o->o.layout->piece_bytes[s.layer]);
		c->payload = NULL;
		/* also for a frame from the pool, whose rest may have to be copied: tcp_out_forget */
		if (staging_grow(c, s.bytes) < 0) {
			outgoing_fail(o, ERR_IO, "no memory for a frame of %u bytes", s.bytes);
			continue;
		}
		if (!o->o.from->pool->host) {
			if (stage(c, o, &s) < 0)
				continue;
			c->payload = c->staging;
		}
		begin_frame(c, &s);
		return 1;
	}
	return 0;
}

/* Writes on. The number of bytes, 0: the socket is full, or ERR_CLOSED. */
static ssize_t write_some(struct tcp_out *c, size_t most)
{
	const struct sent *s = &c->sent[(c->next - 1) % FRAMES_MAX];
	struct iovec iov[TCP_IOV_MAX];
	struct msghdr m = {.msg_iov = iov};
	size_t head = c->at < FRAME_HEAD_BYTES ? FRAME_HEAD_BYTES - c->at : 0, sum = 0;
	if (head)
		iov[m.msg_iovlen++] = (struct iovec){c->head + c->at, head};
	size_t at = c->at + head - FRAME_HEAD_BYTES;
	if (at < s->bytes) {
		int n = payload_runs(c, s, at, iov + m.msg_iovlen, TCP_IOV_MAX - 2);
		for (; n; n--)
			at += iov[m.msg_iovlen++].iov_len;
	}
	if (at >= s->bytes)
		iov[m.msg_iovlen++] = (struct iovec){c->tag + (at - s->bytes),
		                                     s->bytes + FRAME_TAG_BYTES - at};
	for (size_t i = 0; i < m.msg_iovlen; i++) {
		iov[i].iov_len = least(iov[i].iov_len, most - sum);
		sum += iov[i].iov_len;
	}
	ssize_t n = sendmsg(c->fd, &m, MSG_NOSIGNAL);
	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return 0;
	if (n < 0) {
		cut(c, "cannot send: %s", strerror(errno));
		return ERR_CLOSED;
	}
	c->at += (size_t)n;
	if (c->at == c->frame_bytes)
		c->frame_bytes = 0;
	return n;
}

static int write_turn(struct tcp_out *c)
{
	size_t left = c->p->side.t->opts.turn_bytes;
	while (left) {
		if (!c->frame_bytes && !next_frame(c)) {
			event_del(c->ev_write);
			return 0;
		}
		ssize_t n = write_some(c, left);
		if (n <= 0)
			return (int)n;
		left -= (size_t)n;
	}
	return 0;
}

static int is_stalled(struct tcp_out *c)
{
	uint64_t for_us = clock_us() - c->progress_us, limit_us = c->p->side.t->opts.stall_us;
	if (c->acked + 1 == c->next || for_us < limit_us)
		return 0;
	cut(c, "nothing was acknowledged for %" PRIu64 " ms (limit %" PRIu64 " ms)", for_us / 1000,
	    limit_us / 1000);
	return 1;
}

static enum tcp_out_state step_up(struct tcp_out *c, enum tcp_out_event e)
{
	int r = 0;
	if (e == TCP_OUT_ON_TIMER)
		r = is_stalled(c);
	else if (e == TCP_OUT_ON_WRITABLE)
		r = write_turn(c);
	else if (e == TCP_OUT_ON_READABLE && (r = receive(c, IN_BYTES)) == 0)
		r = take_frames(c);
	if (r)
		return TCP_OUT_WAITING;
	path_kick(c->p);
	return TCP_OUT_UP;
}

/* --- for its path -------------------------------------------------------- */

struct tcp_out *tcp_out_new(struct tcp_path *p, uint32_t number)
{
	struct tcp_out *c = mem_zalloc(sizeof *c);
	c->p = p;
	c->number = number;
	c->fd = -1;
	c->next = 1;
	c->ev_timer = event_new(p->side.t->base, -1, 0, on_timer, c);
	CHECK(c->ev_timer);
	set_timer(c, backoff_us(c));
	return c;
}

void tcp_out_destroy(struct tcp_out **pc)
{
	struct tcp_out *c = *pc;
	if (!c)
		return;
	tcp_out_step(c, TCP_OUT_ON_END);
	event_free(c->ev_timer);
	free(c->staging);
	sodium_memzero(c, sizeof *c);
	free(c);
	*pc = NULL;
}

int tcp_out_wake(struct tcp_out *c)
{
	if (c->state != TCP_OUT_UP || !has_room(c) || event_pending(c->ev_write, EV_WRITE, NULL))
		return 0;
	event_add(c->ev_write, NULL);
	return 1;
}

void tcp_out_forget(struct tcp_out *c, const struct tcp_outgoing *o)
{
	struct sent *last = &c->sent[(c->next - 1) % FRAMES_MAX];
	if (c->frame_bytes && last->o == o && !c->payload) {
		/* the rest of the frame that is being written, before the source may change */
		struct iovec iov[TCP_IOV_MAX];
		size_t from = c->at < FRAME_HEAD_BYTES ? 0 : c->at - FRAME_HEAD_BYTES;
		unsigned char *to = c->staging;
		for (size_t at = from; at < last->bytes;) {
			int n = outgoing_runs(o, last->layer, last->first, last->n, at, iov, TCP_IOV_MAX);
			for (int i = 0; i < n; at += iov[i++].iov_len)
				memcpy(to + at, iov[i].iov_base, iov[i].iov_len);
		}
		c->payload = c->staging;
	}
	for (uint64_t i = c->acked + 1; i < c->next; i++)
		if (c->sent[i % FRAMES_MAX].o == o)
			c->sent[i % FRAMES_MAX].o = NULL;
}

void tcp_out_tick(struct tcp_out *c)
{
	if (c->state == TCP_OUT_UP)
		tcp_out_step(c, TCP_OUT_ON_TIMER);
}

int tcp_out_fd(const struct tcp_out *c)
{
	return c->fd;
}
