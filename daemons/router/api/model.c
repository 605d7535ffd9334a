/* model.c - see model.h. */
#include "model.h"
#include "format/gguf.h"
#include "util/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* "general.name", or the path's last part without ".gguf". */
static void choose_name(struct model *m, const char *served_name)
{
	struct gguf_str own;
	if (*served_name) {
		snprintf(m->name, sizeof m->name, "%s", served_name);
		return;
	}
	if (m->text.file && gguf_get_str(m->text.file, "general.name", &own) == 0 && own.len > 0 &&
	    own.len < sizeof m->name) {
		snprintf(m->name, sizeof m->name, "%.*s", (int)own.len, own.s);
		return;
	}
	size_t n = strlen(m->path);
	while (n > 1 && m->path[n - 1] == '/')
		n--;
	size_t at = n;
	while (at && m->path[at - 1] != '/')
		at--;
	if (n - at > 5 && strncmp(m->path + n - 5, ".gguf", 5) == 0)
		n -= 5;
	snprintf(m->name, sizeof m->name, "%.*s", n > at ? (int)(n - at) : 7,
	         n > at ? m->path + at : "default");
}

/* The context that a GGUF file says; a folder's is the workers' to say. */
static void read_context(struct model *m)
{
	struct gguf_str s;
	char key[160];
	if (m->text.file && gguf_get_str(m->text.file, "general.architecture", &s) == 0 && s.len < 64) {
		snprintf(key, sizeof key, "%.*s.context_length", (int)s.len, s.s);
		gguf_get_u32(m->text.file, key, &m->context);
	}
}

static void see_template(struct model *m)
{
	const struct chat_template *t = chat_set_choose(&m->text.chats, 1);
	size_t len;
	const char *text = t ? chat_template_text(t, &len) : NULL;
	if (text)
		model_see_template(m, text, len);
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

int model_open(const char *path, const char *served_name, struct model **ret_m, struct err *err)
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
		model_close(&m);
		return r;
	}
	m->tokenizer = m->text.tokenizer;
	read_context(m);
	see_template(m);
	choose_name(m, served_name);
	*ret_m = m;
	return 0;
}

void model_close(struct model **mp)
{
	struct model *m = *mp;
	if (!m)
		return;
	text_model_close(&m->text);
	free(m);
	*mp = NULL;
}
