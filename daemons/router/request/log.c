/* log.c - what a request leaves when it ends: its line in the log, and figures for /metrics. */
#include "request.h"
#include "util/clock.h"
#include "util/err.h"
#include "util/log.h"

#include <string.h>

void api_count_error(struct router *r, unsigned path, int status)
{
	if (status >= 400 && status < 600)
		r->errors.n[path][status - 400]++;
}

uint64_t request_prompt_tokens(const struct request_prepare *p)
{
	uint64_t n = 0;
	for (size_t i = 0; i < p->n_prompts; i++)
		n += p->prompts[i].tokens.n;
	return n;
}

void request_log_end(struct request *q, const char *event, int status, const char *param,
                     const char *why)
{
	uint64_t now = clock_us(), prompt = 0, cached = 0, output = 0, first_us = 0;
	struct reqid id;
	q->status = status;
	if (status >= 400 && status != REQUEST_CLIENT_GONE)
		api_count_error(q->r, q->path, status);
	if (log_threshold() > LOG_NOTICE)
		return;
	if (q->state != REQUEST_IN_POOL) /* then a text thread may be changing the prompts */
		prompt = request_prompt_tokens(&q->prep);
	for (uint32_t i = 0; i < q->n_answers; i++) {
		const struct attempt *a = q->answers[i].attempt;
		if (!a)
			continue;
		output += a->got.n_out;
		cached += i % q->prep.p.n ? 0 : a->got.times.cached_tokens;
		if (a->got.first_us && (!first_us || a->got.first_us < first_us))
			first_us = a->got.first_us;
	}
	log_req(LOG_NOTICE, *q->id && request_id_parse(q->id, &id) == 0 ? &id : NULL, event,
	        "%s model=%s answers=%u prompt_tokens=%llu cached_tokens=%llu output_tokens=%llu "
	        "first_token_us=%llu total_us=%llu status=%d%s%s%s%s",
	        q->who.text, log_quote(q->prep.model->name), q->n_answers, (unsigned long long)prompt,
	        (unsigned long long)cached, (unsigned long long)output,
	        (unsigned long long)(first_us ? first_us - q->begun_us : 0),
	        (unsigned long long)(now - q->begun_us), status, *param ? " param=" : "",
	        *param ? log_quote(param) : "", *why ? " why=" : "", *why ? log_quote(why) : "");
}

void request_count_answer(const struct answer *ans)
{
	const struct request *q = ans->request;
	struct router_stats *st = &q->r->stats;
	uint64_t now = clock_us();
	const struct attempt *s = ans->attempt;
	st->success_stop += ans->finish == ANSWER_FINISH_STOP;
	st->success_length += ans->finish == ANSWER_FINISH_LENGTH;
	stat_observe_us(&st->e2e, now - q->begun_us);
	stat_observe(&st->answer_prompt, ans->prompt->tokens.n);
	if (!s->got.first_us)
		return;
	stat_observe_us(&st->ttft, s->got.first_us - q->begun_us);
	stat_observe_us(&st->queue, s->got.times.turn_us + s->got.times.queue_us);
	if (s->got.times.prefill_us) /* else the worker that computed the prompt did not tell it */
		stat_observe_us(&st->prefill, s->got.times.prefill_us);
	stat_observe_us(&st->decode, now - s->got.first_us);
	stat_observe(&st->answer_tokens, ans->n_tokens);
	if (ans->n_tokens > 1) {
		uint64_t us = (now - s->got.first_us) / (ans->n_tokens - 1);
		stat_observe_us(&st->tpot, us);
	}
}

void request_count_longest(const struct request *q)
{
	for (uint32_t i = 0, longest = 0; i < q->n_answers; i++) {
		if (i % q->prep.p.n == 0)
			longest = 0;
		if (q->answers[i].n_tokens > longest)
			longest = q->answers[i].n_tokens;
		if (longest && (i + 1) % q->prep.p.n == 0)
			stat_observe(&q->r->stats.answer_longest, longest);
	}
}

int request_id_parse(const char *text, struct reqid *ret)
{
	const char *end = strpbrk(text, "-_"), *hex = end ? end + 1 : text; /* of the prefix */
	return strlen(hex) == 32 ? reqid_parse(hex, ret) : ERR_INVALID;
}
