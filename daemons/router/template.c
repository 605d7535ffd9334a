/* template.c - what a request of /v1/chat/completions or /tokenize says about the rendering of its messages, in vLLM's words: add_generation_prompt,
 * continue_final_message, documents, chat_template_kwargs. A template itself is never taken from a request: it is the server's. */
#include "call.h"

#include <string.h>

#define DOCUMENTS_MAX 1024

static int read_documents(struct call *c, const json_t *o, struct chat_render *in)
{
	const json_t *v = json_object_get(o, "documents");
	if (!v || json_is_null(v))
		return 0;
	if (!json_is_array(v) || json_array_size(v) > DOCUMENTS_MAX)
		return api_bad(&c->error, "documents", "documents must be an array of at most %d objects, got %s", DOCUMENTS_MAX, param_show(v));
	for (size_t i = 0; i < json_array_size(v); i++)
		if (!json_is_object(json_array_get(v, i)))
			return api_bad(&c->error, "documents", "documents[%zu] must be an object, got %s", i, param_show(json_array_get(v, i)));
	in->documents = json_array_size(v) ? v : NULL;
	return 0;
}

int template_choose(struct call *c, const json_t *o, const json_t *tools, struct chat_render *in, const struct chat_template **ret_t)
{
	const json_t *more = json_object_get(o, "chat_template_kwargs");
	const struct chat_template *t = chat_set_choose(&c->model->chats, json_array_size(tools) > 0);
	if (!t)
		return api_bad(&c->error, "messages", "the model %s has no chat template: send a prompt to /v1/completions, or give the server one (setting chat_template)",
		               c->model->name);
	if (param_bool(o, "continue_final_message", 0, &in->continue_final_message, &c->error) < 0 || read_documents(c, o, in) < 0)
		return -1;
	in->add_generation_prompt = c->p.add_generation;
	if (in->continue_final_message && in->add_generation_prompt) {
		if (param_is_set(o, "add_generation_prompt"))
			return api_bad(&c->error, "continue_final_message", "continue_final_message and add_generation_prompt cannot both be true");
		in->add_generation_prompt = 0;
	}
	if (more && !json_is_null(more) && !json_is_object(more))
		return api_bad(&c->error, "chat_template_kwargs", "chat_template_kwargs must be an object, got %s", param_show(more));
	if (json_is_object(more))
		in->variables = more;
	in->tools = tools;
	in->special_tokens = c->model->chats.special_tokens;
	in->now_s = c->created_s;
	*ret_t = t;
	return 0;
}
