/* methods_str.c - the methods of Python's strings. Of Markup, those that return a string return
 * Markup. */
#include "jinja/methods.h"

#include <string.h>

/* --- helpers ------------------------------------------------------------- */

static struct jv part(struct jv self, size_t begin, size_t end)
{
	struct jv v = jv_str(self.s + begin, end - begin);
	v.sub = self.sub;
	return v;
}

static struct jv close_as(struct jin *r, struct jv self)
{
	struct jv v = buf_close(r);
	v.sub = self.sub;
	return v;
}

static const struct jv *text_arg(struct jin *r, const struct jargs *a, size_t at, const char *name)
{
	const struct jv *v = arg_get(a, at, name);
	if (v && v->type == J_UNDEF)
		jin_undefined(r, *v);
	if (v && v->type != J_STR)
		jin_fail(r, "an argument must be str, not %s", jv_type_name((enum jv_type)v->type));
	return v;
}

static const struct jv *or_none(const struct jv *v)
{
	return v && v->type == J_NONE ? NULL : v;
}

/* Offset of the first `what` from `at` on; SIZE_MAX: none. */
static size_t find_from(struct jin *r, struct jv in, struct jv what, size_t at)
{
	const char *hit = at > in.len ? NULL
	                  : what.len  ? memmem(in.s + at, in.len - at, what.s, what.len)
	                              : in.s + at;
	size_t to = hit ? (size_t)(hit - in.s) : in.len;
	jin_step(r, to > at ? (to - at) / 32 : 0);
	return hit ? to : SIZE_MAX;
}

/* Offset of the last `what` that ends at or before `end`; SIZE_MAX: none. */
static size_t find_back(struct jin *r, struct jv in, struct jv what, size_t end)
{
	for (size_t at = end; at >= what.len; at--) {
		jin_step(r, (end - at) % 32 == 0);
		if (!memcmp(in.s + at - what.len, what.s, what.len))
			return at - what.len;
		if (at == 0)
			break;
	}
	return SIZE_MAX;
}

/* self[begin:end] for methods with optional begin and end from argument `at` on. *ret_chars: begin,
 * in characters. */
static struct jv window(struct jin *r, struct jv self, const struct jargs *a, size_t at,
                        size_t *ret_chars)
{
	struct jv bound[3] = {jv_none(), jv_none(), jv_none()};
	int64_t n = jv_length(r, self), begin = 0;
	for (size_t i = 0; i < 2; i++)
		if (at + i < a->n)
			bound[i] = a->v[at + i];
	if (bound[0].type == J_INT || bound[0].type == J_BOOL)
		begin = bound[0].i < 0 ? bound[0].i + n : bound[0].i;
	*ret_chars = (size_t)(begin < 0 ? 0 : begin > n ? n : begin);
	return at < a->n ? jv_slice(r, self, bound) : self;
}

/* --- case, classes ------------------------------------------------------- */

METHOD(s_upper)
{
	(void)a;
	text_case(r, buf_open(r), self.s, self.len, 1);
	return close_as(r, self);
}

METHOD(s_lower)
{
	(void)a;
	text_case(r, buf_open(r), self.s, self.len, 0);
	return close_as(r, self);
}

METHOD(s_capitalize)
{
	size_t first = text_offset(self.s, self.len, 1);
	struct buf *b = buf_open(r);
	(void)a;
	text_case(r, b, self.s, first, 1);
	text_case(r, b, self.s + first, self.len - first, 0);
	return close_as(r, self);
}

static struct jv by_letter(struct jin *r, struct jv self, int title)
{
	struct buf *b = buf_open(r);
	int inside = 0;
	uint32_t cp;
	for (size_t i = 0; i < self.len;) {
		size_t n = (size_t)cp_step(self.s + i, self.len - i, &cp);
		if (!title && cp_is(CP_TITLE, cp))
			text_add(r, b, self.s + i, n);
		else
			text_case(r, b, self.s + i, n, title ? !inside : !cp_is(CP_UPPER, cp));
		inside = cp_is(CP_UPPER, cp) || cp_is(CP_LOWER, cp) || cp_is(CP_TITLE, cp);
		i += n;
	}
	return close_as(r, self);
}

METHOD(s_title)
{
	(void)a;
	return by_letter(r, self, 1);
}

METHOD(s_swapcase)
{
	(void)a;
	return by_letter(r, self, 0);
}

static struct jv all_are(struct jin *r, struct jv self, enum cp_kind kind)
{
	uint32_t cp;
	jin_step(r, self.len / 8);
	for (size_t i = 0; i < self.len;) {
		i += (size_t)cp_step(self.s + i, self.len - i, &cp);
		if (!cp_is(kind, cp))
			return jv_bool(0);
	}
	return jv_bool(self.len != 0);
}

METHOD(s_isalpha)
{
	(void)a;
	return all_are(r, self, CP_ALPHA);
}

METHOD(s_isalnum)
{
	(void)a;
	return all_are(r, self, CP_ALNUM);
}

METHOD(s_isdecimal)
{
	(void)a;
	return all_are(r, self, CP_DECIMAL);
}

METHOD(s_isdigit)
{
	(void)a;
	return all_are(r, self, CP_DIGIT);
}

METHOD(s_isnumeric)
{
	(void)a;
	return all_are(r, self, CP_NUMERIC);
}

METHOD(s_isspace)
{
	(void)a;
	return all_are(r, self, CP_SPACE);
}

METHOD(s_isidentifier)
{
	uint32_t cp;
	(void)a;
	if (!self.len)
		return jv_bool(0);
	size_t first = (size_t)cp_step(self.s, self.len, &cp);
	if (!cp_is(CP_ID_START, cp))
		return jv_bool(0);
	return jv_bool(first == self.len || all_are(r, part(self, first, self.len), CP_ID_MORE).i);
}

METHOD(s_isascii)
{
	(void)a;
	jin_step(r, self.len / 8);
	for (size_t i = 0; i < self.len; i++)
		if ((unsigned char)self.s[i] >= 0x80)
			return jv_bool(0);
	return jv_bool(1);
}

METHOD(s_isprintable)
{
	uint32_t cp;
	(void)a;
	jin_step(r, self.len / 8);
	for (size_t i = 0; i < self.len;) {
		i += (size_t)cp_step(self.s + i, self.len - i, &cp);
		if (!cp_is_printable(cp))
			return jv_bool(0);
	}
	return jv_bool(1);
}

static struct jv one_case(struct jin *r, struct jv self, enum cp_kind want, enum cp_kind other)
{
	uint32_t cp;
	int some = 0;
	jin_step(r, self.len / 8);
	for (size_t i = 0; i < self.len;) {
		i += (size_t)cp_step(self.s + i, self.len - i, &cp);
		if (cp_is(other, cp) || cp_is(CP_TITLE, cp))
			return jv_bool(0);
		some |= cp_is(want, cp);
	}
	return jv_bool(some);
}

METHOD(s_isupper)
{
	(void)a;
	return one_case(r, self, CP_UPPER, CP_LOWER);
}

METHOD(s_islower)
{
	(void)a;
	return one_case(r, self, CP_LOWER, CP_UPPER);
}

METHOD(s_istitle)
{
	uint32_t cp;
	int inside = 0, some = 0;
	(void)a;
	jin_step(r, self.len / 8);
	for (size_t i = 0; i < self.len;) {
		i += (size_t)cp_step(self.s + i, self.len - i, &cp);
		int starts = cp_is(CP_UPPER, cp) || cp_is(CP_TITLE, cp),
			cased = starts || cp_is(CP_LOWER, cp);
		if (cased && starts == inside)
			return jv_bool(0);
		inside = cased;
		some |= cased;
	}
	return jv_bool(some);
}

/* --- prefixes, suffixes, padding ----------------------------------------- */

static struct jv stripped(struct jin *r, struct jv self, const struct jargs *a, int left, int right)
{
	const struct jv *chars = arg_get(a, 0, "chars");
	size_t before = self.len;
	chars = or_none(chars) ? text_arg(r, a, 0, "chars") : NULL;
	text_strip(&self.s, &self.len, chars, left, right);
	jin_step(r, (before - self.len) / 16 * (1 + (chars ? chars->len / 4 : 0)));
	return self;
}

METHOD(s_strip)
{
	return stripped(r, self, a, 1, 1);
}

METHOD(s_lstrip)
{
	return stripped(r, self, a, 1, 0);
}

METHOD(s_rstrip)
{
	return stripped(r, self, a, 0, 1);
}

static int begins(struct jv s, struct jv with)
{
	return s.len >= with.len && !memcmp(s.s, with.s, with.len);
}

static int ends(struct jv s, struct jv with)
{
	return s.len >= with.len && !memcmp(s.s + s.len - with.len, with.s, with.len);
}

static struct jv affix(struct jin *r, struct jv self, const struct jargs *a,
                       int (*has)(struct jv, struct jv), const char *name)
{
	size_t chars;
	struct jv in = window(r, self, a, 1, &chars), what = a->v[0];
	if (what.type == J_UNDEF)
		jin_undefined(r, what);
	if (what.type != J_TUPLE && what.type != J_STR)
		jin_fail(r, "%s first arg must be str or a tuple of str, not %s", name,
		         jv_type_name((enum jv_type)what.type));
	if (what.type == J_STR)
		return jv_bool(has(in, what));
	for (size_t i = 0; i < what.list->n; i++) {
		if (what.list->v[i].type != J_STR)
			jin_fail(r, "tuple for %s must only contain str, not %s", name,
			         jv_type_name((enum jv_type)what.list->v[i].type));
		if (has(in, what.list->v[i]))
			return jv_bool(1);
	}
	return jv_bool(0);
}

METHOD(s_startswith)
{
	return affix(r, self, a, begins, "startswith");
}

METHOD(s_endswith)
{
	return affix(r, self, a, ends, "endswith");
}

METHOD(s_removeprefix)
{
	struct jv what = *text_arg(r, a, 0, "prefix");
	return begins(self, what) ? part(self, what.len, self.len) : self;
}

METHOD(s_removesuffix)
{
	struct jv what = *text_arg(r, a, 0, "suffix");
	return ends(self, what) ? part(self, 0, self.len - what.len) : self;
}

static struct jv padded(struct jin *r, struct jv self, const struct jargs *a, int side)
{
	const struct jv *fill = text_arg(r, a, 1, "fillchar");
	int64_t width = arg_int(r, arg_get(a, 0, "width"), 0, "a width"), n = jv_length(r, self),
			pad = width > n ? width - n : 0, left;
	if (fill && text_length(fill->s, fill->len) != 1)
		jin_fail(r, "The fill character must be exactly one character long");
	if (pad <= 0)
		return self;
	left = side < 0 ? 0 : side > 0 ? pad : pad / 2 + (pad & width & 1);
	struct jv with = fill ? *fill : jv_text(" ");
	struct jv before = str_repeat(r, with, left), after = str_repeat(r, with, pad - left),
			  plain = jv_str(self.s, self.len), v;
	v = str_concat(r, str_concat(r, before, plain), after);
	v.sub = self.sub;
	return v;
}

METHOD(s_ljust)
{
	return padded(r, self, a, -1);
}

METHOD(s_rjust)
{
	return padded(r, self, a, 1);
}

METHOD(s_center)
{
	return padded(r, self, a, 0);
}

METHOD(s_zfill)
{
	int64_t width = arg_int(r, arg_get(a, 0, "width"), 0, "a width"), n = jv_length(r, self),
			pad = width > n ? width - n : 0;
	size_t sign = self.len && (self.s[0] == '-' || self.s[0] == '+');
	if (pad <= 0)
		return self;
	struct jv zeros = str_repeat(r, jv_text("0"), pad),
			  v = str_concat(r, str_concat(r, jv_str(self.s, sign), zeros),
	                         jv_str(self.s + sign, self.len - sign));
	v.sub = self.sub;
	return v;
}

static void put_spaces(struct jin *r, struct buf *b, int64_t n)
{
	static const char spaces[] = "                                                                ";
	for (int64_t k; n > 0; n -= k) {
		k = n < (int64_t)sizeof spaces - 1 ? n : (int64_t)sizeof spaces - 1;
		text_add(r, b, spaces, (size_t)k);
	}
}

METHOD(s_expandtabs)
{
	int64_t size = arg_int(r, arg_get(a, 0, "tabsize"), 8, "a tab size"), column = 0;
	if (size > INT32_MAX || size < INT32_MIN)
		jin_fail(r, "a tab size of %lld does not fit 32 bits", (long long)size);
	struct buf *b = buf_open(r);
	uint32_t cp;
	jin_step(r, self.len / 8);
	for (size_t i = 0, n; i < self.len; i += n) {
		n = (size_t)cp_step(self.s + i, self.len - i, &cp);
		if (cp != '\t') {
			text_add(r, b, self.s + i, n);
			column = cp == '\n' || cp == '\r' ? 0 : column + 1;
		} else if (size > 0) {
			int64_t gap = size - column % size;
			put_spaces(r, b, gap);
			column += gap;
		}
	}
	return close_as(r, self);
}

/* --- searching ----------------------------------------------------------- */

static struct jv found_at(struct jin *r, struct jv self, const struct jargs *a, int back, int must)
{
	size_t chars, at;
	struct jv in = window(r, self, a, 1, &chars), what = *text_arg(r, a, 0, "sub");
	at = back ? find_back(r, in, what, in.len) : find_from(r, in, what, 0);
	if (at == SIZE_MAX && must)
		jin_fail(r, "substring not found");
	return jv_int(at == SIZE_MAX ? -1 : (int64_t)(chars + text_length(in.s, at)));
}

METHOD(s_find)
{
	return found_at(r, self, a, 0, 0);
}

METHOD(s_rfind)
{
	return found_at(r, self, a, 1, 0);
}

METHOD(s_index)
{
	return found_at(r, self, a, 0, 1);
}

METHOD(s_rindex)
{
	return found_at(r, self, a, 1, 1);
}

METHOD(s_count)
{
	size_t chars;
	struct jv in = window(r, self, a, 1, &chars), what = *text_arg(r, a, 0, "sub");
	int64_t n = 0;
	if (!what.len)
		return jv_int(jv_length(r, in) + 1);
	for (size_t at = find_from(r, in, what, 0); at != SIZE_MAX;
	     at = find_from(r, in, what, at + what.len))
		n++;
	return jv_int(n);
}

/* --- splitting and joining ----------------------------------------------- */

static int64_t count_arg(struct jin *r, const struct jargs *a, size_t at, const char *name)
{
	int64_t n = arg_int(r, arg_get(a, at, name), -1, name);
	return n < 0 ? INT64_MAX : n;
}

static void split_space(struct jin *r, struct jv self, int64_t most, struct jlist *l)
{
	for (;;) {
		size_t end = 0;
		uint32_t cp = 0;
		text_strip(&self.s, &self.len, NULL, 1, 0);
		if (!self.len)
			return;
		if (most-- == 0) {
			list_push(r, l, self);
			return;
		}
		while (end < self.len) {
			size_t n = (size_t)cp_step(self.s + end, self.len - end, &cp);
			if (cp_is_space(cp))
				break;
			end += n;
		}
		jin_step(r, 1 + end / 16);
		list_push(r, l, part(self, 0, end));
		self = part(self, end, self.len);
	}
}

METHOD(s_split)
{
	const struct jv *sep = or_none(arg_get(a, 0, "sep")) ? text_arg(r, a, 0, "sep") : NULL;
	int64_t most = count_arg(r, a, 1, "maxsplit");
	struct jlist *l = list_new(r, 0);
	if (!sep) {
		split_space(r, self, most, l);
		return jv_list(l);
	}
	if (!sep->len)
		jin_fail(r, "empty separator");
	size_t begin = 0, at;
	while (most-- > 0 && (at = find_from(r, self, *sep, begin)) != SIZE_MAX) {
		list_push(r, l, part(self, begin, at));
		begin = at + sep->len;
	}
	list_push(r, l, part(self, begin, self.len));
	return jv_list(l);
}

static struct jv reversed(struct jlist *l)
{
	for (size_t i = 0; i < l->n / 2; i++) {
		struct jv t = l->v[i];
		l->v[i] = l->v[l->n - 1 - i];
		l->v[l->n - 1 - i] = t;
	}
	return jv_list(l);
}

static void rsplit_space(struct jin *r, struct jv self, int64_t most, struct jlist *l)
{
	for (;;) {
		text_strip(&self.s, &self.len, NULL, 0, 1);
		if (!self.len)
			return;
		if (most-- == 0) {
			list_push(r, l, self);
			return;
		}
		size_t begin = self.len;
		while (begin) {
			const char *s = self.s;
			size_t len = begin, before;
			text_strip(&s, &len, NULL, 0, 1);
			if (len != begin)
				break;
			before = begin - 1;
			while (before && ((unsigned char)self.s[before] & 0xc0) == 0x80)
				before--;
			begin = before;
		}
		jin_step(r, 1 + (self.len - begin) / 16);
		list_push(r, l, part(self, begin, self.len));
		self = part(self, 0, begin);
	}
}

METHOD(s_rsplit)
{
	const struct jv *sep = or_none(arg_get(a, 0, "sep")) ? text_arg(r, a, 0, "sep") : NULL;
	int64_t most = count_arg(r, a, 1, "maxsplit");
	struct jlist *l = list_new(r, 0);
	if (!sep) {
		rsplit_space(r, self, most, l);
		return reversed(l);
	}
	if (!sep->len)
		jin_fail(r, "empty separator");
	size_t end = self.len, at;
	while (most-- > 0 && (at = find_back(r, self, *sep, end)) != SIZE_MAX) {
		list_push(r, l, part(self, at + sep->len, end));
		end = at;
	}
	list_push(r, l, part(self, 0, end));
	return reversed(l);
}

static int is_line_end(uint32_t cp)
{
	return (cp >= '\n' && cp <= '\r') || (cp >= 0x1c && cp <= 0x1e) || cp == 0x85 || cp == 0x2028 ||
	       cp == 0x2029;
}

METHOD(s_splitlines)
{
	const struct jv *keep = arg_get(a, 0, "keepends");
	int with_ends = keep && jv_truth(r, *keep);
	struct jlist *l = list_new(r, 0);
	size_t begin = 0;
	uint32_t cp;
	jin_step(r, self.len / 16);
	for (size_t i = 0; i < self.len;) {
		size_t n = (size_t)cp_step(self.s + i, self.len - i, &cp);
		if (is_line_end(cp)) {
			n += cp == '\r' && i + 1 < self.len && self.s[i + 1] == '\n';
			list_push(r, l, part(self, begin, with_ends ? i + n : i));
			begin = i + n;
		}
		i += n;
	}
	if (begin < self.len)
		list_push(r, l, part(self, begin, self.len));
	return jv_list(l);
}

static struct jv partition(struct jin *r, struct jv self, const struct jargs *a, int back)
{
	struct jv sep = *text_arg(r, a, 0, "sep");
	struct jlist *l = list_new(r, 3);
	if (!sep.len)
		jin_fail(r, "empty separator");
	size_t at = back ? find_back(r, self, sep, self.len) : find_from(r, self, sep, 0);
	int none = at == SIZE_MAX;
	list_push(r, l, none ? part(self, 0, back ? 0 : self.len) : part(self, 0, at));
	list_push(r, l, none ? jv_text("") : sep);
	list_push(r, l,
	          none ? part(self, back ? 0 : self.len, self.len)
	               : part(self, at + sep.len, self.len));
	return (struct jv){.type = J_TUPLE, .list = l};
}

METHOD(s_partition)
{
	return partition(r, self, a, 0);
}

METHOD(s_rpartition)
{
	return partition(r, self, a, 1);
}

METHOD(s_join)
{
	const struct jlist *l = jv_items(r, a->v[0]);
	struct buf *b = buf_open(r);
	for (size_t i = 0; i < l->n; i++) {
		struct jv v = l->v[i];
		if (v.type != J_STR && !self.sub)
			jin_fail(r, "sequence item %zu: expected str instance, %s found", i,
			         jv_type_name((enum jv_type)v.type));
		if (self.sub)
			v = str_escape(r, v);
		if (i)
			text_add(r, b, self.s, self.len);
		text_add(r, b, v.s, v.len);
	}
	return close_as(r, self);
}

METHOD(s_replace)
{
	struct jv old = *text_arg(r, a, 0, "old"), new = *text_arg(r, a, 1, "new");
	int64_t most = count_arg(r, a, 2, "count");
	struct buf *b = buf_open(r);
	size_t begin = 0, at;
	if (self.sub)
		new = str_escape(r, new);
	if (!old.len) { /* before each character and at the end */
		for (; most-- > 0; begin = at) {
			text_add(r, b, new.s, new.len);
			at = begin + text_offset(self.s + begin, self.len - begin, 1);
			text_add(r, b, self.s + begin, at - begin);
			jin_step(r, 1);
			if (at == begin)
				break;
		}
	}
	while (old.len && most-- > 0 && (at = find_from(r, self, old, begin)) != SIZE_MAX) {
		text_add(r, b, self.s + begin, at - begin);
		text_add(r, b, new.s, new.len);
		jin_step(r, 1);
		begin = at + old.len;
	}
	text_add(r, b, self.s + begin, self.len - begin);
	return close_as(r, self);
}

METHOD(s_format)
{
	struct jv v = str_format(r, self, a);
	v.sub = self.sub;
	return v;
}

METHOD(s_format_map)
{
	struct jv v = str_format_map(r, self, a->v[0]);
	v.sub = self.sub;
	return v;
}

/* --- all of them ---------------------------------------------------------- */

const struct method_def methods_of_str[] = {
	{"upper", s_upper, 0, 0},
	{"lower", s_lower, 0, 0},
	{"casefold", s_lower, 0, 0},
	{"capitalize", s_capitalize, 0, 0},
	{"title", s_title, 0, 0},
	{"swapcase", s_swapcase, 0, 0},
	{"isalpha", s_isalpha, 0, 0},
	{"isalnum", s_isalnum, 0, 0},
	{"isdecimal", s_isdecimal, 0, 0},
	{"isdigit", s_isdigit, 0, 0},
	{"isnumeric", s_isnumeric, 0, 0},
	{"isspace", s_isspace, 0, 0},
	{"isidentifier", s_isidentifier, 0, 0},
	{"isascii", s_isascii, 0, 0},
	{"isprintable", s_isprintable, 0, 0},
	{"isupper", s_isupper, 0, 0},
	{"islower", s_islower, 0, 0},
	{"istitle", s_istitle, 0, 0},
	{"strip", s_strip, 0, 1},
	{"lstrip", s_lstrip, 0, 1},
	{"rstrip", s_rstrip, 0, 1},
	{"startswith", s_startswith, 1, 3},
	{"endswith", s_endswith, 1, 3},
	{"removeprefix", s_removeprefix, 1, 1},
	{"removesuffix", s_removesuffix, 1, 1},
	{"ljust", s_ljust, 1, 2},
	{"rjust", s_rjust, 1, 2},
	{"center", s_center, 1, 2},
	{"zfill", s_zfill, 1, 1},
	{"expandtabs", s_expandtabs, 0, 1},
	{"find", s_find, 1, 3},
	{"rfind", s_rfind, 1, 3},
	{"index", s_index, 1, 3},
	{"rindex", s_rindex, 1, 3},
	{"count", s_count, 1, 3},
	{"split", s_split, 0, 2},
	{"rsplit", s_rsplit, 0, 2},
	{"splitlines", s_splitlines, 0, 1},
	{"partition", s_partition, 1, 1},
	{"rpartition", s_rpartition, 1, 1},
	{"join", s_join, 1, 1},
	{"replace", s_replace, 2, 3},
	{"format", s_format, 0, METHOD_ANY},
	{"format_map", s_format_map, 1, 1},
	{NULL, NULL, 0, 0},
};
