/* bench_transfer.c - how fast the messager moves KV, against memcpy of the same bytes in the same
 * run; how soon it reacts; what it costs idle.
 *
 * A real pdmessagerd (build/bin, or PD_BIN=folder), and in this process one prefill and one decode
 * worker with real pools, ring and links. Run from the repository's root after `make`. Prints
 * one line per measurement; ends with 1 when something did not work. */
#include "daemons/worker/links/attach.h"
#include "tests/unit/pool_memory.h"
#include "kv/ring.h"
#include "svc/svc_int.h"
#include "util/check.h"
#include "util/clock.h"

#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define P_EPOCH 1000u
#define D_EPOCH 2000u
#define WAIT_US 10000000u

struct world {
	struct svc svc; /* only its event base is used */
	char dir[64], endpoint[96], sock[96];
	pid_t messager;
	struct kv_layout layout;
	uint32_t blocks;
	struct pool_memory p, d;
	struct ring *ring;
	struct attach *p_attach, *d_attach;
	struct chan *p_chan, *d_chan;
	struct peer *p_peer, *d_peer;
	unsigned on;
	/* of the present transfer */
	struct ring_transfer transfer;
	uint32_t slot;
	uint64_t gen, lease, ready_us, opened_us, sent_us;
	Pds__KvReady *ready;
	int failed;
};

static struct world world, *w = &world;

/* --- decode worker, and what prefill hears ------------------------------- */

/* D has granted what the present transfer names. */
static void say_opened(struct peer *p, const struct msg_head *head, const Pds__LeaseOpen *m)
{
	static uint64_t generations[RING_BLOCKS_MAX];
	Pds__LeaseOpened o = PDS__LEASE_OPENED__INIT;
	o.lease = m->lease;
	o.prefill = m->prefill;
	o.prefill_epoch = m->prefill_epoch;
	o.tokens = w->transfer.tokens;
	o.blocks = w->transfer.dst;
	o.generations = generations;
	o.n_blocks = o.n_generations = w->transfer.blocks;
	for (uint32_t i = 0; i < w->transfer.blocks; i++)
		generations[i] = w->d.region.generations[w->transfer.dst[i]];
	chan_send(w->d_chan, p, MSG_LEASE_OPENED, head, &o.base);
}

static void d_message(void *arg, struct peer *p, enum msg_type type, const struct msg_head *head,
                      const ProtobufCMessage *body)
{
	(void)arg;
	if (type == MSG_LEASE_OPEN) {
		w->opened_us = clock_us();
		say_opened(p, head, (const Pds__LeaseOpen *)body);
	} else if (type == MSG_KV_READY) {
		const Pds__KvReady *r = (const Pds__KvReady *)body;
		Pds__KvReadyAck a = PDS__KV_READY_ACK__INIT;
		w->ready_us = clock_us();
		w->ready->bytes = r->bytes;
		w->ready->copy_us = r->copy_us;
		w->ready->tail_us = r->tail_us;
		a.lease = r->lease;
		a.prefill = r->prefill;
		a.prefill_epoch = r->prefill_epoch;
		chan_send(w->d_chan, p, MSG_KV_READY_ACK, head, &a.base);
	}
}

static void p_message(void *arg, struct peer *p, enum msg_type type, const struct msg_head *head,
                      const ProtobufCMessage *body)
{
	(void)arg;
	(void)p;
	(void)head;
	if (type == MSG_KV_SENT)
		w->sent_us = clock_us();
	if (type == MSG_TRANSFER_FAILED) {
		fprintf(stderr, "transfer failed: %s\n", ((const Pds__TransferFailed *)body)->text);
		w->failed = 1;
	}
}

static void p_on(void *arg, uint64_t epoch, int bell)
{
	(void)arg;
	(void)epoch;
	ring_set_bell(w->ring, bell);
	w->on++;
}

static void d_on(void *arg, uint64_t epoch, int bell)
{
	(void)arg;
	(void)epoch;
	if (bell >= 0)
		close(bell);
	w->on++;
}

static void gone(void *arg, uint64_t epoch)
{
	(void)arg;
	(void)epoch;
	w->failed = 1;
}

/* --- set-up -------------------------------------------------------------- */

static void must(int r, const struct err *err, const char *what)
{
	if (r >= 0)
		return;
	fprintf(stderr, "bench_transfer: %s: %s\n", what, err->text);
	if (w->messager > 0)
		kill(w->messager, SIGKILL);
	exit(1);
}

static void start_messager(void)
{
	const char *bin = getenv("PD_BIN");
	char program[512], rundir[96], parent[24];
	snprintf(program, sizeof program, "%s/pdmessagerd", bin ? bin : "build/bin");
	snprintf(rundir, sizeof rundir, "rundir=%s", w->dir);
	snprintf(parent, sizeof parent, "%d", (int)getpid());
	if (access(program, X_OK) < 0) {
		fprintf(stderr, "bench_transfer: no %s: run make first, from the repository's root\n",
		        program);
		exit(1);
	}
	w->messager = fork();
	if (w->messager == 0) {
		execl(program, "pdmessagerd", "-o", rundir, "-o", "log_level=warn", "--die-with-parent",
		      parent, (char *)NULL);
		_exit(127);
	}
}

static struct chan *link_to_messager(const char *name, uint64_t epoch,
                                     const struct chan_hooks *hooks, struct peer **ret_peer)
{
	const struct chan_opts opts = {.program = "pddecoded",
	                               .name = name,
	                               .epoch = epoch,
	                               .heartbeat_us = 200000,
	                               .silence_us = 5000000,
	                               .window_messages = 1000,
	                               .window_bytes = 1 << 20,
	                               .peers_max = 4,
	                               .message_bytes_max = 1 << 20};
	struct chan *c;
	struct err err = {0};
	must(chan_new(w->svc.base, &opts, hooks, &c, &err), &err, "links");
	*ret_peer = chan_connect(c, w->endpoint, "messager", 1);
	return c;
}

static int loop_until(int (*done)(void))
{
	uint64_t end = clock_us() + WAIT_US;
	while (!done()) {
		if (w->failed || clock_us() > end)
			return ERR_TIMEOUT;
		const struct timeval tv = {0, 1000};
		event_base_loopexit(w->svc.base, &tv);
		event_base_loop(w->svc.base, EVLOOP_ONCE);
	}
	return 0;
}

static int connected(void)
{
	return w->on == 2 && peer_is_up(w->p_peer) && peer_is_up(w->d_peer);
}

static int is_open(void)
{
	return w->opened_us != 0;
}

static int is_ready(void)
{
	return w->ready_us != 0;
}

static int is_sent(void)
{
	return w->sent_us != 0;
}

static void set_up(uint32_t layers, uint32_t heads, uint32_t dim, uint32_t blocks)
{
	static const struct chan_hooks p_hooks = {.message = p_message},
								   d_hooks = {.message = d_message};
	static const struct attach_hooks p_attach = {NULL, p_on, gone}, d_attach = {NULL, d_on, gone};
	static Pds__KvReady ready;
	struct err err = {.text = "layout"};
	struct handover_hello hello;
	memset(w, 0, sizeof *w);
	strcpy(w->dir, "/tmp/bench_transfer.XXXXXX");
	must(mkdtemp(w->dir) ? 0 : ERR_IO, &err, "folder");
	snprintf(w->endpoint, sizeof w->endpoint, "ipc://%s/messager.ipc", w->dir);
	snprintf(w->sock, sizeof w->sock, "%s/messager.sock", w->dir);
	start_messager();
	w->ready = &ready;
	w->blocks = blocks;
	w->svc.base = event_base_new();
	must(kv_layout_uniform(&w->layout, layers, heads, dim, 64, KV_BF16), &err, "layout");
	must(pool_memory_new(&w->p, &w->layout, blocks, &err), &err, "prefill pool");
	must(pool_memory_new(&w->d, &w->layout, blocks, &err), &err, "decode pool");
	must(ring_create(8, layers, P_EPOCH, &w->ring, &err), &err, "ring");
	memset(w->p.data, 1, w->p.region.data_bytes);
	memset(w->d.data, 2, w->d.region.data_bytes);
	handover_hello_init(&hello, "decode-1", D_EPOCH, &w->layout, blocks, "cpu");
	const struct handover_fds d_fds = {w->d.region.control_fd, -1, w->d.region.data};
	w->d_attach = attach_new(&w->svc, "messager", w->sock, &hello, &d_fds, &d_attach);
	handover_hello_init(&hello, "prefill-1", P_EPOCH, &w->layout, blocks, "cpu");
	hello.ring_slots = 8;
	hello.ring_layers = layers;
	const struct handover_fds p_fds = {w->p.region.control_fd, ring_fd(w->ring), w->p.region.data};
	w->p_attach = attach_new(&w->svc, "messager", w->sock, &hello, &p_fds, &p_attach);
	w->p_chan = link_to_messager("prefill-1", P_EPOCH, &p_hooks, &w->p_peer);
	w->d_chan = link_to_messager("decode-1", D_EPOCH, &d_hooks, &w->d_peer);
	must(loop_until(connected), &err, "connecting to the messager");
}

static void tear_down(void)
{
	static const char *const files[] = {"messager.sock", "messager.sock.lock", "messager.ipc",
	                                    "messager.lock"};
	char path[sizeof w->dir + 32];
	attach_destroy(&w->p_attach);
	attach_destroy(&w->d_attach);
	chan_destroy(&w->p_chan);
	chan_destroy(&w->d_chan);
	kill(w->messager, SIGTERM);
	waitpid(w->messager, NULL, 0);
	for (unsigned i = 0; i < sizeof files / sizeof *files; i++) {
		snprintf(path, sizeof path, "%.*s/%.30s", (int)sizeof w->dir, w->dir, files[i]);
		unlink(path);
	}
	rmdir(w->dir);
	ring_destroy(&w->ring);
	pool_memory_fini(&w->p);
	pool_memory_fini(&w->d);
	event_base_free(w->svc.base);
}

/* --- measurements -------------------------------------------------------- */

enum order { IN_ORDER, SCATTERED };

/* Half of the pool, in order or with no two neighbours. */
static void publish(enum order order)
{
	struct ring_transfer *t = &w->transfer;
	memset(t, 0, sizeof *t);
	t->req = (struct reqid){1, ++w->lease};
	t->attempt = 1;
	t->lease_id = w->lease;
	t->lease_epoch = D_EPOCH;
	t->lease_generation = 1;
	strcpy(t->decode, "decode-1");
	t->deadline_us = clock_us() + 30000000;
	t->blocks = w->blocks / 2;
	t->tokens = t->blocks * w->layout.block_tokens;
	for (uint32_t i = 0; i < t->blocks; i++) {
		t->src[i] = order == IN_ORDER ? i : 2 * i;
		t->dst[i] = order == IN_ORDER ? i : 2 * (t->blocks - 1 - i);
	}
	w->ready_us = w->opened_us = w->sent_us = 0;
	struct err err = {.text = "no slot"};
	must(ring_publish(w->ring, t, &w->slot, &w->gen), &err, "publish");
	ring_bell(w->ring);
}

static void progress(uint32_t layer, uint32_t tokens)
{
	__atomic_store_n(ring_progress_word(w->ring, w->slot, layer),
	                 ring_progress_value(w->gen, tokens), __ATOMIC_RELEASE);
}

static void finish(void)
{
	const struct err err = {.text = "no answer within 10 s"};
	must(loop_until(is_ready), &err, "waiting for KV_READY");
	must(loop_until(is_sent), &err, "waiting for KV_SENT");
	ring_retire(w->ring, w->slot, w->gen);
}

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

static double median(double *v, unsigned n)
{
	qsort(v, n, sizeof *v, by_value);
	return v[n / 2];
}

/* The same pieces in the same order by memcpy in this process. */
static double memcpy_gbs(enum order order)
{
	uint32_t n = w->blocks / 2;
	uint64_t begin = clock_ns();
	for (uint32_t l = 0; l < w->layout.layers; l++) {
		size_t piece = w->layout.piece_bytes[l];
		for (uint32_t i = 0; i < (order == IN_ORDER ? 1 : n); i++)
			memcpy(w->d.data + kv_piece_offset(&w->layout, w->blocks, l,
			                                   order == IN_ORDER ? 0 : 2 * (n - 1 - i)),
			       w->p.data +
			           kv_piece_offset(&w->layout, w->blocks, l, order == IN_ORDER ? 0 : 2 * i),
			       order == IN_ORDER ? n * piece : piece);
	}
	return (double)n * (double)w->layout.block_bytes / (double)(clock_ns() - begin);
}

/* All is computed before LEASE_OPENED arrives: the rate from there until KV_READY is here, with
 * all messages and wake-ups. */
static void rate(const char *name, enum order order)
{
	enum { ROUNDS = 15 };
	double plain[ROUNDS], copy[ROUNDS], whole[ROUNDS], share[ROUNDS];
	const double bytes = (double)(w->blocks / 2) * (double)w->layout.block_bytes;
	double first = 0;
	for (int i = -2; i < ROUNDS; i++) {
		double m = memcpy_gbs(order);
		publish(order);
		for (uint32_t l = 0; l < w->layout.layers; l++)
			progress(l, w->blocks / 2 * w->layout.block_tokens);
		finish();
		if (i == -2)
			/* may be the messager's first touch of the pages */
			first = bytes / 1e3 / (double)w->ready->copy_us;
		if (i < 0)
			continue;
		plain[i] = m;
		copy[i] = bytes / 1e3 / (double)w->ready->copy_us;
		whole[i] = bytes / 1e3 / (double)(w->ready_us - w->opened_us);
		share[i] = copy[i] / m;
	}
	printf("%-10s %6.1f MiB in pieces of %6.1f KiB: memcpy %5.2f GB/s, messager copying %5.2f GB/s "
	       "(%3.0f %%; first pass %.2f GB/s), "
	       "LEASE_OPENED to KV_READY %5.2f GB/s\n",
	       name, bytes / 1048576, (double)w->layout.piece_bytes[0] / 1024, median(plain, ROUNDS),
	       median(copy, ROUNDS), 100 * median(share, ROUNDS), first, median(whole, ROUNDS));
}

/* One layer of one block at a time; the messager sleeps between them. From the progress store
 * until the last byte is in D's pool. */
static void reaction(void)
{
	enum { TRANSFERS = 10 };
	static double us[TRANSFERS * KV_LAYERS_MAX];
	unsigned n = 0;
	const uint32_t tokens = w->layout.block_tokens;
	const struct err err = {.text = "no answer within 10 s"};
	for (int t = 0; t < TRANSFERS; t++) {
		publish(IN_ORDER);
		must(loop_until(is_open), &err, "waiting for LEASE_OPEN");
		usleep(20000); /* its answer has arrived */
		for (uint32_t l = 0; l < w->layout.layers; l++) {
			size_t piece = w->layout.piece_bytes[l];
			volatile unsigned char *last = w->d.data +
			                               kv_piece_offset(&w->layout, w->blocks, l, 0) + piece - 1;
			memset(w->d.data + kv_piece_offset(&w->layout, w->blocks, l, 0), 2, piece);
			usleep(1000);
			uint64_t begin = clock_ns(), end = begin + 1000000000;
			progress(l, tokens);
			ring_bell(w->ring);
			while (*last != 1 && clock_ns() < end)
				;
			us[n++] = (double)(clock_ns() - begin) / 1e3;
		}
		for (uint32_t l = 0; l < w->layout.layers; l++)
			progress(l, w->blocks / 2 * tokens);
		ring_bell(w->ring);
		finish();
	}
	double mid = median(us, n);
	printf("reaction   progress stored until %.1f KiB are in D's pool: median %.0f us, p90 %.0f "
	       "us, p99 %.0f us (%u samples)\n",
	       (double)w->layout.piece_bytes[0] / 1024, mid, us[n * 9 / 10], us[n * 99 / 100], n);
}

static uint64_t messager_cpu_us(void)
{
	char path[64], text[1024] = "";
	unsigned long user = 0, sys = 0;
	snprintf(path, sizeof path, "/proc/%d/stat", (int)w->messager);
	FILE *f = fopen(path, "r");
	if (f && fgets(text, sizeof text, f) && strrchr(text, ')'))
		sscanf(strrchr(text, ')') + 2, "%*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu", &user,
		       &sys);
	if (f)
		fclose(f);
	return (uint64_t)(user + sys) * 1000000u / (uint64_t)sysconf(_SC_CLK_TCK);
}

static void idle(void)
{
	uint64_t begin = clock_us(), before = messager_cpu_us(), end = begin + 3000000;
	while (clock_us() < end) {
		const struct timeval tv = {0, 100000};
		event_base_loopexit(w->svc.base, &tv);
		event_base_dispatch(w->svc.base);
	}
	printf("idle       2 workers attached, no transfer: %.2f %% of a core\n",
	       100.0 * (double)(messager_cpu_us() - before) / (double)(clock_us() - begin));
}

int main(void)
{
	static const struct {
		const char *name;
		uint32_t layers, heads, dim, blocks;
	} shapes[] = {{"SmolLM2-135M", 30, 3, 64, 128}, {"8B", 32, 8, 128, 32}};
	log_set_level("error");
	for (unsigned i = 0; i < sizeof shapes / sizeof *shapes; i++) {
		set_up(shapes[i].layers, shapes[i].heads, shapes[i].dim, shapes[i].blocks);
		printf("# %s: %u layers, %u KV heads of %u, BF16, pools of %u blocks of 64 tokens\n",
		       shapes[i].name, shapes[i].layers, shapes[i].heads, shapes[i].dim, shapes[i].blocks);
		rate("neighbours", IN_ORDER);
		rate("scattered", SCATTERED);
		reaction();
		if (i == 0)
			idle();
		tear_down();
	}
	return 0;
}
