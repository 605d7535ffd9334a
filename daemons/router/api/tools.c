/* tools.c - what a chat request says about tools and thoughts: tools, tool_choice,
 * parallel_tool_calls, include_reasoning, separate_reasoning. With tool_choice "required", or one
 * function, the answer is made to be calls, by a constraint in the model's own format; in the
 * generic format an answer with tools is always constrained. The schemas are compiled one by one
 * before that, so that an error names its tool. */
#include "prepare.h"
#include "grammar/grammar.h"
#include "text/toolcall_form.h"

#include <stdlib.h>
#include <string.h>

#define CALLS_MAX 8u      /* limit in an answer that must call */
#define NODES_MAX 100000u /* limit of all schemas together */

int tools_read(struct request_prepare *q, const json_t *o, struct chat_tools *ret)
{
	const struct model *m = q->model;
	struct params *p = &q->p;
	struct body_error bad;
	int parallel, include, separate, is_generic = toolcall_format_is_generic(m->calls);
	if (param_bool(o, "include_reasoning", 1, &include, &q->error) < 0 ||
	    param_bool(o, "separate_reasoning", 1, &separate, &q->error) < 0)
		return -1;
	q->message.reasoning = separate ? m->reasoning : NULL;
	q->message.marks_reasoning = !separate;
	q->message.drop_reasoning = !include;
	/* the marker after a call ends the answer */
	for (unsigned i = 0; i < m->n_markers && !p->ignore_eos; i++)
		if (m->markers[i].whose & MODEL_MARKS_LAST && p->n_stop_ids < PARAM_STOP_IDS_MAX)
			p->stop_ids[p->n_stop_ids++] = m->markers[i].id;
	/* a model that was not trained for calls seldom ends a list of them */
	if (param_bool(o, "parallel_tool_calls", !is_generic, &parallel, &q->error) < 0)
		return -1;
	if (chat_tools_read(o, ret, &bad) < 0)
		return api_bad(&q->error, bad.param, "%s", bad.text);
	ret->generic = is_generic;
	if (ret->choice == CHAT_CHOICE_NONE)
		return 0;
	if (!m->calls) {
		chat_tools_fini(ret);
		return api_bad(&q->error, "tools",
		               "it is not known how the model %s writes calls of tools (setting "
		               "tool_parser); send tool_choice \"none\" or no tools",
		               m->name);
	}
	q->message.calls = m->calls;
	/* the tools are kept, so they are counted, even if the rest of the body is not */
	struct json_account own = {.quota = &q->quota};
	struct json_account *all = q->json.quota ? NULL : json_account_begin(&own);
	q->message.tools = toolcall_tools_new(ret->tools);
	if (!q->json.quota)
		json_account_begin(all);
	q->message.named = ret->choice == CHAT_CHOICE_NAMED;
	q->message.one_call = !parallel || q->message.named;
	q->must_call = ret->choice == CHAT_CHOICE_REQUIRED || q->message.named;
	return 0;
}

/* --- an answer that must be a call --------------------------------------- */

static int bad_tool(struct request_prepare *q, size_t at, const struct err *err)
{
	return api_bad(&q->error, "tools", "tools[%zu].function.parameters: %s", at, err->text);
}

/* Compiles the schema of one tool, so that an error names the tool. nodes: of all so far */
static int check_schema(struct request_prepare *q, const json_t *tool, size_t at, uint32_t *nodes)
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
	char where[64];
	snprintf(where, sizeof where, "the schema of tools[%zu]", at);
	*nodes += grammar_nodes(g);
	r = params_ignored(q, "tools", where, g);
	grammar_destroy(&g);
	if (r < 0)
		return -1;
	return *nodes <= NODES_MAX ? 0
	                           : api_bad(&q->error, "tools",
	                                     "tools[%zu].function.parameters: the schemas up to here "
	                                     "are together too large to bind a call",
	                                     at);
}

/* Returns the tool's index among the request's tools; tools_force gets only the allowed ones. */
static size_t number_of(const json_t *o, const json_t *tool)
{
	const json_t *all = json_object_get(o, "tools");
	size_t i = 0;
	while (i < json_array_size(all) && json_array_get(all, i) != tool)
		i++;
	return i;
}

/* Fails when the form is too long, which may be: a definition is repeated for each parameter
 * that refers to it. */
static int add_form_text(const char *data, size_t n, void *text)
{
	return buf_add(text, data, n);
}

int tools_force(struct request_prepare *q, const json_t *o, const struct chat_tools *tools,
                const char *prompt, size_t len)
{
	struct err err = {0};
	size_t at;
	if (!tools->tools || (!q->must_call && !tools->generic))
		return 0;
	const char *by = q->must_call ? "tool_choice" : "tools";
	if (q->constraint.kind && !q->must_call)
		return api_bad(&q->error, by,
		               "this model cannot use tools together with %s (tool_parser generic): send "
		               "one of them, or tool_choice \"none\"",
		               q->bound_by);
	if (q->constraint.kind)
		return api_bad(&q->error, "tool_choice",
		               "tool_choice %s and the form that the request gives for its answer bind "
		               "both: give one of them",
		               param_show(json_object_get(o, "tool_choice")));
	uint32_t nodes = 0;
	for (size_t i = 0; i < json_array_size(tools->tools); i++) {
		const json_t *tool = json_array_get(tools->tools, i),
					 *name = json_object_get(json_object_get(tool, "function"), "name");
		if (tools->named && strcmp(tools->named, json_string_value(name)) != 0)
			continue;
		if (check_schema(q, tool, number_of(o, tool), &nodes) < 0)
			return -1;
	}
	json_t *pieces = toolcall_form(q->message.calls, tools->tools, tools->named,
	                               q->message.one_call ? 1 : CALLS_MAX, &at, &err);
	if (!pieces)
		return at == TOOLCALL_FORM_WHOLE
		           ? api_bad(&q->error, by, "%s: %s; send tool_choice %s\"none\"", by, err.text,
		                     q->must_call ? "\"auto\" or " : "")
		           : bad_tool(q, number_of(o, json_array_get(tools->tools, at)), &err);
	json_t *all = format_thoughts(q, prompt, len, 1);
	int r = q->must_call ? 0 : toolcall_form_or_response(pieces);
	r = r < 0 ? r : json_array_extend(all, pieces);
	struct buf text;
	buf_init(&text, GRAMMAR_TEXT_MAX);
	if (r == 0)
		r = json_dump_callback(all, add_form_text, &text, JSON_COMPACT | JSON_REAL_PRECISION(17));
	json_decref(all);
	json_decref(pieces);
	if (r == 0)
		return format_constrain(q, by, GRAMMAR_STRUCTURE, text.data, 0);
	buf_fini(&text);
	return api_bad(&q->error, by,
	               "%s: the form that the tools' schemas give has more than %u bytes", by,
	               GRAMMAR_TEXT_MAX);
}
