/* ranks.c - an engine of several processes: how the work is divided, how the other ranks start, and
 * what they run (tp.h has the group itself).
 *
 * Each rank opens the model's file itself and loads its part of every matrix. If a rank fails to
 * open, engine_open of rank 0 returns that rank's error text; a later failure of any rank fails the
 * step and all that follow (engine_broken). */
#include "engine/engine_impl.h"
#include "util/check.h"
#include "util/log_file.h"
#include "util/machine.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { NEXT_US = 1000 };

/* The parameters that a rank's engine is opened with. */
struct rank_hello {
	char model_path[4096], log_file[4096], backend[16], variant[16], outline[65];
	struct engine_opts opts; /* all its pointers are NULL */
	int32_t has_progress;    /* spans may have progress words */
};

unsigned ranks_threads(const struct engine_opts *o)
{
	unsigned all = o->threads ? o->threads : machine_threads(""), each = all / (o->tp ? o->tp : 1);
	return each < 1 ? 1 : each > KERN_THREADS_MAX ? KERN_THREADS_MAX : each;
}

int ranks_check(struct engine *e, struct err *err)
{
	if (e->sim)
		return err_set(
			err, ERR_INVALID,
			"tensor_parallel is %u: a simulated device has its own, `tp` in its description",
			e->opts.tp);
	if (e->opts.tp > e->ops->ranks_max)
		return err_set(err, ERR_UNSUPPORTED,
		               "tensor_parallel is %u: device %s works in groups of at most %u", e->opts.tp,
		               e->ops->name, e->ops->ranks_max);
	if (e->conf.mla.kv_rank)
		return err_set(err, ERR_UNSUPPORTED,
		               "tensor_parallel is %u: %s keeps one latent for all heads, which ranks "
		               "cannot share out",
		               e->opts.tp, e->conf.family->name[e->conf.source]);
	if (e->opts.tp > e->conf.kv_heads)
		return err_set(
			err, ERR_INVALID,
			"tensor_parallel is %u, the model has %u KV heads: at most one rank per KV head",
			e->opts.tp, e->conf.kv_heads);
	if (strlen(e->path) >= sizeof((struct rank_hello *)0)->model_path)
		return err_set(err, ERR_INVALID, "model path of %zu bytes, the limit is %zu",
		               strlen(e->path), sizeof((struct rank_hello *)0)->model_path - 1);
	return 0;
}

void ranks_share_out(struct engine *e)
{
	const struct model_conf *c = &e->conf;
	unsigned rank = e->tp ? tp_rank(e->tp) : 0, ranks = e->opts.tp > 1 ? e->opts.tp : 1,
			 group = c->heads / c->kv_heads;
	e->shard = (struct shard){
		.kv_heads = tp_share_of(c->kv_heads, 1, rank, ranks),
		.heads = tp_share_of(c->heads, group, rank, ranks),
		.hidden = tp_share_of(c->hidden, TP_COLUMNS, rank, ranks),
		.ffn = tp_share_of(c->ffn, TP_COLUMNS, rank, ranks),
		.vocab = tp_share_of(c->vocab, TP_COLUMNS, rank, ranks),
		.expert = tp_share_of(c->experts.ffn, TP_COLUMNS, rank, ranks),
		.shared = tp_share_of(c->experts.shared_ffn, TP_COLUMNS, rank, ranks),
	};
}

/* Rank 0 starts the others, which load their parts while it loads its own. */
int ranks_start(struct engine *e, struct err *err)
{
	struct rank_hello h = {.opts = e->opts};
	h.opts.model_path = h.opts.backend = h.opts.variant = NULL;
	h.opts.broken = NULL;
	h.opts.progressed = NULL;
	h.opts.broken_arg = h.opts.progressed_arg = NULL;
	h.has_progress = e->has_progress;
	snprintf(h.model_path, sizeof h.model_path, "%s", e->path);
	snprintf(h.log_file, sizeof h.log_file, "%s", log_file_path() ? log_file_path() : "");
	snprintf(h.backend, sizeof h.backend, "%s", e->opts.backend ? e->opts.backend : "cpu");
	snprintf(h.variant, sizeof h.variant, "%s", e->opts.variant ? e->opts.variant : "auto");
	model_outline(&e->conf, &e->src, h.outline);
	return tp_start(e->opts.tp, e->flights * e->limits.batch_bytes, &h, sizeof h, e->opts.broken,
	                e->opts.broken_arg, &e->tp, err);
}

int ranks_await(struct engine *e, struct err *err)
{
	return !e->tp || !tp_barrier(e->tp, TP_OPEN_LIMIT_S)
	           ? 0
	           : err_set(err, ERR_IO, "%.300s", tp_why(e->tp));
}

/* --- the KV pool --------------------------------------------------------- */

/* Data of an order. */
struct rank_order {
	uint32_t blocks; /* TP_ATTACH: of the pool */
	uint32_t flight; /* TP_STEP, TP_HIDDEN: the part of the batch (batch_of) */
};

/* Makes the memory of this rank's heads. Rank 0 gets the descriptors of all ranks' memory, if other
 * processes are to map it. */
static int part_of_rank(struct engine *e, uint32_t blocks, struct kv_data *ret, struct err *err)
{
	int fd = -1, fds[TP_RANKS_MAX];
	int rc = e->rank
	             ? e->ops->mem_new(e->dev, KERN_MEM_SHARED, engine_pool_bytes(e, blocks), &e->pool)
	             : 0;
	if (rc)
		return engine_device_error(e, rc, "cannot create the KV pool", err);
	if (!e->opts.pool_shared)
		return 0;
	if ((rc = engine_share_pool(e, &fd, err)))
		return rc;
	if (tp_exchange(e->tp, NULL, 0, fd, NULL, fds)) {
		close(fd);
		return err_set(err, ERR_IO, "KV pool: %.300s", tp_why(e->tp));
	}
	fds[e->rank] = fd;
	struct kv_data all = {.parts = tp_ranks(e->tp)};
	CHECK(all.parts <= KERN_PARTS_MAX); /* the backend has no larger groups */
	for (unsigned r = 0; r < all.parts; r++) {
		all.fd[r] = fds[r];
		all.device[r] = engine_device_of(e, r);
	}
	if (e->rank)
		kv_data_close(&all);
	else
		*ret = all;
	return 0;
}

/* Maps rank 0's pool. */
static int pool_of_rank_0(struct engine *e, uint32_t blocks, struct err *err)
{
	int fd = -1, fds[TP_RANKS_MAX], rc;
	if (!e->rank && (rc = engine_share_pool(e, &fd, err)))
		return rc;
	rc = tp_exchange(e->tp, NULL, 0, fd, NULL, fds);
	if (fd >= 0)
		close(fd);
	if (rc || !e->rank)
		return rc ? err_set(err, ERR_IO, "KV pool: %.300s", tp_why(e->tp)) : 0;
	rc = e->ops->mem_map(e->dev, fds[0], engine_pool_bytes(e, blocks), &e->pool);
	close(fds[0]);
	return rc ? engine_device_error(e, rc, "cannot map the KV pool", err) : 0;
}

static int pool_of_rank(struct engine *e, uint32_t blocks, struct kv_data *ret, struct err *err)
{
	return e->ops->own_memory ? part_of_rank(e, blocks, ret, err) : pool_of_rank_0(e, blocks, err);
}

int ranks_attach(struct engine *e, uint32_t blocks, struct kv_data *ret_data, struct err *err)
{
	struct rank_order order = {.blocks = blocks};
	tp_order(e->tp, TP_ATTACH, &order, sizeof order);
	int rc = pool_of_rank(e, blocks, ret_data, err);
	return rc || !tp_barrier(e->tp, TP_STEP_LIMIT_S)
	           ? rc
	           : err_set(err, ERR_IO, "KV pool: %.300s", tp_why(e->tp));
}

static void attach(struct engine *e, uint32_t blocks)
{
	struct err err = {0};
	if (!pool_of_rank(e, blocks, NULL, &err))
		engine_use_pool(e, blocks, &err);
	if (err.code)
		tp_fail(e->tp, err.text);
	tp_barrier(e->tp, TP_STEP_LIMIT_S);
}

/* Every rank takes part. The least of all. */
static int least_room(struct engine *e, uint64_t mine, uint64_t *ret, struct err *err)
{
	uint64_t all[TP_RANKS_MAX];
	int fds[TP_RANKS_MAX];
	if (tp_exchange(e->tp, &mine, sizeof mine, -1, all, fds))
		return err_set(err, ERR_IO, "room for the KV pool: %.300s", tp_why(e->tp));
	*ret = mine;
	for (unsigned r = 0; r < e->opts.tp; r++)
		*ret = all[r] < *ret ? all[r] : *ret;
	return 0;
}

int ranks_room(struct engine *e, uint64_t *ret_bytes, struct err *err)
{
	uint64_t mine = 0;
	if (e->opts.ranks_per_device > 1)
		return err_set(err, ERR_INVALID,
		               "ranks_per_device is %u: ranks that share a device cannot divide what is "
		               "free: set kv_memory_mb",
		               e->opts.ranks_per_device);
	if (!e->rank)
		tp_order(e->tp, TP_ROOM, NULL, 0);
	int rc = engine_device_room(e, &mine, err);
	if (rc)
		tp_fail(e->tp, err->text);
	return rc ? rc : least_room(e, mine, ret_bytes, err);
}

/* --- a rank's own program ------------------------------------------------ */

void ranks_step(struct engine *e, enum tp_order kind, uint32_t flight)
{
	struct rank_order order = {.flight = flight};
	tp_order(e->tp, kind, &order, sizeof order);
}

static void obey(struct engine *e, enum tp_order kind, const struct rank_order *order)
{
	struct err err;
	uint64_t room;
	switch (kind) {
	case TP_STEP: engine_follow(e, e->program, order->flight); break;
	case TP_HIDDEN: engine_follow(e, e->hidden_program, order->flight); break;
	case TP_ATTACH: attach(e, order->blocks); break;
	case TP_ROOM: ranks_room(e, &room, &err); break;
	}
}

/* A rank that rank 0 keeps busy starts its part of a step while that of the one before is in
 * flight. If no order comes for NEXT_US, it waits for its device, so that an error is reported
 * at once; an order that comes meanwhile waits, too. */
static void take_order(struct engine *e)
{
	struct rank_order order;
	enum tp_order kind;
	int rc = tp_await(e->tp, e->started > e->finished ? NEXT_US : 0, &kind, &order, sizeof order);
	if (rc == ERR_TIMEOUT)
		engine_settle(e);
	else
		obey(e, kind, &order);
}

int engine_rank_main(int fd)
{
	struct err err = {0};
	struct rank_hello h;
	struct tp *tp = NULL;
	struct engine *e = NULL;
	/* a terminal or a service manager signals all processes of a group; rank 0 decides when its
	 * ranks end */
	static const int ignored[] = {SIGINT, SIGTERM, SIGHUP, SIGPIPE, SIGUSR1, SIGUSR2};
	for (size_t i = 0; i < sizeof ignored / sizeof *ignored; i++)
		signal(ignored[i], SIG_IGN);
	if (tp_join(fd, &h, sizeof h, &tp, &err)) {
		fprintf(stderr, "pdrank: %s\n", err.text);
		return 1;
	}
	if (*h.log_file)
		log_file_open(h.log_file, 0, NULL);
	h.opts.model_path = h.model_path;
	h.opts.backend = h.backend;
	h.opts.variant = h.variant;
	if (engine_open_rank(&h.opts, h.has_progress, tp, &e, &err) == 0 &&
	    strcmp(e->info.fingerprint, h.outline) != 0)
		err_set(&err, ERR_CORRUPT, "%.200s changed while it was opened", h.model_path);
	if (err.code) {
		tp_fail(tp, err.text);
		return 1;
	}
	tp_barrier(tp, TP_OPEN_LIMIT_S);
	while (!tp_why(tp)) {
		take_order(e);
		log_file_follow(); /* the worker renames it */
	}
	return 1;
}
