/* test_messager_revoked.c - the table of revoked leases: remembers, forgets in order, never
 * grows past its bound. */
/* run: threads */
#include "daemons/messager/revoked.h"

#include <check.h>
#include <string.h>

static int has(const struct revoked *r, uint64_t id)
{
	struct lease_key k = lease_key_of("decode-1", id, 9, 1);
	return revoked_has(r, &k);
}

static struct revoked_lease *add(struct revoked *r, uint64_t id, const char *decode,
                                 uint64_t now_us)
{
	struct lease_key k = lease_key_of(decode, id, 9, 1);
	return revoked_add(r, &k, now_us);
}

TEST(each_part_of_the_name_counts)
{
	struct revoked *r = revoked_new(10);
	add(r, 1, "decode-1", 0);
	const struct lease_key others[] = {lease_key_of("decode-1", 2, 9, 1),
	                                   lease_key_of("decode-1", 1, 8, 1),
	                                   lease_key_of("decode-1", 1, 9, 2),
	                                   lease_key_of("decode-2", 1, 9, 1)};
	ck_assert(has(r, 1));
	for (int i = 0; i < 4; i++)
		ck_assert(!revoked_has(r, &others[i]));
	revoked_destroy(&r);
}

TEST(repeated_is_one_entry)
{
	struct revoked *r = revoked_new(10);
	struct revoked_lease *a = add(r, 1, "decode-1", 0);
	a->owed = 1;
	ck_assert_ptr_eq(add(r, 1, "decode-1", 5), a);
	ck_assert_int_eq(a->owed, 1);
	ck_assert_uint_eq(revoked_count(r), 1);
	revoked_destroy(&r);
}

TEST(the_oldest_make_room)
{
	struct revoked *r = revoked_new(100);
	for (uint64_t id = 1; id <= 1000; id++) {
		add(r, id, "decode-1", id);
		ck_assert_uint_le(revoked_count(r), 100);
	}
	ck_assert(!has(r, 900));
	ck_assert(has(r, 901));
	ck_assert(has(r, 1000));
	revoked_destroy(&r);
}

TEST(old_ones_expire)
{
	struct revoked *r = revoked_new(100);
	add(r, 1, "decode-1", 1000);
	add(r, 2, "decode-1", 2000);
	add(r, 3, "decode-1", 1000 + REVOKED_LIFE_US - 1);
	ck_assert(has(r, 1));
	add(r, 4, "decode-1", 1000 + REVOKED_LIFE_US);
	ck_assert(!has(r, 1));
	ck_assert(has(r, 2));
	revoked_destroy(&r);
}

static int count_owed(struct revoked_lease *e, void *arg)
{
	*(int *)arg += e->owed;
	return e->lease.id != 3;
}

TEST(a_dead_decode_worker_is_forgotten)
{
	struct revoked *r = revoked_new(100);
	int owed = 0;
	for (uint64_t id = 1; id <= 4; id++)
		add(r, id, id == 2 ? "decode-2" : "decode-1", id)->owed = 1;
	revoked_forget(r, "decode-2", 9);
	revoked_forget(r, "decode-1", 8);
	ck_assert(!has(r, 2));
	ck_assert_uint_eq(revoked_count(r), 3);
	revoked_each(r, count_owed, &owed)
		;
	ck_assert_int_eq(owed, 2); /* ended at 3 */
	revoked_forget(r, "decode-1", 9);
	ck_assert_uint_eq(revoked_count(r), 0);
	revoked_destroy(&r);
}
