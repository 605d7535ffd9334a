/* codec.h - two frames to and from a message. The envelope is decoded first and says what the
 * body is; the body once the peer is known and all parts have arrived. Decoding is whole:
 * unpacked, left-over bytes refused, required parts present, sizes within bounds; only then is a
 * message handed on. */
#ifndef MSG_CODEC_H
#define MSG_CODEC_H

#include "msg/types.h"
#include "util/err.h"

#include <stddef.h>

#define MSG_TOKENS_MAX (1u << 20) /* token ids of one request */
#define MSG_NAME_MAX 47u          /* of a daemon: letters, digits, '.', '_', '-' */
/* bytes of a text in HELLO, of one that a worker says of itself */
#define MSG_TEXT_MAX 1024u
#define MSG_ENDPOINT_MAX 200u /* bytes of an endpoint in PEERS */

struct msg_in {
	Pds__Envelope *env;
	const struct msg_type_info *info;
	ProtobufCMessage *body;
};

/* The envelope alone, of a message with body_len bytes of body. ERR_UNSUPPORTED: another protocol
 * version (ret->env is set, and
 * ret->info when it is a HELLO or a WELCOME) or an unknown type; ERR_CORRUPT: all else. */
int msg_decode_head(const void *env, size_t env_len, size_t body_len, struct msg_in *ret,
                    struct err *err);
/* The body of a message whose head is decoded; ERR_CORRUPT. */
int msg_decode_body(struct msg_in *m, const void *body, size_t len, struct err *err);
/* Both. */
int msg_decode(const void *env, size_t env_len, const void *body, size_t body_len,
               struct msg_in *ret, struct err *err);
void msg_in_fini(struct msg_in *m);
/* What the .proto files cannot say: sub-messages that must be there, bounds of counts. */
int msg_validate(const struct msg_type_info *info, const ProtobufCMessage *body, struct err *err);

#endif
