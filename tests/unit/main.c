/* main.c - the main of every unit and daemon test: what the file registered, as one suite of
 * libcheck. */
#include "test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct test_entry *entries; /* by order */

void test_register(struct test_entry *e)
{
	struct test_entry **at = &entries;
	while (*at && (*at)->order < e->order)
		at = &(*at)->next;
	e->next = *at;
	*at = e;
}

static TCase *case_open(Suite *s, struct test_entry *e)
{
	const struct test_case *c = e->opens;
	for (struct test_entry *o = entries; o != e; o = o->next) {
		if (!o->opens || strcmp(o->opens->name, c->name) != 0)
			continue;
		if (c->timeout_s || c->setup || c->teardown || c->setup_once) {
			fprintf(stderr, "TEST_CASE(\"%s\") has its settings already\n", c->name);
			exit(EXIT_FAILURE);
		}
		return o->made;
	}
	e->made = tcase_create(c->name);
	if (c->timeout_s)
		tcase_set_timeout(e->made, c->timeout_s);
	if (c->setup || c->teardown)
		tcase_add_checked_fixture(e->made, c->setup, c->teardown);
	if (c->setup_once)
		tcase_add_unchecked_fixture(e->made, c->setup_once, NULL);
	suite_add_tcase(s, e->made);
	return e->made;
}

int main(int argc, char **argv)
{
	const char *slash = strrchr(argv[0], '/'), *name = slash ? slash + 1 : argv[0];
	name += strncmp(name, "test_", 5) == 0 ? 5 : 0;
	for (struct test_entry *e = entries; e; e = e->next)
		if (e->start)
			e->start(argc, argv);
	Suite *s = suite_create(name);
	TCase *c = NULL;
	for (struct test_entry *e = entries; e; e = e->next) {
		if (e->opens) {
			c = case_open(s, e);
		} else if (e->add) {
			if (!c)
				suite_add_tcase(s, c = tcase_create(name));
			e->add(c);
		}
	}
	SRunner *r = srunner_create(s);
	srunner_run_all(r, CK_ENV);
	int failed = srunner_ntests_failed(r), ran = srunner_ntests_run(r);
	srunner_free(r);
	if (!ran)
		fprintf(stderr, "%s: no test ran\n", argv[0]);
	return failed || !ran ? EXIT_FAILURE : EXIT_SUCCESS;
}
