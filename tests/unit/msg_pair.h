/* msg_pair.h - two daemons' links in one process, for tests of common/msg: what one side said,
 * numbered, and what the other got, checked as it comes.
 *
 * What holds for everything that a side hears from one life of the other: within a session (up to
 * down, at the sender) it starts at the first message, has no gap, no repetition, no other
 * order; sessions only grow. A session's number and the message's place in it travel in the
 * message head (request id). */
#ifndef TESTS_MSG_PAIR_H
#define TESTS_MSG_PAIR_H

#include "msg/chan.h"
#include "tests/fault/fault.h"
#include "msg/codec.h"
#include "tempdir.h"
#include "util/clock.h"

#include <check.h>
#include <event2/event.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct event_base *base; /* the one that all sides of a test are on */
static char endpoint[100];      /* of a test that binds by itself */

static inline void base_setup(void)
{
	char path[TEST_FOLDER_BYTES];
	base = event_base_new();
	test_file(path, "msg.ipc");
	snprintf(endpoint, sizeof endpoint, "ipc://%s", path);
}

static inline void base_teardown(void)
{
	event_base_free(base);
}

struct side {
	struct chan *c;
	struct peer *p; /* the up peer, or NULL */
	const char *name;
	char bind[100]; /* "": dials */
	char to[100];
	uint64_t epoch;
	struct chan_opts opts;
	const char *fault; /* rules (tests/fault/fault.h); NULL: none */
	unsigned ups, downs;
	/* said */
	uint64_t session, said, full; /* in the present session; ERR_FULL answers */
	uint64_t sum;                 /* of all sessions */
	/* heard */
	uint64_t heard_session, heard, total, wrong;
	uint32_t types_heard[128];
	char why[160], problem[200];
};

static const enum msg_type numbered[] = {
#define X(name, number, body, flags, from) ((flags)&MSG_NUMBERED) ? MSG_##name : (enum msg_type)0,
	MSG_TYPES(X)
#undef X
};
#define N_TYPES (sizeof numbered / sizeof *numbered)

static inline enum msg_type numbered_type(uint64_t n)
{
	size_t i = n % N_TYPES;
	while (!numbered[i])
		i = (i + 1) % N_TYPES;
	return numbered[i];
}

static inline unsigned numbered_count(void)
{
	unsigned n = 0;
	for (size_t i = 0; i < N_TYPES; i++)
		n += numbered[i] != 0;
	return n;
}

/* The smallest body of its type that is taken. */
static inline int say_type(struct side *s, enum msg_type type)
{
	static uint32_t one_token[1] = {1};
	static unsigned char room[1024] __attribute__((aligned(16)));
	Pds__Lease lease = PDS__LEASE__INIT;
	Pds__Token token = PDS__TOKEN__INIT;
	Pds__WorkerInfo worker = PDS__WORKER_INFO__INIT;
	Pds__Sampling sampling = PDS__SAMPLING__INIT;
	Pds__Request request = PDS__REQUEST__INIT;
	const struct msg_type_info *info = msg_type_find(type);
	ProtobufCMessage *m = (ProtobufCMessage *)room;
	struct err err = {0};
	request.sampling = &sampling;
	request.tokens = one_token;
	request.n_tokens = request.prompt_tokens = request.max_tokens = 1;
	ck_assert_uint_le(info->body->sizeof_message, sizeof room);
	info->body->message_init(m);
	for (unsigned i = 0; i < info->body->n_fields; i++) {
		const ProtobufCFieldDescriptor *f = &info->body->fields[i];
		const struct {
			const void *type;
			void *part;
		} parts[] = {{&pds__lease__descriptor, &lease},
		             {&pds__token__descriptor, &token},
		             {&pds__worker_info__descriptor, &worker},
		             {&pds__request__descriptor, &request}};
		for (size_t k = 0;
		     f->label != PROTOBUF_C_LABEL_REPEATED && k < sizeof parts / sizeof *parts; k++)
			if (f->descriptor == parts[k].type)
				*(void **)(room + f->offset) = parts[k].part;
	}
	static unsigned char secret[32];
	if (type == MSG_PIPELINE_TAKE) {
		Pds__PipelineTake *take = (Pds__PipelineTake *)m;
		take->stage = take->ticket = take->port = 1;
		take->stages = 2;
		take->secret = (ProtobufCBinaryData){sizeof secret, secret};
	}
	ck_assert_msg(msg_validate(info, m, &err) == 0, "%s: %s", info->name, err.text);
	struct msg_head head = {.req = {s->session, s->said + 1}, .attempt = 1};
	int r = s->p ? chan_send(s->c, s->p, type, &head, m) : ERR_CLOSED;
	if (r == 0) {
		s->said++;
		s->sum++;
	}
	s->full += r == ERR_FULL;
	return r;
}

static void side_wrong(struct side *s, const char *what, const struct msg_head *h)
{
	if (!s->wrong++)
		snprintf(s->problem, sizeof s->problem,
		         "%s heard message %llu of session %llu after %llu of %llu: %s", s->name,
		         (unsigned long long)h->req.lo, (unsigned long long)h->req.hi,
		         (unsigned long long)s->heard, (unsigned long long)s->heard_session, what);
}

static void side_message(void *arg, struct peer *p, enum msg_type t, const struct msg_head *h,
                         const ProtobufCMessage *body)
{
	struct side *s = arg;
	(void)body;
	if (!(msg_type_find(t)->flags & MSG_NUMBERED))
		return;
	if (p != s->p)
		side_wrong(s, "from a peer that is not up", h);
	if (h->req.hi != s->heard_session) {
		if (h->req.hi < s->heard_session)
			side_wrong(s, "an old session", h);
		s->heard_session = h->req.hi;
		s->heard = 0;
	}
	if (h->req.lo != s->heard + 1)
		side_wrong(s, h->req.lo <= s->heard ? "a repetition" : "a gap", h);
	s->heard = h->req.lo;
	s->total++;
	s->types_heard[t]++;
}

static void side_up(void *arg, struct peer *p)
{
	struct side *s = arg;
	s->ups++;
	s->p = p;
	s->session++;
	s->said = 0;
}

static void side_down(void *arg, struct peer *p, const char *why)
{
	struct side *s = arg;
	s->downs++;
	if (s->p == p)
		s->p = NULL;
	snprintf(s->why, sizeof s->why, "%s", why);
}

/* Opens the side's next life; what it heard in the last one is of no concern to it, its sessions
 * go on. */
static void side_start(struct event_base *on, struct side *s)
{
	struct chan_hooks h = {.arg = s, .up = side_up, .down = side_down, .message = side_message};
	struct err err = {0};
	s->p = NULL;
	s->heard = 0;
	s->opts.program = s->opts.program ? s->opts.program : "test";
	s->opts.name = s->name;
	s->opts.epoch = ++s->epoch;
	s->opts.bind = s->bind[0] ? s->bind : NULL;
	fault_next(s->fault);
	ck_assert_msg(chan_new(on, &s->opts, &h, &s->c, &err) == 0, "%s", err.text);
	if (s->to[0])
		chan_connect(s->c, s->to, NULL, 1);
}

static inline void side_stop(struct side *s)
{
	chan_destroy(&s->c);
	s->p = NULL;
}

static inline struct chan_opts pair_opts(uint64_t resend_us)
{
	return (struct chan_opts){.heartbeat_us = 20000,
	                          .silence_us = 20000000,
	                          .window_messages = 4096,
	                          .window_bytes = 1 << 20,
	                          .peers_max = 4,
	                          .message_bytes_max = 1 << 20,
	                          .resend_us = resend_us};
}

static inline void pair_open_faulty(struct event_base *on, struct side *a, struct side *b,
                                    const char *id, const struct chan_opts *oa, const char *fault_a,
                                    const struct chan_opts *ob, const char *fault_b)
{
	*a = (struct side){.name = "bound", .epoch = 1000, .opts = *oa, .fault = fault_a};
	*b = (struct side){.name = "dials", .epoch = 2000, .opts = *ob, .fault = fault_b};
	char path[TEST_FOLDER_BYTES];
	test_file(path, id);
	snprintf(a->bind, sizeof a->bind, "ipc://%s", path);
	snprintf(b->to, sizeof b->to, "%s", a->bind);
	side_start(on, a);
	side_start(on, b);
}

static inline void pair_open(struct event_base *on, struct side *a, struct side *b, const char *id,
                             const struct chan_opts *oa, const struct chan_opts *ob)
{
	pair_open_faulty(on, a, b, id, oa, NULL, ob, NULL);
}

static inline void pair_close(struct side *a, struct side *b)
{
	side_stop(b);
	side_stop(a);
}

/* Both are up with each other's present life, and all that was said in these sessions was heard. */
static int pair_settled(const struct side *a, const struct side *b)
{
	return a->p && b->p && peer_epoch(a->p) == b->epoch && peer_epoch(b->p) == a->epoch &&
	       (!a->said || (b->heard_session == a->session && b->heard == a->said)) &&
	       (!b->said || (a->heard_session == b->session && a->heard == b->said));
}

static inline void pump_ms(struct event_base *on, unsigned ms)
{
	struct timeval tv = {ms / 1000, ms % 1000 * 1000};
	event_base_loopexit(on, &tv);
	event_base_dispatch(on);
}

static inline void until_settled(struct side *a, struct side *b, const char *what)
{
	for (uint64_t end = clock_us() + 60000000; !pair_settled(a, b) || a->wrong || b->wrong;) {
		ck_assert_msg(!a->wrong && !b->wrong, "%s: %s%s", what, a->problem, b->problem);
		ck_assert_msg(clock_us() < end, "%s: said %llu and %llu, heard %llu and %llu", what,
		              (unsigned long long)a->said, (unsigned long long)b->said,
		              (unsigned long long)a->heard, (unsigned long long)b->heard);
		pump_ms(base, 2);
	}
}

static inline void until_up(struct side *a, struct side *b)
{
	for (uint64_t end = clock_us() + 60000000; !a->p || !b->p;) {
		ck_assert_msg(clock_us() < end, "the link does not come up");
		pump_ms(base, 2);
	}
}

#endif
