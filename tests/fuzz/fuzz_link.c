/* fuzz_link.c - what peers say over the links of a daemon (msg/chan.h), from the frames on: any
 * order of hellos, numbered messages, parts, acknowledgements and questions, good and bad, from
 * connections and processes that they may or may not belong to. Nothing is sent: all sockets are
 * closed. What is handed up is whole, checked, from a peer that is up, once and in order; peers,
 * windows, parts and questions stay within their limits. */
#include "msg/chan_priv.h"
#include "tests/fuzz/fuzz.h"
#include "util/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define OWN_EPOCH 50u
#define PEERS_MAX 4u
#define MESSAGE_BYTES 1000u
#define WINDOW 8u

/* What the owner knows of a peer that is up: chan keeps it by peer_set_data. */
struct known {
	uint64_t last_seq;
	int used;
};

static struct {
	struct chan *c;
	struct sock *bound, *dealer;
	struct known known[2 * PEERS_MAX];
	uint64_t seq; /* of the envelope that is being read */
	unsigned up, refuses, later;
	struct chan_asked *asked[CHAN_ASKED_MAX];
	unsigned n_asked;
} w;

/* --- the owner ----------------------------------------------------------- */

static int on_admit(void *arg, const char *name, uint64_t epoch, const Pds__Hello *h, char *reason,
                    size_t size)
{
	(void)arg, (void)epoch;
	must(name[0] && h->program);
	snprintf(reason, size, "not now");
	return (int)w.refuses;
}

static void on_up(void *arg, struct peer *p)
{
	(void)arg;
	unsigned i = 0;
	must(!peer_data(p) && peer_is_up(p) && ++w.up <= PEERS_MAX + 1);
	while (w.known[i].used)
		i++;
	w.known[i] = (struct known){.used = 1};
	peer_set_data(p, &w.known[i]);
}

static void on_down(void *arg, struct peer *p, const char *why)
{
	(void)arg;
	struct known *k = peer_data(p);
	must(k && k->used && why[0] && w.up-- > 0);
	k->used = 0;
}

static void on_message(void *arg, struct peer *p, enum msg_type type, const struct msg_head *head,
                       const ProtobufCMessage *body)
{
	const struct msg_type_info *info = msg_type_find(type);
	struct known *k = peer_data(p);
	(void)arg;
	fuzz_accepted();
	must(peer_is_up(p) && k && k->used);
	must(info && !(info->flags & MSG_LINK) && info->body == body->descriptor);
	must(msg_validate(info, body, NULL) == 0);
	if (info->flags & MSG_REQUEST)
		must((head->req.hi || head->req.lo) && head->attempt);
	if (info->flags & MSG_NUMBERED) {
		must(w.seq > k->last_seq);
		k->last_seq = w.seq;
	}
}

static int on_ctl(void *arg, struct chan_asked *asked, const struct process_origin *who,
                  const char *command, char *const *args, size_t n_args, char **ret_text)
{
	size_t bytes = strlen(command);
	(void)arg, (void)who;
	for (size_t i = 0; i < n_args; i++)
		bytes += strlen(args[i]);
	must(w.n_asked < CHAN_ASKED_MAX);
	if (bytes % 2)
		return ERR_NOTFOUND;
	if (!w.later) {
		*ret_text = mem_strdup("{}");
		return 0;
	}
	w.asked[w.n_asked++] = asked;
	return CHAN_LATER;
}

static void answer_all(void)
{
	while (w.n_asked)
		chan_answer(w.c, w.asked[--w.n_asked], 0, "{}");
}

/* --- the world ----------------------------------------------------------- */

static void nothing(evutil_socket_t fd, short what, void *arg)
{
	(void)fd, (void)what, (void)arg;
}

/* Closed: nothing comes or goes over it. */
static struct sock *sock_make(struct peer *p)
{
	struct sock *s = mem_zalloc(sizeof *s);
	s->c = w.c;
	s->peer = p;
	s->ev = event_new(w.c->base, -1, 0, nothing, s);
	s->again = event_new(w.c->base, -1, 0, nothing, s);
	return s;
}

static void world_init(struct event_base *base)
{
	static const struct chan_hooks hooks = {
		.admit = on_admit, .up = on_up, .down = on_down, .message = on_message, .ctl = on_ctl};
	const struct chan_opts o = {.program = "pddecoded",
	                            .name = "decode-1",
	                            .epoch = OWN_EPOCH,
	                            .heartbeat_us = 100000,
	                            .silence_us = 60000000,
	                            .window_messages = WINDOW,
	                            .window_bytes = 1 << 16,
	                            .peers_max = PEERS_MAX,
	                            .message_bytes_max = MESSAGE_BYTES};
	struct err err = {0};
	memset(&w, 0, sizeof w);
	must(chan_new(base, &o, &hooks, &w.c, &err) == 0);
	w.bound = sock_make(NULL);
	/* one that we connected to */
	struct peer *p = chan_peer_new(w.c);
	p->state = PEER_HELLO;
	p->hello_nth = 1;
	p->dealer = w.dealer = sock_make(p);
}

static void world_fini(void)
{
	chan_destroy(&w.c);
	event_free(w.bound->ev);
	event_free(w.bound->again);
	free(w.bound);
}

/* --- messages ------------------------------------------------------------ */

static void arrive(unsigned from, const uint8_t *env, size_t env_n, const uint8_t *body, size_t n)
{
	struct incoming m = {.s = from & 1 ? w.dealer : w.bound, .bytes = body, .len = n};
	m.rid[0] = (unsigned char)(from >> 1 & 3);
	m.rid_len = m.s->peer ? 0 : 1;
	m.origin = (struct process_origin){.is_local = (from & 16) == 0,
	                                   .uid = geteuid(),
	                                   .gid = getegid(),
	                                   .pid = (uint32_t)getpid() + (from >> 5 & 1)};
	chan_arrived(&m, env, env_n);
}

static void arrive_packed(unsigned from, const Pds__Envelope *e, const uint8_t *body, size_t n)
{
	uint8_t *env = mem_alloc(pds__envelope__get_packed_size(e) + 1);
	w.seq = e->seq;
	arrive(from, env, pds__envelope__pack(e, env), body, n);
	free(env);
}

static void fill(struct fuzz_input *in, Pds__Envelope *e)
{
	static const char *const names[] = {"router-1", "prefill-1", "decode-1", "messager"};
	e->version = PROTOCOL_VERSION;
	e->sender = (char *)(uintptr_t)names[fuzz_take(in, 1) % 4];
	e->epoch = 1 + fuzz_take(in, 1) % 4;
	e->ack_epoch = OWN_EPOCH;
	e->request_lo = e->attempt = 1;
}

static void step_hello(struct fuzz_input *in, unsigned from)
{
	Pds__Envelope e = PDS__ENVELOPE__INIT;
	Pds__Hello h = PDS__HELLO__INIT;
	Pds__Welcome r = PDS__WELCOME__INIT;
	Pds__Process self;
	uint8_t body[512];
	fill(in, &e);
	process_self(&self);
	h.program = r.program = (char *)"pdrouterd";
	h.process = r.process = &self;
	h.nth = fuzz_take(in, 1);
	h.link = r.link = fuzz_take(in, 1);
	h.received = r.received = fuzz_take(in, 1);
	h.silence_ms = r.silence_ms = (uint32_t)fuzz_take(in, 1);
	h.knows_epoch = r.knows_epoch = h.received & 1 ? OWN_EPOCH : 0;
	r.refused = h.silence_ms == 7;
	e.type = from & 1 ? MSG_WELCOME : MSG_HELLO;
	arrive_packed(from, &e, body,
	              from & 1 ? pds__welcome__pack(&r, body) : pds__hello__pack(&h, body));
}

static void step_message(struct fuzz_input *in, unsigned from)
{
	Pds__Envelope e = PDS__ENVELOPE__INIT;
	size_t n;
	fill(in, &e);
	e.type = (uint32_t)fuzz_take(in, 1);
	e.seq = fuzz_take(in, 1);
	e.ack = fuzz_take(in, 1);
	e.link = fuzz_take(in, 1);
	unsigned flags = (unsigned)fuzz_take(in, 1);
	e.more = flags & 1;
	e.ack_epoch += flags >> 1 & 1;
	e.time_left_us = flags & 4 ? UINT64_MAX : 0;
	const uint8_t *body = fuzz_take_bytes(in, &n);
	arrive_packed(from, &e, body, n);
}

static void step_raw(struct fuzz_input *in, unsigned from)
{
	size_t env_n, n;
	const uint8_t *env = fuzz_take_bytes(in, &env_n), *body = fuzz_take_bytes(in, &n);
	struct msg_in m;
	w.seq = msg_decode_head(env, env_n, n, &m, NULL) == 0 ? m.env->seq : 0;
	msg_in_fini(&m);
	arrive(from, env, env_n, body, n);
}

static void step_send(struct fuzz_input *in)
{
	Pds__KvSent m = PDS__KV_SENT__INIT;
	const struct msg_head head = {{7, 7}, 1, 0};
	struct peer *p = NULL;
	for (unsigned i = (unsigned)fuzz_take(in, 1) % (PEERS_MAX + 1) + 1;
	     i && (p = chan_next(w.c, p)); i--)
		;
	if (p)
		must(chan_send(w.c, p, MSG_KV_SENT, &head, &m.base) <= 0);
}

static void check_limits(void)
{
	unsigned n = 0, up = 0;
	for (struct peer *p = NULL; (p = chan_next(w.c, p)); n++) {
		up += peer_is_up(p) != 0;
		must(p->link.n_window <= WINDOW && p->parts.len <= MESSAGE_BYTES);
		must(p->parts.size <= 2 * MESSAGE_BYTES + 512);
	}
	must(n <= PEERS_MAX + 1 && up == w.up && w.c->n_asked <= CHAN_ASKED_MAX);
	must(w.n_asked == w.c->n_asked);
}

static void step(struct fuzz_input *in)
{
	unsigned what = (unsigned)fuzz_take(in, 1), from = (unsigned)fuzz_take(in, 1);
	switch (what % 8) {
	case 0:
	case 1: step_hello(in, from); break;
	case 2:
	case 3: step_message(in, from); break;
	case 4: step_raw(in, from); break;
	case 5: step_send(in); break;
	case 6: chan_tick(-1, 0, w.c); break;
	case 7:
		w.refuses = from & 1;
		w.later = from >> 1 & 1;
		answer_all();
		break;
	}
	check_limits();
}

FUZZ(link, 1 << 12)
{
	struct fuzz_input in = {data, data + size};
	struct event_base *base = event_base_new();
	world_init(base);
	while (in.at < in.end)
		step(&in);
	world_fini();
	event_base_free(base);
	return 0;
}
