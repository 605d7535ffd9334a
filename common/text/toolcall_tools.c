/* toolcall_tools.c - the table of formats, ids of calls, and the tools that may be called. */
#include "text/harmony.h"
#include "text/toolcall_int.h"
#include "util/mem.h"

#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- formats ------------------------------------------------------------- */

/* If a template matches several formats, the first in the table is used. */
const struct toolcall_format toolcall_formats[] = {
	{
		.name = "deepseek_v32",
		.triggers = {"<｜DSML｜function_calls>", "<｜DSML｜invoke name=\""},
		.closers = {"</｜DSML｜function_calls>"},
		.inner = {"｜DSML｜"},
		.detect = {"｜DSML｜"},
		.open = tc_xml_open,
		.xml = {.call = "<｜DSML｜invoke name=\"",
                .name_end = "\">",
                .param = "<｜DSML｜parameter name=\"",
                .key_end = "\" string=\"",
                .value_end = "</｜DSML｜parameter>",
                .call_end = "</｜DSML｜invoke>",
                .typed = 1},
	},
	{
		.name = "deepseek",
		.triggers = {"<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>"},
		.closers = {"```", "<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>"},
		.inner = {"<｜tool▁sep｜>"},
		.detect = {"<｜tool▁call▁begin｜>"},
		.open = tc_tagged_open,
		.tagged = {"<｜tool▁call▁begin｜>", "<｜tool▁sep｜>"},
	},
	{
		.name = "kimi_k2",
		.triggers = {"<|tool_calls_section_begin|>", "<|tool_call_begin|>"},
		.closers = {"<|tool_call_end|>", "<|tool_calls_section_end|>"},
		.inner = {"<|tool_call_argument_begin|>"},
		.detect = {"<|tool_call_argument_begin|>"},
		.open = tc_tagged_open,
		.tagged = {"<|tool_call_begin|>", "<|tool_call_argument_begin|>"},
	},
	{
		.name = "mistral",
		.triggers = {"[TOOL_CALLS]"},
		.inner = {"[ARGS]", "[CALL_ID]"},
		.detect = {"[TOOL_CALLS]"},
		.open = tc_mistral_open,
		.short_ids = 1,
	},
	{
		.name = "cohere",
		.triggers = {"<|START_ACTION|>"},
		.closers = {"<|END_ACTION|>"},
		.detect = {"<|START_ACTION|>"},
		.open = tc_json_open,
		.name_key = "tool_name",
	},
	{
		.name = "granite",
		.triggers = {"<|tool_call|>", "<tool_call>"},
		.detect = {"<|tool_call|>"},
		.open = tc_json_open,
	},
	{
		.name = "glm",
		.triggers = {"<tool_call>"},
		.inner = {"</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"},
		.detect = {"<tool_call>", "<arg_key>"},
		.open = tc_xml_open,
		.xml = {.param = "<arg_key>",
                .key_end = "</arg_key>",
                .value = "<arg_value>",
                .value_end = "</arg_value>",
                .call_end = "</tool_call>"},
	},
	{
		.name = "qwen3_coder",
		.triggers = {"<tool_call>", "<function="},
		.closers = {"</tool_call>"},
		.detect = {"<tool_call>", "<function="},
		.open = tc_xml_open,
		.xml = {.call = "<function=",
                .name_end = ">",
                .param = "<parameter=",
                .key_end = ">",
                .value_end = "</parameter>",
                .call_end = "</function>",
                .trims_newline = 1},
	},
	{
		.name = "hermes",
		.triggers = {"<tool_call>"},
		.closers = {"</tool_call>"},
		.detect = {"<tool_call>"},
		.open = tc_json_open,
	},
	{
		.name = "llama3_json",
		.triggers = {"<|python_tag|>"},
		.closers = {";"},
		.detect = {"\"parameters\": ", "ipython"},
		.open = tc_json_open,
		.bare = '{',
	},
	{
		.name = "harmony",
		.triggers = {"<|start|>", "<|channel|>"},
		.closers = {"<|call|>", "<|end|>", "<|return|>"},
		.inner = {"<|message|>", "<|constrain|>"},
		.detect = {"<|channel|>", "<|message|>"},
		.open = tc_harmony_open,
		.bare = 't', /* to=functions.N: the text before it is in the prompt */
		.breaks = HARMONY_BREAK,
		.last = "<|call|>",
	},
	{
		.name = "pythonic",
		.triggers = {"<|python_tag|>"},
		.open = tc_python_open,
		.bare = '[',
	},
	{
		.name = "generic",
		.closers = {"}"},
		.open = tc_generic_open,
		.bare = '{',
	},
	{0},
};

const struct toolcall_format *toolcall_format_find(const char *name)
{
	for (const struct toolcall_format *f = toolcall_formats; f->name; f++)
		if (strcmp(f->name, name) == 0)
			return f;
	return NULL;
}

const struct toolcall_format *toolcall_format_detect(const char *text, size_t len)
{
	for (const struct toolcall_format *f = toolcall_formats; f->name; f++) {
		size_t i = 0;
		while (f->detect[i] && memmem(text, len, f->detect[i], strlen(f->detect[i])))
			i++;
		if (i && !f->detect[i])
			return f;
	}
	return toolcall_format_find("generic");
}

int toolcall_format_is_generic(const struct toolcall_format *f)
{
	return f && f->open == tc_generic_open;
}

const char *toolcall_format_name(const struct toolcall_format *f)
{
	return f->name;
}

const char *toolcall_format_marker(const struct toolcall_format *f, size_t i)
{
	const char *const *lists[] = {f->triggers, f->closers, f->inner};
	for (size_t k = 0; k < 3; k++)
		for (const char *const *m = lists[k]; *m; m++)
			if (i-- == 0)
				return *m;
	return NULL;
}

const char *toolcall_format_last(const struct toolcall_format *f)
{
	return f->last;
}

int toolcall_name_good(const char *s, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		char c = s[i];
		int good = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
		           (c && strchr("_-.:/", c));
		if (!good)
			return 0;
	}
	return n > 0 && n <= TOOLCALL_NAME_MAX;
}

/* --- ids ----------------------------------------------------------------- */

void toolcall_make_id(const struct toolcall_format *f, const char *seed, unsigned choice,
                      unsigned index, char out[TOOLCALL_ID_SIZE])
{
	static const char digits[] = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
	unsigned char sum[32];
	char *text = mem_printf("%s %u %u", seed, choice, index);
	size_t n = f->short_ids ? 9 : 24;
	crypto_generichash(sum, sizeof sum, (const unsigned char *)text, strlen(text), NULL, 0);
	free(text);
	out += sprintf(out, "%s", f->short_ids ? "" : "call_");
	for (size_t i = 0; i < n; i++)
		out[i] = digits[sum[i] % 62];
	out[n] = 0;
}

/* --- tools --------------------------------------------------------------- */

struct toolcall_tools {
	json_t *by_name; /* name -> its parameters, or null */
};

struct toolcall_tools *toolcall_tools_new(const json_t *tools)
{
	struct toolcall_tools *t = mem_zalloc(sizeof *t);
	t->by_name = json_object();
	for (size_t i = 0; i < json_array_size(tools); i++) {
		const json_t *f = json_object_get(json_array_get(tools, i), "function");
		const json_t *parameters = json_object_get(f, "parameters");
		const char *name = json_string_value(json_object_get(f, "name"));
		json_object_set_new(t->by_name, name,
		                    json_is_object(parameters) ? json_deep_copy(parameters) : json_null());
	}
	return t;
}

void toolcall_tools_destroy(struct toolcall_tools **t)
{
	if (!*t)
		return;
	json_decref((*t)->by_name);
	free(*t);
	*t = NULL;
}

int tc_tools_has(const struct toolcall_tools *t, const char *name)
{
	return json_object_get(t->by_name, name) != NULL;
}

unsigned tc_tools_types(const struct toolcall_tools *t, const char *name, const char *key)
{
	const json_t *parameters = json_object_get(t->by_name, name),
				 *schema = json_object_get(json_object_get(parameters, "properties"), key);
	int left = TC_STEPS_MAX;
	return schema ? tc_schema_types(parameters, schema, &left) : TC_STRING;
}
