/* test_conform_ranks.c - groups of ranks, each a process: what they gather has the bits of one
 * device, also where a rank has nothing to give; rank 0 tells of progress; and what happens when
 * they no longer meet. And parts of a matrix have the bits of the whole one.
 *
 * The processes are forked before this one opens a device, whose driver or threads they could not
 * use. */
/* run: threads fast */
#include "kernels/numbers.h"
#include "tests/conform/conform.h"
#include "tests/conform/links.h"
#include "tests/unit/skip.h"

#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum {
	RANKS = 3,
	RANK_DIM = 96,
	RANK_ROWS = 9,
	RANK_RUNS = 5,
	RANK_OPS = 9,
	RANK_OPS_MAX,
	TOLD = 4711,
	SAID = 1025,
	PARTS = 2, /* of a row that ranks exchange, each of the rank that has its expert */
	EXPERTS = 7,
	UNIT = 12, /* of columns that a rank has of them: unequal shares */
	SAID_ROOM = 4352
};
enum { RESULTS = RANK_ROWS * RANK_DIM, LINES = RANK_ROWS * PARTS, PAGE = 4096 };

/* The table's rows of a rank begin here. No row of the batch has a token of rank 1. */
static uint32_t first_token(unsigned rank, unsigned ranks)
{
	return kern_share(VOCABULARY, 1, rank, ranks);
}

static uint32_t said_word(uint32_t i)
{
	return 7 + 3 * i;
}

static uint32_t chosen_expert(uint32_t line)
{
	return (3 * line + line / 5) % EXPERTS;
}

static float exchanged(uint32_t line, uint32_t column)
{
	return (float)(line * RANK_DIM + column) + 0.25f;
}

/* How a group runs. */
struct way {
	const char *name;
	bool own_memory;          /* only for devices with own_memory */
	const char *setting[2];   /* of the stand-in's environment; NULL: none */
	bool one_device;          /* all ranks on device 0 */
	unsigned broken_at;       /* the meeting at which the group breaks; 0: never */
	unsigned missing, left_s; /* rank `missing` makes no run, if not 0; limit_s */
	bool told;                /* somebody notices that it is missing, and says so */
	bool keeps;               /* draws, of which no broadcast follows */
	bool adds;                /* KERN_OP_REDUCE alone, see adds_run */
	bool meets;               /* a barrier comes first */
	bool hangs;               /* work of the devices does not end */
	const char *want;         /* the reason, where it may add; NULL: none */
};

/* What the processes leave behind. */
struct left {
	unsigned meetings, cannot_add; /* cannot_add: the devices do not reduce */
	float out[RANKS][RESULTS];
	int rc[RANKS];
	double seconds[RANKS]; /* that the failed run took */
	bool lost[RANKS];      /* and then the device */
	char why[RANKS][200];
	struct heard {
		uint64_t word;       /* of progress, at the end */
		uint32_t said[SAID]; /* what rank 0 has broadcast */
		float exchanged[LINES * RANK_DIM];
	} heard[RANKS];
};

/* What they share. */
struct shared {
	_Alignas(PAGE) uint32_t broken; /* the only word of its page */
	_Alignas(PAGE) pthread_barrier_t barrier;
	struct left left;
};

struct group {
	struct target *target;
	const struct way *way;
	struct world *w;
	struct schedule s;
	float *table, *weight, *w_norm;
	struct shared *sh;
	int socket[RANKS][RANKS]; /* [i][j]: of rank i, to rank j */
};

struct rank {
	struct group *g;
	unsigned rank;
};

static double now_s(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int rank_meet(void *arg)
{
	struct shared *sh = ((struct rank *)arg)->g->sh;
	unsigned at = ((struct rank *)arg)->g->way->broken_at;
	if (pthread_barrier_wait(&sh->barrier) == PTHREAD_BARRIER_SERIAL_THREAD)
		sh->left.meetings++;
	pthread_barrier_wait(&sh->barrier);
	return at && sh->left.meetings >= at ? -1 : 0;
}

static int rank_exchange(void *arg, const void *mine, size_t bytes, int fd, void *ret_all,
                         int *ret_fds)
{
	const struct rank *r = arg;
	return links_exchange(r->g->socket[r->rank], r->rank, RANKS, mine, bytes, fd, ret_all, ret_fds);
}

/* A rank's device: its part of the table and of the columns, memory of its own, and GROUP memory:
 * rows of embeddings and of products. */
struct part_of_group {
	const struct kern_ops *k;
	struct kern_mem own, group, board, batch[2]; /* with and without progress */
	struct kern_weight *table, *w;
	struct kern_program *p;
};

static size_t rows_bytes(const struct group *g)
{
	return world_limits(g->w).rows * RANK_DIM * sizeof(float);
}

/* Where the parts are that ranks exchange, in GROUP memory; in a rank's own memory the ids of their
 * experts, and what the rank has of them afterwards. */
static size_t parts_at(size_t bytes)
{
	return 2 * bytes + SAID_ROOM;
}

/* Rows of the table are gathered, then the columns of a product, with the parts that ranks
 * exchange; the norm of a whole row follows. */
static void rank_ops(struct kern_op *op, const struct part_of_group *p, size_t bytes,
                     uint32_t column, uint32_t first)
{
	kern_ptr group = p->group.dev;
	struct kern_tensor h = {group, RANK_DIM, KERN_F32},
					   y = {kern_at(group, bytes), RANK_DIM, KERN_F32},
					   parts = {kern_at(group, parts_at(bytes)), RANK_DIM, KERN_F32};
	memset(op, 0, RANK_OPS * sizeof *op);
	op[0].kind = KERN_OP_EMBED;
	op[0].embed.y = h;
	op[0].embed.w = p->table;
	op[0].embed.first = first;
	op[1].kind = op[3].kind = KERN_OP_GATHER;
	op[1].gather.tensors = 1;
	op[3].gather.tensors = 2;
	op[1].gather.t[0] = (struct kern_gathered){h, 1, RANK_DIM, 1, VOCABULARY, {0}};
	op[3].gather.t[0] = (struct kern_gathered){y, 1, RANK_DIM, RANK_DIM / RANKS, 0, {0}};
	op[3].gather.t[1] = (struct kern_gathered){parts, PARTS,   RANK_DIM,
	                                           UNIT,  EXPERTS, kern_at(p->own.dev, 2 * bytes)};
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
	op[6].kind = KERN_OP_BROADCAST;
	op[6].broadcast.at = kern_at(group, 2 * bytes);
	op[6].broadcast.bytes = sizeof(uint32_t[SAID]);
	op[7].kind = KERN_OP_SCALE;
	op[7].scale.x = (struct kern_tensor){parts.at, PARTS * RANK_DIM, KERN_F32};
	op[7].scale.y = (struct kern_tensor){kern_at(p->own.dev, 3 * bytes), PARTS * RANK_DIM,
	                                     KERN_F32};
	op[7].scale.factor = 1;
	op[7].scale.dim = PARTS * RANK_DIM;
	op[8].kind = KERN_OP_BARRIER; /* before the next run writes */
}

/* The lines of this rank's experts, and the ids of all. */
static int parts_put(const struct part_of_group *p, const struct device *dev, size_t bytes,
                     unsigned rank, unsigned ranks)
{
	uint32_t ids[LINES], first = kern_share(EXPERTS, 1, rank, ranks),
						 end = kern_share(EXPERTS, 1, rank + 1, ranks);
	float line[RANK_DIM];
	for (uint32_t i = 0; i < LINES; i++)
		ids[i] = chosen_expert(i);
	int rc = p->k->upload(dev->s, kern_at(p->own.dev, 2 * bytes), ids, sizeof ids);
	rc = rc ? rc : p->k->sync(dev->s);
	for (uint32_t i = 0; i < LINES && !rc; i++) {
		for (uint32_t c = 0; c < RANK_DIM; c++)
			line[c] = exchanged(i, c);
		if (ids[i] < first || ids[i] >= end)
			continue;
		rc = p->k->upload(dev->s, kern_at(p->group.dev, parts_at(bytes) + i * sizeof line), line,
		                  sizeof line);
		rc = rc ? rc : p->k->sync(dev->s);
	}
	return rc;
}

static int part_new(struct part_of_group *p, const struct group *g, const struct device *dev,
                    unsigned rank, unsigned ranks)
{
	const struct kern_ops *k = p->k = dev->ops;
	uint32_t n = RANK_DIM / ranks, first = first_token(rank, ranks),
			 end = first_token(rank + 1, ranks);
	struct kern_limits limits = world_limits(g->w);
	bool keeps = ranks > 1 && g->way->keeps;
	limits.vocab = keeps ? RANK_DIM : limits.vocab;
	struct kern_op op[RANK_OPS_MAX];
	size_t bytes = rows_bytes(g);
	int rc = k->mem_new(dev->d, KERN_MEM_DEVICE, (3 + PARTS) * bytes, &p->own);
	rc = rc ? rc : k->mem_new(dev->d, KERN_MEM_GROUP, parts_at(bytes) + PARTS * bytes, &p->group);
	rc = rc ? rc : k->mem_new(dev->d, KERN_MEM_SHARED, sizeof(uint64_t), &p->board);
	for (int i = 0; i < 2; i++) {
		rc = rc ? rc : k->mem_new(dev->d, KERN_MEM_PINNED, batch_bytes(g->w), &p->batch[i]);
		if (!rc)
			batch_write(g->w, &g->s.step[0], (uint32_t)i,
			            i ? NULL : &(struct kern_progress){p->board.dev, TOLD, 1},
			            p->batch[i].host);
	}
	if (rc)
		return rc;
	p->w = weight_get(dev, KERN_F32, 1, n, RANK_DIM, g->weight + (size_t)rank * n * RANK_DIM);
	p->table = weight_get(dev, KERN_F32, 1, end - first, RANK_DIM,
	                      g->table + (size_t)first * RANK_DIM);
	rc = rc ? rc : k->upload(dev->s, kern_at(p->own.dev, bytes), g->w_norm, RANK_DIM * 4);
	/* only rank 0 has what it will say */
	uint32_t said[SAID];
	for (uint32_t i = 0; i < SAID; i++)
		said[i] = said_word(i);
	if (!rc && !rank)
		rc = k->upload(dev->s, kern_at(p->group.dev, 2 * bytes), said, sizeof said);
	rc = rc ? rc : k->sync(dev->s);
	rc = rc ? rc : parts_put(p, dev, bytes, rank, ranks);
	if (rc)
		return rc;
	rank_ops(op, p, bytes, rank * n, first);
	if (keeps) /* not what follows the draws, if it is of something else */
		op[RANK_OPS] = op[6], op[6] = (struct kern_op){.kind = KERN_OP_SAMPLE,
		                                               .rows = KERN_ROWS_TAIL,
		                                               .sample = {{p->own.dev, RANK_DIM, KERN_F32},
		                                                          p->own.dev,
		                                                          p->group.dev}};
	return k->program_new(dev->d, op, RANK_OPS + keeps, &limits, &p->p);
}

/* Returns what the last run did. */
static int part_runs(const struct part_of_group *p, const struct device *dev)
{
	int rc = 0;
	for (int i = 0; i < RANK_RUNS && !rc; i++) {
		rc = p->k->run(dev->s, p->p, &p->batch[i == RANK_RUNS - 1]);
		int sync = p->k->sync(dev->s);
		rc = rc ? rc : sync;
	}
	return rc;
}

/* Runs on a device of its own. Returns what the last run did. */
static int rank_run(const struct group *g, const struct device *dev, unsigned rank, unsigned ranks,
                    float *out, struct heard *ret_heard)
{
	struct part_of_group p = {0};
	int rc = part_new(&p, g, dev, rank, ranks);
	rc = rc ? rc : part_runs(&p, dev);
	rc = rc ? rc : p.k->download(dev->s, out, p.own.dev, RESULTS * 4);
	rc = rc ? rc : p.k->download(dev->s, &ret_heard->word, p.board.dev, sizeof ret_heard->word);
	rc = rc ? rc
	        : p.k->download(dev->s, ret_heard->said, kern_at(p.group.dev, 2 * rows_bytes(g)),
	                        sizeof ret_heard->said);
	rc = rc ? rc
	        : p.k->download(dev->s, ret_heard->exchanged, kern_at(p.own.dev, 3 * rows_bytes(g)),
	                        sizeof ret_heard->exchanged);
	rc = rc ? rc : p.k->sync(dev->s);
	if (p.p)
		p.k->program_destroy(&p.p);
	p.k->weight_destroy(dev->d, &p.w);
	p.k->weight_destroy(dev->d, &p.table);
	for (int i = 0; i < 2; i++)
		p.k->mem_free(dev->d, &p.batch[i]);
	p.k->mem_free(dev->d, &p.board);
	p.k->mem_free(dev->d, &p.group);
	p.k->mem_free(dev->d, &p.own);
	return rc;
}

/* --- sums over the ranks ------------------------------------------------- */

/* What a rank adds: small integers, so that every order of additions gives the same. */
static float addend(unsigned rank, uint32_t run, uint32_t i)
{
	return (float)((7 * i + 3 * rank + 5 * run) % 31) - 9;
}

static float total(uint32_t run, uint32_t i)
{
	float sum = 0;
	for (unsigned r = 0; r < RANKS; r++)
		sum += addend(r, run, i);
	return sum;
}

static int adds_once(const struct device *dev, struct kern_program *p, const struct kern_mem *batch,
                     const struct kern_mem *own, size_t bytes, unsigned rank, uint32_t run,
                     char *why, size_t size)
{
	const struct kern_ops *k = dev->ops;
	float x[RESULTS];
	uint16_t y[RESULTS];
	for (uint32_t i = 0; i < RESULTS; i++)
		x[i] = addend(rank, run, i), y[i] = kern_f32_to_bf16(x[i]);
	int rc = k->upload(dev->s, own->dev, x, sizeof x);
	rc = rc ? rc : k->upload(dev->s, kern_at(own->dev, bytes), y, sizeof y);
	rc = rc ? rc : k->sync(dev->s); /* x and y may be read until then */
	rc = rc ? rc : k->run(dev->s, p, batch);
	int sync = k->sync(dev->s);
	rc = rc ? rc : sync;
	rc = rc ? rc : k->download(dev->s, x, own->dev, sizeof x);
	rc = rc ? rc : k->download(dev->s, y, kern_at(own->dev, bytes), sizeof y);
	rc = rc ? rc : k->sync(dev->s);
	for (uint32_t i = 0; i < RESULTS && !rc; i++)
		if (x[i] != total(run, i) || kern_bf16_to_f32(y[i]) != total(run, i)) {
			snprintf(why, size, "run %u: value %u is %g and %g, want %g", run, i, (double)x[i],
			         (double)kern_bf16_to_f32(y[i]), (double)total(run, i));
			rc = 1;
		}
	return rc;
}

/* A barrier needs GROUP memory, which all ranks make. */
static int meeting_new(const struct group *g, const struct device *dev, struct kern_mem *ret)
{
	return g->way->meets ? dev->ops->mem_new(dev->d, KERN_MEM_GROUP, 64, ret) : 0;
}

/* Adds rows of float32, then of bfloat16, a few times. */
static int adds_run(const struct group *g, const struct device *dev, unsigned rank, char *why,
                    size_t size)
{
	const struct kern_ops *k = dev->ops;
	struct kern_limits limits = world_limits(g->w);
	struct kern_mem own = {0}, batch = {0}, meeting = {0};
	struct kern_program *p = NULL;
	struct kern_op op[] = {{.kind = KERN_OP_BARRIER},
	                       {.kind = KERN_OP_REDUCE},
	                       {.kind = KERN_OP_REDUCE}};
	unsigned first = g->way->meets ? 0 : 1;
	size_t bytes = rows_bytes(g);
	int rc = k->mem_new(dev->d, KERN_MEM_DEVICE, 2 * bytes, &own);
	rc = rc ? rc : k->mem_new(dev->d, KERN_MEM_PINNED, batch_bytes(g->w), &batch);
	if (!rc)
		batch_write(g->w, &g->s.step[0], 0, NULL, batch.host);
	op[1].reduce.x = (struct kern_tensor){own.dev, RANK_DIM, KERN_F32};
	op[2].reduce.x = (struct kern_tensor){kern_at(own.dev, bytes), RANK_DIM, KERN_BF16};
	op[1].reduce.dim = op[2].reduce.dim = RANK_DIM;
	rc = rc ? rc : meeting_new(g, dev, &meeting);
	rc = rc ? rc : k->program_new(dev->d, op + first, LEN(op) - first, &limits, &p);
	for (uint32_t run = 0; run < RANK_RUNS && !rc; run++)
		rc = adds_once(dev, p, &batch, &own, bytes, rank, run, why, size);
	if (p)
		k->program_destroy(&p);
	k->mem_free(dev->d, &meeting);
	k->mem_free(dev->d, &batch);
	k->mem_free(dev->d, &own);
	return rc;
}

/* --- processes ----------------------------------------------------------- */

/* On a device of the rank's own, if the machine has so many. */
static int rank_open(struct rank *r, struct device *dev, char *err, size_t errlen)
{
	const struct way *way = r->g->way;
	struct kern_config conf = {.variant = r->g->target->variant[0] ? r->g->target->variant : NULL,
	                           .threads = 1 + r->rank % 2,
	                           .device_index = way->one_device || !dev->ops->own_memory
	                                               ? 0
	                                               : (int)r->rank,
	                           .group = {.rank = r->rank,
	                                     .ranks = RANKS,
	                                     .meet = rank_meet,
	                                     .exchange = rank_exchange,
	                                     .broken = &r->g->sh->broken,
	                                     .limit_s = way->left_s ? way->left_s : 60,
	                                     .arg = r}};
	int rc = dev->ops->open(&conf, &dev->d, err, errlen);
	if (rc && conf.device_index) {
		conf.device_index = 0;
		rc = dev->ops->open(&conf, &dev->d, err, errlen);
	}
	return rc ? rc : dev->ops->stream_new(dev->d, &dev->s);
}

static void rank_process(struct rank *r)
{
	struct group *g = r->g;
	struct shared *sh = g->sh;
	struct device dev = {.target = g->target, .ops = g->target->ops};
	char delay[16];
	for (size_t i = 0; i < LEN(g->way->setting) && g->way->setting[i]; i++)
		putenv((char *)(uintptr_t)g->way->setting[i]);
	snprintf(delay, sizeof delay, "%u", r->rank + 1);
	setenv("CUDA_HOST_SEED", delay, 1);
	int rc = rank_open(r, &dev, sh->left.why[r->rank], sizeof sh->left.why[0]);
	if (!rc && g->way->missing && r->rank == g->way->missing) {
		struct part_of_group p = {0};
		struct kern_mem meeting;
		rc = g->way->adds ? meeting_new(g, &dev, &meeting) : part_new(&p, g, &dev, r->rank, RANKS);
		sleep(g->way->told ? 1 : 2 * g->way->left_s);
		__atomic_store_n(&sh->broken, 1, __ATOMIC_RELEASE);
		_exit(rc != 0);
	}
	double begun = now_s();
	char *why = sh->left.why[r->rank];
	if (!rc && g->way->adds && (!dev.ops->reduces || !dev.ops->reduces(dev.d)))
		sh->left.cannot_add = 1;
	rc = rc ? rc
	     : g->way->adds
	         ? adds_run(g, &dev, r->rank, why, sizeof sh->left.why[0])
	         : rank_run(g, &dev, r->rank, RANKS, sh->left.out[r->rank], &sh->left.heard[r->rank]);
	sh->left.seconds[r->rank] = now_s() - begun;
	sh->left.rc[r->rank] = rc;
	if (rc < 0 && dev.d) {
		struct kern_mem more = {0};
		snprintf(sh->left.why[r->rank], sizeof sh->left.why[0], "%s", dev.ops->last_error(dev.d));
		sh->left.lost[r->rank] = dev.ops->mem_new(dev.d, KERN_MEM_DEVICE, 64, &more) == KERN_ELOST;
		dev.ops->mem_free(dev.d, &more);
	}
	if (dev.s)
		dev.ops->stream_destroy(&dev.s);
	if (dev.d)
		dev.ops->close(&dev.d);
	_exit(0);
}

/* Connects the ranks with each other. */
static void sockets_new(struct group *g)
{
	int pair[2];
	for (unsigned i = 0; i < RANKS; i++)
		for (unsigned j = 0; j < i; j++) {
			link_new(pair);
			g->socket[i][j] = pair[0];
			g->socket[j][i] = pair[1];
		}
}

static void group_run(struct group *g, const struct way *way)
{
	pid_t pid[RANKS];
	pthread_barrierattr_t attr;
	conform_about(0, "%s, %s", g->target->name, way->name);
	memset(g->sh, 0, sizeof *g->sh);
	pthread_barrierattr_init(&attr);
	pthread_barrierattr_setpshared(&attr, PTHREAD_PROCESS_SHARED);
	pthread_barrier_init(&g->sh->barrier, &attr, RANKS);
	g->way = way;
	sockets_new(g);
	for (unsigned i = 0; i < RANKS; i++)
		if ((pid[i] = fork()) == 0)
			rank_process(&(struct rank){g, i});
	for (unsigned i = 0; i < RANKS; i++) {
		int status = -1;
		for (unsigned j = 0; j < RANKS; j++)
			if (i != j)
				close(g->socket[i][j]);
		EXPECT(waitpid(pid[i], &status, 0) == pid[i] && status == 0,
		       "rank %u ended with status %#x", i, (unsigned)status);
	}
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
	g->sh = mmap(NULL, sizeof *g->sh, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	EXPECT(g->sh != MAP_FAILED, "no memory");
}

static const struct way ways[] = {
	{.name = "as it comes"},
	{.name = "in any order", .setting = {"CUDA_HOST_DELAY_US=500"}, .own_memory = true},
	{.name = "on one device", .one_device = true, .own_memory = true},
	{.name = "through host memory", .setting = {"CUDA_HOST_PEERS=0"}, .own_memory = true},
	{.name = "through host memory, asked for",
     .setting = {"PDSERVE_CUDA_PEERS=0"},
     .own_memory = true},
	{.name = "where writes to other devices are lost",
     .setting = {"CUDA_HOST_PEER_WRITES=0"},
     .own_memory = true},
	{.name = "where reads are lost as well",
     .setting = {"CUDA_HOST_PEER_READS=0"},
     .own_memory = true},
	{.name = "through host memory, in any order",
     .setting = {"CUDA_HOST_PEERS=0", "CUDA_HOST_DELAY_US=500"},
     .own_memory = true},
};

/* What the ranks of a group computed, in each way; before this process has a device. */
struct computed {
	struct group g;
	struct left got[LEN(ways)];
	bool ran[LEN(ways)];
};

static bool has_groups(const struct target *t)
{
	return !t->absent && t->ops->ranks_max >= RANKS && t->activations == KERN_F32;
}

/* A rank's columns of every part. */
static void expect_exchanged(const struct heard *heard, unsigned rank, unsigned ranks)
{
	for (uint32_t i = 0; i < LINES; i++)
		for (uint32_t c = kern_share(RANK_DIM, UNIT, rank, ranks);
		     c < kern_share(RANK_DIM, UNIT, rank + 1, ranks); c++)
			EXPECT(heard->exchanged[i * RANK_DIM + c] == exchanged(i, c),
			       "rank %u has %g in part %u of expert %u, column %u, want %g", rank,
			       (double)heard->exchanged[i * RANK_DIM + c], i, chosen_expert(i), c,
			       (double)exchanged(i, c));
}

static void expect_group(const struct computed *c, const float *want)
{
	for (size_t i = 0; i < LEN(ways); i++) {
		const struct left *got = &c->got[i];
		conform_about(1, "%s", ways[i].name);
		for (unsigned r = 0; r < RANKS && c->ran[i]; r++) {
			EXPECT(got->rc[r] == 0 && !memcmp(got->out[r], want, RESULTS * sizeof(float)),
			       "rank %u returned %d (%s), or other bits than one device", r, got->rc[r],
			       got->why[r]);
			EXPECT(got->heard[r].word == (r ? 0 : TOLD), "rank %u told %llu", r,
			       (unsigned long long)got->heard[r].word);
			for (uint32_t k = 0; k < SAID; k++)
				EXPECT(got->heard[r].said[k] == said_word(k), "rank %u has heard %u as word %u", r,
				       got->heard[r].said[k], k);
			expect_exchanged(&got->heard[r], r, RANKS);
		}
		EXPECT(!c->ran[i] || c->g.target->ops->own_memory || got->meetings == 5 * RANK_RUNS - 1,
		       "%u meetings in %d runs, want one for each collective and for progress, which "
		       "the last run does not tell",
		       got->meetings, RANK_RUNS);
	}
}

CONFORM_TEST(groups_of_ranks)
{
	struct computed *c = conform_alloc(conform_target_count, sizeof *c);
	for (unsigned t = 0; t < conform_target_count; t++)
		for (size_t i = 0; i < LEN(ways) && has_groups(&conform_targets[t]); i++) {
			if (i == 0)
				group_new(&c[t].g, &conform_targets[t]);
			/* the variant fast gathers with the same kernels */
			if (ways[i].own_memory && (!conform_targets[t].ops->own_memory ||
			                           !strcmp(conform_targets[t].variant, "fast")))
				continue;
			group_run(&c[t].g, &ways[i]);
			c[t].got[i] = c[t].g.sh->left;
			c[t].ran[i] = true;
		}
	EACH_TARGET(dev, 2)
	{
		struct heard alone;
		if (!has_groups(dev->target)) {
			SKIP_PART("%s: no groups of %d ranks", dev->target->name, RANKS);
			continue;
		}
		float *want = conform_alloc(RESULTS, sizeof *want);
		device_ok(dev, rank_run(&c[t_].g, dev, 0, 1, want, &alone), "a device that is alone");
		EXPECT(alone.word == TOLD, "a device that is alone told %llu, want %d",
		       (unsigned long long)alone.word, TOLD);
		expect_exchanged(&alone, 0, 1);
		expect_group(&c[t_], want);
	}
}

/* A group that no longer meets: every rank says so, soon. */
CONFORM_TEST(groups_that_break)
{
	static const struct way broken[] = {
		{.name = "meetings fail", .broken_at = 6},
		{.name = "a rank is missing", .own_memory = true, .missing = 1, .told = true},
		{.name = "a rank is missing, through host memory",
	     .setting = {"CUDA_HOST_PEERS=0"},
	     .own_memory = true,
	     .missing = 2,
	     .told = true},
		{.name = "a rank is late", .own_memory = true, .missing = 2, .left_s = 1},
	};
	for (unsigned t = 0; t < conform_target_count; t++)
		for (size_t i = 0; i < LEN(broken) && has_groups(&conform_targets[t]); i++) {
			const struct way *way = &broken[i];
			struct group g;
			if (way->own_memory != (conform_targets[t].ops->own_memory != 0) ||
			    !strcmp(conform_targets[t].variant, "fast"))
				continue;
			group_new(&g, &conform_targets[t]);
			group_run(&g, way);
			for (unsigned r = 0; r < RANKS; r++) {
				if (way->missing && r == way->missing)
					continue;
				EXPECT(g.sh->left.rc[r] < 0, "rank %u goes on without its group", r);
				EXPECT(g.sh->left.seconds[r] < NOTICED_S, "rank %u noticed after %g s", r,
				       g.sh->left.seconds[r]);
				const char *why = way->left_s ? "rank 2 did not reach a collective within 1 s"
				                  : way->told ? "the group of ranks is broken"
				                              : "";
				EXPECT(strstr(g.sh->left.why[r], why), "rank %u says \"%s\", want \"%s\"", r,
				       g.sh->left.why[r], why);
			}
		}
}

/* What each rank has, added up; where a device cannot, it says so. A rank that is missing, an error
 * of a communicator, or a sum that never ends, ends the wait with the reason. Only a device whose
 * work does not end is lost: its own collectives end with the communicator. */
CONFORM_TEST(groups_that_add)
{
	static const struct way adding[] = {
		{.name = "sums, as it comes", .adds = true},
		{.name = "sums, in any order", .setting = {"CUDA_HOST_DELAY_US=500"}, .adds = true},
		{.name = "sums on one device", .one_device = true, .adds = true},
		{.name = "sums without a rank",
	     .missing = 1,
	     .told = true,
	     .adds = true,
	     .want = "the group of ranks is broken"},
		{.name = "sums with a late rank",
	     .missing = 2,
	     .left_s = 1,
	     .adds = true,
	     .want = "a rank is late or has stopped"},
		{.name = "sums after a barrier with a late rank",
	     .missing = 2,
	     .left_s = 1,
	     .adds = true,
	     .meets = true,
	     .want = "rank 2 did not reach a collective within 1 s"},
		{.name = "sums that fail",
	     .setting = {"CUDA_HOST_FAIL=ncclAllReduce:2"},
	     .adds = true,
	     .want = "NCCL 2.18: unhandled system error"},
		{.name = "sums that never end",
	     .setting = {"CUDA_HOST_FAIL=hang_nccl_all_reduce:2"},
	     .left_s = 1,
	     .adds = true,
	     .hangs = true,
	     .want = "a rank is late or has stopped"},
		{.name = "an error of NCCL in another collective",
	     .setting = {"CUDA_HOST_FAIL=ncclCommGetAsyncError:2000"},
	     .missing = 2,
	     .left_s = 5,
	     .want = "NCCL 2.18: remote process exited"},
	};
	for (unsigned t = 0; t < conform_target_count; t++)
		for (size_t i = 0; i < LEN(adding) && has_groups(&conform_targets[t]); i++) {
			const struct target *target = &conform_targets[t];
			const struct way *way = &adding[i];
			bool can = !strcmp(target->backend, "cuda") && !strcmp(target->variant, "fast") &&
			           !way->one_device;
			struct group g;
			if (!can && i && !way->one_device)
				continue;
			group_new(&g, &conform_targets[t]);
			group_run(&g, way);
			if (g.sh->left.rc[0] == KERN_ENOTSUP && strstr(g.sh->left.why[0], "machine lacks")) {
				SKIP_PART("%s: %s", target->name, g.sh->left.why[0]);
				break;
			}
			EXPECT(g.sh->left.cannot_add == !can, "whether the devices reduce: want %d", can);
			const char *want = can ? way->want : "sums ";
			for (unsigned r = 0; r < RANKS; r++) {
				if (way->missing && r == way->missing)
					continue;
				const char *why = g.sh->left.why[r];
				EXPECT(want ? g.sh->left.rc[r] < 0 && strstr(why, want) : g.sh->left.rc[r] == 0,
				       "rank %u returned %d (%s), want %s", r, g.sh->left.rc[r], why,
				       want ? want : "0");
				EXPECT(g.sh->left.seconds[r] < NOTICED_S, "rank %u noticed after %g s", r,
				       g.sh->left.seconds[r]);
				EXPECT(g.sh->left.lost[r] == way->hangs, "rank %u: lost %d, want %d", r,
				       g.sh->left.lost[r], way->hangs);
			}
		}
}

/* Only one rank draws: the others would not know what was drawn. */
CONFORM_TEST(groups_broadcast_the_draws_that_they_keep)
{
	static const struct way way = {.name = "keeping draws", .keeps = true};
	static const char want[] = "draws are kept in a group of 3 ranks, of which one draws: a "
							   "broadcast of them must follow the sample operation";
	struct left *got = conform_alloc(conform_target_count, sizeof *got);
	for (unsigned t = 0; t < conform_target_count; t++)
		if (has_groups(&conform_targets[t])) {
			struct group g;
			group_new(&g, &conform_targets[t]);
			group_run(&g, &way);
			got[t] = g.sh->left;
		}
	EACH_TARGET(dev, 1)
	for (unsigned r = 0; r < RANKS && has_groups(dev->target); r++)
		EXPECT(got[t_].rc[r] == KERN_EINVAL && strstr(got[t_].why[r], want),
		       "rank %u returned %d and says \"%s\", want \"%s\"", r, got[t_].rc[r], got[t_].why[r],
		       want);
}

/* --- parts of a matrix --------------------------------------------------- */

enum { WHOLE_N = 8224, PART_N = 64, PART_K = 2048 };

static void multiply(const struct device *dev, struct world *w, const struct kern_mem *batch,
                     const uint16_t *data, const float *x, uint32_t first, uint32_t n, float *y)
{
	struct kern_mem mem = mem_get(dev, KERN_MEM_DEVICE, RANK_ROWS * (PART_K + WHOLE_N) * 4);
	struct kern_limits limits = world_limits(w);
	struct kern_op op = {.kind = KERN_OP_MATMUL};
	struct kern_weight *m;
	struct kern_program *p;
	kern_ptr out = kern_at(mem.dev, RANK_ROWS * PART_K * 4);
	m = weight_get(dev, KERN_BF16, 1, n, PART_K, data + (size_t)first * PART_K);
	if (n != WHOLE_N && dev->ops->weight_part_of)
		dev->ops->weight_part_of(m, WHOLE_N);
	op.matmul.x = (struct kern_tensor){mem.dev, PART_K, KERN_F32};
	op.matmul.products = 1;
	op.matmul.p[0] = (struct kern_product){m, {0}, {out, n, KERN_F32}};
	mem_put(dev, mem.dev, x, PART_K * sizeof *x);
	device_ok(dev, dev->ops->program_new(dev->d, &op, 1, &limits, &p), "program_new");
	device_ok(dev, dev->ops->run(dev->s, p, batch), "run");
	mem_take(dev, y, out, n * sizeof *y);
	dev->ops->program_destroy(&p);
	dev->ops->weight_destroy(dev->d, &m);
	dev->ops->mem_free(dev->d, &mem);
}

CONFORM_TEST(parts_of_a_matrix)
{
	static const struct sequence seq[SEQUENCES] = {{0, 1}};
	struct world *w = world_new(seq, 16);
	struct schedule s = schedule_make(w, ORDER_WHOLE, 0, false);
	uint16_t *data = conform_alloc((size_t)WHOLE_N * PART_K, sizeof *data);
	float *x = rand_floats(PART_K, 1), *y = conform_alloc(2 * WHOLE_N, sizeof *y);
	for (size_t i = 0; i < (size_t)WHOLE_N * PART_K; i++)
		data[i] = (uint16_t)(rand_bits() & 0x80ff) | 0x3c00;
	EACH_TARGET(dev, 2)
	{
		if (dev->target->precision.rows_vary)
			continue;
		struct kern_mem batch = mem_get(dev, KERN_MEM_PINNED, batch_bytes(w));
		batch_write(w, &s.step[0], 0, NULL, batch.host);
		multiply(dev, w, &batch, data, x, 0, WHOLE_N, y);
		multiply(dev, w, &batch, data, x, PART_N, PART_N, y + WHOLE_N);
		EXPECT(!memcmp(y + PART_N, y + WHOLE_N, PART_N * sizeof *y),
		       "%d rows of %d: other bits than in the whole matrix", PART_N, WHOLE_N);
		dev->ops->mem_free(dev->d, &batch);
	}
}
