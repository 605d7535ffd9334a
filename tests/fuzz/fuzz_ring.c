/* fuzz_ring.c - shared memory as a hostile worker writes it, under the messager's transfers. The
 * input is a list of steps: words of the prefill worker's ring and board and of both control
 * memories are written, at once or between two reads; transfers are published as a worker does; the
 * decode worker answers; the messager takes its turns. Whatever is written, the messager only
 * writes to blocks that the decode worker has named, only reads the prefill worker's memory, tells
 * the end of a transfer with a reason, and gives back what it took. */
#include "daemons/messager/mover.h"
#include "kv/ring.h"
#include "tests/fuzz/fuzz.h"
#include "tests/unit/pool_memory.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define BLOCKS 24u
#define LAYERS 3u
#define BLOCK_TOKENS 4u
#define SLOTS 4u
#define P_EPOCH 100u
#define D_EPOCH 200u
#define LATER_MAX 16u

struct later {
	_Atomic uint32_t *word;
	uint32_t value;
};

static struct world {
	struct kv_layout layout;
	struct pool_memory p, d;
	struct ring *ring; /* the prefill worker's */
	struct mover *m;
	uint64_t now_us;
	struct later later[LATER_MAX]; /* written at the next looks at the clock, one each */
	unsigned n_later;
	unsigned char granted[BLOCKS];
	unsigned asked; /* LEASE_OPEN was sent */
	struct lease_asked {
		Pds__Lease lease;
		char prefill[RING_NAME_MAX];
	} last;
} w;

/* --- what the messager asks for ------------------------------------------ */

static uint64_t now_us(void *arg)
{
	(void)arg;
	if (w.n_later) {
		struct later l = w.later[--w.n_later];
		atomic_store(l.word, l.value);
	}
	return w.now_us += 10;
}

static int linked(void *arg, const char *name, uint64_t epoch)
{
	(void)arg;
	return strcmp(name, "prefill-1") == 0 ? epoch == P_EPOCH
	                                      : strcmp(name, "decode-1") == 0 && epoch == D_EPOCH;
}

static int send_message(void *arg, const char *name, uint64_t epoch, enum msg_type type,
                        const struct msg_head *head, const ProtobufCMessage *body)
{
	(void)arg;
	must(linked(NULL, name, epoch) && head->attempt && (head->req.hi || head->req.lo));
	must(msg_type_find(type)->body == body->descriptor);
	if (type == MSG_TRANSFER_FAILED) {
		const Pds__TransferFailed *f = (const Pds__TransferFailed *)body;
		must(f->slot < SLOTS && f->text && f->text[0] && f->fault != PDS__FAULT__FAULT_NONE);
	} else if (type == MSG_LEASE_OPEN) {
		const Pds__LeaseOpen *o = (const Pds__LeaseOpen *)body;
		must(o->prefill_epoch == P_EPOCH && o->lease->epoch == D_EPOCH);
		w.asked = 1;
		w.last.lease = *o->lease;
		snprintf(w.last.prefill, sizeof w.last.prefill, "%s", o->prefill);
	}
	return 0;
}

/* --- the two workers ----------------------------------------------------- */

static void attach(const char *name, uint64_t epoch, const struct pool_memory *of, int ring_too)
{
	struct kv_region region;
	struct ring *ring = NULL;
	struct err e = {0};
	struct kv_data data = one_part(dup(of->region.data.fd[0]));
	must(kv_region_map(&region, &w.layout, BLOCKS, "cpu", dup(of->region.control_fd), &data, &e) ==
	     0);
	if (ring_too)
		must(ring_map(dup(ring_fd(w.ring)), SLOTS, LAYERS, epoch, &ring, &e) == 0);
	must(mover_add(w.m, name, epoch, &w.layout, &region, ring) != NULL);
}

static void world_init(void)
{
	const struct mover_out out = {.now_us = now_us, .linked = linked, .send = send_message};
	const struct mover_limits limits = {2000000, 1 << 20};
	struct err e = {0};
	memset(&w, 0, sizeof w);
	w.now_us = 1000000;
	kv_layout_uniform(&w.layout, LAYERS, 1, 4, BLOCK_TOKENS, KV_F32);
	must(pool_memory_new(&w.p, &w.layout, BLOCKS, &e) == 0 &&
	     pool_memory_new(&w.d, &w.layout, BLOCKS, &e) == 0 &&
	     ring_create(SLOTS, LAYERS, P_EPOCH, &w.ring, &e) == 0);
	memset(w.p.data, 0x5a, w.p.region.data_bytes);
	w.m = mover_new(&out, &limits);
	attach("prefill-1", P_EPOCH, &w.p, 1);
	attach("decode-1", D_EPOCH, &w.d, 0);
}

/* Blocks that D has not named are as they were, and so is all of P's memory. */
static void check_memory(void)
{
	for (uint32_t l = 0; l < LAYERS; l++)
		for (uint32_t b = 0; b < BLOCKS; b++) {
			const unsigned char *piece = w.d.data + kv_piece_offset(&w.layout, BLOCKS, l, b);
			for (size_t i = 0; i < w.layout.piece_bytes[l]; i++)
				must(piece[i] == 0 || (piece[i] == 0x5a && w.granted[b]));
			if (piece[0])
				fuzz_accepted();
		}
	for (size_t i = 0; i < w.p.region.data_bytes; i++)
		must(w.p.data[i] == 0x5a);
}

static void world_fini(void)
{
	mover_shutdown(w.m);
	must(mover_open_transfers(w.m) == 0);
	mover_destroy(&w.m);
	check_memory();
	ring_destroy(&w.ring);
	pool_memory_fini(&w.p);
	pool_memory_fini(&w.d);
}

/* --- steps --------------------------------------------------------------- */

/* A word of the areas that the messager reads. As ring.c lays them out: a page with the header, one
 * with the slots' words, the fields of each slot, the board. */
static _Atomic uint32_t *word_at(unsigned area, unsigned index)
{
	size_t bytes, head = offsetof(struct ring_transfer, src),
				  lists = 2 * RING_BLOCKS_MAX * sizeof(uint32_t),
				  slot = (head + lists + 63) / 64 * 64, at;
	unsigned char *ring = ring_mapping(w.ring, &bytes);
	switch (area) {
	case 0: at = index % 48 * 4; break;
	case 1: at = 4096 + index % (2 * SLOTS) * 4; break;
	case 2: at = 8192 + index % SLOTS * slot + index / SLOTS * 4 % head; break;
	case 3: at = 8192 + index % SLOTS * slot + head + index / SLOTS * 4 % lists; break;
	case 4:
		at = 8192 + (SLOTS * slot + 4095) / 4096 * 4096 +
		     index * 4 % (SLOTS * 8 * sizeof(uint64_t));
		break;
	default: {
		const struct kv_region *r = area == 5 ? &w.p.region : &w.d.region;
		return (_Atomic uint32_t *)r->generations + index % (2 * BLOCKS);
	}
	}
	must(at + 4 <= bytes);
	return (_Atomic uint32_t *)(void *)(ring + at);
}

static void step_write(struct fuzz_input *in, int at_once)
{
	unsigned area = (unsigned)fuzz_take(in, 1) % 7, index = (unsigned)fuzz_take(in, 2);
	struct later l = {word_at(area, index), (uint32_t)fuzz_take(in, 4)};
	if (at_once)
		atomic_store(l.word, l.value);
	else if (w.n_later < LATER_MAX)
		w.later[w.n_later++] = l;
}

static void step_publish(struct fuzz_input *in)
{
	static struct ring_transfer t;
	uint32_t slot;
	uint64_t gen, lease = fuzz_take(in, 1);
	memset(&t, 0, sizeof t);
	t.req = (struct reqid){7, lease};
	t.attempt = 1;
	t.lease_id = lease;
	t.lease_epoch = D_EPOCH;
	t.lease_generation = lease;
	strcpy(t.decode, "decode-1");
	t.deadline_us = w.now_us + 60000000;
	t.first_token = (uint32_t)fuzz_take(in, 1) % 8 * BLOCK_TOKENS;
	t.tokens = t.first_token + 1 + (uint32_t)fuzz_take(in, 1) % (10 * BLOCK_TOKENS);
	t.blocks = (t.tokens - t.first_token + BLOCK_TOKENS - 1) / BLOCK_TOKENS;
	for (uint32_t i = 0; i < t.blocks; i++) {
		t.src[i] = 2 + i;
		t.dst[i] = 10 + i;
	}
	if (ring_publish(w.ring, &t, &slot, &gen) < 0)
		return;
	uint32_t done = (uint32_t)fuzz_take(in, 1);
	for (uint32_t l = 0; l < LAYERS; l++)
		*ring_progress_word(w.ring, slot, l) = ring_progress_value(gen, done);
}

/* D's answer to the last LEASE_OPEN: it names blocks from 10 on, as the transfer, or any. */
static void step_answer(struct fuzz_input *in)
{
	uint32_t blocks[BLOCKS], n = (uint32_t)fuzz_take(in, 1) % BLOCKS,
							 cached = (uint32_t)fuzz_take(in, 1) % 8,
							 tokens = (uint32_t)fuzz_take(in, 1);
	unsigned how = (unsigned)fuzz_take(in, 1);
	uint64_t generations[BLOCKS];
	Pds__LeaseOpened o = PDS__LEASE_OPENED__INIT;
	if (!w.asked)
		return;
	o.lease = &w.last.lease;
	o.prefill = w.last.prefill;
	o.prefill_epoch = P_EPOCH;
	o.refused = how == 255;
	o.cached_tokens = cached * BLOCK_TOKENS;
	o.tokens = o.cached_tokens + 1 + tokens % (10 * BLOCK_TOKENS);
	for (uint32_t i = 0; i < n; i++) {
		blocks[i] = how & 1 ? (uint32_t)fuzz_take(in, 1) % BLOCKS : (10 + i) % BLOCKS;
		generations[i] = w.d.region.generations[blocks[i]] + (how & 2 ? fuzz_take(in, 1) : 0);
		w.granted[blocks[i]] |= !o.refused;
	}
	o.blocks = blocks;
	o.generations = generations;
	o.n_blocks = n;
	o.n_generations = how & 4 ? n / 2 : n;
	mover_lease_opened(w.m, "decode-1", D_EPOCH, &o);
}

static void step_message(struct fuzz_input *in)
{
	Pds__KvReadyAck ack = PDS__KV_READY_ACK__INIT;
	Pds__LeaseRevoke revoke = PDS__LEASE_REVOKE__INIT;
	const struct msg_head head = {{7, 1}, 1, 0};
	unsigned which = (unsigned)fuzz_take(in, 1);
	if (!w.asked)
		return;
	ack.lease = revoke.lease = &w.last.lease;
	ack.prefill = w.last.prefill;
	ack.prefill_epoch = P_EPOCH;
	if (which % 3 == 0)
		mover_kv_ready_ack(w.m, "decode-1", D_EPOCH, &ack);
	else if (which % 3 == 1)
		mover_lease_revoke(w.m, "decode-1", D_EPOCH, &head, &revoke);
	else
		mover_linked(w.m, "decode-1", D_EPOCH);
}

/* It goes to logs and messages. */
static int is_printable(const char *s)
{
	for (; *s; s++)
		if (*s <= ' ' || *s > '~')
			return 0;
	return 1;
}

/* What the messager may take from a slot is within all bounds, whatever it holds. */
static void step_read(void)
{
	static struct ring_transfer t;
	enum ring_state state;
	uint64_t gen;
	for (uint32_t s = 0; s < SLOTS; s++) {
		must(ring_peek(w.ring, s, &gen) <= RING_VOID);
		int r = ring_read(w.ring, s, &t, &gen, &state);
		must(r == 0 || r == ERR_STALE || r == ERR_CORRUPT);
		if (r == 0)
			must((state == RING_PENDING || state == RING_SENT) && t.blocks >= 1 &&
			     t.blocks <= RING_BLOCKS_MAX && t.first_token < t.tokens && t.decode[0] &&
			     memchr(t.decode, 0, sizeof t.decode) && is_printable(t.decode));
		if (r < 0 || ring_transfer_check(&t, BLOCK_TOKENS, BLOCKS, BLOCKS) < 0)
			continue;
		must((t.tokens - t.first_token + BLOCK_TOKENS - 1) / BLOCK_TOKENS == t.blocks);
		for (uint32_t i = 0; i < t.blocks; i++)
			must(t.src[i] < BLOCKS && t.dst[i] < BLOCKS);
	}
}

FUZZ(ring, 1 << 10)
{
	struct fuzz_input in = {data, data + size};
	world_init();
	while (in.at < in.end) {
		switch (fuzz_take(&in, 1) % 8) {
		case 0: step_write(&in, 1); break;
		case 1: step_write(&in, 0); break;
		case 2: step_publish(&in); break;
		case 3: step_answer(&in); break;
		case 4: step_message(&in); break;
		case 5: w.now_us += fuzz_take(&in, 2) * 1000; break;
		case 6: step_read(); break;
		case 7: mover_turn(w.m); break;
		}
		must(mover_open_transfers(w.m) <= SLOTS);
	}
	world_fini();
	return 0;
}
