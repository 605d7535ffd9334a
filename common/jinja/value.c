/* value.c - creates values and enforces a rendering's limits: every allocation and all text being
 * built count against its memory, everything that takes time against its steps. */
#include "jinja/value.h"
#include "util/map.h"
#include "util/quota.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- errors and limits --------------------------------------------------- */

/* Control characters are replaced, so that a message is one line. */
static _Noreturn void leave(struct jin *r, int code)
{
	for (char *p = r->err ? r->err->text : NULL; p && *p; p++)
		if ((unsigned char)*p < 0x20 || *p == 0x7f)
			*p = ' ';
	r->code = code;
	longjmp(r->bad, 1);
}

_Noreturn void jin_fail(struct jin *r, const char *fmt, ...)
{
	char text[320];
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(text, sizeof text, fmt, ap);
	va_end(ap);
	err_set(r->err, ERR_INVALID, "line %u: %s", r->line, text);
	leave(r, ERR_INVALID);
}

_Noreturn void jin_raise(struct jin *r, const char *text, size_t len)
{
	err_set(r->err, ERR_INVALID, "%.*s", len < 1024 ? (int)len : 1024, text);
	leave(r, ERR_INVALID);
}

_Noreturn void jin_over(struct jin *r, const char *fmt, ...)
{
	char text[320];
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(text, sizeof text, fmt, ap);
	va_end(ap);
	err_set(r->err, ERR_FULL, "line %u: %s", r->line, text);
	leave(r, ERR_FULL);
}

static const char *object_name(uint8_t type, char out[48])
{
	if (type == J_NONE)
		return "None";
	snprintf(out, 48, "%s object", jv_type_name((enum jv_type)type));
	return out;
}

_Noreturn void jin_undefined(struct jin *r, struct jv v)
{
	char type[48];
	int n = v.len < 120 ? (int)v.len : 120;
	switch (v.sub) {
	case UNDEF_NAME: jin_fail(r, "'%.*s' is undefined", n, v.s);
	case UNDEF_ATTR: jin_fail(r, "'%s' has no attribute '%.*s'", object_name(v.aux, type), n, v.s);
	case UNDEF_UNSAFE:
		jin_fail(r, "access to attribute '%.*s' of '%s' object is unsafe", n, v.s,
		         jv_type_name((enum jv_type)v.aux));
	default: jin_fail(r, "%.*s", n, v.s);
	}
}

void jin_step(struct jin *r, uint64_t n)
{
	r->steps += n;
	if (r->steps > r->steps_max)
		jin_over(r, "the template takes more than %llu steps", (unsigned long long)r->steps_max);
}

void jin_stack(struct jin *r)
{
	const char *here = __builtin_frame_address(0);
	size_t used = here < r->stack ? (size_t)(r->stack - here) : (size_t)(here - r->stack);
	if (used > STACK_MAX)
		jin_over(r, "expressions, macros and data are nested too deep: more than %d KiB of stack",
		         STACK_MAX >> 10);
}

static void count_memory(struct jin *r, size_t bytes)
{
	if (bytes > r->memory_max - r->memory)
		jin_over(r, "the template needs more than %zu bytes of memory", r->memory_max);
	if (quota_take(r->quota, bytes) < 0)
		jin_over(r, "the template needs more memory than is left for this request");
	r->memory += bytes;
}

void *jin_alloc(struct jin *r, size_t count, size_t size)
{
	if (count > r->memory_max / size)
		jin_over(r, "the template needs more than %zu bytes of memory", r->memory_max);
	count_memory(r, count * size + 16);
	void *p = arena_try_alloc(r->arena, count * size);
	if (!p)
		jin_over(r, "out of memory for the template");
	return p;
}

/* --- text being built ---------------------------------------------------- */

struct buf *buf_open(struct jin *r)
{
	struct jbuf *b = r->spare;
	if (b) {
		r->spare = b->up;
		buf_reset(&b->b);
	} else {
		b = jin_alloc(r, 1, sizeof *b);
		buf_init(&b->b, r->memory_max + 1); /* never reached: text_add fails first */
	}
	b->up = r->bufs;
	r->bufs = b;
	return &b->b;
}

struct jv buf_close(struct jin *r)
{
	struct jbuf *b = r->bufs;
	struct jv v = jv_copy(r, b->b.data ? b->b.data : "", b->b.len);
	r->bufs = b->up;
	b->up = r->spare;
	r->spare = b;
	return v;
}

void text_add(struct jin *r, struct buf *b, const char *s, size_t len)
{
	jin_step(r, len / 64);
	count_memory(r, len);
	if (buf_add(b, s, len) < 0)
		jin_over(r, "the output is longer than %zu bytes, or out of memory", b->limit);
}

void text_adds(struct jin *r, struct buf *b, const char *s)
{
	text_add(r, b, s, strlen(s));
}

/* --- creating values ----------------------------------------------------- */

struct jv jv_text(const char *s)
{
	return jv_str(s, strlen(s));
}

struct jv jv_copy(struct jin *r, const char *s, size_t len)
{
	char *own = jin_alloc(r, len + 1, 1);
	jin_step(r, len / 64);
	memcpy(own, s, len);
	return jv_str(own, len);
}

struct jv jv_undef(enum undef_kind kind, const char *s, size_t len, uint8_t object)
{
	return (struct jv){.type = J_UNDEF, .sub = (uint8_t)kind, .aux = object, .s = s, .len = len};
}

struct jv jv_undef_printf(struct jin *r, const char *fmt, ...)
{
	char text[200];
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(text, sizeof text, fmt, ap);
	va_end(ap);
	struct jv v = jv_copy(r, text, strlen(text));
	return jv_undef(UNDEF_TEXT, v.s, v.len, 0);
}

struct jlist *list_new(struct jin *r, size_t size)
{
	struct jlist *l = jin_alloc(r, 1, sizeof *l);
	l->v = size ? jin_alloc(r, size, sizeof *l->v) : NULL;
	l->size = size;
	return l;
}

void list_push(struct jin *r, struct jlist *l, struct jv v)
{
	if (l->n == l->size) {
		size_t size = l->size ? l->size * 2 : 8;
		struct jv *more = jin_alloc(r, size, sizeof *more);
		jin_step(r, l->n / 4);
		if (l->n)
			memcpy(more, l->v, l->n * sizeof *more);
		l->v = more;
		l->size = size;
	}
	l->v[l->n++] = v;
}

struct jv jv_iter(struct jin *r, struct jlist list)
{
	struct jiter *it = jin_alloc(r, 1, sizeof *it);
	it->list = list;
	return (struct jv){.type = J_ITER, .iter = it};
}

struct jdict *dict_new(struct jin *r, size_t size)
{
	struct jdict *d = jin_alloc(r, 1, sizeof *d);
	d->keys = size ? jin_alloc(r, size, sizeof *d->keys) : NULL;
	d->vals = size ? jin_alloc(r, size, sizeof *d->vals) : NULL;
	d->size = size;
	return d;
}

enum { INDEX_FROM = 16 }; /* dicts with more entries than this use a hash index */

/* Uses a secret key because clients choose keys: nobody can provoke collisions. Iteration order
 * does not depend on the hash. */
static uint64_t hash_value(struct jin *r, struct jv v)
{
	uint64_t h = 17;
	switch (v.type) {
	case J_STR: jin_step(r, v.len / 64); return map_hash(v.s, v.len);
	case J_INT:
	case J_BOOL:
	case J_FLOAT: {
		double d = jv_number(v);
		if (d == 0)
			d = 0; /* -0.0 equals 0 */
		return map_hash(&d, sizeof d);
	}
	case J_TUPLE:
		jin_stack(r);
		for (size_t i = 0; i < v.list->n; i++)
			h = h * 31 + hash_value(r, v.list->v[i]);
		return h;
	case J_LIST:
	case J_DICT: jin_fail(r, "unhashable type: '%s'", jv_type_name((enum jv_type)v.type));
	default: return v.type;
	}
}

/* Keys of different types differ, except numbers: 1, 1.0 and true are the same key. */
static int key_equal(struct jin *r, struct jv a, struct jv b)
{
	if (a.type == J_STR || b.type == J_STR)
		return a.type == b.type && a.len == b.len && !memcmp(a.s, b.s, a.len);
	return jv_equal(r, a, b);
}

static size_t *index_slot(struct jin *r, const struct jdict *d, struct jv key, size_t *slot)
{
	size_t mask = d->index_size - 1, at = hash_value(r, key) & mask;
	for (; d->index[at] && !key_equal(r, d->keys[d->index[at] - 1], key); at = (at + 1) & mask)
		jin_step(r, 1);
	*slot = at;
	return slot;
}

static void build_index(struct jin *r, struct jdict *d)
{
	size_t slot;
	d->index_size = d->size * 2 < 64 ? 64 : d->size * 2;
	while (d->index_size & (d->index_size - 1))
		d->index_size += d->index_size & -d->index_size;
	d->index = jin_alloc(r, d->index_size, sizeof *d->index);
	for (size_t i = 0; i < d->n; i++)
		d->index[*index_slot(r, d, d->keys[i], &slot)] = (uint32_t)(i + 1);
}

static size_t dict_find(struct jin *r, const struct jdict *d, struct jv key)
{
	size_t slot;
	if (d->index)
		return (size_t)d->index[*index_slot(r, d, key, &slot)] - 1;
	if (key.type != J_STR)
		hash_value(r, key); /* fails if the key is unhashable */
	for (size_t i = 0; i < d->n; i++)
		if (key_equal(r, d->keys[i], key))
			return i;
	return SIZE_MAX;
}

const struct jv *dict_get(struct jin *r, const struct jdict *d, struct jv key)
{
	size_t at = dict_find(r, d, key);
	return at == SIZE_MAX ? NULL : &d->vals[at];
}

const struct jv *dict_get_text(struct jin *r, const struct jdict *d, const char *s, size_t len)
{
	return dict_get(r, d, jv_str(s, len));
}

void dict_set(struct jin *r, struct jdict *d, struct jv key, struct jv val)
{
	size_t at = dict_find(r, d, key), slot;
	if (at != SIZE_MAX) {
		d->vals[at] = val;
		return;
	}
	if (d->n == d->size) {
		struct jdict more = {.n = d->n, .size = d->size ? d->size * 2 : 8};
		more.keys = jin_alloc(r, more.size, sizeof *more.keys);
		more.vals = jin_alloc(r, more.size, sizeof *more.vals);
		for (size_t i = 0; i < d->n; i++) {
			more.keys[i] = d->keys[i];
			more.vals[i] = d->vals[i];
		}
		*d = more;
	}
	d->keys[d->n] = key;
	d->vals[d->n++] = val;
	if (d->index)
		d->index[*index_slot(r, d, key, &slot)] = (uint32_t)d->n;
	else if (d->n > INDEX_FROM)
		build_index(r, d);
}

static struct jv object_from_json(struct jin *r, const json_t *j, unsigned depth)
{
	json_t *o = (json_t *)j; /* jansson's iterators take no const */
	struct jdict *d = dict_new(r, json_object_size(j));
	for (void *it = json_object_iter(o); it; it = json_object_iter_next(o, it)) {
		const char *key = json_object_iter_key(it);
		dict_set(r, d, jv_str(key, json_object_iter_key_len(it)),
		         jv_from_json(r, json_object_iter_value(it), depth + 1));
	}
	return (struct jv){.type = J_DICT, .dict = d};
}

struct jv jv_from_json(struct jin *r, const json_t *j, unsigned depth)
{
	jin_step(r, 1);
	if (depth > DATA_DEPTH_MAX)
		jin_over(r, "the data is nested deeper than %d", DATA_DEPTH_MAX);
	if (!j)
		return jv_none();
	switch (json_typeof(j)) {
	case JSON_OBJECT: return object_from_json(r, j, depth);
	case JSON_ARRAY: {
		struct jlist *l = list_new(r, json_array_size(j));
		for (size_t i = 0; i < json_array_size(j); i++)
			list_push(r, l, jv_from_json(r, json_array_get(j, i), depth + 1));
		return jv_list(l);
	}
	case JSON_STRING: return jv_str(json_string_value(j), json_string_length(j));
	case JSON_INTEGER: return jv_int(json_integer_value(j));
	case JSON_REAL: return jv_float(json_real_value(j));
	case JSON_TRUE:
	case JSON_FALSE: return jv_bool(json_is_true(j));
	default: return jv_none();
	}
}
