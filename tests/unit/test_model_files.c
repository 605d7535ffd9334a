/* test_model_files.c - a model's file that lacks something or says something else is refused by the
 * engine with one line that names file, field, found, expected. */
#include "engine/engine.h"
#include "format/gguf.h"
#include "format_rig.h"

#include <stdlib.h>

/* A tiny llama as GGUF, F32; `spoil` leaves something out or changes it. */
enum spoil {
	SPOIL_NONE,
	SPOIL_ARCH,
	SPOIL_NO_HEADS,
	SPOIL_KV_HEADS,
	SPOIL_MISSING,
	SPOIL_SHAPE,
	SPOIL_TYPE,
	SPOIL_EPS,
	SPOIL_HUGE,
	SPOIL_EXPERTS,
	SPOIL_ROPE,
	SPOIL_VOCAB
};

struct model_writer {
	struct buf b, info;
	uint64_t offset, tensors, kvs;
};

static void kv_u32(struct model_writer *w, const char *key, uint32_t v)
{
	put_str(&w->b, key);
	put32(&w->b, GGUF_U32);
	put32(&w->b, v);
	w->kvs++;
}

static void kv_str(struct model_writer *w, const char *key, const char *v)
{
	put_str(&w->b, key);
	put32(&w->b, GGUF_STRING);
	put_str(&w->b, v);
	w->kvs++;
}

static void tensor(struct model_writer *w, const char *name, uint64_t k, uint64_t n, uint32_t type)
{
	put_tensor(&w->info, name, k, n, type, w->offset);
	w->offset += (k * n * 4 + 31) / 32 * 32;
	w->tensors++;
}

static void write_metadata(struct model_writer *w, enum spoil s)
{
	kv_str(w, "general.architecture", s == SPOIL_ARCH ? "mamba" : "llama");
	kv_u32(w, "llama.block_count", s == SPOIL_HUGE ? 4000000000u : 1);
	kv_u32(w, "llama.embedding_length", 32);
	kv_u32(w, "llama.feed_forward_length", 64);
	if (s != SPOIL_NO_HEADS)
		kv_u32(w, "llama.attention.head_count", 4);
	kv_u32(w, "llama.attention.head_count_kv", s == SPOIL_KV_HEADS ? 3 : 2);
	kv_u32(w, "llama.context_length", 128);
	if (s == SPOIL_EXPERTS)
		kv_u32(w, "llama.expert_count", 8);
	if (s == SPOIL_ROPE)
		kv_str(w, "llama.rope.scaling.type", "spiral");
	put_str(&w->b, "llama.attention.layer_norm_rms_epsilon");
	put32(&w->b, GGUF_F32);
	put_f32(&w->b, s == SPOIL_EPS ? -1.0f : 1e-5f);
	w->kvs++;
}

static void write_model(enum spoil s)
{
	struct model_writer w = {0};
	buf_init(&w.b, 0);
	buf_init(&w.info, 0);
	buf_adds(&w.b, "GGUF");
	put32(&w.b, 3);
	put64(&w.b, 0);
	put64(&w.b, 0);
	write_metadata(&w, s);
	tensor(&w, "output_norm.weight", 32, 1, 0);
	tensor(&w, "blk.0.attn_norm.weight", 32, 1, 0);
	tensor(&w, "blk.0.attn_q.weight", 32, 32, 0);
	if (s != SPOIL_MISSING)
		tensor(&w, "blk.0.attn_k.weight", 32, 16, 0);
	tensor(&w, "blk.0.attn_v.weight", 32, s == SPOIL_SHAPE ? 17 : 16, 0);
	tensor(&w, "blk.0.attn_output.weight", 32, 32, 0);
	tensor(&w, "blk.0.ffn_norm.weight", 32, 1, 0);
	tensor(&w, "blk.0.ffn_gate.weight", 32, 64, s == SPOIL_TYPE ? 26 : 0);
	tensor(&w, "blk.0.ffn_up.weight", 32, 64, 0);
	tensor(&w, "blk.0.ffn_down.weight", 64, 32, 0);
	uint64_t filled = w.offset + 50 * 32 * 4;
	tensor(&w, "token_embd.weight", 32, s == SPOIL_VOCAB ? 1u << 22 : 50, 0);
	buf_add(&w.b, w.info.data, w.info.len);
	memcpy(w.b.data + 8, &w.tensors, 8);
	memcpy(w.b.data + 16, &w.kvs, 8);
	while (w.b.len % 32)
		buf_addc(&w.b, 0);
	for (uint64_t i = 0; i < filled / 4; i++)
		put_f32(&w.b, (float)(i % 17) * 0.01f);
	write_file("model.gguf", w.b.data, w.b.len);
	/* a large vocabulary is a hole */
	ck_assert_int_eq(truncate(path, (off_t)(w.b.len + w.offset - filled)), 0);
	buf_fini(&w.b);
	buf_fini(&w.info);
}

static const struct {
	enum spoil spoil;
	int code;
	const char *text;
} models[] = {
	{SPOIL_NONE, 0, ""},
	{SPOIL_ARCH, ERR_UNSUPPORTED, "architecture: found mamba, expected one of: llama"},
	{SPOIL_NO_HEADS, ERR_NOTFOUND,
     "metadata llama.attention.head_count: found none, expected an integer"},
	{SPOIL_KV_HEADS, ERR_CORRUPT, "KV heads: found 3, expected a divisor of 4 heads"},
	{SPOIL_MISSING, ERR_NOTFOUND, "tensor blk.0.attn_k.weight: found none, expected 16 x 32"},
	{SPOIL_SHAPE, ERR_CORRUPT, "tensor blk.0.attn_v.weight: found shape 17 x 32, expected 16 x 32"},
	{SPOIL_TYPE, ERR_UNSUPPORTED,
     "tensor blk.0.ffn_gate.weight: found type I32, expected one of F32, F16"},
	{SPOIL_EPS, ERR_UNSUPPORTED,
     "metadata llama.attention.layer_norm_rms_epsilon: found -1, expected a number more than 0"},
	{SPOIL_HUGE, ERR_UNSUPPORTED,
     "metadata llama.block_count: found 4000000000, expected an integer, 1..256"},
	{SPOIL_EXPERTS, ERR_UNSUPPORTED, "llama.expert_count: found 8, expected none"},
	{SPOIL_ROPE, ERR_UNSUPPORTED,
     "llama.rope.scaling.type: found spiral, expected none, linear, yarn or longrope"},
};

TEST_CASE("model files", .timeout_s = 60, .setup_once = make_folder);

TEST_LOOP(model_files, 0, sizeof models / sizeof *models)
{
	struct engine *e = NULL;
	struct err err = {0};
	write_model(models[_i].spoil);
	struct engine_opts o = {.model_path = path,
	                        .variant = "reference",
	                        .threads = 1,
	                        .kv_type = KV_F32,
	                        .block_tokens = 16,
	                        .max_rows = 8,
	                        .max_logits = 1,
	                        .max_spans = 1};
	int rc = engine_open(&o, &e, &err);
	if (models[_i].code)
		refused("model.gguf", rc, &err, models[_i].code, models[_i].text);
	else
		ck_assert_msg(rc == 0, "%s", err.text);
	engine_close(&e);
}

/* Bytes of the header set at random, several at a time: the engine opens or refuses, and frees
 * what it took. PD_FUZZ: how many rounds. */
TEST(model_damaged)
{
	const char *rounds = getenv("PD_FUZZ");
	unsigned n = rounds ? (unsigned)atoi(rounds) : 400, seed = 1, opened = 0;
	struct engine_opts o = {.variant = "reference",
	                        .threads = 1,
	                        .block_tokens = 16,
	                        .max_rows = 8,
	                        .max_logits = 1,
	                        .max_spans = 1};
	write_model(SPOIL_NONE);
	FILE *f = fopen(path, "r");
	static char good[1 << 16], bad[1 << 16];
	size_t bytes = fread(good, 1, sizeof good, f), header = 1300;
	fclose(f);
	ck_assert_uint_gt(bytes, header);
	for (unsigned i = 0; i < n; i++) {
		memcpy(bad, good, bytes);
		for (unsigned k = 0; k <= i % 3; k++) {
			seed = seed * 1664525u + 1013904223u;
			unsigned char v[] = {0, 1, 0xff, (unsigned char)(seed >> 3),
			                     (unsigned char)(bad[(seed >> 11) % header] ^
			                                     1 << (seed >> 8 & 7))};
			bad[(seed >> 11) % header] = (char)v[(seed >> 5) % sizeof v];
		}
		struct engine *e = NULL;
		struct err err = {0};
		write_file("model.gguf", bad, bytes);
		o.model_path = path;
		if (engine_open(&o, &e, &err))
			ck_assert_msg(err.text[0] && !e, "round %u", i);
		else
			opened++;
		engine_close(&e);
	}
	printf("%u of %u damaged models were opened\n", opened, n);
}

TEST(bad_options)
{
	struct engine *e = NULL;
	struct err err = {0};
	write_model(SPOIL_NONE);
	struct engine_opts o = {.model_path = path,
	                        .variant = "reference",
	                        .threads = 1,
	                        .block_tokens = 16,
	                        .max_rows = 8,
	                        .max_logits = 1,
	                        .max_spans = 1};
	struct engine_opts bad = o;
	bad.backend = "abacus";
	refused("", engine_open(&bad, &e, &err), &err, ERR_UNSUPPORTED,
	        "backend: found abacus, expected cpu, sim or an");
	bad = o;
	bad.variant = "sse";
	refused("", engine_open(&bad, &e, &err), &err, ERR_UNSUPPORTED, "variant sse");
	bad = o;
	bad.max_rows = 0;
	refused("", engine_open(&bad, &e, &err), &err, ERR_INVALID, "max_rows is 0, limits are 1 and");
	bad = o;
	bad.model_path = "/nonexistent";
	refused("/nonexistent", engine_open(&bad, &e, &err), &err, ERR_IO, "No such file");
	ck_assert_ptr_null(e);
}

/* 16 TiB of logits: said before anything is allocated. */
TEST(too_little_memory)
{
	struct engine *e = NULL;
	struct err err = {0};
	write_model(SPOIL_VOCAB);
	struct engine_opts o = {.model_path = path,
	                        .variant = "reference",
	                        .threads = 1,
	                        .block_tokens = 16,
	                        .max_rows = 8,
	                        .max_logits = 1u << 20,
	                        .max_spans = 1};
	refused("model.gguf", engine_open(&o, &e, &err), &err, ERR_NOMEM, "MiB for steps of 8 tokens");
	ck_assert_ptr_null(e);
}
