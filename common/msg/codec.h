/* codec.h - converts two frames to a message. The envelope is decoded first and tells the body's
 * type; the body is decoded once the peer is known and all parts have arrived. A message is handed
 * on only after it is fully decoded and checked: unpacked, no left-over bytes, required parts
 * present, sizes within bounds. */
#ifndef MSG_CODEC_H
#define MSG_CODEC_H

#include "msg/types.h"
#include "util/endpoint.h"
#include "util/err.h"

#include <stddef.h>

#define MSG_TOKENS_MAX (1u << 20) /* token ids of one request */
#define MSG_NAME_MAX 47u          /* of a daemon's name: letters, digits, '.', '_', '-' */
/* bytes of a text in HELLO and in a worker's description of itself */
#define MSG_TEXT_MAX 1024u
#define MSG_ENDPOINT_MAX ENDPOINT_BYTES_MAX /* bytes of an endpoint in PEERS */
#define MSG_PEERS_MAX 1024u                 /* in PEERS: a daemon has at most as many links */

struct msg_in {
	Pds__Envelope *env;
	const struct msg_type_info *info;
	ProtobufCMessage *body;
};

/* HELLO, WELCOME, CTL_REQUEST and CTL_REPLY: the fields that PROTOCOL.md names under "Another
 * protocol" are the same in all versions. */
int msg_is_of_all_versions(uint32_t type);
/* Decodes the envelope of a message with body_len bytes of body. ERR_UNSUPPORTED: another protocol
 * version (ret->env is set; ret->info too if its type has a form for all versions:
 * msg_is_of_all_versions) or an unknown type;
 * ERR_CORRUPT: any other error. Call msg_in_fini also after an error. */
int msg_decode_head(const void *env, size_t env_len, size_t body_len, struct msg_in *ret,
                    struct err *err);
/* Decodes and validates the body after msg_decode_head; 0 or ERR_CORRUPT. */
int msg_decode_body(struct msg_in *m, const void *body, size_t len, struct err *err);
/* Both. */
int msg_decode(const void *env, size_t env_len, const void *body, size_t body_len,
               struct msg_in *ret, struct err *err);
void msg_in_fini(struct msg_in *m);
/* Checks what the .proto files cannot express: required sub-messages, limits of counts. */
int msg_validate(const struct msg_type_info *info, const ProtobufCMessage *body, struct err *err);

#endif
