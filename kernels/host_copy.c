/* host_copy.c - the copies of backends whose pools are host memory: done when `copy` returns.
 *
 * From pool to pool by memcpy: the decode worker reads soon. Between a pool and host memory past
 * the cache (stream.h); bytes that are to be seen are shown chunk by chunk before they are
 * copied, while they are in the first cache. */
#include "kernels/copy.h"
#include "kernels/host_memory.h"
#include "kernels/stream.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { CHUNK_BYTES = 8192 };

struct host_pool {
	struct kern_pool head; /* first */
	unsigned char *at;
	size_t bytes;
};

static int host_open(int device, int fd, size_t bytes, struct kern_pool **ret_pool, char *errbuf,
                     size_t errlen)
{
	(void)device;
	struct host_pool *p = calloc(1, sizeof *p);
	void *at;
	int rc = KERN_ENOMEM;
	if (!p)
		snprintf(errbuf, errlen, "no memory");
	else
		rc = host_shared_map(fd, bytes, &at, errbuf, errlen);
	if (rc) {
		free(p);
		return rc;
	}
	p->at = at;
	p->bytes = bytes;
	*ret_pool = &p->head;
	return KERN_OK;
}

static void host_close(struct kern_pool **pool)
{
	struct host_pool *p = (struct host_pool *)*pool;
	munmap(p->at, p->bytes);
	free(p);
	*pool = NULL;
}

static unsigned char *address(struct kern_pool *pool, uint64_t at)
{
	return pool ? ((struct host_pool *)pool)->at + at : (unsigned char *)(uintptr_t)at;
}

/* Memory is written while a chunk is copied; without fetching ahead it would be read only while
 * the next one is looked at. */
static void copy_seen(const struct kern_copy *c, unsigned char *to, const unsigned char *from,
                      size_t bytes)
{
	for (size_t at = 0; at < bytes; at += CHUNK_BYTES) {
		size_t part = bytes - at < CHUNK_BYTES ? bytes - at : CHUNK_BYTES;
		c->seen(c->seen_arg, from + at, part);
		stream_copy_ahead(to + at, from + at, part, CHUNK_BYTES);
	}
}

static int host_copy(const struct kern_copy *c, uint64_t *ret_number, char *errbuf, size_t errlen)
{
	(void)errbuf, (void)errlen;
	for (size_t i = 0; i < c->n; i++) {
		unsigned char *to = address(c->to, c->piece[i].to);
		const unsigned char *from = address(c->from, c->piece[i].from);
		if (c->seen)
			copy_seen(c, to, from, c->piece[i].bytes);
		else if (c->to && c->from)
			memcpy(to, from, c->piece[i].bytes);
		else
			stream_copy(to, from, c->piece[i].bytes);
	}
	stream_end();
	*ret_number = 0;
	return KERN_OK;
}

static int host_wait(struct kern_pool *pool, uint64_t number, char *errbuf, size_t errlen)
{
	(void)pool, (void)number, (void)errbuf, (void)errlen;
	return KERN_OK;
}

const struct kern_copies kern_host_copies = {
	.abi = KERN_COPIES_ABI,
	.name = "cpu",
	.open = host_open,
	.close = host_close,
	.copy = host_copy,
	.wait = host_wait,
};
