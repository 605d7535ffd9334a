/* ctl.c - what a worker tells pdctl: status, requests, KV blocks; the commands flush and role. */
#include "seq/constraint.h"
#include "stage.h"
#include "util/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* The kernels in use, and a GPU; of the host nothing is said. */
static void device_json(const struct worker *w, struct buf *out)
{
	struct kern_info i;
	engine_device_info(w->engine, &i);
	buf_adds(out, ",\"kernels\":");
	buf_add_json(out, i.kernels, strlen(i.kernels));
	if (!i.memory_bytes)
		return;
	buf_adds(out, ",\"device\":{\"name\":");
	buf_add_json(out, i.name, strlen(i.name));
	buf_printf(out,
	           ",\"index\":%d,\"memory_mb\":%llu,\"free_mb\":%llu,\"temperature_c\":%u,\"power_w\":"
	           "%u,\"clock_mhz\":%u,\"memory_clock_mhz\":%u,"
	           "\"memory_errors\":%llu}",
	           w->info->device, (unsigned long long)i.memory_bytes >> 20,
	           (unsigned long long)i.free_bytes >> 20, i.temperature_c, i.power_w, i.clock_mhz,
	           i.memory_clock_mhz, (unsigned long long)i.memory_errors);
}

/* Which routers know whether it is drained; those that are down learn it when their link comes
 * up. */
static void routers_json(struct worker *w, struct buf *out)
{
	struct chan *c = svc_chan(w->svc);
	int first = 1;
	buf_adds(out, ",\"routers\":[");
	for (struct peer *p = chan_next(c, NULL); p; p = chan_next(c, p)) {
		if (peer_tag(p) != TAG_ROUTER || !peer_is_up(p))
			continue;
		buf_adds(out, first ? "{\"name\":" : ",{\"name\":");
		buf_add_json(out, peer_name(p), strlen(peer_name(p)));
		buf_printf(out, ",\"knows\":%s}",
		           !w->tell.routers_untold && peer_has_all(p, MSG_WORKER_UPDATE) ? "true"
		                                                                         : "false");
		first = 0;
	}
	buf_addc(out, ']');
}

void worker_status(struct svc *s, struct buf *out)
{
	struct worker *w = worker_of(s);
	struct kv_stats ks;
	struct kern_counters dev;
	kv_pool_stats(w->pool, &ks);
	engine_counters(w->engine, &dev);
	worker_count_device(w);
	buf_addc(out, ',');
	role_json(w, out);
	buf_printf(out, ",\"drained\":%s", w->drained ? "true" : "false");
	routers_json(w, out);
	buf_printf(out, ",\"numerics\":\"%s\",\"layout\":\"%s\",\"model\":", w->info->numerics,
	           w->layout);
	buf_add_json(out, w->info->name, strlen(w->info->name));
	buf_printf(out,
	           ",\"blocks\":%u,\"blocks_free\":%u,\"blocks_cached\":%u,\"blocks_held\":%u,\"blocks_"
	           "leased\":%u",
	           ks.blocks, ks.by_state[KV_FREE], ks.by_state[KV_CACHED], ks.by_state[KV_HELD],
	           ks.by_state[KV_LEASED]);
	buf_printf(out,
	           ",\"steps\":%llu,\"prompt_tokens\":%llu,\"cached_tokens\":%llu,\"generated_tokens\":"
	           "%llu,\"preemptions\":%llu",
	           (unsigned long long)w->progress, (unsigned long long)w->stats.prompt_tokens,
	           (unsigned long long)w->stats.cached_tokens,
	           (unsigned long long)w->stats.generated_tokens,
	           (unsigned long long)w->stats.preemptions);
	buf_printf(out, ",\"device_busy_us\":%llu,\"device_steps\":%llu,\"device_kv_faults\":%llu",
	           (unsigned long long)dev.busy_ns / 1000, (unsigned long long)dev.steps,
	           (unsigned long long)dev.kv_faults);
	device_json(w, out);
	constraints_json(w->constraints, out);
	w->stage->status(w, out);
}

static int ctl_requests(struct svc *s, char *const *args, size_t n, struct buf *out,
                        struct err *err)
{
	struct worker *w = worker_of(s);
	(void)args;
	(void)n;
	(void)err;
	w->stage->requests(w, out);
	return 0;
}

static void tier_json(unsigned t, const struct kv_stats *ks, const struct store_counts *c,
                      const struct rates_view *v, struct buf *out)
{
	buf_printf(out,
	           "%s{\"tier\":\"%s\",\"cached_stored\":%u,\"found_blocks\":%llu,\"read_blocks\":%llu,"
	           "\"written_blocks\":%llu",
	           t > STORE_TIER_MEMORY ? "," : "", store_tier_name(t), ks->stored[t],
	           (unsigned long long)c->found[t], (unsigned long long)c->got[t],
	           (unsigned long long)c->put[t]);
	buf_printf(out, ",\"read_begin_us\":%.0f,\"read_bytes_per_s\":%.0f,\"break_even_blocks\":",
	           v->read_begin_us[t], v->read_bytes_us[t] * 1e6);
	if (v->break_even_blocks[t] == UINT32_MAX)
		buf_adds(out, "\"never\"}");
	else if (!v->break_even_blocks[t])
		buf_adds(out, "null}");
	else
		buf_printf(out, "%u}", v->break_even_blocks[t]);
}

static void storage_json(struct worker *w, const struct kv_stats *ks, struct buf *out)
{
	struct store_counts c;
	struct rates_view v;
	if (!w->store)
		return;
	store_counts(w->store, &c);
	rates_view(&w->rates, &v);
	buf_printf(out,
	           ",\"storage\":{\"ready\":%d,\"looked_up_blocks\":%llu,\"found_blocks\":%llu,"
	           "\"missed_blocks\":%llu,\"timeouts\":%llu,\"errors\":%llu",
	           c.ready, (unsigned long long)c.looked_up,
	           (unsigned long long)(c.found[0] + c.found[1] + c.found[2] + c.found[3]),
	           (unsigned long long)c.missed_blocks, (unsigned long long)c.timeouts,
	           (unsigned long long)c.errors);
	buf_printf(out,
	           ",\"compute_tokens_per_s\":%.1f,\"write_bytes_per_s\":%.0f,\"worth_reading_blocks\":"
	           "%llu,\"worth_computing_blocks\":%llu",
	           v.compute_tokens_us * 1e6, v.write_bytes_us * 1e6, (unsigned long long)v.chosen_read,
	           (unsigned long long)v.chosen_compute);
	writeout_json(w->writeout, out);
	buf_adds(out, ",\"tiers\":[");
	for (unsigned t = STORE_TIER_MEMORY; t < STORE_TIERS; t++)
		tier_json(t, ks, &c, &v, out);
	buf_adds(out, "]}");
}

static void pin_json(struct worker *w, struct buf *out)
{
	struct kv_oldest_pin pin;
	uint64_t now = clock_us();
	if (kv_pool_oldest_pin(w->pool, &pin))
		buf_printf(out, ",\"oldest_pin_ms\":%llu,\"oldest_pin_block\":%u,\"oldest_pin\":\"%s\"",
		           (unsigned long long)(now > pin.since_us ? (now - pin.since_us) / 1000 : 0),
		           pin.block, pin.why);
	else
		buf_adds(out, ",\"oldest_pin_ms\":null,\"oldest_pin_block\":null,\"oldest_pin\":null");
}

/* Why a block is not anybody's to take. */
static const char *block_reason(struct worker *w, const struct kv_block_info *i)
{
	const char *special = w->state && w->stage->reason ? w->stage->reason(w, i->block) : NULL;
	return special ? special : i->state == KV_LEASED ? "lease" : i->refs ? "request" : "reader";
}

static int ctl_kv(struct svc *s, char *const *args, size_t n, struct buf *out, struct err *err)
{
	struct worker *w = worker_of(s);
	struct kv_stats ks;
	(void)args;
	(void)n;
	(void)err;
	kv_pool_verify(w->pool);
	kv_pool_stats(w->pool, &ks);
	uint32_t sum = 0;
	buf_printf(out, "{\"blocks\":%u", ks.blocks);
	for (int i = 0; i < KV_STATE_COUNT; i++) {
		buf_printf(out, ",\"%s\":%u", kv_state_name((enum kv_state)i), ks.by_state[i]);
		sum += ks.by_state[i];
	}
	buf_printf(out,
	           ",\"sum\":%u,\"readers\":%u,\"evictable\":%u,\"queries_tokens\":%llu,\"hit_tokens\":"
	           "%llu,\"hit_rate\":%.3f,\"evictions\":%llu,\"evicted_stored\":%llu",
	           sum, ks.readers, ks.evictable, (unsigned long long)ks.queries_tokens,
	           (unsigned long long)ks.hit_tokens,
	           ks.queries_tokens ? (double)ks.hit_tokens / (double)ks.queries_tokens : 0,
	           (unsigned long long)ks.evictions, (unsigned long long)ks.evicted_stored);
	buf_printf(out, ",\"block_bytes\":%zu,\"due\":%u,\"writing\":%u,\"cached_stored\":%u",
	           w->info->kv.block_bytes, ks.due, ks.writing, ks.stored[0]);
	pin_json(w, out);
	storage_json(w, &ks, out);
	buf_adds(out, ",\"owners\":[");
	uint64_t now = clock_us();
	int first = 1;
	for (uint32_t b = 0; b < ks.blocks; b++) {
		struct kv_block_info i;
		kv_pool_block(w->pool, b, &i);
		if (i.state != KV_HELD && i.state != KV_LEASED && !i.readers)
			continue;
		buf_printf(out,
		           "%s{\"block\":%u,\"state\":\"%s\",\"reason\":\"%s\",\"refs\":%u,\"readers\":%u,"
		           "\"generation\":%llu,\"age_ms\":%llu,\"owner\":\"%s\"}",
		           first ? "" : ",", b, kv_state_name(i.state), block_reason(w, &i), i.refs,
		           i.readers, (unsigned long long)i.generation,
		           (unsigned long long)(now - i.since_us) / 1000, log_reqid(&i.owner));
		first = 0;
	}
	buf_adds(out, "]}");
	return 0;
}

static int ctl_flush(struct svc *s, char *const *args, size_t n, struct buf *out, struct err *err)
{
	(void)args;
	(void)n;
	(void)err;
	buf_printf(out, "{\"freed\":%u}", kv_pool_flush(worker_of(s)->pool));
	return 0;
}

static int ctl_role(struct svc *s, char *const *args, size_t n, struct buf *out, struct err *err)
{
	return role_command(worker_of(s), args, n, out, err);
}

/* A file that exists while the worker is drained: it outlives the process. */
static void drained_path(const struct worker *w, char *out, size_t size)
{
	snprintf(out, size, "%s/%s.drained", svc_common(w->svc)->rundir, svc_name(w->svc));
}

void worker_find_drained(struct worker *w)
{
	char path[160];
	drained_path(w, path, sizeof path);
	w->drained = access(path, F_OK) == 0;
	if (w->drained)
		log_notice("drained", "by=%s", log_quote(path));
}

/* pdctl then asks for the status until all routers know. */
static int set_drained(struct worker *w, int drained, struct buf *out, struct err *err)
{
	char path[160];
	drained_path(w, path, sizeof path);
	int fd = drained ? open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0640) : -1;
	if (drained ? fd < 0 : unlink(path) < 0 && errno != ENOENT)
		return err_set(err, ERR_IO, "cannot %s %s, so nothing was changed: %s",
		               drained ? "create" : "remove", path, strerror(errno));
	if (drained)
		close(fd);
	if (w->drained != drained) {
		log_notice(drained ? "drained" : "undrained", "by=pdctl");
		w->drained = drained;
		tell_changed(w);
	}
	buf_printf(out, "{\"drained\":%s", drained ? "true" : "false");
	routers_json(w, out);
	buf_addc(out, '}');
	return 0;
}

static int ctl_drain(struct svc *s, char *const *args, size_t n, struct buf *out, struct err *err)
{
	(void)args;
	(void)n;
	return set_drained(worker_of(s), 1, out, err);
}

static int ctl_undrain(struct svc *s, char *const *args, size_t n, struct buf *out, struct err *err)
{
	(void)args;
	(void)n;
	return set_drained(worker_of(s), 0, out, err);
}

const struct svc_ctl worker_ctl[] = {
	{"requests", ctl_requests, "requests of this worker with state and age", 0},
	{"kv", ctl_kv, "blocks by state; owner, age and reason of every held one", 0},
	{"role", ctl_role,
     "the role; with prefill, decode or mixed: switch to it, without losing a request", 1},
	{"drain", ctl_drain, "take no new requests, also after a restart; those that are here go on",
     1},
	{"undrain", ctl_undrain, "take requests again", 1},
	{"flush", ctl_flush, "drop what the prefix index holds and nobody uses", 1},
	{NULL, NULL, NULL, 0},
};
