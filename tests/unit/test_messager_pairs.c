/* test_messager_pairs.c - sums by pair of workers, and their bound. */
#include "daemons/messager/pairs.h"
#include "util/buf.h"

#include <check.h>
#include <stdio.h>
#include <string.h>

static unsigned count(const char *s, const char *word)
{
	unsigned n = 0;
	for (; (s = strstr(s, word)); s++)
		n++;
	return n;
}

TEST(sums_by_pair)
{
	struct buf out;
	struct pairs *p = pairs_new();
	buf_init(&out, 0);
	pairs_add(p, "p1", "d1", 100, 5);
	pairs_add(p, "p1", "d\"2", 7, 1);
	pairs_add(p, "p1", "d1", 11, 6);
	pairs_json(p, &out);
	ck_assert_str_eq(
		out.data, "[{\"from\":\"p1\",\"to\":\"d1\",\"transfers\":2,\"bytes\":111,\"tail_us\":11},"
				  "{\"from\":\"p1\",\"to\":\"d\\\"2\",\"transfers\":1,\"bytes\":7,\"tail_us\":1}]");
	buf_fini(&out);
	pairs_destroy(&p);
}

TEST(bounded_and_the_oldest_goes)
{
	struct buf out;
	struct pairs *p = pairs_new();
	char name[32];
	buf_init(&out, 0);
	for (unsigned i = 0; i < PAIRS_MAX + 50; i++) {
		snprintf(name, sizeof name, "d-%u.", i);
		pairs_add(p, "p", name, 1, 1);
		pairs_add(p, "p", "d-0.", 1, 1); /* in use all the time */
	}
	pairs_json(p, &out);
	ck_assert_uint_eq(count(out.data, "from"), PAIRS_MAX);
	ck_assert_ptr_nonnull(strstr(out.data, "\"d-0.\""));
	ck_assert_ptr_nonnull(strstr(out.data, "\"d-305.\""));
	ck_assert_ptr_null(strstr(out.data, "\"d-50.\""));
	ck_assert_ptr_nonnull(strstr(out.data, "\"d-51.\""));
	buf_fini(&out);
	pairs_destroy(&p);
}
