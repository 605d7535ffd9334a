/* redis_value.h - what a block looks like in Redis: its key's text, and the head before its bytes.
 * Whoever can write to the server can write such values; the head guards against what is torn,
 * truncated, damaged, under another key, or not ours. */
#ifndef STORAGE_REDIS_VALUE_H
#define STORAGE_REDIS_VALUE_H

#include "tier.h"

/* Eight bytes that name format and version, the block's bytes, its checksum (low, high), its
 * key; numbers little-endian. */
#define REDIS_VALUE_HEAD_BYTES 64u
#define REDIS_KEY_DIGITS (2 * TIER_KEY_BYTES)

/* Writes the key's 64 hex digits, without a NUL. */
void redis_key_digits(char *out, const struct tier_key *key);
void redis_value_head(unsigned char *out, const struct tier_key *key, size_t bytes,
                      struct tier_sum sum);

enum redis_value_is { REDIS_VALUE_RIGHT, REDIS_VALUE_OTHER_SIZE, REDIS_VALUE_WRONG };

/* v: the value's first n bytes, at most one byte more than a block of this size has with its head.
 * Says why it is wrong (static text), and the checksum of what is right. */
enum redis_value_is redis_value_check(const unsigned char *v, size_t n, const struct tier_key *key,
                                      size_t bytes, struct tier_sum *ret_sum, const char **ret_why);

#endif
