/* copy.c - see copy.h. Every value of the message is checked here; the rest of the worker trusts
 * the copy. */
#include "copy.h"
#include "constraint.h"
#include "daemons/worker/worker.h"
#include "util/check.h"
#include "util/clock.h"
#include "util/mem.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct attempt_key attempt_key(const struct reqid *id, uint32_t attempt)
{
	struct attempt_key k;
	memcpy(k.b, &id->hi, 8);
	memcpy(k.b + 8, &id->lo, 8);
	memcpy(k.b + 16, &attempt, 4);
	return k;
}

void request_copy_head(const struct request_copy *req, struct msg_head *ret)
{
	*ret = (struct msg_head){req->id, req->attempt, req->deadline_us};
}

void request_copy_fail(const struct request_copy *req, struct worker *w,
                       const struct worker_failure *f)
{
	struct msg_head h;
	request_copy_head(req, &h);
	worker_fail_by(w, &h, req->router, req->router_epoch, f);
}

static int check_range(const char *name, float v, double min, double max, struct err *err)
{
	if ((double)v >= min && (double)v <= max)
		return 0;
	return err_set(err, ERR_INVALID, "%s %g, allowed %g to %g", name, (double)v, min, max);
}

static int check_lists(const Pds__Sampling *s, struct err *err)
{
	if (s->n_bias_ids > REQUEST_BIASES_MAX || s->n_bias != s->n_bias_ids)
		return err_set(err, ERR_INVALID,
		               "%zu ids and %zu values of logit_bias, allowed as many of both, %u at most",
		               s->n_bias_ids, s->n_bias, REQUEST_BIASES_MAX);
	if (s->n_allowed_ids > REQUEST_ALLOWED_MAX)
		return err_set(err, ERR_INVALID, "%zu allowed ids, the limit is %u", s->n_allowed_ids,
		               REQUEST_ALLOWED_MAX);
	if (s->n_bad_words > REQUEST_BAD_MAX || !sample_edit_bad_valid(s->bad_words, s->n_bad_words))
		return err_set(
			err, ERR_INVALID,
			"a list of %zu for the bad words: longer than %u, or not made of whole words",
			s->n_bad_words, REQUEST_BAD_MAX);
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

/* Call after the rest of the copy is filled in. */
static void set_sampling(struct request_copy *req, const struct engine_info *info)
{
	const Pds__Sampling *s = req->asked;
	uint64_t most = (uint64_t)req->prompt_tokens + req->max_tokens;
	req->sampling = (struct sample_params){.temperature = s->temperature,
	                                       .top_p = s->top_p,
	                                       .min_p = s->min_p,
	                                       .top_k = s->top_k,
	                                       .seed = s->seed,
	                                       .logprobs = s->logprobs,
	                                       .typical_p = s->typical_p};
	req->prompt_logprobs = s->prompt_logprobs;
	req->prompt_top = s->prompt_top;
	req->edit = sample_edit_new(&(struct sample_edit_opts){
		.vocab = info->vocab,
		.tokens_max = most < info->context ? (uint32_t)most : info->context,
		.repetition = s->repetition_penalty,
		.presence = s->presence_penalty,
		.frequency = s->frequency_penalty,
		.min_tokens = s->min_tokens,
		.ends = {info->eos, req->stop_ids},
		.n_ends = {info->n_eos, req->n_stop_ids},
		.bias_ids = s->bias_ids,
		.bias = s->bias,
		.n_bias = s->n_bias,
		.allowed = s->allowed_ids,
		.n_allowed = s->n_allowed_ids,
		.bad = s->bad_words,
		.n_bad = s->n_bad_words});
	req->needs_latest = req->edit && sample_edit_needs_latest(req->edit);
}

static int check_token_ids(const Pds__Request *r, const struct engine_info *info, struct err *err)
{
	if (r->n_tokens + !r->pooling > info->context)
		return err_set(err, ERR_INVALID,
		               "%zu tokens, the model's context is %u with at least one to generate",
		               r->n_tokens, info->context);
	for (size_t i = 0; i < r->n_tokens; i++)
		if (r->tokens[i] >= info->vocab)
			return err_set(err, ERR_INVALID, "token id %u at place %zu, the vocabulary has %u",
			               r->tokens[i], i, info->vocab);
	return 0;
}

static int check_pooling(const Pds__Request *r, const struct engine_info *info, struct err *err)
{
	if (!r->pooling)
		return 0;
	if (!info->has_hidden)
		return err_set(err, ERR_INVALID, "this worker makes no embeddings (embeddings = false)");
	if (r->pooling > PDS__POOLING__POOLING_MEAN || r->n_tokens != r->prompt_tokens ||
	    r->sampling->prompt_logprobs)
		return err_set(err, ERR_INVALID,
		               "an embedding with pooling %d, %u tokens in the prompt and %zu in all%s",
		               (int)r->pooling, r->prompt_tokens, r->n_tokens,
		               r->sampling->prompt_logprobs ? ", and log-probabilities" : "");
	return 0;
}

int request_copy_init(struct request_copy *req, const struct msg_head *head, const Pds__Request *r,
                      const struct engine_info *info, struct err *err)
{
	memset(req, 0, sizeof *req);
	if (r->n_stop_ids > REQUEST_STOP_IDS_MAX)
		return err_set(err, ERR_INVALID, "%zu stop ids, allowed %u", r->n_stop_ids,
		               REQUEST_STOP_IDS_MAX);
	int code = check_token_ids(r, info, err);
	if (code < 0 || (code = check_pooling(r, info, err)) < 0 ||
	    (code = check_sampling(r->sampling, err)) < 0)
		return code;
	req->id = head->req;
	req->attempt = head->attempt;
	req->deadline_us = head->deadline_us ? head->deadline_us : clock_us() + 600000000u;
	req->n_tokens = req->given_tokens = (uint32_t)r->n_tokens;
	req->room_tokens = req->n_tokens + 64;
	req->tokens = mem_try_array(req->room_tokens, sizeof *req->tokens);
	if (!req->tokens)
		return err_set(err, ERR_NOMEM, "this worker has no memory for a request of %u tokens now",
		               req->n_tokens);
	memcpy(req->tokens, r->tokens, r->n_tokens * sizeof *req->tokens);
	req->prompt_tokens = r->prompt_tokens;
	req->max_tokens = r->max_tokens;
	req->pooling = r->pooling;
	req->limit_tokens = info->context;
	req->ignore_eos = r->ignore_eos;
	req->n_stop_ids = (uint32_t)r->n_stop_ids;
	if (r->n_stop_ids)
		memcpy(req->stop_ids, r->stop_ids, r->n_stop_ids * sizeof *req->stop_ids);
	req->has_salt = r->cache_salt.len == sizeof req->cache_salt;
	if (req->has_salt)
		memcpy(req->cache_salt, r->cache_salt.data, sizeof req->cache_salt);
	req->asked = copy_message(r->sampling);
	set_sampling(req, info);
	return 0;
}

void request_copy_fini(struct request_copy *req)
{
	constraint_detach(req);
	sample_edit_destroy(&req->edit);
	if (req->asked)
		pds__sampling__free_unpacked(req->asked, NULL);
	req->asked = NULL;
	free(req->tokens);
	req->tokens = NULL;
}

void request_copy_fill(const struct request_copy *req, Pds__Request *r, Pds__Sampling *s)
{
	pds__request__init(r);
	*s = *req->asked;
	r->tokens = req->tokens;
	r->n_tokens = req->n_tokens;
	r->prompt_tokens = req->prompt_tokens;
	r->max_tokens = req->max_tokens;
	r->sampling = s;
	r->stop_ids = (uint32_t *)req->stop_ids;
	r->n_stop_ids = req->n_stop_ids;
	r->ignore_eos = req->ignore_eos;
	if (req->has_salt)
		r->cache_salt = (ProtobufCBinaryData){sizeof req->cache_salt,
		                                      (unsigned char *)req->cache_salt};
	constraint_request(req, r);
}

static int is_stop(const struct request_copy *req, uint32_t id, const struct engine_info *info)
{
	for (uint32_t i = 0; i < req->n_stop_ids; i++)
		if (req->stop_ids[i] == id)
			return 1;
	for (uint32_t i = 0; i < info->n_eos && (!req->ignore_eos || req->constraint); i++)
		if (info->eos[i] == id)
			return 1;
	return 0;
}

Pds__Finish request_copy_append(struct request_copy *req, uint32_t id,
                                const struct engine_info *info)
{
	if (req->n_tokens == req->room_tokens) {
		req->room_tokens *= 2;
		req->tokens = mem_grow(req->tokens, req->room_tokens, sizeof *req->tokens);
	}
	req->tokens[req->n_tokens++] = id;
	if (is_stop(req, id, info))
		return PDS__FINISH__FINISH_STOP;
	return request_copy_is_full(req, 0) ? PDS__FINISH__FINISH_LENGTH : PDS__FINISH__FINISH_NONE;
}

struct engine_draw request_copy_draw(const struct request_copy *req, uint32_t ahead)
{
	return (struct engine_draw){.params = &req->sampling,
	                            .index = request_copy_index(req) + ahead,
	                            .allowed = constraint_allowed(req, ahead),
	                            .edit = req->edit,
	                            .tokens = req->tokens,
	                            .prompt_tokens = req->prompt_tokens,
	                            .n_tokens = req->n_tokens + ahead,
	                            .drafted = ahead};
}

struct engine_draw request_copy_draw_pending(const struct request_copy *req, uint32_t ahead)
{
	struct engine_draw d = request_copy_draw(req, 0);
	d.index += 1 + ahead;
	d.pending = 1;
	return d;
}

int drawn_check_finite(const struct kern_drawn *r, const char *part, uint32_t at, struct err *err)
{
	if (!r->not_finite)
		return 0;
	return err_set(err, ERR_CORRUPT,
	               "the model's logits for token %u of the %s are not finite: its weights are "
	               "damaged, or its numbers overflow",
	               at, part);
}

Pds__Token *drawn_token(const struct kern_drawn *r, int want_logprobs)
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
