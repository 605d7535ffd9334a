/* remote.h - the messagers of other hosts that this one connects to, to send them KV: the sender's
 * end of links and paths (path/path.h). inbound.h is the receiver's end.
 *
 * The workers of this host say which messagers there are (PEERS). The messager connects to each at
 * once, so that link and path exist before the first request:
 *
 *   link up -> PATH from the other end says which transport; the path is made
 *           -> POOLS: its workers become known to the mover, which may now send them KV
 *   link down -> its workers are removed from the mover (their transfers fail), the path ends
 *
 * A link that is down is closed when no worker of this host names its messager any more. */
#ifndef MESSAGER_REMOTE_H
#define MESSAGER_REMOTE_H

#include "mover.h"
#include "svc/svc.h"
#include "transport.h"

#define REMOTES_MAX 512u /* messagers; those that are named beyond are left out, logged */

struct remotes;

/* transports outlive it. */
struct remotes *remotes_new(struct svc *s, struct mover *m, const struct transports *t);
void remotes_destroy(struct remotes **r);
/* The list of a worker of this host; replaces its earlier one. NULL: the worker is gone. */
void remotes_named(struct remotes *r, const char *worker, const Pds__Peers *b);

/* mover_out.unreachable: no key for its messager, or a link that was down for REMOTE_PATIENCE_US.
 * Makes the link if the key was added meanwhile. */
#define REMOTE_PATIENCE_US 1000000u
const char *remotes_unreachable(struct remotes *r, const char *decode);

/* For peers that this messager connected to (peer_tag REMOTE_TAG). */
enum { REMOTE_TAG = 1 };
void remotes_up(struct remotes *r, struct peer *p);
void remotes_down(struct remotes *r, struct peer *p, const char *why);
void remotes_message(struct remotes *r, struct peer *p, enum msg_type type,
                     const ProtobufCMessage *body);

/* pdctl links: array members, without brackets; returns their number. */
unsigned remotes_json(const struct remotes *r, struct buf *out);
/* Adds one path's or intake's state to an open JSON object. */
void path_state_json(const struct path_state *s, struct buf *out);

#endif
