/* test_storage_disk_crash.c - the disk tier after a crash at any point: a random workload is
 * recorded, states that a crash may leave are made (crash_rig.h), and a tier is started on each of
 * them. In every state: no wrong byte is given out, nothing comes back that was dropped by a flush
 * that was answered, and the tier takes new blocks and has them after one more start. After kill
 * -9, and with sync after a crash of the machine: what was acknowledged and not dropped since is
 * there.
 *
 * Bound: at each of POINTS points of a record all kinds of states once, those with chance SUBSETS
 * times: of unsynced writes each as a whole, and each sector of its own. Records follow until
 * the time is over; 1,000 states at least. PD_SEED=N begins with that seed, PD_FULL=1 takes ten
 * times as long. */
#include "tests/unit/disk_rig.h"
#include "tests/unit/crash_rig.h"

#include "util/log.h"

#include <dirent.h>
#include <stdatomic.h>

#define NAMES 56u
#define CAPACITY (1536 * KIB)
#define STEPS 160u
#define POINTS 24u
#define SUBSETS 4u
#define STATES_MIN 1000u
#define RUN_US 9000000u

enum what {
	KEY_HERE,
	KEY_GONE,
	ALL_GONE,
	PUT_BEGUN,
	PUT_OVER,
	PUT_FAILED,
	FLUSH_BEGUN,
	FLUSH_OVER
};

static unsigned states, points;
static atomic_int write_fails, sync_fails, commit_fails;

static size_t bytes_of(unsigned name)
{
	return (name % 3 + 1) * 16 * KIB - name * 7; /* of all names more than the capacity */
}

/* --- the workload --- */

static ssize_t fail_transfer(int write, size_t bytes, off_t at)
{
	(void)at;
	return write && atomic_exchange(&write_fails, 0) ? -EIO : (ssize_t)bytes;
}

static int fail_sync(int fd)
{
	if (!atomic_exchange(&sync_fails, 0))
		return fdatasync(fd);
	errno = EIO;
	return -1;
}

static int fail_commit(void)
{
	return atomic_exchange(&commit_fails, 0) ? ENOSPC : 0;
}

static const struct disk_calls failing = {.datasync = fail_sync,
                                          .transfer = fail_transfer,
                                          .commit = fail_commit};

static unsigned name_of(const struct tier_key *k)
{
	unsigned name;
	memcpy(&name, k->b + 8, sizeof name);
	return name;
}

static void changed(void *arg, const struct tier_key *key, int stored)
{
	(void)arg;
	if (key)
		note_other(stored ? KEY_HERE : KEY_GONE, name_of(key));
	else
		note_other(ALL_GONE, 0);
}

static void put_over(struct tier_op *op, int code, enum tier_id tier, const char *text)
{
	note_other(code == 0 ? PUT_OVER : PUT_FAILED, ((struct rig_op *)op)->name);
	rig_done(op, code, tier, text);
}

static struct rig_op *put_begin(struct tier *t, unsigned name)
{
	struct rig_op *o = rig_op(name, bytes_of(name), 1);
	o->op.done = put_over;
	note_other(PUT_BEGUN, name);
	t->ops->put(t, &o->op);
	return o;
}

static struct tier *open_tier(const char *folder, int sync, const struct disk_calls *calls)
{
	struct tier_disk_opts o = {.path = folder,
	                           .capacity_bytes = CAPACITY,
	                           .segment_bytes = 128 * KIB,
	                           .depth = 4,
	                           .io = "threads",
	                           .sync = sync,
	                           .calls = calls};
	struct tier *t = NULL;
	struct err err = {0};
	int r = tier_disk_new(&o, &t, &err);
	ck_assert_msg(r == 0, "%s", err.text);
	return t;
}

static void flush(struct tier *t)
{
	struct flush_rig r = flush_rig();
	note_other(FLUSH_BEGUN, 0);
	t->ops->flush(t, &r.f);
	flush_rig_wait(&r);
	if (r.f.code == 0)
		note_other(FLUSH_OVER, 0);
}

static void fault(unsigned seed)
{
	atomic_store(seed % 3 == 0 ? &write_fails : seed % 3 == 1 ? &sync_fails : &commit_fails, 1);
}

/* Puts, four at a time, between them everything else. */
static void work(const char *folder, int sync, unsigned *seed)
{
	struct rig_op *flying[4] = {NULL};
	struct tier *t = open_tier(folder, sync, &failing);
	t->ops->watch(t, changed, NULL);
	for (unsigned i = 0; i < STEPS; i++) {
		unsigned what = crash_random(seed) % 64, name = crash_random(seed) % NAMES;
		struct rig_op **o = &flying[i % 4];
		struct tier_key k = rig_key(name);
		if (*o) {
			rig_wait(*o);
			rig_free(*o);
		}
		*o = put_begin(t, name);
		if (what < 12)
			t->ops->remove(t, &k);
		else if (what < 24)
			rig_get(t, name, bytes_of(name));
		else if (what < 26)
			flush(t);
		else if (what < 28)
			t->ops->resize(t, MIB + crash_random(seed) % 9 * 64 * KIB, NULL);
		else if (what < 30)
			fault(name);
		if (what != 30 && i + 1 < STEPS)
			continue;
		for (unsigned f = 0; f < 4; f++) { /* a stop, and the next start */
			if (flying[f]) {
				rig_wait(flying[f]);
				rig_free(flying[f]);
			}
			flying[f] = NULL;
		}
		t->ops->destroy(t);
		t = i + 1 < STEPS ? open_tier(folder, sync, &failing) : NULL;
		if (t)
			t->ops->watch(t, changed, NULL);
	}
}

/* --- what must and must not be there --- */

struct known {
	int here, acked; /* in the index; its put is over */
	int puts;        /* that have begun and are not over */
	/* no put was under way when the last flush began, and none has begun since */
	int going;
	int dead; /* that flush was answered */
};

static void know_one(struct known *k, enum what what)
{
	k->here = what == KEY_HERE || (k->here && what != KEY_GONE);
	k->acked = what == PUT_OVER || (k->acked && what != KEY_HERE);
	k->puts += (what == PUT_BEGUN) - (what == PUT_OVER || what == PUT_FAILED);
	if (what == PUT_BEGUN)
		k->going = k->dead = 0;
}

static void know(size_t n, struct known *k)
{
	memset(k, 0, NAMES * sizeof *k);
	for (size_t i = 0; i < n; i++) {
		const struct note *e = &crash.note[i];
		if (e->kind == NOTE_OTHER && e->what < FLUSH_BEGUN && e->what != ALL_GONE)
			know_one(&k[e->who], (enum what)e->what);
		for (unsigned name = 0; e->kind == NOTE_OTHER && name < NAMES; name++) {
			k[name].here &= e->what != ALL_GONE;
			if (e->what == FLUSH_BEGUN)
				k[name].going = k[name].puts == 0;
			k[name].dead |= e->what == FLUSH_OVER && k[name].going;
		}
	}
}

/* 0, ERR_NOTFOUND or ERR_CORRUPT; wrong bytes end the test. */
static int read_one(struct tier *t, unsigned name)
{
	struct rig_op *g = rig_op(name, bytes_of(name), 0);
	t->ops->get(t, &g->op);
	return rig_get_end(g);
}

static void check_state(const char *folder, const struct known *k, int kept, int killed,
                        const char *where)
{
	struct tier *t = open_tier(folder, 0, NULL);
	for (unsigned name = 0; name < NAMES; name++) {
		int code = read_one(t, name);
		ck_assert_msg(code == 0 || code == ERR_NOTFOUND || (code == ERR_CORRUPT && !killed),
		              "%s: block %u: %s", where, name, err_name(code));
		ck_assert_msg(code == 0 || !kept || !(k[name].here && k[name].acked),
		              "%s: block %u was acknowledged, and is %s", where, name, err_name(code));
		ck_assert_msg(code != 0 || !k[name].dead, "%s: block %u is back after a flush", where,
		              name);
	}
	ck_assert_int_eq(rig_put(t, NAMES, 4096), 0);
	t->ops->destroy(t);
	t = open_tier(folder, 0, NULL);
	ck_assert_int_eq(rig_get(t, NAMES, 4096), 0);
	t->ops->destroy(t);
}

static void empty(const char *folder)
{
	DIR *d = opendir(folder);
	for (struct dirent *e; d && (e = readdir(d)) != NULL;)
		unlinkat(dirfd(d), e->d_name, 0);
	if (d)
		closedir(d);
	else
		ck_assert_int_eq(mkdir(folder, 0700), 0);
}

static void check_point(size_t n, int sync, unsigned *seed, unsigned run)
{
	static const char *const kind_name[CRASH_KINDS] = {"kill -9", "nothing unsynced", "all",
	                                                   "whole writes", "sectors"};
	struct known k[NAMES];
	char folder[200], where[160];
	snprintf(folder, sizeof folder, "%s/state", rig_folder);
	know(n, k);
	points++;
	for (int kind = 0; kind < CRASH_KINDS; kind++)
		for (unsigned i = 0; i < (kind >= CRASH_WRITES ? SUBSETS : 1); i++) {
			empty(folder);
			unsigned was = *seed;
			crash_state(n, (enum crash_kind)kind, seed, folder);
			snprintf(where, sizeof where, "seed %u sync %d note %zu of %zu (%s, %u)", run, sync, n,
			         crash.n, kind_name[kind], was);
			check_state(folder, k, sync || kind == CRASH_PROCESS, kind == CRASH_PROCESS, where);
			states++;
		}
}

static void set_up(void)
{
	if (access("/dev/shm", W_OK) == 0)
		setenv("TMPDIR", "/dev/shm", 1);
	rig_folder_new();
}

TEST_CASE("crash", .timeout_s = 900, .setup = set_up, .teardown = rig_folder_delete);

TEST(test_crash)
{
	const char *given = getenv("PD_SEED");
	unsigned run = given ? (unsigned)strtoul(given, NULL, 10) : (unsigned)clock_us();
	uint64_t until = clock_us() + RUN_US * (getenv("PD_FULL") ? 20 : 1);
	char folder[200];
	log_set_level("error");
	snprintf(folder, sizeof folder, "%s/tier", rig_folder);
	printf("seed %u\n", run);
	for (; clock_us() < until || states < STATES_MIN; run++) {
		unsigned seed = run;
		int sync = run % 2;
		empty(folder);
		crash_record(folder);
		work(folder, sync, &seed);
		crash.on = 0;
		for (unsigned i = 0; i < POINTS && (clock_us() < until || states < STATES_MIN); i++)
			check_point(crash_random(&seed) % (crash.n + 1), sync, &seed, run);
		crash_forget();
	}
	printf("%u crash states of %u points, none wrong\n", states, points);
}
