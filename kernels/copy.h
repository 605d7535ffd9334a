/* copy.h - copying blocks of KV pools without an engine: what the messager and the storage need of
 * a backend. Nothing of pdserve is above it.
 *
 * A pool is SHARED memory of a device (kernels.h) that another process made, opened by its
 * descriptor. Only its backend addresses it; everybody else says which pieces are to be copied,
 * from one pool to another or between a pool and host memory.
 *
 *  - Any thread may call any function, several at once for one pool too; kern_pool_close only when
 *    no copy of the pool is under way.
 *  - Copies run beside the work of the device's own engine and are in no order with it: whoever
 *    asks for one knows that the bytes are there.
 *  - kern_copy may return before it is done; what it reads and writes is left alone until kern_wait
 *    of its ticket has returned. Copies to one pool run in order, and so do those from one pool
 *    to host memory: waiting for the last is enough. */
#ifndef KERNELS_COPY_H
#define KERNELS_COPY_H

#include "kernels/error.h"

#include <stddef.h>
#include <stdint.h>

#define KERN_COPIES_ABI 1u /* raised when a struct or a signature below changes */

struct kern_copies;

/* A backend's own state begins with it; kern_pool_open fills it in. */
struct kern_pool {
	const struct kern_copies *by;
	size_t bytes;
};

/* A range of bytes. `to` and `from`: in a pool bytes from its beginning, in host memory the
 * address. The two do not overlap. */
struct kern_piece {
	uint64_t to, from, bytes;
};

struct kern_copy {
	/* NULL: host memory. At least one is a pool; two have the same kern_copies */
	struct kern_pool *to, *from;
	const struct kern_piece *piece; /* (n), in the order of the copy */
	size_t n;
	/* from a pool: is shown all bytes once, in order, in parts of any size, where the host can read
	 * them for the time of the call; on the thread that calls kern_copy or kern_wait. NULL:
	 * nobody looks. Of a source that changes meanwhile it may see other bytes than are copied */
	void (*seen)(void *arg, const void *at, size_t bytes);
	void *seen_arg;
};

struct kern_ticket {
	struct kern_pool *pool; /* NULL: nothing to wait for */
	uint64_t number;
};

/* A backend's copies. The functions check nothing: kern_copy has done it. Errors: a negative
 * KERN_E* and a sentence in errbuf. */
struct kern_copies {
	uint32_t abi; /* KERN_COPIES_ABI; first */
	const char *name;
	/* Maps a descriptor, which stays the caller's. EINVAL: it is not, for ever, of `bytes`
	 * bytes. The first pool of a device may take its time */
	int (*open)(int device, int fd, size_t bytes, struct kern_pool **ret_pool, char *errbuf,
	            size_t errlen);
	void (*close)(struct kern_pool **pool);
	/* neighbouring pieces are joined already. After an error nothing of it is under way */
	int (*copy)(const struct kern_copy *c, uint64_t *ret_number, char *errbuf, size_t errlen);
	int (*wait)(struct kern_pool *pool, uint64_t number, char *errbuf, size_t errlen);
};

/* Opens a pool of a backend: one that is built in, or the shared object pdserve-BACKEND.so
 * (load.h), which exports kern_backend_copies and needs no symbol of this program. KERN_ENOTSUP if
 * there is none, KERN_EINVAL for a descriptor that is not sealed or of another size, KERN_ELOST
 * if the device is lost to this process. */
int kern_pool_open(const char *backend, int device, int fd, size_t bytes,
                   struct kern_pool **ret_pool, char *errbuf, size_t errlen);
void kern_pool_close(struct kern_pool **pool);
/* After an error nothing of it is under way. KERN_EINVAL, before anything is copied, for a piece
 * beyond its pool or pools of different backends. Pieces that continue the one before on both
 * sides, or (unseen) overlap it alike, are copied as one. KERN_ELOST, also of kern_wait: no copy
 * of the pool succeeds any more in this process. */
int kern_copy(const struct kern_copy *c, struct kern_ticket *ret_ticket, char *errbuf,
              size_t errlen);
int kern_wait(const struct kern_ticket *t, char *errbuf, size_t errlen);

/* of "cpu" and "sim": pools are host memory */
extern const struct kern_copies kern_host_copies;

#endif
