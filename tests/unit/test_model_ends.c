/* test_model_ends.c - what a model's files say beside its weights: the tokens that end an answer,
 * those that take white space along, and how long the context is. */
#include "engine/family.h"
#include "format_rig.h"
#include "text/tokenizer.h"
#include "util/mem.h"

#include <jansson.h>
#include <stdlib.h>

/* --- GGUF ---------------------------------------------------------------- */

enum { NORMAL = 1, UNKNOWN, CONTROL, USER, UNUSED, BYTE };

struct token {
	const char *text;
	uint32_t type;
};

static void put_list(struct buf *b, const char *key, enum gguf_type type, const struct token *t,
                     size_t n)
{
	put_str(b, key);
	put32(b, GGUF_ARRAY);
	put32(b, type);
	put64(b, n);
	for (size_t i = 0; i < n; i++)
		if (type == GGUF_STRING)
			put_str(b, t[i].text);
		else if (type == GGUF_F32)
			put_f32(b, -(float)i);
		else
			put32(b, t[i].type);
}

/* The metadata of a llama and its vocabulary: enough for its description. */
static void write_gguf(const char *arch, const struct token *t, size_t n, uint32_t eos,
                       const char *scaling)
{
	static const struct {
		const char *key;
		uint32_t value;
	} sizes[] = {{"llama.block_count", 1},
	             {"llama.embedding_length", 32},
	             {"llama.feed_forward_length", 64},
	             {"llama.attention.head_count", 4},
	             {"llama.attention.head_count_kv", 2},
	             {"llama.context_length", 128}};
	struct buf b;
	buf_init(&b, 0);
	buf_adds(&b, "GGUF");
	put32(&b, 3);
	put64(&b, 1);
	put64(&b, 9 + sizeof sizes / sizeof *sizes);
	put_str(&b, "general.architecture");
	put32(&b, GGUF_STRING);
	put_str(&b, arch);
	for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
		put_str(&b, sizes[i].key);
		put32(&b, GGUF_U32);
		put32(&b, sizes[i].value);
	}
	put_str(&b, "llama.rope.scaling.type");
	put32(&b, GGUF_STRING);
	put_str(&b, scaling);
	put_str(&b, "llama.rope.scaling.factor");
	put32(&b, GGUF_F32);
	put_f32(&b, 4);
	put_str(&b, "llama.attention.layer_norm_rms_epsilon");
	put32(&b, GGUF_F32);
	put_f32(&b, 1e-5f);
	put_str(&b, "tokenizer.ggml.model");
	put32(&b, GGUF_STRING);
	put_str(&b, "llama");
	put_str(&b, "tokenizer.ggml.eos_token_id");
	put32(&b, GGUF_U32);
	put32(&b, eos);
	put_list(&b, "tokenizer.ggml.tokens", GGUF_STRING, t, n);
	put_list(&b, "tokenizer.ggml.scores", GGUF_F32, t, n);
	put_list(&b, "tokenizer.ggml.token_type", GGUF_I32, t, n);
	put_tensor(&b, "token_embd.weight", 32, n, 0, 0);
	while (b.len % 32)
		buf_addc(&b, 0);
	for (size_t i = 0; i < 32 * n; i++)
		put_f32(&b, 0);
	write_file("model.gguf", b.data, b.len);
	buf_fini(&b);
}

static struct tokenizer *tokenizer_of(void)
{
	struct gguf *g;
	struct tokenizer *t;
	struct err err = {0};
	ck_assert_msg(gguf_open(path, &g, &err) == 0 && tokenizer_from_gguf(g, &t, &err) == 0, "%s",
	              err.text);
	gguf_close(&g);
	return t;
}

/* As text, in the order in which they are known; the tokenizer knows the same ones. */
static void expect_ends(const struct token *t, size_t n, uint32_t eos, const char *want)
{
	char got[128] = "";
	struct model_conf c = {0};
	struct model_source src = {0};
	struct err err = {0};
	write_gguf("llama", t, n, eos, "none");
	ck_assert_msg(model_gguf_open(path, &c, &src, &err) == 0, "%s", err.text);
	model_close(&src);
	struct tokenizer *tok = tokenizer_of();
	for (uint32_t i = 0; i < c.n_eos; i++) {
		snprintf(got + strlen(got), sizeof got - strlen(got), "%s ", t[c.eos[i]].text);
		ck_assert(tokenizer_is_eos(tok, c.eos[i]));
	}
	ck_assert_str_eq(got, want);
	for (uint32_t i = 0, ends = 0; i < n; i++)
		ck_assert_uint_le(ends += tokenizer_is_eos(tok, i) != 0, c.n_eos);
	tokenizer_destroy(&tok);
}

TEST_CASE("files", .setup = make_folder);

TEST(turns_end)
{
	static const struct token phi[] = {{"<unk>", UNKNOWN},   {"<s>", CONTROL},
	                                   {"<|end|>", CONTROL}, {"<|endoftext|>", CONTROL},
	                                   {"a", NORMAL},        {"<|user|>", CONTROL}},
							  gemma[] = {{"<eos>", CONTROL},          {"<unk>", UNKNOWN},
	                                     {"<end_of_turn>", USER},     {"<|im_end|>", NORMAL},
	                                     {"<end_of_turn>x", CONTROL}, {"</s>", USER}},
							  harmony[] = {{"<|return|>", CONTROL},
	                                       {"<unk>", UNKNOWN},
	                                       {"<|end|>", CONTROL},
	                                       {"<|call|>", CONTROL},
	                                       {"<|endoftext|>", CONTROL}};
	expect_ends(phi, 6, 3, "<|endoftext|> <|end|> ");
	expect_ends(gemma, 6, 0, "<eos> <end_of_turn> ");
	expect_ends(harmony, 5, 0, "<|return|> <|call|> <|endoftext|> ");
}

/* As many as there is room for, the named one first. */
TEST(many_ends)
{
	struct token t[2 * MODEL_EOS_MAX];
	struct model_conf c = {0};
	struct model_source src = {0};
	for (size_t i = 0; i < 2 * MODEL_EOS_MAX; i++)
		t[i] = (struct token){"<EOT>", CONTROL};
	t[9] = (struct token){"x", CONTROL};
	write_gguf("llama", t, 2 * MODEL_EOS_MAX, 9, "none");
	ck_assert_int_eq(model_gguf_open(path, &c, &src, NULL), 0);
	model_close(&src);
	ck_assert_uint_eq(c.n_eos, MODEL_EOS_MAX);
	ck_assert_uint_eq(c.eos[0], 9);
}

/* The line feeds of Phi-3's template are no tokens. */
TEST(special_tokens_strip)
{
	static const struct token t[] = {{"<unk>", UNKNOWN},
	                                 {"<s>", CONTROL},
	                                 {"<|user|>", CONTROL},
	                                 {"<|endoftext|>", CONTROL},
	                                 {"<0x0A>", BYTE},
	                                 {"a", NORMAL},
	                                 {"\xe2\x96\x81", NORMAL},
	                                 {"\xe2\x96\x81"
	                                  "a",
	                                  NORMAL}};
	static const struct {
		const char *arch, *text;
		uint32_t n, ids[4];
	} row[] = {{"phi3", "<|user|>\n a", 2, {2, 7}},
	           {"phi3", "<|endoftext|>\na", 4, {3, 6, 4, 5}},
	           {"llama", "<|user|>\na", 4, {2, 6, 4, 5}}};
	for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
		struct token_list got = {0};
		write_gguf(row[i].arch, t, 8, 3, "none");
		struct tokenizer *tok = tokenizer_of();
		ck_assert_int_eq(tokenizer_encode_prompt(tok, row[i].text, strlen(row[i].text), 0, 0, &got),
		                 0);
		ck_assert_msg(got.n == row[i].n && !memcmp(got.ids, row[i].ids, got.n * sizeof *got.ids),
		              "row %zu: %zu tokens: %u %u %u %u", i, got.n, got.ids[0], got.ids[1],
		              got.n > 2 ? got.ids[2] : 0, got.n > 3 ? got.ids[3] : 0);
		token_list_fini(&got);
		tokenizer_destroy(&tok);
	}
}

/* --- folders ------------------------------------------------------------- */

static struct model_conf folder_of(const char *golden, json_t *changes, const char *tokenizer)
{
	char *from = mem_printf("tests/data/golden/%s", golden),
		 *file = mem_printf("%s/config.json", from),
		 *weights = mem_printf("%s/model.safetensors", from), *to = realpath(weights, NULL), *text;
	struct model_conf c = {0};
	struct model_source src = {0};
	struct err err = {0};
	json_t *o = json_load_file(file, 0, NULL);
	ck_assert(o && to && json_object_update(o, changes) == 0);
	text = json_dumps(o, 0);
	write_file("config.json", text, strlen(text));
	remove_file("tokenizer_config.json");
	if (tokenizer)
		write_file("tokenizer_config.json", tokenizer, strlen(tokenizer));
	remove_file("model.safetensors");
	ck_assert_int_eq(symlink(to, path), 0);
	ck_assert_msg(model_hf_open(folder, &c, &src, &err) == 0, "%s", err.text);
	model_close(&src);
	json_decref(o);
	json_decref(changes);
	free(from);
	free(file);
	free(weights);
	free(to);
	free(text);
	return c;
}

/* The tokenizer's own eos_token counts; what is wrong there is not this reader's business. */
TEST(ends_of_the_tokenizer)
{
#define ADDED \
	",\"added_tokens_decoder\":{\"7\":{\"content\":\"<|im_end|>\"},\"8\":{\"content\":\"x\"}}}"
	static const struct {
		const char *text;
		uint32_t id; /* 0: none */
	} row[] = {{NULL, 0},
	           {"{\"eos_token\":\"<|im_end|>\"" ADDED, 7},
	           {"{\"eos_token\":{\"content\":\"x\"}" ADDED, 8},
	           {"{\"eos_token\":\"y\"" ADDED, 0},
	           {"{\"eos_token\":null" ADDED, 0},
	           {"{\"eos_token\":\"x\",\"added_tokens_decoder\":{\"8x\":{\"content\":\"x\"}}}", 0},
	           {"{\"eos_token\":\"x\",\"added_tokens_decoder\":{\"99999\":{\"content\":\"x\"}}}",
	            0},
	           {"{\"eos_token\":\"x\",\"added_tokens_decoder\":[1]}", 0},
	           {"[]", 0},
	           {"{", 0}};
	for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
		struct model_conf c = folder_of("llama", json_pack("{s:[i,i]}", "eos_token_id", 3, 4),
		                                row[i].text);
		ck_assert_uint_eq(c.n_eos, row[i].id ? 3 : 2);
		ck_assert(c.eos[0] == 3 && c.eos[1] == 4 && (!row[i].id || c.eos[2] == row[i].id));
	}
}

/* Stretched positions make the context longer, whether max_position_embeddings says so or not. */
TEST(stretched_context)
{
	static const struct {
		const char *golden, *scaling;
		double factor;
		int max, original;
		uint32_t context;
	} row[] = {{"qwen2-yarn", "yarn", 4, 128, 128, 512},
	           {"qwen2-yarn", "yarn", 4, 512, 128, 512},
	           {"qwen2-yarn", "yarn", 4, 1000, 128, 1000},
	           {"llama", "linear", 2.5, 128, 0, 320},
	           {"llama", "yarn", 1e9, 128, 128, MODEL_CONTEXT_MAX}};
	for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
		json_t *p = json_pack("{s:s, s:f}", "rope_type", row[i].scaling, "factor", row[i].factor);
		if (row[i].original)
			json_object_set_new(p, "original_max_position_embeddings",
			                    json_integer(row[i].original));
		struct model_conf c = folder_of(row[i].golden,
		                                json_pack("{s:i, s:n, s:o}", "max_position_embeddings",
		                                          row[i].max, "rope_parameters", "rope_scaling", p),
		                                NULL);
		ck_assert_msg(c.context == row[i].context, "row %zu: %u, want %u", i, c.context,
		              row[i].context);
	}
}

TEST(stretched_context_of_gguf)
{
	static const struct token t[] = {{"<unk>", UNKNOWN}, {"</s>", CONTROL}};
	static const struct {
		const char *scaling;
		uint32_t context;
	} row[] = {{"none", 128}, {"linear", 512}, {"yarn", 512}, {"longrope", 128}};
	for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
		struct model_conf c = {0};
		struct model_source src = {0};
		write_gguf("llama", t, 2, 1, row[i].scaling);
		ck_assert_int_eq(model_gguf_open(path, &c, &src, NULL), 0);
		model_close(&src);
		ck_assert_uint_eq(c.context, row[i].context);
	}
}
