/* conf.c - see conf.h. libconfig parses; this file checks each value against its table and keeps it
 * with its source.
 *
 * Invariants: a loaded conf has a valid value for every key. Every value, from text or from a
 * libconfig setting, passes one check (value_check), so that default, file and -o obey the same
 * limits. A wrong file or option is returned as an error; a wrong table (default out of range, two
 * keys of one name) is a bug and panics. */
#include "svc/conf.h"
#include "svc/conf_int.h"
#include "util/check.h"
#include "util/config_file.h"
#include "util/mem.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define STRING_MAX 4096
#define ITEMS_MAX 1024
#define ITEM_GAPS " \t\n" /* between the items of a list that is given as one text */

static void value_fini(struct conf_value *v)
{
	for (size_t i = 0; i < v->n_items; i++)
		free(v->items[i]);
	free(v->items);
	free(v->text);
	free(v->source);
	memset(v, 0, sizeof *v);
}

static void add_item(struct conf_value *v, const char *s, size_t n)
{
	v->items = mem_grow(v->items, v->n_items + 1, sizeof *v->items);
	v->items[v->n_items] = mem_alloc(n + 1);
	memcpy(v->items[v->n_items], s, n);
	v->items[v->n_items++][n] = 0;
}

/* Sets the value's text: its items separated by spaces, for conf_reload to compare. */
static void list_text(struct conf_value *v)
{
	struct buf b;
	buf_init(&b, 0);
	buf_adds(&b, "");
	for (size_t i = 0; i < v->n_items; i++)
		buf_printf(&b, "%s%s", i ? " " : "", v->items[i]);
	free(v->text);
	v->text = b.data;
}

static int parse_bool(struct conf_value *v, const char *s)
{
	if (strcmp(s, "true") == 0 || strcmp(s, "yes") == 0 || strcmp(s, "on") == 0 ||
	    strcmp(s, "1") == 0)
		v->integer = 1;
	else if (strcmp(s, "false") == 0 || strcmp(s, "no") == 0 || strcmp(s, "off") == 0 ||
	         strcmp(s, "0") == 0)
		v->integer = 0;
	else
		return ERR_INVALID;
	v->text = mem_strdup(v->integer ? "true" : "false");
	return 0;
}

static int parse_int(struct conf_value *v, const char *s)
{
	char *end;
	errno = 0;
	v->integer = strtoll(s, &end, 10);
	if (end == s || *end || errno)
		return ERR_INVALID;
	v->text = mem_printf("%lld", (long long)v->integer);
	return 0;
}

static int parse_float(struct conf_value *v, const char *s)
{
	char *end;
	v->real = strtod(s, &end);
	if (end == s || *end || !isfinite(v->real))
		return ERR_INVALID;
	v->text = mem_printf("%.9g", v->real);
	return 0;
}

/* ERR_INVALID if the text is not of the key's type. */
static int value_parse(const struct conf_key *k, const char *s, struct conf_value *v)
{
	switch (k->type) {
	case CONF_BOOL: return parse_bool(v, s);
	case CONF_INT: return parse_int(v, s);
	case CONF_FLOAT: return parse_float(v, s);
	case CONF_STRING: v->text = mem_strdup(s); return 0;
	case CONF_REMOVED: break;
	case CONF_LIST:
		for (s += strspn(s, ITEM_GAPS); *s; s += strspn(s, ITEM_GAPS)) {
			size_t n = strcspn(s, ITEM_GAPS);
			add_item(v, s, n);
			s += n;
		}
		list_text(v);
		return 0;
	}
	PANIC("configuration key \"%s\" has the unknown type %d", k->name, (int)k->type);
}

static const char *type_name(enum conf_type t)
{
	static const char *const names[] = {"true or false", "a whole number", "a number",
	                                    "a text in double quotes",
	                                    "a list of texts: [ \"a\", \"b\" ]"};
	return names[t];
}

void conf_default_parse(const struct conf_key *k, struct conf_default *ret)
{
	const char *def = k->def ? k->def : "", *more = strstr(def, "; ");
	*ret = (struct conf_default){0};
	if (more &&
	    sscanf(more, "; %63[^=]=%63[^:]: %63s", ret->if_key, ret->if_value, ret->other) != 3)
		PANIC("configuration key \"%s\" has the default \"%s\"", k->name, def);
	size_t n = more ? (size_t)(more - def) : strlen(def);
	CHECK(n < sizeof ret->first);
	memcpy(ret->first, def, n);
}

int conf_default_is_other(const struct conf *c, const struct conf_default *d)
{
	const struct conf_entry *e = *d->if_key ? conf_entry_find(c, d->if_key) : NULL;
	CHECK(e || !*d->if_key);
	return e && strcmp(e->value.text, d->if_value) == 0;
}

static int has_range(const struct conf_key *k)
{
	return k->min != 0 || k->max != 0;
}

static double upper(const struct conf_key *k)
{
	return k->max != 0              ? k->max
	       : k->type == CONF_STRING ? STRING_MAX
	       : k->type == CONF_LIST   ? ITEMS_MAX
	                                : HUGE_VAL;
}

void conf_range_text(const struct conf_key *k, char *out, size_t size)
{
	const char *unit = k->unit ? k->unit : "", *gap = *unit ? " " : "";
	out[0] = 0;
	if (k->type == CONF_STRING && k->choices)
		snprintf(out, size, "one of %s", k->choices);
	else if ((k->type == CONF_INT || k->type == CONF_FLOAT) && has_range(k))
		snprintf(out, size, "%.16g to %.16g%s%s", k->min, k->max, gap, unit);
	else if (k->type == CONF_INT || k->type == CONF_FLOAT)
		snprintf(out, size, "%s", unit);
	else if (k->type == CONF_STRING && has_range(k))
		snprintf(out, size, "%.16g to %.16g bytes", k->min, upper(k));
	else if (k->type == CONF_LIST && has_range(k))
		snprintf(out, size, "%.16g to %.16g items", k->min, upper(k));
}

static int is_choice(const char *choices, const char *s)
{
	size_t n = strlen(s);
	for (const char *c = choices; *c; c += *c == '|') {
		size_t len = strcspn(c, "|");
		if (len == n && memcmp(c, s, n) == 0)
			return 1;
		c += len;
	}
	return 0;
}

static int in_range(const struct conf_key *k, const struct conf_value *v)
{
	double x = 0;
	switch (k->type) {
	case CONF_BOOL: return 1;
	case CONF_INT:
	case CONF_FLOAT:
		x = k->type == CONF_INT ? (double)v->integer : v->real;
		return !has_range(k) || (x >= k->min && x <= k->max);
	case CONF_STRING:
		if (k->choices)
			return is_choice(k->choices, v->text);
		x = (double)strlen(v->text);
		break;
	case CONF_LIST: x = (double)v->n_items; break;
	case CONF_REMOVED: return 0;
	}
	return x >= k->min && x <= upper(k);
}

static int value_check(const struct conf_key *k, const struct conf_value *v, struct err *err)
{
	if (in_range(k, v))
		return 0;
	char range[256];
	conf_range_text(k, range, sizeof range);
	return err_set(err, ERR_INVALID, "%s: %s = %.100s is out of range: %s", v->source, k->name,
	               v->text, range);
}

static int wrong_type(const struct conf_key *k, const char *source, const char *got,
                      struct err *err)
{
	char range[256];
	conf_range_text(k, range, sizeof range);
	if (k->type == CONF_INT && !has_range(k))
		snprintf(range, sizeof range, "%lld to %lld", (long long)INT64_MIN, (long long)INT64_MAX);
	return err_set(err, ERR_INVALID, "%s: %s = %.100s is of the wrong type: want %s%s%s%s", source,
	               k->name, got, type_name(k->type), *range ? " (" : "", range, *range ? ")" : "");
}

static int set_text(struct conf_entry *e, const char *text, const char *source, struct err *err)
{
	struct conf_value v = {.source = mem_strdup(source)};
	int r = value_parse(e->key, text, &v) < 0 ? wrong_type(e->key, source, text, err)
	                                          : value_check(e->key, &v, err);
	if (r < 0) {
		value_fini(&v);
		return r;
	}
	value_fini(&e->value);
	e->value = v;
	return 0;
}

/* --- from a file --------------------------------------------------------- */

static int is_kind(enum conf_type want, const config_setting_t *s)
{
	int t = config_setting_type(s);
	switch (want) {
	case CONF_BOOL: return t == CONFIG_TYPE_BOOL;
	case CONF_INT: return t == CONFIG_TYPE_INT64;
	case CONF_FLOAT: return t == CONFIG_TYPE_FLOAT || t == CONFIG_TYPE_INT64;
	case CONF_STRING: return t == CONFIG_TYPE_STRING;
	case CONF_LIST: return t == CONFIG_TYPE_ARRAY || t == CONFIG_TYPE_LIST;
	case CONF_REMOVED: break;
	}
	return 0;
}

/* The setting's value as text, for parsing and for error messages. */
static void setting_text(const config_setting_t *s, char *out, size_t size)
{
	switch (config_setting_type(s)) {
	case CONFIG_TYPE_BOOL:
		snprintf(out, size, "%s", config_setting_get_bool(s) ? "true" : "false");
		break;
	case CONFIG_TYPE_INT64: snprintf(out, size, "%lld", config_setting_get_int64(s)); break;
	case CONFIG_TYPE_FLOAT: snprintf(out, size, "%.9g", config_setting_get_float(s)); break;
	case CONFIG_TYPE_STRING: snprintf(out, size, "%s", config_setting_get_string(s)); break;
	default:
		snprintf(out, size, "%s", config_setting_type(s) == CONFIG_TYPE_GROUP ? "{...}" : "[...]");
	}
}

static int set_list(struct conf_entry *e, const config_setting_t *s, const char *source,
                    struct err *err)
{
	struct conf_value v = {.source = mem_strdup(source)};
	int r = 0;
	for (int i = 0; r == 0 && i < config_setting_length(s); i++) {
		const config_setting_t *item = config_setting_get_elem(s, (unsigned)i);
		const char *text = config_setting_get_string(item); /* NULL: not a string */
		if (text && *text && !text[strcspn(text, ITEM_GAPS)])
			add_item(&v, text, strlen(text));
		else
			r = err_set(err, ERR_INVALID, "%s: %s: item %d %s", source, e->key->name, i + 1,
			            text ? "is empty or has white space" : "is not a text in double quotes");
	}
	list_text(&v);
	if (r == 0)
		r = value_check(e->key, &v, err);
	if (r < 0) {
		value_fini(&v);
		return r;
	}
	value_fini(&e->value);
	e->value = v;
	return 0;
}

static int unknown_key(const struct conf *c, const char *name, const char *source, struct err *err)
{
	for (size_t i = 0; i < c->n_gone; i++)
		if (strcmp(c->gone[i]->name, name) == 0)
			return err_set(err, ERR_INVALID, "%s: the key \"%.100s\" exists no more: %s", source,
			               name, c->gone[i]->help);
	const char *near = conf_entry_near(c, name);
	return err_set(err, ERR_INVALID, "%s: unknown key \"%.100s\"%s%s%s", source, name,
	               near ? "; did you mean \"" : "", near ? near : "", near ? "\"?" : "");
}

static int set_from_file(struct conf *c, const config_setting_t *s, const char *source,
                         struct err *err)
{
	struct conf_entry *e = conf_entry_find(c, config_setting_name(s));
	if (!e)
		return unknown_key(c, config_setting_name(s), source, err);
	char text[STRING_MAX + 2];
	setting_text(s, text, sizeof text);
	if (!is_kind(e->key->type, s))
		return wrong_type(e->key, source, text, err);
	return e->key->type == CONF_LIST ? set_list(e, s, source, err) : set_text(e, text, source, err);
}

static int load_file(struct conf *c, struct err *err)
{
	config_t cfg;
	config_init(&cfg);
	int r = config_file_read(&cfg, c->path, err);
	const config_setting_t *root = config_root_setting(&cfg);
	for (int i = 0; r == 0 && i < config_setting_length(root); i++) {
		const config_setting_t *s = config_setting_get_elem(root, (unsigned)i);
		char *source = mem_printf("%s:%u", c->path, config_setting_source_line(s));
		r = set_from_file(c, s, source, err);
		free(source);
	}
	config_destroy(&cfg);
	return r;
}

/* --- from the command line ----------------------------------------------- */

static int set_override(struct conf *c, const char *o, struct err *err)
{
	const char *eq = strchr(o, '=');
	if (!eq || eq == o)
		return err_set(err, ERR_INVALID, "option -o %.100s: want key=value", o);
	char *key = mem_printf("%.*s", (int)(eq - o), o);
	struct conf_entry *e = conf_entry_find(c, key);
	int r = e ? set_text(e, eq + 1, "option -o", err) : unknown_key(c, key, "option -o", err);
	free(key);
	return r;
}

/* --- load, reload -------------------------------------------------------- */

static int is_required(const struct conf_key *k)
{
	return (k->type == CONF_STRING || k->type == CONF_LIST) && k->min >= 1 && (!k->def || !*k->def);
}

static void set_default(struct conf *c, const struct conf_key *k)
{
	if (k->type == CONF_REMOVED) {
		c->gone = mem_grow(c->gone, c->n_gone + 1, sizeof *c->gone);
		c->gone[c->n_gone++] = k;
		return;
	}
	if (conf_entry_find(c, k->name))
		PANIC("configuration key \"%s\" is defined twice", k->name);
	c->entries = mem_grow(c->entries, c->n + 1, sizeof *c->entries);
	struct conf_entry *e = &c->entries[c->n++];
	memset(e, 0, sizeof *e);
	e->key = k;
	struct err err;
	struct conf_default def;
	conf_default_parse(k, &def);
	if (is_required(k))
		e->value = (struct conf_value){.text = mem_strdup(""), .source = mem_strdup("missing")};
	else if (set_text(e, def.first, "default", &err) < 0)
		PANIC("configuration table: %s", err.text);
	e->value.is_default = !is_required(k);
}

void conf_set_default(struct conf *c, const char *key, const char *text, const char *source)
{
	struct conf_entry *e = conf_entry_find(c, key);
	struct err err;
	if (!e)
		PANIC("configuration key \"%s\" is in no table", key);
	if (!e->value.is_default)
		return;
	if (set_text(e, text, source, &err) < 0)
		PANIC("configuration table: %s", err.text);
	e->value.is_default = 1;
}

static void set_other_defaults(struct conf *c)
{
	for (size_t i = 0; i < c->n; i++) {
		struct conf_default def;
		conf_default_parse(c->entries[i].key, &def);
		if (!conf_default_is_other(c, &def))
			continue;
		char *source = mem_printf("default of %s %s", def.if_key, def.if_value);
		conf_set_default(c, c->entries[i].key->name, def.other, source);
		free(source);
	}
}

static int check_required(const struct conf *c, struct err *err)
{
	for (size_t i = 0; i < c->n; i++)
		if (strcmp(c->entries[i].value.source, "missing") == 0)
			return err_set(err, ERR_INVALID, "%s: the key \"%s\" is missing and has no default: %s",
			               c->path ? c->path : "configuration", c->entries[i].key->name,
			               c->entries[i].key->help);
	return 0;
}

int conf_load(const struct conf_key *const *tables, const char *path, char *const *overrides,
              int n_overrides, struct conf **ret_c, struct err *err)
{
	struct conf *c = mem_zalloc(sizeof *c);
	c->path = mem_strdup(path);
	c->overrides = mem_array((size_t)n_overrides + 1, sizeof *c->overrides);
	for (; c->n_overrides < n_overrides; c->n_overrides++)
		c->overrides[c->n_overrides] = mem_strdup(overrides[c->n_overrides]);
	for (; *tables; tables++)
		for (const struct conf_key *k = *tables; k->name; k++)
			set_default(c, k);
	int r = path ? load_file(c, err) : 0;
	for (int i = 0; r == 0 && i < n_overrides; i++)
		r = set_override(c, overrides[i], err);
	if (r == 0)
		r = check_required(c, err);
	if (r < 0) {
		conf_destroy(&c);
		return r;
	}
	set_other_defaults(c);
	*ret_c = c;
	return 0;
}

void conf_destroy(struct conf **cp)
{
	struct conf *c = *cp;
	if (!c)
		return;
	for (size_t i = 0; i < c->n; i++)
		value_fini(&c->entries[i].value);
	for (int i = 0; i < c->n_overrides; i++)
		free(c->overrides[i]);
	free(c->overrides);
	free(c->entries);
	free(c->gone);
	free(c->path);
	free(c);
	*cp = NULL;
}

static void add_name(char **list, const char *name)
{
	char *longer = *list ? mem_printf("%s %s", *list, name) : mem_strdup(name);
	free(*list);
	*list = longer;
}

/* Exchanges the values that may change; names those that differ in *changed, others in *refused
 * (NULL: not wanted). */
static void exchange(struct conf *c, struct conf *fresh, char **changed, char **refused)
{
	for (size_t i = 0; i < c->n; i++) {
		struct conf_entry *old = &c->entries[i], *new = &fresh->entries[i];
		if (strcmp(old->value.text, new->value.text) == 0 ||
		    (old->value.is_default && new->value.is_default)) /* conf_set_default */
			continue;
		int may = old->key->flags & CONF_RELOADABLE;
		if (changed)
			add_name(may ? changed : refused, old->key->name);
		if (may) {
			struct conf_value v = old->value;
			old->value = new->value;
			new->value = v;
		}
	}
}

int conf_reload(struct conf *c, conf_apply apply, void *arg, char **ret_changed, char **ret_refused,
                struct err *err)
{
	struct conf_key *all = mem_array(c->n + c->n_gone + 1, sizeof *all);
	const struct conf_key *const tables[] = {all, NULL};
	for (size_t i = 0; i < c->n; i++)
		all[i] = *c->entries[i].key;
	for (size_t i = 0; i < c->n_gone; i++)
		all[c->n + i] = *c->gone[i];
	struct conf *fresh;
	int r = conf_load(tables, c->path, c->overrides, c->n_overrides, &fresh, err);
	if (r < 0) {
		free(all);
		return r;
	}
	char *changed = NULL, *refused = NULL;
	exchange(c, fresh, &changed, &refused);
	if (apply && (r = apply(arg, err)) < 0) {
		exchange(c, fresh, NULL, NULL);
		free(changed);
		free(refused);
		changed = refused = NULL;
	}
	conf_destroy(&fresh);
	free(all);
	*ret_changed = changed;
	*ret_refused = refused;
	return r;
}
