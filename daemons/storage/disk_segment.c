/* disk_segment.c - creates, opens and deletes segment files; writes heads. Needs no lock except for
 * the slots written. Lack of disk space is a result (an errno), not an error; an invalid file costs
 * its own blocks only. */
#include "disk_segment.h"
#include "disk_dir.h"
#include "disk_io.h"

#include "util/log.h"
#include "util/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#define HALVINGS 4
#define MAGIC 0x32766b7364706471u /* also identifies the byte order */
#define RUN_MAX 64u               /* heads per write */
#define READ_BYTES ((size_t)1 << 20)
#define PAGE ((size_t)4096)

/* The first 64 bytes of heads-NNNN. */
struct segment_head {
	uint64_t magic;
	uint32_t number, slot_bytes, slots, zero[9];
	uint64_t check;
};
_Static_assert(sizeof(struct disk_head) == 64 && sizeof(struct segment_head) == 64,
               "these are the file's format");

static uint32_t head_check(const struct disk_head *h, uint32_t number, uint32_t slot)
{
	return (uint32_t)XXH3_64bits_withSeed(h, offsetof(struct disk_head, check),
	                                      (uint64_t)number << 32 | slot);
}

static uint64_t segment_check(const struct segment_head *h)
{
	return XXH3_64bits(h, offsetof(struct segment_head, check));
}

static off_t head_at(uint32_t slot)
{
	return ((off_t)slot + 1) * (off_t)sizeof(struct disk_head);
}

/* 0 or an errno. */
static int write_all(int fd, const void *p, size_t n, off_t at)
{
	for (size_t done = 0; done < n;) {
		ssize_t r = pwrite(fd, (const char *)p + done, n - done, at + (off_t)done);
		if (r < 0 && errno == EINTR)
			continue;
		if (r <= 0)
			return r < 0 ? errno : EIO;
		done += (size_t)r;
	}
	return 0;
}

int disk_heads_write(const struct disk_segment *g, uint32_t slot, uint32_t n, int clear)
{
	struct disk_head h[RUN_MAX];
	int e = 0;
	for (uint32_t end = slot + n; slot < end && e == 0; slot += n) {
		n = end - slot < RUN_MAX ? end - slot : RUN_MAX;
		memset(h, 0, n * sizeof *h);
		for (uint32_t i = 0; !clear && i < n; i++) {
			const struct disk_slot *s = &g->slot[slot + i];
			h[i] = (struct disk_head){
				.key = s->key, .sum = s->sum, .seq = s->seq, .bytes = s->bytes};
			h[i].check = head_check(&h[i], g->number, slot + i);
		}
		e = write_all(g->heads_fd, h, n * sizeof *h, head_at(slot));
	}
	return e;
}

/* --- opening files --- */

static int sys_open(const struct disk_calls *calls, const char *path, int flags)
{
	return calls && calls->open ? calls->open(path, flags | O_CLOEXEC | O_NOFOLLOW, 0600)
	                            : open(path, flags | O_CLOEXEC | O_NOFOLLOW, 0600);
}

/* Opens g->fd and g->heads_fd; sets g->direct if requested and supported. 0 or an errno; then none
 * is open. */
static int files_open(const struct disk_dir *dir, const struct disk_calls *calls, int direct,
                      int flags, struct disk_segment *g)
{
	char *data = disk_dir_file(dir, "segment", g->number),
		 *heads = disk_dir_file(dir, "heads", g->number);
	g->fd = direct ? sys_open(calls, data, flags | O_DIRECT) : -1;
	g->direct = g->fd >= 0;
	if (g->fd < 0 && (!direct || errno == EINVAL))
		g->fd = sys_open(calls, data, flags);
	int e = g->fd < 0 ? errno : 0;
	g->heads_fd = e ? -1 : sys_open(calls, heads, flags);
	if (!e && g->heads_fd < 0) {
		e = errno;
		disk_segment_close(g);
	}
	free(data);
	free(heads);
	return e;
}

void disk_segment_close(struct disk_segment *g)
{
	if (g->fd >= 0)
		close(g->fd);
	if (g->heads_fd >= 0)
		close(g->heads_fd);
	g->fd = g->heads_fd = -1;
}

void disk_segment_delete(const struct disk_dir *dir, uint32_t number)
{
	static const char *const name[] = {"heads", "segment"}; /* data without heads is ignored */
	for (int i = 0; i < 2; i++) {
		char *path = disk_dir_file(dir, name[i], number);
		unlink(path);
		free(path);
	}
}

/* --- new segments --- */

/* 0 or an errno. Where the file system cannot preallocate, the file is sparse and a later write may
 * find the disk full. */
static int file_fill(const struct disk_calls *calls, int fd, off_t bytes)
{
	int r = calls && calls->fallocate ? calls->fallocate(fd, 0, 0, bytes)
	                                  : fallocate(fd, 0, 0, bytes);
	if (r != 0 && errno == EOPNOTSUPP)
		r = ftruncate(fd, bytes);
	return r == 0 ? 0 : errno;
}

/* Preallocates both files, halving *slots while there is no room. */
static int files_fill(const struct disk_calls *calls, struct disk_segment *g, uint32_t *slots)
{
	int e = ENOSPC;
	for (int i = 0; i<HALVINGS && * slots> 0; i++, *slots /= 2) {
		e = file_fill(calls, g->fd, (off_t)*slots * g->slot_bytes);
		if (e == 0)
			e = file_fill(NULL, g->heads_fd, head_at(*slots));
		if (e != ENOSPC && e != EDQUOT && e != EFBIG)
			break;
		(void)!ftruncate(g->fd, 0); /* gives back what was allocated */
		(void)!ftruncate(g->heads_fd, 0);
	}
	return e;
}

static int segment_head_write(const struct disk_segment *g)
{
	struct segment_head h = {
		.magic = MAGIC, .number = g->number, .slot_bytes = g->slot_bytes, .slots = g->slots};
	h.check = segment_check(&h);
	return write_all(g->heads_fd, &h, sizeof h, 0);
}

static int files_sync(const struct disk_dir *dir, const struct disk_calls *calls,
                      const struct disk_segment *g)
{
	if (disk_datasync(calls, g->fd) != 0 || disk_datasync(calls, g->heads_fd) != 0 ||
	    disk_dir_sync(dir) != 0)
		return errno;
	return 0;
}

int disk_segment_make(const struct disk_dir *dir, const struct disk_calls *calls, int direct,
                      uint32_t number, uint32_t slot_bytes, uint32_t slots,
                      struct disk_segment **ret)
{
	struct disk_segment *g = disk_segment_new(number, slot_bytes, slots);
	int e = files_open(dir, calls, direct, O_RDWR | O_CREAT | O_TRUNC, g);
	if (e == 0)
		e = files_fill(calls, g, &g->slots);
	if (e == 0)
		e = segment_head_write(g);
	if (e == 0 && dir->sync)
		e = files_sync(dir, calls, g);
	if (e != 0) {
		disk_segment_close(g);
		disk_segment_delete(dir, number);
		free(g);
		return e;
	}
	g->file_bytes = (uint64_t)g->slots * slot_bytes;
	*ret = g;
	return 0;
}

/* --- existing segments --- */

/* An unreadable page becomes zero, so that only its blocks are lost. */
static void read_table(int fd, unsigned char *to, size_t bytes, const char *path)
{
	unsigned bad = 0;
	for (size_t at = 0, step = READ_BYTES; at < bytes;) {
		size_t n = bytes - at < step ? bytes - at : step;
		ssize_t r = pread(fd, to + at, n, (off_t)at);
		if (r < 0 && errno == EINTR)
			continue;
		if (r == 0)
			break;
		if (r < 0 && step > PAGE) {
			step = PAGE;
			continue;
		}
		bad += r < 0;
		if (r < 0)
			memset(to + at, 0, n);
		at += r < 0 ? n : (size_t)r;
		if (at % READ_BYTES == 0)
			step = READ_BYTES;
	}
	if (bad)
		log_error("disk_heads_unreadable", "path=%s pages=%u action=its_blocks_are_dropped",
		          log_quote(path), bad);
}

/* Reads the heads of heads-NNNN (*ret_slots); NULL: its header is invalid. Invalid heads become
 * zero. */
static struct disk_head *heads_read(int fd, uint32_t number, const char *path,
                                    uint32_t *ret_slot_bytes, uint32_t *ret_slots)
{
	struct segment_head h = {0};
	read_table(fd, (unsigned char *)&h, sizeof h, path);
	if (h.magic != MAGIC || h.check != segment_check(&h) || h.number != number || h.slots == 0 ||
	    h.slots > DISK_SLOTS_MAX || h.slot_bytes == 0 || h.slot_bytes % DISK_SLOT_UNIT != 0 ||
	    h.slot_bytes > DISK_BLOCK_BYTES_MAX)
		return NULL;
	struct disk_head *all = mem_array((size_t)h.slots + 1, sizeof *all);
	read_table(fd, (unsigned char *)all, (size_t)head_at(h.slots), path);
	for (uint32_t i = 0; i < h.slots; i++) {
		const struct disk_head *from = &all[i + 1];
		int holds = from->bytes >= DISK_BLOCK_BYTES_MIN && from->bytes <= h.slot_bytes &&
		            from->seq <= DISK_SEQ_MAX && from->check == head_check(from, number, i);
		all[i] = holds ? *from : (struct disk_head){0};
	}
	*ret_slot_bytes = h.slot_bytes;
	*ret_slots = h.slots;
	return all;
}

static int is_whole(int fd, uint64_t bytes)
{
	struct stat st;
	return fd >= 0 && fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && (uint64_t)st.st_size >= bytes;
}

static int sure(int e) /* the file is missing or not ours, as opposed to a temporary error */
{
	return e == ENOENT || e == ELOOP || e == EISDIR || e == ENXIO;
}

int disk_segment_open(const struct disk_dir *dir, const struct disk_calls *calls, int direct,
                      uint32_t number, struct disk_segment **ret, struct disk_head **ret_heads,
                      uint64_t *ret_lost)
{
	char *path = disk_dir_file(dir, "heads", number);
	uint32_t slot_bytes = 0, slots = 0;
	struct disk_segment *g = NULL;
	int fd = sys_open(calls, path, O_RDWR), e = fd < 0 ? errno : 0;
	struct disk_head *heads = e == 0 ? heads_read(fd, number, path, &slot_bytes, &slots) : NULL;
	free(path);
	if (fd >= 0)
		close(fd);
	if (e == 0 && heads) {
		g = disk_segment_new(number, slot_bytes, slots);
		e = files_open(dir, calls, direct, O_RDWR, g);
	}
	int whole = e == 0 && g && is_whole(g->fd, (uint64_t)slots * slot_bytes) &&
	            (is_whole(g->heads_fd, (uint64_t)head_at(slots)) ||
	             ftruncate(g->heads_fd, head_at(slots)) == 0);
	*ret_lost = 0;
	if (whole) {
		g->file_bytes = (uint64_t)slots * slot_bytes;
		*ret = g;
		*ret_heads = heads;
		return 0;
	}
	for (uint32_t i = 0; heads && i < slots; i++)
		*ret_lost += heads[i].bytes != 0;
	if (g)
		disk_segment_close(g);
	free(g);
	free(heads);
	return e == 0 || sure(e) ? ENODATA : e;
}
