/* daemon.c - pdstoraged's hooks: start, end, pdctl commands, figures. The daemon stores KV blocks
 * of this host's workers in tiers below their own pools.
 *
 * Start fails with a message if memory or the descriptor socket is unavailable. After that nothing
 * that a worker, a disk or a Redis does ends it. On SIGTERM everything in progress is cancelled and
 * answered; blocks in memory are lost, blocks on disk and in Redis stay. */
#include "storage.h"

#include "util/clock.h"
#include "util/err.h"
#include "util/log.h"
#include "util/mem.h"

#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A flush requested with pdctl. */
struct flushing {
	struct tier_flush f; /* first */
	struct list link;    /* in storage.flushing */
	struct storage *st;
	struct chan_asked *asked;
	enum tier_id id;
};

static struct storage *storage_of(struct svc *s)
{
	return svc_data(s);
}

/* The rates of tiers are averages over its calls. */
static void figures(struct svc *s, void *arg)
{
	(void)arg;
	tiers_figures(storage_of(s));
}

static int start(struct svc *s, struct err *err)
{
	struct storage *st = mem_zalloc(sizeof *st);
	svc_set_data(s, st);
	st->svc = s;
	conf_fill(svc_conf(s), storage_keys, &st->conf);
	list_init(&st->findings);
	list_init(&st->flushing);
	if (sodium_init() < 0)
		return err_set(err, ERR_IO, "libsodium did not start; check that /dev/urandom exists");
	st->tell = tell_new(st, st->conf.kv_events_us);
	int r = tiers_start(st, err);
	if (r != 0)
		return r;
	st->copier = copier_new(st->tier, st->conf.threads, serve_finished, st);
	if ((r = clients_start(st, err)) != 0)
		return r;
	figures(s, NULL);
	st->timer = svc_timer_add(s, 5000000, figures, NULL);
	log_notice("storage_started", "tiers=%u memory_mb=%llu threads=%u", tier_stack_levels(st->tier),
	           (unsigned long long)st->conf.memory_bytes >> 20, st->conf.threads);
	return 0;
}

static int reload(struct svc *s, struct err *err)
{
	return tiers_reload(storage_of(s), err);
}

static void drain(struct svc *s)
{
	list_each(it, &storage_of(s)->clients)
		serve_cancel(list_entry(it, struct storage_client, link));
}

static int idle(struct svc *s)
{
	return serve_batches(storage_of(s)) == 0;
}

/* The copy threads end after the current piece, the tiers after their started operations. Batches
 * not answered by then get no answer: the worker notices the end of the connection. */
static void stop(struct svc *s)
{
	struct storage *st = storage_of(s);
	drain(s);
	copier_stop(st->copier);
	svc_timer_del(&st->timer);
	tiers_stop(st);
	copier_destroy(&st->copier);
	serve_forget(st);
	clients_stop(st);
	tell_destroy(&st->tell);
	list_each_safe(it, nx, &st->flushing) /* done, but the loop that would answer has ended */
		free(list_entry(it, struct flushing, link));
	free(st);
}

/* --- pdctl --- */

static uint64_t oldest_batch_us(const struct storage_client *c)
{
	uint64_t begun = 0, now = clock_us();
	list_each(it, &c->batches) {
		uint64_t at = list_entry(it, struct batch, link)->begun_us;
		begun = !begun || at < begun ? at : begun;
	}
	return begun && begun < now ? now - begun : 0;
}

static void client_json(const struct storage_client *c, struct buf *out)
{
	buf_adds(out, "{\"name\":");
	buf_add_json(out, c->name, strlen(c->name));
	buf_printf(out,
	           ",\"epoch\":\"%016llx\",\"attached\":%s,\"blocks\":%u,\"block_bytes\":%zu,"
	           "\"layout\":\"%s\",\"batches\":%u,\"oldest_batch_us\":%llu}",
	           (unsigned long long)c->epoch, c->attached ? "true" : "false",
	           c->target.region.blocks, c->target.layout.block_bytes, c->layout, c->n_batches,
	           (unsigned long long)oldest_batch_us(c));
}

static int ctl_storage(struct svc *s, char *const *args, size_t n_args, struct buf *out,
                       struct err *err)
{
	(void)args;
	if (n_args)
		return err_set(err, ERR_INVALID, "storage takes no arguments");
	struct storage *st = storage_of(s);
	buf_adds(out, "{\"tiers\":");
	tiers_json(st, out);
	buf_adds(out, ",\"workers\":[");
	int first = 1;
	list_each(it, &st->clients) {
		if (!first)
			buf_addc(out, ',');
		first = 0;
		client_json(list_entry(it, struct storage_client, link), out);
	}
	buf_adds(out, "]}");
	return 0;
}

static void flushed(struct svc *s, void *arg)
{
	struct flushing *a = arg;
	const char *name = a->id == TIER_NONE ? "all" : tier_name(a->id);
	char json[96];
	log_notice("flushed", "tier=%s blocks=%llu why=%s", name, (unsigned long long)a->f.blocks,
	           log_quote(a->f.text));
	snprintf(json, sizeof json, "{\"tier\":\"%s\",\"blocks\":%llu}", name,
	         (unsigned long long)a->f.blocks);
	chan_answer(svc_chan(s), a->asked, a->f.code, a->f.code == 0 ? json : a->f.text);
	list_remove(&a->link);
	free(a);
}

/* Any thread. */
static void flush_done(struct tier_flush *f)
{
	svc_post(((struct flushing *)f)->st->svc, flushed, f);
}

/* Answered when the flush is persistent: none of the blocks can come back. */
static int ctl_flush(struct svc *s, char *const *args, size_t n_args, struct buf *out,
                     struct err *err)
{
	struct storage *st = storage_of(s);
	enum tier_id id = TIER_NONE;
	(void)out;
	if (n_args > 1)
		return err_set(err, ERR_INVALID, "flush takes the name of one tier, or nothing: all tiers");
	if (n_args && tiers_find(args[0], &id) != 0)
		return err_set(err, ERR_INVALID, "no tier \"%.32s\": expected memory, disk or redis",
		               args[0]);
	struct flushing *a = mem_zalloc(sizeof *a);
	a->f.done = flush_done;
	a->st = st;
	a->asked = svc_asked(s);
	a->id = id;
	list_push_back(&st->flushing, &a->link);
	tier_stack_flush(st->tier, id, &a->f);
	return CHAN_LATER;
}

static void status(struct svc *s, struct buf *out)
{
	struct storage *st = storage_of(s);
	const struct storage_stats *f = &st->stats;
	tiers_figures(st);
	buf_adds(out, ",\"tiers\":{");
	for (unsigned i = 0; i < tier_stack_levels(st->tier); i++) {
		struct stack_stat l;
		tier_stack_level(st->tier, i, &l);
		buf_printf(out, "%s\"%s\":", i ? "," : "", tier_name(l.id));
		buf_add_json(out, l.tier.state, strlen(l.tier.state));
	}
	buf_printf(out,
	           "},\"blocks\":%llu,\"bytes\":%llu,\"capacity_bytes\":%llu,\"hits\":%llu,\"misses\":%"
	           "llu,\"workers\":%u,\"batches\":%u",
	           (unsigned long long)f->blocks, (unsigned long long)f->bytes,
	           (unsigned long long)f->capacity, (unsigned long long)f->gets_hit,
	           (unsigned long long)f->gets_missed, attached_workers(st->attached),
	           serve_batches(st));
}

static const struct svc_msg messages[] = {
	{MSG_STORE_PUT, serve_put, 0},       {MSG_STORE_GET, serve_get, 0},
	{MSG_STORE_LOOKUP, serve_lookup, 0}, {MSG_STORE_FENCE, serve_fence, 0},
	{MSG_STORE_LIST, tell_list, 0},      {0},
};

static const struct svc_ctl ctl[] = {
	{"storage", ctl_storage,
     "tiers (state, blocks, bytes, hits, evictions, copies, rates, operations in progress) and "
     "attached workers",
     0},
	{"flush", ctl_flush, "drop every stored block, or those of one tier: memory, disk, redis", 1},
	{0},
};

/* Per worker: connection, door bell, ring, memory, process and link. */
static unsigned descriptors(const struct svc *s, char *ret_setting, size_t size)
{
	struct storage_conf c;
	conf_fill(svc_conf(s), storage_keys, &c);
	snprintf(ret_setting, size, "workers_max = %u", c.workers_max);
	return 6 * c.workers_max;
}

static void up(struct svc *s, struct peer *p)
{
	attached_link_up(storage_of(s)->attached, p);
}

static void refresh(struct svc *s)
{
	figures(s, NULL);
}

const struct svc_hooks storage_hooks = {
	.program = "pdstoraged",
	.descriptors = descriptors,
	.default_name = "storage",
	.keys = storage_keys,
	.stats = storage_stats,
	.messages = messages,
	.ctl = ctl,
	.check = tiers_check_files,
	.start = start,
	.reload = reload,
	.drain = drain,
	.idle = idle,
	.stop = stop,
	.status = status,
	.refresh = refresh,
	.up = up,
	.down = serve_down,
};
