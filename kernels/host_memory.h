/* host_memory.h - memory of backends whose device is the host. Every kind is host memory; SHARED
 * memory is a memfd sealed at its size. Functions that take a kern_device can be used directly as
 * kern_ops entries by backends whose kern_device begins with a struct host_device. */
#ifndef KERNELS_HOST_MEMORY_H
#define KERNELS_HOST_MEMORY_H

#include "kernels/device.h"

#include <stdarg.h>

struct host_device {
	char error[256]; /* the latest */
	/* 1: pages are allocated when first written; 0: at once, as huge pages where they fit */
	int untouched;
};

/* Stores the text of an error; returns code. */
int host_fail(struct kern_device *dev, int code, const char *fmt, va_list ap);
const char *host_last_error(const struct kern_device *dev);

void host_info(const struct kern_device *dev, struct kern_info *ret); /* zeros */

/* GROUP memory without a group */
int host_mem_new(struct kern_device *dev, enum kern_memory kind, size_t bytes,
                 struct kern_mem *ret_mem);
int host_mem_share(struct kern_device *dev, const struct kern_mem *mem, int *ret_fd);
int host_mem_map(struct kern_device *dev, int fd, size_t bytes, struct kern_mem *ret_mem);
int host_mem_pin(struct kern_device *dev, void *host, size_t bytes, struct kern_mem *ret_mem);
void host_mem_free(struct kern_device *dev, struct kern_mem *mem);
int host_upload(struct kern_stream *s, kern_ptr dst, const void *src, size_t bytes);
int host_download(struct kern_stream *s, void *dst, kern_ptr src, size_t bytes);

/* Without a device: creates SHARED memory; maps memory that another process created. KERN_EINVAL
 * for a descriptor that is not sealed against resizing or whose size is not exactly `bytes`. Unmap
 * with munmap. */
int host_shared_new(size_t bytes, void **ret_at, int *ret_fd, char *errbuf, size_t errlen);
int host_shared_map(int fd, size_t bytes, void **ret_at, char *errbuf, size_t errlen);

#endif
