/* unknown.c - parameters that this server does not know: a client that misspells one, or that
 * counts on another server's, is told. */
#include "daemons/router/request/prepare.h"
#include "util/near.h"

#include <string.h>

#define NAMED_MAX 8u /* the others are counted */
#define SHOWN_MAX 64

enum { COMPLETION = 1 << KIND_COMPLETION, CHAT = 1 << KIND_CHAT, BOTH = COMPLETION | CHAT };

/* Those without an effect here, which clients send by themselves, are known too. */
static const struct known {
	const char *name;
	unsigned kinds;
} known[] = {
	{"add_generation_prompt", CHAT},
	{"add_special_tokens", BOTH},
	{"allowed_token_ids", BOTH},
	{"audio", CHAT}, /* refused: params.c */
	{"bad_words", BOTH},
	{"best_of", BOTH},
	{"cache_salt", BOTH},
	{"chat_template", CHAT}, /* refused */
	{"chat_template_kwargs", CHAT},
	{"continue_final_message", CHAT},
	{"documents", CHAT},
	{"echo", BOTH},
	{"frequency_penalty", BOTH},
	{"function_call", CHAT}, /* refused: chat_request_tools.c */
	{"functions", CHAT},     /* refused */
	{"grammar", BOTH},
	{"guided_choice", BOTH},
	{"guided_grammar", BOTH},
	{"guided_json", BOTH},
	{"guided_regex", BOTH},
	{"ignore_eos", BOTH},
	{"include_reasoning", CHAT},
	{"include_stop_str_in_output", BOTH},
	{"json_schema", BOTH},
	{"logit_bias", BOTH},
	{"logprobs", BOTH},
	{"max_completion_tokens", CHAT},
	{"max_tokens", BOTH},
	{"messages", CHAT},
	{"metadata", BOTH}, /* of OpenAI's store: no effect */
	{"min_p", BOTH},
	{"min_tokens", BOTH},
	{"model", BOTH},
	{"n", BOTH},
	{"parallel_tool_calls", CHAT},
	{"prediction", CHAT}, /* refused */
	{"presence_penalty", BOTH},
	{"prompt", COMPLETION},
	{"prompt_cache_key", BOTH},
	{"prompt_embeds", COMPLETION}, /* refused */
	{"prompt_logprobs", BOTH},
	{"reasoning_effort", CHAT},
	{"repetition_penalty", BOTH},
	{"response_format", BOTH},
	{"return_token_ids", BOTH},
	{"safety_identifier", BOTH}, /* no effect */
	{"seed", BOTH},
	{"separate_reasoning", CHAT},
	{"service_tier", BOTH}, /* no effect */
	{"skip_special_tokens", BOTH},
	{"stop", BOTH},
	{"stop_token_ids", BOTH},
	{"store", BOTH}, /* no effect */
	{"stream", BOTH},
	{"stream_options", BOTH},
	{"structured_outputs", BOTH},
	{"suffix", COMPLETION}, /* refused */
	{"temperature", BOTH},
	{"tool_choice", CHAT},
	{"tools", CHAT},
	{"top_k", BOTH},
	{"top_logprobs", CHAT},
	{"top_p", BOTH},
	{"truncate_prompt_tokens", BOTH},
	{"typical_p", BOTH},
	{"use_beam_search", BOTH}, /* refused */
	{"user", BOTH},
};

static int is_known(const char *name, enum request_kind kind)
{
	for (size_t i = 0; i < sizeof known / sizeof *known; i++)
		if (strcmp(known[i].name, name) == 0)
			return (known[i].kinds >> kind & 1) != 0;
	return 0;
}

static int unknown_text(const struct request_prepare *q, const char *name, char *out, size_t size)
{
	struct nearest n = {.word = name};
	for (size_t i = 0; i < sizeof known / sizeof *known; i++)
		if (known[i].kinds >> q->kind & 1)
			nearest_try(&n, known[i].name);
	const char *near = n.best;
	return snprintf(out, size, "%.*s is not a parameter of this server%s%s%s", SHOWN_MAX, name,
	                near ? "; did you mean " : "", near ? near : "", near ? "?" : "");
}

int params_unknown(struct request_prepare *q, const json_t *o)
{
	const char *name;
	const json_t *v;
	size_t n = 0;
	json_object_foreach((json_t *)o, name, v) {
		char text[256];
		if (json_is_null(v) || is_known(name, q->kind))
			continue;
		if (n++ >= NAMED_MAX) /* looking for a near one takes its time */
			continue;
		size_t len = (size_t)unknown_text(q, name, text, sizeof text);
		if (q->refuse_unknown)
			return api_bad(&q->error, name, "%s", text);
		buf_adds(&q->warnings, n > 1 ? "," : "");
		buf_add_json(&q->warnings, text, len);
	}
	if (n > NAMED_MAX)
		buf_printf(&q->warnings, ",\"and %zu parameters more\"", n - NAMED_MAX);
	return q->warnings.full ? budget_refuse(q, NULL, "its warnings") : 0;
}
