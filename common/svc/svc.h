/* svc.h - the skeleton of all daemons: options, configuration, log, event loop, message links,
 * pdctl commands, signals, systemd notification, orderly shutdown. A daemon is a table of hooks.
 *
 * Life: main -> svc_main -> start (sets everything up; failure is fatal with a sentence) -> ready
 * -> events ... -> SIGTERM, SIGINT or pdctl stop: drain is called once; `idle` is called each 20 ms
 * until it returns 1; after stop_timeout_ms `expire` is called, and `idle` has one more second;
 * then stop is called and the process exits with status 0. A second signal ends it at once. SIGHUP:
 * the configuration is read again, then `reload` is called.
 *
 * Everything here runs on the loop's thread, which must never block; other threads use svc_post. */
#ifndef SVC_SVC_H
#define SVC_SVC_H

#include "msg/chan.h"
#include "svc/conf.h"
#include "svc/stat.h"
#include "util/buf.h"

#include <event2/event.h>
#include <stdint.h>

struct svc;

/* Values of the keys that every daemon has. */
struct svc_conf {
	const char *name, *rundir, *listen, *advertise, *keys, *dns_servers, *control_group,
		*metrics_listen, *log_level, *log_file;
	uint64_t log_file_max_bytes, heartbeat_us, silence_us, stop_timeout_us;
	uint32_t window_messages;
};

/* A pdctl command: fills out with JSON (`metrics`: Prometheus text), or sets err. To answer later
 * it keeps svc_asked(), returns CHAN_LATER, and calls chan_answer on the loop. */
typedef int svc_ctl_fn(struct svc *s, char *const *args, size_t n_args, struct buf *out,
                       struct err *err);
struct svc_ctl {
	const char *name;
	svc_ctl_fn *fn;
	const char *help;
	/* only the own user, root, and the group control_group may use it */
	int operator_only;
};

typedef void svc_msg_fn(struct svc *s, struct peer *p, const struct msg_head *head,
                        const ProtobufCMessage *body);
struct svc_msg {
	enum msg_type type;
	svc_msg_fn *fn;
	/* only a peer that we connected to with this tag (chan_connect) may send it; 0: any peer */
	int tag;
};

struct svc_hooks {
	const char *program;      /* "pdrouterd" */
	const char *default_name; /* "router" */
	/* the daemon's own keys, ended by CONF_END; the common ones are added */
	const struct conf_key *keys;
	/* shown as pdserve_DEFAULTNAME_..., ended by STAT_END; the places are in svc_data */
	const struct stat_row *stats;
	/* ended by {0}; a message of another type, or from a peer that may not send its type, is
	 * counted, logged and dropped */
	const struct svc_msg *messages;
	/* ended by {0}; the skeleton adds status, config, reload, metrics, log-level, stop, help */
	const struct svc_ctl *ctl;
	/* 1: daemons of other hosts learn from others where to connect to this one (svc_remote), so
	 * `listen` or `advertise` must say it. 0: those that connect are configured with its address */
	int advertises;
	/* Returns the number of file descriptors that the configuration requires beyond those of every
	 * daemon, and the setting that determines it, "max_connections = 8192"; may be NULL */
	unsigned (*descriptors)(const struct svc *s, char *ret_setting, size_t size);
	/* -t: what `start` checks of the configuration's values, and of the files that it names
	 * (svc_check_file); opens nothing else. There is no log, loop or link yet. May be NULL */
	int (*check)(struct svc *s, struct err *err);
	/* --plan-memory: appends what the configuration takes; `arg` is the option's, or NULL. Called
	 * as `check` is. NULL: there is no such option */
	int (*plan)(struct svc *s, const char *arg, struct buf *out, struct err *err);
	/* After an error the process ends at once: nothing needs to be undone. */
	int (*start)(struct svc *s, struct err *err);
	/* may be NULL. An error is logged, and told to who asked for it; then it has changed nothing,
	 * and the old values are back */
	int (*reload)(struct svc *s, struct err *err);
	void (*drain)(struct svc *s); /* may be NULL: nothing to finish */
	int (*idle)(struct svc *s);   /* may be NULL: always 1 */
	/* may be NULL; called once: end what still runs now */
	void (*expire)(struct svc *s);
	void (*stop)(struct svc *s);
	/* adds members of a JSON object: no braces, a comma before the first; may be NULL */
	void (*status)(struct svc *s, struct buf *out);
	const char *(*role)(struct svc *s); /* for labels; may be NULL: default_name */
	void (*refresh)(struct svc *s);     /* brings stats up to date; may be NULL */
	/* Adds the daemon's own metrics instead of stats: stats under their whole names, with labels
	 * of the names in stats_labels, and all of families, if only their heads; may be NULL */
	void (*metrics)(struct svc *s, struct buf *out);
	const char *stats_labels;
	const struct stat_family *families;
	unsigned n_families;
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
struct conf *svc_conf(const struct svc *s);
const struct svc_conf *svc_common(const struct svc *s); /* the values of the skeleton's keys */
const char *svc_name(const struct svc *s);
uint64_t svc_epoch(const struct svc *s);
/* Where daemons of other hosts connect to this one, "NAME@tcp://HOST:PORT"; "" if they cannot, or
 * if it does not advertise. */
const char *svc_remote(const struct svc *s);
int svc_has_keys(const struct svc *s); /* 1: links to other hosts are possible */
void *svc_data(const struct svc *s);
void svc_set_data(struct svc *s, void *data);
/* identifies the asker of the pdctl command that is being called */
struct chan_asked *svc_asked(const struct svc *s);
int svc_draining(const struct svc *s);
/* For `start`: runs the loop until svc_wait_end, with these hooks instead of the daemon's own (all
 * but program and stats), which find `data` in svc_data. pdctl shows the state "waiting", a service
 * manager `what`, which the hooks may change. A signal or pdctl stop ends the process meanwhile. */
void svc_wait(struct svc *s, const struct svc_hooks *hooks, void *data, const char *what);
void svc_wait_end(struct svc *s);
/* For `check`: 0 if the setting `key` is "", or names a file that this user can read; else
 * ERR_IO. */
int svc_check_file(const char *key, const char *path, struct err *err);

/* Appends all metrics as Prometheus text. */
void svc_metrics(struct svc *s, struct buf *out);
/* Answers with the page of the last 100 ms, or a new one. */
struct http_conn;
void svc_metrics_reply(struct svc *s, struct http_conn *c);

/* Runs fn(s, arg) on the loop soon. Any thread; never waits. Callers bound what they have in
 * flight: more than 1,000,000 items panic. */
void svc_post(struct svc *s, void (*fn)(struct svc *s, void *arg), void *arg);
/* One timer: calls fn(s, arg) each interval_us until svc_timer_del. */
struct svc_timer;
struct svc_timer *svc_timer_add(struct svc *s, uint64_t interval_us,
                                void (*fn)(struct svc *s, void *arg), void *arg);
void svc_timer_del(struct svc_timer **t);
/* The endpoint of a daemon of this name on this host, "ipc://RUNDIR/NAME.ipc", and its socket for
 * descriptors, "RUNDIR/NAME.sock". */
void svc_ipc_endpoint(const struct svc *s, const char *name, char *out, size_t size);
void svc_sock_path(const struct svc *s, const char *name, char *out, size_t size);
/* chan_send(svc_chan(s), ...) that logs a failure. */
int svc_send(struct svc *s, struct peer *p, enum msg_type type, const struct msg_head *head,
             const void *body);
/* From now on the functions of `instead` (ended by {0}; NULL: none) handle their types, each of
 * which is in hooks->messages, where its tag stays; all other types are handled as there. */
void svc_handle(struct svc *s, const struct svc_msg *instead);
/* Counts a message that its sender may not send, or not to us, and logs it once. The caller drops
 * it. */
void svc_refuse(struct svc *s, const struct peer *p, enum msg_type type, const char *why);
/* The process cannot continue (a part that it depends on has ended). From any thread: logs the
 * reason and exits with status 1; waits only for the log (svc_leave.c). */
_Noreturn void svc_leave(const char *why);

#endif
