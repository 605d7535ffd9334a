/* model.c - see model.h. */
#include "model.h"
#include "format/gguf.h"
#include "util/mem.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

/* "general.name", or the path's last part without ".gguf". */
static void choose_name(struct model *m, const char *served_name)
{
	struct gguf_str own;
	if (*served_name) {
		snprintf(m->name, sizeof m->name, "%s", served_name);
		return;
	}
	if (m->file && gguf_get_str(m->file, "general.name", &own) == 0 && own.len > 0 && own.len < sizeof m->name) {
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
	snprintf(m->name, sizeof m->name, "%.*s", n > at ? (int)(n - at) : 7, n > at ? m->path + at : "default");
}

static int read_file(struct model *m, struct err *err)
{
	struct gguf_str s;
	char key[160];
	int r = gguf_open(m->path, &m->file, err);
	if (r < 0)
		return r;
	if (gguf_get_str(m->file, "general.architecture", &s) == 0 && s.len < 64) {
		snprintf(key, sizeof key, "%.*s.context_length", (int)s.len, s.s);
		gguf_get_u32(m->file, key, &m->context);
	}
	if (gguf_get_str(m->file, "tokenizer.ggml.model", &s) < 0)
		return 0;
	return tokenizer_from_gguf(m->file, &m->tokenizer, err);
}

/* A Hugging Face folder. Without a tokenizer.json only token ids are served. */
static int read_folder(struct model *m, struct err *err)
{
	int r = tokenizer_from_folder(m->path, &m->tokenizer, err);
	return r == ERR_NOTFOUND ? 0 : r;
}

static void see_template(struct model *m)
{
	const struct chat_template *t = chat_set_choose(&m->chats, 1);
	size_t len;
	const char *text = t ? chat_template_text(t, &len) : NULL;
	if (text)
		model_see_template(m, text, len);
}

static void read_templates(struct model *m)
{
	if (m->file)
		chat_set_from_gguf(m->file, &m->chats, &m->chats_error);
	else if (*m->path)
		chat_set_from_folder(m->path, &m->chats, &m->chats_error);
	see_template(m);
}

int model_use_template(struct model *m, const char *path, struct err *err)
{
	if (!*path)
		return m->chats_error.code ? err_set(err, m->chats_error.code, "%.240s; the setting chat_template can name a file to use instead", m->chats_error.text) : 0;
	int r = chat_set_override(&m->chats, path, err);
	if (r == 0)
		see_template(m);
	return r;
}

int model_open(const char *path, const char *served_name, struct model **ret_m, struct err *err)
{
	struct stat st;
	struct model *m = mem_zalloc(sizeof *m);
	snprintf(m->path, sizeof m->path, "%s", path);
	m->created_s = (int64_t)time(NULL);
	int r = 0;
	if (strlen(path) >= sizeof m->path)
		r = err_set(err, ERR_INVALID, "model: the path is longer than %zu bytes", sizeof m->path - 1);
	else if (*path && stat(path, &st) < 0)
		r = err_set(err, ERR_IO, "model \"%s\": %s", path, strerror(errno));
	else if (*path)
		r = S_ISDIR(st.st_mode) ? read_folder(m, err) : read_file(m, err);
	if (r < 0) {
		model_close(&m);
		return r;
	}
	read_templates(m);
	choose_name(m, served_name);
	*ret_m = m;
	return 0;
}

void model_close(struct model **mp)
{
	struct model *m = *mp;
	if (!m)
		return;
	chat_set_fini(&m->chats);
	tokenizer_destroy(&m->tokenizer);
	gguf_close(&m->file);
	free(m);
	*mp = NULL;
}
