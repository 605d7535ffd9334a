/* svc.h - the one daemon skeleton: options, configuration, log, event loop, message links, pdctl
 * commands, signals, systemd notification, orderly end. A daemon is a table of hooks.
 *
 * Life: main -> svc_main -> start (all is set up; failure is fatal with a sentence) -> ready ->
 * events ... -> SIGTERM, SIGINT or pdctl stop: drain is called once; `idle` is asked each 20 ms
 * until it says 1; after stop_timeout_ms `expire` is called, and `idle` has a second more; then
 * stop is called and the process exits with 0. A second signal ends at once. SIGHUP: the
 * configuration is read again, then `reload` is called.
 *
 * Everything here runs on the loop's thread, which is never blocked; other threads use svc_post. */
#ifndef SVC_SVC_H
#define SVC_SVC_H

#include "msg/chan.h"
#include "svc/conf.h"
#include "svc/stat.h"
#include "util/buf.h"

#include <event2/event.h>
#include <stdint.h>

struct svc;

/* A pdctl command: fills out with JSON (`metrics`: Prometheus text), or err. Or it takes
 * svc_asked() and says CHAN_LATER: it answers by chan_answer on the loop. */
typedef int svc_ctl_fn(struct svc *s, char *const *args, size_t n_args, struct buf *out,
                       struct err *err);
struct svc_ctl {
	const char *name;
	svc_ctl_fn *fn;
	const char *help;
	/* the own user, root, and the group control_group alone may give it */
	int operator_only;
};

typedef void svc_msg_fn(struct svc *s, struct peer *p, const struct msg_head *head,
                        const ProtobufCMessage *body);
struct svc_msg {
	enum msg_type type;
	svc_msg_fn *fn;
};

struct svc_hooks {
	const char *program;      /* "pdrouterd" */
	const char *default_name; /* "router" */
	/* the daemon's own, ended by CONF_END; the common ones are added */
	const struct conf_key *keys;
	const struct stat_def *stats;
	unsigned n_stats;
	/* ended by {0}; a type that is not here, or not from who may send it, is logged and dropped */
	const struct svc_msg *messages;
	/* ended by {0}; status, config, reload, metrics, log-level, stop, help come with the
	 * skeleton */
	const struct svc_ctl *ctl;
	/* File descriptors that the configuration asks for, besides what each daemon needs, and the
	 * key that does; may be NULL */
	unsigned (*descriptors)(const struct conf *c, const char **ret_key);
	int (*start)(struct svc *s, struct err *err);
	void (*reload)(struct svc *s); /* may be NULL */
	void (*drain)(struct svc *s);  /* may be NULL: nothing to finish */
	int (*idle)(struct svc *s);    /* may be NULL: always 1 */
	/* may be NULL; once: what still runs ends now */
	void (*expire)(struct svc *s);
	void (*stop)(struct svc *s);
	/* members of a JSON object, without braces, beginning with a comma if any; may be NULL */
	void (*status)(struct svc *s, struct buf *out);
	/* as in chan_hooks; each may be NULL */
	int (*describe)(struct svc *s, Pds__WorkerInfo *w);
	int (*admit)(struct svc *s, const char *name, uint64_t epoch, const Pds__Hello *hello,
	             char *reason, size_t reason_len);
	void (*up)(struct svc *s, struct peer *p);
	void (*down)(struct svc *s, struct peer *p, const char *why);
	void (*heartbeat)(struct svc *s, struct peer *p, Pds__Heartbeat *hb);
};

int svc_main(int argc, char **argv, const struct svc_hooks *hooks);

/* accessors */
struct event_base *svc_base(struct svc *s);
struct chan *svc_chan(struct svc *s);
struct conf *svc_conf(struct svc *s);
struct stat_set *svc_stats(struct svc *s);
const char *svc_name(const struct svc *s);
uint64_t svc_epoch(const struct svc *s);
const char *svc_rundir(const struct svc *s);
void *svc_data(const struct svc *s);
void svc_set_data(struct svc *s, void *data);
/* whom a pdctl command that is being called has to answer */
struct chan_asked *svc_asked(const struct svc *s);
int svc_draining(const struct svc *s);

/* Runs fn(s, arg) on the loop soon. Any thread; never waits. Bounded by what the callers have in
 * flight: panics past 1,000,000 items. */
void svc_post(struct svc *s, void (*fn)(struct svc *s, void *arg), void *arg);
/* One timer: calls fn(s, arg) each interval_us until svc_timer_del. */
struct svc_timer;
struct svc_timer *svc_timer_add(struct svc *s, uint64_t interval_us,
                                void (*fn)(struct svc *s, void *arg), void *arg);
void svc_timer_del(struct svc_timer **t);
/* Where a daemon of this name on this host is reached: "ipc://RUNDIR/NAME.ipc"; and its
 * descriptor socket "RUNDIR/NAME.sock". */
void svc_ipc_endpoint(const struct svc *s, const char *name, char *out, size_t size);
void svc_sock_path(const struct svc *s, const char *name, char *out, size_t size);
/* Short for chan_send(svc_chan(s), ...); a failure is logged. */
int svc_send(struct svc *s, struct peer *p, enum msg_type type, const struct msg_head *head,
             const void *body);
/* The process cannot go on (a part that it depends on has ended): logs, drains, exits with
 * status 1. */
void svc_give_up(struct svc *s, const char *why);
/* The same without draining, from any thread: logs the reason and ends the process with status
 * 1, waiting for nothing but the log (svc_leave.c). */
_Noreturn void svc_leave(const char *why);

#endif
