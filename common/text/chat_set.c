/* chat_set.c - see chat_set.h. Each file is read up to a size limit. Invalid JSON or an invalid
 * template is an error that names the file. */
#include "text/chat_set.h"
#include "format/gguf.h"
#include "jinja/jinja.h"
#include "util/mem.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* some models list every added token in tokenizer_config.json */
#define CONFIG_BYTES_MAX (64u << 20)

static const char *const token_names[] = {"bos", "eos", "unk", "sep", "pad", "cls", "mask"};

static int set_template(struct chat_template **slot, const char *text, size_t len, const char *from,
                        struct err *err)
{
	struct chat_template *c;
	int r = chat_template_new(text, len, &c, err);
	if (r < 0) {
		err_prefix(err, "chat template in %s", from);
		return r;
	}
	chat_template_destroy(slot);
	*slot = c;
	return 0;
}

static void set_token(struct chat_set *s, const char *name, const char *text, size_t len)
{
	char key[32];
	snprintf(key, sizeof key, "%s_token", name);
	if (!s->special_tokens)
		s->special_tokens = json_object();
	json_object_set_new(s->special_tokens, key, json_stringn(text, len));
}

/* --- GGUF ---------------------------------------------------------------- */

static void tokens_from_gguf(const struct gguf *g, struct chat_set *s)
{
	/* the GGUF format spells it so */
	static const char *const in_file[] = {"bos",     "eos", "unknown", "seperator",
	                                      "padding", "cls", "mask"};
	for (size_t i = 0; i < sizeof in_file / sizeof *in_file; i++) {
		char key[64];
		uint32_t id;
		struct gguf_str text;
		snprintf(key, sizeof key, "tokenizer.ggml.%s_token_id", in_file[i]);
		if (gguf_get_u32(g, key, &id) == 0 &&
		    gguf_array_str(g, "tokenizer.ggml.tokens", id, &text) == 0)
			set_token(s, token_names[i], text.s, text.len);
	}
}

int chat_set_from_gguf(const struct gguf *g, struct chat_set *ret, struct err *err)
{
	static const char *const keys[] = {"tokenizer.chat_template",
	                                   "tokenizer.chat_template.tool_use"};
	struct chat_set s = {0};
	struct gguf_str text;
	for (int i = 0; i < 2; i++) {
		if (gguf_get_str(g, keys[i], &text) < 0)
			continue;
		int r = set_template(i ? &s.tools : &s.plain, text.s, text.len, keys[i], err);
		if (r < 0) {
			chat_set_fini(&s);
			err_prefix(err, "%s", gguf_path(g));
			return r;
		}
	}
	tokens_from_gguf(g, &s);
	*ret = s;
	return 0;
}

/* --- a folder ------------------------------------------------------------ */

/* Reads the whole file; *ret_text is malloc'ed. Returns ERR_NOTFOUND without a message if the file
 * does not exist. */
static int read_file(const char *path, size_t most, char **ret_text, size_t *ret_len,
                     struct err *err)
{
	FILE *f = fopen(path, "r");
	struct buf b;
	char piece[16384];
	if (!f)
		return errno == ENOENT || errno == ENOTDIR
		           ? ERR_NOTFOUND
		           : err_set(err, ERR_IO, "%s: %s", path, strerror(errno));
	buf_init(&b, most);
	for (size_t n; !b.full && (n = fread(piece, 1, sizeof piece, f)) > 0;)
		buf_add(&b, piece, n);
	int bad = ferror(f);
	fclose(f);
	if (bad || b.full) {
		int full = b.full;
		buf_fini(&b);
		return full ? err_set(err, ERR_INVALID, "%s has more than %zu bytes", path, most)
		            : err_set(err, ERR_IO, "%s: cannot be read", path);
	}
	*ret_text = b.data ? b.data : mem_strdup("");
	*ret_len = b.len;
	return 0;
}

static int template_from_file(struct chat_template **slot, const char *path, struct err *err)
{
	char *text;
	size_t len;
	int r = read_file(path, JINJA_TEMPLATE_BYTES_MAX, &text, &len, err);
	if (r < 0)
		return r;
	r = set_template(slot, text, len, path, err);
	free(text);
	return r;
}

/* "chat_template" is a text, or a list of named ones; only "default" and "tool_use" are used. */
static int templates_from_json(struct chat_set *s, const json_t *v, const char *path,
                               struct err *err)
{
	int r = 0;
	if (json_is_string(v))
		return set_template(&s->plain, json_string_value(v), json_string_length(v), path, err);
	if (v && !json_is_null(v) && !json_is_array(v))
		return err_set(err, ERR_INVALID, "%s: chat_template must be a text or a list", path);
	for (size_t i = 0; i < json_array_size(v) && r == 0; i++) {
		const json_t *one = json_array_get(v, i), *text = json_object_get(one, "template");
		const char *name = json_string_value(json_object_get(one, "name"));
		if (!name || !json_is_string(text))
			return err_set(err, ERR_INVALID,
			               "%s: chat_template[%zu] must have a name and a template", path, i);
		if (!strcmp(name, "default") || !strcmp(name, "tool_use"))
			r = set_template(*name == 'd' ? &s->plain : &s->tools, json_string_value(text),
			                 json_string_length(text), path, err);
	}
	return r;
}

/* A token is a text, or an object whose `content` is the text. */
static void tokens_from_json(struct chat_set *s, const json_t *o)
{
	for (size_t i = 0; i < sizeof token_names / sizeof *token_names; i++) {
		char key[32];
		snprintf(key, sizeof key, "%s_token", token_names[i]);
		const json_t *v = json_object_get(o, key),
					 *text = json_is_object(v) ? json_object_get(v, "content") : v;
		if (json_is_string(text))
			set_token(s, token_names[i], json_string_value(text), json_string_length(text));
	}
}

static int read_config(struct chat_set *s, const char *folder, const char *name, int has_own,
                       struct err *err)
{
	char *path = mem_printf("%s/%s", folder, name), *text;
	size_t len;
	json_error_t bad;
	int r = read_file(path, CONFIG_BYTES_MAX, &text, &len, err);
	if (r == 0) {
		json_t *o = json_loadb(text, len, JSON_ALLOW_NUL, &bad);
		free(text);
		if (!json_is_object(o))
			r = err_set(err, ERR_INVALID, "%s is not a JSON object: %s (line %d)", path,
			            o ? "another value" : bad.text, o ? 1 : bad.line);
		else
			tokens_from_json(s, o);
		if (r == 0 && !has_own && !s->plain)
			r = templates_from_json(s, json_object_get(o, "chat_template"), path, err);
		json_decref(o);
	}
	free(path);
	return r == ERR_NOTFOUND ? 0 : r;
}

int chat_set_from_folder(const char *folder, struct chat_set *ret, struct err *err)
{
	static const char *const configs[] = {"special_tokens_map.json", "tokenizer_config.json",
	                                      "chat_template.json"};
	struct chat_set s = {0};
	char *plain = mem_printf("%s/chat_template.jinja", folder),
		 *tools = mem_printf("%s/additional_chat_templates/tool_use.jinja", folder);
	int r = template_from_file(&s.plain, plain, err), has_own = r == 0;
	if (r == 0 || r == ERR_NOTFOUND)
		r = template_from_file(&s.tools, tools, err);
	r = r == ERR_NOTFOUND ? 0 : r;
	for (int i = 0; i < 3 && r == 0; i++)
		r = read_config(&s, folder, configs[i], has_own, err);
	free(plain);
	free(tools);
	if (r < 0) {
		chat_set_fini(&s);
		return r;
	}
	*ret = s;
	return 0;
}

/* --- both ---------------------------------------------------------------- */

int chat_set_override(struct chat_set *s, const char *path, struct err *err)
{
	int r = template_from_file(&s->plain, path, err);
	if (r == ERR_NOTFOUND)
		return err_set(err, r, "chat template %s: no such file", path);
	if (r == 0)
		chat_template_destroy(&s->tools);
	return r;
}

void chat_set_fini(struct chat_set *s)
{
	chat_template_destroy(&s->plain);
	chat_template_destroy(&s->tools);
	json_decref(s->special_tokens);
	s->special_tokens = NULL;
}

const struct chat_template *chat_set_choose(const struct chat_set *s, int has_tools)
{
	return has_tools && s->tools ? s->tools : s->plain;
}
