/* text_model.c - see text_model.h. */
#include "text/text_model.h"
#include "format/gguf.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>

static int read_file(struct text_model *m, const char *path, struct err *err)
{
	struct gguf_str s;
	int r = gguf_open(path, &m->file, err);
	if (r == 0 && gguf_get_str(m->file, "tokenizer.ggml.model", &s) == 0)
		r = tokenizer_from_gguf(m->file, &m->tokenizer, err);
	if (r == 0)
		chat_set_from_gguf(m->file, &m->chats, &m->chats_error);
	return r;
}

/* A folder without a tokenizer.json is valid: it serves token ids only. */
static int read_folder(struct text_model *m, const char *path, struct err *err)
{
	int r = tokenizer_from_folder(path, &m->tokenizer, err);
	if (r < 0 && r != ERR_NOTFOUND)
		return r;
	chat_set_from_folder(path, &m->chats, &m->chats_error);
	return 0;
}

int text_model_open(const char *path, struct text_model *ret, struct err *err)
{
	struct text_model m = {0};
	struct stat st;
	if (stat(path, &st) < 0)
		return err_set(err, ERR_IO, "model \"%s\": %s", path, strerror(errno));
	int r = S_ISDIR(st.st_mode) ? read_folder(&m, path, err) : read_file(&m, path, err);
	if (r < 0)
		text_model_close(&m);
	else
		*ret = m;
	return r;
}

int text_model_use_template(struct text_model *m, const char *path, struct err *err)
{
	if (*path)
		return chat_set_override(&m->chats, path, err);
	return m->chats_error.code ? err_set(err, m->chats_error.code, "%s", m->chats_error.text) : 0;
}

void text_model_close(struct text_model *m)
{
	chat_set_fini(&m->chats);
	tokenizer_destroy(&m->tokenizer);
	gguf_close(&m->file);
}
