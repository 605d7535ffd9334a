/* link.c - see link.h. */
#include "msg/link.h"

#include <stdlib.h>

void link_init(struct msg_link *l)
{
	l->next_seq = l->expect = 1;
	l->acked_out = 0;
	l->n_window = 0;
	l->window_bytes = 0;
	list_init(&l->window);
}

static void link_drop(struct msg_link *l, struct link_out *o)
{
	list_remove(&o->node);
	l->n_window--;
	l->window_bytes -= o->len;
	free(o);
}

void link_fini(struct msg_link *l)
{
	list_each_safe(it, nx, &l->window)
		link_drop(l, list_entry(it, struct link_out, node));
}

int link_has_room(const struct msg_link *l, uint32_t max_messages, size_t max_bytes, size_t n,
                  size_t bytes)
{
	return n <= max_messages && l->n_window <= max_messages - n && bytes <= max_bytes &&
	       l->window_bytes <= max_bytes - bytes;
}

struct link_out *link_push(struct msg_link *l, size_t len)
{
	struct link_out *o = malloc(sizeof *o + len);
	if (!o)
		return NULL;
	*o = (struct link_out){.seq = l->next_seq++, .len = len};
	list_push_back(&l->window, &o->node);
	l->n_window++;
	l->window_bytes += len;
	return o;
}

void link_pop(struct msg_link *l)
{
	link_drop(l, list_entry(l->window.prev, struct link_out, node));
	l->next_seq--;
}

void link_acked(struct msg_link *l, uint64_t ack)
{
	if (ack >= l->next_seq)
		return;
	list_each_safe(it, nx, &l->window) {
		struct link_out *o = list_entry(it, struct link_out, node);
		if (o->seq > ack)
			return;
		link_drop(l, o);
	}
}

enum link_verdict link_arrived(struct msg_link *l, uint64_t seq)
{
	if (seq < l->expect)
		return LINK_DUPLICATE;
	if (seq > l->expect)
		return LINK_GAP;
	l->expect++;
	return LINK_DELIVER;
}
