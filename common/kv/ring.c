/* ring.c - see ring.h.
 *
 * The memfd has: a header page; one word per slot, packed, so that a scan of all slots touches few
 * cache lines; the fields of each slot; the board, one row of words per slot, where no two rows
 * share a cache line. State that P relies on (which slots are free, each slot's generation) is
 * private to P: nothing that M writes into the mapping can make P use a slot twice or crash.
 *
 * Memory order. Each field is stored with release and loaded with acquire. So a reader that sees
 * any field of a new transfer also sees that the word was closed before it, and the second check of
 * the word in ring_read fails. The word (generation, PENDING) is stored with release after all of
 * them. On x86 these are plain moves.
 *
 * The doorbell. P: store progress, then read-modify-write `sleeping`. M: read-modify-write
 * `sleeping` to 1, then look at the ring. The two modifications of one word have an order: if P's
 * comes first M sees the progress, if M's comes first P sees the 1 and rings. */
#include "kv/ring.h"
#include "kv/layout.h"
#include "util/check.h"
#include "util/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define RING_VERSION 2u
#define PAGE_BYTES 4096u
#define LINE_WORDS 8u                             /* 64-bit words per cache line */
#define GENERATION_LAST (((uint64_t)1 << 56) - 2) /* a slot that reaches it is not used again */

struct header {
	uint64_t magic;
	uint32_t version, slots, layers, transfer_bytes;
	uint64_t epoch;
	_Alignas(64) _Atomic uint32_t sleeping;
	_Alignas(64) _Atomic uint32_t step;
};

/* A transfer is stored as 32-bit words: the head (all fields before src), then src and dst, of
 * which only the first `blocks` entries are valid. */
#define HEAD_WORDS (offsetof(struct ring_transfer, src) / 4)
struct fields {
	_Alignas(64) _Atomic uint32_t head[HEAD_WORDS];
	_Atomic uint32_t src[RING_BLOCKS_MAX], dst[RING_BLOCKS_MAX];
};
_Static_assert(offsetof(struct ring_transfer, src) % 4 == 0, "the head is whole words");
_Static_assert(sizeof(_Atomic uint64_t) == 8 && sizeof(_Atomic uint32_t) == 4,
               "atomics in the mapping must not have a hidden lock");
_Static_assert(sizeof(struct header) <= PAGE_BYTES, "the header fits its page");

struct ring {
	int fd, owner, bell;
	uint32_t slots, layers, row_words;
	size_t bytes;
	struct header *header;
	_Atomic uint64_t *word;  /* (slots) */
	struct fields *fields;   /* (slots) */
	_Atomic uint64_t *board; /* (slots, row_words): the layers' words, then the schedule's */
	/* P only */
	pthread_mutex_t lock;
	uint64_t *generation;   /* (slots): of the current transfer, or of the next one */
	unsigned char *busy;    /* (slots) */
	uint32_t *free, n_free; /* a stack */
};

static uint64_t word_of(uint64_t generation, enum ring_state s)
{
	return generation << 8 | (uint64_t)s;
}

static enum ring_state state_of(uint64_t word)
{
	unsigned s = word & 0xFF;
	return s <= RING_VOID ? (enum ring_state)s : RING_CLOSED;
}

static size_t page_round(size_t bytes)
{
	return (bytes + PAGE_BYTES - 1) & ~(size_t)(PAGE_BYTES - 1);
}

static int ring_new(int fd, uint32_t slots, uint32_t layers, struct ring **ret, struct err *err)
{
	if (slots < 1 || slots > RING_SLOTS_MAX || layers < 1 || layers > KV_LAYERS_MAX)
		return err_set(
			err, ERR_INVALID,
			"invalid transfer ring of %u slots and %u layers: the limits are 1 to %u and "
			"1 to %u",
			slots, layers, RING_SLOTS_MAX, KV_LAYERS_MAX);
	struct ring *r = mem_zalloc(sizeof *r);
	pthread_mutex_init(&r->lock, NULL);
	r->fd = fd;
	r->bell = -1;
	r->slots = slots;
	r->layers = layers;
	r->row_words = (layers + 1 + LINE_WORDS - 1) & ~(LINE_WORDS - 1);
	r->bytes = PAGE_BYTES + page_round(slots * sizeof *r->word) +
	           page_round(slots * sizeof *r->fields) +
	           page_round((size_t)slots * r->row_words * sizeof *r->board);
	*ret = r;
	return 0;
}

static int ring_mmap(struct ring *r, struct err *err)
{
	void *p = mmap(NULL, r->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, r->fd, 0);
	if (p == MAP_FAILED)
		return err_set(err, ERR_NOMEM, "cannot map %zu bytes of transfer ring: %s", r->bytes,
		               strerror(errno));
	unsigned char *at = p;
	r->header = p;
	r->word = (_Atomic uint64_t *)(at += PAGE_BYTES);
	r->fields = (struct fields *)(at += page_round(r->slots * sizeof *r->word));
	r->board = (_Atomic uint64_t *)(at + page_round(r->slots * sizeof *r->fields));
	return 0;
}

static int ring_create_memory(struct ring *r, struct err *err)
{
	const int seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
	r->fd = memfd_create("pdserve-ring", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (r->fd < 0 || ftruncate(r->fd, (off_t)r->bytes) < 0 || fcntl(r->fd, F_ADD_SEALS, seals) < 0)
		return err_set(err, ERR_IO, "cannot create a transfer ring of %zu bytes: %s", r->bytes,
		               strerror(errno));
	return ring_mmap(r, err);
}

int ring_create(uint32_t slots, uint32_t layers, uint64_t epoch, struct ring **ret_ring,
                struct err *err)
{
	struct ring *r;
	int e = ring_new(-1, slots, layers, &r, err);
	if (e < 0)
		return e;
	if ((e = ring_create_memory(r, err)) < 0) {
		ring_destroy(&r);
		return e;
	}
	r->owner = 1;
	r->generation = mem_array(slots, sizeof *r->generation);
	r->busy = mem_array(slots, 1);
	r->free = mem_array(slots, sizeof *r->free);
	for (uint32_t i = slots; i-- > 0;) { /* slot 0 ends up on top of the stack */
		r->free[r->n_free++] = i;
		r->generation[i] = 1;
		atomic_store_explicit(&r->word[i], word_of(1, RING_FREE), memory_order_relaxed);
	}
	r->header->magic = RING_MAGIC;
	r->header->version = RING_VERSION;
	r->header->slots = slots;
	r->header->layers = layers;
	r->header->transfer_bytes = sizeof(struct ring_transfer);
	r->header->epoch = epoch;
	*ret_ring = r;
	return 0;
}

static int header_check(const struct ring *r, uint64_t epoch, struct err *err)
{
	uint64_t magic = r->header->magic, is = r->header->epoch;
	uint32_t version = r->header->version, slots = r->header->slots, layers = r->header->layers,
			 transfer = r->header->transfer_bytes;
	if (magic != RING_MAGIC || version != RING_VERSION || transfer != sizeof(struct ring_transfer))
		return err_set(
			err, ERR_CORRUPT,
			"received transfer ring has magic %016llx version %u transfer of %u bytes, not "
			"%016llx version %u of %zu",
			(unsigned long long)magic, version, transfer, RING_MAGIC, RING_VERSION,
			sizeof(struct ring_transfer));
	if (slots != r->slots || layers != r->layers)
		return err_set(err, ERR_CORRUPT,
		               "received transfer ring has %u slots and %u layers, the peer's hello "
		               "announced %u and %u",
		               slots, layers, r->slots, r->layers);
	if (is != epoch)
		return err_set(err, ERR_STALE,
		               "received transfer ring is of epoch %llu, the peer's hello announced %llu",
		               (unsigned long long)is, (unsigned long long)epoch);
	return 0;
}

static int memory_check(const struct ring *r, struct err *err)
{
	struct stat st;
	int seals = fcntl(r->fd, F_GET_SEALS);
	if (seals < 0 || !(seals & F_SEAL_SHRINK))
		return err_set(err, ERR_INVALID, "received transfer ring is not sealed against resizing");
	if (fstat(r->fd, &st) < 0)
		return err_set(err, ERR_IO, "cannot stat a received transfer ring: %s", strerror(errno));
	if ((uint64_t)st.st_size != r->bytes)
		return err_set(err, ERR_INVALID,
		               "received transfer ring has %lld bytes, %u slots and %u layers need %zu",
		               (long long)st.st_size, r->slots, r->layers, r->bytes);
	return 0;
}

int ring_map(int fd, uint32_t slots, uint32_t layers, uint64_t epoch, struct ring **ret_ring,
             struct err *err)
{
	struct ring *r;
	int e = ring_new(fd, slots, layers, &r, err);
	if (e < 0) {
		if (fd >= 0)
			close(fd);
		return e;
	}
	if ((e = memory_check(r, err)) == 0 && (e = ring_mmap(r, err)) == 0 &&
	    (e = header_check(r, epoch, err)) == 0)
		*ret_ring = r;
	else
		ring_destroy(&r);
	return e;
}

void ring_destroy(struct ring **rp)
{
	struct ring *r = *rp;
	if (!r)
		return;
	if (r->header)
		munmap(r->header, r->bytes);
	if (r->fd >= 0)
		close(r->fd);
	if (r->bell >= 0)
		close(r->bell);
	pthread_mutex_destroy(&r->lock);
	free(r->generation);
	free(r->busy);
	free(r->free);
	free(r);
	*rp = NULL;
}

int ring_fd(const struct ring *r)
{
	return r->fd;
}

uint32_t ring_slots(const struct ring *r)
{
	return r->slots;
}

void *ring_mapping(const struct ring *r, size_t *ret_bytes)
{
	*ret_bytes = r->bytes;
	return r->header;
}

uint32_t ring_layers(const struct ring *r)
{
	return r->layers;
}

/* --- fields -------------------------------------------------------------- */

static void words_store(_Atomic uint32_t *to, const uint32_t *from, size_t n)
{
	for (size_t i = 0; i < n; i++)
		atomic_store_explicit(&to[i], from[i], memory_order_release);
}

static void words_load(uint32_t *to, const _Atomic uint32_t *from, size_t n)
{
	for (size_t i = 0; i < n; i++)
		to[i] = atomic_load_explicit(&from[i], memory_order_acquire);
}

static int counts_hold(const struct ring_transfer *t)
{
	return t->blocks >= 1 && t->blocks <= RING_BLOCKS_MAX && t->first_token < t->tokens &&
	       t->blocks <= t->tokens - t->first_token;
}

/* On M's side: printable characters only, since the name goes into messages and logs. */
static int name_holds(const char *name)
{
	size_t n = strnlen(name, RING_NAME_MAX);
	for (size_t i = 0; i < n; i++)
		if (name[i] <= ' ' || name[i] > '~')
			return 0;
	return n > 0 && n < RING_NAME_MAX;
}

static void fields_store(struct fields *f, const struct ring_transfer *t)
{
	uint32_t head[HEAD_WORDS];
	memcpy(head, t, sizeof head);
	words_store(f->head, head, HEAD_WORDS);
	words_store(f->src, t->src, t->blocks);
	words_store(f->dst, t->dst, t->blocks);
}

/* Copies the head, and the block numbers only if their count is valid. */
static int fields_load(const struct fields *f, struct ring_transfer *t)
{
	uint32_t head[HEAD_WORDS];
	words_load(head, f->head, HEAD_WORDS);
	memcpy(t, head, sizeof head);
	if (!counts_hold(t) || !name_holds(t->decode))
		return ERR_CORRUPT;
	words_load(t->src, f->src, t->blocks);
	words_load(t->dst, f->dst, t->blocks);
	return 0;
}

int ring_transfer_check(const struct ring_transfer *t, uint32_t block_tokens, uint32_t src_blocks,
                        uint32_t dst_blocks)
{
	CHECK(block_tokens > 0);
	if (!counts_hold(t) || t->first_token % block_tokens)
		return ERR_CORRUPT;
	uint32_t send = t->tokens - t->first_token;
	if (t->blocks != send / block_tokens + (send % block_tokens != 0))
		return ERR_CORRUPT;
	for (uint32_t i = 0; i < t->blocks; i++)
		if (t->src[i] >= src_blocks || t->dst[i] >= dst_blocks)
			return ERR_CORRUPT;
	return 0;
}

/* --- P ------------------------------------------------------------------- */

static _Atomic uint64_t *board_row(const struct ring *r, uint32_t slot)
{
	return r->board + (size_t)slot * r->row_words;
}

static void slot_open(struct ring *r, uint32_t slot, const struct ring_transfer *transfer)
{
	uint64_t gen = r->generation[slot];
	atomic_store_explicit(&r->word[slot], word_of(gen, RING_CLOSED), memory_order_release);
	fields_store(&r->fields[slot], transfer);
	_Atomic uint64_t *row = board_row(r, slot);
	for (uint32_t i = 0; i < r->layers; i++)
		atomic_store_explicit(&row[i], 0, memory_order_release);
	ring_schedule(r, slot, gen);
	atomic_store_explicit(&r->word[slot], word_of(gen, RING_PENDING), memory_order_release);
}

int ring_publish(struct ring *r, const struct ring_transfer *transfer, uint32_t *ret_slot,
                 uint64_t *ret_gen)
{
	CHECK(r->owner && counts_hold(transfer));
	pthread_mutex_lock(&r->lock);
	int e = r->n_free ? 0 : ERR_FULL;
	if (e == 0) {
		uint32_t slot = r->free[--r->n_free];
		r->busy[slot] = 1;
		slot_open(r, slot, transfer);
		*ret_slot = slot;
		*ret_gen = r->generation[slot];
	}
	pthread_mutex_unlock(&r->lock);
	return e;
}

static int word_swap(struct ring *r, uint32_t slot, uint64_t gen, enum ring_state to)
{
	uint64_t was = word_of(gen, RING_PENDING);
	return atomic_compare_exchange_strong_explicit(&r->word[slot], &was, word_of(gen, to),
	                                               memory_order_acq_rel, memory_order_acquire)
	           ? 0
	           : ERR_STALE;
}

int ring_cancel(struct ring *r, uint32_t slot, uint64_t gen)
{
	CHECK(r->owner && slot < r->slots);
	return word_swap(r, slot, gen, RING_VOID);
}

void ring_retire(struct ring *r, uint32_t slot, uint64_t gen)
{
	CHECK(r->owner && slot < r->slots);
	pthread_mutex_lock(&r->lock);
	if (r->busy[slot] && r->generation[slot] == gen) {
		r->busy[slot] = gen == GENERATION_LAST;
		r->generation[slot] = gen + 1;
		atomic_store_explicit(&r->word[slot], word_of(gen + 1, RING_FREE), memory_order_release);
		if (!r->busy[slot])
			r->free[r->n_free++] = slot;
	}
	pthread_mutex_unlock(&r->lock);
}

uint64_t *ring_progress_word(struct ring *r, uint32_t slot, uint32_t layer)
{
	CHECK(slot < r->slots && layer < r->layers);
	return (uint64_t *)(board_row(r, slot) + layer);
}

uint64_t ring_progress_value(uint64_t gen, uint32_t tokens)
{
	return gen << 32 | tokens;
}

void ring_step(struct ring *r)
{
	CHECK(r->owner);
	atomic_fetch_add_explicit(&r->header->step, 1, memory_order_release);
}

void ring_schedule(struct ring *r, uint32_t slot, uint64_t gen)
{
	CHECK(r->owner && slot < r->slots);
	uint32_t step = atomic_load_explicit(&r->header->step, memory_order_relaxed);
	atomic_store_explicit(&board_row(r, slot)[r->layers], gen << 32 | step, memory_order_release);
}

uint32_t ring_used(struct ring *r)
{
	CHECK(r->owner);
	pthread_mutex_lock(&r->lock);
	uint32_t n = r->slots - r->n_free;
	pthread_mutex_unlock(&r->lock);
	return n;
}

/* --- M ------------------------------------------------------------------- */

enum ring_state ring_peek(const struct ring *r, uint32_t slot, uint64_t *ret_gen)
{
	CHECK(slot < r->slots);
	uint64_t w = atomic_load_explicit(&r->word[slot], memory_order_acquire);
	*ret_gen = w >> 8;
	return state_of(w);
}

int ring_read(const struct ring *r, uint32_t slot, struct ring_transfer *ret_transfer,
              uint64_t *ret_gen, enum ring_state *ret_state)
{
	CHECK(slot < r->slots);
	uint64_t w = atomic_load_explicit(&r->word[slot], memory_order_acquire);
	enum ring_state s = state_of(w);
	if (s != RING_PENDING && s != RING_SENT)
		return ERR_STALE;
	int e = fields_load(&r->fields[slot], ret_transfer);
	/* after the acquire loads of the fields: if one was of a later transfer, the word has changed
	 * too */
	if (atomic_load_explicit(&r->word[slot], memory_order_relaxed) != w)
		return ERR_STALE;
	*ret_gen = w >> 8;
	if (e == 0)
		*ret_state = s;
	return e;
}

uint32_t ring_progress(const struct ring *r, uint32_t slot, uint32_t layer, uint64_t gen)
{
	CHECK(slot < r->slots && layer < r->layers);
	uint64_t w = atomic_load_explicit(&board_row(r, slot)[layer], memory_order_acquire);
	return w >> 32 == (gen & UINT32_MAX) ? (uint32_t)w : 0;
}

int ring_in_schedule(const struct ring *r, uint32_t slot, uint64_t gen)
{
	CHECK(slot < r->slots);
	/* Load the transfer's word first: loaded after `step` it could belong to a step newer than the
	 * value of `step`. */
	uint64_t w = atomic_load_explicit(&board_row(r, slot)[r->layers], memory_order_acquire);
	uint32_t step = atomic_load_explicit(&r->header->step, memory_order_acquire);
	return w >> 32 == (gen & UINT32_MAX) && step - (uint32_t)w <= 1;
}

int ring_mark_sent(struct ring *r, uint32_t slot, uint64_t gen)
{
	CHECK(slot < r->slots);
	return word_swap(r, slot, gen, RING_SENT);
}

/* --- doorbell ------------------------------------------------------------ */

/* M may pass any descriptor: a full counter must not make P wait, and a write must not raise
 * SIGPIPE. */
static int bell_usable(int fd)
{
	struct stat st;
	int flags = fcntl(fd, F_GETFL);
	return fstat(fd, &st) == 0 && !S_ISFIFO(st.st_mode) && !S_ISSOCK(st.st_mode) && flags >= 0 &&
	       fcntl(fd, F_SETFL, flags | O_NONBLOCK) == 0;
}

void ring_set_bell(struct ring *r, int fd)
{
	CHECK(r->owner);
	if (fd >= 0 && !bell_usable(fd)) {
		close(fd);
		fd = -1;
	}
	pthread_mutex_lock(&r->lock);
	int old = r->bell;
	r->bell = fd;
	pthread_mutex_unlock(&r->lock);
	if (old >= 0)
		close(old);
}

void ring_bell(struct ring *r)
{
	if (!atomic_fetch_or_explicit(&r->header->sleeping, 0, memory_order_acq_rel))
		return;
	pthread_mutex_lock(&r->lock);
	const uint64_t one = 1;
	ssize_t done = r->bell >= 0 ? write(r->bell, &one, sizeof one) : 0;
	(void)done; /* if the counter is full, M wakes up anyway */
	pthread_mutex_unlock(&r->lock);
}

void ring_sleeping(struct ring *r, int sleeping)
{
	atomic_exchange_explicit(&r->header->sleeping, sleeping != 0, memory_order_acq_rel);
}
