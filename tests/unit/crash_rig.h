/* crash_rig.h - records what the disk tier does to the files of a folder, and makes the states that
 * a crash may leave.
 *
 * This program's own pwrite, fdatasync and so on stand before the C library's: they do the call and
 * note it in one order. What is written is in memory, so the folder itself is not looked at again.
 * A write is noted when it is over; a sync is noted when it is over, and covers what was noted
 * before it began.
 *
 * A state of the machine at a point of the record: of each file all that was synced; of its later
 * writes any subset of 512-byte sectors, each sector with a version that was written, or without;
 * its size as before or after; of the folder's changes since it was synced a beginning in their
 * order. A state of the process (kill -9): everything before the point. */
#ifndef TESTS_CRASH_RIG_H
#define TESTS_CRASH_RIG_H

#include "util/mem.h"

#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define SECTOR 512u
#define FILES_MAX 512u
#define NAME_BYTES 32u

enum note_kind {
	NOTE_CREATE,
	NOTE_WRITE,
	NOTE_SIZE,
	NOTE_SYNC,
	NOTE_RENAME,
	NOTE_UNLINK,
	NOTE_FOLDER,
	NOTE_OTHER
};

struct note {
	enum note_kind kind;
	unsigned file;                         /* CREATE, WRITE, SIZE, SYNC */
	char name[NAME_BYTES], to[NAME_BYTES]; /* CREATE, UNLINK, RENAME */
	/* WRITE; SIZE: bytes. SYNC, FOLDER: at is how many notes it covers */
	size_t at, bytes;
	unsigned char *data;
	int what; /* OTHER: the test's */
	unsigned who;
};

static struct {
	pthread_mutex_t lock;
	int on;
	char folder[256];
	struct note *note;
	size_t n, room;
	unsigned n_files;
	struct {
		char name[NAME_BYTES];
		unsigned file;
	} now[FILES_MAX]; /* names as they are */
	unsigned n_now;
} crash = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* --- recording; with the lock held --- */

static struct note *note_add(enum note_kind kind)
{
	if (crash.n == crash.room) {
		crash.room = crash.room ? 2 * crash.room : 4096;
		crash.note = mem_grow(crash.note, crash.room, sizeof *crash.note);
	}
	struct note *n = &crash.note[crash.n++];
	*n = (struct note){.kind = kind};
	return n;
}

static int name_find(const char *name)
{
	for (unsigned i = 0; i < crash.n_now; i++)
		if (strcmp(crash.now[i].name, name) == 0)
			return (int)i;
	return -1;
}

/* The name inside the folder, or NULL: not there, or not recorded. */
static const char *name_in(const char *path)
{
	size_t n = strlen(crash.folder);
	return crash.on && strncmp(path, crash.folder, n) == 0 && path[n] == '/' &&
	               strcmp(path + n, "/lock") != 0
	           ? path + n + 1
	           : NULL;
}

static int name_of_fd(int fd, char *ret, size_t size)
{
	char link[64];
	snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
	ssize_t n = readlink(link, ret, size - 1);
	ret[n > 0 ? n : 0] = 0;
	return n > 0;
}

/* The file behind a descriptor, or -1; -2: the folder itself. */
static int file_of_fd(int fd)
{
	char path[PATH_MAX];
	if (!crash.on || !name_of_fd(fd, path, sizeof path))
		return -1;
	if (strcmp(path, crash.folder) == 0)
		return -2;
	const char *name = name_in(path);
	int i = name ? name_find(name) : -1;
	return i < 0 ? -1 : (int)crash.now[i].file;
}

static void name_drop(const char *name)
{
	int i = name_find(name);
	if (i >= 0)
		crash.now[i] = crash.now[--crash.n_now];
}

static unsigned name_new(const char *name)
{
	ck_assert_uint_lt(crash.n_now, FILES_MAX);
	name_drop(name);
	snprintf(crash.now[crash.n_now].name, NAME_BYTES, "%s", name);
	crash.now[crash.n_now++].file = crash.n_files;
	struct note *n = note_add(NOTE_CREATE);
	n->file = crash.n_files;
	snprintf(n->name, sizeof n->name, "%s", name);
	return crash.n_files++;
}

static void note_write(unsigned file, size_t at, const void *data, size_t bytes)
{
	struct note *n = note_add(NOTE_WRITE);
	n->file = file;
	n->at = at;
	n->bytes = bytes;
	n->data = mem_alloc(bytes);
	memcpy(n->data, data, bytes);
}

static void note_other(int what, unsigned who)
{
	pthread_mutex_lock(&crash.lock);
	if (crash.on) {
		struct note *n = note_add(NOTE_OTHER);
		n->what = what;
		n->who = who;
	}
	pthread_mutex_unlock(&crash.lock);
}

/* --- in the place of the C library's --- */

int open(const char *path, int flags, ...)
{
	va_list ap;
	va_start(ap, flags);
	int fd = (int)syscall(SYS_openat, AT_FDCWD, path, flags, flags & O_CREAT ? va_arg(ap, int) : 0);
	va_end(ap);
	pthread_mutex_lock(&crash.lock);
	const char *name = fd >= 0 && flags & O_CREAT ? name_in(path) : NULL;
	if (name && (name_find(name) < 0 || flags & O_TRUNC))
		name_new(name);
	pthread_mutex_unlock(&crash.lock);
	return fd;
}

ssize_t pwrite(int fd, const void *p, size_t n, off_t at)
{
	ssize_t r = syscall(SYS_pwrite64, fd, p, n, at);
	pthread_mutex_lock(&crash.lock);
	int file = r > 0 ? file_of_fd(fd) : -1;
	if (file >= 0)
		note_write((unsigned)file, (size_t)at, p, (size_t)r);
	pthread_mutex_unlock(&crash.lock);
	return r;
}

static void note_size(int fd, size_t bytes)
{
	pthread_mutex_lock(&crash.lock);
	int file = file_of_fd(fd);
	if (file >= 0) {
		struct note *n = note_add(NOTE_SIZE);
		n->file = (unsigned)file;
		n->bytes = bytes;
	}
	pthread_mutex_unlock(&crash.lock);
}

int ftruncate(int fd, off_t bytes)
{
	int r = (int)syscall(SYS_ftruncate, fd, bytes);
	if (r == 0)
		note_size(fd, (size_t)bytes);
	return r;
}

int fallocate(int fd, int mode, off_t at, off_t bytes)
{
	int r = (int)syscall(SYS_fallocate, fd, mode, at, bytes);
	if (r == 0)
		note_size(fd, (size_t)(at + bytes));
	return r;
}

/* What stdio has written is seen only here. */
static void note_stdio(int fd)
{
	char path[PATH_MAX], text[512];
	pthread_mutex_lock(&crash.lock);
	const char *name = name_of_fd(fd, path, sizeof path) ? name_in(path) : NULL;
	if (name && strcmp(name, "state.new") == 0) {
		ssize_t n = pread(fd, text, sizeof text, 0);
		/* opened for writing alone */
		int own = n < 0 ? (int)syscall(SYS_openat, AT_FDCWD, path, O_RDONLY, 0) : -1;
		if (own >= 0) {
			n = pread(own, text, sizeof text, 0);
			close(own);
		}
		ck_assert_int_gt(n, 0);
		note_write(name_new(name), 0, text, (size_t)n);
	}
	pthread_mutex_unlock(&crash.lock);
}

static int sync_with(long number, int fd)
{
	note_stdio(fd);
	pthread_mutex_lock(&crash.lock);
	size_t covers = crash.n;
	int file = file_of_fd(fd);
	pthread_mutex_unlock(&crash.lock);
	int r = (int)syscall(number, fd);
	pthread_mutex_lock(&crash.lock);
	if (r == 0 && crash.on && file != -1) {
		struct note *n = note_add(file == -2 ? NOTE_FOLDER : NOTE_SYNC);
		n->file = file == -2 ? 0 : (unsigned)file;
		n->at = covers;
	}
	pthread_mutex_unlock(&crash.lock);
	return r;
}

int fsync(int fd)
{
	return sync_with(SYS_fsync, fd);
}

int fdatasync(int fd)
{
	return sync_with(SYS_fdatasync, fd);
}

static int note_unlink(const char *name)
{
	if (!name || name_find(name) < 0)
		return 0;
	snprintf(note_add(NOTE_UNLINK)->name, NAME_BYTES, "%s", name);
	name_drop(name);
	return 1;
}

int unlink(const char *path)
{
	int r = (int)syscall(SYS_unlink, path);
	pthread_mutex_lock(&crash.lock);
	if (r == 0)
		note_unlink(name_in(path));
	pthread_mutex_unlock(&crash.lock);
	return r;
}

int rename(const char *from, const char *to)
{
	int r = (int)syscall(SYS_rename, from, to);
	pthread_mutex_lock(&crash.lock);
	const char *a = name_in(from), *b = name_in(to);
	int i = r == 0 && a && b ? name_find(a) : -1;
	if (i >= 0) {
		struct note *n = note_add(NOTE_RENAME);
		snprintf(n->name, sizeof n->name, "%s", a);
		snprintf(n->to, sizeof n->to, "%s", b);
		unsigned file = crash.now[i].file;
		name_drop(b);
		name_drop(a);
		snprintf(crash.now[crash.n_now].name, NAME_BYTES, "%s", b);
		crash.now[crash.n_now++].file = file;
	}
	pthread_mutex_unlock(&crash.lock);
	return r;
}

static inline void crash_record(const char *folder)
{
	snprintf(crash.folder, sizeof crash.folder, "%s", folder);
	crash.on = 1;
}

static inline void crash_forget(void)
{
	for (size_t i = 0; i < crash.n; i++)
		free(crash.note[i].data);
	crash.n = 0;
	crash.n_files = crash.n_now = 0;
	crash.on = 0;
}

/* --- states --- */

enum crash_kind { CRASH_PROCESS, CRASH_NONE, CRASH_ALL, CRASH_WRITES, CRASH_SECTORS, CRASH_KINDS };

struct crash_file {
	unsigned char *data;
	size_t size, room;
	size_t synced; /* notes of it below are there for certain */
};

static struct crash_file crash_file[FILES_MAX * 8];

static void file_size(struct crash_file *f, size_t size)
{
	if (size > f->room) {
		f->data = mem_grow(f->data, size, 1);
		memset(f->data + f->room, 0, size - f->room);
		f->room = size;
	}
	if (size < f->size)
		memset(f->data + size, 0, f->size - size);
	f->size = size;
}

static unsigned crash_random(unsigned *seed)
{
	*seed = *seed * 1103515245u + 12345u;
	return *seed >> 12;
}

/* A write whose sectors are there as the kind says: none, all, this write or not, each sector or
 * not. */
static void file_write(struct crash_file *f, const struct note *n, int certain,
                       enum crash_kind kind, unsigned *seed)
{
	unsigned odds = 1 + crash_random(seed) % 3; /* of four */
	int whole = kind == CRASH_ALL || (kind == CRASH_WRITES && crash_random(seed) % 2);
	for (size_t done = 0, part; done < n->bytes; done += part) {
		size_t at = n->at + done;
		part = SECTOR - at % SECTOR;
		part = part < n->bytes - done ? part : n->bytes - done;
		if (!certain && !whole && (kind != CRASH_SECTORS || crash_random(seed) % 4 >= odds))
			continue;
		if (at + part > f->size)
			file_size(f, at + part);
		memcpy(f->data + at, n->data + done, part);
	}
}

/* Writes the state of the first n notes into the empty folder `to`. */
static inline void crash_state(size_t n, enum crash_kind kind, unsigned *seed, const char *to)
{
	size_t folder = 0, changes = 0, kept, seen = 0;
	int dead = kind == CRASH_PROCESS;
	ck_assert_uint_lt(crash.n_files, sizeof crash_file / sizeof *crash_file);
	for (unsigned i = 0; i < crash.n_files; i++)
		crash_file[i].size = crash_file[i].synced = 0;
	for (size_t i = 0; i < n; i++) {
		const struct note *e = &crash.note[i];
		if (e->kind == NOTE_SYNC)
			crash_file[e->file].synced = e->at;
		else if (e->kind == NOTE_FOLDER)
			folder = e->at;
	}
	for (size_t i = folder; i < n; i++)
		changes += crash.note[i].kind == NOTE_CREATE || crash.note[i].kind == NOTE_RENAME ||
		           crash.note[i].kind == NOTE_UNLINK;
	kept = dead || kind == CRASH_ALL ? changes
	       : kind == CRASH_NONE      ? 0
	                                 : crash_random(seed) % (changes + 1);
	for (unsigned i = 0; i < crash.n_files; i++)
		memset(crash_file[i].data ? crash_file[i].data : (unsigned char *)"", 0,
		       crash_file[i].room);
	struct {
		char name[NAME_BYTES];
		unsigned file;
	} have[FILES_MAX];
	unsigned n_have = 0;
	for (size_t i = 0; i < n; i++) {
		const struct note *e = &crash.note[i];
		struct crash_file *f = &crash_file[e->file];
		int certain = dead || i < f->synced;
		if (e->kind == NOTE_WRITE)
			file_write(f, e, certain, kind, seed);
		else if (e->kind == NOTE_SIZE &&
		         (certain || kind == CRASH_ALL || (kind != CRASH_NONE && crash_random(seed) % 2)))
			file_size(f, e->bytes);
		if (e->kind != NOTE_CREATE && e->kind != NOTE_RENAME && e->kind != NOTE_UNLINK)
			continue;
		if (i >= folder && seen++ >= kept)
			continue;
		unsigned file = e->file;
		/* what of that name was, goes; a renamed one takes its file along */
		for (unsigned k = 0; k < n_have; k++)
			if (strcmp(have[k].name, e->name) == 0 ||
			    (e->kind == NOTE_RENAME && strcmp(have[k].name, e->to) == 0)) {
				file = e->kind == NOTE_RENAME && strcmp(have[k].name, e->name) == 0 ? have[k].file
				                                                                    : file;
				have[k--] = have[--n_have];
			}
		if (e->kind == NOTE_UNLINK)
			continue;
		snprintf(have[n_have].name, NAME_BYTES, "%s", e->kind == NOTE_RENAME ? e->to : e->name);
		have[n_have++].file = file;
	}
	for (unsigned i = 0; i < n_have; i++) {
		char path[PATH_MAX];
		snprintf(path, sizeof path, "%s/%.*s", to, (int)NAME_BYTES, have[i].name);
		const struct crash_file *f = &crash_file[have[i].file];
		int fd = (int)syscall(SYS_openat, AT_FDCWD, path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
		ck_assert_int_ge(fd, 0);
		ck_assert_int_eq(syscall(SYS_pwrite64, fd, f->data, f->size, 0), (long)f->size);
		close(fd);
	}
}

#endif
