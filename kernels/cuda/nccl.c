/* nccl.c - NCCL: adds up what the ranks of a group have (KERN_OP_REDUCE), for variant "fast", and
 * moves rows between the stages of a pipeline (KERN_OP_SEND, KERN_OP_RECV). Only this file uses it.
 * https://docs.nvidia.com/deeplearning/nccl/user-guide/docs
 *
 * The library is loaded when a device needs it, and stays loaded. There is a communicator of the
 * group's ranks and one of the same rank of every stage; their unique ids are exchanged as
 * descriptors are. Communicators are non-blocking: each call returns at once and is waited for
 * here, so that a rank or a stage that has died or is late ends the wait. Then the communicators
 * are aborted, which ends what the device has begun, and every later call returns the reason. A
 * device that has not ended its work ABORT_NS later is given up (cuda_hang). So every wait has a
 * limit. */
#include "kernels/cuda/nccl_api.h"
#include "kernels/cuda/backend.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LIBRARY "libnccl.so.2"
/* How much longer than a step's limit this file waits: a collective of our own, which names the
 * late rank (group.cu), reaches the limit first. */
#define LATER_NS 500000000u
/* How long the device may take to end what was aborted. */
#define ABORT_NS 500000000u
/* Making a communicator, and the first transfer with a stage, in limits of a step: others may still
 * load their libraries or their weights. */
#define OPEN_LIMITS 5u

enum among { AMONG_RANKS, AMONG_STAGES, AMONG };

struct nccl {
	ncclComm_t comm[AMONG]; /* NULL: there is none, or it was aborted */
	char why[300];          /* why all were aborted; empty: they work */
};

/* What ranks, or stages, exchange first. */
struct nccl_hello {
	int32_t version; /* of the library; 0: it cannot be loaded */
	uint32_t ranks;
	char machine[40], bus[16], numerics[48]; /* machine: the kernel's boot id; bus: of the GPU */
};

/* --- the library --------------------------------------------------------- */

#define FUNCTIONS(X)          \
	X(ncclGetVersion)         \
	X(ncclGetErrorString)     \
	X(ncclGetLastError)       \
	X(ncclGetUniqueId)        \
	X(ncclCommInitRankConfig) \
	X(ncclCommGetAsyncError)  \
	X(ncclCommAbort)          \
	X(ncclAllReduce)          \
	X(ncclSend)               \
	X(ncclRecv)
static struct {
	FUNCTIONS(CUDA_MEMBER)
	int number;    /* its version; 0: it cannot be used */
	char why[256]; /* if so */
} api;

static void api_look(void)
{
	const struct cuda_symbol all[] = {FUNCTIONS(CUDA_SYMBOL)};
	int number = 0;
	if (!cuda_library(LIBRARY, all, sizeof all / sizeof *all, api.why, sizeof api.why))
		return;
	if (api.ncclGetVersion(&number) != ncclSuccess || number < NCCL_API_VERSION)
		snprintf(api.why, sizeof api.why, "it is version %d, expected %d or later", number,
		         NCCL_API_VERSION);
	else
		api.number = number;
}

/* --- waiting ------------------------------------------------------------- */

/* How long a step may wait for others: as long as the more patient of its two kinds. */
static unsigned limit_s(const struct kern_device *dev)
{
	unsigned ranks = dev->group.ranks > 1 ? dev->group.limit_s : 0,
			 stages = dev->pipe.stages > 1 ? dev->pipe.limit_s : 0;
	return ranks > stages ? ranks : stages;
}

static uint64_t limit_ns(const struct kern_device *dev)
{
	return limit_s(dev) * 1000000000ull;
}

static int is_set(const uint32_t *broken)
{
	return broken && __atomic_load_n(broken, __ATOMIC_ACQUIRE);
}

/* Whether to end a wait that may last until then; sets the error. */
static int give_up(struct kern_device *dev, uint64_t until_ns, const char *doing)
{
	if (peers_check(dev))
		return 1; /* names the rank */
	if (is_set(dev->group.broken))
		cuda_fail(dev, KERN_EDEVICE, "the group of ranks is broken");
	else if (is_set(dev->pipe.broken))
		cuda_fail(dev, KERN_EDEVICE, "the pipeline of stages is broken");
	else if (cuda_now_ns() >= until_ns)
		cuda_fail(dev, KERN_EDEVICE,
		          "%s has not ended in time (the limit of a step is %u s): %s is late or has "
		          "stopped",
		          doing, limit_s(dev),
		          dev->pipe.stages < 2   ? "a rank"
		          : dev->group.ranks < 2 ? "a stage"
		                                 : "a rank or a stage");
	else
		return 0;
	return 1;
}

static void *abort_comm(void *comm)
{
	api.ncclCommAbort(comm);
	return NULL;
}

/* Ends the device's work; every later call fails with the current error as the reason.
 * ncclCommAbort ends kernels at once, but returns only when no graph has work of the communicator
 * any more, which may be never, so it has a thread of its own. Returns KERN_EDEVICE. */
static int abort_all(struct kern_device *dev)
{
	struct nccl *n = dev->nccl;
	pthread_t thread;
	snprintf(n->why, sizeof n->why, "%.299s", dev->error);
	for (unsigned i = 0; i < AMONG; i++) {
		if (n->comm[i] && !pthread_create(&thread, NULL, abort_comm, n->comm[i]))
			pthread_detach(thread);
		n->comm[i] = NULL;
	}
	peers_break(dev);
	if (dev->watch)
		watch_forget(dev->watch);
	return KERN_EDEVICE;
}

int nccl_check(struct kern_device *dev)
{
	return !dev->nccl || !dev->nccl->why[0] ? KERN_OK
	                                        : cuda_fail(dev, KERN_EDEVICE, "%s", dev->nccl->why);
}

static ncclResult_t state_of(ncclComm_t comm)
{
	ncclResult_t result;
	return api.ncclCommGetAsyncError(comm, &result) == ncclSuccess ? result : ncclInternalError;
}

/* Waits until a call of that communicator has its result. */
static int call_done(struct kern_device *dev, ncclComm_t comm, ncclResult_t result,
                     uint64_t until_ns, const char *doing)
{
	while (result == ncclInProgress) {
		if (give_up(dev, until_ns, doing))
			return abort_all(dev);
		sched_yield();
		result = state_of(comm);
	}
	if (result == ncclSuccess)
		return KERN_OK;
	cuda_fail(dev, KERN_EDEVICE, "%s: NCCL %d.%d: %s (%.200s)", doing, api.number / 10000,
	          api.number / 100 % 100, api.ncclGetErrorString(result), api.ncclGetLastError(comm));
	return abort_all(dev);
}

int nccl_wait(struct kern_device *dev, cudaEvent_t event, cudaStream_t stream)
{
	static const char *const doing[AMONG] = {"a step with sums over the ranks",
	                                         "a step of a pipeline"};
	struct nccl *n = dev->nccl;
	uint64_t until_ns = cuda_now_ns() + limit_ns(dev) + LATER_NS;
	int rc = nccl_check(dev);
	while (!rc) {
		cudaError_t state = event ? cudaEventQuery(event) : cudaStreamQuery(stream);
		if (state != cudaErrorNotReady)
			return cuda_check(dev, state, "waiting for the device");
		for (unsigned i = 0; i < AMONG && !rc; i++)
			if (n->comm[i])
				rc = call_done(dev, n->comm[i], state_of(n->comm[i]), until_ns, doing[i]);
		if (!rc && give_up(dev, until_ns, doing[n->comm[AMONG_STAGES] != NULL]))
			rc = abort_all(dev);
		sched_yield();
	}
	if (cuda_drain(stream, ABORT_NS) == cudaErrorNotReady)
		cuda_hang(dev);
	return rc;
}

/* --- opening and closing ------------------------------------------------- */

static int make_comm(struct kern_device *dev, enum among among, unsigned number, unsigned all,
                     ncclUniqueId id)
{
	ncclComm_t *comm = &dev->nccl->comm[among];
	ncclConfig_t config = {.size = sizeof config,
	                       .magic = NCCL_CONFIG_MAGIC,
	                       .version = NCCL_API_VERSION,
	                       .blocking = 0,
	                       .cgaClusterSize = NCCL_CONFIG_UNDEF_INT,
	                       .minCTAs = NCCL_CONFIG_UNDEF_INT,
	                       .maxCTAs = NCCL_CONFIG_UNDEF_INT,
	                       .splitShare = NCCL_CONFIG_UNDEF_INT};
	ncclResult_t result = api.ncclCommInitRankConfig(comm, (int)all, id, (int)number, &config);
	return call_done(dev, *comm, result, cuda_now_ns() + OPEN_LIMITS * limit_ns(dev),
	                 "making a communicator");
}

static void machine_of(char machine[40])
{
	FILE *f = fopen("/proc/sys/kernel/random/boot_id", "r");
	if (f && fgets(machine, 40, f))
		machine[strcspn(machine, "\n")] = 0;
	if (f)
		fclose(f);
}

static int exchange(struct kern_device *dev, enum among among, const void *mine, size_t bytes,
                    void *ret_all)
{
	int fds[CUDA_RANKS_MAX];
	return among == AMONG_RANKS ? peers_exchange(dev, mine, bytes, -1, ret_all, fds)
	                            : stages_exchange(dev, mine, bytes, ret_all);
}

/* All must have the same library, and stages be able to run the same programs. */
static int check_hellos(struct kern_device *dev, enum among among, const struct nccl_hello *all,
                        unsigned n, unsigned me)
{
	const char *kind = among == AMONG_RANKS ? "rank" : "stage";
	const struct nccl_hello *mine = &all[me];
	if (!mine->version)
		return cuda_fail(dev, KERN_ENOTSUP,
		                 "%s needs " LIBRARY
		                 ", which cannot be loaded: install NCCL 2.18 or later%s (%.200s)",
		                 among == AMONG_RANKS ? "variant fast in a group" : "a pipeline of GPUs",
		                 among == AMONG_RANKS ? ", or leave `variant` at auto" : "", api.why);
	for (unsigned i = 0; i < n; i++) {
		const struct nccl_hello *of = &all[i];
		if (!of->version)
			return cuda_fail(dev, KERN_ENOTSUP,
			                 "%s %u cannot load " LIBRARY ": install NCCL 2.18 or later there",
			                 kind, i);
		if (of->version != mine->version)
			return cuda_fail(dev, KERN_ENOTSUP,
			                 "%s %u has NCCL %d, %s %u has %d: they must be the same", kind, me,
			                 mine->version, kind, i, of->version);
		if (of->ranks != mine->ranks)
			return cuda_fail(dev, KERN_ENOTSUP, "%s %u has %u ranks, %s %u has %u: must be equal",
			                 kind, me, mine->ranks, kind, i, of->ranks);
		if (strcmp(of->numerics, mine->numerics) != 0)
			return cuda_fail(dev, KERN_ENOTSUP,
			                 "%s %u is %.47s, %s %u is %.47s: must be GPUs of one compute "
			                 "capability, and one variant",
			                 kind, me, mine->numerics, kind, i, of->numerics);
	}
	return KERN_OK;
}

/* The first two that share a GPU, which NCCL refuses. */
static int find_shared(const struct nccl_hello *all, unsigned n, unsigned *ret_a, unsigned *ret_b)
{
	for (*ret_b = 0; *ret_b < n; ++*ret_b)
		for (*ret_a = 0; *ret_a < *ret_b; ++*ret_a)
			if (!strcmp(all[*ret_a].bus, all[*ret_b].bus) &&
			    !strcmp(all[*ret_a].machine, all[*ret_b].machine))
				return 1;
	return 0;
}

/* Makes a communicator of the ranks or the stages, unless ranks share a GPU. */
static int comm_open(struct kern_device *dev, enum among among, unsigned me, unsigned n)
{
	struct nccl_hello mine = {.version = api.number, .ranks = dev->group.ranks},
					  all[CUDA_STAGES_MAX];
	ncclUniqueId id = {{0}}, ids[CUDA_STAGES_MAX];
	unsigned a, b;
	_Static_assert(sizeof mine <= KERN_EXCHANGE_MAX && sizeof id <= KERN_EXCHANGE_MAX &&
	                   (int)CUDA_RANKS_MAX <= (int)CUDA_STAGES_MAX,
	               "a hello is one exchange, an id another one, of all ranks or stages");
	snprintf(mine.numerics, sizeof mine.numerics, "%s", dev->numerics);
	machine_of(mine.machine);
	int rc = cuda_check(dev, cudaDeviceGetPCIBusId(mine.bus, sizeof mine.bus, dev->index),
	                    "looking for the bus of the device");
	if (rc || (rc = exchange(dev, among, &mine, sizeof mine, all)))
		return rc;
	int shared = find_shared(all, n, &a, &b), none = shared && among == AMONG_RANKS;
	if (!none && (rc = check_hellos(dev, among, all, n, me)))
		return rc;
	if (shared && !none)
		return cuda_fail(dev, KERN_ENOTSUP,
		                 "stages %u and %u share the GPU at %.15s: each needs its own", a, b,
		                 all[a].bus);
	if (!none && !me && api.ncclGetUniqueId(&id) != ncclSuccess)
		return cuda_fail(dev, KERN_EDEVICE, "NCCL cannot make an id: %.200s",
		                 api.ncclGetLastError(NULL));
	/* also without a communicator: the ranks of another stage may make theirs, and exchanges are of
	 * all stages */
	rc = exchange(dev, among, &id, sizeof id, ids);
	return rc || none ? rc : make_comm(dev, among, me, n, ids[0]);
}

int nccl_open(struct kern_device *dev)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	int sums = dev->fast && dev->group.ranks > 1, stages = dev->pipe.stages > 1, rc = KERN_OK;
	if (!sums && !stages)
		return KERN_OK;
	pthread_once(&once, api_look);
	dev->nccl = calloc(1, sizeof *dev->nccl);
	if (!dev->nccl)
		return cuda_fail(dev, KERN_ENOMEM, "out of memory for NCCL");
	if (sums)
		rc = comm_open(dev, AMONG_RANKS, dev->group.rank, dev->group.ranks);
	if (!rc && stages)
		rc = comm_open(dev, AMONG_STAGES, dev->pipe.stage, dev->pipe.stages);
	return rc;
}

void nccl_close(struct nccl **np)
{
	for (unsigned i = 0; *np && i < AMONG; i++)
		if ((*np)->comm[i])
			api.ncclCommAbort((*np)->comm[i]);
	free(*np);
	*np = NULL;
}

int nccl_reduces(const struct kern_device *dev)
{
	return dev->nccl && dev->nccl->comm[AMONG_RANKS];
}

/* --- work of the device -------------------------------------------------- */

int nccl_launch(struct kern_device *dev, const struct nccl_call *c, cudaStream_t stream)
{
	int rc = nccl_check(dev);
	if (rc)
		return rc;
	enum among among = c->kind == NCCL_SUM ? AMONG_RANKS : AMONG_STAGES;
	ncclComm_t comm = dev->nccl->comm[among];
	ncclDataType_t sum_of = c->type == KERN_F32 ? ncclFloat32 : ncclBfloat16;
	ncclResult_t result;
	switch (c->kind) {
	case NCCL_SEND:
		result = api.ncclSend(c->x, c->count, ncclUint8, (int)c->peer, comm, stream);
		break;
	case NCCL_RECV:
		result = api.ncclRecv(c->x, c->count, ncclUint8, (int)c->peer, comm, stream);
		break;
	default: result = api.ncclAllReduce(c->x, c->x, c->count, sum_of, ncclSum, comm, stream);
	}
	return call_done(dev, comm, result,
	                 cuda_now_ns() + (among == AMONG_RANKS ? 1 : OPEN_LIMITS) * limit_ns(dev),
	                 among == AMONG_RANKS ? "recording a sum over the ranks"
	                                      : "recording a transfer between stages");
}
