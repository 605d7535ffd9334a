/* reply.c - what the dialects (dialect.h) share, and the answers that are made while a request is
 * prepared. A complete answer is made as lists of parts, and written from these in steps. */
#include "daemons/router/request/request.h"

#include <string.h>

/* After a retry the worker's prompt ends with tokens that had been generated; they do not count as
 * cached. */
static uint32_t cached_tokens(const struct answer *ans)
{
	size_t cached = ans->attempt->got.times.cached_tokens, n = ans->prompt->tokens.n;
	return (uint32_t)(cached < n ? cached : n);
}

struct reply_usage reply_usage(const struct request *q)
{
	struct reply_usage u = {0};
	for (size_t i = 0; i < q->prep.n_prompts; i++)
		u.prompt += (uint32_t)q->prep.prompts[i].tokens.n;
	for (uint32_t i = 0; i < q->n_answers; i++) {
		const struct answer *ans = &q->answers[i];
		u.generated += ans->n_tokens;
		if (i % q->prep.p.n == 0 && ans->attempt)
			u.cached += cached_tokens(ans);
	}
	return u;
}

static void add_rate(const char *name, uint64_t n, uint64_t us, struct buf *out)
{
	buf_printf(out, "\"%s_n\":%llu,\"%s_ms\":%.3f,\"%s_per_token_ms\":%.3f,\"%s_per_second\":%.3f",
	           name, (unsigned long long)n, name, (double)us / 1e3, name,
	           n ? (double)us / 1e3 / n : 0.0, name, us ? n * 1e6 / (double)us : 0.0);
}

void reply_add_timings(const struct request *q, struct buf *out)
{
	uint64_t cached = 0, computed = 0, prompt_us = 0, generated = 0, generated_us = 0;
	for (uint32_t i = 0; i < q->n_answers; i++) {
		const struct answer *ans = &q->answers[i];
		const struct attempt_output *got = ans->attempt ? &ans->attempt->got : NULL;
		if (!got || !got->first_us)
			continue;
		generated += ans->n_tokens;
		generated_us += ans->last_us - got->first_us;
		if (!got->times.prefill_us) /* the worker has not reported it yet */
			continue;
		cached += cached_tokens(ans);
		computed += ans->prompt->tokens.n - cached_tokens(ans);
		prompt_us += got->times.prefill_us;
	}
	buf_printf(out, ",\"timings\":{\"cache_n\":%llu,", (unsigned long long)cached);
	add_rate("prompt", computed, prompt_us, out);
	buf_addc(out, ',');
	add_rate("predicted", generated, generated_us, out);
	buf_addc(out, '}');
}

void reply_add_warnings(const struct request *q, struct buf *out)
{
	if (!q->prep.warnings.len)
		return;
	buf_adds(out, ",\"warnings\":[");
	buf_add(out, q->prep.warnings.data, q->prep.warnings.len);
	buf_addc(out, ']');
}

int reply_more(struct request *q, struct buf *out, size_t max_size)
{
	struct answer_parts *p = &q->reply.parts;
	do {
		if (!parts_write(p, q->prep.model, out, max_size))
			return 0;
		parts_reset(p);
	} while (q->dialect->parts(q, q->reply.stage++, p));
	return 1;
}

/* --- answers of the preparation ------------------------------------------ */

static int prepared_parts(struct request *q, uint32_t stage, struct answer_parts *p)
{
	parts_bytes(p, q->prep.out.data, stage ? 0 : q->prep.out.len);
	return stage == 0;
}

const struct dialect dialect_json = {.id_prefix = "",
                                     .parts = prepared_parts,
                                     .error = api_error_json};
const struct dialect dialect_messages_json = {.id_prefix = "",
                                              .parts = prepared_parts,
                                              .error = api_error_json_messages};

const struct dialect *dialect_of_path(const char *path)
{
	static const char messages[] = "/v1/messages";
	size_t n = sizeof messages - 1;
	int is_below = strncmp(path, messages, n) == 0 && (!path[n] || path[n] == '/');
	return is_below ? &dialect_messages_json : &dialect_json;
}
