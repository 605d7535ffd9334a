/* overlap_rig.h - steps that are started before the tokens of the one before them are known give
 * the tokens of steps that are waited for, on a backend that can. Include after engine_rig.h. */
#ifndef TEST_OVERLAP_RIG_H
#define TEST_OVERLAP_RIG_H

#include "engine/sample_edit.h"

enum { OVERLAP_SEQS = 6, OVERLAP_STEPS = 14, OVERLAP_PROMPT_MAX = 40 };

/* engine_start, or something around it; `spans` has room for one more. */
typedef int (*overlap_start)(struct engine *e, struct engine_span *spans, uint32_t n,
                             struct err *err);

/* A sequence that draws: how, and from which step to which. Some draw from so few ids that it shows
 * if their last token was not penalised, or if one that ends them is allowed too late. */
struct overlap_seq {
	struct sample_params params;
	struct sample_edit_opts edit;
	uint32_t prompt, from, to;
	struct seq seq;
	struct sample_edit *edits;
	uint32_t tokens[OVERLAP_PROMPT_MAX + OVERLAP_STEPS], n;
	struct engine_draw draw;
	uint32_t at, next_at; /* 1 + its span in the step before, and in this one; 0: none */
};

static const uint32_t overlap_few[] = {2, 7, 11, 20, 21};

static void overlap_begin(struct overlap_seq *q, const struct rig *r)
{
	static const struct {
		struct sample_params params;
		struct sample_edit_opts edit;
		uint32_t prompt, from, to;
	} of[OVERLAP_SEQS] = {
		{{.top_p = 1, .logprobs = -1}, {0}, 3, 0, OVERLAP_STEPS},
		{{.temperature = 0.8f, .top_p = 0.9f, .seed = 5, .logprobs = 2}, {0}, 17, 0, 9},
		{{.temperature = 4, .top_p = 1, .seed = 3, .logprobs = -1},
	     {.repetition = 3,
	      .presence = 1.5f,
	      .frequency = 2,
	      .allowed = overlap_few,
	      .n_allowed = 5},
	     OVERLAP_PROMPT_MAX,
	     1,
	     OVERLAP_STEPS},
		{{.temperature = 4, .top_p = 1, .seed = 9, .logprobs = -1},
	     {.min_tokens = 8,
	      .ends = {overlap_few},
	      .n_ends = {4},
	      .allowed = overlap_few,
	      .n_allowed = 5},
	     1,
	     3,
	     OVERLAP_STEPS},
		{{.temperature = 2, .top_p = 1, .seed = 1, .logprobs = -1}, {0}, 29, 5, 6},
		{{.top_p = 1, .logprobs = 1}, {.frequency = 1.5f}, 16, 6, OVERLAP_STEPS},
	};
	for (uint32_t i = 0; i < OVERLAP_SEQS; i++) {
		q[i] = (struct overlap_seq){.params = of[i].params,
		                            .edit = of[i].edit,
		                            .prompt = of[i].prompt,
		                            .from = of[i].from,
		                            .to = of[i].to,
		                            .seq = seq_new(r, 16 * i),
		                            .n = of[i].prompt};
		q[i].edit.vocab = r->vocab;
		q[i].edit.tokens_max = OVERLAP_PROMPT_MAX + OVERLAP_STEPS;
		q[i].edits = sample_edit_new(&q[i].edit);
		some_ids(q[i].tokens, q[i].prompt, i);
	}
}

/* The spans of step k, in one order and then in the other. pending: the tokens of step k - 1 are
 * not known. */
static uint32_t overlap_fill(struct overlap_seq *q, uint32_t k, int pending,
                             struct engine_span *spans, struct overlap_seq **of)
{
	uint32_t n = 0;
	for (uint32_t j = 0; j < OVERLAP_SEQS; j++) {
		struct overlap_seq *s = &q[k % 2 ? OVERLAP_SEQS - 1 - j : j];
		s->next_at = 0;
		if (k < s->from || k >= s->to)
			continue;
		uint32_t first = k == s->from, more = !first && pending;
		uint32_t position = first ? 0 : s->prompt + k - s->from - 1;
		s->draw = (struct engine_draw){.params = &s->params,
		                               .index = k - s->from,
		                               .edit = s->edits,
		                               .tokens = s->tokens,
		                               .prompt_tokens = s->prompt,
		                               .n_tokens = s->n,
		                               .pending = more};
		spans[n] = (struct engine_span){.tokens = more ? NULL : s->tokens + position,
		                                .n = first ? s->prompt : 1,
		                                .position = position,
		                                .continues = more ? s->at : 0,
		                                .blocks = s->seq.table,
		                                .logits = ENGINE_LOGITS_LAST,
		                                .draws = &s->draw};
		s->next_at = n + 1;
		of[n++] = s;
	}
	for (uint32_t j = 0; j < OVERLAP_SEQS; j++)
		q[j].at = q[j].next_at;
	return n;
}

static void overlap_take(struct overlap_seq **of, const struct engine_span *spans, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++) {
		ck_assert_uint_eq(spans[i].drawn->not_finite, 0);
		of[i]->tokens[of[i]->n++] = spans[i].drawn->id;
	}
}

static void overlap_run(struct rig *r, struct overlap_seq *q, int overlap, overlap_start start)
{
	struct engine_span spans[2][OVERLAP_SEQS + 1];
	struct overlap_seq *of[2][OVERLAP_SEQS];
	uint32_t n[2] = {0};
	struct err err = {0};
	overlap_begin(q, r);
	for (uint32_t k = 0; k <= OVERLAP_STEPS; k++) {
		uint32_t now = k % 2, before = 1 - now;
		n[now] = k < OVERLAP_STEPS ? overlap_fill(q, k, overlap, spans[now], of[now]) : 0;
		if (n[now])
			ck_assert_msg(start(r->e, spans[now], n[now], &err) == 0, "%s", err.text);
		uint32_t take = overlap ? before : now;
		if (n[take])
			ck_assert_msg(engine_finish(r->e, &err) == 0, "%s", err.text);
		overlap_take(of[take], spans[take], n[take]);
	}
	for (uint32_t i = 0; i < OVERLAP_SEQS; i++)
		sample_edit_destroy(&q[i].edits);
}

/* Sequences of unlike lengths come and go, and change places between steps, each of which `start`
 * starts where they overlap. */
static void overlap_check(struct rig_opts o, overlap_start start)
{
	struct overlap_seq *want = mem_array(OVERLAP_SEQS, sizeof *want),
					   *got = mem_array(OVERLAP_SEQS, sizeof *got);
	o.overlap = 1;
	struct rig r = rig_open(o);
	ck_assert_int_eq(engine_info(r.e)->overlap, 1);
	overlap_run(&r, want, 0, engine_start);
	for (int again = 0; again < 2; again++) {
		overlap_run(&r, got, 1, start);
		for (uint32_t i = 0; i < OVERLAP_SEQS; i++) {
			ck_assert_uint_eq(got[i].n, got[i].prompt + got[i].to - got[i].from);
			for (uint32_t k = 0; k < got[i].n; k++)
				ck_assert_msg(got[i].tokens[k] == want[i].tokens[k],
				              "sequence %u: token %u is %u, with the host between %u", i, k,
				              got[i].tokens[k], want[i].tokens[k]);
		}
	}
	rig_close(&r);
	free(want);
	free(got);
}

/* --- drafts of the device ------------------------------------------------ */

enum { DRAFTS_SEQS = 4, DRAFTS_TOKENS = 40, DRAFTS_MOST = 4, DRAFTS_MATCH = 2 };

/* A sequence whose history begins with what it will say, with a mistake here and there: so drafts
 * of the device are often right. The last sequence has no drafts. */
struct drafts_seq {
	struct sample_params params;
	struct seq seq;
	uint32_t tokens[OVERLAP_PROMPT_MAX + 2 * DRAFTS_TOKENS], prompt, n;
	uint32_t known[OVERLAP_PROMPT_MAX + 3 * DRAFTS_TOKENS], n_known;
	struct engine_draw draw[2][1 + DRAFTS_MOST];
	uint32_t at; /* 1 + its span in the step before; 0: none */
	uint32_t right, wrong;
};

static void drafts_begin(struct drafts_seq *q, const struct rig *r)
{
	for (uint32_t i = 0; i < DRAFTS_SEQS; i++) {
		q[i] = (struct drafts_seq){
			.params = {.temperature = (float)i * 0.4f, .top_p = 1, .seed = i, .logprobs = -1},
			.prompt = 3 + 13 * i,
			.seq = seq_new(r, 16 * i)};
		some_ids(q[i].tokens, q[i].prompt, i);
		q[i].n = q[i].prompt;
	}
}

/* The history of q: with `told`, what it is going to say, then what it has said. */
static void drafts_known(struct drafts_seq *q, const struct drafts_seq *told)
{
	q->n_known = 0;
	for (uint32_t i = 0; told && i < told->prompt + DRAFTS_TOKENS; i++)
		q->known[q->n_known++] = i % 11 == 9 ? told->tokens[i] ^ 1 : told->tokens[i];
	for (uint32_t i = 0; i < q->n; i++)
		q->known[q->n_known++] = q->tokens[i];
}

/* Step k of q: its prompt; then a row, and with `told` after its second step rows for drafts, whose
 * history is given every seventh step. */
static struct engine_span drafts_span(struct drafts_seq *q, uint32_t k, uint32_t number,
                                      const struct drafts_seq *told)
{
	uint32_t drafts = told && k > 1 && number + 1 < DRAFTS_SEQS ? (k + number) % (DRAFTS_MOST + 1)
	                                                            : 0;
	uint32_t more = k > 0, first = q->n + more;
	struct engine_span s = {.tokens = q->tokens + (k ? q->n : 0),
	                        .n = k ? 1 + drafts : q->prompt,
	                        .drafts = drafts,
	                        .position = k ? q->n : 0,
	                        .continues = q->at,
	                        .blocks = q->seq.table,
	                        .logits = drafts ? ENGINE_LOGITS_ALL : ENGINE_LOGITS_LAST,
	                        .draws = q->draw[k % 2]};
	if (!told && k) /* the host has the token */
		s.position = --first - 1, s.tokens = q->tokens + s.position;
	for (uint32_t i = 0; i <= drafts; i++)
		q->draw[k % 2][i] = (struct engine_draw){.params = &q->params,
		                                         .index = first + i - q->prompt};
	if (told && k > 1 && number + 1 < DRAFTS_SEQS) {
		s.history = 1 + number;
		if (k % 7 == 2) {
			drafts_known(q, told);
			s.known = q->known;
			s.n_known = q->n_known;
		}
	}
	return s;
}

/* Takes what counts: as long as the draft has the token that was drawn. */
static void drafts_take(struct drafts_seq *q, const struct engine_span *s)
{
	for (uint32_t i = 0;; i++) {
		ck_assert_uint_eq(s->drawn[i].not_finite, 0);
		q->tokens[q->n++] = s->drawn[i].id;
		if (i == s->drafts)
			return;
		if (s->drawn[i].id != s->drawn[i + 1].token) {
			q->wrong++;
			return;
		}
		q->right++;
	}
}

/* told NULL: every step is waited for, and nothing is drafted. */
static void drafts_run(struct rig *r, struct drafts_seq *q, const struct drafts_seq *told)
{
	struct engine_span span[2][DRAFTS_SEQS];
	struct err err = {0};
	drafts_begin(q, r);
	for (uint32_t k = 0; k <= DRAFTS_TOKENS; k++) {
		uint32_t now = k % 2, take = told ? 1 - now : now, more = k < DRAFTS_TOKENS;
		for (uint32_t i = 0; more && i < DRAFTS_SEQS; i++) {
			/* in one order and then in the other */
			uint32_t at = now ? DRAFTS_SEQS - 1 - i : i;
			span[now][at] = drafts_span(&q[i], k, i, told ? &told[i] : NULL);
		}
		for (uint32_t i = 0; told && i < DRAFTS_SEQS; i++)
			q[i].at = 1 + (now ? DRAFTS_SEQS - 1 - i : i);
		if (more)
			ck_assert_msg(engine_start(r->e, span[now], DRAFTS_SEQS, &err) == 0, "%s", err.text);
		if (told ? k : more)
			ck_assert_msg(engine_finish(r->e, &err) == 0, "%s", err.text);
		for (uint32_t i = 0; (told ? k : more) && i < DRAFTS_SEQS; i++)
			drafts_take(&q[i], &span[take][take ? DRAFTS_SEQS - 1 - i : i]);
	}
}

/* Steps that continue others with drafts that the device makes give the tokens of steps that are
 * waited for, in fewer steps. */
static void overlap_drafts_check(struct rig_opts o)
{
	struct drafts_seq *want = mem_array(DRAFTS_SEQS, sizeof *want),
					  *got = mem_array(DRAFTS_SEQS, sizeof *got);
	o.overlap = 1;
	o.histories = DRAFTS_SEQS;
	o.history_match = DRAFTS_MATCH;
	struct rig r = rig_open(o);
	ck_assert_uint_eq(engine_info(r.e)->histories, DRAFTS_SEQS);
	drafts_run(&r, want, NULL);
	drafts_run(&r, got, want);
	for (uint32_t i = 0; i < DRAFTS_SEQS; i++) {
		uint32_t drafts = i + 1 < DRAFTS_SEQS;
		ck_assert_uint_eq(want[i].n, want[i].prompt + DRAFTS_TOKENS);
		ck_assert_uint_ge(got[i].n, want[i].n);
		ck_assert_msg(drafts ? got[i].right > 10 && got[i].wrong > 2 : !got[i].right,
		              "sequence %u: %u drafted tokens were right, %u were not", i, got[i].right,
		              got[i].wrong);
		for (uint32_t k = 0; k < want[i].n; k++)
			ck_assert_msg(got[i].tokens[k] == want[i].tokens[k],
			              "sequence %u: token %u is %u, without drafts %u", i, k, got[i].tokens[k],
			              want[i].tokens[k]);
	}
	rig_close(&r);
	free(want);
	free(got);
}

#endif
