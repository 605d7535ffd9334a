/* model_tokenizer.c - the tokenizer's part of a model's fingerprint: it tells apart two workers
 * with the same weights but different token texts.
 *
 * GGUF: keys of tokenizer.ggml: names of model and pre-tokenizer, tokens, their types and scores,
 * merges, the special ids, and whether text gets a space in front. Hugging Face: the bytes of
 * tokenizer.json. Missing data counts as empty: a worker needs no tokenizer to run. Nothing here
 * fails. */
#include "engine/model.h"
#include "format/gguf.h"

#include <inttypes.h>
#include <sodium.h>
#include <stdio.h>
#include <string.h>

static void add(crypto_generichash_state *h, const void *p, size_t n)
{
	unsigned char len[8];
	for (unsigned i = 0; i < 8; i++)
		len[i] = (unsigned char)((uint64_t)n >> 8 * i);
	crypto_generichash_update(h, len, sizeof len);
	crypto_generichash_update(h, p, n);
}

static void add_strings(crypto_generichash_state *h, const struct gguf *g, const char *key)
{
	enum gguf_type type;
	const void *data;
	size_t n = 0;
	struct gguf_str s;
	if (gguf_get_array(g, key, &type, &n, &data) < 0 || type != GGUF_STRING)
		n = 0;
	add(h, key, strlen(key));
	for (size_t i = 0; i < n; i++)
		if (gguf_array_str(g, key, i, &s) == 0)
			add(h, s.s, s.len);
}

static void add_kinds(crypto_generichash_state *h, const struct gguf *g)
{
	enum gguf_type type;
	const void *data;
	size_t n = 0;
	int prefix = 1;
	if (gguf_get_array(g, "tokenizer.ggml.token_type", &type, &n, &data) == 0 &&
	    (type == GGUF_I32 || type == GGUF_U32))
		add(h, data, n * sizeof(uint32_t));
	if (gguf_get_array(g, "tokenizer.ggml.scores", &type, &n, &data) == 0 && type == GGUF_F32)
		add(h, data, n * sizeof(float));
	gguf_get_bool(g, "tokenizer.ggml.add_space_prefix", &prefix);
	add(h, prefix ? "1" : "0", 1);
}

static void add_gguf(crypto_generichash_state *h, const struct gguf *g)
{
	static const char *const names[] = {"tokenizer.ggml.model", "tokenizer.ggml.pre"};
	static const char *const ids[] = {"tokenizer.ggml.bos_token_id", "tokenizer.ggml.eos_token_id",
	                                  "tokenizer.ggml.unknown_token_id"};
	for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
		struct gguf_str s = {"", 0};
		gguf_get_str(g, names[i], &s);
		add(h, s.s, s.len);
	}
	for (size_t i = 0; i < sizeof ids / sizeof *ids; i++) {
		uint32_t id = UINT32_MAX;
		char text[16];
		gguf_get_u32(g, ids[i], &id);
		add(h, text, (size_t)snprintf(text, sizeof text, "%" PRIu32, id));
	}
	add_strings(h, g, "tokenizer.ggml.tokens");
	add_strings(h, g, "tokenizer.ggml.merges");
	add_kinds(h, g);
}

static void add_file(crypto_generichash_state *h, const char *folder)
{
	char path[4200];
	unsigned char part[16384];
	size_t n;
	snprintf(path, sizeof path, "%.4096s/tokenizer.json", folder);
	FILE *f = fopen(path, "re");
	while (f && (n = fread(part, 1, sizeof part, f)) > 0)
		crypto_generichash_update(h, part, n);
	if (f)
		fclose(f);
}

void model_tokenizer_hash(const struct model_source *src, unsigned char ret[32])
{
	static const char label[] = "pdserve-tokenizer-1";
	crypto_generichash_state h;
	crypto_generichash_init(&h, NULL, 0, 32);
	crypto_generichash_update(&h, (const unsigned char *)label, sizeof label);
	if (src->kind == MODEL_GGUF)
		add_gguf(&h, src->file);
	else
		add_file(&h, src->path);
	crypto_generichash_final(&h, ret, 32);
}
