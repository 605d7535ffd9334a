/* test_conform_streams.c - work of a stream in its order, streams beside each other, words of
 * progress, and what the device counts and calls. */
/* run: threads */
#include "tests/conform/conform.h"
#include "tests/unit/skip.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <time.h>

/* Uploads, runs of two programs over different batches, and downloads, all before the one sync:
 * each sees what those before it left. */
CONFORM_TEST(work_of_a_stream_is_in_order)
{
	enum { DIM = 48, ROUNDS = 12 };
	static const struct sequence seq[SEQUENCES] = {{0, 19}, {0, 3}};
	struct world *w = world_new(seq, 16);
	struct schedule s[2] = {schedule_make(w, ORDER_WHOLE, 0, false),
	                        schedule_make(w, ORDER_CHUNKS, 2, false)};
	struct kern_limits limits = world_limits(w);
	EACH_TARGET(dev, 2)
	{
		uint32_t rows = limits.rows, n = rows * DIM;
		struct kern_mem m = mem_get(dev, KERN_MEM_DEVICE, n * 4),
						batch[2] = {batch_get(dev, w, &s[0].step[0], NULL),
		                            batch_get(dev, w, &s[1].step[0], NULL)};
		struct kern_op op[2] = {op_scale(m.dev, m.dev, 2, DIM), op_scale(m.dev, m.dev, -0.5f, DIM)};
		struct kern_program *p[2] = {program_get(dev, &op[0], 1, &limits),
		                             program_get(dev, &op[1], 1, &limits)};
		uint32_t live[2] = {world_rows(w), 4};
		float *in[ROUNDS], *out[ROUNDS];
		for (uint32_t i = 0; i < ROUNDS; i++) {
			in[i] = rand_floats(n, 1);
			out[i] = conform_alloc(n, sizeof(float));
			if (i % 4 == 0) /* else what the last round left */
				device_ok(dev, dev->ops->upload(dev->s, m.dev, in[i], n * 4), "upload");
			device_ok(dev, dev->ops->run(dev->s, p[i % 2], &batch[i % 3 == 1]), "run");
			device_ok(dev, dev->ops->run(dev->s, p[0], &batch[i % 3 == 2]), "run");
			device_ok(dev, dev->ops->download(dev->s, out[i], m.dev, n * 4), "download");
		}
		device_ok(dev, dev->ops->sync(dev->s), "sync");
		for (uint32_t i = 0; i < ROUNDS; i++)
			for (uint32_t e = 0; e < n; e++) {
				float x = (i % 4 ? out[i - 1] : in[i])[e];
				x *= e / DIM < live[i % 3 == 1] ? (i % 2 ? -0.5f : 2) : 1;
				x *= e / DIM < live[i % 3 == 2] ? 2 : 1;
				EXPECT(out[i][e] == x, "round %u: row %u, column %u is %g, want %g", i, e / DIM,
				       e % DIM, (double)out[i][e], (double)x);
			}
		for (int i = 0; i < 2; i++) {
			dev->ops->program_destroy(&p[i]);
			dev->ops->mem_free(dev->d, &batch[i]);
		}
		dev->ops->mem_free(dev->d, &m);
	}
}

/* Two streams take turns without waiting for each other: programs of their own, and one that
 * both run over batches and rows of their own. */
CONFORM_TEST(streams_beside_each_other)
{
	enum { DIM = 64, ROUNDS = 9, ROWS = 19 };
	static const struct sequence seq[SEQUENCES] = {{0, ROWS}};
	struct world *w = world_new(seq, 16);
	struct schedule s = schedule_make(w, ORDER_WHOLE, 0, false);
	struct kern_limits limits = world_limits(w);
	const float factor[2] = {2, -0.5f};
	EACH_TARGET(dev, 2)
	{
		struct device two[2] = {*dev, *dev};
		struct kern_mem m[2], batch[2];
		struct kern_program *p[2], *both;
		struct kern_weight *wt;
		float *x = rand_floats(ROWS * DIM, 1), *out = conform_alloc(2 * ROWS * DIM, sizeof *out),
			  unit[DIM * DIM] = {0};
		for (int i = 0; i < DIM; i++)
			unit[i * DIM + i] = 4;
		device_ok(dev, dev->ops->stream_new(dev->d, &two[1].s), "stream_new");
		wt = weight_get(dev, KERN_F32, 1, DIM, DIM, unit);
		for (int i = 0; i < 2; i++) {
			m[i] = mem_get(dev, KERN_MEM_DEVICE, 2 * limits.rows * DIM * 4);
			batch[i] = batch_get(dev, w, &s.step[0], NULL);
			struct kern_op op[2] = {op_scale(m[i].dev, m[i].dev, factor[i], DIM),
			                        {.kind = KERN_OP_MATMUL}};
			op[1].matmul.x = op[0].scale.x;
			op[1].matmul.products = 1;
			op[1].matmul.p[0] = (struct kern_product){
				wt, {0}, {kern_at(m[i].dev, limits.rows * DIM * 4), DIM, KERN_F32}};
			p[i] = program_get(dev, op, 2, &limits);
			mem_put(&two[i], m[i].dev, x, ROWS * DIM * 4);
		}
		struct kern_op op = op_scale(m[0].dev, m[0].dev, 0.25f, DIM);
		both = program_get(dev, &op, 1, &limits);
		for (int n = 0; n < ROUNDS; n++)
			for (int i = 0; i < 2; i++)
				device_ok(dev, dev->ops->run(two[i].s, p[i], &batch[i]), "run");
		device_ok(dev, dev->ops->sync(two[1].s), "sync");
		device_ok(dev, dev->ops->run(two[0].s, both, &batch[0]), "run");
		device_ok(dev, dev->ops->sync(two[0].s), "sync");
		/* after it: both scale rows of the first */
		device_ok(dev, dev->ops->run(two[1].s, both, &batch[1]), "run");
		device_ok(dev, dev->ops->sync(two[1].s), "sync");
		for (int i = 0; i < 2; i++) {
			mem_take(&two[1 - i], out, m[i].dev, ROWS * DIM * 4);
			mem_take(&two[1 - i], out + ROWS * DIM, kern_at(m[i].dev, limits.rows * DIM * 4),
			         ROWS * DIM * 4);
			for (uint32_t e = 0; e < ROWS * DIM; e++) {
				float want = x[e];
				for (int n = 0; n < ROUNDS; n++)
					want *= factor[i];
				EXPECT(out[e] == want * (i ? 1 : 0.0625f) && out[ROWS * DIM + e] == 4 * want,
				       "stream %d: element %u is %g and %g, want %g and %g", i, e, (double)out[e],
				       (double)out[ROWS * DIM + e], (double)want, 4 * (double)want);
			}
			dev->ops->program_destroy(&p[i]);
			dev->ops->mem_free(dev->d, &m[i]);
			dev->ops->mem_free(dev->d, &batch[i]);
		}
		dev->ops->program_destroy(&both);
		dev->ops->weight_destroy(dev->d, &wt);
		dev->ops->stream_destroy(&two[1].s);
		EXPECT(!two[1].s, "stream_destroy leaves a pointer");
	}
}

/* --- progress ------------------------------------------------------------ */

enum {
	LAYERS = 24,
	KV_DIM = 16,
	WORDS = 3 * LAYERS + 40,
	SEEN_ENOUGH = 20,
	SECONDS_MOST = 60,
	WIDE = 128
};

/* A program of many layers, each of which writes KV, tells, and computes a product, which takes
 * a while; three sequences, the third tells nobody. */
struct told {
	const struct device *dev;
	struct world *w;
	struct kern_mem k, wide, pool, board, batch;
	struct kern_weight *w_wide;
	struct kern_kv_layer layer[LAYERS];
	struct kern_program *p;
	struct kern_progress progress[3];
	atomic_ulong run, done; /* what the watcher waits for, and has seen the last layer of */
	/* how often it saw a run that had told of some layers, but not of all */
	atomic_uint between;
	atomic_bool stop;
	char wrong[200];
};

static uint64_t told_word(const struct told *t, unsigned seq, unsigned layer)
{
	size_t at = seq == 0 ? layer : (size_t)LAYERS + 8 + 2 * layer;
	return __atomic_load_n((uint64_t *)t->board.host + at, __ATOMIC_ACQUIRE);
}

/* KV of a layer and sequence 0 or 1 as the host sees it: every element must be of this run. */
static bool told_kv(const struct told *t, unsigned seq, unsigned layer, float want)
{
	const struct kern_kv_layer *kv = &t->layer[layer];
	for (uint32_t p = 0; p < t->w->seq[seq].rows; p++) {
		size_t at = kv->base.v - t->pool.dev.v + t->w->table[seq][p / 16] * kv->block_stride_bytes +
		            (size_t)(p % 16) * KV_DIM * 4;
		const float *k = (const float *)(const void *)((const unsigned char *)t->pool.host + at);
		for (uint32_t d = 0; d < KV_DIM; d++)
			if (k[d] != want)
				return false;
	}
	return true;
}

/* Words of the host's memory are looked at while the program runs. The next run begins when this
 * one has been seen to its end. */
static void *told_watch(void *arg)
{
	struct told *t = arg;
	for (unsigned long run = 1; !t->stop; run++) {
		while (atomic_load(&t->run) < run && !t->stop)
			sched_yield();
		for (unsigned layer = 0; layer < LAYERS && !t->stop;) {
			unsigned seq = layer % 2;
			if (told_word(t, seq, layer) != 1000 * run + seq) {
				atomic_fetch_add(&t->between, layer > 0);
				sched_yield();
				continue;
			}
			if (!told_kv(t, seq, layer, (float)run) && !t->wrong[0])
				snprintf(t->wrong, sizeof t->wrong,
				         "run %lu: layer %u was told before its KV was there", run, layer);
			layer++;
		}
		atomic_store(&t->done, run);
	}
	return NULL;
}

static void told_new(struct told *t, const struct device *dev)
{
	static const struct sequence seq[SEQUENCES] = {{0, 20}, {0, 3}, {0, 9}};
	*t = (struct told){.dev = dev, .w = world_new(seq, 16)};
	size_t plane = 16 * KV_DIM * 4, stride = LAYERS * plane;
	struct kern_op op[3 * LAYERS] = {0};
	struct kern_limits limits = world_limits(t->w);
	t->k = mem_get(dev, KERN_MEM_DEVICE, limits.rows * KV_DIM * 4);
	t->wide = mem_get(dev, KERN_MEM_DEVICE, 2 * limits.rows * WIDE * 4);
	t->w_wide = weight_get(dev, KERN_F32, 1, WIDE, WIDE, rand_floats(WIDE * WIDE, 1));
	t->pool = mem_get(dev, KERN_MEM_SHARED, t->w->blocks * stride);
	t->board = mem_get(dev, KERN_MEM_SHARED, WORDS * 8);
	for (unsigned i = 0; i < LAYERS; i++) {
		t->layer[i] = (struct kern_kv_layer){
			kern_at(t->pool.dev, i * plane), stride, 1, KV_DIM, 16, KERN_F32, i, KV_DIM};
		op[3 * i].kind = KERN_OP_KV_WRITE;
		op[3 * i].kv_write.kv = t->layer[i];
		op[3 * i].kv_write.k = (struct kern_tensor){t->k.dev, KV_DIM, KERN_F32};
		op[3 * i + 1].kind = KERN_OP_PROGRESS;
		op[3 * i + 1].progress.layer = i;
		op[3 * i + 2].kind = KERN_OP_MATMUL;
		op[3 * i + 2].matmul.x = (struct kern_tensor){t->wide.dev, WIDE, KERN_F32};
		op[3 * i + 2].matmul.products = 1;
		op[3 * i + 2].matmul.p[0] = (struct kern_product){
			t->w_wide, {0}, {kern_at(t->wide.dev, limits.rows * WIDE * 4), WIDE, KERN_F32}};
	}
	t->p = program_get(dev, op, LEN(op), &limits);
	t->progress[0] = (struct kern_progress){t->board.dev, 0, 1};
	t->progress[1] = (struct kern_progress){kern_at(t->board.dev, 8 * (LAYERS + 8)), 0, 2};
}

static void told_free(struct told *t)
{
	const struct kern_ops *k = t->dev->ops;
	k->program_destroy(&t->p);
	k->weight_destroy(t->dev->d, &t->w_wide);
	k->mem_free(t->dev->d, &t->k);
	k->mem_free(t->dev->d, &t->wide);
	k->mem_free(t->dev->d, &t->pool);
	k->mem_free(t->dev->d, &t->board);
	k->mem_free(t->dev->d, &t->batch);
}

static void told_run(struct told *t, const struct step *st, unsigned long run)
{
	float *k = conform_alloc(t->k.bytes, 1);
	for (size_t i = 0; i < t->k.bytes / 4; i++)
		k[i] = (float)run;
	t->progress[0].value = 1000 * run;
	t->progress[1].value = 1000 * run + 1;
	mem_put(t->dev, t->k.dev, k, t->k.bytes);
	if (!t->batch.bytes)
		t->batch = mem_get(t->dev, KERN_MEM_PINNED, batch_bytes(t->w));
	batch_write(t->w, st, (uint32_t)run, t->progress, t->batch.host);
	atomic_store(&t->run, run);
	device_ok(t->dev, t->dev->ops->run(t->dev->s, t->p, &t->batch), "run");
	device_ok(t->dev, t->dev->ops->sync(t->dev->s), "sync");
}

static void told_words_check(const struct told *t, unsigned long run)
{
	uint64_t word[WORDS], want[WORDS] = {0};
	for (unsigned i = 0; i < LAYERS; i++) {
		want[i] = 1000 * run;
		want[LAYERS + 8 + 2 * i] = 1000 * run + 1;
	}
	mem_take(t->dev, word, t->board.dev, sizeof word);
	for (unsigned i = 0; i < WORDS; i++)
		EXPECT(word[i] == want[i], "run %lu: word %u is %llu, want %llu", run, i,
		       (unsigned long long)word[i], (unsigned long long)want[i]);
}

CONFORM_TEST(progress_is_told_after_the_kv)
{
	EACH_TARGET(dev, 2)
	{
		struct told t;
		struct kern_counters first, last;
		pthread_t watcher;
		told_new(&t, dev);
		struct schedule s = schedule_make(t.w, ORDER_WHOLE, 0, false);
		dev->ops->counters(dev->d, &first);
		bool watched = t.board.host && t.pool.host;
		if (!watched)
			SKIP_PART("%s: the host cannot look at shared memory", dev->target->name);
		else
			EXPECT(pthread_create(&watcher, NULL, told_watch, &t) == 0, "no thread");
		unsigned long run = 0;
		time_t begun = time(NULL);
		while (run < 3 || (watched && atomic_load(&t.between) < SEEN_ENOUGH &&
		                   time(NULL) - begun < SECONDS_MOST)) {
			size_t mark = conform_mark();
			told_run(&t, &s.step[0], ++run);
			while (watched && atomic_load(&t.done) < run)
				sched_yield();
			conform_release(mark);
			EXPECT(!t.wrong[0], "%s", t.wrong);
		}
		t.stop = true;
		if (watched)
			pthread_join(watcher, NULL);
		told_words_check(&t, run);
		EXPECT(!watched || atomic_load(&t.between) > 0,
		       "in %lu runs no word was seen before the last layer", run);
		dev->ops->counters(dev->d, &last);
		EXPECT(last.pulse >= first.pulse + run, "the pulse went from %llu to %llu in %lu runs",
		       (unsigned long long)first.pulse, (unsigned long long)last.pulse, run);
		told_free(&t);
	}
}

static void count_call(void *arg)
{
	atomic_fetch_add((atomic_uint *)arg, 1);
}

/* Who is called when words were stored: not for a batch that has none. */
CONFORM_TEST(progress_calls)
{
	static const struct sequence seq[SEQUENCES] = {{0, 5}, {0, 2}};
	struct world *w = world_new(seq, 16);
	struct schedule s = schedule_make(w, ORDER_WHOLE, 0, false);
	struct kern_limits limits = world_limits(w);
	EACH_TARGET(like, 2)
	{
		atomic_uint calls = 0;
		char err[200];
		const char *variant = like->target->variant;
		struct kern_config conf = {.variant = variant[0] ? variant : NULL,
		                           .threads = 2,
		                           .progressed = count_call,
		                           .progressed_arg = &calls};
		struct device one = *like, *dev = &one;
		EXPECT(dev->ops->open(&conf, &dev->d, err, sizeof err) == 0, "%s", err);
		device_ok(dev, dev->ops->stream_new(dev->d, &dev->s), "stream_new");
		struct kern_mem board = mem_get(dev, KERN_MEM_SHARED, 64);
		const struct kern_progress progress[2] = {{{0}, 0, 0}, {kern_at(board.dev, 8), 9, 1}};
		struct kern_mem batch[2] = {batch_get(dev, w, &s.step[0], NULL),
		                            batch_get(dev, w, &s.step[0], progress)};
		struct kern_op op[2] = {{.kind = KERN_OP_PROGRESS},
		                        {.kind = KERN_OP_PROGRESS, .progress = {3}}};
		struct kern_program *p = program_get(dev, op, 2, &limits);
		uint64_t word[8], want[8] = {[1] = 9, [4] = 9};
		program_run(dev, p, &batch[0]);
		mem_take(dev, word, board.dev, sizeof word);
		EXPECT(!memcmp(word, (uint64_t[8]){0}, sizeof word),
		       "words were stored though nobody asked");
		EXPECT(atomic_load(&calls) == 0, "%u calls though nothing was stored", atomic_load(&calls));
		program_run(dev, p, &batch[1]);
		mem_take(dev, word, board.dev, sizeof word);
		EXPECT(!memcmp(word, want, sizeof word), "the words are %llu and %llu, want 9",
		       (unsigned long long)word[1], (unsigned long long)word[4]);
		for (time_t end = time(NULL) + SECONDS_MOST; !atomic_load(&calls) && time(NULL) < end;)
			sched_yield();
		EXPECT(atomic_load(&calls) > 0, "nobody was called");
		dev->ops->program_destroy(&p);
		for (int i = 0; i < 2; i++)
			dev->ops->mem_free(dev->d, &batch[i]);
		dev->ops->mem_free(dev->d, &board);
		dev->ops->stream_destroy(&dev->s);
		dev->ops->close(&dev->d);
	}
}
