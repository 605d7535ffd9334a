/* chan_bye.c - orderly shutdown of all links.
 *
 * ZeroMQ may drop messages that arrive together with the end of their connection. So a daemon that
 * shuts down waits until each peer has answered its goodbye or its process has ended, at most
 * BYE_WAIT_US: every peer that is alive and not stopped receives it. Meanwhile all other messages
 * are dropped and no hook is called. */
#include "msg/chan_priv.h"
#include "util/clock.h"
#include "util/mem.h"

#include <stdlib.h>

#define BYE_WAIT_US 300000u

void chan_goodbye_taken(struct chan *c, struct peer *p, const struct incoming *in)
{
	const Pds__Goodbye *said = (const Pds__Goodbye *)in->m.body;
	Pds__Goodbye heard = PDS__GOODBYE__INIT;
	if (c->ending) {
		if (p)
			p->bye_waits = 0; /* it answered, or it shuts down too and has received ours */
		return;
	}
	if (said->heard)
		return;
	heard.heard = 1;
	if (in->s->peer)
		chan_send_link(c, p, MSG_GOODBYE, &heard.base);
	else
		chan_send_rid(c, in->s, in->rid, in->rid_len, MSG_GOODBYE, &heard.base);
	if (!p || p->state != PEER_UP || in->m.env->epoch != p->epoch)
		return;
	p->bye = 1;
	chan_peer_down(c, p, "it said goodbye", p->dealer ? PEER_HELLO : PEER_DEAD);
	p->bye = 0;
}

static void send_goodbyes(struct chan *c)
{
	Pds__Goodbye bye = PDS__GOODBYE__INIT;
	list_each(it, &c->peers) {
		struct peer *p = list_entry(it, struct peer, node);
		if (p->state == PEER_UP && chan_send_link(c, p, MSG_GOODBYE, &bye.base) == 0)
			p->bye_waits = !p->self; /* a peer on our own thread cannot answer now */
	}
}

/* Collects the sockets and processes of the peers that have not answered, to be polled. items has
 * room for two per peer and two more. */
static int collect_waiting(struct chan *c, zmq_pollitem_t *items, struct sock **socks)
{
	int n = 0, bound = 0, net = 0;
	list_each(it, &c->peers) {
		struct peer *p = list_entry(it, struct peer, node);
		if (!p->bye_waits)
			continue;
		if (p->dealer) {
			socks[n] = p->dealer;
			items[n++] = (zmq_pollitem_t){.socket = p->dealer->z, .events = ZMQ_POLLIN};
		}
		bound |= p->accepted == c->bound && c->bound;
		net |= p->accepted == c->net && c->net;
		if (p->pidfd >= 0) {
			socks[n] = NULL;
			items[n++] = (zmq_pollitem_t){.fd = p->pidfd, .events = ZMQ_POLLIN};
		}
	}
	for (int i = 0; i < 2; i++) {
		struct sock *s = i ? c->net : c->bound;
		if (!(i ? net : bound))
			continue;
		socks[n] = s;
		items[n++] = (zmq_pollitem_t){.socket = s->z, .events = ZMQ_POLLIN};
	}
	return n;
}

static void process_ended(struct chan *c, int fd)
{
	list_each(it, &c->peers) {
		struct peer *p = list_entry(it, struct peer, node);
		if (p->pidfd == fd)
			p->bye_waits = 0;
	}
}

void chan_say_goodbye(struct chan *c)
{
	uint64_t until = clock_us() + BYE_WAIT_US, left;
	zmq_pollitem_t *items = mem_array(2u * c->n_peers + 2u, sizeof *items);
	struct sock **socks = mem_array(2u * c->n_peers + 2u, sizeof *socks);
	send_goodbyes(c);
	c->ending = 1;
	for (int n; (n = collect_waiting(c, items, socks)) > 0 && (left = clock_left_us(until)) > 0;) {
		if (zmq_poll(items, n, (long)(left / 1000u) + 1) < 0)
			break;
		for (int i = 0; i < n; i++) {
			if (items[i].revents && socks[i])
				chan_take(socks[i]);
			else if (items[i].revents)
				process_ended(c, items[i].fd);
		}
	}
	free(items);
	free(socks);
}
