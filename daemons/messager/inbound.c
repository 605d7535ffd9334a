/* inbound.c - see inbound.h.
 *
 * inbound_step alone changes a lease's state and frees it. Each state has a step function, in one
 * table with the states that may follow; it acts on an event and returns the next state. */
#include "inbound.h"
#include "remote.h"

#include "util/check.h"
#include "util/clock.h"
#include "util/list.h"
#include "util/mem.h"
#include "util/once.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct inbound_link {
	struct list node;
	struct inbounds *of;
	void *peer; /* NULL: the link has ended */
	char name[RING_NAME_MAX];
	uint64_t epoch;
	const struct path_ops *ops;
	struct intake *intake;
	uint32_t n; /* leases */
	int pools_owed;
	char trouble[256]; /* why there is no intake, for people */
};

struct inbounds {
	struct inbound_out out;
	struct mover *mover;
	const struct transports *transports;
	struct list links, leases;
	uint32_t n;
	struct once logged;
	const Pds__LeaseOpened *opened; /* of the present call */
	const Pds__KvReady *ready;      /* the same */
};

enum inbound_event {
	INBOUND_ON_ENTER,    /* its state was just entered */
	INBOUND_ON_TURN,     /* what could not be sent may be sent now */
	INBOUND_ON_OPENED,   /* LEASE_OPENED: inbounds.opened */
	INBOUND_ON_READY,    /* KV_READY: inbounds.ready */
	INBOUND_ON_REPLACED, /* the lease is asked for again */
	INBOUND_ON_REVOKED,
	INBOUND_ON_FENCED, /* the path writes nothing more */
	INBOUND_ON_ACKED,  /* KV_READY_ACK */
	INBOUND_ON_RELINKED,
	INBOUND_ON_LINK_GONE,
	INBOUND_ON_DECODE_GONE
};

struct inbound {
	struct list node; /* in inbounds.leases */
	struct inbounds *of;
	struct inbound_link *link;
	struct msg_head head;
	struct lease_key key;
	char prefill[RING_NAME_MAX];
	uint64_t prefill_epoch;
	enum inbound_state state;
	struct incoming *incoming;        /* OPEN, SEALING, FENCING */
	uint64_t bytes, copy_us, tail_us; /* as KV_READY says */
};

typedef enum inbound_state inbound_step_fn(struct inbound *n, enum inbound_event e);
static inbound_step_fn step_new, step_asked, step_open, step_sealing, step_fencing, step_sealed,
	step_posted, step_acked, step_closed;

#define TO(s) (1u << INBOUND_##s)
static const struct {
	unsigned next; /* states that may follow */
	inbound_step_fn *step;
} states[INBOUND_STATE_COUNT] = {
	[INBOUND_NEW] = {TO(ASKED) | TO(CLOSED), step_new},
	[INBOUND_ASKED] = {TO(NEW) | TO(OPEN) | TO(FENCING) | TO(CLOSED), step_asked},
	[INBOUND_OPEN] = {TO(SEALING) | TO(SEALED) | TO(FENCING) | TO(CLOSED), step_open},
	[INBOUND_SEALING] = {TO(SEALED) | TO(FENCING) | TO(CLOSED), step_sealing},
	[INBOUND_FENCING] = {TO(CLOSED), step_fencing},
	[INBOUND_SEALED] = {TO(POSTED) | TO(CLOSED), step_sealed},
	[INBOUND_POSTED] = {TO(SEALED) | TO(ACKED) | TO(CLOSED), step_posted},
	[INBOUND_ACKED] = {TO(CLOSED), step_acked},
	[INBOUND_CLOSED] = {0, step_closed},
};

#define lease_entry(it) list_entry(it, struct inbound, node)
#define each_lease(it, b) list_each_safe(it, it##_next, &(b)->leases)
#define WRITABLE (TO(OPEN) | TO(SEALING) | TO(FENCING))
#define UNSENT (TO(NEW) | TO(ASKED) | TO(SEALED) | TO(ACKED)) /* or it may be too late */

static const char *state_name(enum inbound_state s)
{
	static const char *const names[] = {
#define X(name, text) [INBOUND_##name] = text,
		INBOUND_STATES(X)
#undef X
	};
	return names[s];
}

static void inbound_enter(struct inbound *n, enum inbound_state s)
{
	if (!(states[n->state].next & 1u << s))
		PANIC("inbound lease in state %s cannot become %s", state_name(n->state), state_name(s));
	log_req(LOG_DEBUG, &n->head.req, "inbound_state", "from=%s to=%s messager=%s lease=%" PRIu64,
	        state_name(n->state), state_name(s), n->link->name, n->key.id);
	n->state = s;
}

static void link_free_if_idle(struct inbound_link *l)
{
	if (l->peer || l->n)
		return;
	if (l->intake)
		l->ops->intake_destroy(&l->intake);
	list_remove(&l->node);
	free(l);
}

static void inbound_step(struct inbound *n, enum inbound_event e)
{
	enum inbound_state next = states[n->state].step(n, e);
	while (next != n->state) {
		inbound_enter(n, next);
		next = states[n->state].step(n, INBOUND_ON_ENTER);
	}
	if (n->state != INBOUND_CLOSED)
		return;
	struct inbound_link *l = n->link;
	list_remove(&n->node);
	n->of->n--;
	l->n--;
	free(n);
	link_free_if_idle(l);
}

/* --- messages ------------------------------------------------------------ */

static int link_send(const struct inbound_link *l, enum msg_type type, const struct msg_head *head,
                     const ProtobufCMessage *body)
{
	return l->peer ? l->of->out.send(l->of->out.arg, l->peer, type, head, body) : ERR_CLOSED;
}

static int decode_send(const struct inbound *n, enum msg_type type, const ProtobufCMessage *body)
{
	return mover_tell(n->of->mover, n->key.decode, n->key.epoch, type, &n->head, body);
}

static Pds__Lease lease_of(const struct lease_key *k)
{
	Pds__Lease l = PDS__LEASE__INIT;
	l.id = k->id;
	l.epoch = k->epoch;
	l.generation = k->generation;
	return l;
}

static int ask_decode(const struct inbound *n)
{
	Pds__Lease lease = lease_of(&n->key);
	Pds__LeaseOpen m = PDS__LEASE_OPEN__INIT;
	m.lease = &lease;
	m.prefill = (char *)n->prefill;
	m.prefill_epoch = n->prefill_epoch;
	m.messager = n->link->name;
	return decode_send(n, MSG_LEASE_OPEN, &m.base);
}

static void refuse(const struct inbound_link *l, const struct msg_head *head,
                   const struct lease_key *k, const char *prefill, uint64_t prefill_epoch)
{
	Pds__Lease lease = lease_of(k);
	Pds__LeaseOpened m = PDS__LEASE_OPENED__INIT;
	m.lease = &lease;
	m.refused = 1;
	m.prefill = (char *)prefill;
	m.prefill_epoch = prefill_epoch;
	m.decode = (char *)k->decode;
	link_send(l, MSG_LEASE_OPENED, head, &m.base);
}

static void send_revoke(const struct inbound_link *l, const struct msg_head *head,
                        const struct lease_key *k)
{
	Pds__Lease lease = lease_of(k);
	Pds__LeaseRevoke m = PDS__LEASE_REVOKE__INIT;
	m.lease = &lease;
	m.decode = (char *)k->decode;
	m.fault = mover_revoked_in_order(l->of->mover, k) ? PDS__FAULT__FAULT_DRAINING
	                                                  : PDS__FAULT__FAULT_LEASE_LOST;
	link_send(l, MSG_LEASE_REVOKE, head, &m.base);
}

static void tell_revoked(const struct inbound *n)
{
	send_revoke(n->link, &n->head, &n->key);
}

static int send_ready(const struct inbound *n)
{
	Pds__Lease lease = lease_of(&n->key);
	Pds__KvReady m = PDS__KV_READY__INIT;
	m.lease = &lease;
	m.bytes = n->bytes;
	m.copy_us = n->copy_us;
	m.tail_us = n->tail_us;
	m.prefill = (char *)n->prefill;
	m.prefill_epoch = n->prefill_epoch;
	m.messager = n->link->name;
	return decode_send(n, MSG_KV_READY, &m.base);
}

static int send_ack(const struct inbound *n)
{
	Pds__Lease lease = lease_of(&n->key);
	Pds__KvReadyAck m = PDS__KV_READY_ACK__INIT;
	m.lease = &lease;
	m.prefill = (char *)n->prefill;
	m.prefill_epoch = n->prefill_epoch;
	m.decode = (char *)n->key.decode;
	return link_send(n->link, MSG_KV_READY_ACK, &n->head, &m.base);
}

/* --- finding ------------------------------------------------------------- */

/* Another one of this lease, in one of these states; NULL: none. */
static struct inbound *other_of(const struct inbounds *b, const struct lease_key *k, unsigned in,
                                const struct inbound *than)
{
	list_each(it, &b->leases) {
		struct inbound *n = lease_entry(it);
		if (n != than && (in & 1u << n->state) && memcmp(&n->key, k, sizeof *k) == 0)
			return n;
	}
	return NULL;
}

/* link NULL: of any. */
static struct inbound *find(const struct inbounds *b, const struct inbound_link *link,
                            const struct lease_key *k, const char *prefill, uint64_t prefill_epoch,
                            unsigned in)
{
	list_each(it, &b->leases) {
		struct inbound *n = lease_entry(it);
		if ((in & 1u << n->state) && (!link || n->link == link) &&
		    n->prefill_epoch == prefill_epoch && strcmp(n->prefill, prefill) == 0 &&
		    memcmp(&n->key, k, sizeof *k) == 0)
			return n;
	}
	return NULL;
}

static int is_late(const struct inbound *n)
{
	return n->head.deadline_us && clock_us() >= n->head.deadline_us;
}

/* --- NEW and ASKED ------------------------------------------------------- */

static enum inbound_state step_new(struct inbound *n, enum inbound_event e)
{
	struct mover_local d;
	if (e == INBOUND_ON_REVOKED || e == INBOUND_ON_READY) /* nothing was opened */
		tell_revoked(n);
	if (e == INBOUND_ON_READY)
		return INBOUND_CLOSED;
	if (e == INBOUND_ON_REVOKED || e == INBOUND_ON_LINK_GONE || e == INBOUND_ON_DECODE_GONE ||
	    e == INBOUND_ON_REPLACED || is_late(n))
		return INBOUND_CLOSED;
	if (!mover_find_local(n->of->mover, n->key.decode, n->key.epoch, &d)) {
		refuse(n->link, &n->head, &n->key, n->prefill, n->prefill_epoch);
		return INBOUND_CLOSED;
	}
	/* a lease has one writer at a time; and KV_READY of an earlier one comes before a question */
	if (other_of(n->of, &n->key, WRITABLE | TO(SEALED), n) || ask_decode(n) < 0)
		return INBOUND_NEW;
	return INBOUND_ASKED;
}

static void path_closed(void *arg)
{
	struct inbound *n = arg;
	struct inbounds *b = n->of;
	const struct lease_key k = n->key;
	inbound_step(n, INBOUND_ON_FENCED);
	mover_revoke_fenced(b->mover, &k);
	b->out.wake(b->out.arg);
}

static int fits(const struct mover_local *d, const Pds__LeaseOpened *m)
{
	if (m->n_blocks == 0 || m->n_blocks > RING_BLOCKS_MAX || m->n_generations != m->n_blocks)
		return 0;
	for (size_t i = 0; i < m->n_blocks; i++)
		if (m->blocks[i] >= d->region->blocks)
			return 0;
	return 1;
}

enum answer { ANSWER_OPEN, ANSWER_NO, ANSWER_UNTOLD };

/* Opens the lease on the path and passes D's answer on. NO: it does not open. UNTOLD: it is open,
 * but the other end could not be told. */
static enum answer take_answer(struct inbound *n)
{
	const Pds__LeaseOpened *m = n->of->opened;
	unsigned char handle[PATH_HANDLE_MAX];
	struct mover_local d;
	struct err err = {0};
	if (m->refused || !mover_find_local(n->of->mover, n->key.decode, n->key.epoch, &d) ||
	    !fits(&d, m))
		return ANSWER_NO;
	const struct incoming_opts o = {.layout = d.layout,
	                                .to = d.region,
	                                .dst = m->blocks,
	                                .generations = m->generations,
	                                .blocks = (uint32_t)m->n_blocks,
	                                .arg = n,
	                                .closed = path_closed};
	Pds__LeaseOpened pass = *m;
	if (n->link->ops->incoming_new(n->link->intake, &o, &n->incoming, handle, &pass.handle.len,
	                               &err) < 0) {
		log_req(LOG_WARN, &n->head.req, "inbound_refused", "messager=%s why=%s", n->link->name,
		        log_quote(err.text));
		return ANSWER_NO;
	}
	pass.decode = n->key.decode;
	pass.handle.data = handle;
	if (link_send(n->link, MSG_LEASE_OPENED, &n->head, &pass.base) == 0)
		return ANSWER_OPEN;
	log_req(LOG_WARN, &n->head.req, "inbound_refused", "messager=%s why=%s", n->link->name,
	        log_quote("its link takes no answer"));
	return ANSWER_UNTOLD;
}

static enum inbound_state close_lease(struct inbound *n, enum inbound_state now,
                                      enum inbound_state later)
{
	if (!n->link->ops->incoming_close(n->incoming))
		return later;
	n->link->ops->incoming_free(&n->incoming);
	return now;
}

static enum inbound_state step_asked(struct inbound *n, enum inbound_event e)
{
	if (e == INBOUND_ON_REVOKED || e == INBOUND_ON_READY) /* nothing was opened */
		tell_revoked(n);
	if (e == INBOUND_ON_READY)
		return INBOUND_CLOSED;
	if (e == INBOUND_ON_REVOKED || e == INBOUND_ON_LINK_GONE || e == INBOUND_ON_DECODE_GONE ||
	    e == INBOUND_ON_REPLACED || is_late(n))
		return INBOUND_CLOSED;
	if (e == INBOUND_ON_RELINKED)
		return INBOUND_NEW;
	if (e != INBOUND_ON_OPENED)
		return INBOUND_ASKED;
	enum answer a = take_answer(n);
	if (a == ANSWER_OPEN)
		return INBOUND_OPEN;
	if (a == ANSWER_UNTOLD)
		return close_lease(n, INBOUND_CLOSED, INBOUND_FENCING);
	refuse(n->link, &n->head, &n->key, n->prefill, n->prefill_epoch);
	return INBOUND_CLOSED;
}

/* --- OPEN, SEALING, FENCING ---------------------------------------------- */

/* The memory is about to be unmapped. */
static void drop_lease(struct inbound *n)
{
	n->link->ops->incoming_drop(&n->incoming);
}

static enum inbound_state step_open(struct inbound *n, enum inbound_event e)
{
	switch (e) {
	case INBOUND_ON_READY:
		if (n->link->ops->incoming_complete(n->incoming)) {
			n->bytes = n->of->ready->bytes;
			n->copy_us = n->of->ready->copy_us;
			n->tail_us = n->of->ready->tail_us;
			return close_lease(n, INBOUND_SEALED, INBOUND_SEALING);
		}
		if (once_may_log(&n->of->logged, n->link->name, strlen(n->link->name)))
			log_req(LOG_WARN, &n->head.req, "inbound_incomplete", "messager=%s lease=%" PRIu64,
			        n->link->name, n->key.id);
		tell_revoked(n);
		return close_lease(n, INBOUND_CLOSED, INBOUND_FENCING);
	case INBOUND_ON_REVOKED: tell_revoked(n); /* fallthrough */
	case INBOUND_ON_REPLACED:
	case INBOUND_ON_LINK_GONE: return close_lease(n, INBOUND_CLOSED, INBOUND_FENCING);
	case INBOUND_ON_DECODE_GONE: drop_lease(n); return INBOUND_CLOSED;
	default: return INBOUND_OPEN;
	}
}

static enum inbound_state step_sealing(struct inbound *n, enum inbound_event e)
{
	if (e == INBOUND_ON_FENCED) {
		n->link->ops->incoming_free(&n->incoming);
		return INBOUND_SEALED;
	}
	if (e == INBOUND_ON_DECODE_GONE) {
		drop_lease(n);
		return INBOUND_CLOSED;
	}
	if (e != INBOUND_ON_REVOKED)
		return INBOUND_SEALING;
	tell_revoked(n);
	return INBOUND_FENCING;
}

static enum inbound_state step_fencing(struct inbound *n, enum inbound_event e)
{
	if (e == INBOUND_ON_DECODE_GONE)
		drop_lease(n);
	else if (e == INBOUND_ON_FENCED)
		n->link->ops->incoming_free(&n->incoming);
	return n->incoming ? INBOUND_FENCING : INBOUND_CLOSED;
}

/* --- SEALED, POSTED, ACKED ----------------------------------------------- */

static enum inbound_state step_sealed(struct inbound *n, enum inbound_event e)
{
	if (e == INBOUND_ON_REVOKED)
		tell_revoked(n);
	if (e == INBOUND_ON_REVOKED || e == INBOUND_ON_DECODE_GONE)
		return INBOUND_CLOSED;
	/* the process that wrote may have been another one, whose writes are not fenced off yet */
	if (other_of(n->of, &n->key, WRITABLE, n) || send_ready(n) < 0)
		return INBOUND_SEALED;
	return INBOUND_POSTED;
}

static enum inbound_state step_posted(struct inbound *n, enum inbound_event e)
{
	if (e == INBOUND_ON_REVOKED)
		tell_revoked(n);
	if (e == INBOUND_ON_REVOKED || e == INBOUND_ON_DECODE_GONE)
		return INBOUND_CLOSED;
	if (e == INBOUND_ON_RELINKED)
		return INBOUND_SEALED;
	return e == INBOUND_ON_ACKED ? INBOUND_ACKED : INBOUND_POSTED;
}

static enum inbound_state step_acked(struct inbound *n, enum inbound_event e)
{
	(void)e;
	return send_ack(n) == ERR_FULL ? INBOUND_ACKED : INBOUND_CLOSED;
}

static enum inbound_state step_closed(struct inbound *n, enum inbound_event e)
{
	(void)e;
	CHECK(!n->incoming);
	return INBOUND_CLOSED;
}

/* --- links --------------------------------------------------------------- */

struct inbounds *inbound_new(const struct inbound_out *out, struct mover *m,
                             const struct transports *t)
{
	struct inbounds *b = mem_zalloc(sizeof *b);
	b->out = *out;
	b->mover = m;
	b->transports = t;
	list_init(&b->links);
	list_init(&b->leases);
	return b;
}

static int say(void *arg, const void *bytes, size_t n)
{
	struct inbound_link *l = arg;
	Pds__Path m = PDS__PATH__INIT;
	m.transport = (char *)l->ops->name;
	m.data = (ProtobufCBinaryData){n, (uint8_t *)bytes};
	return link_send(l, MSG_PATH, NULL, &m.base);
}

static void intake_up(void *arg, int up, const char *why)
{
	const struct inbound_link *l = arg;
	if (up)
		log_notice("intake_up", "messager=%s transport=%s", l->name, l->ops->name);
	else
		log_notice("intake_down", "messager=%s transport=%s why=%s", l->name, l->ops->name,
		           log_quote(why));
}

struct pool_list {
	Pds__Pool *at;
	size_t n, room;
};

static void count_pool(void *arg, const struct mover_local *w)
{
	(void)w;
	((struct pool_list *)arg)->room++;
}

static void add_pool(void *arg, const struct mover_local *w)
{
	struct pool_list *list = arg;
	Pds__Pool *p = &list->at[list->n++];
	pds__pool__init(p);
	p->worker = (char *)w->name;
	p->epoch = w->epoch;
	p->layout = (char *)w->layout_text;
	p->blocks = w->region->blocks;
}

static void send_pools(struct inbound_link *l)
{
	struct pool_list list = {0};
	Pds__Pools m = PDS__POOLS__INIT;
	mover_each_local(l->of->mover, count_pool, &list);
	list.at = mem_array(list.room, sizeof *list.at);
	m.pools = mem_array(list.room, sizeof *m.pools);
	mover_each_local(l->of->mover, add_pool, &list);
	for (m.n_pools = 0; m.n_pools < list.n; m.n_pools++)
		m.pools[m.n_pools] = &list.at[m.n_pools];
	l->pools_owed = link_send(l, MSG_POOLS, NULL, &m.base) == ERR_FULL;
	free(m.pools);
	free(list.at);
}

struct inbound_link *inbound_up(struct inbounds *b, void *peer, const char *name, uint64_t epoch)
{
	if (!b->transports->n)
		return NULL;
	struct inbound_link *l = mem_zalloc(sizeof *l);
	l->of = b;
	l->peer = peer;
	l->epoch = epoch;
	snprintf(l->name, sizeof l->name, "%s", name);
	snprintf(l->trouble, sizeof l->trouble, "it has not said yet how it can send KV");
	list_push_back(&b->links, &l->node);
	send_pools(l);
	return l;
}

/* The sender is told what this messager takes: it fails its transfers at once, and says why. */
static void refuse_path(struct inbound_link *l, const Pds__Path *b)
{
	char ours[TRANSPORTS_TEXT_MAX], theirs[TRANSPORTS_TEXT_MAX];
	Pds__Path m = PDS__PATH__INIT;
	transport_list(l->of->transports, ours);
	size_t n = b->data.len < sizeof theirs ? b->data.len : sizeof theirs - 1;
	snprintf(theirs, sizeof theirs, "%.*s", (int)n, n ? (const char *)b->data.data : "");
	snprintf(l->trouble, sizeof l->trouble,
	         "this messager takes KV over %s only, which the other one does not have (it has: %s)",
	         ours, *theirs ? theirs : "none");
	if (once_may_log(&l->of->logged, l->name, strlen(l->name)))
		log_error("path_refused", "messager=%s why=%s", l->name, log_quote(l->trouble));
	m.transport = ours;
	link_send(l, MSG_PATH, NULL, &m.base);
}

/* The sender has said which transports it has: the first of ours that is among them is used. */
static void choose(struct inbound_link *l, const Pds__Path *b)
{
	const struct transports *t = l->of->transports;
	struct path_peer who = {.epoch = l->epoch};
	int i = transport_best(t, b->data.data, b->data.len);
	if (i < 0) {
		refuse_path(l, b);
		return;
	}
	char what[sizeof l->name + 40];
	snprintf(what, sizeof what, "%s falls back to %s", l->name, t->at[i].ops->name);
	if (i > 0 && once_may_log(&l->of->logged, what, strlen(what)))
		log_warn("path_fallback", "messager=%s transport=%s why=%s", l->name, t->at[i].ops->name,
		         log_quote("the messager over there does not have a better one"));
	snprintf(who.name, sizeof who.name, "%s", l->name);
	l->ops = t->at[i].ops;
	l->intake = l->ops->intake_new(t->at[i].transport, &who,
	                               &(struct path_hooks){l, say, intake_up});
}

static void step_leases_of(struct inbound_link *l, enum inbound_event e)
{
	each_lease(it, l->of) {
		if (lease_entry(it)->link == l)
			inbound_step(lease_entry(it), e);
	}
}

void inbound_down(struct inbound_link *l)
{
	l->n++; /* keeps it until here */
	l->peer = NULL;
	step_leases_of(l, INBOUND_ON_LINK_GONE);
	l->n--;
	link_free_if_idle(l);
}

void inbound_destroy(struct inbounds **bp)
{
	struct inbounds *b = *bp;
	if (!b)
		return;
	each_lease(it, b) {
		struct inbound *n = lease_entry(it);
		list_remove(&n->node);
		free(n);
	}
	list_each_safe(it, nx, &b->links) {
		struct inbound_link *l = list_entry(it, struct inbound_link, node);
		if (l->intake)
			l->ops->intake_destroy(&l->intake);
		list_remove(&l->node);
		free(l);
	}
	free(b);
	*bp = NULL;
}

void inbound_pools_changed(struct inbounds *b)
{
	list_each(it, &b->links)
		send_pools(list_entry(it, struct inbound_link, node));
}

/* --- leases -------------------------------------------------------------- */

static struct inbound *lease_new(struct inbound_link *l, const struct msg_head *head,
                                 const struct lease_key *k, const char *prefill,
                                 uint64_t prefill_epoch, enum inbound_state state)
{
	struct inbound *n = mem_zalloc(sizeof *n);
	n->of = l->of;
	n->link = l;
	n->head = *head;
	n->key = *k;
	n->prefill_epoch = prefill_epoch;
	n->state = state;
	snprintf(n->prefill, sizeof n->prefill, "%s", prefill);
	list_push_back(&l->of->leases, &n->node);
	l->of->n++;
	l->n++;
	return n;
}

void inbound_path(struct inbound_link *l, const Pds__Path *b)
{
	struct err err = {0};
	if (!*b->transport) {
		if (!l->intake)
			choose(l, b);
		return;
	}
	if (!l->intake || strcmp(b->transport, l->ops->name) != 0 ||
	    l->ops->intake_said(l->intake, b->data.data, b->data.len, &err) < 0)
		if (once_may_log(&l->of->logged, l->name, strlen(l->name)))
			log_error("path_refused", "messager=%s transport=%s why=%s", l->name,
			          log_quote(b->transport), log_quote(err.text));
}

/* The key of the lease of a message from the other end. 0: it names no worker. */
static int key_of(const char *decode, const Pds__Lease *l, struct lease_key *ret)
{
	if (!*decode || strlen(decode) >= sizeof ret->decode)
		return 0;
	*ret = lease_key_of(decode, l->id, l->epoch, l->generation);
	return 1;
}

/* A lease has one writer: what an earlier question opened, on this link or another, closes. */
static void replace_others(struct inbounds *b, const struct lease_key *k)
{
	each_lease(it, b) {
		if (memcmp(&lease_entry(it)->key, k, sizeof *k) == 0)
			inbound_step(lease_entry(it), INBOUND_ON_REPLACED);
	}
}

/* Is the lease another messager's? An earlier life of the same one gives way. */
static int is_held(const struct inbound_link *l, const struct lease_key *k)
{
	list_each(it, &l->of->leases) {
		const struct inbound *n = lease_entry(it);
		if (memcmp(&n->key, k, sizeof *k) == 0 && strcmp(n->link->name, l->name) != 0)
			return 1;
	}
	return 0;
}

static int has_room(const struct inbound_link *l)
{
	return l->n < INBOUND_LEASES_MAX && l->of->n < INBOUND_ALL_MAX;
}

void inbound_lease_open(struct inbound_link *l, const struct msg_head *head,
                        const Pds__LeaseOpen *m)
{
	struct inbounds *b = l->of;
	struct lease_key k;
	if (!key_of(m->decode, m->lease, &k))
		return;
	if (find(b, l, &k, m->prefill, m->prefill_epoch, TO(NEW) | TO(ASKED)))
		return; /* it is on its way */
	if (!l->intake || !has_room(l) || strlen(m->prefill) >= RING_NAME_MAX || is_held(l, &k)) {
		refuse(l, head, &k, m->prefill, m->prefill_epoch);
		return;
	}
	replace_others(b, &k);
	inbound_step(lease_new(l, head, &k, m->prefill, m->prefill_epoch, INBOUND_NEW),
	             INBOUND_ON_ENTER);
}

void inbound_kv_ready(struct inbound_link *l, const struct msg_head *head, const Pds__KvReady *m)
{
	struct inbounds *b = l->of;
	struct lease_key k;
	struct mover_local d;
	if (!key_of(m->decode, m->lease, &k))
		return;
	struct inbound *n = find(b, l, &k, m->prefill, m->prefill_epoch, ~TO(FENCING));
	b->ready = m;
	if (n)
		inbound_step(n, INBOUND_ON_READY);
	else if (!has_room(l) || strlen(m->prefill) >= RING_NAME_MAX || is_held(l, &k) ||
	         !mover_find_local(b->mover, k.decode, k.epoch, &d))
		send_revoke(l, head, &k);
	else {
		replace_others(b, &k);
		n = lease_new(l, head, &k, m->prefill, m->prefill_epoch, INBOUND_SEALED);
		n->bytes = m->bytes;
		n->copy_us = m->copy_us;
		n->tail_us = m->tail_us;
		inbound_step(n, INBOUND_ON_ENTER);
	}
	b->ready = NULL;
}

void inbound_lease_opened(struct inbounds *b, const char *name, uint64_t epoch,
                          const Pds__LeaseOpened *m)
{
	struct lease_key k;
	if (m->lease->epoch != epoch || !key_of(name, m->lease, &k))
		return;
	struct inbound *n = find(b, NULL, &k, m->prefill, m->prefill_epoch, TO(ASKED));
	b->opened = m;
	if (n)
		inbound_step(n, INBOUND_ON_OPENED);
	b->opened = NULL;
}

void inbound_kv_ready_ack(struct inbounds *b, const char *name, uint64_t epoch,
                          const Pds__KvReadyAck *m)
{
	struct lease_key k;
	if (m->lease->epoch != epoch || !key_of(name, m->lease, &k))
		return;
	struct inbound *n = find(b, NULL, &k, m->prefill, m->prefill_epoch, TO(POSTED));
	if (n)
		inbound_step(n, INBOUND_ON_ACKED);
}

/* All leases of this epoch of a worker. */
static void step_leases_to(struct inbounds *b, const char *name, uint64_t epoch,
                           enum inbound_event e)
{
	each_lease(it, b) {
		struct inbound *n = lease_entry(it);
		if (n->key.epoch == epoch && strcmp(n->key.decode, name) == 0)
			inbound_step(n, e);
	}
}

void inbound_linked(struct inbounds *b, const char *name, uint64_t epoch)
{
	step_leases_to(b, name, epoch, INBOUND_ON_RELINKED);
}

void inbound_worker_gone(struct inbounds *b, const char *name, uint64_t epoch)
{
	step_leases_to(b, name, epoch, INBOUND_ON_DECODE_GONE);
}

int inbound_fence(struct inbounds *b, const struct lease_key *lease)
{
	each_lease(it, b) {
		if (memcmp(&lease_entry(it)->key, lease, sizeof *lease) == 0)
			inbound_step(lease_entry(it), INBOUND_ON_REVOKED);
	}
	return other_of(b, lease, WRITABLE, NULL) == NULL;
}

int inbound_turn(struct inbounds *b)
{
	int waits = 0;
	list_each(it, &b->links) {
		struct inbound_link *l = list_entry(it, struct inbound_link, node);
		if (l->pools_owed)
			send_pools(l);
		waits |= l->pools_owed;
	}
	each_lease(it, b)
		inbound_step(lease_entry(it), INBOUND_ON_TURN);
	list_each(it, &b->leases)
		waits |= (UNSENT & 1u << lease_entry(it)->state) != 0;
	return waits;
}

uint32_t inbound_count(const struct inbounds *b)
{
	return b->n;
}

/* --- pdctl links --------------------------------------------------------- */

void inbound_json(const struct inbounds *b, struct buf *out, int first)
{
	list_each(it, &b->links) {
		const struct inbound_link *l = list_entry(it, struct inbound_link, node);
		struct path_state s = {.transport = "-", .up = l->trouble};
		if (l->intake)
			l->ops->intake_state(l->intake, &s);
		buf_printf(out, "%s{\"direction\":\"from\",\"messager\":", first ? "" : ",");
		buf_add_json(out, l->name, strlen(l->name));
		path_state_json(&s, out);
		buf_printf(out, ",\"leases\":%u}", l->n);
		first = 0;
	}
}
