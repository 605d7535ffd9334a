/* globals.c - the global functions of every template, and the attributes of `loop`. */
#include "jinja/tree.h"
#include "jinja/value.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

static struct jdict *dict_from(struct jin *r, const struct jargs *a, const char *what)
{
	struct jdict *d = dict_new(r, a->n_kw);
	if (a->n > 1)
		jin_fail(r, "%s expected at most 1 argument, got %zu", what, a->n);
	if (a->n && a->v[0].type == J_DICT) {
		for (size_t i = 0; i < a->v[0].dict->n; i++)
			dict_set(r, d, a->v[0].dict->keys[i], a->v[0].dict->vals[i]);
	} else if (a->n) {
		const struct jlist *l = jv_items(r, a->v[0]);
		for (size_t i = 0; i < l->n; i++) {
			const struct jlist *pair = jv_items(r, l->v[i]);
			if (pair->n != 2)
				jin_fail(r, "dictionary update sequence element #%zu has length %zu; 2 is required",
				         i, pair->n);
			dict_set(r, d, pair->v[0], pair->v[1]);
		}
	}
	for (size_t i = 0; i < a->n_kw; i++)
		dict_set(r, d, a->kw_names[i], a->kw[i]);
	return d;
}

static struct jv call_namespace(struct jin *r, const struct jargs *a)
{
	return (struct jv){.type = J_NAMESPACE, .dict = dict_from(r, a, "namespace")};
}

static struct jv call_dict(struct jin *r, const struct jargs *a)
{
	return (struct jv){.type = J_DICT, .dict = dict_from(r, a, "dict")};
}

static struct jv call_range(struct jin *r, const struct jargs *a)
{
	struct jrange *range = jin_alloc(r, 1, sizeof *range);
	if (a->n < 1 || a->n > 3 || a->n_kw)
		jin_fail(r, "range expected 1 to 3 arguments, got %zu", a->n + a->n_kw);
	int64_t first = arg_int(r, &a->v[0], 0, "an argument of range");
	range->start = a->n > 1 ? first : 0;
	range->stop = a->n > 1 ? arg_int(r, &a->v[1], 0, "an argument of range") : first;
	range->step = a->n > 2 ? arg_int(r, &a->v[2], 0, "an argument of range") : 1;
	if (range->step == 0)
		jin_fail(r, "range() arg 3 must not be zero");
	__int128 from = range->start, to = range->stop, step = range->step,
			 n = step > 0 ? (to - from + step - 1) / step : (from - to - step - 1) / -step;
	if (n > RANGE_MAX)
		jin_over(r, "Range too big. The sandbox blocks ranges larger than MAX_RANGE (%d).",
		         RANGE_MAX);
	range->n = n < 0 ? 0 : (int64_t)n;
	return (struct jv){.type = J_RANGE, .range = range};
}

static struct jv call_raise(struct jin *r, const struct jargs *a)
{
	if (a->n != 1 || a->n_kw)
		jin_fail(r, "raise_exception() takes 1 positional argument but %zu were given", a->n);
	struct jv text = jv_to_str(r, a->v[0]);
	jin_raise(r, text.s, text.len);
}

static struct jv call_strftime(struct jin *r, const struct jargs *a)
{
	char format[256], text[2048];
	struct tm tm;
	time_t now = (time_t)r->now_s;
	if (a->n != 1 || a->n_kw || a->v[0].type != J_STR)
		jin_fail(r, "strftime_now() takes one string");
	if (a->v[0].len >= sizeof format || memchr(a->v[0].s, 0, a->v[0].len))
		jin_over(r, "a format of strftime_now is longer than %zu bytes", sizeof format - 1);
	memcpy(format, a->v[0].s, a->v[0].len);
	format[a->v[0].len] = 0;
	if (!localtime_r(&now, &tm))
		jin_fail(r, "the time %lld is out of range", (long long)r->now_s);
	return jv_copy(r, text, strftime(text, sizeof text, format, &tm));
}

static struct jv call_joiner(struct jin *r, const struct jargs *a)
{
	const struct jv *sep = arg_get(a, 0, "sep");
	struct jv v = jv_iter(r, *list_new(r, 1));
	if (a->n + a->n_kw > 1)
		jin_fail(r, "joiner() takes one argument");
	list_push(r, &v.iter->list, sep ? *sep : jv_text(", "));
	v.type = J_JOINER;
	return v;
}

static struct jv call_cycler(struct jin *r, const struct jargs *a)
{
	struct jv v = jv_iter(r, *list_new(r, a->n));
	if (!a->n || a->n_kw)
		jin_fail(r, "at least one item has to be provided");
	for (size_t i = 0; i < a->n; i++)
		list_push(r, &v.iter->list, a->v[i]);
	v.type = J_CYCLER;
	return v;
}

struct jv global_find(const char *s, size_t len)
{
	static const struct jfunc functions[] = {
		{"namespace", call_namespace},   {"dict", call_dict},
		{"range", call_range},           {"raise_exception", call_raise},
		{"strftime_now", call_strftime}, {"joiner", call_joiner},
		{"cycler", call_cycler},
	};
	for (size_t i = 0; i < sizeof functions / sizeof *functions; i++)
		if (strlen(functions[i].name) == len && !memcmp(functions[i].name, s, len))
			return (struct jv){.type = J_FUNC, .func = &functions[i]};
	return jv_undef(UNDEF_NAME, s, len, 0);
}

struct jv loop_attr(struct jin *r, struct jloop *l, const char *s, size_t len)
{
	static const char *const names[] = {"index",  "index0",   "revindex", "revindex0",
	                                    "first",  "last",     "length",   "depth",
	                                    "depth0", "previtem", "nextitem"};
	size_t k = 0, n = l->items->n;
	for (; k < sizeof names / sizeof *names; k++)
		if (strlen(names[k]) == len && !memcmp(names[k], s, len))
			break;
	switch (k) {
	case 0:
	case 1: return jv_int((int64_t)l->at + (k == 0));
	case 2:
	case 3: return jv_int((int64_t)(n - l->at) - (k == 3));
	case 4: return jv_bool(l->at == 0);
	case 5: return jv_bool(l->at + 1 == n);
	case 6: return jv_int((int64_t)n);
	case 7:
	case 8: return jv_int((int64_t)l->depth - (k == 8));
	case 9:
		return l->at ? l->items->v[l->at - 1]
		             : jv_undef(UNDEF_TEXT, "there is no previous item", 25, 0);
	case 10:
		return l->at + 1 < n ? l->items->v[l->at + 1]
		                     : jv_undef(UNDEF_TEXT, "there is no next item", 21, 0);
	default: return method_find(r, (struct jv){.type = J_LOOP, .loop = l}, s, len);
	}
}
