/* test_storage_buffer.c - the disk tier's buffers: where they lie, how many there are, what
 * becomes of them; and that the device has the next ones while one is copied. */
/* run: threads */
#include "daemons/storage/disk_buffer.h"
#include "tests/unit/disk_rig.h"
#include "tests/unit/skip.h"

#include <liburing.h>

#define HUGE_PAGE (2 * MIB)
#define DEPTH 4u
#define TAKEN_MAX 64u

static struct disk_buffers b;
static struct disk_buffer buf[TAKEN_MAX];

/* Takes as many of one size as there are. */
static unsigned take_all(unsigned from, size_t bytes)
{
	unsigned n = from;
	for (; n < TAKEN_MAX && disk_buffer_take(&b, bytes, &buf[n]); n++)
		memset(buf[n].at, (int)n, bytes);
	return n - from;
}

static void give_all(unsigned from, unsigned n)
{
	for (unsigned i = from; i < from + n; i++) {
		/* no other was written over it */
		ck_assert(buf[i].at[0] == i && buf[i].at[4 * KIB - 1] == i);
		disk_buffer_give(&b, &buf[i]);
		ck_assert_ptr_null(buf[i].at);
		disk_buffer_give(&b, &buf[i]);
	}
}

TEST_CASE("buffers");

/* Depth 4 and 4 ahead, 8 MiB mapped at most, 1 MiB taken at most by those ahead. */
TEST(test_how_many)
{
	static const struct {
		size_t bytes;
		unsigned want, huge_pages;
	} row[] = {
		{4 * KIB, 8, 1},   {128 * KIB, 8, 1},  {180 * KIB, 5, 1},
		{256 * KIB, 4, 1}, {1440 * KIB, 4, 3}, {2 * MIB, 4, 4},
		{3 * MIB, 2, 4},   {8 * MIB, 1, 4},    {12 * MIB, 0, 0},
	};
	disk_buffers_init(&b, DEPTH, DEPTH, 8 * MIB, 1 * MIB);
	for (unsigned i = 0; i < sizeof row / sizeof row[0]; i++) {
		unsigned n = take_all(0, row[i].bytes);
		ck_assert_msg(n == row[i].want, "%zu bytes: %u buffers", row[i].bytes, n);
		ck_assert_uint_eq(b.taken, n);
		ck_assert_uint_eq(b.taken_bytes, n * row[i].bytes);
		if (i == 0)
			ck_assert_uint_eq(b.mapped_bytes, HUGE_PAGE);
		ck_assert_uint_le(b.mapped_bytes, 8 * MIB);
		give_all(0, n);
		ck_assert_uint_eq(b.taken, 0);
	}
	disk_buffers_fini(&b);
	ck_assert_uint_eq(b.mapped_bytes, 0);
	for (unsigned i = 0; i < sizeof row / sizeof row[0]; i++) { /* each alone */
		disk_buffers_init(&b, DEPTH, DEPTH, 8 * MIB, 1 * MIB);
		unsigned n = take_all(0, row[i].bytes);
		ck_assert_uint_eq(b.mapped_bytes, row[i].huge_pages * HUGE_PAGE);
		give_all(0, n);
		disk_buffers_fini(&b);
	}
}

/* Pages that a device sees as few pieces: each buffer begins on a page, and one that fits into a
 * huge page touches two at most. */
TEST(test_where)
{
	static const size_t bytes[] = {4 * KIB, 180 * KIB, 1440 * KIB, 8 * MIB};
	for (unsigned i = 0; i < sizeof bytes / sizeof bytes[0]; i++) {
		disk_buffers_init(&b, 16, 0, 256 * MIB, 0);
		unsigned n = take_all(0, bytes[i]);
		ck_assert_uint_eq(n, 16);
		for (unsigned k = 0; k < n; k++) {
			uintptr_t at = (uintptr_t)buf[k].at;
			ck_assert_uint_eq(at % (4 * KIB), 0);
			ck_assert_uint_le((at + bytes[i] - 1) / HUGE_PAGE - at / HUGE_PAGE,
			                  (bytes[i] - 1) / HUGE_PAGE + 1);
			if (bytes[i] % HUGE_PAGE == 0)
				ck_assert_uint_eq(at % HUGE_PAGE, 0);
		}
		give_all(0, n);
		disk_buffers_fini(&b);
	}
}

/* The one that is warm comes first; room of sizes that nobody has is taken by others, that of a
 * size that somebody has is not. */
TEST(test_reuse)
{
	disk_buffers_init(&b, 16, 0, 4 * MIB, 0);
	ck_assert_uint_eq(take_all(0, 1440 * KIB), 0); /* a slab has four of them */
	ck_assert_uint_eq(take_all(0, 180 * KIB), 16);
	ck_assert_uint_eq(b.mapped_bytes, 4 * MIB);
	unsigned char *last = buf[5].at;
	disk_buffer_give(&b, &buf[3]);
	disk_buffer_give(&b, &buf[5]);
	ck_assert(disk_buffer_take(&b, 180 * KIB, &buf[5]));
	ck_assert_ptr_eq(buf[5].at, last);
	for (unsigned i = 0; i < 16; i++)
		if (i != 15)
			disk_buffer_give(&b, &buf[i]);
	/* in the room of the slab that has none taken */
	ck_assert(disk_buffer_take(&b, 64 * KIB, &buf[0]));
	ck_assert(!disk_buffer_take(&b, 32 * KIB, &buf[1]));
	ck_assert_ptr_null(buf[1].at);
	disk_buffer_give(&b, &buf[0]);
	disk_buffer_give(&b, &buf[15]);
	disk_buffers_fini(&b);
}

/* --- with a tier --- */

static atomic_uint begun; /* transfers that the ring has been given */

static ssize_t count_transfer(int write, size_t bytes, off_t at)
{
	(void)at;
	if (!write)
		atomic_fetch_add(&begun, 1);
	return (ssize_t)bytes;
}

static struct {
	pthread_mutex_t lock;
	pthread_cond_t more;
	int open;
} gate = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0};

static void wait_gate(struct rig_op *o)
{
	(void)o;
	pthread_mutex_lock(&gate.lock);
	while (!gate.open)
		pthread_cond_wait(&gate.more, &gate.lock);
	pthread_mutex_unlock(&gate.lock);
}

static void note_begun(struct rig_op *o)
{
	*(unsigned *)o->arg = atomic_load(&begun);
}

TEST_CASE("tier", .timeout_s = RIG_WAIT_S, .setup = rig_folder_new, .teardown = rig_folder_delete);

/* Sixteen gets that queue while another is copied: when the first of them is copied, the device
 * has had as many as the depth and one more, for that one. */
TEST(test_device_is_kept_busy)
{
	static const struct disk_calls calls = {.transfer = count_transfer};
	struct tier_disk_opts o = rig_opts(64 * MIB);
	struct io_uring ring;
	if (io_uring_queue_init(4, &ring, 0) < 0)
		SKIP("io_uring is forbidden here: then each thread has one transfer");
	io_uring_queue_exit(&ring);
	o.calls = &calls;
	o.depth = DEPTH;
	o.io = "io_uring";
	struct tier *t = rig_open(&o);
	struct rig_op *op[16], *first = rig_op(0, 64 * KIB, 0);
	unsigned seen[16];
	for (unsigned i = 0; i <= 16; i++)
		ck_assert_int_eq(rig_put(t, i, 64 * KIB), 0);
	first->in_move = wait_gate;
	t->ops->get(t, &first->op);
	for (unsigned i = 0; i < 16; i++) {
		op[i] = rig_op(i + 1, 64 * KIB, 0);
		op[i]->in_move = note_begun;
		op[i]->arg = &seen[i];
		t->ops->get(t, &op[i]->op);
	}
	pthread_mutex_lock(&gate.lock);
	gate.open = 1;
	pthread_cond_signal(&gate.more);
	pthread_mutex_unlock(&gate.lock);
	ck_assert_int_eq(rig_get_end(first), 0);
	unsigned least = UINT32_MAX;
	for (unsigned i = 0; i < 16; i++) {
		ck_assert_int_eq(rig_get_end(op[i]), 0);
		least = seen[i] < least ? seen[i] : least;
	}
	ck_assert_uint_ge(least, 1 + DEPTH + 1);
	ck_assert_uint_eq(atomic_load(&begun), 17);
	t->ops->destroy(t);
}
