/* json_load.c - see json_load.h. The sizes below are those of jansson's structures in glibc's
 * malloc blocks; test_json_load compares them with what jansson really allocates. */
#include "util/json_load.h"
#include "util/check.h"
#include "util/err.h"

#include <ctype.h>
#include <malloc.h>
#include <stdlib.h>
#include <string.h>

/* For texts up to this length running out of memory is fatal, as in mem.h: no reserve is taken. */
#define JSON_SURE_BYTES 4096u

static __thread struct json_account *account;
static __thread int no_memory;
static __thread int loading;
/* Spare memory while a text is loaded; freed when malloc fails, which makes the next try
 * succeed. */
static __thread void *reserve;

/* --- allocation and accounting ------------------------------------------- */

static size_t block_bytes(void *p)
{
	return malloc_usable_size(p) + sizeof(size_t);
}

static void *alloc_loading(size_t n)
{
	void *p = malloc(n);
	if (!p && reserve) {
		free(reserve);
		reserve = NULL;
		p = malloc(n);
	}
	if (!p)
		check_fatal("out of memory while reading JSON (%zu bytes)", n);
	if (account)
		account->used += block_bytes(p);
	return p;
}

static void *json_alloc(size_t n)
{
	if (loading)
		return alloc_loading(n);
	struct json_account *a = account;
	void *p = malloc(n);
	no_memory |= !p;
	if (!a || !p)
		return p;
	if (a->quota && quota_take(a->quota, block_bytes(p)) < 0) {
		free(p);
		return NULL;
	}
	a->used += block_bytes(p);
	return p;
}

static void json_free(void *p)
{
	struct json_account *a = account;
	if (a && p) {
		size_t bytes = block_bytes(p) < a->used ? block_bytes(p) : a->used;
		a->used -= bytes;
		if (!loading && a->quota)
			quota_give(a->quota, bytes);
	}
	free(p);
}

void json_account_setup(void)
{
	json_set_alloc_funcs(json_alloc, json_free);
}

struct json_account *json_account_begin(struct json_account *a)
{
	struct json_account *before = account;
	account = a;
	if (!before)
		no_memory = 0;
	return before;
}

int json_account_charge(struct json_account *a, struct quota *q)
{
	if (a->quota)
		return 0;
	if (quota_take(q, a->used) < 0)
		return ERR_NOMEM;
	a->quota = q;
	return 0;
}

int json_account_end(void)
{
	account = NULL;
	return no_memory ? ERR_NOMEM : 0;
}

/* --- loading ------------------------------------------------------------- */

/* Upper bounds, in bytes each. */
enum {
	ARRAY_BYTES = 144,  /* with its table for 8 elements */
	OBJECT_BYTES = 256, /* with its 8 buckets */
	/* a table doubles when it is full, and the old one is freed only after the copy */
	ELEMENT_BYTES = 24,
	MEMBER_BYTES = 144, /* likewise; includes the node with the key */
	STRING_BYTES = 80,
	NUMBER_BYTES = 32,
	LONGEST_TIMES = 3 /* of the longest string or number: jansson's buffer while it reads one */
};

struct counts {
	size_t arrays, objects, elements, members, strings, string_bytes, longest, numbers;
};

/* Returns the position after the string whose opening quote is at p. */
static const char *string_end(const char *p, const char *end)
{
	for (p++; p < end && *p != '"'; p++)
		p += *p == '\\' && p + 1 < end;
	return p < end ? p + 1 : end;
}

static const char *take_string(const char *p, const char *end, struct counts *n)
{
	const char *after = string_end(p, end);
	size_t len = (size_t)(after - p);
	n->strings++;
	n->string_bytes += len;
	n->longest = len > n->longest ? len : n->longest;
	return after;
}

static const char *take_number(const char *p, const char *end, struct counts *n)
{
	const char *begin = p;
	while (p < end && (isalnum((unsigned char)*p) || *p == '.' || *p == '-' || *p == '+'))
		p++;
	n->numbers++;
	n->longest = (size_t)(p - begin) > n->longest ? (size_t)(p - begin) : n->longest;
	return p;
}

size_t json_load_bytes(const char *text, size_t len)
{
	struct counts n = {0};
	for (const char *p = text, *end = text + len; p < end;) {
		if (*p == '"') {
			p = take_string(p, end, &n);
			continue;
		}
		if (isalnum((unsigned char)*p) || *p == '-') {
			/* also counts true, false and null, which allocate nothing */
			p = take_number(p, end, &n);
			continue;
		}
		n.arrays += *p == '[';
		n.objects += *p == '{';
		n.elements += *p == ',';
		n.members += *p == ':';
		p++;
	}
	return n.arrays * ARRAY_BYTES + n.objects * OBJECT_BYTES + n.elements * ELEMENT_BYTES +
	       n.members * MEMBER_BYTES + n.strings * STRING_BYTES + n.string_bytes +
	       n.numbers * NUMBER_BYTES + n.longest * LONGEST_TIMES + 1024;
}

static json_t *no_room(json_error_t *bad)
{
	memset(bad, 0, sizeof *bad);
	/* json_error_code reads the code from here */
	bad->text[JSON_ERROR_TEXT_LENGTH - 1] = json_error_out_of_memory;
	return NULL;
}

json_t *json_load(const char *text, size_t len, size_t flags, json_error_t *bad)
{
	struct json_account *a = account;
	struct quota *q = a ? a->quota : NULL;
	size_t most = q || len > JSON_SURE_BYTES ? json_load_bytes(text, len) : 0;
	size_t before = a ? a->used : 0;
	if (quota_take(q, most) < 0)
		return no_room(bad);
	reserve = len > JSON_SURE_BYTES ? malloc(most) : NULL;
	if (len > JSON_SURE_BYTES && !reserve) {
		no_memory = 1;
		quota_give(q, most);
		return no_room(bad);
	}
	loading = 1;
	json_t *o = json_loadb(text, len, flags, bad);
	loading = 0;
	free(reserve);
	reserve = NULL;
	if (q) {
		a->used = a->used < before + most ? a->used : before + most;
		quota_give(q, before + most - a->used);
	}
	return o;
}
