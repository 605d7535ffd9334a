/* peers.h - who this worker is to its peers, whom it connects to, and how it tells a router that an
 * attempt has failed. On the loop's thread. */
#ifndef WORKER_LINKS_PEERS_H
#define WORKER_LINKS_PEERS_H

#include "svc/svc.h"

struct conf;
struct worker;

/* 0, or ERR_IO with the endpoint. name: the peer's, NULL if it is not known before its HELLO. */
int worker_connect(struct worker *w, const char *endpoint, const char *name, int tag,
                   struct err *err);
/* To all routers of the configuration, or to the one of this host. */
int worker_connect_routers(struct worker *w, struct err *err);

/* Fills i; its strings stay the worker's. */
void worker_describe(struct worker *w, Pds__WorkerInfo *i);
/* svc_hooks.describe: 0 while the model is not loaded */
int worker_describe_hook(struct svc *s, Pds__WorkerInfo *i);
/* svc_hooks.admit: a worker that connects must have the same model, numerics and KV layout, since
 * KV is handed over between the two. 1: refused, and `reason` says why. */
int worker_admit(struct svc *s, const char *name, uint64_t epoch, const Pds__Hello *h, char *reason,
                 size_t len);

/* The link to this router if it is up and its epoch is this one, else NULL. */
struct peer *worker_router(struct worker *w, const char *name, uint64_t epoch);

/* What the peer waits for, a router for tokens, a prefill worker for a grant. If the link has no
 * room for it, the link restarts: the peer then tries all that it has here again, instead of
 * waiting for what does not come. */
void worker_send_awaited(struct worker *w, struct peer *p, enum msg_type type,
                         const struct msg_head *head, const void *body);

/* How an attempt failed on this worker. */
struct worker_failure {
	Pds__Fault fault;
	int retry; /* another attempt may succeed */
	const char *text;
	const char *blame;       /* the worker that caused it; NULL: none did */
	uint64_t retry_after_us; /* when there may be room; 0: not known */
};
/* Sends FAILED to the router of this epoch, if its link is up; logs and counts it. */
void worker_fail_by(struct worker *w, const struct msg_head *head, const char *router,
                    uint64_t router_epoch, const struct worker_failure *f);
/* The same for a failure that no worker caused. */
void worker_fail(struct worker *w, const struct msg_head *head, const char *router,
                 uint64_t router_epoch, Pds__Fault fault, int retry, const char *text);

#endif
