/* args.c - calls builtins and other callable values, and gives access to their arguments. */
#include "jinja/value.h"

#include <string.h>

const struct jv *arg_get(const struct jargs *a, size_t at, const char *name)
{
	if (at < a->n)
		return &a->v[at];
	for (size_t i = 0; i < a->n_kw; i++)
		if (a->kw_names[i].len == strlen(name) &&
		    !memcmp(a->kw_names[i].s, name, a->kw_names[i].len))
			return &a->kw[i];
	return NULL;
}

int64_t arg_int(struct jin *r, const struct jv *v, int64_t def, const char *what)
{
	if (!v)
		return def;
	if (v->type == J_UNDEF)
		jin_undefined(r, *v);
	if (v->type != J_INT && v->type != J_BOOL)
		jin_fail(r, "%s must be an integer, not %s", what, jv_type_name((enum jv_type)v->type));
	return v->i;
}

/* Does the comma-separated list contain the name? */
static int has_name(const char *names, struct jv name)
{
	while (*names) {
		size_t n = strcspn(names, ",");
		if (n == name.len && !memcmp(names, name.s, n))
			return 1;
		names += n + (names[n] == ',');
	}
	return 0;
}

struct jv builtin_call(struct jin *r, const struct builtin *f, const char *kind,
                       const struct jargs *a)
{
	if (a->n > f->most)
		jin_fail(r, "%s '%s' takes %d argument(s) at most, got %zu", kind, f->name, f->most - 1,
		         a->n - 1);
	for (size_t i = 0; f->names && i < a->n_kw; i++)
		if (!has_name(f->names, a->kw_names[i]))
			jin_fail(r, "%s '%s' got an unexpected keyword argument '%.*s'", kind, f->name,
			         a->kw_names[i].len < 80 ? (int)a->kw_names[i].len : 80, a->kw_names[i].s);
	jin_stack(r);
	return f->call(r, a);
}

struct jv jv_call(struct jin *r, struct jv f, const struct jargs *a)
{
	switch (f.type) {
	case J_UNDEF: jin_undefined(r, f);
	case J_FUNC: return f.func->call(r, a);
	case J_METHOD: return method_call(r, f.method, a);
	case J_MACRO: return macro_call(r, f.macro, a);
	case J_LOOP: return loop_call(r, f.loop, a);
	case J_JOINER: return f.iter->at++ ? f.iter->list.v[0] : jv_text("");
	default: jin_fail(r, "'%s' object is not callable", jv_type_name((enum jv_type)f.type));
	}
}

static void merge(struct jin *r, struct jv *keys, struct jv *vals, struct jv *spare, size_t n,
                  int reverse)
{
	size_t half = n / 2, i = 0, k = half, to = 0;
	if (n < 2)
		return;
	merge(r, keys, vals, spare, half, reverse);
	merge(r, keys + half, vals + half, spare, n - half, reverse);
	while (i < half || k < n) {
		int right = i == half || (k < n && (reverse ? jv_less(r, keys[i], keys[k], "<")
		                                            : jv_less(r, keys[k], keys[i], "<")));
		size_t from = right ? k++ : i++;
		spare[2 * to] = keys[from];
		spare[2 * to++ + 1] = vals[from];
	}
	for (i = 0; i < n; i++) {
		keys[i] = spare[2 * i];
		vals[i] = spare[2 * i + 1];
	}
}

void sort_values(struct jin *r, struct jv *keys, struct jv *vals, size_t n, int reverse)
{
	merge(r, keys, vals, jin_alloc(r, n + 1, 2 * sizeof *keys), n, reverse);
}
