/* test_cuda_models.c - every family of models on the CUDA backend against reference outputs (see
 * test_models.c): on the host's stand-in for a GPU (tests/cuda_host), or with PD_GPU=1 on the
 * machine's GPU. */
/* run: cuda long minutes */
#include "hidden_rig.h"
#include "overlap_rig.h"
#include "smollm2.h"

#include <libgen.h>

static const char *const families[] = {
	"llama",    "llama-tied",  "mistral",   "qwen2",          "qwen2-yarn",
	"qwen3",    "ernie4_5",    "gemma3",    "qwen3_moe",      "ernie4_5_moe",
	"glm4_moe", "deepseek_v3", "granite",   "phi3",           "phi3-longrope",
	"gpt_oss",  "qwen3-fp8",   "llama-fp8", "deepseek_v3-fp8"};
/* of each layer's shape one: what runs unless the run is a long one */
static const char *const some[] = {"llama",       "qwen2-yarn", "gemma3",    "ernie4_5_moe",
                                   "deepseek_v3", "gpt_oss",    "qwen3-fp8", "phi3-longrope"};
#define FAST_TOLERANCE 0.3f
enum { FAMILIES = sizeof families / sizeof *families, SOME = sizeof some / sizeof *some };

static int is_long(void)
{
	return getenv("PD_FULL") || getenv("PD_GPU");
}

TEST_CASE("golden", .timeout_s = 300);

/* In float32 logits are within 1e-3 of the reference, and every token of both continuations is
 * the reference's. */
TEST_LOOP(logits_and_tokens, 0, is_long() ? FAMILIES : SOME)
{
	char folder[128];
	snprintf(folder, sizeof folder, GOLDEN "%s", is_long() ? families[_i] : some[_i]);
	golden_check(folder, folder, (struct rig_opts){.backend = "cuda", .kv = KV_F32},
	             GOLDEN_TOLERANCE);
}

TEST_CASE("hidden", .timeout_s = 300);

/* What embeddings are made of: the norm at the end, behind logits that the test above compares. So
 * every other one is enough, unless the run is a long one. */
TEST_LOOP(hidden_states, 0, is_long() ? FAMILIES : SOME / 2)
{
	char folder[128];
	snprintf(folder, sizeof folder, GOLDEN "%s", is_long() ? families[_i] : some[_i * 2]);
	hidden_check(folder, (struct rig_opts){.backend = "cuda", .kv = KV_F32}, 1e-4);
}

TEST_CASE("golden");

/* The bits of a prompt in chunks of 1 to 64 tokens, with each type of activations. */
TEST_LOOP(chunks_equal_whole, 0, is_long() ? 6 : 3)
{
	static const uint32_t chunks[] = {1, 7, 8, 9, 64};
	enum { N = 70 };
	uint32_t ids[N];
	char folder[128];
	some_ids(ids, N, 1);
	snprintf(folder, sizeof folder, GOLDEN "%s", families[_i / 2 * 5 % FAMILIES]);
	struct rig r = rig_open((struct rig_opts){.model = folder,
	                                          .backend = "cuda",
	                                          .kv = KV_BF16,
	                                          .activations = _i % 2 ? KERN_BF16 : KERN_F32});
	float *whole = mem_array(r.vocab, sizeof *whole), *row = mem_array(r.vocab, sizeof *row);
	struct seq s = seq_new(&r, 0);
	feed(&r, &s, ids, N, N, 1, whole);
	for (size_t i = 0; i < sizeof chunks / sizeof *chunks; i++) {
		struct seq t = seq_new(&r, 40);
		feed(&r, &t, ids, N, chunks[i], 1, row);
		ck_assert_msg(!memcmp(whole, row, r.vocab * sizeof *row), "%s: other bits in chunks of %u",
		              folder, chunks[i]);
	}
	free(whole);
	free(row);
	rig_close(&r);
}

/* With latent attention and experts, and without. */
TEST_LOOP(overlapping_steps, 0, 2)
{
	static const char *const model[] = {GOLDEN "llama", GOLDEN "deepseek_v3"};
	overlap_check((struct rig_opts){.model = model[_i], .backend = "cuda", .kv = KV_BF16},
	              engine_start);
	overlap_drafts_check((struct rig_opts){.model = model[_i], .backend = "cuda", .kv = KV_BF16});
}

/* By cuBLASLt, in another order: logits are near those of our own kernels, which round
 * activations as it does. */
TEST_LOOP(fast_is_near, 0, 2)
{
	static const struct rig_opts ways[] = {
		{.backend = "cuda", .kv = KV_F32, .activations = KERN_BF16},
		{.backend = "cuda", .kv = KV_F32, .variant = "fast"}};
	char folder[128];
	float *logits[2];
	struct golden *g = mem_zalloc(sizeof *g);
	size_t values = 0;
	snprintf(folder, sizeof folder, GOLDEN "%s", families[_i]);
	golden_load(g, folder);
	for (int i = 0; i < 2; i++) {
		struct rig_opts o = ways[i];
		o.model = folder;
		struct rig r = rig_open(o);
		struct seq s = seq_new(&r, 0);
		values = (size_t)g->n[1] * r.vocab;
		logits[i] = mem_array(values, sizeof *logits[i]);
		feed(&r, &s, g->prompt[1], g->n[1], g->n[1], 0, logits[i]);
		rig_close(&r);
	}
	float d = max_diff(logits[0], logits[1], values);
	printf("%s: largest difference of a logit %.2g (limit %g)\n", folder, d,
	       (double)FAST_TOLERANCE);
	ck_assert_msg(d <= FAST_TOLERANCE && d > 0, "%s: %g", folder, d);
	free(logits[0]);
	free(logits[1]);
	free(g);
}

/* The demo model: log-probabilities and greedy tokens of the reference's prompts. One of them
 * takes the stand-in a minute. */
TEST(demo_model)
{
	const char *model = real_model();
	if (!model)
		SKIP(SKIP_NO_MODEL);
	if (!getenv("PD_GPU") && !getenv("PD_FULL"))
		SKIP("PD_FULL is not set: a minute on the host's stand-in for a GPU");
	struct deviation d = teacher_forced(
		(struct rig_opts){.model = model, .backend = "cuda", .kv = KV_F32},
		getenv("PD_GPU") ? ALL : ONE);
	ck_assert_msg(d.max <= 2e-3, "largest difference %g", d.max);
	ck_assert_uint_eq(d.greedy_equal, d.generated);
}

TEST_START(backend)
{
	char folder[512];
	snprintf(folder, sizeof folder, "%.400s/../cuda_host", dirname(argv[0]));
	if (!getenv("PD_GPU"))
		setenv("PDSERVE_BACKENDS", folder, 0);
}
