/* redis_work.c - see redis_int.h: the commands sent to the server, and the meaning of its replies.
 *
 * put: STRLEN first (and PEXPIRE if blocks expire), so that a block already stored is not sent
 * again. Else, when the previous value has been sent, the block is copied once into a buffer after
 * its head, and SET sends that buffer. Two hosts that put the same block write the same bytes; the
 * last write wins.
 *
 * get: GETRANGE of one byte more than head and block, so that the server never sends more than
 * that. The value is verified in the receive buffer and copied out of it. An invalid value under
 * our key (truncated, damaged, foreign, not a string) is removed and reported as corrupt; a valid
 * block of another size is a miss. If another host stores a valid block in between, the removal
 * drops that one, and it is computed again.
 *
 * look-up: the lengths of the keys' values (a block of another size is a miss), some hundred at a
 * time, so that it can stop at the first gap. No Redis command returns a length without touching
 * Redis's own LRU order; but a block that is looked up is about to be used.
 *
 * flush: starts when all earlier puts are answered, iterates over the database with SCAN and
 * unlinks the keys under our prefix; other clients are served in between. It ends with the last
 * step, after FLUSH_US, or with the connection. */
#include "redis_int.h"
#include "sum.h"

#include "util/clock.h"
#include "util/log.h"
#include "util/mem.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FIND_KEYS 256u /* requested at a time */
#define FLUSH_US 60000000u
#define SCAN_KEYS 1000     /* examined per step */
#define KEY_BYTES_MAX 512u /* longest key that may be ours */

/* Redis closes the connection on a value of more than 512 MiB (proto-max-bulk-len). */
#define BLOCK_BYTES_MAX (((size_t)512 << 20) - REDIS_VALUE_HEAD_BYTES)

#define KEY_TEXT_BYTES (REDIS_PREFIX_MAX + REDIS_KEY_DIGITS + 1)

/* "PREFIX" and the key's digits; room: KEY_TEXT_BYTES bytes. */
static const char *key_text(const struct redis_tier *t, const struct tier_key *key, char *room)
{
	memcpy(room, t->prefix, t->prefix_bytes);
	redis_key_digits(room + t->prefix_bytes, key);
	room[t->prefix_bytes + REDIS_KEY_DIGITS] = 0;
	return room;
}

static int says(const redisReply *r, const char *word)
{
	return r->type == REDIS_REPLY_ERROR && !strncmp(r->str, word, strlen(word));
}

static int no_number(struct redis_work *w, const redisReply *r)
{
	if (r->type == REDIS_REPLY_INTEGER || r->type == REDIS_REPLY_ERROR)
		return 0;
	redis_distrust(w, "the reply is not an integer");
	return 1;
}

/* --- blocks -------------------------------------------------------------- */

struct block_work {
	struct redis_work w;
	struct tier_op *op;   /* the caller's; invalid once the work is over */
	unsigned flushes;     /* redis_tier.flushes at the request */
	uint64_t device_us;   /* start of the transfer */
	unsigned char *value; /* put: head and block, or NULL */
	char before[2 * KEY_TEXT_BYTES], after[64];
};

/* Accounts for a transferred block; the time of overlapping transfers counts once. With the lock
 * held. */
static void count_time(uint64_t *sum_us, uint64_t *mark_us, uint64_t begun_us)
{
	uint64_t now = clock_us(), from = begun_us > *mark_us ? begun_us : *mark_us;
	*sum_us += now > from ? now - from : 0;
	*mark_us = now;
}

static void count_put(struct block_work *b, int code, int known)
{
	struct redis_tier *t = b->w.t;
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
	struct redis_tier *t = b->w.t;
	int hit = code == 0 || code == ERR_STALE, miss = code == ERR_NOTFOUND || code == ERR_CORRUPT;
	pthread_mutex_lock(&t->lock);
	t->stat.hits += hit && !b->op->aside;
	t->stat.misses += miss && !b->op->aside;
	t->stat.corrupt += code == ERR_CORRUPT;
	t->stat.lost += code == ERR_CORRUPT; /* removed, and no tier is below */
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

static const char *text_of_end(int code)
{
	switch (code) {
	case ERR_TIMEOUT: return "redis did not answer in time";
	case ERR_CLOSED: return "redis is away";
	case ERR_FULL: return "too many operations wait for redis";
	default: return NULL;
	}
}

static int flushed_since(const struct block_work *b)
{
	return b->flushes != atomic_load(&b->w.t->flushes);
}

static int unwanted(const struct block_work *b)
{
	return tier_op_unwanted(b->op);
}

static void block_work_release(struct redis_work *w)
{
	free(((struct block_work *)w)->value);
	free(w);
}

static struct block_work *block_work_new(struct redis_tier *t, struct tier_op *op, unsigned flushes,
                                         const struct redis_work_ops *ops, enum redis_line line)
{
	struct block_work *b = mem_zalloc(sizeof *b);
	b->w.t = t;
	b->w.ops = ops;
	b->w.line = line;
	b->w.deadline_us = clock_us() + t->timeout_us;
	b->flushes = flushes;
	b->op = op;
	return b;
}

/* --- put --- */

static void put_over(struct block_work *b, int code, int known, const char *text)
{
	if (code == 0 && flushed_since(b)) { /* the flush removes the block */
		code = ERR_FULL;
		text = redis_flush_text;
	}
	count_put(b, code, known);
	tell(b, code, text);
	redis_over(&b->w);
}

static void put_end(struct redis_work *w, int code)
{
	struct block_work *b = (struct block_work *)w;
	count_put(b, code, 0);
	tell(b, code, text_of_end(code));
}

/* 1: the put was cancelled or precedes a flush, and has been ended. */
static int put_void(struct block_work *b)
{
	if (unwanted(b))
		put_over(b, ERR_CANCELLED, 0, NULL);
	else if (flushed_since(b))
		put_over(b, ERR_FULL, 0, redis_flush_text);
	return b->w.over;
}

static void put_begin(struct redis_work *w)
{
	struct block_work *b = (struct block_work *)w;
	char key[KEY_TEXT_BYTES];
	if (put_void(b))
		return;
	redis_ask(w->t->link, REDIS_ASK, w, "STRLEN %s", key_text(w->t, &b->op->key, key));
	if (w->t->ttl_ms)
		redis_ask(w->t->link, REDIS_ASK, NULL, "PEXPIRE %s %llu", key,
		          (unsigned long long)w->t->ttl_ms);
}

static void put_turn(struct redis_work *w)
{
	struct block_work *b = (struct block_work *)w;
	const struct redis_tier *t = w->t;
	size_t bytes = REDIS_VALUE_HEAD_BYTES + b->op->bytes;
	char key[KEY_TEXT_BYTES], ms[24];
	if (put_void(b))
		return;
	b->value = malloc(bytes);
	if (!b->value) {
		put_over(b, ERR_NOMEM, 0, "out of memory for a buffer");
		return;
	}
	struct tier_span span = {.at = b->value + REDIS_VALUE_HEAD_BYTES, .bytes = b->op->bytes};
	int code = tier_op_move(b->op, &span, 1);
	if (code != 0) {
		put_over(b, code, 0, NULL);
		return;
	}
	redis_value_head(b->value, &b->op->key, b->op->bytes, b->op->sum);
	key_text(t, &b->op->key, key);
	snprintf(b->before, sizeof b->before, "*%d\r\n$3\r\nSET\r\n$%zu\r\n%s\r\n$%zu\r\n",
	         t->ttl_ms ? 5 : 3, strlen(key), key, bytes);
	int n = snprintf(ms, sizeof ms, "%" PRIu64, t->ttl_ms);
	snprintf(b->after, sizeof b->after, t->ttl_ms ? "\r\n$2\r\nPX\r\n$%d\r\n%s\r\n" : "\r\n", n,
	         ms);
	b->device_us = clock_us();
	redis_send_value(w, b->before, b->value, bytes, b->after);
}

static void put_refused(struct block_work *b, const redisReply *r)
{
	const char *text;
	int code = redis_refusal(b->w.t, r, 1, &text);
	put_over(b, code, 0, text);
}

static void put_reply(struct redis_work *w, const redisReply *r)
{
	struct block_work *b = (struct block_work *)w;
	if (b->value && r->type == REDIS_REPLY_STATUS)
		put_over(b, 0, 0, NULL);
	else if (b->value && r->type != REDIS_REPLY_ERROR)
		redis_distrust(w, "SET: the reply is not a status");
	else if (!b->value && r->type == REDIS_REPLY_INTEGER &&
	         r->integer == (long long)(REDIS_VALUE_HEAD_BYTES + b->op->bytes))
		put_over(b, 0, 1, NULL);
	else if (!b->value && (r->type == REDIS_REPLY_INTEGER || says(r, "WRONGTYPE")))
		redis_wait_turn(w); /* absent, or replaced by SET */
	else if (r->type == REDIS_REPLY_ERROR)
		put_refused(b, r);
	else
		redis_distrust(w, "STRLEN: the reply is not an integer");
}

static const struct redis_work_ops put_ops = {.begin = put_begin,
                                              .turn = put_turn,
                                              .reply = put_reply,
                                              .end = put_end,
                                              .release = block_work_release};

void redis_put_block(struct redis_tier *t, struct tier_op *op, unsigned flushes)
{
	if (op->bytes > BLOCK_BYTES_MAX) {
		op->done(op, ERR_INVALID, TIER_NONE, "the redis tier accepts blocks up to 512 MiB");
		return;
	}
	struct block_work *b = block_work_new(t, op, flushes, &put_ops, REDIS_PUT);
	int r = redis_submit(t->link, &b->w);
	if (r == 0)
		return;
	put_end(&b->w, r);
	free(b);
}

/* --- get --- */

static void get_over(struct block_work *b, int code, const char *text)
{
	count_get(b, code);
	tell(b, code, text);
	redis_over(&b->w);
}

static void get_end(struct redis_work *w, int code)
{
	count_get((struct block_work *)w, code);
	tell((struct block_work *)w, code, text_of_end(code));
}

static void get_begin(struct redis_work *w)
{
	struct block_work *b = (struct block_work *)w;
	size_t bytes = REDIS_VALUE_HEAD_BYTES + b->op->bytes + 1;
	char key[KEY_TEXT_BYTES];
	if (unwanted(b)) {
		get_over(b, ERR_CANCELLED, NULL);
		return;
	}
	redis_allow(w->t->link, bytes);
	b->device_us = w->begun_us;
	redis_ask(w->t->link, REDIS_GET, w, "GETRANGE %s 0 %llu", key_text(w->t, &b->op->key, key),
	          (unsigned long long)(bytes - 1));
}

static void get_wrong(struct block_work *b, const char *why)
{
	char key[KEY_TEXT_BYTES];
	redis_ask(b->w.t->link, REDIS_ASK, NULL, "UNLINK %s", key_text(b->w.t, &b->op->key, key));
	log_error("stored_block_corrupt", "tier=redis bytes=%zu reason=%s action=dropped", b->op->bytes,
	          log_quote(why));
	get_over(b, ERR_CORRUPT, "the block stored in redis is damaged or foreign; it was dropped");
}

static void get_value(struct redis_work *w, const char *bytes, size_t n)
{
	struct block_work *b = (struct block_work *)w;
	const char *why = NULL;
	if (n == 0 || flushed_since(b)) {
		get_over(b, ERR_NOTFOUND, flushed_since(b) ? redis_flush_text : NULL);
		return;
	}
	switch (redis_value_check((const unsigned char *)bytes, n, &b->op->key, b->op->bytes,
	                          &b->op->sum, &why)) {
	case REDIS_VALUE_RIGHT: break;
	case REDIS_VALUE_OTHER_SIZE:
		get_over(b, ERR_NOTFOUND, "the stored block has another size");
		return;
	case REDIS_VALUE_WRONG: get_wrong(b, why); return;
	}
	struct tier_span span = {.at = (unsigned char *)(uintptr_t)bytes + REDIS_VALUE_HEAD_BYTES,
	                         .bytes = b->op->bytes};
	get_over(b, tier_op_move(b->op, &span, 1), NULL);
}

static void get_reply(struct redis_work *w, const redisReply *r)
{
	struct block_work *b = (struct block_work *)w;
	if (says(r, "WRONGTYPE"))
		get_wrong(b, "not a string");
	else if (r->type == REDIS_REPLY_ERROR) {
		const char *text;
		int code = redis_refusal(w->t, r, 0, &text);
		get_over(b, code, text);
	} else {
		redis_distrust(w, "GETRANGE: the reply is not a string");
	}
}

static const struct redis_work_ops get_ops = {.begin = get_begin,
                                              .value = get_value,
                                              .reply = get_reply,
                                              .end = get_end,
                                              .release = block_work_release};

void redis_get_block(struct redis_tier *t, struct tier_op *op, unsigned flushes)
{
	struct block_work *b = block_work_new(t, op, flushes, &get_ops, REDIS_GET);
	b->w.weight = op->bytes;
	int r = redis_submit(t->link, &b->w);
	if (r == 0)
		return;
	count_get(b, ERR_NOTFOUND);
	tell(b, ERR_NOTFOUND, text_of_end(r));
	free(b);
}

/* --- look-ups ------------------------------------------------------------ */

struct find_work {
	struct redis_work w;
	struct tier_find *f; /* the caller's; invalid once the work is over */
	/* first key not requested yet; first key without a reply yet */
	uint32_t next, told;
	int gap;          /* a key was not found */
	unsigned flushes; /* redis_tier.flushes at the request */
};

static void find_done(struct find_work *q)
{
	struct tier_find *f = q->f;
	for (uint32_t i = 0; i < f->n && q->flushes != atomic_load(&q->w.t->flushes); i++)
		if (f->where[i] == TIER_REDIS)
			f->where[i] = TIER_NONE;
	f->done(f);
}

/* The first key from i on that no other tier has. */
static uint32_t wanted(const struct tier_find *f, uint32_t i)
{
	while (i < f->n && f->where[i] != TIER_NONE)
		i++;
	return i;
}

/* Requests the next keys; with none left the look-up is over. */
static void find_begin(struct redis_work *w)
{
	struct find_work *q = (struct find_work *)w;
	char key[KEY_TEXT_BYTES];
	q->told = wanted(q->f, q->next);
	while ((q->next = wanted(q->f, q->next)) < q->f->n && w->owed < FIND_KEYS)
		redis_ask(w->t->link, REDIS_ASK, w, "STRLEN %s",
		          key_text(w->t, &q->f->key[q->next++], key));
	if (!w->owed) {
		find_done(q);
		redis_over(w);
	}
}

static void find_reply(struct redis_work *w, const redisReply *r)
{
	struct find_work *q = (struct find_work *)w;
	uint32_t i = q->told;
	if (no_number(w, r))
		return;
	q->told = wanted(q->f, i + 1);
	if (r->type == REDIS_REPLY_INTEGER &&
	    r->integer == (long long)(REDIS_VALUE_HEAD_BYTES + q->f->bytes))
		q->f->where[i] = TIER_REDIS;
	else
		q->gap = 1; /* includes values that are not strings or not readable */
	if (w->owed)
		return;
	if (q->gap && q->f->leading)
		q->next = q->f->n;
	find_begin(w);
}

static void find_end(struct redis_work *w, int code)
{
	(void)code;
	find_done((struct find_work *)w); /* with the results so far */
}

static const struct redis_work_ops find_ops = {.begin = find_begin,
                                               .reply = find_reply,
                                               .end = find_end};

void redis_find(struct redis_tier *t, struct tier_find *f, unsigned flushes)
{
	struct find_work *q = mem_zalloc(sizeof *q);
	q->w.t = t;
	q->w.ops = &find_ops;
	q->w.line = REDIS_ASK;
	q->w.deadline_us = f->until_us ? f->until_us : clock_us() + t->lookup_us;
	q->f = f;
	q->flushes = flushes;
	if (redis_submit(t->link, &q->w) == 0)
		return;
	free(q);
	f->done(f);
}

/* --- removal ------------------------------------------------------------- */

struct remove_work {
	struct redis_work w;
	struct tier_key key;
};

static void remove_begin(struct redis_work *w)
{
	char key[KEY_TEXT_BYTES];
	redis_ask(w->t->link, REDIS_ASK, w, "UNLINK %s",
	          key_text(w->t, &((struct remove_work *)w)->key, key));
}

static void remove_reply(struct redis_work *w, const redisReply *r)
{
	const char *text;
	if (no_number(w, r))
		return;
	if (r->type == REDIS_REPLY_ERROR)
		redis_refusal(w->t, r, 0, &text); /* logs it */
	redis_over(w);
}

static void end_quietly(struct redis_work *w, int code)
{
	(void)w;
	(void)code;
}

static const struct redis_work_ops remove_ops = {.begin = remove_begin,
                                                 .reply = remove_reply,
                                                 .end = end_quietly};

int redis_remove_key(struct redis_tier *t, const struct tier_key *key)
{
	struct remove_work *r = mem_zalloc(sizeof *r);
	r->w.t = t;
	r->w.ops = &remove_ops;
	r->w.line = REDIS_ASK;
	r->w.deadline_us = clock_us() + t->timeout_us;
	r->key = *key;
	if (redis_submit(t->link, &r->w) == 0)
		return 0;
	free(r);
	return ERR_NOTFOUND;
}

/* --- flush --------------------------------------------------------------- */

struct flush_work {
	struct redis_work w;
	struct tier_flush *f;
	char match[2 * REDIS_PREFIX_MAX + 2]; /* the escaped prefix and a star */
	char cursor[24];
	int unlinks; /* keys of the UNLINK that is answered next; 0: SCAN is */
	uint64_t asked_us, begun_us;
};

/* why NULL: complete. */
static void flush_done(struct flush_work *fl, int code, const char *why)
{
	struct redis_tier *t = fl->w.t;
	log_notice("redis_flushed", "dropped=%" PRIu64 " ms=%" PRIu64 " complete=%d%s%s", fl->f->blocks,
	           (clock_us() - fl->asked_us) / 1000, !why, why ? " reason=" : "",
	           why ? log_quote(why) : "");
	pthread_mutex_lock(&t->lock);
	t->flushing--;
	pthread_mutex_unlock(&t->lock);
	fl->f->code = code;
	if (why)
		snprintf(fl->f->text, sizeof fl->f->text,
		         "redis flush incomplete (%s): some blocks are still there", why);
	fl->f->done(fl->f);
}

static void flush_over(struct flush_work *fl, int code, const char *why)
{
	flush_done(fl, code, why);
	redis_ask_figures(fl->w.t);
	redis_over(&fl->w);
}

static void flush_end(struct redis_work *w, int code)
{
	flush_done((struct flush_work *)w, code == ERR_CANCELLED ? code : ERR_IO,
	           text_of_end(code) ? text_of_end(code) : "the daemon is shutting down");
}

/* Sends the next step or ends the flush. Each step may take as long as one operation. */
static void flush_step(struct redis_work *w)
{
	struct flush_work *fl = (struct flush_work *)w;
	if (!fl->begun_us) {
		fl->begun_us = clock_us();
		redis_tell_gone(w->t); /* includes blocks put since the request */
	} else if (!strcmp(fl->cursor, "0")) {
		flush_over(fl, 0, NULL);
		return;
	} else if (clock_us() - fl->begun_us > FLUSH_US) {
		flush_over(fl, ERR_IO, "timeout");
		return;
	}
	redis_deadline(w, w->t->timeout_us);
	redis_ask(w->t->link, REDIS_PUT, w, "SCAN %s MATCH %s COUNT %d", fl->cursor, fl->match,
	          SCAN_KEYS);
}

/* Unlinks the keys under our prefix among those that SCAN returned. Returns their number; 0:
 * nothing was sent. */
static int flush_unlink(struct flush_work *fl, const redisReply *keys)
{
	const struct redis_tier *t = fl->w.t;
	const char **arg = mem_array(keys->elements + 1, sizeof *arg);
	size_t *bytes = mem_array(keys->elements + 1, sizeof *bytes);
	int n = 1;
	arg[0] = "UNLINK";
	bytes[0] = strlen(arg[0]);
	for (size_t i = 0; i < keys->elements; i++) {
		const redisReply *k = keys->element[i];
		if ((size_t)k->len < t->prefix_bytes || (size_t)k->len > KEY_BYTES_MAX ||
		    memcmp(k->str, t->prefix, t->prefix_bytes))
			continue;
		arg[n] = k->str;
		bytes[n++] = (size_t)k->len;
	}
	if (n > 1) {
		redis_deadline(&fl->w, t->timeout_us);
		redis_ask_argv(t->link, REDIS_PUT, &fl->w, n, arg, bytes);
	}
	free(arg);
	free(bytes);
	return n - 1;
}

static void flush_keys(struct flush_work *fl, const redisReply *r)
{
	const redisReply *cursor = r->type == REDIS_REPLY_ARRAY && r->elements == 2 ? r->element[0]
	                                                                            : NULL;
	int right = cursor && cursor->type == REDIS_REPLY_STRING &&
	            (size_t)cursor->len < sizeof fl->cursor && r->element[1]->type == REDIS_REPLY_ARRAY;
	for (size_t i = 0; right && i < r->element[1]->elements; i++)
		right = r->element[1]->element[i]->type == REDIS_REPLY_STRING;
	if (!right) {
		redis_distrust(&fl->w, "SCAN: not a Redis reply");
		return;
	}
	memcpy(fl->cursor, cursor->str, (size_t)cursor->len + 1);
	fl->unlinks = flush_unlink(fl, r->element[1]);
	if (!fl->unlinks)
		flush_step(&fl->w);
}

static void flush_reply(struct redis_work *w, const redisReply *r)
{
	struct flush_work *fl = (struct flush_work *)w;
	const char *text;
	if (r->type == REDIS_REPLY_ERROR) {
		redis_refusal(w->t, r, 0, &text);
		flush_over(fl, ERR_IO, text);
	} else if (!fl->unlinks) {
		flush_keys(fl, r);
	} else if (no_number(w, r)) {
		return;
	} else if (r->integer < 0 || r->integer > fl->unlinks) {
		redis_distrust(w, "UNLINK: a negative number of keys, or more than were named");
	} else {
		fl->unlinks = 0;
		fl->f->blocks += (uint64_t)r->integer;
		flush_step(w);
	}
}

static const struct redis_work_ops flush_ops = {.begin = flush_step,
                                                .reply = flush_reply,
                                                .end = flush_end};

/* Escapes the prefix for the pattern of MATCH. */
static void match_of(char *out, const char *prefix)
{
	for (; *prefix; *out++ = *prefix++)
		if (strchr("*?[]\\^-", *prefix))
			*out++ = '\\';
	*out++ = '*';
	*out = 0;
}

void redis_flush_all(struct redis_tier *t, struct tier_flush *f)
{
	struct flush_work *fl = mem_zalloc(sizeof *fl);
	fl->w.t = t;
	fl->w.ops = &flush_ops;
	fl->w.line = REDIS_PUT;
	fl->w.alone = 1;
	fl->asked_us = clock_us();
	fl->w.deadline_us = fl->asked_us + FLUSH_US; /* until it starts; see flush_step */
	fl->f = f;
	f->blocks = 0;
	strcpy(fl->cursor, "0");
	match_of(fl->match, t->prefix);
	pthread_mutex_lock(&t->lock);
	t->flushing++;
	pthread_mutex_unlock(&t->lock);
	atomic_fetch_add(&t->flushes, 1);
	if (redis_submit(t->link, &fl->w) == 0) {
		redis_tell_gone(t);
		return;
	}
	free(fl);
	pthread_mutex_lock(&t->lock);
	t->flushing--;
	pthread_mutex_unlock(&t->lock);
	f->code = ERR_CLOSED;
	f->done(f);
}

/* --- the server's figures ------------------------------------------------ */

/* The number after "name:" at the start of a line; 0 if missing. */
static uint64_t number_of(const char *text, const char *name)
{
	size_t n = strlen(name);
	for (const char *at = text; at; at = strchr(at, '\n'), at = at ? at + 1 : NULL)
		if (!strncmp(at, name, n) && at[n] == ':')
			return strtoull(at + n + 1, NULL, 10);
	return 0;
}

static void info_begin(struct redis_work *w)
{
	redis_ask(w->t->link, REDIS_ASK, w, "INFO memory");
	redis_ask(w->t->link, REDIS_ASK, w, "INFO stats");
	redis_ask(w->t->link, REDIS_ASK, w, "DBSIZE");
}

/* Returns whether half of the keys, or evictions equal to a quarter of them, are gone: flushed by a
 * client, a restart without data, eviction or expiry. With the lock held. */
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

/* An error reply (no permission) leaves the figures unchanged. 1: many keys are gone. */
static int info_take(struct redis_tier *t, const redisReply *r)
{
	if (r->type == REDIS_REPLY_INTEGER) {
		t->stat.blocks = r->integer > 0 ? (uint64_t)r->integer : 0;
		return many_gone(t);
	}
	if (r->type != REDIS_REPLY_STRING)
		return 0;
	if (strstr(r->str, "used_memory:")) {
		t->stat.bytes = number_of(r->str, "used_memory");
		t->stat.capacity_bytes = number_of(r->str, "maxmemory");
	} else {
		uint64_t n = number_of(r->str, "evicted_keys");
		/* a restarted server counts from 0 */
		uint64_t more = n > t->evictions_seen ? n - t->evictions_seen : 0;
		t->stat.evictions += more;
		t->stat.lost += more;
		t->evictions_seen = n;
	}
	return 0;
}

static void info_reply(struct redis_work *w, const redisReply *r)
{
	struct redis_tier *t = w->t;
	if (r->type == REDIS_REPLY_ARRAY) {
		redis_distrust(w, "INFO: the reply is an array");
		return;
	}
	pthread_mutex_lock(&t->lock);
	int gone = info_take(t, r);
	pthread_mutex_unlock(&t->lock);
	if (gone)
		redis_tell_gone(t);
	if (!w->owed)
		redis_over(w);
}

static const struct redis_work_ops info_ops = {.begin = info_begin,
                                               .reply = info_reply,
                                               .end = end_quietly};

void redis_ask_figures(struct redis_tier *t)
{
	struct redis_work *w = mem_zalloc(sizeof *w);
	list_init(&w->turn);
	w->t = t;
	w->ops = &info_ops;
	w->line = REDIS_ASK;
	w->deadline_us = clock_us() + t->timeout_us;
	redis_begin(w);
}
