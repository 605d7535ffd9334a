/* show.c - converts values to text: Python's str() and repr(), json.dumps, and string
 * concatenation. */
#include "jinja/value.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Writes the shortest digits that read back as the same number, with an exponent below 1e-04 and
 * from 1e+16 on. */
void float_repr(double f, char out[40])
{
	char text[40];
	int digits = 1, exponent, n = 0;
	if (isnan(f) || isinf(f)) {
		snprintf(out, 40, "%s", isnan(f) ? "nan" : f > 0 ? "inf" : "-inf");
		return;
	}
	for (; digits <= 17; digits++) {
		snprintf(text, sizeof text, "%.*e", digits - 1, f);
		if (strtod(text, NULL) == f)
			break;
	}
	exponent = atoi(strchr(text, 'e') + 1);
	if (exponent < -4 || exponent >= 16) {
		/* C writes exponents like Python: at least two digits */
		snprintf(out, 40, "%s", text);
		return;
	}
	int decimals = digits - 1 - exponent;
	n = snprintf(out, 40, "%.*f", decimals > 0 ? decimals : 0, f);
	if (decimals <= 0)
		snprintf(out + n, 40 - (size_t)n, ".0");
}

static void show_float(struct jin *r, struct buf *b, double f)
{
	char text[40];
	float_repr(f, text);
	text_adds(r, b, text);
}

static void show_int(struct jin *r, struct buf *b, int64_t i)
{
	char text[24];
	snprintf(text, sizeof text, "%lld", (long long)i);
	text_adds(r, b, text);
}

static void repr_str(struct jin *r, struct buf *b, struct jv v)
{
	static const char plain[] = "\\\t\n\r", names[] = "\\tnr";
	char quote = memchr(v.s, '\'', v.len) && !memchr(v.s, '"', v.len) ? '"' : '\'', text[16];
	text_add(r, b, &quote, 1);
	for (size_t i = 0; i < v.len;) {
		uint32_t cp;
		int n = cp_step(v.s + i, v.len - i, &cp);
		const char *e = cp && cp < 0x80 ? strchr(plain, (int)cp) : NULL;
		if (e || cp == (unsigned char)quote) {
			text[0] = '\\';
			text[1] = e ? names[e - plain] : quote;
			text_add(r, b, text, 2);
		} else if (cp_is_printable(cp)) {
			text_add(r, b, v.s + i, (size_t)n);
		} else {
			snprintf(text, sizeof text,
			         cp < 0x100     ? "\\x%02x"
			         : cp < 0x10000 ? "\\u%04x"
			                        : "\\U%08x",
			         cp);
			text_adds(r, b, text);
		}
		i += (size_t)n;
	}
	text_add(r, b, &quote, 1);
}

static void repr_items(struct jin *r, struct buf *b, const struct jlist *l, const char *open,
                       const char *close)
{
	text_adds(r, b, open);
	for (size_t i = 0; i < l->n; i++) {
		text_adds(r, b, i ? ", " : "");
		jv_repr(r, b, l->v[i]);
	}
	text_adds(r, b, close);
}

static void repr_dict(struct jin *r, struct buf *b, const struct jdict *d)
{
	text_adds(r, b, "{");
	for (size_t i = 0; i < d->n; i++) {
		text_adds(r, b, i ? ", " : "");
		jv_repr(r, b, d->keys[i]);
		text_adds(r, b, ": ");
		jv_repr(r, b, d->vals[i]);
	}
	text_adds(r, b, "}");
}

static void repr_view(struct jin *r, struct buf *b, struct jv v)
{
	static const char *const open[] = {[VIEW_KEYS] = "dict_keys([",
	                                   [VIEW_VALUES] = "dict_values([",
	                                   [VIEW_ITEMS] = "dict_items(["};
	repr_items(r, b, jv_items(r, v), open[v.sub], "])");
}

static void repr_other(struct jin *r, struct buf *b, struct jv v)
{
	char text[120];
	switch (v.type) {
	case J_RANGE:
		snprintf(text, sizeof text,
		         v.range->step == 1 ? "range(%lld, %lld)" : "range(%lld, %lld, %lld)",
		         (long long)v.range->start, (long long)v.range->stop, (long long)v.range->step);
		break;
	case J_LOOP:
		snprintf(text, sizeof text, "<LoopContext %zu/%zu>", v.loop->at + 1, v.loop->items->n);
		break;
	case J_FUNC: snprintf(text, sizeof text, "<function %s>", v.func->name); break;
	default: snprintf(text, sizeof text, "<%s object>", jv_type_name((enum jv_type)v.type));
	}
	text_adds(r, b, text);
}

void jv_repr(struct jin *r, struct buf *b, struct jv v)
{
	jin_step(r, 1);
	jin_stack(r);
	switch (v.type) {
	case J_UNDEF: text_adds(r, b, "Undefined"); break;
	case J_NONE: text_adds(r, b, "None"); break;
	case J_BOOL: text_adds(r, b, v.i ? "True" : "False"); break;
	case J_INT: show_int(r, b, v.i); break;
	case J_FLOAT: show_float(r, b, v.f); break;
	case J_STR:
		if (v.sub)
			text_adds(r, b, "Markup(");
		repr_str(r, b, v);
		if (v.sub)
			text_adds(r, b, ")");
		break;
	case J_LIST: repr_items(r, b, v.list, "[", "]"); break;
	case J_TUPLE: repr_items(r, b, v.list, "(", v.list->n == 1 ? ",)" : ")"); break;
	case J_DICT: repr_dict(r, b, v.dict); break;
	case J_NAMESPACE:
		text_adds(r, b, "<Namespace ");
		repr_dict(r, b, v.dict);
		text_adds(r, b, ">");
		break;
	case J_VIEW: repr_view(r, b, v); break;
	default: repr_other(r, b, v);
	}
}

void jv_show(struct jin *r, struct buf *b, struct jv v)
{
	if (v.type == J_STR)
		text_add(r, b, v.s, v.len);
	else if (v.type != J_UNDEF)
		jv_repr(r, b, v);
}

struct jv jv_to_str(struct jin *r, struct jv v)
{
	if (v.type == J_STR)
		return jv_str(v.s, v.len);
	jv_show(r, buf_open(r), v);
	return buf_close(r);
}

/* --- concatenation and repetition ---------------------------------------- */

enum { TIP_FROM = 256 }; /* strings from this size on, in bytes, get spare room to grow */

/* a + b. If there is spare room after a, b is appended in place, so building a long text piece by
 * piece takes linear time. */
static struct jv add_at_tip(struct jin *r, struct jv a, struct jv b)
{
	size_t len = a.len + b.len;
	for (unsigned i = 0; i < 8; i++) {
		if (!r->tips[i].base)
			continue;
		char *end = r->tips[i].base + r->tips[i].used;
		if (a.s + a.len != end || a.s < r->tips[i].base ||
		    r->tips[i].size - r->tips[i].used < b.len)
			continue;
		jin_step(r, b.len / 64);
		memmove(end, b.s, b.len);
		r->tips[i].used += b.len;
		return jv_str(a.s, len);
	}
	unsigned i = r->tip++ % 8;
	r->tips[i].base = jin_alloc(r, len * 2, 1);
	r->tips[i].size = len * 2;
	r->tips[i].used = len;
	jin_step(r, len / 64);
	memcpy(r->tips[i].base, a.s, a.len);
	memcpy(r->tips[i].base + a.len, b.s, b.len);
	return jv_str(r->tips[i].base, len);
}

struct jv str_escape(struct jin *r, struct jv v)
{
	static const struct {
		char c;
		const char *to;
	} table[] = {{'&', "&amp;"}, {'>', "&gt;"}, {'<', "&lt;"}, {'\'', "&#39;"}, {'"', "&#34;"}};
	if (v.type == J_STR && v.sub)
		return v;
	v = jv_to_str(r, v);
	struct buf *b = buf_open(r);
	for (size_t i = 0; i < v.len; i++) {
		size_t k = 0;
		while (k < 5 && table[k].c != v.s[i])
			k++;
		if (k < 5)
			text_adds(r, b, table[k].to);
		else
			text_add(r, b, v.s + i, 1);
	}
	v = buf_close(r);
	v.sub = 1;
	return v;
}

struct jv str_concat(struct jin *r, struct jv a, struct jv b)
{
	uint8_t markup = a.sub | b.sub;
	if (a.sub != b.sub) {
		a = str_escape(r, a);
		b = str_escape(r, b);
	}
	struct jv v;
	if (b.len == 0) {
		v = a;
	} else if (a.len == 0) {
		v = b;
	} else if (a.len + b.len >= TIP_FROM) {
		v = add_at_tip(r, a, b);
	} else {
		char *s = jin_alloc(r, a.len + b.len, 1);
		memcpy(s, a.s, a.len);
		memcpy(s + a.len, b.s, b.len);
		v = jv_str(s, a.len + b.len);
	}
	v.sub = markup;
	return v;
}

struct jv str_repeat(struct jin *r, struct jv s, int64_t times)
{
	if (times <= 0 || s.len == 0)
		return (struct jv){.type = J_STR, .sub = s.sub, .s = ""};
	if ((uint64_t)times > r->memory_max / s.len)
		jin_over(r, "a string of %zu bytes is repeated %lld times, more than %zu bytes of memory",
		         s.len, (long long)times, r->memory_max);
	size_t len = s.len * (size_t)times;
	char *out = jin_alloc(r, len, 1);
	jin_step(r, len / 64);
	for (size_t i = 0; i < (size_t)times; i++)
		memcpy(out + i * s.len, s.s, s.len);
	struct jv v = jv_str(out, len);
	v.sub = s.sub;
	return v;
}

/* --- json.dumps ---------------------------------------------------------- */

struct json_style {
	int ascii, sort;
	const struct jv *indent; /* a string; NULL: everything on one line */
	struct jv item, key;     /* separators between items, and between key and value */
};

static void json_escape(struct jin *r, struct buf *b, uint32_t unit)
{
	char text[16];
	snprintf(text, sizeof text, "\\u%04x", unit);
	text_adds(r, b, text);
}

static void json_str(struct jin *r, struct buf *b, struct jv v, int ascii)
{
	static const char plain[] = "\"\\\b\f\n\r\t", names[] = "\"\\bfnrt";
	text_add(r, b, "\"", 1);
	for (size_t i = 0, run; i < v.len;) {
		for (run = i; run < v.len && (unsigned char)v.s[run] >= 0x20 && v.s[run] != '"' &&
		              v.s[run] != '\\' && (!ascii || (unsigned char)v.s[run] < 0x80);
		     run++)
			;
		text_add(r, b, v.s + i, run - i);
		if ((i = run) == v.len)
			break;
		uint32_t cp;
		i += (size_t)cp_step(v.s + i, v.len - i, &cp);
		const char *e = cp && cp < 0x80 ? strchr(plain, (int)cp) : NULL;
		if (e) {
			char two[2] = {'\\', names[e - plain]};
			text_add(r, b, two, 2);
		} else if (cp < 0x10000) {
			json_escape(r, b, cp);
		} else {
			json_escape(r, b, 0xd800 + ((cp - 0x10000) >> 10));
			json_escape(r, b, 0xdc00 + ((cp - 0x10000) & 0x3ff));
		}
	}
	text_add(r, b, "\"", 1);
}

static void json_float(struct jin *r, struct buf *b, double f)
{
	if (isnan(f) || isinf(f))
		text_adds(r, b, isnan(f) ? "NaN" : f > 0 ? "Infinity" : "-Infinity");
	else
		show_float(r, b, f);
}

static void json_break(struct jin *r, struct buf *b, const struct json_style *st, unsigned depth)
{
	if (!st->indent)
		return;
	text_adds(r, b, "\n");
	for (unsigned i = 0; i < depth; i++)
		text_add(r, b, st->indent->s, st->indent->len);
}

static void json_value(struct jin *r, struct buf *b, struct jv v, const struct json_style *st,
                       unsigned depth);

static void json_list(struct jin *r, struct buf *b, const struct jlist *l,
                      const struct json_style *st, unsigned depth)
{
	text_adds(r, b, "[");
	for (size_t i = 0; i < l->n; i++) {
		if (i)
			text_add(r, b, st->item.s, st->item.len);
		json_break(r, b, st, depth + 1);
		json_value(r, b, l->v[i], st, depth + 1);
	}
	if (l->n)
		json_break(r, b, st, depth);
	text_adds(r, b, "]");
}

static void json_key(struct jin *r, struct buf *b, struct jv k, const struct json_style *st)
{
	if (k.type == J_STR) {
		json_str(r, b, k, st->ascii);
		return;
	}
	if (!jv_is_number(k) && k.type != J_NONE)
		jin_fail(r, "keys must be str, int, float, bool or None, not %s",
		         jv_type_name((enum jv_type)k.type));
	text_adds(r, b, "\"");
	json_value(r, b, k, st, 0);
	text_adds(r, b, "\"");
}

/* Sorts the indices of a dict's entries by key; a merge sort because the order must be stable. */
static void sort_keys(struct jin *r, const struct jdict *d, size_t *at, size_t *spare, size_t n)
{
	size_t half = n / 2, i = 0, k = half, to = 0;
	if (n < 2)
		return;
	sort_keys(r, d, at, spare, half);
	sort_keys(r, d, at + half, spare, n - half);
	while (i < half || k < n)
		spare[to++] = k == n || (i < half && !jv_less(r, d->keys[at[k]], d->keys[at[i]], "<"))
		                  ? at[i++]
		                  : at[k++];
	memcpy(at, spare, n * sizeof *at);
}

static void json_dict(struct jin *r, struct buf *b, const struct jdict *d,
                      const struct json_style *st, unsigned depth)
{
	size_t *at = NULL;
	if (st->sort && d->n) {
		at = jin_alloc(r, d->n, sizeof *at);
		for (size_t i = 0; i < d->n; i++)
			at[i] = i;
		sort_keys(r, d, at, jin_alloc(r, d->n, sizeof *at), d->n);
	}
	text_adds(r, b, "{");
	for (size_t i = 0; i < d->n; i++) {
		size_t k = at ? at[i] : i;
		if (i)
			text_add(r, b, st->item.s, st->item.len);
		json_break(r, b, st, depth + 1);
		json_key(r, b, d->keys[k], st);
		text_add(r, b, st->key.s, st->key.len);
		json_value(r, b, d->vals[k], st, depth + 1);
	}
	if (d->n)
		json_break(r, b, st, depth);
	text_adds(r, b, "}");
}

static void json_value(struct jin *r, struct buf *b, struct jv v, const struct json_style *st,
                       unsigned depth)
{
	jin_step(r, 1);
	jin_stack(r);
	switch (v.type) {
	case J_NONE: text_adds(r, b, "null"); break;
	case J_BOOL: text_adds(r, b, v.i ? "true" : "false"); break;
	case J_INT: show_int(r, b, v.i); break;
	case J_FLOAT: json_float(r, b, v.f); break;
	case J_STR: json_str(r, b, v, st->ascii); break;
	case J_LIST:
	case J_TUPLE: json_list(r, b, v.list, st, depth); break;
	case J_DICT: json_dict(r, b, v.dict, st, depth); break;
	default:
		jin_fail(r, "Object of type %s is not JSON serializable",
		         jv_type_name((enum jv_type)v.type));
	}
}

/* tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False) */
struct jv jv_tojson(struct jin *r, const struct jargs *a)
{
	const struct jv *ascii = arg_get(a, 1, "ensure_ascii"), *indent = arg_get(a, 2, "indent"),
					*separators = arg_get(a, 3, "separators"), *sort = arg_get(a, 4, "sort_keys");
	struct jv spaces;
	struct json_style st = {.ascii = ascii && jv_truth(r, *ascii),
	                        .sort = sort && jv_truth(r, *sort),
	                        .item = jv_text(", "),
	                        .key = jv_text(": ")};
	if (indent && indent->type != J_NONE) {
		spaces = indent->type == J_STR
		             ? *indent
		             : str_repeat(r, jv_text(" "), arg_int(r, indent, 0, "indent"));
		st.indent = &spaces;
		st.item = jv_text(",");
	}
	if (separators && separators->type != J_NONE) {
		const struct jlist *l = jv_items(r, *separators);
		if (l->n != 2 || l->v[0].type != J_STR || l->v[1].type != J_STR)
			jin_fail(r, "separators must be two strings");
		st.item = l->v[0];
		st.key = l->v[1];
	}
	json_value(r, buf_open(r), a->v[0], &st, 0);
	return buf_close(r);
}
