/* tcp_rig.h - two TCP transports in one process, a path between them over 127.0.0.1, and pools with
 * known bytes on both sides: in host memory, out of its reach, or divided among devices. Include it
 * once per test program. */
#ifndef TEST_TCP_RIG_H
#define TEST_TCP_RIG_H

#include "daemons/messager/path/tcp.h"
#include "daemons/messager/path/tcp_in.h"
#include "daemons/messager/path/tcp_out.h"
#include "daemons/messager/path/tcp_priv.h"
#include "pool_memory.h"
#include "util/clock.h"

#include <check.h>
#include <dirent.h>
#include <event2/event.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define OPS (&tcp_path_ops)
#define POISON 0xA5
enum { RIG_BLOCKS = 48, RIG_LEASE_MAX = 48, WAIT_US = 20000000 };

static uint64_t rig_random;

static uint32_t draw(uint32_t below)
{
	rig_random = rig_random * 6364136223846793005ull + 1442695040888963407ull;
	return (uint32_t)((rig_random >> 33) % below);
}

/* --- pools --------------------------------------------------------------- */

/* A pool whose bytes the host cannot address: as of a device. A copy is made when it is waited for,
 * at the latest possible time. */
enum { FAR_COPIES = 64 };
struct far_pool {
	struct kern_pool head;
	struct kern_pool *real;
	uint64_t begun, done; /* copies: number n is late[n % FAR_COPIES] */
	struct late {
		int out; /* from the pool */
		struct kern_piece piece;
	} late[FAR_COPIES];
};
static int far_fails;

static int far_copy(const struct kern_copy *c, uint64_t *ret_number, char *errbuf, size_t errlen)
{
	struct far_pool *f = (struct far_pool *)(c->to ? c->to : c->from);
	if (far_fails) {
		snprintf(errbuf, errlen, "the device is lost");
		return KERN_ELOST;
	}
	ck_assert(!(c->to && c->from) && c->n == 1 && !c->seen);
	ck_assert_uint_lt(f->begun - f->done, FAR_COPIES);
	*ret_number = ++f->begun;
	f->late[f->begun % FAR_COPIES] = (struct late){c->from != NULL, c->piece[0]};
	return KERN_OK;
}
static int far_wait(struct kern_pool *pool, uint64_t number, char *errbuf, size_t errlen)
{
	struct far_pool *f = (struct far_pool *)pool;
	uint64_t ignored;
	int rc = KERN_OK;
	while (!rc && f->done < number) {
		const struct late *l = &f->late[++f->done % FAR_COPIES];
		const struct kern_copy c = {.to = l->out ? NULL : f->real,
		                            .from = l->out ? f->real : NULL,
		                            .piece = &l->piece,
		                            .n = 1};
		rc = kern_host_copies.copy(&c, &ignored, errbuf, errlen);
	}
	return rc;
}
static void far_close(struct kern_pool **pool)
{
	struct far_pool *f = (struct far_pool *)*pool;
	kern_pool_close(&f->real);
	free(f);
	*pool = NULL;
}
static const struct kern_copies far_copies = {
	.abi = KERN_COPIES_ABI, .name = "far", .close = far_close, .copy = far_copy, .wait = far_wait};

struct rig_pool {
	struct pool_memory own; /* of a divided pool the whole: see rig_pool_move */
	struct kv_region peer;  /* as the messager has it */
	struct kv_layout layout;
	uint32_t parts;
	unsigned char *part[KERN_PARTS_MAX]; /* of a divided pool */
};

static size_t rig_part_bytes(const struct rig_pool *p, uint32_t i)
{
	return kv_part_offset(&p->layout, p->own.region.blocks, i, (struct kv_parts){1, p->parts},
	                      p->layout.layers, 0);
}

static void rig_parts_new(struct rig_pool *p, struct kv_data *ret)
{
	char text[256];
	void *at;
	*ret = (struct kv_data){.parts = p->parts};
	for (uint32_t i = 0; i < p->parts; i++) {
		ck_assert_int_eq(host_shared_new(rig_part_bytes(p, i), &at, &ret->fd[i], text, sizeof text),
		                 0);
		p->part[i] = at;
	}
}

static void rig_pool_new(struct rig_pool *p, const struct kv_layout *l, uint32_t blocks, int far,
                         uint32_t parts)
{
	struct err err;
	ck_assert_msg(pool_memory_new(&p->own, l, blocks, &err) == 0, "%s", err.text);
	p->layout = *l;
	p->parts = parts;
	struct kv_data data = {.parts = 1};
	if (parts > 1)
		rig_parts_new(p, &data);
	else
		data.fd[0] = dup(p->own.region.data.fd[0]);
	ck_assert_msg(kv_region_map(&p->peer, l, blocks, "cpu", dup(p->own.region.control_fd), &data,
	                            &err) == 0,
	              "%s", err.text);
	if (far) {
		struct far_pool *f = calloc(1, sizeof *f);
		f->head = (struct kern_pool){.by = &far_copies, .bytes = p->peer.pool->bytes};
		f->real = p->peer.pool;
		p->peer.pool = &f->head;
	}
}

/* The bytes of a divided pool: from the whole to the parts, or with `gather` back. */
static inline void rig_pool_move(struct rig_pool *p, bool gather)
{
	for (uint64_t at = 0, n = 0; p->parts > 1 && at < p->own.region.data_bytes; at += n) {
		uint32_t part;
		uint64_t there;
		n = kv_part_find(&p->layout, p->own.region.blocks, (struct kv_parts){1, p->parts}, at,
		                 &part, &there);
		memcpy(gather ? p->own.data + at : p->part[part] + there,
		       gather ? p->part[part] + there : p->own.data + at, n);
	}
}

static void rig_pool_fini(struct rig_pool *p)
{
	for (uint32_t i = 0; p->parts > 1 && i < p->parts; i++)
		munmap(p->part[i], rig_part_bytes(p, i));
	kv_region_fini(&p->peer);
	pool_memory_fini(&p->own);
}

/* --- two ends ------------------------------------------------------------ */

struct rig {
	struct event_base *base;
	struct tcp_transport *sender, *receiver;
	struct path *path;
	struct intake *intake;
	struct kv_layout layout;
	struct rig_pool from, to;
	int up, in_up, mute; /* mute: SETUP is kept from the path */
	unsigned char setup[PATH_SAY_MAX];
	size_t setup_bytes;
};

static int rig_path_says(void *arg, const void *bytes, size_t n)
{
	struct rig *r = arg;
	struct err err;
	ck_assert_msg(OPS->intake_said(r->intake, bytes, n, &err) == 0, "%s", err.text);
	return 0;
}
static int rig_intake_says(void *arg, const void *bytes, size_t n)
{
	struct rig *r = arg;
	struct err err;
	memcpy(r->setup, bytes, r->setup_bytes = n);
	if (!r->mute && r->path)
		ck_assert_msg(OPS->path_said(r->path, bytes, n, &err) == 0, "%s", err.text);
	return 0;
}
static void rig_path_up(void *arg, int up, const char *why)
{
	(void)why;
	((struct rig *)arg)->up = up;
}
static void rig_intake_up(void *arg, int up, const char *why)
{
	(void)why;
	((struct rig *)arg)->in_up = up;
}

static const struct tcp_opts rig_opts = {
	.address = "127.0.0.1", .backoff_us = 2000, .backoff_max_us = 8000, .canary_us = UINT64_MAX};

#define RIG_WAIT(r, cond)                                                     \
	do {                                                                      \
		uint64_t rig_until = clock_us() + WAIT_US;                            \
		while (!(cond)) {                                                     \
			ck_assert_msg(clock_us() < rig_until, "waited too long: " #cond); \
			event_base_loop((r)->base, EVLOOP_ONCE);                          \
		}                                                                     \
	} while (0)

static void rig_link(struct rig *r)
{
	const struct path_hooks out = {r, rig_path_says, rig_path_up},
							in = {r, rig_intake_says, rig_intake_up};
	const struct path_peer peer = {.name = "m2", .epoch = 1, .host = "127.0.0.1"};
	r->intake = OPS->intake_new(r->receiver, &peer, &in);
	r->path = OPS->path_new(r->sender, &peer, &out);
}

/* What the pools are like; parts: 0 or 1: not divided. */
struct rig_shape {
	uint32_t layers, heads, dim;
	int far;
	uint32_t from_parts, to_parts;
};

static void rig_pools(struct rig *r, const struct rig_shape *s)
{
	ck_assert_int_eq(kv_layout_uniform(&r->layout, s->layers, s->heads, s->dim, 4, KV_BF16), 0);
	rig_pool_new(&r->from, &r->layout, RIG_BLOCKS, s->far, s->from_parts);
	rig_pool_new(&r->to, &r->layout, RIG_BLOCKS, s->far, s->to_parts);
	for (size_t i = 0; i < r->from.own.region.data_bytes; i++)
		r->from.own.data[i] = (unsigned char)draw(256);
	memset(r->to.own.data, POISON, r->to.own.region.data_bytes);
	for (uint32_t b = 0; b < RIG_BLOCKS; b++)
		r->to.own.region.generations[b] = 100 + b;
	rig_pool_move(&r->from, false);
	rig_pool_move(&r->to, false);
}

static struct rig *rig_new_of(const struct tcp_opts *out, const struct tcp_opts *in,
                              const struct rig_shape *shape)
{
	struct rig *r = calloc(1, sizeof *r);
	struct err err;
	r->base = event_base_new();
	ck_assert_msg(tcp_transport_new(r->base, out, &r->sender, &err) == 0, "%s", err.text);
	ck_assert_msg(tcp_transport_new(r->base, in, &r->receiver, &err) == 0, "%s", err.text);
	rig_pools(r, shape);
	rig_link(r);
	return r;
}

static struct rig *rig_new(const struct tcp_opts *out, const struct tcp_opts *in, uint32_t layers,
                           uint32_t dim, int far)
{
	return rig_new_of(out, in,
	                  &(struct rig_shape){.layers = layers, .heads = 2, .dim = dim, .far = far});
}

static void rig_free(struct rig *r)
{
	OPS->path_destroy(&r->path);
	OPS->intake_destroy(&r->intake);
	tcp_transport_destroy(&r->sender);
	tcp_transport_destroy(&r->receiver);
	rig_pool_fini(&r->from);
	rig_pool_fini(&r->to);
	event_base_free(r->base);
	free(r);
}

__attribute__((unused)) static unsigned open_descriptors(void)
{
	DIR *d = opendir("/proc/self/fd");
	unsigned n = 0;
	while (readdir(d))
		n++;
	closedir(d);
	return n;
}

/* --- a lease ------------------------------------------------------------- */

struct lease {
	struct rig *r;
	struct outgoing *out;
	struct incoming *in;
	uint32_t blocks, src[RIG_LEASE_MAX], dst[RIG_LEASE_MAX];
	uint64_t generations[RIG_LEASE_MAX];
	unsigned char handle[PATH_HANDLE_MAX];
	size_t handle_bytes;
	uint64_t bytes; /* delivered */
	int failed;
	char why[160];
	void (*on_delivered)(struct lease *l);
};

static void lease_delivered(void *arg, uint64_t bytes)
{
	struct lease *l = arg;
	ck_assert_ptr_nonnull(l->out); /* it has not ended */
	l->bytes += bytes;
	if (l->on_delivered)
		l->on_delivered(l);
}
static void lease_failed(void *arg, int code, const char *why)
{
	struct lease *l = arg;
	ck_assert_int_eq(l->failed, 0);
	l->failed = code;
	snprintf(l->why, sizeof l->why, "%s", why);
}
static void lease_closed(void *arg)
{
	(void)arg;
	ck_abort_msg("incoming_close returns 1");
}

static uint64_t lease_all(const struct lease *l)
{
	return (uint64_t)l->blocks * l->r->layout.block_bytes;
}

static void lease_incoming(struct lease *l)
{
	struct err err;
	const struct incoming_opts o = {.layout = &l->r->layout,
	                                .to = &l->r->to.peer,
	                                .dst = l->dst,
	                                .generations = l->generations,
	                                .blocks = l->blocks,
	                                .arg = l,
	                                .closed = lease_closed};
	ck_assert_msg(OPS->incoming_new(l->r->intake, &o, &l->in, l->handle, &l->handle_bytes, &err) ==
	                  0,
	              "%s", err.text);
}

static void lease_outgoing(struct lease *l)
{
	struct err err;
	const struct outgoing_opts o = {.handle = l->handle,
	                                .handle_bytes = l->handle_bytes,
	                                .layout = &l->r->layout,
	                                .from = &l->r->from.peer,
	                                .src = l->src,
	                                .dst = l->dst,
	                                .blocks = l->blocks,
	                                .to_blocks = RIG_BLOCKS,
	                                .arg = l,
	                                .delivered = lease_delivered,
	                                .failed = lease_failed};
	ck_assert_msg(OPS->outgoing_new(l->r->path, &o, &l->out, &err) == 0, "%s", err.text);
}

/* Blocks [first, first + blocks) of the receiver's pool, in runs of neighbours and alone. */
static void lease_open(struct lease *l, struct rig *r, uint32_t first, uint32_t blocks)
{
	uint32_t from = draw(RIG_BLOCKS);
	*l = (struct lease){.r = r, .blocks = blocks};
	for (uint32_t b = 0; b < blocks; b++) {
		l->dst[b] = first + b;
		l->src[b] = (from += draw(3) ? 1 : 2) % RIG_BLOCKS;
		l->generations[b] = r->to.own.region.generations[first + b];
	}
	for (uint32_t b = 0; b + 1 < blocks; b++)
		if (draw(4) == 0) {
			uint32_t t = l->dst[b];
			l->dst[b] = l->dst[b + 1], l->dst[b + 1] = t;
			uint64_t g = l->generations[b];
			l->generations[b] = l->generations[b + 1], l->generations[b + 1] = g;
		}
	lease_incoming(l);
	lease_outgoing(l);
}

static void lease_send_all(struct lease *l)
{
	for (uint32_t layer = 0; layer < l->r->layout.layers; layer++)
		for (uint32_t b = 0, n; b < l->blocks; b += n) {
			n = 1 + draw(l->blocks - b);
			OPS->outgoing_send(l->out, layer, b, n);
		}
}

static void lease_end(struct lease *l)
{
	OPS->outgoing_end(&l->out);
	if (l->in)
		ck_assert_int_eq(OPS->incoming_close(l->in), 1);
	OPS->incoming_free(&l->in);
}

static int lease_piece_is_right(const struct lease *l, uint32_t layer, uint32_t b)
{
	const struct kv_layout *k = &l->r->layout;
	return memcmp(l->r->to.own.data + kv_piece_offset(k, RIG_BLOCKS, layer, l->dst[b]),
	              l->r->from.own.data + kv_piece_offset(k, RIG_BLOCKS, layer, l->src[b]),
	              k->piece_bytes[layer]) == 0;
}

static void lease_check(const struct lease *l)
{
	for (uint32_t layer = 0; layer < l->r->layout.layers; layer++)
		for (uint32_t b = 0; b < l->blocks; b++)
			ck_assert_msg(lease_piece_is_right(l, layer, b), "wrong bytes in layer %u, block %u",
			              layer, b);
}

/* All blocks of the receiver's pool in [first, end) are untouched. */
static void check_untouched(const struct rig *r, uint32_t first, uint32_t end)
{
	for (uint32_t layer = 0; layer < r->layout.layers; layer++)
		for (uint32_t b = first; b < end; b++) {
			const unsigned char *at = r->to.own.data +
			                          kv_piece_offset(&r->layout, RIG_BLOCKS, layer, b);
			for (size_t i = 0; i < r->layout.piece_bytes[layer]; i++)
				ck_assert_msg(at[i] == POISON, "layer %u, block %u was written", layer, b);
		}
}

#endif
