/* pool_memory.h - the memory of a KV pool in a test that plays its owner (a worker on the host)
 * or somebody that it was handed to, with the address of its data. */
#ifndef TEST_POOL_MEMORY_H
#define TEST_POOL_MEMORY_H

#include "kernels/host_memory.h"
#include "kv/handover.h"

#include <string.h>
#include <sys/mman.h>

/* What descriptors are of: one part, on device 0. */
static inline struct kv_data one_part(int fd)
{
	return (struct kv_data){.parts = 1, .fd = {fd}};
}

struct pool_memory {
	struct kv_region region;
	unsigned char *data;
};

/* Owner. As after pool_memory_fini on failure. */
__attribute__((unused)) static int pool_memory_new(struct pool_memory *p,
                                                   const struct kv_layout *layout, uint32_t blocks,
                                                   struct err *err)
{
	char text[256];
	void *data;
	int fd;
	*p = (struct pool_memory){.region = {.control_fd = -1}};
	if (host_shared_new(layout->block_bytes * blocks, &data, &fd, text, sizeof text))
		return err_set(err, ERR_NOMEM, "%s", text);
	struct kv_data part = one_part(fd);
	int r = kv_region_create(&p->region, layout, blocks, &part, err);
	if (r < 0)
		munmap(data, layout->block_bytes * blocks);
	else
		p->data = data;
	return r;
}

/* Another process: takes the descriptors over. */
__attribute__((unused)) static int pool_memory_map(struct pool_memory *p,
                                                   const struct kv_layout *layout, uint32_t blocks,
                                                   int control_fd, int data_fd, struct err *err)
{
	char text[256];
	void *data;
	struct kv_data part = one_part(data_fd);
	int r = kv_region_map(&p->region, layout, blocks, "cpu", control_fd, &part, err);
	p->data = NULL;
	if (r < 0)
		return r;
	if (host_shared_map(data_fd, p->region.data_bytes, &data, text, sizeof text)) {
		kv_region_fini(&p->region);
		return err_set(err, ERR_INVALID, "%s", text);
	}
	p->data = data;
	return 0;
}

/* To the other end of a socket; ring_fd -1: none. */
__attribute__((unused)) static int pool_memory_offer(const struct pool_memory *p, int sock,
                                                     const struct handover_hello *h, int ring_fd,
                                                     struct err *err)
{
	const struct handover_fds fds = {p->region.control_fd, ring_fd, p->region.data};
	return handover_offer(sock, h, &fds, err);
}

__attribute__((unused)) static void pool_memory_fini(struct pool_memory *p)
{
	if (p->data)
		munmap(p->data, p->region.data_bytes);
	p->data = NULL;
	kv_region_fini(&p->region);
}

#endif
