/* tiers.c - the tiers according to the configuration: options, opening, reloading, figures.
 *
 * A configured memory tier must be available at start. A disk or Redis that is not is skipped with
 * one log line and retried, so the daemon runs with the available tiers. Each tier counts its own
 * figures; the daemon's counters are updated from them. */
#include "storage.h"
#include "memory.h"
#include "redis_int.h"

#include "util/clock.h"
#include "util/log.h"
#include "util/mem.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define REOPEN_US 30000000u
#define OPEN_WAIT_US 5000000u /* wait at start for a disk tier that reads its heads */
#define PAUSE_US 1000000u

static const char *const policy_names[] = {"recycle", "offload", "write_through"};

/* below: a lower tier is configured, to which `auto` can offload. */
static enum tier_policy policy_of(int eviction, int below)
{
	return eviction ? (enum tier_policy)(eviction - 1) : below ? TIER_OFFLOAD : TIER_RECYCLE;
}

static enum tier_policy memory_policy(const struct storage_conf *c)
{
	return policy_of(c->memory_eviction, *c->disk.path || *c->redis.address);
}

static enum tier_policy disk_policy(const struct storage_conf *c)
{
	return policy_of(c->disk_eviction, *c->redis.address != 0);
}

/* --- opening --- */

static int disk_open(void *arg, struct tier **ret, struct err *err)
{
	const struct storage_conf *c = arg;
	return tier_disk_new(&c->disk, ret, err);
}

static int read_password(const char *path, char *out, size_t size, struct err *err)
{
	out[0] = 0;
	if (!path[0])
		return 0;
	FILE *f = fopen(path, "re");
	if (!f)
		return err_set(err, ERR_IO, "redis_password_file %s: %s", path, strerror(errno));
	if (!fgets(out, (int)size, f))
		out[0] = 0;
	fclose(f);
	out[strcspn(out, "\r\n")] = 0;
	return out[0]
	           ? 0
	           : err_set(err, ERR_INVALID, "redis_password_file %s: its first line is empty", path);
}

static int redis_open(void *arg, struct tier **ret, struct err *err)
{
	const struct storage_conf *c = arg;
	char password[512];
	int r = read_password(c->redis_password_file, password, sizeof password, err);
	if (r != 0)
		return r;
	struct tier_redis_opts opts = c->redis;
	opts.password = password;
	r = tier_redis_new(&opts, ret, err);
	memset(password, 0, sizeof password);
	return r;
}

static int tiers_check(const struct storage_conf *c, struct err *err)
{
	if (c->memory_bytes || *c->disk.path || *c->redis.address)
		return 0;
	return err_set(err, ERR_INVALID,
	               "no tier is configured: memory_mb is 0, disk_path and redis are empty");
}

int tiers_check_files(struct svc *s, struct err *err)
{
	struct storage_conf c;
	struct redis_address a;
	conf_fill(svc_conf(s), storage_keys, &c);
	int r = tiers_check(&c, err);
	if (r == 0 && *c.redis.address)
		r = redis_address_parse(&a, c.redis.address, err);
	return r < 0 ? r : svc_check_file("redis_password_file", c.redis_password_file, err);
}

int tiers_start(struct storage *st, struct err *err)
{
	struct storage_conf *c = &st->at_start;
	struct tier *memory = NULL;
	*c = st->conf;
	if (c->disk.capacity_bytes / 8 < 256u << 20)
		c->disk.segment_bytes = c->disk.capacity_bytes / 8;
	c->disk.direct = 1; /* workers and memory keep what is used: the page cache has no more hits */
	int r = tiers_check(c, err);
	if (r == 0 && c->memory_bytes)
		r = tier_memory_new(c->memory_bytes, &memory, err);
	if (r != 0)
		return r;
	struct stack_opts o = {.reopen_us = REOPEN_US,
	                       .open_wait_us = OPEN_WAIT_US,
	                       .pause_us = PAUSE_US,
	                       .redis_lookup_us = c->redis.lookup_ms * 1000u,
	                       .changed = st->tell ? tell_changed : NULL,
	                       .arg = st->tell};
	if (memory)
		o.level[o.n++] = (struct stack_level){TIER_MEMORY,      memory,   NULL,          NULL,
		                                      memory_policy(c), c->after, c->low_percent};
	if (*c->disk.path)
		o.level[o.n++] = (struct stack_level){TIER_DISK,      NULL,     disk_open,     c,
		                                      disk_policy(c), c->after, c->low_percent};
	if (*c->redis.address)
		o.level[o.n++] = (struct stack_level){TIER_REDIS, NULL, redis_open, c, TIER_RECYCLE, 0, 0};
	st->tier = tier_stack_new(&o);
	return 0;
}

int tiers_reload(struct storage *st, struct err *err)
{
	struct storage_conf c = st->conf;
	conf_fill(svc_conf(st->svc), storage_keys, &c);
	if ((c.memory_bytes != 0) != (tier_stack_find(st->tier, TIER_MEMORY) != NULL))
		return err_set(err, ERR_UNSUPPORTED,
		               "memory_mb = %llu: adding or removing the memory tier needs a restart",
		               (unsigned long long)c.memory_bytes >> 20);
	st->conf = c;
	if (c.memory_bytes)
		tier_stack_resize(st->tier, TIER_MEMORY, c.memory_bytes);
	tier_stack_resize(st->tier, TIER_DISK, c.disk.capacity_bytes);
	tier_stack_policy(st->tier, TIER_MEMORY, memory_policy(&c), c.after, c.low_percent);
	tier_stack_policy(st->tier, TIER_DISK, disk_policy(&c), c.after, c.low_percent);
	return 0;
}

void tiers_stop(struct storage *st)
{
	if (st->tier)
		st->tier->ops->destroy(st->tier);
	st->tier = NULL;
}

int tiers_find(const char *name, enum tier_id *ret)
{
	for (int i = TIER_MEMORY; i < TIER_IDS; i++)
		if (strcmp(name, tier_name((enum tier_id)i)) == 0) {
			*ret = (enum tier_id)i;
			return 0;
		}
	return ERR_NOTFOUND;
}

/* --- figures --- */

/* Adds to a moving average: each new measurement scales the earlier ones by 0.9. */
static void rate_add(double *bytes, double *us, uint64_t more_bytes, uint64_t more_us)
{
	if (!more_bytes)
		return;
	*bytes = *bytes * 0.9 + (double)more_bytes;
	*us = *us * 0.9 + (double)more_us;
}

static void rate_follow(struct tier_rate *r, const struct tier_stat *a, const struct tier_stat *was)
{
	rate_add(&r->read_bytes, &r->read_us, a->read_bytes - was->read_bytes,
	         a->read_us - was->read_us);
	rate_add(&r->write_bytes, &r->write_us, a->write_bytes - was->write_bytes,
	         a->write_us - was->write_us);
}

void tiers_figures(struct storage *st)
{
	struct storage_stats *f = &st->stats;
	f->batches = serve_batches(st);
	f->blocks = f->bytes = f->capacity = f->evictions = f->corrupt = 0;
	for (unsigned i = 0; i < tier_stack_levels(st->tier); i++) {
		struct stack_stat now;
		tier_stack_level(st->tier, i, &now);
		rate_follow(&st->rate[now.id], &now.tier, &f->tier[now.id].tier);
		f->tier[now.id] = now;
		f->blocks += now.tier.blocks;
		f->bytes += now.tier.bytes;
		f->capacity += now.tier.capacity_bytes;
		f->evictions += now.tier.evictions;
		f->corrupt += now.tier.corrupt;
	}
}

static double per_second(double bytes, double us)
{
	return us > 0 ? bytes * 1e6 / us : 0;
}

static void tier_json(struct storage *st, const struct stack_stat *l, struct buf *out)
{
	const struct tier_stat *t = &l->tier;
	const struct tier_rate *r = &st->rate[l->id];
	uint64_t now = clock_us();
	const struct {
		const char *name;
		uint64_t value;
	} row[] = {
		{"blocks", t->blocks},
		{"bytes", t->bytes},
		{"capacity_bytes", t->capacity_bytes},
		{"puts", t->puts},
		{"known", t->known},
		{"gets", t->gets},
		{"hits", t->hits},
		{"misses", t->misses},
		{"evictions", t->evictions},
		{"lost", t->lost},
		{"corrupt", t->corrupt},
		{"full", t->full},
		{"errors", t->errors},
		{"copied_down", l->copied_down},
		{"copy_failed", l->copy_failed},
		{"promoted", l->promoted},
		{"prefetched", l->prefetched},
		{"queued", t->queued},
		{"copying_down", l->copying},
		{"oldest_us", t->oldest_us && t->oldest_us < now ? now - t->oldest_us : 0},
	};
	buf_printf(out, "{\"tier\":\"%s\",\"state\":", tier_name(l->id));
	buf_add_json(out, t->state, strlen(t->state));
	buf_printf(out, ",\"eviction\":\"%s\"", policy_names[l->policy]);
	for (size_t i = 0; i < sizeof row / sizeof *row; i++)
		buf_printf(out, ",\"%s\":%llu", row[i].name, (unsigned long long)row[i].value);
	buf_printf(out, ",\"hit_rate\":%.4f,\"write_bytes_per_s\":%.0f,\"read_bytes_per_s\":%.0f}",
	           t->gets ? (double)t->hits / (double)t->gets : 0.0,
	           per_second(r->write_bytes, r->write_us), per_second(r->read_bytes, r->read_us));
}

void tiers_json(struct storage *st, struct buf *out)
{
	tiers_figures(st);
	buf_addc(out, '[');
	for (unsigned i = 0; i < tier_stack_levels(st->tier); i++) {
		struct stack_stat l;
		tier_stack_level(st->tier, i, &l);
		if (i)
			buf_addc(out, ',');
		tier_json(st, &l, out);
	}
	buf_addc(out, ']');
}
