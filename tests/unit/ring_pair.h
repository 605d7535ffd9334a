/* ring_pair.h - the two ends of one transfer ring in one process: P's and, over a mapping of its
 * own, the messager's M; transfers whose every field follows from a number. */
#ifndef TESTS_RING_PAIR_H
#define TESTS_RING_PAIR_H

#include "kv/ring.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LAYERS 3u
#define EPOCH 77u

static struct ring *P, *M;
static struct ring_transfer transfer, got; /* 32 KiB each */
static struct err e;
static uint32_t slot;
static uint64_t gen;
static enum ring_state state;

static inline void open_both(uint32_t slots)
{
	ck_assert_msg(ring_create(slots, LAYERS, EPOCH, &P, &e) == 0, "%s", e.text);
	ck_assert_msg(ring_map(dup(ring_fd(P)), slots, LAYERS, EPOCH, &M, &e) == 0, "%s", e.text);
}

static inline void close_both(void)
{
	ring_destroy(&M);
	ring_destroy(&P);
}

/* A transfer whose every field follows from `id`, so that a mixture of two is seen. */
static inline struct ring_transfer *transfer_of(struct ring_transfer *t, uint64_t id)
{
	memset(t, 0, offsetof(struct ring_transfer, src));
	t->req = (struct reqid){id, ~id};
	t->attempt = (uint32_t)id;
	t->lease_id = id * 3;
	t->lease_epoch = id * 5;
	t->lease_generation = id * 7;
	strcpy(t->decode, id % 2 ? "decode-odd" : "decode-even");
	t->deadline_us = id * 11;
	t->first_token = 64;
	t->blocks = (uint32_t)(id % 700) + 1;
	t->tokens = 64 + t->blocks * 64 - 63;
	for (uint32_t i = 0; i < t->blocks; i++) {
		t->src[i] = (uint32_t)id + i;
		t->dst[i] = (uint32_t)id * 2 + i;
	}
	return t;
}

static inline int is_transfer(const struct ring_transfer *t, uint64_t id)
{
	static _Thread_local struct ring_transfer want;
	transfer_of(&want, id);
	return memcmp(t, &want, offsetof(struct ring_transfer, src)) == 0 &&
	       memcmp(t->src, want.src, want.blocks * 4) == 0 &&
	       memcmp(t->dst, want.dst, want.blocks * 4) == 0;
}

static inline void publish(uint64_t id)
{
	ck_assert_int_eq(ring_publish(P, transfer_of(&transfer, id), &slot, &gen), 0);
}

static inline void device_store(uint32_t layer, uint64_t g, uint32_t tokens)
{
	__atomic_store_n(ring_progress_word(P, slot, layer), ring_progress_value(g, tokens),
	                 __ATOMIC_RELEASE);
}

#endif
