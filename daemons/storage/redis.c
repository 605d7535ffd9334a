/* redis.c - see redis.h: options, the calls of tier.h, figures. Commands and replies are in
 * redis_work.c.
 *
 * Invariants: an operation is passed to the link, which ends it exactly once, or is ended here at
 * once. No reply, or lack of one, ends the process, delays an operation beyond its limit, or
 * returns a block that was not stored under its key. */
#include "redis_int.h"

#include "util/clock.h"
#include "util/log.h"
#include "util/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/un.h>

#define PUTS_PAUSE_US 1000000u
#define REFUSED_LOG_US 10000000u
#define PORT_DEFAULT 6379

const char redis_flush_text[] = "the redis tier is being flushed";

static struct redis_tier *redis_of(struct tier *t)
{
	return (struct redis_tier *)t;
}

/* --- error replies --- */

static const struct refusal {
	const char *word;
	int code, pauses_puts;
	const char *text;
} refusals[] = {
	{"OOM", ERR_FULL, 1, "redis is at its maxmemory and evicts nothing"},
	{"READONLY", ERR_IO, 1, "this redis is a replica and refuses writes"},
	{"MISCONF", ERR_IO, 1, "redis refuses writes: it cannot save its data"},
	{"NOREPLICAS", ERR_IO, 1, "redis refuses writes: it has too few replicas"},
	{"NOPERM", ERR_IO, 1, "redis denies this user the command or the key"},
	{"NOAUTH", ERR_IO, 1, "redis requires a password"},
	{"LOADING", ERR_IO, 1, "redis is loading its data"},
	{"BUSY", ERR_IO, 0, "redis is busy with a script"},
	{"MASTERDOWN", ERR_IO, 1, "this redis is a replica without its master"},
	{"CLUSTERDOWN", ERR_IO, 1, "the redis cluster is down"},
	{"MOVED", ERR_IO, 1, "this redis is a cluster node without this key"},
};
static const struct refusal refusal_other = {"", ERR_IO, 0, "redis answered with an error"};

int redis_refusal(struct redis_tier *t, const redisReply *r, int is_put, const char **ret_text)
{
	const struct refusal *is = &refusal_other;
	for (size_t i = 0; i < sizeof refusals / sizeof refusals[0]; i++) {
		size_t n = strlen(refusals[i].word);
		if (!strncmp(r->str, refusals[i].word, n) && (!r->str[n] || r->str[n] == ' '))
			is = &refusals[i];
	}
	char says[100];
	snprintf(says, sizeof says, "%s", r->str);
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

/* Why puts are refused now: a code and its text; 0: they are not. With the lock held. */
static int puts_refused(const struct redis_tier *t, const char **ret_text)
{
	if (t->flushing) {
		*ret_text = redis_flush_text;
		return ERR_FULL;
	}
	*ret_text = t->puts_pause_text;
	return t->puts_pause_text && clock_us() < t->puts_pause_until_us ? t->puts_pause_code : 0;
}

static void redis_put(struct tier *tier, struct tier_op *op)
{
	struct redis_tier *t = redis_of(tier);
	const char *text;
	unsigned flushes = atomic_load(&t->flushes);
	pthread_mutex_lock(&t->lock);
	int code = puts_refused(t, &text);
	t->stat.puts++;
	t->stat.full += code == ERR_FULL;
	t->stat.errors += code != 0 && code != ERR_FULL;
	pthread_mutex_unlock(&t->lock);
	if (code != 0)
		op->done(op, code, TIER_NONE, text);
	else
		redis_put_block(t, op, flushes);
}

static void redis_get(struct tier *tier, struct tier_op *op)
{
	struct redis_tier *t = redis_of(tier);
	unsigned flushes = atomic_load(&t->flushes);
	pthread_mutex_lock(&t->lock);
	int flushing = t->flushing != 0;
	t->stat.gets += !op->aside;
	t->stat.misses += flushing && !op->aside;
	pthread_mutex_unlock(&t->lock);
	if (flushing)
		op->done(op, ERR_NOTFOUND, TIER_NONE, redis_flush_text);
	else
		redis_get_block(t, op, flushes);
}

static void redis_lookup(struct tier *tier, struct tier_find *f)
{
	struct redis_tier *t = redis_of(tier);
	unsigned flushes = atomic_load(&t->flushes);
	pthread_mutex_lock(&t->lock);
	int flushing = t->flushing != 0;
	pthread_mutex_unlock(&t->lock);
	if (flushing)
		f->done(f);
	else
		redis_find(t, f, flushes);
}

static int redis_remove(struct tier *tier, const struct tier_key *key)
{
	return redis_remove_key(redis_of(tier), key);
}

static void redis_watch(struct tier *tier,
                        void (*changed)(void *arg, const struct tier_key *key, int stored),
                        void *arg)
{
	struct redis_tier *t = redis_of(tier);
	pthread_mutex_lock(&t->lock);
	t->changed = changed;
	t->changed_arg = arg;
	pthread_mutex_unlock(&t->lock);
}

void redis_tell_gone(struct redis_tier *t)
{
	pthread_mutex_lock(&t->lock);
	void (*changed)(void *arg, const struct tier_key *key, int stored) = t->changed;
	void *arg = t->changed_arg;
	pthread_mutex_unlock(&t->lock);
	if (changed)
		changed(arg, NULL, 0);
}

static void redis_flush(struct tier *tier, struct tier_flush *f)
{
	redis_flush_all(redis_of(tier), f);
}

/* State: "ready", with a restriction if any, or "away" with the reason. */
static void redis_stat(struct tier *tier, struct tier_stat *ret)
{
	struct redis_tier *t = redis_of(tier);
	const char *why;
	pthread_mutex_lock(&t->lock);
	*ret = t->stat;
	const char *refuses = t->flushing ? "being flushed" : t->puts_pause_text;
	if (redis_link_stat(t->link, ret, &why))
		snprintf(ret->state, sizeof ret->state, "ready%s%s", refuses ? ", " : "",
		         refuses ? refuses : "");
	else
		snprintf(ret->state, sizeof ret->state, "away: %s", why);
	pthread_mutex_unlock(&t->lock);
}

static void redis_destroy(struct tier *tier)
{
	struct redis_tier *t = redis_of(tier);
	redis_link_destroy(&t->link);
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
		return err_set(err, ERR_INVALID, "redis tier: the prefix has %zu bytes, not 1 to %u", n,
		               REDIS_PREFIX_MAX);
	for (size_t i = 0; i < n; i++)
		if (prefix[i] <= ' ' || prefix[i] > '~')
			return err_set(err, ERR_INVALID,
			               "redis tier: byte %zu of the prefix is not a printable character", i);
	return 0;
}

static const char *text_or_null(const char *s)
{
	return s && *s ? s : NULL;
}

static int check_opts(const struct tier_redis_opts *o, struct err *err)
{
	int r = 0;
	(void)((r = check_range("db", o->db, 0, 65535, err)) ||
	       (r = check_range("timeout_ms", o->timeout_ms, 10, 60000, err)) ||
	       (r = check_range("lookup_ms", o->lookup_ms, 1, 60000, err)) ||
	       (r = check_range("depth", o->depth, 1, 1024, err)) ||
	       (r = check_prefix(o->prefix, err)));
	if (r == 0 && text_or_null(o->username) && !text_or_null(o->password))
		r = err_set(err, ERR_INVALID, "redis tier: a username without a password");
	return r;
}

static int bad_address(struct err *err, const char *text, const char *why)
{
	return err_set(err, ERR_INVALID,
	               "redis address \"%.100s\": %s (host:port, [v6]:port or unix:/path)", text, why);
}

static int parse_port(const char *text, int *ret)
{
	char *end;
	long n = strtol(text, &end, 10);
	if (*text < '0' || *text > '9' || *end || n < 1 || n > 65535)
		return ERR_INVALID;
	*ret = (int)n;
	return 0;
}

int redis_address_parse(struct redis_address *ret, const char *text, struct err *err)
{
	struct redis_address a = {.port = PORT_DEFAULT};
	if (!strncmp(text, "unix:", 5)) {
		if (text[5] != '/' || strlen(text + 5) >= sizeof((struct sockaddr_un *)0)->sun_path)
			return bad_address(err, text, "not an absolute path of less than 108 bytes");
		a.port = 0;
		strcpy(a.host, text + 5);
		*ret = a;
		return 0;
	}
	const char *host = text, *end = text + strlen(text), *port = NULL;
	if (*text == '[') {
		host = text + 1;
		end = strchr(host, ']');
		if (!end || (end[1] && end[1] != ':'))
			return bad_address(err, text, "missing closing bracket");
		port = end[1] ? end + 2 : NULL;
	} else if (strchr(text, ':')) {
		end = strrchr(text, ':');
		if (strchr(text, ':') != end)
			return bad_address(err, text, "an IPv6 address needs brackets");
		port = end + 1;
	}
	if (end == host || (size_t)(end - host) >= sizeof a.host)
		return bad_address(err, text, "no host of 1 to 255 bytes");
	if (port && parse_port(port, &a.port) != 0)
		return bad_address(err, text, "the port is not 1 to 65535");
	memcpy(a.host, host, (size_t)(end - host));
	*ret = a;
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
	t->address = address;
	t->db = o.db;
	t->depth = o.depth;
	t->timeout_us = (uint64_t)o.timeout_ms * 1000;
	t->lookup_us = (uint64_t)o.lookup_ms * 1000;
	t->ttl_ms = (uint64_t)o.ttl_s * 1000;
	t->evictions_seen = UINT64_MAX; /* earlier evictions are not counted */
	r = redis_link_new(t, &t->link, err);
	if (r != 0)
		redis_destroy(&t->tier);
	else
		*ret_t = &t->tier;
	return r;
}
