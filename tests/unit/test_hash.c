/* test_hash.c - the prefix hash, byte for byte: the wanted values were computed from hash.h's
 * definition with Python's hashlib. */
#include "hash_chain.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *hex(const struct kv_hash *h)
{
	static char out[65];
	for (size_t i = 0; i < sizeof h->b; i++)
		snprintf(out + 2 * i, 3, "%02x", h->b[i]);
	return out;
}

static const struct kv_root root = {"model-1", "tok-2", "cpu-bf16-1", "30x3x64:bf16:64",
                                    "adapt\xc3\xa9"};

TEST(known_values)
{
	const uint32_t t[8] = {0, 1, 2, 0xffffffffu, 5, 6, 7, 8};
	uint32_t big[130];
	struct kv_hash r, b;
	kv_hash_root(&(struct kv_root){0}, &r);
	ck_assert_str_eq(hex(&r), "70bbf3631526cab5c897a76e654a7b9438e967e5af1b30eff5f8d67d792cf3ef");
	kv_hash_root(&(struct kv_root){"", "", "", "", ""}, &r);
	ck_assert_str_eq(hex(&r), "70bbf3631526cab5c897a76e654a7b9438e967e5af1b30eff5f8d67d792cf3ef");
	kv_hash_root(&root, &r);
	ck_assert_str_eq(hex(&r), "9074bdf241fee9517d3424a9c3719887f117fb81f8136096c8cadb040b35717d");
	kv_hash_block(&r, t, 4, &b);
	ck_assert_str_eq(hex(&b), "2419d4c9554584971e41fc175680e98e04338dccc866b7d57c054625142f0058");
	kv_hash_block(&b, t + 4, 4, &b); /* the result may take its parent's place */
	ck_assert_str_eq(hex(&b), "191acb5e9868c03169af9d037d9069357b9cf9006c17356ee26e9e8d72271d52");
	for (uint32_t i = 0; i < 130; i++)
		big[i] = 1000 + i;
	kv_hash_block(&r, big, 130, &b);
	ck_assert_str_eq(hex(&b), "8a78585563ae32fb4217692c466c13b31af033d4ee9ef19847fe578502e9fb79");
}

TEST(chain_has_full_blocks_only)
{
	const uint32_t t[8] = {0, 1, 2, 0xffffffffu, 5, 6, 7, 8};
	struct kv_hash r, out[3], guard;
	kv_hash_root(&root, &r);
	memset(out, 0xAA, sizeof out);
	memset(&guard, 0xAA, sizeof guard);
	ck_assert_uint_eq(hash_chain(&r, t, 3, 4, out), 0);
	ck_assert_uint_eq(hash_chain(&r, t, 0, 4, out), 0);
	ck_assert_mem_eq(&out[0], &guard, sizeof guard);
	ck_assert_uint_eq(hash_chain(&r, t, 7, 4, out), 1);
	ck_assert_mem_eq(&out[1], &guard, sizeof guard);
	ck_assert_uint_eq(hash_chain(&r, t, 8, 4, out), 2);
	ck_assert_str_eq(hex(&out[0]),
	                 "2419d4c9554584971e41fc175680e98e04338dccc866b7d57c054625142f0058");
	ck_assert_str_eq(hex(&out[1]),
	                 "191acb5e9868c03169af9d037d9069357b9cf9006c17356ee26e9e8d72271d52");
}

/* Each part of the root counts, and no two parts can be mistaken for each other. */
TEST(root_parts_do_not_run_together)
{
	static const struct kv_root roots[] = {
		{"ab", "", "", "", ""}, {"a", "b", "", "", ""}, {"", "ab", "", "", ""},
		{"", "", "ab", "", ""}, {"", "", "", "ab", ""}, {"", "", "", "", "ab"},
		{"", "", "", "a", "b"},
	};
	enum { N = sizeof roots / sizeof *roots };
	struct kv_hash h[N];
	for (int i = 0; i < N; i++) {
		kv_hash_root(&roots[i], &h[i]);
		for (int k = 0; k < i; k++)
			ck_assert_mem_ne(&h[i], &h[k], sizeof h[i]);
	}
}

/* Other salts, other hashes from the first block on. */
TEST(salt_changes_the_root)
{
	unsigned char salt[CACHE_SALT_BYTES];
	struct kv_hash r, salted, other;
	for (unsigned i = 0; i < sizeof salt; i++)
		salt[i] = (unsigned char)i;
	kv_hash_root(&root, &r);
	kv_hash_salt(&r, salt, &salted);
	ck_assert_str_eq(hex(&salted),
	                 "c92c5dcab4d094854725471553434d5aae99e7d697b833c7587a50661ece091c");
	salt[CACHE_SALT_BYTES - 1]++;
	kv_hash_salt(&r, salt, &other);
	ck_assert_mem_ne(&other, &salted, sizeof other);
	salt[CACHE_SALT_BYTES - 1]--;
	kv_hash_salt(&r, salt, &r); /* the result may take the root's place */
	ck_assert_mem_eq(&r, &salted, sizeof r);
}
