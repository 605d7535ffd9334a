/* tier_redis.c - see tier_redis.h: options, the calls of tier.h, figures. What is sent and what answers mean is in redis_block.c and redis_keys.c.
 *
 * What always holds: an operation is handed to one lane, which ends it exactly once, or is ended here at once. Nothing that the server says or
 * does not say ends the process, waits longer than its limit, or makes a block be served that was not stored under its key. */
#include "tier_redis.h"
#include "redis_tier.h"

#include "util/check.h"
#include "util/clock.h"
#include "util/log.h"
#include "util/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BEAT_US 2000000u
#define GET_WINDOW_BYTES ((size_t)4 << 20)   /* asked for at a time: more only makes the server keep answers in its memory */
#define PUTS_PAUSE_US 1000000u
#define REFUSED_LOG_US 10000000u

static struct redis_tier *redis_of(struct tier *t)
{
	return (struct redis_tier *)t;
}

struct redis_arg redis_key_arg(const struct redis_tier *t, const struct tier_key *key, struct redis_key_text *room)
{
	memcpy(room->b, t->prefix, t->prefix_bytes);
	redis_key_digits(room->b + t->prefix_bytes, key);
	room->bytes = t->prefix_bytes + REDIS_KEY_DIGITS;
	return (struct redis_arg){room->b, room->bytes};
}

int redis_tier_flushing(const struct redis_tier *t)
{
	uint64_t until = atomic_load(&t->flushing_until_us);
	return until && clock_us() < until;
}

/* --- error replies --- */

static const struct refusal {
	const char *word;
	int code, pauses_puts;
	const char *text;
} refusals[] = {
	{"OOM", ERR_FULL, 1, "redis is at its maxmemory and evicts nothing"},
	{"READONLY", ERR_IO, 1, "this redis is a replica and takes no writes"},
	{"MISCONF", ERR_IO, 1, "redis takes no writes: it cannot save its data"},
	{"NOREPLICAS", ERR_IO, 1, "redis takes no writes: it has too few replicas"},
	{"NOPERM", ERR_IO, 1, "redis does not permit this user the command or the key"},
	{"NOAUTH", ERR_IO, 1, "redis wants a password"},
	{"LOADING", ERR_IO, 1, "redis is loading its data"},
	{"BUSY", ERR_IO, 0, "redis is busy with a script"},
	{"MASTERDOWN", ERR_IO, 1, "this redis is a replica without its master"},
	{"CLUSTERDOWN", ERR_IO, 1, "the redis cluster is down"},
	{"MOVED", ERR_IO, 1, "this redis is one of a cluster and has other keys"},
};
static const struct refusal refusal_other = {"", ERR_IO, 0, "redis answered with an error"};

int redis_tier_refusal(struct redis_tier *t, const struct redis_item *it, int is_put, const char **ret_text)
{
	const struct refusal *is = &refusal_other;
	for (size_t i = 0; i < sizeof refusals / sizeof refusals[0]; i++) {
		size_t n = strlen(refusals[i].word);
		if (it->bytes >= n && !memcmp(it->text, refusals[i].word, n) && (it->bytes == n || it->text[n] == ' '))
			is = &refusals[i];
	}
	char says[100];
	snprintf(says, sizeof says, "%.*s", (int)(it->bytes < sizeof says ? it->bytes : sizeof says - 1), it->text);
	uint64_t now = clock_us();
	pthread_mutex_lock(&t->lock);
	int log = now - t->refused_logged_us > REFUSED_LOG_US;
	if (log)
		t->refused_logged_us = now;
	if (is_put && is->pauses_puts) {
		t->puts_pause_until_us = now + PUTS_PAUSE_US;
		t->puts_pause_code = is->code;
		t->puts_pause_text = is->text;
	}
	pthread_mutex_unlock(&t->lock);
	if (log)
		log_warn("redis_refused", "says=%s", log_quote(says));
	*ret_text = is->text;
	return is->code;
}

/* --- the calls --- */

/* Why no put is tried now: a code and its text; 0: none. With the lock held. */
static int puts_refused(const struct redis_tier *t, const char **ret_text)
{
	if (redis_tier_flushing(t)) {
		*ret_text = "the redis tier is being flushed";
		return ERR_FULL;
	}
	*ret_text = t->puts_pause_text;
	return t->puts_pause_text && clock_us() < t->puts_pause_until_us ? t->puts_pause_code : 0;
}

static void redis_put(struct tier *tier, struct tier_op *op)
{
	struct redis_tier *t = redis_of(tier);
	const char *text;
	pthread_mutex_lock(&t->lock);
	int code = puts_refused(t, &text);
	t->stat.puts++;
	t->stat.full += code == ERR_FULL;
	t->stat.errors += code != 0 && code != ERR_FULL;
	pthread_mutex_unlock(&t->lock);
	if (code != 0)
		op->done(op, code, TIER_NONE, text);
	else
		redis_block_put(t, op);
}

static void redis_get(struct tier *tier, struct tier_op *op)
{
	struct redis_tier *t = redis_of(tier);
	int flushing = redis_tier_flushing(t);
	pthread_mutex_lock(&t->lock);
	t->stat.gets += !op->aside;
	t->stat.misses += flushing && !op->aside;
	pthread_mutex_unlock(&t->lock);
	if (flushing)
		op->done(op, ERR_NOTFOUND, TIER_NONE, "the redis tier is being flushed");
	else
		redis_block_get(t, op);
}

static void redis_lookup(struct tier *tier, struct tier_find *f)
{
	struct redis_tier *t = redis_of(tier);
	if (redis_tier_flushing(t))
		f->done(f);
	else
		redis_keys_find(t, f);
}

static int redis_remove(struct tier *tier, const struct tier_key *key)
{
	return redis_keys_remove(redis_of(tier), key);
}

static void redis_watch(struct tier *tier, void (*changed)(void *arg, const struct tier_key *key, int stored), void *arg)
{
	struct redis_tier *t = redis_of(tier);
	pthread_mutex_lock(&t->lock);
	t->changed = changed;
	t->changed_arg = arg;
	pthread_mutex_unlock(&t->lock);
}

void redis_tier_tell_gone(struct redis_tier *t)
{
	pthread_mutex_lock(&t->lock);
	void (*changed)(void *arg, const struct tier_key *key, int stored) = t->changed;
	void *arg = t->changed_arg;
	pthread_mutex_unlock(&t->lock);
	if (changed)
		changed(arg, NULL, 0);
}

/* Begins it; the blocks that were there when the server was last asked. */
static void redis_flush(struct tier *tier, struct tier_flush *f)
{
	struct redis_tier *t = redis_of(tier);
	if (redis_keys_flush(t) != 0) {
		f->code = ERR_CLOSED;
	} else {
		pthread_mutex_lock(&t->lock);
		f->blocks = t->stat.blocks;
		pthread_mutex_unlock(&t->lock);
		redis_tier_tell_gone(t);
	}
	f->done(f);
}

/* "ready" and what it does not do all the same, or the first lane that is not. */
static void state_of(struct redis_tier *t, const char *refuses, struct tier_stat *ret)
{
	if (redis_tier_flushing(t))
		refuses = "being flushed";
	snprintf(ret->state, sizeof ret->state, "ready%s%s", refuses ? ", " : "", refuses ? refuses : "");
	for (int i = REDIS_LANES - 1; i >= 0; i--) {
		struct redis_lane_stat s;
		redis_lane_stat(t->lane[i], &s);
		ret->queued += s.queued;
		if (s.oldest_us && (!ret->oldest_us || s.oldest_us < ret->oldest_us))
			ret->oldest_us = s.oldest_us;
		if (!s.ready)
			snprintf(ret->state, sizeof ret->state, "away: %s", s.why);
	}
}

static void redis_stat(struct tier *tier, struct tier_stat *ret)
{
	struct redis_tier *t = redis_of(tier);
	pthread_mutex_lock(&t->lock);
	*ret = t->stat;
	const char *refuses = t->puts_pause_text;
	pthread_mutex_unlock(&t->lock);
	state_of(t, refuses, ret);
}

static void redis_destroy(struct tier *tier)
{
	struct redis_tier *t = redis_of(tier);
	for (int i = 0; i < REDIS_LANES; i++)
		redis_lane_destroy(&t->lane[i]);
	if (t->password)
		explicit_bzero(t->password, strlen(t->password));
	free(t->username);
	free(t->password);
	pthread_mutex_destroy(&t->lock);
	free(t);
}

static const struct tier_ops redis_ops = {
	.id = TIER_REDIS,
	.put = redis_put,
	.get = redis_get,
	.lookup = redis_lookup,
	.remove = redis_remove,
	.flush = redis_flush,
	.stat = redis_stat,
	.watch = redis_watch,
	.destroy = redis_destroy,
};

/* --- options --- */

static int check_range(const char *name, uint32_t n, uint32_t least, uint32_t most, struct err *err)
{
	if (n >= least && n <= most)
		return 0;
	return err_set(err, ERR_INVALID, "redis tier: %s is %u, not %u to %u", name, n, least, most);
}

static int check_prefix(const char *prefix, struct err *err)
{
	size_t n = strlen(prefix);
	if (n < 1 || n > REDIS_PREFIX_MAX)
		return err_set(err, ERR_INVALID, "redis tier: the prefix has %zu bytes, not 1 to %u", n, REDIS_PREFIX_MAX);
	for (size_t i = 0; i < n; i++)
		if (prefix[i] <= ' ' || prefix[i] > '~')
			return err_set(err, ERR_INVALID, "redis tier: byte %zu of the prefix is no printable character", i);
	return 0;
}

static const char *text_or_null(const char *s)
{
	return s && *s ? s : NULL;
}

static int check_opts(const struct tier_redis_opts *o, struct err *err)
{
	int r = 0;
	(void)((r = check_range("db", o->db, 0, 65535, err)) || (r = check_range("timeout_ms", o->timeout_ms, 10, 60000, err)) ||
	       (r = check_range("lookup_ms", o->lookup_ms, 1, 60000, err)) || (r = check_range("depth", o->depth, 1, 1024, err)) ||
	       (r = check_prefix(o->prefix, err)));
	if (r == 0 && text_or_null(o->username) && !text_or_null(o->password))
		r = err_set(err, ERR_INVALID, "redis tier: a username without a password");
	return r;
}

static int start_lanes(struct redis_tier *t, const struct tier_redis_opts *o, const struct redis_address *address, struct err *err)
{
	static const char *const name[REDIS_LANES] = {"ask", "get", "put"};
	for (int i = 0; i < REDIS_LANES; i++) {
		struct redis_lane_opts lo = {
			.name = name[i], .address = *address, .username = t->username, .password = t->password, .prefix = t->prefix, .db = o->db,
			.timeout_us = t->timeout_us, .depth = o->depth, .window_bytes = GET_WINDOW_BYTES, .user = t,
		};
		if (i == LANE_ASK) {
			lo.beat_us = BEAT_US;
			lo.beat = redis_keys_ask_figures;
		}
		int r = redis_lane_new(&lo, &t->lane[i], err);
		if (r != 0)
			return r;
	}
	return 0;
}

int tier_redis_new(const struct tier_redis_opts *opts, struct tier **ret_t, struct err *err)
{
	struct tier_redis_opts o = *opts;
	o.timeout_ms = o.timeout_ms ? o.timeout_ms : 1000;
	o.lookup_ms = o.lookup_ms ? o.lookup_ms : 10;
	o.depth = o.depth ? o.depth : 16;
	o.prefix = o.prefix ? o.prefix : TIER_REDIS_PREFIX;
	struct redis_address address;
	int r = check_opts(&o, err);
	if (r == 0)
		r = redis_address_parse(&address, o.address ? o.address : "", err);
	if (r != 0)
		return r;
	struct redis_tier *t = mem_zalloc(sizeof *t);
	t->tier.ops = &redis_ops;
	pthread_mutex_init(&t->lock, NULL);
	t->username = mem_strdup(text_or_null(o.username));
	t->password = mem_strdup(text_or_null(o.password));
	t->prefix_bytes = strlen(o.prefix);
	memcpy(t->prefix, o.prefix, t->prefix_bytes);
	t->timeout_us = (uint64_t)o.timeout_ms * 1000;
	t->lookup_us = (uint64_t)o.lookup_ms * 1000;
	t->ttl_ms = (uint64_t)o.ttl_s * 1000;
	t->evictions_seen = UINT64_MAX;   /* those before we came are not counted */
	r = start_lanes(t, &o, &address, err);
	if (r != 0)
		redis_destroy(&t->tier);
	else
		*ret_t = &t->tier;
	return r;
}
