/* bench_gpu.c - steps of models of known shapes on a device, through kern_ops alone: decoding for
 * batches of 1 to 256 sequences, prefill of prompts of 1k to 32k tokens, a layer alone, attention
 * alone. What is printed is a step's time, and the bytes that must be read (weights, KV) or the
 * arithmetic that must be done in that time, as a part of the limits that are given. A RESULT line
 * follows for each figure. What does not fit into memory is left out with a line that says so.
 *   bench_gpu [--first] BACKEND[:VARIANT] SHAPE TYPE ACTIVATIONS [read GB/s] [dense TFLOP/s]
 *   bench_gpu cuda 8b q4_k bf16 3000 790
 * --first: the few rows of tools/gpu-first, with a smaller pool. */
#include "tests/bench/bench_gpu.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const struct shape shapes[] = {
	{"8b", 32, 4096, 32, 8, 128, 14336, 128256}, /* Llama 3 8B */
	{"1b", 16, 2048, 32, 8, 64, 8192, 128256},   /* Llama 3.2 1B */
	{"135m", 30, 576, 9, 3, 64, 1536, 49152},    /* SmolLM2 135M */
	{"tiny", 2, 64, 4, 2, 16, 128, 320},
};

/* PREFILL_MMA: without wgmma */
enum kind { DECODE, LAYERS, PREFILL, PREFILL_MMA, ATTEND_DECODE, ATTEND_PREFILL };
/* Where a row is measured: with weights of BF16; with activations of BF16; not in variant fast. */
enum { WHERE_ALL, WHERE_BF16 = 1, WHERE_ROUNDED = 2, WHERE_OWN = 4 };

struct row {
	enum kind kind;
	uint32_t spans, rows, position;
	unsigned where;
};
/* The most valuable first; rows that share a program follow each other. Prompts longer than a step
 * are divided into chunks. */
static const struct row rows_of_all[] = {
	{DECODE, 1, 1, 1024, WHERE_ALL},
	{DECODE, 1, 1, 8192, WHERE_ALL},
	{DECODE, 8, 1, 1024, WHERE_ALL},
	{DECODE, 8, 1, 8192, WHERE_ALL},
	{DECODE, 64, 1, 1024, WHERE_ALL},
	{DECODE, 64, 1, 8192, WHERE_ALL},
	{DECODE, 256, 1, 1024, WHERE_ALL},
	{DECODE, 256, 1, 8192, WHERE_ALL},
	{LAYERS, 1, 1, 1024, WHERE_ALL},
	{PREFILL, 1, 1024, 0, WHERE_ALL},
	{PREFILL, 1, 8192, 0, WHERE_BF16},
	{PREFILL, 1, 32768, 0, WHERE_BF16 | WHERE_ROUNDED},
	{PREFILL_MMA, 1, 1024, 0, WHERE_ROUNDED | WHERE_OWN},
	{PREFILL_MMA, 1, 8192, 0, WHERE_BF16 | WHERE_ROUNDED | WHERE_OWN},
	{ATTEND_DECODE, 1, 1, 1024, WHERE_BF16 | WHERE_OWN},
	{ATTEND_DECODE, 64, 1, 1024, WHERE_BF16 | WHERE_OWN},
	{ATTEND_DECODE, 256, 1, 1024, WHERE_BF16 | WHERE_OWN},
	{ATTEND_DECODE, 64, 1, 8192, WHERE_BF16 | WHERE_OWN},
	{ATTEND_PREFILL, 1, 2048, 0, WHERE_BF16 | WHERE_OWN},
	{ATTEND_PREFILL, 1, 8192, 0, WHERE_BF16 | WHERE_OWN},
};
/* Sizes of a program end at 64 rows, so 65 show what the next one costs. */
static const struct row rows_of_first[] = {
	{DECODE, 1, 1, 1024, WHERE_ALL},         {DECODE, 16, 1, 1024, WHERE_ALL},
	{DECODE, 64, 1, 1024, WHERE_ALL},        {DECODE, 65, 1, 1024, WHERE_ALL},
	{DECODE, 256, 1, 1024, WHERE_ALL},       {PREFILL, 1, 1024, 0, WHERE_ALL},
	{PREFILL, 1, 8192, 0, WHERE_ALL},        {ATTEND_DECODE, 64, 1, 1024, WHERE_OWN},
	{ATTEND_PREFILL, 1, 2048, 0, WHERE_OWN}, {ATTEND_PREFILL, 1, 8192, 0, WHERE_OWN},
	{LAYERS, 1, 1, 1024, WHERE_ALL},
};
static const struct row rows_of_tiny[] = {
	{DECODE, 1, 1, 100, WHERE_ALL},
	{DECODE, 8, 1, 200, WHERE_ALL},
	{LAYERS, 1, 1, 100, WHERE_ALL},
	{PREFILL, 1, 96, 0, WHERE_BF16 | WHERE_ROUNDED},
	{PREFILL, 1, 40, 1000, WHERE_ALL},
	{PREFILL_MMA, 1, 96, 0, WHERE_ROUNDED | WHERE_OWN},
	{ATTEND_DECODE, 3, 1, 100, WHERE_BF16 | WHERE_OWN},
	{ATTEND_PREFILL, 1, 40, 50, WHERE_BF16 | WHERE_OWN},
};

/* What is left between rows. */
struct run {
	struct bench *b;
	unsigned where;
	size_t shared_bytes_min; /* KV of a layer below which caches might keep what sequences share */
	struct kern_program *p;
	enum part part;  /* of the program */
	const char *off; /* the variable that was 0 when it was planned, or NULL */
	uint32_t rows;
	uint32_t chunks;              /* of the latest row */
	double launches;              /* of the latest row's step */
	double step_s, step_launches; /* of the first row's */
};

static double now_s(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* --- time ---------------------------------------------------------------- */

static double steps_s(struct run *r, int times)
{
	struct bench *b = r->b;
	double begun = now_s();
	for (int i = 0; i < times; i++)
		bench_check(b, "run", b->k->run(b->stream, r->p, &b->batch));
	bench_check(b, "sync", b->k->sync(b->stream));
	return (now_s() - begun) / times;
}

/* The least of three rounds of a tenth of a second each, or of one long step; fewer rounds once a
 * second has passed. The first step warms up. */
static double step_s(struct run *r)
{
	double first = steps_s(r, 1), begun = now_s(), least = 1e9;
	int times = first < 0.1 ? (int)(0.1 / first) + 1 : 1;
	times = times < 200 ? times : 200;
	for (int round = 0; round < 3 && now_s() - begun < 1; round++) {
		double took = steps_s(r, times);
		least = took < least ? took : least;
	}
	return least;
}

/* All of a row's chunks, each behind those before it. */
static double row_s(struct run *r, const struct row *w)
{
	struct kern_counters before, after;
	double s = 0;
	r->chunks = 0;
	for (uint32_t at = 0, n; at < w->rows; at += n, r->chunks++) {
		n = w->rows - at < r->b->rows ? w->rows - at : r->b->rows;
		bench_batch(r->b, w->spans, n, w->position + at);
		r->b->k->counters(r->b->dev, &before);
		s += step_s(r);
		r->b->k->counters(r->b->dev, &after);
	}
	uint64_t steps = after.steps - before.steps;
	r->launches = steps ? (double)(after.launches - before.launches) / (double)steps : 0;
	return s;
}

/* --- what must be read and computed -------------------------------------- */

static double kv_bytes(const struct bench *b, const struct row *w)
{
	return (double)w->spans * (w->position + 1) * (double)bench_kv_token_bytes(b->s);
}

static double products_flop(const struct bench *b, const struct row *w)
{
	const struct shape *h = b->s;
	return 2.0 * w->rows * h->layers *
	       ((2.0 * h->heads + 2.0 * h->kv_heads) * h->head_dim * h->hidden +
	        3.0 * h->ffn * h->hidden);
}

static double attention_flop(const struct bench *b, const struct row *w)
{
	const struct shape *h = b->s;
	return 4.0 * h->layers * h->heads * h->head_dim * w->rows * (w->position + w->rows / 2.0);
}

/* --- a row --------------------------------------------------------------- */

static int of_prompt(const struct row *w)
{
	return w->kind == PREFILL || w->kind == PREFILL_MMA || w->kind == ATTEND_PREFILL;
}

/* RESULT TITLE_ROW_KEY=value, the title with underscores. */
static void result(const struct run *r, const struct row *w, const char *key, double value)
{
	static const char *const names[] = {"decode",      "layers",           "prefill",
	                                    "prefill_mma", "attention_decode", "attention_prefill"};
	char title[sizeof r->b->title];
	snprintf(title, sizeof title, "%s", r->b->title);
	for (char *c = title; *c; c++)
		*c = *c == ' ' ? '_' : *c;
	printf("RESULT %s_%s_", title, names[w->kind]);
	if (of_prompt(w))
		printf("%u_%s=%.2f\n", w->rows, key, value);
	else
		printf("%u_%u_%s=%.2f\n", w->spans, w->position, key, value);
}

static void row_name(const struct row *w)
{
	static const char *const names[] = {"decode",       "a layer",         "prefill",
	                                    "prefill, mma", "attention alone", "attention alone"};
	char shape[64];
	if (of_prompt(w))
		snprintf(shape, sizeof shape, "rows  %5u behind %7u", w->rows, w->position);
	else
		snprintf(shape, sizeof shape, "batch %5u context %6u", w->spans, w->position);
	printf("%-15s  %s  ", names[w->kind], shape);
}

/* Ends the row's line with a rate and its part of a limit, 0: unknown. */
static void show_rate(const struct run *r, const struct row *w, double rate, const char *unit,
                      double limit)
{
	printf("  %7.1f %s", rate, unit);
	if (limit > 0)
		printf("  %5.1f %% of %.0f", 100 * rate / limit, limit);
	printf("\n");
	result(r, w, *unit == 'G' ? "gbs" : "tflops", rate);
	if (limit > 0)
		result(r, w, "percent", 100 * rate / limit);
}

static void show_step(const struct run *r, const struct row *w, double s)
{
	const struct bench *b = r->b;
	uint32_t of = bench_blocks(w->rows, w->position), shared = bench_shared(b, w->spans, of);
	row_name(w);
	printf("%10.1f us  %9.0f tokens/s", s * 1e6, w->spans * w->rows / s);
	if (of_prompt(w))
		show_rate(r, w, (products_flop(b, w) + attention_flop(b, w)) / s * 1e-12, "TFLOP/s",
		          b->dense_tflops);
	else
		show_rate(r, w, ((double)b->weight_bytes + kv_bytes(b, w)) / s * 1e-9, "GB/s", b->read_gbs);
	if (shared)
		printf(
			"                 (sequences share %u blocks of KV, because the pool has %u of %u)\n",
			shared, b->blocks, w->spans * of);
	if (r->chunks > 1)
		printf("                 (in %u chunks, each behind those before it)\n", r->chunks);
	result(r, w, "us", s * 1e6);
}

static void show_layers(const struct run *r, const struct row *w, double s)
{
	uint32_t layers = r->b->s->layers;
	row_name(w);
	printf("%10.1f us a layer  %.1f launches a layer", s * 1e6 / layers, r->launches / layers);
	printf("  %.0f launches a step, of which the layers take %.0f us, the rest %.0f us\n",
	       r->step_launches, s * 1e6, (r->step_s - s) * 1e6);
	result(r, w, "us_a_layer", s * 1e6 / layers);
	result(r, w, "launches_a_layer", r->launches / layers);
	result(r, w, "launches_a_step", r->step_launches);
}

static void show_attention(const struct run *r, const struct row *w, double s)
{
	const struct bench *b = r->b;
	row_name(w);
	printf("%10.1f us a layer  %.0f launches", s * 1e6 / b->s->layers, r->launches / b->s->layers);
	if (w->kind == ATTEND_PREFILL)
		show_rate(r, w, attention_flop(b, w) / s * 1e-12, "TFLOP/s", b->dense_tflops);
	else
		show_rate(r, w, kv_bytes(b, w) / s * 1e-9, "GB/s", b->read_gbs);
	result(r, w, "us_a_layer", s * 1e6 / b->s->layers);
}

/* Whether the pool has enough blocks for the row. If sequences must share some, these must be too
 * many for the device's caches. */
static int fits(const struct run *r, const struct row *w)
{
	const struct bench *b = r->b;
	uint32_t of = bench_blocks(w->rows, w->position), shared = bench_shared(b, w->spans, of);
	size_t block = BLOCK * bench_kv_token_bytes(b->s);
	if ((uint64_t)w->spans * of <= b->blocks ||
	    (shared && shared * block / b->s->layers >= r->shared_bytes_min))
		return 1;
	row_name(w);
	printf(" not measured: needs %llu blocks of KV of %.1f MiB, there is memory for %u\n",
	       (unsigned long long)w->spans * of, (double)block / (1 << 20), b->blocks);
	return 0;
}

static void use_program(struct run *r, const struct row *w)
{
	enum part part = w->kind == LAYERS         ? PART_LAYERS
	                 : w->kind < ATTEND_DECODE ? PART_STEP
	                                           : PART_ATTENTION;
	const char *off = w->kind == PREFILL_MMA ? "PDSERVE_CUDA_WGMMA" : NULL;
	uint32_t rows = w->rows > 1 ? r->b->rows : r->b->tail_rows;
	if (r->p && part == r->part && off == r->off && rows == r->rows)
		return;
	r->b->k->program_destroy(&r->p);
	if (off)
		setenv(off, "0", 1);
	r->p = bench_program(r->b, part, rows);
	if (off)
		unsetenv(off);
	r->part = part;
	r->off = off;
	r->rows = rows;
}

static void measure(struct run *r, const struct row *w)
{
	if ((w->where & r->where) != w->where || !fits(r, w))
		return;
	use_program(r, w);
	double s = row_s(r, w);
	if (!r->step_s)
		r->step_s = s, r->step_launches = r->launches;
	if (r->part == PART_LAYERS)
		show_layers(r, w, s);
	else if (r->part == PART_ATTENTION)
		show_attention(r, w, s);
	else
		show_step(r, w, s);
	fflush(stdout);
}

static void run_all(struct bench *b, unsigned where, int first)
{
	int tiny = b->s->layers < 8;
	const struct row *rows = tiny ? rows_of_tiny : first ? rows_of_first : rows_of_all;
	size_t n = tiny ? sizeof rows_of_tiny : first ? sizeof rows_of_first : sizeof rows_of_all;
	struct run r = {.b = b, .where = where, .shared_bytes_min = tiny ? 0 : (size_t)192 << 20};
	double begun = now_s();
	b->rows = tiny ? 64 : 8192;
	b->tail_rows = tiny ? 8 : 256;
	b->positions = tiny ? 2048 : first ? 8192 : 32768;
	b->blocks = tiny ? 16 : (256 * 1088 + (first ? 0 : 32768)) / BLOCK;
	bench_model_new(b);
	printf("%s, %s: %.0f MiB of weights, KV for %u tokens, in %.1f s\n", b->title,
	       b->k->numerics(b->dev), (double)b->weight_bytes / (1 << 20), b->blocks * BLOCK,
	       now_s() - begun);
	for (size_t i = 0; i < n / sizeof *rows; i++)
		measure(&r, &rows[i]);
	b->k->program_destroy(&r.p);
}

int main(int argc, char **argv)
{
	char err[400] = "", backend[32];
	struct bench b = {.type = KERN_WEIGHT_DTYPES};
	int first = argc > 1 && !strcmp(argv[1], "--first");
	argc -= first, argv += first;
	if (argc < 5 || argc > 7) {
		fprintf(stderr, "usage: bench_gpu [--first] BACKEND[:VARIANT] SHAPE TYPE ACTIVATIONS "
		                "[read GB/s] [dense TFLOP/s]\n");
		return 2;
	}
	for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
		if (!strcmp(shapes[i].name, argv[2]))
			b.s = &shapes[i];
	for (int t = 0; t < KERN_WEIGHT_DTYPES; t++)
		if (!strcmp(kern_dtype_name((enum kern_dtype)t), argv[3]))
			b.type = (enum kern_dtype)t;
	size_t length = strcspn(argv[1], ":");
	snprintf(backend, sizeof backend, "%.*s", (int)length, argv[1]);
	b.k = kern_backend(backend, err, sizeof err);
	b.read_gbs = argc > 5 ? atof(argv[5]) : 0;
	b.dense_tflops = argc > 6 ? atof(argv[6]) : 0;
	struct kern_config conf = {.variant = argv[1][length] ? argv[1] + length + 1 : NULL,
	                           .activations = strcmp(argv[4], "bf16") ? KERN_F32 : KERN_BF16};
	if (!b.s || b.type == KERN_WEIGHT_DTYPES || !b.k || b.k->open(&conf, &b.dev, err, sizeof err)) {
		fprintf(stderr, "bench_gpu: %s\n", err[0] ? err : "unknown shape or type");
		return 1;
	}
	snprintf(b.title, sizeof b.title, "%s %s %s", argv[2], argv[3],
	         conf.variant ? conf.variant : argv[4]);
	bench_check(&b, "stream_new", b.k->stream_new(b.dev, &b.stream));
	run_all(&b,
	        (b.type == KERN_BF16 ? WHERE_BF16 : 0) | (conf.variant ? 0 : WHERE_OWN) |
	            (conf.activations == KERN_BF16 ? WHERE_ROUNDED : 0),
	        first);
	return 0;
}
