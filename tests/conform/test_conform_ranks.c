/* test_conform_ranks.c - groups of ranks: what they gather, who tells of progress, and what happens when they no longer meet. */
#include "tests/conform/conform.h"
#include "tests/unit/skip.h"

#include <pthread.h>
#include <unistd.h>

enum { RANKS = 2, RANK_DIM = 96, RANK_ROWS = 9, RANK_RUNS = 5 };

struct group {
	struct target *target;
	struct world *w;
	struct schedule s;
	pthread_barrier_t barrier;
	unsigned meetings, broken_at;          /* 0: never */
	float *weight, *x, *w_norm, *out[RANKS];
	int fd, rc[RANKS];
	uint64_t word;
};

struct rank { struct group *g; unsigned rank; };

static int rank_meet(void *arg)
{
	struct rank *r = arg;
	if (pthread_barrier_wait(&r->g->barrier) == PTHREAD_BARRIER_SERIAL_THREAD)
		r->g->meetings++;
	pthread_barrier_wait(&r->g->barrier);
	return r->g->broken_at && r->g->meetings >= r->g->broken_at ? -1 : 0;
}

/* y = W x, of which a rank computes some columns into memory that all share; the norm of a whole row follows. */
static uint32_t rank_ops(struct kern_op *op, const struct kern_weight *w, kern_ptr x, kern_ptr shared, uint32_t column, kern_ptr w_norm, kern_ptr out)
{
	struct kern_tensor y = {shared, RANK_DIM, KERN_F32};
	op[0].kind = KERN_OP_MATMUL;
	op[0].matmul.x = (struct kern_tensor){x, RANK_DIM, KERN_F32};
	op[0].matmul.products = 1;
	op[0].matmul.p[0] = (struct kern_product){w, {0}, {kern_at(shared, 4 * (size_t)column), RANK_DIM, KERN_F32}};
	op[1].kind = KERN_OP_GATHER;
	op[2].kind = KERN_OP_NORM;
	op[2].norm.y = (struct kern_tensor){out, RANK_DIM, KERN_F32};
	op[2].norm.x = y;
	op[2].norm.w = w_norm;
	op[2].norm.dim = RANK_DIM;
	op[2].norm.eps = 1e-5f;
	op[3].kind = KERN_OP_GATHER;           /* before the next run writes */
	return 4;
}

/* Runs on a device of its own; `shared` is NULL for one that is alone. Returns what the last run did. */
static int rank_run(const struct group *g, const struct device *dev, struct kern_mem *shared, unsigned rank, unsigned ranks, float *out)
{
	const struct kern_ops *k = dev->ops;
	uint32_t n = RANK_DIM / ranks;
	struct kern_limits limits = world_limits(g->w);
	struct kern_mem own = {0}, batch = {0}, mem = shared ? *shared : (struct kern_mem){0};
	struct kern_weight *w = NULL;
	struct kern_program *p = NULL;
	struct kern_op op[4] = {0};
	size_t bytes = limits.rows * RANK_DIM * 4;
	int rc = k->mem_new(dev->d, KERN_MEM_DEVICE, 4 * bytes, &own);
	rc = rc ? rc : k->mem_new(dev->d, KERN_MEM_PINNED, batch_bytes(g->w), &batch);
	rc = rc ? rc : k->weight_new(dev->d, KERN_F32, n, RANK_DIM, g->weight + (size_t)rank * n * RANK_DIM, 0, &w);
	rc = rc ? rc : k->upload(dev->s, own.dev, g->x, RANK_ROWS * RANK_DIM * 4);
	rc = rc ? rc : k->upload(dev->s, kern_at(own.dev, bytes), g->w_norm, RANK_DIM * 4);
	if (!rc) {
		batch_write(g->w, &g->s.step[0], 0, NULL, batch.host);
		rank_ops(op, w, own.dev, shared ? mem.dev : kern_at(own.dev, 3 * bytes), rank * n, kern_at(own.dev, bytes), kern_at(own.dev, 2 * bytes));
		rc = k->program_new(dev->d, op, 4, &limits, &p);
	}
	for (int i = 0; i < RANK_RUNS && !rc; i++) {
		rc = k->run(dev->s, p, &batch);
		rc = rc ? rc : k->sync(dev->s);
	}
	rc = rc ? rc : k->download(dev->s, out, kern_at(own.dev, 2 * bytes), RANK_ROWS * RANK_DIM * 4);
	rc = rc ? rc : k->sync(dev->s);
	if (p)
		k->program_destroy(&p);
	k->weight_destroy(dev->d, &w);
	k->mem_free(dev->d, &batch);
	k->mem_free(dev->d, &own);
	return rc;
}

static void *rank_main(void *arg)
{
	struct rank *r = arg;
	struct group *g = r->g;
	struct device dev = {.target = g->target, .ops = g->target->ops};
	struct kern_config conf = {.variant = g->target->variant[0] ? g->target->variant : NULL, .threads = 1 + r->rank, .group = {r->rank, RANKS, rank_meet, r}};
	struct kern_mem shared;
	char err[200];
	int rc = dev.ops->open(&conf, &dev.d, err, sizeof err);
	rc = rc ? rc : dev.ops->stream_new(dev.d, &dev.s);
	rc = rc ? rc : dev.ops->mem_map(dev.d, g->fd, world_limits(g->w).rows * RANK_DIM * 4, &shared);
	g->rc[r->rank] = rc ? rc : rank_run(g, &dev, &shared, r->rank, RANKS, g->out[r->rank]);
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
	struct kern_mem shared = mem_get(alone, KERN_MEM_SHARED, world_limits(g->w).rows * RANK_DIM * 4);
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

/* Two ranks give the bits of one device; when they no longer meet, a run ends with an error. */
CONFORM_TEST(groups_of_ranks)
{
	static const struct sequence seq[SEQUENCES] = {{0, RANK_ROWS}};
	EACH_TARGET(dev, 2) {
		struct group g = {.target = &conform_targets[t_], .w = world_new(seq, 16)};
		if (dev->ops->ranks_max < RANKS) {
			SKIP_PART("%s: works alone", dev->target->name);
			continue;
		}
		g.s = schedule_make(g.w, ORDER_WHOLE, 0, false);
		g.weight = rand_floats(RANK_DIM * RANK_DIM, 1);
		g.w_norm = rand_floats(RANK_DIM, 1);
		g.x = rand_floats(RANK_ROWS * RANK_DIM, 1);
		float *want = conform_alloc(RANK_ROWS * RANK_DIM, 4);
		pthread_barrier_init(&g.barrier, NULL, RANKS);
		for (unsigned i = 0; i < RANKS; i++)
			g.out[i] = conform_alloc(RANK_ROWS * RANK_DIM, 4);
		device_ok(dev, rank_run(&g, dev, NULL, 0, 1, want), "a device that is alone");
		group_run(&g, dev, 0);
		for (unsigned i = 0; i < RANKS; i++)
			EXPECT(g.rc[i] == 0 && !memcmp(g.out[i], want, RANK_ROWS * RANK_DIM * 4), "rank %u returned %d, or other bits than one device", i, g.rc[i]);
		EXPECT(g.meetings == 2 * RANK_RUNS, "%u meetings in %d runs, want two a run", g.meetings, RANK_RUNS);
		group_run(&g, dev, 3);
		for (unsigned i = 0; i < RANKS; i++)
			EXPECT(g.rc[i] < 0, "rank %u goes on without its group", i);
		pthread_barrier_destroy(&g.barrier);
	}
}
