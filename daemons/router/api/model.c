/* model.c - see model.h. */
#include "model.h"
#include "format/gguf.h"
#include "util/mem.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

void model_name_of(const char *path, char *out, size_t size)
{
	size_t n = strlen(path);
	while (n > 1 && path[n - 1] == '/')
		n--;
	size_t at = n;
	unsigned part, parts; /* "-00001-of-00003" of a file in parts */
	while (at && path[at - 1] != '/')
		at--;
	if (n - at > 5 && strncmp(path + n - 5, ".gguf", 5) == 0) {
		n -= 5;
		if (n - at > 15 && sscanf(path + n - 15, "-%5u-of-%5u", &part, &parts) == 2)
			n -= 15;
	}
	snprintf(out, size, "%.*s", n > at ? (int)(n - at) : 7, n > at ? path + at : "default");
	for (char *s = out; *s; s++)
		if (isspace((unsigned char)*s) || iscntrl((unsigned char)*s) || strchr("\"'\\%?#&", *s))
			*s = '-';
}

/* Reads the context length from a GGUF file. For a folder, and for scaled positions, the workers
 * report it. */
static void read_context(struct model *m)
{
	struct gguf_str arch, scaling;
	char key[160];
	if (!m->text.file || gguf_get_str(m->text.file, "general.architecture", &arch) < 0 ||
	    arch.len >= 64)
		return;
	snprintf(key, sizeof key, "%.*s.rope.scaling.type", (int)arch.len, arch.s);
	if (gguf_get_str(m->text.file, key, &scaling) == 0 && !gguf_str_is(scaling, "none"))
		return;
	snprintf(key, sizeof key, "%.*s.context_length", (int)arch.len, arch.s);
	gguf_get_u32(m->text.file, key, &m->context);
}

/* Detects the formats of thoughts and tool calls from the chat template. */
static void see_template(struct model *m)
{
	const struct chat_template *t = chat_set_choose(&m->text.chats, 1);
	size_t len;
	const char *text = t ? chat_template_text(t, &len) : NULL;
	if (!text)
		return;
	m->calls = toolcall_format_detect(text, len);
	m->reasoning = reasoning_format_detect(text, len);
}

int model_shows_tools(const struct model *m)
{
	const struct chat_template *t = chat_set_choose(&m->text.chats, 1);
	size_t len;
	return t && strstr(chat_template_text(t, &len), "tools") != NULL;
}

int model_use_template(struct model *m, const char *path, struct err *err)
{
	int r = text_model_use_template(&m->text, path, err);
	if (r < 0 && !*path && err)
		return err_set(err, r, "%.240s; the setting chat_template can name a file to use instead",
		               m->text.chats_error.text);
	if (r == 0 && *path)
		see_template(m);
	return r;
}

int served_model_open(const char *path, const char *served_name, struct model **ret_m,
                      struct err *err)
{
	struct model *m = mem_zalloc(sizeof *m);
	snprintf(m->path, sizeof m->path, "%s", path);
	m->created_s = (int64_t)time(NULL);
	int r = 0;
	if (strlen(path) >= sizeof m->path)
		r = err_set(err, ERR_INVALID, "model: the path is longer than %zu bytes",
		            sizeof m->path - 1);
	else if (*path)
		r = text_model_open(path, &m->text, err);
	if (r < 0) {
		served_model_close(&m);
		return r;
	}
	m->tokenizer = m->text.tokenizer;
	read_context(m);
	see_template(m);
	if (*served_name)
		snprintf(m->name, sizeof m->name, "%s", served_name);
	else
		model_name_of(path, m->name, sizeof m->name);
	*ret_m = m;
	return 0;
}

int model_set_aliases(struct model *m, const char *const *names, unsigned n, struct err *err)
{
	m->aliases = mem_array(n, sizeof *m->aliases);
	for (; m->n_aliases < n; m->n_aliases++) {
		const char *name = names[m->n_aliases];
		int is_there = strcmp(name, m->name) == 0;
		for (unsigned i = 0; i < m->n_aliases; i++)
			is_there |= strcmp(name, m->aliases[i]) == 0;
		if (!*name || strlen(name) >= sizeof m->name)
			return err_set(err, ERR_INVALID,
			               "model_aliases: \"%.140s\" has %zu bytes; a name has 1 to %zu", name,
			               strlen(name), sizeof m->name - 1);
		if (is_there)
			return err_set(err, ERR_INVALID,
			               "model_aliases: \"%s\" is a name of the model already: give it once",
			               name);
		m->aliases[m->n_aliases] = mem_strdup(name);
	}
	return 0;
}

int model_has_name(const struct model *m, const char *name)
{
	int has = strcmp(name, m->name) == 0;
	for (unsigned i = 0; i < m->n_aliases; i++)
		has |= strcmp(m->aliases[i], "*") == 0 || strcmp(m->aliases[i], name) == 0;
	return has;
}

void served_model_close(struct model **mp)
{
	struct model *m = *mp;
	if (!m)
		return;
	text_model_close(&m->text);
	for (unsigned i = 0; i < m->n_aliases; i++)
		free(m->aliases[i]);
	free(m->aliases);
	free(m);
	*mp = NULL;
}

/* --- thoughts and calls of tools ----------------------------------------- */

/* Returns 1 if text is one token, with this id. */
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

/* Keeps a marker that is a special token: its text is left out of answers, except for the
 * answers that search for it. */
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
	     i++) {
		const char *last = toolcall_format_last(m->calls);
		int is_last = last && strcmp(last, marker) == 0;
		add_marker(m, marker, MODEL_MARKS_CALLS | (is_last ? MODEL_MARKS_LAST : 0));
	}
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
