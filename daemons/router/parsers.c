/* parsers.c - how the model that is served writes thoughts and calls of tools: what its template shows, unless the settings say it. */
#include "model.h"
#include "util/mem.h"

#include <stdlib.h>
#include <string.h>

void model_see_template(struct model *m, const char *text, size_t len)
{
	m->calls = toolcall_format_detect(text, len);
	m->reasoning = reasoning_format_detect(text, len);
}

/* Markers that are special tokens: their text is left out of answers, unless somebody looks for it. */
static void add_marker(struct model *m, const char *text, unsigned whose)
{
	struct token_list l = {0};
	int r = tokenizer_encode(m->tokenizer, text, strlen(text), TOKENIZE_PARSE_SPECIAL, 0, &l);
	if (r == 0 && l.n == 1 && tokenizer_is_special(m->tokenizer, l.ids[0]) && m->n_markers < MODEL_MARKERS_MAX)
		m->markers[m->n_markers++] = (struct model_marker){l.ids[0], whose};
	token_list_fini(&l);
}

static unsigned marks_of_calls(const struct model *m, const char *marker)
{
	const char *last = toolcall_format_last(m->calls);
	return MODEL_MARKS_CALLS | (last && strcmp(last, marker) == 0 ? MODEL_MARKS_LAST : 0);
}

int model_set_parsers(struct model *m, const char *tool_parser, const char *reasoning_parser, struct err *err)
{
	const char *marker;
	if (strcmp(tool_parser, "auto") != 0)
		m->calls = toolcall_format_find(tool_parser);
	if (strcmp(reasoning_parser, "auto") != 0)
		m->reasoning = reasoning_format_find(reasoning_parser);
	m->n_markers = 0;
	if (!m->calls && strcmp(tool_parser, "auto") != 0 && strcmp(tool_parser, "none") != 0)
		return err_set(err, ERR_INVALID, "tool_parser: there is no format \"%s\"", tool_parser);
	if (!m->reasoning && strcmp(reasoning_parser, "auto") != 0 && strcmp(reasoning_parser, "none") != 0)
		return err_set(err, ERR_INVALID, "reasoning_parser: there is no format \"%s\"", reasoning_parser);
	for (size_t i = 0; m->tokenizer && m->calls && (marker = toolcall_format_marker(m->calls, i)); i++)
		add_marker(m, marker, marks_of_calls(m, marker));
	for (size_t i = 0; m->tokenizer && m->reasoning && (marker = reasoning_format_marker(m->reasoning, i)); i++)
		add_marker(m, marker, MODEL_MARKS_REASONING);
	return 0;
}

unsigned model_marker(const struct model *m, uint32_t id)
{
	unsigned whose = 0;
	for (unsigned i = 0; i < m->n_markers; i++)
		whose |= m->markers[i].id == id ? m->markers[i].whose : 0;
	return whose;
}
