/* types.h - the only list of message types: X(NAME, number, body, flags, from). proto/PROTOCOL.md
 * explains each. */
#ifndef MSG_TYPES_H
#define MSG_TYPES_H

#include "control.pb-c.h"
#include "kv.pb-c.h"
#include "request.pb-c.h"

#include <stdint.h>

#define PROTOCOL_VERSION 5u
#define MSG_PART_BYTES 65536u /* limit of one message's body: longer ones are sent in parts */

enum msg_flags {
	/* numbered on its link, acknowledged, resent after a reconnect, delivered once and in order */
	MSG_NUMBERED = 1,
	MSG_REQUEST = 2, /* about one request: request id and attempt must be set */
	MSG_LINK = 4     /* of the link itself: handled in common/msg, never handed up */
};

/* Which programs may send the type; their names are those in HELLO and WELCOME. */
enum msg_from {
	FROM_R = 1,  /* routers */
	FROM_W = 2,  /* workers, prefill and decode: a worker's role may change */
	FROM_M = 4,  /* messagers */
	FROM_S = 8,  /* storage */
	FROM_K = 16, /* ranks: processes that can be a stage of a worker's pipeline */
	FROM_ANY = 31
};

#define MSG_TYPES(X)                                                                    \
	X(HELLO, 1, hello, MSG_LINK, FROM_ANY)                                              \
	X(WELCOME, 2, welcome, MSG_LINK, FROM_ANY)                                          \
	X(WHO, 3, who, MSG_LINK, FROM_ANY)                                                  \
	X(ACK, 4, ack, MSG_LINK, FROM_ANY)                                                  \
	X(HEARTBEAT, 5, heartbeat, 0, FROM_ANY)                                             \
	X(PEERS, 6, peers, MSG_NUMBERED, FROM_R | FROM_W)                                   \
	X(GOODBYE, 7, goodbye, MSG_LINK, FROM_ANY)                                          \
	X(CTL_REQUEST, 8, ctl_request, MSG_LINK, FROM_ANY)                                  \
	X(CTL_REPLY, 9, ctl_reply, MSG_LINK, FROM_ANY)                                      \
	X(WORKER_UPDATE, 10, worker_update, MSG_NUMBERED, FROM_W)                           \
	X(PIPELINE_TAKE, 11, pipeline_take, MSG_NUMBERED, FROM_W)                           \
	X(REQUEST_SUBMIT, 16, submit, MSG_NUMBERED | MSG_REQUEST, FROM_R)                   \
	X(REQUEST_CANCEL, 17, cancel, MSG_NUMBERED | MSG_REQUEST, FROM_R | FROM_W)          \
	X(REQUEST_FIRST_TOKEN, 18, first_token, MSG_NUMBERED | MSG_REQUEST, FROM_W)         \
	X(REQUEST_FIRST_TOKEN_ACK, 19, first_token_ack, MSG_NUMBERED | MSG_REQUEST, FROM_W) \
	X(REQUEST_TOKENS, 20, tokens, MSG_NUMBERED, FROM_W)                                 \
	X(REQUEST_FAILED, 21, failed, MSG_NUMBERED | MSG_REQUEST, FROM_W)                   \
	X(REQUEST_PROMPT_LOGPROBS, 22, prompt_logprobs, MSG_NUMBERED | MSG_REQUEST, FROM_W) \
	X(REQUEST_EMBEDDING, 23, embedding, MSG_NUMBERED | MSG_REQUEST, FROM_W)             \
	X(KV_RESERVE, 32, reserve, MSG_NUMBERED | MSG_REQUEST, FROM_W)                      \
	X(KV_QUEUED, 33, queued, MSG_NUMBERED | MSG_REQUEST, FROM_W)                        \
	X(KV_GRANT, 34, grant, MSG_NUMBERED | MSG_REQUEST, FROM_W)                          \
	X(KV_DENY, 35, deny, MSG_NUMBERED | MSG_REQUEST, FROM_W)                            \
	X(KV_RENEW, 36, renew, 0, FROM_W)                                                   \
	X(LEASE_OPEN, 40, lease_open, MSG_NUMBERED | MSG_REQUEST, FROM_M)                   \
	X(LEASE_OPENED, 41, lease_opened, MSG_NUMBERED | MSG_REQUEST, FROM_W | FROM_M)      \
	X(LEASE_REVOKE, 42, lease_revoke, MSG_NUMBERED | MSG_REQUEST, FROM_W | FROM_M)      \
	X(LEASE_REVOKED, 43, lease_revoked, MSG_NUMBERED | MSG_REQUEST, FROM_M)             \
	X(KV_READY, 44, kv_ready, MSG_NUMBERED | MSG_REQUEST, FROM_M)                       \
	X(KV_READY_ACK, 45, kv_ready_ack, MSG_NUMBERED | MSG_REQUEST, FROM_W | FROM_M)      \
	X(KV_SENT, 46, kv_sent, MSG_NUMBERED | MSG_REQUEST, FROM_M)                         \
	X(TRANSFER_FAILED, 47, transfer_failed, MSG_NUMBERED | MSG_REQUEST, FROM_M)         \
	X(KV_EVENTS, 48, kv_events, MSG_NUMBERED, FROM_W | FROM_S)                          \
	X(POOLS, 49, pools, MSG_NUMBERED, FROM_M)                                           \
	X(PATH, 50, path, MSG_NUMBERED, FROM_M)                                             \
	X(STORE_PUT, 64, store_put, MSG_NUMBERED, FROM_W)                                   \
	X(STORE_GET, 65, store_get, MSG_NUMBERED, FROM_W)                                   \
	X(STORE_LOOKUP, 66, store_lookup, MSG_NUMBERED, FROM_W)                             \
	X(STORE_DONE, 67, store_done, MSG_NUMBERED, FROM_S)                                 \
	X(STORE_FOUND, 68, store_found, MSG_NUMBERED, FROM_S)                               \
	X(STORE_FENCE, 69, store_fence, MSG_NUMBERED, FROM_W)                               \
	X(STORE_FENCED, 70, store_fenced, MSG_NUMBERED, FROM_S)                             \
	X(STORE_LIST, 71, store_list, MSG_NUMBERED, FROM_W)

enum msg_type {
#define X(name, number, body, flags, from) MSG_##name = number,
	MSG_TYPES(X)
#undef X
};

struct msg_type_info {
	enum msg_type type;
	const char *name; /* "KV_GRANT" */
	const ProtobufCMessageDescriptor *body;
	unsigned flags, from;
};

/* 1 if a program of this name ("pdrouterd") may send the type. */
int msg_type_is_from(const struct msg_type_info *info, const char *program);
/* NULL if there is no type with this number. */
const struct msg_type_info *msg_type_find(uint32_t number);

#endif
