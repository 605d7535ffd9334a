/* force.c - tool_choice "required" or of one function: the answer is made to be calls, by a
 * constraint in the format of the model.
 *
 * The schemas are compiled one by one before, so that the error names the tool; together they
 * may cost no more than one may. */
#include "daemons/router/request/request.h"
#include "grammar/grammar.h"
#include "text/toolcall_form.h"

#include <stdlib.h>
#include <string.h>

#define CALLS_MAX 8u      /* in an answer that must call */
#define NODES_MAX 100000u /* of all schemas */

static int bad_tool(struct request *q, size_t at, const struct err *err)
{
	return api_bad(&q->error, "tools", "tools[%zu].function.parameters: %s", at, err->text);
}

static int check_schema(struct request *q, const json_t *tool, size_t at, uint32_t *nodes)
{
	struct grammar *g;
	struct err err = {0};
	json_t *schema = toolcall_form_schema(tool, &err);
	if (!schema)
		return bad_tool(q, at, &err);
	char *text = json_dumps(schema, JSON_COMPACT | JSON_REAL_PRECISION(17));
	int r = text ? grammar_compile(GRAMMAR_JSON_SCHEMA, text, strlen(text), 0, &g, &err)
	             : err_set(&err, ERR_INVALID, "no text can say it");
	free(text);
	json_decref(schema);
	if (r < 0)
		return bad_tool(q, at, &err);
	*nodes += grammar_nodes(g);
	grammar_destroy(&g);
	return *nodes <= NODES_MAX ? 0
	                           : api_bad(&q->error, "tools",
	                                     "tools[%zu].function.parameters: the schemas up to here "
	                                     "are together too large to bind a call",
	                                     at);
}

static int check_schemas(struct request *q, const json_t *tools, const char *only)
{
	uint32_t nodes = 0;
	for (size_t i = 0; i < json_array_size(tools); i++) {
		const json_t *tool = json_array_get(tools, i);
		if (only && strcmp(only, json_string_value(json_object_get(
									 json_object_get(tool, "function"), "name"))) != 0)
			continue;
		if (check_schema(q, tool, i, &nodes) < 0)
			return -1;
	}
	return 0;
}

int tools_force(struct request *q, const json_t *o, const char *prompt, size_t len)
{
	const json_t *tools = json_object_get(o, "tools");
	const char *only = json_string_value(
		json_object_get(json_object_get(json_object_get(o, "tool_choice"), "function"), "name"));
	struct err err = {0};
	size_t at;
	if (!q->must_call)
		return 0;
	if (q->constraint.kind)
		return api_bad(&q->error, "tool_choice",
		               "tool_choice %s and the form that the request gives for its answer bind "
		               "both: give one of them",
		               param_show(json_object_get(o, "tool_choice")));
	if (check_schemas(q, tools, only) < 0)
		return -1;
	json_t *pieces = toolcall_form(q->message.calls, tools, only,
	                               q->message.one_call ? 1 : CALLS_MAX, &at, &err);
	if (!pieces)
		return at == TOOLCALL_FORM_WHOLE
		           ? api_bad(&q->error, "tool_choice", "tool_choice: %s; use \"auto\" or \"none\"",
		                     err.text)
		           : bad_tool(q, at, &err);
	json_t *all = thoughts_first(q, prompt, len, 1);
	int r = json_array_extend(all, pieces);
	char *text = r == 0 ? json_dumps(all, JSON_COMPACT | JSON_REAL_PRECISION(17)) : NULL;
	json_decref(all);
	json_decref(pieces);
	return text ? request_constrain(q, "tool_choice", GRAMMAR_STRUCTURE, text, 0)
	            : api_bad(&q->error, "tool_choice", "tool_choice: no text can say this form");
}
