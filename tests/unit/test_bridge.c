/* test_bridge.c - stages of a pipeline on other hosts, here processes of this one that share
 * nothing with the engine but a connection: they compute the bits of one process, and one that
 * ends, stops, fails or lies never hangs the engine. Needs build*\/bin/pdrank. */
/* run: threads */
#include "engine/bridge.h"
#include "engine/engine_impl.h"
#include "engine/tp_impl.h"
#include "children.h"
#include "stage_rig.h"
#include "tempdir.h"
#include "util/clock.h"
#include "util/mem.h"

#include <check.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define GOLDEN "tests/data/golden/"
enum { BLOCKS = 48, BLOCK = 16, ROWS = 64, TOKENS = 110, REMOTE_MAX = 3 };

/* --- stages' processes, as pdrank starts them ---------------------------- */

static struct stage_process remote[REMOTE_MAX];
static struct tp_remote wires[REMOTE_MAX];
static const char *model_there = ""; /* "": the engine's */
static char program[600];

TEST_START(find_program)
{
	const char *slash = strrchr(argv[0], '/');
	snprintf(program, sizeof program, "%.*s/../bin/pdrank", slash ? (int)(slash - argv[0]) : 1,
	         slash ? argv[0] : ".");
}

struct asker {
	struct wire_ticket t;
	uint16_t port;
	struct wire *w;
};

static void *ask(void *arg)
{
	struct asker *a = arg;
	struct err err = {0};
	ck_assert_int_eq(wire_connect("127.0.0.1", a->port, &a->t, &a->w, &err), 0);
	return NULL;
}

/* The test is the other end. */
static void play_stage(struct stage_process *r)
{
	struct asker a = {.w = NULL};
	pthread_t t;
	struct wire_ticket *ticket = &a.t;
	wire_ticket_make(ticket);
	int door = door_new(&a.port);
	pthread_create(&t, NULL, ask, &a);
	wires[r - remote].wire = accept_stage(door, ticket);
	pthread_join(t, NULL);
	r->wire = a.w;
	r->pid = 0;
	r->fd = -1;
}

/* --- engines ------------------------------------------------------------- */

static struct engine_opts options(unsigned pp, unsigned tp, unsigned n)
{
	for (unsigned i = 0; i < n; i++)
		snprintf(wires[i].name, sizeof wires[i].name, "rank-%u", i + 1);
	return (struct engine_opts){.model_path = GOLDEN "llama",
	                            .backend = "cpu",
	                            .threads = tp,
	                            .tp = tp,
	                            .pp = pp,
	                            .remote = wires,
	                            .n_remote = n,
	                            .kv_type = KV_BF16,
	                            .block_tokens = BLOCK,
	                            .max_rows = ROWS,
	                            .max_logits = ROWS,
	                            .hidden = 1,
	                            .max_spans = 8};
}

static struct engine *open_engine(unsigned pp, unsigned tp, unsigned n)
{
	struct engine_opts o = options(pp, tp, n);
	struct engine *e;
	struct err err = {0};
	for (unsigned i = 0; i < n; i++) {
		spawn_stage(&remote[i], program, model_there, 0, pp - n + i, pp);
		wires[i].wire = remote[i].wire;
	}
	ck_assert_msg(engine_open(&o, &e, &err) == 0, "engine_open: %s", err.text);
	ck_assert_msg(engine_new_pool(e, BLOCKS, NULL, &err) == 0, "engine_new_pool: %s", err.text);
	return e;
}

static void close_engine(struct engine **e)
{
	engine_close(e);
	for (unsigned i = 0; i < REMOTE_MAX; i++)
		if (remote[i].fd)
			stage_process_end(&remote[i]);
}

static int run_span(struct engine *e, uint32_t from, uint32_t n, enum engine_logits logits,
                    double *hidden, float *out, struct err *err)
{
	uint32_t ids[TOKENS], table[8];
	for (uint32_t i = 0; i < TOKENS; i++)
		ids[i] = (i * 37 + 11) % 320;
	for (uint32_t b = 0; b < 8; b++)
		table[b] = b * 5 % BLOCKS;
	struct engine_span s = {.tokens = ids + from,
	                        .n = n,
	                        .position = from,
	                        .blocks = table,
	                        .logits = logits,
	                        .hidden = hidden};
	int rc = engine_step(e, &s, 1, err);
	size_t vocab = engine_info(e)->vocab, rows = logits == ENGINE_LOGITS_ALL    ? n
	                                             : logits == ENGINE_LOGITS_LAST ? 1
	                                                                            : 0;
	if (!rc && !hidden && rows && out)
		memcpy(out, engine_logits(e, s.logits_row), rows * vocab * sizeof *out);
	return rc;
}

static int decode_one(struct engine *e, struct err *err)
{
	return run_span(e, 0, 1, ENGINE_LOGITS_LAST, NULL, NULL, err);
}

/* A prompt in chunks, tokens after it, and an embedding. */
static size_t story(struct engine *e, float *out)
{
	static const struct {
		uint32_t from, n;
		enum engine_logits logits;
	} part[] = {{0, 33, ENGINE_LOGITS_ALL},  {33, 50, ENGINE_LOGITS_NONE},
	            {83, 1, ENGINE_LOGITS_LAST}, {84, 1, ENGINE_LOGITS_LAST},
	            {85, 9, ENGINE_LOGITS_ALL},  {94, 1, ENGINE_LOGITS_LAST}};
	size_t vocab = engine_info(e)->vocab, n = 0, hidden = engine_info(e)->hidden;
	struct err err = {0};
	double *sum = mem_zalloc(hidden * sizeof *sum);
	for (size_t i = 0; i < sizeof part / sizeof *part; i++) {
		ck_assert_msg(run_span(e, part[i].from, part[i].n, part[i].logits, NULL, out + n, &err) ==
		                  0,
		              "part %zu: %s", i, err.text);
		n += vocab * (part[i].logits == ENGINE_LOGITS_ALL    ? part[i].n
		              : part[i].logits == ENGINE_LOGITS_LAST ? 1
		                                                     : 0);
	}
	ck_assert_msg(run_span(e, 95, 9, ENGINE_LOGITS_ALL, sum, NULL, &err) == 0, "%s", err.text);
	for (size_t i = 0; i < hidden; i++)
		out[n++] = (float)sum[i];
	free(sum);
	return n;
}

/* --- the same bits ------------------------------------------------------- */

TEST_CASE("bits", .timeout_s = 120);

static const struct {
	unsigned pp, tp, remote;
} same[] = {{2, 1, 1}, {3, 1, 2}, {3, 1, 1}, {2, 2, 1}, {3, 2, 2}};

TEST_LOOP(stages_on_other_hosts_give_the_bits_of_one_process, 0, sizeof same / sizeof *same)
{
	enum { MOST = 60 * 400 };
	float *one = mem_zalloc(MOST * sizeof *one), *many = mem_zalloc(MOST * sizeof *many);
	struct engine *e = open_engine(1, 1, 0);
	size_t n = story(e, one);
	ck_assert_uint_le(n, MOST);
	close_engine(&e);
	e = open_engine(same[_i].pp, same[_i].tp, same[_i].remote);
	ck_assert_uint_eq(story(e, many), n);
	ck_assert_msg(memcmp(one, many, n * sizeof *one) == 0, "%u stages of %u ranks, %u elsewhere",
	              same[_i].pp, same[_i].tp, same[_i].remote);
	pid_t pid[CHILDREN_MAX], there = remote[0].pid;
	ck_assert_uint_eq(children(there, pid), same[_i].tp);
	engine_close(&e);
	/* the stage has ended with its engine */
	int status = -1;
	for (int i = 0; i < 20000 && waitpid(there, &status, WNOHANG) != there; i++)
		usleep(1000);
	ck_assert_int_eq(status, 0); /* no failure */
	ck_assert_int_eq(kill(pid[0], 0), -1);
	remote[0] = (struct stage_process){0};
	close_engine(&e);
	free(one);
	free(many);
}

/* --- a stage that ends, stops or fails ----------------------------------- */

TEST_CASE("ends", .timeout_s = 120);

struct killer {
	pid_t pid;
	_Atomic uint64_t at_us;
};

static void *kill_soon(void *arg)
{
	struct killer *k = arg;
	usleep(100000);
	k->at_us = clock_us();
	kill(k->pid, SIGKILL);
	return NULL;
}

/* The stage's own process, and one of its ranks. */
TEST_LOOP(one_that_is_killed_ends_a_step_with_the_reason, 0, 2)
{
	struct engine *e = open_engine(2, 1, 1);
	struct err err = {0};
	pid_t pid[CHILDREN_MAX];
	pthread_t t;
	int rc = 0;
	ck_assert_uint_eq(children(remote[0].pid, pid), 1);
	struct killer k = {.pid = _i ? pid[0] : remote[0].pid};
	pthread_create(&t, NULL, kill_soon, &k);
	while (!rc)
		rc = decode_one(e, &err);
	uint64_t now = clock_us();
	pthread_join(t, NULL);
	ck_assert_int_eq(rc, ERR_IO);
	ck_assert_uint_lt(now - k.at_us, 1000000);
	ck_assert_msg(strstr(err.text, "stage 1 (rank-1) has"), "%s", err.text);
	ck_assert_msg(strstr(err.text, _i ? "ended by signal 9" : "ended its connection"), "%s",
	              err.text);
	ck_assert_int_eq(decode_one(e, &err), ERR_IO);
	close_engine(&e);
}

TEST(one_that_is_stopped_is_given_up)
{
	struct engine *e = open_engine(2, 1, 1);
	struct err err = {0};
	ck_assert_int_eq(decode_one(e, &err), 0);
	kill(remote[0].pid, SIGSTOP);
	uint64_t begun_us = clock_us();
	ck_assert_int_eq(decode_one(e, &err), ERR_IO);
	ck_assert_uint_lt(clock_us() - begun_us, (BRIDGE_SILENCE_S + 3) * 1000000u);
	ck_assert_msg(strstr(err.text, "stage 1 (rank-1) has said nothing for 10 s"), "%s", err.text);
	close_engine(&e);
}

/* One bit of a matrix is another one where an outline does not look. */
static void damaged_copy(char folder[TEST_FOLDER_BYTES])
{
	char text[300], path[TEST_FOLDER_BYTES + 32];
	struct stat st;
	unsigned char byte;
	test_folder(folder, "model");
	snprintf(text, sizeof text, "cp " GOLDEN "llama/* %s && chmod u+w %s/*", folder, folder);
	ck_assert_int_eq(system(text), 0);
	snprintf(path, sizeof path, "%s/model.safetensors", folder);
	int fd = open(path, O_RDWR | O_CLOEXEC);
	ck_assert(fd >= 0 && fstat(fd, &st) == 0);
	off_t at = st.st_size / 2 + 1500; /* between two pieces of a sample */
	ck_assert(pread(fd, &byte, 1, at) == 1);
	byte ^= 1;
	ck_assert(pwrite(fd, &byte, 1, at) == 1);
	close(fd);
}

TEST(a_model_that_is_missing_or_another_one_there_is_told)
{
	static char damaged[TEST_FOLDER_BYTES];
	static const struct {
		const char *model, *says;
	} bad[] = {{"/nowhere/model.gguf", "/nowhere/model.gguf"},
	           {GOLDEN "qwen3", "qwen3 is not the model that the worker has"},
	           {damaged, "is it a damaged copy?"}};
	damaged_copy(damaged);
	for (unsigned i = 0; i < sizeof bad / sizeof *bad; i++) {
		struct engine_opts o = options(2, 1, 1);
		struct engine *e = NULL;
		struct err err = {0};
		model_there = bad[i].model;
		spawn_stage(&remote[0], program, model_there, 0, 1, 2);
		wires[0].wire = remote[0].wire;
		ck_assert_int_ne(engine_open(&o, &e, &err), 0);
		ck_assert_msg((i == 2 || strstr(err.text, "stage 1 (rank-1) has failed")) &&
		                  strstr(err.text, bad[i].says),
		              "%s", err.text);
		stage_process_end(&remote[0]);
	}
}

/* --- a stage that lies --------------------------------------------------- */

TEST_CASE("lies", .timeout_s = 120);

/* Of bridge.c. */
enum { HELLO = 1, ORDER, DONE, EXCHANGE, ROWS_MESSAGE, FAILED, ALIVE };

static const struct lie {
	uint32_t type, word; /* word: the message's first four bytes */
	size_t bytes;
	int times;
} lies[] = {
	{0, 0, 0, 1},
	{HELLO, 0, 100, 1},
	{99, 0, 4, 1},
	{ORDER, 0, 300, 1},
	{DONE, 1, 3, 1},
	{DONE, 1, 8, 1},
	{EXCHANGE, 0, 20, 1},
	{EXCHANGE, 0, 2 * (4 + TP_EXCHANGE_BYTES), 1}, /* of two ranks, the stage has one */
	{EXCHANGE, 0, 4 + TP_EXCHANGE_BYTES, 2},       /* the next one before the reply to the first */
	{ROWS_MESSAGE, 0, 65537, 1},
};

static void *lie(void *arg)
{
	const struct lie *l = arg;
	struct wire *w = remote[0].wire;
	unsigned char *b = mem_zalloc(1 << 20);
	uint32_t type;
	size_t n;
	ck_assert_int_eq(wire_recv(w, 20, &type, b, 1 << 20, &n), 0);
	ck_assert_uint_eq(type, HELLO);
	memcpy(b, &l->word, sizeof l->word);
	for (int i = 0; i < l->times && wire_send(w, l->type, b, l->bytes, 20) == 0; i++)
		;
	free(b);
	return NULL;
}

TEST_LOOP(what_is_no_message_of_a_stage_ends_the_group, 0, sizeof lies / sizeof *lies)
{
	struct engine_opts o = options(2, 1, 1);
	struct engine *e = NULL;
	struct err err = {0};
	pthread_t t;
	play_stage(&remote[0]);
	pthread_create(&t, NULL, lie, (void *)(uintptr_t)&lies[_i]);
	ck_assert_int_eq(engine_open(&o, &e, &err), ERR_IO);
	ck_assert_msg(strstr(err.text, "stage 1 (rank-1) has sent what is no message of a stage"), "%s",
	              err.text);
	pthread_join(t, NULL);
	stage_process_end(&remote[0]);
}

static void *end_soon(void *arg)
{
	(void)arg;
	usleep(1500000);
	wire_end(remote[0].wire);
	return NULL;
}

/* Rows without end, which nobody reads: the other end waits until its connection ends. */
TEST(rows_that_nobody_wants_are_not_kept)
{
	static const struct lie flood = {ROWS_MESSAGE, 0, 65536, 100000};
	struct engine_opts o = options(2, 1, 1);
	struct engine *e = NULL;
	struct err err = {0};
	pthread_t liar, ends;
	play_stage(&remote[0]);
	pthread_create(&liar, NULL, lie, (void *)(uintptr_t)&flood);
	pthread_create(&ends, NULL, end_soon, NULL);
	ck_assert_int_eq(engine_open(&o, &e, &err), ERR_IO);
	ck_assert_msg(strstr(err.text, "stage 1 (rank-1) has ended its connection"), "%s", err.text);
	pthread_join(liar, NULL);
	pthread_join(ends, NULL);
	stage_process_end(&remote[0]);
}

/* --- an engine that lies, to a stage's process --------------------------- */

static unsigned char *hello;
static size_t hello_bytes;

static void *hear_hello(void *arg)
{
	uint32_t type;
	(void)arg;
	hello = mem_zalloc(1 << 20);
	ck_assert_int_eq(wire_recv(remote[0].wire, 20, &type, hello, 1 << 20, &hello_bytes), 0);
	wire_end(remote[0].wire);
	return NULL;
}

/* What an engine says to a stage. */
static void find_hello(void)
{
	struct engine_opts o = options(2, 1, 1);
	struct engine *e = NULL;
	struct err err = {0};
	pthread_t t;
	play_stage(&remote[0]);
	pthread_create(&t, NULL, hear_hello, NULL);
	ck_assert_int_eq(engine_open(&o, &e, &err), ERR_IO);
	pthread_join(t, NULL);
	stage_process_end(&remote[0]);
}

/* The first words of a hello: stage, stages, ranks, 0, and the shared bytes in two. */
static const struct {
	unsigned word;
	uint32_t value;
	size_t less; /* bytes that are missing */
} bad_hello[] = {{0, 0, 0},   {0, 2, 0}, {1, 1, 0},      {1, 3, 0}, {2, 0, 0},
                 {2, 128, 0}, {2, 3, 0}, {5, 1 << 4, 0}, {3, 0, 1}};
enum { BAD_HELLOS = sizeof bad_hello / sizeof *bad_hello };

/* Plays the engine's host, which sends ALIVE and answers exchanges: whether the stage ends within
 * limit_s, and the reason that it sends before. */
static int ends(struct wire *w, unsigned limit_s, char why[400])
{
	static const struct tp_exchange_all reply;
	uint64_t end_us = clock_us() + limit_s * 1000000ull;
	char b[2000];
	uint32_t type;
	size_t n;
	int rc = 0;
	why[0] = 0;
	while ((!rc || rc == ERR_TIMEOUT) && clock_left_us(end_us)) {
		rc = wire_recv(w, 1, &type, b, sizeof b, &n);
		if (!rc && type == EXCHANGE)
			rc = wire_send(w, EXCHANGE, &reply,
			               offsetof(struct tp_exchange_all, data) + 2 * TP_EXCHANGE_BYTES, 5);
		else if (!rc && type == FAILED) {
			snprintf(why, 400, "%.*s", (int)n, b);
			wire_end(w);
		} else {
			wire_send(w, ALIVE, NULL, 0, 5);
		}
	}
	return rc == ERR_CLOSED;
}
enum { SOON_S = 30, GOOD_S = 3 };

TEST(a_stage_takes_no_hello_that_does_not_fit)
{
	char why[400];
	find_hello();
	for (unsigned i = 0; i <= BAD_HELLOS; i++) {
		unsigned char *b = mem_zalloc(hello_bytes);
		memcpy(b, hello, hello_bytes);
		if (i < BAD_HELLOS)
			memcpy(b + 4 * bad_hello[i].word, &bad_hello[i].value, 4);
		spawn_stage(&remote[0], program, model_there, 0, 1, 2);
		struct wire *w = remote[0].wire;
		size_t less = i < BAD_HELLOS ? bad_hello[i].less : 0;
		ck_assert_int_eq(wire_send(w, HELLO, b, hello_bytes - less, 5), 0);
		ck_assert_msg(ends(w, i < BAD_HELLOS ? SOON_S : GOOD_S, why) == (i < BAD_HELLOS),
		              "hello %u: %s", i, why);
		ck_assert_msg(i == BAD_HELLOS || strstr(why, less ? "says hello in" : "limits are 64"),
		              "hello %u: %s", i, why);
		wire_destroy(&w);
		stage_process_end(&remote[0]);
		free(b);
	}
	free(hello);
}

/* Orders: kind, where in the shared bytes, how many. */
TEST(a_stage_takes_no_order_that_does_not_fit)
{
	static const struct {
		uint32_t type, head[3];
		size_t bytes;
	} bad[] = {{ORDER, {0, 0, 0}, 100},
	           {ORDER, {99, 0, 0}, 268},
	           {ORDER, {0, 0, 1}, 268},
	           {ORDER, {0, 0xffffff00, 4}, 272},
	           {ORDER, {0, 0x7fffffff, 4}, 272},
	           {DONE, {1}, 4},
	           {FAILED, {0}, 4},
	           {99, {0}, 4},
	           {EXCHANGE, {0}, 20},
	           {EXCHANGE, {0}, 8 + 2 * TP_EXCHANGE_BYTES}}; /* a reply that nobody waits for */
	enum { N = sizeof bad / sizeof *bad };
	unsigned char b[400];
	char why[400];
	find_hello();
	for (unsigned i = 0; i <= N; i++) {
		spawn_stage(&remote[0], program, model_there, 0, 1, 2);
		struct wire *w = remote[0].wire;
		ck_assert_int_eq(wire_send(w, HELLO, hello, hello_bytes, 5), 0);
		memset(b, 0, sizeof b);
		if (i < N) {
			memcpy(b, bad[i].head, sizeof bad[i].head);
			ck_assert_int_eq(wire_send(w, bad[i].type, b, bad[i].bytes, 5), 0);
		}
		ck_assert_msg(ends(w, i < N ? SOON_S : GOOD_S, why) == (i < N), "order %u: %s", i, why);
		ck_assert_msg(i == N || strstr(why, "has sent what is no message"), "order %u: %s", i, why);
		wire_destroy(&w);
		stage_process_end(&remote[0]);
	}
	free(hello);
}

/* The ranks check what the bridge does not know. */
TEST(ranks_take_no_parameters_and_steps_that_do_not_fit)
{
	static const struct {
		uint32_t tp, order[6]; /* kind, where, how many bytes; blocks, pass, flight */
		const char *says;
	} bad[] = {{8, {TP_ROOM}, "tensor_parallel is 8 and pipeline_parallel 2 in a group of 2 ranks"},
	           {1, {TP_STEP, 0, 0, 0, 99, 0}, "has no program for"},
	           {1, {TP_STEP, 0, 0, 0, 0, 99}, "has no program for"},
	           {1, {TP_STEP, 0, 0, 0, 0, 0}, "has no program for"}}; /* no pool yet */
	unsigned char b[268];
	char why[400];
	find_hello();
	/* at the end of the parameters, before a word and what aligns it */
	struct engine_opts *o = (void *)(hello + hello_bytes - 8 - sizeof *o);
	ck_assert(o->tp == 1 && o->pp == 2 && o->max_rows == ROWS);
	for (unsigned i = 0; i < sizeof bad / sizeof *bad; i++) {
		o->tp = bad[i].tp;
		spawn_stage(&remote[0], program, model_there, 0, 1, 2);
		struct wire *w = remote[0].wire;
		ck_assert_int_eq(wire_send(w, HELLO, hello, hello_bytes, 5), 0);
		memset(b, 0, sizeof b);
		memcpy(b, bad[i].order, sizeof bad[i].order);
		ck_assert_int_eq(wire_send(w, ORDER, b, sizeof b, 5), 0);
		ck_assert_msg(ends(w, SOON_S, why) && strstr(why, bad[i].says), "%u: %s", i, why);
		wire_destroy(&w);
		stage_process_end(&remote[0]);
	}
	free(hello);
}
