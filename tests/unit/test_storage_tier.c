/* test_storage_tier.c - the memory tier alone: what is stored comes back, capacity, order of
 * eviction, damage, puts that turn out void. */
/* run: threads */
#include "tests/unit/flush_rig.h"

#include "daemons/storage/sum.h"
#include "daemons/storage/memory.h"

#include "util/machine.h"
#include "util/mem.h"

#include <check.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define UNIT 65536u

/* An operation of this test: bytes to put or room to get into. */
struct op {
	struct tier_op op;
	unsigned char *bytes;
	int move_code, moved, done, code;
	char tier[16], text[128];
	unsigned char *stored_at; /* where the tier keeps the first byte */
	struct tier *nested;      /* called from inside move, when set */
	void (*nested_fn)(struct tier *t, struct op *o);
};

static int move_in(struct tier_op *top, const struct tier_span *span, unsigned n)
{
	struct op *o = (struct op *)top;
	struct sum_state s;
	size_t at = 0;
	o->moved++;
	sum_begin(&s);
	for (unsigned i = 0; i < n; at += span[i++].bytes)
		sum_add_copy(&s, span[i].at, o->bytes + at, span[i].bytes);
	ck_assert_uint_eq(at, top->bytes);
	top->sum = sum_end(&s);
	if (o->nested_fn)
		o->nested_fn(o->nested, o);
	return o->move_code;
}

static int move_out(struct tier_op *top, const struct tier_span *span, unsigned n)
{
	struct op *o = (struct op *)top;
	size_t at = 0;
	o->moved++;
	o->stored_at = span[0].at;
	for (unsigned i = 0; i < n; at += span[i++].bytes)
		memcpy(o->bytes + at, span[i].at, span[i].bytes);
	ck_assert_uint_eq(at, top->bytes);
	if (o->nested_fn)
		o->nested_fn(o->nested, o);
	return o->move_code;
}

static void done(struct tier_op *top, int code, enum tier_id tier, const char *text)
{
	struct op *o = (struct op *)top;
	o->done++;
	o->code = code;
	snprintf(o->tier, sizeof o->tier, "%s", tier_name(tier));
	snprintf(o->text, sizeof o->text, "%s", text ? text : "");
}

static struct tier_key key_of(unsigned name)
{
	struct tier_key k = {{0}};
	memcpy(k.b, &name, sizeof name);
	return k;
}

static void fill(unsigned char *p, size_t n, unsigned name)
{
	for (size_t i = 0; i < n; i++)
		p[i] = (unsigned char)(name * 131u + i * 7u + (i >> 9));
}

static struct op op_init(unsigned name, size_t bytes)
{
	struct op o = {.op = {.key = key_of(name), .bytes = bytes, .done = done},
	               .bytes = mem_zalloc(bytes)};
	return o;
}

static int put(struct tier *t, unsigned name, size_t bytes)
{
	struct op o = op_init(name, bytes);
	o.op.move = move_in;
	fill(o.bytes, bytes, name);
	t->ops->put(t, &o.op);
	ck_assert_int_eq(o.done, 1);
	free(o.bytes);
	return o.code;
}

/* The code; on 0 the contents have been compared. */
static int get(struct tier *t, unsigned name, size_t bytes)
{
	struct op o = op_init(name, bytes);
	unsigned char *want = mem_alloc(bytes);
	o.op.move = move_out;
	fill(want, bytes, name);
	t->ops->get(t, &o.op);
	ck_assert_int_eq(o.done, 1);
	if (o.code == 0) {
		ck_assert_mem_eq(o.bytes, want, bytes);
		ck_assert_str_eq(o.tier, "memory");
	}
	free(o.bytes);
	free(want);
	return o.code;
}

static uint32_t found;
static void find_done(struct tier_find *f)
{
	for (found = 0; found < f->n && f->where[found] == TIER_MEMORY;)
		found++;
}

static uint32_t lookup(struct tier *t, const unsigned *names, uint32_t n, size_t bytes)
{
	struct tier_key key[16];
	for (uint32_t i = 0; i < n; i++)
		key[i] = key_of(names[i]);
	unsigned char where[16] = {0};
	struct tier_find f = {
		.key = key, .where = where, .n = n, .bytes = bytes, .leading = 1, .done = find_done};
	found = 99;
	t->ops->lookup(t, &f);
	return found;
}

static struct tier *tier_of(uint64_t units)
{
	struct tier *t;
	struct err err = {0};
	ck_assert_int_eq(tier_memory_new(units * UNIT, &t, &err), 0);
	return t;
}

static struct tier_stat stat_of(struct tier *t)
{
	struct tier_stat s;
	t->ops->stat(t, &s);
	return s;
}

TEST_CASE("memory", .timeout_s = 60);

/* Sizes around the unit: what goes in comes out. */
TEST(test_sizes)
{
	static const size_t size[] = {1, 100, 4096, UNIT - 1, UNIT, UNIT + 1, 3 * UNIT, 1474560};
	struct tier *t = tier_of(64);
	for (unsigned i = 0; i < sizeof size / sizeof size[0]; i++) {
		ck_assert_int_eq(get(t, i, size[i]), ERR_NOTFOUND);
		ck_assert_int_eq(put(t, i, size[i]), 0);
	}
	for (unsigned i = 0; i < sizeof size / sizeof size[0]; i++)
		ck_assert_int_eq(get(t, i, size[i]), 0);
	ck_assert_int_eq(get(t, 3, size[3] + 1), ERR_NOTFOUND); /* another size is another block */
	t->ops->destroy(t);
}

/* Each line: puts and gets in order, then who must be there. Room for 4 blocks of one unit. */
TEST(test_lru)
{
	static const struct {
		const char *steps; /* pN put, gN get, rN remove */
		const char *there, *gone;
		unsigned evictions;
	} row[] = {
		{"p1 p2 p3 p4", "1234", "", 0},
		{"p1 p2 p3 p4 p5", "2345", "1", 1},
		{"p1 p2 p3 p4 g1 p5", "1345", "2", 1},
		{"p1 p2 p3 p4 p1 p5", "1345", "2", 1}, /* a put of what is there counts as use */
		{"p1 p2 p3 p4 p5 p6 p7 p8", "5678", "1234", 4},
		{"p1 p2 p3 p4 r2 p5", "1345", "2", 0},
		{"p1 g1 p2 g1 p3 g1 p4 g1 p5 g1 p6", "1456", "23", 2},
	};
	for (unsigned i = 0; i < sizeof row / sizeof row[0]; i++) {
		struct tier *t = tier_of(4);
		for (const char *s = row[i].steps; *s; s += s[2] ? 3 : 2) {
			unsigned name = (unsigned)(s[1] - '0');
			struct tier_key k = key_of(name);
			ck_assert_int_eq(*s == 'p'   ? put(t, name, UNIT)
			                 : *s == 'g' ? get(t, name, UNIT)
			                             : t->ops->remove(t, &k),
			                 0);
		}
		ck_assert_uint_eq(stat_of(t).evictions, row[i].evictions);
		for (const char *s = row[i].there; *s; s++)
			ck_assert_msg(get(t, (unsigned)(*s - '0'), UNIT) == 0, "row %u: %c is not there", i,
			              *s);
		for (const char *s = row[i].gone; *s; s++)
			ck_assert_msg(get(t, (unsigned)(*s - '0'), UNIT) == ERR_NOTFOUND, "row %u: %c is there",
			              i, *s);
		t->ops->destroy(t);
	}
}

/* Never more than the capacity, whatever the sizes; a block larger than all of it is refused and
 * evicts nothing. */
TEST(test_capacity)
{
	struct tier *t = tier_of(10);
	unsigned seed = 7;
	for (unsigned i = 0; i < 500; i++) {
		seed = seed * 1103515245u + 12345u;
		size_t bytes = 1 + (seed >> 8) % (4 * UNIT);
		ck_assert_int_eq(put(t, i, bytes), 0);
		struct tier_stat s = stat_of(t);
		ck_assert_uint_le(s.bytes, s.capacity_bytes);
		ck_assert_int_eq(get(t, i, bytes), 0);
	}
	uint64_t blocks = stat_of(t).blocks;
	ck_assert_int_eq(put(t, 1000, 10 * UNIT + 1), ERR_FULL);
	ck_assert_uint_eq(stat_of(t).blocks, blocks);
	ck_assert_int_eq(put(t, 1001, 10 * UNIT), 0);
	ck_assert_uint_eq(stat_of(t).blocks, 1);
	t->ops->destroy(t);
}

TEST(test_lookup)
{
	static const struct {
		unsigned name[4];
		uint32_t n, want;
	} row[] = {
		{{1, 2, 3, 4}, 4, 3}, {{1}, 1, 1},          {{4, 1, 2, 3}, 4, 0},
		{{1, 4, 2, 3}, 4, 1}, {{1, 1, 1, 1}, 4, 4}, {{0}, 0, 0},
	};
	struct tier *t = tier_of(8);
	for (unsigned i = 1; i <= 3; i++)
		put(t, i, UNIT);
	for (unsigned i = 0; i < sizeof row / sizeof row[0]; i++)
		ck_assert_uint_eq(lookup(t, row[i].name, row[i].n, UNIT), row[i].want);
	ck_assert_uint_eq(lookup(t, row[0].name, 4, UNIT - 1), 0);
	t->ops->destroy(t);
}

/* What a put leaves when the move says no: nothing, and its room is free again. */
TEST(test_put_void)
{
	static const int code[] = {ERR_STALE, ERR_CANCELLED};
	struct tier *t = tier_of(2);
	for (unsigned i = 0; i < 2; i++) {
		struct op o = op_init(1, 2 * UNIT);
		o.op.move = move_in;
		o.move_code = code[i];
		t->ops->put(t, &o.op);
		ck_assert_int_eq(o.code, code[i]);
		ck_assert_str_eq(o.tier, "");
		ck_assert_int_eq(get(t, 1, 2 * UNIT), ERR_NOTFOUND);
		ck_assert_uint_eq(stat_of(t).blocks, 0);
		free(o.bytes);
	}
	ck_assert_int_eq(put(t, 2, 2 * UNIT), 0);
	t->ops->destroy(t);
}

/* A flipped bit anywhere: told as damage, dropped, never moved out; afterwards a miss, and it
 * can be stored again. */
TEST(test_corrupt)
{
	static const size_t at[] = {0, 1, 70000, 3 * UNIT - 1};
	for (unsigned i = 0; i < sizeof at / sizeof at[0]; i++) {
		struct tier *t = tier_of(3); /* units are taken in order, so the bytes lie in a row */
		ck_assert_int_eq(put(t, 5, 3 * UNIT), 0);
		struct op o = op_init(5, 3 * UNIT);
		o.op.move = move_out;
		t->ops->get(t, &o.op);
		ck_assert_int_eq(o.code, 0);
		struct tier_key k = key_of(5);
		if (i % 2 == 0) /* a tier below has it: it is not lost */
			t->ops->stored(t, &k, TIER_BELOW_HAS);
		o.stored_at[at[i]] ^= 1;
		o.moved = o.done = 0;
		t->ops->get(t, &o.op);
		ck_assert_int_eq(o.done, 1);
		ck_assert_int_eq(o.code, ERR_CORRUPT);
		ck_assert_int_eq(o.moved, 0);
		ck_assert_ptr_nonnull(strstr(o.text, "checksum"));
		ck_assert_uint_eq(stat_of(t).corrupt, 1);
		ck_assert_uint_eq(stat_of(t).lost, i % 2);
		ck_assert_uint_eq(stat_of(t).blocks, 0);
		ck_assert_int_eq(get(t, 5, 3 * UNIT), ERR_NOTFOUND);
		ck_assert_int_eq(put(t, 5, 3 * UNIT), 0);
		ck_assert_int_eq(get(t, 5, 3 * UNIT), 0);
		free(o.bytes);
		t->ops->destroy(t);
	}
}

static void while_reading(struct tier *t, struct op *o)
{
	(void)o;
	/* the only room is being read: not evicted */
	ck_assert_int_eq(put(t, 2, UNIT), ERR_FULL);
	ck_assert_uint_eq(tier_flushed(t, NULL), 1);
	ck_assert_int_eq(get(t, 1, UNIT), ERR_NOTFOUND); /* dropped already */
	/* but its room is the reader's until it ends */
	ck_assert_int_eq(put(t, 2, UNIT), ERR_FULL);
}

TEST(test_pinned)
{
	struct tier *t = tier_of(1);
	put(t, 1, UNIT);
	struct op o = op_init(1, UNIT);
	o.op.move = move_out;
	o.nested = t;
	o.nested_fn = while_reading;
	t->ops->get(t, &o.op);
	ck_assert_int_eq(o.code, 0);
	ck_assert_int_eq(put(t, 2, UNIT), 0);
	free(o.bytes);
	t->ops->destroy(t);
}

static void while_putting(struct tier *t, struct op *o)
{
	(void)o;
	ck_assert_int_eq(get(t, 1, UNIT), ERR_NOTFOUND); /* data, then index */
	ck_assert_int_eq(put(t, 1, UNIT), 0);            /* another worker is faster */
}

/* Two puts of one key: stored once, both acknowledged; the second one, when the first is there,
 * does not copy. */
TEST(test_two_puts)
{
	struct tier *t = tier_of(4);
	struct op o = op_init(1, UNIT);
	o.op.move = move_in;
	fill(o.bytes, UNIT, 1);
	o.nested = t;
	o.nested_fn = while_putting;
	t->ops->put(t, &o.op);
	ck_assert_int_eq(o.code, 0);
	ck_assert_uint_eq(stat_of(t).blocks, 1);
	ck_assert_int_eq(get(t, 1, UNIT), 0);
	o.nested_fn = NULL;
	o.moved = 0;
	t->ops->put(t, &o.op);
	ck_assert_int_eq(o.code, 0);
	ck_assert_str_eq(o.tier, "memory");
	ck_assert_int_eq(o.moved, 0);
	free(o.bytes);
	ck_assert_uint_eq(tier_flushed(t, NULL), 1);
	ck_assert_int_eq(put(t, 9, 4 * UNIT), 0); /* every unit came back */
	t->ops->destroy(t);
}

/* --- another size -------------------------------------------------------- */

static void resize(struct tier *t, uint64_t units)
{
	struct err err = {0};
	ck_assert_msg(t->ops->resize(t, units * UNIT, &err) == 0, "%s", err.text);
	ck_assert_uint_eq(stat_of(t).capacity_bytes, units * UNIT);
}

static size_t resident_kb(void)
{
	size_t pages = 0, rss = 0;
	FILE *f = fopen("/proc/self/statm", "r");
	ck_assert_int_eq(fscanf(f, "%zu %zu", &pages, &rss), 2);
	fclose(f);
	return rss * 4;
}

/* Smaller: the oldest go, and the memory with them; larger: there is room again. Sizes and
 * blocks of every kind, again and again. */
TEST(test_resize)
{
	struct tier *t = tier_of(64);
	struct err err = {0};
	for (unsigned i = 0; i < 64; i++)
		ck_assert_int_eq(put(t, i, UNIT), 0);
	size_t full = resident_kb();
	resize(t, 8);
	ck_assert_uint_eq(stat_of(t).blocks, 8);
	for (unsigned i = 0; i < 64; i++)
		ck_assert_int_eq(get(t, i, UNIT), i < 56 ? ERR_NOTFOUND : 0);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
	ck_assert_uint_lt(resident_kb() + 2048, full);
#else
	(void)full;
#endif
	ck_assert_int_eq(put(t, 100, 9 * UNIT), ERR_FULL);
	resize(t, 200);
	for (unsigned i = 0; i < 192; i++)
		ck_assert_int_eq(put(t, 200 + i, UNIT), 0);
	ck_assert_int_eq(get(t, 63, UNIT), 0);
	unsigned seed = 5;
	for (unsigned i = 0; i < 40; i++) {
		seed = seed * 1103515245u + 12345u;
		resize(t, 1 + (seed >> 8) % 300);
		put(t, i, 1 + (seed >> 4) % (5 * UNIT));
		ck_assert_uint_le(stat_of(t).bytes, stat_of(t).capacity_bytes);
	}
	ck_assert_int_eq(t->ops->resize(t, UNIT - 1, &err), ERR_INVALID);
	ck_assert_ptr_nonnull(strstr(err.text, "units"));
	ck_assert_int_eq(t->ops->resize(t, UINT64_MAX, &err), ERR_INVALID);
	t->ops->destroy(t);
}

static void shrink_while_reading(struct tier *t, struct op *o)
{
	(void)o;
	resize(t, 1);
	ck_assert_int_eq(get(t, 2, UNIT), ERR_NOTFOUND);
	ck_assert_int_eq(put(t, 3, 2 * UNIT), ERR_FULL);
}

/* What is being read stays whole, and gives its room back when the reader ends. */
TEST(test_shrink_pinned)
{
	struct tier *t = tier_of(4);
	put(t, 1, 3 * UNIT);
	put(t, 2, UNIT);
	struct op o = op_init(1, 3 * UNIT);
	o.op.move = move_out;
	o.nested = t;
	o.nested_fn = shrink_while_reading;
	t->ops->get(t, &o.op);
	ck_assert_int_eq(o.code, 0);
	ck_assert_uint_eq(stat_of(t).bytes, 0);
	ck_assert_int_eq(put(t, 4, UNIT), 0);
	ck_assert_int_eq(get(t, 4, UNIT), 0);
	ck_assert_int_eq(put(t, 5, UNIT), 0);
	ck_assert_int_eq(get(t, 4, UNIT), ERR_NOTFOUND); /* there is room for one */
	free(o.bytes);
	t->ops->destroy(t);
}

static void shrink_while_putting(struct tier *t, struct op *o)
{
	(void)o;
	resize(t, 1);
}

/* A put that was under way when the tier became smaller than its block: it ends well, and
 * nothing beyond the capacity stays. */
TEST(test_shrink_filling)
{
	struct tier *t = tier_of(4);
	struct op o = op_init(1, 3 * UNIT);
	o.op.move = move_in;
	fill(o.bytes, 3 * UNIT, 1);
	o.nested = t;
	o.nested_fn = shrink_while_putting;
	t->ops->put(t, &o.op);
	ck_assert_int_eq(o.code, 0);
	ck_assert_uint_eq(stat_of(t).bytes, 0);
	ck_assert_int_eq(put(t, 2, UNIT), 0);
	ck_assert_int_eq(get(t, 2, UNIT), 0);
	free(o.bytes);
	t->ops->destroy(t);
}

/* --- what is due --------------------------------------------------------- */

/* The names that are due now, in order, as text. */
static const char *due(struct tier *t, uint32_t max)
{
	static char text[128];
	struct tier_due d[32];
	uint32_t n = t->ops->due(t, max, d);
	size_t at = 0;
	text[0] = 0;
	for (uint32_t i = 0; i < n; i++) {
		unsigned name;
		memcpy(&name, d[i].key.b, sizeof name);
		at += (size_t)snprintf(text + at, sizeof text - at, "%s%u", i ? " " : "", name);
		ck_assert_uint_eq(d[i].bytes, UNIT);
	}
	return text;
}

static void stored(struct tier *t, unsigned name, enum tier_below ok)
{
	struct tier_key k = key_of(name);
	t->ops->stored(t, &k, ok);
}

/* Ten units, four are to be free or stored: the oldest are named, once; the stored ones are the
 * first to go, unless they are used again. */
TEST(test_due_offload)
{
	struct tier *t = tier_of(10);
	t->ops->policy(t, TIER_OFFLOAD, 0, 40);
	for (unsigned i = 1; i <= 6; i++)
		put(t, i, UNIT);
	ck_assert_str_eq(due(t, 32), "");
	put(t, 7, UNIT);
	ck_assert_str_eq(due(t, 32), "1");
	put(t, 8, UNIT);
	put(t, 9, UNIT);
	ck_assert_str_eq(due(t, 1), "2");
	ck_assert_str_eq(due(t, 32), "3");
	ck_assert_str_eq(due(t, 32), "");
	stored(t, 1, TIER_BELOW_HAS);
	stored(t, 2, TIER_BELOW_LATER); /* not now: named again */
	stored(t, 3, TIER_BELOW_HAS);
	ck_assert_str_eq(due(t, 32), "2");
	stored(t, 2, TIER_BELOW_HAS);
	get(t, 1, UNIT); /* stored, and used: no longer next */
	put(t, 10, UNIT);
	ck_assert_str_eq(due(t, 32), "4 5"); /* 2 and 3 are stored, 10 took the free unit */
	put(t, 11, UNIT);
	put(t, 12, UNIT);
	ck_assert_int_eq(get(t, 2, UNIT), ERR_NOTFOUND);
	ck_assert_int_eq(get(t, 3, UNIT), ERR_NOTFOUND);
	ck_assert_int_eq(get(t, 1, UNIT), 0);
	ck_assert_uint_eq(stat_of(t).lost, 0);
	put(t, 13, UNIT); /* nothing is ready: the oldest goes */
	ck_assert_uint_eq(stat_of(t).lost, 1);
	ck_assert_int_eq(get(t, 4, UNIT), ERR_NOTFOUND);
	stored(t, 4, TIER_BELOW_HAS); /* of one that is gone: nothing */
	for (unsigned i = 0; i < 3; i++) {
		/* one that nobody takes is not offered for ever */
		stored(t, 5, TIER_BELOW_REFUSED);
		ck_assert_str_eq(due(t, 1), i < 2 ? "5" : "6");
	}
	t->ops->policy(t, TIER_RECYCLE, 0, 40);
	ck_assert_str_eq(due(t, 32), "");
	t->ops->destroy(t);
}

/* A copy below that has gone: the block is no longer next to be evicted for nothing, is named
 * again before it is, and counts as lost if it goes all the same. */
TEST(test_gone_below)
{
	struct tier *t = tier_of(10);
	t->ops->policy(t, TIER_OFFLOAD, 0, 40);
	for (unsigned i = 1; i <= 10; i++)
		put(t, i, UNIT);
	ck_assert_str_eq(due(t, 32), "1 2 3 4");
	for (unsigned i = 1; i <= 4; i++)
		stored(t, i, TIER_BELOW_HAS);
	ck_assert_str_eq(due(t, 32), "");
	stored(t, 1, TIER_BELOW_GONE);
	stored(t, 9, TIER_BELOW_GONE); /* it was not there: nothing */
	ck_assert_str_eq(due(t, 32), "1");
	put(t, 11, UNIT); /* 2 goes, which is kept below */
	ck_assert_uint_eq(stat_of(t).lost, 0);
	ck_assert_int_eq(get(t, 2, UNIT), ERR_NOTFOUND);
	t->ops->stored(t, NULL, TIER_BELOW_GONE);
	for (unsigned i = 12; i <= 14; i++) /* 1, 3 and 4, in their old order */
		put(t, i, UNIT);
	ck_assert_uint_eq(stat_of(t).lost, 3);
	ck_assert_int_eq(get(t, 5, UNIT), 0);
	ck_assert_int_eq(get(t, 4, UNIT), ERR_NOTFOUND);
	t->ops->destroy(t);
}

TEST(test_due_write_through)
{
	struct tier *t = tier_of(10);
	t->ops->policy(t, TIER_WRITE_THROUGH, 2, 0);
	put(t, 1, UNIT);
	put(t, 2, UNIT);
	put(t, 1, UNIT); /* a put is no hit */
	get(t, 1, UNIT);
	struct op o = op_init(1, UNIT); /* nor is a copy between tiers */
	o.op.move = move_out;
	o.op.aside = 1;
	t->ops->get(t, &o.op);
	free(o.bytes);
	ck_assert_uint_eq(stat_of(t).gets, 1);
	ck_assert_str_eq(due(t, 32), "");
	get(t, 2, UNIT);
	get(t, 2, UNIT);
	get(t, 1, UNIT);
	get(t, 1, UNIT);
	ck_assert_str_eq(due(t, 32), "2 1");
	get(t, 1, UNIT);
	ck_assert_str_eq(due(t, 32), "");
	stored(t, 1, TIER_BELOW_LATER);
	stored(t, 2, TIER_BELOW_HAS);
	get(t, 2, UNIT);
	ck_assert_str_eq(due(t, 32), "1");
	t->ops->policy(t, TIER_WRITE_THROUGH, 0, 0);
	put(t, 3, UNIT);
	ck_assert_str_eq(due(t, 32), "3");
	t->ops->destroy(t);
}

struct racer {
	struct tier *t;
	unsigned seed;
};

static void *race(void *arg)
{
	struct racer *r = arg;
	for (unsigned i = 0; i < 3000; i++) {
		r->seed = r->seed * 1103515245u + 12345u;
		unsigned name = (r->seed >> 8) % 24, what = (r->seed >> 20) % 8;
		size_t bytes = 1000 + name * 5000;
		if (what < 3)
			put(r->t, name, bytes);
		else if (what < 7)
			get(r->t, name, bytes); /* compares what it gets */
		else
			r->t->ops->remove(r->t, &(struct tier_key){.b = {(unsigned char)name}});
	}
	return NULL;
}

TEST(test_threads)
{
	struct racer r[4];
	pthread_t th[4];
	struct tier *t = tier_of(16);
	for (unsigned i = 0; i < 4; i++) {
		r[i] = (struct racer){t, i + 1};
		pthread_create(&th[i], NULL, race, &r[i]);
	}
	for (unsigned i = 0; i < 4; i++)
		pthread_join(th[i], NULL);
	ck_assert_uint_eq(stat_of(t).corrupt, 0);
	t->ops->destroy(t); /* checks that every unit is back */
}

static void see_fork(struct tier *t, struct op *o)
{
	(void)t;
	unsigned char *page = o->stored_at - (uintptr_t)o->stored_at % 4096, there;
	int status;
	ck_assert_int_eq(mincore(page, 4096, &there), 0);
	pid_t pid = fork();
	if (pid == 0)
		_exit(mincore(page, 4096, &there) != 0 && errno == ENOMEM ? 0 : 1);
	ck_assert_int_eq(waitpid(pid, &status, 0), pid);
	ck_assert_int_eq(status, 0);
}

/* A child has none of it, so what is written meanwhile is not there twice; after a growth
 * neither. */
TEST(test_fork)
{
	struct tier *t = tier_of(1);
	for (unsigned i = 0; i < 2; i++) {
		struct op o = op_init(i, UNIT);
		o.op.move = move_out;
		o.nested_fn = see_fork;
		ck_assert_int_eq(put(t, i, UNIT), 0);
		t->ops->get(t, &o.op);
		ck_assert_int_eq(o.code, 0);
		free(o.bytes);
		resize(t, 2);
	}
	t->ops->destroy(t);
}

/* A capacity is memory that is there, from the start on and after each growth; what is not there
 * is an error that names both sizes, and changes nothing. */
TEST(test_reserved)
{
	enum { MIB_UNITS = 16 };
	struct err err = {0};
	struct tier *t, *none = NULL;
	uint64_t more = machine_memory("") + ((uint64_t)1 << 30);
	size_t before = resident_kb() / 1024;
	ck_assert_int_eq(tier_memory_new(64 * MIB_UNITS * UNIT, &t, &err), 0);
	ck_assert_uint_ge(resident_kb() / 1024, before + 64);
	resize(t, 32 * MIB_UNITS);
	ck_assert_uint_lt(resident_kb() / 1024, before + 48);
	resize(t, 96 * MIB_UNITS); /* what it gave back, and a new range */
	ck_assert_uint_ge(resident_kb() / 1024, before + 96);
	ck_assert_int_eq(t->ops->resize(t, more, &err), ERR_NOMEM);
	ck_assert_msg(strstr(err.text, "needs") && strstr(err.text, "are available") &&
	                  strstr(err.text, "memory_mb"),
	              "%s", err.text);
	ck_assert_uint_eq(stat_of(t).capacity_bytes, 96 * MIB_UNITS * UNIT);
	ck_assert_int_eq(put(t, 1, UNIT), 0);
	t->ops->destroy(t);
	ck_assert_int_eq(tier_memory_new(more, &none, &err), ERR_NOMEM);
	ck_assert_ptr_null(none);
}
