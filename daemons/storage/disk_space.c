/* disk_space.c - segments, their slots and classes.
 *
 * What always holds: a class's `slots` and `free` count the slots of its living segments; file_bytes is the sum over all segments in the table, dying_bytes over
 * those that die. Room that does not suffice is an answer, not an error. */
#include "disk_space.h"
#include "disk_io.h"

#include "util/check.h"
#include "util/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define SEGMENTS_AT_MOST 512u   /* as the capacity is cut; leftovers come on top, up to DISK_SEGMENTS_MAX */
#define SEGMENTS_AT_LEAST 8u
#define HALVINGS 4

void disk_space_init(struct disk_space *s, uint64_t capacity_bytes, uint64_t segment_bytes)
{
	memset(s, 0, sizeof *s);
	s->capacity_bytes = capacity_bytes;
	s->segment_bytes = segment_bytes;
	for (unsigned i = 0; i < DISK_CLASSES_MAX; i++)
		list_init(&s->class[i].parked);
}

void disk_space_fini(struct disk_space *s)
{
	for (unsigned i = 0; i < DISK_SEGMENTS_MAX; i++) {
		struct disk_segment *g = s->segment[i];
		if (g && g->fd >= 0)
			close(g->fd);
		free(g);
		s->segment[i] = NULL;
	}
}

struct disk_class *disk_space_class(struct disk_space *s, uint32_t slot_bytes)
{
	struct disk_class *unused = NULL;
	for (unsigned i = 0; i < DISK_CLASSES_MAX; i++) {
		struct disk_class *c = &s->class[i];
		if (c->slot_bytes == slot_bytes)
			return c;
		if (!unused && c->slots == 0 && c->n_parked == 0)
			unused = c;
	}
	if (unused)
		unused->slot_bytes = slot_bytes;
	return unused;
}

uint32_t disk_space_next(const struct disk_space *s, uint32_t slot_bytes)
{
	uint64_t room = s->capacity_bytes > s->file_bytes ? s->capacity_bytes - s->file_bytes : 0, bytes = s->segment_bytes;
	if (bytes > s->capacity_bytes / SEGMENTS_AT_LEAST)
		bytes = s->capacity_bytes / SEGMENTS_AT_LEAST;
	if (bytes < s->capacity_bytes / SEGMENTS_AT_MOST)
		bytes = s->capacity_bytes / SEGMENTS_AT_MOST;
	if (bytes < slot_bytes)
		bytes = slot_bytes;
	if (bytes > room)
		bytes = room;
	uint64_t slots = bytes / slot_bytes;
	return slots > UINT32_MAX ? UINT32_MAX : (uint32_t)slots;
}

int disk_space_number(const struct disk_space *s)
{
	for (int i = 0; i < (int)DISK_SEGMENTS_MAX; i++)
		if (!s->segment[i])
			return i;
	return -1;
}

void disk_space_add(struct disk_space *s, struct disk_segment *g)
{
	CHECK(!s->segment[g->number]);
	s->segment[g->number] = g;
	s->file_bytes += g->file_bytes;
	if (g->dying) {
		s->n_dying++;
		s->dying_bytes += g->file_bytes;
		return;
	}
	struct disk_class *c = disk_space_class(s, g->slot_bytes);
	CHECK(c);   /* there is one since somebody waits in it, or at the start, where disk_space_class was asked before */
	c->slots += g->slots;
	c->free += g->slots - g->taken;
	s->slots += g->slots;
}

/* --- slots --- */

static size_t words(uint32_t slots)
{
	return (slots + (size_t)63) / 64;
}

int disk_space_taken(const struct disk_segment *g, uint32_t slot)
{
	return (int)(g->bit[slot / 64] >> slot % 64 & 1);
}

void disk_space_copied(struct disk_segment *g, uint32_t slot)
{
	g->bit[words(g->slots) + slot / 64] |= (uint64_t)1 << slot % 64;
}

int disk_space_is_copied(const struct disk_segment *g, uint32_t slot)
{
	return (int)(g->bit[words(g->slots) + slot / 64] >> slot % 64 & 1);
}

uint64_t disk_space_copies(const struct disk_space *s)
{
	uint64_t n = 0;
	for (unsigned i = 0; i < DISK_SEGMENTS_MAX; i++)
		for (size_t w = 0; s->segment[i] && w < words(s->segment[i]->slots); w++)
			n += (uint64_t)__builtin_popcountll(s->segment[i]->bit[words(s->segment[i]->slots) + w]);
	return n;
}

static uint32_t free_slot(struct disk_segment *g)
{
	uint32_t n = (uint32_t)words(g->slots);
	for (uint32_t i = 0, w = g->hint / 64; i <= n; i++, w = w + 1 < n ? w + 1 : 0) {
		if (g->bit[w] == UINT64_MAX)
			continue;
		uint32_t slot = w * 64 + (uint32_t)__builtin_ctzll(~g->bit[w]);
		if (slot < g->slots)
			return slot;
	}
	PANIC("segment %u: %u of %u slots are taken and none is free", g->number, g->taken, g->slots);
}

void disk_space_mark(struct disk_space *s, struct disk_segment *g, uint32_t slot)
{
	CHECK(slot < g->slots && !disk_space_taken(g, slot));
	g->bit[slot / 64] |= (uint64_t)1 << slot % 64;
	g->taken++;
	if (s->segment[g->number] == g && !g->dying)
		disk_space_class(s, g->slot_bytes)->free--;
}

void disk_space_give(struct disk_space *s, struct disk_segment *g, uint32_t slot)
{
	CHECK(slot < g->slots && disk_space_taken(g, slot));
	g->bit[slot / 64] &= ~((uint64_t)1 << slot % 64);
	g->bit[words(g->slots) + slot / 64] &= ~((uint64_t)1 << slot % 64);
	g->taken--;
	if (!g->dying)
		disk_space_class(s, g->slot_bytes)->free++;
}

struct disk_segment *disk_space_take(struct disk_space *s, struct disk_class *c, uint32_t *ret_slot)
{
	if (c->free == 0)
		return NULL;
	struct disk_segment *g = s->segment[c->fill];
	if (!g || g->dying || g->slot_bytes != c->slot_bytes || g->taken == g->slots) {
		g = NULL;
		for (unsigned i = 0; i < DISK_SEGMENTS_MAX && !g; i++) {
			struct disk_segment *h = s->segment[i];
			if (h && !h->dying && h->slot_bytes == c->slot_bytes && h->taken < h->slots)
				g = h;
		}
		CHECK(g);
		c->fill = g->number;
	}
	*ret_slot = free_slot(g);
	disk_space_mark(s, g, *ret_slot);
	g->hint = *ret_slot;
	return g;
}

void disk_space_clear(struct disk_space *s)
{
	for (unsigned i = 0; i < DISK_CLASSES_MAX; i++)
		s->class[i].free = s->class[i].slots;
	for (unsigned i = 0; i < DISK_SEGMENTS_MAX; i++) {
		struct disk_segment *g = s->segment[i];
		if (!g)
			continue;
		memset(g->bit, 0, 2 * words(g->slots) * sizeof g->bit[0]);
		g->taken = g->hint = 0;
	}
}

/* --- segments that go --- */

struct disk_segment *disk_space_coldest(struct disk_space *s, uint32_t other_than)
{
	struct disk_segment *best = NULL;
	for (unsigned i = 0; i < DISK_SEGMENTS_MAX; i++) {
		struct disk_segment *g = s->segment[i];
		if (g && !g->dying && g->slot_bytes != other_than && (!best || g->last_used < best->last_used))
			best = g;
	}
	return best;
}

void disk_space_kill(struct disk_space *s, struct disk_segment *g)
{
	CHECK(!g->dying && s->segment[g->number] == g);
	struct disk_class *c = disk_space_class(s, g->slot_bytes);
	g->dying = 1;
	s->n_dying++;
	c->slots -= g->slots;
	c->free -= g->slots - g->taken;
	s->slots -= g->slots;
	s->dying_bytes += g->file_bytes;
}

void disk_space_remove(struct disk_space *s, struct disk_segment *g)
{
	CHECK(g->dying && g->users == 0);
	s->segment[g->number] = NULL;
	s->file_bytes -= g->file_bytes;
	s->dying_bytes -= g->file_bytes;
	s->n_dying--;
}

/* --- files --- */

static int sys_open(const struct disk_calls *calls, const char *path, int flags)
{
	int fd = calls && calls->open ? calls->open(path, flags, 0600) : open(path, flags, 0600);
	return fd;
}

/* direct in: wanted, out: so it is. */
static int file_open(const struct disk_calls *calls, const char *path, int flags, int *direct)
{
	int fd = *direct ? sys_open(calls, path, flags | O_DIRECT) : -1;
	if (fd < 0 && *direct && errno != EINVAL)
		return -1;
	if (fd < 0) {
		*direct = 0;
		fd = sys_open(calls, path, flags);
	}
	return fd;
}

static struct disk_segment *segment_new(uint32_t number, uint32_t slot_bytes, uint32_t slots)
{
	struct disk_segment *g = mem_zalloc(sizeof *g + 2 * words(slots) * sizeof g->bit[0]);
	g->number = number;
	g->slot_bytes = slot_bytes;
	g->slots = slots;
	g->fd = -1;
	return g;
}

/* 0 or an errno. Where the file system cannot preallocate, the file has holes, and a write may find the disk full. */
static int file_fill(const struct disk_calls *calls, int fd, off_t bytes)
{
	int r = calls && calls->fallocate ? calls->fallocate(fd, 0, 0, bytes) : fallocate(fd, 0, 0, bytes);
	if (r != 0 && errno == EOPNOTSUPP)
		r = ftruncate(fd, bytes);
	return r == 0 ? 0 : errno;
}

int disk_segment_make(const char *path, const struct disk_calls *calls, int direct, uint32_t number, uint32_t slot_bytes, uint32_t slots, struct disk_segment **ret)
{
	int fd = file_open(calls, path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, &direct);
	if (fd < 0)
		return errno;
	int e = ENOSPC;
	for (int i = 0; i < HALVINGS && slots > 0; i++, slots /= 2) {
		e = file_fill(calls, fd, (off_t)slots * slot_bytes);
		if (e != ENOSPC && e != EDQUOT && e != EFBIG)
			break;
		(void)!ftruncate(fd, 0);   /* what it got */
	}
	if (e != 0) {
		close(fd);
		unlink(path);
		return e;
	}
	*ret = segment_new(number, slot_bytes, slots);
	(*ret)->fd = fd;
	(*ret)->direct = direct;
	(*ret)->file_bytes = (uint64_t)slots * slot_bytes;
	return 0;
}

struct disk_segment *disk_segment_open(const char *path, const struct disk_calls *calls, int direct, uint32_t number, uint32_t slot_bytes, uint32_t slots)
{
	struct stat st;
	int fd = file_open(calls, path, O_RDWR | O_CLOEXEC, &direct);
	int whole = fd >= 0 && fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && (uint64_t)st.st_size >= (uint64_t)slots * slot_bytes;
	if (fd >= 0 && !whole)
		close(fd);
	struct disk_segment *g = segment_new(number, slot_bytes, whole ? slots : 0);   /* what a file says is not believed before there is such a file */
	g->direct = direct;
	g->fd = whole ? fd : -1;
	g->file_bytes = whole ? (uint64_t)slots * slot_bytes : 0;
	return g;
}
