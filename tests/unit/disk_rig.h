/* disk_rig.h - what the tests of the disk tier share: a folder, operations that are waited for,
 * blocks whose contents tell their name. */
#ifndef TESTS_DISK_RIG_H
#define TESTS_DISK_RIG_H

#include "tests/unit/flush_rig.h"

#include "daemons/storage/disk_io.h"
#include "daemons/storage/sum.h"
#include "daemons/storage/disk.h"

#include "util/clock.h"
#include "util/mem.h"

#include <check.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define KIB ((size_t)1024)
#define MIB (KIB * 1024)
#define RIG_WAIT_S 120

struct rig_op {
	struct tier_op op;
	unsigned name;
	unsigned char *bytes; /* put: NULL, made from the name; get: room */
	int move_code, moved, done, code;
	enum tier_id tier;
	char text[128];
	void (*in_move)(struct rig_op *o);
	void *arg;
	pthread_mutex_t lock;
	pthread_cond_t over;
};

static inline struct tier_key rig_key(unsigned name)
{
	struct tier_key k = {{0}};
	uint64_t h = (name + 1) * 0x9e3779b97f4a7c15u;
	memcpy(k.b, &h, sizeof h);
	memcpy(k.b + 8, &name, sizeof name);
	return k;
}

/* Bytes that differ for each name and place. Not watched by the thread sanitizer, which would
 * take most of the tests' time for it. */
__attribute__((no_sanitize_thread)) static void rig_fill(unsigned char *p, size_t at, size_t n,
                                                         unsigned name)
{
	for (size_t i = 0; i < n; i++) {
		size_t x = at + i;
		p[i] = (unsigned char)(name * 131u + x * 7u + (x >> 9) + (name >> 8) * 17u);
	}
}

static inline int rig_move_in(struct tier_op *top, const struct tier_span *span, unsigned n)
{
	struct rig_op *o = (struct rig_op *)top;
	size_t at = 0;
	o->moved++;
	for (unsigned i = 0; i < n; at += span[i++].bytes)
		rig_fill(span[i].at, at, span[i].bytes, o->name);
	ck_assert_uint_eq(at, top->bytes);
	top->sum = sum_spans(span, n);
	if (o->in_move)
		o->in_move(o);
	return o->move_code;
}

static inline int rig_move_out(struct tier_op *top, const struct tier_span *span, unsigned n)
{
	struct rig_op *o = (struct rig_op *)top;
	size_t at = 0;
	o->moved++;
	for (unsigned i = 0; i < n; at += span[i++].bytes)
		memcpy(o->bytes + at, span[i].at, span[i].bytes);
	ck_assert_uint_eq(at, top->bytes);
	if (o->in_move)
		o->in_move(o);
	return o->move_code;
}

static inline void rig_done(struct tier_op *top, int code, enum tier_id tier, const char *text)
{
	struct rig_op *o = (struct rig_op *)top;
	pthread_mutex_lock(&o->lock);
	o->done++;
	o->code = code;
	o->tier = tier;
	snprintf(o->text, sizeof o->text, "%s", text ? text : "");
	pthread_cond_broadcast(&o->over);
	pthread_mutex_unlock(&o->lock);
}

static inline struct rig_op *rig_op(unsigned name, size_t bytes, int put)
{
	struct rig_op *o = mem_zalloc(sizeof *o);
	o->op = (struct tier_op){.key = rig_key(name),
	                         .bytes = bytes,
	                         .done = rig_done,
	                         .move = put ? rig_move_in : rig_move_out};
	o->name = name;
	o->bytes = put ? NULL : mem_alloc(bytes ? bytes : 1);
	pthread_condattr_t monotonic; /* the time of day may be set while it waits */
	pthread_condattr_init(&monotonic);
	pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
	pthread_mutex_init(&o->lock, NULL);
	pthread_cond_init(&o->over, &monotonic);
	pthread_condattr_destroy(&monotonic);
	return o;
}

static inline int rig_wait(struct rig_op *o)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	t.tv_sec += RIG_WAIT_S;
	pthread_mutex_lock(&o->lock);
	while (!o->done)
		ck_assert_msg(pthread_cond_timedwait(&o->over, &o->lock, &t) == 0,
		              "operation on %u has not ended", o->name);
	ck_assert_int_eq(o->done, 1);
	pthread_mutex_unlock(&o->lock);
	return o->code;
}

static inline void rig_free(struct rig_op *o)
{
	pthread_mutex_destroy(&o->lock);
	pthread_cond_destroy(&o->over);
	free(o->bytes);
	free(o);
}

static inline struct rig_op *rig_put_begin(struct tier *t, unsigned name, size_t bytes)
{
	struct rig_op *o = rig_op(name, bytes, 1);
	t->ops->put(t, &o->op);
	return o;
}

static inline int rig_put(struct tier *t, unsigned name, size_t bytes)
{
	struct rig_op *o = rig_put_begin(t, name, bytes);
	int code = rig_wait(o);
	ck_assert_int_eq(o->tier, code == 0 ? TIER_DISK : TIER_NONE);
	rig_free(o);
	return code;
}

/* The code; on 0 the contents have been compared. */
static inline int rig_get_end(struct rig_op *o)
{
	int code = rig_wait(o);
	if (code == 0) {
		unsigned char *want = mem_alloc(o->op.bytes);
		rig_fill(want, 0, o->op.bytes, o->name);
		ck_assert_msg(memcmp(want, o->bytes, o->op.bytes) == 0, "block %u: wrong bytes were served",
		              o->name);
		ck_assert_int_eq(o->tier, TIER_DISK);
		free(want);
	} else if (o->move_code == 0) {
		ck_assert_int_eq(o->moved, 0);
	}
	rig_free(o);
	return code;
}

static inline int rig_get(struct tier *t, unsigned name, size_t bytes)
{
	struct rig_op *o = rig_op(name, bytes, 0);
	t->ops->get(t, &o->op);
	return rig_get_end(o);
}

struct rig_find {
	struct tier_find f;
	pthread_mutex_t lock;
	pthread_cond_t over;
	int done;
};

static inline void rig_find_done(struct tier_find *f)
{
	struct rig_find *r = (struct rig_find *)f;
	pthread_mutex_lock(&r->lock);
	r->done = 1;
	pthread_cond_broadcast(&r->over);
	pthread_mutex_unlock(&r->lock);
}

/* How many leading ones are there. */
static inline uint32_t rig_lookup(struct tier *t, const unsigned *names, uint32_t n, size_t bytes)
{
	struct tier_key key[64];
	unsigned char where[64] = {0};
	ck_assert_uint_le(n, 64);
	for (uint32_t i = 0; i < n; i++)
		key[i] = rig_key(names[i]);
	struct rig_find r = {.f = {.key = key,
	                           .where = where,
	                           .n = n,
	                           .leading = 1,
	                           .bytes = bytes,
	                           .done = rig_find_done}};
	pthread_mutex_init(&r.lock, NULL);
	pthread_cond_init(&r.over, NULL);
	t->ops->lookup(t, &r.f);
	pthread_mutex_lock(&r.lock);
	while (!r.done)
		pthread_cond_wait(&r.over, &r.lock);
	pthread_mutex_unlock(&r.lock);
	uint32_t found = 0;
	while (found < n && where[found] == TIER_DISK)
		found++;
	return found;
}

static inline int rig_has(struct tier *t, unsigned name, size_t bytes)
{
	return rig_lookup(t, &name, 1, bytes) == 1;
}

static inline struct tier_stat rig_stat(struct tier *t)
{
	struct tier_stat s;
	t->ops->stat(t, &s);
	return s;
}

/* --- the folder --- */

static char rig_folder[160];

static inline void rig_folder_new(void)
{
	const char *base = getenv("TMPDIR");
	snprintf(rig_folder, sizeof rig_folder, "%s/pdserve-disk-XXXXXX",
	         base && base[0] == '/' && strlen(base) < 100 ? base : "/tmp");
	ck_assert_ptr_nonnull(mkdtemp(rig_folder));
}

static inline void rig_folder_delete(void)
{
	char cmd[200];
	snprintf(cmd, sizeof cmd, "rm -rf '%s'", rig_folder);
	ck_assert_int_eq(system(cmd), 0);
}

static inline char *rig_path(const char *name)
{
	static char path[256];
	snprintf(path, sizeof path, "%s/%s", rig_folder, name);
	return path;
}

static inline struct tier_disk_opts rig_opts(size_t capacity)
{
	return (struct tier_disk_opts){.path = rig_folder, .capacity_bytes = capacity, .direct = 1};
}

static inline struct tier *rig_open(const struct tier_disk_opts *o)
{
	struct tier *t = NULL;
	struct err err = {0};
	int r = tier_disk_new(o, &t, &err);
	ck_assert_msg(r == 0, "%s", err.text);
	return t;
}

#endif
