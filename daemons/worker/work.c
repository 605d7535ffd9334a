/* work.c - see work.h. Everything that a message says is checked here once; behind it the values
 * are trusted. */
#include "work.h"
#include "constraint.h"
#include "util/check.h"
#include "util/clock.h"
#include "util/mem.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct work_key work_key(const struct reqid *id, uint32_t attempt)
{
	struct work_key k;
	memcpy(k.b, &id->hi, 8);
	memcpy(k.b + 8, &id->lo, 8);
	memcpy(k.b + 16, &attempt, 4);
	return k;
}

static int check_range(const char *name, float v, double min, double max, struct err *err)
{
	if ((double)v >= min && (double)v <= max)
		return 0;
	return err_set(err, ERR_INVALID, "%s %g, allowed %g to %g", name, (double)v, min, max);
}

static int check_lists(const Pds__Sampling *s, struct err *err)
{
	if (s->n_bias_ids > WORK_BIASES_MAX || s->n_bias != s->n_bias_ids)
		return err_set(err, ERR_INVALID,
		               "%zu ids and %zu values of logit_bias, allowed as many of both, %u at most",
		               s->n_bias_ids, s->n_bias, WORK_BIASES_MAX);
	if (s->n_allowed_ids > WORK_ALLOWED_MAX)
		return err_set(err, ERR_INVALID, "%zu allowed ids, the limit is %u", s->n_allowed_ids,
		               WORK_ALLOWED_MAX);
	if (s->n_bad_words > WORK_BAD_MAX || !sample_edit_bad_valid(s->bad_words, s->n_bad_words))
		return err_set(
			err, ERR_INVALID,
			"a list of %zu for the bad words: longer than %u, or not made of whole words",
			s->n_bad_words, WORK_BAD_MAX);
	for (size_t i = 0; i < s->n_bias; i++)
		if (check_range("a value of logit_bias,", s->bias[i], -100, 100, err) < 0)
			return ERR_INVALID;
	return 0;
}

static int check_sampling(const Pds__Sampling *s, struct err *err)
{
	if (!(s->top_p > 0 && s->top_p <= 1))
		return err_set(err, ERR_INVALID, "top_p %g, allowed above 0 to 1", (double)s->top_p);
	if (s->logprobs < -1 || s->logprobs > KERN_TOP_MAX || s->prompt_top < 0 ||
	    s->prompt_top > KERN_TOP_MAX)
		return err_set(err, ERR_INVALID, "logprobs %d and %d of the prompt, allowed -1 and 0 to %d",
		               s->logprobs, s->prompt_top, KERN_TOP_MAX);
	if (check_range("temperature", s->temperature, 0, 100, err) < 0 ||
	    check_range("min_p", s->min_p, 0, 1, err) < 0 ||
	    check_range("typical_p", s->typical_p, 0, 1, err) < 0 ||
	    check_range("repetition_penalty", s->repetition_penalty, 0, 10, err) < 0 ||
	    check_range("presence_penalty", s->presence_penalty, -2, 2, err) < 0 ||
	    check_range("frequency_penalty", s->frequency_penalty, -2, 2, err) < 0)
		return ERR_INVALID;
	return check_lists(s, err);
}

static Pds__Sampling *copy_message(const Pds__Sampling *s)
{
	size_t n = pds__sampling__get_packed_size(s);
	uint8_t *bytes = mem_alloc(n + 1);
	Pds__Sampling *copy = pds__sampling__unpack(NULL, pds__sampling__pack(s, bytes), bytes);
	CHECK(copy);
	free(bytes);
	return copy;
}

/* Everything else of the work is there. */
static void set_sampling(struct work *w, const struct engine_info *info)
{
	const Pds__Sampling *s = w->asked;
	uint64_t most = (uint64_t)w->prompt_tokens + w->max_tokens;
	w->sampling = (struct sample_params){.temperature = s->temperature,
	                                     .top_p = s->top_p,
	                                     .min_p = s->min_p,
	                                     .top_k = s->top_k,
	                                     .seed = s->seed,
	                                     .logprobs = s->logprobs,
	                                     .typical_p = s->typical_p};
	w->prompt_logprobs = s->prompt_logprobs;
	w->prompt_top = s->prompt_top;
	w->edit = sample_edit_new(&(struct sample_edit_opts){
		.vocab = info->vocab,
		.tokens_max = most < info->context ? (uint32_t)most : info->context,
		.repetition = s->repetition_penalty,
		.presence = s->presence_penalty,
		.frequency = s->frequency_penalty,
		.min_tokens = s->min_tokens,
		.ends = {info->eos, w->stop_ids},
		.n_ends = {info->n_eos, w->n_stop_ids},
		.bias_ids = s->bias_ids,
		.bias = s->bias,
		.n_bias = s->n_bias,
		.allowed = s->allowed_ids,
		.n_allowed = s->n_allowed_ids,
		.bad = s->bad_words,
		.n_bad = s->n_bad_words});
}

static int check_tokens(const Pds__Request *r, const struct engine_info *info, struct err *err)
{
	if (r->n_tokens >= info->context)
		return err_set(err, ERR_INVALID,
		               "%zu tokens, the model's context is %u with at least one to generate",
		               r->n_tokens, info->context);
	for (size_t i = 0; i < r->n_tokens; i++)
		if (r->tokens[i] >= info->vocab)
			return err_set(err, ERR_INVALID, "token id %u at place %zu, the vocabulary has %u",
			               r->tokens[i], i, info->vocab);
	return 0;
}

int work_init(struct work *w, const struct msg_head *head, const Pds__Request *r,
              const struct engine_info *info, struct err *err)
{
	memset(w, 0, sizeof *w);
	if (r->n_stop_ids > WORK_STOP_IDS_MAX)
		return err_set(err, ERR_INVALID, "%zu stop ids, allowed %u", r->n_stop_ids,
		               WORK_STOP_IDS_MAX);
	int code = check_tokens(r, info, err);
	if (code < 0 || (code = check_sampling(r->sampling, err)) < 0)
		return code;
	w->id = head->req;
	w->attempt = head->attempt;
	w->deadline_us = head->deadline_us ? head->deadline_us : clock_us() + 600000000u;
	w->n_tokens = w->given_tokens = (uint32_t)r->n_tokens;
	w->room_tokens = w->n_tokens + 64;
	w->tokens = mem_try_array(w->room_tokens, sizeof *w->tokens);
	if (!w->tokens)
		return err_set(err, ERR_NOMEM, "this worker has no memory for a request of %u tokens now",
		               w->n_tokens);
	memcpy(w->tokens, r->tokens, r->n_tokens * sizeof *w->tokens);
	w->prompt_tokens = r->prompt_tokens;
	w->max_tokens = r->max_tokens;
	w->limit_tokens = info->context;
	w->ignore_eos = r->ignore_eos;
	w->n_stop_ids = (uint32_t)r->n_stop_ids;
	if (r->n_stop_ids)
		memcpy(w->stop_ids, r->stop_ids, r->n_stop_ids * sizeof *w->stop_ids);
	w->asked = copy_message(r->sampling);
	set_sampling(w, info);
	return 0;
}

void work_fini(struct work *w)
{
	constraint_detach(w);
	sample_edit_destroy(&w->edit);
	if (w->asked)
		pds__sampling__free_unpacked(w->asked, NULL);
	w->asked = NULL;
	free(w->tokens);
	w->tokens = NULL;
}

void work_request(const struct work *w, Pds__Request *r, Pds__Sampling *s)
{
	pds__request__init(r);
	*s = *w->asked;
	r->tokens = w->tokens;
	r->n_tokens = w->n_tokens;
	r->prompt_tokens = w->prompt_tokens;
	r->max_tokens = w->max_tokens;
	r->sampling = s;
	r->stop_ids = (uint32_t *)w->stop_ids;
	r->n_stop_ids = w->n_stop_ids;
	r->ignore_eos = w->ignore_eos;
	constraint_request(w, r);
}

static int is_stop(const struct work *w, uint32_t id, const struct engine_info *info)
{
	for (uint32_t i = 0; i < w->n_stop_ids; i++)
		if (w->stop_ids[i] == id)
			return 1;
	for (uint32_t i = 0; i < info->n_eos && (!w->ignore_eos || w->constraint); i++)
		if (info->eos[i] == id)
			return 1;
	return 0;
}

Pds__Finish work_append(struct work *w, uint32_t id, const struct engine_info *info)
{
	if (w->n_tokens == w->room_tokens) {
		w->room_tokens *= 2;
		w->tokens = mem_grow(w->tokens, w->room_tokens, sizeof *w->tokens);
	}
	w->tokens[w->n_tokens++] = id;
	if (is_stop(w, id, info))
		return PDS__FINISH__FINISH_STOP;
	return work_index(w) >= w->max_tokens || w->n_tokens >= w->limit_tokens
	           ? PDS__FINISH__FINISH_LENGTH
	           : PDS__FINISH__FINISH_NONE;
}

struct engine_draw work_draw(const struct work *w, uint32_t ahead)
{
	return (struct engine_draw){.params = &w->sampling,
	                            .index = work_index(w) + ahead,
	                            .allowed = constraint_allowed(w, ahead),
	                            .edit = w->edit,
	                            .tokens = w->tokens,
	                            .prompt_tokens = w->prompt_tokens,
	                            .n_tokens = w->n_tokens + ahead,
	                            .drafted = ahead};
}

int work_check_finite(const struct kern_drawn *r, const char *part, uint32_t at, struct err *err)
{
	if (!r->not_finite)
		return 0;
	return err_set(err, ERR_CORRUPT,
	               "the model's logits for token %u of the %s are not finite: its weights are "
	               "damaged, or its numbers overflow",
	               at, part);
}

Pds__Token *work_token(const struct kern_drawn *r, int want_logprobs)
{
	struct piece {
		Pds__Token t;
		Pds__TopLogprob *ptr[KERN_TOP_MAX];
		Pds__TopLogprob top[KERN_TOP_MAX];
	};
	Pds__Token *t = mem_zalloc(want_logprobs ? sizeof(struct piece) : sizeof(Pds__Token));
	pds__token__init(t);
	t->id = r->id;
	if (!want_logprobs)
		return t;
	struct piece *p = (struct piece *)t;
	t->logprob = r->logprob;
	t->rank = r->rank;
	for (uint32_t i = 0; i < r->n_top; i++) {
		pds__top_logprob__init(&p->top[i]);
		p->top[i].id = r->top[i].id;
		p->top[i].logprob = r->top[i].logprob;
		p->ptr[i] = &p->top[i];
	}
	t->n_top = r->n_top;
	t->top = p->ptr;
	return t;
}
