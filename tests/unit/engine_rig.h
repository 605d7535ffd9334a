/* engine_rig.h - an engine with a pool for tests, sequences with scattered blocks, and the golden
 * models' data (tests/data/golden). Included once by each. */
#ifndef TEST_ENGINE_RIG_H
#define TEST_ENGINE_RIG_H

#include "engine/engine.h"
#include "util/mem.h"

#include <check.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GOLDEN "tests/data/golden/"
#define GOLDEN_TOLERANCE 1e-3f
#define MAX_TOKENS 512u

/* --- an engine with a pool ----------------------------------------------- */

struct rig {
	struct engine *e;
	unsigned char *pool;
	uint32_t blocks, vocab, block_tokens;
};

struct rig_opts {
	const char *model, *variant, *backend; /* backend: "cpu" if NULL */
	enum kv_type kv;
	enum kern_dtype activations;
	unsigned threads, block_tokens, rows, logits, blocks; /* 0: 1, 16, 320, as rows, 96 */
	unsigned tp, pp, ranks_per_device;
	struct tp_remote *remote; /* (n_remote) */
	unsigned n_remote;
	int hidden, overlap, expert_parallel;
	uint32_t histories, history_match;
	void (*progressed)(void *arg);
	void *arg;
	uint64_t *board; /* (256) */
};

static struct rig rig_open(struct rig_opts o)
{
	struct rig r = {.blocks = o.blocks ? o.blocks : 96};
	struct err err = {0};
	uint32_t rows = o.rows ? o.rows : 320;
	struct engine_opts eo = {
		.model_path = o.model,
		.backend = o.backend ? o.backend : "cpu",
		.variant = o.variant,
		.threads = o.threads ? o.threads : 1,
		.ranks_per_device = o.ranks_per_device,
		.kv_type = o.kv,
		.activations = o.activations,
		.block_tokens = o.block_tokens ? o.block_tokens : 16,
		.max_rows = rows,
		.max_logits = o.logits ? o.logits : rows,
		.max_spans = 32,
		.tp = o.tp,
		.pp = o.pp,
		.remote = o.remote,
		.n_remote = o.n_remote,
		.expert_parallel = o.expert_parallel,
		.hidden = o.hidden,
		.overlap = o.overlap,
		.histories = o.histories,
		.history_match = o.history_match,
		.progressed = o.progressed,
		.progressed_arg = o.arg,
	};
	int rc = engine_open(&eo, &r.e, &err);
	ck_assert_msg(rc == 0, "engine_open: %s", err.text);
	const struct engine_info *i = engine_info(r.e);
	r.vocab = i->vocab;
	r.block_tokens = eo.block_tokens;
	rc = engine_new_pool(r.e, r.blocks, NULL, &err);
	ck_assert_msg(rc == 0, "engine_new_pool: %s", err.text);
	r.pool = engine_pool(r.e)->host;
	if (r.pool && o.pp <= 1)
		/* NaN: a block that is read before it is written shows */
		memset(r.pool, 0xff, i->kv.block_bytes * r.blocks);
	if (o.board)
		ck_assert_int_eq(engine_attach_board(r.e, o.board, 256 * sizeof *o.board, &err), 0);
	return r;
}

static void rig_close(struct rig *r)
{
	engine_close(&r->e);
}

/* A sequence whose blocks are scattered over the pool: block i is (first + 7 i) mod blocks. */
struct seq {
	uint32_t table[MAX_TOKENS];
	uint32_t position;
};

static struct seq seq_new(const struct rig *r, uint32_t first)
{
	struct seq s = {0};
	for (uint32_t i = 0; i < MAX_TOKENS; i++)
		s.table[i] = (first + 7 * i) % r->blocks;
	return s;
}

static void step(struct rig *r, struct engine_span *spans, uint32_t n)
{
	struct err err = {0};
	int rc = engine_step(r->e, spans, n, &err);
	ck_assert_msg(rc == 0, "engine_step: %s", err.text);
}

/* Feeds n tokens in chunks of `chunk`; out (n, vocab) takes all logits, or only the last row's
 * if `last`. */
static void feed(struct rig *r, struct seq *s, const uint32_t *ids, uint32_t n, uint32_t chunk,
                 int last, float *out)
{
	for (uint32_t at = 0; at < n; at += chunk) {
		uint32_t m = n - at < chunk ? n - at : chunk;
		struct engine_span span = {.tokens = ids + at,
		                           .n = m,
		                           .position = s->position,
		                           .blocks = s->table,
		                           .logits = !last         ? ENGINE_LOGITS_ALL
		                                     : at + m == n ? ENGINE_LOGITS_LAST
		                                                   : ENGINE_LOGITS_NONE};
		step(r, &span, 1);
		s->position += m;
		if (!last)
			memcpy(out + (size_t)at * r->vocab, engine_logits(r->e, span.logits_row),
			       (size_t)m * r->vocab * sizeof *out);
		else if (at + m == n)
			memcpy(out, engine_logits(r->e, span.logits_row), r->vocab * sizeof *out);
	}
}

static uint32_t argmax(const float *v, uint32_t n)
{
	uint32_t best = 0;
	for (uint32_t i = 1; i < n; i++)
		if (v[i] > v[best])
			best = i;
	return best;
}

static float max_diff(const float *a, const float *b, size_t n)
{
	float m = 0;
	for (size_t i = 0; i < n; i++) {
		float d = fabsf(a[i] - b[i]);
		m = d > m || isnan(d) ? d : m;
	}
	return m;
}

/* --- golden models ------------------------------------------------------- */

static uint32_t read_ids(const json_t *list, uint32_t *out, uint32_t max)
{
	uint32_t n = (uint32_t)json_array_size(list);
	ck_assert_msg(n > 0 && n <= max, "%u ids", n);
	for (uint32_t i = 0; i < n; i++)
		out[i] = (uint32_t)json_integer_value(json_array_get(list, i));
	return n;
}

static json_t *load_json(const char *folder, const char *file)
{
	char path[256];
	json_error_t e;
	snprintf(path, sizeof path, "%s/%s", folder, file);
	json_t *o = json_load_file(path, 0, &e);
	ck_assert_msg(o != NULL, "%s: %s", path, e.text);
	return o;
}

struct golden {
	uint32_t prompt[2][MAX_TOKENS], n[2]; /* short, long */
	uint32_t greedy[2][48];
	/* 7 rows of the short prompt, the last 16 of the long one */
	float logits[23 * 320];
};

static void golden_load(struct golden *g, const char *folder)
{
	static const char *const which[] = {"short", "long"};
	json_t *p = load_json(folder, "prompt.json"), *o = load_json(folder, "golden.json");
	for (int i = 0; i < 2; i++) {
		g->n[i] = read_ids(json_object_get(p, which[i]), g->prompt[i], MAX_TOKENS);
		ck_assert_uint_eq(
			read_ids(json_object_get(json_object_get(json_object_get(o, "continuations"), which[i]),
		                             "greedy"),
		             g->greedy[i], 48),
			48);
	}
	json_decref(p);
	json_decref(o);
	char path[256];
	snprintf(path, sizeof path, "%s/logits.f32", folder);
	FILE *f = fopen(path, "r");
	ck_assert(f && fread(g->logits, sizeof g->logits, 1, f) == 1);
	fclose(f);
}

/* Rows of got are v wide, those of want 320. */
static float golden_diff(const float *got, uint32_t v, const float *want, uint32_t rows)
{
	float d = 0;
	for (uint32_t i = 0; i < rows; i++) {
		float m = max_diff(got + (size_t)i * v, want + (size_t)i * 320, 320);
		d = m > d || isnan(m) ? m : d;
	}
	return d;
}

/* Teacher logits and greedy continuations of one model against the golden data of a folder. */
static inline void golden_check(const char *folder, const char *data, struct rig_opts o,
                                float tolerance)
{
	struct golden *g = mem_zalloc(sizeof *g);
	golden_load(g, data);
	o.model = folder;
	struct rig r = rig_open(o);
	uint32_t v = r.vocab;
	ck_assert_uint_ge(v, 320);
	float *all = mem_array((size_t)MAX_TOKENS * v, sizeof *all), *row = mem_array(v, sizeof *row);
	for (int i = 0; i < 2; i++) {
		struct seq s = seq_new(&r, (uint32_t)i * 50);
		feed(&r, &s, g->prompt[i], g->n[i], g->n[i], 0, all);
		float d = golden_diff(i ? all + (size_t)(g->n[1] - 16) * v : all, v,
		                      i ? g->logits + 7 * 320 : g->logits, i ? 16 : 7);
		printf("%s %s: largest difference of a logit %.2g (limit %g)\n", folder,
		       i ? "long" : "short", d, tolerance);
		ck_assert_msg(d <= tolerance, "%s: %g > %g", folder, d, tolerance);
		memcpy(row, all + (size_t)(g->n[i] - 1) * v, v * sizeof *row);
		for (uint32_t k = 0; k < 48; k++) {
			uint32_t id = argmax(row, 320);
			ck_assert_msg(id == g->greedy[i][k], "%s prompt %d step %u: id %u, want %u", folder, i,
			              k, id, g->greedy[i][k]);
			feed(&r, &s, &id, 1, 1, 1, row);
		}
	}
	free(all);
	free(row);
	rig_close(&r);
	free(g);
}

/* 150 ids below 320, the same in each test. */
static inline void some_ids(uint32_t *ids, uint32_t n, uint32_t seed)
{
	for (uint32_t i = 0; i < n; i++) {
		seed = seed * 1664525u + 1013904223u;
		ids[i] = (seed >> 8) % 320;
	}
}

#endif
