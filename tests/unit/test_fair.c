/* test_fair.c - who is served next of several owners with queues, whatever each has got before. */
#include "util/fair.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

#define ITEMS 64

static struct fair_queue Q;
static struct fair_owner O[4]; /* 'a' to 'd' */
static struct fair_item I[ITEMS];
static size_t n_items;

static void begin(void)
{
	fair_init(&Q);
	for (int i = 0; i < 4; i++)
		fair_owner_init(&O[i]);
	n_items = 0;
}

/* "a3": an item of a with cost 3; one after the other. */
static void put(const char *text)
{
	for (const char *p = text; *p; p += 2) {
		struct fair_item *i = &I[n_items++];
		ck_assert_uint_le(n_items, ITEMS);
		fair_item_init(i);
		fair_put(&Q, &O[*p - 'a'], i, (uint64_t)(p[1] - '0'));
	}
}

/* Serves up to n; whose they are. */
static const char *serve(size_t n)
{
	static char text[ITEMS + 1];
	size_t k = 0;
	for (; k < n && !list_empty(&Q.owners); k++) {
		struct fair_owner *o = list_entry(Q.owners.next, struct fair_owner, node);
		text[k] = (char)('a' + (o - O));
		fair_take(&Q, fair_first(o));
	}
	text[k] = 0;
	return text;
}

/* What others get out of turn does not set back an owner that comes now behind one that waits. */
TEST(a_newcomer_is_next_whoever_was_charged)
{
	begin();
	put("a1a1a1a1a1a1");
	for (int i = 0; i < 20; i++)
		fair_charge(&Q, &O[1], 10);
	put("c1");
	ck_assert_str_eq(serve(7), "acaaaaa");
}

TEST_LOOP(owners_are_served_in_turn, 0, 7)
{
	static const struct {
		const char *put, *want;
	} rows[] = {
		{"a1a1a1", "aaa"},
		{"a1a1a1a1b1", "abaaa"}, /* the one that comes last waits for one of a */
		{"a1a1a1b1b1b1", "ababab"},
		{"a1a1b1b1c1c1", "abcabc"},
		{"a2a2a2b1b1b1b1b1b1", "abbabbabb"}, /* twice as dear: half as many */
		{"a9a9b1b1b1", "abbba"},
		{"b1b1b1a9a9", "babba"},
	};
	begin();
	put(rows[_i].put);
	ck_assert_str_eq(serve(ITEMS), rows[_i].want);
	ck_assert_uint_eq(Q.n, 0);
}

/* Neither what was served without a queue nor idleness is saved up. */
TEST(one_that_was_idle_is_next_but_has_saved_nothing)
{
	begin();
	for (int i = 0; i < 1000; i++)
		fair_charge(&Q, &O[0], 1);
	put("a1a1a1a1b1b1b1b1");
	ck_assert_str_eq(serve(ITEMS), "babababa");
	put("a1a1a1a1c1c1c1c1");
	ck_assert_str_eq(serve(ITEMS), "cacacaca");
}

TEST(what_leaves_is_not_charged)
{
	begin();
	put("a9a9a1b1b1b1");
	fair_drop(&Q, &I[0]);
	fair_drop(&Q, &I[1]);
	fair_drop(&Q, &I[1]); /* once more */
	ck_assert_uint_eq(Q.n, 4);
	ck_assert_str_eq(serve(ITEMS), "abbb");
	put("a1");
	fair_drop(&Q, &I[6]);
	ck_assert(list_empty(&Q.owners));
}

/* Some are left for the next one, however many are greedy. */
TEST_LOOP(shares_of_bounded_places, 0, 3)
{
	static const size_t want[] = {897, 957, 978}; /* of 1 to 3 greedy ones together */
	size_t has[3] = {0}, used = 0;
	for (int more = 1; more;) {
		more = 0;
		for (int i = 0; i <= _i; i++) {
			int fits = fair_share(has[i], 1024 - used);
			has[i] += (size_t)fits;
			used += (size_t)fits;
			more |= fits;
		}
	}
	ck_assert_uint_ge(used, want[_i] - 4);
	ck_assert_uint_le(used, want[_i] + 4);
	ck_assert_int_eq(fair_share(0, 1024 - used), 1);
	ck_assert_int_eq(fair_share(0, 0), 0);
	ck_assert_int_eq(fair_share(7, 1), 1); /* a small bound can be used up */
}
