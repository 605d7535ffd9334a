/* test_cuda_ranks.c - tensor and pipeline parallel on the CUDA backend: ranks are processes whose
 * devices have memory of their own. They give the reference's tokens and the bits of one device,
 * in any order and with any path between them; one that ends or cannot open ends the group. On the
 * host's stand-in for GPUs (tests/cuda_host), or with PD_GPU=1 on the machine's first GPU, which
 * all ranks share. */
/* run: cuda long minutes */
#include "engine/engine_impl.h"
#include "engine/moe.h"
#include "engine/tp.h"
#include "children.h"
#include "engine_rig.h"
#include "overlap_rig.h"
#include "skip.h"
#include "stage_rig.h"
#include "util/clock.h"

#include <errno.h>
#include <libgen.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <unistd.h>

static bool on_gpu(void)
{
	return getenv("PD_GPU") != NULL;
}

static char pdrank[512];

static struct rig_opts ranks(const char *folder, unsigned tp)
{
	return (struct rig_opts){.model = folder,
	                         .backend = "cuda",
	                         .kv = KV_BF16,
	                         .tp = tp,
	                         .ranks_per_device = on_gpu() ? tp : 1};
}

/* --- tokens and bits ----------------------------------------------------- */

static const struct {
	const char *family;
	unsigned tp;
} golden[] = {
	{"llama", 2},
	{"qwen3_moe", 2},
	{"phi3-longrope", 4},
	{"deepseek_v3", 2},
	{"qwen3_moe", 4},
	/* with PD_FULL */
	{"mistral", 2},
	{"qwen3", 2},
	{"granite", 2},
	{"llama-tied", 2},
	{"gpt_oss", 2},
	{"glm4_moe", 2},
	{"llama-tied", 3},
	{"deepseek_v3-fp8", 4},
	{"gemma3", 3},
};
enum { GOLDEN_FEW = 5 };

TEST_CASE("tokens", .timeout_s = 300);

/* In float32 logits are within 1e-3 of the reference, and every token of both continuations is the
 * reference's. */
TEST_LOOP(golden_tokens, 0,
          getenv("PD_FULL") || on_gpu() ? sizeof golden / sizeof *golden : GOLDEN_FEW)
{
	char folder[128];
	snprintf(folder, sizeof folder, GOLDEN "%s", golden[_i].family);
	struct rig_opts o = ranks(folder, golden[_i].tp);
	o.kv = KV_F32;
	golden_check(folder, folder, o, GOLDEN_TOLERANCE);
}

enum { FIRST = 64, NEXT = 20, N = FIRST + NEXT + 7 };

/* All logits of a prompt in two chunks, the first of which fills a graph of 64 rows, and of some
 * tokens one by one. */
static float *story(struct rig_opts o, size_t *ret_floats)
{
	uint32_t ids[N];
	some_ids(ids, N, 3);
	struct rig r = rig_open(o);
	struct seq s = seq_new(&r, 5);
	float *out = mem_array((size_t)N * r.vocab, sizeof *out);
	feed(&r, &s, ids, FIRST, FIRST, 0, out);
	feed(&r, &s, ids + FIRST, NEXT, NEXT, 0, out + FIRST * (size_t)r.vocab);
	feed(&r, &s, ids + FIRST + NEXT, N - FIRST - NEXT, 1, 0,
	     out + (FIRST + NEXT) * (size_t)r.vocab);
	*ret_floats = (size_t)N * r.vocab;
	rig_close(&r);
	return out;
}

static const struct {
	const char *family, *setting, *value;
	unsigned tp, ranks_per_device;
	enum kern_dtype activations;
	unsigned pp;
	int experts; /* expert_parallel */
} same[] = {
	{"llama", NULL, NULL, 2, 1, KERN_BF16, 1, 0},
	{"llama", NULL, NULL, 2, 2, KERN_F32, 1, 0}, /* both on one device */
	{"llama-tied", "CUDA_HOST_DELAY_US", "300", 3, 2, KERN_F32, 1, 0},
	{"phi3-longrope", "PDSERVE_CUDA_PEERS", "0", 4, 1, KERN_F32, 1, 0}, /* through host memory */
	{"glm4_moe", NULL, NULL, 2, 1, KERN_F32, 1, 0},
	{"deepseek_v3", NULL, NULL, 4, 1, KERN_BF16, 1, 0}, /* the latent on every device */
	{"llama", NULL, NULL, 6, 1, KERN_BF16, 1, 0},       /* each KV head on three */
	{"llama", NULL, NULL, 1, 1, KERN_BF16, 2, 0},
	{"llama-tied", NULL, NULL, 1, 1, KERN_F32, 3, 0},
	{"gemma3", "CUDA_HOST_DELAY_US", "300", 1, 1, KERN_F32, 2, 0},
	{"deepseek_v3", NULL, NULL, 2, 1, KERN_BF16, 2, 0},
	{"glm4_moe", "CUDA_HOST_DELAY_US", "300", 2, 1, KERN_F32, 3, 0},
	{"deepseek_v3", NULL, NULL, 3, 1, KERN_BF16, 1, 1},
	{"gpt_oss", "CUDA_HOST_DELAY_US", "300", 4, 1, KERN_F32, 1, 1},
	{"ernie4_5_moe", "PDSERVE_CUDA_PEERS", "0", 2, 1, KERN_BF16, 1, 1},
	{"deepseek_v3-fp8", "PDSERVE_CUDA_PEERS", "0", 4, 2, KERN_BF16, 1, 1},
	{"qwen3_moe", NULL, NULL, 2, 1, KERN_F32, 2, 1},
};

TEST_CASE("bits", .timeout_s = 300);

TEST_LOOP(bits_of_one_device, 0, sizeof same / sizeof *same)
{
	char folder[128];
	size_t floats = 0, more = 0;
	snprintf(folder, sizeof folder, GOLDEN "%s", same[_i].family);
	struct rig_opts one = ranks(folder, 1), many = ranks(folder, same[_i].tp);
	if (on_gpu() && same[_i].pp > 1)
		SKIP("each stage needs a GPU of its own");
	one.activations = many.activations = same[_i].activations;
	many.pp = same[_i].pp;
	many.expert_parallel = same[_i].experts;
	if (!on_gpu())
		many.ranks_per_device = same[_i].ranks_per_device;
	float *a = story(one, &floats);
	if (same[_i].setting)
		setenv(same[_i].setting, same[_i].value, 1);
	float *b = story(many, &more);
	ck_assert_uint_eq(floats, more);
	ck_assert_msg(!memcmp(a, b, floats * sizeof *a),
	              "%s: logits of %u ranks in %u stages are not those of one", folder, same[_i].tp,
	              same[_i].pp);
	free(a);
	free(b);
}

/* Two steps in flight, in which ranks find the tokens that only rank 0 has drawn: as one after the
 * other. */
TEST_LOOP(overlapping_steps, 0, 3)
{
	static const struct {
		const char *setting, *value;
		unsigned tp, ranks_per_device;
	} ways[] = {
		{NULL, NULL, 2, 1},
		{"PDSERVE_CUDA_PEERS", "0", 3, 1}, /* through host memory */
		{"CUDA_HOST_DELAY_US", "300", 3, 2},
	};
	struct rig_opts o = ranks(GOLDEN "llama-tied", ways[_i].tp);
	if (ways[_i].setting && !on_gpu())
		setenv(ways[_i].setting, ways[_i].value, 1);
	if (!on_gpu())
		o.ranks_per_device = ways[_i].ranks_per_device;
	overlap_check(o, engine_start);
	overlap_drafts_check(o);
}

/* --- a stage on another host --------------------------------------------- */

TEST_CASE("another host", .timeout_s = 300);

/* The last stage has a process of its own, as on another host; its devices reach each other, as
 * those here do, or do not. */
TEST_LOOP(bits_of_one_device_over_hosts, 0, 2)
{
	size_t floats = 0, more = 0;
	struct rig_opts one = ranks(GOLDEN "llama", 1), many = ranks(GOLDEN "llama", 4);
	struct stage_process there;
	struct tp_remote remote = {.name = "rank-1"};
	if (on_gpu())
		SKIP("each stage needs a GPU of its own");
	if (_i)
		setenv("CUDA_HOST_PEERS", "0", 1);
	spawn_stage(&there, pdrank, "", 4, 1, 2);
	unsetenv("CUDA_HOST_PEERS");
	remote.wire = there.wire;
	many.pp = 2;
	many.remote = &remote;
	many.n_remote = 1;
	float *a = story(one, &floats), *b = story(many, &more);
	ck_assert_uint_eq(floats, more);
	ck_assert(!memcmp(a, b, floats * sizeof *a));
	stage_process_end(&there);
	free(a);
	free(b);
}

/* --- divided sums -------------------------------------------------------- */

/* The variant fast divides sums among ranks: o and down read the columns that a rank has itself, as
 * far as each has some of them, in whole blocks of the weights' type (o, down of the last layer).
 * Logits are near those of one device; what is left out, or added twice, as a bias by each rank, is
 * far off. A row with experts that are nearly as good as others may be sent to others. */
static const struct {
	const char *family;
	unsigned tp;
	int o, down;
	int experts; /* expert_parallel */
} divided[] = {
	{"llama", 2, 1, 1, 0},     {"llama-tied", 3, 1, 1, 0},  {"phi3-longrope", 4, 1, 1, 0},
	{"qwen3_moe", 2, 1, 1, 0}, {"gpt_oss", 2, 1, 1, 0},     {"glm4_moe", 2, 1, 1, 0},
	{"granite", 2, 1, 1, 0},   {"deepseek_v3", 2, 1, 0, 0}, {"gemma3", 2, 1, 1, 0},
	{"qwen3_moe", 4, 1, 1, 1}, {"gpt_oss", 2, 1, 1, 1},     {"deepseek_v3", 2, 1, 0, 1},
};

TEST_CASE("sums", .timeout_s = 300);

TEST_LOOP(divided_sums, 0, sizeof divided / sizeof *divided)
{
	char folder[128];
	size_t floats = 0, more = 0;
	if (on_gpu())
		SKIP("NCCL wants a GPU for each rank");
	snprintf(folder, sizeof folder, GOLDEN "%s", divided[_i].family);
	struct rig_opts one = ranks(folder, 1), many = ranks(folder, divided[_i].tp);
	one.variant = many.variant = "fast";
	many.expert_parallel = divided[_i].experts;
	struct rig r = rig_open(many);
	ck_assert(r.e->reduces);
	const struct layer *l = &r.e->layer[r.e->conf.layers - 1];
	ck_assert_int_eq(l->o_summed, divided[_i].o);
	ck_assert_int_eq(l->moe ? l->moe->summed : l->down_summed, divided[_i].down);
	size_t far_most = l->moe ? N / 4 : 0, far_rows = 0;
	rig_close(&r);
	float *a = story(one, &floats), *b = story(many, &more), most = 0;
	ck_assert_uint_eq(floats, more);
	for (size_t i = 0; i < floats; i++)
		most = fmaxf(most, fabsf(a[i]));
	size_t vocab = floats / N;
	for (size_t row = 0; row < N; row++) {
		float far = 0;
		for (size_t i = row * vocab; i < (row + 1) * vocab; i++)
			far = fmaxf(far, fabsf(a[i] - b[i]));
		far_rows += far > 0.03f * most;
	}
	ck_assert_msg(far_rows <= far_most, "%s: %zu of %d rows of %u ranks are far from those of one",
	              folder, far_rows, N, divided[_i].tp);
	free(a);
	free(b);
}

/* --- ends ---------------------------------------------------------------- */

/* Where steps overlap, one is left in flight. */
static int decode_one(struct rig *r, struct err *err)
{
	static int in_flight;
	uint32_t id = 5, table[] = {1};
	struct engine_span sp = {.tokens = &id, .n = 1, .blocks = table, .logits = ENGINE_LOGITS_LAST};
	int rc = engine_start(r->e, &sp, 1, err);
	in_flight += !rc;
	if (rc || (in_flight == 1 && engine_info(r->e)->overlap))
		return rc;
	in_flight--;
	return engine_finish(r->e, err);
}

struct killing {
	pid_t pid;
	int first_us, signals[2];
	uint64_t killed_us;
};

static void *kill_later(void *arg)
{
	struct killing *k = arg;
	usleep((unsigned)k->first_us);
	kill(k->pid, k->signals[0]);
	if (k->signals[1]) {
		usleep(300000);
		kill(k->pid, k->signals[1]);
	}
	k->killed_us = clock_us();
	return NULL;
}

TEST_CASE("ends", .timeout_s = 120);

/* Killed while steps run, or while the other rank's device waits for it: the step ends within a
 * second, with the reason, and no later one runs. */
TEST_LOOP(killed_in_a_step, 0, 12)
{
	struct rig_opts o = ranks(GOLDEN "llama", 2);
	if (_i >= 8 && on_gpu())
		SKIP("NCCL wants a GPU for each rank");
	o.variant = _i < 8 ? NULL : "fast"; /* which waits in NCCL's sums */
	o.overlap = _i % 2;
	struct rig r = rig_open(o);
	struct killing k = {.first_us = 50000 + 7000 * (_i / 2), .signals = {SIGKILL}};
	pid_t pid[CHILDREN_MAX];
	pthread_t t;
	struct err err = {0};
	int rc = 0;
	if (_i % 8 / 2 == 0)
		k = (struct killing){.first_us = 50000, .signals = {SIGSTOP, SIGKILL}};
	ck_assert_uint_eq(children(getpid(), pid), 1);
	k.pid = pid[0];
	ck_assert_int_eq(pthread_create(&t, NULL, kill_later, &k), 0);
	uint64_t end = clock_us() + 60000000;
	while (!rc && clock_us() < end)
		rc = decode_one(&r, &err);
	uint64_t noticed = clock_us();
	pthread_join(t, NULL);
	for (int i = 0; i < 2; i++) {
		ck_assert_int_eq(rc, ERR_IO);
		ck_assert_msg(strstr(err.text, "rank 1 (process") && strstr(err.text, "ended by signal 9"),
		              "%s", err.text);
		rc = decode_one(&r, &err);
	}
	/* far below a second, but the machine may be busy */
	ck_assert_msg(noticed < k.killed_us + 20000000, "noticed after %llu us",
	              (unsigned long long)(noticed - k.killed_us));
	rig_close(&r);
	ck_assert_uint_eq(children(getpid(), pid), 0);
}

/* The same while this process's device does not end a sum, not even when it is aborted: the
 * device is given up, and nothing waits for it. */
TEST_LOOP(killed_while_the_device_hangs, 0, 2)
{
	struct rig_opts o = ranks(GOLDEN "llama", 2);
	struct killing k = {.first_us = 300000, .signals = {SIGKILL}};
	pid_t pid[CHILDREN_MAX];
	pthread_t t;
	struct err err = {0};
	int rc = 0;
	if (on_gpu())
		SKIP("a real GPU does not hang on purpose");
	setenv("CUDA_HOST_FAIL", "hang_nccl_all_reduce:5", 1);
	setenv("CUDA_HOST_FAIL_IN", program_invocation_short_name, 1);
	o.variant = "fast";
	o.overlap = _i;
	struct rig r = rig_open(o);
	ck_assert_uint_eq(children(getpid(), pid), 1);
	k.pid = pid[0];
	ck_assert_int_eq(pthread_create(&t, NULL, kill_later, &k), 0);
	while (!rc)
		rc = decode_one(&r, &err);
	uint64_t noticed = clock_us();
	pthread_join(t, NULL);
	ck_assert_int_eq(rc, ERR_IO);
	ck_assert_msg(strstr(err.text, "rank 1 (process") && strstr(err.text, "ended by signal 9"),
	              "%s", err.text);
	ck_assert_uint_gt(noticed, k.killed_us); /* it did hang */
	ck_assert_uint_lt(noticed, k.killed_us + 20000000);
	rig_close(&r);
	ck_assert_uint_lt(clock_us(), noticed + 20000000);
	ck_assert_uint_eq(children(getpid(), pid), 0);
}

/* Work of a rank that breaks its device, and what a step returns then. group_pull runs only on the
 * way through host memory, which is taken if the setting says so, or if writes to other devices are
 * lost. */
static const struct {
	const char *work, *setting;
	int rc;
} breaks[] = {
	{"group_push:3", NULL, ERR_IO},
	{"group_pull:3", NULL, 0},
	{"group_pull:3", "PDSERVE_CUDA_PEERS", ERR_IO},
	{"group_pull:3", "CUDA_HOST_PEERS", ERR_IO},
	{"group_pull:3", "CUDA_HOST_PEER_WRITES", ERR_IO},
};

/* The step says which error. */
TEST_LOOP(a_device_that_breaks, 0, 2 * (int)(sizeof breaks / sizeof *breaks))
{
	if (on_gpu())
		SKIP("a real GPU is not broken on purpose");
	int which = _i / 2;
	struct rig_opts o = ranks(GOLDEN "llama", 2);
	o.overlap = _i % 2;
	if (breaks[which].setting)
		setenv(breaks[which].setting, "0", 1);
	struct rig r = rig_open(o);
	struct err err = {0};
	int rc = 0;
	ck_assert_int_eq(decode_one(&r, &err), 0);
	setenv("CUDA_HOST_FAIL", breaks[which].work, 1);
	for (int i = 0; i < 4 && !rc; i++)
		rc = decode_one(&r, &err);
	ck_assert_msg(rc == breaks[which].rc, "case %d returned %d", _i, rc);
	ck_assert_msg(!rc || strstr(err.text, "an illegal memory access"), "%s", err.text);
	rig_close(&r);
}

/* The device of another rank, in a step that no other follows: the step ends with the reason, and
 * not when the group's time is up. */
TEST_LOOP(another_ranks_device_that_breaks, 0, 2)
{
	if (on_gpu())
		SKIP("a real GPU is not broken on purpose");
	setenv("CUDA_HOST_FAIL", "embed_rows:4", 1);
	setenv("CUDA_HOST_FAIL_IN", "pdrank", 1);
	struct rig_opts o = ranks(GOLDEN "llama", 2);
	o.overlap = _i;
	struct rig r = rig_open(o);
	struct err err = {0};
	uint32_t id = 5, table[] = {1};
	int rc = 0;
	uint64_t begun = clock_us();
	for (int i = 0; i < 8 && !rc; i++) {
		struct engine_span sp = {
			.tokens = &id, .n = 1, .blocks = table, .logits = ENGINE_LOGITS_LAST};
		rc = engine_step(r.e, &sp, 1, &err);
	}
	ck_assert_int_eq(rc, ERR_IO);
	ck_assert_msg(strstr(err.text, "an illegal memory access"), "%s", err.text);
	ck_assert_uint_lt(clock_us() - begun, 40000000);
	rig_close(&r);
}

/* --- pools --------------------------------------------------------------- */

/* Each process's device has its heads and layers of a pool that is as large as all have room
 * for. */
TEST_LOOP(pool_of_all_devices, 0, 2)
{
	unsigned stages = _i ? 3 : 1, ranks = _i ? 1 : 2;
	struct engine_opts o = {.model_path = GOLDEN "llama",
	                        .backend = "cuda",
	                        .tp = ranks,
	                        .pp = stages,
	                        .kv_type = KV_BF16,
	                        .block_tokens = 16,
	                        .max_rows = 64,
	                        .max_logits = 64,
	                        .max_spans = 8};
	struct engine *e;
	struct err err = {0};
	uint64_t room = 0;
	struct kern_info before, after;
	struct kv_data data;
	if (on_gpu())
		SKIP("for the host's stand-in");
	setenv("CUDA_HOST_MEMORY_MB", "512", 1);
	ck_assert_msg(engine_open(&o, &e, &err) == 0, "%s", err.text);
	engine_device_info(e, &before);
	ck_assert_msg(engine_pool_room(e, &room, &err) == 0, "%s", err.text);
	/* process 0 has one of two heads, or of three layers */
	ck_assert_uint_gt(room, (stages * ranks - 1) * before.free_bytes);
	ck_assert_uint_le(room, stages * ranks * before.free_bytes);
	uint32_t blocks = (uint32_t)(room * 9 / 10 / engine_info(e)->kv.block_bytes);
	ck_assert_msg(engine_new_pool(e, blocks, &data, &err) == 0, "%s", err.text);
	ck_assert_uint_eq(data.parts, 0); /* nobody was to map it */
	engine_device_info(e, &after);
	ck_assert_uint_lt(after.free_bytes, before.free_bytes / 5);
	uint32_t id = 5, table[] = {blocks - 1};
	struct engine_span sp = {.tokens = &id, .n = 1, .blocks = table, .logits = ENGINE_LOGITS_LAST};
	ck_assert_msg(engine_step(e, &sp, 1, &err) == 0, "%s", err.text);
	engine_close(&e);
}

/* What --plan-memory says of a step's program, and what the device has less with one. */
TEST_LOOP(programs_take_what_was_planned, 0, 4)
{
	static const char *const models[] = {GOLDEN "llama", GOLDEN "qwen3_moe", GOLDEN "deepseek_v3",
	                                     GOLDEN "gpt_oss"};
	struct engine_opts o = {.model_path = models[_i],
	                        .backend = "cuda",
	                        .kv_type = KV_BF16,
	                        .activations = KERN_BF16,
	                        .block_tokens = 16,
	                        .max_rows = 8192,
	                        .max_logits = 64,
	                        .max_spans = 8};
	struct engine *e;
	struct engine_plan p;
	struct err err = {0};
	struct kern_info before;
	uint64_t room;
	ck_assert_msg(engine_plan(&o, &p, &err) == 0, "%s", err.text);
	ck_assert_msg(engine_open(&o, &e, &err) == 0, "%s", err.text);
	engine_device_info(e, &before);
	ck_assert_msg(engine_pool_room(e, &room, &err) == 0, "%s", err.text);
	uint64_t takes = before.free_bytes - room;
	printf("%s: %llu KiB taken by the program, %llu planned\n", models[_i],
	       (unsigned long long)takes >> 10, (unsigned long long)p.program_bytes >> 10);
	ck_assert_uint_gt(takes, 0);
	ck_assert_uint_le(takes, p.program_bytes);
	engine_close(&e);
}

/* All bytes of a pool, as the messager reads them. */
static unsigned char *pool_read(const struct engine *e, const struct kv_data *data, uint32_t blocks,
                                size_t *ret_bytes)
{
	struct kv_region own, peer;
	struct kv_data theirs = *data;
	struct err err = {0};
	char why[256] = "";
	for (uint32_t i = 0; i < data->parts; i++)
		theirs.fd[i] = dup(data->fd[i]);
	const struct kv_layout *l = &engine_info(e)->kv;
	ck_assert_msg(kv_region_create(&own, l, blocks, data, &err) == 0, "%s", err.text);
	ck_assert_msg(kv_region_map(&peer, l, blocks, "cuda", dup(own.control_fd), &theirs, &err) == 0,
	              "%s", err.text);
	unsigned char *out = mem_alloc(*ret_bytes = peer.data_bytes);
	const struct kern_piece all = {(uintptr_t)out, 0, *ret_bytes};
	struct kern_ticket t;
	ck_assert_msg(!kern_copy(&(struct kern_copy){.from = peer.pool, .piece = &all, .n = 1}, &t, why,
	                         sizeof why) &&
	                  !kern_wait(&t, why, sizeof why),
	              "%s", why);
	kv_region_fini(&peer);
	kv_region_fini(&own);
	return out;
}

static unsigned char *pool_of_a_prompt(const char *model, unsigned pp, unsigned tp,
                                       enum kv_type type, size_t *ret_bytes)
{
	enum { BLOCKS = 9, PROMPT = 100 };
	struct engine_opts o = {.model_path = model,
	                        .backend = "cuda",
	                        .tp = tp,
	                        .pp = pp,
	                        .ranks_per_device = on_gpu() ? tp : 1,
	                        .pool_shared = 1,
	                        .kv_type = type,
	                        .block_tokens = 16,
	                        .max_rows = 128,
	                        .max_logits = 8,
	                        .max_spans = 8};
	struct engine *e;
	struct err err = {0};
	struct kv_data data;
	uint32_t ids[PROMPT], table[] = {5, 2, 8, 0, 1, 7, 3};
	some_ids(ids, PROMPT, 4);
	struct engine_span sp = {.tokens = ids, .n = PROMPT, .blocks = table};
	ck_assert_msg(engine_open(&o, &e, &err) == 0, "%s", err.text);
	ck_assert_msg(engine_new_pool(e, BLOCKS, &data, &err) == 0, "%s", err.text);
	ck_assert_uint_eq(data.parts, pp * tp);
	for (unsigned r = 0; r < pp * tp; r++)
		ck_assert_int_eq(data.device[r], on_gpu() ? 0 : (int)r);
	ck_assert_msg(engine_step(e, &sp, 1, &err) == 0, "%s", err.text);
	unsigned char *out = pool_read(e, &data, BLOCKS, ret_bytes);
	engine_close(&e);
	return out;
}

/* What other processes read of a pool that ranks share out is what they read of one device's. */
TEST_LOOP(pools_read_alike, 0, 7)
{
	static const struct {
		const char *model;
		unsigned tp;
		enum kv_type type;
		unsigned pp;
	} pools[] = {{GOLDEN "llama-tied", 2, KV_BF16, 1}, {GOLDEN "llama-tied", 3, KV_INT8, 1},
	             {GOLDEN "deepseek_v3", 4, KV_FP8, 1}, {GOLDEN "llama", 4, KV_BF16, 1},
	             {GOLDEN "llama-tied", 1, KV_INT8, 3}, {GOLDEN "llama-tied", 3, KV_BF16, 2},
	             {GOLDEN "deepseek_v3", 2, KV_FP8, 3}};
	if (on_gpu() && pools[_i].pp > 1)
		SKIP("each stage needs a GPU of its own");
	const char *model = pools[_i].model;
	size_t bytes, more;
	unsigned char *one = pool_of_a_prompt(model, 1, 1, pools[_i].type, &bytes),
				  *many = pool_of_a_prompt(model, pools[_i].pp, pools[_i].tp, pools[_i].type,
	                                       &more);
	ck_assert_uint_eq(bytes, more);
	ck_assert(!memcmp(one, many, bytes));
	free(one);
	free(many);
}

/* --- refusals ------------------------------------------------------------ */

static void refused(struct engine_opts o, int code, const char *text)
{
	struct engine *e = NULL;
	struct err err = {0};
	pid_t pid[CHILDREN_MAX];
	ck_assert_int_eq(engine_open(&o, &e, &err), code);
	ck_assert_ptr_null(e);
	ck_assert_msg(strstr(err.text, text) != NULL, "\"%s\" does not say \"%s\"", err.text, text);
	ck_assert_uint_eq(children(getpid(), pid), 0);
}

TEST(refusals)
{
	struct engine_opts o = {.model_path = GOLDEN "llama",
	                        .backend = "cuda",
	                        .tp = 2,
	                        .block_tokens = 16,
	                        .max_rows = 64,
	                        .max_logits = 64,
	                        .max_spans = 8},
					   with = o;
	if (on_gpu())
		SKIP("for the host's stand-in");
	with.tp = 17;
	refused(with, ERR_UNSUPPORTED, "device cuda works in groups of at most 16");
	setenv("CUDA_HOST_DEVICES", "1", 1);
	refused(o, ERR_IO, "device 1: this machine has 1 GPUs");
	o.ranks_per_device = 2;
	struct engine *e = NULL;
	struct err err = {0};
	uint64_t room;
	ck_assert_msg(engine_open(&o, &e, &err) == 0, "%s", err.text);
	ck_assert_int_eq(engine_pool_room(e, &room, &err), ERR_INVALID);
	ck_assert_msg(strstr(err.text, "ranks_per_device is 2") != NULL, "%s", err.text);
	engine_close(&e);
}

TEST_START(backend)
{
	char folder[512], *here = dirname(argv[0]);
	snprintf(folder, sizeof folder, "%.400s/../cuda_host", here);
	snprintf(pdrank, sizeof pdrank, "%.400s/../bin/pdrank", here);
	if (!on_gpu())
		setenv("PDSERVE_BACKENDS", folder, 0);
}
