/* msg_rogue.h - a raw ZeroMQ socket that says what no daemon of ours would, for tests of
 * common/msg. */
#ifndef TESTS_MSG_ROGUE_H
#define TESTS_MSG_ROGUE_H

#include "msg/process.h"
#include "msg_pair.h"
#include "util/mem.h"

#include <zmq.h>

struct rogue {
	void *ctx, *z;
	uint64_t link, their_epoch, epoch; /* epoch: its own */
	uint32_t version;
	uint64_t again;    /* numbered messages that came */
	char refusal[320]; /* of the last WELCOME; "": none */
};

/* id: the routing id that it claims; NULL: libzmq's choice. */
static inline void rogue_open_as(struct rogue *g, const char *to, const char *id)
{
	int zero = 0;
	*g = (struct rogue){.ctx = zmq_ctx_new(), .epoch = 77, .version = PROTOCOL_VERSION};
	g->z = zmq_socket(g->ctx, ZMQ_DEALER);
	zmq_setsockopt(g->z, ZMQ_LINGER, &zero, sizeof zero);
	if (id)
		zmq_setsockopt(g->z, ZMQ_ROUTING_ID, id, strlen(id));
	ck_assert_int_eq(zmq_connect(g->z, to), 0);
}

static inline void rogue_open(struct rogue *g, const char *to)
{
	rogue_open_as(g, to, NULL);
}

static inline void rogue_close(struct rogue *g)
{
	zmq_close(g->z);
	zmq_ctx_term(g->ctx);
}

static inline void rogue_send(struct rogue *g, const char *name, enum msg_type type, uint64_t seq,
                              uint64_t ack, const ProtobufCMessage *body)
{
	unsigned char head[512], *b = mem_alloc(protobuf_c_message_get_packed_size(body) + 1);
	Pds__Envelope e = PDS__ENVELOPE__INIT;
	e.version = g->version;
	e.type = type;
	e.sender = (char *)name;
	e.epoch = g->epoch;
	e.seq = seq;
	e.ack = ack;
	e.ack_epoch = g->their_epoch;
	e.link = g->link;
	e.attempt = 1;
	e.request_lo = 1;
	zmq_send(g->z, head, pds__envelope__pack(&e, head), ZMQ_SNDMORE);
	zmq_send(g->z, b, protobuf_c_message_pack(body, b), 0);
	free(b);
}

static inline void rogue_welcomed(struct rogue *g, const Pds__Welcome *w)
{
	g->link = w->refused ? g->link : w->link;
	snprintf(g->refusal, sizeof g->refusal, "%s", w->refused ? w->reason : "");
}

static inline void rogue_read(struct rogue *g)
{
	unsigned char env[2048], body[4096];
	for (;;) {
		int n = zmq_recv(g->z, env, sizeof env, ZMQ_DONTWAIT);
		if (n < 0)
			return;
		int m = zmq_recv(g->z, body, sizeof body, 0);
		struct msg_in in;
		struct err err = {0};
		if (msg_decode(env, (size_t)n, body, (size_t)m, &in, &err) == 0) {
			g->their_epoch = in.env->epoch;
			if (in.info->type == MSG_WELCOME)
				rogue_welcomed(g, (const Pds__Welcome *)in.body);
			g->again += in.env->seq != 0;
		}
		msg_in_fini(&in);
	}
}

/* proc: whom it says to be; NULL: itself. */
static inline void rogue_describe(Pds__Hello *h, const Pds__Process *proc)
{
	static Pds__Process self;
	process_self(&self);
	h->program = (char *)"rogue";
	h->process = (Pds__Process *)(proc ? proc : &self);
}

static inline void rogue_hello(struct rogue *g, const char *name, uint64_t nth, uint32_t silence_ms)
{
	Pds__Hello h = PDS__HELLO__INIT;
	rogue_describe(&h, NULL);
	h.nth = nth;
	h.silence_ms = silence_ms;
	rogue_send(g, name, MSG_HELLO, 0, 0, &h.base);
}

/* A side with a rogue that is up on it. */
static inline void with_rogue(struct side *a, struct rogue *g, struct chan_opts o,
                              uint32_t silence_ms)
{
	*a = (struct side){.name = "bound", .epoch = 1000, .opts = o};
	snprintf(a->bind, sizeof a->bind, "%s", endpoint);
	side_start(base, a);
	rogue_open(g, endpoint);
	rogue_hello(g, "rogue", 1, silence_ms);
	for (uint64_t end = clock_us() + 30000000; !a->p || !g->link; rogue_read(g)) {
		ck_assert(clock_us() < end);
		pump_ms(base, 2);
	}
}

static inline void without_rogue(struct side *a, struct rogue *g)
{
	rogue_close(g);
	side_stop(a);
}

#endif
