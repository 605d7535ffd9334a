/* disk_io.h - reads and writes of whole blocks, several at a time: by io_uring, or by plain pread
 * and pwrite where that is forbidden (containers).
 *
 * A disk_io is one thread's: only disk_io_wake may be called from others. A request is the caller's
 * and must live until it was taken back. Short transfers are gone on with; what comes back is
 * done whole or has failed. */
#ifndef STORAGE_DISK_IO_H
#define STORAGE_DISK_IO_H

#include "util/err.h"
#include "util/list.h"

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct io_uring;

/* What tests put in the place of the system's; a NULL member is the system's. */
struct disk_calls {
	int (*open)(const char *path, int flags, mode_t mode);
	int (*fallocate)(int fd, int mode, off_t at, off_t bytes);
	int (*datasync)(int fd);
	int (*ring_init)(unsigned entries, struct io_uring *ring); /* 0 or -errno */
	/* before each: how many of the bytes to do in one go, or -errno instead */
	ssize_t (*transfer)(int write, size_t bytes, off_t at);
	/* before heads are written: 0 or an errno instead */
	int (*commit)(void);
};

/* As fdatasync. */
int disk_datasync(const struct disk_calls *calls, int fd);

struct disk_req {
	struct list link; /* disk_io's */
	int fd, write;
	unsigned char *buf;
	size_t bytes, done;
	off_t at;
	int result; /* 0, or an errno; ENODATA: the file ends before */
};

struct disk_io;

/* Room for `depth` requests. With ring == 0 requests are done by the calling thread inside
 * disk_io_submit. ERR_UNSUPPORTED: io_uring unavailable. */
int disk_io_new(int ring, unsigned depth, const struct disk_calls *calls, struct disk_io **ret,
                struct err *err);
void disk_io_destroy(struct disk_io **io);
/* bytes, at, buf, fd and write are set. At most `depth` at a time. The kernel hears of it with
 * the next disk_io_send, disk_io_take or disk_io_wait. */
void disk_io_submit(struct disk_io *io, struct disk_req *req);
void disk_io_send(struct disk_io *io);
/* 1: disk_io_take has one. */
int disk_io_over(struct disk_io *io);
/* How many are submitted and not over, as of the last call. */
unsigned disk_io_flying(const struct disk_io *io);
/* A request that is over, or NULL. */
struct disk_req *disk_io_take(struct disk_io *io);
/* Until one is over, or disk_io_wake was called. */
void disk_io_wait(struct disk_io *io);
/* Any thread: ends a wait, the present one or the next. */
void disk_io_wake(struct disk_io *io);

#endif
