/* test_overlap.c - two steps in flight (engine_start, engine_finish) on the simulated device, which
 * finds every fault in the KV; on the CUDA backend: test_cuda_models. */
#include "engine_rig.h"
#include "overlap_rig.h"

static struct rig_opts sim(void)
{
	return (struct rig_opts){.model = "etc/sim/small.conf", .backend = "sim", .kv = KV_BF16};
}

START_TEST(tokens_are_the_same)
{
	struct rig_opts o = sim();
	o.blocks = 512;
	overlap_check(o);
}
END_TEST

/* Without `overlap`, and on a device that computes in the calling thread, one step is in flight,
 * and no span can continue another. */
START_TEST(not_everywhere)
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
	ck_assert_str_eq(err.text, "span 0: 1 tokens that continue span 0 of the step before, which "
	                           "draws none for it");
	rig_close(&r);
}
END_TEST

/* What cannot be continued is refused, and nothing is started. */
START_TEST(refused)
{
	struct rig_opts o = sim();
	o.overlap = 1;
	struct rig r = rig_open(o);
	struct sample_params p = {.top_p = 1, .logprobs = -1};
	struct engine_draw d[2] = {{.params = &p}, {.params = &p}}, score = {.score = 1, .id = 5};
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
	next.n = 1;
	ck_assert_int_eq(engine_start(r.e, &next, 1, &err), 0);
	ck_assert_int_eq(engine_finish(r.e, &err), 0);
	ck_assert_int_eq(engine_finish(r.e, &err), 0);
	rig_close(&r);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("overlap");
	TCase *t = tcase_create("overlap");
	tcase_add_test(t, tokens_are_the_same);
	tcase_add_loop_test(t, not_everywhere, 0, 2);
	tcase_add_test(t, refused);
	suite_add_tcase(s, t);
	SRunner *r = srunner_create(s);
	srunner_run_all(r, CK_ENV);
	int failed = srunner_ntests_failed(r);
	srunner_free(r);
	return failed != 0;
}
