/* disk_check.c - does an index hold? A child process reads all of it once, because LMDB trusts its file: damaged pages may crash or hang who reads them,
 * and what only a writer looks at (free room inside a page, the list of free pages) may break the next commit.
 *
 * What is checked: every page is either free, once, or in use, and the tables' own counts add up to all of them; pages in use have headers and nodes that
 * fit (the layout of LMDB's format 1); every record holds its own checksum and lies inside a segment that is known; and the tables say the same: the sums
 * of what each entry of `order` and `slots` stands for equal those over `blocks`. A table's walk goes from page to page all over the file, each once: a file that
 * fits into memory is read in one go before, and of one that does not a page is read when it is needed, alone.
 * The child changes nothing, writes nothing and says nothing; its exit status is the answer, and any other end means damage. It may compute for so long and wait
 * for the disk as long as it must: a slow disk is no damage. */
#include "disk_index.h"
#include "disk_record.h"

#include "util/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK_S_MIN 60u              /* of processor time, without the system's: damage that makes LMDB walk in circles ends there */
#define CHECK_BYTES_PER_S ((uint64_t)10 << 20)
#define READ_BYTES ((size_t)1 << 20)

#define PAGE_BYTES 4096u
#define FIRST_PAGE 2u                /* after the two that hold the roots */

enum { HOLDS = 0, DAMAGED = 3 };
enum { PAGE_BRANCH = 1, PAGE_LEAF = 2, PAGE_OVERFLOW = 4 };
enum { NODE_BIG = 1 };

/* LMDB's page and node, as they lie in the file. */
struct page {
	uint64_t number;
	uint16_t pad, flags, lower, upper;   /* overflow: lower and upper together count its pages */
	uint16_t node[];
};

struct node {
	uint16_t bytes_low, bytes_high, flags, key_bytes;
};

struct known_segment {
	uint32_t slot_bytes, slots;
};

struct check {
	MDB_txn *txn;
	MDB_dbi table[DISK_TABLES];
	struct known_segment segment[DISK_SEGMENTS_MAX];
	uint64_t order_sum[2], slots_sum[2], entries[DISK_TABLES];   /* [0]: as blocks says, [1]: as the table itself says */
	uint64_t pages, pages_free, pages_used;   /* all; those in the free list; those that the tables count */
	uint64_t *free_bit;
};

static uint64_t place(const void *place_key, size_t bytes, const void *block_key)
{
	return XXH3_64bits_withSeed(place_key, bytes, XXH3_64bits(block_key, TIER_KEY_BYTES));
}

static int see_segment(struct check *c, const MDB_val *key, const MDB_val *val)
{
	uint32_t n, slot_bytes, slots;
	if (!disk_segment_unpack(key, val, &n, &slot_bytes, &slots))
		return 0;
	c->segment[n] = (struct known_segment){slot_bytes, slots};
	return 1;
}

static int see_block(struct check *c, const MDB_val *key, const MDB_val *val)
{
	struct disk_record r;
	if (key->mv_size != TIER_KEY_BYTES || !disk_block_unpack(key->mv_data, val, &r))
		return 0;
	if (r.segment >= DISK_SEGMENTS_MAX || r.slot >= c->segment[r.segment].slots || r.slot_bytes != c->segment[r.segment].slot_bytes)
		return 0;
	struct disk_order_key o = disk_order_key(r.slot_bytes, r.used);
	struct disk_slot_key s = disk_slot_key(r.segment, r.slot);
	c->order_sum[0] += place(&o, sizeof o, key->mv_data);
	c->slots_sum[0] += place(&s, sizeof s, key->mv_data);
	return 1;
}

static int see_order(struct check *c, const MDB_val *key, const MDB_val *val)
{
	if (key->mv_size != sizeof(struct disk_order_key) || val->mv_size != TIER_KEY_BYTES)
		return 0;
	c->order_sum[1] += place(key->mv_data, key->mv_size, val->mv_data);
	return 1;
}

static int see_slot(struct check *c, const MDB_val *key, const MDB_val *val)
{
	if (key->mv_size != sizeof(struct disk_slot_key) || val->mv_size != TIER_KEY_BYTES)
		return 0;
	c->slots_sum[1] += place(key->mv_data, key->mv_size, val->mv_data);
	return 1;
}

static int walk(struct check *c, enum disk_table t, int (*see)(struct check *c, const MDB_val *key, const MDB_val *val))
{
	MDB_cursor *cur;
	MDB_val key, val;
	int rc = mdb_cursor_open(c->txn, c->table[t], &cur);
	while (rc == 0 && (rc = mdb_cursor_get(cur, &key, &val, MDB_NEXT)) == 0) {
		c->entries[t]++;
		if (!see(c, &key, &val))
			return 0;
	}
	return rc == MDB_NOTFOUND;
}

/* --- pages --- */

/* An entry of the free list: how many page numbers, then these. */
static int see_free(struct check *c, const MDB_val *key, const MDB_val *val)
{
	uint64_t n, page;
	const unsigned char *p = val->mv_data;
	if (key->mv_size != sizeof n || val->mv_size < sizeof n)
		return 0;
	memcpy(&n, p, sizeof n);
	if (n > c->pages || val->mv_size < (n + 1) * sizeof n)
		return 0;
	for (uint64_t i = 1; i <= n; i++) {
		memcpy(&page, p + i * sizeof page, sizeof page);
		if (page < FIRST_PAGE || page >= c->pages || c->free_bit[page / 64] >> page % 64 & 1)
			return 0;
		c->free_bit[page / 64] |= (uint64_t)1 << page % 64;
	}
	c->pages_free += n;
	return 1;
}

/* The nodes lie behind each other between `upper` and the page's end, and `lower` ends their table. */
static int nodes_fit(const struct page *p)
{
	unsigned n = (p->lower - (unsigned)sizeof *p) / 2, bytes = 0;
	if (p->lower < sizeof *p || p->lower % 2 || p->lower > p->upper || p->upper > PAGE_BYTES)
		return 0;
	for (unsigned i = 0; i < n; i++) {
		struct node d;
		if (p->node[i] < p->upper || p->node[i] > PAGE_BYTES - sizeof d)
			return 0;
		memcpy(&d, (const char *)p + p->node[i], sizeof d);
		uint64_t data = p->flags == PAGE_BRANCH ? 0 : d.flags & NODE_BIG ? sizeof(uint64_t) : d.bytes_low | (uint64_t)d.bytes_high << 16;
		uint64_t size = (sizeof d + d.key_bytes + data + 1) & ~(uint64_t)1;
		if (size > PAGE_BYTES - p->node[i])
			return 0;
		bytes += (unsigned)size;
	}
	return bytes == PAGE_BYTES - p->upper;
}

static int pages_hold(const struct check *c, const char *file)
{
	int fd = open(file, O_RDONLY | O_CLOEXEC);
	const unsigned char *map = fd < 0 ? MAP_FAILED : mmap(NULL, c->pages * PAGE_BYTES, PROT_READ, MAP_PRIVATE, fd, 0);
	if (map == MAP_FAILED)
		return 0;
	madvise((void *)(uintptr_t)map, c->pages * PAGE_BYTES, MADV_SEQUENTIAL);
	for (uint64_t i = FIRST_PAGE, n = 1; i < c->pages; i += n, n = 1) {
		const struct page *p = (const struct page *)(map + i * PAGE_BYTES);
		if (c->free_bit[i / 64] >> i % 64 & 1)
			continue;
		if (p->number != i)
			return 0;
		if (p->flags == PAGE_OVERFLOW)
			n = p->lower | (uint64_t)p->upper << 16;
		else if ((p->flags != PAGE_BRANCH && p->flags != PAGE_LEAF) || !nodes_fit(p))
			return 0;
		if (n == 0 || n > c->pages - i)
			return 0;
	}
	return 1;
}

static int table_pages(struct check *c, MDB_dbi table, uint64_t *ret_entries)
{
	MDB_stat st;
	unsigned flags = 0;
	int own = table <= 1;   /* LMDB's: the free list and the table of tables */
	if (mdb_stat(c->txn, table, &st) != 0 || st.ms_psize != PAGE_BYTES || (!own && mdb_dbi_flags(c->txn, table, &flags) != 0))
		return 0;
	c->pages_used += st.ms_branch_pages + st.ms_leaf_pages + st.ms_overflow_pages;
	*ret_entries = st.ms_entries;
	return flags == 0;
}

/* Every page is free or in use, and no more is in use than the tables say. */
static int pages_add_up(struct check *c, MDB_env *env, const char *file, uint64_t file_bytes)
{
	MDB_envinfo info;
	MDB_cursor *cur;
	MDB_val key, val;
	uint64_t entries;
	if (mdb_env_info(env, &info) != 0 || (info.me_last_pgno + 1) > file_bytes / PAGE_BYTES)
		return 0;
	c->pages = info.me_last_pgno + 1;
	c->free_bit = mem_array((size_t)(c->pages / 64 + 1), sizeof *c->free_bit);
	int rc = mdb_cursor_open(c->txn, 0, &cur);
	while (rc == 0 && (rc = mdb_cursor_get(cur, &key, &val, MDB_NEXT)) == 0)
		if (!see_free(c, &key, &val))
			return 0;
	int ok = rc == MDB_NOTFOUND && table_pages(c, 0, &entries) && table_pages(c, 1, &entries);
	for (int t = 0; ok && t < DISK_TABLES; t++)
		ok = table_pages(c, c->table[t], &entries) && entries == c->entries[t];
	return ok && c->pages_used + c->pages_free + FIRST_PAGE == c->pages && pages_hold(c, file);
}

/* Into the page cache, as far as there is room. */
static void read_ahead(const char *file)
{
	int fd = open(file, O_RDONLY | O_CLOEXEC);
	void *buf = mem_alloc(READ_BYTES);
	while (fd >= 0 && read(fd, buf, READ_BYTES) > 0)
		;
	if (fd >= 0)
		close(fd);
	free(buf);
}

static int index_holds(const char *file, uint64_t file_bytes)
{
	read_ahead(file);
	size_t map_bytes = ((size_t)file_bytes | 0xffff) + 1;
	MDB_env *env;
	struct check *c = mem_zalloc(sizeof *c);
	int rc = mdb_env_create(&env);
	if (rc == 0)
		rc = mdb_env_set_maxdbs(env, DISK_TABLES);
	if (rc == 0)
		rc = mdb_env_set_mapsize(env, map_bytes);
	if (rc == 0)
		rc = mdb_env_open(env, file, MDB_NOSUBDIR | MDB_RDONLY | MDB_NOLOCK | MDB_NORDAHEAD, 0600);
	if (rc == 0)
		rc = mdb_txn_begin(env, NULL, MDB_RDONLY, &c->txn);
	for (int t = 0; rc == 0 && t < DISK_TABLES; t++)
		rc = mdb_dbi_open(c->txn, disk_table_name[t], 0, &c->table[t]);
	if (rc != 0)
		return 0;
	return walk(c, DISK_SEGMENTS, see_segment) && walk(c, DISK_BLOCKS, see_block) && walk(c, DISK_ORDER, see_order) && walk(c, DISK_SLOTS, see_slot) &&
	       c->order_sum[0] == c->order_sum[1] && c->slots_sum[0] == c->slots_sum[1] && c->entries[DISK_BLOCKS] == c->entries[DISK_ORDER] &&
	       c->entries[DISK_BLOCKS] == c->entries[DISK_SLOTS] && pages_add_up(c, env, file, file_bytes);
}

/* In the child: what a crash would do is nobody's business, and nothing lasts for ever. */
static void child_alone(unsigned limit_s)
{
	static const int crash[] = {SIGSEGV, SIGBUS, SIGABRT, SIGFPE, SIGILL, SIGVTALRM, SIGTERM, SIGINT};
	sigset_t none;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
	for (size_t i = 0; i < sizeof crash / sizeof crash[0]; i++)
		signal(crash[i], SIG_DFL);
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	close_range(STDERR_FILENO, ~0u, 0);   /* the folder's lock ends with the parent; and nobody hears a library that complains before it dies */
	(void)!open("/dev/null", O_WRONLY);
	setitimer(ITIMER_VIRTUAL, &(struct itimerval){.it_value.tv_sec = limit_s}, NULL);
}

int disk_index_check(const char *folder, struct err *err)
{
	char *file = mem_printf("%s/index", folder);
	struct stat st;
	int status = 0, r;
	if (stat(file, &st) != 0) {
		r = errno == ENOENT ? ERR_NOTFOUND : ERR_IO;
		err_set(err, r, "%s: %s", file, strerror(errno));
		free(file);
		return r;
	}
	unsigned limit_s = (unsigned)(CHECK_S_MIN + (uint64_t)st.st_size / CHECK_BYTES_PER_S);
	pid_t pid = fork();
	if (pid == 0) {
		child_alone(limit_s);
		_exit(index_holds(file, (uint64_t)st.st_size) ? HOLDS : DAMAGED);
	}
	while (pid > 0 && waitpid(pid, &status, 0) < 0 && errno == EINTR)
		;
	if (pid < 0)
		r = err_set(err, ERR_IO, "cannot start a process to check %s: %s", file, strerror(errno));
	else if (WIFEXITED(status) && WEXITSTATUS(status) == HOLDS)
		r = 0;
	else if (WIFSIGNALED(status))
		r = err_set(err, ERR_CORRUPT, "reading it ends with signal %d", WTERMSIG(status));
	else
		r = err_set(err, ERR_CORRUPT, "its entries do not hold or do not agree");
	free(file);
	return r;
}
