/* rdma_wire.h - what the two ends of an RDMA path tell each other (path_hooks.say), and the handle
 * of a lease. Little-endian; a message is
 *
 *   0 version u8, 1 kind u8, 2 lane u8, 3 zero u8, 4 round u32, 8 session u64, then by kind:
 *   OFFER   receiver: an address (below), then its canary: address u64, key u32, bytes u32 (or 0)
 *   ACCEPT  sender: an address
 *   READY   receiver: nothing more
 *   RESET, REFUSE   sender: text, at most RDMA_TEXT_MAX bytes
 *   END     receiver: nothing more
 *   KEYS    receiver: count u32, then lease u64 and key u32 for each
 *   DONE, ASK (sender), CLOSE (receiver): count u32, then lease u64 for each
 *   address: GID 16 bytes, queue pair u32, PSN u32, LID u16, MTU u8 (enum ibv_mtu), link layer u8,
 *            RDMA READs that it serves at a time u8, zero u8, zero u16
 *
 * REFUSE: no NIC of the sender reaches the address, though one is active. DONE: no write of the
 * lease is on its way any more. END: the lane has ended. A lane is the queue pairs, one after
 * another, for one of the receiver's pools. `session` is a random number of the lane, `round`
 * counts its queue pairs from 1: messages of another session or round are late. Bytes left over
 * make a message malformed. */
#ifndef MESSAGER_RDMA_WIRE_H
#define MESSAGER_RDMA_WIRE_H

#include "path.h"

#include <infiniband/verbs.h>

#define RDMA_TEXT_MAX 160u
#define RDMA_HEAD_BYTES 16u
#define RDMA_HANDLE_BYTES 48u
#define RDMA_LANES_MAX 64u
/* leases of one message */
#define RDMA_KEYS_MAX ((PATH_SAY_MAX - RDMA_HEAD_BYTES - 4) / 12)
#define RDMA_LEASES_MAX ((PATH_SAY_MAX - RDMA_HEAD_BYTES - 4) / 8)

enum rdma_kind {
	RDMA_OFFER = 1,
	RDMA_ACCEPT,
	RDMA_READY,
	RDMA_RESET,
	RDMA_KEYS,
	RDMA_DONE,
	RDMA_ASK,
	RDMA_CLOSE,
	RDMA_REFUSE,
	RDMA_END
};

struct rdma_address {
	union ibv_gid gid;
	uint32_t qpn, psn; /* 24 bits each */
	uint16_t lid;
	uint8_t mtu, link_layer, reads;
};

struct rdma_key {
	uint64_t lease;
	uint32_t key;
};

struct rdma_msg {
	enum rdma_kind kind;
	unsigned lane; /* below RDMA_LANES_MAX */
	uint32_t round;
	uint64_t session;
	struct rdma_address address; /* OFFER, ACCEPT */
	uint64_t canary_at;          /* OFFER */
	uint32_t canary_key, canary_bytes;
	char text[RDMA_TEXT_MAX + 1];           /* RESET, REFUSE */
	uint32_t n;                             /* KEYS, DONE, ASK, CLOSE */
	struct rdma_key lease[RDMA_LEASES_MAX]; /* (n); key: of KEYS only */
};

/* out has PATH_SAY_MAX bytes. Returns the length. */
size_t rdma_msg_write(const struct rdma_msg *m, unsigned char *out);
/* 0, or ERR_INVALID with what is wrong. */
int rdma_msg_read(const void *bytes, size_t n, struct rdma_msg *ret, struct err *err);

struct rdma_handle {
	unsigned lane;
	uint64_t session;
	uint32_t round; /* of the queue pair that `key` is for; 0: KEYS will bring it */
	uint32_t key;
	uint64_t lease;     /* not 0 */
	uint64_t at, bytes; /* D's pool */
};

void rdma_handle_write(const struct rdma_handle *h, unsigned char *out);
int rdma_handle_read(const void *bytes, size_t n, struct rdma_handle *ret, struct err *err);

#endif
