/* test_storage_daemon.c - pdstoraged as a process of its own and a worker's client against it, over
 * the real link and hand-over: a round trip, what pdctl sees, and storage that is stopped or killed
 * at any moment.
 *
 * Each test is a process that is the worker: its main thread runs the daemon skeleton, a second one
 * the script. Storage is this same program, started anew with the argument `storage`. */
/* run: threads */
#include "daemons/storage/storage.h"
#include "daemons/worker/storage/client.h"

#include "pool_memory.h"
#include "util/clock.h"
#include "util/mem.h"
#include "tempdir.h"

#include <check.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define BLOCKS 64u
#define WAIT_US 120000000u

/* By the script's thread; the worker's own goes on. */
#define UNTIL(what)                                                    \
	for (uint64_t until_ = clock_us() + WAIT_US; !(what); usleep(500)) \
	ck_assert_msg(clock_us() < until_, "not within %u s: %s", WAIT_US / 1000000u, #what)

static char dir[TEST_FOLDER_BYTES];
static pid_t storage_pid;
static struct kv_layout layout;
static struct pool_memory shared;
static struct store *st;
static void (*script)(void);
static int small; /* blocks of 8 KiB instead of 128 */
static pthread_t script_thread;

/* --- storage's process --------------------------------------------------- */

static char disk_folder[TEST_FOLDER_BYTES];
static char memory[32] = "memory_mb=64", disk_path[128] = "disk_path="; /* of the next life */

static void storage_start(void)
{
	char rundir[96], parent[32];
	snprintf(rundir, sizeof rundir, "rundir=%s", dir);
	snprintf(parent, sizeof parent, "%d", (int)getpid());
	storage_pid = vfork();
	if (storage_pid == 0) {
		execl("/proc/self/exe", "pdstoraged", "-o", rundir, "-o", memory, "-o",
		      "memory_eviction=write_through", "-o", "write_through_after=0", "-o", disk_path, "-o",
		      "disk_mb=512", "-o", "threads=2", "-o", "log_level=error", "--die-with-parent",
		      parent, (char *)NULL);
		_exit(127);
	}
	ck_assert_int_gt(storage_pid, 0);
}

static void storage_end(int sig)
{
	int status;
	kill(storage_pid, sig);
	ck_assert_int_eq(waitpid(storage_pid, &status, 0), storage_pid);
	if (sig == SIGTERM)
		ck_assert_msg(status == 0, "storage ended with wait status %#x", (unsigned)status);
}

static void wait_ready(int ready)
{
	UNTIL(store_ready(st) == ready);
}

/* --- the worker ---------------------------------------------------------- */

static void on_store(struct svc *s, struct peer *p, const struct msg_head *head,
                     const ProtobufCMessage *body)
{
	(void)s;
	(void)head;
	store_message(st, p, body);
}

/* What storage says that it has, by tier and name. */
static pthread_mutex_t told_lock = PTHREAD_MUTEX_INITIALIZER;
static unsigned char told[3][256];
static unsigned n_events, n_resets[3];
static struct svc *worker;

static void on_events(struct svc *s, struct peer *p, const struct msg_head *head,
                      const ProtobufCMessage *body)
{
	const Pds__KvEvents *m = (const Pds__KvEvents *)body;
	(void)s;
	(void)p;
	(void)head;
	pthread_mutex_lock(&told_lock);
	ck_assert(m->tier == TIER_MEMORY || m->tier == TIER_DISK);
	n_events++;
	n_resets[m->tier] += m->reset != 0;
	if (m->reset)
		memset(told[m->tier], 0, sizeof told[m->tier]);
	for (size_t i = 0; i < m->n_stored; i++)
		told[m->tier][m->stored[i] & 255] = 1;
	for (size_t i = 0; i < m->n_removed; i++)
		told[m->tier][m->removed[i] & 255] = 0;
	pthread_mutex_unlock(&told_lock);
}

static unsigned told_of(enum tier_id tier)
{
	unsigned n = 0;
	pthread_mutex_lock(&told_lock);
	for (unsigned i = 0; i < 256; i++)
		n += told[tier][i];
	pthread_mutex_unlock(&told_lock);
	return n;
}

static unsigned resets_of(enum tier_id tier)
{
	pthread_mutex_lock(&told_lock);
	unsigned n = n_resets[tier];
	pthread_mutex_unlock(&told_lock);
	return n;
}

static void send_list(struct svc *s, void *arg)
{
	Pds__StoreList m = PDS__STORE_LIST__INIT;
	struct peer *p = chan_find(svc_chan(s), "storage", 1);
	(void)arg;
	ck_assert_ptr_nonnull(p);
	ck_assert_int_eq(svc_send(s, p, MSG_STORE_LIST, NULL, &m), 0);
}

static void on_up(struct svc *s, struct peer *p)
{
	(void)s;
	store_up(st, p);
}

static void on_down(struct svc *s, struct peer *p, const char *why)
{
	(void)s;
	store_down(st, p, why);
}

static void *run_script(void *arg)
{
	(void)arg;
	script();
	/* by the thread that started it: with its end the system would end storage too */
	storage_end(SIGTERM);
	kill(getpid(), SIGTERM);
	return NULL;
}

/* From the loop to the script. */
/* from the loop's thread to the script's */
static struct {
	pthread_mutex_t lock;
	struct store_completion *item[64]; /* in order */
	unsigned n;
} completions = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void on_done(void *arg, struct store_completion *c)
{
	(void)arg;
	pthread_mutex_lock(&completions.lock);
	ck_assert_uint_lt(completions.n, 64);
	completions.item[completions.n++] = c;
	pthread_mutex_unlock(&completions.lock);
}

/* The oldest; NULL: none. */
static struct store_completion *next_completion(void)
{
	struct store_completion *c = NULL;
	pthread_mutex_lock(&completions.lock);
	if (completions.n) {
		c = completions.item[0];
		memmove(completions.item, completions.item + 1, --completions.n * sizeof c);
	}
	pthread_mutex_unlock(&completions.lock);
	return c;
}

static int worker_start(struct svc *s, struct err *err)
{
	struct handover_hello hello;
	worker = s;
	ck_assert_int_eq(kv_layout_uniform(&layout, small ? 2 : 4, small ? 1 : 2, 32, 16, KV_F32), 0);
	int r = pool_memory_new(&shared, &layout, BLOCKS, err);
	if (r != 0)
		return r;
	handover_hello_init(&hello, svc_name(s), svc_epoch(s), &layout, BLOCKS, "cpu");
	st = store_new(s,
	               &(struct store_opts){.name = "storage",
	                                    .tag = 1,
	                                    .hello = &hello,
	                                    .fds = {shared.region.control_fd, -1, shared.region.data},
	                                    .batches_max = 32,
	                                    .done = on_done});
	return pthread_create(&script_thread, NULL, run_script, NULL) == 0 ? 0 : ERR_IO;
}

static void worker_stop(struct svc *s)
{
	(void)s;
	pthread_join(script_thread, NULL);
	store_destroy(&st);
	for (struct store_completion *c; (c = next_completion());)
		store_completion_free(&c);
	pool_memory_fini(&shared);
}

static const struct conf_key no_keys[] = {CONF_END};
static const struct svc_msg messages[] = {{MSG_STORE_DONE, on_store, 0},
                                          {MSG_STORE_FOUND, on_store, 0},
                                          {MSG_STORE_FENCED, on_store, 0},
                                          {MSG_KV_EVENTS, on_events, 0},
                                          {0}};
static const struct svc_ctl no_ctl[] = {{0}};
static const struct svc_hooks worker_hooks = {
	.program = "pddecoded",
	.default_name = "worker",
	.keys = no_keys,
	.messages = messages,
	.ctl = no_ctl,
	.start = worker_start,
	.stop = worker_stop,
	.up = on_up,
	.down = on_down,
};

/* Runs fn as the script of a worker, with storage beside it. */
static void play(void (*fn)(void))
{
	char rundir[96];
	test_folder(dir, "storaged");
	snprintf(rundir, sizeof rundir, "rundir=%s", dir);
	script = fn;
	storage_start();
	char *argv[] = {"test-worker", "-o", rundir, "-o", "log_level=error", NULL};
	ck_assert_int_eq(svc_main(5, argv, &worker_hooks), 0);
	char rm[96];
	snprintf(rm, sizeof rm, "rm -r %s", dir);
	ck_assert_int_eq(system(rm), 0);
}

/* --- words of the scripts ------------------------------------------------ */

static unsigned char *piece(uint32_t block, uint32_t layer)
{
	return shared.data + kv_piece_offset(&layout, BLOCKS, layer, block);
}

static void block_fill(uint32_t block, uint32_t name)
{
	for (uint32_t l = 0; l < layout.layers; l++)
		memset(piece(block, l), (int)(1 + (name * 5 + l) % 255), layout.piece_bytes[l]);
}

static int block_holds(uint32_t block, uint32_t name)
{
	for (uint32_t l = 0; l < layout.layers; l++)
		for (size_t i = 0; i < layout.piece_bytes[l]; i++)
			if (piece(block, l)[i] != 1 + (name * 5 + l) % 255)
				return 0;
	return 1;
}

static struct store_item item_of(uint32_t name, uint32_t block)
{
	struct store_item it = {.block = block,
	                        .generation = atomic_load(&shared.region.generations[block])};
	memcpy(it.hash.b, &name, sizeof name);
	return it;
}

/* Waits for a completion. 0, or ERR_TIMEOUT. */
static int take(uint64_t timeout_us, struct store_completion **ret)
{
	for (uint64_t until = clock_us() + timeout_us; !(*ret = next_completion()); usleep(100))
		if (clock_us() >= until)
			return ERR_TIMEOUT;
	return 0;
}

/* Waits for the completion of this batch, the only one that is expected. */
static struct store_completion *completion(uint64_t batch)
{
	struct store_completion *c = NULL;
	ck_assert_int_eq(take(WAIT_US, &c), 0);
	ck_assert_uint_eq(c->batch, batch);
	return c;
}

static int put_one(uint32_t name, uint32_t block)
{
	struct store_item it = item_of(name, block);
	uint64_t b;
	ck_assert_int_eq(store_put(st, &it, 1, clock_us() + WAIT_US, NULL, &b), 0);
	struct store_completion *c = completion(b);
	int r = c->code == 0 ? (int)c->result[0].code : 100;
	store_completion_free(&c);
	return r;
}

static int get_one(uint32_t name, uint32_t block)
{
	struct store_item it = item_of(name, block);
	uint64_t b;
	ck_assert_int_eq(store_get(st, &it, 1, clock_us() + WAIT_US, NULL, &b), 0);
	struct store_completion *c = completion(b);
	int r = c->code == 0 ? (int)c->result[0].code : 100;
	store_completion_free(&c);
	return r;
}

static void expect_ctl(const char *command, const char *const *words)
{
	char endpoint[128], *text = NULL;
	struct err err = {0};
	snprintf(endpoint, sizeof endpoint, "ipc://%s/storage.ipc", dir);
	int r = chan_ask(endpoint, NULL, command, NULL, 0, WAIT_US, &text, &err);
	ck_assert_msg(r == 0, "%s: %s", command, err.text);
	for (; *words; words++)
		ck_assert_msg(strstr(text, *words) != NULL, "%s lacks %s: %s", command, *words, text);
	free(text);
}

/* --- round trip ---------------------------------------------------------- */

static void round_trip(void)
{
	wait_ready(1);
	for (uint32_t i = 0; i < 8; i++) {
		block_fill(i, i);
		ck_assert_int_eq(put_one(i, i), PDS__STORE_CODE__STORE_OK);
	}
	for (uint32_t i = 0; i < 8; i++) {
		ck_assert_int_eq(get_one(i, 20 + i), PDS__STORE_CODE__STORE_OK);
		ck_assert(block_holds(20 + i, i));
	}
	ck_assert_int_eq(get_one(9, 30), PDS__STORE_CODE__STORE_MISS);
	struct kv_hash hash[3];
	uint64_t b;
	for (uint32_t i = 0; i < 3; i++)
		hash[i] = item_of(6 + i, 0).hash;
	ck_assert_int_eq(store_lookup(st, hash, 3, 0, clock_us() + WAIT_US, NULL, &b), 0);
	struct store_completion *c = completion(b);
	ck_assert_int_eq(c->code, 0);
	ck_assert_uint_eq(c->leading, 2);
	store_completion_free(&c);
	expect_ctl("storage",
	           (const char *const[]){"\"tier\":\"memory\"", "\"blocks\":8,", "\"hits\":8,",
	                                 "\"misses\":1,", "\"name\":\"worker\"", NULL});
	expect_ctl("status",
	           (const char *const[]){"\"tiers\":{\"memory\":\"ready\"}", "\"workers\":1", NULL});
	expect_ctl("metrics", (const char *const[]){"pdserve_storage_put_blocks_total",
	                                            "pdserve_storage_blocks", NULL});
	expect_ctl("flush", (const char *const[]){"\"blocks\":8", NULL});
	ck_assert_int_eq(get_one(1, 30), PDS__STORE_CODE__STORE_MISS);
}

TEST_CASE("processes", .timeout_s = 600);

TEST(test_round_trip)
{
	play(round_trip);
}

/* --- stopped, killed ----------------------------------------------------- */

/* Storage stops with batches outstanding and is killed: each completes with the reason, none
 * before its blocks are nobody's. */
static void killed(void)
{
	uint64_t put, get, look;
	wait_ready(1);
	block_fill(0, 0);
	ck_assert_int_eq(put_one(0, 0), PDS__STORE_CODE__STORE_OK);
	kill(storage_pid, SIGSTOP);
	struct store_item it[2] = {item_of(0, 1), item_of(0, 2)};
	struct kv_hash h = it[0].hash;
	ck_assert_int_eq(store_put(st, &it[0], 1, 0, NULL, &put), 0);
	ck_assert_int_eq(store_get(st, it, 2, 0, NULL, &get), 0);
	ck_assert_int_eq(store_lookup(st, &h, 1, 0, 0, NULL, &look), 0);
	struct store_completion *c = NULL;
	ck_assert_int_eq(take(200000, &c), ERR_TIMEOUT);
	storage_end(SIGKILL);
	for (unsigned i = 0; i < 3; i++) {
		ck_assert_int_eq(take(WAIT_US, &c), 0);
		ck_assert(c->batch == put || c->batch == get || c->batch == look);
		ck_assert_int_eq(c->code, ERR_CLOSED);
		ck_assert_int_ne(c->text[0], 0);
		if (c->op == STORE_OP_GET)
			ck_assert_int_eq(c->quiet, 1);
		store_completion_free(&c);
	}
	wait_ready(0);
	ck_assert_int_eq(store_put(st, &it[0], 1, 0, NULL, &put), ERR_CLOSED);
	storage_start(); /* its next life: attached again, and empty */
	wait_ready(1);
	ck_assert_int_eq(get_one(0, 3), PDS__STORE_CODE__STORE_MISS);
	ck_assert_int_eq(put_one(0, 0), PDS__STORE_CODE__STORE_OK);
	ck_assert_int_eq(get_one(0, 3), PDS__STORE_CODE__STORE_OK);
	ck_assert(block_holds(3, 0));
}

TEST(test_killed)
{
	play(killed);
}

/* A stopped storage keeps the blocks of a get that has timed out, until it goes on and
 * acknowledges the fence. */
static void stopped(void)
{
	uint64_t get;
	wait_ready(1);
	block_fill(0, 0);
	ck_assert_int_eq(put_one(0, 0), PDS__STORE_CODE__STORE_OK);
	kill(storage_pid, SIGSTOP);
	struct store_item it = item_of(0, 1);
	ck_assert_int_eq(store_get(st, &it, 1, clock_us() + 50000, NULL, &get), 0);
	struct store_completion *c = NULL;
	ck_assert_int_eq(take(500000, &c), ERR_TIMEOUT);
	kill(storage_pid, SIGCONT);
	c = completion(get);
	ck_assert_int_eq(c->code, ERR_TIMEOUT);
	ck_assert_int_eq(c->quiet, 1);
	if (c->result[0].code == PDS__STORE_CODE__STORE_OK)
		ck_assert(block_holds(1, 0));
	store_completion_free(&c);
}

TEST(test_stopped)
{
	play(stopped);
}

/* Killed again and again while batches run: every batch completes, and what a get delivers is
 * right. */
static void storm(void)
{
	unsigned seed = 12345, right = 0, ended = 0, asked = 0;
	/* blocks that a batch has; as in a pool, nobody else uses them meanwhile */
	int busy[32] = {0};
	for (unsigned life = 0; life < 8 || (!right && life < 50); life++) {
		wait_ready(1);
		uint64_t until = clock_us() + 30000 + life * 17000;
		while (clock_us() < until) {
			seed = seed * 1103515245u + 12345u;
			uint32_t name = (seed >> 8) % 16;
			struct store_item it = item_of(name, (seed >> 16) % 2 ? name : 16 + name);
			if (!busy[it.block]) {
				if (it.block == name)
					block_fill(name, name);
				busy[it.block] = (it.block == name ? store_put : store_get)(st, &it, 1, 0, NULL,
				                                                            NULL) == 0;
				asked += (unsigned)busy[it.block];
			}
			struct store_completion *c = NULL;
			if (take(200, &c) != 0)
				continue;
			if (c->op == STORE_OP_GET && c->result[0].code == PDS__STORE_CODE__STORE_OK) {
				ck_assert(block_holds(c->result[0].item.block, c->result[0].item.block - 16));
				right++;
			}
			ended++;
			busy[c->result[0].item.block] = 0;
			store_completion_free(&c);
		}
		storage_end(SIGKILL);
		wait_ready(0);
		storage_start();
	}
	for (struct store_completion *c; ended < asked && take(WAIT_US, &c) == 0; ended++)
		store_completion_free(&c);
	ck_assert_uint_eq(ended, asked);
	ck_assert_uint_gt(right, 0);
	wait_ready(1);
}

TEST(test_storm)
{
	play(storm);
}

/* --- what storage tells -------------------------------------------------- */

/* Memory holds sixteen blocks, the disk gets all of them. Nothing is told before it is asked for;
 * lists and changes then say what there is, also after a flush and in storage's next life. */
static void events(void)
{
	wait_ready(1);
	for (uint32_t i = 0; i < 4; i++) {
		block_fill(i, i);
		ck_assert_int_eq(put_one(i, i), PDS__STORE_CODE__STORE_OK);
	}
	usleep(30000);
	ck_assert_uint_eq(told_of(TIER_MEMORY) + told_of(TIER_DISK) + n_events, 0);
	svc_post(worker, send_list, NULL);
	UNTIL(told_of(TIER_MEMORY) == 4 && told_of(TIER_DISK) == 4);
	for (uint32_t i = 0; i < 30; i++) {
		block_fill(i, i);
		ck_assert_int_eq(put_one(i, i), PDS__STORE_CODE__STORE_OK);
		UNTIL(told_of(TIER_DISK) >= i + 1);
	}
	UNTIL(told_of(TIER_MEMORY) == 16 && told_of(TIER_DISK) == 30);
	ck_assert_uint_eq(told[TIER_MEMORY][29] + told[TIER_MEMORY][14], 2); /* the youngest */
	expect_ctl("flush", (const char *const[]){"\"blocks\"", NULL});
	UNTIL(told_of(TIER_MEMORY) == 0 && told_of(TIER_DISK) == 0);
	ck_assert_int_eq(put_one(5, 5), PDS__STORE_CODE__STORE_OK);
	UNTIL(told_of(TIER_MEMORY) == 1 && told_of(TIER_DISK) == 1);
	unsigned resets = resets_of(TIER_MEMORY);
	svc_post(worker, send_list, NULL); /* again: the lists restart */
	UNTIL(resets_of(TIER_MEMORY) == resets + 1 && told_of(TIER_MEMORY) == 1);
	storage_end(SIGKILL);
	wait_ready(0);
	storage_start();
	wait_ready(1);
	svc_post(worker, send_list, NULL);
	UNTIL(told_of(TIER_MEMORY) == 0 && told_of(TIER_DISK) == 1);
	ck_assert_int_eq(get_one(5, 40), PDS__STORE_CODE__STORE_OK);
	ck_assert(block_holds(40, 5));
	UNTIL(told_of(TIER_MEMORY) == 1); /* it came up */
}

TEST(test_events)
{
	test_folder(disk_folder, "storaged-disk");
	snprintf(disk_path, sizeof disk_path, "disk_path=%s/blocks", disk_folder);
	strcpy(memory, "memory_mb=1");
	play(events);
}

/* --- what disk has acknowledged ------------------------------------------ */

#define GROUP 8u /* items of a batch, and blocks that it has for itself */
#define GROUPS 4u
#define KILLED_NAMES 65536u

static unsigned char on_disk[KILLED_NAMES]; /* acknowledged by disk */

static void group_put(unsigned g, uint32_t first)
{
	struct store_item it[GROUP];
	for (uint32_t i = 0; i < GROUP; i++) {
		uint32_t block = g * GROUP + i;
		/* what a former life still reads of it is void */
		atomic_fetch_add(&shared.region.generations[block], 1);
		block_fill(block, first + i);
		it[i] = item_of(first + i, block);
	}
	ck_assert_int_eq(store_put(st, it, GROUP, 0, (void *)(uintptr_t)(g + 1), NULL), 0);
}

/* Puts one group after the other, all groups at a time, until so many are answered; a moment later
 * storage is killed. Notes what disk has. Returns the next name that nobody has. */
static uint32_t write_until_killed(uint32_t name, unsigned answers, uint64_t moment_us)
{
	unsigned under_way = 0;
	uint64_t until = 0;
	for (unsigned g = 0; g < GROUPS; g++, name += GROUP, under_way++)
		group_put(g, name);
	for (int killed = 0; under_way;) {
		struct store_completion *c = NULL;
		if (!killed && until && clock_us() >= until) {
			storage_end(SIGKILL);
			killed = 1;
		}
		if (take(200, &c) != 0)
			continue;
		under_way--;
		for (uint32_t i = 0; i < c->n; i++) {
			uint32_t stored;
			memcpy(&stored, c->result[i].item.hash.b, sizeof stored);
			if (c->result[i].code == PDS__STORE_CODE__STORE_OK && c->result[i].tier == TIER_DISK)
				on_disk[stored] = 1;
		}
		if (c->code == 0 && !killed) {
			ck_assert_uint_le(name + GROUP, KILLED_NAMES);
			group_put((unsigned)(uintptr_t)c->user - 1, name);
			name += GROUP;
			under_way++;
		}
		store_completion_free(&c);
		if (!until && --answers == 0)
			until = clock_us() + moment_us;
	}
	return name;
}

/* Reads the names [from, to): what disk had must be there, and whatever is there must be right.
 * Returns how many disk had. */
static uint32_t check_names(uint32_t from, uint32_t to)
{
	uint32_t had = 0;
	for (; from < to; from += GROUP) {
		struct store_item it[GROUP];
		uint64_t batch;
		for (uint32_t i = 0; i < GROUP; i++)
			it[i] = item_of(from + i, GROUPS * GROUP + i);
		ck_assert_int_eq(store_get(st, it, GROUP, 0, NULL, &batch), 0);
		struct store_completion *c = completion(batch);
		ck_assert_int_eq(c->code, 0);
		for (uint32_t i = 0; i < GROUP; i++) {
			int ok = c->result[i].code == PDS__STORE_CODE__STORE_OK;
			ck_assert_msg(ok || !on_disk[from + i],
			              "disk had acknowledged block %u, and now: code %d, %s", from + i,
			              c->result[i].code, c->result[i].text);
			ck_assert(!ok || block_holds(it[i].block, from + i));
			had += on_disk[from + i];
		}
		store_completion_free(&c);
	}
	return had;
}

/* kill -9 while blocks are written, again and again; lives with and without memory above the
 * disk take turns. */
static void kills(void)
{
	unsigned n = getenv("PD_FULL") ? 200 : 20, seed = 4711;
	uint32_t name = 0, before = 0, had = 0;
	for (unsigned i = 0; i < n; i++) {
		wait_ready(1);
		had += check_names(before, name);
		before = name;
		seed = seed * 1103515245u + 12345u;
		name = write_until_killed(name, 1 + (seed >> 8) % 24, (seed >> 16) % 3000);
		wait_ready(0);
		snprintf(memory, sizeof memory, "memory_mb=%d", i % 3 == 1 ? 1 : 0);
		storage_start();
	}
	wait_ready(1);
	ck_assert_uint_ge(check_names(0, name), had);
	ck_assert_uint_gt(had, n * GROUP);
	expect_ctl("storage", (const char *const[]){"\"tier\":\"disk\",\"state\":\"ready\"",
	                                            "\"corrupt\":0,", NULL});
}

TEST(test_kills)
{
	test_folder(disk_folder, "storaged-disk");
	snprintf(disk_path, sizeof disk_path, "disk_path=%s/blocks", disk_folder);
	strcpy(memory, "memory_mb=0");
	small = 1;
	play(kills);
}

TEST_START(storage)
{
	if (strcmp(argv[0], "pdstoraged") == 0)
		exit(svc_main(argc, argv, &storage_hooks));
}
