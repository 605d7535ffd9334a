/* tcp_recv.c - the receiver's side: an intake with its leases, the incomings. Which bytes may be
 * written is decided here: only pieces of an open lease whose block has its generation, and none
 * that has arrived already (a repetition that turns out to be damaged would destroy it). */
#include "tcp_priv.h"

#include "tcp_in.h"
#include "util/check.h"
#include "util/least.h"
#include "util/log.h"
#include "util/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- incoming ------------------------------------------------------------ */

struct tcp_incoming *intake_find(const struct tcp_intake *i, uint32_t handle, uint32_t generation)
{
	struct tcp_incoming *n = handle < i->n_slots ? i->slot[handle] : NULL;
	return n && n->open && n->generation == generation ? n : NULL;
}

static int has_arrived(const struct tcp_incoming *n, uint64_t piece)
{
	return n->arrived[piece / 64] >> piece % 64 & 1;
}

int incoming_look(const struct tcp_incoming *n, uint32_t layer, uint32_t block)
{
	if (atomic_load_explicit(&n->o.to->generations[n->dst[block]], memory_order_acquire) !=
	    n->generations[block])
		return ERR_STALE;
	return has_arrived(n, (uint64_t)layer * n->o.blocks + block);
}

void incoming_arrived(struct tcp_incoming *n, uint32_t layer, uint32_t first, uint32_t n_blocks)
{
	struct path_state *s = &n->i->side.state;
	const size_t bytes = n->o.layout->piece_bytes[layer];
	for (uint32_t b = first; b < first + n_blocks; b++) {
		uint64_t piece = (uint64_t)layer * n->o.blocks + b;
		if (has_arrived(n, piece)) {
			s->repeated_bytes += bytes;
			continue;
		}
		n->arrived[piece / 64] |= 1ull << piece % 64;
		n->n_arrived++;
		s->bytes += bytes;
	}
	s->frames++;
}

int incoming_write(struct tcp_incoming *n, const struct frame *f, const unsigned char *bytes,
                   struct err *err)
{
	const struct kv_layout *l = n->o.layout;
	const size_t size = l->piece_bytes[f->layer];
	struct kern_ticket last = {0};
	char why[256] = "";
	int rc = KERN_OK, look = 0;
	for (uint32_t i = 0; i < f->n && !rc && look >= 0; i++) {
		uint32_t b = f->first + i;
		if ((look = incoming_look(n, f->layer, b)) != 0)
			continue;
		const struct kern_piece part = {kv_piece_offset(l, n->o.to->blocks, f->layer, n->dst[b]),
		                                (uintptr_t)(bytes + i * size), size};
		const struct kern_copy copy = {.to = n->o.to->pool, .piece = &part, .n = 1};
		rc = kern_copy(&copy, &last, why, sizeof why);
	}
	char later[64]; /* discarded: the first error is reported */
	int waited = kern_wait(&last, rc ? later : why, rc ? sizeof later : sizeof why);
	rc = rc ? rc : waited;
	if (rc)
		return err_set(err, rc == KERN_ELOST ? ERR_CLOSED : ERR_IO, "cannot write layer %u: %s",
		               f->layer, why);
	return look < 0 ? look : 0;
}

static void incoming_destroy(struct tcp_incoming *n)
{
	free(n->dst);
	free(n->generations);
	free(n->arrived);
	free(n);
}

/* A free slot. Its number, or ERR_FULL or ERR_NOMEM. */
static int slot_of(struct tcp_intake *i)
{
	uint32_t at = 0;
	while (at < i->n_slots && i->slot[at])
		at++;
	if (at < i->n_slots)
		return (int)at;
	if (at >= TCP_INCOMING_MAX)
		return ERR_FULL;
	uint32_t n = (uint32_t)least(at ? at * 2 : 16, TCP_INCOMING_MAX);
	struct tcp_incoming **slots = mem_try_grow(i->slot, n, sizeof *slots);
	if (!slots)
		return ERR_NOMEM;
	i->slot = slots;
	uint32_t *generations = mem_try_grow(i->slot_generation, n, sizeof *generations);
	if (!generations)
		return ERR_NOMEM;
	i->slot_generation = generations;
	memset(slots + at, 0, (n - at) * sizeof *slots);
	randombytes_buf(generations + at, (n - at) * sizeof *generations);
	i->n_slots = n;
	return (int)at;
}

int tcp_incoming_new(struct intake *intake, const struct incoming_opts *o, struct incoming **ret,
                     unsigned char *handle, size_t *ret_handle_bytes, struct err *err)
{
	struct tcp_intake *i = (struct tcp_intake *)intake;
	const struct kv_layout *l = o->layout;
	if (o->blocks == 0)
		return err_set(err, ERR_INVALID, "a lease of no blocks");
	for (uint32_t b = 0; b < o->blocks; b++)
		if (o->dst[b] >= o->to->blocks)
			return err_set(err, ERR_INVALID, "block %u of a lease, the pool has %u", o->dst[b],
			               o->to->blocks);
	for (uint32_t layer = 0; layer < l->layers; layer++)
		if (l->piece_bytes[layer] > FRAME_PAYLOAD_MAX)
			return err_set(err, ERR_UNSUPPORTED, "pieces of %zu bytes in layer %u: the limit is %u",
			               l->piece_bytes[layer], layer, FRAME_PAYLOAD_MAX);
	int at = slot_of(i);
	if (at < 0)
		return err_set(err, at, "no room for another lease: %u are open (limit %u)", i->n_open,
		               TCP_INCOMING_MAX);
	struct tcp_incoming *n = mem_zalloc(sizeof *n);
	*n = (struct tcp_incoming){.i = i,
	                           .o = *o,
	                           .pieces = (uint64_t)l->layers * o->blocks,
	                           .handle = (uint32_t)at,
	                           .generation = i->slot_generation[at]++,
	                           .open = 1};
	n->dst = mem_try_array(o->blocks, sizeof *n->dst);
	n->generations = mem_try_array(o->blocks, sizeof *n->generations);
	n->arrived = mem_try_array(n->pieces / 64 + 1, sizeof *n->arrived);
	if (!n->dst || !n->generations || !n->arrived) {
		incoming_destroy(n);
		return err_set(err, ERR_NOMEM, "no memory for a lease of %u blocks", o->blocks);
	}
	memcpy(n->dst, o->dst, o->blocks * sizeof *n->dst);
	memcpy(n->generations, o->generations, o->blocks * sizeof *n->generations);
	n->o.dst = n->dst;
	n->o.generations = n->generations;
	i->slot[at] = n;
	i->n_open++;
	const uint32_t word[3] = {htole32(TCP_HANDLE_MAGIC), htole32(n->handle),
	                          htole32(n->generation)};
	memcpy(handle, word, sizeof word);
	*ret_handle_bytes = sizeof word;
	*ret = (struct incoming *)n;

	return 0;
}

int tcp_incoming_complete(const struct incoming *incoming)
{
	const struct tcp_incoming *n = (const struct tcp_incoming *)incoming;

	return n->n_arrived == n->pieces;
}

int tcp_incoming_close(struct incoming *incoming)
{
	struct tcp_incoming *n = (struct tcp_incoming *)incoming;

	n->open = 0;
	list_each(it, &n->i->conns)
		tcp_in_forget(tcp_in_of(it), n);
	return 1;
}

void tcp_incoming_free(struct incoming **pn)
{
	struct tcp_incoming *n = (struct tcp_incoming *)*pn;
	if (!n)
		return;
	CHECK(!n->open);
	n->i->slot[n->handle] = NULL;
	n->i->n_open--;
	incoming_destroy(n);
	*pn = NULL;
}

void tcp_incoming_drop(struct incoming **pn)
{
	tcp_incoming_close(*pn);
	tcp_incoming_free(pn);
}

/* --- intake -------------------------------------------------------------- */

static void intake_tell(struct notice *notice)
{
	struct tcp_intake *i = list_entry(notice, struct tcp_intake, side.notice);
	unsigned char text[SETUP_BYTES];
	if (!i->side.say_due) {
		tcp_side_tell_up(&i->side);
		return;
	}
	i->side.say_due = 0;
	if ((i->side.n_up > 0) != i->side.up_told)
		tcp_notice(i->side.t, notice);
	size_t n = setup_put(text, &i->setup);
	if (i->side.hooks.say(i->side.hooks.arg, text, n) < 0)
		i->side.say_due = 1; /* the tick tries again */
	sodium_memzero(text, sizeof text);
}

struct intake *tcp_intake_new(void *transport, const struct path_peer *peer,
                              const struct path_hooks *hooks)
{
	struct tcp_transport *t = transport;
	struct tcp_intake *i = mem_zalloc(sizeof *i);
	tcp_side_init(&i->side, t, peer, hooks, intake_tell);
	i->setup = (struct setup){.kind = SETUP_TELL,
	                          .port = t->port,
	                          .connections = TCP_CONNECTIONS_MAX,
	                          .encrypt = t->opts.encrypt,
	                          .aes = t->aes};
	randombytes_buf(&i->setup.pair, sizeof i->setup.pair);
	randombytes_buf(i->setup.secret, sizeof i->setup.secret);
	list_init(&i->conns);
	list_push_back(&t->intakes, &i->node);
	CHECK(!map_put(t->pairs, &i->setup.pair, i));
	return (struct intake *)i;
}

void tcp_intake_destroy(struct intake **pi)
{
	struct tcp_intake *i = (struct tcp_intake *)*pi;
	if (!i)
		return;
	list_each_safe(it, next, &i->conns)
		tcp_in_close(tcp_in_of(it));
	for (uint32_t k = 0; k < i->n_slots; k++)
		if (i->slot[k])
			incoming_destroy(i->slot[k]);
	map_remove(i->side.t->pairs, &i->setup.pair);
	list_remove(&i->side.notice.node);
	list_remove(&i->node);
	free(i->slot);
	free(i->slot_generation);
	sodium_memzero(i, sizeof *i);
	free(i);
	*pi = NULL;
}

int tcp_intake_said(struct intake *intake, const void *bytes, size_t n, struct err *err)
{
	struct tcp_intake *i = (struct tcp_intake *)intake;

	struct setup s;
	if (setup_get(bytes, n, &s) < 0 || s.kind != SETUP_ASK)
		return err_set(err, ERR_INVALID, "%zu bytes that do not ask for SETUP of TCP", n);
	i->side.say_due = 1;
	tcp_notice(i->side.t, &i->side.notice);
	return 0;
}

void tcp_intake_state(const struct intake *intake, struct path_state *ret)
{
	const struct tcp_intake *i = (const struct tcp_intake *)intake;

	const struct tcp_in *c = NULL;
	tcp_side_state(&i->side, ret);
	list_each(it, &i->conns)
		c = tcp_in_is_up(tcp_in_of(it)) ? tcp_in_of(it) : c;
	snprintf(ret->via, sizeof ret->via, "port %u, %u connections%s%s, %s", i->side.t->port,
	         i->side.n_up, c ? ", last from " : "", c ? tcp_in_from(c) : "",
	         cipher_name(c ? tcp_in_cipher(c) : CIPHER_NONE));
}
