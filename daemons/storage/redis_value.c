/* redis_value.c - see redis_value.h. A value is used only if its whole head and its checksum are
 * valid. */
#include "redis_value.h"
#include "sum.h"

#include <endian.h>
#include <stdint.h>
#include <string.h>

static const char magic[8] = "pdkv-1\r\n"; /* the line end reveals conversion by a text tool */

enum { AT_MAGIC = 0, AT_BYTES = 8, AT_SUM_LOW = 16, AT_SUM_HIGH = 24, AT_KEY = 32 };
_Static_assert(AT_KEY + TIER_KEY_BYTES == REDIS_VALUE_HEAD_BYTES, "the head's fields fill it");

void redis_key_digits(char *out, const struct tier_key *key)
{
	static const char digit[] = "0123456789abcdef";
	for (unsigned i = 0; i < TIER_KEY_BYTES; i++) {
		out[2 * i] = digit[key->b[i] >> 4];
		out[2 * i + 1] = digit[key->b[i] & 15];
	}
}

static void put_number(unsigned char *at, uint64_t n)
{
	n = htole64(n);
	memcpy(at, &n, sizeof n);
}

static uint64_t get_number(const unsigned char *at)
{
	uint64_t n;
	memcpy(&n, at, sizeof n);
	return le64toh(n);
}

void redis_value_head(unsigned char *out, const struct tier_key *key, size_t bytes,
                      struct tier_sum sum)
{
	memcpy(out + AT_MAGIC, magic, sizeof magic);
	put_number(out + AT_BYTES, bytes);
	put_number(out + AT_SUM_LOW, sum.lo);
	put_number(out + AT_SUM_HIGH, sum.hi);
	memcpy(out + AT_KEY, key->b, TIER_KEY_BYTES);
}

static enum redis_value_is wrong(const char **ret_why, const char *why)
{
	*ret_why = why;
	return REDIS_VALUE_WRONG;
}

enum redis_value_is redis_value_check(const unsigned char *v, size_t n, const struct tier_key *key,
                                      size_t bytes, struct tier_sum *ret_sum, const char **ret_why)
{
	if (n < REDIS_VALUE_HEAD_BYTES)
		return wrong(ret_why, "shorter than its head");
	if (memcmp(v + AT_MAGIC, magic, sizeof magic) != 0)
		return wrong(ret_why, "not a pdserve block");
	if (memcmp(v + AT_KEY, key->b, TIER_KEY_BYTES) != 0)
		return wrong(ret_why, "a block of another key");
	uint64_t says = get_number(v + AT_BYTES), has = n - REDIS_VALUE_HEAD_BYTES;
	/* of a longer block the tier requests one byte too many */
	if (says > bytes ? has <= bytes : has != says)
		return wrong(ret_why, "length differs from its head's");
	if (says != bytes)
		return REDIS_VALUE_OTHER_SIZE;
	const struct tier_span span = {.at = (unsigned char *)v + REDIS_VALUE_HEAD_BYTES,
	                               .bytes = bytes};
	const struct tier_sum sum = {.lo = get_number(v + AT_SUM_LOW),
	                             .hi = get_number(v + AT_SUM_HIGH)};
	if (!sum_equal(sum_spans(&span, 1), sum))
		return wrong(ret_why, "checksum mismatch");
	*ret_sum = sum;
	return REDIS_VALUE_RIGHT;
}
