/* test_storage_disk_fault.c - the disk tier when the system refuses: disks that are full, slow,
 * read-only or broken, heads that cannot be written, folders that cannot be used, kernels
 * without io_uring. Everybody is told why, and the tier goes on as far as it can. */
#include "tests/unit/disk_rig.h"
#include "tests/unit/skip.h"

#include <errno.h>
#include <liburing.h>
#include <linux/magic.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/statfs.h>
#include <sys/wait.h>

#define SLOT (256 * KIB)

static const char *const engines[] = {"auto", "threads"};

/* --- faults put in the place of system calls --- */

static atomic_int write_error, read_error, commit_error, sync_error, fallocate_error, ring_error,
	fallocates_left;
/* transfers wait while slow != 0, reads alone if it is 2 */
static atomic_int slow, slow_waiting;
static atomic_int commit_hold, commit_waiting; /* commits wait while commit_hold != 0 */
static atomic_uint piece;                      /* at most so many bytes in one go */

static int fault_fallocate(int fd, int mode, off_t at, off_t bytes)
{
	if (fallocate_error && atomic_fetch_sub(&fallocates_left, 1) <= 0) {
		errno = fallocate_error;
		return -1;
	}
	return fallocate(fd, mode, at, bytes);
}

static int fault_sync(int fd)
{
	if (sync_error) {
		errno = sync_error;
		return -1;
	}
	return fdatasync(fd);
}

static int fault_ring(unsigned entries, struct io_uring *ring)
{
	return ring_error ? -ring_error : io_uring_queue_init(entries, ring, 0);
}

static ssize_t fault_transfer(int write, size_t bytes, off_t at)
{
	(void)at;
	while (slow == 1 || (slow == 2 && !write)) {
		slow_waiting = 1;
		usleep(1000);
	}
	int e = write ? write_error : read_error;
	if (e)
		return -e;
	return piece && bytes > piece ? (ssize_t)piece : (ssize_t)bytes;
}

static int fault_commit(void)
{
	while (commit_hold) {
		commit_waiting = 1;
		usleep(1000);
	}
	return commit_error;
}

static const struct disk_calls faults = {.fallocate = fault_fallocate,
                                         .datasync = fault_sync,
                                         .ring_init = fault_ring,
                                         .transfer = fault_transfer,
                                         .commit = fault_commit};

static void no_faults(void)
{
	write_error = read_error = commit_error = sync_error = fallocate_error = ring_error =
		fallocates_left = slow = slow_waiting = 0;
	piece = 0;
	commit_hold = commit_waiting = 0;
}

static void setup(void)
{
	no_faults();
	rig_folder_new();
}

static struct tier_disk_opts fault_opts(size_t capacity)
{
	struct tier_disk_opts o = rig_opts(capacity);
	o.calls = &faults;
	return o;
}

/* --- folders --- */

TEST_CASE("fault", .timeout_s = 300, .setup = setup, .teardown = rig_folder_delete);

TEST(test_folders)
{
	struct tier *t, *second;
	struct err err = {0};
	struct tier_disk_opts o = rig_opts(4 * MIB);
	t = rig_open(&o);
	ck_assert_int_eq(tier_disk_new(&o, &second, &err), ERR_EXISTS);
	ck_assert_ptr_nonnull(strstr(err.text, "another process uses"));
	t->ops->destroy(t);
	t = rig_open(&o);
	t->ops->destroy(t);
	static const struct {
		const char *path, *says;
	} row[] = {
		{"/nowhere/at/all", "cannot create the folder"},
		{"/proc/version", "is not a folder"},
		{"/proc/sys", "not disk tier files"},
		{"", "no folder given"},
	};
	for (unsigned i = 0; i < sizeof row / sizeof row[0]; i++) {
		o.path = row[i].path;
		ck_assert_int_ne(tier_disk_new(&o, &t, &err), 0);
		ck_assert_msg(strstr(err.text, row[i].says) != NULL, "%s: %s", row[i].path, err.text);
	}
	o = rig_opts(1000);
	ck_assert_int_eq(tier_disk_new(&o, &t, &err), ERR_INVALID);
	o = rig_opts(4 * MIB);
	o.depth = 257;
	ck_assert_int_eq(tier_disk_new(&o, &t, &err), ERR_INVALID);
	o.depth = 0;
	o.io = "magic";
	ck_assert_int_eq(tier_disk_new(&o, &t, &err), ERR_INVALID);
}

/* --- full disks --- */

/* No room for another file: it goes on with what it has; none at all: puts say so, reads of
 * nothing are misses; room again: so does it. */
TEST(test_full)
{
	struct tier_disk_opts o = fault_opts(16 * SLOT);
	fallocate_error = ENOSPC;
	struct tier *t = rig_open(&o);
	struct rig_op *p = rig_put_begin(t, 0, SLOT);
	ck_assert_int_eq(rig_wait(p), ERR_FULL);
	ck_assert_str_ne(p->text, "");
	rig_free(p);
	ck_assert_ptr_nonnull(strstr(rig_stat(t).state, "full"));
	ck_assert_uint_gt(rig_stat(t).full, 0);
	t->ops->destroy(t);
	fallocates_left = 2; /* two segments of two blocks */
	t = rig_open(&o);
	for (unsigned i = 0; i < 12; i++) {
		ck_assert_int_eq(rig_put(t, i, SLOT), 0);
		ck_assert_int_eq(rig_get(t, i, SLOT), 0);
	}
	ck_assert_uint_eq(rig_stat(t).blocks, 4);
	ck_assert_uint_eq(rig_stat(t).evictions, 8);
	fallocates_left = 1;
	/* another size takes the room of a whole segment, when that can be had */
	ck_assert_int_eq(rig_put(t, 100, SLOT / 2), 0);
	t->ops->destroy(t);
	no_faults();
	t = rig_open(&o);
	for (unsigned i = 20; i < 30; i++)
		ck_assert_int_eq(rig_put(t, i, SLOT), 0);
	ck_assert_uint_ge(rig_stat(t).blocks, 10);
	t->ops->destroy(t);
}

/* The same on a real file system that is too small; also its heads find no room. */
TEST(test_full_really)
{
	if (unshare(CLONE_NEWNS) != 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 ||
	    mount("none", rig_folder, "tmpfs", 0, "size=6m") != 0)
		SKIP("cannot mount a small disk here: %s", strerror(errno));
	struct tier_disk_opts o = rig_opts(64 * MIB);
	struct tier *t = rig_open(&o);
	unsigned stored = 0;
	for (unsigned i = 0; i < 60; i++) {
		int code = rig_put(t, i, SLOT);
		ck_assert_msg(code == 0 || code == ERR_FULL, "put %u: %s", i, err_name(code));
		stored += code == 0;
		if (code == 0)
			ck_assert_int_eq(rig_get(t, i, SLOT), 0);
	}
	ck_assert_uint_gt(stored, 0);
	uint64_t blocks = rig_stat(t).blocks;
	t->ops->destroy(t);
	t = rig_open(&o);
	ck_assert_uint_eq(rig_stat(t).blocks, blocks);
	t->ops->destroy(t);
	ck_assert_int_eq(umount2(rig_folder, MNT_DETACH), 0);
}

/* A read-only file system from the start; one that becomes so. */
TEST(test_read_only_really)
{
	struct err err = {0};
	if (unshare(CLONE_NEWNS) != 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 ||
	    mount("none", rig_folder, "tmpfs", 0, "size=32m") != 0)
		SKIP("cannot mount a disk here: %s", strerror(errno));
	struct tier_disk_opts o = rig_opts(8 * MIB);
	struct tier *t = rig_open(&o);
	ck_assert_int_eq(rig_put(t, 1, SLOT), 0);
	t->ops->destroy(t);
	ck_assert_int_eq(mount("none", rig_folder, NULL, MS_REMOUNT | MS_RDONLY, "size=32m"), 0);
	ck_assert_int_eq(tier_disk_new(&o, &t, &err), ERR_IO);
	ck_assert_msg(strstr(err.text, "Read-only") != NULL, "%s", err.text);
	ck_assert_int_eq(mount("none", rig_folder, NULL, MS_REMOUNT, "size=32m"), 0);
	t = rig_open(&o);
	ck_assert_int_eq(rig_get(t, 1, SLOT), 0);
	t->ops->destroy(t);
	umount2(rig_folder, MNT_DETACH);
}

/* --- errors of the device --- */

/* Three failed writes in a row: no puts for a while, and everybody is told why; reads go on all
 * the time. */
TEST(test_write_errors)
{
	static const int error[] = {EIO, EROFS};
	for (unsigned i = 0; i < 2; i++) {
		struct tier_disk_opts o = fault_opts(8 * MIB);
		o.io = engines[i];
		struct tier *t = rig_open(&o);
		tier_flushed(t, NULL);
		ck_assert_int_eq(rig_put(t, 1, SLOT), 0);
		write_error = error[i];
		for (unsigned k = 0; k < 8; k++) {
			struct rig_op *p = rig_put_begin(t, 10 + k, SLOT);
			ck_assert_int_eq(rig_wait(p), ERR_IO);
			ck_assert_msg(strstr(p->text, error[i] == EIO ? "Input/output" : "Read-only") != NULL,
			              "%s", p->text);
			ck_assert_int_eq(p->moved, k < 3); /* after three not even tried */
			rig_free(p);
			ck_assert_int_eq(rig_get(t, 1, SLOT), 0);
			ck_assert_int_eq(rig_get(t, 10 + k, SLOT), ERR_NOTFOUND);
		}
		ck_assert_uint_eq(rig_stat(t).errors, 8);
		ck_assert_ptr_nonnull(strstr(rig_stat(t).state, "rejects puts"));
		write_error = 0;
		if (getenv("PD_FULL")) {
			usleep(10200000);
			ck_assert_int_eq(rig_put(t, 2, SLOT), 0);
			ck_assert_str_eq(rig_stat(t).state, "ready");
		}
		t->ops->destroy(t);
	}
}

/* A block that cannot be read is an error with a reason; it is not dropped: the disk may be back
 * soon. */
TEST_LOOP(test_read_errors, 0, 2)
{
	struct tier_disk_opts o = fault_opts(8 * MIB);
	o.io = engines[_i];
	struct tier *t = rig_open(&o);
	ck_assert_int_eq(rig_put(t, 1, SLOT), 0);
	read_error = EIO;
	struct rig_op *g = rig_op(1, SLOT, 0);
	t->ops->get(t, &g->op);
	ck_assert_int_eq(rig_wait(g), ERR_IO);
	ck_assert_ptr_nonnull(strstr(g->text, "cannot read"));
	rig_free(g);
	read_error = 0;
	ck_assert_int_eq(rig_get(t, 1, SLOT), 0);
	ck_assert_uint_eq(rig_stat(t).errors, 1);
	t->ops->destroy(t);
}

/* Reads and writes that come in pieces. */
TEST_LOOP(test_pieces, 0, 2)
{
	struct tier_disk_opts o = fault_opts(64 * MIB);
	o.io = engines[_i];
	piece = 12 * KIB;
	struct tier *t = rig_open(&o);
	for (unsigned i = 0; i < 8; i++)
		ck_assert_int_eq(rig_put(t, i, 1000 * KIB + i), 0);
	for (unsigned i = 0; i < 8; i++)
		ck_assert_int_eq(rig_get(t, i, 1000 * KIB + i), 0);
	t->ops->destroy(t);
}

/* Heads cannot be written: the puts of that round fail with the reason, nothing of them is
 * there, no slot is lost, and it goes on when it can. */
TEST(test_commit_errors)
{
	static const struct {
		int error, code;
	} row[] = {{ENOSPC, ERR_FULL}, {EIO, ERR_IO}};
	struct tier_disk_opts o = fault_opts(16 * SLOT);
	struct tier *t = rig_open(&o);
	for (unsigned i = 0; i < 8; i++)
		ck_assert_int_eq(rig_put(t, i, SLOT), 0);
	for (unsigned i = 0; i < sizeof row / sizeof row[0]; i++) {
		commit_error = row[i].error;
		struct rig_op *p = rig_put_begin(t, 100, SLOT);
		ck_assert_int_eq(rig_wait(p), row[i].code);
		ck_assert_str_ne(p->text, "");
		rig_free(p);
		commit_error = 0;
		ck_assert_int_eq(rig_get(t, 100, SLOT), ERR_NOTFOUND);
		ck_assert_int_eq(rig_get(t, 3, SLOT), 0);
	}
	for (unsigned i = 20; i < 36; i++)
		ck_assert_int_eq(rig_put(t, i, SLOT), 0);
	ck_assert_uint_eq(rig_stat(t).blocks, 16);
	t->ops->destroy(t);
}

/* With sync a put is acknowledged only when its data is on the device. */
TEST(test_sync_errors)
{
	struct tier_disk_opts o = fault_opts(16 * SLOT);
	o.sync = 1;
	struct tier *t = rig_open(&o);
	ck_assert_int_eq(rig_put(t, 1, SLOT), 0);
	sync_error = EIO;
	ck_assert_int_eq(rig_put(t, 2, SLOT), ERR_IO);
	sync_error = 0;
	ck_assert_int_eq(rig_get(t, 2, SLOT), ERR_NOTFOUND);
	ck_assert_int_eq(rig_put(t, 2, SLOT), 0);
	ck_assert_int_eq(rig_get(t, 2, SLOT), 0);
	t->ops->destroy(t);
}

/* Whether the disk is broken or full. */
static const int clear_errors[] = {EIO, ENOSPC};

static uint64_t failures(struct tier *t)
{
	struct tier_stat s = rig_stat(t);
	return s.errors + s.full;
}

/* A dropped slot whose cleared head cannot be made last is not used: the put that needs it is
 * refused, and no other block pays for it, until it can. It is tried now and then, not all the
 * time. */
TEST_LOOP(test_clear_errors, 0, 2)
{
	struct tier_disk_opts o = fault_opts(4 * SLOT);
	struct tier_key k1 = rig_key(1);
	o.sync = 1;
	struct tier *t = rig_open(&o);
	for (unsigned i = 1; i <= 4; i++)
		ck_assert_int_eq(rig_put(t, i, SLOT), 0);
	sync_error = clear_errors[_i];
	ck_assert_int_eq(t->ops->remove(t, &k1), 0);
	for (int i = 0; i < RIG_WAIT_S * 1000 && failures(t) == 0; i++)
		usleep(1000);
	ck_assert_uint_ge(failures(t), 1);
	struct rig_op *p = rig_put_begin(t, 5, SLOT);
	ck_assert_int_eq(rig_wait(p), _i ? ERR_FULL : ERR_IO);
	ck_assert_str_ne(p->text, "");
	rig_free(p);
	ck_assert_uint_le(failures(t), 10);
	sync_error = 0;
	int r = ERR_IO;
	for (int i = 0; r != 0 && i < RIG_WAIT_S * 10; i++, usleep(100000))
		r = rig_put(t, 5, SLOT);
	ck_assert_int_eq(r, 0);
	ck_assert_uint_eq(rig_stat(t).evictions, 0);
	for (unsigned i = 2; i <= 5; i++)
		ck_assert_int_eq(rig_get(t, i, SLOT), 0);
	t->ops->destroy(t);
}

/* A segment whose heads cannot be written is given up all the same, as fast, and the tier ends. */
TEST_LOOP(test_segment_dies_of_errors, 0, 2)
{
	struct tier_disk_opts o = fault_opts(8 * SLOT);
	o.sync = 1;
	o.segment_bytes = 2 * SLOT;
	struct tier *t = rig_open(&o);
	for (unsigned i = 1; i <= 8; i++)
		ck_assert_int_eq(rig_put(t, i, SLOT), 0);
	sync_error = clear_errors[_i];
	ck_assert_int_eq(t->ops->resize(t, 4 * SLOT, NULL), 0);
	for (int i = 0; i < RIG_WAIT_S * 1000 && rig_stat(t).blocks > 4; i++)
		usleep(1000);
	ck_assert_uint_eq(rig_stat(t).blocks, 4);
	usleep(20000);
	ck_assert_uint_eq(failures(t), 0);
	t->ops->destroy(t);
}

/* --- a slow disk --- */

/* While no transfer ends: callers never wait, look-ups are answered, the queues are bounded and
 * say so, the oldest operation's age is seen; then all end. */
TEST_LOOP(test_slow, 0, 2)
{
	enum { N = 1200 };
	static struct rig_op *p[N];
	struct tier_disk_opts o = fault_opts(64 * MIB);
	o.io = engines[_i];
	struct tier *t = rig_open(&o);
	ck_assert_int_eq(rig_put(t, 5000, 4 * KIB), 0);
	slow = 1;
	uint64_t t0 = clock_us();
	for (unsigned i = 0; i < N; i++)
		p[i] = rig_put_begin(t, i, 4 * KIB);
	unsigned refused = 0;
	for (unsigned i = 0; i < N; i++) {
		pthread_mutex_lock(&p[i]->lock);
		refused += p[i]->done && p[i]->code == ERR_FULL;
		pthread_mutex_unlock(&p[i]->lock);
	}
	ck_assert_uint_gt(refused, 0);
	while (!slow_waiting)
		usleep(1000);
	ck_assert(rig_has(t, 5000, 4 * KIB));
	ck_assert(!rig_has(t, 1, 4 * KIB));
	struct tier_stat s = rig_stat(t);
	ck_assert_uint_gt(s.queued, 500);
	ck_assert_uint_ge(s.oldest_us, t0);
	struct rig_op *g = rig_op(5000, 4 * KIB, 0);
	t->ops->get(t, &g->op);
	slow = 0;
	ck_assert_int_eq(rig_get_end(g), 0);
	for (unsigned i = 0; i < N; i++) {
		int code = rig_wait(p[i]);
		ck_assert_msg(code == 0 || code == ERR_FULL, "%s", err_name(code));
		if (code == ERR_FULL)
			ck_assert_ptr_nonnull(strstr(p[i]->text, "too many"));
		rig_free(p[i]);
	}
	ck_assert_uint_eq(rig_stat(t).blocks, N - refused + 1);
	t->ops->destroy(t);
}

/* Many puts of one block wait for room; those that get it turn out not to need it, as the first
 * was faster: the others go on all the same. */
TEST(test_parked_known)
{
	enum { N = 40 };
	struct rig_op *first, *p[N];
	struct tier_disk_opts o = fault_opts(16 * SLOT);
	struct tier *t = rig_open(&o);
	commit_hold = 1;
	first = rig_put_begin(t, 1000, 4 * KIB);
	while (!commit_waiting)
		usleep(1000);
	for (unsigned i = 0; i < N; i++)
		p[i] = rig_put_begin(t, 1, SLOT);
	usleep(20000); /* better all of them wait, but some will do */
	commit_hold = 0;
	ck_assert_int_eq(rig_wait(first), 0);
	rig_free(first);
	for (unsigned i = 0; i < N; i++) {
		ck_assert_int_eq(rig_wait(p[i]), 0);
		rig_free(p[i]);
	}
	ck_assert_int_eq(rig_get(t, 1, SLOT), 0);
	t->ops->destroy(t);
}

/* The device takes no more heads, as one that hangs for a minute: who asks for what memory knows
 * has his answer at once, reads go on, puts are taken up to the bound; when it goes on all of
 * them end. */
TEST_LOOP(test_hangs, 0, 2)
{
	enum { N = 1400 };
	static struct rig_op *p[N];
	struct tier_disk_opts o = fault_opts(64 * MIB);
	o.io = engines[_i];
	struct tier *t = rig_open(&o);
	struct tier_key k1 = rig_key(5001), keys[8];
	struct tier_due due[8];
	struct tier_cursor at = {0};
	for (unsigned i = 0; i < 3; i++)
		ck_assert_int_eq(rig_put(t, 5000 + i, 4 * KIB), 0);
	commit_hold = 1;
	for (unsigned i = 0; i < N; i++)
		p[i] = rig_put_begin(t, i, 4 * KIB);
	while (!commit_waiting)
		usleep(1000);
	ck_assert(rig_has(t, 5000, 4 * KIB) && !rig_has(t, 0, 4 * KIB));
	ck_assert_int_eq(rig_get(t, 5000, 4 * KIB), 0);
	ck_assert_int_eq(t->ops->remove(t, &k1), 0);
	ck_assert(!rig_has(t, 5001, 4 * KIB));
	ck_assert_uint_eq(t->ops->list(t, &at, 8, keys), 2);
	ck_assert_uint_eq(t->ops->due(t, 8, due), 0);
	ck_assert_int_eq(t->ops->resize(t, 32 * MIB, NULL), 0);
	ck_assert_uint_eq(rig_stat(t).blocks, 2);
	struct flush_rig r = flush_rig();
	t->ops->flush(t, &r.f);
	ck_assert(!rig_has(t, 5000, 4 * KIB));
	ck_assert_int_eq(atomic_load(&r.done), 0); /* it does not last yet */
	commit_hold = 0;
	flush_rig_wait(&r);
	ck_assert_int_eq(r.f.code, 0);
	unsigned stored = 0;
	for (unsigned i = 0; i < N; i++) {
		int code = rig_wait(p[i]);
		ck_assert_msg(code == 0 || code == ERR_FULL, "%s", err_name(code));
		stored += code == 0;
		rig_free(p[i]);
	}
	ck_assert_uint_ge(stored, 1024);
	ck_assert_int_eq(rig_put(t, 6000, 4 * KIB), 0);
	ck_assert_int_eq(rig_get(t, 6000, 4 * KIB), 0);
	t->ops->destroy(t);
}

static void remove_done(struct tier_op *op, int code, enum tier_id tier, const char *text)
{
	struct rig_op *o = (struct rig_op *)op;
	struct tier *t = o->arg;
	o->moved += t->ops->remove(t, &op->key) == 0;
	rig_done(op, code, tier, text);
}

/* Who hears that its put has ended may remove the block at once. */
TEST(test_remove_in_done)
{
	struct tier_disk_opts o = fault_opts(16 * MIB);
	struct tier *t = rig_open(&o);
	struct rig_op *p = rig_op(1000, 4 * KIB, 1);
	p->op.done = remove_done;
	p->arg = t;
	t->ops->put(t, &p->op);
	ck_assert_int_eq(rig_wait(p), 0);
	ck_assert_int_eq(p->moved, 2); /* copied, and removed */
	rig_free(p);
	ck_assert(!rig_has(t, 1000, 4 * KIB));
	ck_assert_uint_eq(rig_stat(t).blocks, 0);
	t->ops->destroy(t);
}

/* Segments whose files cannot be opened for now (no descriptors left) are not taken for lost
 * ones: the start fails, and nothing is deleted. */
static int no_descriptors(const char *path, int flags, mode_t mode)
{
	if (strstr(path, "/heads-")) {
		errno = EMFILE;
		return -1;
	}
	return open(path, flags, mode);
}

TEST(test_segment_unseen)
{
	static const struct disk_calls without = {.open = no_descriptors};
	struct err err = {0};
	struct tier_disk_opts o = rig_opts(4 * MIB);
	struct tier *t = rig_open(&o);
	ck_assert_int_eq(rig_put(t, 1, SLOT), 0);
	t->ops->destroy(t);
	o.calls = &without;
	ck_assert_int_eq(tier_disk_new(&o, &t, &err), ERR_IO);
	ck_assert_msg(strstr(err.text, "cannot read segment 0") != NULL, "%s", err.text);
	o.calls = NULL;
	t = rig_open(&o);
	ck_assert_int_eq(rig_get(t, 1, SLOT), 0);
	t->ops->destroy(t);
}

static size_t data_kib(void)
{
	size_t kib = 0;
	char line[128];
	FILE *f = fopen("/proc/self/status", "r");
	while (f && fgets(line, sizeof line, f))
		if (sscanf(line, "VmData: %zu", &kib) == 1)
			break;
	if (f)
		fclose(f);
	return kib;
}

/* No memory for a buffer: that block fails with the reason, though idle buffers of another size
 * are there; smaller ones go on. */
TEST(test_no_memory)
{
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
	SKIP("sanitizers end the process when they get no memory");
#endif
	struct tier_disk_opts o = fault_opts(256 * MIB);
	struct tier *t = rig_open(&o);
	struct rlimit was;
	ck_assert_int_eq(rig_put(t, 1, SLOT), 0);
	ck_assert_int_eq(getrlimit(RLIMIT_DATA, &was), 0);
	struct rlimit little = {(rlim_t)((data_kib() + 8192) * KIB), was.rlim_max};
	ck_assert_int_eq(setrlimit(RLIMIT_DATA, &little), 0);
	struct rig_op *p = rig_put_begin(t, 2, 64 * MIB);
	ck_assert_int_eq(rig_wait(p), ERR_NOMEM);
	ck_assert_str_eq(p->text, "out of memory for a buffer");
	rig_free(p);
	ck_assert_int_eq(rig_put(t, 3, SLOT), 0);
	ck_assert_int_eq(setrlimit(RLIMIT_DATA, &was), 0);
	ck_assert_int_eq(rig_put(t, 2, 64 * MIB), 0);
	t->ops->destroy(t);
}

/* --- the page cache --- */

static int no_direct(const char *path, int flags, mode_t mode)
{
	if (flags & O_DIRECT) {
		errno = EINVAL;
		return -1;
	}
	return open(path, flags, mode);
}

static size_t cached_pages(const char *file)
{
	struct stat st;
	int fd = open(rig_path(file), O_RDONLY);
	if (fd < 0)
		return 0;
	ck_assert_int_eq(fstat(fd, &st), 0);
	size_t n = (size_t)st.st_size / 4096, cached = 0;
	unsigned char *in = mem_zalloc(n + 1);
	void *p = mmap(NULL, n * 4096, PROT_READ, MAP_SHARED, fd, 0);
	ck_assert(p != MAP_FAILED && mincore(p, n * 4096, in) == 0);
	for (size_t i = 0; i < n; i++)
		cached += in[i] & 1;
	munmap(p, n * 4096);
	close(fd);
	free(in);
	return cached;
}

static size_t segment_sync(const char *file)
{
	int fd = open(rig_path(file), O_RDWR);
	if (fd >= 0) {
		ck_assert_int_eq(fdatasync(fd), 0);
		close(fd);
	}
	return 0;
}

static size_t each_segment(unsigned n, size_t (*fn)(const char *file))
{
	size_t sum = 0;
	for (unsigned i = 0; i < n; i++) {
		char name[32];
		snprintf(name, sizeof name, "segment-%04u", i);
		sum += fn(name);
	}
	return sum;
}

/* What goes through the disk tier leaves nothing in the page cache; where the file system cannot
 * go past it, little: the last writes at most. */
TEST_LOOP(test_page_cache, 0, 2)
{
	enum { N = 256 };
	static const struct disk_calls without = {.open = no_direct};
	struct statfs fs;
	struct tier_disk_opts o = rig_opts(2 * N * SLOT);
	if (statfs(rig_folder, &fs) != 0 || fs.f_type == TMPFS_MAGIC)
		SKIP("the folder for tests is a tmpfs: that is nothing but page cache");
	o.segment_bytes = MIB;
	o.calls = _i ? &without : NULL;
	struct tier *t = rig_open(&o);
	for (unsigned i = 0; i < N; i++)
		ck_assert_int_eq(rig_put(t, i, SLOT), 0);
	each_segment(N / 4 + 4, segment_sync); /* only what has reached the device can leave */
	for (unsigned i = 0; i < N; i++)
		ck_assert_int_eq(rig_get(t, i, SLOT), 0);
	size_t cached = each_segment(N / 4 + 4, cached_pages);
	ck_assert_msg(cached <= (_i ? 64 * (SLOT / 4096) : 0), "%zu of %zu pages are in the page cache",
	              cached, N * SLOT / 4096);
	t->ops->destroy(t);
}

/* A block that is being read is not evicted, though it is the least recently used one: nobody
 * else gets its slot. */
TEST(test_read_slot_kept)
{
	struct tier_disk_opts o = fault_opts(4 * SLOT);
	o.io = "threads";
	struct tier *t = rig_open(&o);
	for (unsigned i = 1; i <= 4; i++)
		ck_assert_int_eq(rig_put(t, i, SLOT), 0);
	slow = 2;
	struct rig_op *g = rig_op(1, SLOT, 0);
	t->ops->get(t, &g->op);
	while (!slow_waiting)
		usleep(1000);
	for (unsigned i = 0; i < 8; i++)
		ck_assert_int_eq(rig_put(t, 5 + i, SLOT), 0);
	ck_assert_uint_eq(rig_stat(t).evictions, 8);
	ck_assert(rig_has(t, 1, SLOT));
	slow = 0;
	ck_assert_int_eq(rig_get_end(g), 0);
	for (unsigned i = 10; i < 13; i++)
		ck_assert_int_eq(rig_get(t, i, SLOT), 0);
	ck_assert_uint_eq(rig_stat(t).corrupt, 0);
	t->ops->destroy(t);
}

/* --- without io_uring --- */

TEST(test_no_io_uring)
{
	static const int error[] = {EPERM, ENOSYS, ENOMEM};
	struct err err = {0};
	for (unsigned i = 0; i < sizeof error / sizeof error[0]; i++) {
		struct tier_disk_opts o = fault_opts(8 * MIB);
		struct tier *t;
		ring_error = error[i];
		t = rig_open(&o);
		ck_assert_int_eq(rig_put(t, i, SLOT), 0);
		ck_assert_int_eq(rig_get(t, i, SLOT), 0);
		t->ops->destroy(t);
		o.io = "io_uring";
		ck_assert_int_eq(tier_disk_new(&o, &t, &err), ERR_UNSUPPORTED);
		ck_assert_ptr_nonnull(strstr(err.text, "io_uring"));
	}
}
