/* tcp_send.c - the sender's side: a path with its outgoings, which share its connections in turn,
 * frame by frame.
 *
 * A piece (layer, block) is due, or in a frame that is not acknowledged, or delivered. What the
 * receiver says is trusted in nothing: it can only make a transfer fail or stall. */
#include "tcp_priv.h"

#include "tcp_out.h"
#include "util/check.h"
#include "util/clock.h"
#include "util/least.h"
#include "util/log.h"
#include "util/mem.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- pieces that are due ------------------------------------------------- */

static void due_set(struct tcp_outgoing *o, uint32_t layer, uint32_t first, uint32_t n)
{
	uint64_t *bits = o->due + (size_t)layer * o->words;
	for (uint32_t b = first; b < first + n; b++) {
		CHECK(!(bits[b / 64] >> b % 64 & 1));
		bits[b / 64] |= 1ull << b % 64;
	}
	o->due_n[layer] += n;
	o->n_due += n;
	o->due_at[layer] = (uint32_t)least(o->due_at[layer], first / 64);
	o->layer = (uint32_t)least(o->layer, layer);
}

/* The first run of the lowest layer: one piece, or as many as fit into most_bytes. */
static void due_take(struct tcp_outgoing *o, size_t most_bytes, uint32_t *ret_layer,
                     uint32_t *ret_first, uint32_t *ret_n)
{
	uint64_t *bits = o->due + (size_t)o->layer * o->words;
	uint32_t *at = &o->due_at[o->layer], n = 0;
	uint64_t most = most_bytes / o->o.layout->piece_bytes[o->layer];
	while (!bits[*at])
		++*at;
	uint32_t first = *at * 64 + (uint32_t)__builtin_ctzll(bits[*at]);
	do {
		bits[(first + n) / 64] &= ~(1ull << (first + n) % 64);
		n++;
	} while (n < most && first + n < o->o.blocks && bits[(first + n) / 64] >> (first + n) % 64 & 1);
	o->due_n[o->layer] -= n;
	o->n_due -= n;
	*ret_layer = o->layer;
	*ret_first = first;
	*ret_n = n;
}

/* Does its next piece fit into the window? One piece always does. */
static int may_send(struct tcp_outgoing *o)
{
	if (!o->n_due || o->failed)
		return 0;
	while (!o->due_n[o->layer])
		o->layer++;
	return !o->unacked_bytes ||
	       o->unacked_bytes + o->o.layout->piece_bytes[o->layer] <= o->p->side.t->opts.window_bytes;
}

/* Puts it into its path's turns, or takes it out. */
static void outgoing_update(struct tcp_outgoing *o)
{
	int may = may_send(o), is = !list_empty(&o->ready);
	if (may && !is)
		list_push_back(&o->p->ready, &o->ready);
	else if (!may && is)
		list_remove(&o->ready);
}

struct tcp_outgoing *path_take(struct tcp_path *p, uint32_t *ret_layer, uint32_t *ret_first,
                               uint32_t *ret_n)
{
	const struct tcp_opts *opts = &p->side.t->opts;
	if (list_empty(&p->ready))
		return NULL;
	struct tcp_outgoing *o = list_entry(p->ready.next, struct tcp_outgoing, ready);
	list_remove(&o->ready);
	due_take(o, least(opts->frame_bytes, opts->window_bytes - o->unacked_bytes), ret_layer,
	         ret_first, ret_n);
	o->unacked_bytes += *ret_n * o->o.layout->piece_bytes[*ret_layer];
	outgoing_update(o);
	return o;
}

void path_kick(struct tcp_path *p)
{
	if (list_empty(&p->ready) && !p->canary_due)
		return;
	for (unsigned i = 0; i < p->n_outs; i++) {
		p->turn = (p->turn + 1) % p->n_outs;
		if (tcp_out_wake(p->out[p->turn]))
			return;
	}
}

/* --- outgoing ------------------------------------------------------------ */

void outgoing_again(struct tcp_outgoing *o, uint32_t layer, uint32_t first, uint32_t n)
{
	uint64_t bytes = n * o->o.layout->piece_bytes[layer];
	o->unacked_bytes -= bytes;
	if (o->failed)
		return;
	o->p->side.state.repeated_bytes += bytes;
	due_set(o, layer, first, n);
	outgoing_update(o);
}

void outgoing_acked(struct tcp_outgoing *o, uint64_t bytes)
{
	o->unacked_bytes -= bytes;
	if (o->failed)
		return;
	o->p->side.state.bytes += bytes;
	o->p->side.state.frames++;
	o->untold_bytes += bytes;
	tcp_notice(o->p->side.t, &o->notice);
	outgoing_update(o);
}

void outgoing_fail(struct tcp_outgoing *o, int code, const char *fmt, ...)
{
	va_list ap;
	if (o->failed)
		return;
	va_start(ap, fmt);
	vsnprintf(o->why, sizeof o->why, fmt, ap);
	va_end(ap);
	o->failed = code;
	o->failed_untold = 1;
	outgoing_update(o);
	tcp_notice(o->p->side.t, &o->notice);
}

void path_refused(struct tcp_path *p, const struct frame *f)
{
	static const char *const whys[] = {
		[REFUSED_CLOSED] = "the receiver has closed the lease",
		[REFUSED_STALE] = "a block of the lease has another generation at the receiver",
		[REFUSED_MALFORMED] = "the receiver's lease has other layers or blocks"};
	list_each(it, &p->outgoings) {
		struct tcp_outgoing *o = list_entry(it, struct tcp_outgoing, node);
		if (o->handle == f->handle && o->generation == f->generation)
			outgoing_fail(
				o, ERR_STALE, "%s",
				whys[f->n == REFUSED_STALE || f->n == REFUSED_MALFORMED ? f->n : REFUSED_CLOSED]);
	}
}

/* One hook a call: it may end the outgoing. */
static void outgoing_tell(struct notice *n)
{
	struct tcp_outgoing *o = list_entry(n, struct tcp_outgoing, notice);
	uint64_t bytes = o->untold_bytes;
	o->untold_bytes = 0;
	if (bytes) {
		if (o->failed_untold)
			tcp_notice(o->p->side.t, n);
		o->o.delivered(o->o.arg, bytes);
	} else if (o->failed_untold) {
		o->failed_untold = 0;
		o->o.failed(o->o.arg, o->failed, o->why);
	}
}

int outgoing_runs(const struct tcp_outgoing *o, uint32_t layer, uint32_t first, uint32_t n,
                  size_t at, struct iovec *iov, int max)
{
	const struct kv_layout *l = o->o.layout;
	const size_t piece = l->piece_bytes[layer];
	const uint32_t *src = o->src + first;
	int used = 0;
	for (uint32_t i = (uint32_t)(at / piece), run; i < n && used < max; i += run) {
		size_t skip = used ? 0 : at % piece;
		for (run = 1; i + run < n && src[i + run] == src[i] + run;)
			run++;
		iov[used++] = (struct iovec){
			o->o.from->pool->host + kv_piece_offset(l, o->o.from->blocks, layer, src[i]) + skip,
			run * piece - skip};
	}
	return used;
}

/* 0, or ERR_INVALID. */
static int handle_get(const struct outgoing_opts *o, uint32_t *ret_handle, uint32_t *ret_generation)
{
	uint32_t word[3];
	if (o->handle_bytes != sizeof word)
		return ERR_INVALID;
	memcpy(word, o->handle, sizeof word);
	if (le32toh(word[0]) != TCP_HANDLE_MAGIC)
		return ERR_INVALID;
	*ret_handle = le32toh(word[1]);
	*ret_generation = le32toh(word[2]);
	return 0;
}

static void outgoing_free(struct tcp_outgoing *o)
{
	free(o->src);
	free(o->due);
	free(o->due_n);
	free(o->due_at);
	free(o);
}

static int tcp_outgoing_new(struct path *path, const struct outgoing_opts *opts,
                            struct outgoing **ret, struct err *err)
{
	struct tcp_path *p = (struct tcp_path *)path;

	uint32_t handle = 0, generation = 0;
	if (handle_get(opts, &handle, &generation) < 0)
		return err_set(err, ERR_INVALID, "a handle of %zu bytes that is not one of TCP",
		               opts->handle_bytes);
	if (opts->blocks == 0)
		return err_set(err, ERR_INVALID, "a lease of no blocks");
	for (uint32_t l = 0; l < opts->layout->layers; l++)
		if (opts->layout->piece_bytes[l] > FRAME_PAYLOAD_MAX)
			return err_set(err, ERR_INVALID, "pieces of %zu bytes in layer %u: the limit is %u",
			               opts->layout->piece_bytes[l], l, FRAME_PAYLOAD_MAX);
	for (uint32_t b = 0; b < opts->blocks; b++)
		CHECK(opts->src[b] < opts->from->blocks);
	struct tcp_outgoing *o = mem_zalloc(sizeof *o);
	*o = (struct tcp_outgoing){.p = p,
	                           .o = *opts,
	                           .handle = handle,
	                           .generation = generation,
	                           .words = (opts->blocks + 63) / 64};
	o->notice.run = outgoing_tell;
	list_init(&o->notice.node);
	list_init(&o->ready);
	list_init(&o->node);
	o->o.handle = NULL;
	o->o.dst = NULL;
	o->src = mem_try_array(opts->blocks, sizeof *o->src);
	o->due = mem_try_array((size_t)o->words * opts->layout->layers, sizeof *o->due);
	o->due_n = mem_try_array(opts->layout->layers, sizeof *o->due_n);
	o->due_at = mem_try_array(opts->layout->layers, sizeof *o->due_at);
	if (!o->src || !o->due || !o->due_n || !o->due_at) {
		outgoing_free(o);
		return err_set(err, ERR_NOMEM, "no memory for a lease of %u blocks", opts->blocks);
	}
	memcpy(o->src, opts->src, opts->blocks * sizeof *o->src);
	o->o.src = o->src;
	list_push_back(&p->outgoings, &o->node);
	*ret = (struct outgoing *)o;
	return 0;
}

static void tcp_outgoing_send(struct outgoing *outgoing, uint32_t layer, uint32_t first, uint32_t n)
{
	struct tcp_outgoing *o = (struct tcp_outgoing *)outgoing;

	CHECK(layer < o->o.layout->layers && first <= o->o.blocks && n <= o->o.blocks - first);
	if (o->failed || n == 0)
		return;
	due_set(o, layer, first, n);
	outgoing_update(o);
	path_kick(o->p);
}

static void tcp_outgoing_end(struct outgoing **po)
{
	struct tcp_outgoing *o = (struct tcp_outgoing *)*po;
	if (!o)
		return;
	for (unsigned i = 0; i < o->p->n_outs; i++)
		tcp_out_forget(o->p->out[i], o);
	list_remove(&o->notice.node);
	list_remove(&o->ready);
	list_remove(&o->node);
	outgoing_free(o);
	*po = NULL;
}

/* --- path ---------------------------------------------------------------- */

enum cipher path_cipher(const struct tcp_path *p)
{
	if (!p->setup.encrypt && !p->side.t->opts.encrypt)
		return CIPHER_NONE;
	return p->setup.aes && p->side.t->aes ? CIPHER_AES256GCM : CIPHER_CHACHA20;
}

/* Asks for SETUP: what the receiver said before this path existed is lost. */
static void path_tell(struct notice *n)
{
	struct tcp_path *p = list_entry(n, struct tcp_path, side.notice);
	unsigned char text[SETUP_BYTES];
	const struct setup ask = {.kind = SETUP_ASK};
	if (!p->side.say_due) {
		tcp_side_tell_up(&p->side);
		return;
	}
	p->side.say_due = 0;
	if (!p->has_setup && p->side.hooks.say(p->side.hooks.arg, text, setup_put(text, &ask)) < 0)
		p->side.say_due = 1; /* the tick tries again */
}

static struct path *tcp_path_new(void *transport, const struct path_peer *peer,
                                 const struct path_hooks *hooks)
{
	struct tcp_transport *t = transport;
	struct tcp_path *p = mem_zalloc(sizeof *p);
	tcp_side_init(&p->side, t, peer, hooks, path_tell);
	snprintf(p->side.why, sizeof p->side.why, "waits for the receiver's port and secret");
	list_init(&p->outgoings);
	list_init(&p->ready);
	list_push_back(&t->paths, &p->node);
	return (struct path *)p;
}

static void end_connections(struct tcp_path *p)
{
	unsigned n = p->n_outs;
	p->n_outs = 0; /* none is woken meanwhile */
	for (unsigned i = 0; i < n; i++)
		tcp_out_destroy(&p->out[i]);
}

static void tcp_path_destroy(struct path **pp)
{
	struct tcp_path *p = (struct tcp_path *)*pp;
	if (!p)
		return;
	CHECK(list_empty(&p->outgoings));
	end_connections(p);
	list_remove(&p->side.notice.node);
	list_remove(&p->node);
	sodium_memzero(&p->setup, sizeof p->setup);
	free(p);
	*pp = NULL;
}

static int tcp_path_said(struct path *path, const void *bytes, size_t n, struct err *err)
{
	struct tcp_path *p = (struct tcp_path *)path;

	const struct tcp_opts *opts = &p->side.t->opts;
	struct setup s;
	if (setup_get(bytes, n, &s) < 0 || s.kind != SETUP_TELL)
		return err_set(err, ERR_INVALID, "%zu bytes that are not SETUP of TCP", n);
	if (p->has_setup && s.pair == p->setup.pair && s.port == p->setup.port &&
	    sodium_memcmp(s.secret, p->setup.secret, SECRET_BYTES) == 0)
		return 0;
	end_connections(p);
	p->setup = s;
	p->has_setup = 1;
	snprintf(p->side.why, sizeof p->side.why, "no connection yet");
	unsigned connections = (unsigned)least(opts->connections, s.connections);
	for (; p->n_outs < connections; p->n_outs++)
		p->out[p->n_outs] = tcp_out_new(p, p->n_outs);
	p->canary_next_us = clock_us() + tcp_jitter(opts->canary_us);
	return 0;
}

void path_tick(struct tcp_path *p, uint64_t now_us)
{
	const struct tcp_opts *opts = &p->side.t->opts;
	for (unsigned i = 0; i < p->n_outs; i++)
		tcp_out_tick(p->out[i]);
	if (p->side.say_due)
		tcp_notice(p->side.t, &p->side.notice);
	if (opts->canary_us == UINT64_MAX || !p->side.n_up || now_us < p->canary_next_us)
		return;
	p->canary_next_us = now_us + tcp_jitter(opts->canary_us) + opts->canary_us / 4;
	if (!p->canary_out)
		p->canary_due = 1;
	path_kick(p);
}

static void tcp_path_state(const struct path *path, struct path_state *ret)
{
	const struct tcp_path *p = (const struct tcp_path *)path;

	char at[64] = "nowhere yet";
	tcp_side_state(&p->side, ret);
	if (p->to.ss_family)
		tcp_address_text((const struct sockaddr *)&p->to, sizeof p->to, at, sizeof at);
	snprintf(ret->via, sizeof ret->via, "%s, %u of %u connections, %s", at, p->side.n_up, p->n_outs,
	         cipher_name(path_cipher(p)));
}

const struct path_ops tcp_path_ops = {
	.name = "tcp",
	.path_new = tcp_path_new,
	.path_destroy = tcp_path_destroy,
	.path_said = tcp_path_said,
	.path_state = tcp_path_state,
	.outgoing_new = tcp_outgoing_new,
	.outgoing_send = tcp_outgoing_send,
	.outgoing_end = tcp_outgoing_end,
	.intake_new = tcp_intake_new,
	.intake_destroy = tcp_intake_destroy,
	.intake_said = tcp_intake_said,
	.intake_state = tcp_intake_state,
	.incoming_new = tcp_incoming_new,
	.incoming_complete = tcp_incoming_complete,
	.incoming_close = tcp_incoming_close,
	.incoming_free = tcp_incoming_free,
	.incoming_drop = tcp_incoming_drop,
};
