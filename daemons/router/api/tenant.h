/* tenant.h - the owner of an access key: limits, their use so far, and the salt that keeps the
 * owner's cached prefixes apart.
 *
 * Requests and tokens have a bucket each, which holds a minute's worth at most and fills at the
 * limit's rate. A request takes 1 and its prompt's tokens; tokens of the answer are taken as they
 * are generated, so the level may fall below zero: further requests are refused until it has risen
 * again. A prompt longer than a bucket needs a full one. Time is monotonic.
 *
 * One thread, the event loop's, but for tenant_salt. */
#ifndef ROUTER_API_TENANT_H
#define ROUTER_API_TENANT_H

#include "error.h"

#include <stddef.h>
#include <stdint.h>

#define TENANT_NAME_MAX 64u /* with its NUL */
#define TENANT_PER_MINUTE_MAX 1000000000u
#define TENANT_CONCURRENT_MAX 1000000u
#define TENANT_HEADERS_MAX 512u
#define CACHE_SALT_TEXT_MAX 256u

enum tenant_limit { TENANT_REQUESTS, TENANT_TOKENS, TENANT_CONCURRENT, TENANT_LIMITS };

struct tenant_bucket {
	uint64_t at_us; /* when level was right */
	int64_t level;  /* units * 60,000,000, so that `limit` is what a microsecond adds */
};

struct tenant {
	char name[TENANT_NAME_MAX];
	unsigned refs; /* the file of keys, and requests at work */
	/* a minute's requests, a minute's tokens, answers at once; 0: no limit */
	uint32_t limit[TENANT_LIMITS];
	int shared_cache; /* its requests use the prefixes of all others that do */
	struct tenant_bucket bucket[TENANT_CONCURRENT];
	/* answers at work; a request whose answers are not known yet, or are embeddings, is one */
	uint32_t running;
	/* since it became known */
	uint64_t requests, prompt_tokens, generated_tokens, refused[TENANT_LIMITS];
};

struct tenant *tenant_new(const char *name); /* with one reference */
void tenant_put(struct tenant *t);           /* gives a reference back */
/* Changes the limits. What was used stays used; a new bucket is full. */
void tenant_set_limits(struct tenant *t, const uint32_t limit[TENANT_LIMITS], uint64_t now_us);

/* May a request begin now? 0, or -1 with the error (429) set and counted. */
int tenant_check(struct tenant *t, uint64_t now_us, struct api_error *e);
/* A request that may begin does so; a reference is taken. */
void tenant_begin(struct tenant *t, uint64_t now_us);
/* Its prompts are known. 0, or -1 as tenant_check: they are not counted then. */
int tenant_take_prompt(struct tenant *t, uint64_t tokens, uint64_t now_us, struct api_error *e);
/* It has n answers, at least 1. 0, or -1 as tenant_check. */
int tenant_take_answers(struct tenant *t, uint32_t n, struct api_error *e);
/* A request was refused before any of it was sent to a worker: its 1 and the tokens of
 * tenant_take_prompt go back to the buckets. The totals stay, since they never fall. */
void tenant_give_back(struct tenant *t, uint64_t prompt_tokens, uint64_t now_us);
void tenant_generated(struct tenant *t, uint64_t tokens, uint64_t now_us);
/* The request ends, with its part of `running`; the reference is given back. */
void tenant_end(struct tenant *t, uint32_t running);

/* x-ratelimit-limit-, -remaining- and -reset-requests and -tokens, for those that have a limit.
 * out: TENANT_HEADERS_MAX bytes */
void tenant_headers(struct tenant *t, uint64_t now_us, char *out);
void tenant_json(struct tenant *t, uint64_t now_us, struct buf *out);
const char *tenant_limit_name(enum tenant_limit limit); /* as in the file of keys */

/* The cache salt of a request: from the name of its tenant ("": none, or one with shared_cache) and
 * the client's own text. Returns 0 if there is neither, so that there is no salt. */
int tenant_salt(const char *name, const char *text, size_t len, unsigned char *ret);

#endif
