/* test_gguf_metadata.c - hostile metadata: a good GGUF file with one key dropped, written twice, or
 * of another type, sign, size or count. Each is refused in one line that names the file, the
 * key, what was found and what was expected. The container around the keys: test_format. */
#include "engine/model.h"
#include "format/gguf.h"
#include "tempdir.h"
#include "text/tokenizer.h"
#include "util/buf.h"
#include "util/mem.h"

#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GOLDEN "tests/data/golden/"

enum { DROP = 100, TWICE };

/* What is put in the place of a key's value. */
struct value {
	int type;         /* enum gguf_type, DROP or TWICE */
	uint64_t number;  /* its bits; of an array: how many elements it says that it has */
	const char *text; /* of a string */
	int elem, n;      /* of an array: element type; elements that are there, all zero */
	size_t bytes;     /* of a string, if it holds a zero byte */
};
#define OF(t, v)                                  \
	{                                             \
		.type = GGUF_##t, .number = (uint64_t)(v) \
	}
#define F32(bits)                          \
	{                                      \
		.type = GGUF_F32, .number = (bits) \
	}
#define TEXT(s)                          \
	{                                    \
		.type = GGUF_STRING, .text = (s) \
	}
#define LIST(e, count, there)                                                 \
	{                                                                         \
		.type = GGUF_ARRAY, .elem = GGUF_##e, .number = (count), .n = (there) \
	}
#define NO           \
	{                \
		.type = DROP \
	}
#define DOUBLE        \
	{                 \
		.type = TWICE \
	}
/* float32 by its bits */
enum { F_ZERO = 0, F_ONE = 0x3f800000, F_TWO = 0x40000000 };
#define F_MINUS 0xbf800000u
#define F_NAN 0x7fc00000u
#define F_INF 0x7f800000u
#define F_HUGE 0x7f7fffffu

/* --- files --------------------------------------------------------------- */

static size_t width(uint32_t type)
{
	static const size_t bytes[] = {[GGUF_U8] = 1,  [GGUF_I8] = 1,  [GGUF_U16] = 2, [GGUF_I16] = 2,
	                               [GGUF_U32] = 4, [GGUF_I32] = 4, [GGUF_F32] = 4, [GGUF_BOOL] = 1,
	                               [GGUF_U64] = 8, [GGUF_I64] = 8, [GGUF_F64] = 8};
	return bytes[type];
}

static uint64_t number(const char *p, size_t n)
{
	uint64_t v = 0;
	memcpy(&v, p, n);
	return v;
}

static size_t skip_string(const char *p)
{
	return 8 + number(p, 8);
}

/* Bytes of a value, with its type in front. */
static size_t value_size(const char *p)
{
	uint32_t type = (uint32_t)number(p, 4);
	if (type == GGUF_STRING)
		return 4 + skip_string(p + 4);
	if (type != GGUF_ARRAY)
		return 4 + width(type);
	uint32_t elem = (uint32_t)number(p + 4, 4);
	uint64_t count = number(p + 8, 8);
	size_t at = 16;
	if (elem != GGUF_STRING)
		return at + count * width(elem);
	for (uint64_t i = 0; i < count; i++)
		at += skip_string(p + at);
	return at;
}

static void add_value(struct buf *b, const struct value *v)
{
	static const char zeros[64];
	uint32_t type = (uint32_t)v->type, elem = (uint32_t)v->elem;
	buf_add(b, &type, 4);
	if (type == GGUF_STRING) {
		uint64_t n = v->bytes ? v->bytes : strlen(v->text);
		buf_add(b, &n, 8);
		buf_add(b, v->text, n);
	} else if (type == GGUF_ARRAY) {
		buf_add(b, &elem, 4);
		buf_add(b, &v->number, 8);
		buf_add(b, zeros, (size_t)v->n * (elem == GGUF_STRING ? 8 : width(elem)));
	} else {
		buf_add(b, &v->number, width(type));
	}
}

static void add_key(struct buf *b, const char *key)
{
	uint64_t n = strlen(key);
	buf_add(b, &n, 8);
	buf_add(b, key, n);
}

/* The metadata of `from` with `key` as v says; one that is not there is added. Returns how many
 * entries there are. */
static uint64_t spoil(struct buf *out, const char **from, uint64_t n, const char *key,
                      const struct value *v)
{
	uint64_t left = 0;
	int seen = 0;
	for (uint64_t i = 0; i < n; i++) {
		size_t name = skip_string(*from), size = name + value_size(*from + name);
		int is = name - 8 == strlen(key) && memcmp(*from + 8, key, name - 8) == 0;
		seen |= is;
		for (int times = !is                ? 1
		                 : v->type == DROP  ? 0
		                 : v->type == TWICE ? 2
		                                    : 1;
		     times > 0; times--, left++) {
			buf_add(out, *from, is && v->type < DROP ? name : size);
			if (is && v->type < DROP)
				add_value(out, v);
		}
		*from += size;
	}
	ck_assert_msg(seen || v->type < DROP, "the file has no %s", key);
	if (!seen) {
		add_key(out, key);
		add_value(out, v);
	}
	return left + !seen;
}

/* Where the tensors' descriptions end. */
static const char *skip_tensors(const char *p, uint64_t n)
{
	while (n-- > 0) {
		p += skip_string(p);
		p += 4 + 8 * number(p, 4) + 4 + 8;
	}
	return p;
}

static void write_file(char path[TEST_FOLDER_BYTES], const struct buf *b)
{
	test_file(path, "m.gguf");
	FILE *f = fopen(path, "w");
	ck_assert(f && fwrite(b->data, 1, b->len, f) == b->len && fclose(f) == 0);
}

/* A file with one key changed. */
static void write_changed(char path[TEST_FOLDER_BYTES], const char *name, const char *key,
                          const struct value *v)
{
	struct buf in, out, kv;
	char piece[65536];
	size_t n;
	FILE *f = fopen(name, "r");
	ck_assert_msg(f != NULL, "%s", name);
	buf_init(&in, 0);
	buf_init(&out, 0);
	buf_init(&kv, 0);
	while ((n = fread(piece, 1, sizeof piece, f)) > 0)
		buf_add(&in, piece, n);
	fclose(f);
	const char *p = in.data + 24;
	uint64_t tensors = number(in.data + 8, 8),
			 entries = spoil(&kv, &p, number(in.data + 16, 8), key, v);
	const char *end = skip_tensors(p, tensors),
			   *data = in.data + (size_t)(end - in.data + 31) / 32 * 32;
	buf_add(&out, in.data, 16);
	buf_add(&out, &entries, 8);
	buf_add(&out, kv.data, kv.len);
	buf_add(&out, p, (size_t)(end - p));
	while (out.len % 32)
		buf_addc(&out, 0);
	buf_add(&out, data, in.len - (size_t)(data - in.data));
	write_file(path, &out);
	buf_fini(&in);
	buf_fini(&out);
	buf_fini(&kv);
}

/* A golden model's file, spoilt. */
static void write_model(char path[TEST_FOLDER_BYTES], const char *family, const char *key,
                        const struct value *v)
{
	char name[128];
	snprintf(name, sizeof name, GOLDEN "%s/model.gguf", family);
	write_changed(path, name, key, v);
}

static void check_line(const struct err *err, const char *path, const char *key, const char *text)
{
	ck_assert_msg(strncmp(err->text, path, strlen(path)) == 0,
	              "\"%s\" does not begin with the file", err->text);
	const char *dot = strrchr(key, '.');
	char *want = mem_printf("%s: %s", dot ? dot + 1 : key, text);
	ck_assert_msg(strstr(err->text, want) != NULL, "\"%s\" does not say \"%s\"", err->text, want);
	free(want);
	for (const char *c = err->text; *c; c++)
		ck_assert_msg((unsigned char)*c >= ' ' && *c != 0x7f, "\"%s\" has a control character",
		              err->text);
}

/* --- what describes the model -------------------------------------------- */

static const struct row {
	const char *family, *key;
	struct value v;
	const char *text;
} rows[] = {
	{"mistral", "general.architecture", NO, "found none, expected a string"},
	{"mistral", "general.architecture", OF(U32, 7), "found another type, expected a string"},
	{"mistral", "general.architecture", TEXT(""), "found , expected one of: llama"},
	{"mistral", "general.architecture", TEXT("a\nb\x1b[2J"),
     "found a b?[2J, expected one of: llama"},
	{"mistral", "general.architecture", DOUBLE, "found twice, expected once"},
	{"mistral", "llama.block_count", DOUBLE, "found twice, expected once"},
	{"mistral", "llama.block_count", NO, "found none, expected an integer, 1..256"},
	{"mistral", "llama.embedding_length", NO, "found none, expected an integer"},
	{"mistral", "llama.feed_forward_length", NO, "found none, expected an integer"},
	{"mistral", "llama.attention.head_count", NO, "found none, expected an integer"},
	{"mistral", "llama.context_length", NO, "found none, expected an integer"},
	{"mistral", "llama.attention.layer_norm_rms_epsilon", NO,
     "found none, expected a number more than"},
	{"mistral", "llama.block_count", TEXT("3"),
     "found another type or range, expected an integer, 1..256"},
	{"mistral", "llama.block_count", F32(F_TWO),
     "found another type or range, expected an integer"},
	{"mistral", "llama.block_count", OF(BOOL, 1),
     "found another type or range, expected an integer"},
	{"mistral", "llama.block_count", LIST(U32, 3, 3),
     "found another type or range, expected an integer"},
	{"mistral", "llama.block_count", OF(I32, -3),
     "found another type or range, expected an integer"},
	{"mistral", "llama.block_count", OF(I64, INT64_MIN),
     "found another type or range, expected an integer"},
	{"mistral", "llama.block_count", OF(U64, 1ull << 32),
     "found another type or range, expected an integer"},
	{"mistral", "llama.block_count", OF(U64, (1ull << 32) + 3),
     "found another type or range, expected an integer"},
	{"mistral", "llama.block_count", OF(U32, 0), "found 0, expected an integer, 1..256"},
	{"mistral", "llama.block_count", OF(U32, UINT32_MAX),
     "found 4294967295, expected an integer, 1..256"},
	{"mistral", "llama.embedding_length", OF(U32, 0), "found 0, expected"},
	{"mistral", "llama.embedding_length", OF(U32, UINT32_MAX), "found 4294967295, expected"},
	{"mistral", "llama.feed_forward_length", OF(U32, 0), "found 0, expected"},
	{"mistral", "llama.feed_forward_length", OF(U32, UINT32_MAX), "found 4294967295, expected"},
	{"mistral", "llama.feed_forward_length", LIST(U32, 3, 3),
     "found another type or range, expected an integer"},
	{"mistral", "llama.attention.head_count", OF(U32, 0), "found 0, expected"},
	{"mistral", "llama.attention.head_count", OF(U32, UINT32_MAX), "found 4294967295, expected"},
	{"mistral", "llama.attention.head_count_kv", OF(U32, 0), "found 0, expected"},
	{"mistral", "llama.attention.head_count_kv", OF(I8, -1),
     "found another type or range, expected an integer"},
	{"mistral", "llama.attention.head_count_kv", OF(U32, UINT32_MAX), "found 4294967295, expected"},
	{"mistral", "llama.context_length", OF(U32, 0), "found 0, expected"},
	{"mistral", "llama.context_length", OF(U32, UINT32_MAX), "found 4294967295, expected"},
	{"mistral", "llama.attention.key_length", OF(U32, 0), "found 0, expected an integer, 2..512"},
	{"mistral", "llama.attention.key_length", OF(U32, UINT32_MAX),
     "found 4294967295, expected an integer, 2..512"},
	{"mistral", "llama.attention.value_length", OF(U32, UINT32_MAX),
     "found 4294967295, expected as the key's"},
	{"mistral", "llama.rope.dimension_count", OF(U32, UINT32_MAX),
     "found 4294967295, expected an integer, 2..24"},
	{"mistral", "llama.rope.dimension_count", OF(U32, 0), "found 0, expected"},
	{"mistral", "llama.attention.layer_norm_rms_epsilon", TEXT("1e-5"),
     "found another type or range, expected a number more than"},
	{"mistral", "llama.attention.layer_norm_rms_epsilon", F32(F_ZERO),
     "found 0, expected a number more than 0"},
	{"mistral", "llama.attention.layer_norm_rms_epsilon", F32(F_MINUS),
     "found -1, expected a number more than 0"},
	{"mistral", "llama.attention.layer_norm_rms_epsilon", F32(F_NAN),
     "found nan, expected a number more than 0"},
	{"mistral", "llama.attention.layer_norm_rms_epsilon", F32(F_INF),
     "found inf, expected a number more than 0"},
	{"mistral", "llama.rope.freq_base", F32(F_NAN), "found nan, expected a number more than 1"},
	{"mistral", "llama.rope.freq_base", F32(F_MINUS), "found -1, expected a number more than 1"},
	{"mistral", "llama.rope.freq_base", F32(F_HUGE),
     "found 3.402823466e+38, expected a number more than 1"},
	{"mistral", "llama.rope.freq_base", TEXT("10000"),
     "found another type or range, expected a number more than"},
	{"mistral", "llama.rope.scaling.type", OF(U32, 1),
     "found another type, expected none, linear, yarn or longrope"},
	{"mistral", "llama.rope.scaling.type", TEXT("li\nnear"),
     "found li near, expected none, linear, yarn or longrope"},
	{"mistral",
     "llama.rope.scaling.type",
     {.type = GGUF_STRING, .text = "yarn\0x", .bytes = 6},
     "found yarn, expected none, linear, yarn or longrope"},
	{"mistral", "llama.rope.scaling.factor", F32(F_ZERO), "found 0, expected a number more than 0"},
	{"mistral", "llama.rope.scaling.factor", F32(F_NAN),
     "found nan, expected a number more than 0"},
	{"mistral", "llama.attention.scale", F32(F_INF), "found inf, expected a number more than 0"},
	{"mistral", "llama.attention.sliding_window", OF(U32, UINT32_MAX),
     "found 4294967295, expected at most 16777216"},
	{"mistral", "llama.attention.sliding_window", OF(I64, -1),
     "found another type or range, expected an integer"},
	{"mistral", "llama.expert_count", OF(U32, 8), "found 8, expected none (a dense model)"},
	{"mistral", "general.alignment", TEXT("32"), "found"},
	{"mistral", "general.alignment", OF(U32, 0), "found 0, expected a power of two"},
	{"mistral", "general.alignment", OF(U64, 1ull << 40), "found"},
	{"mistral", "x", LIST(U32, UINT64_MAX, 1), "found 18446744073709551615, expected at most"},
	{"mistral", "x", LIST(U64, 1ull << 61, 1), "found 2305843009213693952, expected at most"},
	{"mistral", "x", LIST(STRING, 1ull << 60, 1), "found 1152921504606846976, expected at most"},
	{"gemma3", "gemma3.attention.sliding_window", NO, "found 0, expected 1 or more"},
	{"gemma3", "gemma3.attention.sliding_window_pattern", LIST(BOOL, 3, 3),
     "found 3, expected a list of one flag for each layer"},
	{"gemma3", "gemma3.attention.sliding_window_pattern", LIST(BOOL, 0, 0),
     "found 0, expected a list of one flag for each layer"},
	{"gemma3", "gemma3.attention.sliding_window_pattern", LIST(U32, 4, 4),
     "found 4, expected a list of one flag for each layer"},
	{"gemma3", "gemma3.attention.sliding_window_pattern", TEXT("local"),
     "found another type or range, expected an integer"},
	{"gemma3", "gemma3.rope.freq_base_swa", F32(F_NAN), "found nan, expected a number more than 1"},
	{"gemma3", "gemma3.final_logit_softcapping", F32(F_TWO), "found 2, expected none"},
	{"qwen2-yarn", "qwen2.rope.scaling.original_context_length", OF(U32, 0),
     "found 0, expected 1 or more"},
	{"qwen2-yarn", "qwen2.rope.scaling.factor", F32(F_MINUS),
     "found -1, expected a number more than 0"},
	{"qwen2-yarn", "qwen2.rope.scaling.yarn_beta_fast", F32(F_NAN),
     "found nan, expected a number more than 0"},
	{"qwen2-yarn", "qwen2.rope.scaling.yarn_beta_slow", F32(F_HUGE), "found"},
	{"qwen3_moe", "qwen3moe.expert_count", NO, "found none, expected an integer, 1..1024"},
	{"qwen3_moe", "qwen3moe.expert_count", OF(U32, 0), "found 0, expected an integer, 1..1024"},
	{"qwen3_moe", "qwen3moe.expert_count", OF(U32, UINT32_MAX),
     "found 4294967295, expected an integer, 1..1024"},
	{"qwen3_moe", "qwen3moe.expert_count", TEXT("8"),
     "found another type or range, expected an integer"},
	{"qwen3_moe", "qwen3moe.expert_used_count", OF(I32, -2),
     "found another type or range, expected an integer, 1.."},
	{"qwen3_moe", "qwen3moe.expert_feed_forward_length", OF(U32, UINT32_MAX),
     "found 4294967295, expected an integer, 1.."},
	{"glm4_moe", "glm4moe.expert_group_count", OF(U32, UINT32_MAX), "found 4294967295, expected"},
	{"glm4_moe", "glm4moe.expert_weights_scale", F32(F_NAN), "found nan, expected"},
	{"glm4_moe", "glm4moe.expert_weights_norm", TEXT("yes"),
     "found another type or range, expected a boolean"},
	{"glm4_moe", "glm4moe.nextn_predict_layers", OF(U32, UINT32_MAX),
     "found 4294967295, expected an integer, 0.."},
	{"deepseek_v3", "deepseek2.attention.kv_lora_rank", NO, "found none, expected"},
	{"deepseek_v3", "deepseek2.attention.kv_lora_rank", OF(U32, UINT32_MAX),
     "found 4294967295, expected"},
	{"deepseek_v3", "deepseek2.attention.q_lora_rank", OF(I16, -1),
     "found another type or range, expected"},
	{"deepseek_v3", "deepseek2.attention.value_length_mla", OF(U32, 0), "found 0, expected"},
};

TEST_LOOP(of_the_model, 0, sizeof rows / sizeof *rows)
{
	const struct row *w = &rows[_i];
	char path[TEST_FOLDER_BYTES];
	struct model_conf c;
	struct model_source src;
	struct err err = {0};
	write_model(path, w->family, w->key, &w->v);
	int rc = model_open(path, &c, &src, &err);
	if (rc == 0)
		model_close(&src);
	ck_assert_msg(rc < 0 && err.code == rc, "row %d, %s %s: taken", _i, w->family, w->key);
	check_line(&err, path, w->key, w->text);
}

/* Attention's scale of a Gemma 3 whose file has no key for it: by its heads' size, but for the
 * 27B's shape, whatever the number of layers. */
static const struct {
	uint32_t layers, hidden, heads, head_dim;
	double scalar;
} gemmas[] = {
	{4, 2560, 8, 256, 256},   {62, 2560, 8, 256, 256}, {62, 5376, 32, 128, 168},
	{31, 5376, 32, 128, 168}, {4, 5376, 42, 128, 128},
};

TEST_LOOP(scale_of_gemma, 0, sizeof gemmas / sizeof *gemmas)
{
	char path[TEST_FOLDER_BYTES];
	struct model_conf c;
	struct model_source src;
	struct err err = {0};
	const struct {
		const char *key;
		struct value v;
	} changes[] = {
		{"gemma3.block_count", OF(U32, gemmas[_i].layers)},
		{"gemma3.embedding_length", OF(U32, gemmas[_i].hidden)},
		{"gemma3.attention.head_count", OF(U32, gemmas[_i].heads)},
		{"gemma3.attention.key_length", OF(U32, gemmas[_i].head_dim)},
		{"gemma3.attention.value_length", OF(U32, gemmas[_i].head_dim)},
	};
	write_model(path, "gemma3", "gemma3.attention.scale", &(struct value)NO);
	for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
		char from[TEST_FOLDER_BYTES];
		snprintf(from, sizeof from, "%s", path);
		write_changed(path, from, changes[i].key, &changes[i].v);
	}
	ck_assert_msg(model_open(path, &c, &src, &err) == 0, "%s", err.text);
	ck_assert_double_eq_tol(c.attn_scale, 1 / sqrt(gemmas[_i].scalar), 1e-7);
	model_close(&src);
}

/* --- what describes the tokenizer ---------------------------------------- */

static void add_strings(struct buf *b, const char *key, const char *const *list, uint64_t n)
{
	uint32_t type = GGUF_ARRAY, elem = GGUF_STRING;
	add_key(b, key);
	buf_add(b, &type, 4);
	buf_add(b, &elem, 4);
	buf_add(b, &n, 8);
	for (uint64_t i = 0; i < n; i++)
		add_key(b, list[i]); /* a string is written as a key is */
}

static void add_one(struct buf *b, const char *key, struct value v)
{
	add_key(b, key);
	add_value(b, &v);
}

#define T "tokenizer.ggml."

/* Three tokens and one merge, as byte-level BPE or with scores. */
static void write_tokenizer(char path[TEST_FOLDER_BYTES], const char *model, const char *key,
                            const struct value *v)
{
	static const char *const tokens[] = {"a", "b", "ab"}, *const merges[] = {"a b"};
	struct buf kv, out;
	buf_init(&kv, 0);
	buf_init(&out, 0);
	add_one(&kv, T "model", (struct value)TEXT(model));
	add_one(&kv, T "pre", (struct value)TEXT("gpt-2"));
	add_strings(&kv, T "tokens", tokens, 3);
	add_strings(&kv, T "merges", merges, 1);
	add_one(&kv, T "scores", (struct value)LIST(F32, 3, 3));
	add_one(&kv, T "bos_token_id", (struct value)OF(U32, 0));
	const char *p = kv.data;
	buf_adds(&out, "GGUF");
	buf_add(&out, "\3\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0", 20);
	uint64_t n = spoil(&out, &p, 6, key, v);
	memcpy(out.data + 16, &n, 8);
	write_file(path, &out);
	buf_fini(&kv);
	buf_fini(&out);
}

static const struct row tokenizers[] = {
	{"gpt2", T "model", NO, "found no string, expected gpt2, llama or t5"},
	{"gpt2", T "model", OF(U32, 1), "found no string, expected gpt2, llama or t5"},
	{"gpt2", T "model", TEXT("be\nrt"), "found 'be?rt', expected gpt2, llama or t5"},
	{"gpt2", T "pre", NO, "found no string, expected the name of a pre-tokenizer"},
	{"gpt2", T "pre", OF(F32, F_ONE), "found no string, expected the name of a pre-tokenizer"},
	{"gpt2", T "pre", TEXT("gpt\x7f"), "found 'gpt?', which is not a supported pre-tokenizer"},
	{"gpt2", T "tokens", NO, "found none, expected an array of strings"},
	{"gpt2", T "tokens", DOUBLE, "found twice, expected once"},
	{"gpt2", T "tokens", TEXT("a"), "found no array, expected an array of strings"},
	{"gpt2", T "tokens", LIST(U32, 3, 3), "found an array of 3 u32, expected an array of strings"},
	{"gpt2", T "tokens", LIST(STRING, 0, 0), "found 0 tokens, expected 1 to"},
	{"gpt2", T "tokens", LIST(STRING, UINT64_MAX, 1),
     "found 18446744073709551615, expected at most"},
	{"gpt2", T "merges", NO, "found none, expected an array of strings"},
	{"gpt2", T "merges", LIST(I8, 2, 2), "found an array of 2 i8, expected an array of strings"},
	{"gpt2", T "merges", LIST(STRING, 1, 1), "merge 0 is not two byte-level tokens"},
	{"gpt2", T "token_type", LIST(I32, 2, 2),
     "found an array of 2 i32, expected an array of 3 32-bit integers"},
	{"gpt2", T "token_type", LIST(U64, 3, 3),
     "found an array of 3 u64, expected an array of 3 32-bit integers"},
	{"gpt2", T "token_type", LIST(I32, 3, 3), "token 0 has type 0, expected 1 to 6"},
	{"gpt2", T "bos_token_id", OF(U32, 3), "found 3, expected a token id below 3"},
	{"gpt2", T "bos_token_id", OF(U32, UINT32_MAX),
     "found 4294967295, expected a token id below 3"},
	{"gpt2", T "bos_token_id", OF(I32, -1),
     "found another type or range, expected a token id below 3"},
	{"gpt2", T "bos_token_id", OF(U64, 1ull << 32),
     "found another type or range, expected a token id below 3"},
	{"gpt2", T "eos_token_id", TEXT("</s>"),
     "found another type or range, expected a token id below 3"},
	{"gpt2", T "eot_token_id", OF(U32, 7), "found 7, expected a token id below 3"},
	{"gpt2", T "add_bos_token", OF(U32, 1), "found another type, expected a bool"},
	{"llama", T "scores", NO, "found none, expected an array of 3 f32"},
	{"llama", T "scores", LIST(F64, 3, 3), "found an array of 3 f64, expected an array of 3 f32"},
	{"llama", T "scores", LIST(F32, 4, 4), "found an array of 4 f32, expected an array of 3 f32"},
	{"llama", T "add_space_prefix", OF(I64, 1), "found another type, expected a bool"},
	{"llama", T "unknown_token_id", OF(U32, 3), "found 3, expected a token id below 3"},
};

TEST_LOOP(of_the_tokenizer, 0, sizeof tokenizers / sizeof *tokenizers)
{
	const struct row *w = &tokenizers[_i];
	char path[TEST_FOLDER_BYTES];
	struct gguf *g = NULL;
	struct tokenizer *t = NULL;
	struct err err = {0};
	write_tokenizer(path, w->family, w->key, &w->v);
	int rc = gguf_open(path, &g, &err);
	if (rc == 0)
		rc = tokenizer_from_gguf(g, &t, &err);
	gguf_close(&g);
	ck_assert_msg(rc < 0 && err.code == rc && !t, "row %d, %s: taken", _i, w->key);
	check_line(&err, path, w->key, w->text);
}

/* What the rows spoil is good as it stands. */
TEST(unspoilt)
{
	static const struct value same = TEXT("x");
	char path[TEST_FOLDER_BYTES];
	struct gguf *g;
	struct tokenizer *t;
	struct model_conf c;
	struct model_source src;
	struct err err = {0};
	for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
		if (i && strcmp(rows[i].family, rows[i - 1].family) == 0)
			continue;
		write_model(path, rows[i].family, "x", &same);
		ck_assert_msg(model_open(path, &c, &src, &err) == 0, "%s: %s", rows[i].family, err.text);
		model_close(&src);
	}
	for (int i = 0; i < 2; i++) {
		write_tokenizer(path, i ? "llama" : "gpt2", "x", &same);
		ck_assert_msg(gguf_open(path, &g, &err) == 0 && tokenizer_from_gguf(g, &t, &err) == 0, "%s",
		              err.text);
		tokenizer_destroy(&t);
		gguf_close(&g);
	}
}
