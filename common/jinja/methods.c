/* methods.c - the methods of lists, tuples, dicts, cyclers and loops, and calling a method. Methods
 * that modify a list or dict exist only to be refused, as in Jinja's immutable sandbox. */
#include "jinja/methods.h"

#include <string.h>

/* --- lists, tuples, dicts, cyclers --------------------------------------- */

METHOD(l_count)
{
	int64_t n = 0;
	for (size_t i = 0; i < self.list->n; i++)
		n += jv_equal(r, self.list->v[i], a->v[0]);
	return jv_int(n);
}

METHOD(l_index)
{
	for (size_t i = 0; i < self.list->n; i++)
		if (jv_equal(r, self.list->v[i], a->v[0]))
			return jv_int((int64_t)i);
	jin_fail(r, "the value is not in the list");
}

METHOD(l_copy)
{
	(void)a;
	struct jlist *l = list_new(r, self.list->n);
	for (size_t i = 0; i < self.list->n; i++)
		list_push(r, l, self.list->v[i]);
	return jv_list(l);
}

METHOD(d_get)
{
	const struct jv *v = dict_get(r, self.dict, a->v[0]);
	return v ? *v : a->n > 1 ? a->v[1] : jv_none();
}

METHOD(d_items)
{
	(void)r;
	(void)a;
	return (struct jv){.type = J_VIEW, .sub = VIEW_ITEMS, .dict = self.dict};
}

METHOD(d_keys)
{
	(void)r;
	(void)a;
	return (struct jv){.type = J_VIEW, .sub = VIEW_KEYS, .dict = self.dict};
}

METHOD(d_values)
{
	(void)r;
	(void)a;
	return (struct jv){.type = J_VIEW, .sub = VIEW_VALUES, .dict = self.dict};
}

METHOD(d_copy)
{
	struct jdict *d = dict_new(r, self.dict->n);
	(void)a;
	for (size_t i = 0; i < self.dict->n; i++)
		dict_set(r, d, self.dict->keys[i], self.dict->vals[i]);
	return (struct jv){.type = J_DICT, .dict = d};
}

METHOD(c_next)
{
	(void)r;
	(void)a;
	struct jv v = self.iter->list.v[self.iter->at];
	self.iter->at = (self.iter->at + 1) % self.iter->list.n;
	return v;
}

METHOD(c_reset)
{
	(void)r;
	(void)a;
	self.iter->at = 0;
	return jv_none();
}

METHOD(loop_cycle)
{
	if (!a->n)
		jin_fail(r, "no items for cycling given");
	return a->v[self.loop->at % a->n];
}

METHOD(loop_changed)
{
	struct jlist *l = list_new(r, a->n);
	for (size_t i = 0; i < a->n; i++)
		list_push(r, l, a->v[i]);
	struct jv now = {.type = J_TUPLE, .list = l};
	int same = self.loop->changed_set && jv_equal(r, self.loop->changed, now);
	self.loop->changed = now;
	self.loop->changed_set = 1;
	return jv_bool(!same);
}

/* --- look-up and calling ------------------------------------------------- */

static const struct method_def of_list[] = {
	{"count", l_count, 1, 1}, {"index", l_index, 1, 1}, {"copy", l_copy, 0, 0},
	{"append", NULL, 0, 0},   {"clear", NULL, 0, 0},    {"extend", NULL, 0, 0},
	{"insert", NULL, 0, 0},   {"pop", NULL, 0, 0},      {"remove", NULL, 0, 0},
	{"reverse", NULL, 0, 0},  {"sort", NULL, 0, 0},     {NULL, NULL, 0, 0},
};
static const struct method_def of_tuple[] = {{"count", l_count, 1, 1},
                                             {"index", l_index, 1, 1},
                                             {NULL, NULL, 0, 0}};
static const struct method_def of_dict[] = {
	{"get", d_get, 1, 2},       {"items", d_items, 0, 0}, {"keys", d_keys, 0, 0},
	{"values", d_values, 0, 0}, {"copy", d_copy, 0, 0},   {"clear", NULL, 0, 0},
	{"pop", NULL, 0, 0},        {"popitem", NULL, 0, 0},  {"setdefault", NULL, 0, 0},
	{"update", NULL, 0, 0},     {NULL, NULL, 0, 0},
};
static const struct method_def of_cycler[] = {{"next", c_next, 0, 0},
                                              {"reset", c_reset, 0, 0},
                                              {NULL, NULL, 0, 0}};
static const struct method_def of_loop[] = {{"cycle", loop_cycle, 0, METHOD_ANY},
                                            {"changed", loop_changed, 0, METHOD_ANY},
                                            {NULL, NULL, 0, 0}};

struct jv method_find(struct jin *r, struct jv o, const char *s, size_t len)
{
	static const struct method_def *const tables[] = {
		[J_STR] = methods_of_str, [J_LIST] = of_list,     [J_TUPLE] = of_tuple,
		[J_DICT] = of_dict,       [J_CYCLER] = of_cycler, [J_LOOP] = of_loop};
	const struct method_def *d = o.type < sizeof tables / sizeof *tables ? tables[o.type] : NULL;
	if (len > 4 && !memcmp(s, "__", 2) && !memcmp(s + len - 2, "__", 2))
		return jv_undef(UNDEF_UNSAFE, s, len, o.type);
	if (o.type == J_CYCLER && len == 7 && !memcmp(s, "current", 7))
		return o.iter->list.v[o.iter->at];
	for (; d && d->name; d++) {
		if (strlen(d->name) != len || memcmp(d->name, s, len))
			continue;
		if (!d->call)
			return jv_undef(UNDEF_UNSAFE, s, len, o.type);
		struct jmethod *m = jin_alloc(r, 1, sizeof *m);
		*m = (struct jmethod){o, d};
		return (struct jv){.type = J_METHOD, .method = m};
	}
	return jv_undef(UNDEF_NAME, s, len, 0);
}

struct jv method_call(struct jin *r, const struct jmethod *m, const struct jargs *a)
{
	size_t n = a->n + (m->def->most == METHOD_ANY ? 0 : a->n_kw);
	if (a->n < m->def->least || n > m->def->most)
		jin_fail(r, "%s() takes %d to %d arguments, got %zu", m->def->name, m->def->least,
		         m->def->most, n);
	return m->def->call(r, m->self, a);
}
