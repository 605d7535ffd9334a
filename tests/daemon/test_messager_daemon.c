/* test_messager_daemon.c - the real messager and the real pddecoded, beside a prefill worker that
 * this process plays, a hostile one: D has granted it a lease, and its transfer ring names other
 * blocks of D. */
/* run: threads */
#include "decode_world.h"

#include "daemons/worker/links/attach.h"
#include "kv/ring.h"
#include "svc/svc_int.h"

#define BLOCKS 16u

/* What the prefill worker has beside its link to D: memory, a ring, and a link to the messager. */
static struct {
	struct svc svc; /* only its event base is used */
	struct side link;
	struct pool_memory pool;
	struct ring *ring;
	struct attach *attach;
	int attached;
} P;

static void on_attached(void *arg, uint64_t epoch, int bell)
{
	(void)arg;
	(void)epoch;
	ring_set_bell(P.ring, bell);
	P.attached = 1;
}

static void on_gone(void *arg, uint64_t epoch)
{
	(void)arg;
	(void)epoch;
}

/* Its pool has D's layout, and 0x42 in every byte. */
static void hand_memory_over(void)
{
	static const struct attach_hooks hooks = {NULL, on_attached, on_gone};
	struct handover_hello hello;
	struct err e = {0};
	uint32_t layers, heads, dim, tokens;
	char sock[128];
	int parts = sscanf(W.info->layout, "%ux%ux%u:f32:%u", &layers, &heads, &dim, &tokens);
	ck_assert_int_eq(parts, 4);
	ck_assert_int_eq(kv_layout_uniform(&W.layout, layers, heads, dim, tokens, KV_F32), 0);
	ck_assert_int_eq(pool_memory_new(&P.pool, &W.layout, BLOCKS, &e), 0);
	memset(P.pool.data, 0x42, P.pool.region.data_bytes);
	ck_assert_int_eq(ring_create(1, layers, PREFILL->epoch, &P.ring, &e), 0);
	handover_hello_init(&hello, PREFILL->name, PREFILL->epoch, &W.layout, BLOCKS, "cpu");
	hello.ring_slots = 1;
	hello.ring_layers = layers;
	snprintf(sock, sizeof sock, "%s/messager.sock", W.dir);
	P.svc.base = W.base;
	const struct handover_fds fds = {P.pool.region.control_fd, ring_fd(P.ring), P.pool.region.data};
	P.attach = attach_new(&P.svc, "messager", sock, &hello, &fds, &hooks);
}

static void play_prefill(void)
{
	P.link = *PREFILL;
	P.link.to = "messager";
	P.link.c = NULL;
	P.link.p = NULL;
	side_open(&P.link);
}

static void begin_world(void)
{
	static const char *const none[] = {NULL}, *const settings[] = {"kv_blocks=16", NULL};
	world_folder();
	W.beside = process_start("pdmessagerd", (const char *const *const[]){none, NULL});
	decode_open(settings);
	daemon_start();
	UNTIL(ROUTER->p);
	side_open(PREFILL);
	UNTIL(PREFILL->p);
}

static void begin(void)
{
	begin_world();
	play_prefill();
	hand_memory_over();
	UNTIL(P.link.p && P.attached);
}

static void end(void)
{
	at_rest();
	attach_destroy(&P.attach);
	side_close(&P.link);
	ring_destroy(&P.ring);
	pool_memory_fini(&P.pool);
	world_end();
}

/* A transfer of the lease in all but its blocks, which the ring says are computed. */
static void publish(uint32_t n, const Pds__Grant *g, uint32_t tokens, const uint32_t *dst)
{
	static struct ring_transfer t;
	uint32_t slot;
	uint64_t gen;
	memset(&t, 0, sizeof t);
	t.req = (struct reqid){7, n};
	t.attempt = 1;
	t.lease_id = g->lease->id;
	t.lease_epoch = g->lease->epoch;
	t.lease_generation = g->lease->generation;
	strcpy(t.decode, "decode");
	t.deadline_us = clock_us() + 60000000;
	t.first_token = g->cached_tokens;
	t.tokens = tokens;
	t.blocks = (uint32_t)g->n_blocks;
	for (uint32_t i = 0; i < t.blocks; i++) {
		t.src[i] = i;
		t.dst[i] = dst[i];
	}
	ck_assert_int_eq(ring_publish(P.ring, &t, &slot, &gen), 0);
	for (uint32_t l = 0; l < W.layout.layers; l++)
		__atomic_store_n(ring_progress_word(P.ring, slot, l), ring_progress_value(gen, tokens),
		                 __ATOMIC_RELEASE);
	ring_bell(P.ring);
}

static struct answer ask(uint32_t n)
{
	say_submit(n, tokens_of(100));
	expect_length(n, 8);
	return D.answer[n];
}

static int is_in(const Pds__Grant *g, uint32_t block)
{
	for (size_t i = 0; i < g->n_blocks; i++)
		if (g->blocks[i] == block)
			return 1;
	return 0;
}

/* The messager's verdict on the transfer of request n: 1 sent, 0 failed. */
static int sent(uint32_t n)
{
	const Pds__TransferFailed *f = NULL;
	const Pds__KvSent *s = NULL;
	UNTIL((f = (const Pds__TransferFailed *)take(&P.link, MSG_TRANSFER_FAILED, n)) ||
	      (s = (const Pds__KvSent *)take(&P.link, MSG_KV_SENT, n)));
	if (f)
		ck_assert_msg(strstr(f->text, "nothing was written") != NULL, "%s", f->text);
	uint32_t slot = f ? f->slot : s->slot;
	uint64_t gen = f ? f->generation : s->generation;
	ring_cancel(P.ring, slot, gen);
	ring_retire(P.ring, slot, gen);
	return s != NULL;
}

/* Every block of the pool that is not the lease's: six of them hold a prompt that D has in its
 * prefix index, and answers from again. */
TEST(blocks_that_are_not_the_leases)
{
	uint32_t foreign[BLOCKS], n = 0;
	begin();
	struct answer want = ask(1);
	UNTIL(kv_count("held") == 0 && kv_count("cached") >= 6);
	const Pds__Grant *g = reserve(3, tokens_of(40));
	ck_assert_uint_eq(g->n_blocks, 3);
	for (uint32_t b = 0; b < BLOCKS; b++)
		if (!is_in(g, b))
			foreign[n++] = b;
	for (uint32_t at = 0; at + 3 <= n; at++) {
		publish(3, g, 40, foreign + at);
		if (sent(3))
			break;
	}
	struct answer got = ask(2);
	for (uint32_t i = 0; i < want.n; i++)
		ck_assert_msg(got.id[i] == want.id[i], "token %u is %u, undisturbed it is %u", i, got.id[i],
		              want.id[i]);
	/* and the lease is as good as ever: what it names is delivered */
	publish(3, g, 40, g->blocks);
	ck_assert(sent(3));
	say_first(PREFILL, 3, *g->lease, short_answer[0]);
	UNTIL(ended(3));
	end();
}

/* Another connection to the messager's socket, in place of P's. */
static int connect_instead(void)
{
	struct err e = {0};
	char path[128];
	attach_destroy(&P.attach);
	snprintf(path, sizeof path, "%s/messager.sock", W.dir);
	int s = sock_connect(path, &e);
	ck_assert_msg(s >= 0, "%s", e.text);
	return s;
}

/* As pdctl metrics says. */
static uint64_t refused_handovers(void)
{
	W.name = "messager";
	const uint64_t n = metric("handovers_refused_total");
	W.name = "decode";
	return n;
}

/* A worker whose pool is memory that the messager cannot copy is told so in a sentence; the
 * others' links and memory stay. */
TEST(a_backend_that_is_not_there)
{
	struct handover_hello hello;
	struct handover_reply reply;
	struct err e = {0};
	int bell = -1;
	begin();
	int s = connect_instead();
	handover_hello_init(&hello, PREFILL->name, PREFILL->epoch, &W.layout, BLOCKS, "none");
	struct pool_memory far = P.pool;
	far.region.data.device[0] = 3;
	ck_assert_int_eq(pool_memory_offer(&far, s, &hello, -1, &e), 0);
	ck_assert_msg(handover_result(s, &reply, &bell, &e) == 0, "%s", e.text);
	ck_assert_int_eq(reply.code, ERR_UNSUPPORTED);
	ck_assert_ptr_nonnull(strstr(reply.text, "blocks on device 3 of backend none cannot be copied: "
	                                         "backend: found none, expected cpu, sim or an"));
	ck_assert_uint_eq(refused_handovers(), 1);
	close(s);
	const struct answer a = ask(1);
	ck_assert_uint_gt(a.n, 0);
	end();
}

/* Memory that is offered before its process has a link waits for that; nobody is refused. */
TEST(memory_comes_before_the_link)
{
	begin_world();
	hand_memory_over();
	pump_for(200000);
	ck_assert_int_eq(P.attached, 0);
	play_prefill();
	UNTIL(P.attached);
	ck_assert_uint_eq(refused_handovers(), 0);
	const Pds__Grant *g = reserve(1, tokens_of(40));
	publish(1, g, 40, g->blocks);
	ck_assert(sent(1));
	say_first(PREFILL, 1, *g->lease, short_answer[0]);
	UNTIL(ended(1));
	end();
}

/* A process that has a link offers memory under another name, or as another life. */
TEST_LOOP(memory_under_another_name, 0, 2)
{
	struct handover_hello hello;
	struct handover_reply reply;
	struct err e = {0};
	char text[128];
	const char *name = _i ? PREFILL->name : "other";
	const uint64_t epoch = PREFILL->epoch + (uint64_t)_i;
	int bell = -1;
	begin();
	int s = connect_instead();
	handover_hello_init(&hello, name, epoch, &W.layout, BLOCKS, "cpu");
	ck_assert_int_eq(pool_memory_offer(&P.pool, s, &hello, -1, &e), 0);
	ck_assert_msg(handover_result(s, &reply, &bell, &e) == 0, "%s", e.text);
	ck_assert_int_eq(reply.code, ERR_INVALID);
	snprintf(text, sizeof text, "process %d has no link as %s of epoch %016llx", (int)getpid(),
	         name, (unsigned long long)epoch);
	ck_assert_msg(strstr(reply.text, text) == reply.text, "%s", reply.text);
	ck_assert_uint_eq(refused_handovers(), 1);
	close(s);
	end();
}

/* Another process of our user offers memory under the name and epoch of P, which has the link: it
 * waits in vain, and does not keep P waiting. */
TEST(memory_of_another_process)
{
	begin_world();
	play_prefill();
	UNTIL(P.link.p);
	hand_memory_over(); /* P tries at the loop's next round */
	pid_t thief = fork();
	if (thief == 0) {
		struct handover_hello hello;
		struct err e = {0};
		char path[128], byte;
		snprintf(path, sizeof path, "%s/messager.sock", W.dir);
		int s = sock_connect(path, &e);
		handover_hello_init(&hello, PREFILL->name, PREFILL->epoch, &W.layout, BLOCKS, "cpu");
		if (s < 0 || pool_memory_offer(&P.pool, s, &hello, -1, &e) < 0)
			_exit(1);
		ssize_t n = sock_recv(s, &byte, sizeof byte, NULL, 0, NULL);
		_exit(n == 0 || n == ERR_CLOSED ? 0 : 2); /* no answer */
	}
	usleep(100000); /* the thief is first */
	UNTIL(P.attached);
	process_ended(&thief);
	end();
}

/* As pdctl status says. */
static uint32_t refused_messages(void)
{
	const char *text = strstr(ctl("status"), "\"refused\":");
	ck_assert_ptr_nonnull(text);
	const char *at = strstr(text, "\"messages\":");
	ck_assert_ptr_nonnull(at);
	return (uint32_t)strtoul(at + 11, NULL, 10);
}

/* A worker with a link, but without memory here, answers for D: refused, and P's transfer goes on
 * as if nothing had been said. */
TEST(words_of_a_worker_without_memory)
{
	Pds__LeaseOpened opened = PDS__LEASE_OPENED__INIT;
	Pds__KvReadyAck ack = PDS__KV_READY_ACK__INIT;
	Pds__Lease l = PDS__LEASE__INIT;
	struct side *d = D1;
	begin();
	d->to = "messager";
	side_open(d);
	UNTIL(d->p);
	l.epoch = d->epoch;
	l.id = l.generation = 1;
	opened.lease = ack.lease = &l;
	opened.prefill = ack.prefill = (char *)PREFILL->name;
	opened.prefill_epoch = ack.prefill_epoch = PREFILL->epoch;
	say(d, MSG_LEASE_OPENED, 1, &opened);
	W.name = "messager";
	UNTIL(refused_messages() == 1);
	say(d, MSG_KV_READY_ACK, 1, &ack);
	UNTIL(refused_messages() == 2);
	W.name = "decode";
	side_close(d);
	end();
}
