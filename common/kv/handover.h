/* handover.h - how a worker hands its shared memory to the messager or to storage: one message each
 * way on a local SOCK_SEQPACKET socket (util/sock.h) that then stays open for as long as both live.
 * Nothing else is ever sent on it: its end of file, together with the end of the process (pidfd),
 * is the fence of last resort (invariant I3).
 *
 * Worker -> peer: struct handover_hello with descriptors [control, data] (storage) or [control,
 * data, ring] (messager); every worker has a ring, as its role may be switched.
 * Peer -> worker: struct handover_reply, with the doorbell eventfd if the hello had a ring.
 * Both ends check magic, version and every size; names must be terminated. Whether the peer can
 * copy memory of the backend that the hello names is for kv_region_map to say. Same host only,
 * so the structs go as they are. */
#ifndef KV_HANDOVER_H
#define KV_HANDOVER_H

#include "kv/layout.h"
#include "util/err.h"

#include <stdint.h>

#define HANDOVER_MAGIC 0x31764f68u
#define HANDOVER_VERSION 2u
#define HANDOVER_NAME_MAX 48
#define HANDOVER_BACKEND_MAX 16

struct handover_hello {
	uint32_t magic, version;
	char name[HANDOVER_NAME_MAX];
	uint64_t epoch;                           /* the worker's, as in its envelopes */
	uint32_t blocks, ring_slots, ring_layers; /* ring_*: 0 without a ring */
	uint32_t layers, block_tokens, kv_type;
	/* whose memory the pool is: index of the device, and the name of its backend */
	int32_t device;
	char backend[HANDOVER_BACKEND_MAX];
	struct kv_layer layer[KV_LAYERS_MAX];
};

struct handover_reply {
	uint32_t magic, version;
	uint64_t epoch; /* the peer's */
	int32_t code;   /* 0 or ERR_*: refused, text says why */
	char text[232];
};

void handover_hello_init(struct handover_hello *h, const char *name, uint64_t epoch,
                         const struct kv_layout *layout, uint32_t blocks, const char *backend,
                         int device);
/* Peer: receives and checks; fds (owner: caller) on success: control, data, ring (-1 if none).
 * ret_layout is finished. */
int handover_receive(int sock, struct handover_hello *ret_hello, struct kv_layout *ret_layout,
                     int ret_fds[3], struct err *err);
int handover_answer(int sock, uint64_t epoch, int code, const char *text, int bell_fd);
/* Worker. */
int handover_offer(int sock, const struct handover_hello *h, int control_fd, int data_fd,
                   int ring_fd, struct err *err);
/* bell -1: none */
int handover_result(int sock, struct handover_reply *ret, int *ret_bell_fd, struct err *err);

#endif
