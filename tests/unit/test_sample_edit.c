/* test_sample_edit.c - draws of whole requests (masks, bias, penalties, cuts) against exact
 * probabilities that numpy computed (tests/data/sample), and what must not depend on where a
 * request runs: counts that are kept up are those that are made anew. */
#include "draw_rig.h"
#include "util/mem.h"

#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define V 40u
#define CASES "tests/data/sample/cases.txt"
#define LIST_MAX 64u

/* --- the cases ----------------------------------------------------------- */

struct list {
	uint32_t id[LIST_MAX];
	size_t n;
};

struct want {
	char name[64];
	struct sample_params p;
	struct sample_edit_opts o;
	struct list tokens, ends, bias_ids, allowed, bad;
	uint32_t prompt_tokens;
	float bias[LIST_MAX], logits[V];
	double probs[V];
};

static void expect(FILE *f, const char *word, size_t *ret_n)
{
	char got[32];
	ck_assert_int_eq(fscanf(f, "%31s %zu", got, ret_n), 2);
	ck_assert_str_eq(got, word);
	ck_assert_uint_le(*ret_n, LIST_MAX);
}

static void read_ids(FILE *f, const char *word, struct list *l)
{
	size_t n;
	expect(f, word, &n);
	for (; n; n--)
		ck_assert_int_eq(fscanf(f, "%u", &l->id[l->n++]), 1);
}

/* 0 at the end of the file. */
static int read_case(FILE *f, struct want *w)
{
	size_t n;
	*w = (struct want){.o.vocab = V, .p.logprobs = 0};
	if (fscanf(f, " case %63s %f %u %f %f %f %f %f %f %u", w->name, &w->p.temperature, &w->p.top_k,
	           &w->p.top_p, &w->p.min_p, &w->p.typical_p, &w->o.repetition, &w->o.presence,
	           &w->o.frequency, &w->o.min_tokens) != 10)
		return 0;
	read_ids(f, "prompt", &w->tokens);
	w->prompt_tokens = (uint32_t)w->tokens.n;
	read_ids(f, "answer", &w->tokens);
	read_ids(f, "ends", &w->ends);
	expect(f, "bias", &n);
	for (size_t i = 0; i < n; i++)
		ck_assert_int_eq(fscanf(f, "%u %f", &w->bias_ids.id[w->bias_ids.n++], &w->bias[i]), 2);
	read_ids(f, "allowed", &w->allowed);
	read_ids(f, "bad", &w->bad);
	expect(f, "logits", &n);
	for (size_t i = 0; i < V; i++)
		ck_assert_int_eq(fscanf(f, "%f", &w->logits[i]), 1);
	expect(f, "probs", &n);
	for (size_t i = 0; i < V; i++)
		ck_assert_int_eq(fscanf(f, "%lf", &w->probs[i]), 1);
	return 1;
}

/* Pointers into w. */
static struct sample_edit *edit_of(struct want *w)
{
	w->o.tokens_max = (uint32_t)w->tokens.n + 8;
	w->o.ends[0] = w->ends.id; /* in two lists, as a worker has them */
	w->o.n_ends[0] = w->ends.n / 2;
	w->o.ends[1] = w->ends.id + w->ends.n / 2;
	w->o.n_ends[1] = w->ends.n - w->ends.n / 2;
	w->o.bias_ids = w->bias_ids.id;
	w->o.bias = w->bias;
	w->o.n_bias = w->bias_ids.n;
	w->o.allowed = w->allowed.id;
	w->o.n_allowed = w->allowed.n;
	w->o.bad = w->bad.id;
	w->o.n_bad = w->bad.n;
	return sample_edit_new(&w->o);
}

static struct engine_draw at_of(const struct want *w, struct sample_edit *e, uint64_t index)
{
	return (struct engine_draw){.index = index,
	                            .edit = e,
	                            .tokens = w->tokens.id,
	                            .prompt_tokens = w->prompt_tokens,
	                            .n_tokens = (uint32_t)w->tokens.n};
}

/* Upper quantile of chi-square at level 1e-6, Wilson-Hilferty. */
static double chi_limit(uint32_t df)
{
	double a = 2.0 / (9.0 * df), q = 1 - a + 4.753424 * sqrt(a);
	return df * q * q * q;
}

static void compare(const struct want *w, const uint32_t *got, double n)
{
	double chi = 0, rest_want = 0, rest_got = 0;
	uint32_t df = 0;
	for (uint32_t i = 0; i < V; i++) {
		ck_assert_msg(w->probs[i] > 0 || got[i] == 0,
		              "%s: id %u was drawn %u times, its probability is 0", w->name, i, got[i]);
		ck_assert_msg(w->probs[i] * n < 40 || got[i] > 0,
		              "%s: id %u was never drawn, its probability is %g", w->name, i, w->probs[i]);
		if (w->probs[i] * n < 10) {
			rest_want += w->probs[i] * n;
			rest_got += got[i];
			continue;
		}
		chi += (got[i] - w->probs[i] * n) * (got[i] - w->probs[i] * n) / (w->probs[i] * n);
		df++;
	}
	if (rest_want >= 10) {
		chi += (rest_got - rest_want) * (rest_got - rest_want) / rest_want;
		df++;
	}
	ck_assert_msg(chi <= (df > 1 ? chi_limit(df - 1) : 1e-6),
	              "%s: chi-square %g with %u degrees of freedom", w->name, chi, df ? df - 1 : 0);
}

TEST_CASE("sample_edit", .timeout_s = 120);

/* Level 1e-6 a case; the seeds are fixed, so none can flicker. Log-probabilities are those of
 * the logits as they came, in each of them. */
TEST(exact_probabilities)
{
	enum { N = 8000 };
	struct want w;
	struct kern_drawn r;
	uint32_t cases = 0;
	FILE *f = fopen(CASES, "r");
	ck_assert_ptr_nonnull(f);
	struct draw_rig *s = draw_rig_new(V);
	while (read_case(f, &w)) {
		uint32_t got[V] = {0};
		double sum = 0;
		struct sample_edit *e = edit_of(&w);
		w.p.seed = ++cases;
		for (uint32_t i = 0; i < V; i++)
			sum += exp((double)w.logits[i]);
		for (uint32_t k = 0; k < N; k++) {
			struct engine_draw at = at_of(&w, e, k);
			draw_rig_draw(s, w.logits, &w.p, &at, &r);
			ck_assert_uint_lt(r.id, V);
			got[r.id]++;
			ck_assert_float_eq_tol(r.logprob, (float)(w.logits[r.id] - log(sum)), 1e-4f);
		}
		compare(&w, got, N);
		sample_edit_destroy(&e);
	}
	ck_assert_uint_eq(cases, 38);
	draw_rig_free(&s);
	fclose(f);
}

/* --- the same wherever it runs ------------------------------------------- */

/* One that saw each token come, one that is made anew for each draw, as after a hand-over or on
 * another worker: the same ids. */
TEST(counts_are_a_function_of_the_tokens)
{
	enum { STEPS = 300, VOCAB = 97, PROMPT = 50 };
	uint32_t tokens[PROMPT + STEPS], n = PROMPT, seed = 3;
	static const uint32_t ends[] = {1, 2}, bad[] = {2, 5, 6, 1, 90};
	struct sample_edit_opts o = {.vocab = VOCAB,
	                             .tokens_max = PROMPT + STEPS,
	                             .repetition = 1.1f,
	                             .presence = 0.1f,
	                             .frequency = 0.05f,
	                             .min_tokens = 200,
	                             .ends = {ends},
	                             .n_ends = {2},
	                             .bad = bad,
	                             .n_bad = 5};
	struct sample_params p = {.temperature = 1, .top_p = 0.95f, .seed = 11, .logprobs = -1};
	struct sample_edit *kept = sample_edit_new(&o);
	struct draw_rig *s = draw_rig_new(VOCAB);
	for (uint32_t i = 0; i < PROMPT; i++)
		tokens[i] = i % 20;
	for (uint32_t k = 0; k < STEPS; k++) {
		float l[VOCAB];
		struct kern_drawn a, b;
		for (uint32_t i = 0; i < VOCAB; i++) {
			seed = seed * 1664525u + 1013904223u;
			l[i] = (float)(seed >> 8) * 0x1p-22f;
		}
		struct sample_edit *anew = sample_edit_new(&o);
		struct engine_draw at = {
			.index = k, .edit = kept, .tokens = tokens, .prompt_tokens = PROMPT, .n_tokens = n};
		draw_rig_draw(s, l, &p, &at, &a);
		at.edit = anew;
		draw_rig_draw(s, l, &p, &at, &b);
		ck_assert_uint_eq(a.id, b.id);
		ck_assert(k >= 200 || (a.id != 1 && a.id != 2));
		ck_assert_uint_ne(a.id, 90);
		ck_assert(tokens[n - 1] != 5 || a.id != 6);
		tokens[n++] = a.id;
		sample_edit_destroy(&anew);
	}
	sample_edit_destroy(&kept);
	draw_rig_free(&s);
}

/* Tokens that may turn out to be others, in a draft or drawn by the device without the host in
 * between, count for the draw and are then forgotten. */
TEST(drafted_and_pending_tokens)
{
	enum { VOCAB = 40, PROMPT = 5, N = 30 };
	uint32_t tokens[PROMPT + N];
	struct sample_edit_opts o = {.vocab = VOCAB,
	                             .tokens_max = PROMPT + N,
	                             .repetition = 1.3f,
	                             .presence = 0.2f,
	                             .frequency = 0.7f,
	                             .min_tokens = 1};
	struct sample_params p = {.temperature = 1, .top_p = 1, .seed = 5, .logprobs = -1};
	struct draw_rig *r = draw_rig_new(VOCAB);
	float l[VOCAB];
	for (uint32_t i = 0; i < PROMPT + N; i++)
		tokens[i] = (i * i + i / 3) % 11 + (i % 4) * 7;
	for (uint32_t i = 0; i < VOCAB; i++)
		l[i] = (float)(i * 37 % 23) * 0.1f - 0.5f;
	for (int prompt = 0; prompt < 2; prompt++, o.repetition = 1) {
		struct sample_edit *kept = sample_edit_new(&o);
		for (uint32_t n = PROMPT; n < PROMPT + N; n++)
			for (uint32_t ahead = 0; ahead <= 8 && n + ahead <= PROMPT + N; ahead++)
				for (uint64_t index = 0; index < 40; index++) {
					struct sample_edit *anew = sample_edit_new(&o);
					struct engine_draw d = {.index = index,
					                        .edit = anew,
					                        .tokens = tokens,
					                        .prompt_tokens = PROMPT,
					                        .n_tokens = n + ahead};
					struct kern_drawn want, drafted, pending;
					draw_rig_draw(r, l, &p, &d, &want);
					d.edit = kept;
					d.drafted = ahead;
					draw_rig_draw(r, l, &p, &d, &drafted);
					r->token = tokens[n + ahead - 1];
					d.n_tokens = n + ahead - (ahead > 0);
					d.drafted = ahead - (ahead > 0);
					d.pending = ahead > 0;
					draw_rig_draw(r, l, &p, &d, &pending);
					ck_assert_uint_eq(drafted.id, want.id);
					ck_assert_uint_eq(pending.id, want.id);
					ck_assert_uint_eq(pending.token, r->token);
					sample_edit_destroy(&anew);
				}
		sample_edit_destroy(&kept);
	}
	draw_rig_free(&r);
}

/* --- edges --------------------------------------------------------------- */

TEST(nothing_asked_is_nothing)
{
	struct sample_edit_opts o = {.vocab = 10, .tokens_max = 5, .repetition = 1};
	ck_assert_ptr_null(sample_edit_new(&o));
	o.repetition = 0;
	ck_assert_ptr_null(sample_edit_new(&o));
	o.min_tokens = 2;
	static const uint32_t tokens[5], end = 1;
	o.ends[0] = &end;
	o.n_ends[0] = 1;
	struct sample_edit *e = sample_edit_new(&o);
	struct draw_rig *r = draw_rig_new(10);
	for (uint32_t n = 2; n <= 3; n++) {
		struct engine_draw d = {.params = &(struct sample_params){.top_p = 1},
		                        .edit = e,
		                        .tokens = tokens,
		                        .prompt_tokens = 1,
		                        .n_tokens = n};
		struct kern_draw k = draw_rig_lay_out(r, &d);
		ck_assert_uint_eq(k.forbidden.n, n == 2);
		ck_assert_uint_eq(k.bias.n + k.seen.n + k.mask[0] + k.mask[1], 0);
	}
	draw_rig_free(&r);
	sample_edit_destroy(&e);
	sample_edit_destroy(&e);
}

/* NaN, infinities and ids beyond the vocabulary neither break anything nor come back to life. */
TEST(odd_logits_and_ids)
{
	static const uint32_t tokens[] = {0, 1, 2, 3, 4, 1000, UINT32_MAX}, beyond[] = {6, UINT32_MAX},
						  allowed[] = {0, 1, 2, 3, 4, 5, 6, 4000}, bad[] = {1, UINT32_MAX, 1, 6};
	static const float bias[] = {100, 100};
	struct sample_edit_opts o = {.vocab = 6,
	                             .tokens_max = 7,
	                             .repetition = 1.5f,
	                             .presence = 1,
	                             .frequency = 1,
	                             .min_tokens = 9,
	                             .ends = {beyond, beyond},
	                             .n_ends = {2, 2},
	                             .bias_ids = beyond,
	                             .bias = bias,
	                             .n_bias = 2,
	                             .allowed = allowed,
	                             .n_allowed = 8,
	                             .bad = bad,
	                             .n_bad = 4};
	float l[] = {NAN, -INFINITY, 3, -2, NAN, -INFINITY};
	struct kern_drawn r;
	struct draw_rig *s = draw_rig_new(6);
	struct sample_edit *e = sample_edit_new(&o);
	for (uint32_t k = 0; k < 200; k++) {
		struct sample_params p = {
			.temperature = (float)(k % 2), .top_p = 0.99f, .typical_p = 0.99f, .logprobs = 5};
		draw_rig_draw(
			s, l, &p,
			&(struct engine_draw){
				.index = k, .edit = e, .tokens = tokens, .prompt_tokens = 3, .n_tokens = 7},
			&r);
		ck_assert(r.id == 2 || (r.id == 3 && k % 2));
	}
	sample_edit_destroy(&e);
	draw_rig_free(&s);
}

/* A mask of constrained output and all that is forbidden leave nothing: the mask has the last
 * word. */
TEST(the_mask_has_the_last_word)
{
	static const uint32_t ends[] = {7}, tokens[1];
	struct sample_edit_opts o = {
		.vocab = 9, .tokens_max = 4, .min_tokens = 3, .ends = {ends}, .n_ends = {1}};
	float l[9] = {0};
	uint64_t only = 1u << 7;
	struct kern_drawn r;
	struct draw_rig *s = draw_rig_new(9);
	struct sample_edit *e = sample_edit_new(&o);
	for (int t = 0; t < 2; t++) {
		struct sample_params p = {.temperature = (float)t, .top_p = 1, .logprobs = -1};
		draw_rig_draw(
			s, l, &p,
			&(struct engine_draw){
				.allowed = &only, .edit = e, .tokens = tokens, .prompt_tokens = 1, .n_tokens = 1},
			&r);
		ck_assert_uint_eq(r.id, 7);
	}
	sample_edit_destroy(&e);
	draw_rig_free(&s);
}

TEST(lists_of_bad_words)
{
	static const struct {
		uint32_t list[4];
		size_t n;
		int good;
	} lists[] = {
		{{0}, 0, 1},          {{1, 9}, 2, 1}, {{1, 9, 1, 8}, 4, 1}, {{3, 1, 2, 3}, 4, 1},
		{{0, 9}, 2, 0},       {{1}, 1, 0},    {{2, 9}, 2, 0},       {{UINT32_MAX, 1, 1, 1}, 4, 0},
		{{1, 5, 2, 5}, 4, 0},
	};
	for (size_t i = 0; i < sizeof lists / sizeof *lists; i++)
		ck_assert_int_eq(sample_edit_bad_valid(lists[i].list, lists[i].n), lists[i].good);
}
