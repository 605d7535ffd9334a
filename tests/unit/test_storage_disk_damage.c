/* test_storage_disk_damage.c - the disk tier over files that do not hold: flipped bits, segments
 * that are torn or gone, damaged heads, what a crash of the machine leaves; and a tier of many
 * blocks. Nothing wrong is ever served, and the tier starts again with what holds. */
/* run: parser */
#include "tests/unit/disk_rig.h"

#include "daemons/storage/disk_dir.h"
#include "daemons/storage/disk_segment.h"

#include <signal.h>
#include <sys/wait.h>

#define SLOT (256 * KIB)

/* --- damaged data --- */

static void flip(const char *file, off_t at)
{
	unsigned char b;
	int fd = open(rig_path(file), O_RDWR);
	ck_assert_int_ge(fd, 0);
	ck_assert_int_eq(pread(fd, &b, 1, at), 1);
	b ^= 0x10;
	ck_assert_int_eq(pwrite(fd, &b, 1, at), 1);
	close(fd);
}

TEST_CASE("damage", .timeout_s = 300, .setup = rig_folder_new, .teardown = rig_folder_delete);

/* A flipped bit anywhere: told as damage, dropped, never moved out; afterwards a miss, and it
 * can be stored again. */
TEST(test_corrupt)
{
	static const size_t at[] = {0, 1, 70000, SLOT - 1};
	struct tier_disk_opts o = rig_opts(8 * SLOT);
	struct tier *t = rig_open(&o);
	for (unsigned i = 0; i < sizeof at / sizeof at[0]; i++) {
		ck_assert_int_eq(rig_put(t, 5, SLOT), 0);
		ck_assert_int_eq(rig_get(t, 5, SLOT), 0);
		if (i % 2) { /* by another process, or under a tier that runs */
			t->ops->destroy(t);
			t = rig_open(&o);
		}
		flip("segment-0000", (off_t)at[i]); /* its slots are filled from the front */
		struct rig_op *g = rig_op(5, SLOT, 0);
		t->ops->get(t, &g->op);
		ck_assert_int_eq(rig_wait(g), ERR_CORRUPT);
		ck_assert_int_eq(g->moved, 0);
		ck_assert_int_eq(g->tier, TIER_NONE);
		ck_assert_ptr_nonnull(strstr(g->text, "checksum"));
		rig_free(g);
		ck_assert(!rig_has(t, 5, SLOT));
		ck_assert_int_eq(rig_get(t, 5, SLOT), ERR_NOTFOUND);
		ck_assert_uint_eq(rig_stat(t).corrupt, 1); /* of this tier: it is a new one each time */
		t->ops->destroy(t);
		t = rig_open(&o);
		ck_assert_uint_eq(rig_stat(t).blocks, 0);
	}
	t->ops->destroy(t);
}

/* Segment files that are shorter, gone, or something else: their blocks are gone, the others are
 * there, and the room is used again. */
TEST(test_segments_lost)
{
	struct tier_disk_opts o = rig_opts(16 * SLOT); /* 8 segments of 2 */
	struct tier *t = rig_open(&o);
	for (unsigned i = 0; i < 14; i++)
		ck_assert_int_eq(rig_put(t, i, SLOT), 0);
	t->ops->destroy(t);
	ck_assert_int_eq(truncate(rig_path("segment-0001"), SLOT), 0);
	ck_assert_int_eq(unlink(rig_path("segment-0002")), 0);
	ck_assert_int_eq(unlink(rig_path("segment-0003")), 0);
	ck_assert_int_eq(mkdir(rig_path("segment-0003"), 0700), 0);
	ck_assert_int_eq(rmdir(rig_path("segment-0003")), 0);
	/* swept, not followed */
	ck_assert_int_eq(symlink("/etc/passwd", rig_path("segment-0099")), 0);
	for (int round = 0; round < 2; round++) {
		t = rig_open(&o);
		for (unsigned i = 0; i < 14; i++)
			ck_assert_int_eq(rig_get(t, i, SLOT), i / 2 >= 1 && i / 2 <= 3 ? ERR_NOTFOUND : 0);
		t->ops->destroy(t);
	}
	ck_assert_int_ne(access(rig_path("segment-0099"), F_OK), 0);
	ck_assert_int_eq(access("/etc/passwd", F_OK), 0);
	t = rig_open(&o);
	ck_assert_uint_eq(rig_stat(t).blocks, 8);
	for (unsigned i = 100; i < 106; i++)
		ck_assert_int_eq(rig_put(t, i, SLOT), 0);
	ck_assert_uint_eq(rig_stat(t).blocks, 14);
	ck_assert_int_eq(truncate(rig_path("segment-0000"), 1000), 0); /* under a tier that runs */
	ck_assert_int_eq(rig_get(t, 1, SLOT), ERR_CORRUPT);
	ck_assert_int_eq(rig_get(t, 1, SLOT), ERR_NOTFOUND);
	t->ops->destroy(t);
}

/* --- what is lost --- */

#define UNTIL(what)                                                                   \
	for (uint64_t until_ = clock_us() + RIG_WAIT_S * 1000000u; !(what); usleep(1000)) \
	ck_assert_msg(clock_us() < until_, "waited in vain for: %s", #what)

static void copied_down(struct tier *t, unsigned name)
{
	struct tier_key k = rig_key(name);
	t->ops->stored(t, &k, TIER_BELOW_HAS);
}

/* Lost is what was damaged, evicted or in a file that is gone, unless a tier below was said to
 * have it; not what somebody drops. */
TEST(test_lost)
{
	struct tier_disk_opts o = rig_opts(16 * SLOT); /* 8 segments of 2 */
	struct tier *t = rig_open(&o);
	struct tier_key k = rig_key(4);
	for (unsigned i = 0; i < 14; i++)
		ck_assert_int_eq(rig_put(t, i, SLOT), 0);
	copied_down(t, 0);
	copied_down(t, 100); /* of nobody */
	flip("segment-0000", 0);
	flip("segment-0000", SLOT);
	ck_assert_int_eq(rig_get(t, 0, SLOT), ERR_CORRUPT);
	ck_assert_int_eq(rig_get(t, 1, SLOT), ERR_CORRUPT);
	UNTIL(rig_stat(t).blocks == 12);
	ck_assert_uint_eq(rig_stat(t).lost, 1);
	/* in one of the two places, where a block was copied down before */
	ck_assert_int_eq(rig_put(t, 0, SLOT), 0);
	flip("segment-0000", 0);
	flip("segment-0000", SLOT);
	ck_assert_int_eq(rig_get(t, 0, SLOT), ERR_CORRUPT);
	UNTIL(rig_stat(t).blocks == 12);
	ck_assert_uint_eq(rig_stat(t).lost, 2);
	copied_down(t, 2);
	copied_down(t, 3);
	ck_assert_int_eq(t->ops->remove(t, &k), 0);
	for (unsigned i = 20; i < 28; i++)
		ck_assert_int_eq(rig_put(t, i, SLOT), 0);
	UNTIL(rig_stat(t).evictions >= 3);
	struct tier_stat s = rig_stat(t);
	ck_assert_uint_eq(s.lost, 2 + s.evictions - 2);
	for (unsigned i = 0; i < 28; i++)
		copied_down(t, i);
	tier_flushed(t, NULL);
	for (unsigned i = 50; i < 66; i++)
		ck_assert_int_eq(rig_put(t, i, SLOT), 0);
	ck_assert_uint_eq(rig_stat(t).lost, s.lost);
	flip("segment-0000", 0);
	for (unsigned i = 50; i < 66; i++)
		rig_get(t, i, SLOT);
	ck_assert_uint_eq(rig_stat(t).blocks, 15);
	ck_assert_uint_eq(rig_stat(t).lost, s.lost + 1);
	ck_assert_int_eq(rig_put(t, 66, SLOT), 0);
	t->ops->destroy(t);
	ck_assert_int_eq(unlink(rig_path("segment-0003")), 0);
	t = rig_open(&o);
	ck_assert_uint_eq(rig_stat(t).blocks, 14);
	ck_assert_uint_eq(rig_stat(t).lost, 2);
	ck_assert_uint_eq(rig_stat(t).evictions, 0);
	t->ops->destroy(t);
}

/* --- damaged heads --- */

static char *slurp(const char *file, size_t *ret_n)
{
	int fd = open(rig_path(file), O_RDONLY);
	struct stat st;
	ck_assert(fd >= 0 && fstat(fd, &st) == 0);
	char *p = mem_alloc((size_t)st.st_size + 1);
	ck_assert_int_eq(read(fd, p, (size_t)st.st_size), st.st_size);
	close(fd);
	*ret_n = (size_t)st.st_size;
	return p;
}

static void spit(const char *file, const char *p, size_t n)
{
	int fd = open(rig_path(file), O_RDWR | O_CREAT | O_TRUNC, 0600);
	ck_assert(fd >= 0 && write(fd, p, n) == (ssize_t)n);
	close(fd);
}

/* Damage number i of a file of n bytes: cut, emptied, other bytes in pages, bits flipped, heads
 * in the place of others. */
static size_t damage(char *p, size_t n, unsigned i)
{
	unsigned seed = i * 2654435761u + 12345u;
	size_t at = seed % n, head = at / 64 * 64;
	switch (i % 8) {
	case 0: return i / 8 % 2 ? at : head;
	case 1: memset(p + head, 0, 64); return n;
	case 2: memset(p + at, (int)(seed >> 8), n - at); return n;
	case 3:
		for (unsigned k = 0; k < 64; k++)
			p[head + k] = (char)((seed = seed * 1103515245u + 12345u) >> 16);
		return n;
	case 4: memmove(p + head, p + (head + 128) % (n - 64) / 64 * 64, 64); return n;
	case 5:
		p[seed % 20] ^= (char)(1 << (seed >> 20) % 8); /* what the segment says of itself */
		return n;
	default:
		for (unsigned k = 0; k < 1 + i % 3; k++) {
			seed = seed * 1103515245u + 12345u;
			p[seed % n] ^= (char)(1 << (seed >> 20) % 8);
		}
		return n;
	}
}

/* Whatever is done to heads: the tier starts, serves right blocks or none, loses no more than the
 * heads that were touched unless it is the segment's own, takes new ones, and the next one
 * starts too. */
TEST(test_heads_damaged)
{
	enum { N = 64 };
	const unsigned times = getenv("PD_FULL") ? 400 : 56;
	unsigned one_less = 0, all_lost = 0;
	size_t n;
	struct tier_disk_opts o = rig_opts(4 * MIB);
	struct tier *t = rig_open(&o);
	for (unsigned i = 0; i < N; i++)
		ck_assert_int_eq(rig_put(t, i, 4 * KIB), 0);
	t->ops->destroy(t);
	char *good = slurp("heads-0000", &n), *bad = mem_alloc(n);
	for (unsigned i = 0; i < times; i++) {
		memcpy(bad, good, n);
		spit("heads-0000", bad, damage(bad, n, i));
		t = rig_open(&o);
		unsigned there = 0;
		for (unsigned k = 0; k < N; k++) {
			int code = rig_get(t, k, 4 * KIB); /* compares */
			ck_assert_msg(code == 0 || code == ERR_NOTFOUND, "damage %u: %s", i, err_name(code));
			there += code == 0;
		}
		one_less += there < N && there >= N - 3;
		all_lost += there == 0;
		for (unsigned k = 0; k < N; k++)
			ck_assert_int_eq(rig_put(t, k, 4 * KIB), 0);
		t->ops->destroy(t);
		t = rig_open(&o);
		for (unsigned k = 0; k < N; k++)
			ck_assert_int_eq(rig_get(t, k, 4 * KIB), 0);
		t->ops->destroy(t);
		free(good);
		good = slurp("heads-0000", &n); /* other slots next time */
		bad = mem_grow(bad, n, 1);
	}
	ck_assert_uint_gt(one_less, times / 8);
	ck_assert_uint_gt(all_lost, 0);
	free(good);
	free(bad);
}

/* Two heads with one key, as a crash without sync may leave them: the one that was written later
 * counts, and its data. */
TEST(test_two_heads)
{
	size_t n;
	struct tier_disk_opts o = rig_opts(16 * SLOT); /* 8 segments of 2 */
	struct tier *t = rig_open(&o);
	struct tier_key k1 = rig_key(1);
	ck_assert_int_eq(rig_put(t, 0, SLOT), 0);
	ck_assert_int_eq(rig_put(t, 1, SLOT), 0);
	t->ops->destroy(t);
	char *old = slurp("heads-0000", &n);
	t = rig_open(&o);
	ck_assert_int_eq(t->ops->remove(t, &k1), 0);
	ck_assert_int_eq(rig_put(t, 2, SLOT), 0); /* in its slot */
	ck_assert_int_eq(rig_put(t, 1, SLOT), 0);
	t->ops->destroy(t);
	flip("segment-0000", SLOT); /* what it had is no longer whole */
	spit("heads-0000", old, n);
	t = rig_open(&o);
	ck_assert_uint_eq(rig_stat(t).blocks, 2);
	ck_assert_int_eq(rig_get(t, 0, SLOT), 0);
	ck_assert_int_eq(rig_get(t, 1, SLOT), 0);
	t->ops->destroy(t);
	free(old);
}

/* --- a stop that is cut, and the machine started again --- */

static void child_puts(unsigned n)
{
	struct tier_disk_opts o = rig_opts(4 * MIB);
	struct tier *t = rig_open(&o);
	for (unsigned i = 0; i < n; i++)
		if (rig_put(t, i, 64 * KIB) != 0)
			_exit(1);
	/* as systemd does when a stop takes too long */
	raise(SIGKILL);
}

/* What was acknowledged stays, whatever cuts the stop, also when the machine starts again after
 * it; disk_sync is not set. */
TEST(test_cut_stop)
{
	enum { N = 20 };
	int status;
	char cmd[300];
	fflush(NULL);
	pid_t pid = fork();
	if (pid == 0)
		child_puts(N);
	ck_assert_int_eq(waitpid(pid, &status, 0), pid);
	ck_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
	/* format 1 kept the boot there */
	snprintf(cmd, sizeof cmd, "sync; sed -i 's/^boot .*/boot another/' '%s'", rig_path("state"));
	ck_assert_int_eq(system(cmd), 0);
	struct tier_disk_opts o = rig_opts(4 * MIB);
	struct tier *t = rig_open(&o);
	for (unsigned i = 0; i < N; i++)
		ck_assert_msg(rig_get(t, i, 64 * KIB) == 0,
		              "block %u of %u was acknowledged and is not there", i, N);
	t->ops->destroy(t);
}

/* --- a flush --- */

static void child_flushes(void)
{
	struct tier_disk_opts o = rig_opts(4 * MIB);
	struct tier *t = rig_open(&o);
	for (unsigned i = 0; i < 20; i++)
		if (rig_put(t, i, 64 * KIB) != 0)
			_exit(1);
	tier_flushed(t, NULL);
	raise(SIGKILL);
}

/* Nothing comes back after a flush was answered, and what is stored after it stays. */
TEST(test_flush_lasts)
{
	int status;
	for (unsigned round = 0; round < 5; round++) {
		fflush(NULL);
		pid_t pid = fork();
		if (pid == 0)
			child_flushes();
		ck_assert_int_eq(waitpid(pid, &status, 0), pid);
		ck_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
		struct tier_disk_opts o = rig_opts(4 * MIB);
		struct tier *t = rig_open(&o);
		ck_assert_uint_eq(rig_stat(t).blocks, 0);
		for (unsigned i = 0; i < 20; i++)
			ck_assert_int_eq(rig_get(t, i, 64 * KIB), ERR_NOTFOUND);
		tier_flushed(t, NULL);
		ck_assert_int_eq(rig_put(t, 100, 64 * KIB), 0);
		t->ops->destroy(t);
		t = rig_open(&o);
		ck_assert_int_eq(rig_get(t, 100, 64 * KIB), 0);
		t->ops->destroy(t);
	}
}

/* A flush that cannot be made last says so; the blocks are gone until a restart, and the next
 * flush that can be written holds. */
TEST(test_flush_fails)
{
	struct tier_disk_opts o = rig_opts(4 * MIB);
	struct tier *t = rig_open(&o);
	ck_assert_int_eq(rig_put(t, 1, 64 * KIB), 0);
	ck_assert_int_eq(mkdir(rig_path("state.new"), 0700), 0);
	struct flush_rig r = flush_rig();
	t->ops->flush(t, &r.f);
	flush_rig_wait(&r);
	ck_assert_int_eq(r.f.code, ERR_IO);
	ck_assert_msg(strstr(r.f.text, "may be back after a restart") != NULL, "%s", r.f.text);
	ck_assert_int_eq(rig_get(t, 1, 64 * KIB), ERR_NOTFOUND);
	ck_assert_int_eq(rmdir(rig_path("state.new")), 0);
	tier_flushed(t, NULL);
	t->ops->destroy(t);
	t = rig_open(&o);
	ck_assert_int_eq(rig_get(t, 1, 64 * KIB), ERR_NOTFOUND);
	t->ops->destroy(t);
}

/* --- what the state file says --- */

TEST(test_state)
{
	static const struct {
		const char *text; /* NULL: as it is */
		int kept;
	} row[] = {
		{NULL, 1},
		{"format 1\nboot x\nsync 0\nclean 1\n", 0},
		{"format 2\nflush 0\ncheck 0000000000000000\n", 0},
		{"format 2\nflush 0\n", 0},
		{"garbage", 0},
		{"", 0},
	};
	struct tier_disk_opts o = rig_opts(4 * MIB);
	for (unsigned i = 0; i < sizeof row / sizeof row[0]; i++) {
		struct tier *t = rig_open(&o);
		ck_assert_int_eq(rig_put(t, i, SLOT), 0);
		t->ops->destroy(t);
		if (row[i].text)
			spit("state", row[i].text, strlen(row[i].text));
		spit("index", "of format 1", 11);
		t = rig_open(&o);
		ck_assert_msg(rig_get(t, i, SLOT) == (row[i].kept ? 0 : ERR_NOTFOUND), "row %u", i);
		ck_assert_int_eq(access(rig_path("index"), F_OK) == 0, row[i].kept);
		t->ops->destroy(t);
	}
}

/* --- files of others --- */

/* A folder with files of others is refused by their names, and they stay; without them it is
 * taken. Its own name makes a file ours only beside the mark. */
TEST(test_foreign)
{
	static const struct {
		const char *file[4], *named, *not_named;
		int marked;
	} row[] = {
		{{"notes.txt"}, "notes.txt", NULL, 0},
		{{"index"}, "index", NULL, 0},
		{{"segment-0000"}, "segment-0000", NULL, 0},
		{{"segment-"}, "segment-", NULL, 1},
		{{"segment-0000x"}, "segment-0000x", NULL, 1},
		{{"notes.txt", ".hidden"}, "notes.txt", "state", 1},
		{{"a", "b", "c", "d"}, ", ...", NULL, 0},
	};
	struct tier_disk_opts o = rig_opts(4 * MIB);
	for (unsigned i = 0; i < sizeof row / sizeof row[0]; i++) {
		struct tier *t = NULL;
		struct err err = {0};
		rig_folder_delete();
		ck_assert_int_eq(mkdir(rig_folder, 0700), 0);
		if (row[i].marked) {
			t = rig_open(&o);
			ck_assert_int_eq(rig_put(t, i, SLOT), 0);
			t->ops->destroy(t);
		}
		for (unsigned k = 0; k < 4 && row[i].file[k]; k++)
			spit(row[i].file[k], "mine", 4);
		ck_assert_msg(tier_disk_new(&o, &t, &err) == ERR_EXISTS, "row %u", i);
		ck_assert_msg(strstr(err.text, row[i].file[0]) || strstr(err.text, ", ..."), "%s",
		              err.text);
		ck_assert_msg(strstr(err.text, row[i].named) && strstr(err.text, rig_folder), "%s",
		              err.text);
		ck_assert_msg(!row[i].not_named || !strstr(err.text, row[i].not_named), "%s", err.text);
		for (unsigned k = 0; k < 4 && row[i].file[k]; k++) {
			size_t n;
			char *p = slurp(row[i].file[k], &n);
			ck_assert(n == 4 && memcmp(p, "mine", 4) == 0);
			free(p);
			ck_assert_int_eq(unlink(rig_path(row[i].file[k])), 0);
		}
		t = rig_open(&o);
		ck_assert_int_eq(rig_get(t, i, SLOT), row[i].marked ? 0 : ERR_NOTFOUND);
		t->ops->destroy(t);
	}
}

/* A first start that was killed before it wrote the mark has left its lock, and half a mark
 * beside; the next one goes on. */
TEST(test_before_mark)
{
	struct tier_disk_opts o = rig_opts(4 * MIB);
	spit("lock", "", 0);
	spit("state.new", "form", 4);
	ck_assert_int_eq(mkdir(rig_path("lost+found"), 0700), 0);
	struct tier *t = rig_open(&o);
	ck_assert_int_eq(rig_put(t, 1, SLOT), 0);
	t->ops->destroy(t);
}

/* --- many blocks --- */

static size_t private_kib(void)
{
	size_t kib = 0;
	char line[128];
	FILE *f = fopen("/proc/self/status", "r");
	while (f && fgets(line, sizeof line, f))
		if (sscanf(line, "RssAnon: %zu", &kib) == 1)
			break;
	if (f)
		fclose(f);
	return kib;
}

/* A tier of many blocks starts from their heads, with at most 96 bytes of memory for each; all
 * are found. */
TEST(test_many_blocks)
{
	const unsigned n = getenv("PD_FULL") ? 1000000 : 65000;
	struct disk_dir dir = {.path = rig_folder, .lock_fd = -1};
	struct disk_segment *g;
	struct tier_disk_opts o = rig_opts((size_t)n * 4096);
	o.segment_bytes = o.capacity_bytes / 8;
	struct tier *t = rig_open(&o);
	t->ops->destroy(t);
	for (unsigned number = 0, i = 0; number < 8; number++) {
		ck_assert_int_eq(disk_segment_make(&dir, NULL, 0, number, 4096, n / 8, &g), 0);
		for (unsigned k = 0; k < n / 8; k++, i++) {
			g->slot[k].key = rig_key(i);
			g->slot[k].bytes = 4096;
			g->slot[k].seq = i + 1;
		}
		ck_assert_int_eq(disk_heads_write(g, 0, n / 8, 0), 0);
		disk_segment_close(g);
		free(g);
	}
	size_t before = private_kib();
	t = rig_open(&o);
	ck_assert_uint_eq(rig_stat(t).blocks, n);
#if !defined(__SANITIZE_THREAD__) && \
	!defined(__SANITIZE_ADDRESS__) /* these keep books of their own */
	ck_assert_msg(private_kib() - before < (size_t)n * 96 / 1024 + 1024,
	              "private memory grew by %zu KiB for %u blocks", private_kib() - before, n);
#else
	(void)before;
#endif
	for (unsigned i = 0; i < 2000; i++)
		ck_assert(rig_has(t, i * 31 % n, 4096));
	ck_assert_int_eq(rig_get(t, 500, 4096), ERR_CORRUPT); /* its data was never written */
	for (unsigned i = 0; i < 50; i++)
		ck_assert_int_eq(rig_put(t, n + i, 4096), 0); /* takes the place of the oldest */
	ck_assert(!rig_has(t, 0, 4096));
	ck_assert_uint_ge(tier_flushed(t, NULL), n - 50);
	ck_assert_uint_eq(rig_stat(t).blocks, 0);
	t->ops->destroy(t);
}
