/* tenant.c - see tenant.h. What always holds: a bucket's level is at most a minute's worth; a
 * refusal takes nothing. */
#include "tenant.h"
#include "kv/hash.h"
#include "util/check.h"
#include "util/mem.h"

#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MINUTE_US 60000000
#define LEVEL_MIN (INT64_MIN / 2)

const char *tenant_limit_name(enum tenant_limit limit)
{
	static const char *const names[] = {"requests", "tokens", "concurrent"};
	return names[limit];
}

struct tenant *tenant_new(const char *name)
{
	struct tenant *t = mem_zalloc(sizeof *t);
	snprintf(t->name, sizeof t->name, "%s", name);
	t->refs = 1;
	return t;
}

void tenant_put(struct tenant *t)
{
	if (--t->refs)
		return;
	CHECK(t->running == 0);
	free(t);
}

/* --- buckets ------------------------------------------------------------- */

static int64_t bucket_full(const struct tenant *t, enum tenant_limit i)
{
	return (int64_t)t->limit[i] * MINUTE_US;
}

static void bucket_fill(struct tenant *t, enum tenant_limit i, uint64_t now_us)
{
	struct tenant_bucket *b = &t->bucket[i];
	uint64_t us = now_us > b->at_us ? now_us - b->at_us : 0;
	int64_t missing = bucket_full(t, i) - b->level;
	b->at_us += us;
	if (us >= (uint64_t)(missing / t->limit[i]) + 1)
		b->level = bucket_full(t, i);
	else
		b->level += (int64_t)us * t->limit[i];
}

static void bucket_take(struct tenant *t, enum tenant_limit i, uint64_t units, uint64_t now_us)
{
	struct tenant_bucket *b = &t->bucket[i];
	if (!t->limit[i])
		return;
	bucket_fill(t, i, now_us);
	int64_t most = (b->level - LEVEL_MIN) / MINUTE_US;
	b->level -= (units < (uint64_t)most ? (int64_t)units : most) * MINUTE_US;
}

/* Gives units back, up to a full bucket: it may have filled since, or its limit may be lower. */
static void bucket_give(struct tenant *t, enum tenant_limit i, uint64_t units, uint64_t now_us)
{
	struct tenant_bucket *b = &t->bucket[i];
	if (!t->limit[i])
		return;
	bucket_fill(t, i, now_us);
	uint64_t room = (uint64_t)(bucket_full(t, i) - b->level);
	b->level = units < room / MINUTE_US ? b->level + (int64_t)units * MINUTE_US : bucket_full(t, i);
}

/* Time until the bucket has that many units, or is full. */
static uint64_t bucket_wait_us(struct tenant *t, enum tenant_limit i, uint64_t units,
                               uint64_t now_us)
{
	if (!t->limit[i])
		return 0;
	bucket_fill(t, i, now_us);
	int64_t want = units < t->limit[i] ? (int64_t)units * MINUTE_US : bucket_full(t, i);
	int64_t missing = want - t->bucket[i].level;
	return missing > 0 ? (uint64_t)((missing + t->limit[i] - 1) / t->limit[i]) : 0;
}

void tenant_set_limits(struct tenant *t, const uint32_t limit[TENANT_LIMITS], uint64_t now_us)
{
	for (unsigned i = 0; i < TENANT_CONCURRENT; i++) {
		int is_new = !t->limit[i];
		if (!is_new)
			bucket_fill(t, i, now_us);
		t->limit[i] = limit[i];
		t->bucket[i].at_us = now_us;
		if (is_new || t->bucket[i].level > bucket_full(t, i))
			t->bucket[i].level = bucket_full(t, i);
	}
	t->limit[TENANT_CONCURRENT] = limit[TENANT_CONCURRENT];
}

/* --- requests ------------------------------------------------------------ */

/* in_us: until the same request may be tried again; 0: not known */
static int refuse_limit(struct tenant *t, enum tenant_limit i, uint64_t in_us, struct api_error *e)
{
	static const char *const units[] = {"requests a minute", "tokens a minute", "answers at once"};
	t->refused[i]++;
	e->by_key = in_us > 0;
	api_fault(e, 429, "the limit of this access key, %u %s, is reached", t->limit[i], units[i]);
	e->type = i == TENANT_TOKENS ? "tokens" : "requests";
	e->code = "rate_limit_exceeded";
	e->retry_after_s = (uint32_t)((in_us + 999999) / 1000000);
	return -1;
}

int tenant_check(struct tenant *t, uint64_t now_us, struct api_error *e)
{
	uint64_t us;
	for (unsigned i = 0; i < TENANT_CONCURRENT; i++)
		if ((us = bucket_wait_us(t, i, 1, now_us)))
			return refuse_limit(t, i, us, e);
	if (t->limit[TENANT_CONCURRENT] && t->running >= t->limit[TENANT_CONCURRENT])
		return refuse_limit(t, TENANT_CONCURRENT, 0, e);
	return 0;
}

void tenant_begin(struct tenant *t, uint64_t now_us)
{
	bucket_take(t, TENANT_REQUESTS, 1, now_us);
	t->requests++;
	t->running++;
	t->refs++;
}

int tenant_take_prompt(struct tenant *t, uint64_t tokens, uint64_t now_us, struct api_error *e)
{
	uint64_t us = bucket_wait_us(t, TENANT_TOKENS, tokens, now_us);
	if (us)
		return refuse_limit(t, TENANT_TOKENS, us, e);
	bucket_take(t, TENANT_TOKENS, tokens, now_us);
	t->prompt_tokens += tokens;
	return 0;
}

int tenant_take_answers(struct tenant *t, uint32_t n, struct api_error *e)
{
	uint32_t limit = t->limit[TENANT_CONCURRENT], others = t->running - 1;
	if (limit && (uint64_t)others + n > limit) {
		refuse_limit(t, TENANT_CONCURRENT, 0, e);
		snprintf(e->text, sizeof e->text,
		         "%u answers with %u others of this access key at work are more than its limit, %u "
		         "answers at once (concurrent)",
		         n, others, limit);
		return -1;
	}
	t->running += n - 1;
	return 0;
}

void tenant_give_back(struct tenant *t, uint64_t prompt_tokens, uint64_t now_us)
{
	bucket_give(t, TENANT_REQUESTS, 1, now_us);
	bucket_give(t, TENANT_TOKENS, prompt_tokens, now_us);
}

void tenant_generated(struct tenant *t, uint64_t tokens, uint64_t now_us)
{
	bucket_take(t, TENANT_TOKENS, tokens, now_us);
	t->generated_tokens += tokens;
}

void tenant_end(struct tenant *t, uint32_t running)
{
	CHECK(t->running >= running);
	t->running -= running;
	tenant_put(t);
}

/* --- what a client is told ----------------------------------------------- */

void tenant_headers(struct tenant *t, uint64_t now_us, char *out)
{
	size_t n = 0;
	out[0] = 0;
	for (unsigned i = 0; i < TENANT_CONCURRENT; i++) {
		char reset[32];
		if (!t->limit[i])
			continue;
		/* as OpenAI writes times: "230ms", "12s", "6m0s" */
		uint64_t us = bucket_wait_us(t, i, t->limit[i], now_us), s = (us + 999999) / 1000000;
		if (us < 1000000)
			snprintf(reset, sizeof reset, "%llums", (unsigned long long)(us + 999) / 1000);
		else if (s < 60)
			snprintf(reset, sizeof reset, "%llus", (unsigned long long)s);
		else
			snprintf(reset, sizeof reset, "%llum%llus", (unsigned long long)s / 60,
			         (unsigned long long)s % 60);
		int64_t level = t->bucket[i].level;
		const char *what = tenant_limit_name(i);
		n += (size_t)snprintf(out + n, TENANT_HEADERS_MAX - n,
		                      "x-ratelimit-limit-%s: %u\r\nx-ratelimit-remaining-%s: %lld\r\n"
		                      "x-ratelimit-reset-%s: %s\r\n",
		                      what, t->limit[i], what,
		                      (long long)(level > 0 ? level / MINUTE_US : 0), what, reset);
	}
}

void tenant_json(struct tenant *t, uint64_t now_us, struct buf *out)
{
	char left[TENANT_CONCURRENT][24];
	uint64_t refused = 0;
	for (unsigned i = 0; i < TENANT_CONCURRENT; i++) {
		bucket_wait_us(t, i, 0, now_us);
		snprintf(left[i], sizeof left[i], "%lld", (long long)t->bucket[i].level / MINUTE_US);
	}
	for (unsigned i = 0; i < TENANT_LIMITS; i++)
		refused += t->refused[i];
	buf_printf(out, "{\"name\":\"%s\",\"cache\":\"%s\",\"running\":%u,\"requests\":%llu,", t->name,
	           t->shared_cache ? "shared" : "own", t->running, (unsigned long long)t->requests);
	buf_printf(out, "\"prompt_tokens\":%llu,\"generated_tokens\":%llu,\"refused\":%llu",
	           (unsigned long long)t->prompt_tokens, (unsigned long long)t->generated_tokens,
	           (unsigned long long)refused);
	for (unsigned i = 0; i < TENANT_LIMITS; i++) {
		const char *name = tenant_limit_name(i);
		buf_printf(out, t->limit[i] ? ",\"limit_%s\":%u" : ",\"limit_%s\":null", name, t->limit[i]);
		if (i < TENANT_CONCURRENT)
			buf_printf(out, ",\"left_%s\":%s", name, t->limit[i] ? left[i] : "null");
	}
	buf_addc(out, '}');
}

/* --- salt ---------------------------------------------------------------- */

int tenant_salt(const char *name, const char *text, size_t len, unsigned char *ret)
{
	static const char label[] = "pdserve-tenant-1"; /* its NUL is hashed too */
	unsigned char name_len = (unsigned char)strlen(name);
	crypto_generichash_state h;
	if (!name_len && !len)
		return 0;
	crypto_generichash_init(&h, NULL, 0, CACHE_SALT_BYTES);
	crypto_generichash_update(&h, (const unsigned char *)label, sizeof label);
	crypto_generichash_update(&h, &name_len, 1);
	crypto_generichash_update(&h, (const unsigned char *)name, name_len);
	crypto_generichash_update(&h, (const unsigned char *)text, len);
	crypto_generichash_final(&h, ret, CACHE_SALT_BYTES);
	return 1;
}
