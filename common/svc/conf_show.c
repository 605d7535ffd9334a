/* conf_show.c - reads a loaded configuration, and prints it: as JSON for pdctl, as a commented file
 * for -h, --print-config and etc/. */
#include "svc/conf_int.h"
#include "util/check.h"
#include "util/near.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct conf_entry *conf_entry_find(const struct conf *c, const char *name)
{
	for (size_t i = 0; i < c->n; i++)
		if (strcmp(c->entries[i].key->name, name) == 0)
			return &c->entries[i];
	return NULL;
}

const char *conf_entry_near(const struct conf *c, const char *name)
{
	struct nearest near = {.word = name};
	for (size_t i = 0; i < c->n; i++)
		nearest_try(&near, c->entries[i].key->name);
	return near.best;
}

static uint64_t choice_number(const char *choices, const char *text)
{
	size_t len = strlen(text);
	for (uint64_t n = 0;; n++) {
		size_t l = strcspn(choices, "|");
		if (l == len && memcmp(choices, text, l) == 0)
			return n;
		CHECK(choices[l]); /* value_check has let it pass */
		choices += l + 1;
	}
}

void conf_fill(const struct conf *c, const struct conf_key *keys, void *ret)
{
	for (const struct conf_key *k = keys; k->name; k++) {
		if (k->type == CONF_REMOVED)
			continue;
		const struct conf_entry *e = conf_entry_find(c, k->name);
		CHECK(e && e->key->type == k->type);
		const struct conf_value *v = &e->value;
		uint64_t n = k->choices ? choice_number(k->choices, v->text)
		                        : (uint64_t)v->integer * k->at.times;
		void *to = (char *)ret + k->at.offset;
		switch (k->at.kind) {
		case CONF_INT32:
			CHECK((int64_t)n >= INT32_MIN && (int64_t)n <= INT32_MAX);
			*(int *)to = (int)n;
			break;
		case CONF_UINT32:
			CHECK(n <= UINT32_MAX);
			*(uint32_t *)to = (uint32_t)n;
			break;
		case CONF_UINT64: *(uint64_t *)to = n; break;
		case CONF_DOUBLE: *(double *)to = v->real; break;
		case CONF_TEXT: *(const char **)to = v->text; break;
		case CONF_ITEMS:
			*(struct conf_items *)to = (struct conf_items){(const char *const *)v->items,
			                                               (unsigned)v->n_items};
			break;
		}
	}
}

/* --- JSON ---------------------------------------------------------------- */

static void json_text(struct buf *out, const char *s)
{
	buf_add_json(out, s, strlen(s));
}

static void json_value(struct buf *out, const struct conf_key *k, const struct conf_value *v)
{
	if (k->type == CONF_STRING) {
		json_text(out, v->text);
	} else if (k->type == CONF_LIST) {
		buf_addc(out, '[');
		for (size_t i = 0; i < v->n_items; i++) {
			buf_adds(out, i ? "," : "");
			json_text(out, v->items[i]);
		}
		buf_addc(out, ']');
	} else {
		buf_adds(out, v->text); /* true, false and numbers are written as in JSON */
	}
}

/* The default that the values of other keys lead to. */
static void json_default(struct buf *out, const struct conf *c, const struct conf_entry *e)
{
	struct conf_default def;
	conf_default_parse(e->key, &def);
	if (e->value.is_default)
		json_text(out, e->value.text);
	else if (conf_default_is_other(c, &def))
		json_text(out, def.other);
	else
		json_text(out, def.first);
}

void conf_json(const struct conf *c, struct buf *out)
{
	static const char *const types[] = {"bool", "int", "float", "string", "list"};
	buf_addc(out, '{');
	for (size_t i = 0; i < c->n; i++) {
		const struct conf_key *k = c->entries[i].key;
		const struct conf_value *v = &c->entries[i].value;
		buf_adds(out, i ? "," : "");
		json_text(out, k->name);
		buf_adds(out, ":{\"value\":");
		json_value(out, k, v);
		buf_printf(out, ",\"type\":\"%s\",\"default\":", types[k->type]);
		json_default(out, c, &c->entries[i]);
		buf_adds(out, ",\"unit\":");
		json_text(out, k->unit ? k->unit : "");
		buf_printf(out, ",\"min\":%.16g,\"max\":%.16g,\"help\":", k->min, k->max);
		json_text(out, k->help ? k->help : "");
		if (k->choices) {
			buf_adds(out, ",\"choices\":");
			json_text(out, k->choices);
		}
		const char *reloadable = k->flags & CONF_RELOADABLE ? "true" : "false";
		buf_printf(out, ",\"reloadable\":%s,\"source\":", reloadable);
		json_text(out, v->source);
		buf_addc(out, '}');
	}
	buf_addc(out, '}');
}

/* --- a commented file ---------------------------------------------------- */

static void help_default(const struct conf_key *k, const char *def, struct buf *out)
{
	if (k->type == CONF_STRING) {
		json_text(out, def);
	} else if (k->type == CONF_LIST) {
		buf_addc(out, '[');
		for (const char *s = def; *s; s += strspn(s, " ")) {
			size_t n = strcspn(s, " ");
			buf_printf(out, "%s\"%.*s\"", s == def ? "" : ", ", (int)n, s);
			s += n;
		}
		buf_addc(out, ']');
	} else {
		buf_adds(out, def);
	}
}

/* Writes text as comment lines of at most 110 columns. */
static void comment(struct buf *out, const char *text)
{
	size_t column = 0;
	for (const char *w = text; *w; w += strspn(w, " ")) {
		size_t n = strcspn(w, " ");
		if (column && column + 1 + n > 110) {
			buf_addc(out, '\n');
			column = 0;
		}
		buf_adds(out, column ? " " : "# ");
		buf_add(out, w, n);
		column += n + (column ? 1 : 2);
		w += n;
	}
	buf_addc(out, '\n');
}

/* 1 if the first word is a value or a role ("kv_aware: cost of ..."), which keeps its letters. */
static int begins_with_name(const char *help)
{
	size_t n = strcspn(help, " ");
	return n && (help[n - 1] == ':' || memchr(help, '_', n));
}

static void help_key(const struct conf_key *k, struct buf *out)
{
	char range[256], other[256] = "", *line;
	struct conf_default def;
	conf_range_text(k, range, sizeof range);
	conf_default_parse(k, &def);
	if (*def.if_key)
		snprintf(other, sizeof other, " Default with %s %s: %s.", def.if_key, def.if_value,
		         def.other);
	const char *help = k->help ? k->help : "";
	size_t n = strlen(help);
	while (n && help[n - 1] == '.')
		n--;
	int required = (k->type == CONF_STRING || k->type == CONF_LIST) && k->min >= 1 &&
	               (!k->def || !*k->def);
	int first = begins_with_name(help) ? *help : toupper((unsigned char)*help);
	struct buf b;
	buf_init(&b, 0);
	buf_printf(&b, "%c%.*s.%s%s%s%s%s%s", n ? first : '?', n ? (int)n - 1 : 0, n ? help + 1 : "",
	           *range ? " Range: " : "", range, *range ? "." : "", other,
	           required ? " Must be set." : "",
	           k->flags & CONF_RELOADABLE ? " SIGHUP reloads it." : "");
	line = b.data;
	comment(out, line);
	buf_fini(&b);
	buf_printf(out, "#%s = ", k->name);
	help_default(k, def.first, out);
	buf_adds(out, ";\n\n");
}

void conf_help(const struct conf_key *const *tables, struct buf *out)
{
	for (; *tables; tables++)
		for (const struct conf_key *k = *tables; k->name; k++)
			if (k->type != CONF_REMOVED)
				help_key(k, out);
}
