/* link.h - numbering of one link between two processes: a bounded window of unacknowledged
 * messages, and the next number expected. Pure state, no I/O. */
#ifndef MSG_LINK_H
#define MSG_LINK_H

#include "msg/types.h"
#include "util/list.h"
#include "util/log.h"

#include <stddef.h>
#include <stdint.h>

struct link_out {
	struct list node;
	uint64_t seq;
	enum msg_type type;
	struct reqid req;
	uint32_t attempt;
	uint64_t deadline_us;
	uint64_t sent_us; /* when it was last given to the socket; 0: not yet */
	int more;         /* the body continues in the next message */
	size_t len;
	unsigned char body[];
};

struct msg_link {
	uint64_t next_seq;  /* number of the next message to send */
	uint64_t expect;    /* number of the next message to receive */
	uint64_t acked_out; /* the last number that we acknowledged */
	struct list window; /* struct link_out, by number */
	uint32_t n_window;
	size_t window_bytes;
};

enum link_verdict { LINK_DELIVER, LINK_DUPLICATE, LINK_GAP };

void link_init(struct msg_link *l);
void link_fini(struct msg_link *l);
/* 1 if n messages with a total of `bytes` fit into a window of max_messages and max_bytes. */
int link_has_room(const struct msg_link *l, uint32_t max_messages, size_t max_bytes, size_t n,
                  size_t bytes);
/* Appends a message with room for a body of len bytes; call link_has_room first. NULL: out of
 * memory. */
struct link_out *link_push(struct msg_link *l, size_t len);
/* Removes the last message, which must not have been sent. */
void link_pop(struct msg_link *l);
/* The other side has received everything up to ack. A number that was never sent is ignored. */
void link_acked(struct msg_link *l, uint64_t ack);
/* Checks an incoming number; LINK_DELIVER advances `expect`. */
enum link_verdict link_arrived(struct msg_link *l, uint64_t seq);

#endif
