/* test_storage_disk.c - the disk tier: what is stored comes back, also from the next process;
 * order of eviction, capacity, several sizes, pins, races. */
#include "tests/unit/disk_rig.h"

#include "daemons/storage/disk_index.h"

#define SLOT (256 * KIB) /* four of them are the smallest capacity */

static const char *const engines[] = {"auto", "threads"};

TEST_CASE("disk", .timeout_s = 300, .setup = rig_folder_new, .teardown = rig_folder_delete);

/* Sizes around the unit of 4 KiB, with both ways of reading and writing; then the same from a
 * new tier on the same folder. */
TEST_LOOP(test_sizes, 0, 2)
{
	static const size_t size[] = {1,     100,       4095,    4096,     4097,
	                              65536, 192 * KIB, 1474560, 20 * MIB, 64 * MIB};
	struct tier_disk_opts o = rig_opts(256 * MIB);
	o.io = engines[_i];
	struct tier *t = rig_open(&o);
	for (unsigned i = 0; i < sizeof size / sizeof size[0]; i++) {
		ck_assert_int_eq(rig_get(t, i, size[i]), ERR_NOTFOUND);
		ck_assert_int_eq(rig_put(t, i, size[i]), 0);
	}
	for (int round = 0; round < 2; round++) {
		for (unsigned i = 0; i < sizeof size / sizeof size[0]; i++)
			ck_assert_int_eq(rig_get(t, i, size[i]), 0);
		/* another size is another block */
		ck_assert_int_eq(rig_get(t, 3, size[3] + 1), ERR_NOTFOUND);
		ck_assert_uint_eq(rig_stat(t).blocks, sizeof size / sizeof size[0]);
		t->ops->destroy(t);
		t = rig_open(&o);
	}
	ck_assert_int_eq(rig_put(t, 99, 64 * MIB + 1), ERR_INVALID);
	t->ops->destroy(t);
}

/* A slot that becomes free elsewhere waits until the segment is full: what is put together lies
 * together. */
TEST(test_one_segment_at_a_time)
{
	enum { SLOTS = 3 };
	static struct disk_index x;
	uint32_t first[SLOTS];
	disk_index_init(&x);
	for (uint32_t i = 0; i < 2; i++)
		disk_index_add_segment(&x, disk_segment_new(i, DISK_SLOT_UNIT, SLOTS));
	struct disk_class *c = disk_index_class(&x, DISK_SLOT_UNIT);
	for (uint32_t i = 0; i < SLOTS; i++)
		first[i] = disk_index_take(&x, c);
	uint32_t next = disk_index_take(&x, c);
	const struct disk_segment *full = disk_segment_of(&x, first[0]), *g = disk_segment_of(&x, next);
	ck_assert_ptr_ne(full, g);
	disk_index_free(&x, first[1]);
	for (uint32_t i = 1; i < SLOTS; i++)
		ck_assert_ptr_eq(disk_segment_of(&x, disk_index_take(&x, c)), g);
	ck_assert_uint_eq(disk_index_take(&x, c), first[1]);
	ck_assert_uint_eq(disk_index_take(&x, c), DISK_NONE);
	disk_index_fini(&x);
}

/* Each line: puts and gets in order, then who must be there. Room for 4 blocks. In the second
 * round each step is another process's. */
TEST_LOOP(test_lru, 0, 2)
{
	static const struct {
		const char *steps; /* pN put, gN get, rN remove */
		const char *there, *gone;
	} row[] = {
		{"p1 p2 p3 p4", "1234", ""},
		{"p1 p2 p3 p4 p5", "2345", "1"},
		{"p1 p2 p3 p4 g1 p5", "1345", "2"},
		{"p1 p2 p3 p4 p1 p5", "1345", "2"}, /* a put of what is there counts as use */
		{"p1 p2 p3 p4 p5 p6 p7 p8", "5678", "1234"},
		{"p1 p2 p3 p4 r2 p5", "1345", "2"},
		{"p1 g1 p2 g1 p3 g1 p4 g1 p5 g1 p6", "1456", "23"},
	};
	struct tier_disk_opts o = rig_opts(4 * SLOT);
	for (unsigned i = 0; i < sizeof row / sizeof row[0]; i++) {
		struct tier *t = rig_open(&o);
		tier_flushed(t, NULL);
		for (const char *s = row[i].steps; *s; s += s[2] ? 3 : 2) {
			unsigned name = (unsigned)(s[1] - '0');
			struct tier_key k = rig_key(name);
			ck_assert_int_eq(*s == 'p'   ? rig_put(t, name, SLOT)
			                 : *s == 'g' ? rig_get(t, name, SLOT)
			                             : t->ops->remove(t, &k),
			                 0);
			if (_i) {
				t->ops->destroy(t);
				t = rig_open(&o);
			}
		}
		for (const char *s = row[i].there; *s; s++)
			ck_assert_msg(rig_has(t, (unsigned)(*s - '0'), SLOT) &&
			                  rig_get(t, (unsigned)(*s - '0'), SLOT) == 0,
			              "row %u: %c is not there", i, *s);
		for (const char *s = row[i].gone; *s; s++)
			ck_assert_msg(!rig_has(t, (unsigned)(*s - '0'), SLOT) &&
			                  rig_get(t, (unsigned)(*s - '0'), SLOT) == ERR_NOTFOUND,
			              "row %u: %c is there", i, *s);
		t->ops->destroy(t);
	}
}

/* A copy between tiers is no use: it is neither counted nor does it keep the block. */
TEST(test_aside)
{
	struct tier_disk_opts o = rig_opts(4 * SLOT);
	struct tier *t = rig_open(&o);
	for (unsigned i = 1; i <= 4; i++)
		ck_assert_int_eq(rig_put(t, i, SLOT), 0);
	for (unsigned name = 1; name <= 9; name += 8) {
		struct rig_op *g = rig_op(name, SLOT, 0);
		g->op.aside = 1;
		t->ops->get(t, &g->op);
		ck_assert_int_eq(rig_get_end(g), name == 1 ? 0 : ERR_NOTFOUND);
	}
	struct tier_stat s = rig_stat(t);
	ck_assert_uint_eq(s.gets + s.hits + s.misses, 0);
	ck_assert_uint_eq(s.read_bytes, SLOT);
	ck_assert_int_eq(rig_put(t, 5, SLOT), 0);
	ck_assert(!rig_has(t, 1, SLOT));
	ck_assert(rig_has(t, 2, SLOT));
	t->ops->destroy(t);
}

static uint64_t files_bytes(void)
{
	char cmd[256], line[64] = "0";
	snprintf(cmd, sizeof cmd, "cat '%s'/segment-* 2>/dev/null | wc -c", rig_folder);
	FILE *f = popen(cmd, "r");
	ck_assert_ptr_nonnull(fgets(line, sizeof line, f));
	pclose(f);
	return strtoull(line, NULL, 10);
}

/* Sizes that follow each other take the room from each other; never more than the capacity lies
 * on the disk; a block larger than all of it is refused. */
TEST(test_capacity)
{
	static const size_t size[] = {64 * KIB, 256 * KIB, 1 * MIB, 4 * KIB};
	struct tier_disk_opts o = rig_opts(4 * MIB);
	struct tier *t = rig_open(&o);
	for (unsigned i = 0; i < 120; i++) {
		size_t bytes = size[i / 12 % 4];
		ck_assert_int_eq(rig_put(t, i, bytes), 0);
		ck_assert_int_eq(rig_get(t, i, bytes), 0);
		ck_assert_uint_le(rig_stat(t).bytes, 4 * MIB);
		if (i % 12 == 11)
			ck_assert_uint_le(files_bytes(), 4 * MIB);
	}
	ck_assert_int_eq(rig_put(t, 1000, 4 * MIB + 1), ERR_FULL);
	ck_assert_int_eq(rig_put(t, 1001, 4 * MIB), 0);
	ck_assert_uint_eq(rig_stat(t).blocks, 1);
	t->ops->destroy(t);
}

/* What is hot in one size survives a stream of another: whole segments go by their last use. */
TEST(test_sizes_share)
{
	struct tier_disk_opts o = rig_opts(8 * MIB);
	struct tier *t = rig_open(&o);
	for (unsigned i = 0; i < 16; i++)
		ck_assert_int_eq(rig_put(t, i, 256 * KIB), 0);
	for (unsigned i = 100; i < 150; i++) {
		ck_assert_int_eq(rig_put(t, i, 512 * KIB), 0);
		for (unsigned k = 0; k < 4; k++)
			ck_assert_int_eq(rig_get(t, k, 256 * KIB), 0);
	}
	ck_assert_int_eq(rig_get(t, 149, 512 * KIB), 0);
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
	struct tier_disk_opts o = rig_opts(8 * SLOT);
	struct tier *t = rig_open(&o);
	for (unsigned i = 1; i <= 3; i++)
		ck_assert_int_eq(rig_put(t, i, SLOT), 0);
	for (unsigned i = 0; i < sizeof row / sizeof row[0]; i++)
		ck_assert_uint_eq(rig_lookup(t, row[i].name, row[i].n, SLOT), row[i].want);
	ck_assert_uint_eq(rig_lookup(t, row[0].name, 4, SLOT - 1), 0);
	t->ops->destroy(t);
}

/* What a put leaves when the move says no: nothing, and its room is free again. */
TEST(test_put_void)
{
	static const int code[] = {ERR_STALE, ERR_CANCELLED};
	struct tier_disk_opts o = rig_opts(4 * SLOT);
	struct tier *t = rig_open(&o);
	for (unsigned i = 0; i < 10; i++) {
		struct rig_op *p = rig_op(1, 4 * SLOT, 1);
		p->move_code = code[i % 2];
		t->ops->put(t, &p->op);
		ck_assert_int_eq(rig_wait(p), code[i % 2]);
		ck_assert_int_eq(p->tier, TIER_NONE);
		rig_free(p);
		ck_assert_int_eq(rig_get(t, 1, 4 * SLOT), ERR_NOTFOUND);
		ck_assert_uint_eq(rig_stat(t).blocks, 0);
	}
	ck_assert_int_eq(rig_put(t, 2, 4 * SLOT), 0);
	t->ops->destroy(t);
}

static void while_reading(struct rig_op *o)
{
	struct tier *t = o->arg;
	ck_assert_uint_eq(tier_flushed(t, NULL), 1);
	ck_assert(!rig_has(t, o->name, SLOT)); /* dropped already, while its bytes are being copied */
}

/* Flush and remove are seen at once, and by the next process. */
TEST(test_flush_remove)
{
	struct tier_disk_opts o = rig_opts(16 * SLOT);
	struct tier *t = rig_open(&o);
	struct tier_key k2 = rig_key(2), k9 = rig_key(9);
	for (unsigned i = 0; i < 16; i++)
		ck_assert_int_eq(rig_put(t, i, SLOT), 0);
	ck_assert_int_eq(t->ops->remove(t, &k2), 0);
	ck_assert_int_eq(t->ops->remove(t, &k2), ERR_NOTFOUND);
	ck_assert(!rig_has(t, 2, SLOT));
	ck_assert_int_eq(rig_put(t, 2, SLOT), 0); /* and can be stored again */
	ck_assert(rig_has(t, 2, SLOT));
	ck_assert_uint_eq(tier_flushed(t, NULL), 16);
	ck_assert_int_eq(rig_get(t, 3, SLOT), ERR_NOTFOUND);
	ck_assert_int_eq(t->ops->remove(t, &k9), ERR_NOTFOUND);
	ck_assert_int_eq(rig_put(t, 4, SLOT), 0);
	ck_assert_uint_eq(rig_stat(t).blocks, 1);
	t->ops->destroy(t);
	t = rig_open(&o);
	ck_assert_uint_eq(rig_stat(t).blocks, 1);
	ck_assert_int_eq(rig_get(t, 4, SLOT), 0);
	struct rig_op *g = rig_op(4, SLOT, 0);
	g->in_move = while_reading;
	g->arg = t;
	t->ops->get(t, &g->op);
	ck_assert_int_eq(rig_get_end(g), 0);
	for (unsigned i = 20; i < 36; i++) /* every slot came back */
		ck_assert_int_eq(rig_put(t, i, SLOT), 0);
	ck_assert_uint_eq(rig_stat(t).blocks, 16);
	t->ops->destroy(t);
}

/* Whoever asks while the committer makes a remove last: it is gone before, during and after, and
 * cannot be removed twice. */
TEST(test_removed_while_committed)
{
	struct tier_disk_opts o = rig_opts(16 * SLOT);
	struct tier *t = rig_open(&o);
	struct tier_key k2 = rig_key(2);
	for (unsigned round = 0; round < 150; round++) {
		/* a put whose look the committer has overtaken would be known, and not there */
		ck_assert_int_eq(rig_put(t, 2, SLOT), 0);
		ck_assert_msg(t->ops->remove(t, &k2) == 0, "round %u: what was just put is not there",
		              round);
		for (unsigned look = 0; look < 20; look++) {
			ck_assert_msg(!rig_has(t, 2, SLOT), "round %u: there again at look %u", round, look);
			ck_assert_msg(t->ops->remove(t, &k2) == ERR_NOTFOUND,
			              "round %u: removed twice, at look %u", round, look);
		}
	}
	t->ops->destroy(t);
}

/* Many puts of one key at a time: one block, all are told 0. */
TEST(test_same_key)
{
	struct rig_op *p[32];
	struct tier_disk_opts o = rig_opts(64 * SLOT);
	struct tier *t = rig_open(&o);
	for (unsigned round = 0; round < 4; round++) {
		for (unsigned i = 0; i < 32; i++)
			p[i] = rig_put_begin(t, round, SLOT);
		for (unsigned i = 0; i < 32; i++) {
			ck_assert_msg(rig_wait(p[i]) == 0, "%u: %s", i, p[i]->text);
			ck_assert_int_eq(p[i]->tier, TIER_DISK);
			rig_free(p[i]);
		}
		struct tier_stat s = rig_stat(t);
		ck_assert_uint_eq(s.blocks, round + 1);
		ck_assert_uint_eq(s.known, 31 * (round + 1));
	}
	for (unsigned i = 100; i < 164; i++) /* no slot was lost */
		ck_assert_int_eq(rig_put(t, i, SLOT), 0);
	ck_assert_uint_eq(rig_stat(t).blocks, 64);
	ck_assert_uint_eq(rig_stat(t).evictions, 4 + 64 - 64);
	t->ops->destroy(t);
}

/* The same key with another size: the newer one counts. */
TEST(test_other_size)
{
	struct tier_disk_opts o = rig_opts(16 * SLOT);
	struct tier *t = rig_open(&o);
	ck_assert_int_eq(rig_put(t, 1, SLOT), 0);
	ck_assert_int_eq(rig_put(t, 1, SLOT / 2), 0);
	ck_assert_int_eq(rig_get(t, 1, SLOT), ERR_NOTFOUND);
	ck_assert_int_eq(rig_get(t, 1, SLOT / 2), 0);
	ck_assert_uint_eq(rig_stat(t).blocks, 1);
	t->ops->destroy(t);
}

static void wait_bytes(struct tier *t, uint64_t most)
{
	for (int i = 0; i < RIG_WAIT_S * 100 && (rig_stat(t).bytes > most || files_bytes() > most); i++)
		usleep(10000);
	ck_assert_uint_le(rig_stat(t).bytes, most);
	ck_assert_uint_le(files_bytes(), most);
}

/* A smaller capacity gives files back, also one smaller than a segment; a larger one is used;
 * the most recent blocks stay. */
TEST(test_resize)
{
	struct err err = {0};
	struct tier_disk_opts o = rig_opts(32 * MIB);
	struct tier *t = rig_open(&o);
	for (unsigned i = 0; i < 128; i++)
		ck_assert_int_eq(rig_put(t, i, SLOT), 0);
	ck_assert_uint_eq(rig_stat(t).blocks, 128);
	ck_assert_int_eq(t->ops->resize(t, 16 * MIB, &err), 0);
	ck_assert_uint_eq(rig_stat(t).capacity_bytes, 16 * MIB);
	wait_bytes(t, 16 * MIB);
	ck_assert_uint_ge(rig_stat(t).blocks, 64 - 16); /* whole segments go */
	for (unsigned i = 128 - 40; i < 128; i++)
		ck_assert_int_eq(rig_get(t, i, SLOT), 0);
	for (unsigned i = 200; i < 264; i++)
		ck_assert_int_eq(rig_put(t, i, SLOT), 0);
	wait_bytes(t, 16 * MIB);
	ck_assert_int_eq(t->ops->resize(t, 2 * MIB, &err), 0);
	wait_bytes(t, 2 * MIB);
	ck_assert_int_eq(rig_put(t, 300, SLOT), 0);
	ck_assert_int_eq(rig_get(t, 300, SLOT), 0);
	ck_assert_int_eq(t->ops->resize(t, 64 * MIB, &err), 0);
	for (unsigned i = 400; i < 640; i++)
		ck_assert_int_eq(rig_put(t, i, SLOT), 0);
	ck_assert_uint_ge(rig_stat(t).blocks, 240);
	ck_assert_int_eq(t->ops->resize(t, 1000, &err), ERR_INVALID);
	t->ops->destroy(t);
	o.capacity_bytes = 8 * MIB; /* the same by a restart, and with another segment size */
	o.segment_bytes = MIB;
	t = rig_open(&o);
	wait_bytes(t, 8 * MIB);
	ck_assert_int_eq(rig_put(t, 1, 3 * MIB), 0);
	t->ops->destroy(t);
}

struct racer {
	struct tier *t;
	unsigned seed, n;
};

static void *race(void *arg)
{
	struct racer *r = arg;
	for (unsigned i = 0; i < r->n; i++) {
		r->seed = r->seed * 1103515245u + 12345u;
		unsigned name = (r->seed >> 8) % 40, what = (r->seed >> 20) % 16;
		size_t bytes = 1000 + name % 8 * 40000;
		struct tier_key k = rig_key(name);
		if (what < 6) {
			int code = rig_put(r->t, name, bytes);
			ck_assert_msg(code == 0 || code == ERR_FULL, "put: %s", err_name(code));
		} else if (what < 13) {
			int code = rig_get(r->t, name, bytes); /* compares what it gets */
			ck_assert_msg(code == 0 || code == ERR_NOTFOUND, "get: %s", err_name(code));
		} else if (what < 14) {
			r->t->ops->remove(r->t, &k);
		} else if (what < 15) {
			rig_has(r->t, name, bytes);
		} else if (i % 64 == 0) {
			tier_flushed(r->t, NULL);
		}
	}
	return NULL;
}

/* Reads, writes, evictions, removes and flushes at once, in room for a few blocks: nothing
 * wrong, nothing counted as damage, every slot comes back. */
TEST_LOOP(test_threads, 0, 4)
{
	struct racer r[8];
	pthread_t th[8];
	struct tier_disk_opts o = rig_opts(2 * MIB);
	o.io = engines[_i % 2];
	o.threads = _i < 2 ? 1 : 3;
	o.depth = _i < 2 ? 4 : 16;
	o.direct = _i != 3;
	struct tier *t = rig_open(&o);
	for (unsigned i = 0; i < 8; i++) {
		r[i] = (struct racer){t, i + 1, 250};
		pthread_create(&th[i], NULL, race, &r[i]);
	}
	for (unsigned i = 0; i < 8; i++)
		pthread_join(th[i], NULL);
	struct tier_stat s = rig_stat(t);
	ck_assert_uint_eq(s.corrupt, 0);
	ck_assert_uint_eq(s.errors, 0);
	ck_assert_uint_eq(s.queued, 0);
	ck_assert_uint_eq(s.oldest_us, 0);
	tier_flushed(t, NULL);
	for (unsigned i = 0; i < 8; i++)
		ck_assert_int_eq(rig_put(t, 100 + i, 256 * KIB), 0);
	ck_assert_uint_eq(rig_stat(t).blocks, 8);
	t->ops->destroy(t);
}

/* A tier that ends with operations in its queues ends each of them, once. */
TEST_LOOP(test_destroy_busy, 0, 2)
{
	enum { N = 200 };
	struct rig_op *p[N];
	struct tier_disk_opts o = rig_opts(64 * MIB);
	o.io = engines[_i];
	struct tier *t = rig_open(&o);
	unsigned stored = 0;
	for (unsigned i = 0; i < N; i++)
		p[i] = rig_op(i / 2, SLOT, i % 2 == 0);
	for (unsigned i = 0; i < N; i++)
		(i % 2 == 0 ? t->ops->put : t->ops->get)(t, &p[i]->op);
	t->ops->destroy(t); /* most have not begun, unless this thread was kept waiting */
	t = rig_open(&o);
	for (unsigned i = 0; i < N; i++) {
		int code = rig_wait(p[i]);
		stored += i % 2 == 0 && code == 0;
		ck_assert_msg(code == 0 || code == ERR_CANCELLED || (i % 2 && code == ERR_NOTFOUND),
		              "%s %u: %s: %s", i % 2 ? "get" : "put", i / 2, err_name(code), p[i]->text);
		if (i % 2 == 0 && code == 0)
			ck_assert_int_eq(rig_get(t, i / 2, SLOT), 0); /* acknowledged, so it is there */
		rig_free(p[i]);
	}
	ck_assert_uint_eq(rig_stat(t).blocks, stored);
	t->ops->destroy(t);
}

/* Many blocks at a time, more than depth and buffers: all are stored, and all come back. */
TEST_LOOP(test_many, 0, 3)
{
	enum { N = 500 };
	struct rig_op *p[N];
	struct tier_disk_opts o = rig_opts(256 * MIB);
	o.io = engines[_i % 2];
	o.sync = _i >= 2;
	struct tier *t = rig_open(&o);
	for (unsigned i = 0; i < N; i++)
		p[i] = rig_put_begin(t, i, i % 2 ? 100 * KIB : 300 * KIB);
	for (unsigned i = 0; i < N; i++) {
		ck_assert_msg(rig_wait(p[i]) == 0, "%u: %s", i, p[i]->text);
		rig_free(p[i]);
	}
	for (unsigned i = 0; i < N; i++) {
		p[i] = rig_op(i, i % 2 ? 100 * KIB : 300 * KIB, 0);
		t->ops->get(t, &p[i]->op);
	}
	for (unsigned i = 0; i < N; i++)
		ck_assert_int_eq(rig_get_end(p[i]), 0);
	struct tier_stat s = rig_stat(t);
	ck_assert_uint_eq(s.hits, N);
	ck_assert_uint_gt(s.read_us, 0);
	ck_assert_uint_gt(s.write_us, 0);
	ck_assert_uint_eq(s.read_bytes, s.bytes);
	ck_assert_uint_eq(s.write_bytes, s.bytes);
	t->ops->destroy(t);
}
