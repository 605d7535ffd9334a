/* test_make_gguf.c - tools/make-gguf against the C readers: what it packs comes back within half a
 * step of the format, what it unpacks is what cpu_dequantise says, bit for bit, and the engine
 * computes nearly the same from every type. */
/* run: minutes */
#include "engine/engine.h"
#include "format/gguf.h"
#include "kernels/cpu/cpu.h"
#include "skip.h"
#include "tempdir.h"
#include "util/mem.h"

#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCK = 32, SUPER = 256, VOCAB = 320 };

static const struct type {
	const char *name;
	uint32_t number;
	enum kern_dtype dtype;
	/* limit of the mean difference of a logit to F32's, over their deviation */
	float logits;
} types[] = {
	{"F32", 0, KERN_F32, 0},       {"F16", 1, KERN_F16, 0.002f},   {"BF16", 30, KERN_BF16, 0.01f},
	{"Q8_0", 8, KERN_Q8_0, 0.02f}, {"Q4_0", 2, KERN_Q4_0, 0.2f},   {"Q4_1", 3, KERN_Q4_1, 0.2f},
	{"Q5_0", 6, KERN_Q5_0, 0.1f},  {"Q5_1", 7, KERN_Q5_1, 0.1f},   {"Q6_K", 14, KERN_Q6_K, 0.06f},
	{"Q4_K", 12, KERN_Q4_K, 0.3f}, {"Q5_K", 13, KERN_Q5_K, 0.15f}, /* of a wider model */
};
#define TYPES (int)(sizeof types / sizeof *types)

static const char *shape_of(const struct type *t)
{
	return kern_dtype_bytes(t->dtype, BLOCK) ? "tiny" : "tiny-256";
}

/* All files of the tests are in one folder, made by two runs of the tool. */
static char folder[TEST_FOLDER_BYTES];

/* The file of a type and what was done with it. */
static const char *file_of(char path[128], const char *type, const char *what)
{
	snprintf(path, 128, "%s/%s-%s.gguf", folder, type, what);
	return path;
}

static FILE *tool(void)
{
	/* the one in PATH, or Debian's where that one has no numpy */
	const char *run = system("python3 -c 'import numpy' 2>/dev/null") == 0
	                      ? "python3 tools/make-gguf batch"
	                      : "/usr/bin/python3 tools/make-gguf batch";
	FILE *f = popen(run, "w");
	ck_assert_ptr_nonnull(f);
	return f;
}

static struct gguf *open_file(const char *path)
{
	struct gguf *g;
	struct err err = {0};
	ck_assert_msg(gguf_open(path, &g, &err) == 0, "%s", err.text);
	return g;
}

static const struct type *type_of(const struct gguf_tensor *t)
{
	for (int i = 0; i < TYPES; i++)
		if (types[i].number == t->ggml_type)
			return &types[i];
	ck_abort_msg("%s: type number %u", t->name, t->ggml_type);
}

static uint32_t count_of(const struct gguf_tensor *t)
{
	return (uint32_t)(t->ne[0] * (t->dims > 1 ? t->ne[1] : 1));
}

static float *values_of(const struct gguf_tensor *t)
{
	float *v = mem_array(count_of(t), sizeof *v);
	cpu_dequantise(v, type_of(t)->dtype, t->data, count_of(t));
	return v;
}

/* --- packing ------------------------------------------------------------- */

/* Blocks that random weights do not have, written over the first rows of token_embd: zeros, one
 * value, values too small for a scale, an outlier, both ends alike, one sign. */
static void odd_block(float *b, int which)
{
	for (int i = 0; i < BLOCK; i++) {
		float ramp = (float)i / 31;
		b[i] = which == 0   ? 0
		       : which == 1 ? 0.75f
		       : which == 2 ? 1e-9f * ramp
		       : which == 3 ? (i == 5 ? 9.0f : 0.01f * ramp)
		       : which == 4 ? 2 * ramp - 1
		                    : -1 - ramp;
	}
}

static void write_odd_blocks(const char *path)
{
	enum { ODD = 6 };
	float odd[ODD * BLOCK];
	for (int i = 0; i < ODD; i++)
		odd_block(odd + (size_t)i * BLOCK, i);
	struct gguf *g = open_file(path);
	const struct gguf_tensor *first = gguf_tensor_find(g, "token_embd.weight"),
							 *last = gguf_tensor_at(g, gguf_tensors(g) - 1);
	long back = (const char *)last->data + (last->bytes + 31) / 32 * 32 - (const char *)first->data;
	gguf_close(&g);
	FILE *f = fopen(path, "r+b");
	ck_assert(f && fseek(f, -back, SEEK_END) == 0 && fwrite(odd, sizeof odd, 1, f) == 1 &&
	          fclose(f) == 0);
}

struct range {
	float low, high, most; /* most: the largest magnitude */
};

static struct range range_of(const float *x, uint32_t n)
{
	struct range r = {x[0], x[0], 0};
	for (uint32_t i = 0; i < n; i++) {
		r.low = fminf(r.low, x[i]);
		r.high = fmaxf(r.high, x[i]);
		r.most = fmaxf(r.most, fabsf(x[i]));
	}
	return r;
}

static const float tiny = 0x1p-24f; /* the smallest f16: a step less than that is none */

/* w = d (q - zero): ends one step short on the side where the largest magnitude is not. */
static float limit_symmetric(struct range r, float zero, float value)
{
	float step = r.most / zero * (1 + 0x1p-11f) + tiny, end = r.high > -r.low ? -1 : 1;
	return value * end > (zero - 0.52f) * r.most / zero ? step + tiny : step * 0.501f + zero * tiny;
}

/* w = d q + m */
static float limit_offset(struct range r, float top)
{
	return ((r.high - r.low) / top + (top + 1) * tiny) * 0.51f +
	       fmaxf(-r.low, fabsf(r.high)) * 0x1p-10f;
}

/* Of a block of SUPER: its largest magnitude; of its groups the largest offset, and the largest
 * value above a group's offset. */
struct super {
	float most, offset, reach;
};

static struct super super_of(const float *x)
{
	struct super s = {range_of(x, SUPER).most, 0, 0};
	for (uint32_t g = 0; g < SUPER; g += BLOCK) {
		struct range r = range_of(x + g, BLOCK);
		s.offset = fmaxf(s.offset, -r.low);
		s.reach = fmaxf(s.reach, r.high + fmaxf(-r.low, 0));
	}
	return s;
}

/* Offsets and steps are multiples of a 63rd of the block's largest; r: of the group. */
static float limit_k(const struct super *s, struct range r, float top)
{
	float offset = s->offset / 63, step = (s->reach + offset) / top;
	float own = fmaxf(r.high + fmaxf(-r.low, 0) + offset, 0) / top + step / 63;
	return own * 0.51f + (step * top + s->offset) * 0x1p-10f + 63 * (top + 2) * tiny;
}

/* Groups of 16, whose steps are multiples of a 127th of the block's largest. */
static float limit_q6(const struct super *s, const float *group, float value)
{
	float d = s->most / 32 / 127 * (1 + 0x1p-10f) + tiny;
	return limit_symmetric(range_of(group, 16), 32, value) + 17 * d + 32 * 127 * tiny;
}

/* How far value i may be from what its block, of range r, says: half a step, and what rounding the
 * block's scales adds. */
static float limit_of(enum kern_dtype type, const float *x, uint32_t i, struct range r,
                      const struct super *super)
{
	switch (type) {
	case KERN_Q8_0: return (r.most / 127 + 128 * 2 * tiny) * 0.501f;
	case KERN_Q4_0: return limit_symmetric(r, 8, x[i]);
	case KERN_Q5_0: return limit_symmetric(r, 16, x[i]);
	case KERN_Q4_1: return limit_offset(r, 15);
	case KERN_Q5_1: return limit_offset(r, 31);
	case KERN_Q4_K: return limit_k(super, r, 15);
	case KERN_Q5_K: return limit_k(super, r, 31);
	case KERN_Q6_K: return limit_q6(super, x + i / 16 * 16, x[i]);
	default: return 0;
	}
}

static void check_tensor(const struct gguf_tensor *from, const struct gguf_tensor *to)
{
	float *x = values_of(from), *y = values_of(to);
	enum kern_dtype type = type_of(to)->dtype;
	struct super super = {0};
	struct range r = {0};
	for (uint32_t i = 0; i < count_of(from); i++) {
		if (i % SUPER == 0 && i + SUPER <= count_of(from))
			super = super_of(x + i);
		if (i % BLOCK == 0)
			r = range_of(x + i, BLOCK);
		float want = type == KERN_F16    ? kern_f16_to_f32(kern_f32_to_f16(x[i]))
		             : type == KERN_BF16 ? kern_bf16_to_f32(kern_f32_to_bf16(x[i]))
		                                 : x[i];
		float limit = limit_of(type, x, i, r, &super);
		ck_assert_msg(fabsf(y[i] - want) <= limit, "%s as %s, value %u: %g became %g, limit %g",
		              from->name, type_of(to)->name, i, x[i], y[i], limit);
	}
	free(x);
	free(y);
}

/* Matrices get the type that was asked for, vectors F32, and what stands outside the layers Q8_0
 * in 4-bit files. */
static uint32_t expected_number(const struct type *t, const struct gguf_tensor *of)
{
	return of->dims == 1 ? 0
	       : (t->dtype == KERN_Q4_0 || t->dtype == KERN_Q4_1) &&
	               !strcmp(of->name, "token_embd.weight")
	           ? 8
	           : t->number;
}

/* Blocks of a model in F32 are overwritten before it is converted. */
static void make_files(void)
{
	char a[128], b[128];
	test_folder(folder, "gguf");
	FILE *f = tool();
	for (const struct type *t = types; t < types + TYPES; t++) {
		fprintf(f, "random %s F32 %s\n", shape_of(t), file_of(a, t->name, "odd"));
		fprintf(f, "random --seed 11 %s %s %s\n", shape_of(t), t->name,
		        file_of(a, t->name, "random"));
		fprintf(f, "convert %s F32 %s\n", a, file_of(b, t->name, "unpacked"));
	}
	fprintf(f, "convert --layers 1 %s Q8_0 %s\n", file_of(a, "Q8_0", "random"),
	        file_of(b, "Q8_0", "short"));
	ck_assert_int_eq(pclose(f), 0);
	f = tool();
	for (const struct type *t = types; t < types + TYPES; t++) {
		write_odd_blocks(file_of(a, t->name, "odd"));
		fprintf(f, "convert %s %s %s\n", a, t->name, file_of(b, t->name, "packed"));
	}
	ck_assert_int_eq(pclose(f), 0);
}

TEST_CASE("make-gguf", .timeout_s = 120, .setup_once = make_files);

TEST_LOOP(packs_within_half_a_step, 0, TYPES)
{
	char from[128], to[128];
	file_of(from, types[_i].name, "odd");
	file_of(to, types[_i].name, "packed");
	struct gguf *a = open_file(from), *b = open_file(to);
	ck_assert_uint_eq(gguf_tensors(a), gguf_tensors(b));
	for (size_t i = 0; i < gguf_tensors(a); i++) {
		const struct gguf_tensor *t = gguf_tensor_at(a, i), *u = gguf_tensor_find(b, t->name);
		ck_assert_msg(u && u->ggml_type == expected_number(&types[_i], t) &&
		                  count_of(u) == count_of(t) && u->ne[0] == t->ne[0],
		              "%s", t->name);
		check_tensor(t, u);
	}
	gguf_close(&a);
	gguf_close(&b);
}

/* --- unpacking ----------------------------------------------------------- */

TEST_LOOP(unpacks_as_the_engine_does, 1, TYPES)
{
	char from[128], to[128];
	file_of(from, types[_i].name, "random");
	file_of(to, types[_i].name, "unpacked");
	struct gguf *a = open_file(from), *b = open_file(to);
	for (size_t i = 0; i < gguf_tensors(a); i++) {
		const struct gguf_tensor *t = gguf_tensor_at(a, i), *u = gguf_tensor_find(b, t->name);
		ck_assert_msg(u && u->ggml_type == 0 && count_of(u) == count_of(t), "%s", t->name);
		float *v = values_of(t);
		ck_assert_msg(memcmp(v, u->data, u->bytes) == 0, "%s of %s", t->name, types[_i].name);
		free(v);
	}
	gguf_close(&a);
	gguf_close(&b);
}

/* --- the first layers alone ------------------------------------------------ */

TEST(keeps_the_first_layers)
{
	char from[128], to[128];
	struct gguf *a = open_file(file_of(from, "Q8_0", "random")),
				*b = open_file(file_of(to, "Q8_0", "short"));
	uint32_t layers;
	ck_assert(gguf_get_u32(b, "llama.block_count", &layers) == 0 && layers == 1);
	size_t left_out = 0;
	for (size_t i = 0; i < gguf_tensors(a); i++) {
		const struct gguf_tensor *t = gguf_tensor_at(a, i), *u = gguf_tensor_find(b, t->name);
		ck_assert_int_eq(!u, !strncmp(t->name, "blk.1.", 6));
		ck_assert(!u || (u->bytes == t->bytes && memcmp(u->data, t->data, t->bytes) == 0));
		left_out += !u;
	}
	ck_assert_uint_gt(left_out, 0);
	ck_assert_uint_eq(gguf_tensors(b), gguf_tensors(a) - left_out);
	gguf_close(&a);
	gguf_close(&b);
}

/* --- the engine on them -------------------------------------------------- */

static const uint32_t prompt[] = {5, 300, 17, 42, 42, 199, 0, 319};

struct run {
	struct engine *e;
};

/* false when the machine lacks the variant's instructions */
static int run_open(struct run *r, const char *path, const char *variant)
{
	struct engine_opts o = {.model_path = path,
	                        .backend = "cpu",
	                        .variant = variant,
	                        .threads = 1,
	                        .kv_type = KV_F32,
	                        .block_tokens = 64,
	                        .max_rows = 16,
	                        .max_logits = 1,
	                        .max_spans = 1};
	struct err err = {0};
	int rc = engine_open(&o, &r->e, &err);
	if (rc && strstr(err.text, "lacks")) {
		SKIP_PART("%s", err.text);
		return 0;
	}
	ck_assert_msg(rc == 0, "%s", err.text);
	ck_assert_uint_eq(engine_info(r->e)->vocab, VOCAB);
	ck_assert_msg(engine_new_pool(r->e, 1, NULL, &err) == 0, "%s", err.text);
	return 1;
}

static const float *run_step(struct run *r, const uint32_t *tokens, uint32_t n, uint32_t position)
{
	static const uint32_t table[] = {0};
	struct err err = {0};
	struct engine_span span = {.tokens = tokens,
	                           .n = n,
	                           .position = position,
	                           .blocks = table,
	                           .logits = ENGINE_LOGITS_LAST};
	ck_assert_msg(engine_step(r->e, &span, 1, &err) == 0, "%s", err.text);
	return engine_logits(r->e, span.logits_row);
}

static void run_close(struct run *r)
{
	engine_close(&r->e);
}

/* Greedy tokens, none of them twice (a random model repeats itself), and the logits before the
 * first; how near the second best token ever was. */
enum { TOKENS = 24 };

static int tokens_of(const char *path, const char *variant, uint32_t tokens[TOKENS],
                     float logits[VOCAB], float *ret_nearest)
{
	struct run r;
	char used[VOCAB] = {0};
	if (!run_open(&r, path, variant))
		return 0;
	uint32_t position = sizeof prompt / sizeof *prompt;
	const float *l = run_step(&r, prompt, position, 0);
	memcpy(logits, l, VOCAB * sizeof *logits);
	*ret_nearest = INFINITY;
	for (uint32_t n = 0; n < TOKENS; n++) {
		uint32_t best = VOCAB;
		float second = -INFINITY;
		for (uint32_t i = 0; i < VOCAB; i++) {
			if (used[i])
				continue;
			if (best < VOCAB)
				second = fmaxf(second, fminf(l[i], l[best]));
			best = best == VOCAB || l[i] > l[best] ? i : best;
		}
		*ret_nearest = fminf(*ret_nearest, l[best] - second);
		tokens[n] = best;
		used[best] = 1;
		l = run_step(&r, &tokens[n], 1, position++);
	}
	run_close(&r);
	return 1;
}

/* Each type through its packed layout and integer products: the same tokens as the reference,
 * which multiplies floats. */
TEST_LOOP(fast_as_reference, 0, TYPES)
{
	static const char *const variants[] = {"plain", "avx2", "avx512"};
	char path[128];
	uint32_t want[TOKENS], got[TOKENS];
	float logits[2][VOCAB], nearest;
	file_of(path, types[_i].name, "random");
	ck_assert(tokens_of(path, "reference", want, logits[0], &nearest));
	for (size_t v = 0; v < sizeof variants / sizeof *variants; v++) {
		float apart = 0, most = 0, none;
		if (!tokens_of(path, variants[v], got, logits[1], &none))
			continue;
		for (int i = 0; i < VOCAB; i++) {
			apart = fmaxf(apart, fabsf(logits[1][i] - logits[0][i]));
			most = fmaxf(most, fabsf(logits[0][i]));
		}
		printf("%s %s: a logit differs by %.2g of %.2g at most; the second best token came as near "
		       "as %.2g\n",
		       types[_i].name, variants[v], apart, most, nearest);
		ck_assert(apart <= 3e-4f * most);
		for (int i = 0; i < TOKENS; i++)
			ck_assert_msg(got[i] == want[i], "%s %s: token %d is %u, want %u", types[_i].name,
			              variants[v], i, got[i], want[i]);
	}
}
