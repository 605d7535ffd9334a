/* redis_keys.c - what is asked about keys, without blocks: look-ups, removal, flush, and the server's own figures. All of it on the lane "ask".
 *
 * A look-up asks for the lengths of its keys (a block of another size is a miss), some hundred at a time, so that one that may stop at the first gap does.
 * Redis has no way to ask for a length that leaves its own LRU order alone; who looks a block up is about to use it.
 * A flush walks over all keys of the database with SCAN, step by step, and unlinks those under our prefix; other clients are served in between.
 * It ends with the last step, after FLUSH_US, or with the connection; what was dropped is logged. */
#include "redis_tier.h"

#include "util/buf.h"
#include "util/clock.h"
#include "util/log.h"
#include "util/mem.h"

#include <hiredis/hiredis.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FIND_KEYS 256u              /* asked for at a time */
#define FLUSH_US 60000000u
#define SCAN_KEYS "1000"            /* looked at in one step */
#define STEP_KEYS_MAX 20000u        /* what a step may return at most; a server that says more is not Redis */

static struct redis_arg word(const char *text)
{
	return (struct redis_arg){text, strlen(text)};
}

/* --- look-ups --- */

struct find_work {
	struct redis_work w;
	struct redis_tier *t;
	struct tier_find *f;     /* the caller's; not looked at when over */
	uint32_t next, asked;    /* first key that was not asked for; answers to come */
	int gap;                 /* a key is nowhere */
};

static struct find_work *find_of(struct redis_work *w)
{
	return (struct find_work *)w;
}

static void find_over(struct redis_lane *l, struct find_work *q)
{
	q->f->done(q->f);
	redis_work_over(l, &q->w);
}

/* Asks for the next keys; without any left the look-up is over. */
static void find_more(struct redis_lane *l, struct find_work *q)
{
	struct tier_find *f = q->f;
	for (; q->next < f->n && q->asked < FIND_KEYS; q->next++) {
		if (f->where[q->next] != TIER_NONE)
			continue;
		struct redis_key_text room;
		redis_lane_command(l, &q->w, q->next, 2, (struct redis_arg[]){word("STRLEN"), redis_key_arg(q->t, &f->key[q->next], &room)});
		q->asked++;
	}
	if (!q->asked)
		find_over(l, q);
}

static void find_begin(struct redis_lane *l, struct redis_work *w)
{
	find_more(l, find_of(w));
}

static void find_item(struct redis_lane *l, struct redis_work *w, uint32_t i, const struct redis_item *it)
{
	struct find_work *q = find_of(w);
	if (it->depth > 0 || (it->type != REDIS_REPLY_INTEGER && it->type != REDIS_REPLY_ERROR)) {
		redis_lane_distrust(l, "STRLEN: the answer is no number");
		return;
	}
	if (it->type == REDIS_REPLY_INTEGER && it->number == (long long)(REDIS_VALUE_HEAD_BYTES + q->f->bytes))
		q->f->where[i] = TIER_REDIS;
	else
		q->gap = 1;   /* also what is no string, or may not be read */
	if (--q->asked)
		return;
	if (q->gap && q->f->leading)
		find_over(l, q);
	else
		find_more(l, q);
}

static void find_end(struct redis_work *w, int code)
{
	(void)code;
	find_of(w)->f->done(find_of(w)->f);   /* with what is known by now */
}

static const struct redis_work_ops find_ops = {.begin = find_begin, .item = find_item, .end = find_end};

void redis_keys_find(struct redis_tier *t, struct tier_find *f)
{
	struct find_work *q = mem_zalloc(sizeof *q);
	list_init(&q->w.link);
	q->w.ops = &find_ops;
	q->w.short_limit = 1;
	q->w.deadline_us = f->until_us ? f->until_us : clock_us() + t->lookup_us;
	q->t = t;
	q->f = f;
	if (redis_lane_submit(t->lane[LANE_ASK], &q->w) == 0)
		return;
	free(q);
	f->done(f);
}

/* --- removal --- */

struct remove_work {
	struct redis_work w;
	struct redis_tier *t;
	struct tier_key key;
};

static void remove_begin(struct redis_lane *l, struct redis_work *w)
{
	struct remove_work *r = (struct remove_work *)w;
	struct redis_key_text room;
	redis_lane_command(l, w, 0, 2, (struct redis_arg[]){word("UNLINK"), redis_key_arg(r->t, &r->key, &room)});
}

static void remove_item(struct redis_lane *l, struct redis_work *w, uint32_t tag, const struct redis_item *it)
{
	struct remove_work *r = (struct remove_work *)w;
	const char *text;
	(void)tag;
	if (it->depth > 0) {
		redis_lane_distrust(l, "UNLINK: the answer is an array");
		return;
	}
	if (it->type == REDIS_REPLY_ERROR)
		redis_tier_refusal(r->t, it, 0, &text);   /* for its log line */
	redis_work_over(l, w);
}

static void end_quietly(struct redis_work *w, int code)
{
	(void)w;
	(void)code;
}

static const struct redis_work_ops remove_ops = {.begin = remove_begin, .item = remove_item, .end = end_quietly};

int redis_keys_remove(struct redis_tier *t, const struct tier_key *key)
{
	struct remove_work *r = mem_zalloc(sizeof *r);
	list_init(&r->w.link);
	r->w.ops = &remove_ops;
	r->w.deadline_us = clock_us() + t->timeout_us;
	r->t = t;
	r->key = *key;
	if (redis_lane_submit(t->lane[LANE_ASK], &r->w) == 0)
		return 0;
	free(r);
	return ERR_NOTFOUND;
}

/* --- flush --- */

enum { FLUSH_SCAN, FLUSH_UNLINK };

struct flush_work {
	struct redis_work w;
	struct redis_tier *t;
	char match[2 * REDIS_PREFIX_MAX + 2];   /* the prefix, escaped, and a star */
	char cursor[24];
	struct buf keys;                        /* of this step, each followed by a NUL */
	uint32_t n_keys;
	uint64_t begun_us, dropped;
};

static struct flush_work *flush_of(struct redis_work *w)
{
	return (struct flush_work *)w;
}

static void flush_scan(struct redis_lane *l, struct flush_work *fl)
{
	fl->w.deadline_us = clock_us() + fl->t->timeout_us;   /* a step's */
	redis_lane_command(l, &fl->w, FLUSH_SCAN, 6, (struct redis_arg[]){word("SCAN"), word(fl->cursor), word("MATCH"), word(fl->match), word("COUNT"), word(SCAN_KEYS)});
}

static void flush_begin(struct redis_lane *l, struct redis_work *w)
{
	flush_of(w)->begun_us = clock_us();
	flush_scan(l, flush_of(w));
}

static void flush_log(struct flush_work *fl, const char *why)
{
	log_info("redis_flushed", "dropped=%" PRIu64 " ms=%" PRIu64 " complete=%d%s%s", fl->dropped, (clock_us() - fl->begun_us) / 1000, !why, why ? " reason=" : "",
	         why ? why : "");
}

static void flush_over(struct redis_lane *l, struct flush_work *fl, const char *why)
{
	flush_log(fl, why);
	atomic_store(&fl->t->flushing_until_us, 0);
	redis_keys_ask_figures(fl->t, l);
	redis_work_over(l, &fl->w);
}

/* The next step, or the end of it. */
static void flush_step(struct redis_lane *l, struct flush_work *fl)
{
	if (!strcmp(fl->cursor, "0"))
		flush_over(l, fl, NULL);
	else if (clock_us() - fl->begun_us > FLUSH_US)
		flush_over(l, fl, "time");
	else
		flush_scan(l, fl);
}

static void flush_unlink(struct redis_lane *l, struct flush_work *fl)
{
	struct redis_arg *arg = mem_array((size_t)fl->n_keys + 1, sizeof *arg);
	const char *at = fl->keys.data;
	arg[0] = word("UNLINK");
	for (uint32_t i = 1; i <= fl->n_keys; i++) {
		arg[i] = word(at);
		at += arg[i].bytes + 1;
	}
	fl->w.deadline_us = clock_us() + fl->t->timeout_us;
	redis_lane_command(l, &fl->w, FLUSH_UNLINK, fl->n_keys + 1, arg);
	free(arg);
	buf_reset(&fl->keys);
	fl->n_keys = 0;
}

/* A part of SCAN's answer: the cursor, then the keys one level deeper. Only keys under our prefix, without NULs, are believed to be ours. */
static void flush_part(struct redis_lane *l, struct flush_work *fl, const struct redis_item *it)
{
	if (it->depth == 1 && it->index == 0 && it->type == REDIS_REPLY_STRING && it->bytes < sizeof fl->cursor) {
		memcpy(fl->cursor, it->text, it->bytes);
		fl->cursor[it->bytes] = 0;
	} else if (it->depth == 2 && it->type == REDIS_REPLY_STRING && fl->n_keys < STEP_KEYS_MAX) {
		if (it->bytes < fl->t->prefix_bytes || memcmp(it->text, fl->t->prefix, fl->t->prefix_bytes) || memchr(it->text, 0, it->bytes) || it->bytes > 512)
			return;
		buf_add(&fl->keys, it->text, it->bytes);
		buf_addc(&fl->keys, 0);
		fl->n_keys++;
	} else {
		redis_lane_distrust(l, "SCAN: the answer is not one of Redis");
	}
}

static void flush_item(struct redis_lane *l, struct redis_work *w, uint32_t tag, const struct redis_item *it)
{
	struct flush_work *fl = flush_of(w);
	const char *text;
	if (it->type == REDIS_REPLY_ERROR && it->depth == 0) {
		redis_tier_refusal(fl->t, it, 0, &text);
		flush_over(l, fl, "refused");
	} else if (tag == FLUSH_SCAN && it->depth > 0)
		flush_part(l, fl, it);
	else if (tag == FLUSH_SCAN && it->type == REDIS_REPLY_ARRAY)
		fl->n_keys ? flush_unlink(l, fl) : flush_step(l, fl);
	else if (tag == FLUSH_UNLINK && it->type == REDIS_REPLY_INTEGER && it->depth == 0) {
		fl->dropped += (uint64_t)it->number;
		flush_step(l, fl);
	} else {
		redis_lane_distrust(l, tag == FLUSH_SCAN ? "SCAN: the answer is no array" : "UNLINK: the answer is no number");
	}
}

static void flush_end(struct redis_work *w, int code)
{
	struct flush_work *fl = flush_of(w);
	flush_log(fl, err_name(code));
	atomic_store(&fl->t->flushing_until_us, 0);
}

static void flush_release(struct redis_work *w)
{
	buf_fini(&flush_of(w)->keys);
	free(w);
}

static const struct redis_work_ops flush_ops = {.begin = flush_begin, .item = flush_item, .end = flush_end, .release = flush_release};

/* MATCH takes a pattern: what is special in one is escaped. */
static void match_of(char *out, const char *prefix)
{
	for (; *prefix; *out++ = *prefix++)
		if (strchr("*?[]\\^-", *prefix))
			*out++ = '\\';
	*out++ = '*';
	*out = 0;
}

int redis_keys_flush(struct redis_tier *t)
{
	uint64_t none = 0, now = clock_us();
	if (!atomic_compare_exchange_strong(&t->flushing_until_us, &none, now + FLUSH_US + 2 * t->timeout_us))
		return 0;   /* it is under way */
	struct flush_work *fl = mem_zalloc(sizeof *fl);
	list_init(&fl->w.link);
	fl->w.ops = &flush_ops;
	fl->w.deadline_us = now + t->timeout_us;
	fl->t = t;
	fl->begun_us = now;
	strcpy(fl->cursor, "0");
	buf_init(&fl->keys, 0);
	match_of(fl->match, t->prefix);
	int r = redis_lane_submit(t->lane[LANE_ASK], &fl->w);
	if (r != 0) {
		atomic_store(&t->flushing_until_us, 0);
		flush_release(&fl->w);
	}
	return r;
}

/* --- the server's figures --- */

enum { INFO_MEMORY, INFO_STATS, INFO_KEYS, INFO_ANSWERS };

struct info_work {
	struct redis_work w;
	struct redis_tier *t;
};

/* The number after "name:" at the begin of a line; 0 without one. */
static uint64_t number_of(const char *text, size_t bytes, const char *name)
{
	size_t n = strlen(name);
	for (const char *at = text, *end = text + bytes; at && at < end; at = memchr(at, '\n', (size_t)(end - at)), at = at ? at + 1 : NULL) {
		if ((size_t)(end - at) <= n || memcmp(at, name, n) || at[n] != ':')
			continue;
		uint64_t v = 0;
		for (at += n + 1; at < end && *at >= '0' && *at <= '9' && v < UINT64_MAX / 100; at++)
			v = 10 * v + (uint64_t)(*at - '0');
		return v;
	}
	return 0;
}

static void info_begin(struct redis_lane *l, struct redis_work *w)
{
	redis_lane_command(l, w, INFO_MEMORY, 2, (struct redis_arg[]){word("INFO"), word("memory")});
	redis_lane_command(l, w, INFO_STATS, 2, (struct redis_arg[]){word("INFO"), word("stats")});
	redis_lane_command(l, w, INFO_KEYS, 1, (struct redis_arg[]){word("DBSIZE")});
}

/* Half of the keys, or as many as a quarter of them, have gone: emptied by somebody, started again without what it had, evicted, expired. With the lock held. */
static int many_gone(struct redis_tier *t)
{
	uint64_t keys = t->stat.blocks, evicted = t->stat.evictions - t->evictions_told;
	if (keys > t->keys_most)
		t->keys_most = keys;
	if (keys >= (t->keys_most + 1) / 2 && evicted <= keys / 4)
		return 0;
	t->keys_most = keys;
	t->evictions_told = t->stat.evictions;
	return 1;
}

/* A server that does not let us ask (an error) leaves the figures as they were. */
static void info_take(struct redis_tier *t, uint32_t tag, const struct redis_item *it)
{
	int gone = 0;
	pthread_mutex_lock(&t->lock);
	if (tag == INFO_MEMORY && it->type == REDIS_REPLY_STRING) {
		t->stat.bytes = number_of(it->text, it->bytes, "used_memory");
		t->stat.capacity_bytes = number_of(it->text, it->bytes, "maxmemory");
	} else if (tag == INFO_STATS && it->type == REDIS_REPLY_STRING) {
		uint64_t n = number_of(it->text, it->bytes, "evicted_keys");
		uint64_t more = n > t->evictions_seen ? n - t->evictions_seen : 0;   /* a server that began anew counts from 0 */
		t->stat.evictions += more;
		t->stat.lost += more;
		t->evictions_seen = n;
	} else if (tag == INFO_KEYS && it->type == REDIS_REPLY_INTEGER) {
		t->stat.blocks = it->number > 0 ? (uint64_t)it->number : 0;
		gone = many_gone(t);
	}
	pthread_mutex_unlock(&t->lock);
	if (gone)
		redis_tier_tell_gone(t);
}

static void info_item(struct redis_lane *l, struct redis_work *w, uint32_t tag, const struct redis_item *it)
{
	if (it->depth > 0) {
		redis_lane_distrust(l, "INFO: the answer is an array");
		return;
	}
	info_take(((struct info_work *)w)->t, tag, it);
	if (tag == INFO_ANSWERS - 1)
		redis_work_over(l, w);
}

static const struct redis_work_ops info_ops = {.begin = info_begin, .item = info_item, .end = end_quietly};

void redis_keys_ask_figures(void *tier, struct redis_lane *l)
{
	struct redis_tier *t = tier;
	struct info_work *q = mem_zalloc(sizeof *q);
	list_init(&q->w.link);
	q->w.ops = &info_ops;
	q->w.deadline_us = clock_us() + t->timeout_us;
	q->t = t;
	redis_lane_begin(l, &q->w);
}
