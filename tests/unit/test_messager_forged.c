/* test_messager_forged.c - tasks that do not fit the pools, published or changed in shared memory by a broken or hostile prefill worker: such a task fails, nobody else is
 * touched. */
#include "messager_steps.h"

#include <sys/mman.h>

/* Changes the fields of the published task in shared memory, as only a broken or hostile P would. */
static void forge(size_t offset, const void *value, size_t n)
{
	size_t size = (size_t)lseek(ring_fd(r->ring), 0, SEEK_END);
	unsigned char *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, ring_fd(r->ring), 0);
	const struct reqid id = {7, r->lease};
	unsigned char *at = memmem(p, size, &id, sizeof id);
	ck_assert_ptr_nonnull(at);
	memcpy(at + offset, value, n);
	munmap(p, size);
}

#define FIELD(f) offsetof(struct ring_task, f)
static const struct {
	const char *what;
	size_t offset;
	uint32_t value[4];
	size_t n;
} forged[] = {
	{"source block past the pool", FIELD(src) + 8, {RIG_BLOCKS}, 4},
	{"destination block past the pool", FIELD(dst), {UINT32_MAX}, 4},
	{"no blocks", FIELD(blocks), {0}, 4},
	{"too many blocks", FIELD(blocks), {UINT32_MAX}, 4},
	{"more blocks than its tokens", FIELD(blocks), {4}, 4},
	{"fewer blocks than its tokens", FIELD(blocks), {2}, 4},
	{"first token within a block", FIELD(first_token), {2}, 4},
	{"first token past the end", FIELD(first_token), {11}, 4},
	{"tokens without end", FIELD(tokens), {UINT32_MAX}, 4},
	{"decode worker is the prefill worker", FIELD(decode), {0}, 0},
	{"no request id", FIELD(req), {0}, 16},
	{"no attempt", FIELD(attempt), {0}, 4},
};

START_TEST(a_malformed_task_fails_and_harms_nobody)
{
	rig_publish(r, 1, 0, 10);
	if (strcmp(forged[_i].what, "decode worker is the prefill worker") == 0)
		forge(FIELD(decode), "prefill-1", 10);
	else
		forge(forged[_i].offset, forged[_i].value, forged[_i].n);
	turn(MOVER_IDLE);
	rig_opened(r, 0);
	turn(MOVER_IDLE);
	ck_assert_uint_eq(rig_written(r), 0);
	ck_assert_uint_eq(r->n_ended, 1);
	ck_assert_int_eq(r->last_end, END_MALFORMED);
	if (rig_count(r, MSG_TASK_FAILED))
		failed(END_MALFORMED, PDS__FAULT__FAULT_INTERNAL, "ring slot 0 of prefill-1");
	ring_cancel(r->ring, r->slot, r->gen);       /* the slot serves the next task as if nothing had been */
	ring_retire(r->ring, r->slot, r->gen);
	rig_publish(r, 2, 0, 10);
	turn(MOVER_OPEN);
	rig_opened(r, 0);
	rig_compute(r, 3, 10);
	turn(MOVER_OPEN);
	ck_assert(rig_all_arrived(r, 3));
}
END_TEST

START_TEST(a_name_without_end)
{
	char name[RING_NAME_MAX];
	memset(name, 'x', sizeof name);
	rig_publish(r, 1, 0, 10);
	forge(FIELD(decode), name, sizeof name);
	turn(MOVER_IDLE);
	failed(END_MALFORMED, PDS__FAULT__FAULT_INTERNAL, "out of range");
}
END_TEST

START_TEST(fields_that_change_later_change_nothing)
{
	opened();
	rig_compute(r, 3, 10);
	forge(FIELD(dst), &(uint32_t){UINT32_MAX}, 4);
	forge(FIELD(blocks), &(uint32_t){UINT32_MAX}, 4);
	turn(MOVER_OPEN);
	ck_assert(rig_all_arrived(r, 3));
}
END_TEST

START_TEST(a_slot_marked_by_somebody_else)
{
	opened();
	ring_mark_sent(r->ring, r->slot, r->gen);
	turn(MOVER_IDLE);
	failed(END_MALFORMED, PDS__FAULT__FAULT_INTERNAL, "marked sent by somebody else");
}
END_TEST

START_TEST(two_tasks_of_one_lease)
{
	opened();
	uint32_t first = r->slot;
	uint64_t first_gen = r->gen;
	rig_publish(r, 1, 0, 10);
	turn(MOVER_OPEN);
	ck_assert_uint_eq(mover_open_tasks(r->m), 1);
	ck_assert_ptr_nonnull(strstr(rig_last(r, MSG_TASK_FAILED)->text, "lease 1 has a task already"));
	/* but when the first was cancelled meanwhile the second is asked for */
	ring_cancel(r->ring, r->slot, r->gen);
	ring_retire(r->ring, r->slot, r->gen);
	turn(MOVER_OPEN);
	rig_publish(r, 1, 0, 10);
	ring_cancel(r->ring, first, first_gen);
	turn(MOVER_OPEN);
	ck_assert_uint_eq(mover_open_tasks(r->m), 1);
	ck_assert_uint_eq(rig_count(r, MSG_LEASE_OPEN), 2);
}
END_TEST

START_TEST(layouts_must_be_equal)
{
	struct kv_layout other;
	struct kv_region region, mapped;
	struct err e = {0};
	kv_layout_uniform(&other, RIG_LAYERS, 1, 8, RIG_BLOCK_TOKENS, KV_F32);
	mover_remove(r->m, r->wd);
	ck_assert_int_eq(kv_region_create(&region, &other, RIG_BLOCKS, &e), 0);
	ck_assert_int_eq(kv_region_map(&mapped, &other, RIG_BLOCKS, dup(region.control_fd), dup(region.data_fd), 1, &e), 0);
	mover_add(r->m, "decode-1", D_EPOCH, &other, &mapped, NULL);
	rig_publish(r, 1, 0, 10);
	turn(MOVER_IDLE);
	failed(END_MALFORMED, PDS__FAULT__FAULT_INTERNAL, "prefill-1 has 3x1x4:f32:4, decode-1 has 3x1x8:f32:4");
	kv_region_fini(&region);
}
END_TEST

static void add_tests(TCase *t)
{
	tcase_add_loop_test(t, a_malformed_task_fails_and_harms_nobody, 0, (int)(sizeof forged / sizeof *forged));
	tcase_add_test(t, a_name_without_end);
	tcase_add_test(t, fields_that_change_later_change_nothing);
	tcase_add_test(t, a_slot_marked_by_somebody_else);
	tcase_add_test(t, two_tasks_of_one_lease);
	tcase_add_test(t, layouts_must_be_equal);
}

int main(void)
{
	return steps_main("messager forged", add_tests);
}
