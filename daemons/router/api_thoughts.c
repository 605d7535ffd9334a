/* api_thoughts.c - thoughts before an answer that is bound (api_force.c, api_format.c): where the model
 * has them, and as far as its prompt leaves room for them. */
#include "call.h"

void thoughts_first(struct call *c, const char *prompt, size_t len, int is_call, json_t *pieces)
{
	if (!c->model->reasoning)
		return;
	const struct reasoning_form *f = reasoning_format_form(c->model->reasoning);
	enum reasoning_at at = reasoning_opened(c->model->reasoning, prompt, len);
	json_t *first;
	if (at == REASONING_BEFORE)
		first = json_pack("[{s:[[{s:s},{s:s},{s:s}],[]]}]", "any_of", "literal", f->open,
		                  "free", f->close, "regex", f->next);
	else if (at == REASONING_WITHIN_THOUGHTS || (is_call && *f->answer))    /* a message is open */
		first = json_pack("[{s:s},{s:s}]", "free", f->close, "regex", f->next);
	else
		first = json_array();
	if (!is_call && *f->answer && at != REASONING_WITHIN_ANSWER)
		json_array_append_new(first, json_pack("{s:s}", "literal", f->answer));
	json_array_extend(first, pieces);
	json_array_clear(pieces);
	json_array_extend(pieces, first);
	json_decref(first);
}
