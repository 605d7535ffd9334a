/* api_tools.c - what a chat request says about tools and thoughts: tools, tool_choice,
 * parallel_tool_calls, include_reasoning, separate_reasoning. */
#include "call.h"

static int read_reasoning(struct call *c, const json_t *o)
{
	int include, separate;
	if (param_bool(o, "include_reasoning", 1, &include, &c->error) < 0 ||
	    param_bool(o, "separate_reasoning", 1, &separate, &c->error) < 0)
		return -1;
	c->message.reasoning = separate ? c->model->reasoning : NULL;
	c->message.marks_reasoning = !separate;
	c->message.drop_reasoning = !include;
	return 0;
}

static void end_with_call(struct call *c)
{
	const struct model *m = c->model;
	struct params *p = &c->p;
	for (unsigned i = 0; i < m->n_markers && !p->ignore_eos; i++)
		if (m->markers[i].whose & MODEL_MARKS_LAST && p->n_stop_ids < PARAM_STOP_IDS_MAX)
			p->stop_ids[p->n_stop_ids++] = m->markers[i].id;
}

/* They stay, so they count, also where the rest of the body does not. */
static void take_tools(struct call *c, const json_t *tools)
{
	struct json_account own = {.quota = &c->quota};
	struct json_account *all = c->json.quota ? NULL : json_account_begin(&own);
	c->message.tools = toolcall_tools_new(tools);
	if (!c->json.quota)
		json_account_begin(all);
}

int tools_read(struct call *c, const json_t *o, struct chat_tools *ret)
{
	struct body_error bad;
	int parallel;
	if (read_reasoning(c, o) < 0)
		return -1;
	end_with_call(c);
	if (chat_tools_read(o, ret, &bad) < 0)
		return call_bad_body(c, &bad);
	if (param_bool(o, "parallel_tool_calls", 1, &parallel, &c->error) < 0)
		return -1;
	if (ret->choice == CHAT_CHOICE_NONE)
		return 0;
	if (!c->model->calls)
		return api_bad(&c->error, "tools",
		               "it is not known how the model %s writes calls of tools (setting "
		               "tool_parser); send tool_choice \"none\" or no tools",
		               c->model->name);
	c->message.calls = c->model->calls;
	take_tools(c, ret->tools);
	c->message.named = ret->choice == CHAT_CHOICE_NAMED;
	c->message.one_call = !parallel || c->message.named;
	c->must_call = ret->choice == CHAT_CHOICE_REQUIRED || c->message.named;
	return 0;
}
