/* unknown.c - the table of parameters, which /openapi.json shows. A client gets a warning or an
 * error for a parameter that this server does not know, because the client has misspelled it or
 * expects another server, and for keywords of a schema that constrain nothing. */
#include "prepare.h"
#include "grammar/grammar.h"
#include "util/near.h"

#include <string.h>

#define NAMED_MAX 8u /* the others are counted */
#define SHOWN_MAX 64
#define SCHEMAS_BYTES 4096u /* limit of the warnings about schemas */

enum {
	COMPLETION = 1 << KIND_COMPLETION,
	CHAT = 1 << KIND_CHAT,
	RESPONSES = 1 << KIND_RESPONSES,
	MESSAGES = 1 << KIND_MESSAGES,
	BOTH = COMPLETION | CHAT,
	OPENAI = BOTH | RESPONSES,
	ALL = OPENAI | MESSAGES,
	EMBEDDING = 1 << KIND_EMBEDDING,
	TOKENIZE = 1 << KIND_TOKENIZE, /* these two have no check for unknown ones */
	DETOKENIZE = 1 << KIND_DETOKENIZE
};

/* What a parameter may be, as members of a JSON schema. */
#define TEXT_OF(x) #x
#define AS_TEXT(x) TEXT_OF(x)
#define BOOL "\"type\":\"boolean\""
#define STRING "\"type\":\"string\""
#define OBJECT "\"type\":\"object\""
#define LIST "\"type\":\"array\""
#define STRING_OR_LIST "\"type\":[\"string\",\"array\"]"
#define OBJECT_OR_STRING "\"type\":[\"object\",\"string\"]"
#define INT_FROM(min) "\"type\":\"integer\",\"minimum\":" AS_TEXT(min)
#define INT(min, max) INT_FROM(min) ",\"maximum\":" AS_TEXT(max)
#define NUMBER(min, max) \
	"\"type\":\"number\",\"minimum\":" AS_TEXT(min) ",\"maximum\":" AS_TEXT(max)
#define ABOVE_0(max) "\"type\":\"number\",\"exclusiveMinimum\":0,\"maximum\":" AS_TEXT(max)
#define ITEMS(item, max) ",\"items\":{" item "},\"maxItems\":" AS_TEXT(max)
#define LIST_OF(item, max) LIST ITEMS(item, max)
#define STRING_OR_LIST_OF(item, max) STRING_OR_LIST ITEMS(item, max)
#define ONE_OF(values) "\"enum\":[" values "]"
#define ABOUT(text) ",\"description\":\"" text "\""
#define NO_EFFECT "\"description\":\"no effect\"" /* clients send it without being asked */
#define REFUSED NULL

/* Readers have the ranges, too: tests/e2e/test_openapi.py holds one against the other. */
static const struct known {
	const char *name;
	unsigned kinds;
	const char *schema; /* REFUSED: not shown in /openapi.json */
} known[] = {
	{"add_generation_prompt", CHAT, BOOL},
	{"add_special_tokens", BOTH | EMBEDDING | TOKENIZE, BOOL},
	{"allowed_token_ids", ALL, LIST_OF(INT(0, 4294967295), PARAM_ALLOWED_MAX)},
	{"audio", CHAT, REFUSED},           /* params.c */
	{"background", RESPONSES, REFUSED}, /* unless it is false */
	{"bad_words", ALL, LIST_OF(STRING, PARAM_BAD_WORDS_MAX)},
	{"best_of", BOTH, INT_FROM(1) ABOUT("only the value of n")},
	{"cache_control", MESSAGES, NO_EFFECT},
	{"cache_salt", ALL | EMBEDDING | TOKENIZE, STRING},
	{"chat_template", CHAT, REFUSED},
	{"chat_template_kwargs", CHAT | RESPONSES | MESSAGES | TOKENIZE, OBJECT},
	{"container", MESSAGES, REFUSED},
	{"continue_final_message", CHAT | TOKENIZE, BOOL},
	{"conversation", RESPONSES, REFUSED},
	{"custom_logit_processor", BOTH, REFUSED},
	{"dimensions", EMBEDDING, INT_FROM(1)},
	{"documents", CHAT | TOKENIZE, LIST},
	{"ebnf", BOTH, STRING},
	{"echo", COMPLETION, BOOL},
	{"echo", CHAT, REFUSED},
	{"encoding_format", EMBEDDING, ONE_OF("\"float\",\"base64\"")},
	{"frequency_penalty", ALL, NUMBER(-2, 2)},
	{"function_call", CHAT, REFUSED}, /* chat_request_tools.c */
	{"functions", CHAT, REFUSED},
	{"grammar", BOTH, STRING},
	{"guided_choice", BOTH, LIST},
	{"guided_grammar", BOTH, STRING},
	{"guided_json", BOTH, OBJECT_OR_STRING},
	{"guided_regex", BOTH, STRING},
	{"guided_whitespace_pattern", BOTH, REFUSED},
	{"ignore_eos", ALL, BOOL},
	{"include", RESPONSES, LIST},
	{"include_reasoning", CHAT, BOOL},
	{"include_stop_str_in_output", ALL, BOOL},
	{"input", RESPONSES | EMBEDDING, STRING_OR_LIST},
	{"instructions", RESPONSES, STRING},
	{"json_schema", BOTH, OBJECT},
	{"logit_bias", ALL, OBJECT},
	{"logits_processors", BOTH, REFUSED},
	{"logprobs", COMPLETION, INT(0, PARAM_LOGPROBS_MAX)},
	{"logprobs", CHAT, BOOL},
	{"max_completion_tokens", CHAT, INT(1, 2147483647)},
	{"max_output_tokens", RESPONSES, INT(1, 2147483647)},
	{"max_tokens", COMPLETION, INT(0, 2147483647) ABOUT("0 only with echo")},
	{"max_tokens", CHAT | MESSAGES, INT(1, 2147483647)},
	{"max_tool_calls", RESPONSES, NO_EFFECT}, /* of built-in tools */
	{"mcp_servers", MESSAGES, REFUSED},
	{"messages", CHAT | MESSAGES | TOKENIZE, LIST},
	{"metadata", ALL, NO_EFFECT}, /* of OpenAI's store; messages: its user_id is `user` */
	{"min_p", ALL, NUMBER(0, 1)},
	{"min_tokens", ALL, INT(0, 2147483647)},
	{"model", ALL | EMBEDDING | TOKENIZE | DETOKENIZE, STRING},
	{"n", BOTH, INT_FROM(1) ABOUT("at most max_choices")},
	{"normalize", EMBEDDING, BOOL},
	{"output_config", MESSAGES, OBJECT},
	{"output_format", MESSAGES, OBJECT},
	{"parallel_tool_calls", CHAT | RESPONSES, BOOL},
	{"pooling", EMBEDDING, ONE_OF("\"last\",\"mean\"")},
	{"prediction", CHAT, REFUSED},
	{"presence_penalty", ALL, NUMBER(-2, 2)},
	{"previous_response_id", RESPONSES, REFUSED},
	{"prompt", COMPLETION, STRING_OR_LIST},
	{"prompt", TOKENIZE, STRING},
	{"prompt", RESPONSES, REFUSED},
	{"prompt_cache_key", OPENAI, STRING},
	{"prompt_embeds", COMPLETION, REFUSED},
	{"prompt_logprobs", BOTH, INT(0, PARAM_LOGPROBS_MAX)},
	{"reasoning", RESPONSES, OBJECT},
	{"reasoning_effort", CHAT | TOKENIZE, STRING},
	{"regex", BOTH, STRING},
	{"repetition_penalty", ALL, ABOVE_0(10)},
	{"response_format", BOTH, OBJECT},
	{"return_timings", BOTH, BOOL},
	{"return_token_ids", BOTH, BOOL},
	{"return_token_strs", TOKENIZE, BOOL},
	{"safety_identifier", OPENAI, NO_EFFECT},
	{"seed", ALL, INT(-9223372036854775808, 9223372036854775807)},
	{"separate_reasoning", CHAT, BOOL},
	{"service_tier", ALL, NO_EFFECT},
	{"skip_special_tokens", ALL, BOOL},
	{"stop", OPENAI, STRING_OR_LIST_OF(STRING, STOP_STRINGS_MAX)},
	{"stop_sequences", MESSAGES, LIST_OF(STRING, STOP_STRINGS_MAX)},
	{"stop_token_ids", ALL, LIST_OF(INT(0, 2147483647), PARAM_STOP_IDS_MAX)},
	{"store", OPENAI, NO_EFFECT},
	{"stream", ALL, BOOL},
	{"stream_options", OPENAI, OBJECT},
	{"structural_tag", BOTH, REFUSED},
	{"structured_outputs", ALL, OBJECT},
	{"suffix", COMPLETION, REFUSED},
	{"system", MESSAGES, STRING_OR_LIST},
	{"temperature", ALL, NUMBER(0, 100)},
	{"text", RESPONSES, OBJECT},
	{"thinking", MESSAGES, OBJECT},
	{"timings_per_token", BOTH, BOOL},
	{"tokens", DETOKENIZE, LIST},
	{"tool_choice", CHAT | RESPONSES | MESSAGES | TOKENIZE, OBJECT_OR_STRING},
	{"tools", CHAT | RESPONSES | MESSAGES | TOKENIZE, LIST},
	{"top_k", ALL, INT(-1, 2147483647)},
	{"top_logprobs", CHAT | RESPONSES, INT(0, PARAM_LOGPROBS_MAX)},
	{"top_p", ALL, ABOVE_0(1)},
	{"truncate_prompt_tokens", ALL | EMBEDDING, INT(-1, 2147483647) ABOUT("not 0")},
	{"truncation", RESPONSES, ONE_OF("\"disabled\"")},
	{"typical_p", ALL, ABOVE_0(1)},
	{"use_beam_search", BOTH, REFUSED},
	{"user", OPENAI | EMBEDDING, STRING},
};

void params_describe(enum request_kind kind, struct buf *out)
{
	static const char *const required[] = {
		[KIND_COMPLETION] = "\"prompt\"",     [KIND_CHAT] = "\"messages\"",
		[KIND_RESPONSES] = "\"input\"",       [KIND_MESSAGES] = "\"messages\",\"max_tokens\"",
		[KIND_COUNT_TOKENS] = "\"messages\"", [KIND_EMBEDDING] = "\"input\"",
		[KIND_DETOKENIZE] = "\"tokens\"",     [KIND_TOKENIZE] = ""};
	enum request_kind of = kind == KIND_COUNT_TOKENS ? KIND_MESSAGES : kind;
	const char *comma = "";
	buf_printf(out, "{\"type\":\"object\",\"required\":[%s],\"properties\":{", required[kind]);
	for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
		if (!(known[i].kinds >> of & 1) || !known[i].schema)
			continue;
		buf_printf(out, "%s\"%s\":{%s}", comma, known[i].name, known[i].schema);
		comma = ",";
	}
	buf_adds(out, "}}");
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

static void warn(struct request_prepare *q, const char *text, size_t len)
{
	buf_adds(&q->warnings, q->warnings.len ? "," : "");
	buf_add_json(&q->warnings, text, len);
}

int params_unknown(struct request_prepare *q, const json_t *o)
{
	static const size_t n_known = sizeof known / sizeof *known;
	const char *name;
	const json_t *v;
	size_t n = 0;
	json_object_foreach((json_t *)o, name, v) {
		char text[256];
		size_t at = 0;
		while (at < n_known &&
		       !(known[at].kinds >> q->kind & 1 && strcmp(known[at].name, name) == 0))
			at++;
		if (json_is_null(v) || at < n_known)
			continue;
		if (n++ >= NAMED_MAX) /* a search for the nearest name takes time */
			continue;
		struct nearest near = {.word = name};
		for (size_t i = 0; i < n_known; i++)
			if (known[i].kinds >> q->kind & 1)
				nearest_try(&near, known[i].name);
		size_t len = (size_t)snprintf(text, sizeof text,
		                              "%.*s is not a parameter of this server%s%s%s", SHOWN_MAX,
		                              name, near.best ? "; did you mean " : "",
		                              near.best ? near.best : "", near.best ? "?" : "");
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
