/* tools.c - what a chat request says about tools and thoughts: tools, tool_choice,
 * parallel_tool_calls, include_reasoning, separate_reasoning. */
#include "daemons/router/request/request.h"

static int read_reasoning(struct request *q, const json_t *o)
{
	int include, separate;
	if (param_bool(o, "include_reasoning", 1, &include, &q->error) < 0 ||
	    param_bool(o, "separate_reasoning", 1, &separate, &q->error) < 0)
		return -1;
	q->message.reasoning = separate ? q->model->reasoning : NULL;
	q->message.marks_reasoning = !separate;
	q->message.drop_reasoning = !include;
	return 0;
}

static void end_with_call(struct request *q)
{
	const struct model *m = q->model;
	struct params *p = &q->p;
	for (unsigned i = 0; i < m->n_markers && !p->ignore_eos; i++)
		if (m->markers[i].whose & MODEL_MARKS_LAST && p->n_stop_ids < PARAM_STOP_IDS_MAX)
			p->stop_ids[p->n_stop_ids++] = m->markers[i].id;
}

/* They stay, so they count, also where the rest of the body does not. */
static void take_tools(struct request *q, const json_t *tools)
{
	struct json_account own = {.quota = &q->quota};
	struct json_account *all = q->json.quota ? NULL : json_account_begin(&own);
	q->message.tools = toolcall_tools_new(tools);
	if (!q->json.quota)
		json_account_begin(all);
}

int tools_read(struct request *q, const json_t *o, struct chat_tools *ret)
{
	struct body_error bad;
	int parallel;
	if (read_reasoning(q, o) < 0)
		return -1;
	end_with_call(q);
	if (chat_tools_read(o, ret, &bad) < 0)
		return request_bad_body(q, &bad);
	if (param_bool(o, "parallel_tool_calls", 1, &parallel, &q->error) < 0)
		return -1;
	if (ret->choice == CHAT_CHOICE_NONE)
		return 0;
	if (!q->model->calls)
		return api_bad(&q->error, "tools",
		               "it is not known how the model %s writes calls of tools (setting "
		               "tool_parser); send tool_choice \"none\" or no tools",
		               q->model->name);
	q->message.calls = q->model->calls;
	take_tools(q, ret->tools);
	q->message.named = ret->choice == CHAT_CHOICE_NAMED;
	q->message.one_call = !parallel || q->message.named;
	q->must_call = ret->choice == CHAT_CHOICE_REQUIRED || q->message.named;
	return 0;
}
