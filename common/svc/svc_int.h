/* svc_int.h - the skeleton's own state, shared by svc.c (life), svc_opts.c (command line),
 * svc_ctl.c (pdctl), svc_metrics.c (metrics), svc_env.c (run directory, name lock, systemd),
 * svc_early.c (an end before the start) and svc_post.c (work from other threads, timers). Private
 * to common/svc. */
#ifndef SVC_SVC_INT_H
#define SVC_SVC_INT_H

#include "svc/svc.h"
#include "util/once.h"
#include "util/trim.h"

#include <pthread.h>

#define SVC_MESSAGE_TYPES 128 /* numbers of message types are below this */

struct svc_opts {
	const char *conf_path;
	char **overrides;
	int n_overrides;
	int check_only, print_help, print_version, print_config, print_metrics, plan;
	const char *plan_arg; /* NULL: none */
	int die_with_parent;  /* 0, or the parent's process id */
};

struct svc_post_item {
	void (*fn)(struct svc *s, void *arg);
	void *arg;
};

struct svc_posts {
	pthread_mutex_t lock;
	int fd; /* eventfd: readable while items wait */
	struct svc_post_item *items;
	size_t n, size;
	struct event *ev;
};

#define SVC_LOG_WAIT_MS 300 /* at the end, for lines that are not yet written */

struct svc {
	const struct svc_hooks *hooks;
	struct conf_key *common; /* the skeleton's keys, with this daemon's default name */
	struct conf *conf;
	struct svc_conf values; /* of the skeleton's keys */
	struct keys *keys;      /* NULL: none, links on this host only */
	struct chan *chan;
	struct chan_asked *asked; /* identifies the asker of the pdctl command being called */
	struct event_base *base;
	struct event *signals[3], *idle_tick, *watchdog;
	struct svc_posts posts;
	struct trim trim;
	struct svc_timer *trim_tick, *start_tick;
	uint64_t trim_us;                           /* interval of trim_tick */
	struct svc_msg dispatch[SVC_MESSAGE_TYPES]; /* by type; fn NULL: not handled */
	struct once message_log, command_log;       /* of refusals */
	uint64_t messages_refused, commands_refused;
	char *name, *rundir, *endpoint;
	char *remote; /* svc_remote; NULL: none */
	struct {
		struct http_server *http; /* NULL: no endpoint */
		struct buf page;          /* as last rendered for it */
		uint64_t page_us;
	} metrics;
	uint64_t epoch, started_us, started_unix_us, stop_at_us;
	int64_t control_gid; /* -1: none */
	int lock_fd, draining, expired;
	int waiting;        /* in svc_wait */
	void *data, *stats; /* svc_data; stats: the same, but for the data of svc_wait */
};

/* svc_opts.c: 0, or -1 after printing an error on stderr. */
int svc_opts_parse(int argc, char **argv, const char *program, struct svc_opts *ret_o);
void svc_opts_usage(const struct svc_hooks *hooks, struct buf *out);

/* svc_env.c */
int svc_rundir_make(const char *dir, struct err *err);
/* Text to append to a start-up error: what to do if the disk is full; "" otherwise. */
const char *svc_remedy(const char *why);
/* Takes RUNDIR/NAME.lock until this process ends. *ret_epoch is greater than that of every earlier
 * holder. Returns the descriptor or ERR_*. */
int svc_lock_take(const char *rundir, const char *name, uint64_t *ret_epoch, struct err *err);
void svc_notify(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* Under systemd: waits 1 s, 2 s, 4 s, ... 30 s if svc_start_done was not called since the start
 * before this one. */
void svc_start_pause(const char *program);
/* The daemon has been ready for a while, or is told to end. May be called in a signal handler. */
void svc_start_done(void);
uint64_t svc_watchdog_us(void); /* timeout of systemd's watchdog; 0: disabled */

/* svc_post.c */
int svc_posts_start(struct svc *s, struct err *err);
void svc_posts_run(struct svc *s);
void svc_posts_stop(struct svc *s);

/* svc_ctl.c */
int svc_ctl_call(void *arg, struct chan_asked *asked, const struct process_origin *who,
                 const char *command, char *const *args, size_t n_args, char **ret_text);

/* svc_metrics.c. Before `start`: a port in use is known before a model is read. */
int svc_metrics_check(const struct svc *s, struct err *err); /* of the address */
int svc_metrics_start(struct svc *s, struct err *err);
void svc_metrics_stop(struct svc *s);
/* A line for each metric (--print-metrics). */
void svc_metrics_describe(const struct svc_hooks *hooks, struct buf *out);
unsigned svc_metrics_descriptors(const struct svc *s);
const char *svc_state(const struct svc *s); /* "running", "waiting", "draining" */

/* svc.c */
/* From now on these hooks are called, for the messages that they name. */
void svc_set_hooks(struct svc *s, const struct svc_hooks *hooks);
void svc_drain_begin(struct svc *s, const char *why);
int svc_reload_now(struct svc *s, char **ret_changed, char **ret_refused, struct err *err);

/* svc_early.c: SIGTERM and SIGINT end the process in order until they get other handlers. */
void svc_early_signals(void);
/* The name is locked: its sockets are this process's, and deleted if it ends early. */
void svc_early_sockets(const struct svc *s);
/* Ends the process without freeing anything. */
__attribute__((noreturn)) void svc_early_leave(int status);

#endif
