/* spec_folder.c - reads a tokenizer from a Hugging Face folder: tokenizer.json, and BOS and EOS
 * from tokenizer_config.json, special_tokens_map.json and generation_config.json. File size and
 * number of values are bounded. Every error starts with the file's path. */
#include "text/spec_json.h"
#include "util/mem.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { FILE_MAX = 256 << 20, VALUES_MAX = 8 << 20, PATH_BYTES = 4200 };

/* An upper bound of the number of values in a JSON text: one per bracket and comma outside strings.
 * A value takes about 100 bytes of memory. */
static size_t count_values(const char *s, size_t len)
{
	size_t n = 1;
	for (size_t i = 0; i < len; i++) {
		if (s[i] == '"') {
			for (i++; i < len && s[i] != '"'; i++)
				i += s[i] == '\\';
		} else
			n += s[i] == ',' || s[i] == '[' || s[i] == '{';
	}
	return n;
}

static int parse(const char *path, const char *text, size_t len, json_t **ret, struct err *err)
{
	json_error_t e;
	if (count_values(text, len) > VALUES_MAX)
		return err_set(err, ERR_INVALID, "%s: more than %d values", path, VALUES_MAX);
	*ret = json_loadb(text, len, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &e);
	if (*ret)
		return 0;
	for (char *c = e.text; *c; c++)
		if (*c < ' ' || *c > '~')
			*c = '?';
	return err_set(err, ERR_INVALID, "%s:%d: %s", path, e.line, e.text);
}

int spec_json_read(const char *path, json_t **ret, struct err *err)
{
	struct stat st;
	FILE *f = fopen(path, "re");
	if (!f)
		return err_set(err, errno == ENOENT ? ERR_NOTFOUND : ERR_IO, "%s: %s", path,
		               strerror(errno));
	int rc = 0;
	char *text = NULL;
	if (fstat(fileno(f), &st) < 0 || !S_ISREG(st.st_mode))
		rc = err_set(err, ERR_IO, "%s: not a regular file", path);
	else if (st.st_size > FILE_MAX)
		rc = err_set(err, ERR_INVALID, "%s: has %lld bytes, expected at most %d", path,
		             (long long)st.st_size, FILE_MAX);
	if (rc == 0) {
		text = mem_alloc((size_t)st.st_size + 1);
		rc = parse(path, text, fread(text, 1, (size_t)st.st_size, f), ret, err);
	}
	fclose(f);
	free(text);
	return rc;
}

/* --- BOS and EOS --------------------------------------------------------- */

/* "bos_token" is a text, or an object with one. UINT32_MAX: none, or not in the vocabulary. */
static uint32_t token_id_of(const struct tokenizer_spec *s, const json_t *file, const char *key)
{
	const json_t *v = json_object_get(file, key),
				 *text = json_is_object(v) ? json_object_get(v, "content") : v;
	return json_is_string(text) && json_string_length(text)
	           ? vocab_find_text(&s->vocab, json_string_value(text), json_string_length(text))
	           : UINT32_MAX;
}

static void add_id(struct tokenizer_spec *s, const json_t *v)
{
	if (json_is_integer(v) && json_integer_value(v) >= 0 && json_integer_value(v) < s->vocab.n)
		spec_add_eos(s, (uint32_t)json_integer_value(v));
}

static void from_names(struct tokenizer_spec *s, const json_t *file)
{
	uint32_t bos = token_id_of(s, file, "bos_token"), eos = token_id_of(s, file, "eos_token");
	if (bos != UINT32_MAX)
		s->bos = bos;
	if (eos != UINT32_MAX)
		spec_add_eos(s, eos);
	const json_t *adds = json_object_get(file, "add_bos_token");
	if (json_is_boolean(adds))
		s->adds_bos = json_is_true(adds);
}

static void from_generation(struct tokenizer_spec *s, const json_t *file)
{
	const json_t *bos = json_object_get(file, "bos_token_id"),
				 *eos = json_object_get(file, "eos_token_id");
	size_t i;
	json_t *id;
	if (s->bos == UINT32_MAX && json_is_integer(bos) && json_integer_value(bos) >= 0 &&
	    json_integer_value(bos) < s->vocab.n)
		s->bos = (uint32_t)json_integer_value(bos);
	add_id(s, eos);
	json_array_foreach(eos, i, id)
		add_id(s, id);
}

static int read_other_files(struct tokenizer_spec *s, const char *folder, struct err *err)
{
	static const struct {
		const char *name;
		void (*take)(struct tokenizer_spec *s, const json_t *file);
	} files[] = {{"special_tokens_map.json", from_names},
	             {"tokenizer_config.json", from_names},
	             {"generation_config.json", from_generation}};
	char path[PATH_BYTES];
	for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
		json_t *file = NULL;
		snprintf(path, sizeof path, "%.4096s/%s", folder, files[i].name);
		int rc = spec_json_read(path, &file, err);
		if (rc == ERR_NOTFOUND)
			continue;
		if (rc < 0)
			return rc;
		files[i].take(s, file);
		json_decref(file);
	}
	return 0;
}

int spec_from_folder(struct tokenizer_spec *s, const char *folder, struct err *err)
{
	char path[PATH_BYTES], other[PATH_BYTES];
	json_t *root = NULL;
	struct stat st;
	snprintf(path, sizeof path, "%.4096s/tokenizer.json", folder);
	snprintf(other, sizeof other, "%.4096s/tokenizer.model", folder);
	int rc = spec_json_read(path, &root, err);
	if (rc == ERR_NOTFOUND && stat(other, &st) == 0)
		return err_set(err, ERR_UNSUPPORTED,
		               "%s: this format is not supported: put a tokenizer.json beside it", other);
	if (rc < 0)
		return rc;
	rc = spec_from_json(s, root, err);
	json_decref(root);
	if (rc < 0) {
		err_prefix(err, "%s", path);
		return rc;
	}
	return read_other_files(s, folder, err);
}
