/* peers.c - see peers.h. */
#include "peers.h"
#include "daemons/worker/worker.h"
#include "msg/process.h"
#include "util/err.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

int worker_connect(struct worker *w, const char *endpoint, const char *name, int tag,
                   struct err *err)
{
	return chan_connect(svc_chan(w->svc), endpoint, name, tag)
	           ? 0
	           : err_set(err, ERR_IO, "cannot connect to %s", endpoint);
}

/* What it named does not count any more. */
static void router_left(void *arg, const struct peer *p)
{
	struct worker *w = arg;
	peer_lists_drop(&w->peer_lists, p);
}

int worker_connect_routers(struct worker *w, struct err *err)
{
	const struct conf_items *named = &w->conf.routers;
	int r = 0;
	char endpoint[256];
	svc_ipc_endpoint(w->svc, "router", endpoint, sizeof endpoint);
	w->routers = routers_new(&(struct routers_opts){
		.base = svc_base(w->svc),
		.chan = svc_chan(w->svc),
		.tag = TAG_ROUTER,
		.resolve_us = w->conf.resolve_us,
		.dns_servers = svc_common(w->svc)->dns_servers,
		.left = router_left,
		.arg = w,
	});
	for (unsigned i = 0; i < named->n && r == 0; i++)
		r = routers_add(w->routers, named->item[i], err);
	return named->n ? r : routers_add(w->routers, endpoint, err);
}

/* The messager that has this worker's memory: a name in a folder of a host. The folder is known by
 * its device and inode, since hosts and containers may use one path for different ones. */
static void describe_site(struct worker *w, char *out, size_t size)
{
	struct stat st;
	Pds__Process self;
	*out = 0;
	if (!tell_has_messager(&w->tell) || stat(svc_common(w->svc)->rundir, &st) < 0)
		return;
	process_self(&self);
	snprintf(out, size, "%s:%llx:%llx:%s", self.boot_id, (unsigned long long)st.st_dev,
	         (unsigned long long)st.st_ino, w->conf.messager);
}

void worker_describe(struct worker *w, Pds__WorkerInfo *i)
{
	static char endpoint[256], site[160];
	struct svc *s = w->svc;
	svc_ipc_endpoint(s, svc_name(s), endpoint, sizeof endpoint);
	i->role = (char *)worker_role_name(w->role);
	i->endpoint = endpoint;
	i->model = (char *)w->info->name;
	i->model_fingerprint = (char *)w->info->fingerprint;
	i->numerics = (char *)w->info->numerics;
	i->layout = w->layout;
	i->blocks = w->region.blocks;
	i->block_tokens = w->info->kv.block_tokens;
	i->max_sequences = w->conf.max_sequences;
	i->step_tokens = w->conf.max_batched_tokens;
	i->context_tokens = w->info->context;
	i->handover_tokens = worker_handover_tokens(w);
	i->hidden = w->info->has_hidden ? w->info->hidden : 0;
	i->vocab = w->info->vocab;
	i->drained = w->drained;
	describe_site(w, site, sizeof site);
	i->site = site;
	i->remote = (char *)svc_remote(s);
	/* without keys this worker cannot connect to those of other hosts, nor they to it */
	if (w->messager_attach && tell_has_messager(&w->tell) && svc_has_keys(s))
		i->messager = (char *)attach_remote(w->messager_attach);
}

int worker_describe_hook(struct svc *s, Pds__WorkerInfo *i)
{
	struct worker *w = worker_of(s);
	if (!w || !w->info)
		return 0;
	worker_describe(w, i);
	return 1;
}

static int differs(const char *what, const char *theirs, const char *ours, char *reason, size_t len)
{
	if (strcmp(theirs, ours) == 0)
		return 0;
	snprintf(reason, len, "%s differs: yours is %s, here it is %s", what, theirs, ours);
	return 1;
}

/* Workers connect to workers to hand KV over; that needs the same model, numbers and layout. */
int worker_admit(struct svc *s, const char *name, uint64_t epoch, const Pds__Hello *h, char *reason,
                 size_t len)
{
	struct worker *w = worker_of(s);
	(void)name;
	(void)epoch;
	if (!h->worker)
		return 0;
	return differs("model", h->worker->model_fingerprint, w->info->fingerprint, reason, len) ||
	       differs("numerics", h->worker->numerics, w->info->numerics, reason, len) ||
	       differs("KV layout", h->worker->layout, w->layout, reason, len);
}

struct peer *worker_router(struct worker *w, const char *name, uint64_t epoch)
{
	struct peer *p = chan_find(svc_chan(w->svc), name, TAG_ROUTER);
	return p && peer_epoch(p) == epoch ? p : NULL;
}

void worker_send_awaited(struct worker *w, struct peer *p, enum msg_type type,
                         const struct msg_head *head, const void *body)
{
	if (svc_send(w->svc, p, type, head, body) == ERR_FULL)
		chan_restart(svc_chan(w->svc), p);
}

void worker_fail_by(struct worker *w, const struct msg_head *head, const char *router,
                    uint64_t router_epoch, const struct worker_failure *f)
{
	Pds__Failed m = PDS__FAILED__INIT;
	m.fault = f->fault;
	m.retry = f->retry;
	m.text = (char *)f->text;
	m.blame = (char *)(f->blame ? f->blame : "");
	m.retry_after_us = f->retry_after_us;
	w->stats.failed++;
	log_req(LOG_WARN, &head->req, "attempt_failed", "attempt=%u fault=%d retry=%d blame=%s text=%s",
	        head->attempt, f->fault, f->retry, f->blame ? f->blame : "-", log_quote(f->text));
	struct peer *p = worker_router(w, router, router_epoch);
	if (p)
		worker_send_awaited(w, p, MSG_REQUEST_FAILED, head, &m.base);
}

void worker_fail(struct worker *w, const struct msg_head *head, const char *router,
                 uint64_t router_epoch, Pds__Fault fault, int retry, const char *text)
{
	worker_fail_by(w, head, router, router_epoch,
	               &(struct worker_failure){.fault = fault, .retry = retry, .text = text});
}
