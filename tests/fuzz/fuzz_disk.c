/* fuzz_disk.c - a folder of the disk tier as a crash, a bad disk or somebody else left it: state,
 * heads-0000 and segment-0000 (disk_segment.h). The first byte says what of them is made right, the
 * second how many 4 KiB the segment has, the third how many heads there are; then come heads-0000
 * and what the segment begins with. The tier opens or says why not. What it gives out has the
 * checksum that it was stored with; what it is given it has, also when it is opened again. */
#include "daemons/storage/disk.h"
#include "daemons/storage/disk_segment.h"
#include "daemons/storage/sum.h"
#include "tests/fuzz/fuzz.h"
#include "util/mem.h"

#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#define HEAD_BYTES sizeof(struct disk_head)
#define HEADS_MAX 32u
#define FLAG_SEGMENT 1 /* magic, number and check of the segment's head are right */
#define FLAG_CHECKS 2  /* those of the blocks' heads */
#define FLAG_SUMS 4    /* and the checksums of the data */
#define FLAG_STATE 8   /* the state file is missing */
#define FLAG_FLUSHED 16
#define FLAG_FLUSHED_ALL 32
#define FLUSH_MARK 1000u
#define OWN_BYTES 5000u

/* --- the folder ---------------------------------------------------------- */

struct image {
	struct disk_head head[HEADS_MAX + 1]; /* the first is the segment's */
	unsigned n;
	const uint8_t *data;
	size_t data_bytes, file_bytes;
};

/* The segment's head as disk_segment.c writes it: magic, number, slot_bytes, slots, zeros, check */
struct first_head {
	uint64_t magic;
	uint32_t number, slot_bytes, slots, zero[9];
	uint64_t check;
};

static void sum_right(const struct image *m, struct disk_head *h, uint64_t slot,
                      uint32_t slot_bytes)
{
	uint64_t at = slot * slot_bytes;
	if (h->bytes > slot_bytes || h->bytes > 1 << 20)
		return;
	unsigned char *block = mem_zalloc(h->bytes + 1);
	size_t n = at < m->data_bytes ? m->data_bytes - at : 0;
	memcpy(block, m->data + (n ? at : 0), n < h->bytes ? n : h->bytes);
	const struct tier_span span = {block, h->bytes};
	h->sum = sum_spans(&span, 1);
	free(block);
}

static void make_right(struct image *m, unsigned flags)
{
	struct first_head f;
	memcpy(&f, &m->head[0], sizeof f);
	if (flags & FLAG_SEGMENT) {
		f.magic = 0x32766b7364706471u;
		f.number = 0;
		f.slot_bytes = f.slot_bytes % 8 * 4096;
		f.slots %= HEADS_MAX;
		f.check = XXH3_64bits(&f, offsetof(struct first_head, check));
	}
	memcpy(&m->head[0], &f, sizeof f);
	for (unsigned i = 0; (flags & FLAG_CHECKS) && i < m->n; i++) {
		struct disk_head *h = &m->head[i + 1];
		if (flags & FLAG_SUMS)
			sum_right(m, h, i, f.slot_bytes);
		h->check = (uint32_t)XXH3_64bits_withSeed(h, offsetof(struct disk_head, check), i);
	}
}

static void write_file(const char *folder, const char *name, const void *p, size_t n, size_t bytes)
{
	char *path = mem_printf("%s/%s", folder, name);
	int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	must(fd >= 0 && write(fd, p, n) == (ssize_t)n && ftruncate(fd, (off_t)bytes) == 0);
	close(fd);
	free(path);
}

static void write_folder(const char *folder, const struct image *m, unsigned flags)
{
	uint64_t state[2] = {2, flags & FLAG_FLUSHED_ALL ? UINT64_MAX
	                        : flags & FLAG_FLUSHED   ? FLUSH_MARK
	                                                 : 0};
	char text[128];
	int n = snprintf(text, sizeof text, "format 2\nflush %" PRIu64 "\ncheck %016" PRIx64 "\n",
	                 state[1], (uint64_t)XXH3_64bits(state, sizeof state));
	if (!(flags & FLAG_STATE))
		write_file(folder, "state", text, (size_t)n, (size_t)n);
	write_file(folder, "heads-0000", m->head, (m->n + 1) * HEAD_BYTES, (m->n + 1) * HEAD_BYTES);
	write_file(folder, "segment-0000", m->data,
	           m->data_bytes < m->file_bytes ? m->data_bytes : m->file_bytes, m->file_bytes);
}

/* --- operations that are waited for -------------------------------------- */

struct waited {
	struct tier_op op;
	unsigned char *bytes;
	int code, over;
	pthread_mutex_t lock;
	pthread_cond_t more;
};

static int move_in(struct tier_op *op, const struct tier_span *span, unsigned n)
{
	for (unsigned i = 0; i < n; i++)
		memset(span[i].at, 0x77, span[i].bytes);
	op->sum = sum_spans(span, n);
	return 0;
}

static int move_out(struct tier_op *op, const struct tier_span *span, unsigned n)
{
	struct waited *w = (struct waited *)op;
	size_t at = 0;
	for (unsigned i = 0; i < n; at += span[i++].bytes) {
		must(span[i].bytes <= op->bytes - at);
		memcpy(w->bytes + at, span[i].at, span[i].bytes);
	}
	must(at == op->bytes);
	return 0;
}

static void done(struct tier_op *op, int code, enum tier_id tier, const char *text)
{
	struct waited *w = (struct waited *)op;
	(void)text;
	must((tier == TIER_DISK) == (code == 0));
	pthread_mutex_lock(&w->lock);
	must(!w->over);
	w->over = 1;
	w->code = code;
	pthread_cond_signal(&w->more);
	pthread_mutex_unlock(&w->lock);
}

/* ret_sum: of what was moved; may be NULL. */
static int run_op(struct tier *t, const struct tier_key *key, size_t bytes, int put,
                  struct tier_sum *ret_sum)
{
	struct waited w = {
		.op = {.key = *key, .bytes = bytes, .move = put ? move_in : move_out, .done = done}};
	pthread_mutex_init(&w.lock, NULL);
	pthread_cond_init(&w.more, NULL);
	w.bytes = mem_alloc(bytes);
	put ? t->ops->put(t, &w.op) : t->ops->get(t, &w.op);
	pthread_mutex_lock(&w.lock);
	while (!w.over)
		pthread_cond_wait(&w.more, &w.lock);
	pthread_mutex_unlock(&w.lock);
	const struct tier_span span = {w.bytes, bytes};
	if (ret_sum)
		*ret_sum = put ? w.op.sum : sum_spans(&span, 1);
	free(w.bytes);
	pthread_mutex_destroy(&w.lock);
	pthread_cond_destroy(&w.more);
	return w.code;
}

/* --- one input ----------------------------------------------------------- */

static struct tier *open_tier(const char *folder)
{
	const struct tier_disk_opts o = {
		.path = folder, .capacity_bytes = 1 << 20, .depth = 1, .threads = 1, .io = "threads"};
	struct tier *t = NULL;
	struct err err = {0};
	int r = tier_disk_new(&o, &t, &err);
	must(r == 0 ? t != NULL : !t && strstr(err.text, folder) != NULL);
	return t;
}

static int is_stored(const struct image *m, const struct disk_head *like, struct tier_sum sum)
{
	for (unsigned i = 1; i <= m->n; i++)
		if (memcmp(&m->head[i].key, &like->key, sizeof like->key) == 0 &&
		    m->head[i].bytes == like->bytes && sum_equal(m->head[i].sum, sum))
			return 1;
	return 0;
}

static void check_blocks(struct tier *t, const struct image *m)
{
	struct tier_stat s;
	t->ops->stat(t, &s);
	must(s.blocks <= m->n && s.bytes <= m->file_bytes);
	for (unsigned i = 0; i < m->n; i++) {
		const struct disk_head *h = &m->head[i + 1];
		if (!h->bytes || h->bytes > 1 << 20)
			continue;
		struct tier_sum sum;
		int code = run_op(t, &h->key, h->bytes, 0, &sum);
		must(code == ERR_NOTFOUND || code == ERR_CORRUPT || (code == 0 && is_stored(m, h, sum)));
		if (code == 0)
			fuzz_accepted();
		if (code == ERR_CORRUPT) /* it is told once, and gone */
			must(run_op(t, &h->key, h->bytes, 0, NULL) == ERR_NOTFOUND);
	}
}

/* Numbers go on from the largest; beyond the limit they are not read back. */
static int numbers_end(const struct image *m)
{
	for (unsigned i = 1; i <= m->n; i++)
		if (m->head[i].seq <= DISK_SEQ_MAX && m->head[i].seq > DISK_SEQ_MAX - 1000)
			return 1;
	return 0;
}

static void run(const char *folder, const struct image *m)
{
	static const struct tier_key own = {"a block that is put now"};
	struct tier *t = open_tier(folder);
	struct tier_sum put, got;
	if (!t)
		return;
	check_blocks(t, m);
	must(run_op(t, &own, OWN_BYTES, 1, &put) == 0);
	for (int i = 0; i < 2; i++) {
		int code = run_op(t, &own, OWN_BYTES, 0, &got);
		must(code == 0 ? sum_equal(put, got) : i == 1 && numbers_end(m));
		t->ops->destroy(t);
		t = i == 0 ? open_tier(folder) : NULL;
		must(i == 1 || t != NULL);
	}
}

FUZZ(disk, 1 << 13)
{
	struct image m = {0};
	if (size < 3)
		return 0;
	unsigned flags = data[0];
	m.file_bytes = data[1] % 64 * 4096u;
	m.n = data[2] % HEADS_MAX;
	size_t heads = (m.n + 1) * HEAD_BYTES;
	heads = heads < size - 3 ? heads : size - 3;
	memcpy(m.head, data + 3, heads);
	m.data = data + 3 + heads;
	m.data_bytes = size - 3 - heads;
	make_right(&m, flags);
	const char *folder = fuzz_files((const uint8_t *)"", 0);
	write_folder(folder, &m, flags);
	run(folder, &m);
	return 0;
}
