/* test_msg.c - numbered links: what arrives, how often, in which order, over lives and reconnects;
 * what garbage does. Faults on purpose: test_msg_fault.c; heartbeats and goodbyes:
 * test_msg_ends.c; random walks: test_msg_walk.c; peers that break the rules: test_msg_rogue.c. */
/* run: waits */
#include "msg/link.h"
#include "msg_pair.h"
#include "util/mem.h"

#include <pthread.h>
#include <zmq.h>

struct end {
	struct chan *c;
	struct peer *last;
	int ups, downs, messages, in_order;
	uint32_t next;
	int cuts; /* disconnects whoever is down, so often, when it is told so */
	char why[128];
	struct chan_asked *asked[CHAN_ASKED_MAX + 1];
	int n_asked;
};

static void on_up(void *arg, struct peer *p)
{
	struct end *s = arg;
	s->ups++;
	s->last = p;
}

static void on_down(void *arg, struct peer *p, const char *why)
{
	struct end *s = arg;
	s->downs++;
	snprintf(s->why, sizeof s->why, "%s", why);
	for (int i = 0; i < s->cuts; i++)
		chan_disconnect(s->c, p);
}

/* Deny.retry_after_us carries a running number. */
static void on_message(void *arg, struct peer *p, enum msg_type t, const struct msg_head *h,
                       const ProtobufCMessage *body)
{
	struct end *s = arg;
	if (t != MSG_KV_DENY)
		return;
	ck_assert_int_eq(h->attempt, 7);
	ck_assert(h->req.hi == 1 && h->req.lo == 2);
	s->in_order += ((const Pds__Deny *)body)->retry_after_us == s->next;
	s->next++;
	s->messages++;
	s->last = p;
}

static int on_ctl(void *arg, struct chan_asked *asked, const struct process_origin *who,
                  const char *command, char *const *args, size_t n, char **ret)
{
	(void)args;
	ck_assert_int_eq(who->is_local, 1);
	ck_assert_uint_eq(who->pid, (unsigned)getpid());
	if (strcmp(command, "later") == 0) {
		((struct end *)arg)->asked[((struct end *)arg)->n_asked++] = asked;
		return CHAN_LATER;
	}
	*ret = mem_printf("{\"command\":\"%s\",\"args\":%zu}", command, n);
	return strcmp(command, "bad") == 0 ? ERR_INVALID : 0;
}

static void end_open(struct end *s, const char *name, uint64_t epoch, const char *bind_to,
                     uint32_t window)
{
	memset(s, 0, sizeof *s);
	struct chan_opts o = {.program = "test",
	                      .name = name,
	                      .epoch = epoch,
	                      .bind = bind_to,
	                      .heartbeat_us = 200000,
	                      .silence_us = 2000000,
	                      .window_messages = window,
	                      .window_bytes = 1 << 20,
	                      .peers_max = 4,
	                      .message_bytes_max = 1 << 20};
	struct chan_hooks h = {
		.arg = s, .up = on_up, .down = on_down, .message = on_message, .ctl = on_ctl};
	struct err err = {0};
	ck_assert_msg(chan_new(base, &o, &h, &s->c, &err) == 0, "%s", err.text);
}

static void spin(const int *counter, int want, int ms)
{
	uint64_t end = clock_us() + (uint64_t)ms * 1000;
	struct timeval tv = {0, 5000};
	while (*counter < want && clock_us() < end) {
		event_base_loopexit(base, &tv);
		event_base_loop(base, EVLOOP_ONCE);
	}
}

static int say(struct end *s, struct peer *p, uint32_t n)
{
	Pds__Deny d = PDS__DENY__INIT;
	struct msg_head h = {{1, 2}, 7, 0};
	d.retry_after_us = n;
	return chan_send(s->c, p, MSG_KV_DENY, &h, &d.base);
}

TEST_CASE("msg", .timeout_s = 120, .setup = base_setup, .teardown = base_teardown);

TEST(both_ways_in_order)
{
	struct end a, b;
	end_open(&a, "bound", 10, endpoint, 4096);
	end_open(&b, "dials", 20, NULL, 4096);
	struct peer *pa = chan_connect(b.c, endpoint, "bound", 3);
	spin(&b.ups, 1, 60000);
	ck_assert_int_eq(a.ups, 1);
	ck_assert_int_eq(b.ups, 1);
	ck_assert_int_eq(peer_tag(pa), 3);
	ck_assert_str_eq(peer_name(a.last), "dials");
	ck_assert_uint_eq(peer_epoch(a.last), 20);
	struct peer *back = a.last;
	for (uint32_t i = 0; i < 1000; i++) {
		ck_assert_int_eq(say(&b, pa, i), 0);
		ck_assert_int_eq(say(&a, back, i), 0);
	}
	spin(&a.messages, 1000, 60000);
	spin(&b.messages, 1000, 60000);
	ck_assert_int_eq(a.in_order, 1000);
	ck_assert_int_eq(b.in_order, 1000);
	chan_destroy(&b.c);
	chan_destroy(&a.c);
}

/* Two workers that have exchanged their roles: each has connected to the other. */
TEST(each_connects_to_the_other)
{
	struct end a, b;
	char second[sizeof endpoint + 4];
	snprintf(second, sizeof second, "%s-2", endpoint);
	end_open(&a, "one", 10, endpoint, 4096);
	end_open(&b, "two", 20, second, 4096);
	struct peer *by_b = chan_connect(b.c, endpoint, "one", 3);
	spin(&b.ups, 1, 60000);
	struct peer *by_a = chan_connect(a.c, second, "two", 4);
	spin(&b.ups, 2, 60000);
	spin(&a.ups, 2, 60000);
	ck_assert_int_eq(a.downs + b.downs, 0);
	ck_assert_ptr_eq(chan_find(a.c, "two", 4), by_a);
	ck_assert_ptr_eq(chan_find(b.c, "one", 3), by_b);
	struct peer *of_b = chan_find(a.c, "two", 0), *of_a = chan_find(b.c, "one", 0);
	ck_assert(of_b && of_b != by_a && of_a && of_a != by_b);
	ck_assert_ptr_null(chan_find(a.c, "two", 3));
	ck_assert_int_eq(say(&b, by_b, 0), 0);
	spin(&a.messages, 1, 60000);
	ck_assert_ptr_eq(a.last, of_b);
	ck_assert_int_eq(say(&a, of_b, 0), 0);
	spin(&b.messages, 1, 60000);
	ck_assert_ptr_eq(b.last, by_b);
	chan_destroy(&b.c);
	chan_destroy(&a.c);
}

TEST(bound_side_restarts)
{
	struct end a, a2, b;
	end_open(&a, "bound", 10, endpoint, 4096);
	end_open(&b, "dials", 20, NULL, 4096);
	struct peer *p = chan_connect(b.c, endpoint, NULL, 0);
	spin(&b.ups, 1, 60000);
	for (uint32_t i = 0; i < 3; i++) /* its numbers end with that life */
		ck_assert_int_eq(say(&b, p, i), 0);
	spin(&a.messages, 3, 60000);
	chan_destroy(&a.c);
	end_open(&a2, "bound", 11, endpoint, 4096);
	spin(&b.ups, 2, 60000);
	ck_assert_int_eq(b.downs, 1);
	ck_assert_int_eq(b.ups, 2);
	ck_assert_uint_eq(peer_epoch(p), 11);
	ck_assert_int_eq(say(&b, p, 0), 0);
	spin(&a2.messages, 1, 60000);
	ck_assert_int_eq(a2.in_order, 1);
	chan_destroy(&b.c);
	chan_destroy(&a2.c);
}

TEST(dialling_side_restarts)
{
	struct end a, b, b2;
	end_open(&a, "bound", 10, endpoint, 4096);
	end_open(&b, "dials", 20, NULL, 4096);
	chan_connect(b.c, endpoint, NULL, 0);
	spin(&b.ups, 1, 60000);
	chan_destroy(&b.c);
	spin(&a.downs, 1, 60000);
	ck_assert_int_eq(a.downs, 1);
	end_open(&b2, "dials", 21, NULL, 4096);
	chan_connect(b2.c, endpoint, NULL, 0);
	spin(&a.ups, 2, 60000);
	ck_assert_int_eq(a.ups, 2);
	ck_assert_uint_eq(peer_epoch(a.last), 21);
	chan_destroy(&b2.c);
	chan_destroy(&a.c);
}

TEST(rm22_name_is_taken_while_it_lives)
{
	struct end a, b, c;
	end_open(&a, "bound", 10, endpoint, 4096);
	end_open(&b, "dials", 20, NULL, 4096);
	end_open(&c, "dials", 30, NULL, 4096);
	chan_connect(b.c, endpoint, NULL, 0);
	spin(&b.ups, 1, 60000);
	chan_connect(c.c, endpoint, NULL, 0);
	int never = 0;
	spin(&never, 1, 700);
	ck_assert_int_eq(c.ups, 0);
	ck_assert_int_eq(a.downs, 0);
	ck_assert_int_eq(a.ups, 1);
	chan_destroy(&c.c);
	chan_destroy(&b.c);
	chan_destroy(&a.c);
}

TEST(window_is_bounded)
{
	struct end a, b;
	end_open(&a, "bound", 10, endpoint, 4096);
	end_open(&b, "dials", 20, NULL, 16);
	struct peer *p = chan_connect(b.c, endpoint, NULL, 0);
	ck_assert_int_eq(say(&b, p, 0), ERR_CLOSED);
	spin(&b.ups, 1, 60000);
	for (uint32_t i = 0; i < 16; i++)
		ck_assert_int_eq(say(&b, p, i), 0);
	ck_assert_int_eq(say(&b, p, 16), ERR_FULL);
	spin(&a.messages, 16, 60000);
	int never = 0;
	spin(&never, 1, 300); /* acknowledged at the next tick */
	ck_assert_int_eq(say(&b, p, 16), 0);
	spin(&a.messages, 17, 60000);
	ck_assert_int_eq(a.in_order, 17);
	chan_destroy(&b.c);
	chan_destroy(&a.c);
}

static void *ask_thread(void *arg)
{
	struct err err = {0};
	char *text = NULL, *args[] = {(char *)"x", (char *)"y"};
	int r = chan_ask(endpoint, NULL, arg, args, 2, 3000000, &text, &err);
	char *out = mem_printf("%d %s", r, r == 0 ? text : err.text);
	free(text);
	return out;
}

TEST(pdctl_asks)
{
	static const struct {
		const char *command, *want;
	} rows[] = {{"status", "0 {\"command\":\"status\",\"args\":2}"},
	            {"bad", "-2 {\"command\":\"bad\",\"args\":2}"}};
	struct end a;
	end_open(&a, "bound", 10, endpoint, 16);
	for (size_t i = 0; i < 2; i++) {
		pthread_t t;
		void *got;
		int never = 0;
		pthread_create(&t, NULL, ask_thread, (void *)rows[i].command);
		spin(&never, 1, 500);
		pthread_join(t, &got);
		ck_assert_str_eq(got, rows[i].want);
		free(got);
	}
	chan_destroy(&a.c);
}

/* An answer that comes later reaches who has asked, though others were answered meanwhile; a daemon
 * has so many questions open and no more; at its end they are forgotten. */
TEST(pdctl_asks_and_waits)
{
	static const char *const want[] = {"0 done", "-2 not done"};
	struct end a;
	pthread_t t[CHAN_ASKED_MAX + 1];
	void *got;
	end_open(&a, "bound", 10, endpoint, 16);
	for (int i = 0; i < 2; i++) {
		pthread_create(&t[i], NULL, ask_thread, (void *)"later");
		spin(&a.n_asked, i + 1, 60000);
		ck_assert_int_eq(a.n_asked, i + 1);
	}
	int never = 0;
	pthread_create(&t[2], NULL, ask_thread, (void *)"status");
	spin(&never, 1, 300);
	pthread_join(t[2], &got);
	ck_assert_str_eq(got, "0 {\"command\":\"status\",\"args\":2}");
	free(got);
	for (int i = 2; i-- > 0;)
		chan_answer(a.c, a.asked[i], i ? ERR_INVALID : 0, strchr(want[i], ' ') + 1);
	for (int i = 0; i < 2; i++) {
		pthread_join(t[i], &got);
		ck_assert_str_eq(got, want[i]);
		free(got);
	}
	a.n_asked = 0;
	for (unsigned i = 0; i <= CHAN_ASKED_MAX; i++)
		pthread_create(&t[i], NULL, ask_thread, (void *)"later");
	spin(&a.n_asked, CHAN_ASKED_MAX + 1, 1500);
	ck_assert_int_eq(a.n_asked, CHAN_ASKED_MAX);
	chan_destroy(&a.c);
	unsigned full = 0;
	for (unsigned i = 0; i <= CHAN_ASKED_MAX; i++) {
		pthread_join(t[i], &got);
		full += strstr(got, "64 questions are not yet answered") != NULL;
		free(got);
	}
	ck_assert_uint_eq(full, 1);
}

/* Frames of random length and content, and near-misses, on a raw connection: nothing is
 * delivered, the next peer is served. */
TEST(garbage_changes_nothing)
{
	struct end a, b;
	end_open(&a, "bound", 10, endpoint, 16);
	void *ctx = zmq_ctx_new(), *z = zmq_socket(ctx, ZMQ_DEALER);
	int zero = 0;
	zmq_setsockopt(z, ZMQ_LINGER, &zero, sizeof zero);
	zmq_connect(z, endpoint);
	srand(4711);
	for (int i = 0; i < 2000; i++) {
		unsigned char buf[96];
		int frames = 1 + rand() % 4;
		for (int f = 0; f < frames; f++) {
			size_t n = (size_t)(rand() % (int)sizeof buf);
			for (size_t k = 0; k < n; k++)
				buf[k] = (unsigned char)rand();
			if (f == 0 && n > 2 && i % 2)
				buf[0] = 8, buf[1] = 1; /* version 1, then noise */
			zmq_send(z, buf, n, ZMQ_DONTWAIT | (f + 1 < frames ? ZMQ_SNDMORE : 0));
		}
	}
	int never = 0;
	spin(&never, 1, 300);
	struct chan_counts counts;
	chan_counts(a.c, &counts);
	/* of 2,000; what finds the queue full (1,000) on a busy machine is not sent */
	ck_assert_uint_ge(counts.bad, 500);
	ck_assert_int_eq(a.ups, 0);
	ck_assert_int_eq(a.messages, 0);
	end_open(&b, "dials", 20, NULL, 16);
	chan_connect(b.c, endpoint, NULL, 0);
	spin(&b.ups, 1, 60000);
	ck_assert_int_eq(b.ups, 1);
	zmq_close(z);
	zmq_ctx_term(ctx);
	chan_destroy(&b.c);
	chan_destroy(&a.c);
}

TEST(link_numbers)
{
	static const struct {
		uint64_t seq;
		enum link_verdict want;
	} in[] = {{1, LINK_DELIVER}, {1, LINK_DUPLICATE}, {3, LINK_GAP},
	          {2, LINK_DELIVER}, {3, LINK_DELIVER},   {2, LINK_DUPLICATE}};
	struct msg_link l;
	link_init(&l);
	for (size_t i = 0; i < sizeof in / sizeof *in; i++)
		ck_assert_int_eq(link_arrived(&l, in[i].seq), in[i].want);
	for (int i = 0; i < 5; i++) {
		ck_assert_int_eq(link_has_room(&l, 5, 1000, 1, 10), 1);
		ck_assert_ptr_nonnull(link_push(&l, 10));
	}
	ck_assert_int_eq(link_has_room(&l, 5, 1000, 1, 10), 0);
	ck_assert_int_eq(link_has_room(&l, 6, 1000, 2, 10), 0);
	ck_assert_int_eq(link_has_room(&l, 7, 1000, 2, 10), 1);
	link_acked(&l, 99); /* never sent: ignored */
	ck_assert_uint_eq(l.n_window, 5);
	link_acked(&l, 3);
	ck_assert_uint_eq(l.n_window, 2);
	ck_assert_int_eq(link_has_room(&l, 5, 25, 1, 10), 0);
	ck_assert_int_eq(link_has_room(&l, 5, 30, 1, 10), 1);
	ck_assert_uint_eq(link_push(&l, 10)->seq, 6);
	link_pop(&l);
	ck_assert_uint_eq(link_push(&l, 10)->seq, 6);
	link_fini(&l);
	ck_assert_uint_eq(l.n_window, 0);
}

TEST(decode_demands_what_is_required)
{
	static const struct {
		uint32_t version, type, attempt;
		uint64_t lo;
		const char *sender;
		int want;
	} rows[] = {
		{PROTOCOL_VERSION, MSG_REQUEST_CANCEL, 1, 5, "p", 0},
		{PROTOCOL_VERSION + 1, MSG_REQUEST_CANCEL, 1, 5, "p", ERR_UNSUPPORTED},
		{PROTOCOL_VERSION, 9999, 1, 5, "p", ERR_UNSUPPORTED},
		{PROTOCOL_VERSION, MSG_REQUEST_CANCEL, 0, 5, "p", ERR_CORRUPT},
		{PROTOCOL_VERSION, MSG_REQUEST_CANCEL, 1, 0, "p", ERR_CORRUPT},
		{PROTOCOL_VERSION, MSG_REQUEST_CANCEL, 1, 5, "", ERR_CORRUPT},
		{PROTOCOL_VERSION, MSG_REQUEST_CANCEL, 1, 5,
	     "a-name-that-is-far-too-long-for-a-daemon-of-this-suite", ERR_CORRUPT},
		{PROTOCOL_VERSION, MSG_KV_GRANT, 1, 5, "p", ERR_CORRUPT},            /* no lease */
		{PROTOCOL_VERSION, MSG_REQUEST_SUBMIT, 1, 5, "p", ERR_CORRUPT},      /* no request */
		{PROTOCOL_VERSION, MSG_REQUEST_FIRST_TOKEN, 1, 5, "p", ERR_CORRUPT}, /* no token */
	};
	for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
		Pds__Envelope e = PDS__ENVELOPE__INIT;
		unsigned char buf[256];
		struct msg_in m;
		struct err err = {0};
		e.version = rows[i].version;
		e.type = rows[i].type;
		e.attempt = rows[i].attempt;
		e.request_lo = rows[i].lo;
		e.sender = (char *)rows[i].sender;
		size_t n = pds__envelope__pack(&e, buf);
		ck_assert_msg(msg_decode(buf, n, "", 0, &m, &err) == rows[i].want, "row %zu: %s", i,
		              err.text);
		msg_in_fini(&m);
	}
}

/* What a worker says of itself is kept: in HELLO and later it has the same bounds. */
/* None, or exactly as long as a hash. */
TEST_LOOP(cache_salt_has_one_length, 0, 6)
{
	static const size_t lengths[] = {0, 32, 1, 31, 33, 1000};
	static uint8_t bytes[1000];
	static uint32_t one_token[1] = {1};
	Pds__Sampling sampling = PDS__SAMPLING__INIT;
	Pds__Request request = PDS__REQUEST__INIT;
	Pds__Submit submit = PDS__SUBMIT__INIT;
	struct err err = {0};
	request.sampling = &sampling;
	request.tokens = one_token;
	request.n_tokens = request.prompt_tokens = request.max_tokens = 1;
	request.cache_salt = (ProtobufCBinaryData){lengths[_i], bytes};
	submit.request = &request;
	int r = msg_validate(msg_type_find(MSG_REQUEST_SUBMIT), &submit.base, &err);
	ck_assert_msg((r == 0) == (_i < 2), "%zu bytes: %s", lengths[_i], err.text);
}

TEST(texts_of_workers_are_bounded)
{
	char text[MSG_TEXT_MAX + 2];
	memset(text, 't', sizeof text);
	for (int i = 0; i < 9; i++) {
		Pds__WorkerInfo w = PDS__WORKER_INFO__INIT;
		Pds__Hello hello = PDS__HELLO__INIT;
		Pds__WorkerUpdate update = PDS__WORKER_UPDATE__INIT;
		struct err err = {0};
		char **texts[] = {&w.role,   &w.endpoint, &w.model,  &w.model_fingerprint, &w.numerics,
		                  &w.layout, &w.site,     &w.remote, &w.messager};
		hello.worker = update.worker = &w;
		*texts[i] = text;
		for (int longer = 0; longer < 2; longer++) {
			text[MSG_TEXT_MAX + longer] = 0;
			ck_assert_int_eq(msg_validate(msg_type_find(MSG_HELLO), &hello.base, &err),
			                 longer ? ERR_CORRUPT : 0);
			ck_assert_int_eq(msg_validate(msg_type_find(MSG_WORKER_UPDATE), &update.base, &err),
			                 longer ? ERR_CORRUPT : 0);
			text[MSG_TEXT_MAX + longer] = 't';
		}
	}
}

/* What lies behind a hash that is not one is never read. The wrong one is the second. */
TEST_LOOP(a_hash_has_one_length, 0, 5)
{
	static const size_t lengths[] = {32, 0, 31, 33, 1000};
	static uint8_t bytes[1000];
	Pds__StoreItem item[2] = {PDS__STORE_ITEM__INIT, PDS__STORE_ITEM__INIT},
				   *items[] = {item, item + 1};
	Pds__StoreResult result[2] = {PDS__STORE_RESULT__INIT, PDS__STORE_RESULT__INIT},
					 *results[] = {result, result + 1};
	ProtobufCBinaryData hashes[] = {{32, bytes}, {lengths[_i], bytes}};
	Pds__StorePut put = PDS__STORE_PUT__INIT;
	Pds__StoreGet get = PDS__STORE_GET__INIT;
	Pds__StoreLookup lookup = PDS__STORE_LOOKUP__INIT;
	Pds__StoreDone done = PDS__STORE_DONE__INIT;
	for (int i = 0; i < 2; i++)
		item[i].hash = result[i].hash = hashes[i];
	put.items = get.items = items;
	done.results = results;
	lookup.hashes = hashes;
	put.n_items = get.n_items = lookup.n_hashes = done.n_results = 2;
	const struct {
		enum msg_type type;
		const ProtobufCMessage *m;
	} all[] = {{MSG_STORE_PUT, &put.base},
	           {MSG_STORE_GET, &get.base},
	           {MSG_STORE_LOOKUP, &lookup.base},
	           {MSG_STORE_DONE, &done.base}};
	for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
		struct err err = {0};
		int r = msg_validate(msg_type_find(all[i].type), all[i].m, &err);
		ck_assert_msg((r == 0) == (lengths[_i] == 32), "message %zu, %zu bytes: %s", i, lengths[_i],
		              err.text);
	}
}

/* A stage, a port, and a ticket whose secret is read whole. */
TEST(a_stage_is_taken_with_a_ticket)
{
	static uint8_t secret[33];
	static const struct {
		uint32_t stage, stages, port;
		uint64_t ticket;
		size_t secret;
	} takes[] = {{1, 2, 7000, 5, 32}, {0, 2, 7000, 5, 32},  {2, 2, 7000, 5, 32},
	             {1, 2, 0, 5, 32},    {1, 2, 65536, 5, 32}, {1, 2, 7000, 0, 32},
	             {1, 2, 7000, 5, 31}, {1, 2, 7000, 5, 33},  {1, 2, 7000, 5, 0}};
	for (size_t i = 0; i < sizeof takes / sizeof *takes; i++) {
		Pds__PipelineTake m = PDS__PIPELINE_TAKE__INIT;
		struct err err = {0};
		m.stage = takes[i].stage;
		m.stages = takes[i].stages;
		m.port = takes[i].port;
		m.ticket = takes[i].ticket;
		m.secret = (ProtobufCBinaryData){takes[i].secret, secret};
		int r = msg_validate(msg_type_find(MSG_PIPELINE_TAKE), &m.base, &err);
		ck_assert_msg((r == 0) == (i == 0), "take %zu: %s", i, err.text);
	}
}

/* Attempts are numbered from 1: 0 would be a field that nobody set. */
TEST(tokens_name_their_attempt)
{
	Pds__SequenceTokens s[2] = {PDS__SEQUENCE_TOKENS__INIT, PDS__SEQUENCE_TOKENS__INIT},
						*list[] = {s, s + 1};
	Pds__Tokens m = PDS__TOKENS__INIT;
	m.sequences = list;
	m.n_sequences = 2;
	s[0].attempt = s[1].attempt = 1;
	ck_assert_int_eq(msg_validate(msg_type_find(MSG_REQUEST_TOKENS), &m.base, NULL), 0);
	s[1].attempt = 0;
	ck_assert_int_eq(msg_validate(msg_type_find(MSG_REQUEST_TOKENS), &m.base, NULL), ERR_CORRUPT);
}

TEST(texts_of_peers_are_bounded)
{
	char text[MSG_ENDPOINT_MAX + 2];
	memset(text, 't', sizeof text);
	for (int i = 0; i < 3; i++) {
		static const size_t limits[] = {MSG_NAME_MAX, MSG_ENDPOINT_MAX, MSG_ENDPOINT_MAX};
		Pds__Peer p = PDS__PEER__INIT, *list = &p;
		Pds__Peers m = PDS__PEERS__INIT;
		struct err err = {0};
		char **texts[] = {&p.name, &p.endpoint, &p.messager};
		p.name = (char *)"n";
		m.peers = &list;
		m.n_peers = 1;
		*texts[i] = text;
		for (size_t longer = 0; longer < 2; longer++) {
			text[limits[i] + longer] = 0;
			ck_assert_int_eq(msg_validate(msg_type_find(MSG_PEERS), &m.base, &err),
			                 longer ? ERR_CORRUPT : 0);
			text[limits[i] + longer] = 't';
		}
	}
}

/* A worker looks at each link for each peer that PEERS names. */
TEST(peers_have_a_limit)
{
	static Pds__Peer *list[MSG_PEERS_MAX + 1];
	Pds__Peer p = PDS__PEER__INIT;
	Pds__Peers m = PDS__PEERS__INIT;
	struct err err = {0};
	p.name = (char *)"n";
	for (size_t i = 0; i < MSG_PEERS_MAX + 1; i++)
		list[i] = &p;
	m.peers = list;
	m.n_peers = MSG_PEERS_MAX;
	ck_assert_int_eq(msg_validate(msg_type_find(MSG_PEERS), &m.base, &err), 0);
	m.n_peers++;
	ck_assert_int_eq(msg_validate(msg_type_find(MSG_PEERS), &m.base, &err), ERR_CORRUPT);
	ck_assert_str_eq(err.text, "1025 peers, allowed 1024");
}

/* Disconnected while its WELCOME is under way: it does not come back to life. */
TEST(disconnected_stays_so)
{
	struct end a, b;
	end_open(&a, "bound", 10, endpoint, 16);
	end_open(&b, "dials", 20, NULL, 16);
	for (int i = 0; i < 20; i++) {
		struct chan_counts n;
		chan_counts(b.c, &n);
		uint64_t before = n.sent, ups = (uint64_t)b.ups;
		struct peer *p = chan_connect(b.c, endpoint, NULL, 0);
		for (uint64_t end = clock_us() + 20000000; n.sent == before; chan_counts(b.c, &n)) {
			ck_assert(clock_us() < end);
			event_base_loop(base, EVLOOP_ONCE);
		}
		/* its HELLO has left; most times WELCOME has not come */
		int never = 0, gone_early = (uint64_t)b.ups != ups;
		chan_disconnect(b.c, p);
		spin(&never, 1, 15);
		ck_assert_msg((uint64_t)b.ups == ups + (uint64_t)gone_early && b.downs == b.ups,
		              "turn %d: %d ups, %d downs", i, b.ups, b.downs);
	}
	chan_destroy(&b.c);
	chan_destroy(&a.c);
}

/* An owner may disconnect a peer inside the hook that says it is down, also twice: it ends once,
 * and others find its place free. */
TEST(disconnected_when_it_is_down)
{
	struct end a, b;
	end_open(&a, "bound", 10, endpoint, 16);
	a.cuts = 2;
	for (int i = 0; i < 3; i++) {
		end_open(&b, "dials", 20 + (uint64_t)i, NULL, 16);
		chan_connect(b.c, endpoint, NULL, 0);
		spin(&b.ups, 1, 20000);
		spin(&a.ups, i + 1, 20000);
		ck_assert_int_eq(a.ups, i + 1);
		chan_destroy(&b.c);
		spin(&a.downs, i + 1, 20000);
		ck_assert_int_eq(a.downs, i + 1);
		ck_assert_ptr_null(chan_next(a.c, NULL));
	}
	chan_destroy(&a.c);
}

/* So may the side that connected, when it is told that its link restarts: it does not come up
 * again. */
TEST(disconnected_when_its_link_restarts)
{
	struct end a, b;
	int never = 0;
	end_open(&a, "bound", 10, endpoint, 16);
	end_open(&b, "dials", 20, NULL, 16);
	b.cuts = 1;
	chan_connect(b.c, endpoint, NULL, 0);
	spin(&b.ups, 1, 20000);
	spin(&a.ups, 1, 20000);
	struct peer *p = b.last;
	chan_disconnect(a.c, a.last); /* it knows the other no more, who says so by speaking */
	ck_assert_int_eq(say(&b, p, 0), 0);
	spin(&b.downs, 1, 20000);
	ck_assert_str_eq(b.why, "its link restarts");
	ck_assert_ptr_null(chan_next(b.c, NULL));
	spin(&never, 1, 200);
	ck_assert_int_eq(b.ups, 1);
	chan_destroy(&b.c);
	chan_destroy(&a.c);
}
