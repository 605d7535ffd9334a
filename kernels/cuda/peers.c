/* peers.c - GROUP memory, and how a group's ranks reach each other's copies of it. Each rank's copy
 * is SHARED memory, which the others map into the address space of their own devices. If any two
 * devices cannot access each other's memory, or if what they write does not arrive (seen where an
 * IOMMU redirects it), all ranks use one more copy in host memory instead.
 *
 * All ranks must take the same path and see the same order of mem_new calls; they agree on it
 * in exchanges. An error on one rank leaves the others waiting, until the caller ends the group. */
#include "kernels/cuda/backend.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { ALIGN = 256 };

/* What ranks exchange first. */
struct peer_hello {
	uint64_t bytes; /* of the GROUP memory */
	int32_t device;
	char numerics[48], name[64];
};

/* --- life ---------------------------------------------------------------- */

int peers_open(struct kern_device *dev)
{
	const uint32_t *word = dev->group.broken;
	size_t page_bytes = (size_t)sysconf(_SC_PAGESIZE);
	uintptr_t page = (uintptr_t)word / page_bytes * page_bytes;
	struct cuda_peers *p = calloc(1, sizeof *p);
	if (!p)
		return cuda_fail(dev, KERN_ENOMEM, "out of memory for a group");
	dev->peers = p;
	int rc = cuda_mem_new(dev, KERN_MEM_PINNED, sizeof *p->fault, &p->fault_mem);
	if (!rc)
		p->fault = p->fault_mem.host;
	if (!rc && word && !(rc = cuda_mem_pin(dev, (void *)page, page_bytes, &p->broken)))
		p->broken_at = (const uint32_t *)(p->broken.dev.v + ((uintptr_t)word - page));
	return rc;
}

static void targets_free(struct kern_device *dev, struct cuda_window *w)
{
	for (unsigned i = 0; i < w->targets; i++) {
		void *host = w->target[i].host;
		size_t bytes = w->target[i].bytes;
		cuda_mem_free(dev, &w->target[i]);
		if (w->staged)
			munmap(host, bytes);
	}
	w->targets = 0;
}

static void window_free(struct kern_device *dev, struct cuda_window *w)
{
	targets_free(dev, w);
	cuda_mem_free(dev, &w->own);
	free(w);
}

void peers_mem_free(struct kern_device *dev, kern_ptr at)
{
	for (struct cuda_window **w = &dev->peers->window; *w; w = &(*w)->next)
		if ((*w)->own.dev.v == at.v) {
			struct cuda_window *gone = *w;
			*w = gone->next;
			window_free(dev, gone);
			return;
		}
}

void peers_close(struct kern_device *dev)
{
	struct cuda_peers *p = dev->peers;
	if (!p)
		return;
	while (p->window)
		peers_mem_free(dev, p->window->own.dev);
	cuda_mem_free(dev, &p->broken);
	cuda_mem_free(dev, &p->fault_mem);
	free(p);
	dev->peers = NULL;
}

int peers_check(struct kern_device *dev)
{
	uint32_t fault = dev->peers ? __atomic_load_n(dev->peers->fault, __ATOMIC_ACQUIRE) : FAULT_NONE;
	if (fault == FAULT_NONE)
		return KERN_OK;
	if (dev->watch)
		watch_forget(dev->watch);
	if (fault == FAULT_BROKEN)
		return cuda_fail(dev, KERN_EDEVICE, "the group of ranks is broken");
	return cuda_fail(dev, KERN_EDEVICE, "rank %u did not reach a collective within %u s",
	                 fault - FAULT_LATE, dev->group.limit_s);
}

void peers_break(struct kern_device *dev)
{
	uint32_t none = FAULT_NONE;
	if (dev->peers)
		__atomic_compare_exchange_n(dev->peers->fault, &none, FAULT_BROKEN, 0, __ATOMIC_RELEASE,
		                            __ATOMIC_RELAXED);
}

const struct cuda_window *peers_window(const struct kern_device *dev, kern_ptr at, size_t bytes)
{
	const struct cuda_window *w = dev->peers->window;
	while (w && bytes &&
	       (at.v < w->own.dev.v || bytes > w->signals_at ||
	        at.v - w->own.dev.v > w->signals_at - bytes))
		w = w->next;
	return w;
}

/* --- making GROUP memory ------------------------------------------------- */

int peers_exchange(struct kern_device *dev, const void *mine, size_t bytes, int fd, void *ret_all,
                   int *ret_fds)
{
	const struct kern_group *g = &dev->group;
	return g->exchange(g->arg, mine, bytes, fd, ret_all, ret_fds)
	           ? cuda_fail(dev, KERN_EDEVICE, "the group of ranks is broken")
	           : KERN_OK;
}

int stages_exchange(struct kern_device *dev, const void *mine, size_t bytes, void *ret_all)
{
	return dev->pipe.exchange(dev->pipe.arg, mine, bytes, ret_all)
	           ? cuda_fail(dev, KERN_EDEVICE, "the pipeline of stages is broken")
	           : KERN_OK;
}

static void close_all(int *fds, unsigned n)
{
	for (unsigned i = 0; i < n; i++)
		if (fds[i] >= 0)
			close(fds[i]);
}

/* Sets *ret_direct if this device can access the memory of all others. With PDSERVE_CUDA_PEERS=0,
 * for tests of the other path, none can. */
static int meet_peers(struct kern_device *dev, size_t bytes, int *ret_direct)
{
	struct peer_hello mine = {.bytes = bytes, .device = dev->index}, all[CUDA_RANKS_MAX];
	int fds[CUDA_RANKS_MAX], rc;
	snprintf(mine.numerics, sizeof mine.numerics, "%s", dev->numerics);
	snprintf(mine.name, sizeof mine.name, "%s", dev->name);
	_Static_assert(sizeof mine <= KERN_EXCHANGE_MAX, "a hello is one exchange");
	if ((rc = peers_exchange(dev, &mine, sizeof mine, -1, all, fds)))
		return rc;
	const char *peers = getenv("PDSERVE_CUDA_PEERS");
	*ret_direct = !peers || strcmp(peers, "0");
	for (unsigned r = 0; r < dev->group.ranks; r++) {
		int can = all[r].device == dev->index;
		if (strcmp(all[r].numerics, all[0].numerics) != 0)
			return cuda_fail(dev, KERN_ENOTSUP,
			                 "rank 0 is on GPU %d (%.60s, %.40s), rank %u on GPU %d (%.60s, "
			                 "%.40s): a group needs GPUs of one compute capability",
			                 all[0].device, all[0].name, all[0].numerics, r, all[r].device,
			                 all[r].name, all[r].numerics);
		if (all[r].bytes != bytes)
			return cuda_fail(dev, KERN_EINVAL, "GROUP memory of %zu bytes, rank %u asks for %llu",
			                 bytes, r, (unsigned long long)all[r].bytes);
		if (!can && (rc = cuda_check(dev, cudaDeviceCanAccessPeer(&can, dev->index, all[r].device),
		                             "looking for access between GPUs")))
			return rc;
		*ret_direct &= can;
	}
	return KERN_OK;
}

static int map_peers(struct kern_device *dev, struct cuda_window *w, const int *fds)
{
	int rc = KERN_OK;
	for (unsigned r = 0; r < dev->group.ranks && !rc; r++)
		if (r != dev->group.rank &&
		    !(rc = cuda_mem_map(dev, fds[r], w->own.bytes, &w->target[w->targets])))
			w->targets++;
	return rc;
}

/* Sets *ret_all to whether `mine` is nonzero on all ranks of all stages: an exchange is one of
 * the whole pipeline, so a stage whose devices reach each other must not make fewer than others. */
static int agree(struct kern_device *dev, int mine, int fd, int *fds, int *ret_all)
{
	unsigned stages = dev->pipe.stages;
	uint32_t all[CUDA_RANKS_MAX], stage[CUDA_STAGES_MAX], own = mine != 0;
	int rc = peers_exchange(dev, &own, sizeof own, fd, all, fds);
	if (rc)
		return rc;
	for (unsigned r = 0; r < dev->group.ranks; r++)
		own &= all[r];
	if (stages > 1 && (rc = stages_exchange(dev, &own, sizeof own, stage))) {
		close_all(fds, dev->group.ranks);
		return rc;
	}
	for (unsigned s = 0; s < stages && stages > 1; s++)
		own &= stage[s];
	*ret_all = own != 0;
	return KERN_OK;
}

/* Sets *ret_arrive to whether what each rank writes to the others' copies is there afterwards. */
static int probe_peers(struct kern_device *dev, const struct cuda_window *w, int mapped,
                       int *ret_arrive)
{
	int fds[CUDA_RANKS_MAX], mine = 0, rc = group_probe_write(dev, w);
	if (rc || (rc = peers_exchange(dev, NULL, 0, -1, NULL, fds)) ||
	    (rc = group_probe_read(dev, w, &mine)))
		return rc;
	return agree(dev, mine && mapped, -1, fds, ret_arrive);
}

/* The copy in host memory: rank 0 makes it. */
static int map_stage(struct kern_device *dev, struct cuda_window *w)
{
	int fds[CUDA_RANKS_MAX], fd = -1, rc;
	void *host = MAP_FAILED;
	if (!dev->group.rank) {
		fd = memfd_create("pdserve-group", MFD_CLOEXEC);
		if (fd < 0 || ftruncate(fd, (off_t)w->own.bytes)) {
			if (fd >= 0)
				close(fd);
			return cuda_fail(dev, KERN_ENOMEM, "cannot create %zu bytes of shared memory: %m",
			                 w->own.bytes);
		}
	}
	rc = peers_exchange(dev, NULL, 0, fd, NULL, fds);
	if (!rc) {
		int from = dev->group.rank ? fds[0] : fd;
		host = mmap(NULL, w->own.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, from, 0);
		if (host == MAP_FAILED)
			rc = cuda_fail(dev, KERN_ENOMEM, "cannot map %zu bytes of shared memory: %m",
			               w->own.bytes);
		close_all(fds, dev->group.ranks);
	}
	if (fd >= 0)
		close(fd);
	if (!rc && (rc = cuda_mem_pin(dev, host, w->own.bytes, &w->target[0])))
		munmap(host, w->own.bytes);
	w->staged = 1;
	w->targets = !rc;
	return rc;
}

static int reach_peers(struct kern_device *dev, struct cuda_window *w)
{
	int fds[CUDA_RANKS_MAX], fd = -1, can, rc = meet_peers(dev, w->signals_at, &can);
	if (rc || (rc = cuda_mem_share(dev, &w->own, &fd)))
		return rc;
	rc = agree(dev, can, fd, fds, &can);
	close(fd);
	if (rc)
		return rc;
	int mapped = !can || (rc = map_peers(dev, w, fds)) != KERN_EINVAL;
	rc = mapped ? rc : KERN_OK; /* what does not arrive here: all ranks take the other way */
	close_all(fds, dev->group.ranks);
	if (can && !rc && !(rc = probe_peers(dev, w, mapped, &can)) && !can)
		targets_free(dev, w);
	return rc || can ? rc : map_stage(dev, w);
}

int peers_mem_new(struct kern_device *dev, size_t bytes, struct kern_mem *ret_mem)
{
	struct cuda_window *w = calloc(1, sizeof *w);
	if (!w)
		return cuda_fail(dev, KERN_ENOMEM, "out of memory for a group");
	w->signals_at = (bytes + ALIGN - 1) / ALIGN * ALIGN;
	int rc = cuda_mem_new(dev, KERN_MEM_SHARED, w->signals_at + sizeof(struct cuda_signals),
	                      &w->own);
	if (!rc)
		rc = reach_peers(dev, w);
	if (rc) {
		window_free(dev, w);
		return rc;
	}
	w->next = dev->peers->window;
	dev->peers->window = w;
	*ret_mem = (struct kern_mem){.dev = w->own.dev, .bytes = bytes, .kind = KERN_MEM_GROUP};
	return KERN_OK;
}
