/* markers.c - see markers.h. */
#include "text/markers.h"
#include "text/reasoning.h"
#include "text/toolcall_form.h"
#include "text/toolcall_int.h"

#include <string.h>

struct marker_list {
	const struct tokenizer *t;
	uint32_t *ids;
	size_t n, max;
};

static void add(struct marker_list *f, const char *text)
{
	struct token_list l = {0};
	if (!toolcall_form_spells(text) && !reasoning_form_spells(text))
		return;
	int is_one = tokenizer_encode(f->t, text, strlen(text), TOKENIZE_PARSE_SPECIAL, 0, &l) == 0 &&
	             l.n == 1 && tokenizer_is_special(f->t, l.ids[0]);
	for (size_t i = 0; is_one && i < f->n; i++)
		is_one = f->ids[i] != l.ids[0];
	if (is_one && f->n < f->max)
		f->ids[f->n++] = l.ids[0];
	token_list_fini(&l);
}

size_t markers_special(const struct tokenizer *t, uint32_t *ids, size_t max)
{
	struct marker_list f = {.t = t, .ids = ids, .max = max};
	const struct reasoning_format *r;
	const char *text;
	for (const struct toolcall_format *c = toolcall_formats; c->name; c++)
		for (size_t i = 0; (text = toolcall_format_marker(c, i)); i++)
			add(&f, text);
	for (size_t k = 0; (r = reasoning_format_at(k)); k++)
		for (size_t i = 0; (text = reasoning_format_marker(r, i)); i++)
			add(&f, text);
	return f.n;
}
