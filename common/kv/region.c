/* region.c - see region.h.
 *
 * control is a header page, then one generation word per block. Only the owner can write it: a seal
 * keeps peers from mapping it writable. Its size is fixed before it is handed over, so that no
 * access can go past its end. A peer checks size, seals and header of a received descriptor before
 * use; a mismatch is ERR_INVALID or ERR_CORRUPT. */
#include "kv/region.h"
#include "kv/pool.h"
#include "util/check.h"
#include "util/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define REGION_MAGIC 0x314e4f4947455250ull /* "PREGION1" */
#define REGION_VERSION 1u
#define PAGE_BYTES 4096u

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

/* What finds a byte of a divided pool. */
struct kv_division {
	struct kv_layout layout;
	uint32_t blocks;
	struct kv_parts parts;
};

struct region_header {
	uint64_t magic;
	uint32_t version, blocks;
	uint64_t block_bytes;
};

static size_t page_round(size_t bytes)
{
	return (bytes + PAGE_BYTES - 1) & ~(size_t)(PAGE_BYTES - 1);
}

void kv_data_close(struct kv_data *d)
{
	for (uint32_t i = 0; i < d->parts; i++)
		if (d->fd[i] >= 0)
			close(d->fd[i]);
	d->parts = 0;
}

/* Sets r to "nothing mapped", with the sizes that layout and blocks require. */
static int region_init(struct kv_region *r, const struct kv_layout *layout, uint32_t blocks,
                       struct err *err)
{
	CHECK(layout->block_bytes > 0);
	memset(r, 0, sizeof *r);
	r->control_fd = -1;
	if (blocks == 0 || blocks == KV_BLOCK_NONE)
		return err_set(err, ERR_INVALID, "invalid KV pool of %u blocks: the limit is 1 to %u",
		               blocks, KV_BLOCK_NONE - 1);
	r->blocks = blocks;
	r->control_bytes = PAGE_BYTES + page_round((size_t)blocks * sizeof *r->generations);
	r->data_bytes = layout->block_bytes * blocks; /* below 2^62: a block is at most 1 GiB */
	return 0;
}

static int memory_new(const char *name, size_t bytes, struct err *err)
{
	int fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (fd < 0)
		return err_set(err, ERR_IO, "cannot create shared memory %s: %s", name, strerror(errno));
	if (ftruncate(fd, (off_t)bytes) < 0) {
		err_set(err, ERR_NOMEM, "cannot size shared memory %s to %zu bytes: %s", name, bytes,
		        strerror(errno));
		close(fd);
		return ERR_NOMEM;
	}
	return fd;
}

static void *memory_map(int fd, size_t bytes, int prot, const char *name, struct err *err)
{
	void *p = mmap(NULL, bytes, prot, MAP_SHARED, fd, 0);
	if (p != MAP_FAILED)
		return p;
	err_set(
		err, ERR_NOMEM,
		"cannot map %zu bytes of shared memory %s: %s; lower kv blocks or give the process more",
		bytes, name, strerror(errno));
	return NULL;
}

static int memory_seal(int fd, int seals, const char *name, struct err *err)
{
	if (fcntl(fd, F_ADD_SEALS, seals | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0)
		return 0;
	return err_set(err, ERR_IO, "cannot seal shared memory %s: %s", name, strerror(errno));
}

static int region_create(struct kv_region *r, const struct kv_layout *layout, struct err *err)
{
	if ((r->control_fd = memory_new("pdserve-kv-control", r->control_bytes, err)) < 0)
		return r->control_fd;
	struct region_header *h = memory_map(r->control_fd, r->control_bytes, PROT_READ | PROT_WRITE,
	                                     "pdserve-kv-control", err);
	if (!h)
		return ERR_NOMEM;
	r->generations = (_Atomic uint64_t *)((unsigned char *)h + PAGE_BYTES);
	*h = (struct region_header){REGION_MAGIC, REGION_VERSION, r->blocks, layout->block_bytes};
	return memory_seal(r->control_fd, F_SEAL_FUTURE_WRITE, "pdserve-kv-control", err);
}

int kv_region_create(struct kv_region *r, const struct kv_layout *layout, uint32_t blocks,
                     const struct kv_data *data, struct err *err)
{
	int e = region_init(r, layout, blocks, err);
	r->data = *data;
	if (e == 0)
		e = region_create(r, layout, err);
	if (e < 0)
		kv_region_fini(r);
	return e;
}

/* A received descriptor must have exactly the size that the hello requires, and be sealed so. */
static int control_check(const struct kv_region *r, struct err *err)
{
	struct stat st;
	if (fstat(r->control_fd, &st) < 0)
		return err_set(err, ERR_IO, "cannot stat received control memory: %s", strerror(errno));
	int seals = fcntl(r->control_fd, F_GET_SEALS);
	if (seals < 0 || (seals & (F_SEAL_SHRINK | F_SEAL_GROW)) != (F_SEAL_SHRINK | F_SEAL_GROW))
		return err_set(err, ERR_INVALID, "received control memory is not sealed against resizing");
	if ((uint64_t)st.st_size != r->control_bytes)
		return err_set(err, ERR_INVALID,
		               "received control memory has %lld bytes, the peer's blocks need %zu",
		               (long long)st.st_size, r->control_bytes);
	return 0;
}

static int header_check(const struct kv_region *r, const struct region_header *in,
                        size_t block_bytes, struct err *err)
{
	struct region_header h = *in;
	if (h.magic != REGION_MAGIC || h.version != REGION_VERSION)
		return err_set(
			err, ERR_CORRUPT,
			"received control memory has magic %016llx version %u, not %016llx version %u",
			(unsigned long long)h.magic, h.version, REGION_MAGIC, REGION_VERSION);
	if (h.blocks != r->blocks || h.block_bytes != block_bytes)
		return err_set(err, ERR_CORRUPT,
		               "received control memory is of %u blocks of %llu bytes, the peer's hello "
		               "announced %u of %zu",
		               h.blocks, (unsigned long long)h.block_bytes, r->blocks, block_bytes);
	return 0;
}

static int control_map(struct kv_region *r, const struct kv_layout *layout, struct err *err)
{
	int e = control_check(r, err);
	if (e < 0)
		return e;
	struct region_header *h = memory_map(r->control_fd, r->control_bytes, PROT_READ, "control",
	                                     err);
	if (!h)
		return ERR_NOMEM;
	r->generations = (_Atomic uint64_t *)((unsigned char *)h + PAGE_BYTES);
	return header_check(r, h, layout->block_bytes, err);
}

static uint64_t locate(const void *arg, uint64_t at, unsigned *ret_part, uint64_t *ret_at)
{
	const struct kv_division *d = arg;
	return kv_part_find(&d->layout, d->blocks, d->parts, at, ret_part, ret_at);
}

static int divided_open(struct kv_region *r, const struct kv_layout *layout, const char *backend,
                        char *why, size_t size)
{
	struct kern_part part[KERN_PARTS_MAX];
	struct kv_parts parts = kv_data_parts(&r->data);
	r->division = mem_alloc(sizeof *r->division);
	*r->division = (struct kv_division){*layout, r->blocks, parts};
	for (uint32_t i = 0; i < r->data.parts; i++)
		part[i] = (struct kern_part){r->data.device[i], r->data.fd[i],
		                             kv_part_offset(layout, r->blocks, i, parts, layout->layers,
		                                            0)};
	return kern_pool_open_divided(backend, part, r->data.parts, kv_layout_copies(layout, parts),
	                              r->data_bytes, locate, r->division, &r->pool, why, size);
}

static int pool_open(struct kv_region *r, const struct kv_layout *layout, const char *backend,
                     struct err *err)
{
	char why[256] = "";
	const struct kv_data *d = &r->data;
	int k = d->parts > 1 ? divided_open(r, layout, backend, why, sizeof why)
	                     : kern_pool_open(backend, d->device[0], d->fd[0], r->data_bytes, &r->pool,
	                                      why, sizeof why);
	if (k == 0)
		return 0;
	int code = k == KERN_ENOTSUP  ? ERR_UNSUPPORTED
	           : k == KERN_EINVAL ? ERR_INVALID
	           : k == KERN_ENOMEM ? ERR_NOMEM
	           : k == KERN_ELOST  ? ERR_CLOSED
	                              : ERR_IO;
	if (d->parts > 1)
		return err_set(err, code, "blocks on devices %d to %d of backend %s cannot be copied: %s",
		               d->device[0], d->device[d->parts - 1], backend, why);
	return err_set(err, code, "blocks on device %d of backend %s cannot be copied: %s",
	               d->device[0], backend, why);
}

int kv_region_map(struct kv_region *r, const struct kv_layout *layout, uint32_t blocks,
                  const char *backend, int control_fd, const struct kv_data *data, struct err *err)
{
	CHECK(data->parts && data->parts <= KERN_PARTS_MAX &&
	      kv_layout_divides(layout, kv_data_parts(data)));
	int e = region_init(r, layout, blocks, err);
	r->control_fd = control_fd;
	r->data = *data;
	if (e == 0)
		e = control_map(r, layout, err);
	if (e == 0)
		e = pool_open(r, layout, backend, err);
	if (e < 0)
		kv_region_fini(r);
	return e;
}

void kv_region_fini(struct kv_region *r)
{
	if (r->generations)
		munmap((unsigned char *)r->generations - PAGE_BYTES, r->control_bytes);
	kern_pool_close(&r->pool);
	free(r->division);
	if (r->control_fd >= 0)
		close(r->control_fd);
	kv_data_close(&r->data);
	memset(r, 0, sizeof *r);
	r->control_fd = -1;
}
