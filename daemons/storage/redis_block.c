/* redis_block.c - blocks into Redis and out of it.
 *
 * put: STRLEN first (and PEXPIRE, when blocks have a time to live): what is there whole is not sent again. Else, when the values before it have
 * nearly left, the block is copied once into a buffer behind its head, and SET sends that buffer. Two hosts that put the same block write the
 * same bytes; the last one stays.
 * get: GETRANGE of one byte more than the block has with its head, so that whatever the server holds there, no more than that is sent. The value
 * is checked where it was received and copied out of there.
 *
 * What is wrong under our key (truncated, damaged, foreign, not a string) is dropped and said to be corrupt; a right block of another size is a
 * miss. Somebody may have stored a right one in between: then that is dropped too, and computed again. */
#include "redis_tier.h"
#include "sum.h"

#include "util/clock.h"
#include "util/log.h"
#include "util/mem.h"

#include <hiredis/hiredis.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TAG_LENGTH, TAG_REST, TAG_SET, TAG_VALUE };

struct block_work {
	struct redis_work w;
	struct redis_tier *t;
	struct tier_op *op;          /* the caller's; not looked at when over */
	uint64_t device_us;          /* when the block's way began */
};

static struct block_work *block_of(struct redis_work *w)
{
	return (struct block_work *)w;
}

static struct redis_arg word(const char *text)
{
	return (struct redis_arg){text, strlen(text)};
}

/* --- ends --- */

/* A block has gone through: blocks overlap, and time counts once. With the lock held. */
static void count_time(uint64_t *sum_us, uint64_t *mark_us, uint64_t begun_us)
{
	uint64_t now = clock_us(), from = begun_us > *mark_us ? begun_us : *mark_us;
	*sum_us += now > from ? now - from : 0;
	*mark_us = now;
}

static void count_put(struct block_work *b, int code, int known)
{
	struct redis_tier *t = b->t;
	pthread_mutex_lock(&t->lock);
	t->stat.known += known != 0;
	t->stat.full += code == ERR_FULL;
	t->stat.errors += code != 0 && code != ERR_FULL && code != ERR_STALE && code != ERR_CANCELLED;
	if (code == 0 && !known) {
		t->puts_pause_text = NULL;
		t->stat.write_bytes += b->op->bytes;
		count_time(&t->stat.write_us, &t->write_mark_us, b->device_us);
	}
	pthread_mutex_unlock(&t->lock);
}

static void count_get(struct block_work *b, int code)
{
	struct redis_tier *t = b->t;
	int hit = code == 0 || code == ERR_STALE, miss = code == ERR_NOTFOUND || code == ERR_CORRUPT;
	pthread_mutex_lock(&t->lock);
	t->stat.hits += hit && !b->op->aside;
	t->stat.misses += miss && !b->op->aside;
	t->stat.corrupt += code == ERR_CORRUPT;
	t->stat.lost += code == ERR_CORRUPT;   /* it was dropped, and there is no tier below */
	t->stat.errors += !hit && !miss && code != ERR_CANCELLED;
	if (code == 0) {
		t->stat.read_bytes += b->op->bytes;
		count_time(&t->stat.read_us, &t->read_mark_us, b->device_us);
	}
	pthread_mutex_unlock(&t->lock);
}

static void tell(struct block_work *b, int code, const char *text)
{
	b->op->done(b->op, code, code == 0 ? TIER_REDIS : TIER_NONE, text);
}

static void put_over(struct redis_lane *l, struct block_work *b, int code, int known, const char *text)
{
	count_put(b, code, known);
	tell(b, code, text);
	redis_work_over(l, &b->w);
}

static void get_over(struct redis_lane *l, struct block_work *b, int code, const char *text)
{
	count_get(b, code);
	tell(b, code, text);
	redis_work_over(l, &b->w);
}

static const char *text_of_end(int code)
{
	switch (code) {
	case ERR_TIMEOUT:
		return "redis did not answer in time";
	case ERR_CLOSED:
		return "redis is away";
	case ERR_FULL:
		return "too many operations wait for redis";
	default:
		return NULL;
	}
}

static void put_end(struct redis_work *w, int code)
{
	count_put(block_of(w), code, 0);
	tell(block_of(w), code, text_of_end(code));
}

static void get_end(struct redis_work *w, int code)
{
	count_get(block_of(w), code);
	tell(block_of(w), code, text_of_end(code));
}

static int unwanted(const struct block_work *b)
{
	return b->op->given_up && atomic_load(b->op->given_up);
}

/* --- put --- */

static void put_begin(struct redis_lane *l, struct redis_work *w)
{
	struct block_work *b = block_of(w);
	if (unwanted(b)) {
		put_over(l, b, ERR_CANCELLED, 0, NULL);
		return;
	}
	struct redis_key_text room;
	struct redis_arg key = redis_key_arg(b->t, &b->op->key, &room);
	redis_lane_command(l, w, TAG_LENGTH, 2, (struct redis_arg[]){word("STRLEN"), key});
	if (b->t->ttl_ms) {
		char ms[24];
		snprintf(ms, sizeof ms, "%" PRIu64, b->t->ttl_ms);
		redis_lane_command(l, w, TAG_REST, 3, (struct redis_arg[]){word("PEXPIRE"), key, word(ms)});
	}
}

static void put_proceed(struct redis_lane *l, struct redis_work *w)
{
	struct block_work *b = block_of(w);
	size_t bytes = b->op->bytes;
	if (unwanted(b)) {
		put_over(l, b, ERR_CANCELLED, 0, NULL);
		return;
	}
	unsigned char *value = malloc(REDIS_VALUE_HEAD_BYTES + bytes);
	if (!value) {
		put_over(l, b, ERR_NOMEM, 0, "no memory for a buffer");
		return;
	}
	struct tier_span span = {.at = value + REDIS_VALUE_HEAD_BYTES, .bytes = bytes};
	int code = b->op->move(b->op, &span, 1);
	if (code != 0) {
		free(value);
		put_over(l, b, code, 0, NULL);
		return;
	}
	redis_value_head(value, &b->op->key, bytes, b->op->sum);
	struct redis_key_text room;
	char ms[24];
	snprintf(ms, sizeof ms, "%" PRIu64, b->t->ttl_ms);
	struct redis_arg arg[5] = {word("SET"), redis_key_arg(b->t, &b->op->key, &room), {NULL, REDIS_VALUE_HEAD_BYTES + bytes}, word("PX"), word(ms)};
	b->device_us = clock_us();
	redis_lane_command_value(l, w, TAG_SET, b->t->ttl_ms ? 5 : 3, arg, 2, value, free);
}

static void put_length(struct redis_lane *l, struct block_work *b, const struct redis_item *it)
{
	if (it->type == REDIS_REPLY_INTEGER && it->number == (long long)(REDIS_VALUE_HEAD_BYTES + b->op->bytes))
		put_over(l, b, 0, 1, NULL);
	else if (it->type == REDIS_REPLY_INTEGER || (it->type == REDIS_REPLY_ERROR && it->bytes > 9 && !memcmp(it->text, "WRONGTYPE", 9)))
		redis_lane_wait_room(l, &b->w);   /* not there, or what SET replaces */
	else if (it->type == REDIS_REPLY_ERROR) {
		const char *text;
		int code = redis_tier_refusal(b->t, it, 1, &text);
		put_over(l, b, code, 0, text);
	} else {
		redis_lane_distrust(l, "STRLEN: the answer is no number");
	}
}

static void put_item(struct redis_lane *l, struct redis_work *w, uint32_t tag, const struct redis_item *it)
{
	struct block_work *b = block_of(w);
	if (it->depth > 0)
		redis_lane_distrust(l, "an array where none was asked for");
	else if (tag == TAG_LENGTH)
		put_length(l, b, it);
	else if (tag == TAG_SET && it->type == REDIS_REPLY_STATUS)
		put_over(l, b, 0, 0, NULL);
	else if (tag == TAG_SET && it->type == REDIS_REPLY_ERROR) {
		const char *text;
		int code = redis_tier_refusal(b->t, it, 1, &text);
		put_over(l, b, code, 0, text);
	} else if (tag == TAG_SET) {
		redis_lane_distrust(l, "SET: the answer is no status");
	}
}

/* --- get --- */

static void get_begin(struct redis_lane *l, struct redis_work *w)
{
	struct block_work *b = block_of(w);
	size_t bytes = REDIS_VALUE_HEAD_BYTES + b->op->bytes + 1;
	if (unwanted(b)) {
		get_over(l, b, ERR_CANCELLED, NULL);
		return;
	}
	char last[24];
	snprintf(last, sizeof last, "%zu", bytes - 1);
	struct redis_key_text room;
	redis_lane_allow(l, bytes);
	b->device_us = w->begun_us;
	redis_lane_command(l, w, TAG_VALUE, 4, (struct redis_arg[]){word("GETRANGE"), redis_key_arg(b->t, &b->op->key, &room), word("0"), word(last)});
}

static void get_wrong(struct redis_lane *l, struct block_work *b, const char *why)
{
	struct redis_key_text room;
	redis_lane_command(l, NULL, TAG_REST, 2, (struct redis_arg[]){word("UNLINK"), redis_key_arg(b->t, &b->op->key, &room)});
	log_error("stored_block_corrupt", "tier=redis bytes=%zu reason=%s action=dropped", b->op->bytes, log_quote(why));
	get_over(l, b, ERR_CORRUPT, "the block stored in redis is damaged or not ours; it was dropped");
}

static void get_value(struct redis_lane *l, struct block_work *b, const struct redis_item *it)
{
	const unsigned char *v = (const unsigned char *)it->text;
	const char *why = NULL;
	if (it->bytes == 0) {
		get_over(l, b, ERR_NOTFOUND, NULL);
		return;
	}
	switch (redis_value_check(v, it->bytes, &b->op->key, b->op->bytes, &b->op->sum, &why)) {
	case REDIS_VALUE_RIGHT:
		break;
	case REDIS_VALUE_OTHER_SIZE:
		get_over(l, b, ERR_NOTFOUND, "the stored block has another size");
		return;
	case REDIS_VALUE_WRONG:
		get_wrong(l, b, why);
		return;
	}
	struct tier_span span = {.at = (unsigned char *)(uintptr_t)v + REDIS_VALUE_HEAD_BYTES, .bytes = b->op->bytes};
	get_over(l, b, b->op->move(b->op, &span, 1), NULL);
}

static void get_item(struct redis_lane *l, struct redis_work *w, uint32_t tag, const struct redis_item *it)
{
	struct block_work *b = block_of(w);
	(void)tag;
	if (it->depth == 0 && it->type == REDIS_REPLY_STRING)
		get_value(l, b, it);
	else if (it->depth == 0 && it->type == REDIS_REPLY_ERROR && it->bytes > 9 && !memcmp(it->text, "WRONGTYPE", 9))
		get_wrong(l, b, "not a string");
	else if (it->depth == 0 && it->type == REDIS_REPLY_ERROR) {
		const char *text;
		int code = redis_tier_refusal(b->t, it, 0, &text);
		get_over(l, b, code, text);
	} else {
		redis_lane_distrust(l, "GETRANGE: the answer is no string");
	}
}

/* --- from any thread --- */

/* Redis closes the connection on a value of more than 512 MiB (proto-max-bulk-len). */
#define BLOCK_BYTES_MAX (((size_t)512 << 20) - REDIS_VALUE_HEAD_BYTES)

static const struct redis_work_ops put_ops = {.begin = put_begin, .proceed = put_proceed, .item = put_item, .end = put_end};
static const struct redis_work_ops get_ops = {.begin = get_begin, .item = get_item, .end = get_end};

static struct block_work *block_new(struct redis_tier *t, struct tier_op *op, const struct redis_work_ops *ops)
{
	struct block_work *b = mem_zalloc(sizeof *b);
	list_init(&b->w.link);
	b->w.ops = ops;
	b->w.deadline_us = clock_us() + t->timeout_us;
	b->t = t;
	b->op = op;
	return b;
}

void redis_block_put(struct redis_tier *t, struct tier_op *op)
{
	if (op->bytes > BLOCK_BYTES_MAX) {
		op->done(op, ERR_INVALID, TIER_NONE, "the redis tier takes blocks of up to 512 MiB");
		return;
	}
	struct block_work *b = block_new(t, op, &put_ops);
	int r = redis_lane_submit(t->lane[LANE_PUT], &b->w);
	if (r == 0)
		return;
	put_end(&b->w, r);
	free(b);
}

void redis_block_get(struct redis_tier *t, struct tier_op *op)
{
	struct block_work *b = block_new(t, op, &get_ops);
	b->w.weight = op->bytes;
	int r = redis_lane_submit(t->lane[LANE_GET], &b->w);
	if (r == 0)
		return;
	count_get(b, ERR_NOTFOUND);
	tell(b, ERR_NOTFOUND, text_of_end(r));
	free(b);
}
