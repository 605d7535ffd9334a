/* nccl.cu - the part of NCCL that kernels/cuda uses, on the host: sums over the processes of a
 * communicator, and messages between two of them, in stream order, by kernels of the stand-in that
 * wait for the other processes. Like the real one it is a separate library (libnccl.so.2, next to
 * the stand-in's pdserve-cuda.so), calls of a non-blocking communicator return before they are
 * done, and a rank that does not come keeps the others waiting until they abort. The first message
 * between two ranks is recorded only when both have asked for it, because the real one connects
 * them then.
 *
 * A communicator is shared memory, which the id names. Sums are made in float32, in an order
 * that depends on the number of values. CUDA_HOST_FAIL=function:n: the n-th call of that
 * function fails; ncclAllReduce, ncclSend, ncclRecv: with an error that the communicator tells
 * later; ncclCommGetAsyncError: the n-th look at a communicator that works finds that a peer has
 * failed. */
#include "kernels/cuda/kernel.h"
extern "C" {
#include "tests/cuda_host/runtime.h"
}

#include "kernels/cuda/nccl_api.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

enum { THREADS = 32, PIECE = 4096, RANKS_MAX = 16, WAIT_US = 20 };

/* Messages from one rank to another. */
struct mail {
	uint32_t asked; /* MAIL_SEND, MAIL_RECV: by whom */
	uint32_t full;  /* the piece is there */
	size_t bytes;   /* of the message */
	unsigned char piece[4 * PIECE];
};
enum { MAIL_SEND = 1, MAIL_RECV = 2 };

/* What all ranks of a communicator share; zeros at first. */
struct ring {
	uint32_t joined, arrived, generation, ranks;
	float piece[RANKS_MAX][PIECE];
	struct mail mail[RANKS_MAX][RANKS_MAX]; /* [from][to] */
};

struct ncclComm {
	struct ring *ring;
	int rank, ranks;
	uint32_t aborted, at_work; /* at_work: kernels that wait or add */
	ncclResult_t result;       /* of its latest call */
	struct mail *connecting;   /* the latest call is the first for it; else NULL */
	struct ncclComm *next;
};
/* All, also those that were aborted: a launch that is still to come reads its communicator. */
static struct ncclComm *made;

static void wait_a_moment(void)
{
	usleep(WAIT_US);
}

ncclResult_t ncclGetVersion(int *version)
{
	*version = NCCL_API_VERSION;
	return ncclSuccess;
}

const char *ncclGetErrorString(ncclResult_t result)
{
	return result == ncclSystemError       ? "unhandled system error"
	       : result == ncclInvalidArgument ? "invalid argument"
	                                       : "remote process exited or there was a network error";
}

const char *ncclGetLastError(ncclComm_t comm)
{
	(void)comm;
	return "the stand-in has no more to say";
}

ncclResult_t ncclGetUniqueId(ncclUniqueId *id)
{
	static uint32_t made;
	if (cuda_host_injected("ncclGetUniqueId"))
		return ncclSystemError;
	memset(id, 0, sizeof *id);
	snprintf(id->internal, sizeof id->internal, "/pdserve-nccl-%d-%u", (int)getpid(),
	         __atomic_fetch_add(&made, 1, __ATOMIC_RELAXED));
	return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *ret, int ranks, ncclUniqueId id, int rank,
                                    ncclConfig_t *config)
{
	if (config->size != sizeof *config || config->magic != NCCL_CONFIG_MAGIC || config->blocking ||
	    ranks < 1 || ranks > RANKS_MAX || rank < 0 || rank >= ranks)
		return ncclInvalidArgument;
	if (cuda_host_injected("ncclCommInitRankConfig"))
		return ncclSystemError;
	int fd = shm_open(id.internal, O_RDWR | O_CREAT, 0600);
	if (fd < 0 || ftruncate(fd, sizeof(struct ring)))
		return ncclSystemError;
	void *at = mmap(NULL, sizeof(struct ring), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	close(fd);
	if (at == MAP_FAILED)
		return ncclSystemError;
	struct ncclComm *c = (struct ncclComm *)calloc(1, sizeof *c);
	c->ring = (struct ring *)at;
	c->rank = rank;
	c->ranks = ranks;
	c->result = ncclInProgress;
	c->next = __atomic_exchange_n(&made, c, __ATOMIC_ACQ_REL);
	if (__atomic_add_fetch(&c->ring->joined, 1, __ATOMIC_ACQ_REL) == (uint32_t)ranks)
		shm_unlink(id.internal);
	*ret = c;
	return ncclInProgress;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t c, ncclResult_t *ret)
{
	const struct mail *m = c->connecting;
	if (c->result == ncclSuccess && cuda_host_injected("ncclCommGetAsyncError"))
		c->result = ncclRemoteError;
	if (c->result == ncclInProgress &&
	    __atomic_load_n(&c->ring->joined, __ATOMIC_ACQUIRE) == (uint32_t)c->ranks &&
	    (!m || __atomic_load_n(&m->asked, __ATOMIC_ACQUIRE) == (MAIL_SEND | MAIL_RECV))) {
		c->result = ncclSuccess;
		c->connecting = NULL;
	}
	*ret = c->result;
	return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t c)
{
	uint32_t at_work = __atomic_load_n(&c->at_work, __ATOMIC_ACQUIRE);
	__atomic_store_n(&c->aborted, 1, __ATOMIC_RELEASE);
	/* the real one waits for graphs that have sums of this communicator, too */
	while (at_work || __atomic_load_n(&c->at_work, __ATOMIC_ACQUIRE))
		wait_a_moment();
	munmap(c->ring, sizeof *c->ring);
	c->ring = NULL;
	return ncclSuccess;
}

/* --- a sum --------------------------------------------------------------- */

/* Waits for all ranks; false: aborted. */
static bool meet(struct ncclComm *c)
{
	struct ring *r = c->ring;
	uint32_t generation = __atomic_load_n(&r->generation, __ATOMIC_ACQUIRE);
	if (__atomic_add_fetch(&r->arrived, 1, __ATOMIC_ACQ_REL) == (uint32_t)c->ranks) {
		__atomic_store_n(&r->arrived, 0, __ATOMIC_RELAXED);
		__atomic_add_fetch(&r->generation, 1, __ATOMIC_RELEASE);
		return true;
	}
	while (__atomic_load_n(&r->generation, __ATOMIC_ACQUIRE) == generation) {
		if (__atomic_load_n(&c->aborted, __ATOMIC_ACQUIRE))
			return false;
		wait_a_moment();
	}
	return true;
}

struct sum_args {
	struct ncclComm *comm;
	void *x;
	size_t count;
	int bf16;
};

static void add_up(const struct sum_args &a)
{
	struct ncclComm *c = a.comm;
	for (size_t from = 0; from < a.count; from += PIECE) {
		size_t n = a.count - from < (size_t)PIECE ? a.count - from : (size_t)PIECE;
		for (size_t i = 0; i < n; i++)
			c->ring->piece[c->rank][i] = a.bf16 ? kern_bf16_to_f32(((uint16_t *)a.x)[from + i])
			                                    : ((float *)a.x)[from + i];
		if (!meet(c))
			return;
		for (size_t i = 0; i < n; i++) {
			float sum = 0;
			for (int r = 0; r < c->ranks; r++)
				sum += c->ring->piece[(r + a.count) % c->ranks][i];
			if (a.bf16)
				((uint16_t *)a.x)[from + i] = kern_f32_to_bf16(sum);
			else
				((float *)a.x)[from + i] = sum;
		}
		if (!meet(c)) /* before anybody writes the next piece */
			return;
	}
}

KERNEL(nccl_all_reduce, THREADS, struct sum_args)
{
	if (threadIdx.x)
		return;
	cuda_host_sent(a.count * (a.bf16 ? 2 : 4));
	__atomic_add_fetch(&a.comm->at_work, 1, __ATOMIC_ACQ_REL);
	if (!__atomic_load_n(&a.comm->aborted, __ATOMIC_ACQUIRE))
		add_up(a);
	__atomic_sub_fetch(&a.comm->at_work, 1, __ATOMIC_ACQ_REL);
}

ncclResult_t ncclAllReduce(const void *from, void *to, size_t count, ncclDataType_t type,
                           ncclRedOp_t op, ncclComm_t c, cudaStream_t stream)
{
	if (from != to || !count || op != ncclSum || (type != ncclFloat32 && type != ncclBfloat16))
		return ncclInvalidArgument;
	if (cuda_host_injected("ncclAllReduce")) {
		c->result = ncclSystemError;
		return ncclInProgress;
	}
	struct sum_args args = {c, to, count, type == ncclBfloat16};
	void *pointers[] = {&args};
	struct dim3 grid = {1, 1, 1}, block = {THREADS, 1, 1};
	return cudaLaunchKernel((const void *)nccl_all_reduce, grid, block, pointers, 0, stream) ==
	               cudaSuccess
	           ? ncclSuccess
	           : ncclUnhandledCudaError;
}

/* --- a message ----------------------------------------------------------- */

struct message_args {
	struct ncclComm *comm;
	struct mail *mail;
	unsigned char *at;
	size_t bytes;
	bool sends;
};

/* Waits until the piece is there, or gone; false: aborted. */
static bool await_mail(const struct message_args &a, uint32_t full)
{
	while (__atomic_load_n(&a.mail->full, __ATOMIC_ACQUIRE) != full) {
		if (__atomic_load_n(&a.comm->aborted, __ATOMIC_ACQUIRE))
			return false;
		wait_a_moment();
	}
	return true;
}

static void pass(const struct message_args &a)
{
	for (size_t from = 0; from < a.bytes; from += sizeof a.mail->piece) {
		size_t left = a.bytes - from, n = left < sizeof a.mail->piece ? left : sizeof a.mail->piece;
		if (!await_mail(a, !a.sends))
			return;
		if (a.sends) {
			a.mail->bytes = a.bytes;
			memcpy(a.mail->piece, a.at + from, n);
		} else if (a.mail->bytes == a.bytes)
			memcpy(a.at + from, a.mail->piece, n);
		else {
			fprintf(stderr, "cuda_host: a message of %zu bytes is received as one of %zu\n",
			        a.mail->bytes, a.bytes);
			a.comm->result = ncclInvalidUsage;
			return;
		}
		__atomic_store_n(&a.mail->full, a.sends, __ATOMIC_RELEASE);
	}
}

KERNEL(nccl_message, THREADS, struct message_args)
{
	if (threadIdx.x)
		return;
	cuda_host_sent(a.sends ? a.bytes : 0);
	__atomic_add_fetch(&a.comm->at_work, 1, __ATOMIC_ACQ_REL);
	if (!__atomic_load_n(&a.comm->aborted, __ATOMIC_ACQUIRE))
		pass(a);
	__atomic_sub_fetch(&a.comm->at_work, 1, __ATOMIC_ACQ_REL);
}

static ncclResult_t message(const char *name, void *at, size_t count, ncclDataType_t type, int peer,
                            struct ncclComm *c, cudaStream_t stream, bool sends)
{
	if (!count || type != ncclUint8 || peer < 0 || peer >= c->ranks || peer == c->rank)
		return ncclInvalidArgument;
	if (cuda_host_injected(name)) {
		c->result = ncclSystemError;
		return ncclInProgress;
	}
	struct mail *mail = &c->ring->mail[sends ? c->rank : peer][sends ? peer : c->rank];
	struct message_args args = {c, mail, (unsigned char *)at, count, sends};
	void *pointers[] = {&args};
	struct dim3 grid = {1, 1, 1}, block = {THREADS, 1, 1};
	if (cudaLaunchKernel((const void *)nccl_message, grid, block, pointers, 0, stream) !=
	    cudaSuccess)
		return ncclUnhandledCudaError;
	c->connecting = mail;
	c->result = ncclInProgress;
	__atomic_or_fetch(&mail->asked, sends ? MAIL_SEND : MAIL_RECV, __ATOMIC_ACQ_REL);
	return ncclInProgress;
}

ncclResult_t ncclSend(const void *from, size_t count, ncclDataType_t type, int peer, ncclComm_t c,
                      cudaStream_t stream)
{
	return message("ncclSend", (void *)(uintptr_t)from, count, type, peer, c, stream, true);
}

ncclResult_t ncclRecv(void *to, size_t count, ncclDataType_t type, int peer, ncclComm_t c,
                      cudaStream_t stream)
{
	return message("ncclRecv", to, count, type, peer, c, stream, false);
}
