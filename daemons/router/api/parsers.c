/* parsers.c - how the model that is served writes thoughts and calls of tools: what its template
 * shows, unless the settings say it. */
#include "model.h"
#include "util/mem.h"

#include <stdlib.h>
#include <string.h>

void model_see_template(struct model *m, const char *text, size_t len)
{
	m->calls = toolcall_format_detect(text, len);
	m->reasoning = reasoning_format_detect(text, len);
}

/* 1: text is one token, with this id. */
static int is_one_token(const struct tokenizer *t, const char *text, uint32_t *ret_id)
{
	struct token_list l = {0};
	int r = tokenizer_encode(t, text, strlen(text), TOKENIZE_PARSE_SPECIAL, 0, &l);
	int is_one = r == 0 && l.n == 1;
	if (is_one)
		*ret_id = l.ids[0];
	token_list_fini(&l);
	return is_one;
}

/* Markers that are special tokens: their text is left out of answers, unless somebody looks for
 * it. */
static void add_marker(struct model *m, const char *text, unsigned whose)
{
	uint32_t id;
	if (is_one_token(m->tokenizer, text, &id) && tokenizer_is_special(m->tokenizer, id) &&
	    m->n_markers < MODEL_MARKERS_MAX)
		m->markers[m->n_markers++] = (struct model_marker){id, whose};
}

static int opens_by_token(const struct model *m)
{
	uint32_t id;
	return m->tokenizer && m->reasoning &&
	       is_one_token(m->tokenizer, reasoning_format_form(m->reasoning)->open, &id);
}

static unsigned marks_of_calls(const struct model *m, const char *marker)
{
	const char *last = toolcall_format_last(m->calls);
	return MODEL_MARKS_CALLS | (last && strcmp(last, marker) == 0 ? MODEL_MARKS_LAST : 0);
}

int model_set_parsers(struct model *m, const char *tool_parser, const char *reasoning_parser,
                      struct err *err)
{
	const char *marker;
	if (strcmp(tool_parser, "auto") != 0)
		m->calls = toolcall_format_find(tool_parser);
	if (strcmp(reasoning_parser, "auto") != 0)
		m->reasoning = reasoning_format_find(reasoning_parser);
	m->n_markers = 0;
	if (!m->calls && strcmp(tool_parser, "auto") != 0 && strcmp(tool_parser, "none") != 0)
		return err_set(err, ERR_INVALID, "tool_parser: there is no format \"%s\"", tool_parser);
	if (!m->reasoning && strcmp(reasoning_parser, "auto") != 0 &&
	    strcmp(reasoning_parser, "none") != 0)
		return err_set(err, ERR_INVALID, "reasoning_parser: there is no format \"%s\"",
		               reasoning_parser);
	for (size_t i = 0; m->tokenizer && m->calls && (marker = toolcall_format_marker(m->calls, i));
	     i++)
		add_marker(m, marker, marks_of_calls(m, marker));
	for (size_t i = 0;
	     m->tokenizer && m->reasoning && (marker = reasoning_format_marker(m->reasoning, i)); i++)
		add_marker(m, marker, MODEL_MARKS_REASONING);
	m->opens_by_token = opens_by_token(m);
	return 0;
}

unsigned model_marker(const struct model *m, uint32_t id)
{
	unsigned whose = 0;
	for (unsigned i = 0; i < m->n_markers; i++)
		whose |= m->markers[i].id == id ? m->markers[i].whose : 0;
	return whose;
}
