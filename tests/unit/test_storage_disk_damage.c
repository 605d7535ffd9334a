/* test_storage_disk_damage.c - the disk tier over files that do not hold: flipped bits, segments that are torn or gone, a damaged index, the leavings of a crash
 * of the machine; and an index that is large. Nothing wrong is ever served, and the tier starts again with what holds. */
#include "tests/unit/disk_rig.h"

#include "daemons/storage/disk_index.h"

#include <stdatomic.h>

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

/* A flipped bit anywhere: told as damage, dropped, never moved out; afterwards a miss, and it can be stored again. */
START_TEST(test_corrupt)
{
	static const size_t at[] = {0, 1, 70000, SLOT - 1};
	struct tier_disk_opts o = rig_opts(8 * SLOT);
	struct tier *t = rig_open(&o);
	for (unsigned i = 0; i < sizeof at / sizeof at[0]; i++) {
		ck_assert_int_eq(rig_put(t, 5, SLOT), 0);
		ck_assert_int_eq(rig_get(t, 5, SLOT), 0);
		if (i % 2) {   /* by another process, or under a tier that runs */
			t->ops->destroy(t);
			t = rig_open(&o);
		}
		flip("segment-0000", (off_t)at[i]);   /* its slots are filled from the front */
		struct rig_op *g = rig_op(5, SLOT, 0);
		t->ops->get(t, &g->op);
		ck_assert_int_eq(rig_wait(g), ERR_CORRUPT);
		ck_assert_int_eq(g->moved, 0);
		ck_assert_int_eq(g->tier, TIER_NONE);
		ck_assert_ptr_nonnull(strstr(g->text, "checksum"));
		rig_free(g);
		ck_assert(!rig_has(t, 5, SLOT));
		ck_assert_int_eq(rig_get(t, 5, SLOT), ERR_NOTFOUND);
		ck_assert_uint_eq(rig_stat(t).corrupt, 1);   /* of this tier: it is a new one each time */
		t->ops->destroy(t);
		t = rig_open(&o);
		ck_assert_uint_eq(rig_stat(t).blocks, 0);
	}
	t->ops->destroy(t);
}
END_TEST

/* Segment files that are shorter, gone, or something else: their blocks are gone, the others are there, and the room is used again. */
START_TEST(test_segments_lost)
{
	struct tier_disk_opts o = rig_opts(16 * SLOT);   /* 8 segments of 2 */
	struct tier *t = rig_open(&o);
	for (unsigned i = 0; i < 14; i++)
		ck_assert_int_eq(rig_put(t, i, SLOT), 0);
	t->ops->destroy(t);
	ck_assert_int_eq(truncate(rig_path("segment-0001"), SLOT), 0);
	ck_assert_int_eq(unlink(rig_path("segment-0002")), 0);
	ck_assert_int_eq(unlink(rig_path("segment-0003")), 0);
	ck_assert_int_eq(mkdir(rig_path("segment-0003"), 0700), 0);
	ck_assert_int_eq(rmdir(rig_path("segment-0003")), 0);
	ck_assert_int_eq(symlink("/etc/passwd", rig_path("segment-0099")), 0);   /* swept, not followed */
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
	ck_assert_int_eq(truncate(rig_path("segment-0000"), 1000), 0);   /* under a tier that runs */
	ck_assert_int_eq(rig_get(t, 1, SLOT), ERR_CORRUPT);
	ck_assert_int_eq(rig_get(t, 1, SLOT), ERR_NOTFOUND);
	t->ops->destroy(t);
}
END_TEST

/* --- what is lost --- */

#define UNTIL(what) \
	for (uint64_t until_ = clock_us() + RIG_WAIT_S * 1000000u; !(what); usleep(1000)) \
		ck_assert_msg(clock_us() < until_, "waited in vain for: %s", #what)

static void copied_down(struct tier *t, unsigned name)
{
	struct tier_key k = rig_key(name);
	t->ops->stored(t, &k, 1);
}

/* Lost is what was damaged, evicted or in a file that is gone, unless a tier below was said to have it; not what somebody drops. */
START_TEST(test_lost)
{
	struct tier_disk_opts o = rig_opts(16 * SLOT);   /* 8 segments of 2; one block fewer is kept */
	struct tier *t = rig_open(&o);
	struct tier_key k = rig_key(4);
	for (unsigned i = 0; i < 14; i++)
		ck_assert_int_eq(rig_put(t, i, SLOT), 0);
	copied_down(t, 0);
	copied_down(t, 100);                             /* of nobody */
	flip("segment-0000", 0);
	flip("segment-0000", SLOT);
	ck_assert_int_eq(rig_get(t, 0, SLOT), ERR_CORRUPT);
	ck_assert_int_eq(rig_get(t, 1, SLOT), ERR_CORRUPT);
	UNTIL(rig_stat(t).blocks == 12);
	ck_assert_uint_eq(rig_stat(t).lost, 1);
	ck_assert_int_eq(rig_put(t, 0, SLOT), 0);        /* another block in the place of one that was copied */
	flip("segment-0000", 0);
	ck_assert_int_eq(rig_get(t, 0, SLOT), ERR_CORRUPT);
	UNTIL(rig_stat(t).blocks == 12);
	ck_assert_uint_eq(rig_stat(t).lost, 2);
	copied_down(t, 2);
	copied_down(t, 3);
	ck_assert_int_eq(t->ops->remove(t, &k), 0);
	for (unsigned i = 20; i < 28; i++)
		ck_assert_int_eq(rig_put(t, i, SLOT), 0);
	UNTIL(rig_stat(t).evictions >= 4);
	struct tier_stat s = rig_stat(t);
	ck_assert_uint_eq(s.lost, 2 + s.evictions - 2);
	for (unsigned i = 0; i < 28; i++)
		copied_down(t, i);
	t->ops->flush(t);
	for (unsigned i = 50; i < 64; i++)
		ck_assert_int_eq(rig_put(t, i, SLOT), 0);
	ck_assert_uint_eq(rig_stat(t).lost, s.lost);
	flip("segment-0000", 0);
	for (unsigned i = 50; i < 64; i++)
		rig_get(t, i, SLOT);
	UNTIL(rig_stat(t).blocks == 13);
	ck_assert_uint_eq(rig_stat(t).lost, s.lost + 1);
	ck_assert_int_eq(rig_put(t, 64, SLOT), 0);
	t->ops->destroy(t);
	ck_assert_int_eq(unlink(rig_path("segment-0003")), 0);
	t = rig_open(&o);
	UNTIL(rig_stat(t).blocks == 12);
	ck_assert_uint_eq(rig_stat(t).lost, 2);
	ck_assert_uint_eq(rig_stat(t).evictions, 0);
	t->ops->destroy(t);
}
END_TEST

/* --- a damaged index --- */

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

/* Damage number i of an index of n bytes: cut, emptied, other bytes in pages, bits flipped, old pages in the place of new ones. */
static size_t damage(char *p, size_t n, unsigned i)
{
	unsigned seed = i * 2654435761u + 12345u;
	size_t at = seed % n, page = at / 4096 * 4096;
	switch (i % 8) {
	case 0:
		return i / 8 % 2 ? at : page;
	case 1:
		memset(p + page, 0, 4096);
		return n;
	case 2:
		memset(p + page, (int)(seed >> 8), 4096);
		return n;
	case 3:
		for (unsigned k = 0; k < 4096; k++)
			p[page + k] = (char)((seed = seed * 1103515245u + 12345u) >> 16);
		return n;
	case 4:
		memmove(p + page, p + (page + 8192) % (n - 4096), 4096);
		return n;
	case 5:
		p[page + 16 + seed % 64] ^= (char)(1 << (seed >> 20) % 8);   /* page headers and node tables */
		return n;
	default:
		for (unsigned k = 0; k < 1 + i % 3; k++) {
			seed = seed * 1103515245u + 12345u;
			p[seed % n] ^= (char)(1 << (seed >> 20) % 8);
		}
		return n;
	}
}

/* Whatever is done to the index file: the tier starts, serves right blocks or none, takes new ones, and the next one starts too. */
START_TEST(test_index_damaged)
{
	enum { N = 64 };
	const unsigned times = getenv("PD_FULL") ? 400 : 24;
	unsigned held = 0, begun_anew = 0;
	size_t n, n_state;
	struct tier_disk_opts o = rig_opts(4 * MIB);
	struct tier *t = rig_open(&o);
	for (unsigned i = 0; i < N; i++)
		ck_assert_int_eq(rig_put(t, i, 4 * KIB), 0);
	t->ops->destroy(t);
	char *good = slurp("index", &n), *state = slurp("state", &n_state), *bad = mem_alloc(n);
	for (unsigned i = 0; i < times; i++) {
		memcpy(bad, good, n);
		spit("index", bad, damage(bad, n, i));
		spit("state", state, n_state);
		t = rig_open(&o);
		unsigned there = 0;
		for (unsigned k = 0; k < N; k++) {
			int code = rig_get(t, k, 4 * KIB);   /* compares */
			ck_assert_msg(code == 0 || code == ERR_NOTFOUND || code == ERR_CORRUPT, "damage %u: %s", i, err_name(code));
			there += code == 0;
		}
		held += there > 0;
		begun_anew += there == 0;
		ck_assert_int_eq(rig_put(t, 1000 + i, 4 * KIB), 0);
		t->ops->destroy(t);
		t = rig_open(&o);
		ck_assert_int_eq(rig_get(t, 1000 + i, 4 * KIB), 0);
		for (unsigned k = 0; k < N; k++)
			ck_assert_int_eq(rig_put(t, k, 4 * KIB), 0);
		t->ops->destroy(t);
		free(bad);
		bad = mem_alloc(n);
		free(good);
		good = slurp("index", &n);   /* other pages next time */
		bad = mem_grow(bad, n, 1);
	}
	ck_assert_uint_gt(held, 0);
	ck_assert_uint_gt(begun_anew, times / 8);
	free(good);
	free(bad);
	free(state);
}
END_TEST

/* Flips a bit in the record of this block, in whichever pages of the index it stands. */
static void flip_record(unsigned name, uint32_t bytes)
{
	struct tier_key k = rig_key(name);
	uint32_t sizes[2] = {bytes, bytes};
	size_t n, found = 0;
	char *index = slurp("index", &n);
	for (size_t i = 0; i + 96 < n; i++)
		if (memcmp(index + i, k.b, sizeof k.b) == 0 && memcmp(index + i + sizeof k.b + 8, sizes, sizeof sizes) == 0) {
			flip("index", (off_t)(i + sizeof k.b + 20));
			found++;
		}
	ck_assert_uint_gt(found, 0);
	free(index);
}

/* A record that is damaged under a tier that runs: the block is dropped, or replaced, and so is all that names it; the others stay, also in the next life. */
START_TEST(test_record_damaged)
{
	struct tier_disk_opts o = rig_opts(16 * SLOT);
	struct tier *t = rig_open(&o);
	for (unsigned i = 0; i < 12; i++)
		ck_assert_int_eq(rig_put(t, i, SLOT), 0);
	flip_record(3, SLOT);
	struct rig_op *g = rig_op(3, SLOT, 0);
	t->ops->get(t, &g->op);
	ck_assert_int_eq(rig_wait(g), ERR_CORRUPT);
	ck_assert_ptr_nonnull(strstr(g->text, "record"));
	rig_free(g);
	UNTIL(rig_stat(t).blocks == 11);
	ck_assert_int_eq(rig_get(t, 3, SLOT), ERR_NOTFOUND);
	ck_assert_uint_eq(rig_stat(t).corrupt, 1);
	ck_assert_uint_eq(rig_stat(t).lost, 1);
	flip_record(5, SLOT);
	ck_assert_int_eq(rig_put(t, 5, SLOT), 0);
	ck_assert_int_eq(rig_put(t, 3, SLOT), 0);
	ck_assert_uint_eq(rig_stat(t).lost, 2);
	t->ops->destroy(t);
	t = rig_open(&o);
	ck_assert_uint_eq(rig_stat(t).blocks, 12);
	for (unsigned i = 0; i < 12; i++)
		ck_assert_int_eq(rig_get(t, i, SLOT), 0);
	flip_record(7, SLOT);
	for (unsigned i = 20; i < 40; i++)               /* evicted in its turn, with its slot */
		ck_assert_int_eq(rig_put(t, i, SLOT), 0);
	ck_assert_uint_eq(rig_stat(t).blocks, 15);
	t->ops->destroy(t);
	t = rig_open(&o);
	ck_assert_uint_eq(rig_stat(t).blocks, 15);
	t->ops->destroy(t);
}
END_TEST

/* Nothing is deleted when it cannot be told whether there is an index. */
START_TEST(test_index_unseen)
{
	struct tier_disk_opts o = rig_opts(4 * MIB);
	struct err err = {0};
	char *file = mem_strdup(rig_path("index")), *away = mem_printf("%s-away", rig_folder);
	struct tier *t = rig_open(&o);
	ck_assert_int_eq(rig_put(t, 1, SLOT), 0);
	t->ops->destroy(t);
	ck_assert_int_eq(rename(file, away), 0);
	ck_assert_int_eq(symlink("index", file), 0);     /* it leads to itself */
	ck_assert_int_eq(tier_disk_new(&o, &t, &err), ERR_IO);
	ck_assert_msg(strstr(err.text, "cannot look at") != NULL, "%s", err.text);
	ck_assert_int_eq(rename(away, file), 0);
	t = rig_open(&o);
	ck_assert_int_eq(rig_get(t, 1, SLOT), 0);
	t->ops->destroy(t);
	free(file);
	free(away);
}
END_TEST

/* Damage that only a writer would meet, in the free room of pages and in their own numbers, is found by the check. */
START_TEST(test_index_pages)
{
	struct err err = {0};
	struct disk_index *ix;
	size_t n;
	unsigned seen = 0;
	ck_assert_int_eq(disk_index_check(rig_folder, &err), ERR_NOTFOUND);
	ck_assert_int_eq(disk_index_open(rig_folder, 2, 0, NULL, &ix, &err), 0);
	ck_assert_int_eq(disk_index_begin(ix), 0);
	ck_assert_int_eq(disk_index_segment_add(ix, 0, 4096, 64), 0);
	for (unsigned i = 0; i < 30; i++) {
		struct tier_key k = rig_key(i);
		struct disk_record rec = {0, i, 4096, 4096, {i, i}, i + 1, i + 1};
		ck_assert_int_eq(disk_index_add(ix, &k, &rec), 0);
	}
	ck_assert_int_eq(disk_index_commit(ix), 0);
	disk_index_close(&ix);
	ck_assert_int_eq(disk_index_check(rig_folder, &err), 0);
	char *good = slurp("index", &n), *bad = mem_alloc(n);
	for (size_t page = 2 * 4096; page < n; page += 4096)
		for (unsigned at = 0; at <= 14; at += 14) {   /* the page's number; where its entries begin */
			memcpy(bad, good, n);
			bad[page + at] ^= 2;
			spit("index", bad, n);
			seen += disk_index_check(rig_folder, &err) == ERR_CORRUPT;
		}
	ck_assert_uint_ge(seen, 2 * 6);   /* four tables, the table of tables, the free list; other pages may be free */
	spit("index", good, n);
	ck_assert_int_eq(disk_index_check(rig_folder, &err), 0);
	free(good);
	free(bad);
}
END_TEST

/* --- what the state file says --- */

START_TEST(test_state)
{
	static const struct {
		const char *text;
		int kept;
	} row[] = {
		{"format 1\nboot %s\nsync 0\nclean 1\n", 1},        /* closed in order */
		{"format 1\nboot %s\nsync 0\nclean 0\n", 1},        /* killed */
		{"format 1\nboot other\nsync 0\nclean 1\n", 1},     /* closed, then the machine started again */
		{"format 1\nboot other\nsync 1\nclean 0\n", 1},     /* the machine went down, all was synced */
		{"format 1\nboot other\nsync 0\nclean 0\n", 0},     /* and it was not */
		{"format 2\nboot %s\nsync 0\nclean 1\n", 0},
		{"garbage", 0},
		{"", 0},
	};
	char boot[64] = "", text[256];
	FILE *f = fopen("/proc/sys/kernel/random/boot_id", "r");
	if (!f || fscanf(f, "%63s", boot) != 1)
		snprintf(boot, sizeof boot, "unknown");
	if (f)
		fclose(f);
	struct tier_disk_opts o = rig_opts(4 * MIB);
	for (unsigned i = 0; i < sizeof row / sizeof row[0]; i++) {
		struct tier *t = rig_open(&o);
		ck_assert_int_eq(rig_put(t, i, SLOT), 0);
		t->ops->destroy(t);
		int n = snprintf(text, sizeof text, row[i].text, boot);
		spit("state", text, (size_t)n);
		t = rig_open(&o);
		ck_assert_msg(rig_get(t, i, SLOT) == (row[i].kept ? 0 : ERR_NOTFOUND), "row %u", i);
		t->ops->destroy(t);
	}
}
END_TEST

/* --- files of others --- */

/* A folder with files of others is refused by their names, and they stay; without them it is taken. Its own name makes a file ours only beside the mark. */
START_TEST(test_foreign)
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
		ck_assert_msg(strstr(err.text, row[i].file[0]) || strstr(err.text, ", ..."), "%s", err.text);
		ck_assert_msg(strstr(err.text, row[i].named) && strstr(err.text, rig_folder), "%s", err.text);
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
END_TEST

/* A first start that was killed before it wrote the mark has left its lock, and half a mark beside; the next one goes on. */
START_TEST(test_before_mark)
{
	struct tier_disk_opts o = rig_opts(4 * MIB);
	spit("lock", "", 0);
	spit("state.new", "form", 4);
	ck_assert_int_eq(mkdir(rig_path("lost+found"), 0700), 0);
	struct tier *t = rig_open(&o);
	ck_assert_int_eq(rig_put(t, 1, SLOT), 0);
	t->ops->destroy(t);
}
END_TEST

/* --- the index alone --- */

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

/* An index that grows far past its first map: every record is found, while another thread reads; a tier over it keeps nothing in memory per block but a bit. */
static atomic_int reading;
static void *reader_main(void *arg)
{
	struct disk_index *ix = arg;
	struct disk_reader *r = disk_reader_new(ix);
	struct disk_record rec;
	for (unsigned i = 0; reading; i++) {
		struct tier_key k = rig_key(i % 1000);
		int code = disk_reader_find(r, &k, &rec);
		ck_assert(code == ERR_NOTFOUND || (code == 0 && rec.slot == i % 1000));
	}
	disk_reader_destroy(&r);
	return NULL;
}

START_TEST(test_index_large)
{
	const unsigned n = getenv("PD_FULL") ? 1000000 : 65000;
	struct err err = {0};
	struct disk_index *ix;
	struct disk_record rec;
	pthread_t th;
	ck_assert_int_eq(disk_index_open(rig_folder, 4, 0, NULL, &ix, &err), 0);
	ck_assert_int_eq(disk_index_begin(ix), 0);
	ck_assert_int_eq(disk_index_segment_add(ix, 7, 4096, n), 0);
	ck_assert_int_eq(disk_index_commit(ix), 0);
	reading = 1;
	pthread_create(&th, NULL, reader_main, ix);
	unsigned grown = 0;
	for (unsigned i = 0; i < n;) {
		unsigned from = i;
		int r = disk_index_begin(ix);
		for (; r == 0 && i < n && i < from + 1000; i++) {
			struct tier_key k = rig_key(i);
			rec = (struct disk_record){7, i, 4096, 4096, {i, ~(uint64_t)i}, i + 1, i + 1};
			r = disk_index_add(ix, &k, &rec);
		}
		r = r == 0 ? disk_index_commit(ix) : r;
		if (r == ERR_NOMEM) {
			disk_index_abort(ix);
			ck_assert_int_eq(disk_index_grow(ix), 0);
			grown++;
			i = from;
			continue;
		}
		ck_assert_int_eq(r, 0);
	}
	reading = 0;
	pthread_join(th, NULL);
	ck_assert_uint_gt(grown, 0);
	struct disk_reader *r = disk_reader_new(ix);
	for (unsigned i = 0; i < n; i += 97) {
		struct tier_key k = rig_key(i);
		ck_assert_int_eq(disk_reader_find(r, &k, &rec), 0);
		ck_assert_uint_eq(rec.slot, i);
	}
	disk_reader_destroy(&r);
	disk_index_close(&ix);
	ck_assert_int_eq(disk_index_check(rig_folder, &err), 0);

	char text[64] = "format 1\nboot x\nsync 1\nclean 1\n";
	spit("state", text, strlen(text));
	int fd = open(rig_path("segment-0007"), O_RDWR | O_CREAT, 0600);
	ck_assert(fd >= 0 && ftruncate(fd, (off_t)n * 4096) == 0);
	close(fd);
	struct tier_disk_opts o = rig_opts((size_t)n * 4096);
	size_t before = private_kib();
	struct tier *t = rig_open(&o);
	ck_assert_uint_ge(rig_stat(t).blocks, n - 16);   /* a few are evicted at once, so that puts find room */
	for (unsigned i = 0; i < 2000; i++)
		ck_assert(rig_has(t, 100 + i * 31 % (n - 100), 4096));
#if !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)   /* these keep books of their own */
	ck_assert_msg(private_kib() < before + n / 64 + 4096, "private memory grew by %zu KiB for %u blocks", private_kib() - before, n);
#else
	(void)before;
#endif
	ck_assert_int_eq(rig_get(t, 500, 4096), ERR_CORRUPT);   /* its data was never written */
	for (unsigned i = 0; i < 50; i++)
		ck_assert_int_eq(rig_put(t, n + i, 4096), 0);     /* takes the place of the oldest */
	ck_assert(!rig_has(t, 0, 4096));
	ck_assert_uint_ge(t->ops->flush(t), n - 16);
	ck_assert_uint_eq(rig_stat(t).blocks, 0);
	t->ops->destroy(t);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("storage_disk_damage");
	TCase *c = tcase_create("damage");
	tcase_set_timeout(c, 300);
	tcase_add_checked_fixture(c, rig_folder_new, rig_folder_delete);
	tcase_add_test(c, test_corrupt);
	tcase_add_test(c, test_segments_lost);
	tcase_add_test(c, test_lost);
	tcase_add_test(c, test_index_damaged);
	tcase_add_test(c, test_record_damaged);
	tcase_add_test(c, test_index_unseen);
	tcase_add_test(c, test_index_pages);
	tcase_add_test(c, test_state);
	tcase_add_test(c, test_foreign);
	tcase_add_test(c, test_before_mark);
	tcase_add_test(c, test_index_large);
	suite_add_tcase(s, c);
	SRunner *r = srunner_create(s);
	srunner_run_all(r, CK_ENV);
	int failed = srunner_ntests_failed(r);
	srunner_free(r);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
