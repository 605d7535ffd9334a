/* link.h - numbering of one link between two lives: a bounded window of what is not
 * acknowledged, and what is expected next. Pure state, no I/O. */
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
	uint64_t sent_us; /* last time it was given to the socket, 0: not yet */
	int more;         /* the body goes on in the next one */
	size_t len;
	unsigned char body[];
};

struct link {
	uint64_t next_seq;  /* number of the next message out */
	uint64_t expect;    /* number of the next message in */
	uint64_t told;      /* what we last acknowledged */
	struct list window; /* of link_out, by number */
	uint32_t n_window;
	size_t window_bytes;
};

enum link_verdict { LINK_DELIVER, LINK_DUPLICATE, LINK_GAP };

void link_init(struct link *l);
void link_fini(struct link *l);
/* Whether n messages of bytes in all have room (max_messages, max_bytes). */
int link_has_room(const struct link *l, uint32_t max_messages, size_t max_bytes, size_t n,
                  size_t bytes);
/* One more, with room for a body of len bytes, after link_has_room; NULL: no memory. */
struct link_out *link_push(struct link *l, size_t len);
/* Takes the last one back, which nobody has sent yet. */
void link_pop(struct link *l);
/* Everything up to ack has arrived at the other side. A number that was never sent is ignored. */
void link_acked(struct link *l, uint64_t ack);
/* Judges an incoming number; LINK_DELIVER advances what is expected. */
enum link_verdict link_arrived(struct link *l, uint64_t seq);

#endif
