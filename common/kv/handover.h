/* handover.h - how a worker hands its shared memory to the messager or to storage: one message in
 * each direction on a local SOCK_SEQPACKET socket (util/sock.h), which then stays open while both
 * live. Nothing else is sent on it: its end of file, together with the end of the process (pidfd),
 * is the fence of last resort (invariant I3).
 *
 * Worker -> peer: struct handover_hello with descriptors [control, data ...] (storage) or [control,
 * data ..., ring] (messager); data is one descriptor for each part of the pool (region.h). Every
 * worker has a ring, since its role may change.
 * Peer -> worker: struct handover_reply, with the doorbell eventfd if the hello had a ring.
 * Both ends check magic, version and every size; texts must be NUL-terminated. kv_region_map checks
 * whether the peer can copy memory of the hello's backend. Both ends are on one host, so the
 * structs are sent as they are in memory. */
#ifndef KV_HANDOVER_H
#define KV_HANDOVER_H

#include "kv/region.h"
#include "util/endpoint.h"
#include "util/err.h"

#include <stdint.h>

#define HANDOVER_MAGIC 0x31764f68u
#define HANDOVER_VERSION 5u
#define HANDOVER_NAME_MAX 48
#define HANDOVER_BACKEND_MAX 16
#define HANDOVER_REMOTE_BYTES (ENDPOINT_BYTES_MAX + 4) /* no padding follows */

struct handover_hello {
	uint32_t magic, version;
	char name[HANDOVER_NAME_MAX];
	uint64_t epoch;                           /* the worker's, as in its envelopes */
	uint32_t blocks, ring_slots, ring_layers; /* ring_*: 0 without a ring */
	uint32_t layers, block_tokens, kv_type;
	/* the devices that have the parts of the pool: how many, in how many stages (kv_parts), their
	 * numbers, the name of their backend */
	uint32_t parts, stages;
	int32_t device[KERN_PARTS_MAX];
	char backend[HANDOVER_BACKEND_MAX];
	struct kv_layer layer[KV_LAYERS_MAX];
};

struct handover_reply {
	uint32_t magic, version;
	uint64_t epoch; /* the peer's */
	int32_t code;   /* 0 or ERR_* (refused: text says why) */
	char text[232];
	/* where daemons of other hosts reach the peer, NAME@tcp://HOST:PORT; "": they cannot */
	char remote[HANDOVER_REMOTE_BYTES];
};

/* The descriptors that come with a hello; ring -1: none. */
struct handover_fds {
	int control, ring;
	struct kv_data data;
};
void handover_fds_close(struct handover_fds *f);

void handover_hello_init(struct handover_hello *h, const char *name, uint64_t epoch,
                         const struct kv_layout *layout, uint32_t blocks, const char *backend);
/* Peer: receives and checks a hello. On success ret_fds is owned by the caller, and ret_layout is
 * finished. */
int handover_receive(int sock, struct handover_hello *ret_hello, struct kv_layout *ret_layout,
                     struct handover_fds *ret_fds, struct err *err);
/* Peer: sends the reply. code 0 accepts, and passes a copy of bell_fd (-1: none) and `remote`. */
int handover_answer(int sock, uint64_t epoch, int code, const char *text, const char *remote,
                    int bell_fd);
/* Worker: sends the hello, to which it adds the parts of the pool, with copies of the
 * descriptors. */
int handover_offer(int sock, const struct handover_hello *h, const struct handover_fds *fds,
                   struct err *err);
/* Worker: receives the reply. *ret_bell_fd is the caller's, -1: none. A refusal is in ret->code. */
int handover_result(int sock, struct handover_reply *ret, int *ret_bell_fd, struct err *err);

#endif
