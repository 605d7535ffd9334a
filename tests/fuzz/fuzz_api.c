/* fuzz_api.c - the body of a request in each dialect of the API. The first byte is the kind of
 * request and whether unknown parameters are refused, the rest the body. It is refused with a
 * status and a sentence, in JSON of both shapes; or it becomes prompts and parameters within the
 * limits that the workers rely on. All that it held of the router's memory is given back. */
#include "daemons/router/api/model.h"
#include "daemons/router/api/budget.h"
#include "daemons/router/api/prepare.h"
#include "http/clients.h"
#include "tests/fuzz/fuzz.h"
#include "util/mem.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#define CONTEXT 2048u
#define ANSWERS 8u
#define REQUEST_BYTES ((size_t)16 << 20)

/* --- a model whose tokens are bytes -------------------------------------- */

static const char head[] =
	"=== tokenizer.json\n"
	"{\"model\":{\"type\":\"BPE\",\"byte_fallback\":true,\"unk_token\":\"<unk>\","
	"\"merges\":[],\"vocab\":{\"<unk>\":0";
static const char tail[] =
	"}},\"decoder\":{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"ByteFallback\"},"
	"{\"type\":\"Fuse\"}]}}\n"
	"=== chat_template.jinja\n"
	"{% for t in tools or [] %}<tools>{{ t | tojson }}</tools>{% endfor %}"
	"{% for m in messages %}[{{ m.role }}] {% if m.content is string %}{{ m.content }}"
	"{% else %}{% for p in m.content or [] %}{{ p.text }}{% endfor %}{% endif %}"
	"{% for c in m.tool_calls or [] %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}"
	"{% if enable_thinking %}<think>{{ m.reasoning_content }}</think>{% endif %}"
	"{% endfor %}[assistant]";

static struct model *model_make(void)
{
	struct model *m = NULL;
	struct err err = {0};
	struct buf b;
	buf_init(&b, 0);
	buf_adds(&b, head);
	for (unsigned i = 0; i < 256; i++)
		buf_printf(&b, ",\"<0x%02X>\":%u", i, i + 1);
	buf_adds(&b, tail);
	must(served_model_open(fuzz_files((const uint8_t *)b.data, b.len), "m", &m, &err) == 0);
	must(model_use_template(m, "", &err) == 0);
	must(model_set_parsers(m, "hermes", "think", &err) == 0);
	buf_fini(&b);
	json_account_setup();
	return m;
}

static const struct model *model(void)
{
	static struct model *m;
	return m ? m : (m = model_make());
}

/* --- what came of it ----------------------------------------------------- */

static void check_json(const char *text, size_t len)
{
	json_t *o = json_loadb(text, len, JSON_ALLOW_NUL | JSON_DECODE_ANY, NULL);
	must(o != NULL);
	json_decref(o);
}

static void check_error(const struct api_error *e)
{
	struct buf b;
	must(e->status >= 400 && e->status < 600 && e->text[0] && e->type);
	buf_init(&b, 0);
	api_error_json(e, &b);
	check_json(b.data, b.len);
	buf_reset(&b);
	api_error_json_messages(e, &b);
	check_json(b.data, b.len);
	buf_fini(&b);
}

static void check_params(const struct request_prepare *q)
{
	const struct params *p = &q->p;
	const Pds__Sampling *s = &p->sampling;
	must(p->n >= 1 && p->n <= ANSWERS && p->min_tokens <= p->max_tokens);
	must(p->logprobs >= -1 && p->logprobs <= PARAM_LOGPROBS_MAX);
	must(p->prompt_logprobs >= -1 && p->prompt_logprobs <= PARAM_LOGPROBS_MAX);
	must(p->n_stop_ids <= PARAM_STOP_IDS_MAX);
	must(s->temperature >= 0 && s->temperature <= 100 && s->top_p > 0 && s->top_p <= 1);
	must(s->min_p >= 0 && s->min_p <= 1 && s->typical_p > 0 && s->typical_p <= 1);
	must(s->repetition_penalty > 0 && s->n_bias == s->n_bias_ids);
	must(s->n_bias <= PARAM_BIASES_MAX && s->n_allowed_ids <= PARAM_ALLOWED_MAX);
	for (size_t i = 0; i < s->n_bias_ids; i++)
		must(s->bias_ids[i] < q->vocab);
	for (size_t i = 0; i < s->n_allowed_ids; i++)
		must(s->allowed_ids[i] < q->vocab);
	for (size_t i = 0, n; i < s->n_bad_words; i += 1 + n) {
		n = s->bad_words[i];
		must(n >= 1 && n <= s->n_bad_words - i - 1);
		for (size_t k = 1; k <= n; k++)
			must(s->bad_words[i + k] < q->vocab);
	}
	must(q->constraint.kind == PDS__CONSTRAINT_KIND__CONSTRAINT_NONE || q->constraint.text);
}

static void check_prompts(const struct request_prepare *q)
{
	must(q->n_prompts >= 1);
	for (size_t i = 0; i < q->n_prompts; i++) {
		const struct token_list *t = &q->prompts[i].tokens;
		must(t->n >= 1 && t->n <= CONTEXT);
		must(q->kind == KIND_EMBEDDING || t->n + q->p.max_tokens <= CONTEXT);
		for (size_t k = 0; k < t->n; k++)
			must(t->ids[k] < q->vocab);
	}
	if (q->kind != KIND_EMBEDDING)
		check_params(q);
	else
		must(q->n_prompts <= q->embed.inputs_max && q->embed.dimensions >= 1 &&
		     q->embed.dimensions <= q->embed.hidden);
}

/* The parts of an answer that are made already. */
static void check_parts(const struct request_prepare *q)
{
	struct buf b;
	buf_init(&b, 0);
	buf_printf(&b, "{\"warnings\":[%.*s]", (int)q->warnings.len,
	           q->warnings.len ? q->warnings.data : "");
	buf_add(&b, q->echo.len ? q->echo.data : "", q->echo.len);
	buf_adds(&b, "}");
	check_json(b.data, b.len);
	buf_fini(&b);
	if (!request_kind_needs_workers(q->kind))
		check_json(q->out.data, q->out.len);
}

/* --- one input ----------------------------------------------------------- */

static struct http_body body_of(struct http_clients *all, const uint8_t *data, size_t size)
{
	const struct sockaddr from = {.sa_family = AF_UNSPEC};
	struct http_body b = {.data = malloc(size + 1),
	                      .len = size,
	                      .client = clients_find(all, &from)};
	memcpy(b.data, data, size);
	b.data[size] = 0;
	return b;
}

static void run(struct request_prepare *q)
{
	if (q->kind == KIND_EMBEDDING)
		q->embed = (struct embed_params){.hidden = 64,
		                                 .inputs_max = 16,
		                                 .pooling = PDS__POOLING__POOLING_LAST};
	/* as the event loop does with a short body */
	request_parse_is_slow(q);
	if (!q->error.status)
		request_parse(q);
	must(q->quota.used <= REQUEST_BYTES);
	if (q->error.status) {
		check_error(&q->error);
		return;
	}
	fuzz_accepted();
	if (request_kind_needs_workers(q->kind))
		check_prompts(q);
	check_parts(q);
}

FUZZ(api, 1 << 14)
{
	struct quota_pool pool = {.size = 4 * REQUEST_BYTES};
	if (size < 1)
		return 0;
	struct http_clients *all = clients_new((size_t)1 << 20);
	struct request_prepare q = {.kind = (enum request_kind)(data[0] % 8),
	                            .model = model(),
	                            .context = CONTEXT,
	                            .max_model_len = CONTEXT,
	                            .vocab = 257,
	                            .max_answers = ANSWERS,
	                            .refuse_unknown = data[0] / 8 % 2,
	                            .body = body_of(all, data + 1, size - 1),
	                            .body_max = 1 << 20};
	quota_init(&q.quota, &pool, REQUEST_BYTES);
	pds__constraint__init(&q.constraint);
	q.constraint.text = NULL;
	buf_init_quota(&q.out, 0, &q.quota);
	buf_init_quota(&q.warnings, 0, &q.quota);
	buf_init_quota(&q.echo, 0, &q.quota);
	run(&q);
	request_prepare_fini(&q);
	must(pool.lent == 0);
	clients_destroy(&all); /* ends the process if the body is still held */
	return 0;
}
