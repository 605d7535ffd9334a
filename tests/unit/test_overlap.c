/* test_overlap.c - two steps in flight (engine_start, engine_finish) on the simulated device, which
 * finds every fault in the KV; on the CUDA backend: test_cuda_models. What fails is the device: its
 * functions are replaced. */
#include "engine_rig.h"
#include "overlap_rig.h"
#include "engine/engine_impl.h"

static struct rig_opts sim(void)
{
	return (struct rig_opts){.model = "etc/sim/small.conf", .backend = "sim", .kv = KV_BF16};
}

TEST(tokens_are_the_same)
{
	struct rig_opts o = sim();
	o.blocks = 512;
	overlap_check(o, engine_start);
}

TEST(drafts_of_the_device)
{
	struct rig_opts o = sim();
	o.blocks = 512;
	overlap_drafts_check(o);
}

static int run_refused(struct kern_stream *s, struct kern_program *p, const struct kern_mem *batch)
{
	(void)s, (void)p, (void)batch;
	return KERN_EDEVICE;
}

/* The device refuses the step some times; then it does not. */
static int refused_first(struct engine *e, struct engine_span *spans, uint32_t n, struct err *err)
{
	const struct kern_ops *ops = e->ops;
	struct kern_ops refusing = *ops;
	refusing.run = run_refused;
	e->ops = &refusing;
	for (uint32_t i = 0; i < 3; i++)
		ck_assert_int_eq(engine_start(e, spans, n, err), ERR_IO);
	e->ops = ops;
	return engine_start(e, spans, n, err);
}

/* A step that could not start, while another is in flight, changes nothing for the one after it. */
TEST(a_step_that_cannot_start)
{
	struct rig_opts o = sim();
	o.blocks = 512;
	overlap_check(o, refused_first);
}

static unsigned split_steps;

/* The lists of draws fill a batch sooner. */
static int in_passes(struct engine *e, struct engine_span *spans, uint32_t n, struct err *err)
{
	struct kern_counters before, after;
	e->list_words = 90;
	engine_counters(e, &before);
	int rc = engine_start(e, spans, n, err);
	engine_counters(e, &after);
	split_steps += after.steps - before.steps > 1;
	return rc;
}

/* Steps whose draws do not fit into one batch overlap like others. */
TEST(steps_of_several_passes)
{
	struct rig_opts o = sim();
	o.blocks = 512;
	overlap_check(o, in_passes);
	ck_assert_uint_ge(split_steps, OVERLAP_STEPS);
}

enum { EMBEDDED = 20 };
static double embedded[2][8192]; /* what is wanted, and what a step gave */

static struct engine_span embedding(const uint32_t *ids, const uint32_t *blocks, double *sum)
{
	return (struct engine_span){
		.tokens = ids, .n = EMBEDDED, .blocks = blocks, .logits = ENGINE_LOGITS_ALL, .hidden = sum};
}

static int with_embedding(struct engine *e, struct engine_span *spans, uint32_t n, struct err *err)
{
	static const uint32_t blocks[] = {300, 301};
	uint32_t ids[EMBEDDED];
	some_ids(ids, EMBEDDED, 99);
	memset(embedded[1], 0, sizeof embedded[1]);
	spans[n] = embedding(ids, blocks, embedded[1]);
	int rc = engine_start(e, spans, n + 1, err);
	ck_assert(rc || memcmp(embedded[0], embedded[1], sizeof embedded[1]) == 0);
	return rc;
}

/* An embedding, which is computed before engine_start returns, is that of a step of its own. */
TEST(embeddings_beside_steps_in_flight)
{
	struct rig_opts o = sim();
	o.blocks = 512;
	o.hidden = 1;
	struct rig r = rig_open(o);
	struct seq s = seq_new(&r, 0);
	uint32_t ids[EMBEDDED];
	ck_assert_uint_le(engine_info(r.e)->hidden, sizeof embedded[0] / sizeof *embedded[0]);
	some_ids(ids, EMBEDDED, 99);
	struct engine_span span = embedding(ids, s.table, embedded[0]);
	step(&r, &span, 1);
	rig_close(&r);
	overlap_check(o, with_embedding);
}

static int sync_previous_fails(struct kern_stream *s)
{
	(void)s;
	return KERN_EDEVICE;
}

/* The earlier of two steps fails: the later one has its results, and others can follow it. */
TEST(a_step_that_fails_in_flight)
{
	struct overlap_seq q[OVERLAP_SEQS], want[OVERLAP_SEQS];
	struct engine_span spans[3][OVERLAP_SEQS];
	struct overlap_seq *of[OVERLAP_SEQS];
	struct rig_opts o = sim();
	struct err err = {0};
	uint32_t n = 0;
	o.blocks = 512;
	o.overlap = 1;
	struct rig r = rig_open(o);
	overlap_run(&r, want, 0, engine_start);
	overlap_begin(q, &r);
	const struct kern_ops *ops = r.e->ops;
	struct kern_ops failing = *ops;
	failing.sync_previous = sync_previous_fails;
	for (uint32_t k = 0; k < 3; k++) {
		n = overlap_fill(q, k, 1, spans[k], of);
		ck_assert_int_eq(engine_start(r.e, spans[k], n, &err), 0);
		r.e->ops = k == 1 ? &failing : ops;
		if (k)
			ck_assert_int_eq(engine_finish(r.e, &err), k == 1 ? ERR_IO : 0);
		r.e->ops = ops;
	}
	ck_assert_int_eq(engine_finish(r.e, &err), 0);
	for (uint32_t i = 0; i < n; i++) /* `of` step 2 */
		ck_assert_uint_eq(spans[2][i].drawn->id,
		                  want[of[i] - q].tokens[of[i]->prompt + 2 - of[i]->from]);
	for (uint32_t i = 0; i < OVERLAP_SEQS; i++)
		sample_edit_destroy(&q[i].edits);
	rig_close(&r);
}

/* Without `overlap`, and on a device that computes in the calling thread, one step is in flight,
 * and no span can continue another. */
TEST_LOOP(not_everywhere, 0, 2)
{
	struct rig_opts ways[2] = {sim(), {.model = GOLDEN "llama", .kv = KV_F32, .overlap = 1}};
	struct rig r = rig_open(ways[_i]);
	struct sample_params p = {.top_p = 1, .logprobs = -1};
	struct engine_draw d = {.params = &p};
	struct seq s = seq_new(&r, 0);
	uint32_t ids[4] = {5, 6, 7, 8};
	struct err err = {0};
	ck_assert_int_eq(engine_info(r.e)->overlap, 0);
	struct engine_span span = {
		.tokens = ids, .n = 4, .blocks = s.table, .logits = ENGINE_LOGITS_LAST, .draws = &d};
	step(&r, &span, 1);
	span.n = span.continues = 1;
	span.position = 4;
	ck_assert_int_eq(engine_step(r.e, &span, 1, &err), ERR_INVALID);
	ck_assert_str_eq(
		err.text,
		"span 0: 1 tokens, 0 of them drafts, that continue span 0 of the step before, which "
		"draws none for it");
	rig_close(&r);
}

/* What cannot be continued is refused, and nothing is started. */
TEST(refused)
{
	struct rig_opts o = sim();
	o.overlap = 1;
	o.histories = 2;
	o.history_match = 2;
	struct rig r = rig_open(o);
	struct sample_params p = {.top_p = 1, .logprobs = -1};
	struct engine_draw d[2] = {{.params = &p}, {.params = &p}},
					   both[2] = {{.params = &p, .index = 1}, {.params = &p, .index = 2}},
					   score = {.score = 1, .id = 5};
	struct seq s[2] = {seq_new(&r, 0), seq_new(&r, 48)};
	uint32_t ids[4] = {5, 6, 7, 8};
	struct err err = {0};
	struct engine_span first[2], next;
	for (int i = 0; i < 2; i++)
		first[i] = (struct engine_span){.tokens = ids,
		                                .n = 4,
		                                .blocks = s[i].table,
		                                .logits = ENGINE_LOGITS_LAST,
		                                .draws = i ? &score : d};
	next = (struct engine_span){
		.n = 1, .position = 4, .blocks = s[0].table, .logits = ENGINE_LOGITS_LAST, .draws = d};
	next.continues = 1; /* no step before */
	ck_assert_int_eq(engine_start(r.e, &next, 1, &err), ERR_INVALID);
	ck_assert_int_eq(engine_start(r.e, first, 2, &err), 0);
	next.continues = 2; /* it was scored */
	ck_assert_int_eq(engine_start(r.e, &next, 1, &err), ERR_INVALID);
	next.continues = 3; /* there is none */
	ck_assert_int_eq(engine_start(r.e, &next, 1, &err), ERR_INVALID);
	next.continues = 1;
	next.n = 2;
	ck_assert_int_eq(engine_start(r.e, &next, 1, &err), ERR_INVALID);
	next.drafts = 1; /* no history */
	next.draws = both;
	next.logits = ENGINE_LOGITS_ALL;
	ck_assert_int_eq(engine_start(r.e, &next, 1, &err), ERR_INVALID);
	next.history = 3; /* there are two */
	ck_assert_int_eq(engine_start(r.e, &next, 1, &err), ERR_INVALID);
	next.history = 2;
	next.n_known = engine_info(r.e)->history_tokens + 1;
	ck_assert_int_eq(engine_start(r.e, &next, 1, &err), ERR_INVALID);
	next.n_known = 0;
	next.logits = ENGINE_LOGITS_LAST; /* the first row draws nothing */
	ck_assert_int_eq(engine_start(r.e, &next, 1, &err), ERR_INVALID);
	next.n = 1;
	next.drafts = 0;
	next.history = 0;
	next.n_known = 1;
	ck_assert_int_eq(engine_start(r.e, &next, 1, &err), ERR_INVALID);
	next.n_known = 0;
	next.position = engine_info(r.e)->context;
	ck_assert_int_eq(engine_start(r.e, &next, 1, &err), ERR_INVALID);
	next.position = 4;
	ck_assert_int_eq(engine_start(r.e, &next, 1, &err), 0);
	ck_assert_int_eq(engine_finish(r.e, &err), 0);
	ck_assert_int_eq(engine_finish(r.e, &err), 0);
	rig_close(&r);
}
