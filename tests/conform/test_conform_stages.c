/* test_conform_stages.c - pipelines of devices: rows pass between stages bit for bit, over all rows
 * and over the tail, in both directions, from groups to groups; and what happens when a stage dies,
 * stops or is late.
 *
 * Every rank of every stage is a process, forked before this one opens a device (as in
 * test_conform_ranks.c). Rows go around: the first stage sends them to the next one, the last one
 * back to the first. */
/* run: threads fast */
#include "tests/conform/conform.h"
#include "tests/conform/links.h"
#include "tests/unit/skip.h"

#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum {
	STAGES = 3,
	RANKS = 2,
	PROCESSES = STAGES * RANKS,
	DIM = 40,
	ROWS = 9,
	VALUES = ROWS * DIM,
	GUARD = 64, /* values behind the rows */
	RUNS = 6,
	PAGE = 4096
};

enum fate { FATE_NONE, FATE_KILLED, FATE_STOPPED, FATE_LATE };

/* How a pipeline runs. */
struct way {
	const char *name;
	unsigned stages, ranks;
	bool downward;       /* from each stage to the one before it */
	bool tail;           /* the tail's rows */
	bool own_memory;     /* only for devices with own_memory */
	const char *setting; /* of the stand-in's environment; NULL: none */
	bool one_device;     /* all stages on device 0 */
	enum fate fate;      /* of stage 1's rank 0, before run 2 */
	const char *want;    /* what the others say; NULL: all runs succeed */
};

/* What the processes leave behind. */
struct left {
	int rc, ran; /* ran: runs whose rows were right */
	bool absent; /* the machine has too few devices, or lacks the variant's instructions */
	double seconds;
	char why[300];
};

struct shared {
	_Alignas(PAGE) uint32_t broken; /* the only word of its page */
	_Alignas(PAGE) uint32_t arrived[STAGES], generation[STAGES];
	struct left left[PROCESSES];
};

struct pipeline {
	struct target *target;
	const struct way *way;
	struct world *w;
	struct shared *sh;
	int link[PROCESSES][PROCESSES]; /* [i][j]: of process i, to process j */
	int data[STAGES][STAGES];       /* of stage i, to stage j: what CPU devices send */
};

struct process {
	struct pipeline *p;
	unsigned stage, rank, run;
};

static unsigned number_of(const struct process *me, unsigned stage, unsigned rank)
{
	return stage * me->p->way->ranks + rank;
}

static double now_s(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static unsigned limit_s(const struct way *way)
{
	return way->fate == FATE_STOPPED || way->fate == FATE_LATE ? 1 : 30;
}

static struct step step_of(unsigned run)
{
	static const struct part parts[] = {{0, 0, ROWS, 3},    {0, 0, 1, 1}, {0, 0, 5, 0},
	                                    {0, 0, ROWS, ROWS}, {0, 0, 2, 1}, {0, 0, 7, 6}};
	return (struct step){.parts = 1, .part = {parts[run % LEN(parts)]}};
}

static uint32_t rows_moved(const struct way *way, unsigned run)
{
	struct step st = step_of(run);
	return way->tail ? st.part[0].tail : st.part[0].rows;
}

/* --- the host's part ----------------------------------------------------- */

static int group_meet(void *arg)
{
	const struct process *me = arg;
	struct shared *sh = me->p->sh;
	uint32_t at = __atomic_load_n(&sh->generation[me->stage], __ATOMIC_ACQUIRE);
	if (__atomic_add_fetch(&sh->arrived[me->stage], 1, __ATOMIC_ACQ_REL) % me->p->way->ranks == 0) {
		__atomic_add_fetch(&sh->generation[me->stage], 1, __ATOMIC_RELEASE);
		return 0;
	}
	double until = now_s() + 2 * limit_s(me->p->way);
	while (__atomic_load_n(&sh->generation[me->stage], __ATOMIC_ACQUIRE) == at) {
		if (__atomic_load_n(&sh->broken, __ATOMIC_ACQUIRE) || now_s() > until)
			return -1;
		usleep(50);
	}
	return 0;
}

static int group_exchange(void *arg, const void *mine, size_t bytes, int fd, void *ret_all,
                          int *ret_fds)
{
	const struct process *me = arg;
	int socket[RANKS];
	for (unsigned r = 0; r < me->p->way->ranks; r++)
		socket[r] = me->p->link[number_of(me, me->stage, me->rank)][number_of(me, me->stage, r)];
	return links_exchange(socket, me->rank, me->p->way->ranks, mine, bytes, fd, ret_all, ret_fds);
}

static int pipe_exchange(void *arg, const void *mine, size_t bytes, void *ret_all)
{
	const struct process *me = arg;
	int socket[STAGES], fds[STAGES];
	for (unsigned s = 0; s < me->p->way->stages; s++)
		socket[s] = me->p->link[number_of(me, me->stage, me->rank)][number_of(me, s, me->rank)];
	return links_exchange(socket, me->stage, me->p->way->stages, mine, bytes, -1, ret_all, fds);
}

static int pipe_move(const struct process *me, unsigned peer, void *data, size_t bytes, short event)
{
	struct pollfd fd = {.fd = me->p->data[me->stage][peer], .events = event};
	if (bytes != rows_moved(me->p->way, me->run) * DIM * sizeof(float))
		return -1;
	for (size_t done = 0; done < bytes;) {
		if (poll(&fd, 1, (int)limit_s(me->p->way) * 1000) <= 0)
			return -1;
		ssize_t n = event == POLLIN
		                ? recv(fd.fd, (char *)data + done, bytes - done, 0)
		                : send(fd.fd, (const char *)data + done, bytes - done, MSG_NOSIGNAL);
		if (n <= 0)
			return -1;
		done += (size_t)n;
	}
	return 0;
}

static int pipe_send(void *arg, unsigned peer, const void *data, size_t bytes)
{
	return pipe_move(arg, peer, (void *)(uintptr_t)data, bytes, POLLOUT);
}

static int pipe_recv(void *arg, unsigned peer, void *ret, size_t bytes)
{
	return pipe_move(arg, peer, ret, bytes, POLLIN);
}

/* --- a process ----------------------------------------------------------- */

/* A stage's memory: what it sends (the first stage has it, the others compute it) and what it
 * receives; of each, rows that it multiplies and rows that it leaves alone. */
struct stage {
	const struct kern_ops *k;
	struct kern_mem own, group, batch;
	struct kern_program *p;
	struct kern_tensor computed, raw, got, got_raw;
};

enum { PIECE = (VALUES + GUARD) * 4 };

/* Every bit pattern, also those of NaN. */
static uint32_t raw_word(unsigned run, uint32_t i)
{
	return (i + 1) * 0x9e3779b9u ^ run * 0x85ebca6bu;
}

static float computed_value(unsigned run, uint32_t i)
{
	return (float)((i * 7 + run * 13) % 101) - 50;
}

static struct kern_op transfer(enum kern_op_kind kind, enum kern_rows rows,
                               const struct kern_tensor *x, unsigned peer)
{
	return (struct kern_op){.kind = kind,
	                        .rows = rows,
	                        .send = {.x = *x, .dim = (uint32_t)x->ld, .peer = peer}};
}

static int stage_new(struct stage *st, const struct process *me, const struct device *dev)
{
	const struct way *way = me->p->way;
	const struct kern_ops *k = st->k = dev->ops;
	enum kern_rows rows = way->tail ? KERN_ROWS_TAIL : KERN_ROWS_ALL;
	unsigned step = way->downward ? way->stages - 1 : 1, next = (me->stage + step) % way->stages,
			 last = (me->stage + way->stages - step) % way->stages;
	struct kern_limits limits = world_limits(me->p->w);
	struct kern_op op[6];
	int rc = k->mem_new(dev->d, KERN_MEM_DEVICE, 3 * PIECE, &st->own);
	rc = rc ? rc : k->mem_new(dev->d, KERN_MEM_GROUP, 2 * PIECE, &st->group);
	rc = rc ? rc : k->mem_new(dev->d, KERN_MEM_PINNED, batch_bytes(me->p->w), &st->batch);
	if (rc)
		return rc;
	struct kern_tensor given = {st->own.dev, DIM, KERN_F32};
	st->computed = (struct kern_tensor){kern_at(st->own.dev, PIECE), DIM, KERN_F32};
	st->got = (struct kern_tensor){st->group.dev, DIM, KERN_F32};
	/* the same bytes, as bfloat16 where devices have it */
	st->raw = (struct kern_tensor){kern_at(st->own.dev, 2 * PIECE), k->own_memory ? 2 * DIM : DIM,
	                               k->own_memory ? KERN_BF16 : KERN_F32};
	st->got_raw = st->raw;
	st->got_raw.at = kern_at(st->group.dev, PIECE);
	struct kern_op scale = op_scale(st->computed.at, me->stage ? st->got.at : given.at, 2, DIM);
	scale.rows = rows;
	/* before a receive, no other rank reads what the last run has received */
	op[0] = (struct kern_op){.kind = KERN_OP_BARRIER};
	unsigned at = me->stage ? 3 : 1, back = me->stage ? 1 : 4;
	op[at] = scale;
	op[at + 1] = transfer(KERN_OP_SEND, rows, &st->computed, next);
	op[at + 2] = transfer(KERN_OP_SEND, rows, me->stage ? &st->got_raw : &st->raw, next);
	op[back] = transfer(KERN_OP_RECV, rows, &st->got, last);
	op[back + 1] = transfer(KERN_OP_RECV, rows, &st->got_raw, last);
	return k->program_new(dev->d, op, LEN(op), &limits, &st->p);
}

static void stage_free(struct stage *st, const struct device *dev)
{
	if (st->p)
		st->k->program_destroy(&st->p);
	st->k->mem_free(dev->d, &st->batch);
	st->k->mem_free(dev->d, &st->group);
	st->k->mem_free(dev->d, &st->own);
}

/* How often a stage's rows have been doubled when it receives them. */
static unsigned doublings(const struct process *me)
{
	unsigned stages = me->p->way->stages;
	if (!me->stage)
		return stages;
	return me->p->way->downward ? stages - me->stage : me->stage;
}

static int stage_run(struct stage *st, const struct process *me, const struct device *dev,
                     unsigned run, char *why, size_t size)
{
	const struct kern_ops *k = st->k;
	struct step step = step_of(run);
	static float computed[VALUES + GUARD], got[VALUES + GUARD];
	static uint32_t raw[VALUES + GUARD], got_raw[VALUES + GUARD];
	for (uint32_t i = 0; i < VALUES; i++)
		computed[i] = computed_value(run, i), raw[i] = raw_word(run, i);
	batch_write(me->p->w, &step, run, NULL, st->batch.host);
	int rc = me->stage ? 0 : k->upload(dev->s, st->own.dev, computed, sizeof computed);
	rc = rc || me->stage ? rc : k->upload(dev->s, st->raw.at, raw, sizeof raw);
	rc = rc ? rc : k->sync(dev->s);
	rc = rc ? rc : k->run(dev->s, st->p, &st->batch);
	int sync = k->sync(dev->s);
	rc = rc ? rc : sync;
	rc = rc ? rc : k->download(dev->s, got, st->got.at, sizeof got);
	rc = rc ? rc : k->download(dev->s, got_raw, st->got_raw.at, sizeof got_raw);
	rc = rc ? rc : k->sync(dev->s);
	if (rc)
		return rc;
	float factor = (float)(1u << doublings(me));
	for (uint32_t i = 0; i < rows_moved(me->p->way, run) * DIM; i++)
		if (got[i] != factor * computed_value(run, i) || got_raw[i] != raw_word(run, i)) {
			snprintf(why, size, "run %u, value %u of %u: got %g and %#x, want %g and %#x", run, i,
			         rows_moved(me->p->way, run) * DIM, (double)got[i], got_raw[i],
			         (double)(factor * computed_value(run, i)), raw_word(run, i));
			return 1;
		}
	for (uint32_t i = VALUES; i < VALUES + GUARD; i++)
		if (got[i] != 0 || got_raw[i]) {
			snprintf(why, size, "run %u: written behind the rows", run);
			return 1;
		}
	return 0;
}

static void fate_comes(enum fate fate)
{
	switch (fate) {
	case FATE_KILLED: raise(SIGKILL); break;
	case FATE_STOPPED: raise(SIGSTOP); break;
	case FATE_LATE: sleep(3); break;
	default: break;
	}
}

/* Operations that no pipeline has. */
static int refuses(struct stage *st, const struct process *me, const struct device *dev, char *why,
                   size_t size)
{
	unsigned me_at = me->stage, stages = me->p->way->stages, peer = me_at ? 0 : 1;
	struct kern_limits limits = world_limits(me->p->w), none = limits;
	none.tail_rows = 0;
	struct {
		struct kern_op op;
		const struct kern_limits *limits;
		const char *want;
	} cases[] = {
		{transfer(KERN_OP_SEND, KERN_ROWS_ALL, &st->computed, me_at), &limits, "expected another"},
		{transfer(KERN_OP_RECV, KERN_ROWS_ALL, &st->got, stages), &limits, "expected another"},
		{transfer(KERN_OP_SEND, KERN_ROWS_TAIL, &st->computed, peer), &none, "over the tail"},
		{transfer(KERN_OP_SEND, KERN_ROWS_ALL, &st->computed, peer), &limits, "expected dense"},
		{transfer(KERN_OP_RECV, KERN_ROWS_ALL, &st->got, peer), &limits, "expected dense"},
		{transfer(KERN_OP_RECV, KERN_ROWS_ALL, &st->got, peer), &limits, "missing"},
	};
	cases[3].op.send.dim--;
	cases[4].op.recv.x.type = KERN_I8;
	cases[5].op.recv.x.at.v = 0;
	for (size_t i = 0; i < LEN(cases); i++) {
		struct kern_program *p = NULL;
		int rc = dev->ops->program_new(dev->d, &cases[i].op, 1, cases[i].limits, &p);
		const char *text = dev->ops->last_error(dev->d);
		if (rc == KERN_EINVAL && !p && strstr(text, cases[i].want) &&
		    strstr(text, kern_op_name(cases[i].op.kind)))
			continue;
		snprintf(why, size, "case %zu of operations to refuse: returned %d (%.200s), want \"%s\"",
		         i, rc, text, cases[i].want);
		return 1;
	}
	return 0;
}

static int process_open(struct process *me, struct device *dev, char *err, size_t errlen)
{
	const struct pipeline *p = me->p;
	const struct way *way = p->way;
	struct kern_config conf = {.variant = p->target->variant[0] ? p->target->variant : NULL,
	                           .threads = 1 + me->rank,
	                           .device_index = way->one_device || !dev->ops->own_memory
	                                               ? 0
	                                               : (int)number_of(me, me->stage, me->rank),
	                           .group = {.rank = me->rank,
	                                     .ranks = way->ranks,
	                                     .meet = group_meet,
	                                     .exchange = group_exchange,
	                                     .broken = &p->sh->broken,
	                                     .limit_s = limit_s(way),
	                                     .arg = me},
	                           .pipe = {.stage = me->stage,
	                                    .stages = way->stages,
	                                    .send = pipe_send,
	                                    .recv = pipe_recv,
	                                    .exchange = pipe_exchange,
	                                    .broken = &p->sh->broken,
	                                    .limit_s = limit_s(way),
	                                    .arg = me}};
	int rc = dev->ops->open(&conf, &dev->d, err, errlen);
	return rc ? rc : dev->ops->stream_new(dev->d, &dev->s);
}

static void process_run(struct process *me)
{
	const struct pipeline *p = me->p;
	struct left *left = &p->sh->left[number_of(me, me->stage, me->rank)];
	struct device dev = {.target = p->target, .ops = p->target->ops};
	struct stage st = {.k = dev.ops};
	char seed[16];
	if (p->way->setting)
		putenv((char *)(uintptr_t)p->way->setting);
	snprintf(seed, sizeof seed, "%u", number_of(me, me->stage, me->rank) + 1);
	setenv("CUDA_HOST_SEED", seed, 1);
	int rc = process_open(me, &dev, left->why, sizeof left->why);
	left->absent = rc &&
	               (strstr(left->why, "this machine has") || strstr(left->why, "machine lacks"));
	rc = rc ? rc : stage_new(&st, me, &dev);
	if (!rc && !p->way->want)
		rc = refuses(&st, me, &dev, left->why, sizeof left->why);
	for (unsigned run = 0; run < RUNS && !rc; run++) {
		if (run == 2 && me->stage == 1 && !me->rank)
			fate_comes(p->way->fate);
		double begun = now_s();
		me->run = run;
		rc = stage_run(&st, me, &dev, run, left->why, sizeof left->why);
		left->seconds = now_s() - begun;
		left->ran += !rc;
	}
	if (rc < 0 && dev.d)
		snprintf(left->why, sizeof left->why, "%s", dev.ops->last_error(dev.d));
	left->rc = rc;
	if (rc && p->way->setting) /* the others have nothing else to notice */
		__atomic_store_n(&p->sh->broken, 1, __ATOMIC_RELEASE);
	if (dev.d)
		stage_free(&st, &dev);
	if (dev.s)
		dev.ops->stream_destroy(&dev.s);
	if (dev.d)
		dev.ops->close(&dev.d);
	_exit(0);
}

/* --- the pipeline -------------------------------------------------------- */

static void connect_all(struct pipeline *p, unsigned processes)
{
	int pair[2];
	for (unsigned i = 0; i < processes; i++)
		for (unsigned j = 0; j < i; j++) {
			link_new(pair);
			p->link[i][j] = pair[0];
			p->link[j][i] = pair[1];
		}
	for (unsigned i = 0; i < p->way->stages; i++)
		for (unsigned j = 0; j < i; j++) {
			EXPECT(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) == 0, "no sockets");
			p->data[i][j] = pair[0];
			p->data[j][i] = pair[1];
		}
}

/* Closes the sockets of all but one process; `but` beyond all: every one. */
static void close_others(const struct pipeline *p, unsigned processes, unsigned but)
{
	unsigned ranks = p->way->ranks;
	for (unsigned i = 0; i < processes; i++)
		for (unsigned j = 0; j < processes && i != but; j++)
			if (i != j)
				close(p->link[i][j]);
	for (unsigned i = 0; i < p->way->stages; i++)
		for (unsigned j = 0; j < p->way->stages && i * ranks != but; j++)
			if (i != j)
				close(p->data[i][j]);
}

static void pipeline_run(struct pipeline *p, const struct way *way)
{
	unsigned processes = way->stages * way->ranks;
	pid_t pid[PROCESSES], gone;
	int status;
	conform_about(0, "%s, %s", p->target->name, way->name);
	memset(p->sh, 0, sizeof *p->sh);
	p->way = way;
	connect_all(p, processes);
	for (unsigned i = 0; i < processes; i++)
		if ((pid[i] = fork()) == 0) {
			close_others(p, processes, i);
			process_run(&(struct process){p, i / way->ranks, i % way->ranks, 0});
		}
	close_others(p, processes, processes);
	pid_t victim = way->fate ? pid[way->ranks] : -1;
	unsigned left = processes;
	bool stopped = way->fate == FATE_STOPPED; /* until it ends, as where no device opens */
	for (; left > stopped && (gone = waitpid(-1, &status, 0)) > 0; left--) {
		stopped &= gone != victim;
		EXPECT(status == 0 || gone == victim, "a process ended with status %#x", (unsigned)status);
		if (status)
			__atomic_store_n(&p->sh->broken, 1, __ATOMIC_RELEASE);
	}
	if (left) {
		kill(victim, SIGKILL);
		waitpid(victim, &status, 0);
	}
}

static void pipeline_new(struct pipeline *p, struct target *t)
{
	static const struct sequence seq[SEQUENCES] = {{0, ROWS}};
	*p = (struct pipeline){.target = t, .w = world_new(seq, 16)};
	p->sh = mmap(NULL, sizeof *p->sh, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	EXPECT(p->sh != MAP_FAILED, "no memory");
}

static const struct way ways[] = {
	{.name = "two stages", .stages = 2, .ranks = 1},
	{.name = "three stages, downward, the tail",
     .stages = 3,
     .ranks = 1,
     .downward = true,
     .tail = true},
	{.name = "two stages of two ranks, the tail", .stages = 2, .ranks = 2, .tail = true},
	{.name = "three stages of two ranks, downward", .stages = 3, .ranks = 2, .downward = true},
	{.name = "three stages of two ranks, in any order",
     .stages = 3,
     .ranks = 2,
     .setting = "CUDA_HOST_DELAY_US=500",
     .own_memory = true},
	{.name = "three stages of two ranks, through host memory",
     .stages = 3,
     .ranks = 2,
     .setting = "CUDA_HOST_PEERS=0",
     .own_memory = true},
	{.name = "a stage is killed", .stages = 3, .ranks = 1, .fate = FATE_KILLED, .want = "broken"},
	{.name = "a rank of a stage is killed",
     .stages = 2,
     .ranks = 2,
     .fate = FATE_KILLED,
     .want = "broken"},
	{.name = "a stage stops", .stages = 3, .ranks = 1, .fate = FATE_STOPPED, .want = ""},
	{.name = "a rank of a stage stops", .stages = 2, .ranks = 2, .fate = FATE_STOPPED, .want = ""},
	{.name = "a stage is late", .stages = 2, .ranks = 1, .fate = FATE_LATE, .want = ""},
	{.name = "stages share a device",
     .stages = 2,
     .ranks = 1,
     .own_memory = true,
     .one_device = true,
     .want = "share the GPU"},
	{.name = "a send fails",
     .stages = 2,
     .ranks = 1,
     .own_memory = true,
     .setting = "CUDA_HOST_FAIL=ncclSend:2",
     .want = "NCCL 2.18: unhandled system error"},
};

static bool has_pipes(const struct target *t)
{
	return !t->absent && t->ops->stages_max >= STAGES && t->activations == KERN_F32;
}

/* What the others say when the victim has met its fate. */
static const char *reason(const struct pipeline *p)
{
	const struct way *way = p->way;
	if (way->fate != FATE_STOPPED && way->fate != FATE_LATE)
		return way->want;
	return p->target->ops->own_memory ? "late or has stopped" : "rows did not pass between";
}

static void expect_run(const struct pipeline *p)
{
	const struct way *way = p->way;
	for (unsigned i = 0; i < way->stages * way->ranks; i++)
		if (p->sh->left[i].absent) {
			SKIP_PART("%s: %s", p->target->name, p->sh->left[i].why);
			return;
		}
	for (unsigned i = 0; i < way->stages * way->ranks; i++) {
		const struct left *l = &p->sh->left[i];
		unsigned stage = i / way->ranks, rank = i % way->ranks;
		if (!way->want) {
			EXPECT(l->rc == 0 && l->ran == RUNS, "stage %u, rank %u: %d, after %d runs: %s", stage,
			       rank, l->rc, l->ran, l->why);
			continue;
		}
		if (way->fate && stage == 1 && !rank)
			continue;
		/* of a group of CPU devices rank 0 alone knows that nothing was received, and it does not
		 * let the others wait */
		if (rank && !p->target->ops->own_memory && !stage) {
			EXPECT(way->fate != FATE_STOPPED || l->rc == 1, "stage 0, rank 1: %d (%s)", l->rc,
			       l->why);
			continue;
		}
		const char *want = stage && way->setting ? "broken" : reason(p);
		/* own collectives of a group name the rank that is missing; in stage 0 that is the one that
		 * waits for the stopped stage, as long as its peer does */
		bool named = way->ranks > 1 && way->fate == FATE_STOPPED && (stage == 1 || rank) &&
		             (strstr(l->why, "did not reach a collective within 1 s") ||
		              strstr(l->why, "the group of ranks is broken"));
		EXPECT(l->rc < 0 && (named || strstr(l->why, want)),
		       "stage %u, rank %u: %d (%s), want \"%s\"", stage, rank, l->rc, l->why, want);
		EXPECT(l->seconds < NOTICED_S, "stage %u noticed after %g s", stage, l->seconds);
	}
}

static void run_ways(bool broken)
{
	bool any = false;
	for (unsigned t = 0; t < conform_target_count; t++)
		for (size_t i = 0; i < LEN(ways) && has_pipes(&conform_targets[t]); i++) {
			struct pipeline p;
			/* the variant fast moves rows with the same calls */
			if (broken != (ways[i].want != NULL) ||
			    (ways[i].own_memory && (!conform_targets[t].ops->own_memory ||
			                            !strcmp(conform_targets[t].variant, "fast"))))
				continue;
			any = true;
			pipeline_new(&p, &conform_targets[t]);
			pipeline_run(&p, &ways[i]);
			expect_run(&p);
			munmap(p.sh, sizeof *p.sh);
		}
	if (!any)
		SKIP_PART("no target has pipelines of %d stages", STAGES);
}

CONFORM_TEST(groups_in_a_pipeline)
{
	run_ways(false);
}

/* Every process that waits says why it ends: soon where the host knows that a stage has died, else
 * when the limit is over. */
CONFORM_TEST(groups_of_a_pipeline_that_breaks)
{
	run_ways(true);
}
