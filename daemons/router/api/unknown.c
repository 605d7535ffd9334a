/* unknown.c - parameters that this server does not know, and what schemas have that constrains
 * nothing: a client that misspells one, or that counts on another server's, is told. */
#include "daemons/router/request/prepare.h"
#include "grammar/grammar.h"
#include "util/near.h"

#include <string.h>

#define NAMED_MAX 8u /* the others are counted */
#define SHOWN_MAX 64
#define SCHEMAS_BYTES 4096u /* of warnings: beyond them, schemas add no more */

enum {
	COMPLETION = 1 << KIND_COMPLETION,
	CHAT = 1 << KIND_CHAT,
	RESPONSES = 1 << KIND_RESPONSES,
	MESSAGES = 1 << KIND_MESSAGES,
	BOTH = COMPLETION | CHAT,
	OPENAI = BOTH | RESPONSES,
	ALL = OPENAI | MESSAGES,
	EMBEDDING = 1 << KIND_EMBEDDING
};

/* Those without an effect here, which clients send by themselves, are known too. */
static const struct known {
	const char *name;
	unsigned kinds;
} known[] = {
	{"add_generation_prompt", CHAT},
	{"add_special_tokens", BOTH | EMBEDDING},
	{"allowed_token_ids", ALL},
	{"audio", CHAT},           /* refused: params.c */
	{"background", RESPONSES}, /* true is refused */
	{"bad_words", ALL},
	{"best_of", BOTH},
	{"cache_control", MESSAGES}, /* no effect */
	{"cache_salt", ALL | EMBEDDING},
	{"chat_template", CHAT}, /* refused */
	{"chat_template_kwargs", CHAT | RESPONSES | MESSAGES},
	{"container", MESSAGES}, /* refused */
	{"continue_final_message", CHAT},
	{"conversation", RESPONSES},      /* refused */
	{"custom_logit_processor", BOTH}, /* refused */
	{"dimensions", EMBEDDING},
	{"documents", CHAT},
	{"ebnf", BOTH},
	{"echo", BOTH},
	{"encoding_format", EMBEDDING},
	{"frequency_penalty", ALL},
	{"function_call", CHAT}, /* refused: chat_request_tools.c */
	{"functions", CHAT},     /* refused */
	{"grammar", BOTH},
	{"guided_choice", BOTH},
	{"guided_grammar", BOTH},
	{"guided_json", BOTH},
	{"guided_regex", BOTH},
	{"guided_whitespace_pattern", BOTH}, /* refused */
	{"ignore_eos", ALL},
	{"include", RESPONSES},
	{"include_reasoning", CHAT},
	{"include_stop_str_in_output", ALL},
	{"input", RESPONSES | EMBEDDING},
	{"instructions", RESPONSES},
	{"json_schema", BOTH},
	{"logit_bias", ALL},
	{"logits_processors", BOTH}, /* refused */
	{"logprobs", BOTH},
	{"max_completion_tokens", CHAT},
	{"max_output_tokens", RESPONSES},
	{"max_tokens", BOTH | MESSAGES},
	{"max_tool_calls", RESPONSES}, /* of built-in tools: no effect */
	{"mcp_servers", MESSAGES},     /* refused */
	{"messages", CHAT | MESSAGES},
	{"metadata", ALL}, /* of OpenAI's store: no effect; messages: its user_id is `user` */
	{"min_p", ALL},
	{"min_tokens", ALL},
	{"model", ALL | EMBEDDING},
	{"n", BOTH},
	{"normalize", EMBEDDING},
	{"output_config", MESSAGES},
	{"output_format", MESSAGES},
	{"parallel_tool_calls", CHAT | RESPONSES},
	{"pooling", EMBEDDING},
	{"prediction", CHAT}, /* refused */
	{"presence_penalty", ALL},
	{"previous_response_id", RESPONSES}, /* refused */
	{"prompt", COMPLETION | RESPONSES},  /* of responses: refused */
	{"prompt_cache_key", OPENAI},
	{"prompt_embeds", COMPLETION}, /* refused */
	{"prompt_logprobs", BOTH},
	{"reasoning", RESPONSES},
	{"reasoning_effort", CHAT},
	{"regex", BOTH},
	{"repetition_penalty", ALL},
	{"response_format", BOTH},
	{"return_token_ids", BOTH},
	{"safety_identifier", OPENAI}, /* no effect */
	{"seed", ALL},
	{"separate_reasoning", CHAT},
	{"service_tier", ALL}, /* no effect */
	{"skip_special_tokens", ALL},
	{"stop", OPENAI},
	{"stop_sequences", MESSAGES},
	{"stop_token_ids", ALL},
	{"store", OPENAI}, /* no effect */
	{"stream", ALL},
	{"stream_options", OPENAI},
	{"structural_tag", BOTH}, /* refused */
	{"structured_outputs", ALL},
	{"suffix", COMPLETION}, /* refused */
	{"system", MESSAGES},
	{"temperature", ALL},
	{"text", RESPONSES},
	{"thinking", MESSAGES},
	{"tool_choice", CHAT | RESPONSES | MESSAGES},
	{"tools", CHAT | RESPONSES | MESSAGES},
	{"top_k", ALL},
	{"top_logprobs", CHAT | RESPONSES},
	{"top_p", ALL},
	{"truncate_prompt_tokens", ALL | EMBEDDING},
	{"truncation", RESPONSES},
	{"typical_p", ALL},
	{"use_beam_search", BOTH},    /* refused */
	{"user", OPENAI | EMBEDDING}, /* EMBEDDING: no effect */
};

static int is_known(const char *name, enum request_kind kind)
{
	for (size_t i = 0; i < sizeof known / sizeof *known; i++)
		if (strcmp(known[i].name, name) == 0)
			return (known[i].kinds >> kind & 1) != 0;
	return 0;
}

json_t *params_of_chat(const json_t *o, enum request_kind kind)
{
	unsigned both = 1u << kind | CHAT;
	json_t *chat = json_object();
	for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
		json_t *v = json_object_get(o, known[i].name);
		if (!v || (known[i].kinds & both) != both)
			continue;
		if (json_object_set(chat, known[i].name, v) < 0) {
			json_decref(chat);
			return NULL;
		}
	}
	return chat;
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

static void warn(struct request_prepare *q, const char *text, size_t len)
{
	buf_adds(&q->warnings, q->warnings.len ? "," : "");
	buf_add_json(&q->warnings, text, len);
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
		warn(q, text, len);
	}
	if (n > NAMED_MAX)
		buf_printf(&q->warnings, ",\"and %zu parameters more\"", n - NAMED_MAX);
	return q->warnings.full ? budget_refuse(q, NULL, "its warnings") : 0;
}

int params_ignored(struct request_prepare *q, const char *param, const char *where,
                   const struct grammar *g)
{
	const char *name;
	for (unsigned i = 0; (name = grammar_ignored(g, i)) && q->warnings.len < SCHEMAS_BYTES; i++) {
		char text[256];
		int len = snprintf(text, sizeof text, "%s of %s constrains nothing on this server", name,
		                   where);
		if (q->refuse_unknown)
			return api_bad(&q->error, param, "%s", text);
		warn(q, text, (size_t)len < sizeof text ? (size_t)len : sizeof text - 1);
	}
	return q->warnings.full ? budget_refuse(q, NULL, "its warnings") : 0;
}
