/* fuzz_conf.c - the settings of a daemon (svc/conf.h): the file "d.conf", and in the file "options"
 * one -o a line. They are refused with a sentence that says where, or every value is of its type
 * and within its limits; what pdctl shows of them is JSON, and -o with the text of each gives the
 * same again. */
#include "daemons/storage/storage.h"
#include "svc/conf_int.h"
#include "tests/fuzz/fuzz.h"
#include "util/mem.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define OPTIONS_MAX 16

/* libconfig 1.5 loses the text of a string in which the file ends, and of one with a NUL */
const char *__lsan_default_suppressions(void);
const char *__lsan_default_suppressions(void)
{
	return "leak:libconfig.so\n";
}

static const struct conf_key own_keys[] =
	{/* types and limits that storage does not have */
     {"name", CONF_STRING, "x", 1, 8, "", 0, "Name", NULL, {0}},
     {"level", CONF_STRING, "info", 0, 0, "", 1, "Level", "debug|info|warn", {0}},
     {"limit_ms", CONF_INT, "500", 0, 1e12, "ms", 1, "Limit", NULL, {0}},
     {"free", CONF_INT, "-1", 0, 0, "", 0, "No limits", NULL, {0}},
     {"ratio", CONF_FLOAT, "0.5", 0, 1, "", 1, "Ratio", NULL, {0}},
     {"any", CONF_FLOAT, "0", 0, 0, "", 1, "Any number", NULL, {0}},
     {"routers", CONF_LIST, "a b", 0, 3, "", 1, "Routers", NULL, {0}},
     {"peers", CONF_LIST, "", 0, 0, "", 0, "Peers", NULL, {0}},
     CONF_END};
static const struct conf_key *const tables[] = {own_keys, storage_keys, NULL};

/* --- what was taken ------------------------------------------------------ */

static void check_list(const struct conf_value *v, const struct conf_key *k)
{
	must(v->n_items >= k->min && v->n_items <= (k->max > 0 ? k->max : 1024));
	for (size_t i = 0; i < v->n_items; i++)
		must(v->items[i][0] && !strpbrk(v->items[i], " \t\n"));
}

static int is_choice(const char *choices, const char *value)
{
	char *all = mem_printf("|%s|", choices), *own = mem_printf("|%s|", value);
	int is = !strchr(value, '|') && strstr(all, own);
	free(all);
	free(own);
	return is;
}

static void check_value(const struct conf *c, const struct conf_key *k)
{
	if (k->type == CONF_REMOVED)
		return;
	const struct conf_value *v = &conf_entry_find(c, k->name)->value;
	int bounded = k->min != 0 || k->max != 0;
	double x = 0;
	switch (k->type) {
	case CONF_BOOL: must((uint64_t)v->integer <= 1); return;
	case CONF_INT: x = (double)v->integer; break;
	case CONF_FLOAT:
		x = v->real;
		must(isfinite(x));
		break;
	case CONF_STRING:
		if (k->choices)
			must(is_choice(k->choices, v->text));
		x = (double)strlen(v->text);
		must(x <= 4096);
		bounded = bounded && !k->choices && k->max > 0;
		break;
	case CONF_LIST: check_list(v, k); return;
	case CONF_REMOVED: return;
	}
	must(!bounded || (x >= k->min && x <= k->max));
}

static char *shown(const struct conf *c)
{
	struct buf b;
	buf_init(&b, 0);
	conf_json(c, &b);
	return b.data;
}

/* The value as -o has it. */
static char *as_option(const char *key, const json_t *v)
{
	char *text = json_is_string(v)  ? mem_strdup(json_string_value(v))
	             : json_is_array(v) ? mem_strdup("")
	                                : json_dumps(v, JSON_ENCODE_ANY | JSON_REAL_PRECISION(9));
	const json_t *item;
	size_t i;
	json_array_foreach((json_t *)v, i, item) {
		char *longer = mem_printf("%s %s", text, json_string_value(item));
		free(text);
		text = longer;
	}
	char *out = mem_printf("%s=%s", key, text);
	free(text);
	return out;
}

/* `from` has the source of each value, which is not the same. */
static void drop_sources(json_t *o)
{
	const char *key;
	json_t *v;
	json_object_foreach(o, key, v)
		json_object_del(v, "source");
}

static void check_again(const struct conf *c)
{
	char *text = shown(c), *options[64], *again_text;
	json_t *o = json_loads(text, 0, NULL), *v, *again;
	const char *key;
	struct conf *d;
	struct err err = {0};
	int n = 0, whole = 1;
	must(o && json_is_object(o));
	json_object_foreach(o, key, v) {
		must(n < 64);
		options[n++] = as_option(key, json_object_get(v, "value"));
		/* a text may have bytes that are no UTF-8, which JSON cannot show */
		whole = whole && !strstr(options[n - 1], "\xef\xbf\xbd");
	}
	if (whole) {
		must(conf_load(tables, NULL, options, n, &d, &err) == 0);
		again_text = shown(d);
		again = json_loads(again_text, 0, NULL);
		drop_sources(o);
		drop_sources(again);
		must(json_equal(o, again));
		json_decref(again);
		free(again_text);
		conf_destroy(&d);
	}
	while (n)
		free(options[--n]);
	json_decref(o);
	free(text);
}

/* --- one input ----------------------------------------------------------- */

/* Lines of the file, in its text. */
static int read_options(char *text, char **ret)
{
	int n = 0;
	for (char *line = text ? strtok(text, "\n") : NULL; line && n < OPTIONS_MAX;
	     line = strtok(NULL, "\n"))
		ret[n++] = line;
	return n;
}

static void run(const char *path, char *const *options, int n)
{
	struct conf *c = NULL;
	struct err err = {0};
	char *changed = NULL, *refused = NULL;
	int rc = conf_load(tables, path, options, n, &c, &err);
	if (rc < 0) {
		must(!c && rc != ERR_NOMEM && (strstr(err.text, path) || strstr(err.text, "option -o")));
		return;
	}
	fuzz_accepted();
	for (size_t t = 0; tables[t]; t++)
		for (const struct conf_key *k = tables[t]; k->name; k++)
			check_value(c, k);
	check_again(c);
	must(conf_reload(c, NULL, NULL, &changed, &refused, &err) == 0 && !changed && !refused);
	conf_destroy(&c);
}

FUZZ(conf, 1 << 13)
{
	const char *folder = fuzz_files(data, size);
	char *path = mem_printf("%s/d.conf", folder), *file = mem_printf("%s/options", folder);
	char *options[OPTIONS_MAX];
	size_t n = 0;
	char *text = (char *)fuzz_read(file, size, &n);
	if (text)
		text[n] = 0;
	run(path, options, read_options(text, options));
	free(text);
	free(path);
	free(file);
	return 0;
}
