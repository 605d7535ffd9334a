/* ranks.c - an engine of several processes: how the work is divided, how the other ranks start, and
 * what they run (tp.h has the group itself).
 *
 * Each rank opens the model's file itself and loads its part of every matrix. If a rank fails to
 * open, engine_open of rank 0 returns that rank's error text; a later failure of any rank fails the
 * step and all that follow (engine_broken). */
#include "engine/bridge.h"
#include "engine/moe.h"
#include "util/check.h"
#include "util/log.h"
#include "util/log_file.h"
#include "util/machine.h"
#include "util/mem.h"
#include "util/sock.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
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

/* With more ranks than heads of the cache each of these is on equally many ranks, which divide the
 * query heads that read it. */
int ranks_check_model(const struct engine *e, struct err *err)
{
	const struct model_conf *c = &e->conf;
	const struct engine_opts *o = &e->opts;
	uint32_t shared = engine_cache_heads(c);
	unsigned ranks = o->tp;
	if (o->pp > c->layers)
		return err_set(err, ERR_INVALID,
		               "pipeline_parallel is %u, the model has %u layers: at most one stage per "
		               "layer",
		               o->pp, c->layers);
	struct kv_parts parts = engine_pool_parts(e);
	if (o->pool_shared && parts.stages * parts.ranks > KERN_PARTS_MAX)
		return err_set(
			err, ERR_UNSUPPORTED,
			"pipeline_parallel is %u, tensor_parallel %u: a KV pool of %u parts, messager "
			"and storage take at most %d (set them to \"none\")",
			o->pp, o->tp, parts.stages * parts.ranks, KERN_PARTS_MAX);
	if (engine_has_whole_experts(e) && !c->experts.count)
		return err_set(err, ERR_INVALID,
		               "expert_parallel is true, the model has no experts: set it to false");
	if (engine_has_whole_experts(e) && ranks > c->experts.count)
		return err_set(err, ERR_INVALID,
		               "expert_parallel is true, tensor_parallel %u, the model has %u experts: at "
		               "most one rank per expert",
		               ranks, c->experts.count);
	if (ranks > c->heads)
		return err_set(err, ERR_INVALID,
		               "tensor_parallel is %u, the model has %u heads: at most one rank per head",
		               ranks, c->heads);
	if (ranks > shared && ranks % shared)
		return err_set(err, ERR_INVALID,
		               "tensor_parallel is %u, the model has %u KV heads: at most one rank per KV "
		               "head, or a multiple of their number",
		               ranks, shared);
	return 0;
}

int ranks_check(struct engine *e, struct err *err)
{
	const struct engine_opts *o = &e->opts;
	if (e->sim)
		return err_set(err, ERR_INVALID,
		               o->pp > 1 ? "pipeline_parallel is %u: a simulated device has no stages"
		                         : "tensor_parallel is %u: a simulated device has its own, `tp` in "
		                           "its description",
		               o->pp > 1 ? o->pp : o->tp);
	if (o->pp > 1 && o->pp > e->ops->stages_max)
		return err_set(err, ERR_UNSUPPORTED,
		               "pipeline_parallel is %u: device %s works in at most %u stages", o->pp,
		               e->ops->name, e->ops->stages_max);
	if (e->opts.tp > e->ops->ranks_max)
		return err_set(err, ERR_UNSUPPORTED,
		               "tensor_parallel is %u: device %s works in groups of at most %u", e->opts.tp,
		               e->ops->name, e->ops->ranks_max);
	int rc = ranks_check_model(e, err);
	if (rc)
		return rc;
	if (strlen(e->path) >= sizeof((struct rank_hello *)0)->model_path)
		return err_set(err, ERR_INVALID, "model path of %zu bytes, the limit is %zu",
		               strlen(e->path), sizeof((struct rank_hello *)0)->model_path - 1);
	return 0;
}

void ranks_share_out(struct engine *e)
{
	const struct model_conf *c = &e->conf;
	uint32_t shared = engine_cache_heads(c), unit = weights_unit(e);
	unsigned rank = e->rank, ranks = engine_ranks(e), copies = ranks > shared ? ranks / shared : 1,
			 whole = (unsigned)engine_has_whole_experts(e);
	e->shard = (struct shard){
		.layers = tp_share_of(c->layers, 1, e->stage, engine_stages(e)),
		.kv_heads = tp_share_of(shared, 1, rank / copies, ranks / copies),
		/* in units of a head each rank's begin and end within the group of its KV head */
		.heads = tp_share_of(c->heads, copies > 1 ? 1 : c->heads / shared, rank, ranks),
		.hidden = tp_share_of(c->hidden, TP_COLUMNS, rank, ranks),
		.ffn = tp_share_of(c->ffn, unit, rank, ranks),
		.vocab = tp_share_of(c->vocab, TP_COLUMNS, rank, ranks),
		.expert = tp_share_of(c->experts.ffn, unit, whole ? 0 : rank, whole ? 1 : ranks),
		.shared = tp_share_of(c->experts.shared_ffn, unit, rank, ranks),
		.experts = tp_share_of(c->experts.count, 1, whole ? rank : 0, whole ? ranks : 1),
	};
	e->shard.exchanges = moe_exchanges(e);
}

/* What means nothing in another process. */
static void drop_pointers(struct engine_opts *o)
{
	o->model_path = o->backend = o->variant = NULL;
	o->remote = NULL;
	o->broken = NULL;
	o->progressed = NULL;
	o->broken_arg = o->progressed_arg = NULL;
}

/* Process 0 starts the others, which load their parts while it loads its own. */
int ranks_start(struct engine *e, struct err *err)
{
	struct rank_hello h = {.opts = e->opts};
	drop_pointers(&h.opts);
	h.has_progress = e->has_progress;
	snprintf(h.model_path, sizeof h.model_path, "%s", e->path);
	snprintf(h.log_file, sizeof h.log_file, "%s", log_file_path() ? log_file_path() : "");
	snprintf(h.backend, sizeof h.backend, "%s", e->opts.backend ? e->opts.backend : "cpu");
	snprintf(h.variant, sizeof h.variant, "%s", e->opts.variant ? e->opts.variant : "auto");
	model_outline(&e->conf, &e->src, h.outline);
	const struct tp_start start = {.stages = engine_stages(e),
	                               .ranks = engine_stages(e) * engine_ranks(e),
	                               .bytes = e->flights * e->limits.batch_bytes,
	                               .hello = &h,
	                               .hello_bytes = sizeof h,
	                               .broken = e->opts.broken,
	                               .broken_arg = e->opts.broken_arg,
	                               .remote = e->opts.remote,
	                               .n_remote = e->opts.n_remote};
	e->opts.remote = NULL; /* it is the caller's */
	return tp_start(&start, &e->tp, err);
}

int ranks_await(struct engine *e, struct err *err)
{
	int fds[TP_RANKS_MAX];
	return !e->tp || !tp_exchange(e->tp, NULL, 0, -1, NULL, fds)
	           ? 0
	           : err_set(err, ERR_IO, "%s", tp_why(e->tp));
}

int ranks_check_outline(struct engine *e, struct err *err)
{
	char own[65];
	model_outline(&e->conf, &e->src, own);
	return strcmp(own, e->outline) == 0
	           ? 0
	           : err_set(err, ERR_CORRUPT,
	                     "%.200s is not the model that the worker has: another one, or it changed "
	                     "while it was opened",
	                     e->path);
}

/* Ranks that are not the first one of their host have no fingerprint, but an outline. */
int ranks_ready(struct engine *e, struct err *err)
{
	char all[TP_RANKS_MAX][sizeof e->info.fingerprint];
	int fds[TP_RANKS_MAX];
	if (!e->tp)
		return 0;
	if (tp_exchange(e->tp, e->info.fingerprint, sizeof *all, -1, all, fds))
		return err_set(err, ERR_IO, "%s", tp_why(e->tp));
	for (unsigned p = 1; p < tp_ranks(e->tp); p++)
		if (all[p][0] && strcmp(all[p], all[0]) != 0)
			return err_set(err, ERR_CORRUPT,
			               "the model on the host of rank %u (%.16s) is not the worker's (%.16s), "
			               "which is similar: is it a damaged copy?",
			               p, all[p], all[0]);
	return 0;
}

/* --- what the device needs of the others ---------------------------------- */

/* Ranks of a stage may have to wait for another one's part of a step. */
static int device_barrier(void *arg)
{
	const struct engine *e = arg;
	return tp_barrier(e->tp, engine_stages(e) > 1 ? TP_STAGE_LIMIT_S : TP_STEP_LIMIT_S);
}

/* All stages open their devices alike, so their exchanges are one. */
static int device_exchange(void *arg, const void *mine, size_t bytes, int fd, void *ret_all,
                           int *ret_fds)
{
	_Static_assert((int)TP_EXCHANGE_BYTES >= (int)KERN_EXCHANGE_MAX, "the ranks can carry it");
	const struct engine *e = arg;
	unsigned ranks = engine_ranks(e), first = e->stage * ranks;
	int fds[TP_RANKS_MAX];
	unsigned char *all = mem_alloc((size_t)tp_ranks(e->tp) * bytes + 1);
	int rc = tp_exchange(e->tp, mine, bytes, fd, all, fds);
	if (!rc && bytes)
		memcpy(ret_all, all + first * bytes, ranks * bytes);
	for (unsigned p = 0; !rc && p < tp_ranks(e->tp); p++)
		if (p >= first && p < first + ranks)
			ret_fds[p - first] = fds[p];
		else if (fds[p] >= 0) /* process 0 gets those of all */
			close(fds[p]);
	free(all);
	return rc;
}

/* Between the processes of the same rank of every stage. */
static int stage_exchange(void *arg, const void *mine, size_t bytes, void *ret_all)
{
	const struct engine *e = arg;
	int fds[TP_RANKS_MAX];
	unsigned char *all = mem_alloc((size_t)tp_ranks(e->tp) * bytes + 1);
	int rc = tp_exchange(e->tp, mine, bytes, -1, all, fds);
	for (unsigned s = 0; !rc && bytes && s < engine_stages(e); s++)
		memcpy((unsigned char *)ret_all + s * bytes, all + (s * engine_ranks(e) + e->rank) * bytes,
		       bytes);
	free(all);
	return rc;
}

static int stage_send(void *arg, unsigned peer, const void *data, size_t bytes)
{
	const struct engine *e = arg;
	CHECK(peer == (e->stage + 1) % engine_stages(e));
	return tp_send(e->tp, data, bytes, TP_STAGE_LIMIT_S);
}

static int stage_recv(void *arg, unsigned peer, void *ret, size_t bytes)
{
	const struct engine *e = arg;
	CHECK(e->stage == (peer + 1) % engine_stages(e));
	return tp_recv(e->tp, ret, bytes, TP_STAGE_LIMIT_S);
}

void ranks_connect(struct engine *e, struct kern_config *conf)
{
	if (engine_ranks(e) > 1)
		conf->group = (struct kern_group){.rank = e->rank,
		                                  .ranks = engine_ranks(e),
		                                  .meet = device_barrier,
		                                  .exchange = device_exchange,
		                                  .broken = tp_failed_word(e->tp),
		                                  .limit_s = TP_STEP_LIMIT_S,
		                                  .arg = e};
	if (engine_stages(e) > 1)
		conf->pipe = (struct kern_pipe){.stage = e->stage,
		                                .stages = engine_stages(e),
		                                .send = stage_send,
		                                .recv = stage_recv,
		                                .exchange = stage_exchange,
		                                .broken = tp_failed_word(e->tp),
		                                .limit_s = TP_STAGE_LIMIT_S,
		                                .arg = e};
}

/* --- the KV pool --------------------------------------------------------- */

/* Data of an order. */
struct rank_order {
	uint32_t blocks; /* TP_NEW_POOL */
	uint32_t pass;   /* TP_STEP: enum pass */
	uint32_t flight; /* TP_STEP: the part of the batch (batch_of) */
};

/* Whether this process has a part of its own; else it maps that of its stage's first rank. */
static int has_part(const struct engine *e)
{
	return e->ops->own_memory || !e->rank;
}

/* The descriptors of all parts, of which process 0 has those of other processes in fds. */
static struct kv_data all_parts(const struct engine *e, int fd, const int *fds)
{
	struct kv_parts parts = engine_pool_parts(e);
	struct kv_data all = {.parts = parts.stages * parts.ranks, .stages = parts.stages};
	for (uint32_t p = 0; p < all.parts; p++) {
		unsigned process = p / parts.ranks * engine_ranks(e) + p % parts.ranks;
		all.fd[p] = process ? fds[process] : fd;
		all.device[p] = e->ops->own_memory ? engine_device_of(e, process) : e->info.device;
	}
	return all;
}

/* Shares this process's part with the ranks of its stage and with process 0, who need it: where
 * ranks have one pool, and if other processes are to map it. */
static int share_part(struct engine *e, uint32_t blocks, struct kv_data *ret, struct err *err)
{
	int mapped = !e->ops->own_memory && engine_ranks(e) > 1, fd = -1, fds[TP_RANKS_MAX], rc = 0;
	if (!mapped && !e->opts.pool_shared)
		return 0;
	if (has_part(e) && (rc = engine_share_pool(e, &fd, err)))
		return rc;
	if (tp_exchange(e->tp, NULL, 0, fd, NULL, fds))
		rc = err_set(err, ERR_IO, "KV pool: %s", tp_why(e->tp));
	else if (!has_part(e) && (rc = e->ops->mem_map(e->dev, fds[engine_process(e) - e->rank],
	                                               engine_pool_bytes(e, blocks), &e->pool)))
		rc = engine_device_error(e, rc, "cannot map the KV pool", err);
	struct kv_parts parts = engine_pool_parts(e);
	int divided = parts.stages * parts.ranks > 1;
	if (!rc && !engine_process(e) && e->opts.pool_shared && divided) {
		*ret = all_parts(e, fd, fds);
		return 0;
	}
	for (unsigned r = 0; r < tp_ranks(e->tp); r++)
		if (fds[r] >= 0)
			close(fds[r]);
	if (fd >= 0)
		close(fd);
	return rc;
}

/* All take part: programs of stages may have to be made at the same time (ops.h, send). */
static int join_pool(struct engine *e, uint32_t blocks, struct kv_data *ret, struct err *err)
{
	int rc = share_part(e, blocks, ret, err);
	if (!rc)
		rc = engine_use_pool(e, blocks, err);
	if (rc)
		tp_fail(e->tp, err->text);
	return rc ? rc : ranks_await(e, err);
}

int ranks_new_pool(struct engine *e, uint32_t blocks, struct kv_data *ret_data, struct err *err)
{
	struct rank_order order = {.blocks = blocks};
	tp_order(e->tp, TP_NEW_POOL, &order, sizeof order, 0, 0);
	return join_pool(e, blocks, ret_data, err);
}

static void new_pool(struct engine *e, uint32_t blocks)
{
	struct err err = {0};
	int rc = has_part(e) ? engine_alloc_pool(e, blocks, &err) : 0;
	if (rc)
		tp_fail(e->tp, err.text);
	else
		join_pool(e, blocks, NULL, &err);
}

/* Every process takes part. The least of all. */
static int least_room(struct engine *e, uint64_t mine, uint64_t *ret, struct err *err)
{
	uint64_t all[TP_RANKS_MAX];
	int fds[TP_RANKS_MAX];
	if (tp_exchange(e->tp, &mine, sizeof mine, -1, all, fds))
		return err_set(err, ERR_IO, "room for the KV pool: %s", tp_why(e->tp));
	*ret = mine;
	for (unsigned r = 0; r < tp_ranks(e->tp); r++)
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
	if (!engine_process(e))
		tp_order(e->tp, TP_ROOM, NULL, 0, 0, 0);
	int rc = engine_device_room(e, &mine, err);
	if (rc)
		tp_fail(e->tp, err->text);
	return rc ? rc : least_room(e, mine, ret_bytes, err);
}

/* --- a rank's own program ------------------------------------------------ */

void ranks_step(struct engine *e, enum pass pass, uint32_t flight)
{
	struct rank_order order = {.pass = pass, .flight = flight};
	size_t at = flight * e->limits.batch_bytes;
	const struct kern_batch *b = (const void *)((const unsigned char *)e->batch.host + at);
	tp_order(e->tp, TP_STEP, &order, sizeof order, at, b->words * sizeof(uint32_t));
}

static void do_order(struct engine *e, enum tp_order kind, const struct rank_order *order)
{
	struct err err;
	uint64_t room;
	switch (kind) {
	case TP_STEP:
		if (order->pass >= PASSES || order->flight >= e->flights || !e->program[order->pass])
			tp_fail(e->tp, "a step that this engine has no program for was ordered");
		else
			engine_follow(e, (enum pass)order->pass, order->flight);
		break;
	case TP_NEW_POOL: new_pool(e, order->blocks); break;
	case TP_ROOM: ranks_room(e, &room, &err); break;
	}
	/* with one stage, a step's last collective tells as much */
	if (engine_stages(e) > 1)
		tp_done(e->tp);
}

/* A rank that process 0 keeps busy starts its part of a step while that of the one before is in
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
		do_order(e, kind, &order);
}

/* A terminal or a service manager signals all processes of a group; who started them decides when
 * they end. */
static void ignore_signals(void)
{
	static const int ignored[] = {SIGINT, SIGTERM, SIGHUP, SIGPIPE, SIGUSR1, SIGUSR2};
	for (size_t i = 0; i < sizeof ignored / sizeof *ignored; i++)
		signal(ignored[i], SIG_IGN);
}

/* The group is the worker's as well as the parameters, and on another host neither is trusted. */
static int check_group(const struct engine_opts *o, const struct tp *tp, struct err *err)
{
	unsigned ranks = o->tp ? o->tp : 1, stages = o->pp ? o->pp : 1;
	return stages == tp_stages(tp) && ranks == tp_ranks(tp) / stages
	           ? 0
	           : err_set(err, ERR_INVALID,
	                     "tensor_parallel is %u and pipeline_parallel %u in a group of %u ranks in "
	                     "%u stages",
	                     o->tp, o->pp, tp_ranks(tp), tp_stages(tp));
}

int engine_rank_main(int fd)
{
	struct err err = {0};
	struct rank_hello h;
	struct tp *tp = NULL;
	struct engine *e = NULL;
	ignore_signals();
	if (tp_join(fd, &h, sizeof h, &tp, &err)) {
		fprintf(stderr, "pdrank: %s\n", err.text);
		return 1;
	}
	if (*h.log_file)
		log_file_open(h.log_file, 0, NULL);
	h.opts.model_path = h.model_path;
	h.opts.backend = h.backend;
	h.opts.variant = h.variant;
	if (check_group(&h.opts, tp, &err) ||
	    engine_open_rank(&h.opts, h.has_progress, h.outline, tp, &e, &err)) {
		tp_fail(tp, err.text);
		return 1;
	}
	while (!tp_why(tp)) {
		take_order(e);
		log_file_follow(); /* the worker renames it */
	}
	return 1;
}

/* --- the process of a stage on another host than process 0's -------------- */

/* Ends this process when pdrank is gone or has closed the socket. */
static void *lifeline(void *arg)
{
	struct pollfd p = {.fd = *(int *)arg};
	while (poll(&p, 1, -1) < 0 && errno == EINTR)
		;
	_exit(0);
}

struct stage_process {
	struct engine_stage is;
	struct rank_hello hello;
};

/* What is another one on this host. Devices are numbered from process 0 on. A worker on another
 * host is not trusted to have ended its texts, or to have sent no pointers. */
static void adapt(void *arg, unsigned first, unsigned n)
{
	struct stage_process *s = arg;
	struct rank_hello *h = &s->hello;
	struct engine_opts *o = &h->opts;
	drop_pointers(o);
	h->model_path[sizeof h->model_path - 1] = h->backend[sizeof h->backend - 1] = 0;
	h->variant[sizeof h->variant - 1] = h->outline[sizeof h->outline - 1] = 0;
	unsigned each = o->ranks_per_device ? o->ranks_per_device : 1;
	o->host_first = first;
	o->host_processes = n;
	o->threads = s->is.threads;
	o->device_index = s->is.device_index - (int)(first / each);
	if (*s->is.model_path)
		snprintf(h->model_path, sizeof h->model_path, "%s", s->is.model_path);
	snprintf(h->log_file, sizeof h->log_file, "%s", s->is.log_file);
}

static int join_worker(int *fd, struct engine_stage *ret, struct wire **ret_w, struct err *err)
{
	pthread_t thread;
	unsigned fds = 0;
	if (sock_recv(*fd, ret, sizeof *ret, NULL, 0, &fds) != (ssize_t)sizeof *ret)
		return err_set(err, ERR_CLOSED, "pdrank has not said which stage this is");
	if (*ret->log_file)
		log_file_open(ret->log_file, 0, NULL);
	if (pthread_create(&thread, NULL, lifeline, fd))
		return err_set(err, ERR_IO, "cannot start a thread");
	pthread_detach(thread);
	return wire_connect(ret->host, ret->port, &ret->ticket, ret_w, err);
}

int engine_stage_main(int fd)
{
	static struct stage_process s;
	struct err err = {0};
	struct wire *w = NULL;
	log_init("pdrank", "stage");
	ignore_signals();
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (!join_worker(&fd, &s.is, &w, &err))
		bridge_run(w, &s.hello, sizeof s.hello, adapt, &s, &err);
	if (err.code == ERR_CLOSED)
		return 0;
	log_error("stage_failed", "stage=%u why=%s", s.is.stage, log_quote(err.text));
	return 1;
}
