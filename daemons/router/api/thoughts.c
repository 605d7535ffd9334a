/* thoughts.c - what comes before an answer that is bound (a call: force.c, another form:
 * format.c), so that a model may think first.
 *
 * Thoughts that the prompt opened come to their end. Where the prompt neither opened nor closed
 * them, the model chooses by its first token, if that is a marker: in harmony, and where the marker
 * that opens thoughts is one token (Qwen 3). A marker of several tokens of text (Granite 3.2: "Here
 * is my thought process:") begins as any answer may begin, and then only thoughts could follow:
 * there the answer is bound from its first token. */
#include "daemons/router/request/request.h"

/* NULL: there is no memory, here and below. */
static json_t *to_the_end(const struct reasoning_form *f)
{
	return json_pack("[{s:s},{s:s}]", "free", f->close, "regex", f->next);
}

static json_t *if_the_model_thinks(const struct reasoning_form *f)
{
	return json_pack("[{s:[[{s:s},{s:s},{s:s}],[]]}]", "any_of", "literal", f->open, "free",
	                 f->close, "regex", f->next);
}

json_t *thoughts_first(const struct request *q, const char *prompt, size_t len, int is_call)
{
	const struct reasoning_format *format = q->model->reasoning;
	if (!format)
		return json_array();
	const struct reasoning_form *f = reasoning_format_form(format);
	enum reasoning_at at = reasoning_opened(format, prompt, len);
	int is_row = *f->answer != 0; /* of messages; what the prompt began is one */
	json_t *first;
	if (at == REASONING_BEFORE && (is_row || q->model->opens_by_token))
		first = if_the_model_thinks(f);
	else if (at == REASONING_WITHIN_THOUGHTS ||
	         (at == REASONING_WITHIN_ANSWER && is_row && is_call))
		first = to_the_end(f);
	else
		first = json_array();
	if (is_row && !is_call && at != REASONING_WITHIN_ANSWER &&
	    json_array_append_new(first, json_pack("{s:s}", "literal", f->answer)) < 0) {
		json_decref(first);
		return NULL;
	}
	return first;
}
