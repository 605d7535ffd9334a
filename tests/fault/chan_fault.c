/* chan_fault.c - carries out the verdicts of fault.h, between the link layer and the socket (struct
 * chan_faults): losses here look like those of a network or a reconnect.
 *
 * Delayed messages are in one list by time. Messages of one link in one direction do not overtake
 * each other: one that comes while another waits, waits behind it. At most HELD_MAX messages and
 * HELD_BYTES wait; further ones are lost. When a peer goes down, its delayed messages are lost. */
#include "msg/chan_priv.h"
#include "tests/fault/fault.h"
#include "util/check.h"
#include "util/clock.h"
#include "util/mem.h"

#include <stdlib.h>
#include <string.h>

#define HELD_MAX 100000u
#define HELD_BYTES (256u << 20)

/* Messages of a link in one direction that wait. */
struct line {
	uint64_t until_us;
	uint32_t n;
};

struct lines {
	struct list node;
	const struct peer *p;
	struct line of[2]; /* by direction */
};

/* The fault layer of one chan. */
struct faulty {
	struct chan *c;
	struct fault *rules;
	struct list held;      /* struct held, by time */
	struct list lines;     /* struct lines, of known peers */
	struct line strangers; /* messages from peers not known yet */
	size_t n_held, held_bytes;
	struct event *due;
	uint64_t late_us; /* of the message that is dispatched now */
	uint64_t count;
};

enum held_kind { HELD_OUT, HELD_IN, HELD_LATE };

struct held {
	struct list node;
	uint64_t due_us;
	enum held_kind kind;
	struct peer *p;        /* NULL: unknown (IN only) */
	struct line *line;     /* NULL for LATE */
	uint64_t late_us;      /* IN */
	struct incoming in;    /* IN, LATE: all of it; OUT: s and rid only */
	size_t head_len, len;  /* OUT */
	unsigned char bytes[]; /* OUT: envelope, body */
};

static const char *rules_of_next;

void fault_next(const char *text)
{
	rules_of_next = text;
}

uint64_t fault_count(const struct chan *c)
{
	return c->fault ? ((const struct faulty *)c->fault)->count : 0;
}

/* A line for the log at the first fault, then whenever their number has doubled. */
static void count(struct faulty *f)
{
	f->count++;
	if ((f->count & (f->count - 1)) == 0)
		log_notice("faults", "total=%llu", (unsigned long long)f->count);
}

static struct line *line_of(struct faulty *f, const struct peer *p, enum fault_dir dir)
{
	list_each(it, &f->lines)
		if (list_entry(it, struct lines, node)->p == p)
			return &list_entry(it, struct lines, node)->of[dir];
	struct lines *l = mem_zalloc(sizeof *l);
	l->p = p;
	list_push_back(&f->lines, &l->node);
	return &l->of[dir];
}

/* --- the list ------------------------------------------------------------ */

static void held_free(struct faulty *f, struct held *h)
{
	list_remove(&h->node);
	f->n_held--;
	f->held_bytes -= h->head_len + h->len;
	if (h->line)
		h->line->n--;
	if (h->kind != HELD_OUT)
		incoming_fini(&h->in);
	free(h);
}

static void dispatch(struct faulty *f, struct incoming *in, uint64_t late_us)
{
	f->late_us = late_us;
	chan_dispatch(f->c, in);
	f->late_us = 0;
}

static void release(struct faulty *f, struct held *h)
{
	switch (h->kind) {
	case HELD_OUT:
		chan_put(h->in.s, h->in.rid, h->in.rid_len, h->bytes, h->head_len, h->bytes + h->head_len,
		         h->len);
		return;
	case HELD_IN: dispatch(f, &h->in, h->late_us); return;
	case HELD_LATE: chan_hand_up(f->c, h->p, &h->in); return;
	}
}

static void arm(struct faulty *f, uint64_t now)
{
	if (list_empty(&f->held))
		return;
	uint64_t due = list_entry(f->held.next, struct held, node)->due_us,
			 us = due > now ? due - now : 0;
	struct timeval tv = clock_timeval(us);
	event_add(f->due, &tv);
}

static void on_due(evutil_socket_t fd, short what, void *arg)
{
	(void)fd;
	(void)what;
	struct faulty *f = arg;
	uint64_t now = clock_us();
	while (!list_empty(&f->held)) {
		struct held *h = list_entry(f->held.next, struct held, node);
		if (h->due_us > now)
			break;
		/* the handler may end the peer, which removes that peer's messages from the list */
		list_remove(&h->node);
		release(f, h);
		held_free(f, h);
	}
	arm(f, now);
}

static struct held *hold(struct faulty *f, enum held_kind kind, struct peer *p, struct line *line,
                         uint64_t due_us, size_t bytes)
{
	if (f->n_held >= HELD_MAX || f->held_bytes + bytes > HELD_BYTES)
		return NULL;
	struct held *h = mem_zalloc(sizeof *h + bytes);
	h->kind = kind;
	h->p = p;
	h->due_us = due_us;
	if ((h->line = line))
		line->n++;
	struct list *after = f->held.prev;
	while (after != &f->held && list_entry(after, struct held, node)->due_us > due_us)
		after = after->prev;
	list_push_front(after, &h->node);
	f->n_held++;
	f->held_bytes += bytes;
	arm(f, clock_us());
	return h;
}

/* Takes over the contents of in. A body that is not decoded yet is copied, because ZeroMQ's frame
 * is freed before it is used. */
static void hold_in(struct faulty *f, enum held_kind kind, struct peer *p, struct line *line,
                    struct incoming *in, uint64_t due_us, uint64_t late_us)
{
	struct held *h = hold(f, kind, p, line, due_us, 0);
	if (!h)
		return;
	if (!in->own && !in->m.body) {
		in->own = mem_alloc(in->len);
		memcpy(in->own, in->bytes, in->len);
		in->bytes = in->own;
	}
	h->late_us = late_us;
	h->in = *in;
	in->m = (struct msg_in){0};
	in->own = NULL;
}

/* Returns when a message delayed by delay_us is due: not before the messages that wait on its line,
 * and on the line `before` (may be NULL). 0: it need not wait. */
static uint64_t line_due(struct line *line, const struct line *before, uint64_t delay_us)
{
	uint64_t now = clock_us(), due = now + delay_us;
	if (line->until_us > due)
		due = line->until_us;
	if (before && before->until_us > due)
		due = before->until_us;
	if (due <= now && !line->n && !(before && before->n))
		return 0;
	line->until_us = due;
	return due;
}

static void log_delay(const struct fault_verdict *v, enum msg_type type, const char *peer)
{
	if (v->delay_us || v->late_us)
		log_debug("fault_delay", "type=%s peer=%s us=%llu", msg_type_find(type)->name,
		          log_quote(peer), (unsigned long long)(v->delay_us + v->late_us));
}

/* --- out ----------------------------------------------------------------- */

/* Ends the connection and makes a new one: ZeroMQ loses what it held for it. A bound socket cannot
 * end a single connection; there we forget which connection is the peer's. */
static void cut(struct peer *p)
{
	if (!p)
		return;
	log_debug("fault_cut", "peer=%s", p->name);
	if (!p->dealer) {
		p->rid_len = 0;
		return;
	}
	const char *address = chan_name_address(p);
	if (*address &&
	    (zmq_disconnect(p->dealer->z, address) < 0 || chan_zmq_connect(p->dealer->z, address) < 0))
		log_error("fault_cut_failed", "peer=%s address=%s why=%s", p->name, address,
		          log_quote(zmq_strerror(zmq_errno())));
	event_active(p->dealer->again, EV_READ, 1);
}

static int send_or_hold(struct faulty *f, struct peer *p, struct held *like, uint64_t delay_us,
                        const unsigned char *bytes)
{
	struct line *line = p ? line_of(f, p, FAULT_OUT) : NULL;
	uint64_t due = line ? line_due(line, NULL, delay_us) : 0;
	if (!due)
		return chan_put(like->in.s, like->in.rid, like->in.rid_len, bytes, like->head_len,
		                bytes + like->head_len, like->len);
	size_t total = like->head_len + like->len;
	struct held *h = hold(f, HELD_OUT, p, line, due, total);
	if (h) {
		h->in = like->in;
		h->head_len = like->head_len;
		h->len = like->len;
		memcpy(h->bytes, bytes, total);
	}
	return 0;
}

static int out(struct chan *c, struct peer *p, struct sock *s, const void *rid, size_t rid_len,
               const Pds__Envelope *env, const void *body, size_t len)
{
	struct faulty *f = c->fault;
	struct fault_verdict v;
	Pds__Envelope e = *env;
	const char *peer = p ? p->name : "";
	fault_judge(f->rules, FAULT_OUT, (enum msg_type)env->type, peer, &v);
	log_delay(&v, (enum msg_type)env->type, peer);
	if (v.drop || v.repeat || v.noack || v.cut || v.delay_us)
		count(f);
	if (v.cut)
		cut(p);
	if (v.cut || v.drop)
		return 0;
	if (v.noack)
		e.ack = 0;
	struct held like = {.in.s = s,
	                    .in.rid_len = rid_len,
	                    .len = len,
	                    .head_len = pds__envelope__get_packed_size(&e)};
	CHECK(rid_len <= RID_MAX);
	memcpy(like.in.rid, rid_len ? rid : "", rid_len);
	unsigned char *bytes = mem_alloc(like.head_len + len);
	pds__envelope__pack(&e, bytes);
	memcpy(bytes + like.head_len, body, len);
	int r = send_or_hold(f, p, &like, v.delay_us, bytes);
	if (v.repeat)
		send_or_hold(f, p, &like, v.delay_us, bytes);
	free(bytes);
	return r;
}

/* --- in ------------------------------------------------------------------ */

static ProtobufCMessage *twin(const ProtobufCMessage *m)
{
	size_t n = protobuf_c_message_get_packed_size(m);
	unsigned char *b = mem_alloc(n ? n : 1);
	protobuf_c_message_pack(m, b);
	ProtobufCMessage *copy = protobuf_c_message_unpack(m->descriptor, NULL, n, b);
	free(b);
	CHECK(copy);
	return copy;
}

static void pass(struct faulty *f, struct incoming *in, const struct fault_verdict *v)
{
	struct peer *p = in->s->peer ? in->s->peer : chan_find_rid(in->s, in->rid, in->rid_len);
	struct line *line = p ? line_of(f, p, FAULT_IN) : &f->strangers;
	/* On the bound socket a peer is a stranger until its HELLO is handled; its later messages must
	 * not overtake the HELLO. */
	uint64_t due = line_due(line, in->s->peer ? NULL : &f->strangers, v->delay_us);
	if (due)
		hold_in(f, HELD_IN, p, line, in, due, v->late_us);
	else
		dispatch(f, in, v->late_us);
}

static void in_from_socket(struct chan *c, struct incoming *in)
{
	struct faulty *f = c->fault;
	struct fault_verdict v;
	fault_judge(f->rules, FAULT_IN, in->m.info->type, in->m.env->sender, &v);
	log_delay(&v, in->m.info->type, in->m.env->sender);
	if (v.drop || v.repeat || v.noack || v.cut || v.delay_us || v.late_us)
		count(f);
	if (v.cut)
		cut(in->s->peer ? in->s->peer : chan_find_rid(in->s, in->rid, in->rid_len));
	if (v.cut || v.drop)
		return;
	if (v.noack)
		in->m.env->ack = 0;
	struct incoming again = *in;
	if (v.repeat) {
		again.m.env = (Pds__Envelope *)twin(&in->m.env->base);
		again.own = mem_alloc(in->len);
		memcpy(again.own, in->bytes, in->len);
		again.bytes = again.own;
	}
	pass(f, in, &v);
	if (v.repeat) {
		pass(f, &again, &v);
		incoming_fini(&again);
	}
}

static int is_late(struct chan *c, struct peer *p, struct incoming *in)
{
	struct faulty *f = c->fault;
	if (!f->late_us)
		return 0;
	hold_in(f, HELD_LATE, p, NULL, in, clock_us() + f->late_us, 0);
	return 1;
}

/* --- life ---------------------------------------------------------------- */

static void forget(struct chan *c, const struct peer *p)
{
	struct faulty *f = c->fault;
	list_each_safe(it, nx, &f->held) {
		struct held *h = list_entry(it, struct held, node);
		if (h->p == p)
			held_free(f, h);
	}
}

static int start(struct chan *c, struct err *err)
{
	const char *text = rules_of_next ? rules_of_next : getenv("PDSERVE_FAULT");
	struct fault *rules = NULL;
	rules_of_next = NULL;
	int r = text ? fault_new(text, &rules, err) : 0;
	if (r < 0 || !rules)
		return r;
	struct faulty *f = mem_zalloc(sizeof *f);
	f->c = c;
	f->rules = rules;
	list_init(&f->held);
	list_init(&f->lines);
	f->due = event_new(c->base, -1, 0, on_due, f);
	CHECK(f->due);
	c->fault = f;
	log_warn("faults_on",
	         "why=\"messages are lost, repeated and delayed on purpose: a test\" rules=%s",
	         log_quote(text));
	return 0;
}

static void stop(struct chan *c)
{
	struct faulty *f = c->fault;
	list_each_safe(it, nx, &f->held)
		held_free(f, list_entry(it, struct held, node));
	list_each_safe(it, nx, &f->lines)
		free(list_entry(it, struct lines, node));
	event_free(f->due);
	fault_destroy(&f->rules);
	free(f);
	c->fault = NULL;
}

static const struct chan_faults faults = {.start = start,
                                          .stop = stop,
                                          .out = out,
                                          .in = in_from_socket,
                                          .late = is_late,
                                          .forget = forget};

__attribute__((constructor)) static void install(void)
{
	chan_faults = &faults;
}
