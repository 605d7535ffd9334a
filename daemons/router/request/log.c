/* log.c - the line that each request leaves in the log (request.h). */
#include "daemons/router/api/embeddings.h"
#include "util/clock.h"
#include "util/log.h"

uint64_t request_prompt_tokens(const struct request_prepare *p)
{
	uint64_t n = 0;
	for (size_t i = 0; i < p->n_prompts; i++)
		n += p->prompts[i].tokens.n;
	return n;
}

/* What all answers have together. The first token is the first of any. */
struct request_totals {
	uint64_t prompt, cached, output, first_us;
};

static struct request_totals totals_of(const struct request *q)
{
	struct request_totals t = {0};
	if (q->state != REQUEST_IN_POOL) /* a text thread makes them */
		t.prompt = request_prompt_tokens(&q->prep);
	for (uint32_t i = 0; i < q->n_answers; i++) {
		const struct attempt *a = q->answers[i].attempt;
		if (!a)
			continue;
		t.output += a->got.n_out;
		t.cached += i % q->prep.p.n ? 0 : a->got.times.cached_tokens;
		if (a->got.first_us && (!t.first_us || a->got.first_us < t.first_us))
			t.first_us = a->got.first_us;
	}
	return t;
}

void request_log_end(struct request *q, const char *event, int status, const char *param,
                     const char *why)
{
	uint64_t now = clock_us();
	struct reqid id;
	struct request_totals t;
	q->status = status;
	if (log_threshold() > LOG_NOTICE)
		return;
	t = totals_of(q);
	log_req(LOG_NOTICE, *q->id && request_id_parse(q->id, &id) == 0 ? &id : NULL, event,
	        "%s model=%s answers=%u prompt_tokens=%llu cached_tokens=%llu output_tokens=%llu "
	        "first_token_us=%llu total_us=%llu status=%d%s%s%s%s",
	        q->who.text, log_quote(q->prep.model->name), q->n_answers, (unsigned long long)t.prompt,
	        (unsigned long long)t.cached, (unsigned long long)t.output,
	        (unsigned long long)(t.first_us ? t.first_us - q->begun_us : 0),
	        (unsigned long long)(now - q->begun_us), status, *param ? " param=" : "",
	        *param ? log_quote(param) : "", *why ? " why=" : "", *why ? log_quote(why) : "");
}
