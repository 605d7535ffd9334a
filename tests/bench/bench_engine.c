/* bench_engine.c - speed of a model on this machine, without daemons: prompts (pp) and generation
 * (tg), as llama-bench counts them.
 *
 *   bench_engine MODEL [-t threads] [-T ranks] [-v variant] [-k bf16|f16|f32] [-a f32|bf16] [-b
 *   block tokens] [-c chunk tokens] [-r repeats]
 *                      [-p 512,1280] [-n 128] [-s 1,4,16,32] [-g] [-i]
 *
 * One line per test: the median of the repeats and the best. -p and -s 0 leave a part out; -g adds
 * the sampler alone.
 *
 * -i: for a program that measures in turns with another engine. The second line is `ready SECONDS`
 * (from opening the file to the first token), then each line of stdin is one run, until it ends:
 *
 *   pp TOKENS                      pp SECONDS PROCESSOR_SECONDS
 *   tg STREAMS TOKENS              tg SECONDS PROCESSOR_SECONDS     TOKENS of each stream
 *   score ID ID ...                score LOGPROB:TOP ...            of each id but the first,
 *                                  after those before it; the most probable id there */
#include "engine/engine.h"
#include "tests/unit/draw_rig.h"
#include "util/clock.h"
#include "util/mem.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { LIST_MAX = 16, REPEATS_MAX = 64, SPANS_MAX = 64, SCORE_ROWS = 64 };

struct list {
	uint32_t n, v[LIST_MAX];
};

struct bench {
	struct engine *e;
	uint32_t vocab, block_tokens, chunk, generate, repeats, blocks;
	struct list prompts, streams;
	int sampler, interactive;
};

static struct list list_parse(const char *s)
{
	struct list l = {0};
	while (*s && l.n < LIST_MAX) {
		char *end;
		uint32_t v = (uint32_t)strtoul(s, &end, 10);
		if (v)
			l.v[l.n++] = v;
		s = *end ? end + 1 : end;
		if (end == s)
			break;
	}
	return l;
}

static int double_cmp(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

static void report(const char *what, uint32_t n, uint32_t streams, double *tok_s, uint32_t repeats)
{
	qsort(tok_s, repeats, sizeof *tok_s, double_cmp);
	printf("%s%-5u streams=%-3u tok/s median %8.1f  best %8.1f  (%u runs)\n", what, n, streams,
	       tok_s[repeats / 2], tok_s[repeats - 1], repeats);
	fflush(stdout);
}

static void step(struct bench *b, struct engine_span *spans, uint32_t n)
{
	struct err err;
	if (engine_step(b->e, spans, n, &err)) {
		fprintf(stderr, "bench_engine: %s\n", err.text);
		exit(1);
	}
}

static uint32_t blocks_for(const struct bench *b, uint32_t tokens)
{
	return (tokens + b->block_tokens - 1) / b->block_tokens;
}

/* Stream i has blocks i * per .. i * per + per - 1. */
static void fill_table(uint32_t *table, uint32_t first, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		table[i] = first + i;
}

static void run_prompt(struct bench *b, const uint32_t *ids, uint32_t n, const uint32_t *table)
{
	for (uint32_t at = 0; at < n; at += b->chunk) {
		uint32_t m = n - at < b->chunk ? n - at : b->chunk;
		struct engine_span span = {.tokens = ids + at,
		                           .n = m,
		                           .position = at,
		                           .blocks = table,
		                           .logits = at + m == n ? ENGINE_LOGITS_LAST : ENGINE_LOGITS_NONE};
		step(b, &span, 1);
	}
}

static void some_ids(const struct bench *b, uint32_t *ids, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		ids[i] = (i * 7919u + 17) % b->vocab;
}

static void bench_prompt(struct bench *b, uint32_t n)
{
	uint32_t *ids = mem_array(n, sizeof *ids), *table = mem_array(blocks_for(b, n), sizeof *table);
	double tok_s[REPEATS_MAX];
	some_ids(b, ids, n);
	fill_table(table, 0, blocks_for(b, n));
	run_prompt(b, ids, n, table);
	for (uint32_t r = 0; r < b->repeats; r++) {
		uint64_t from = clock_us();
		run_prompt(b, ids, n, table);
		tok_s[r] = n * 1e6 / (double)(clock_us() - from);
	}
	report("pp", n, 1, tok_s, b->repeats);
	free(ids);
	free(table);
}

/* Greedy generation of `tokens` tokens by each stream, from an empty context. */
static void generate(struct bench *b, uint32_t streams, uint32_t tokens, uint32_t *table,
                     uint32_t per)
{
	static const struct sample_params greedy = {.top_p = 1, .logprobs = -1};
	struct engine_span spans[SPANS_MAX];
	struct engine_draw draws[SPANS_MAX];
	uint32_t token[SPANS_MAX];
	for (uint32_t i = 0; i < streams; i++)
		token[i] = i + 1;
	for (uint32_t k = 0; k < tokens; k++) {
		for (uint32_t i = 0; i < streams; i++) {
			draws[i] = (struct engine_draw){.params = &greedy, .index = k};
			spans[i] = (struct engine_span){.tokens = &token[i],
			                                .n = 1,
			                                .position = k,
			                                .blocks = table + i * per,
			                                .logits = ENGINE_LOGITS_LAST,
			                                .draws = &draws[i]};
		}
		step(b, spans, streams);
		for (uint32_t i = 0; i < streams; i++)
			token[i] = spans[i].drawn->id;
	}
}

static void bench_generate(struct bench *b, uint32_t streams)
{
	uint32_t per = blocks_for(b, b->generate),
			 *table = mem_array((size_t)per * streams, sizeof *table);
	double tok_s[REPEATS_MAX];
	fill_table(table, 0, per * streams);
	for (uint32_t r = 0; r < b->repeats; r++) {
		uint64_t from = clock_us();
		generate(b, streams, b->generate, table, per);
		tok_s[r] = (double)b->generate * streams * 1e6 / (double)(clock_us() - from);
	}
	report("tg", b->generate, streams, tok_s, b->repeats);
	free(table);
}

static void bench_sampler(uint32_t vocab)
{
	static const struct {
		const char *name;
		struct sample_params p;
	} cases[] = {
		{"greedy", {.top_p = 1, .logprobs = -1}},
		{"greedy, 5 logprobs", {.top_p = 1, .logprobs = 5}},
		{"temperature 1", {.temperature = 1, .top_p = 1, .logprobs = -1}},
		{"temperature 0.8, top_p 0.95", {.temperature = 0.8f, .top_p = 0.95f, .logprobs = -1}},
		{"temperature 0.8, top_k 50, top_p 0.95",
	     {.temperature = 0.8f, .top_p = 0.95f, .top_k = 50, .logprobs = -1}},
		{"temperature 100 (flat)", {.temperature = 100, .top_p = 0.95f, .logprobs = -1}},
	};
	float *l = mem_array(vocab, sizeof *l);
	uint32_t seed = 1;
	for (uint32_t i = 0; i < vocab; i++)
		for (int k = 0; k < 6; k++) {
			seed = seed * 1664525u + 1013904223u;
			l[i] += ((float)(seed >> 8) * 0x1p-24f - 0.5f) * 4;
		}
	struct draw_rig *s = draw_rig_new(vocab);
	for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
		struct kern_drawn r;
		uint64_t from = clock_us();
		for (uint32_t i = 0; i < 300; i++)
			draw_rig_draw(s, l, &cases[c].p, &(struct engine_draw){.index = i}, &r);
		printf("sampler, vocabulary %u, %-40s %7.1f us a token\n", vocab, cases[c].name,
		       (double)(clock_us() - from) / 300);
	}
	draw_rig_free(&s);
	free(l);
}

/* --- one run at a time, as asked for on stdin ---------------------------- */

struct stopwatch {
	uint64_t from_us;
	struct timespec cpu;
};

static void stopwatch_start(struct stopwatch *w)
{
	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &w->cpu);
	w->from_us = clock_us();
}

static void stopwatch_say(const struct stopwatch *w, const char *what)
{
	double wall = (double)(clock_us() - w->from_us) / 1e6;
	struct timespec t;
	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
	printf("%s %.6f %.6f\n", what, wall,
	       (double)(t.tv_sec - w->cpu.tv_sec) + (double)(t.tv_nsec - w->cpu.tv_nsec) / 1e9);
}

static double logprob(const float *l, uint32_t n, uint32_t id, uint32_t *ret_top)
{
	uint32_t top = 0;
	double sum = 0;
	for (uint32_t i = 1; i < n; i++)
		top = l[i] > l[top] ? i : top;
	for (uint32_t i = 0; i < n; i++)
		sum += (double)expf(l[i] - l[top]);
	*ret_top = top;
	return (double)(l[id] - l[top]) - log(sum);
}

static void score(struct bench *b, const uint32_t *ids, uint32_t n, const uint32_t *table)
{
	printf("score");
	for (uint32_t at = 0; at + 1 < n; at += SCORE_ROWS) {
		uint32_t m = n - 1 - at < SCORE_ROWS ? n - 1 - at : SCORE_ROWS, top;
		struct engine_span span = {.tokens = ids + at,
		                           .n = m,
		                           .position = at,
		                           .blocks = table,
		                           .logits = ENGINE_LOGITS_ALL};
		step(b, &span, 1);
		for (uint32_t i = 0; i < m; i++) {
			double p = logprob(engine_logits(b->e, span.logits_row + i), b->vocab, ids[at + i + 1],
			                   &top);
			printf(" %.5f:%u", p, top);
		}
	}
	printf("\n");
}

static uint32_t parse_ids(char *text, uint32_t *ids, uint32_t max)
{
	uint32_t n = 0;
	for (char *s = strtok(text, " \n"); s; s = strtok(NULL, " \n")) {
		if (n == max) {
			fprintf(stderr, "bench_engine: more than %u ids in a line; -p makes room\n", max);
			exit(1);
		}
		ids[n++] = (uint32_t)strtoul(s, NULL, 10);
	}
	return n;
}

static void one_run(struct bench *b, char *line, uint32_t max, uint32_t *ids, uint32_t *table)
{
	struct stopwatch w;
	uint32_t n = 0, tokens = 0;
	if (sscanf(line, "pp %u", &n) == 1 && n >= 1 && n <= max) {
		some_ids(b, ids, n);
		stopwatch_start(&w);
		run_prompt(b, ids, n, table);
		stopwatch_say(&w, "pp");
	} else if (sscanf(line, "tg %u %u", &n, &tokens) == 2 && n >= 1 && n <= SPANS_MAX &&
	           (uint64_t)n * blocks_for(b, tokens) <= b->blocks) {
		stopwatch_start(&w);
		generate(b, n, tokens, table, blocks_for(b, tokens));
		stopwatch_say(&w, "tg");
	} else if (!strncmp(line, "score ", 6)) {
		n = parse_ids(line + 6, ids, max);
		score(b, ids, n, table);
	} else {
		line[strcspn(line, "\n")] = 0;
		fprintf(stderr,
		        "bench_engine: \"%.60s\" is none of pp, tg, score, or beyond what -p, -n and -s "
		        "made room for\n",
		        line);
		exit(1);
	}
	fflush(stdout);
}

static void run_as_asked(struct bench *b, uint64_t opened_us)
{
	uint32_t max = b->blocks * b->block_tokens, *ids = mem_array(max, sizeof *ids),
			 *table = mem_array(b->blocks, sizeof *table);
	char *line = NULL;
	size_t room = 0;
	fill_table(table, 0, b->blocks);
	some_ids(b, ids, 1);
	run_prompt(b, ids, 1, table);
	printf("ready %.6f\n", (double)(clock_us() - opened_us) / 1e6);
	fflush(stdout);
	while (getline(&line, &room, stdin) > 0)
		one_run(b, line, max, ids, table);
	free(line);
	free(ids);
	free(table);
}

static uint32_t list_max(const struct list *l)
{
	uint32_t m = 0;
	for (uint32_t i = 0; i < l->n; i++)
		m = l->v[i] > m ? l->v[i] : m;
	return m;
}

static void run_all(struct bench *b)
{
	for (uint32_t k = 0; k < b->prompts.n; k++)
		bench_prompt(b, b->prompts.v[k]);
	for (uint32_t k = 0; k < b->streams.n && b->generate; k++)
		bench_generate(b, b->streams.v[k]);
	if (b->sampler)
		bench_sampler(b->vocab);
}

static int usage(void)
{
	fprintf(stderr, "usage: bench_engine MODEL [-t threads] [-T ranks] [-v variant] [-k "
	                "bf16|f16|f32] [-a f32|bf16] [-b block_tokens] [-c chunk_tokens] [-r repeats]\n"
	                "                    [-p 512,1280] [-n 128] [-s 1,4,16,32] [-g] [-i]\n");
	return 2;
}

static int parse(int argc, char **argv, struct bench *b, struct engine_opts *o)
{
	int c;
	while ((c = getopt(argc, argv, "t:T:v:k:a:b:c:r:p:n:s:gi")) != -1) {
		switch (c) {
		case 't': o->threads = (unsigned)atoi(optarg); break;
		case 'T': o->tp = (unsigned)atoi(optarg); break;
		case 'v': o->variant = optarg; break;
		case 'k':
			if (kv_type_parse(optarg, &o->kv_type))
				return usage();
			break;
		case 'a': o->activations = strcmp(optarg, "bf16") == 0 ? KERN_BF16 : KERN_F32; break;
		case 'b': b->block_tokens = (uint32_t)atoi(optarg); break;
		case 'c': b->chunk = (uint32_t)atoi(optarg); break;
		case 'r': b->repeats = (uint32_t)atoi(optarg); break;
		case 'p': b->prompts = list_parse(optarg); break;
		case 'n': b->generate = (uint32_t)atoi(optarg); break;
		case 's': b->streams = list_parse(optarg); break;
		case 'g': b->sampler = 1; break;
		case 'i': b->interactive = 1; break;
		default: return usage();
		}
	}
	if (optind + 1 != argc || !b->block_tokens || !b->chunk || !b->repeats ||
	    b->repeats > REPEATS_MAX || list_max(&b->streams) > SPANS_MAX)
		return usage();
	o->model_path = argv[optind];
	return 0;
}

int main(int argc, char **argv)
{
	struct bench b = {.block_tokens = 64,
	                  .chunk = 512,
	                  .generate = 128,
	                  .repeats = 5,
	                  .prompts = {2, {512, 1280}},
	                  .streams = {4, {1, 4, 16, 32}}};
	struct engine_opts o = {.backend = "cpu"};
	struct err err;
	if (parse(argc, argv, &b, &o))
		return 2;
	uint32_t streams = list_max(&b.streams) ? list_max(&b.streams) : 1,
			 per = blocks_for(&b, b.generate + 1);
	uint32_t of_prompt = blocks_for(&b, list_max(&b.prompts) + 1);
	o.block_tokens = b.block_tokens;
	o.max_rows = b.chunk > streams ? b.chunk : streams;
	o.max_spans = streams;
	o.max_logits = b.interactive && streams < SCORE_ROWS ? SCORE_ROWS : streams;
	b.blocks = per * streams > of_prompt ? per * streams : of_prompt;
	uint64_t from = clock_us();
	if (engine_open(&o, &b.e, &err)) {
		fprintf(stderr, "bench_engine: %s\n", err.text);
		return 1;
	}
	const struct engine_info *i = engine_info(b.e);
	b.vocab = i->vocab;
	printf("%s, %s, %u threads (0: all), %.1f MiB of weights, loaded in %.2f s\n", i->name,
	       i->numerics, o.threads, (double)i->weight_bytes / 1048576,
	       (double)(clock_us() - from) / 1e6);
	if (engine_new_pool(b.e, b.blocks, NULL, &err)) {
		fprintf(stderr, "bench_engine: %s\n", err.text);
		return 1;
	}
	if (engine_pool(b.e)->host)
		/* its pages are there before time is measured */
		memset(engine_pool(b.e)->host, 0, engine_pool(b.e)->bytes);
	if (b.interactive)
		run_as_asked(&b, from);
	else
		run_all(&b);
	engine_close(&b.e);
	return 0;
}
