/* world_run.h - the end of a test program: runs the suite. */
#ifndef TESTS_WORLD_RUN_H
#define TESTS_WORLD_RUN_H

#include <check.h>
#include <stdlib.h>

/* What main returns. */
static inline int world_run(Suite *s)
{
	SRunner *r = srunner_create(s);
	srunner_run_all(r, CK_ENV);
	int failed = srunner_ntests_failed(r);
	srunner_free(r);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}

#endif
