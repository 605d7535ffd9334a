/* pool_memory.h - the memory of a KV pool in a test that plays its owner (a worker on the host)
 * or somebody that it was handed to, with the address of its data. */
#ifndef TEST_POOL_MEMORY_H
#define TEST_POOL_MEMORY_H

#include "kernels/host_memory.h"
#include "kv/region.h"

#include <string.h>
#include <sys/mman.h>

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
	*p = (struct pool_memory){.region = {.control_fd = -1, .data_fd = -1}};
	if (host_shared_new(layout->block_bytes * blocks, &data, &fd, text, sizeof text))
		return err_set(err, ERR_NOMEM, "%s", text);
	int r = kv_region_create(&p->region, layout, blocks, fd, err);
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
	int r = kv_region_map(&p->region, layout, blocks, "cpu", 0, control_fd, data_fd, err);
	p->data = NULL;
	if (r < 0)
		return r;
	if (host_shared_map(p->region.data_fd, p->region.data_bytes, &data, text, sizeof text)) {
		kv_region_fini(&p->region);
		return err_set(err, ERR_INVALID, "%s", text);
	}
	p->data = data;
	return 0;
}

__attribute__((unused)) static void pool_memory_fini(struct pool_memory *p)
{
	if (p->data)
		munmap(p->data, p->region.data_bytes);
	p->data = NULL;
	kv_region_fini(&p->region);
}

#endif
