/* copy.h - copying blocks of KV pools without an engine: what the messager and the storage need
 * from a backend. It depends on nothing else of pdserve.
 *
 * A pool is SHARED memory of a device (device.h) that another process created, opened by its
 * descriptor. Only its backend addresses it; callers say which pieces to copy, from one pool to
 * another or between a pool and host memory.
 *
 *  - Any thread may call any function, also concurrently for one pool; kern_pool_close only while
 *    no copy of the pool is in progress.
 *  - Copies run concurrently with the device's own engine and are not ordered with it: the caller
 *    knows that the bytes are there.
 *  - kern_copy may return before the copy completes; its source and destination must be left alone
 *    until kern_wait on its ticket has returned. Copies to one pool run in order, and so do those
 *    from one pool to host memory: waiting for the last is enough. Of a divided pool this holds for
 *    each part, and waiting for the last waits for all. */
#ifndef KERNELS_COPY_H
#define KERNELS_COPY_H

#include "kernels/error.h"

#include <stddef.h>
#include <stdint.h>

#define KERN_COPIES_ABI 4u /* raised when a struct or a signature below changes */

struct kern_copies;

/* The start of a backend's own pool struct; kern_pool_open fills in `by` and `bytes`. `by` never
 * sees a divided pool, only its parts. */
struct kern_pool {
	const struct kern_copies *by;
	size_t bytes;
	unsigned char *host; /* the pool's bytes, if they are in host memory; else NULL */
	int divided;         /* 1: of kern_pool_open_divided */
};

/* A range of bytes. `to` and `from`: in a pool, byte offsets; in host memory, addresses. The two do
 * not overlap. */
struct kern_piece {
	uint64_t to, from, bytes;
};

struct kern_copy {
	/* NULL: host memory. At least one is a pool; if both are, they have the same kern_copies */
	struct kern_pool *to, *from;
	const struct kern_piece *piece; /* (n), in copy order */
	size_t n;
	/* for copies from a pool to host memory: called with all bytes once, in order, in parts of any
	 * size that the host can read during the call; on the thread that calls kern_copy or kern_wait.
	 * If the source changes meanwhile, it may see other bytes than are copied. May be NULL */
	void (*seen)(void *arg, const void *at, size_t bytes);
	void *seen_arg;
};

/* For backends: 1 if pieces may read or write what others write, so that their order matters. */
static inline int kern_copy_is_ordered(const struct kern_copy *c)
{
	if (c->to == c->from)
		return c->n > 1;
	for (size_t i = 0; i < c->n; i++)
		for (size_t j = 0; j < i; j++)
			if (c->piece[i].to < c->piece[j].to + c->piece[j].bytes &&
			    c->piece[j].to < c->piece[i].to + c->piece[i].bytes)
				return 1;
	return 0;
}

struct kern_ticket {
	struct kern_pool *pool; /* NULL: nothing to wait for */
	uint64_t number;
};

/* A backend's copy functions. They check nothing: kern_copy has done so. On error they return a
 * negative KERN_E* and a message in errbuf. */
struct kern_copies {
	uint32_t abi; /* KERN_COPIES_ABI; first */
	const char *name;
	/* Maps a descriptor, which stays the caller's. EINVAL: not sealed at exactly `bytes` bytes. The
	 * first pool of a device may take long */
	int (*open)(int device, int fd, size_t bytes, struct kern_pool **ret_pool, char *errbuf,
	            size_t errlen);
	void (*close)(struct kern_pool **pool);
	/* adjacent pieces are already joined. After an error nothing of it is in progress */
	int (*copy)(const struct kern_copy *c, uint64_t *ret_number, char *errbuf, size_t errlen);
	int (*wait)(struct kern_pool *pool, uint64_t number, char *errbuf, size_t errlen);
	/* Pins whole pages of this process's memory, which the backend's devices then read and write
	 * themselves; `device` is any that the process uses. Slow: a second per few gigabytes. Until
	 * unpin those pages stay: no munmap, no MADV_DONTNEED. No piece is of memory that two calls
	 * have pinned, nor are two that continue each other. Copies may go on meanwhile, also of this
	 * memory. unpin with the same `at`, while no copy of it is in progress. Both NULL: nothing
	 * would be gained */
	int (*pin)(int device, void *at, size_t bytes, char *errbuf, size_t errlen);
	void (*unpin)(void *at);
};

/* Opens a pool of a backend: a built-in one, or the shared object pdserve-BACKEND.so (load.h),
 * which exports kern_backend_copies and needs no symbol of this program. Returns KERN_ENOTSUP if
 * there is none, KERN_EINVAL for a descriptor that is not sealed or has another size, KERN_ELOST if
 * this process has lost the device. */
int kern_pool_open(const char *backend, int device, int fd, size_t bytes,
                   struct kern_pool **ret_pool, char *errbuf, size_t errlen);
/* Where a divided pool's byte `at` is: the first part that has it, and the offset there. Returns
 * how many bytes from it on are contiguous in that part. */
typedef uint64_t kern_locate(const void *arg, uint64_t at, unsigned *ret_part, uint64_t *ret_at);

enum { KERN_PARTS_MAX = 16 };
struct kern_part {
	int device, fd;
	size_t bytes;
};
/* Opens memory of several devices as one pool of `bytes` bytes. Each byte is in `copies`
 * consecutive parts, at the same offset: it is written to all of them and read from one. `arg`
 * outlives the pool. Fails like kern_pool_open, also with a number of parts that is not 1 to
 * KERN_PARTS_MAX or no multiple of `copies` (KERN_EINVAL). */
int kern_pool_open_divided(const char *backend, const struct kern_part *part, unsigned parts,
                           unsigned copies, size_t bytes, kern_locate *locate, const void *arg,
                           struct kern_pool **ret_pool, char *errbuf, size_t errlen);
void kern_pool_close(struct kern_pool **pool);
/* After an error nothing of it is in progress. Returns KERN_EINVAL, before anything is copied,
 * for a piece beyond its pool, pools of different backends, or a reader of a copy to a pool.
 * Between two memories, pieces that continue the previous one on both sides, or (without `seen`)
 * overlap it by the same amount on both, are copied as one. KERN_ELOST, also from kern_wait: no
 * copy of the pool will succeed in this process. */
int kern_copy(const struct kern_copy *c, struct kern_ticket *ret_ticket, char *errbuf,
              size_t errlen);
int kern_wait(const struct kern_ticket *t, char *errbuf, size_t errlen);

/* of "cpu" and "sim", whose pools are host memory */
extern const struct kern_copies kern_host_copies;

#endif
