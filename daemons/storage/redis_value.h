/* redis_value.h - format of a block in Redis: the key's text, and the head before the block's
 * bytes. Anyone with write access to the server can forge values; the head guards against torn,
 * truncated, damaged, misplaced and foreign ones. */
#ifndef STORAGE_REDIS_VALUE_H
#define STORAGE_REDIS_VALUE_H

#include "tier.h"

/* Eight bytes for format and version, the block's size, its checksum (low, high), its key; numbers
 * are little-endian. */
#define REDIS_VALUE_HEAD_BYTES 64u
#define REDIS_KEY_DIGITS (2 * TIER_KEY_BYTES)

/* Writes the key's 64 hex digits, without a NUL. */
void redis_key_digits(char *out, const struct tier_key *key);
void redis_value_head(unsigned char *out, const struct tier_key *key, size_t bytes,
                      struct tier_sum sum);

enum redis_value_is { REDIS_VALUE_RIGHT, REDIS_VALUE_OTHER_SIZE, REDIS_VALUE_WRONG };

/* v: the value's first n bytes, at most one more than head and block of this size have. Returns the
 * reason if wrong (static text), the checksum if right. */
enum redis_value_is redis_value_check(const unsigned char *v, size_t n, const struct tier_key *key,
                                      size_t bytes, struct tier_sum *ret_sum, const char **ret_why);

#endif
