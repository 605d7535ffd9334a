/* filters.c - the filters, used after `|`. Jinja's filters for HTML or randomness (urlize, xmlattr,
 * striptags, random, ...) are missing; using one is an error that names it. Filters that return a
 * generator in Jinja return one here: it can be iterated once. */
#include "jinja/tree.h"
#include "jinja/value.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FILTER(name) static struct jv name(struct jin *r, const struct jargs *a)

/* --- helpers ------------------------------------------------------------- */

/* Jinja's soft_str: strings, including Markup, are returned unchanged. */
static struct jv text_of(struct jin *r, struct jv v)
{
	return v.type == J_STR ? v : jv_to_str(r, v);
}

static struct jv by_method(struct jin *r, struct jv self, const char *name, const struct jv *v,
                           size_t n)
{
	struct jargs a = {.v = v, .n = n};
	struct jv m = method_find(r, self, name, strlen(name));
	return method_call(r, m.method, &a);
}

static int flag(struct jin *r, const struct jargs *a, size_t at, const char *name)
{
	const struct jv *v = arg_get(a, at, name);
	return v && jv_truth(r, *v);
}

/* Resolves a path like "a.b.0", as filters with an attribute argument do; an integer is an
 * index. */
static struct jv path_of(struct jin *r, struct jv v, const struct jv *path, const struct jv *def)
{
	if (!path || path->type == J_NONE)
		return v;
	if (path->type != J_STR)
		return jv_item(r, v, *path);
	for (size_t at = 0; at <= path->len;) {
		const char *dot = memchr(path->s + at, '.', path->len - at);
		size_t end = dot ? (size_t)(dot - path->s) : path->len;
		int number = end > at && end - at < 10;
		int64_t n = 0;
		for (size_t i = at; i < end && number; i++)
			number = path->s[i] >= '0' && path->s[i] <= '9' && (n = n * 10 + (path->s[i] - '0'), 1);
		v = jv_item(r, v, number ? jv_int(n) : jv_str(path->s + at, end - at));
		if (def && v.type == J_UNDEF)
			v = *def;
		at = end + 1;
	}
	return v;
}

static struct jv fold_case(struct jin *r, struct jv v, int sensitive)
{
	if (v.type != J_STR || sensitive)
		return v;
	text_case(r, buf_open(r), v.s, v.len, 0);
	return buf_close(r);
}

/* --- text ---------------------------------------------------------------- */

static struct jv cased(struct jin *r, struct jv v, const char *method)
{
	return by_method(r, text_of(r, v), method, NULL, 0);
}

FILTER(f_upper)
{
	return cased(r, a->v[0], "upper");
}

FILTER(f_lower)
{
	return cased(r, a->v[0], "lower");
}

FILTER(f_capitalize)
{
	return cased(r, a->v[0], "capitalize");
}

FILTER(f_title)
{
	struct jv v = text_of(r, a->v[0]);
	struct buf *b = buf_open(r);
	uint32_t cp;
	size_t begin = 0;
	for (size_t i = 0; i <= v.len;) {
		size_t n = i < v.len ? (size_t)cp_step(v.s + i, v.len - i, &cp) : 1;
		if (i == v.len || cp_is_space(cp) || (cp < 0x80 && cp && strchr("-({[<", (int)cp))) {
			size_t first = begin < i ? text_offset(v.s + begin, i - begin, 1) : 0;
			text_case(r, b, v.s + begin, first, 1);
			text_case(r, b, v.s + begin + first, i - begin - first, 0);
			if (i < v.len)
				text_add(r, b, v.s + i, n);
			begin = i + n;
		}
		i += n;
	}
	return buf_close(r);
}

FILTER(f_trim)
{
	const struct jv *chars = arg_get(a, 1, "chars");
	return by_method(r, text_of(r, a->v[0]), "strip", chars, chars != NULL);
}

FILTER(f_center)
{
	const struct jv *width = arg_get(a, 1, "width");
	struct jv w = width ? *width : jv_int(80);
	return by_method(r, text_of(r, a->v[0]), "center", &w, 1);
}

FILTER(f_replace)
{
	const struct jv *old = arg_get(a, 1, "old"), *new = arg_get(a, 2, "new"),
					*count = arg_get(a, 3, "count");
	if (!old || !new)
		jin_fail(r, "filter 'replace' needs two strings");
	struct jv v[3] = {jv_to_str(r, *old), jv_to_str(r, *new), count ? *count : jv_none()};
	return by_method(r, jv_to_str(r, a->v[0]), "replace", v, v[2].type == J_NONE ? 2 : 3);
}

FILTER(f_string)
{
	return text_of(r, a->v[0]);
}

FILTER(f_safe)
{
	struct jv v = jv_to_str(r, a->v[0]);
	v.sub = 1;
	return v;
}

FILTER(f_escape)
{
	return str_escape(r, a->v[0]);
}

FILTER(f_forceescape)
{
	return str_escape(r, jv_to_str(r, a->v[0]));
}

FILTER(f_format)
{
	struct jv format = text_of(r, a->v[0]);
	if (a->n > 1 && a->n_kw)
		jin_fail(r, "can't handle positional and keyword arguments at the same time");
	if (a->n_kw) {
		struct jdict *d = dict_new(r, a->n_kw);
		for (size_t i = 0; i < a->n_kw; i++)
			dict_set(r, d, a->kw_names[i], a->kw[i]);
		return str_percent(r, format, (struct jv){.type = J_DICT, .dict = d});
	}
	struct jlist *l = list_new(r, a->n);
	for (size_t i = 1; i < a->n; i++)
		list_push(r, l, a->v[i]);
	return str_percent(r, format, (struct jv){.type = J_TUPLE, .list = l});
}

FILTER(f_indent)
{
	const struct jv *width = arg_get(a, 1, "width");
	int first = flag(r, a, 2, "first"), blank = flag(r, a, 3, "blank");
	struct jv s = a->v[0],
			  by = width && width->type == J_STR
	                   ? *width
	                   : str_repeat(r, jv_text(" "), arg_int(r, width, 4, "the width of indent"));
	if (s.type != J_STR)
		s = op_binary(r, T_ADD, s, jv_text("\n")); /* fails with Python's error */
	struct jv lines = by_method(r, str_concat(r, jv_str(s.s, s.len), jv_text("\n")), "splitlines",
	                            NULL, 0);
	struct buf *b = buf_open(r);
	if (first)
		text_add(r, b, by.s, by.len);
	for (size_t i = 0; i < lines.list->n; i++) {
		struct jv line = lines.list->v[i];
		if (i)
			text_add(r, b, "\n", 1);
		if (i && (blank || line.len))
			text_add(r, b, by.s, by.len);
		text_add(r, b, line.s, line.len);
	}
	struct jv v = buf_close(r);
	v.sub = s.sub;
	return v;
}

FILTER(f_truncate)
{
	const struct jv *end_arg = arg_get(a, 3, "end");
	struct jv s = a->v[0], end = end_arg ? jv_to_str(r, *end_arg) : jv_text("...");
	int64_t most = arg_int(r, arg_get(a, 1, "length"), 255, "the length of truncate"),
			end_len = (int64_t)text_length(end.s, end.len);
	const struct jv *leeway_arg = arg_get(a, 4, "leeway");
	int64_t leeway = leeway_arg && leeway_arg->type != J_NONE
	                     ? arg_int(r, leeway_arg, 5, "the leeway of truncate")
	                     : 5;
	/* longer than any text, and sums with it cannot overflow */
	const int64_t far = (int64_t)1 << 40;
	leeway = leeway < far ? leeway : far;
	most = most < far ? most : far;
	if (leeway < 0)
		jin_fail(r, "expected leeway >= 0, got %lld", (long long)leeway);
	if (s.type != J_STR)
		jin_fail(r, "object of type '%s' cannot be truncated", jv_type_name((enum jv_type)s.type));
	if (most < end_len)
		jin_fail(r, "expected length >= %lld, got %lld", (long long)end_len, (long long)most);
	if (jv_length(r, s) <= most + leeway)
		return s;
	size_t cut = text_offset(s.s, s.len, (size_t)(most - end_len));
	if (!flag(r, a, 2, "killwords")) {
		const char *space = memrchr(s.s, ' ', cut);
		cut = space ? (size_t)(space - s.s) : cut;
	}
	return str_concat(r, jv_str(s.s, cut), end);
}

FILTER(f_wordcount)
{
	struct jv v = text_of(r, a->v[0]);
	int64_t n = 0;
	int inside = 0;
	uint32_t cp;
	jin_step(r, v.len / 4);
	for (size_t i = 0; i < v.len;) {
		i += (size_t)cp_step(v.s + i, v.len - i, &cp);
		int word = cp == '_' || cp_is(CP_ALNUM, cp);
		n += word && !inside;
		inside = word;
	}
	return jv_int(n);
}

static void quote_url(struct jin *r, struct buf *b, struct jv v, int query)
{
	for (size_t i = 0; i < v.len; i++) {
		unsigned char c = (unsigned char)v.s[i];
		char text[4];
		if (c < 0x80 && (cp_is(CP_ALNUM, c) || (c && strchr(query ? "_.-~" : "_.-~/", c))))
			snprintf(text, sizeof text, "%c", c);
		else if (query && c == ' ')
			snprintf(text, sizeof text, "+");
		else
			snprintf(text, sizeof text, "%%%02X", c);
		text_adds(r, b, text);
	}
}

FILTER(f_urlencode)
{
	struct jv v = a->v[0];
	if (v.type == J_STR || !jv_can_iterate(v)) {
		v = jv_to_str(r, v);
		quote_url(r, buf_open(r), v, 0);
		return buf_close(r);
	}
	if (v.type == J_DICT)
		v = (struct jv){.type = J_VIEW, .sub = VIEW_ITEMS, .dict = v.dict};
	const struct jlist *l = jv_items(r, v);
	struct buf *b = buf_open(r);
	for (size_t i = 0; i < l->n; i++) {
		const struct jlist *pair = jv_items(r, l->v[i]);
		if (pair->n != 2)
			jin_fail(r, "filter 'urlencode' needs pairs");
		text_adds(r, b, i ? "&" : "");
		quote_url(r, b, jv_to_str(r, pair->v[0]), 1);
		text_adds(r, b, "=");
		quote_url(r, b, jv_to_str(r, pair->v[1]), 1);
	}
	return buf_close(r);
}

FILTER(f_join)
{
	const struct jv *sep_arg = arg_get(a, 1, "d"), *path = arg_get(a, 2, "attribute");
	struct jv sep = sep_arg ? jv_to_str(r, *sep_arg) : jv_text("");
	const struct jlist *l = jv_items(r, a->v[0]);
	struct buf *b = buf_open(r);
	for (size_t i = 0; i < l->n; i++) {
		if (i)
			text_add(r, b, sep.s, sep.len);
		jv_show(r, b, path_of(r, l->v[i], path, NULL));
	}
	return buf_close(r);
}

/* --- numbers ------------------------------------------------------------- */

/* Parses like Python's int(s, base). Returns 0 if s is not a number. */
static int read_int(struct jin *r, struct jv s, int64_t base, int64_t *ret)
{
	int negative, digits = 0, had_underscore = 1;
	text_strip(&s.s, &s.len, NULL, 1, 1);
	negative = s.len && s.s[0] == '-';
	if (s.len && (s.s[0] == '-' || s.s[0] == '+')) {
		s.s++;
		s.len--;
	}
	if (base == 0) {
		char c = s.len > 2 && s.s[0] == '0' ? (char)(s.s[1] | 0x20) : 0;
		base = c == 'x' ? 16 : c == 'o' ? 8 : c == 'b' ? 2 : 10;
	}
	if (s.len > 2 && s.s[0] == '0' && (base == 16 || base == 8 || base == 2) &&
	    (s.s[1] | 0x20) == (base == 16  ? 'x'
	                        : base == 8 ? 'o'
	                                    : 'b')) {
		s.s += 2;
		s.len -= 2;
		had_underscore = 0;
	}
	*ret = 0;
	for (size_t i = 0; i < s.len; i++) {
		char c = s.s[i] | 0x20;
		int d = s.s[i] >= '0' && s.s[i] <= '9' ? s.s[i] - '0'
		        : c >= 'a' && c <= 'z'         ? c - 'a' + 10
		                                       : 99;
		if (s.s[i] == '_' && !had_underscore && i + 1 < s.len) {
			had_underscore = 1;
			continue;
		}
		if (d >= base)
			return 0;
		had_underscore = 0;
		digits++;
		if (__builtin_mul_overflow(*ret, base, ret) || __builtin_sub_overflow(*ret, d, ret))
			jin_fail(r, "an integer does not fit 64 bits");
	}
	if (!negative && __builtin_sub_overflow(0, *ret, ret))
		jin_fail(r, "an integer does not fit 64 bits");
	return digits > 0;
}

static int read_float(struct jv s, double *ret)
{
	char text[320], *end;
	size_t n = 0;
	text_strip(&s.s, &s.len, NULL, 1, 1);
	if (!s.len || s.len >= sizeof text)
		return 0;
	for (size_t i = 0; i < s.len; i++) {
		if (strchr("xXpP(", s.s[i]) || !s.s[i])
			return 0;
		if (s.s[i] == '_' && i && i + 1 < s.len && s.s[i - 1] >= '0' && s.s[i - 1] <= '9' &&
		    s.s[i + 1] >= '0' && s.s[i + 1] <= '9')
			continue;
		text[n++] = s.s[i];
	}
	text[n] = 0;
	*ret = strtod(text, &end);
	return !*end && end != text;
}

FILTER(f_int)
{
	const struct jv *def = arg_get(a, 1, "default");
	struct jv v = a->v[0], otherwise = def ? *def : jv_int(0);
	int64_t base = arg_int(r, arg_get(a, 2, "base"), 10, "the base of int"), i;
	double f;
	if (v.type == J_UNDEF)
		jin_undefined(r, v);
	if (v.type == J_INT || v.type == J_BOOL)
		return jv_int(v.i);
	if (v.type == J_STR && (base == 0 || (base >= 2 && base <= 36)) && read_int(r, v, base, &i))
		return jv_int(i);
	if (v.type == J_FLOAT)
		f = v.f;
	else if (v.type != J_STR || !read_float(v, &f))
		return otherwise;
	if (isnan(f) || isinf(f))
		return otherwise;
	if (!(fabs(f) < 9.2e18))
		jin_fail(r, "an integer does not fit 64 bits");
	return jv_int((int64_t)f);
}

FILTER(f_float)
{
	const struct jv *def = arg_get(a, 1, "default");
	struct jv v = a->v[0];
	double f;
	if (v.type == J_UNDEF)
		jin_undefined(r, v);
	if (jv_is_number(v))
		return jv_float(jv_number(v));
	return v.type == J_STR && read_float(v, &f) ? jv_float(f) : def ? *def : jv_float(0);
}

FILTER(f_abs)
{
	struct jv v = a->v[0];
	if (v.type == J_UNDEF)
		jin_undefined(r, v);
	if (!jv_is_number(v))
		jin_fail(r, "bad operand type for abs(): '%s'", jv_type_name((enum jv_type)v.type));
	if (v.type == J_FLOAT)
		return jv_float(fabs(v.f));
	return v.i < 0 ? op_negate(r, v) : jv_int(v.i);
}

FILTER(f_round)
{
	const struct jv *method = arg_get(a, 2, "method");
	int64_t precision = arg_int(r, arg_get(a, 1, "precision"), 0, "the precision of round");
	struct jv v = a->v[0];
	char text[400];
	if (v.type == J_UNDEF)
		jin_undefined(r, v);
	if (!jv_is_number(v))
		jin_fail(r, "type %s doesn't define __round__ method", jv_type_name((enum jv_type)v.type));
	int up = method && method->type == J_STR && method->len == 4 && !memcmp(method->s, "ceil", 4),
		down = method && method->type == J_STR && method->len == 5 &&
	           !memcmp(method->s, "floor", 5),
		common = !method ||
	             (method->type == J_STR && method->len == 6 && !memcmp(method->s, "common", 6));
	if (!up && !down && !common)
		jin_fail(r, "method must be common, ceil or floor");
	if (precision < -300 || precision > 300)
		jin_over(r, "the precision of round is beyond 300");
	double f = jv_number(v), scale = pow(10, (double)precision);
	if (!common)
		return jv_float((up ? ceil(f * scale) : floor(f * scale)) / scale);
	if (v.type != J_FLOAT && precision < 0) {
		f = rint(f * scale) / scale;
		if (!(fabs(f) < 9.2e18))
			jin_fail(r, "an integer does not fit 64 bits");
		return jv_int((int64_t)f);
	}
	if (v.type != J_FLOAT)
		return jv_int(v.i);
	if (precision < 0)
		return jv_float(rint(f * scale) / scale);
	/* rounds exactly, with ties to even, as Python does */
	snprintf(text, sizeof text, "%.*f", (int)precision, f);
	return jv_float(isinf(f) || isnan(f) || fabs(f) > 1e60 ? f : strtod(text, NULL));
}

/* --- sequences ----------------------------------------------------------- */

FILTER(f_length)
{
	int64_t n = jv_length(r, a->v[0]);
	if (n < 0)
		jin_fail(r, "object of type '%s' has no len()", jv_type_name((enum jv_type)a->v[0].type));
	return jv_int(n);
}

FILTER(f_first)
{
	struct jv v = a->v[0];
	if (v.type == J_STR && v.len) {
		struct jv c = jv_str(v.s, text_offset(v.s, v.len, 1));
		c.sub = v.sub;
		return c;
	}
	if (v.type == J_ITER)
		return v.iter->at < v.iter->list.n
		           ? v.iter->list.v[v.iter->at++]
		           : jv_undef(UNDEF_TEXT, "No first item, sequence was empty.", 34, 0);
	const struct jlist *l = jv_items(r, v);
	return l->n ? l->v[0] : jv_undef(UNDEF_TEXT, "No first item, sequence was empty.", 34, 0);
}

FILTER(f_last)
{
	if (a->v[0].type == J_ITER)
		jin_fail(r, "'generator' object is not reversible");
	const struct jlist *l = jv_items(r, a->v[0]);
	return l->n ? l->v[l->n - 1] : jv_undef(UNDEF_TEXT, "No last item, sequence was empty.", 33, 0);
}

static struct jlist *copy_of(struct jin *r, struct jv v)
{
	const struct jlist *from = jv_items(r, v);
	struct jlist *l = list_new(r, from->n);
	jin_step(r, from->n / 4);
	for (size_t i = 0; i < from->n; i++)
		list_push(r, l, from->v[i]);
	return l;
}

FILTER(f_list)
{
	return jv_list(copy_of(r, a->v[0]));
}

FILTER(f_reverse)
{
	struct jv v = a->v[0];
	struct jlist *l = copy_of(r, v);
	for (size_t i = 0, n = l->n; i < n / 2; i++) {
		struct jv t = l->v[i];
		l->v[i] = l->v[n - 1 - i];
		l->v[n - 1 - i] = t;
	}
	if (v.type != J_STR)
		return jv_iter(r, *l);
	struct buf *b = buf_open(r);
	for (size_t i = 0; i < l->n; i++)
		text_add(r, b, l->v[i].s, l->v[i].len);
	return buf_close(r);
}

FILTER(f_items)
{
	struct jv v = a->v[0];
	if (v.type == J_UNDEF)
		return jv_iter(r, *list_new(r, 0));
	if (v.type != J_DICT)
		jin_fail(r, "Can only get item pairs from a mapping.");
	return jv_iter(r, *jv_items(r, (struct jv){.type = J_VIEW, .sub = VIEW_ITEMS, .dict = v.dict}));
}

static struct jlist *sorted(struct jin *r, const struct jlist *from, const struct jv *path,
                            int sensitive, int reverse)
{
	struct jlist *vals = list_new(r, from->n), *keys = list_new(r, from->n);
	for (size_t i = 0; i < from->n; i++) {
		list_push(r, vals, from->v[i]);
		if (!path || path->type != J_STR || !memchr(path->s, ',', path->len)) {
			list_push(r, keys, fold_case(r, path_of(r, from->v[i], path, NULL), sensitive));
			continue;
		}
		struct jlist *several = list_new(r, 2);
		for (size_t at = 0; at <= path->len;) {
			const char *comma = memchr(path->s + at, ',', path->len - at);
			size_t end = comma ? (size_t)(comma - path->s) : path->len;
			struct jv one = jv_str(path->s + at, end - at);
			list_push(r, several, fold_case(r, path_of(r, from->v[i], &one, NULL), sensitive));
			at = end + 1;
		}
		list_push(r, keys, jv_list(several));
	}
	sort_values(r, keys->v, vals->v, vals->n, reverse);
	return vals;
}

FILTER(f_sort)
{
	return jv_list(sorted(r, jv_items(r, a->v[0]), arg_get(a, 3, "attribute"),
	                      flag(r, a, 2, "case_sensitive"), flag(r, a, 1, "reverse")));
}

FILTER(f_dictsort)
{
	const struct jv *by = arg_get(a, 2, "by");
	struct jv v = a->v[0], place = jv_int(0);
	if (v.type != J_DICT) {
		if (v.type == J_UNDEF)
			jin_undefined(r, v);
		jin_fail(r, "'%s' object has no attribute 'items'", jv_type_name((enum jv_type)v.type));
	}
	if (by && by->type == J_STR && by->len == 5 && !memcmp(by->s, "value", 5))
		place = jv_int(1);
	else if (by && !(by->type == J_STR && by->len == 3 && !memcmp(by->s, "key", 3)))
		jin_fail(r, "You can only sort by either \"key\" or \"value\"");
	const struct jlist *l = jv_items(
		r, (struct jv){.type = J_VIEW, .sub = VIEW_ITEMS, .dict = v.dict});
	return jv_list(sorted(r, l, &place, flag(r, a, 1, "case_sensitive"), flag(r, a, 3, "reverse")));
}

FILTER(f_unique)
{
	const struct jv *path = arg_get(a, 2, "attribute");
	int sensitive = flag(r, a, 1, "case_sensitive");
	const struct jlist *from = jv_items(r, a->v[0]);
	struct jdict *seen = dict_new(r, 0);
	struct jlist *l = list_new(r, 0);
	for (size_t i = 0; i < from->n; i++) {
		struct jv key = fold_case(r, path_of(r, from->v[i], path, NULL), sensitive);
		if (dict_get(r, seen, key))
			continue;
		dict_set(r, seen, key, jv_none());
		list_push(r, l, from->v[i]);
	}
	return jv_iter(r, *l);
}

static struct jv min_or_max(struct jin *r, const struct jargs *a, int most)
{
	const struct jv *path = arg_get(a, 2, "attribute");
	int sensitive = flag(r, a, 1, "case_sensitive");
	const struct jlist *l = jv_items(r, a->v[0]);
	size_t best = 0;
	struct jv best_key = jv_none();
	if (!l->n)
		return jv_undef(UNDEF_TEXT, "No aggregated item, sequence was empty.", 39, 0);
	for (size_t i = 0; i < l->n; i++) {
		struct jv key = fold_case(r, path_of(r, l->v[i], path, NULL), sensitive);
		if (i == 0 || (most ? jv_less(r, best_key, key, "<") : jv_less(r, key, best_key, "<"))) {
			best = i;
			best_key = key;
		}
	}
	return l->v[best];
}

FILTER(f_min)
{
	return min_or_max(r, a, 0);
}

FILTER(f_max)
{
	return min_or_max(r, a, 1);
}

FILTER(f_sum)
{
	const struct jv *path = arg_get(a, 1, "attribute"), *start = arg_get(a, 2, "start");
	struct jv v = start ? *start : jv_int(0);
	const struct jlist *l = jv_items(r, a->v[0]);
	if (v.type == J_STR)
		jin_fail(r, "sum() can't sum strings [use ''.join(seq) instead]");
	for (size_t i = 0; i < l->n; i++)
		v = op_binary(r, T_ADD, v, path_of(r, l->v[i], path, NULL));
	return v;
}

static int64_t positive(struct jin *r, const struct jv *v, const char *what)
{
	int64_t n = arg_int(r, v, 0, what);
	if (n < 1 || n > RANGE_MAX)
		jin_fail(r, "%s must be from 1 to %d", what, RANGE_MAX);
	return n;
}

FILTER(f_batch)
{
	const struct jv *fill = arg_get(a, 2, "fill_with");
	size_t size = (size_t)positive(r, arg_get(a, 1, "linecount"), "the size of a batch");
	const struct jlist *from = jv_items(r, a->v[0]);
	struct jlist *all = list_new(r, 0), *l = NULL;
	for (size_t i = 0; i < from->n; i++) {
		if (i % size == 0) {
			l = list_new(r, 0);
			list_push(r, all, jv_list(l));
		}
		list_push(r, l, from->v[i]);
	}
	while (l && fill && fill->type != J_NONE && l->n < size)
		list_push(r, l, *fill);
	return jv_iter(r, *all);
}

FILTER(f_slice)
{
	const struct jv *fill = arg_get(a, 2, "fill_with");
	size_t n = (size_t)positive(r, arg_get(a, 1, "slices"), "the number of slices"), at = 0;
	const struct jlist *from = jv_items(r, a->v[0]);
	struct jlist *all = list_new(r, n);
	for (size_t i = 0; i < n; i++) {
		struct jlist *l = list_new(r, 0);
		size_t count = from->n / n + (i < from->n % n);
		for (size_t k = 0; k < count; k++)
			list_push(r, l, from->v[at++]);
		if (fill && fill->type != J_NONE && i >= from->n % n)
			list_push(r, l, *fill);
		list_push(r, all, jv_list(l));
	}
	return jv_iter(r, *all);
}

FILTER(f_groupby)
{
	const struct jv *path = arg_get(a, 1, "attribute"), *def = arg_get(a, 2, "default");
	int sensitive = flag(r, a, 3, "case_sensitive");
	if (!path)
		jin_fail(r, "filter 'groupby' needs an attribute");
	const struct jlist *from = jv_items(r, a->v[0]);
	struct jlist *vals = list_new(r, from->n), *keys = list_new(r, from->n), *all = list_new(r, 0),
				 *group = NULL;
	for (size_t i = 0; i < from->n; i++) {
		list_push(r, vals, from->v[i]);
		list_push(r, keys, fold_case(r, path_of(r, from->v[i], path, def), sensitive));
	}
	sort_values(r, keys->v, vals->v, vals->n, 0);
	for (size_t i = 0; i < vals->n; i++) {
		if (i == 0 || !jv_equal(r, keys->v[i - 1], keys->v[i])) {
			struct jlist *pair = list_new(r, 2);
			group = list_new(r, 0);
			list_push(r, pair, path_of(r, vals->v[i], path, def));
			list_push(r, pair, jv_list(group));
			list_push(r, all, (struct jv){.type = J_TUPLE, .list = pair});
		}
		list_push(r, group, vals->v[i]);
	}
	return jv_list(all);
}

/* --- filters and tests applied to each item ------------------------------ */

/* Applies the filter or test named by argument `at` to v, with the arguments after the name. */
static struct jv apply(struct jin *r, const struct jargs *a, size_t at, struct jv v, int test)
{
	struct jv name = a->v[at];
	const struct builtin *f = name.type != J_STR ? NULL
	                          : test             ? test_find(name.s, name.len)
	                                             : filter_find(name.s, name.len);
	const char *kind = test ? "test" : "filter";
	if (!f)
		jin_fail(r, "No %s named '%.*s' found.", kind,
		         name.type == J_STR && name.len < 80 ? (int)name.len : 0,
		         name.type == J_STR ? name.s : "");
	struct jlist *l = list_new(r, a->n);
	list_push(r, l, v);
	for (size_t i = at + 1; i < a->n; i++)
		list_push(r, l, a->v[i]);
	struct jargs args = {
		.v = l->v, .n = l->n, .kw_names = a->kw_names, .kw = a->kw, .n_kw = a->n_kw};
	return builtin_call(r, f, kind, &args);
}

static struct jv choose(struct jin *r, const struct jargs *a, int by_attribute, int want)
{
	size_t at = by_attribute ? 2 : 1;
	if (by_attribute && a->n < 2)
		jin_fail(r, "Missing parameter for attribute name");
	const struct jlist *from = jv_items(r, a->v[0]);
	struct jlist *l = list_new(r, 0);
	for (size_t i = 0; i < from->n; i++) {
		struct jv v = by_attribute ? path_of(r, from->v[i], &a->v[1], NULL) : from->v[i];
		if (jv_truth(r, a->n > at ? apply(r, a, at, v, 1) : v) == want)
			list_push(r, l, from->v[i]);
	}
	return jv_iter(r, *l);
}

FILTER(f_select)
{
	return choose(r, a, 0, 1);
}

FILTER(f_reject)
{
	return choose(r, a, 0, 0);
}

FILTER(f_selectattr)
{
	return choose(r, a, 1, 1);
}

FILTER(f_rejectattr)
{
	return choose(r, a, 1, 0);
}

FILTER(f_map)
{
	const struct jv *path = a->n == 1 ? arg_get(a, 9, "attribute") : NULL,
					*def = arg_get(a, 9, "default");
	const struct jlist *from = jv_items(r, a->v[0]);
	struct jlist *l = list_new(r, from->n);
	if (a->n == 1 && !path)
		jin_fail(r, "map requires a filter argument");
	for (size_t i = 0; i < from->n; i++)
		list_push(r, l, path ? path_of(r, from->v[i], path, def) : apply(r, a, 1, from->v[i], 0));
	return jv_iter(r, *l);
}

/* --- others -------------------------------------------------------------- */

FILTER(f_default)
{
	const struct jv *def = arg_get(a, 1, "default_value");
	int use = a->v[0].type == J_UNDEF || (flag(r, a, 2, "boolean") && !jv_truth(r, a->v[0]));
	return !use ? a->v[0] : def ? *def : jv_text("");
}

/* Looks up an attribute only, never an item. */
FILTER(f_attr)
{
	const struct jv *name = arg_get(a, 1, "name");
	if (!name || name->type != J_STR)
		jin_fail(r, "filter 'attr' needs a name");
	struct jv v = a->v[0].type == J_LOOP || a->v[0].type == J_NAMESPACE
	                  ? jv_attr(r, a->v[0], *name)
	                  : method_find(r, a->v[0], name->s, name->len);
	return v.type == J_UNDEF && v.sub == UNDEF_NAME
	           ? jv_undef(UNDEF_ATTR, name->s, name->len, a->v[0].type)
	           : v;
}

const struct builtin *filter_find(const char *s, size_t len)
{
	enum { ANY = 255 };
	static const struct builtin table[] = {
		{"abs", f_abs, 1, ""},
		{"attr", f_attr, 2, "name"},
		{"batch", f_batch, 3, "linecount,fill_with"},
		{"capitalize", f_capitalize, 1, ""},
		{"center", f_center, 2, "width"},
		{"count", f_length, 1, ""},
		{"d", f_default, 3, "default_value,boolean"},
		{"default", f_default, 3, "default_value,boolean"},
		{"dictsort", f_dictsort, 4, "case_sensitive,by,reverse"},
		{"e", f_escape, 1, ""},
		{"escape", f_escape, 1, ""},
		{"first", f_first, 1, ""},
		{"float", f_float, 2, "default"},
		{"forceescape", f_forceescape, 1, ""},
		{"format", f_format, ANY, NULL},
		{"groupby", f_groupby, 4, "attribute,default,case_sensitive"},
		{"indent", f_indent, 4, "width,first,blank"},
		{"int", f_int, 3, "default,base"},
		{"items", f_items, 1, ""},
		{"join", f_join, 3, "d,attribute"},
		{"last", f_last, 1, ""},
		{"length", f_length, 1, ""},
		{"list", f_list, 1, ""},
		{"lower", f_lower, 1, ""},
		{"map", f_map, ANY, NULL},
		{"max", f_max, 3, "case_sensitive,attribute"},
		{"min", f_min, 3, "case_sensitive,attribute"},
		{"reject", f_reject, ANY, NULL},
		{"rejectattr", f_rejectattr, ANY, NULL},
		{"replace", f_replace, 4, "old,new,count"},
		{"reverse", f_reverse, 1, ""},
		{"round", f_round, 3, "precision,method"},
		{"safe", f_safe, 1, ""},
		{"select", f_select, ANY, NULL},
		{"selectattr", f_selectattr, ANY, NULL},
		{"slice", f_slice, 3, "slices,fill_with"},
		{"sort", f_sort, 4, "reverse,case_sensitive,attribute"},
		{"string", f_string, 1, ""},
		{"sum", f_sum, 3, "attribute,start"},
		{"title", f_title, 1, ""},
		{"tojson", jv_tojson, 5, "ensure_ascii,indent,separators,sort_keys"},
		{"trim", f_trim, 2, "chars"},
		{"truncate", f_truncate, 5, "length,killwords,end,leeway"},
		{"unique", f_unique, 3, "case_sensitive,attribute"},
		{"upper", f_upper, 1, ""},
		{"urlencode", f_urlencode, 1, ""},
		{"wordcount", f_wordcount, 1, ""},
	};
	for (size_t i = 0; i < sizeof table / sizeof *table; i++)
		if (strlen(table[i].name) == len && !memcmp(table[i].name, s, len))
			return &table[i];
	return NULL;
}
