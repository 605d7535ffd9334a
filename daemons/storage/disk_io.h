/* disk_io.h - asynchronous reads and writes of whole blocks: with io_uring, or with plain pread and
 * pwrite where io_uring is forbidden (containers).
 *
 * A disk_io belongs to one thread; only disk_io_wake may be called from others. A request belongs
 * to the caller and must live until it is taken back. Short transfers are continued; a returned
 * request is complete or has failed. */
#ifndef STORAGE_DISK_IO_H
#define STORAGE_DISK_IO_H

#include "util/err.h"
#include "util/list.h"

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct io_uring;

/* Replacements of system calls, for tests; NULL members: the system's. */
struct disk_calls {
	int (*open)(const char *path, int flags, mode_t mode);
	int (*fallocate)(int fd, int mode, off_t at, off_t bytes);
	int (*datasync)(int fd);
	int (*ring_init)(unsigned entries, struct io_uring *ring); /* 0 or -errno */
	/* called before each transfer: how many bytes to transfer at once, or -errno to fail it */
	ssize_t (*transfer)(int write, size_t bytes, off_t at);
	/* called before heads are written: 0, or an errno to fail it */
	int (*commit)(void);
};

/* Like fdatasync. */
int disk_datasync(const struct disk_calls *calls, int fd);

struct disk_req {
	struct list link; /* disk_io's */
	int fd, write;
	unsigned char *buf;
	size_t bytes, done;
	off_t at;
	int result; /* 0 or an errno; ENODATA: end of file reached early */
};

struct disk_io;

/* Room for `depth` requests. With ring == 0 the calling thread executes requests inside
 * disk_io_submit. ERR_UNSUPPORTED: io_uring unavailable. */
int disk_io_new(int ring, unsigned depth, const struct disk_calls *calls, struct disk_io **ret,
                struct err *err);
void disk_io_destroy(struct disk_io **io);
/* fd, write, buf, bytes and at are set. At most `depth` requests at a time. Passed to the kernel by
 * the next disk_io_send, disk_io_take or disk_io_wait. */
void disk_io_submit(struct disk_io *io, struct disk_req *req);
void disk_io_send(struct disk_io *io);
/* 1: disk_io_take would return a request. */
int disk_io_over(struct disk_io *io);
/* Requests submitted and not complete, as of the last call. */
unsigned disk_io_flying(const struct disk_io *io);
/* A completed request, or NULL. */
struct disk_req *disk_io_take(struct disk_io *io);
/* Blocks until a request completes or disk_io_wake is called. */
void disk_io_wait(struct disk_io *io);
/* Any thread: ends the current wait, or the next one. */
void disk_io_wake(struct disk_io *io);

#endif
