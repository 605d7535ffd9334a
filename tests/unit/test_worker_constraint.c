/* test_worker_constraint.c - which tokens a constraint may be written with: special ones never, but for a call those that are markers of calls and thoughts. */
#include "daemons/worker/constraint.h"
#include "daemons/worker/work.h"
#include "grammar/grammar.h"
#include "tempdir.h"
#include "util/mem.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char TOKENIZER[] =
	"{\"added_tokens\":[{\"id\":3,\"content\":\"[TOOL_CALLS]\",\"special\":true},{\"id\":4,\"content\":\"[/THINK]\",\"special\":true},"
	"{\"id\":5,\"content\":\"<|other|>\",\"special\":true},{\"id\":6,\"content\":\"<|END_ACTION|>\",\"special\":true},{\"id\":7,\"content\":\"<tool_call>\",\"special\":false}],"
	"\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false},\"decoder\":{\"type\":\"ByteLevel\"},"
	"\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\"ab\":2},\"merges\":[\"a b\"]}}";

/* 6 ends sequences: it is no marker to write, whatever its text. */
static const struct {
	Pds__ConstraintKind kind;
	const char *text;
	uint32_t tokens[4], n, want;
} cases[] = {
	{PDS__CONSTRAINT_KIND__CONSTRAINT_STRUCTURE, "[{\"literal\":\"[TOOL_CALLS]ab\"}]", {3, 0, 1}, 3, 3},
	{PDS__CONSTRAINT_KIND__CONSTRAINT_STRUCTURE, "[{\"literal\":\"[TOOL_CALLS]ab\"}]", {3, 2, 3}, 3, 2},
	{PDS__CONSTRAINT_KIND__CONSTRAINT_STRUCTURE, "[{\"free\":\"[/THINK]\"},{\"literal\":\"[TOOL_CALLS]\"}]", {0, 2, 4, 3}, 4, 4},
	{PDS__CONSTRAINT_KIND__CONSTRAINT_STRUCTURE, "[{\"literal\":\"<tool_call>\"}]", {7}, 1, 1},
	{PDS__CONSTRAINT_KIND__CONSTRAINT_STRUCTURE, "[{\"free\":\"\"}]", {0, 5}, 2, 1},
	{PDS__CONSTRAINT_KIND__CONSTRAINT_STRUCTURE, "[{\"literal\":\"<|END_ACTION|>\"}]", {6}, 1, 0},
	{PDS__CONSTRAINT_KIND__CONSTRAINT_REGEX, "\\[TOOL_CALLS\\]a", {3, 0}, 2, 0},
	{PDS__CONSTRAINT_KIND__CONSTRAINT_REGEX, ".*", {0, 4}, 2, 1},
};

START_TEST(tokens_that_may_be_written)
{
	char dir[TEST_FOLDER_BYTES], path[TEST_FOLDER_BYTES + 64];
	struct engine_info info = {.vocab = 8, .eos = {6}, .n_eos = 1};
	struct work w = {0};
	struct err err = {0};
	Pds__Request r = PDS__REQUEST__INIT;
	Pds__Constraint k = PDS__CONSTRAINT__INIT;
	test_folder(dir, "constraint");
	snprintf(path, sizeof path, "%s/tokenizer.json", dir);
	FILE *f = fopen(path, "w");
	ck_assert(f && fputs(TOKENIZER, f) >= 0 && fclose(f) == 0);
	struct constraints *all = constraints_new(dir, &info, 16u << 20);
	k.kind = cases[_i].kind;
	k.text = mem_strdup(cases[_i].text);
	r.constraint = &k;
	ck_assert_msg(constraint_take(all, &w, &r, &err) == 0, "%s", err.text);
	ck_assert_int_eq(constraint_is_ready(&w), 0);
	ck_assert_msg(constraint_compile(&w, &err) == 0, "%s", err.text);
	ck_assert_int_eq(constraint_is_ready(&w), 1);
	w.tokens = (uint32_t *)cases[_i].tokens;
	ck_assert_uint_eq(constraint_leading(&w, cases[_i].n), cases[_i].want);
	constraint_detach(&w);
	constraints_destroy(&all);
	free(k.text);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("worker_constraint");
	TCase *c = tcase_create("tokens");
	tcase_set_timeout(c, 60);
	tcase_add_loop_test(c, tokens_that_may_be_written, 0, (int)(sizeof cases / sizeof *cases));
	suite_add_tcase(suite, c);
	SRunner *sr = srunner_create(suite);
	srunner_run_all(sr, CK_NORMAL);
	int failed = srunner_ntests_failed(sr);
	srunner_free(sr);
	return failed ? 1 : 0;
}
