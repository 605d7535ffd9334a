/* host_copy.c - copying for backends whose pools are host memory; complete when `copy` returns.
 *
 * Copies between pools use memcpy because the decode worker reads them soon. Copies between a pool
 * and host memory bypass the cache (stream.h); `seen` gets each chunk before it is copied, while
 * the chunk is in the L1 cache. */
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
		snprintf(errbuf, errlen, "out of memory");
	else
		rc = host_shared_map(fd, bytes, &at, errbuf, errlen);
	if (rc) {
		free(p);
		return rc;
	}
	p->head.host = at;
	p->bytes = bytes;
	*ret_pool = &p->head;
	return KERN_OK;
}

static void host_close(struct kern_pool **pool)
{
	struct host_pool *p = (struct host_pool *)*pool;
	munmap(p->head.host, p->bytes);
	free(p);
	*pool = NULL;
}

static unsigned char *address(struct kern_pool *pool, uint64_t at)
{
	return pool ? pool->host + at : (unsigned char *)(uintptr_t)at;
}

/* Prefetches the next chunk while copying this one; otherwise its first read would stall in
 * `seen`. */
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
