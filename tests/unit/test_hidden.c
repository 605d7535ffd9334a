/* test_hidden.c - hidden states after the final norm, from which embeddings are made: against
 * transformers for every family, and the same bits whatever the chunks, the batch, the threads and
 * the ranks. */
/* run: minutes */
#include "hidden_rig.h"

static const char *const families[] = {"llama",      "llama-tied",   "mistral",       "qwen2",
                                       "qwen2-yarn", "qwen3",        "ernie4_5",      "gemma3",
                                       "qwen3_moe",  "ernie4_5_moe", "glm4_moe",      "deepseek_v3",
                                       "granite",    "phi3",         "phi3-longrope", "gpt_oss"};
#define FAMILIES (int)(sizeof families / sizeof *families)
enum { N = 150 };

static struct rig open_family(const char *family, struct rig_opts o)
{
	char folder[128];
	snprintf(folder, sizeof folder, GOLDEN "%s", family);
	o.model = folder;
	o.hidden = 1;
	o.rows = o.rows ? o.rows : 160;
	return rig_open(o);
}

TEST_CASE("hidden", .timeout_s = 300);

/* The fast variants round activations for the experts of gpt_oss, which are MXFP4. */
TEST_LOOP(as_the_reference, 0, 2 * FAMILIES)
{
	const char *family = families[_i % FAMILIES], *variant = _i / FAMILIES ? NULL : "reference";
	char folder[128];
	snprintf(folder, sizeof folder, GOLDEN "%s", family);
	hidden_check(folder, (struct rig_opts){.variant = variant, .kv = KV_F32},
	             variant || strcmp(family, "gpt_oss") != 0 ? 1e-4 : 1e-2);
}

static void same(const struct rig *r, const double *a, const double *b, const char *what)
{
	uint32_t hidden = engine_info(r->e)->hidden;
	ck_assert_msg(memcmp(a, b, hidden * sizeof *a) == 0, "%s: other bits", what);
}

/* The sum over a prompt, or its last token's state, in one chunk. */
static void whole(const char *family, struct rig_opts o, const uint32_t *ids, int last, double *sum)
{
	struct rig r = open_family(family, o);
	struct seq s = seq_new(&r, 0);
	feed_hidden(&r, &s, ids, N, N, last, sum);
	rig_close(&r);
}

TEST_LOOP(chunks_equal_whole, 0, 2 * FAMILIES)
{
	static const uint32_t chunks[] = {1, 17, 64, 149};
	static double want[HIDDEN_MAX], got[HIDDEN_MAX];
	const char *family = families[_i / 2];
	uint32_t ids[N];
	int last = _i % 2;
	some_ids(ids, N, 1);
	whole(family, (struct rig_opts){.kv = KV_BF16}, ids, last, want);
	struct rig r = open_family(family, (struct rig_opts){.kv = KV_BF16, .threads = 2});
	for (size_t c = 0; c < sizeof chunks / sizeof *chunks; c++) {
		struct seq s = seq_new(&r, 40);
		memset(got, 0, sizeof got);
		feed_hidden(&r, &s, ids, N, chunks[c], last, got);
		same(&r, want, got, family);
	}
	rig_close(&r);
}

/* In one step with other spans of both kinds: neither the sum nor the others' logits change. */
TEST_LOOP(neighbours_change_nothing, 0, FAMILIES)
{
	static double want[HIDDEN_MAX], got[3][HIDDEN_MAX];
	uint32_t ids[N], other[30];
	some_ids(ids, N, 1);
	some_ids(other, 30, 2);
	whole(families[_i], (struct rig_opts){.kv = KV_BF16}, ids, 0, want);
	struct rig r = open_family(families[_i],
	                           (struct rig_opts){.kv = KV_BF16, .rows = 320, .blocks = 200});
	float *alone = mem_array(r.vocab, sizeof *alone);
	struct seq s[4];
	for (uint32_t i = 0; i < 4; i++)
		s[i] = seq_new(&r, 13 * i);
	feed(&r, &s[0], other, 30, 30, 1, alone);
	struct engine_span spans[] = {
		{.tokens = other, .n = 30, .blocks = s[0].table, .logits = ENGINE_LOGITS_LAST},
		{.tokens = ids, .n = N, .blocks = s[1].table, .hidden = got[0]},
		{.tokens = other, .n = 30, .blocks = s[2].table, .hidden = got[1]},
		{.tokens = other + 1, .n = 3, .blocks = s[3].table, .hidden = got[2]},
	};
	spans[1].logits = spans[2].logits = ENGINE_LOGITS_ALL;
	spans[3].logits = ENGINE_LOGITS_LAST;
	/* the span with logits comes last: engine_logits reads the last pass */
	struct engine_span turned[] = {spans[1], spans[2], spans[3], spans[0]};
	step(&r, turned, 4);
	same(&r, want, got[0], "beside others");
	ck_assert(memcmp(engine_logits(r.e, turned[3].logits_row), alone, r.vocab * sizeof *alone) ==
	          0);
	memset(got, 0, sizeof got);
	step(&r, spans, 4);
	same(&r, want, got[0], "behind others");
	free(alone);
	rig_close(&r);
}

/* The KV of a pass for hidden states is that of any other: decoding goes on from it. */
TEST_LOOP(kv_is_the_same, 0, FAMILIES)
{
	static double sum[HIDDEN_MAX];
	uint32_t ids[N];
	some_ids(ids, N, 3);
	struct rig r = open_family(families[_i], (struct rig_opts){.kv = KV_BF16});
	float *want = mem_array(r.vocab, sizeof *want), *got = mem_array(r.vocab, sizeof *got);
	struct seq a = seq_new(&r, 0), b = seq_new(&r, 40);
	feed(&r, &a, ids, N, N, 1, want);
	feed_hidden(&r, &b, ids, N - 1, 50, 0, sum);
	feed(&r, &b, ids + N - 1, 1, 1, 1, got);
	ck_assert(memcmp(want, got, r.vocab * sizeof *want) == 0);
	free(want);
	free(got);
	rig_close(&r);
}

TEST(ranks_give_the_same)
{
	static double want[HIDDEN_MAX], got[HIDDEN_MAX];
	static const struct {
		const char *family;
		unsigned tp, pp;
	} cases[] = {{"llama", 2, 1},       {"llama-tied", 3, 1}, {"gemma3", 1, 1}, {"glm4_moe", 2, 1},
	             {"gpt_oss", 2, 1},     {"llama", 1, 2},      {"gemma3", 1, 4}, {"granite", 1, 3},
	             {"deepseek_v3", 2, 2}, {"gpt_oss", 2, 3}};
	uint32_t ids[N];
	some_ids(ids, N, 1);
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		memset(want, 0, sizeof want);
		whole(cases[i].family, (struct rig_opts){.kv = KV_BF16}, ids, 0, want);
		struct rig r = open_family(cases[i].family, (struct rig_opts){.kv = KV_BF16,
		                                                              .tp = cases[i].tp,
		                                                              .pp = cases[i].pp,
		                                                              .threads = cases[i].tp});
		/* steps of both programs in turn: no rank runs ahead of another, or reads the next batch */
		for (int round = 0; round < 20; round++) {
			struct seq s = seq_new(&r, (uint32_t)round);
			memset(got, 0, sizeof got);
			feed_hidden(&r, &s, ids, N, 10, 0, got);
			same(&r, want, got, cases[i].family);
		}
		rig_close(&r);
	}
}

/* A simulated model has no numbers: what it gives is a function of the whole prefix. */
TEST(simulated)
{
	static double want[HIDDEN_MAX], got[HIDDEN_MAX];
	uint32_t ids[N];
	some_ids(ids, N, 1);
	struct rig r = rig_open((struct rig_opts){
		.model = "etc/sim/small.conf", .backend = "sim", .kv = KV_BF16, .hidden = 1});
	for (int last = 0; last < 2; last++)
		for (int change = 0; change < 2; change++) {
			struct seq a = seq_new(&r, 0), b = seq_new(&r, 40);
			memset(want, 0, sizeof want);
			memset(got, 0, sizeof got);
			feed_hidden(&r, &a, ids, N, N, last, want);
			ids[0] ^= (uint32_t)change;
			feed_hidden(&r, &b, ids, N, 17, last, got);
			ck_assert(want[0] != 0 && want[1] != want[0]);
			ck_assert_int_eq(memcmp(want, got, sizeof want) != 0, change);
		}
	rig_close(&r);
}

TEST(refused)
{
	double sum[HIDDEN_MAX] = {0};
	struct err err = {0};
	uint32_t id = 5;
	struct engine_draw draw = {0};
	struct rig without = rig_open((struct rig_opts){.model = GOLDEN "llama", .kv = KV_F32}),
			   with = rig_open(
				   (struct rig_opts){.model = GOLDEN "llama", .kv = KV_F32, .hidden = 1});
	struct seq s = seq_new(&with, 0);
	struct engine_span span = {
		.tokens = &id, .n = 1, .blocks = s.table, .logits = ENGINE_LOGITS_LAST, .hidden = sum};
	ck_assert_int_eq(engine_step(without.e, &span, 1, &err), ERR_INVALID);
	ck_assert_msg(strstr(err.text, "opened without"), "%s", err.text);
	span.draws = &draw;
	ck_assert_int_eq(engine_step(with.e, &span, 1, &err), ERR_INVALID);
	ck_assert_msg(strstr(err.text, "draws"), "%s", err.text);
	rig_close(&without);
	rig_close(&with);
}
