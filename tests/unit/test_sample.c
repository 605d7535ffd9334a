/* test_sample.c - draws against exact probabilities, the cuts against a full sort, logprobs
 * against double arithmetic. */
/* run: long minutes */
#include "draw_rig.h"
#include "util/mem.h"

#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define VOCAB 1003u /* no multiple of anything */
#define AT(i) ((struct engine_draw){.index = (i)})

/* --- an exact, slow sampler ---------------------------------------------- */

struct item {
	uint32_t id;
	double p;
};

static int item_cmp(const void *a, const void *b)
{
	const struct item *x = a, *y = b;
	return x->p != y->p ? (x->p < y->p) - (x->p > y->p) : (x->id > y->id) - (x->id < y->id);
}

/* Probabilities of the draw: temperature, min_p, top_k, top_p in this order. */
static void exact(const float *logits, uint32_t n, const struct sample_params *p, double *out)
{
	struct item *it = mem_array(n, sizeof *it);
	double max = -INFINITY, sum = 0;
	for (uint32_t i = 0; i < n; i++)
		max = logits[i] > max ? logits[i] : max;
	for (uint32_t i = 0; i < n; i++)
		it[i] = (struct item){i, exp(((double)logits[i] - max) / p->temperature)};
	qsort(it, n, sizeof *it, item_cmp);
	uint32_t keep = 0;
	while (keep < n && it[keep].p >= p->min_p && it[keep].p > 0 && (!p->top_k || keep < p->top_k))
		sum += it[keep++].p;
	double cum = 0;
	uint32_t kept = 0;
	while (kept < keep && (kept == 0 || cum < (double)p->top_p * sum || p->top_p >= 1))
		cum += it[kept++].p;
	memset(out, 0, n * sizeof *out);
	for (uint32_t i = 0; i < kept; i++)
		out[it[i].id] = it[i].p / cum;
	free(it);
}

/* Roughly normal logits, the same in each run. */
static void make_logits(float *l, uint32_t n, float spread, uint32_t seed)
{
	for (uint32_t i = 0; i < n; i++) {
		float sum = 0;
		for (int k = 0; k < 6; k++) {
			seed = seed * 1664525u + 1013904223u;
			sum += (float)(seed >> 8) * 0x1p-24f - 0.5f;
		}
		l[i] = sum * spread * 1.4f;
	}
}

static const struct {
	struct sample_params p;
	float spread;
} draws[] = {
	{{.temperature = 1, .top_p = 1}, 3},
	{{.temperature = 1, .top_p = 1}, 0.01f},
	{{.temperature = 0.5f, .top_p = 1, .seed = 7}, 3},
	{{.temperature = 2, .top_p = 0.9f, .seed = 8}, 3},
	{{.temperature = 1, .top_p = 0.5f, .seed = 9}, 0.1f},
	{{.temperature = 1, .top_p = 1, .top_k = 5, .seed = 10}, 2},
	{{.temperature = 1, .top_p = 1, .top_k = 900, .seed = 11}, 2},
	{{.temperature = 1, .top_p = 0.7f, .top_k = 40, .seed = 12}, 2},
	{{.temperature = 1, .top_p = 1, .min_p = 0.05f, .seed = 13}, 3},
	{{.temperature = 1.3f, .top_p = 0.95f, .top_k = 300, .min_p = 0.001f, .seed = UINT64_MAX}, 3},
	{{.temperature = 100, .top_p = 0.99f, .seed = 14}, 3},
	{{.temperature = 1, .top_p = 1e-6f, .seed = 15}, 3},
	{{.temperature = 1, .top_p = 0.995f, .seed = 16}, 3},
};

/* Upper quantile of chi-square at level 1e-6, Wilson-Hilferty. */
static double chi_limit(uint32_t df)
{
	double a = 2.0 / (9.0 * df), q = 1 - a + 4.753424 * sqrt(a);
	return df * q * q * q;
}

TEST_CASE("sample", .timeout_s = 120);

/* Nothing outside the cuts is ever drawn; the frequencies inside fit at level 1e-6 (seeds are
 * fixed, so this cannot flicker). */
TEST_LOOP(frequencies, 0, sizeof draws / sizeof *draws)
{
	enum { N = 100000 };
	struct sample_params p = draws[_i].p;
	float l[VOCAB];
	double want[VOCAB];
	uint32_t got[VOCAB] = {0};
	struct kern_drawn r;
	p.logprobs = -1;
	make_logits(l, VOCAB, draws[_i].spread, 1 + (uint32_t)_i);
	exact(l, VOCAB, &p, want);
	struct draw_rig *s = draw_rig_new(VOCAB);
	for (uint32_t k = 0; k < N; k++) {
		draw_rig_draw(s, l, &p, &AT(k), &r);
		ck_assert_uint_lt(r.id, VOCAB);
		got[r.id]++;
	}
	double chi = 0, rest_want = 0, rest_got = 0;
	uint32_t df = 0, support = 0;
	for (uint32_t i = 0; i < VOCAB; i++) {
		ck_assert_msg(want[i] > 0 || got[i] == 0,
		              "case %d: id %u was drawn %u times, its probability is 0", _i, i, got[i]);
		support += want[i] > 0;
		if (want[i] * N < 10) {
			rest_want += want[i] * N;
			rest_got += got[i];
			continue;
		}
		chi += (got[i] - want[i] * N) * (got[i] - want[i] * N) / (want[i] * N);
		df++;
	}
	if (rest_want >= 10) {
		chi += (rest_got - rest_want) * (rest_got - rest_want) / rest_want;
		df++;
	}
	double limit = df > 1 ? chi_limit(df - 1) : 1e-6;
	printf(
		"case %d: %u ids can be drawn, chi-square %.1f with %u degrees of freedom (limit %.1f)\n",
		_i, support, chi, df ? df - 1 : 0, limit);
	ck_assert_msg(chi <= limit, "case %d: %g > %g", _i, chi, limit);
	draw_rig_free(&s);
}

/* Equal logits: the draw is floor(u * vocabulary), u from the published answers of Philox4x32-10
 * for key 0, counter 0. */
TEST(philox_known_answer)
{
	enum { N = 65536 };
	float *l = mem_array(N, sizeof *l);
	struct draw_rig *s = draw_rig_new(N);
	struct kern_drawn r;
	struct sample_params p = {.temperature = 1, .top_p = 1, .logprobs = -1};
	draw_rig_draw(s, l, &p, &AT(0), &r);
	ck_assert_uint_eq(r.id, 0xe169); /* 0x6627e8d5, 0xe169c58d, ... */
	draw_rig_free(&s);
	free(l);
}

/* A function of (seed, index) alone: another sampler, another order, the same ids; other seeds
 * give other ids. */
TEST(reproducible)
{
	float l[VOCAB];
	struct kern_drawn a, b;
	struct sample_params p = {.temperature = 1, .top_p = 0.95f, .seed = 42, .logprobs = -1};
	make_logits(l, VOCAB, 0.5f, 3);
	struct draw_rig *s = draw_rig_new(VOCAB), *t = draw_rig_new(VOCAB);
	uint32_t ids[64], same = 0;
	for (uint32_t i = 0; i < 64; i++) {
		draw_rig_draw(s, l, &p, &AT(i), &a);
		ids[i] = a.id;
	}
	for (uint32_t i = 64; i-- > 0;) {
		draw_rig_draw(t, l, &p, &AT(i), &b);
		ck_assert_uint_eq(ids[i], b.id);
		struct sample_params q = p;
		q.seed++;
		draw_rig_draw(t, l, &q, &AT(i), &b);
		same += ids[i] == b.id;
	}
	ck_assert_uint_lt(same, 8);
	draw_rig_free(&s);
	draw_rig_free(&t);
}

static const struct {
	const char *name;
	float l[6];
	float temperature;
	uint32_t want;
} edges[] = {
	{"greedy takes the largest", {1, 5, 2, 4, 3, 0}, 0, 1},
	{"of equal ones the lowest id", {1, 5, 2, 5, 5, 0}, 0, 1},
	{"a temperature near 0 is greedy", {1, 5, 2, 4.999f, 3, 0}, 1e-7f, 1},
	{"NaN counts as minus infinity", {NAN, 1, NAN, 2, NAN, NAN}, 0, 3},
	{"NaN is never drawn", {NAN, NAN, NAN, 2, NAN, NAN}, 1, 3},
	{"minus infinity is never drawn",
     {-INFINITY, -INFINITY, -INFINITY, -INFINITY, -7, -INFINITY},
     100,
     4},
	{"plus infinity wins", {1, 2, INFINITY, 3, 4, 5}, 1, 2},
	{"nothing to choose from",
     {-INFINITY, -INFINITY, -INFINITY, -INFINITY, -INFINITY, -INFINITY},
     1,
     0},
	{"huge logits", {1e30f, 3e38f, 1e38f, -3e38f, 0, 0}, 1, 1},
};

TEST_LOOP(edge_logits, 0, sizeof edges / sizeof *edges)
{
	struct draw_rig *s = draw_rig_new(6);
	struct kern_drawn r;
	struct sample_params p = {.temperature = edges[_i].temperature, .top_p = 1, .logprobs = -1};
	for (uint32_t k = 0; k < 50; k++) {
		draw_rig_draw(s, edges[_i].l, &p, &AT(k), &r);
		ck_assert_msg(r.id == edges[_i].want, "%s: id %u, want %u", edges[_i].name, r.id,
		              edges[_i].want);
	}
	draw_rig_free(&s);
}

/* Logprobs are of the unscaled distribution, whatever the draw does; ranks and alternatives are
 * those of a full sort. */
TEST(logprobs)
{
	enum { N = 4999 };
	static float l[N];
	static struct item it[N];
	make_logits(l, N, 4, 9);
	l[17] = l[400] = l[4998]; /* ties */
	double sum = 0;
	for (uint32_t i = 0; i < N; i++)
		sum += exp((double)l[i]);
	for (uint32_t i = 0; i < N; i++)
		it[i] = (struct item){i, (double)l[i]};
	qsort(it, N, sizeof *it, item_cmp);
	struct draw_rig *s = draw_rig_new(N);
	struct kern_drawn r;
	struct sample_params p = {.temperature = 0.3f, .top_p = 0.8f, .top_k = 50, .seed = 5};
	for (p.logprobs = 0; p.logprobs <= KERN_TOP_MAX; p.logprobs++) {
		draw_rig_draw(s, l, &p, &AT((uint64_t)p.logprobs), &r);
		ck_assert_float_eq_tol(r.logprob, (float)(l[r.id] - log(sum)), 1e-5f);
		ck_assert_uint_eq(it[r.rank - 1].id, r.id);
		ck_assert_uint_eq(r.n_top, (uint32_t)p.logprobs);
		for (uint32_t i = 0; i < r.n_top; i++) {
			ck_assert_uint_eq(r.top[i].id, it[i].id);
			ck_assert_float_eq_tol(r.top[i].logprob, (float)(it[i].p - log(sum)), 1e-5f);
		}
	}
	static const uint32_t ties[] = {17, 400, 4998};
	for (uint32_t i = 0, first = 0; i < 3; i++) {
		draw_rig_score(s, l, ties[i], 0, &r);
		first = i ? first : r.rank;
		ck_assert_uint_eq(r.rank, first + i);
	}
	for (uint32_t i = 0; i < N; i += 97) {
		draw_rig_score(s, l, it[i].id, 2, &r);
		ck_assert_uint_eq(r.rank, i + 1);
		ck_assert_uint_eq(r.id, it[i].id);
		ck_assert_float_eq_tol(r.logprob, (float)(it[i].p - log(sum)), 1e-5f);
	}
	draw_rig_free(&s);
}

/* The log-probabilities of a draw are those of the model, whatever it draws from. */
TEST(logprobs_of_any_draw)
{
	static float l[VOCAB];
	static uint64_t mask[(VOCAB + 63) / 64] = {[2] = 0xff00ff};
	static const struct sample_params p[] = {
		{.temperature = 1, .top_p = 1, .logprobs = 5},
		{.temperature = 1, .top_p = 1, .min_p = 0.2f, .logprobs = 5},
		{.temperature = 0.7f, .top_p = 1, .logprobs = 5},
		{.temperature = 0, .top_p = 1, .logprobs = 5},
	};
	struct draw_rig *s = draw_rig_new(VOCAB);
	make_logits(l, VOCAB, 3, 6);
	for (uint32_t k = 0; k < 2 * sizeof p / sizeof *p; k++) {
		struct engine_draw where = {.index = k, .allowed = k % 2 ? mask : NULL};
		struct kern_drawn drawn = {0}, score = {0};
		draw_rig_draw(s, l, &p[k / 2], &where, &drawn);
		draw_rig_score(s, l, drawn.id, 5, &score);
		ck_assert_uint_eq(drawn.n_top, 5);
		ck_assert_mem_eq(&drawn.logprob, &score.logprob, sizeof drawn.logprob);
		ck_assert_mem_eq(drawn.top, score.top, drawn.n_top * sizeof *drawn.top);
	}
	draw_rig_free(&s);
}

/* --- what is not finite -------------------------------------------------- */

/* Wherever it stands, with or without an edited copy, allowed or not, greedy or drawn, scored or
 * not. Minus infinity is a logit like others. */
TEST_LOOP(not_finite_is_told, 0, 5)
{
	static const uint32_t vocabs[] = {1, 7, 64, 65, VOCAB};
	static const float bad[] = {NAN, -NAN, INFINITY, -INFINITY};
	const uint32_t vocab = vocabs[_i];
	struct draw_rig *s = draw_rig_new(vocab);
	float *l = mem_array(vocab, sizeof *l);
	uint64_t *mask = mem_array((vocab + 63) / 64, sizeof *mask);
	uint32_t end = 0;
	struct sample_edit_opts o = {.vocab = vocab,
	                             .tokens_max = 8,
	                             .min_tokens = 4,
	                             .ends = {&end},
	                             .n_ends = {1},
	                             .repetition = 1};
	struct sample_edit *e = sample_edit_new(&o);
	make_logits(l, vocab, 3, 5);
	mask[0] = vocab > 1 ? 2 : 1; /* one id */
	for (uint32_t at = 0; at < vocab; at += at < 70 ? 1 : 31)
		for (size_t b = 0; b < sizeof bad / sizeof *bad; b++)
			for (int how = 0; how < 16; how++) {
				struct sample_params p = {.temperature = how & 1 ? 1 : 0,
				                          .top_p = 1,
				                          .logprobs = how & 2 ? 2 : -1};
				struct engine_draw where = {.allowed = how & 4 ? mask : NULL,
				                            .edit = how & 8 ? e : NULL};
				struct kern_drawn r, score;
				float was = l[at];
				draw_rig_draw(s, l, &p, &where, &r);
				ck_assert_uint_eq(r.not_finite, 0);
				l[at] = bad[b];
				draw_rig_draw(s, l, &p, &where, &r);
				draw_rig_score(s, l, vocab / 2, how & 2 ? 2 : -1, &score);
				l[at] = was;
				uint32_t want = b < 3;
				if (r.not_finite != want || score.not_finite != want)
					ck_abort_msg("%g at %u of %u, way %d: told as %u, scored "
					             "as %u, want %u",
					             (double)bad[b], at, vocab, how, r.not_finite, score.not_finite,
					             want);
			}
	sample_edit_destroy(&e);
	draw_rig_free(&s);
	free(l);
	free(mask);
}

/* FNV-1a of what comes of 4,000 draws with every cut: ids and the bits of the log-probabilities. It
 * is the same on every machine, whatever its libm and the compiler's -march. A change of it is a
 * change of what requests with a seed draw: raise the numerics id. */
TEST(same_bits_everywhere)
{
	enum { N = 1000, TOP = KERN_TOP_MAX };
	static float l[N];
	static const struct sample_params cuts[] = {
		{.temperature = 1, .top_p = 1},
		{.temperature = 0.7f, .top_p = 0.9f},
		{.temperature = 1.3f, .top_p = 1, .typical_p = 0.5f},
		{.temperature = 1, .top_p = 0.95f, .top_k = 50, .typical_p = 0.9f},
		{.temperature = 2, .top_p = 1, .min_p = 0.01f, .typical_p = 0.2f},
		{.top_p = 1},
	};
	struct draw_rig *s = draw_rig_new(N);
	uint64_t h = 14695981039346656037u;
	for (uint32_t k = 0; k < 4000; k++) {
		struct sample_params p = cuts[k % 6];
		struct kern_drawn r;
		uint32_t words[2 + 2 * TOP], n = 0;
		p.seed = k;
		p.logprobs = TOP;
		make_logits(l, N, 0.02f * (float)(1 + k % 300), k);
		draw_rig_draw(s, l, &p, &AT(k), &r);
		words[n++] = r.id;
		memcpy(&words[n++], &r.logprob, 4);
		for (uint32_t i = 0; i < TOP; i++) {
			words[n++] = r.top[i].id;
			memcpy(&words[n++], &r.top[i].logprob, 4);
		}
		for (uint32_t i = 0; i < n; i++)
			h = (h ^ words[i]) * 1099511628211u;
	}
	draw_rig_free(&s);
	ck_assert_msg(h == UINT64_C(0x7ddb5647dcef668b), "%016llx", (unsigned long long)h);
}

/* Vocabularies around the sizes of blocks and lanes, down to one. */
TEST(odd_vocabularies)
{
	static const uint32_t sizes[] = {1, 2, 7, 8, 63, 64, 65, 127, 128, 129, 1000};
	float l[1000];
	for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) {
		uint32_t n = sizes[k];
		for (uint32_t best = 0; best<n; best += n> 16 ? n / 16 : 1) {
			struct draw_rig *s = draw_rig_new(n);
			struct kern_drawn r;
			for (uint32_t i = 0; i < n; i++)
				l[i] = i == best ? 9 : -1e4f;
			for (int t = 0; t < 2; t++) {
				draw_rig_draw(
					s, l,
					&(struct sample_params){.temperature = (float)t, .top_p = 1, .logprobs = 20},
					&AT(0), &r);
				ck_assert_uint_eq(r.id, best);
				ck_assert_uint_eq(r.rank, 1);
				ck_assert_uint_eq(r.n_top, n < 20 ? n : 20);
				ck_assert_float_eq_tol(r.logprob, 0, 1e-6f);
			}
			draw_rig_free(&s);
		}
	}
}

/* Only allowed ids are drawn, and those as if the others were not there; log-probabilities stay
 * those of all. */
TEST(allowed_ids)
{
	enum { N = 20000 };
	float l[VOCAB], few[VOCAB];
	uint64_t allowed[(VOCAB + 63) / 64] = {0};
	double want[VOCAB], sum = 0;
	uint32_t got[VOCAB] = {0}, df = 0;
	struct kern_drawn r, raw;
	struct sample_params p = {.temperature = 1, .top_p = 0.9f, .top_k = 40, .seed = 21};
	struct draw_rig *s = draw_rig_new(VOCAB);
	make_logits(l, VOCAB, 2, 5);
	for (uint32_t i = 0; i < VOCAB; i++) {
		int in = i % 3 == 1 || (i >= 128 && i < 192) || i == VOCAB - 1;
		in = in && !(i >= 64 && i < 128);
		allowed[i / 64] |= (uint64_t)in << i % 64;
		few[i] = in ? l[i] : -INFINITY;
		sum += exp((double)l[i]);
	}
	allowed[VOCAB / 64] |= UINT64_MAX << VOCAB % 64; /* bits past the vocabulary mean nothing */
	exact(few, VOCAB, &p, want);
	for (uint32_t k = 0; k < N; k++) {
		draw_rig_draw(s, l, &p, &(struct engine_draw){.index = k, .allowed = allowed}, &r);
		got[r.id]++;
		ck_assert_float_eq_tol(r.logprob, (float)(l[r.id] - log(sum)), 1e-5f);
	}
	double chi = 0;
	for (uint32_t i = 0; i < VOCAB; i++) {
		ck_assert_msg(want[i] > 0 || got[i] == 0, "id %u was drawn", i);
		df += want[i] > 0;
		chi += want[i] > 0 ? (got[i] - want[i] * N) * (got[i] - want[i] * N) / (want[i] * N) : 0;
	}
	ck_assert_double_le(chi, chi_limit(df - 1));
	p.temperature = 0;
	draw_rig_draw(s, l, &p, &(struct engine_draw){.allowed = allowed}, &r);
	draw_rig_draw(s, few, &p, &AT(0), &raw);
	ck_assert_uint_eq(r.id, raw.id);
	draw_rig_free(&s);
}

/* The lowest allowed id if none of them has a finite logit, id 0 if nothing is allowed. */
TEST(nothing_allowed)
{
	float l[130];
	uint64_t allowed[3] = {0};
	struct kern_drawn r;
	struct draw_rig *s = draw_rig_new(130);
	for (int t = 0; t < 2; t++) {
		struct sample_params p = {.temperature = (float)t, .top_p = 1, .logprobs = -1};
		for (uint32_t i = 0; i < 130; i++)
			l[i] = i % 2 ? -INFINITY : 1;
		memset(allowed, 0, sizeof allowed);
		draw_rig_draw(s, l, &p, &(struct engine_draw){.allowed = allowed}, &r);
		ck_assert_uint_eq(r.id, 0);
		allowed[2] = 2;
		draw_rig_draw(s, l, &p, &(struct engine_draw){.allowed = allowed}, &r);
		ck_assert_uint_eq(r.id, 129);
		allowed[1] = 1ull << 63;
		draw_rig_draw(s, l, &p, &(struct engine_draw){.allowed = allowed}, &r);
		ck_assert_uint_eq(r.id, 127);
	}
	draw_rig_free(&s);
}
