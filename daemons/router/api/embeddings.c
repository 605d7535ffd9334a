/* embeddings.c - POST /v1/embeddings: inputs as a string, strings, token ids or lists of ids, each
 * of them an answer; and the embeddings as JSON numbers or base64. */
#include "embeddings.h"
#include "daemons/router/request/request.h"
#include "util/mem.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* --- the request --------------------------------------------------------- */

/* Returns the index of the string in names; def if it is absent or null; -1 with the error set. */
static int read_choice(struct request_prepare *q, const json_t *o, const char *name,
                       const char *const names[2], int def)
{
	const json_t *v = body_member(o, name);
	for (int i = 0; json_is_string(v) && i < 2; i++)
		if (strcmp(json_string_value(v), names[i]) == 0)
			return i;
	return v ? api_bad(&q->error, name, "%s must be \"%s\" or \"%s\", got %s", name, names[0],
	                   names[1], param_show(v))
	         : def;
}

static int read_parameters(struct request_prepare *q, const json_t *o)
{
	static const char *const formats[] = {"float", "base64"}, *const poolings[] = {"last", "mean"};
	struct embed_params *p = &q->embed;
	int mean = p->pooling == PDS__POOLING__POOLING_MEAN;
	const json_t *user = body_member(o, "user");
	int64_t n;
	if (user && !json_is_string(user))
		return api_bad(&q->error, "user", "user must be a string, got %s", param_show(user));
	if ((p->base64 = read_choice(q, o, "encoding_format", formats, 0)) < 0 ||
	    (mean = read_choice(q, o, "pooling", poolings, mean)) < 0 ||
	    param_int(o, "dimensions", 1, p->hidden, p->hidden, &n, &q->error) < 0 ||
	    param_bool(o, "normalize", 1, &p->normalize, &q->error) < 0 ||
	    param_bool(o, "add_special_tokens", 1, &q->p.add_special, &q->error) < 0)
		return -1;
	p->pooling = mean ? PDS__POOLING__POOLING_MEAN : PDS__POOLING__POOLING_LAST;
	p->dimensions = (uint32_t)n;
	if (mean) /* nothing is taken from a cache, so prefixes do not matter for placement */
		q->roots.n = 0;
	return params_read_truncate(o, &q->p, &q->error);
}

int api_embeddings_prepare(struct request_prepare *q, const json_t *o)
{
	const json_t *v = json_object_get(o, "input");
	pds__sampling__init(&q->p.sampling);
	q->p.sampling.top_p = 1;
	q->p.sampling.logprobs = q->p.logprobs = q->p.prompt_logprobs = -1;
	q->p.n = 1;
	q->p.has_max_tokens = 1; /* 0 while lengths are checked */
	q->max_answers = q->embed.inputs_max;
	if (q->embed.never)
		return api_bad(&q->error, NULL,
		               "this server makes no embeddings: all its workers have embeddings = false");
	if (!q->embed.hidden)
		return api_fault(&q->error, 503,
		                 "no worker that makes embeddings is ready (embeddings = true)");
	if (read_parameters(q, o) < 0)
		return -1;
	size_t n = json_array_size(v);
	if (!v || json_is_null(v))
		return api_bad(&q->error, "input", "input is required");
	if (json_is_array(v) && !json_is_integer(json_array_get(v, 0)) &&
	    (n == 0 || n > q->embed.inputs_max))
		return api_bad(&q->error, "input", "input has %zu items; it must have 1 to %u", n,
		               q->embed.inputs_max);
	if (prompts_read(q, v, "input") < 0 || prompt_check_lengths(q, "input") < 0)
		return -1;
	q->p.max_tokens = 1; /* an attempt needs one, and draws none */
	return 0;
}

/* --- the answer ---------------------------------------------------------- */

size_t embeddings_bytes(const struct request_prepare *q)
{
	return q->kind == KIND_EMBEDDING ? q->embed.dimensions * sizeof(float) : 0;
}

int embeddings_keep(struct answer *ans, const float *values)
{
	const struct embed_params *p = &ans->request->prep.embed;
	double sum = 0, by = 1;
	ans->embedding = mem_try_array(p->dimensions, sizeof *ans->embedding);
	if (!ans->embedding)
		return -1;
	for (uint32_t i = 0; i < p->dimensions; i++)
		sum += (double)values[i] * (double)values[i];
	if (p->normalize && sum > 0)
		by = 1 / sqrt(sum);
	for (uint32_t i = 0; i < p->dimensions; i++)
		ans->embedding[i] = (float)(values[i] * by);
	return 0;
}

static int embeddings_parts(struct request *q, uint32_t stage, struct answer_parts *p)
{
	const struct embed_params *asked = &q->prep.embed;
	if (stage == 0) {
		buf_printf(&p->text,
		           "{\"id\":\"%s\",\"object\":\"list\",\"created\":%lld,\"model\":", q->id,
		           (long long)q->prep.created_s);
		buf_add_json(&p->text, q->prep.model->name, strlen(q->prep.model->name));
		buf_adds(&p->text, ",\"data\":[");
	} else if (stage <= q->n_answers) {
		const struct answer *ans = &q->answers[stage - 1];
		buf_printf(&p->text, "%s{\"object\":\"embedding\",\"index\":%u,\"embedding\":%s",
		           ans->index ? "," : "", ans->index, asked->base64 ? "\"" : "[");
		if (asked->base64)
			parts_base64(p, ans->embedding, asked->dimensions * sizeof *ans->embedding);
		else
			parts_floats(p, ans->embedding, asked->dimensions);
		buf_adds(&p->text, asked->base64 ? "\"}" : "]}");
	} else if (stage == q->n_answers + 1) {
		uint32_t tokens = reply_usage(q).prompt;
		buf_printf(&p->text, "],\"usage\":{\"prompt_tokens\":%u,\"total_tokens\":%u}", tokens,
		           tokens);
		reply_add_warnings(q, &p->text);
		buf_addc(&p->text, '}');
	}
	return stage <= q->n_answers + 1;
}

static void no_head(struct request *q)
{
	(void)q; /* there is no stream */
}

const struct dialect dialect_embeddings = {
	.id_prefix = "embd-", .head = no_head, .parts = embeddings_parts, .error = api_error_json};
