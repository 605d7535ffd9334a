/* test_sim.c - the simulated accelerator: the same tokens in every arrangement, every fault in the
 * KV found, time as the formula says.
 *
 * The descriptions are written by the tests; etc/sim is opened as it is. Times are read from the
 * device's own counter; wall time is compared with it only in one direction, so that a busy
 * machine does not fail a test. */
#include "engine/engine.h"
#include "util/clock.h"
#include "util/mem.h"
#include "tempdir.h"

#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#define MODEL                                                                                  \
	"name = \"unit\"; layers = 6; hidden = 64; heads = 4; kv_heads = 2; head_dim = 16; ffn = " \
	"128; context = 16384; vocab = 320; eos = [ 2 ]; seed = 7;"
#define DEVICE "flops = 1e9; bandwidth = 1e9; launch_us = 10.0; step_us = 100.0;"
enum { LAYERS = 6, BLOCK = 16, BLOCKS = 1200, ROWS = 8192, SPANS = 300 };

static char folder[TEST_FOLDER_BYTES], path[TEST_FOLDER_BYTES + 16];

static void make_folder(void)
{
	test_folder(folder, "sim");
	snprintf(path, sizeof path, "%s/sim.conf", folder);
}

static const char *description(const char *model, const char *device)
{
	FILE *f = fopen(path, "w");
	fprintf(f, "model = { %s };\ndevice = { %s };\n", model, device);
	fclose(f);
	return path;
}

struct rig {
	struct engine *e;
	unsigned char *pool;
	uint32_t block_tokens;
};

/* What was told while a step ran: when, and that layer's word then. */
static struct watch {
	uint64_t word[LAYERS], at_ns[LAYERS], seen[LAYERS];
	uint32_t layers;
} watch;

static void layer_told(void *arg)
{
	(void)arg;
	watch.at_ns[watch.layers] = clock_ns();
	watch.seen[watch.layers] = watch.word[watch.layers];
	watch.layers++;
}

static int try_open(const char *file, enum kv_type type, struct engine **e, struct err *err)
{
	struct engine_opts o = {.model_path = file,
	                        .backend = "sim",
	                        .kv_type = type,
	                        .block_tokens = BLOCK,
	                        .max_rows = ROWS,
	                        .max_logits = ROWS,
	                        .max_spans = SPANS,
	                        .progressed = layer_told};
	return engine_open(&o, e, err);
}

static struct rig rig_open_as(const char *device, enum kv_type type)
{
	struct rig r = {.block_tokens = BLOCK};
	struct err err = {0};
	ck_assert_msg(try_open(description(MODEL, device), type, &r.e, &err) == 0, "%s", err.text);
	ck_assert_msg(engine_new_pool(r.e, BLOCKS, NULL, &err) == 0, "%s", err.text);
	r.pool = engine_pool(r.e)->host;
	memset(r.pool, 0xa5, engine_info(r.e)->kv.block_bytes * BLOCKS);
	return r;
}

static struct rig rig_open(const char *device)
{
	return rig_open_as(device, KV_BF16);
}

static void rig_close(struct rig *r)
{
	engine_close(&r->e);
}

static uint64_t busy_ns(const struct rig *r)
{
	struct kern_counters c;
	engine_counters(r->e, &c);
	return c.busy_ns;
}

static uint64_t faults(const struct rig *r)
{
	struct kern_counters c;
	engine_counters(r->e, &c);
	return c.kv_faults;
}

/* --- sequences ----------------------------------------------------------- */

enum { TOKENS_MAX = 2048, TABLE = TOKENS_MAX / BLOCK };

struct seq {
	uint32_t tokens[TOKENS_MAX], n, done;
	uint32_t table[TABLE];
};

/* n tokens drawn from `seed`; block i of the table is (first + 7 i) mod BLOCKS. */
static struct seq *seq_new(uint32_t seed, uint32_t n, uint32_t first)
{
	struct seq *s = mem_zalloc(sizeof *s);
	s->n = n;
	for (uint32_t i = 0; i < n; i++)
		s->tokens[i] = 3 + (seed = seed * 1664525u + 1013904223u) % 317;
	for (uint32_t i = 0; i < TABLE; i++)
		s->table[i] = (first + 7 * i) % BLOCKS;
	return s;
}

static struct engine_span span_of(struct seq *s, uint32_t n)
{
	struct engine_span sp = {.tokens = s->tokens + s->done,
	                         .n = n,
	                         .position = s->done,
	                         .blocks = s->table,
	                         .logits = ENGINE_LOGITS_LAST};
	s->done += n;
	return sp;
}

static uint32_t argmax(const struct rig *r, uint32_t row)
{
	const float *l = engine_logits(r->e, row);
	uint32_t best = 0;
	for (uint32_t i = 1; i < engine_info(r->e)->vocab; i++)
		if (l[i] > l[best])
			best = i;
	return best;
}

static int feed_rc(struct rig *r, struct seq *s, uint32_t chunk, struct err *err)
{
	while (s->done < s->n) {
		uint32_t left = s->n - s->done;
		struct engine_span sp = span_of(s, left < chunk ? left : chunk);
		int rc = engine_step(r->e, &sp, 1, err);
		if (rc)
			return rc;
		if (s->done == s->n)
			s->tokens[s->n] = argmax(r, sp.logits_row);
	}
	return 0;
}

static void feed(struct rig *r, struct seq *s, uint32_t chunk)
{
	struct err err = {0};
	ck_assert_msg(feed_rc(r, s, chunk, &err) == 0, "%s", err.text);
}

/* Prompt in chunks, then greedy tokens one by one, into the sequence itself. */
static void generate(struct rig *r, struct seq *s, uint32_t chunk, uint32_t more)
{
	feed(r, s, chunk);
	for (uint32_t i = 0; i < more; i++) {
		s->n++;
		feed(r, s, 1);
	}
}

static void copy_blocks(struct rig *to, const struct rig *from, const struct seq *dst,
                        const struct seq *src)
{
	const struct kv_layout *l = &engine_info(from->e)->kv;
	for (uint32_t layer = 0; layer < l->layers; layer++)
		for (uint32_t b = 0; b < (src->done + BLOCK - 1) / BLOCK; b++)
			memcpy(to->pool + kv_piece_offset(l, BLOCKS, layer, dst->table[b]),
			       from->pool + kv_piece_offset(l, BLOCKS, layer, src->table[b]),
			       l->piece_bytes[layer]);
}

/* --- the same tokens ----------------------------------------------------- */

#define FAST DEVICE " time_scale = 0.0;"

TEST_CASE("same tokens", .timeout_s = 120, .setup = make_folder);

TEST(test_chunks_do_not_show)
{
	struct rig r = rig_open(FAST);
	struct seq *whole = seq_new(1, 500, 0);
	generate(&r, whole, 4096, 50);
	for (uint32_t chunk = 1; chunk < 400; chunk = chunk * 3 + 1) {
		struct seq *s = seq_new(1, 500, 300 + chunk);
		generate(&r, s, chunk, 50);
		ck_assert_mem_eq(s->tokens, whole->tokens, 551 * sizeof *s->tokens);
		free(s);
	}
	ck_assert_uint_eq(faults(&r), 0);
	free(whole);
	rig_close(&r);
}

TEST(test_batch_does_not_show)
{
	struct rig r = rig_open(FAST), alone = rig_open(FAST);
	struct seq *s[20];
	struct engine_span sp[20];
	struct err err = {0};
	for (uint32_t i = 0; i < 20; i++)
		s[i] = seq_new(i, 40 + 17 * i, 60 * i);
	for (int round = 0; round < 40; round++) {
		/* the long prompts still come in pieces while the short ones decode */
		for (uint32_t i = 0; i < 20; i++) {
			uint32_t left = s[i]->n - s[i]->done;
			sp[i] = span_of(s[i], left < 32 ? left : 32);
		}
		ck_assert_msg(engine_step(r.e, sp, 20, &err) == 0, "%s", err.text);
		for (uint32_t i = 0; i < 20; i++)
			if (s[i]->done == s[i]->n)
				s[i]->tokens[s[i]->n++] = argmax(&r, sp[i].logits_row);
	}
	for (uint32_t i = 0; i < 20; i++) {
		uint32_t prompt = 40 + 17 * i;
		struct seq *t = seq_new(i, prompt, 3);
		generate(&alone, t, 100, s[i]->n - prompt - 1);
		ck_assert_mem_eq(s[i]->tokens, t->tokens, s[i]->n * sizeof *t->tokens);
		free(t);
		free(s[i]);
	}
	rig_close(&r);
	rig_close(&alone);
}

/* A prompt on one device, its bytes copied to other blocks of another, decoding there: as on
 * one. All KV types give the same tokens. */
TEST_LOOP(test_handover_does_not_show, KV_BF16, KV_FP8 + 1)
{
	struct rig p = rig_open_as(FAST, (enum kv_type)_i),
			   d = rig_open_as(FAST " check = \"always\";", (enum kv_type)_i);
	struct seq *a = seq_new(9, 333, 0), *b = seq_new(9, 333, 500), *whole = seq_new(9, 333, 100);
	generate(&p, whole, 64, 40);
	feed(&p, a, 100);
	copy_blocks(&d, &p, b, a);
	b->done = a->done;
	b->tokens[333] = a->tokens[333];
	for (int i = 0; i < 40; i++) {
		b->n++;
		feed(&d, b, 1);
	}
	ck_assert_mem_eq(b->tokens, whole->tokens, 374 * sizeof *b->tokens);
	free(a), free(b), free(whole);
	rig_close(&p);
	rig_close(&d);
}

TEST(test_tokens_depend_on_the_whole_prefix)
{
	struct rig r = rig_open(FAST);
	unsigned same = 0;
	struct seq *a = seq_new(5, 200, 0);
	generate(&r, a, 200, 20);
	for (uint32_t i = 0; i < 200; i += 9) {
		struct seq *b = seq_new(5, 200, 100);
		b->tokens[i] = b->tokens[i] == 3 ? 4 : 3;
		generate(&r, b, 200, 20);
		for (int k = 200; k < 221; k++)
			same += a->tokens[k] == b->tokens[k];
		free(b);
	}
	ck_assert_uint_lt(same, 23 * 21 / 20); /* one in 320 by chance */
	free(a);
	rig_close(&r);
}

/* The floor is flat again after a row was used for another sequence, and a few entries stand
 * above it. */
TEST(test_logits_have_few_peaks)
{
	struct rig r = rig_open(FAST);
	struct err err = {0};
	for (uint32_t i = 0; i < 30; i++) {
		struct seq *s = seq_new(i, 60, 0);
		struct engine_span sp = span_of(s, 60);
		sp.logits = i % 3 ? ENGINE_LOGITS_ALL : ENGINE_LOGITS_LAST;
		ck_assert_int_eq(engine_step(r.e, &sp, 1, &err), 0);
		for (uint32_t row = 0; row < (i % 3 ? 60 : 1); row++) {
			const float *l = engine_logits(r.e, sp.logits_row + row);
			unsigned high = 0;
			for (uint32_t k = 0; k < 320; k++)
				high += l[k] != 0.0f;
			ck_assert_uint_ge(high, 2);
			ck_assert_uint_le(high, 5);
			ck_assert_msg(l[2] == 0.0f, "the end of sequence came without eos_rate");
		}
		free(s);
	}
	rig_close(&r);
}

TEST(test_eos_rate)
{
	struct engine *e = NULL;
	struct err err = {0};
	ck_assert_int_eq(try_open(description(MODEL " eos_rate = 0.25;", FAST), KV_F16, &e, &err), 0);
	struct rig r = {.e = e, .block_tokens = BLOCK};
	ck_assert_int_eq(engine_new_pool(e, BLOCKS, NULL, &err), 0);
	r.pool = engine_pool(e)->host;
	struct seq *s = seq_new(1, 1000, 0);
	struct engine_span sp = span_of(s, 1000);
	sp.logits = ENGINE_LOGITS_ALL;
	ck_assert_int_eq(engine_step(e, &sp, 1, &err), 0);
	unsigned ends = 0;
	for (uint32_t i = 0; i < 1000; i++)
		ends += argmax(&r, i) == 2;
	ck_assert_uint_ge(ends, 180);
	ck_assert_uint_le(ends, 320);
	free(s);
	rig_close(&r);
}

/* --- faults -------------------------------------------------------------- */

static unsigned char *word_at(struct rig *r, const struct seq *s, uint32_t layer, uint32_t position,
                              int v)
{
	const struct kv_layout *l = &engine_info(r->e)->kv;
	return r->pool + kv_piece_offset(l, BLOCKS, layer, s->table[position / BLOCK]) +
	       ((v ? BLOCK : 0) + position % BLOCK) * 8;
}

static void refused(struct rig *r, struct seq *s, const char *text)
{
	struct err err = {0};
	uint64_t before = faults(r);
	s->n++;
	ck_assert_msg(feed_rc(r, s, 1, &err) == ERR_IO, "a fault was not found: %s", text);
	ck_assert_msg(strstr(err.text, "KV fault") && strstr(err.text, text), "'%s' does not name %s",
	              err.text, text);
	ck_assert_uint_eq(faults(r), before + 1);
}

/* A sequence that arrives at `d`, ready to decode; the caller breaks it first. */
static struct seq *arrive(struct rig *p, struct rig *d, uint32_t n)
{
	struct seq *a = seq_new(n, n, 0), *b = seq_new(n, n, 300);
	feed(p, a, 256);
	copy_blocks(d, p, b, a);
	b->done = a->done;
	b->tokens[n] = a->tokens[n];
	free(a);
	return b;
}

TEST_CASE("faults", .timeout_s = 120, .setup = make_folder);

/* Each byte of K and V, anywhere: found at the first step. */
TEST(test_flipped_byte)
{
	struct rig p = rig_open(FAST), d = rig_open(FAST);
	for (uint32_t i = 0; i < 120; i++) {
		struct seq *s = arrive(&p, &d, 200);
		uint32_t layer = i % LAYERS, position = i * 53 % 200;
		char text[40];
		word_at(&d, s, layer, position, i & 1)[i % 8] ^= (unsigned char)(1u << i % 7);
		snprintf(text, sizeof text, "layer %u, block %u ", layer, s->table[position / BLOCK]);
		refused(&d, s, text);
		free(s);
	}
	rig_close(&p);
	rig_close(&d);
}

/* A block that still holds what another sequence left there; of the same length, and with the
 * same positions. */
TEST(test_stale_block)
{
	struct rig p = rig_open(FAST), d = rig_open(FAST);
	for (uint32_t block = 0; block < 12; block++) {
		struct seq *other = seq_new(77, 200, 300), *s;
		feed(&d, other, 64);
		const struct kv_layout *l = &engine_info(d.e)->kv;
		unsigned char *piece = mem_alloc(l->piece_bytes[3]),
					  *at = d.pool + kv_piece_offset(l, BLOCKS, 3, other->table[block]);
		memcpy(piece, at, l->piece_bytes[3]);
		s = arrive(&p, &d, 200);
		memcpy(at, piece, l->piece_bytes[3]);
		refused(&d, s, "layer 3");
		free(piece);
		free(other);
		free(s);
	}
	rig_close(&p);
	rig_close(&d);
}

TEST(test_swapped_blocks)
{
	struct rig p = rig_open(FAST), d = rig_open(FAST);
	struct seq *s = arrive(&p, &d, 200);
	uint32_t t = s->table[4];
	s->table[4] = s->table[5];
	s->table[5] = t;
	refused(&d, s, "position 64 ");
	free(s);
	rig_close(&p);
	rig_close(&d);
}

TEST(test_layers_mixed_up)
{
	struct rig p = rig_open(FAST), d = rig_open(FAST);
	struct seq *s = arrive(&p, &d, 100);
	const struct kv_layout *l = &engine_info(d.e)->kv;
	for (uint32_t b = 0; b < 7; b++)
		memcpy(d.pool + kv_piece_offset(l, BLOCKS, 2, s->table[b]),
		       d.pool + kv_piece_offset(l, BLOCKS, 1, s->table[b]), l->piece_bytes[1]);
	refused(&d, s, "layer 2");
	free(s);
	rig_close(&p);
	rig_close(&d);
}

/* The second half of a block was not copied yet when the sequence began. */
TEST(test_torn_block)
{
	struct rig p = rig_open(FAST), d = rig_open(FAST);
	const struct kv_layout *l = &engine_info(d.e)->kv;
	struct seq *s = arrive(&p, &d, 200);
	unsigned char *at = d.pool + kv_piece_offset(l, BLOCKS, 5, s->table[6]);
	memset(at + l->piece_bytes[5] / 2, 0, l->piece_bytes[5] / 2);
	refused(&d, s, "layer 5");
	free(s);
	rig_close(&p);
	rig_close(&d);
}

/* A prefix that another sequence has not finished yet (invariant I2), or whose last block is
 * partly old. */
TEST(test_matched_too_early)
{
	struct rig r = rig_open(FAST);
	struct seq *first = seq_new(4, 160, 0), *second = seq_new(4, 160, 0);
	struct err err = {0};
	struct engine_span sp = span_of(first, 90);
	ck_assert_int_eq(engine_step(r.e, &sp, 1, &err), 0);
	for (uint32_t i = 7; i < TABLE; i++)
		second->table[i] += 500;
	second->done = 96; /* six blocks; the first wrote 90 tokens */
	ck_assert_int_eq(feed_rc(&r, second, 64, &err), ERR_IO);
	ck_assert_msg(strstr(err.text, "position 90 "), "%s", err.text);
	second->done = 80;
	feed(&r, second, 64);
	free(first), free(second);
	rig_close(&r);
}

/* A late write into a context that the device knows: by "always" at once; else the newest part
 * at once, the others when their turn comes. */
TEST(test_late_write)
{
	for (int always = 0; always < 2; always++) {
		struct rig r = rig_open(always ? FAST " check = \"always\";" : FAST);
		struct seq *s = seq_new(3, 200, 0);
		struct err err = {0};
		generate(&r, s, 64, 5);
		*word_at(&r, s, 2, 20, 0) ^= 1;
		int steps = 0, rc = 0;
		while (!rc && steps < 13 * LAYERS * 2) {
			s->n++;
			rc = feed_rc(&r, s, 1, &err);
			steps++;
		}
		ck_assert_int_eq(rc, ERR_IO);
		ck_assert_msg(!always || steps == 1, "found after %d steps", steps);
		free(s);
		s = seq_new(3, 200, 0);
		generate(&r, s, 64, 5);
		*word_at(&r, s, 4, s->done - 2, 1) ^= 1;
		refused(&r, s, "layer 4");
		free(s);
		rig_close(&r);
	}
}

/* --- time ---------------------------------------------------------------- */

static double larger_us(double flops, double bytes)
{
	return (flops > bytes ? flops : bytes) / 1e9 * 1e6;
}

static double triangle(double n)
{
	return n * (n + 1) / 2;
}

/* Weights of a layer of 64 values before its KV is written, and after; of the head. */
#define QKV (64.0 * 16 * (4 + 2 * 2))
#define REST (64.0 * 16 * 4 + 3.0 * 64 * 128)
#define HEAD (64.0 * 320)

/* A layer goes from one KV write to the next; the last one's rest and the head are for the last
 * rows of `ends` spans, which see `seen` positions. */
static double without_fixed_us(double rows, double attended, double context, double ends,
                               double seen)
{
	double flops = 4.0 * 4 * 16, kv = 2.0 * 2 * 16 * 2,
		   tail = ends > 0 ? larger_us(2 * (REST + HEAD) * ends + flops * seen,
	                                   2 * (REST + HEAD) + kv * seen)
	                       : 0;
	return larger_us(2 * QKV * rows, 2 * QKV) +
	       (LAYERS - 1) * larger_us(2 * (QKV + REST) * rows + flops * attended,
	                                2 * (QKV + REST) + kv * context) +
	       tail;
}

static double step_us(double rows, double attended, double context, double ends, double seen)
{
	return 100 + 10 * LAYERS + without_fixed_us(rows, attended, context, ends, seen);
}

TEST_CASE("time", .timeout_s = 120, .setup = make_folder);

TEST(test_time_is_the_formula)
{
	struct rig r = rig_open(DEVICE " time_scale = 0.01;");
	struct seq *s = seq_new(1, 300, 0);
	struct err err = {0};
	uint64_t begin = clock_ns();
	feed(&r, s, 200);
	double want = step_us(200, triangle(200), 200, 1, 200) +
	              step_us(100, triangle(300) - triangle(200), 300, 1, 300);
	ck_assert_double_eq_tol((double)busy_ns(&r) / 1e3, want * 0.01, 0.01);
	ck_assert_uint_ge(clock_ns() - begin + 60000, busy_ns(&r)); /* it slept */
	struct seq *t = seq_new(2, 50, 400);
	s->n = 301;
	struct engine_span sp[2] = {span_of(s, 1), span_of(t, 50)};
	sp[1].logits = ENGINE_LOGITS_NONE;
	uint64_t before = busy_ns(&r);
	ck_assert_int_eq(engine_step(r.e, sp, 2, &err), 0);
	want = step_us(51, 301 + triangle(50), 301 + 50, 1, 301);
	ck_assert_double_eq_tol((double)(busy_ns(&r) - before) / 1e3, want * 0.01, 0.01);
	free(s), free(t);
	rig_close(&r);
}

/* What a file says of all weights replaces what follows from the sizes. */
TEST(test_totals_of_weights)
{
	struct rig r = {.block_tokens = BLOCK};
	struct err err = {0};
	ck_assert_int_eq(
		try_open(description(MODEL " params = 1e6; active_params = 2.5e5; weight_bytes = 1.0;",
	                         DEVICE " time_scale = 0.01;"),
	             KV_BF16, &r.e, &err),
		0);
	ck_assert_int_eq(engine_new_pool(r.e, BLOCKS, NULL, &err), 0);
	r.pool = engine_pool(r.e)->host;
	ck_assert_uint_eq(engine_info(r.e)->params, 1000000);
	struct seq *s = seq_new(1, 1, 0);
	feed(&r, s, 1);
	/* one row: the bytes of all weights, of which the head's are as many more as it has weights */
	double all = 1e6 * (1 + HEAD / (LAYERS * (QKV + REST))),
		   want = 100 + 10 * LAYERS + all / 1e9 * 1e6 + LAYERS * 128.0 / 1e9 * 1e6;
	ck_assert_double_eq_tol((double)busy_ns(&r) / 1e3, want * 0.01, 0.01);
	free(s);
	rig_close(&r);
}

TEST(test_tensor_parallel_divides_and_exchanges)
{
	struct rig r = rig_open(DEVICE
	                        " time_scale = 0.01; tp = 4; exchange_us = 7.0; link_bandwidth = 1e8;");
	struct seq *s = seq_new(1, 400, 0);
	feed(&r, s, 400);
	double exchanged = (LAYERS - 1) * 400 + 1,
		   want = 100 + LAYERS * (10 + 7) + 1e6 * exchanged * (2.0 * 64 * 2 * 2 * 3 / 4) / 1e8;
	want += without_fixed_us(400, triangle(400), 400, 1, 400) / 4;
	ck_assert_double_eq_tol((double)busy_ns(&r) / 1e3, want * 0.01, 0.01);
	free(s);
	rig_close(&r);
}

/* A layer's progress word appears when the layer's KV is there: not 60 us earlier, and the
 * layers' distances add up. */
TEST(test_progress_appears_in_time)
{
	struct rig r = rig_open("flops = 1e9; bandwidth = 1e9; time_scale = 0.1;");
	struct seq *s = seq_new(1, 300, 0);
	struct err err = {0};
	struct engine_span sp = span_of(s, 300);
	ck_assert_int_eq(engine_attach_board(r.e, watch.word, sizeof watch.word, &err), 0);
	sp.progress = watch.word;
	sp.progress_stride = 1;
	sp.progress_value = 300;
	uint64_t begin = clock_ns();
	double first_ns = larger_us(2 * QKV * 300, 0) * 100,
		   layer_ns = larger_us(2 * (QKV + REST) * 300 + 4.0 * 4 * 16 * triangle(300), 0) * 100;
	ck_assert_int_eq(engine_step(r.e, &sp, 1, &err), 0);
	ck_assert_uint_eq(watch.layers, LAYERS);
	for (uint32_t l = 0; l < LAYERS; l++) {
		ck_assert_uint_eq(watch.seen[l], 300);
		ck_assert_msg((double)(watch.at_ns[l] - begin) > first_ns + layer_ns * l - 60000,
		              "layer %u after %llu us, %.0f us each", l,
		              (unsigned long long)(watch.at_ns[l] - begin) / 1000, layer_ns / 1e3);
	}
	free(s);
	rig_close(&r);
}

/* Many short steps in a row: the error of a sleep is not carried on, so that wall time stays near
 * the modelled time even though each wake-up is late. On a machine with other work only the
 * lower bound says something. */
TEST(test_errors_do_not_add_up)
{
	struct rig r = rig_open("flops = 1e12; bandwidth = 1e12; step_us = 400.0;");
	struct seq *s = seq_new(1, 1, 0);
	uint64_t begin = clock_ns();
	generate(&r, s, 1, 300);
	uint64_t wall = clock_ns() - begin, busy = busy_ns(&r);
	ck_assert_uint_ge(wall + 60000, busy - busy / 50);
	printf("test_sim: 301 steps of 400 us: wall %.1f ms, modelled %.1f ms\n", (double)wall / 1e6,
	       (double)busy / 1e6);
	free(s);
	rig_close(&r);
}

/* Steps that are too short to sleep for are not lost: the device's clock keeps what the host did
 * not wait. */
TEST(test_short_steps_add_up)
{
	struct rig r = rig_open("flops = 1e12; bandwidth = 1e12; step_us = 20.0;");
	struct seq *s = seq_new(1, 1, 0);
	uint64_t begin = clock_ns();
	generate(&r, s, 1, 1500);
	ck_assert_uint_ge(clock_ns() - begin + 60000, busy_ns(&r) - busy_ns(&r) / 50);
	ck_assert_uint_ge(busy_ns(&r), 1501 * 20000);
	free(s);
	rig_close(&r);
}

static double cpu_ms(void)
{
	struct rusage u;
	getrusage(RUSAGE_THREAD, &u);
	return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) * 1e3 +
	       (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e3;
}

/* A long step costs the host nothing: the device sleeps. */
TEST(test_does_not_spin)
{
	struct rig r = rig_open("flops = 1e12; bandwidth = 1e12; step_us = 50000.0;");
	struct seq *s = seq_new(1, 4, 0);
	double before = cpu_ms();
	feed(&r, s, 1);
	ck_assert_uint_ge(busy_ns(&r), 200000000u);
	ck_assert_double_lt(cpu_ms() - before, 100);
	free(s);
	rig_close(&r);
}

/* Host time of a decode step of 256 sequences of 1,000 tokens, and of a chunk of 8,192 tokens,
 * printed; a bound holds against a mistake by an order of magnitude. */
TEST(test_host_time_is_small)
{
	struct rig r = {.block_tokens = BLOCK};
	struct err err = {0};
	static struct engine_span sp[256];
	static uint32_t tokens[ROWS], table[ROWS / BLOCK];
	const char *file = description("layers = 32; hidden = 64; heads = 4; kv_heads = 2; head_dim = "
	                               "16; ffn = 128; context = 16384;",
	                               FAST);
	ck_assert_msg(try_open(file, KV_BF16, &r.e, &err) == 0, "%s", err.text);
	ck_assert_int_eq(engine_new_pool(r.e, BLOCKS, NULL, &err), 0);
	r.pool = engine_pool(r.e)->host;
	memset(r.pool, 0, engine_pool(r.e)->bytes); /* its pages are there */
	for (uint32_t i = 0; i < ROWS; i++)
		tokens[i] = 3 + i % 300;
	for (uint32_t i = 0; i < ROWS / BLOCK; i++)
		table[i] = i;
	sp[0] = (struct engine_span){
		.tokens = tokens, .n = ROWS, .position = 0, .blocks = table, .logits = ENGINE_LOGITS_LAST};
	double before = cpu_ms(), chunk, decode;
	ck_assert_int_eq(engine_step(r.e, sp, 1, &err), 0);
	chunk = cpu_ms() - before;
	/* sequences over the same first blocks, each with a last one of its own */
	static uint32_t tables[256][64];
	for (uint32_t i = 0; i < 256; i++) {
		memcpy(tables[i], table, sizeof tables[i]);
		tables[i][62] = 600 + i;
		sp[i] = (struct engine_span){.tokens = tokens + 992,
		                             .n = 1,
		                             .position = 992,
		                             .blocks = tables[i],
		                             .logits = ENGINE_LOGITS_LAST};
	}
	for (int step = 0; step < 14; step++) {
		before = step == 4 ? cpu_ms() : before;
		ck_assert_msg(engine_step(r.e, sp, 256, &err) == 0, "%s", err.text);
		for (uint32_t i = 0; i < 256; i++)
			sp[i].position++;
	}
	decode = (cpu_ms() - before) / 10;
	printf("test_sim: host time with 32 layers: %.2f ms a step of 256 sequences of 1,000 tokens, "
	       "%.2f ms for 8,192 tokens\n",
	       decode, chunk);
	ck_assert_double_lt(decode, 200);
	ck_assert_double_lt(chunk, 2000);
	rig_close(&r);
}

/* --- descriptions -------------------------------------------------------- */

static const struct wrong {
	const char *model, *device, *text;
} wrong[] = {
	{MODEL " colour = 3;", DEVICE, "unknown key colour in group model"},
	{MODEL, DEVICE " layers = 3;", "unknown key layers in group device"},
	{"layers = 6; hidden = 64; heads = 4; kv_heads = 2; head_dim = 16; context = 512;", DEVICE,
     "model.ffn is missing: expected 1 to 1048576"},
	{MODEL, "bandwidth = 1e9;", "device.flops is missing"},
	{"layers = 0; hidden = 64; heads = 4; kv_heads = 2; head_dim = 16; ffn = 128; context = 512;",
     DEVICE, "layers: found 0, expected a whole number, 1 to 256"},
	{"layers = 2.5; hidden = 64; heads = 4; kv_heads = 2; head_dim = 16; ffn = 128; context = 512;",
     DEVICE, "layers: found 2.5, expected a whole"},
	{"layers = \"two\"; hidden = 64; heads = 4; kv_heads = 2; head_dim = 16; ffn = 128; context = "
     "512;",
     DEVICE, "layers: expected a number"},
	{"layers = 6; hidden = 64; heads = 4; kv_heads = 3; head_dim = 16; ffn = 128; context = 512;",
     DEVICE, "kv_heads: found 3, expected a divisor of 4"},
	{"layers = 6; hidden = 64; heads = 4; kv_heads = 2; head_dim = 3; ffn = 128; context = 512;",
     DEVICE, ":1: head_dim: found 3, expected a whole number, 4 to 512"},
	{"layers = 6; hidden = 64; heads = 4; kv_heads = 2; head_dim = 6; ffn = 128; context = 512;",
     DEVICE, ":1: model.head_dim: found 6, expected a multiple of 4"},
	{MODEL, DEVICE " time_scale = -1.0;", "time_scale: found -1, expected a number, 0 to 1000"},
	{MODEL, DEVICE " tp = 65;", "tp: found 65"},
	{MODEL, DEVICE " check = \"never\";", "check: expected one of"},
	{MODEL " eos_rate = 2.0;", DEVICE, "eos_rate: found 2"},
	{MODEL " params = 5.0; active_params = 6.0;", DEVICE,
     "active_params: found 6, expected at most params, 5"},
	{MODEL " params = 8000000000; active_params = 9000000000;", DEVICE,
     "active_params: found 9000000000, expected at most params, 8000000000"},
	{MODEL, DEVICE " hang_step = 99999999999999999999;",
     ":2: hang_step = 99999999999999999999 is out of range: whole numbers are "},
	{MODEL, DEVICE " }; oops", "syntax error"},
};

TEST_CASE("descriptions", .timeout_s = 120, .setup = make_folder);

TEST_LOOP(test_wrong_description, 0, sizeof wrong / sizeof *wrong)
{
	const struct wrong *w = &wrong[_i];
	struct engine *e = NULL;
	struct err err = {0};
	ck_assert_int_eq(try_open(description(w->model, w->device), KV_BF16, &e, &err), ERR_INVALID);
	ck_assert_ptr_null(e);
	ck_assert_msg(strstr(err.text, w->text) && strstr(err.text, path), "'%s' does not say '%s'",
	              err.text, w->text);
}

TEST(test_wrong_file)
{
	struct engine *e = NULL;
	struct err err = {0};
	ck_assert_int_eq(try_open("/nonexistent", KV_BF16, &e, &err), ERR_IO);
	ck_assert_int_eq(try_open("/tmp", KV_BF16, &e, &err), ERR_INVALID);
	FILE *f = fopen(path, "w");
	fprintf(f, "device = { " DEVICE " };\n");
	fclose(f);
	ck_assert_int_eq(try_open(path, KV_BF16, &e, &err), ERR_INVALID);
	ck_assert_msg(strstr(err.text, "group model is missing"), "%s", err.text);
	f = fopen(path, "w");
	fprintf(f, "model = { " MODEL " eos = [ 400 ]; };\n");
	fclose(f);
	ck_assert_int_eq(try_open(path, KV_BF16, &e, &err), ERR_INVALID);
}

/* Workers with different devices may hand KV over; with different models they may not. */
TEST(test_fingerprint_is_of_the_model)
{
	struct engine *a = NULL, *b = NULL, *c = NULL;
	struct err err = {0};
	ck_assert_int_eq(try_open(description(MODEL, DEVICE), KV_BF16, &a, &err), 0);
	ck_assert_int_eq(
		try_open(description(MODEL, DEVICE " tp = 8; time_scale = 0.5;"), KV_BF16, &b, &err), 0);
	ck_assert_int_eq(try_open(description(MODEL " eos_rate = 0.5;", DEVICE), KV_BF16, &c, &err), 0);
	ck_assert_str_eq(engine_info(a)->fingerprint, engine_info(b)->fingerprint);
	ck_assert_str_ne(engine_info(a)->fingerprint, engine_info(c)->fingerprint);
	ck_assert_str_eq(engine_info(a)->numerics, "sim-r1:tp1:bf16");
	ck_assert_uint_eq(engine_info(a)->kv.block_bytes, 16u * BLOCK * LAYERS);
	engine_close(&a);
	engine_close(&b);
	engine_close(&c);
}

/* etc/sim/small.conf names every key: with the # taken away it says the same, and it is
 * complete. */
TEST(test_every_key_is_documented)
{
	static const char *const names[] = {
		"name",      "layers",      "hidden",         "heads",         "kv_heads",
		"head_dim",  "ffn",         "params",         "active_params", "weight_bytes",
		"kv_bytes",  "context",     "vocab",          "eos",           "eos_rate",
		"seed",      "flops",       "bandwidth",      "launch_us",     "step_us",
		"tp",        "exchange_us", "link_bandwidth", "check",         "time_scale",
		"hang_step",
	};
	char line[256], seen[4096] = "";
	struct engine *with = NULL, *without = NULL;
	struct err err = {0};
	FILE *in = fopen("etc/sim/small.conf", "r"), *out = fopen(path, "w");
	while (fgets(line, sizeof line, in)) {
		const char *text = strncmp(line, "\t# ", 3) == 0 ? line + 3 : line;
		fputs(text, out);
		strncat(seen, text, strcspn(text, "="));
		strcat(seen, "|");
	}
	fclose(in);
	fclose(out);
	for (size_t i = 0; i < sizeof names / sizeof *names; i++)
		ck_assert_msg(strstr(seen, names[i]) != NULL, "%s", names[i]);
	ck_assert_msg(try_open(path, KV_BF16, &with, &err) == 0, "%s", err.text);
	ck_assert_int_eq(try_open("etc/sim/small.conf", KV_BF16, &without, &err), 0);
	ck_assert_str_eq(engine_info(with)->fingerprint, engine_info(without)->fingerprint);
	engine_close(&with);
	engine_close(&without);
}

TEST_LOOP(test_ready_descriptions, 0, 3)
{
	static const char *const names[] = {"small", "dense-14b", "dense-70b-tp8"};
	char file[64];
	struct engine *e = NULL;
	struct err err = {0};
	snprintf(file, sizeof file, "etc/sim/%s.conf", names[_i]);
	ck_assert_msg(try_open(file, KV_BF16, &e, &err) == 0, "%s", err.text);
	ck_assert_uint_eq(engine_info(e)->vocab, 320);
	engine_close(&e);
}
