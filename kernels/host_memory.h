/* host_memory.h - the memory of backends whose device is the host itself. Every kind is host
 * memory; SHARED memory is a memfd that has its size for ever. Functions with a kern_device are
 * entries of kern_ops as they stand, for backends whose kern_device begins with a struct
 * host_device. */
#ifndef KERNELS_HOST_MEMORY_H
#define KERNELS_HOST_MEMORY_H

#include "kernels/kernels.h"

#include <stdarg.h>

struct host_device {
	char error[256]; /* the latest, of any kind */
	/* pages that nobody writes do not exist; 0: all are there at once, huge ones where they fit */
	int untouched;
};

/* Keeps the text of an error; returns code. */
int host_fail(struct kern_device *dev, int code, const char *fmt, va_list ap);
const char *host_last_error(const struct kern_device *dev);

void host_info(const struct kern_device *dev, struct kern_info *ret); /* zeros */

int host_mem_new(struct kern_device *dev, enum kern_memory kind, size_t bytes,
                 struct kern_mem *ret_mem);
int host_mem_share(struct kern_device *dev, const struct kern_mem *mem, int *ret_fd);
int host_mem_map(struct kern_device *dev, int fd, size_t bytes, struct kern_mem *ret_mem);
int host_mem_pin(struct kern_device *dev, void *host, size_t bytes, struct kern_mem *ret_mem);
void host_mem_free(struct kern_device *dev, struct kern_mem *mem);
int host_upload(struct kern_stream *s, kern_ptr dst, const void *src, size_t bytes);
int host_download(struct kern_stream *s, void *dst, kern_ptr src, size_t bytes);

/* Without a device: makes SHARED memory; maps what another process made. A descriptor that is not
 * sealed against resizing, or is not of exactly `bytes`, is KERN_EINVAL. munmap unmaps. */
int host_shared_new(size_t bytes, void **ret_at, int *ret_fd, char *errbuf, size_t errlen);
int host_shared_map(int fd, size_t bytes, void **ret_at, char *errbuf, size_t errlen);

#endif
