/* test_storage_disk_kill.c - kill -9 of a process that writes to the disk tier, at any point:
 * everything that was acknowledged is there and right, and nothing wrong is ever served. 20 kills;
 * 200 with PD_FULL=1.
 *
 * The writer is a child process. It notes each acknowledgement in shared memory, so what it was
 * told survives it. The kill comes at a random time, also while the tier is being opened. Three
 * kinds of lives take turns: with room for all (then everything must be there), with room for a
 * few (then the last ones must be there, of all others nothing wrong), and one that also
 * flushes, removes, resizes and uses other sizes (then nothing wrong). */
#include "tests/unit/disk_rig.h"

#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/wait.h>

#define ACKS_MAX 65536u
#define OUTSTANDING 24
#define NAMES_MAX 1500u /* of one life */
#define LAST_KEPT 8u    /* with room for 64 of them */

enum kind { ROOM_FOR_ALL, ROOM_FOR_FEW, EVERYTHING_AT_ONCE, KINDS };

struct shared {
	atomic_uint acks, opened, wrong, reads;
	unsigned ack[ACKS_MAX];
};

static struct shared *shared;

/* A name says its size, and kinds and lives have names of their own. */
static unsigned name_of(enum kind kind, unsigned life, unsigned i)
{
	return (unsigned)kind << 28 | life << 16 | i;
}

static size_t bytes_of(unsigned name)
{
	static const size_t size[] = {16 * KIB, 16 * KIB, 5000, 64 * KIB, 200 * KIB};
	enum kind kind = (enum kind)(name >> 28);
	return kind == EVERYTHING_AT_ONCE ? size[name % 5] : 16 * KIB;
}

static struct tier_disk_opts opts_of(enum kind kind, unsigned life)
{
	struct tier_disk_opts o = rig_opts(kind == ROOM_FOR_ALL   ? 2048 * MIB
	                                   : kind == ROOM_FOR_FEW ? 1 * MIB
	                                                          : 4 * MIB);
	o.io = life % 4 == 3 ? "threads" : "auto";
	o.sync = life % 8 == 5;
	o.direct = life % 16 != 9;
	return o;
}

/* --- the child --- */

struct writer {
	struct tier *t;
	enum kind kind;
	unsigned life;
	atomic_uint next;
};

struct put {
	struct tier_op op;
	struct writer *w;
	unsigned name;
};

static void put_next(struct writer *w);

static int put_move(struct tier_op *op, const struct tier_span *span, unsigned n)
{
	struct put *p = (struct put *)op;
	size_t at = 0;
	for (unsigned i = 0; i < n; at += span[i++].bytes)
		rig_fill(span[i].at, at, span[i].bytes, p->name);
	op->sum = sum_spans(span, n);
	return 0;
}

static void put_done(struct tier_op *op, int code, enum tier_id tier, const char *text)
{
	struct put *p = (struct put *)op;
	(void)text;
	if (code == 0 && tier == TIER_DISK) {
		/* one thread at a time acknowledges what was written */
		unsigned n = atomic_load(&shared->acks);
		shared->ack[n % ACKS_MAX] = p->name;
		atomic_store(&shared->acks, n + 1);
	}
	struct writer *w = p->w;
	free(p);
	put_next(w);
}

static void put_next(struct writer *w)
{
	unsigned i = atomic_fetch_add(&w->next, 1);
	if (i >= NAMES_MAX)
		return;
	struct put *p = mem_zalloc(sizeof *p);
	p->w = w;
	p->name = name_of(w->kind, w->life, i);
	p->op = (struct tier_op){
		.key = rig_key(p->name), .bytes = bytes_of(p->name), .move = put_move, .done = put_done};
	w->t->ops->put(w->t, &p->op);
}

/* 1: there and right; 0: not there; -1: wrong, or damaged. */
static int read_one(struct tier *t, unsigned name)
{
	struct rig_op *o = rig_op(name, bytes_of(name), 0);
	unsigned char *want = mem_alloc(o->op.bytes);
	t->ops->get(t, &o->op);
	int code = rig_wait(o);
	rig_fill(want, 0, o->op.bytes, name);
	int right = code == ERR_NOTFOUND                                    ? 0
	            : code == 0 && memcmp(o->bytes, want, o->op.bytes) == 0 ? 1
	                                                                    : -1;
	free(want);
	rig_free(o);
	return right;
}

static void disturb(struct tier *t, unsigned i)
{
	unsigned n = atomic_load(&shared->acks);
	struct tier_key k = rig_key(n ? shared->ack[n / 2 % ACKS_MAX] : 0);
	if (i % 5 == 1)
		t->ops->remove(t, &k);
	else if (i % 23 == 7)
		tier_flushed(t, NULL);
	else if (i % 7 == 3)
		t->ops->resize(t, (1 + i % 6) * MIB, NULL);
}

static void child(enum kind kind, unsigned life)
{
	static struct writer w;
	struct tier_disk_opts o = opts_of(kind, life);
	int nowhere = open("/dev/null", O_RDWR);
	/* libcheck's own file: a message that the kill cuts would end the test */
	for (int fd = 3; fd < 64; fd++)
		if (fd != nowhere && fcntl(fd, F_GETFD) >= 0)
			dup2(nowhere, fd);
	struct err err = {0};
	w.kind = kind;
	w.life = life;
	if (tier_disk_new(&o, &w.t, &err) != 0) {
		fprintf(stderr, "%s\n", err.text);
		_exit(3);
	}
	atomic_store(&shared->opened, 1);
	for (unsigned i = 0; i < OUTSTANDING; i++)
		put_next(&w);
	for (unsigned i = 0, seen = 0;; i++) { /* until the kill */
		unsigned n = atomic_load(&shared->acks);
		while (kind == ROOM_FOR_FEW && n == seen) {
			/* what is read counts as used: more reads than puts would drive the last ones out */
			usleep(100);
			n = atomic_load(&shared->acks);
		}
		seen = n;
		if (n && read_one(w.t, shared->ack[(i * 7919u) % (n < ACKS_MAX ? n : ACKS_MAX)]) < 0)
			atomic_fetch_add(&shared->wrong, 1);
		atomic_fetch_add(&shared->reads, 1);
		if (kind == EVERYTHING_AT_ONCE)
			disturb(w.t, i);
	}
}

/* --- the parent --- */

static void live_and_die(enum kind kind, unsigned life, unsigned *seed)
{
	*seed = *seed * 1103515245u + 12345u;
	unsigned pause_us = (*seed >> 8) % 40000, early = (*seed >> 28) == 0;
	int status;
	atomic_store(&shared->opened, 0);
	fflush(NULL);
	pid_t pid = fork();
	ck_assert_int_ge(pid, 0);
	if (pid == 0)
		child(kind, life);
	unsigned before = atomic_load(&shared->acks);
	for (int i = 0;
	     !early && !(atomic_load(&shared->opened) && atomic_load(&shared->acks) > before) &&
	     i < RIG_WAIT_S * 2000;
	     i++) {
		usleep(500);
		if (waitpid(pid, &status, WNOHANG) == pid)
			ck_abort_msg("life %u ended by itself: status %d", life, status);
	}
	usleep(pause_us);
	kill(pid, SIGKILL);
	ck_assert_int_eq(waitpid(pid, &status, 0), pid);
	ck_assert_msg(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL, "life %u: status %d", life,
	              status);
	ck_assert_msg(atomic_load(&shared->wrong) == 0,
	              "life %u: wrong bytes were served while it lived", life);
}

/* acks[from, to) of this life: which are there? */
static void verify(enum kind kind, unsigned life, unsigned from, unsigned to, unsigned *ret_there)
{
	struct tier_disk_opts o = opts_of(kind, life);
	struct tier *t = rig_open(&o);
	unsigned last = to - from < LAST_KEPT ? from : to - LAST_KEPT;
	for (unsigned i = from; i < to; i++) {
		int r = read_one(t, shared->ack[i % ACKS_MAX]);
		ck_assert_msg(r >= 0, "life %u: block %u is wrong or damaged", life, i - from);
		ck_assert_msg(r == 1 || kind == EVERYTHING_AT_ONCE || (kind == ROOM_FOR_FEW && i < last),
		              "life %u: block %u of %u was acknowledged and is not there", life, i - from,
		              to - from);
		*ret_there += r == 1;
	}
	ck_assert_uint_eq(rig_stat(t).corrupt, 0);
	t->ops->destroy(t);
}

static void folder_for(enum kind kind)
{
	static char base[sizeof rig_folder];
	if (!base[0])
		memcpy(base, rig_folder, sizeof base);
	snprintf(rig_folder, sizeof rig_folder, "%.120s/%d", base, (int)kind);
	if (kind == KINDS)
		memcpy(rig_folder, base, sizeof base);
}

/* Where there was room for all, what any of the lives was told is there after all of them. */
static void verify_all(unsigned kills)
{
	folder_for(ROOM_FOR_ALL);
	struct tier_disk_opts o = opts_of(ROOM_FOR_ALL, kills);
	struct tier *t = rig_open(&o);
	unsigned n = atomic_load(&shared->acks);
	for (unsigned i = n < ACKS_MAX ? 0 : n - ACKS_MAX; i < n; i++)
		if (shared->ack[i % ACKS_MAX] >> 28 == ROOM_FOR_ALL)
			ck_assert_msg(read_one(t, shared->ack[i % ACKS_MAX]) == 1,
			              "block %u of %u was acknowledged and is not there after all kills", i, n);
	ck_assert_uint_eq(rig_stat(t).evictions, 0);
	t->ops->destroy(t);
}

TEST_CASE("kill", .timeout_s = 900, .setup = rig_folder_new, .teardown = rig_folder_delete);

TEST(test_kill)
{
	const unsigned kills = getenv("PD_FULL") ? 200 : 20;
	unsigned seed = (unsigned)clock_us(), there = 0, acked = 0;
	printf("seed %u\n", seed);
	shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	ck_assert_ptr_ne(shared, MAP_FAILED);
	for (unsigned life = 0; life < kills; life++) {
		enum kind kind = (enum kind)(life % KINDS);
		folder_for(kind);
		unsigned from = atomic_load(&shared->acks);
		live_and_die(kind, life, &seed);
		unsigned to = atomic_load(&shared->acks);
		if (to - from > ACKS_MAX)
			from = to - ACKS_MAX;
		verify(kind, life, from, to, &there);
		acked += to - from;
	}
	verify_all(kills);
	printf("%u kills, %u blocks acknowledged, %u of them there and right, none wrong\n", kills,
	       acked, there);
	ck_assert_uint_gt(acked, kills / 2);
	folder_for(KINDS);
	munmap(shared, sizeof *shared);
}
