/* test_plan.c - what a model takes on each GPU before it is loaded (engine_plan): against figures
 * that were calculated from the published dimensions (tests/data/models), and against what the
 * loader then asks a device for, which here counts and keeps nothing. */
#include "engine/engine_impl.h"
#include "kernels/numbers.h"
#include "util/mem.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MODELS "tests/data/models/"
#define GOLDEN "tests/data/golden/"

static const char deepseek[] = MODELS "deepseek-v3.json", qwen3[] = MODELS "qwen3-235b.json",
				  qwen3_fp8[] = MODELS "qwen3-235b-fp8.json",
				  llama_405b[] = MODELS "llama-3.1-405b.json",
				  llama_70b[] = MODELS "llama-3.3-70b.json", gpt_oss[] = MODELS "gpt-oss-120b.json";

static const char *variant = "auto"; /* "fast": ranks divide sums */
static unsigned stages = 1;
static int expert_parallel;

static struct engine_opts options(const char *model, unsigned ranks)
{
	return (struct engine_opts){.model_path = model,
	                            .variant = variant,
	                            .tp = ranks,
	                            .pp = stages,
	                            .expert_parallel = expert_parallel,
	                            .kv_type = KV_BF16,
	                            .activations = KERN_BF16,
	                            .block_tokens = 64,
	                            .max_rows = 8192,
	                            .max_logits = 256,
	                            .max_spans = 256,
	                            .overlap = 1};
}

static struct engine_plan plan(const char *model, unsigned ranks)
{
	struct engine_opts o = options(model, ranks);
	struct engine_plan p;
	struct err err = {0};
	ck_assert_msg(engine_plan(&o, &p, &err) == 0, "%s", err.text);
	return p;
}

/* --- a device that counts ------------------------------------------------ */

static struct {
	uint64_t matrix_bytes, vector_bytes;
} asked;

static int count_weight(struct kern_device *dev, enum kern_dtype dtype, uint32_t count, uint32_t n,
                        uint32_t k, struct kern_weight **ret_w)
{
	char why[200];
	(void)dev;
	ck_assert_msg(!kern_weight_check(dtype, count, n, k, why, sizeof why), "%s", why);
	asked.matrix_bytes += (uint64_t)count * n * kern_dtype_bytes(dtype, k);
	*ret_w = mem_alloc(1);
	return 0;
}

static int load_nothing(struct kern_device *dev, struct kern_weight *w, uint32_t i,
                        const void *data, size_t row_bytes)
{
	(void)dev, (void)w, (void)i, (void)data, (void)row_bytes;
	return 0;
}

static void drop_weight(struct kern_device *dev, struct kern_weight **w)
{
	(void)dev;
	free(*w);
}

static int count_mem(struct kern_device *dev, enum kern_memory kind, size_t bytes,
                     struct kern_mem *ret_mem)
{
	(void)dev, (void)kind;
	asked.vector_bytes += bytes;
	*ret_mem = (struct kern_mem){.dev = {64}, .bytes = bytes};
	return 0;
}

static void drop_mem(struct kern_device *dev, struct kern_mem *mem)
{
	(void)dev, (void)mem;
}

static int upload_nothing(struct kern_stream *s, kern_ptr dst, const void *src, size_t bytes)
{
	(void)s, (void)dst, (void)src, (void)bytes;
	return 0;
}

static int no_sync(struct kern_stream *s)
{
	(void)s;
	return 0;
}

static const struct kern_ops counting = {.name = "counting",
                                         .own_memory = 1,
                                         .queued = 1,
                                         .mem_new = count_mem,
                                         .mem_free = drop_mem,
                                         .upload = upload_nothing,
                                         .sync = no_sync,
                                         .weight_new = count_weight,
                                         .weight_load = load_nothing,
                                         .weight_destroy = drop_weight};

/* What loading a process's part takes, by the loader itself. */
static void load(const char *model, unsigned process, unsigned ranks)
{
	struct engine *e = mem_zalloc(sizeof *e);
	struct err err = {0};
	e->opts = options(model, ranks);
	e->ops = &counting;
	e->stage = process / ranks;
	e->rank = process % ranks;
	e->reduces = ranks > 1 && strcmp(variant, "fast") == 0;
	memset(&asked, 0, sizeof asked);
	ck_assert_msg(model_describe(model, &e->conf, &e->src, &err) == 0, "%s", err.text);
	ranks_share_out(e);
	ck_assert_msg(weights_load(e, &err) == 0, "%s", err.text);
	weights_free(e);
	model_close(&e->src);
	free(e);
}

/* --- published models ---------------------------------------------------- */

/* matrix_bytes: of the rank that has most, calculated from the dimensions alone: rows in units of
 * 16 or of heads, 132 bytes for 128 values of FP8, 17 for 32 of MXFP4, embeddings, heads and
 * routers in BF16. params: in units of 10^9, as they are published, without layers that draft.
 * token_bytes: of KV, in the memory of the rank that has most. */
static const struct {
	const char *model;
	unsigned ranks;
	uint64_t matrix_bytes, token_bytes;
	double params;
	int fits_80, fits_141;
	unsigned stages;
} published[] = {
	{deepseek, 8, 87756224512, 61 * 576 * 2, 671.0, 0, 1, 1},
	{deepseek, 16, 44460705792, 61 * 576 * 2, 671.0, 1, 1, 1},
	{qwen3, 8, 58958020608, 94 * 128 * 4, 235.1, 1, 1, 1},
	{qwen3_fp8, 4, 60997173248, 94 * 128 * 4, 235.1, 1, 1, 1},
	{qwen3_fp8, 8, 30598692864, 94 * 128 * 4, 235.1, 1, 1, 1},
	{llama_405b, 16, 51259637760, 126 * 128 * 4, 405.9, 1, 1, 1},
	{llama_405b, 8, 51256492032, 63 * 128 * 4, 405.9, 1, 1, 2},
	{deepseek, 8, 46514038784, 31 * 576 * 2, 671.0, 1, 1, 2},
	{llama_70b, 4, 35276193792, 80 * 2 * 128 * 4, 70.6, 1, 1, 1},
	{gpt_oss, 1, 65168179200, 36 * 8 * 64 * 4, 116.8, 1, 1, 1},
	{gpt_oss, 2, 32597360640, 36 * 4 * 64 * 4, 116.8, 1, 1, 1},
};

TEST_CASE("plan", .timeout_s = 120);

TEST_LOOP(published_models, 0, sizeof published / sizeof *published)
{
	stages = published[_i].stages;
	struct engine_plan p = plan(published[_i].model, published[_i].ranks);
	ck_assert_uint_eq(p.matrix_bytes, published[_i].matrix_bytes);
	ck_assert_uint_eq(p.block_bytes, 64 * published[_i].token_bytes);
	ck_assert_double_eq_tol((double)p.params / 1e9, published[_i].params,
	                        published[_i].params / 1000);
	uint64_t all = p.weight_bytes + p.step_bytes + p.program_bytes, gib = 1ull << 30;
	ck_assert_int_eq(all < 79 * gib, published[_i].fits_80);
	ck_assert_int_eq(all < 139 * gib, published[_i].fits_141);
	/* some, but no step of 8192 tokens takes a fifth of such a device */
	ck_assert(p.step_bytes > gib / 4 && p.step_bytes + p.program_bytes < 16 * gib);
}

/* Loaded in shape, on every rank: nothing is refused, and the rank that takes most takes what was
 * planned. */
TEST_LOOP(loading_takes_what_was_planned, 0, 2 * sizeof published / sizeof *published)
{
	const char *model = published[_i / 2].model;
	unsigned ranks = published[_i / 2].ranks;
	variant = _i % 2 ? "fast" : "auto";
	stages = published[_i / 2].stages;
	struct engine_plan p = plan(model, ranks);
	uint64_t matrices = 0, all = 0;
	for (unsigned r = 0; r < stages * ranks; r++) {
		load(model, r, ranks);
		uint64_t sum = asked.matrix_bytes + asked.vector_bytes;
		matrices = asked.matrix_bytes > matrices ? asked.matrix_bytes : matrices;
		all = sum > all ? sum : all;
	}
	ck_assert_uint_eq(matrices, p.matrix_bytes);
	ck_assert_uint_eq(all, p.weight_bytes);
}

/* Whole experts: no rank takes more weights than with equal columns of all, whatever the blocks of
 * their type, where ranks divide their number. The exact mode has room for what each expert gives
 * for each row. */
TEST_LOOP(whole_experts, 0, 8)
{
	static const struct {
		int published;
		uint64_t pair_bytes; /* of a row */
	} cases[] = {{0, 8 * 7168 * 4}, {1, 8 * 7168 * 4}, {4, 8 * 4096 * 4}, {10, 4 * 2880 * 4}};
	const char *model = published[cases[_i / 2].published].model;
	unsigned ranks = published[cases[_i / 2].published].ranks;
	variant = _i % 2 ? "fast" : "auto";
	struct engine_plan before = plan(model, ranks);
	expert_parallel = 1;
	struct engine_plan p = plan(model, ranks);
	ck_assert_uint_eq(p.matrix_bytes, published[cases[_i / 2].published].matrix_bytes);
	ck_assert_uint_eq(p.params, before.params);
	ck_assert_uint_eq(p.block_bytes, before.block_bytes);
	if (_i % 2)
		ck_assert_uint_le(p.step_bytes, before.step_bytes);
	else
		ck_assert_uint_eq(p.step_bytes, before.step_bytes + 8192 * cases[_i / 2].pair_bytes);
	for (unsigned r = 0; r < ranks; r += ranks - 1) {
		load(model, r, ranks);
		ck_assert_uint_le(asked.matrix_bytes + asked.vector_bytes, p.weight_bytes);
		ck_assert_uint_ge(asked.matrix_bytes + asked.vector_bytes, p.weight_bytes / 100 * 95);
	}
}

/* Real files, of all types and both formats: the same. */
TEST_LOOP(files_take_what_was_planned, 0, 48)
{
	static const char *const models[] = {GOLDEN "deepseek_v3",
	                                     GOLDEN "deepseek_v3/model.gguf",
	                                     GOLDEN "deepseek_v3-fp8",
	                                     GOLDEN "qwen3_moe",
	                                     GOLDEN "qwen3-fp8",
	                                     GOLDEN "gpt_oss",
	                                     GOLDEN "gpt_oss/model.gguf",
	                                     GOLDEN "llama-tied",
	                                     GOLDEN "phi3",
	                                     GOLDEN "gemma3",
	                                     GOLDEN "glm4_moe",
	                                     GOLDEN "ernie4_5_moe"};
	const char *model = models[_i / 2 % 12];
	stages = 1 + (unsigned)_i % 2;
	expert_parallel = _i >= 24 && (strstr(model, "moe") || strstr(model, "deepseek") ||
	                               strstr(model, "gpt_oss"));
	for (unsigned ranks = 1; ranks <= 2; ranks++) {
		struct engine_plan p = plan(model, ranks);
		uint64_t all = 0;
		for (unsigned r = 0; r < stages * ranks; r++) {
			load(model, r, ranks);
			uint64_t sum = asked.matrix_bytes + asked.vector_bytes;
			all = sum > all ? sum : all;
		}
		ck_assert_uint_eq(all, p.weight_bytes);
	}
}

/* A folder and its config.json alone give the same. */
TEST_LOOP(config_alone, 0, 4)
{
	static const char *const models[] = {"qwen3", "deepseek_v3", "gpt_oss", "qwen3-fp8"};
	char folder[128], config[160];
	snprintf(folder, sizeof folder, GOLDEN "%s", models[_i]);
	snprintf(config, sizeof config, "%s/config.json", folder);
	struct engine_plan a = plan(folder, 2), b = plan(config, 2);
	ck_assert_uint_eq(a.matrix_bytes, b.matrix_bytes);
	ck_assert_uint_eq(a.weight_bytes, b.weight_bytes);
	ck_assert_uint_eq(a.params, b.params);
	ck_assert_uint_eq(a.block_bytes, b.block_bytes);
}

TEST(what_cannot_be_divided)
{
	static const struct {
		const char *model;
		unsigned ranks;
		const char *why;
		unsigned stages;
		int experts;
	} cases[] = {
		{qwen3, 6, "tensor_parallel is 6, the model has 4 KV heads", 1, 0},
		{llama_405b, 32, "tensor_parallel is 32, at most 16 GPUs", 1, 0},
		{MODELS "none.json", 1, "No such file", 1, 0},
		{gpt_oss, 1, "pipeline_parallel is 37, the model has 36 layers", 37, 0},
		{gpt_oss, 4, "pipeline_parallel is 5, tensor_parallel 4: a KV pool of 20 parts", 5, 0},
		{llama_405b, 8, "expert_parallel is true, the model has no experts", 1, 1},
		{GOLDEN "deepseek_v3", 16,
	     "expert_parallel is true, tensor_parallel 16, the model has 12 experts: at most one rank "
	     "per expert",
	     1, 1},
	};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		stages = cases[i].stages;
		expert_parallel = cases[i].experts;
		struct engine_opts o = options(cases[i].model, cases[i].ranks);
		o.pool_shared = 1;
		struct engine_plan p;
		struct err err = {0};
		ck_assert_int_lt(engine_plan(&o, &p, &err), 0);
		ck_assert_msg(strstr(err.text, cases[i].why) != NULL, "\"%s\"", err.text);
	}
}
