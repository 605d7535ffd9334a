/* look.c - Python's semantics of values: truth, equality, order, length, iteration, attributes,
 * items and slices. */
#include "jinja/value.h"

#include <string.h>

const char *jv_type_name(enum jv_type t)
{
	static const char *const names[] = {
		[J_UNDEF] = "Undefined",  [J_NONE] = "NoneType",
		[J_BOOL] = "bool",        [J_INT] = "int",
		[J_FLOAT] = "float",      [J_STR] = "str",
		[J_LIST] = "list",        [J_TUPLE] = "tuple",
		[J_DICT] = "dict",        [J_NAMESPACE] = "Namespace",
		[J_RANGE] = "range",      [J_VIEW] = "dict_view",
		[J_ITER] = "generator",   [J_MACRO] = "Macro",
		[J_FUNC] = "function",    [J_METHOD] = "method",
		[J_LOOP] = "LoopContext", [J_JOINER] = "Joiner",
		[J_CYCLER] = "Cycler",
	};
	return names[t];
}

int jv_is_number(struct jv v)
{
	return v.type == J_INT || v.type == J_BOOL || v.type == J_FLOAT;
}

double jv_number(struct jv v)
{
	return v.type == J_FLOAT ? v.f : (double)v.i;
}

int jv_truth(struct jin *r, struct jv v)
{
	switch (v.type) {
	case J_UNDEF:
	case J_NONE: return 0;
	case J_BOOL:
	case J_INT: return v.i != 0;
	case J_FLOAT: return v.f != 0;
	case J_STR: return v.len != 0;
	case J_LIST:
	case J_TUPLE:
	case J_DICT:
	case J_VIEW:
	case J_RANGE: return jv_length(r, v) != 0;
	default: return 1;
	}
}

static int lists_equal(struct jin *r, const struct jlist *a, const struct jlist *b)
{
	if (a->n != b->n)
		return 0;
	for (size_t i = 0; i < a->n; i++)
		if (!jv_equal(r, a->v[i], b->v[i]))
			return 0;
	return 1;
}

static int dicts_equal(struct jin *r, const struct jdict *a, const struct jdict *b)
{
	if (a->n != b->n)
		return 0;
	for (size_t i = 0; i < a->n; i++) {
		const struct jv *v = dict_get(r, b, a->keys[i]);
		if (!v || !jv_equal(r, a->vals[i], *v))
			return 0;
	}
	return 1;
}

int jv_equal(struct jin *r, struct jv a, struct jv b)
{
	jin_step(r, 1);
	if (jv_is_number(a) && jv_is_number(b))
		return a.type == J_FLOAT || b.type == J_FLOAT ? jv_number(a) == jv_number(b) : a.i == b.i;
	if (a.type != b.type)
		return 0;
	jin_stack(r);
	switch (a.type) {
	case J_UNDEF:
	case J_NONE: return 1;
	case J_STR: jin_step(r, a.len / 64); return a.len == b.len && !memcmp(a.s, b.s, a.len);
	case J_LIST:
	case J_TUPLE: return lists_equal(r, a.list, b.list);
	case J_DICT: return dicts_equal(r, a.dict, b.dict);
	case J_RANGE:
		return a.range->n == b.range->n &&
		       (a.range->n == 0 || (a.range->start == b.range->start &&
		                            (a.range->n == 1 || a.range->step == b.range->step)));
	case J_METHOD:
		return a.method->def == b.method->def && jv_equal(r, a.method->self, b.method->self);
	default: return a.list == b.list; /* identity */
	}
}

int jv_less(struct jin *r, struct jv a, struct jv b, const char *op)
{
	jin_step(r, 1);
	if (a.type == J_UNDEF)
		jin_undefined(r, a);
	if (b.type == J_UNDEF)
		jin_undefined(r, b);
	if (jv_is_number(a) && jv_is_number(b))
		return a.type == J_FLOAT || b.type == J_FLOAT ? jv_number(a) < jv_number(b) : a.i < b.i;
	if (a.type == J_STR && b.type == J_STR) {
		size_t n = a.len < b.len ? a.len : b.len;
		jin_step(r, n / 64);
		int c = memcmp(a.s, b.s, n); /* UTF-8 sorts in code point order */
		return c ? c < 0 : a.len < b.len;
	}
	if ((a.type == J_LIST || a.type == J_TUPLE) && a.type == b.type) {
		jin_stack(r);
		for (size_t i = 0; i < a.list->n && i < b.list->n; i++)
			if (!jv_equal(r, a.list->v[i], b.list->v[i]))
				return jv_less(r, a.list->v[i], b.list->v[i], op);
		return a.list->n < b.list->n;
	}
	jin_fail(r, "'%s' not supported between instances of '%s' and '%s'", op,
	         jv_type_name((enum jv_type)a.type), jv_type_name((enum jv_type)b.type));
}

int jv_can_iterate(struct jv v)
{
	return v.type == J_UNDEF || v.type == J_STR || v.type == J_LIST || v.type == J_TUPLE ||
	       v.type == J_DICT || v.type == J_RANGE || v.type == J_VIEW || v.type == J_ITER ||
	       v.type == J_LOOP;
}

int64_t jv_length(struct jin *r, struct jv v)
{
	switch (v.type) {
	case J_UNDEF: return 0;
	case J_STR: jin_step(r, v.len / 16); return (int64_t)text_length(v.s, v.len);
	case J_LIST:
	case J_TUPLE: return (int64_t)v.list->n;
	case J_DICT:
	case J_VIEW: return (int64_t)v.dict->n;
	case J_RANGE: return v.range->n;
	case J_LOOP: return (int64_t)v.loop->items->n;
	default: return -1;
	}
}

static struct jlist *pairs(struct jin *r, const struct jdict *d)
{
	struct jlist *all = list_new(r, d->n);
	for (size_t i = 0; i < d->n; i++) {
		struct jlist *pair = list_new(r, 2);
		list_push(r, pair, d->keys[i]);
		list_push(r, pair, d->vals[i]);
		list_push(r, all, (struct jv){.type = J_TUPLE, .list = pair});
	}
	return all;
}

static struct jlist *range_items(struct jin *r, const struct jrange *range)
{
	struct jlist *all = list_new(r, (size_t)range->n);
	jin_step(r, (uint64_t)range->n / 4);
	for (int64_t i = 0; i < range->n; i++)
		list_push(r, all, jv_int(range->start + i * range->step));
	return all;
}

static struct jlist *characters(struct jin *r, struct jv v)
{
	struct jlist *all = list_new(r, text_length(v.s, v.len));
	uint32_t cp;
	jin_step(r, v.len);
	for (size_t i = 0; i < v.len;) {
		size_t n = (size_t)cp_step(v.s + i, v.len - i, &cp);
		struct jv c = jv_str(v.s + i, n);
		c.sub = v.sub;
		list_push(r, all, c);
		i += n;
	}
	return all;
}

static struct jlist *copy_values(struct jin *r, const struct jv *v, size_t n)
{
	struct jlist *all = list_new(r, n);
	jin_step(r, n / 4);
	if (n)
		memcpy(all->v, v, n * sizeof *v);
	all->n = n;
	return all;
}

struct jlist *jv_items(struct jin *r, struct jv v)
{
	struct jlist *rest;
	switch (v.type) {
	case J_UNDEF: return list_new(r, 0);
	case J_LIST:
	case J_TUPLE: return v.list;
	case J_STR: return characters(r, v);
	case J_DICT: return copy_values(r, v.dict->keys, v.dict->n);
	case J_VIEW:
		return v.sub == VIEW_ITEMS
		           ? pairs(r, v.dict)
		           : copy_values(r, v.sub == VIEW_KEYS ? v.dict->keys : v.dict->vals, v.dict->n);
	case J_RANGE: return range_items(r, v.range);
	case J_ITER:
		if (v.iter->at == v.iter->list.n) /* an empty list has no array to point into */
			return list_new(r, 0);
		rest = copy_values(r, v.iter->list.v + v.iter->at, v.iter->list.n - v.iter->at);
		v.iter->at = v.iter->list.n;
		return rest;
	default: jin_fail(r, "'%s' object is not iterable", jv_type_name((enum jv_type)v.type));
	}
}

int jv_contains(struct jin *r, struct jv item, struct jv in)
{
	if (in.type == J_STR) {
		if (item.type != J_STR)
			jin_fail(r, "'in <string>' requires string as left operand, not %s",
			         jv_type_name((enum jv_type)item.type));
		jin_step(r, in.len / 16);
		return item.len == 0 || memmem(in.s, in.len, item.s, item.len) != NULL;
	}
	if (in.type == J_DICT || (in.type == J_VIEW && in.sub == VIEW_KEYS))
		return dict_get(r, in.dict, item) != NULL;
	if (!jv_can_iterate(in))
		jin_fail(r, "argument of type '%s' is not iterable", jv_type_name((enum jv_type)in.type));
	const struct jlist *l = jv_items(r, in);
	for (size_t i = 0; i < l->n; i++)
		if (jv_equal(r, l->v[i], item))
			return 1;
	return 0;
}

/* --- attributes, items, slices ------------------------------------------- */

/* o[key]; UNDEF_NAME if Python raises TypeError or LookupError */
static struct jv plain_item(struct jin *r, struct jv o, struct jv key)
{
	struct jv none = jv_undef(UNDEF_NAME, "", 0, 0);
	int64_t n, i = key.i;
	if (o.type == J_DICT) {
		const struct jv *v = key.type == J_LIST || key.type == J_DICT ? NULL
		                                                              : dict_get(r, o.dict, key);
		return v ? *v : none;
	}
	if ((o.type != J_LIST && o.type != J_TUPLE && o.type != J_STR && o.type != J_RANGE) ||
	    (key.type != J_INT && key.type != J_BOOL))
		return none;
	n = jv_length(r, o);
	i += i < 0 ? n : 0;
	if (i < 0 || i >= n)
		return none;
	if (o.type == J_RANGE)
		return jv_int(o.range->start + i * o.range->step);
	if (o.type != J_STR)
		return o.list->v[i];
	size_t at = text_offset(o.s, o.len, (size_t)i);
	struct jv c = jv_str(o.s + at, text_offset(o.s + at, o.len - at, 1));
	c.sub = o.sub;
	return c;
}

static int is_missing(struct jv v)
{
	return v.type == J_UNDEF && v.sub == UNDEF_NAME;
}

static struct jv attribute(struct jin *r, struct jv o, const char *s, size_t len)
{
	if (o.type == J_LOOP)
		return loop_attr(r, o.loop, s, len);
	if (o.type == J_NAMESPACE) {
		const struct jv *v = dict_get_text(r, o.dict, s, len);
		return v ? *v : jv_undef(UNDEF_NAME, s, len, 0);
	}
	return method_find(r, o, s, len);
}

static struct jv undefined_member(struct jin *r, struct jv o, struct jv key)
{
	if (key.type == J_STR)
		return jv_undef(UNDEF_ATTR, key.s, key.len, o.type);
	struct buf *b = buf_open(r);
	jv_repr(r, b, key);
	struct jv text = buf_close(r);
	return jv_undef_printf(r, "%s%s has no element %.*s",
	                       o.type == J_NONE ? "None" : jv_type_name((enum jv_type)o.type),
	                       o.type == J_NONE ? "" : " object", text.len < 80 ? (int)text.len : 80,
	                       text.s);
}

struct jv jv_attr(struct jin *r, struct jv o, struct jv name)
{
	if (o.type == J_UNDEF)
		jin_undefined(r, o);
	struct jv v = attribute(r, o, name.s, name.len);
	if (is_missing(v))
		v = plain_item(r, o, name);
	return is_missing(v) ? undefined_member(r, o, name) : v;
}

struct jv jv_item(struct jin *r, struct jv o, struct jv key)
{
	if (o.type == J_UNDEF)
		jin_undefined(r, o);
	struct jv v = plain_item(r, o, key);
	if (is_missing(v) && key.type == J_STR)
		v = attribute(r, o, key.s, key.len);
	return is_missing(v) ? undefined_member(r, o, key) : v;
}

static int64_t clamp(int64_t v, int64_t lo, int64_t hi)
{
	return v < lo ? lo : v > hi ? hi : v;
}

static int64_t slice_part(struct jin *r, struct jv v, int64_t def)
{
	if (v.type == J_NONE)
		return def;
	if (v.type == J_UNDEF)
		jin_undefined(r, v);
	if (v.type != J_INT && v.type != J_BOOL)
		jin_fail(r, "slice indices must be integers or None or have an __index__ method");
	return clamp(v.i, -((int64_t)1 << 40), (int64_t)1 << 40);
}

struct jv jv_slice(struct jin *r, struct jv o, const struct jv part[3])
{
	if (o.type == J_UNDEF)
		jin_undefined(r, o);
	if (o.type == J_DICT)
		jin_fail(r, "unhashable type: 'slice'");
	if (o.type != J_STR && o.type != J_LIST && o.type != J_TUPLE && o.type != J_RANGE)
		jin_fail(r, "'%s' object is not subscriptable", jv_type_name((enum jv_type)o.type));
	int64_t n = jv_length(r, o), step = slice_part(r, part[2], 1);
	if (step == 0)
		jin_fail(r, "slice step cannot be zero");
	int64_t lo = step > 0 ? 0 : -1, hi = step > 0 ? n : n - 1;
	int64_t begin = slice_part(r, part[0], step > 0 ? lo : hi),
			end = slice_part(r, part[1], step > 0 ? hi : lo);
	begin = part[0].type == J_NONE ? begin : clamp(begin < 0 ? begin + n : begin, lo, hi);
	end = part[1].type == J_NONE ? end : clamp(end < 0 ? end + n : end, lo, hi);
	int64_t count = step > 0 ? (end > begin ? (end - begin - 1) / step + 1 : 0)
	                         : (begin > end ? (begin - end - 1) / -step + 1 : 0);
	if (o.type == J_STR && step == 1) {
		size_t at = text_offset(o.s, o.len, (size_t)(count ? begin : 0));
		struct jv v = jv_str(o.s + at, text_offset(o.s + at, o.len - at, (size_t)count));
		v.sub = o.sub;
		return v;
	}
	const struct jlist *from = jv_items(r, o);
	struct jlist *to = list_new(r, (size_t)count);
	jin_step(r, (uint64_t)count / 4);
	for (int64_t i = 0; i < count; i++)
		list_push(r, to, from->v[begin + i * step]);
	if (o.type == J_STR) {
		struct buf *b = buf_open(r);
		for (size_t i = 0; i < to->n; i++)
			text_add(r, b, to->v[i].s, to->v[i].len);
		struct jv v = buf_close(r);
		v.sub = o.sub;
		return v;
	}
	struct jv v = {.type = o.type == J_TUPLE ? J_TUPLE : J_LIST, .list = to};
	return v;
}
