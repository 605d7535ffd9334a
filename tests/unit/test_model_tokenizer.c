/* test_model_tokenizer.c - a model's fingerprint covers its tokenizer: same weights, other
 * words, another fingerprint. */
#include "engine/fingerprint.h"
#include "format/gguf.h"
#include "util/buf.h"
#include "tempdir.h"

#include <check.h>
#include <fcntl.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char dir[TEST_FOLDER_BYTES];

static void fingerprint(const char *path, char hex[65])
{
	struct model_conf conf;
	struct model_source src;
	struct err err = {0};
	ck_assert_msg(model_open(path, &conf, &src, &err) == 0, "%s", err.text);
	model_fingerprint(&conf, &src, hex);
	model_close(&src);
}

static void copy(const char *name)
{
	char cmd[512];
	snprintf(cmd, sizeof cmd, "cp tests/data/golden/llama/%s %s/", name, dir);
	ck_assert_int_eq(system(cmd), 0);
}

static void write_tokenizer(const char *text)
{
	char path[128];
	snprintf(path, sizeof path, "%s/tokenizer.json", dir);
	FILE *f = fopen(path, "w");
	ck_assert(f && fputs(text, f) >= 0 && fclose(f) == 0);
}

TEST(folder)
{
	char bare[65], one[65], again[65], two[65];
	test_folder(dir, "fingerprint");
	copy("config.json");
	copy("model.safetensors");
	fingerprint(dir, bare);
	write_tokenizer("{\"model\":{\"vocab\":{\"a\":0,\"b\":1}}}");
	fingerprint(dir, one);
	fingerprint(dir, again);
	write_tokenizer("{\"model\":{\"vocab\":{\"a\":1,\"b\":0}}}");
	fingerprint(dir, two);
	ck_assert_str_eq(one, again);
	ck_assert_str_ne(bare, one);
	ck_assert_str_ne(one, two);
	ck_assert_str_ne(bare, two);
	char rm[96];
	snprintf(rm, sizeof rm, "rm -r %s", dir);
	ck_assert_int_eq(system(rm), 0);
}

static void add_str(struct buf *b, const char *s)
{
	uint64_t n = strlen(s);
	buf_add(b, &n, sizeof n);
	buf_add(b, s, n);
}

/* A GGUF file of metadata alone: `tokens` tokens named by letters from `first` on. */
static void tokens_hash(const char *key, char first, uint64_t tokens, unsigned char ret[32])
{
	struct buf file;
	struct err err = {0};
	uint32_t version = 3, array = GGUF_ARRAY, string = GGUF_STRING;
	uint64_t tensors = 0, kvs = 1;
	char path[TEST_FOLDER_BYTES];
	buf_init(&file, 0);
	buf_adds(&file, "GGUF");
	buf_add(&file, &version, sizeof version);
	buf_add(&file, &tensors, sizeof tensors);
	buf_add(&file, &kvs, sizeof kvs);
	add_str(&file, key);
	buf_add(&file, &array, sizeof array);
	buf_add(&file, &string, sizeof string);
	buf_add(&file, &tokens, sizeof tokens);
	for (uint64_t i = 0; i < tokens; i++) {
		char word[2] = {(char)(first + (char)i), 0};
		add_str(&file, word);
	}
	while (file.len % 32)
		buf_addc(&file, 0);
	test_file(path, "tokens.gguf");
	int fd = open(path, O_WRONLY | O_CREAT | O_EXCL, 0600);
	ck_assert_int_ge(fd, 0);
	ck_assert_int_eq(write(fd, file.data, file.len), (ssize_t)file.len);
	close(fd);
	struct gguf *g;
	ck_assert_msg(gguf_open(path, &g, &err) == 0, "%s", err.text);
	model_tokenizer_hash(&(struct model_source){.kind = MODEL_GGUF, .file = g, .path = path}, ret);
	gguf_close(&g);
	unlink(path);
	buf_fini(&file);
}

TEST(file)
{
	static const struct {
		const char *key;
		char first;
		uint64_t tokens;
	} of[] = {{"tokenizer.ggml.tokens", 'a', 5},
	          {"tokenizer.ggml.tokens", 'a', 6},
	          {"tokenizer.ggml.tokens", 'b', 5},
	          {"tokenizer.ggml.merges", 'a', 5},
	          {"general.x", 'a', 5}};
	enum { N = sizeof of / sizeof *of };
	unsigned char h[N][32], again[32], other[32];
	for (int i = 0; i < N; i++) {
		tokens_hash(of[i].key, of[i].first, of[i].tokens, h[i]);
		tokens_hash(of[i].key, of[i].first, of[i].tokens, again);
		ck_assert_mem_eq(h[i], again, 32);
		for (int k = 0; k < i; k++)
			ck_assert_msg(memcmp(h[i], h[k], 32) != 0, "%d and %d have one hash", i, k);
	}
	tokens_hash("general.y", 'q', 3, other); /* what is not the tokenizer's changes nothing */
	ck_assert_mem_eq(other, h[N - 1], 32);
}

TEST_START(cryptography)
{
	if (sodium_init() < 0)
		exit(EXIT_FAILURE);
}
