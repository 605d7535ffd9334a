/* types.h - the one list of message types. proto/PROTOCOL.md says what each means; X(NAME, number, body, flags). */
#ifndef MSG_TYPES_H
#define MSG_TYPES_H

#include "control.pb-c.h"
#include "kv.pb-c.h"
#include "request.pb-c.h"

#include <stdint.h>

#define PROTOCOL_VERSION 1u

enum msg_flags {
	MSG_NUMBERED = 1,   /* numbered on its link, acknowledged, sent again after a reconnect, delivered once and in order */
	MSG_REQUEST = 2,    /* about one request: request id and attempt must be set */
	MSG_LINK = 4        /* the link's own business: handled in common/msg, never handed up */
};

#define MSG_TYPES(X) \
	X(HELLO, 1, hello, MSG_LINK) \
	X(WELCOME, 2, welcome, MSG_LINK) \
	X(WHO, 3, who, MSG_LINK) \
	X(ACK, 4, ack, MSG_LINK) \
	X(HEARTBEAT, 5, heartbeat, 0) \
	X(PEERS, 6, peers, MSG_NUMBERED) \
	X(GOODBYE, 7, goodbye, MSG_LINK) \
	X(CTL_REQUEST, 8, ctl_request, MSG_LINK) \
	X(CTL_REPLY, 9, ctl_reply, MSG_LINK) \
	X(WORKER_UPDATE, 10, worker_update, MSG_NUMBERED) \
	X(REQUEST_SUBMIT, 16, submit, MSG_NUMBERED | MSG_REQUEST) \
	X(REQUEST_CANCEL, 17, cancel, MSG_NUMBERED | MSG_REQUEST) \
	X(REQUEST_FIRST_TOKEN, 18, first_token, MSG_NUMBERED | MSG_REQUEST) \
	X(REQUEST_FIRST_TOKEN_ACK, 19, first_token_ack, MSG_NUMBERED | MSG_REQUEST) \
	X(REQUEST_TOKENS, 20, tokens, MSG_NUMBERED) \
	X(REQUEST_FAILED, 21, failed, MSG_NUMBERED | MSG_REQUEST) \
	X(REQUEST_PROMPT_LOGPROBS, 22, prompt_logprobs, MSG_NUMBERED | MSG_REQUEST) \
	X(KV_RESERVE, 32, reserve, MSG_NUMBERED | MSG_REQUEST) \
	X(KV_QUEUED, 33, queued, MSG_NUMBERED | MSG_REQUEST) \
	X(KV_GRANT, 34, grant, MSG_NUMBERED | MSG_REQUEST) \
	X(KV_DENY, 35, deny, MSG_NUMBERED | MSG_REQUEST) \
	X(KV_RENEW, 36, renew, 0) \
	X(LEASE_OPEN, 40, lease_open, MSG_NUMBERED | MSG_REQUEST) \
	X(LEASE_OPENED, 41, lease_opened, MSG_NUMBERED | MSG_REQUEST) \
	X(LEASE_REVOKE, 42, lease_revoke, MSG_NUMBERED | MSG_REQUEST) \
	X(LEASE_REVOKED, 43, lease_revoked, MSG_NUMBERED | MSG_REQUEST) \
	X(KV_READY, 44, kv_ready, MSG_NUMBERED | MSG_REQUEST) \
	X(KV_READY_ACK, 45, kv_ready_ack, MSG_NUMBERED | MSG_REQUEST) \
	X(KV_SENT, 46, kv_sent, MSG_NUMBERED | MSG_REQUEST) \
	X(TASK_FAILED, 47, task_failed, MSG_NUMBERED | MSG_REQUEST) \
	X(KV_EVENTS, 48, kv_events, MSG_NUMBERED) \
	X(TASK_SEEN, 49, task_seen, MSG_NUMBERED | MSG_REQUEST) \
	X(STORE_PUT, 64, store_put, MSG_NUMBERED) \
	X(STORE_GET, 65, store_get, MSG_NUMBERED) \
	X(STORE_LOOKUP, 66, store_lookup, MSG_NUMBERED) \
	X(STORE_DONE, 67, store_done, MSG_NUMBERED) \
	X(STORE_FOUND, 68, store_found, MSG_NUMBERED) \
	X(STORE_FENCE, 69, store_fence, MSG_NUMBERED) \
	X(STORE_FENCED, 70, store_fenced, MSG_NUMBERED) \
	X(STORE_LIST, 71, store_list, MSG_NUMBERED)

enum msg_type {
#define X(name, number, body, flags) MSG_##name = number,
	MSG_TYPES(X)
#undef X
};

struct msg_type_info {
	enum msg_type type;
	const char *name;                            /* "KV_GRANT" */
	const ProtobufCMessageDescriptor *body;
	unsigned flags;
};

/* NULL for a number that is no type. */
const struct msg_type_info *msg_type_find(uint32_t number);

#endif
