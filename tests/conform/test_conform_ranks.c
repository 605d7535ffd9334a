/* test_conform_ranks.c - groups of ranks: what they gather has the bits of one device, also where a
 * rank has nothing to give; sums are added in the order of ranks; rank 0 tells of progress; and
 * what happens when they no longer meet. */
#include "tests/conform/conform.h"
#include "tests/unit/skip.h"

#include <pthread.h>
#include <unistd.h>

enum { RANKS = 3, RANK_DIM = 96, RANK_ROWS = 9, RANK_RUNS = 5, RANK_OPS = 9, TOLD = 4711 };

/* The table's rows of a rank begin here. No row of the batch has a token of rank 1. */
static uint32_t first_token(unsigned rank, unsigned ranks)
{
	return kern_share(VOCABULARY, 1, rank, ranks);
}

struct group {
	struct target *target;
	struct world *w;
	struct schedule s;
	pthread_barrier_t barrier;
	unsigned meetings, broken_at; /* 0: never */
	float *table, *weight, *w_norm, *out[RANKS];
	int fd, rc[RANKS];
	uint64_t word[RANKS]; /* of progress, at the end */
};

struct rank {
	struct group *g;
	unsigned rank;
};

static int rank_meet(void *arg)
{
	struct rank *r = arg;
	if (pthread_barrier_wait(&r->g->barrier) == PTHREAD_BARRIER_SERIAL_THREAD)
		r->g->meetings++;
	pthread_barrier_wait(&r->g->barrier);
	return r->g->broken_at && r->g->meetings >= r->g->broken_at ? -1 : 0;
}

/* A rank's device: its part of the table and of the columns, memory of its own, and what all share:
 * rows of embeddings and of products. */
struct part_of_group {
	const struct kern_ops *k;
	struct kern_mem own, board, batch[2]; /* with and without progress */
	struct kern_weight *table, *w;
	struct kern_program *p;
};

static size_t rows_bytes(const struct group *g)
{
	return world_limits(g->w).rows * RANK_DIM * sizeof(float);
}

/* What a rank makes of a row to be summed. */
static float factor_of(unsigned rank)
{
	return 1.3f + 0.37f * (float)rank;
}

/* Rows of the table are gathered, then the columns of a product; the norm of a whole row follows.
 * Then a sum over the ranks of rows times a factor of each. */
static void rank_ops(struct kern_op *op, const struct part_of_group *p, kern_ptr shared,
                     size_t bytes, unsigned rank, uint32_t column, uint32_t first)
{
	struct kern_tensor h = {shared, RANK_DIM, KERN_F32},
					   y = {kern_at(shared, bytes), RANK_DIM, KERN_F32};
	memset(op, 0, RANK_OPS * sizeof *op);
	op[0].kind = KERN_OP_EMBED;
	op[0].embed.y = h;
	op[0].embed.w = p->table;
	op[0].embed.first = first;
	op[1].kind = op[3].kind = KERN_OP_GATHER;
	op[1].gather.tensors = op[3].gather.tensors = 1;
	op[1].gather.t[0] = (struct kern_gathered){h, 1, RANK_DIM, 1, VOCABULARY};
	op[3].gather.t[0] = (struct kern_gathered){y, 1, RANK_DIM, RANK_DIM / RANKS, 0};
	op[2].kind = KERN_OP_MATMUL;
	op[2].matmul.x = h;
	op[2].matmul.products = 1;
	op[2].matmul.p[0] = (struct kern_product){
		p->w, {0}, {kern_at(y.at, 4 * (size_t)column), RANK_DIM, KERN_F32}};
	op[4].kind = KERN_OP_NORM;
	op[4].norm.y = (struct kern_tensor){p->own.dev, RANK_DIM, KERN_F32};
	op[4].norm.x = y;
	op[4].norm.w = kern_at(p->own.dev, bytes);
	op[4].norm.dim = RANK_DIM;
	op[4].norm.eps = 1e-5f;
	op[5].kind = KERN_OP_PROGRESS;
	op[6].kind = KERN_OP_SCALE;
	op[6].scale.y = (struct kern_tensor){kern_at(shared, (2 + rank) * bytes), RANK_DIM, KERN_F32};
	op[6].scale.x = h;
	op[6].scale.factor = factor_of(rank);
	op[6].scale.dim = RANK_DIM;
	op[7].kind = KERN_OP_REDUCE;
	op[7].reduce.y = (struct kern_tensor){kern_at(p->own.dev, 2 * bytes), RANK_DIM, KERN_F32};
	op[7].reduce.x = op[6].scale.y;
	op[7].reduce.dim = RANK_DIM;
	op[7].reduce.stride = bytes;
	op[8].kind = KERN_OP_BARRIER; /* before the next run writes */
}

static int part_new(struct part_of_group *p, const struct group *g, const struct device *dev,
                    kern_ptr shared, unsigned rank, unsigned ranks)
{
	const struct kern_ops *k = p->k = dev->ops;
	uint32_t n = RANK_DIM / ranks, first = first_token(rank, ranks),
			 end = first_token(rank + 1, ranks);
	struct kern_limits limits = world_limits(g->w);
	struct kern_op op[RANK_OPS];
	size_t bytes = rows_bytes(g);
	int rc = k->mem_new(dev->d, KERN_MEM_DEVICE, 3 * bytes, &p->own);
	rc = rc ? rc : k->mem_new(dev->d, KERN_MEM_SHARED, sizeof(uint64_t), &p->board);
	for (int i = 0; i < 2; i++) {
		rc = rc ? rc : k->mem_new(dev->d, KERN_MEM_PINNED, batch_bytes(g->w), &p->batch[i]);
		if (!rc)
			batch_write(g->w, &g->s.step[0], (uint32_t)i,
			            i ? NULL : &(struct kern_progress){p->board.dev, TOLD, 1},
			            p->batch[i].host);
	}
	rc = rc ? rc
	        : k->weight_new(dev->d, KERN_F32, n, RANK_DIM, g->weight + (size_t)rank * n * RANK_DIM,
	                        0, &p->w);
	rc = rc ? rc
	        : k->weight_new(dev->d, KERN_F32, end - first, RANK_DIM,
	                        g->table + (size_t)first * RANK_DIM, 0, &p->table);
	rc = rc ? rc : k->upload(dev->s, kern_at(p->own.dev, bytes), g->w_norm, RANK_DIM * 4);
	rank_ops(op, p, shared, bytes, rank, rank * n, first);
	return rc ? rc : k->program_new(dev->d, op, RANK_OPS, &limits, &p->p);
}

/* Runs on a device of its own. Returns what the last run did. */
static int rank_run(const struct group *g, const struct device *dev, kern_ptr shared, unsigned rank,
                    unsigned ranks, float *out, uint64_t *ret_word)
{
	struct part_of_group p = {0};
	int rc = part_new(&p, g, dev, shared, rank, ranks);
	for (int i = 0; i < RANK_RUNS && !rc; i++) {
		rc = p.k->run(dev->s, p.p, &p.batch[i == RANK_RUNS - 1]);
		rc = rc ? rc : p.k->sync(dev->s);
	}
	rc = rc ? rc : p.k->download(dev->s, out, p.own.dev, RANK_ROWS * RANK_DIM * 4);
	rc = rc ? rc
	        : p.k->download(dev->s, out + RANK_ROWS * RANK_DIM,
	                        kern_at(p.own.dev, 2 * rows_bytes(g)), RANK_ROWS * RANK_DIM * 4);
	rc = rc ? rc : p.k->download(dev->s, ret_word, p.board.dev, sizeof *ret_word);
	rc = rc ? rc : p.k->sync(dev->s);
	if (p.p)
		p.k->program_destroy(&p.p);
	p.k->weight_destroy(dev->d, &p.w);
	p.k->weight_destroy(dev->d, &p.table);
	for (int i = 0; i < 2; i++)
		p.k->mem_free(dev->d, &p.batch[i]);
	p.k->mem_free(dev->d, &p.board);
	p.k->mem_free(dev->d, &p.own);
	return rc;
}

static void *rank_main(void *arg)
{
	struct rank *r = arg;
	struct group *g = r->g;
	struct device dev = {.target = g->target, .ops = g->target->ops};
	struct kern_config conf = {.variant = g->target->variant[0] ? g->target->variant : NULL,
	                           .threads = 1 + r->rank % 2,
	                           .group = {r->rank, RANKS, rank_meet, r}};
	struct kern_mem shared;
	char err[200];
	int rc = dev.ops->open(&conf, &dev.d, err, sizeof err);
	rc = rc ? rc : dev.ops->stream_new(dev.d, &dev.s);
	rc = rc ? rc : dev.ops->mem_map(dev.d, g->fd, (2 + RANKS) * rows_bytes(g), &shared);
	g->rc[r->rank] = rc ? rc
	                    : rank_run(g, &dev, shared.dev, r->rank, RANKS, g->out[r->rank],
	                               &g->word[r->rank]);
	if (!rc)
		dev.ops->mem_free(dev.d, &shared);
	dev.ops->stream_destroy(&dev.s);
	dev.ops->close(&dev.d);
	return NULL;
}

static void group_run(struct group *g, struct device *alone, unsigned broken_at)
{
	struct rank rank[RANKS];
	pthread_t thread[RANKS];
	struct kern_mem shared = mem_get(alone, KERN_MEM_SHARED, (2 + RANKS) * rows_bytes(g));
	device_ok(alone, alone->ops->mem_share(alone->d, &shared, &g->fd), "mem_share");
	g->broken_at = broken_at;
	g->meetings = 0;
	for (unsigned i = 0; i < RANKS; i++) {
		rank[i] = (struct rank){g, i};
		EXPECT(pthread_create(&thread[i], NULL, rank_main, &rank[i]) == 0, "no thread");
	}
	for (unsigned i = 0; i < RANKS; i++)
		pthread_join(thread[i], NULL);
	close(g->fd);
	alone->ops->mem_free(alone->d, &shared);
}

static void group_new(struct group *g, struct target *t)
{
	static const struct sequence seq[SEQUENCES] = {{0, RANK_ROWS}};
	*g = (struct group){.target = t, .w = world_new(seq, 16)};
	for (uint32_t i = 0; i < RANK_ROWS;
	     i++) /* both sides of where the table is cut, and its ends */
		g->w->token[i] = (const uint32_t[]){first_token(1, RANKS) - 1, first_token(2, RANKS), 0,
		                                    VOCABULARY - 1}[i % 4];
	g->s = schedule_make(g->w, ORDER_WHOLE, 0, false);
	g->table = rand_floats(VOCABULARY * RANK_DIM, 1);
	g->weight = rand_floats(RANK_DIM * RANK_DIM, 1);
	g->w_norm = rand_floats(RANK_DIM, 1);
	for (unsigned i = 0; i < RANKS; i++)
		g->out[i] = conform_alloc(2 * RANK_ROWS * RANK_DIM, sizeof(float));
	pthread_barrier_init(&g->barrier, NULL, RANKS);
}

static void expect_sums(const struct group *g, const float *sum, unsigned ranks)
{
	for (uint32_t r = 0; r < RANK_ROWS; r++)
		for (uint32_t i = 0; i < RANK_DIM; i++) {
			float x = g->table[(size_t)g->w->token[r] * RANK_DIM + i], want = x * factor_of(0);
			for (unsigned rank = 1; rank < ranks; rank++)
				want += x * factor_of(rank);
			EXPECT(sum[r * RANK_DIM + i] == want,
			       "row %u, column %u: the sum over %u ranks is %a, want %a", r, i, ranks,
			       (double)sum[r * RANK_DIM + i], (double)want);
		}
}

CONFORM_TEST(groups_of_ranks)
{
	EACH_TARGET(dev, 2)
	{
		struct group g;
		uint64_t word;
		if (dev->ops->ranks_max < RANKS) {
			SKIP_PART("%s: no groups of %d ranks", dev->target->name, RANKS);
			continue;
		}
		group_new(&g, &conform_targets[t_]);
		struct kern_mem rows = mem_get(dev, KERN_MEM_DEVICE, 3 * rows_bytes(&g));
		float *want = conform_alloc(2 * RANK_ROWS * RANK_DIM, sizeof(float));
		device_ok(dev, rank_run(&g, dev, rows.dev, 0, 1, want, &word), "a device that is alone");
		EXPECT(word == TOLD, "a device that is alone told %llu, want %d", (unsigned long long)word,
		       TOLD);
		expect_sums(&g, want + RANK_ROWS * RANK_DIM, 1);
		group_run(&g, dev, 0);
		for (unsigned i = 0; i < RANKS; i++) {
			EXPECT(g.rc[i] == 0 && !memcmp(g.out[i], want, RANK_ROWS * RANK_DIM * sizeof(float)),
			       "rank %u returned %d, or other bits than one device", i, g.rc[i]);
			expect_sums(&g, g.out[i] + RANK_ROWS * RANK_DIM, RANKS);
			EXPECT(g.word[i] == (i ? 0 : TOLD), "rank %u told %llu", i,
			       (unsigned long long)g.word[i]);
		}
		EXPECT(g.meetings == 5 * RANK_RUNS - 1,
		       "%u meetings in %d runs, want one for each collective and for progress, which "
		       "the last run does not tell",
		       g.meetings, RANK_RUNS);
		group_run(&g, dev, 6);
		for (unsigned i = 0; i < RANKS; i++)
			EXPECT(g.rc[i] < 0, "rank %u goes on without its group", i);
		dev->ops->mem_free(dev->d, &rows);
		pthread_barrier_destroy(&g.barrier);
	}
}
