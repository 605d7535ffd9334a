/* test_once.c - what others cause is logged once, and does not fill the log when it is always
 * different. */
#include "util/once.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

static int log_text(struct once *o, const char *text)
{
	return once_may_log(o, text, strlen(text));
}

TEST(the_same_is_logged_once)
{
	struct once o = {0};
	ck_assert_int_eq(log_text(&o, "a"), 1);
	ck_assert_int_eq(log_text(&o, "b"), 1);
	for (int i = 0; i < 1000; i++)
		ck_assert_int_eq(log_text(&o, i % 2 ? "a" : "b"), 0);
	ck_assert_int_eq(log_text(&o, "c"), 1);
}

TEST(what_is_always_different_is_limited)
{
	struct once o = {0};
	unsigned logged = 0;
	for (unsigned i = 0; i < 100; i++)
		logged += (unsigned)once_may_log(&o, &i, sizeof i);
	ck_assert_uint_ge(logged, ONCE_BURST);
	ck_assert_uint_lt(logged, ONCE_BURST + 20); /* one more each ONCE_US */
	/* what was not logged for that reason is logged when there is room again */
	unsigned last = 99;
	o.full_us = 0;
	ck_assert_int_eq(once_may_log(&o, &last, sizeof last), 1);
	ck_assert_int_eq(once_may_log(&o, &last, sizeof last), 0);
}
