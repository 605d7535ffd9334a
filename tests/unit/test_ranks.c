/* test_ranks.c - tensor and pipeline parallel: ranks and stages compute the bits of one process,
 * and one that ends, stops or cannot open never hangs the others. Needs build*\/bin/pdrank. With
 * PD_MODEL set to the SmolLM2 file its 3 KV heads are shared out over 2 and 3 ranks as well, and
 * its layers over 4 stages. */
/* run: threads */
#include "engine/engine_impl.h"
#include "format/safetensors.h"
#include "kernels/cpu/cpu.h"
#include "kernels/operands.h"
#include "children.h"
#include "skip.h"
#include "tempdir.h"
#include "util/buf.h"
#include "util/clock.h"
#include "util/mem.h"

#include <check.h>
#include <fcntl.h>
#include <jansson.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#define GOLDEN "tests/data/golden/"
enum { BLOCKS = 48, BLOCK = 16, ROWS = 64, TOKENS = 110 };

struct rig {
	struct engine *e;
	unsigned char *pool; /* without stages */
	size_t bytes;
	struct kv_data data; /* of the stages' parts, as other processes map them */
	unsigned char *part[KERN_PARTS_MAX];
};

static enum kern_dtype activations;

static struct engine_opts options(const char *model, enum kv_type kv, unsigned tp)
{
	return (struct engine_opts){.model_path = model,
	                            .backend = "cpu",
	                            .threads = tp,
	                            .tp = tp,
	                            .kv_type = kv,
	                            .activations = activations,
	                            .block_tokens = BLOCK,
	                            .max_rows = ROWS,
	                            .max_logits = ROWS,
	                            .max_spans = 8};
}

static size_t part_bytes(const struct rig *r, uint32_t part)
{
	const struct kv_layout *l = &engine_info(r->e)->kv;
	return kv_part_offset(l, BLOCKS, part, kv_data_parts(&r->data), l->layers, 0);
}

/* NaN: what is read before it is written shows */
static void spoil_pool(const struct rig *r)
{
	if (r->pool)
		memset(r->pool, 0xff, r->bytes);
	for (uint32_t i = 0; i < r->data.parts; i++)
		memset(r->part[i], 0xff, part_bytes(r, i));
}

static struct rig rig_open_with(const struct engine_opts *with)
{
	struct rig r = {0};
	struct engine_opts o = *with;
	struct err err = {0};
	o.pool_shared = o.pp > 1;
	ck_assert_msg(engine_open(&o, &r.e, &err) == 0, "engine_open: %s", err.text);
	r.bytes = engine_info(r.e)->kv.block_bytes * BLOCKS;
	ck_assert_msg(engine_new_pool(r.e, BLOCKS, o.pp > 1 ? &r.data : NULL, &err) == 0,
	              "engine_new_pool: %s", err.text);
	if (o.pp <= 1)
		r.pool = engine_pool(r.e)->host;
	else
		ck_assert_uint_eq(r.data.parts, o.pp);
	for (uint32_t i = 0; i < r.data.parts; i++) {
		r.part[i] = mmap(NULL, part_bytes(&r, i), PROT_READ | PROT_WRITE, MAP_SHARED, r.data.fd[i],
		                 0);
		ck_assert_ptr_ne(r.part[i], MAP_FAILED);
	}
	spoil_pool(&r);
	return r;
}

static struct rig rig_open(const char *model, enum kv_type kv, unsigned tp)
{
	struct engine_opts o = options(model, kv, tp);
	return rig_open_with(&o);
}

static void rig_close(struct rig *r)
{
	for (uint32_t i = 0; i < r->data.parts; i++)
		munmap(r->part[i], part_bytes(r, i));
	kv_data_close(&r->data);
	engine_close(&r->e);
}

/* Whether the pool of one process has the bytes of one that may be divided. */
static int same_pool(const struct rig *one, const struct rig *many)
{
	uint32_t part;
	uint64_t there, n;
	for (uint64_t at = 0; many->data.parts && at < one->bytes; at += n) {
		n = kv_part_find(&engine_info(many->e)->kv, BLOCKS, kv_data_parts(&many->data), at, &part,
		                 &there);
		if (memcmp(one->pool + at, many->part[part] + there, n) != 0)
			return 0;
	}
	return many->data.parts || memcmp(one->pool, many->pool, one->bytes) == 0;
}

static void some_ids(uint32_t *ids, uint32_t n, uint32_t seed)
{
	for (uint32_t i = 0; i < n; i++) {
		seed = seed * 1664525u + 1013904223u;
		ids[i] = (seed >> 8) % 320;
	}
}

static int step(struct rig *r, struct engine_span *spans, uint32_t n, struct err *err)
{
	return engine_step(r->e, spans, n, err);
}

static const float *logits_of(struct rig *r, const struct engine_span *sp)
{
	return engine_logits(r->e, sp->logits_row);
}

/* Two sequences through chunks with all logits, with none, together, and as decoding rows; all
 * logits one after the other into out. */
static size_t story(struct rig *r, float *out)
{
	uint32_t ids[2][TOKENS], table[2][8];
	size_t vocab = engine_info(r->e)->vocab, n = 0;
	struct err err = {0};
	for (uint32_t s = 0; s < 2; s++) {
		some_ids(ids[s], TOKENS, s + 3);
		for (uint32_t b = 0; b < 8; b++)
			table[s][b] = (s * 8 + b) * 5 % BLOCKS;
	}
	static const struct {
		uint32_t seq, from, n;
		enum engine_logits logits;
	} part[] = {
		{0, 0, 33, ENGINE_LOGITS_ALL},   {1, 0, 50, ENGINE_LOGITS_NONE},
		{0, 33, 1, ENGINE_LOGITS_LAST},  {1, 50, 17, ENGINE_LOGITS_LAST},
		{0, 34, 60, ENGINE_LOGITS_LAST},
	};
	for (size_t i = 0; i < sizeof part / sizeof *part; i++) {
		struct engine_span sp = {.tokens = ids[part[i].seq] + part[i].from,
		                         .n = part[i].n,
		                         .position = part[i].from,
		                         .blocks = table[part[i].seq],
		                         .logits = part[i].logits};
		ck_assert_msg(step(r, &sp, 1, &err) == 0, "part %zu: %s", i, err.text);
		size_t rows = part[i].logits == ENGINE_LOGITS_ALL    ? part[i].n
		              : part[i].logits == ENGINE_LOGITS_LAST ? 1
		                                                     : 0;
		memcpy(out + n, rows ? logits_of(r, &sp) : out, rows * vocab * sizeof *out);
		n += rows * vocab;
	}
	for (uint32_t i = 0; i < 6; i++) {
		struct engine_span sp[2] = {
			{.tokens = ids[0] + 94 + i,
		     .n = 1,
		     .position = 94 + i,
		     .blocks = table[0],
		     .logits = ENGINE_LOGITS_LAST},
			{.tokens = ids[1] + 67 + 2 * i,
		     .n = 2,
		     .position = 67 + 2 * i,
		     .blocks = table[1],
		     .logits = ENGINE_LOGITS_ALL},
		};
		ck_assert_msg(step(r, sp, 2, &err) == 0, "both %u: %s", i, err.text);
		memcpy(out + n, logits_of(r, &sp[0]), 3 * vocab * sizeof *out);
		n += 3 * vocab;
	}
	return n;
}

static const char *real_model(void)
{
	const char *path = getenv("PD_MODEL");
	return path && *path ? path : NULL;
}

/* --- a Gemma that can be shared out: the golden one has one KV head; this one has two, the
 * second with the first one's rows in turned order. --- */

#define TWO_KV_HEADS "gemma3 with two KV heads"

static void add_doubled(struct buf *b, const struct st_tensor *t)
{
	size_t row = t->bytes / t->shape[0];
	buf_add(b, t->data, t->bytes);
	for (size_t i = t->shape[0]; i-- > 0;)
		buf_add(b, (const char *)t->data + i * row, row);
}

static void put_file(const char *folder, const char *name, const void *data, size_t n)
{
	char *path = mem_printf("%s/%s", folder, name);
	FILE *f = fopen(path, "w");
	ck_assert(f && fwrite(data, 1, n, f) == n && fclose(f) == 0);
	free(path);
}

static void make_two_kv_heads(char folder[TEST_FOLDER_BYTES])
{
	struct safetensors *st;
	struct err err = {0};
	struct buf header, data, file;
	test_folder(folder, "ranks");
	buf_init(&header, 0);
	buf_init(&data, 0);
	buf_init(&file, 0);
	ck_assert_msg(st_open_folder(GOLDEN "gemma3", &st, &err) == 0, "%s", err.text);
	for (size_t i = 0; i < st_tensors(st); i++) {
		const struct st_tensor *t = st_tensor_at(st, i);
		size_t from = data.len, doubled = strstr(t->name, "k_proj") || strstr(t->name, "v_proj");
		if (doubled)
			add_doubled(&data, t);
		else
			buf_add(&data, t->data, t->bytes);
		buf_printf(&header, "%c\"%s\":{\"dtype\":\"%s\",\"shape\":[%llu", i ? ',' : '{', t->name,
		           t->dtype, (unsigned long long)t->shape[0] << doubled);
		if (t->dims == 2)
			buf_printf(&header, ",%llu", (unsigned long long)t->shape[1]);
		buf_printf(&header, "],\"data_offsets\":[%zu,%zu]}", from, data.len);
	}
	buf_addc(&header, '}');
	uint64_t len = header.len;
	buf_add(&file, &len, sizeof len);
	buf_add(&file, header.data, header.len);
	buf_add(&file, data.data, data.len);
	put_file(folder, "model.safetensors", file.data, file.len);
	json_t *config = json_load_file(GOLDEN "gemma3/config.json", 0, NULL);
	json_object_set_new(config, "num_key_value_heads", json_integer(2));
	char *text = json_dumps(config, 0);
	put_file(folder, "config.json", text, strlen(text));
	free(text);
	json_decref(config);
	st_close(&st);
	buf_fini(&header);
	buf_fini(&data);
	buf_fini(&file);
}

struct division {
	const char *model;
	enum kv_type kv;
	unsigned tp;
	enum kern_dtype activations;
	unsigned pp;
};

static const struct division same[] = {
	{GOLDEN "llama", KV_BF16, 2, KERN_F32, 1},
	{GOLDEN "llama-tied", KV_F32, 2, KERN_F32, 1},
	{GOLDEN "llama-tied", KV_F16, 3, KERN_F32, 1},
	{GOLDEN "llama-tied", KV_INT8, 2, KERN_F32, 1},
	{GOLDEN "mistral", KV_BF16, 2, KERN_F32, 1},
	{GOLDEN "qwen2", KV_BF16, 2, KERN_F32, 1},
	{GOLDEN "qwen3", KV_F32, 2, KERN_F32, 1},
	{GOLDEN "ernie4_5", KV_BF16, 2, KERN_F32, 1},
	{GOLDEN "qwen3_moe", KV_BF16, 2, KERN_F32, 1},
	{GOLDEN "ernie4_5_moe", KV_F32, 2, KERN_F32, 1},
	{GOLDEN "glm4_moe", KV_F16, 2, KERN_F32, 1},
	{TWO_KV_HEADS, KV_BF16, 2, KERN_F32, 1},
	{GOLDEN "granite", KV_BF16, 2, KERN_F32, 1},
	{GOLDEN "phi3", KV_BF16, 2, KERN_F32, 1},
	{GOLDEN "gpt_oss", KV_BF16, 2, KERN_F32, 1},
	{GOLDEN "qwen3-fp8", KV_F32, 2, KERN_F32, 1},
	{GOLDEN "llama-fp8", KV_BF16, 2, KERN_F32, 1},
	{NULL, KV_BF16, 2, KERN_F32, 1},
	{NULL, KV_BF16, 3, KERN_F32, 1},
	{GOLDEN "llama-tied", KV_BF16, 2, KERN_BF16, 1},
	/* one latent, on every rank */
	{GOLDEN "deepseek_v3", KV_BF16, 2, KERN_F32, 1},
	{GOLDEN "deepseek_v3", KV_F32, 4, KERN_F32, 1},
	{GOLDEN "deepseek_v3", KV_INT8, 3, KERN_F32, 1},
	{GOLDEN "deepseek_v3/model.gguf", KV_F16, 4, KERN_F32, 1},
	{GOLDEN "deepseek_v3-fp8", KV_BF16, 4, KERN_BF16, 1},
	/* a KV head on several ranks, which divide its query heads, also unequally */
	{GOLDEN "gemma3", KV_BF16, 4, KERN_F32, 1},
	{GOLDEN "gemma3", KV_F32, 3, KERN_F32, 1},
	{GOLDEN "qwen3_moe", KV_FP8, 4, KERN_F32, 1},
	{GOLDEN "gpt_oss", KV_BF16, 4, KERN_F32, 1},
	{GOLDEN "llama", KV_BF16, 4, KERN_F32, 1},
	{GOLDEN "llama", KV_INT8, 6, KERN_F32, 1},
	/* stages, with one rank each and with several */
	{GOLDEN "llama", KV_BF16, 1, KERN_F32, 2},
	{GOLDEN "llama-tied", KV_F32, 1, KERN_F32, 3},
	{GOLDEN "llama-tied", KV_BF16, 1, KERN_BF16, 2},
	{GOLDEN "mistral", KV_F16, 1, KERN_F32, 2},
	{GOLDEN "qwen2", KV_BF16, 1, KERN_F32, 2},
	{GOLDEN "qwen2-yarn", KV_BF16, 1, KERN_F32, 2},
	{GOLDEN "qwen3", KV_INT8, 1, KERN_F32, 2},
	{GOLDEN "qwen3_moe", KV_BF16, 1, KERN_F32, 2},
	{GOLDEN "qwen3-fp8", KV_F32, 1, KERN_F32, 2},
	{GOLDEN "ernie4_5", KV_BF16, 1, KERN_F32, 2},
	{GOLDEN "ernie4_5_moe", KV_F32, 1, KERN_F32, 2},
	{GOLDEN "glm4_moe", KV_F16, 1, KERN_F32, 2},
	{GOLDEN "gemma3", KV_BF16, 1, KERN_F32, 3},
	{GOLDEN "granite", KV_BF16, 1, KERN_F32, 2},
	{GOLDEN "phi3", KV_BF16, 1, KERN_F32, 2},
	{GOLDEN "phi3-longrope", KV_BF16, 1, KERN_F32, 2},
	{GOLDEN "gpt_oss", KV_BF16, 1, KERN_F32, 2},
	{GOLDEN "deepseek_v3", KV_BF16, 1, KERN_F32, 2},
	{GOLDEN "deepseek_v3-fp8", KV_FP8, 1, KERN_BF16, 2},
	{GOLDEN "llama", KV_BF16, 2, KERN_F32, 2},
	{GOLDEN "llama", KV_FP8, 4, KERN_F32, 2},
	{GOLDEN "gemma3", KV_F32, 3, KERN_F32, 2},
	{GOLDEN "qwen3_moe", KV_INT8, 2, KERN_F32, 2},
	{GOLDEN "gpt_oss", KV_BF16, 2, KERN_F32, 2},
	{GOLDEN "glm4_moe", KV_BF16, 2, KERN_F32, 2},
	{GOLDEN "deepseek_v3", KV_BF16, 2, KERN_F32, 2},
	{NULL, KV_BF16, 3, KERN_F32, 4},
};

/* Whole experts on each rank; with a shared expert, biases, dense layers. */
static const struct division whole[] = {
	{GOLDEN "qwen3_moe", KV_BF16, 2, KERN_F32, 1},
	{GOLDEN "qwen3_moe", KV_F32, 4, KERN_F32, 1},
	{GOLDEN "ernie4_5_moe", KV_F32, 2, KERN_F32, 1},
	{GOLDEN "glm4_moe", KV_F16, 2, KERN_F32, 1},
	{GOLDEN "gpt_oss", KV_BF16, 4, KERN_F32, 1},
	{GOLDEN "deepseek_v3", KV_BF16, 2, KERN_F32, 1},
	{GOLDEN "deepseek_v3", KV_INT8, 3, KERN_F32, 1},
	{GOLDEN "deepseek_v3/model.gguf", KV_F16, 4, KERN_F32, 1},
	{GOLDEN "deepseek_v3-fp8", KV_BF16, 3, KERN_BF16, 1},
	{GOLDEN "qwen3_moe", KV_BF16, 2, KERN_F32, 2},
	{GOLDEN "gpt_oss", KV_F32, 2, KERN_F32, 2},
	{GOLDEN "deepseek_v3", KV_BF16, 3, KERN_F32, 3},
};

TEST_CASE("bits", .timeout_s = 120);

/* Every logit and every byte of KV, whatever the number of ranks and stages. */
static void expect_bits_of_one_process(const struct division *d, int expert_parallel)
{
	char made[TEST_FOLDER_BYTES];
	const char *model = d->model ? d->model : real_model();
	if (!model)
		SKIP(SKIP_NO_MODEL);
	if (strcmp(model, TWO_KV_HEADS) == 0) {
		make_two_kv_heads(made);
		model = made;
	}
	activations = d->activations;
	struct engine_opts o = options(model, d->kv, d->tp);
	o.pp = d->pp;
	o.expert_parallel = expert_parallel;
	struct rig one = rig_open(model, d->kv, 1), many = rig_open_with(&o);
	ck_assert_str_eq(engine_info(one.e)->numerics, engine_info(many.e)->numerics);
	ck_assert_uint_eq(engine_info(one.e)->weight_bytes, engine_info(many.e)->weight_bytes);
	ck_assert_uint_eq(engine_info(one.e)->params, engine_info(many.e)->params);
	size_t room = (33 + 3 + 18) * (size_t)engine_info(one.e)->vocab;
	float *a = mem_array(room, sizeof *a), *b = mem_array(room, sizeof *b);
	size_t n = story(&one, a);
	ck_assert_uint_le(n, room);
	ck_assert_uint_eq(story(&many, b), n);
	ck_assert_msg(memcmp(a, b, n * sizeof *a) == 0,
	              "logits of %u ranks in %u stages are not those of one process", d->tp, o.pp);
	ck_assert_msg(same_pool(&one, &many), "KV of %u ranks in %u stages is not that of one process",
	              d->tp, o.pp);
	free(a);
	free(b);
	rig_close(&one);
	rig_close(&many);
}

TEST_LOOP(bits_of_one_process, 0, sizeof same / sizeof *same)
{
	expect_bits_of_one_process(&same[_i], 0);
}

TEST_LOOP(bits_with_whole_experts, 0, sizeof whole / sizeof *whole)
{
	expect_bits_of_one_process(&whole[_i], 1);
}

/* --- what is gathered: the CPU's ranks share memory and only meet, so that no bit tells whether
 * a gather names what was written. --- */

static struct kern_op recorded[4096];
static size_t recorded_ops;

static int keep_ops(struct kern_device *dev, const struct kern_op *ops, size_t n,
                    const struct kern_limits *limits, struct kern_program **ret_p)
{
	(void)dev, (void)limits, (void)ret_p;
	ck_assert_uint_le(n, sizeof recorded / sizeof *recorded);
	memcpy(recorded, ops, n * sizeof *ops);
	recorded_ops = n;
	return KERN_EINVAL;
}

/* What an operation writes; of several products the first. */
static struct kern_operand written_by(const struct engine *e, const struct kern_op *op)
{
	struct kern_operands all;
	kern_operands(op, &e->limits, &all);
	for (uint32_t i = 0; i < all.n; i++)
		if (all.of[i].access != KERN_READ && all.of[i].rows_each)
			return all.of[i];
	return (struct kern_operand){.columns = 0};
}

/* The last write before operation `at` that begins where the tensor does is rank 0's share of
 * it. */
static void expect_written(const struct engine *e, const struct kern_gathered *g, size_t at,
                           unsigned ranks)
{
	struct kern_operand w = {.columns = 0};
	while (at-- > 0 && recorded[at].kind != KERN_OP_GATHER) {
		w = written_by(e, &recorded[at]);
		if (w.columns && w.x.at.v == g->x.at.v)
			break;
		w.columns = 0;
	}
	ck_assert_msg(w.columns, "nothing wrote what is gathered");
	ck_assert_uint_eq(w.x.ld, g->x.ld);
	ck_assert_uint_eq(g->parts, w.rows_each);
	ck_assert_uint_eq(w.columns, g->ids ? g->dim : kern_share(g->dim, g->unit, 1, ranks));
	if (g->chosen.v) {
		const struct kern_experts *x = &recorded[at].experts_down.experts;
		ck_assert_uint_eq(recorded[at].kind, KERN_OP_EXPERTS_DOWN);
		ck_assert_uint_eq(g->chosen.v, recorded[at].experts_down.ids.v);
		ck_assert_uint_eq(g->ids, x->experts);
		ck_assert_uint_eq(x->first, 0);
		ck_assert_uint_eq(x->count, kern_share(g->ids, 1, 1, ranks));
		ck_assert_uint_eq(g->unit, e->shard.hidden.unit);
	} else if (g->ids)
		ck_assert_uint_eq(recorded[at].embed.w->n, kern_share(g->ids, g->unit, 1, ranks));
}

static const struct {
	const char *model;
	unsigned ranks;
	int experts;
} gathering[] = {{"llama", 2, 0},       {"qwen3_moe", 2, 0},   {"ernie4_5_moe", 2, 0},
                 {"glm4_moe", 2, 0},    {"gpt_oss", 2, 0},     {"llama", 4, 0},
                 {"deepseek_v3", 2, 0}, {"deepseek_v3", 2, 1}, {"gpt_oss", 4, 1}};

TEST_LOOP(gathers_name_what_was_written, 0, sizeof gathering / sizeof *gathering)
{
	unsigned ranks = gathering[_i].ranks;
	char *path = mem_printf(GOLDEN "%s", gathering[_i].model);
	struct engine_opts o = options(path, KV_BF16, ranks);
	o.expert_parallel = gathering[_i].experts;
	struct rig r = rig_open_with(&o);
	const struct kern_ops *ops = r.e->ops;
	struct kern_ops keeping = *ops;
	struct err err;
	unsigned gathers = 0, exchanges = 0;
	keeping.program_new = keep_ops;
	r.e->ops = &keeping;
	ck_assert_int_ne(engine_record(r.e, &err), 0);
	r.e->ops = ops;
	for (size_t i = 0; i < recorded_ops; i++)
		for (uint32_t t = 0; recorded[i].kind == KERN_OP_GATHER && t < recorded[i].gather.tensors;
		     t++, gathers++) {
			expect_written(r.e, &recorded[i].gather.t[t], i, ranks);
			exchanges += recorded[i].gather.t[t].chosen.v != 0;
		}
	ck_assert_uint_ge(gathers, 2 + 4 * r.e->conf.layers);
	ck_assert_int_eq(exchanges > 0, o.expert_parallel);
	rig_close(&r);
	free(path);
}

struct watcher {
	const struct rig *rig;
	unsigned char *want; /* (layers) block 0 of each; NULL: as it is */
	uint64_t *board;
	uint32_t calls, layers; /* layers: told of so far */
};

/* Block 0 of a layer, in a pool that ranks share. */
static unsigned char *first_block(const struct rig *r, uint32_t layer)
{
	const struct kv_layout *l = &engine_info(r->e)->kv;
	uint32_t part = 0;
	uint64_t at = kv_piece_offset(l, BLOCKS, layer, 0);
	if (r->pool)
		return r->pool + at;
	kv_part_find(l, BLOCKS, kv_data_parts(&r->data), at, &part, &at);
	return r->part[part] + at;
}

/* Block 0 of each layer that is told of is there with all heads. */
static void told(void *arg)
{
	struct watcher *w = arg;
	w->calls++;
	if (!w->want)
		return;
	const struct kv_layout *l = &engine_info(w->rig->e)->kv;
	uint32_t before = w->layers;
	while (w->layers < l->layers && w->board[w->layers] == 9) {
		uint32_t layer = w->layers++;
		ck_assert_msg(memcmp(first_block(w->rig, layer), w->want + l->before_bytes[layer],
		                     l->piece_bytes[layer]) == 0,
		              "layer %u is told of before all ranks have written it", layer);
	}
	ck_assert_uint_gt(w->layers, before);
}

/* One rank of each stage, and several. */
static const struct {
	unsigned pp, tp, calls; /* calls: a layer of stage 0 each, and the others together */
} telling[] = {{1, 2, 3}, {2, 1, 2}, {2, 2, 2}, {3, 1, 2}};

TEST_LOOP(layers_are_told_when_all_have_written, 0, sizeof telling / sizeof *telling)
{
	uint64_t board[8] = {0};
	struct watcher w = {.board = board};
	struct engine_opts o = options(GOLDEN "llama", KV_BF16, telling[_i].tp);
	o.pp = telling[_i].pp;
	o.progressed = told;
	o.progressed_arg = &w;
	struct rig r = rig_open_with(&o);
	const struct kv_layout *l = &engine_info(r.e)->kv;
	uint32_t ids[BLOCK], table[] = {0};
	struct err err = {0};
	some_ids(ids, BLOCK, 1);
	ck_assert_int_eq(engine_attach_board(r.e, board, sizeof board, &err), 0);
	struct engine_span sp = {.tokens = ids,
	                         .n = BLOCK,
	                         .blocks = table,
	                         .progress = board,
	                         .progress_stride = 1,
	                         .progress_value = 9};
	ck_assert_int_eq(step(&r, &sp, 1, &err), 0);
	unsigned char *want = mem_alloc(l->block_bytes);
	for (uint32_t i = 0; i < l->layers; i++)
		memcpy(want + l->before_bytes[i], first_block(&r, i), l->piece_bytes[i]);
	for (int i = 0; i < 50; i++) {
		spoil_pool(&r);
		memset(board, 0, sizeof board);
		w = (struct watcher){&r, want, board, 0, 0};
		ck_assert_int_eq(engine_step(r.e, &sp, 1, &err), 0);
		ck_assert_uint_eq(w.calls, telling[_i].calls);
		ck_assert_uint_eq(w.layers, l->layers);
	}
	free(want);
	rig_close(&r);
}

/* --- ends ---------------------------------------------------------------- */

static int decode_one(struct rig *r, struct err *err)
{
	uint32_t id = 5, table[] = {1};
	struct engine_span sp = {.tokens = &id, .n = 1, .blocks = table, .logits = ENGINE_LOGITS_LAST};
	return step(r, &sp, 1, err);
}

TEST_CASE("ends", .timeout_s = 60);

/* The other process of two is a rank of the same stage, a stage, or a rank with experts. */
static struct rig rig_of_two(int how)
{
	struct engine_opts o = options(how == 2 ? GOLDEN "deepseek_v3" : GOLDEN "llama", KV_BF16,
	                               how == 1 ? 1 : 2);
	o.pp = how == 1 ? 2 : 1;
	o.expert_parallel = how == 2;
	return rig_open_with(&o);
}

/* A rank that is killed between steps: the next step says which, the one after it again, and
 * nothing is left of the others. */
TEST_LOOP(killed_rank, 0, 3)
{
	struct rig r = rig_of_two(_i);
	pid_t pid[CHILDREN_MAX];
	struct err err = {0};
	ck_assert_int_eq(decode_one(&r, &err), 0);
	ck_assert_ptr_null(engine_broken(r.e));
	ck_assert_uint_eq(children(getpid(), pid), 1);
	kill(pid[0], SIGKILL);
	for (int i = 0; i < 10000 && !engine_broken(r.e); i++)
		usleep(5000);
	ck_assert_ptr_nonnull(engine_broken(r.e));
	for (int i = 0; i < 2; i++) {
		ck_assert_int_eq(decode_one(&r, &err), ERR_IO);
		ck_assert_ptr_nonnull(strstr(err.text, "rank 1 (process"));
		ck_assert_ptr_nonnull(strstr(err.text, "ended by signal 9"));
	}
	rig_close(&r);
	ck_assert_uint_eq(children(getpid(), pid), 0);
}

static void *kill_later(void *arg)
{
	usleep(20000);
	kill(*(pid_t *)arg, SIGKILL);
	return NULL;
}

/* Killed while steps run: the step that notices ends with the reason; it does not hang. */
TEST_LOOP(killed_in_a_step, 0, 3)
{
	struct rig r = rig_of_two(_i);
	pid_t pid[CHILDREN_MAX];
	pthread_t t;
	struct err err = {0};
	int rc = 0;
	ck_assert_uint_eq(children(getpid(), pid), 1);
	ck_assert_int_eq(pthread_create(&t, NULL, kill_later, &pid[0]), 0);
	uint64_t end = clock_us() + 60000000;
	while (!rc && clock_us() < end)
		rc = decode_one(&r, &err);
	pthread_join(t, NULL);
	ck_assert_int_eq(rc, ERR_IO);
	ck_assert_ptr_nonnull(strstr(err.text, "rank 1 (process"));
	rig_close(&r);
}

/* A rank that is stopped is named when the limit has passed, and is ended all the same. */
TEST(stopped_rank)
{
	struct rig r = rig_open(GOLDEN "llama", KV_BF16, 2);
	pid_t pid[CHILDREN_MAX];
	struct err err = {0};
	ck_assert_int_eq(decode_one(&r, &err), 0);
	ck_assert_uint_eq(children(getpid(), pid), 1);
	kill(pid[0], SIGSTOP);
	ck_assert_int_eq(tp_barrier(r.e->tp, 1), ERR_IO);
	ck_assert_str_eq(engine_broken(r.e), "rank 1 did not reach the barrier within 1 s");
	rig_close(&r);
	ck_assert_uint_eq(children(getpid(), pid), 0);
}

/* The same of a stage, whose rows do not come; and of one of three whose orders do not end. */
TEST_LOOP(stopped_stage, 0, 2)
{
	struct engine_opts o = options(GOLDEN "llama", KV_BF16, 1);
	o.pp = 3;
	struct rig r = rig_open_with(&o);
	pid_t pid[CHILDREN_MAX];
	struct err err = {0};
	char byte;
	ck_assert_int_eq(decode_one(&r, &err), 0);
	ck_assert_uint_eq(children(getpid(), pid), 2);
	kill(pid[0], SIGSTOP);
	kill(pid[1], SIGSTOP);
	uint64_t waits = engine_pulse(r.e);
	if (_i) {
		tp_order(r.e->tp, TP_STEP, NULL, 0, 0, 0);
		ck_assert_int_eq(tp_await_done(r.e->tp, 1), ERR_IO);
		ck_assert_str_eq(engine_broken(r.e), "rank 1 did not do its part of a step within 1 s");
	} else {
		ck_assert_int_eq(tp_recv(r.e->tp, &byte, 1, 1), ERR_IO);
		ck_assert_str_eq(engine_broken(r.e), "stage 2 passed no rows to stage 0 within 1 s");
	}
	ck_assert_uint_gt(engine_pulse(r.e), waits); /* the worker's own limit of a step waits, too */
	ck_assert_int_eq(decode_one(&r, &err), ERR_IO);
	rig_close(&r);
	ck_assert_uint_eq(children(getpid(), pid), 0);
}

/* What the process with the engine tells of a rank that is gone but cannot be reaped. */
struct told_late {
	char why[120];
	uint64_t broken_us, close_us;
};

static void engine_of_late_rank(int ready, int out)
{
	struct rig r = rig_open(GOLDEN "llama", KV_BF16, 2);
	struct told_late t = {.why = ""};
	if (write(ready, "", 1) != 1)
		_exit(1);
	uint64_t begun = clock_us();
	while (!engine_broken(r.e) && clock_us() < begun + 20000000)
		usleep(1000);
	t.broken_us = clock_us() - begun;
	snprintf(t.why, sizeof t.why, "%s", engine_broken(r.e) ? engine_broken(r.e) : "");
	begun = clock_us();
	rig_close(&r);
	t.close_us = clock_us() - begun;
	_exit(write(out, &t, sizeof t) != sizeof t);
}

/* A rank whose end takes long, as where a driver frees a device's memory, is reported and left
 * behind all the same. Here it is a zombie that only the process that traces it could reap. */
TEST(rank_that_is_slow_to_end)
{
	pid_t pid[CHILDREN_MAX];
	int ready[2], out[2];
	char c;
	struct told_late t;
	ck_assert(pipe(ready) == 0 && pipe(out) == 0);
	pid_t main_pid = fork();
	if (main_pid == 0)
		engine_of_late_rank(ready[1], out[1]);
	ck_assert_int_eq(read(ready[0], &c, 1), 1);
	ck_assert_uint_eq(children(main_pid, pid), 1);
	long traces = ptrace(PTRACE_SEIZE, pid[0], NULL, NULL);
	kill(pid[0], SIGKILL);
	struct pollfd p = {.fd = out[0], .events = POLLIN};
	int ended = poll(&p, 1, 40000) == 1;
	if (!ended)
		kill(main_pid, SIGKILL);
	waitpid(pid[0], NULL, __WALL);
	waitpid(main_pid, NULL, 0);
	if (traces)
		SKIP("this machine does not let a process trace its descendants");
	ck_assert_msg(ended, "the engine waits for a process that nobody can reap");
	ck_assert_int_eq(read(out[0], &t, sizeof t), sizeof t);
	ck_assert_msg(strstr(t.why, "rank 1 (process") && strstr(t.why, ") ended"), "\"%s\"", t.why);
	ck_assert_msg(t.broken_us < 15000000, "told after %llu us", (unsigned long long)t.broken_us);
	ck_assert_msg(t.close_us < 20000000, "closed after %llu us", (unsigned long long)t.close_us);
}

/* kill -9 of rank 0: the other ranks are gone soon, with nobody to tell them; also one that is
 * stopped. */
TEST_LOOP(ranks_end_with_their_engine, 0, 2)
{
	pid_t pid[CHILDREN_MAX];
	int ready[2];
	char c;
	ck_assert_int_eq(pipe(ready), 0);
	pid_t main_pid = fork();
	if (main_pid == 0) {
		struct rig r = rig_open(GOLDEN "llama", KV_BF16, 2);
		if (r.e && write(ready[1], "", 1) == 1)
			pause();
		_exit(1);
	}
	ck_assert_int_eq(read(ready[0], &c, 1), 1);
	ck_assert_uint_eq(children(main_pid, pid), 1);
	if (_i)
		kill(pid[0], SIGSTOP);
	kill(main_pid, SIGKILL);
	waitpid(main_pid, NULL, 0);
	int alive = 0;
	for (int i = 0; i < 5000 && (alive = kill(pid[0], 0) == 0); i++) {
		char path[64], line[512] = "";
		snprintf(path, sizeof path, "/proc/%d/stat", (int)pid[0]);
		FILE *f = fopen(path, "re");
		if (f && fgets(line, sizeof line, f) && strstr(line, ") Z ")) {
			/* nobody here is its parent any more */
			fclose(f);
			alive = 0;
			break;
		}
		if (f)
			fclose(f);
		usleep(10000);
	}
	ck_assert_msg(!alive, "rank 1 lives on");
}

/* What signals of a terminal and of a service manager do to a rank: nothing. */
TEST(signals_are_for_rank_0)
{
	struct rig r = rig_open(GOLDEN "llama", KV_BF16, 2);
	pid_t pid[CHILDREN_MAX];
	struct err err = {0};
	ck_assert_uint_eq(children(getpid(), pid), 1);
	kill(pid[0], SIGTERM);
	kill(pid[0], SIGINT);
	kill(pid[0], SIGHUP);
	usleep(50000);
	ck_assert_msg(decode_one(&r, &err) == 0, "%s", err.text);
	rig_close(&r);
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

TEST_CASE("refusals", .timeout_s = 60);

TEST(refusals)
{
	refused(options(GOLDEN "llama", KV_BF16, 3), ERR_INVALID,
	        "tensor_parallel is 3, the model has 2 KV heads: at most one rank per KV head, or a "
	        "multiple of their number");
	refused(options(GOLDEN "gemma3", KV_BF16, 5), ERR_INVALID,
	        "tensor_parallel is 5, the model has 4 heads: at most one rank per head");
	refused(options(GOLDEN "deepseek_v3", KV_BF16, 8), ERR_INVALID,
	        "tensor_parallel is 8, the model has 4 heads: at most one rank per head");
	refused(options(GOLDEN "llama", KV_BF16, 65), ERR_INVALID,
	        "tensor_parallel is 65, limits are 1 and 64");
	struct engine_opts o = options("etc/sim/small.conf", KV_BF16, 2);
	o.backend = "sim";
	refused(o, ERR_INVALID, "a simulated device has its own");
	o.tp = 1;
	o.pp = 2;
	refused(o, ERR_INVALID, "pipeline_parallel is 2: a simulated device has no stages");
	o = options(GOLDEN "llama", KV_BF16, 1);
	o.pp = 4;
	refused(o, ERR_INVALID,
	        "pipeline_parallel is 4, the model has 3 layers: at most one stage per layer");
	o.tp = 2;
	o.pp = 1;
	o.expert_parallel = 1;
	refused(o, ERR_INVALID, "expert_parallel is true, the model has no experts: set it to false");
	o.tp = 1;
	o.pp = 65;
	refused(o, ERR_INVALID, "pipeline_parallel is 65, limits are 1 and 64");
	o.pp = 32;
	o.tp = 4;
	refused(o, ERR_INVALID,
	        "pipeline_parallel is 32, tensor_parallel 4: 128 processes, the limit is 64");
}

/* A rank that cannot begin, here because it is told something else than it expects, fails the
 * group. */
TEST(rank_that_cannot_open)
{
	struct tp *tp = NULL;
	struct err err = {0};
	char junk[100] = "";
	int fds[2];
	pid_t pid[CHILDREN_MAX];
	ck_assert_int_eq(tp_start(&(struct tp_start){.stages = 1,
	                                             .ranks = 2,
	                                             .bytes = 64,
	                                             .hello = junk,
	                                             .hello_bytes = sizeof junk},
	                          &tp, &err),
	                 0);
	ck_assert_int_eq(tp_exchange(tp, NULL, 0, -1, NULL, fds), ERR_IO);
	ck_assert_msg(strstr(tp_why(tp), "ended with status 1") != NULL, "%s", tp_why(tp));
	tp_destroy(&tp);
	ck_assert_uint_eq(children(getpid(), pid), 0);
}

/* The model is there for rank 0 alone, by a descriptor that the other does not inherit: that
 * one's own words come back. */
TEST(rank_without_model)
{
	char path[64];
	int dir = open(GOLDEN "llama", O_RDONLY | O_DIRECTORY | O_CLOEXEC),
		far = fcntl(dir, F_DUPFD_CLOEXEC, 200);
	ck_assert_int_ge(far, 200);
	snprintf(path, sizeof path, "/proc/self/fd/%d", far);
	refused(options(path, KV_BF16, 2), ERR_IO, "No such file");
	close(far);
	close(dir);
}

/* What cannot be is refused and ends nothing; the one pool that there is stays. */
TEST(pools_that_cannot_be)
{
	struct engine_opts o = options(GOLDEN "llama", KV_BF16, 2);
	struct rig r = {0};
	struct err err = {0};
	struct kv_data data = {0};
	ck_assert_msg(engine_open(&o, &r.e, &err) == 0, "%s", err.text);
	ck_assert_int_eq(engine_new_pool(r.e, 0, &data, &err), ERR_INVALID);
	ck_assert_int_eq(engine_new_pool(r.e, UINT32_MAX, &data, &err), ERR_INVALID);
	ck_assert_str_eq(err.text, "KV pool of 4294967295 blocks, limits are 1 and 4294967294");
	ck_assert_uint_eq(data.parts, 0);
	ck_assert_msg(engine_new_pool(r.e, BLOCKS, &data, &err) == 0, "%s", err.text);
	ck_assert_uint_eq(data.parts, 1);
	ck_assert_int_eq(fcntl(data.fd[0], F_GETFD), FD_CLOEXEC);
	kv_data_close(&data);
	ck_assert_int_eq(engine_new_pool(r.e, BLOCKS, &data, &err), ERR_EXISTS);
	uint32_t ids[BLOCK], table[] = {BLOCKS - 1};
	some_ids(ids, BLOCK, 1);
	struct engine_span sp = {.tokens = ids, .n = BLOCK, .blocks = table};
	ck_assert_int_eq(step(&r, &sp, 1, &err), 0);
	rig_close(&r);
}

/* Parts cover everything once, in order, in whole units. */
TEST(shares)
{
	for (uint32_t total = 1; total < 700; total += 13)
		for (unsigned ranks = 1; ranks <= 9; ranks++) {
			uint32_t at = 0;
			for (unsigned r = 0; r < ranks; r++) {
				struct tp_share s = tp_share_of(total, 16, r, ranks);
				ck_assert_uint_eq(s.begin, at);
				ck_assert_uint_eq(s.begin % 16, 0);
				at += s.count;
			}
			ck_assert_uint_eq(at, total);
		}
}
