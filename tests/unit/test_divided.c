/* test_divided.c - pools that several devices share out: where a byte is, and copies between pools
 * divided alike, otherwise, or not, against a model, and by several threads. Some copies are done
 * only when they are waited for, as a device's are. */
/* run: threads */
#include "kernels/divided.c" /* its parts get another backend here */
#include "kernels/group.h"
#include "pool_memory.h"

#include <check.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <unistd.h>

static struct err e;

/* --- where a byte is ----------------------------------------------------- */

static const struct {
	const char *what;
	uint32_t layers, heads, dim, tokens, blocks;
	struct kv_parts parts;
	enum kv_type type;
} shapes[] = {
	{"one part", 3, 4, 8, 4, 5, {1, 1}, KV_BF16},
	{"halves", 3, 4, 8, 4, 5, {1, 2}, KV_BF16},
	{"a head each", 2, 3, 5, 3, 7, {1, 3}, KV_F32},
	{"unequal parts", 4, 5, 6, 2, 3, {1, 3}, KV_INT8},
	{"one layer", 1, 8, 4, 4, 1, {1, 8}, KV_FP8},
	{"sixteen", 2, 17, 4, 2, 4, {1, 16}, KV_F16},
	{"twice each", 3, 2, 8, 4, 5, {1, 4}, KV_INT8},
	{"one head in all", 2, 1, 5, 3, 7, {1, 3}, KV_F32},
	{"stages", 5, 2, 8, 4, 5, {3, 1}, KV_BF16},
	{"a layer each", 4, 3, 8, 2, 3, {4, 1}, KV_INT8},
	{"stages of halves", 5, 4, 6, 3, 4, {2, 2}, KV_F32},
	{"stages of unequal parts", 7, 5, 4, 2, 3, {3, 3}, KV_F16},
	{"twice each in stages", 3, 2, 8, 4, 5, {2, 4}, KV_FP8},
};
enum { SHAPES = sizeof shapes / sizeof *shapes };

static struct kv_layout layout_of(int i)
{
	struct kv_layout l;
	ck_assert_int_eq(kv_layout_uniform(&l, shapes[i].layers, shapes[i].heads, shapes[i].dim,
	                                   shapes[i].tokens, shapes[i].type),
	                 0);
	return l;
}

TEST_CASE("divided", .timeout_s = 120);

/* In the order of a part, [layer][block][its heads], its bytes are those of the whole pool; with
 * fewer heads than parts, each is in several. */
TEST_LOOP(each_byte_is_in_its_parts, 0, SHAPES)
{
	struct kv_layout l = layout_of(_i);
	struct kv_parts parts = shapes[_i].parts, more = {1, shapes[_i].heads + 1},
					deeper = {shapes[_i].layers + 1, 1};
	uint32_t blocks = shapes[_i].blocks, heads = shapes[_i].heads, ranks = parts.ranks, part,
			 copies_each = ranks > heads ? ranks / heads : 1, next_layer = 0;
	uint64_t sum = 0, at;
	ck_assert(kv_layout_divides(&l, parts));
	ck_assert_int_eq(kv_layout_divides(&l, more), heads == 1);
	ck_assert_int_eq(kv_layout_divides(&l, deeper), 0);
	ck_assert_uint_eq(kv_layout_copies(&l, parts), copies_each);
	for (uint32_t p = 0; p < parts.stages * ranks; p++) {
		uint32_t group = p % ranks / copies_each, stage = p / ranks,
				 begin = kern_share(heads, 1, group, ranks / copies_each),
				 end = kern_share(heads, 1, group + 1, ranks / copies_each),
				 first = kv_first_layer(&l, stage, parts.stages);
		uint64_t next = 0;
		ck_assert_uint_eq(first, kern_share(l.layers, 1, stage, parts.stages));
		next_layer = kv_first_layer(&l, stage + 1, parts.stages);
		ck_assert_uint_gt(next_layer, first);
		for (uint32_t layer = first; layer < next_layer; layer++)
			for (uint32_t b = 0; b < blocks; b++) {
				size_t head = l.piece_bytes[layer] / heads,
					   whole = kv_piece_offset(&l, blocks, layer, b) + begin * head;
				ck_assert_uint_eq(kv_part_offset(&l, blocks, p, parts, layer, b), next);
				for (size_t i = 0; i < (end - begin) * head; i++) {
					uint64_t left = kv_part_find(&l, blocks, parts, whole + i, &part, &at);
					if (end - begin < heads)
						ck_assert_uint_eq(left, (end - begin) * head - i);
					else /* up to the stage's end */
						ck_assert_uint_eq(left,
						                  kv_part_offset(&l, blocks, p, parts, l.layers, 0) - at);
					ck_assert_msg(part == p / copies_each * copies_each && at == next++,
					              "%s: layer %u block %u byte %zu is in "
					              "part %u",
					              shapes[_i].what, layer, b, i, part);
				}
			}
		ck_assert_uint_eq(kv_part_offset(&l, blocks, p, parts, l.layers, 0), next);
		sum += next;
	}
	ck_assert_uint_eq(next_layer, l.layers);
	ck_assert_uint_eq(sum, l.block_bytes * blocks * copies_each);
}

TEST(layouts_that_cannot_be_divided)
{
	struct kv_layout l = layout_of(1);
	ck_assert_int_eq(kv_layout_divides(&l, (struct kv_parts){1, 0}), 0);
	ck_assert_int_eq(kv_layout_divides(&l, (struct kv_parts){0, 1}), 0);
	l.layer[2].heads = 8; /* another share of each layer */
	ck_assert_int_eq(kv_layout_divides(&l, (struct kv_parts){1, 2}), 0);
	ck_assert_int_eq(kv_layout_divides(&l, (struct kv_parts){1, 1}), 1);
	ck_assert_int_eq(kv_layout_divides(&l, (struct kv_parts){3, 1}), 1);
}

/* --- a backend whose copies wait ----------------------------------------- */

enum { LATE_MAX = 4096 };
static struct late {
	struct kern_pool *pool; /* that the copy is numbered of */
	uint64_t number;
	struct kern_copy c;
	struct kern_piece piece[CROSSING_PIECES];
	bool done;
} late[LATE_MAX];
static size_t n_late, copies, fail_at; /* fail_at: this copy of all; 0: none */
static pthread_mutex_t late_lock = PTHREAD_MUTEX_INITIALIZER;

static int late_begin(const struct kern_copy *c, uint64_t *ret_number, char *errbuf, size_t errlen)
{
	if (++copies == fail_at) {
		snprintf(errbuf, errlen, "copy %zu fails", copies);
		return KERN_EDEVICE;
	}
	ck_assert_uint_lt(n_late, LATE_MAX);
	ck_assert_uint_le(c->n, CROSSING_PIECES);
	ck_assert(!(c->to && c->to->divided) && !(c->from && c->from->divided));
	struct late *l = &late[n_late++];
	*l = (struct late){.pool = c->to ? c->to : c->from, .number = copies, .c = *c};
	memcpy(l->piece, c->piece, c->n * sizeof *c->piece);
	l->c.piece = l->piece;
	*ret_number = l->number;
	return KERN_OK;
}

static bool late_yields; /* now and then it is another thread's turn before a number is used */

static int late_copy(const struct kern_copy *c, uint64_t *ret_number, char *errbuf, size_t errlen)
{
	pthread_mutex_lock(&late_lock);
	int rc = late_begin(c, ret_number, errbuf, errlen);
	bool yields = late_yields && copies % 4 == 0;
	pthread_mutex_unlock(&late_lock);
	if (yields)
		sched_yield();
	return rc;
}

static int late_wait(struct kern_pool *pool, uint64_t number, char *errbuf, size_t errlen)
{
	uint64_t ignored;
	pthread_mutex_lock(&late_lock);
	for (size_t i = 0; i < n_late; i++)
		if (late[i].pool == pool && late[i].number <= number && !late[i].done) {
			late[i].done = true;
			ck_assert_int_eq(kern_host_copies.copy(&late[i].c, &ignored, errbuf, errlen), 0);
		}
	pthread_mutex_unlock(&late_lock);
	return KERN_OK;
}

static void late_close(struct kern_pool **pool)
{
	kern_host_copies.close(pool);
}

static const struct kern_copies late_copies = {KERN_COPIES_ABI, "late",    NULL, late_close,
                                               late_copy,       late_wait, NULL, NULL};

static void make_late(struct kern_pool *pool)
{
	struct divided_pool *d = (struct divided_pool *)pool;
	pool->by = &late_copies;
	for (unsigned i = 0; pool->divided && i < d->parts; i++)
		d->part[i]->by = &late_copies;
}

/* --- copies -------------------------------------------------------------- */

/* A pool of a layout in `parts` parts, as a peer opens it. */
struct shared_out {
	struct kv_layout l;
	uint32_t blocks;
	struct kv_parts parts;
	struct kv_region own, peer;
	unsigned char *at[KERN_PARTS_MAX];
};

static void shared_out_new(struct shared_out *s, const struct kv_layout *l, uint32_t blocks,
                           uint32_t parts, uint32_t stages)
{
	struct kv_data data = {.parts = parts, .stages = stages}, theirs;
	char text[256];
	*s = (struct shared_out){.l = *l, .blocks = blocks, .parts = kv_data_parts(&data)};
	for (uint32_t i = 0; i < parts; i++) {
		void *at;
		ck_assert_int_eq(host_shared_new(kv_part_offset(l, blocks, i, s->parts, l->layers, 0), &at,
		                                 &data.fd[i], text, sizeof text),
		                 0);
		s->at[i] = at;
	}
	ck_assert_int_eq(kv_region_create(&s->own, l, blocks, &data, &e), 0);
	theirs = data;
	for (uint32_t i = 0; i < parts; i++)
		theirs.fd[i] = dup(data.fd[i]);
	ck_assert_msg(kv_region_map(&s->peer, l, blocks, "cpu", dup(s->own.control_fd), &theirs, &e) ==
	                  0,
	              "%s", e.text);
	ck_assert_int_eq(s->peer.pool->divided, parts > 1);
	ck_assert_uint_eq(s->peer.pool->bytes, l->block_bytes * blocks);
}

static void shared_out_free(struct shared_out *s)
{
	kv_region_fini(&s->peer);
	kv_region_fini(&s->own);
	for (uint32_t i = 0; i < s->parts.stages * s->parts.ranks; i++)
		munmap(s->at[i], kv_part_offset(&s->l, s->blocks, i, s->parts, s->l.layers, 0));
}

/* Byte `at` of the whole pool, in one of the parts that have it. */
static unsigned char *byte(const struct shared_out *s, uint64_t at, uint32_t copy)
{
	uint32_t part;
	uint64_t there;
	kv_part_find(&s->l, s->blocks, s->parts, at, &part, &there);
	return s->at[part + copy] + there;
}

enum { BYTES = 23040, VALUES = 96 }; /* of the pools: heads of 96 values in 3 layers of 5 blocks */

static struct kv_layout pool_of_heads(uint32_t heads)
{
	struct kv_layout l;
	ck_assert_int_eq(kv_layout_uniform(&l, 3, heads, VALUES / heads, 4, KV_BF16), 0);
	ck_assert_uint_eq(l.block_bytes * 5, BYTES);
	return l;
}

static struct kv_layout pool_layout(void)
{
	return pool_of_heads(12);
}

static void fill(const struct shared_out *s, unsigned char *whole, unsigned *seed)
{
	for (uint64_t i = 0; i < BYTES; i++) {
		whole[i] = (unsigned char)rand_r(seed);
		for (uint32_t n = 0; n < kv_layout_copies(&s->l, s->parts); n++)
			*byte(s, i, n) = whole[i];
	}
}

static void check_whole(const struct shared_out *s, const unsigned char *want)
{
	for (uint64_t i = 0; i < BYTES; i++)
		for (uint32_t n = 0; n < kv_layout_copies(&s->l, s->parts); n++)
			ck_assert_msg(*byte(s, i, n) == want[i], "byte %llu, copy %u", (unsigned long long)i,
			              n);
}

/* Any places and lengths; most go on where the one before ends, as blocks do. */
static size_t some_pieces(struct kern_piece *p, size_t max, unsigned *seed)
{
	size_t n = 1 + (size_t)rand_r(seed) % max;
	for (size_t i = 0; i < n; i++) {
		uint64_t bytes = (unsigned)rand_r(seed) % (rand_r(seed) % 8 ? 200 : 6000);
		p[i] = (struct kern_piece){(unsigned)rand_r(seed) % (BYTES - bytes),
		                           (unsigned)rand_r(seed) % (BYTES - bytes), bytes};
		if (i && rand_r(seed) % 2 && p[i - 1].to + p[i - 1].bytes + bytes <= BYTES &&
		    p[i - 1].from + p[i - 1].bytes + bytes <= BYTES)
			p[i] = (struct kern_piece){p[i - 1].to + p[i - 1].bytes, p[i - 1].from + p[i - 1].bytes,
			                           bytes};
	}
	return n;
}

/* Without overlaps, so that their order does not matter: parts of slots, each used once, more of
 * them than go into one copy. */
static size_t apart_pieces(struct kern_piece *p, size_t max, unsigned *seed)
{
	enum { SLOT = 180, SLOTS = BYTES / SLOT };
	uint64_t slot[2][SLOTS];
	for (size_t i = 0; i < SLOTS; i++)
		slot[0][i] = slot[1][i] = i * SLOT;
	for (size_t i = SLOTS - 1; i; i--)
		for (int side = 0; side < 2; side++) {
			size_t j = (size_t)rand_r(seed) % (i + 1);
			uint64_t was = slot[side][i];
			slot[side][i] = slot[side][j];
			slot[side][j] = was;
		}
	for (size_t i = 0; i < max; i++)
		p[i] = (struct kern_piece){slot[0][i], slot[1][i], 1 + (unsigned)rand_r(seed) % SLOT};
	if (rand_r(seed) % 2) /* nothing to do at the end of the list */
		for (size_t i = 64; i < max; i++)
			p[i].bytes = 0;
	return max;
}

static unsigned char from[BYTES], want[BYTES], host[BYTES], saw[1 << 20], in_order[1 << 20];
static size_t n_saw;
static char why[256];

static void see(void *arg, const void *at, size_t bytes)
{
	(void)arg;
	ck_assert_uint_le(n_saw + bytes, sizeof saw);
	memcpy(saw + n_saw, at, bytes);
	n_saw += bytes;
}

static const struct {
	uint32_t heads, from, to; /* from, to: parts; 0: host memory */
	int seen, same;           /* same: within one pool */
	uint32_t from_stages, to_stages;
} ways[] = {
	{12, 1, 3, 0, 0, 0, 0},
	{12, 3, 1, 0, 0, 0, 0},
	{12, 2, 2, 0, 0, 0, 0},
	{12, 3, 2, 0, 0, 0, 0},
	{12, 2, 3, 0, 0, 0, 0},
	{12, 12, 5, 0, 0, 0, 0},
	{12, 3, 0, 0, 0, 0, 0},
	{12, 0, 3, 0, 0, 0, 0},
	{12, 3, 0, 1, 0, 0, 0},
	{12, 12, 0, 1, 0, 0, 0},
	{12, 3, 3, 0, 1, 0, 0},
	/* each head in several parts, or the one in all */
	{2, 4, 4, 0, 0, 0, 0},
	{2, 8, 2, 0, 0, 0, 0},
	{2, 1, 6, 0, 0, 0, 0},
	{1, 3, 1, 0, 0, 0, 0},
	{1, 2, 8, 0, 0, 0, 0},
	{1, 1, 16, 0, 0, 0, 0},
	{2, 0, 4, 0, 0, 0, 0},
	{2, 6, 0, 1, 0, 0, 0},
	{2, 2, 4, 0, 0, 0, 0},
	{1, 3, 3, 0, 0, 0, 0},
	{2, 4, 4, 0, 1, 0, 0},
	/* layers in stages */
	{12, 1, 3, 0, 0, 1, 3},
	{12, 2, 3, 0, 0, 2, 3},
	{12, 6, 2, 0, 0, 3, 1},
	{12, 4, 4, 0, 0, 2, 1},
	{12, 3, 0, 1, 0, 3, 0},
	{12, 0, 6, 0, 0, 0, 2},
	{2, 8, 3, 0, 0, 2, 3},
	{1, 2, 4, 0, 0, 2, 2},
	{12, 4, 4, 0, 1, 2, 2},
};
enum { WAYS = sizeof ways / sizeof *ways };

/* What the pieces make of `want`, one after the other, and the bytes that somebody sees. */
static size_t model(const struct kern_copy *c, const struct kern_piece *piece, int same)
{
	size_t all = 0;
	for (size_t i = 0; i < c->n; all += piece[i++].bytes) {
		memmove(want + piece[i].to, (same ? want : from) + piece[i].from, piece[i].bytes);
		if (c->seen)
			memcpy(in_order + all, from + piece[i].from, piece[i].bytes);
	}
	return all;
}

static bool overlaps_itself(const struct kern_piece *p, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (p[i].to < p[i].from + p[i].bytes && p[i].from < p[i].to + p[i].bytes)
			return true;
	return false;
}

/* Random workloads of each way. */
#if defined __SANITIZE_THREAD__ || defined __SANITIZE_ADDRESS__
enum { MODEL_TURNS = 6 };
#else
enum { MODEL_TURNS = 60 };
#endif

TEST_LOOP(copies_against_a_model, 0, 2 * WAYS)
{
	int w = _i / 2, is_late = _i % 2;
	unsigned seed = 3 + (unsigned)_i;
	struct kv_layout l = pool_of_heads(ways[w].heads);
	struct shared_out a, b;
	if (ways[w].from)
		shared_out_new(&a, &l, 5, ways[w].from, ways[w].from_stages);
	if (ways[w].to && !ways[w].same)
		shared_out_new(&b, &l, 5, ways[w].to, ways[w].to_stages);
	struct shared_out *to = ways[w].same ? &a : &b;
	if (is_late && ways[w].from)
		make_late(a.peer.pool);
	if (is_late && ways[w].to)
		make_late(to->peer.pool);
	for (int turn = 0; turn < MODEL_TURNS; turn++) {
		struct kern_piece piece[100], given[100];
		struct kern_copy c = {.piece = given,
		                      .n = turn % 2 ? some_pieces(piece, 100, &seed)
		                                    : apart_pieces(piece, 100, &seed)};
		struct kern_ticket t;
		if (ways[w].same && overlaps_itself(piece, c.n))
			c.n = 0;
		if (ways[w].from)
			fill(&a, from, &seed);
		else
			for (size_t i = 0; i < BYTES; i++)
				from[i] = (unsigned char)rand_r(&seed);
		if (ways[w].to && !ways[w].same)
			fill(to, want, &seed);
		else
			memcpy(want, ways[w].same ? from : host, BYTES);
		c.seen = ways[w].seen ? see : NULL;
		n_saw = n_late = copies = 0;
		size_t all = model(&c, piece, ways[w].same);
		for (size_t i = 0; i < c.n; i++) {
			given[i] = piece[i];
			given[i].from += ways[w].from ? 0 : (uintptr_t)from;
			given[i].to += ways[w].to ? 0 : (uintptr_t)host;
		}
		c.from = ways[w].from ? a.peer.pool : NULL;
		c.to = ways[w].to ? to->peer.pool : NULL;
		ck_assert_msg(kern_copy(&c, &t, why, sizeof why) == 0, "%s", why);
		ck_assert_msg(kern_wait(&t, why, sizeof why) == 0, "%s", why);
		if (ways[w].to)
			check_whole(to, want);
		else
			ck_assert_mem_eq(host, want, BYTES);
		ck_assert(!c.seen || (n_saw == all && !memcmp(saw, in_order, all)));
	}
	if (ways[w].from)
		shared_out_free(&a);
	if (ways[w].to && !ways[w].same)
		shared_out_free(&b);
}

/* Blocks that are neighbours in the pool are so in each part: a layer is one copy a part, however
 * many blocks it has. */
TEST(neighbours_are_one_copy_of_each_part)
{
	struct kv_layout l = pool_layout();
	struct shared_out a, b;
	struct kern_ticket t;
	shared_out_new(&a, &l, 5, 3, 1);
	shared_out_new(&b, &l, 5, 3, 1);
	make_late(a.peer.pool);
	make_late(b.peer.pool);
	const struct kern_piece layer = {0, 0, BYTES / 3};
	ck_assert_int_eq(
		kern_copy(
			&(struct kern_copy){.to = b.peer.pool, .from = a.peer.pool, .piece = &layer, .n = 1},
			&t, why, sizeof why),
		0);
	ck_assert_uint_eq(copies, 3);
	for (size_t i = 0; i < 3; i++) {
		ck_assert_uint_eq(late[i].c.n, 1);
		ck_assert_uint_eq(late[i].piece[0].bytes, BYTES / 9);
	}
	shared_out_free(&a);
	shared_out_free(&b);
}

/* --- several threads ----------------------------------------------------- */

enum { COPIERS = 3, TURNS = 40, RANGE = BYTES / COPIERS };

/* A thread and its bytes, which have a share in each part of both pools. */
struct copier {
	struct kern_pool *pool[2];
	uint64_t at;
	unsigned char there[RANGE], back[RANGE], saw[RANGE];
	size_t n_saw;
};

static void copier_sees(void *arg, const void *at, size_t bytes)
{
	struct copier *c = arg;
	ck_assert_uint_le(c->n_saw + bytes, RANGE);
	memcpy(c->saw + c->n_saw, at, bytes);
	c->n_saw += bytes;
}

static void copy_range(struct copier *by, struct kern_pool *to, struct kern_pool *source, bool seen)
{
	const struct kern_piece piece = {to ? by->at : (uintptr_t)by->back,
	                                 source ? by->at : (uintptr_t)by->there, RANGE};
	const struct kern_copy c = {.to = to,
	                            .from = source,
	                            .piece = &piece,
	                            .n = 1,
	                            .seen = seen ? copier_sees : NULL,
	                            .seen_arg = by};
	struct kern_ticket t;
	char text[256];
	by->n_saw = 0;
	ck_assert_msg(kern_copy(&c, &t, text, sizeof text) == 0, "%s", text);
	ck_assert_msg(kern_wait(&t, text, sizeof text) == 0, "%s", text);
}

static void *copy_around(void *arg)
{
	struct copier *c = arg;
	unsigned seed = (unsigned)c->at;
	for (int turn = 0; turn < TURNS; turn++) {
		for (size_t i = 0; i < RANGE; i++)
			c->there[i] = (unsigned char)rand_r(&seed);
		copy_range(c, c->pool[0], NULL, false);
		copy_range(c, c->pool[1], c->pool[0], false);
		copy_range(c, NULL, c->pool[1], turn % 2);
		ck_assert_mem_eq(c->back, c->there, RANGE);
		ck_assert(turn % 2 == 0 || (c->n_saw == RANGE && !memcmp(c->saw, c->there, RANGE)));
	}
	return NULL;
}

/* From one pool to another, and back to host memory: each finds its own bytes. */
TEST_LOOP(copies_of_several_threads, 0, 6)
{
	static const struct {
		uint32_t parts[2];
		int is_late;
	} pools[] = {{{3, 2}, 1}, {{2, 3}, 1}, {{3, 3}, 1}, {{1, 3}, 1}, {{3, 1}, 1}, {{3, 2}, 0}};
	static struct copier c[COPIERS];
	struct kv_layout l = pool_layout();
	struct shared_out of[2];
	pthread_t thread[COPIERS];
	late_yields = true;
	for (int i = 0; i < 2; i++) {
		shared_out_new(&of[i], &l, 5, pools[_i].parts[i], 1);
		if (pools[_i].is_late)
			make_late(of[i].peer.pool);
	}
	for (unsigned i = 0; i < COPIERS; i++) {
		c[i] = (struct copier){.pool = {of[0].peer.pool, of[1].peer.pool}, .at = i * RANGE};
		ck_assert_int_eq(pthread_create(&thread[i], NULL, copy_around, &c[i]), 0);
	}
	for (unsigned i = 0; i < COPIERS; i++)
		pthread_join(thread[i], NULL);
	for (int i = 0; i < 2; i++)
		shared_out_free(&of[i]);
}

/* --- failures ------------------------------------------------------------ */

/* What was started of a copy that fails has ended when the failure is told, in every part. */
TEST_LOOP(a_copy_that_fails_halfway, 0, 3)
{
	struct kv_layout l = pool_layout();
	struct shared_out a;
	struct kern_ticket t;
	const struct kern_piece all = {0, (uintptr_t)from, BYTES};
	shared_out_new(&a, &l, 5, 3, 1);
	make_late(a.peer.pool);
	n_late = copies = 0;
	fail_at = (size_t)_i + 1;
	ck_assert_int_eq(kern_copy(&(struct kern_copy){.to = a.peer.pool, .piece = &all, .n = 1}, &t,
	                           why, sizeof why),
	                 KERN_EDEVICE);
	ck_assert_ptr_nonnull(strstr(why, "fails"));
	ck_assert_uint_eq(n_late, (size_t)_i);
	for (size_t i = 0; i < n_late; i++)
		ck_assert(late[i].done);
	shared_out_free(&a);
}

static int fds_open(void)
{
	int n = 0;
	for (int fd = 0; fd < 256; fd++)
		n += fcntl(fd, F_GETFD) >= 0;
	return n;
}

/* A part of another size than the hello requires is refused, and nothing is left open. */
TEST(parts_that_cannot_be)
{
	struct kv_layout l = pool_layout();
	struct shared_out a;
	struct kv_region r;
	shared_out_new(&a, &l, 5, 3, 1);
	int before = fds_open();
	struct kv_data two = {.parts = 2, .fd = {dup(a.own.data.fd[0]), dup(a.own.data.fd[1])}};
	ck_assert_int_eq(kv_region_map(&r, &l, 5, "cpu", dup(a.own.control_fd), &two, &e), ERR_INVALID);
	ck_assert_ptr_nonnull(strstr(e.text, "bytes"));
	ck_assert_int_eq(fds_open(), before);
	struct kern_pool *pool;
	struct kern_part part[KERN_PARTS_MAX + 1] = {{0, a.own.data.fd[0], BYTES / 3}};
	for (unsigned i = 0; i < 2; i++) {
		unsigned parts = i ? KERN_PARTS_MAX + 1 : 0;
		ck_assert_int_eq(kern_pool_open_divided("cpu", part, parts, 1, BYTES, NULL, NULL, &pool,
		                                        why, sizeof why),
		                 KERN_EINVAL);
		ck_assert_ptr_nonnull(strstr(why, "the limits are 1 and 16"));
		ck_assert_int_eq(kern_pool_open_divided("cpu", part, 3, 2 * i, BYTES, NULL, NULL, &pool,
		                                        why, sizeof why),
		                 KERN_EINVAL);
		ck_assert_ptr_nonnull(strstr(why, "expected a divisor"));
	}
	shared_out_free(&a);
}
