/* host_memory.c - see host_memory.h. Independent of the rest of a backend, so that programs that
 * only copy blocks can link it alone. */
#include "kernels/host_memory.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { HUGE_PAGE = 2 << 20 };

static struct host_device *host(struct kern_device *dev)
{
	return (struct host_device *)(void *)dev;
}

int host_fail(struct kern_device *dev, int code, const char *fmt, va_list ap)
{
	vsnprintf(host(dev)->error, sizeof host(dev)->error, fmt, ap);
	return code;
}

const char *host_last_error(const struct kern_device *dev)
{
	return ((const struct host_device *)(const void *)dev)->error;
}

void host_info(const struct kern_device *dev, struct kern_info *ret)
{
	(void)dev;
	*ret = (struct kern_info){0};
}

/* --- shared memory ------------------------------------------------------- */

static int map(int fd, size_t bytes, void **ret_at, char *errbuf, size_t errlen)
{
	void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (p == MAP_FAILED) {
		snprintf(errbuf, errlen, "cannot map %zu bytes of shared memory: %m", bytes);
		return KERN_ENOMEM;
	}
	/* some kernels refuse these: slower, or a larger core file */
	madvise(p, bytes, MADV_HUGEPAGE);
	madvise(p, bytes, MADV_DONTDUMP);
	*ret_at = p;
	return KERN_OK;
}

int host_shared_new(size_t bytes, void **ret_at, int *ret_fd, char *errbuf, size_t errlen)
{
	int fd = memfd_create("pdserve-shared", MFD_CLOEXEC | MFD_ALLOW_SEALING), rc = KERN_ENOMEM;
	if (fd < 0 || ftruncate(fd, (off_t)bytes) ||
	    fcntl(fd, F_ADD_SEALS, F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL))
		snprintf(errbuf, errlen, "cannot create %zu bytes of shared memory: %m", bytes);
	else
		rc = map(fd, bytes, ret_at, errbuf, errlen);
	if (rc && fd >= 0)
		close(fd);
	if (!rc)
		*ret_fd = fd;
	return rc;
}

int host_shared_map(int fd, size_t bytes, void **ret_at, char *errbuf, size_t errlen)
{
	struct stat st;
	int seals = fcntl(fd, F_GET_SEALS), sealed = F_SEAL_SHRINK | F_SEAL_GROW;
	if (seals < 0 || (seals & sealed) != sealed || fstat(fd, &st) < 0)
		snprintf(errbuf, errlen, "received memory is not sealed against resizing");
	else if ((uint64_t)st.st_size != bytes)
		snprintf(errbuf, errlen, "received memory has %lld bytes, %zu were announced",
		         (long long)st.st_size, bytes);
	else
		return map(fd, bytes, ret_at, errbuf, errlen);
	return KERN_EINVAL;
}

/* --- memory of a device -------------------------------------------------- */

/* How the memory of a kern_mem is freed. */
enum host_own { OWN_NOTHING, OWN_HEAP, OWN_MAPPING };

static struct kern_mem memory(void *p, size_t bytes, enum kern_memory kind, enum host_own own)
{
	return (struct kern_mem){.dev = {(uintptr_t)p},
	                         .host = kind == KERN_MEM_DEVICE ? NULL : p,
	                         .bytes = bytes,
	                         .kind = kind,
	                         .own = (void *)(uintptr_t)own};
}

/* Zeroed, all pages allocated. */
static void *touched(size_t bytes)
{
	size_t align = bytes >= HUGE_PAGE ? HUGE_PAGE : 64;
	if (bytes > SIZE_MAX - align)
		return NULL;
	size_t size = bytes ? (bytes + align - 1) / align * align : align;
	void *p = aligned_alloc(align, size);
	if (p && align == HUGE_PAGE)
		madvise(p, size, MADV_HUGEPAGE); /* some kernels refuse it: slower, not wrong */
	return p ? memset(p, 0, size) : NULL;
}

static void *untouched(size_t bytes)
{
	void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
	               -1, 0);
	return p == MAP_FAILED ? NULL : p;
}

int host_mem_new(struct kern_device *dev, enum kern_memory kind, size_t bytes,
                 struct kern_mem *ret_mem)
{
	struct host_device *h = host(dev);
	void *p;
	int fd = 0;
	kind = kind == KERN_MEM_GROUP ? KERN_MEM_DEVICE : kind;
	if (kind == KERN_MEM_SHARED) {
		int rc = host_shared_new(bytes, &p, &fd, h->error, sizeof h->error);
		if (rc)
			return rc;
	} else if (!(p = h->untouched ? untouched(bytes) : touched(bytes))) {
		snprintf(h->error, sizeof h->error, "out of memory for %zu bytes", bytes);
		return KERN_ENOMEM;
	}
	*ret_mem = memory(p, bytes, kind,
	                  kind == KERN_MEM_SHARED || h->untouched ? OWN_MAPPING : OWN_HEAP);
	ret_mem->fd = fd;
	return KERN_OK;
}

int host_mem_share(struct kern_device *dev, const struct kern_mem *mem, int *ret_fd)
{
	int fd = mem->kind == KERN_MEM_SHARED && mem->fd > 0 ? fcntl(mem->fd, F_DUPFD_CLOEXEC, 0) : -1;
	if (fd < 0) {
		snprintf(host(dev)->error, sizeof host(dev)->error, "memory of %zu bytes cannot be shared",
		         mem->bytes);
		return KERN_EINVAL;
	}
	*ret_fd = fd;
	return KERN_OK;
}

int host_mem_map(struct kern_device *dev, int fd, size_t bytes, struct kern_mem *ret_mem)
{
	void *p;
	int rc = host_shared_map(fd, bytes, &p, host(dev)->error, sizeof host(dev)->error);
	if (!rc)
		*ret_mem = memory(p, bytes, KERN_MEM_SHARED, OWN_MAPPING);
	return rc;
}

int host_mem_pin(struct kern_device *dev, void *at, size_t bytes, struct kern_mem *ret_mem)
{
	(void)dev;
	*ret_mem = memory(at, bytes, KERN_MEM_PINNED, OWN_NOTHING);
	return KERN_OK;
}

void host_mem_free(struct kern_device *dev, struct kern_mem *mem)
{
	(void)dev;
	void *p = (void *)mem->dev.v;
	if ((enum host_own)(uintptr_t)mem->own == OWN_HEAP)
		free(p);
	if ((enum host_own)(uintptr_t)mem->own == OWN_MAPPING)
		munmap(p, mem->bytes);
	if (mem->fd > 0)
		close(mem->fd);
	*mem = (struct kern_mem){0};
}

int host_upload(struct kern_stream *s, kern_ptr dst, const void *src, size_t bytes)
{
	(void)s;
	memcpy((void *)dst.v, src, bytes);
	return KERN_OK;
}

int host_download(struct kern_stream *s, void *dst, kern_ptr src, size_t bytes)
{
	(void)s;
	memcpy(dst, (const void *)src.v, bytes);
	return KERN_OK;
}
