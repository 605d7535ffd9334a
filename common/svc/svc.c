/* svc.c - a daemon's life: options, configuration, name, event loop, signals, shutdown. See svc.h.
 *
 * Invariants: between `start` and `stop` the loop runs on this thread and every hook is called on
 * it; `drain` is called at most once. Once the shutdown has begun the process ends within
 * stop_timeout_ms + LAST_WORDS_S + END_GRACE_S whatever a hook does (SIGALRM); once the loop has
 * ended, within STOP_S. If a daemon cannot start it prints one sentence on stderr and exits with
 * status 1. Until `start` has returned the process ends without freeing anything, because a
 * daemon's threads may run already. */
#include "msg/codec.h"
#include "msg/resolve.h"
#include "svc/svc_int.h"
#include "util/check.h"
#include "util/clock.h"
#include "util/descriptors.h"
#include "util/endpoint.h"
#include "util/log_file.h"
#include "util/mem.h"
#include "util/trim.h"
#include "util/version.h"

#include <errno.h>
#include <grp.h>
#include <net/if.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#define END_GRACE_S 3
#define LAST_WORDS_S 1 /* between `expire` and the end of the loop, at most */
#define STOP_S (END_GRACE_S + 1)
#define IDLE_TICK_US 20000
#define START_GOOD_US 10000000u   /* a daemon that ends before has had a bad start */
#define DESCRIPTORS_RESERVED 256u /* own files, and three per link to another daemon */
#define TRIM_TICK_US 1000000u
#define TRIM_IDLE_US (8 * TRIM_TICK_US) /* longest interval, while memory does not change */
#define DISPATCH_US 4000 /* for the events of one turn; the one that is running ends first */
/* 0: links, their timer and the watchdog (event_priority_set). 1: all other events, libevent's
 * default. Only what takes little time, or bounds its time as chan_take does, may have 0. */
#define PRIORITIES 2

#define TO(field) CONF_TO(struct svc_conf, field)
#define US(field) CONF_US(struct svc_conf, field)
#define BYTES(field) CONF_BYTES(struct svc_conf, field)

static const struct conf_key common_keys[] = {
	{"name", CONF_STRING, "", 1, 47, "", 0,
     "Name of this daemon; only one process per name and run directory can run", NULL, TO(name)},
	{"rundir", CONF_STRING, "/run/pdserve", 1, 80, "", 0,
     "Directory of sockets and lock files, created if missing", NULL, TO(rundir)},
	{"listen", CONF_STRING, "", 0, 256, "", 0,
     "address, tcp://ADDRESS:PORT, where daemons of other hosts connect, authenticated by keys; "
     "empty: links "
     "on this host only",
     NULL, TO(listen)},
	{"advertise", CONF_STRING, "", 0, 140, "", 0,
     "HOST:PORT where daemons of other hosts reach `listen`; empty: the address of `listen`, which "
     "must not be a wildcard then, except for routers and storage",
     NULL, TO(advertise)},
	{"keys", CONF_STRING, "/etc/pdserve/keys", 1, 256, "", 0,
     "Folder with this daemon's key, NAME.secret, and the known keys of others (pdctl keygen)",
     NULL, TO(keys)},
	{"dns_servers", CONF_STRING, "", 0, 256, "", 0,
     "Name servers to ask instead of those of /etc/resolv.conf: ADDRESS[:PORT], separated by "
     "commas",
     NULL, TO(dns_servers)},
	{"control_group", CONF_STRING, "", 0, 64, "", 0,
     "Group whose members may use the pdctl commands that change something or show the "
     "configuration; the daemon's own user and root always may",
     NULL, TO(control_group)},
	{"metrics_listen", CONF_STRING, "", 0, 255, "HOST:PORT", 0,
     "where Prometheus reads /metrics of this daemon (and /health), without a key; with a + after "
     "the port the number at the end of the name is added to it (decode-3, 127.0.0.1:9600+: 9603); "
     "empty: nowhere",
     NULL, TO(metrics_listen)},
	{"log_level", CONF_STRING, "info", 0, 0, "", 1,
     "Lowest level of events that are logged; notice: a request leaves one line, info: its steps",
     "debug|info|notice|warn|error", TO(log_level)},
	{"log_file", CONF_STRING, "", 0, 4000, "", 0,
     "File for the log, and for all else that goes to stderr; empty: stderr itself (the journal "
     "under systemd)",
     NULL, TO(log_file)},
	{"log_file_max_mb", CONF_INT, "64", 0, 1048576, "MiB", 0,
     "Size at which log_file is renamed to LOG_FILE.1, which replaces the one before, and a new "
     "one "
     "starts; 0: no limit",
     NULL, BYTES(log_file_max_bytes)},
	{"heartbeat_ms", CONF_INT, "200", 10, 60000, "ms", 0,
     "Interval of heartbeats between routers and workers at work; five times that without work",
     NULL, US(heartbeat_us)},
	{"silence_ms", CONF_INT, "2000", 100, 600000, "ms", 0,
     "A connected daemon that sends nothing for this long is considered down; on one host twice "
     "that without work, 5 times if neither is a router",
     NULL, US(silence_us)},
	{"stop_timeout_ms", CONF_INT, "5000", 0, 600000, "ms", 1,
     "After SIGTERM: how long running work may take to finish or move away", NULL,
     US(stop_timeout_us)},
	{"window_messages", CONF_INT, "65536", 16, 1048576, "messages", 0,
     "Unacknowledged messages kept per link; beyond it the link is considered stuck and work for "
     "it "
     "fails",
     NULL, TO(window_messages)},
	CONF_GONE("endpoint", "it is ipc://RUNDIR/NAME.ipc; for links between hosts set listen = "
                          "\"tcp://ADDRESS:PORT\""),
	CONF_GONE("fault",
              "only the daemons of `make faulty` lose messages on purpose (PDSERVE_FAULT); remove "
              "the key"),
	CONF_END,
};

/* --- hooks of the message links ------------------------------------------ */

static int on_describe(void *arg, Pds__WorkerInfo *w)
{
	struct svc *s = arg;
	return s->hooks->describe ? s->hooks->describe(s, w) : 0;
}

static int on_admit(void *arg, const char *name, uint64_t epoch, const Pds__Hello *hello,
                    char *reason, size_t reason_len)
{
	struct svc *s = arg;
	return s->hooks->admit ? s->hooks->admit(s, name, epoch, hello, reason, reason_len) : 0;
}

static void on_up(void *arg, struct peer *p)
{
	struct svc *s = arg;
	if (s->hooks->up)
		s->hooks->up(s, p);
}

static void on_down(void *arg, struct peer *p, const char *why)
{
	struct svc *s = arg;
	if (s->hooks->down)
		s->hooks->down(s, p, why);
}

static void on_heartbeat(void *arg, struct peer *p, Pds__Heartbeat *hb)
{
	struct svc *s = arg;
	hb->draining = s->draining;
	if (s->hooks->heartbeat)
		s->hooks->heartbeat(s, p, hb);
}

void svc_refuse(struct svc *s, const struct peer *p, enum msg_type type, const char *why)
{
	char what[200];
	s->messages_refused++;
	snprintf(what, sizeof what, "%s %u %s", peer_name(p), (unsigned)type, why);
	if (once_may_log(&s->message_log, what, strlen(what)))
		log_warn("message_dropped", "peer=%s type=%s total=%llu why=%s", log_quote(peer_name(p)),
		         msg_type_find(type)->name, (unsigned long long)s->messages_refused,
		         log_quote(why));
}

static void on_message(void *arg, struct peer *p, enum msg_type type, const struct msg_head *head,
                       const ProtobufCMessage *body)
{
	struct svc *s = arg;
	char why[80];
	if (!msg_type_is_from(msg_type_find(type), peer_program(p))) {
		snprintf(why, sizeof why, "%.31s may not send it", peer_program(p));
		svc_refuse(s, p, type, why);
	} else if (s->dispatch[type].tag && peer_tag(p) != s->dispatch[type].tag) {
		svc_refuse(s, p, type, "it is not the one that we are connected to");
	} else if (s->dispatch[type].fn) {
		s->dispatch[type].fn(s, p, head, body);
	} else if (type != MSG_HEARTBEAT) {
		snprintf(why, sizeof why, "%s does not handle it", s->hooks->program);
		svc_refuse(s, p, type, why);
	}
}

/* --- shutdown ------------------------------------------------------------ */

/* If stderr blocks, a second alarm, now with its default action, ends the process. */
static void on_alarm(int sig)
{
	static const char text[] =
		"level=error event=stop_timeout why=\"shutdown took too long: exiting at once\"\n";
	sigset_t alone;
	signal(sig, SIG_DFL);
	sigemptyset(&alone);
	sigaddset(&alone, sig);
	pthread_sigmask(SIG_UNBLOCK, &alone, NULL);
	alarm(1);
	ssize_t done = write(STDERR_FILENO, text, sizeof text - 1);
	(void)done;
	_exit(1);
}

static void on_idle_tick(evutil_socket_t fd, short what, void *arg)
{
	struct svc *s = arg;
	(void)fd;
	(void)what;
	int idle = s->hooks->idle ? s->hooks->idle(s) : 1;
	if (!idle && clock_us() < s->stop_at_us)
		return;
	if (!idle && !s->expired) {
		s->expired = 1;
		log_warn("stop_timeout", "why=\"work was still running after stop_timeout_ms\"");
		if (s->hooks->expire) {
			s->stop_at_us = clock_us() + LAST_WORDS_S * 1000000u;
			s->hooks->expire(s);
			return;
		}
	}
	event_base_loopbreak(s->base);
}

void svc_drain_begin(struct svc *s, const char *why)
{
	if (s->draining)
		return;
	s->draining = 1;
	svc_start_done();
	uint64_t timeout_us = s->values.stop_timeout_us;
	s->stop_at_us = clock_us() + timeout_us;
	log_notice("stopping", "why=%s timeout_us=%llu", log_quote(why),
	           (unsigned long long)timeout_us);
	unsigned end_s = (unsigned)((timeout_us + 999999) / 1000000) + LAST_WORDS_S + END_GRACE_S;
	/* systemd kills after this time, or after TimeoutStopSec if that is longer */
	svc_notify("STOPPING=1\nEXTEND_TIMEOUT_USEC=%llu\nSTATUS=stopping: %s",
	           (end_s + STOP_S + 1ull) * 1000000, why);
	signal(SIGALRM, on_alarm);
	alarm(end_s);
	if (s->hooks->drain)
		s->hooks->drain(s);
	struct timeval tick = {.tv_usec = IDLE_TICK_US};
	s->idle_tick = event_new(s->base, -1, EV_PERSIST, on_idle_tick, s);
	CHECK(s->idle_tick && event_add(s->idle_tick, &tick) == 0);
	event_active(s->idle_tick, EV_TIMEOUT, 0);
}

static void on_stop_signal(evutil_socket_t sig, short what, void *arg)
{
	struct svc *s = arg;
	(void)what;
	if (s->draining) {
		log_warn("stopped_at_once", "why=\"a second signal\"");
		log_stop(SVC_LOG_WAIT_MS);
		_exit(128 + (int)sig);
	}
	svc_drain_begin(s, sig == SIGINT ? "SIGINT" : "SIGTERM");
}

/* --- reload -------------------------------------------------------------- */

static int apply_conf(void *arg, struct err *err)
{
	struct svc *s = arg;
	conf_fill(s->conf, s->common, &s->values);
	return s->hooks->reload ? s->hooks->reload(s, err) : 0;
}

int svc_reload_now(struct svc *s, char **ret_changed, char **ret_refused, struct err *err)
{
	int r = conf_reload(s->conf, apply_conf, s, ret_changed, ret_refused, err);
	if (r < 0) {
		conf_fill(s->conf, s->common, &s->values); /* the old ones are back */
		log_error("reload_failed", "why=%s", log_quote(err->text));
		return r;
	}
	log_set_level(s->values.log_level);
	log_notice("reloaded", "changed=%s needs_restart=%s", log_quote(*ret_changed),
	           log_quote(*ret_refused));
	chan_keys_reload(s->chan);
	return 0;
}

static void on_reload_signal(evutil_socket_t sig, short what, void *arg)
{
	struct svc *s = arg;
	struct err err = {0};
	char *changed = NULL, *refused = NULL;
	(void)sig;
	(void)what;
	svc_notify("RELOADING=1\nMONOTONIC_USEC=%llu", (unsigned long long)clock_us());
	svc_reload_now(s, &changed, &refused, &err);
	svc_notify("READY=1");
	free(changed);
	free(refused);
}

static void on_trim_tick(struct svc *s, void *arg);

static void schedule_trim(struct svc *s, uint64_t us)
{
	us = us < TRIM_IDLE_US ? us : TRIM_IDLE_US;
	if (us == s->trim_us)
		return;
	svc_timer_del(&s->trim_tick);
	s->trim_tick = svc_timer_add(s, us, on_trim_tick, NULL);
	s->trim_us = us;
}

static void on_trim_tick(struct svc *s, void *arg)
{
	(void)arg;
	uint64_t t = clock_us();
	size_t given = trim_tick(&s->trim);
	if (given)
		log_notice("memory_given_back", "bytes=%zu took_us=%llu", given,
		           (unsigned long long)(clock_us() - t));
	schedule_trim(s, s->trim.changed ? TRIM_TICK_US : 2 * s->trim_us);
}

static void on_watchdog(evutil_socket_t fd, short what, void *arg)
{
	(void)fd;
	(void)what;
	(void)arg;
	svc_notify("WATCHDOG=1");
}

/* --- start --------------------------------------------------------------- */

static void on_libevent_says(int severity, const char *text)
{
	static const enum log_level levels[] = {LOG_DEBUG, LOG_NOTICE, LOG_WARN, LOG_ERROR};
	log_at(levels[severity & 3], 0, "libevent", "text=%s", log_quote(text));
}

static int setup_base(struct svc *s, struct err *err)
{
	event_set_log_callback(on_libevent_says);
	struct event_config *cfg = event_config_new();
	CHECK(cfg);
	event_config_set_flag(cfg, EVENT_BASE_FLAG_PRECISE_TIMER);
	/* else an event that makes itself active again keeps the loop from looking at links */
	event_config_set_max_dispatch_interval(cfg, &(struct timeval){0, DISPATCH_US}, -1, 0);
	s->base = event_base_new_with_config(cfg);
	event_config_free(cfg);
	if (!s->base || event_base_priority_init(s->base, PRIORITIES) < 0)
		return err_set(err, ERR_IO, "cannot create the event loop: %s", strerror(errno));
	signal(SIGPIPE, SIG_IGN);
	check_crashes();
	static const int numbers[3] = {SIGTERM, SIGINT, SIGHUP};
	for (int i = 0; i < 3; i++) {
		s->signals[i] = evsignal_new(s->base, numbers[i],
		                             numbers[i] == SIGHUP ? on_reload_signal : on_stop_signal, s);
		CHECK(s->signals[i] && event_priority_set(s->signals[i], 0) == 0);
	}
	CHECK(event_add(s->signals[2], NULL) == 0); /* the others when it has started */
	uint64_t watchdog_us = svc_watchdog_us();
	if (watchdog_us) {
		struct timeval tv = clock_timeval(watchdog_us / 2);
		s->watchdog = event_new(s->base, -1, EV_PERSIST, on_watchdog, s);
		CHECK(s->watchdog && event_priority_set(s->watchdog, 0) == 0 &&
		      event_add(s->watchdog, &tv) == 0);
	}
	return svc_posts_start(s, err);
}

void svc_handle(struct svc *s, const struct svc_msg *instead)
{
	memset(s->dispatch, 0, sizeof s->dispatch);
	for (const struct svc_msg *m = s->hooks->messages; m && m->fn; m++) {
		CHECK((unsigned)m->type < SVC_MESSAGE_TYPES);
		s->dispatch[m->type] = *m;
	}
	for (const struct svc_msg *m = instead; m && m->fn; m++) {
		CHECK((unsigned)m->type < SVC_MESSAGE_TYPES && s->dispatch[m->type].fn && !m->tag);
		s->dispatch[m->type].fn = m->fn;
	}
}

void svc_set_hooks(struct svc *s, const struct svc_hooks *hooks)
{
	s->hooks = hooks;
	svc_handle(s, NULL);
}

static int setup_chan(struct svc *s, struct err *err)
{
	const struct chan_hooks hooks = {.arg = s,
	                                 .describe = on_describe,
	                                 .admit = on_admit,
	                                 .up = on_up,
	                                 .down = on_down,
	                                 .message = on_message,
	                                 .heartbeat = on_heartbeat,
	                                 .ctl = svc_ctl_call};
	const struct chan_opts opts = {
		.program = s->hooks->program,
		.name = s->name,
		.epoch = s->epoch,
		.bind = s->endpoint,
		.listen = s->values.listen,
		.keys = s->keys,
		.dns_servers = s->values.dns_servers,
		.heartbeat_us = s->values.heartbeat_us,
		.silence_us = s->values.silence_us,
		.window_messages = s->values.window_messages,
		.window_bytes = 256u << 20,
		.peers_max = MSG_PEERS_MAX,
		.message_bytes_max = 16u << 20,
	};
	svc_set_hooks(s, s->hooks);
	return chan_new(s->base, &opts, &hooks, &s->chan, err);
}

static void secret_path(const struct svc *s, char *out, size_t size)
{
	snprintf(out, size, "%s/%s.secret", s->values.keys, s->name);
}

/* Keys are needed to listen, and to connect to other hosts: where there is one of this name it is
 * read. */
static int open_keys(struct svc *s, struct err *err)
{
	char path[512];
	secret_path(s, path, sizeof path);
	if (!*s->values.listen && access(path, F_OK) != 0)
		return 0;
	return keys_open(s->values.keys, s->name, &s->keys, err);
}

/* Checks `listen` and `advertise`, and sets where other hosts reach this daemon. */
static int check_listen(struct svc *s, struct err *err)
{
	const char *listen = s->values.listen, *advertise = s->values.advertise,
			   *port = strrchr(listen, ':');
	if (*advertise && !*listen)
		return err_set(err, ERR_INVALID,
		               "advertise = \"%s\" says where others reach `listen`, which is not set",
		               advertise);
	if (*advertise && endpoint_is_wildcard(advertise))
		return err_set(err, ERR_INVALID,
		               "advertise = \"%s\" is a wildcard: set the HOST:PORT that daemons of other "
		               "hosts connect to",
		               advertise);
	if (*advertise && !endpoint_is_address(advertise))
		return err_set(err, ERR_INVALID, "advertise = \"%s\": allowed is HOST:PORT", advertise);
	if (*listen && (strncmp(listen, "tcp://", 6) != 0 || port <= listen + 6 || !port[1]))
		return err_set(err, ERR_INVALID, "listen = \"%s\": allowed is tcp://ADDRESS:PORT", listen);
	if (!*listen || !s->hooks->advertises)
		return 0;
	s->remote = mem_printf("%s@tcp://%s", s->name, *advertise ? advertise : listen + 6);
	/* ZeroMQ also listens on INTERFACE:PORT, a name that other hosts do not know */
	char interface[IF_NAMESIZE] = "";
	if (!*advertise && (size_t)(port - listen) - 6 < sizeof interface)
		snprintf(interface, sizeof interface, "%.*s", (int)(port - listen) - 6, listen + 6);
	if (endpoint_is_remote(s->remote) && !if_nametoindex(interface))
		return 0;
	return err_set(err, ERR_INVALID,
	               "listen = \"%s\" does not say where daemons of other hosts reach this one: set "
	               "advertise = \"HOST:PORT\"",
	               listen);
}

/* Checks and keeps name, rundir, endpoints and control_group. */
static int setup_names(struct svc *s, struct err *err)
{
	static const char allowed[] =
		"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
	const char *group = s->values.control_group;
	s->name = mem_strdup(s->values.name);
	s->rundir = mem_strdup(s->values.rundir);
	s->endpoint = mem_printf("ipc://%s/%s.ipc", s->rundir, s->name);
	if (s->name[strspn(s->name, allowed)] || s->name[0] == '.')
		return err_set(err, ERR_INVALID,
		               "name = \"%s\": only letters, digits, '.', '_' and '-' are allowed, and it "
		               "must not begin with '.'",
		               s->name);
	if (s->rundir[0] != '/')
		return err_set(err, ERR_INVALID, "rundir = \"%s\" is not an absolute path", s->rundir);
	size_t n = strlen(s->rundir) + strlen(s->name) + sizeof "/.sock.lock",
		   limit = sizeof((struct sockaddr_un *)0)->sun_path;
	if (n > limit)
		return err_set(err, ERR_INVALID,
		               "socket paths in %s would have %zu bytes, the system's limit is %zu: choose "
		               "a shorter rundir",
		               s->rundir, n, limit);
	int r = check_listen(s, err);
	if (r < 0)
		return r;
	const struct group *g = *group ? getgrnam(group) : NULL;
	if (*group && !g)
		return err_set(err, ERR_INVALID, "control_group = \"%s\": no such group", group);
	s->control_gid = g ? (int64_t)g->gr_gid : -1;
	return 0;
}

static int unreadable(const char *key, const char *path, struct err *err)
{
	int no = errno;
	return err_set(err, ERR_IO, "%s: %s: %s%s", key, path, strerror(no),
	               no == EACCES ? "; check it as the user that the daemon runs as" : "");
}

int svc_check_file(const char *key, const char *path, struct err *err)
{
	return !*path || access(path, R_OK) == 0 ? 0 : unreadable(key, path, err);
}

static int check_keys(struct svc *s, struct err *err)
{
	char path[512];
	secret_path(s, path, sizeof path);
	if (access(path, R_OK) == 0)
		return open_keys(s, err);
	return *s->values.listen || errno != ENOENT ? unreadable("keys", path, err) : 0;
}

/* -t, beside types and ranges: names and addresses of every daemon, what its own hook checks, and
 * of the files those that can be read: others perhaps only the daemon's user may read. */
static int check(struct svc *s)
{
	struct err err = {0};
	if (setup_names(s, &err) == 0 && svc_metrics_check(s, &err) == 0 &&
	    resolve_check_servers(s->values.dns_servers, &err) == 0 && check_keys(s, &err) == 0 &&
	    (!s->hooks->check || s->hooks->check(s, &err) == 0))
		return puts("OK") < 0;
	fprintf(stderr, "%s: %s\n", s->hooks->program, err.text);
	return 1;
}

static int plan(struct svc *s, const char *arg)
{
	struct err err = {0};
	struct buf out;
	int r = s->hooks->plan ? 0 : err_set(&err, ERR_UNSUPPORTED, "there is no --plan-memory");
	buf_init(&out, 0);
	if (r == 0)
		r = s->hooks->plan(s, arg, &out, &err);
	if (r < 0)
		fprintf(stderr, "%s: %s\n", s->hooks->program, err.text);
	else
		r = fputs(out.data, stdout) < 0 || fflush(stdout) != 0;
	buf_fini(&out);
	return r != 0;
}

static int setup(struct svc *s, const struct svc_opts *o, struct err *err)
{
	int r;
	if ((r = setup_names(s, err)) < 0 || (r = open_keys(s, err)) < 0)
		return r;
	log_init(s->hooks->program, s->name);
	log_set_level(s->values.log_level);
	if (o->die_with_parent && prctl(PR_SET_PDEATHSIG, SIGTERM) < 0)
		return err_set(err, ERR_IO, "cannot watch the parent process: %s", strerror(errno));
	if (o->die_with_parent && getppid() != o->die_with_parent)
		return err_set(err, ERR_CLOSED, "the parent process %d has already ended",
		               o->die_with_parent);
	char setting[64] = ""; /* what requires descriptors of its own */
	unsigned own = s->hooks->descriptors ? s->hooks->descriptors(s, setting, sizeof setting) : 0;
	r = descriptors_init(DESCRIPTORS_RESERVED + svc_metrics_descriptors(s) + own, err);
	if (r < 0)
		return r == ERR_FULL && own ? err_prefix(err, "%s", setting) : r;
	/* sockets are accessible to the user and its group; the run directory's mode decides who can
	 * reach them */
	umask(0007);
	if ((r = svc_rundir_make(s->rundir, err)) < 0 ||
	    (r = s->lock_fd = svc_lock_take(s->rundir, s->name, &s->epoch, err)) < 0)
		return r;
	svc_early_sockets(s);
	const struct svc_conf *c = &s->values;
	if (*c->log_file && (r = log_file_open(c->log_file, c->log_file_max_bytes, err)) < 0)
		return r;
	if (log_start() < 0)
		return err_set(err, ERR_NOMEM, "cannot start the log thread: raise the limit on tasks");
	if ((r = setup_base(s, err)) < 0 || (r = setup_chan(s, err)) < 0)
		return r;
	schedule_trim(s, TRIM_TICK_US);
	if ((r = svc_metrics_start(s, err)) < 0)
		return r;
	if ((r = s->hooks->start(s, err)) < 0)
		return r;
	CHECK(event_add(s->signals[0], NULL) == 0 && event_add(s->signals[1], NULL) == 0);
	return 0;
}

static void teardown(struct svc *s)
{
	for (int i = 0; i < 3; i++)
		if (s->signals[i])
			event_free(s->signals[i]);
	if (s->idle_tick)
		event_free(s->idle_tick);
	if (s->watchdog)
		event_free(s->watchdog);
	svc_timer_del(&s->trim_tick);
	svc_timer_del(&s->start_tick);
	svc_metrics_stop(s);
	int bound = s->chan != NULL;
	chan_destroy(&s->chan);
	keys_close(&s->keys);
	if (bound)
		/* the name is still locked, so the socket is ours (a killed daemon's stays: shown as
		 * down) */
		unlink(s->endpoint + 6);
	svc_posts_stop(s);
	if (s->base)
		event_base_free(s->base);
	conf_destroy(&s->conf);
	free(s->common);
	free(s->name);
	free(s->rundir);
	free(s->endpoint);
	free(s->remote);
	if (s->lock_fd >= 0)
		close(s->lock_fd);
}

static void on_start_good(struct svc *s, void *arg)
{
	(void)arg;
	svc_start_done();
	svc_timer_del(&s->start_tick);
}

static int run(struct svc *s, const struct svc_opts *o)
{
	struct err err = {0};
	s->started_us = clock_us();
	s->started_unix_us = clock_unix_us();
	if (setup(s, o, &err) < 0) {
		alarm(END_GRACE_S); /* in case stderr blocks */
		log_stop(SVC_LOG_WAIT_MS);
		fprintf(stderr, "%s: cannot start: %s%s\n", s->hooks->program,
		        err.text[0] ? err.text : "unknown reason", svc_remedy(err.text));
		svc_early_leave(1);
	}
	log_notice("ready", "version=%s protocol=%u endpoint=%s epoch=%llu pid=%ld start_us=%llu",
	           build_version(), PROTOCOL_VERSION, log_quote(s->endpoint),
	           (unsigned long long)s->epoch, (long)getpid(),
	           (unsigned long long)(clock_us() - s->started_us));
	svc_notify("READY=1\nSTATUS=ready");
	s->start_tick = svc_timer_add(s, START_GOOD_US, on_start_good, NULL);
	event_base_dispatch(s->base);
	CHECK(s->draining);
	alarm(STOP_S);
	svc_posts_run(s);
	if (s->hooks->stop)
		s->hooks->stop(s);
	log_notice("stopped", "uptime_us=%llu", (unsigned long long)(clock_us() - s->started_us));
	return 0;
}

static int print_text(const struct svc *s, const struct svc_opts *o,
                      const struct conf_key *const *tables)
{
	struct buf out;
	buf_init(&out, 0);
	if (o->print_version)
		buf_printf(&out, "%s %s, protocol version %u\n", s->hooks->program, build_version(),
		           PROTOCOL_VERSION);
	else if (o->print_metrics)
		svc_metrics_describe(s->hooks, &out);
	else if (o->print_help)
		svc_opts_usage(s->hooks, &out);
	else
		buf_printf(&out,
		           "# Configuration of %s. Every key is shown with its default; remove the '#' in "
		           "front of a key to set it.\n",
		           s->hooks->program);
	if (!o->print_version && !o->print_metrics) {
		buf_adds(&out, "\n");
		conf_help(tables, &out);
		while (out.len > 1 && out.data[out.len - 2] == '\n')
			out.data[--out.len] = 0;
	}
	int r = fputs(out.data, stdout) < 0 || fflush(stdout) != 0;
	buf_fini(&out);
	return r;
}

int svc_main(int argc, char **argv, const struct svc_hooks *hooks)
{
	struct svc *s = mem_zalloc(sizeof *s);
	struct svc_opts o = {0};
	struct err err = {0};
	trim_setup(&s->trim);
	s->hooks = hooks;
	s->common = mem_alloc(sizeof common_keys);
	memcpy(s->common, common_keys, sizeof common_keys);
	for (struct conf_key *k = s->common; k->name; k++)
		if (strcmp(k->name, "name") == 0)
			k->def = hooks->default_name;
	const struct conf_key *const tables[] = {
		s->common,
		hooks->keys ? hooks->keys : &common_keys[sizeof common_keys / sizeof *common_keys - 1],
		NULL};
	int status = 2;
	s->lock_fd = s->posts.fd = -1;
	pthread_mutex_init(&s->posts.lock, NULL);
	int bad = svc_opts_parse(argc, argv, hooks->program, &o) < 0;
	int starts = !(o.print_help || o.print_version || o.print_config || o.print_metrics);
	if (bad || (starts && !o.check_only && !o.plan)) {
		svc_early_signals();
		svc_start_pause(hooks->program);
	}
	if (bad)
		goto out;
	if (!starts) {
		status = print_text(s, &o, tables);
	} else if ((status = conf_load(tables, o.conf_path, o.overrides, o.n_overrides, &s->conf,
	                               &err) < 0) != 0) {
		fprintf(stderr, "%s: %s\n", hooks->program, err.text);
	} else {
		conf_fill(s->conf, s->common, &s->values);
		status = o.plan ? plan(s, o.plan_arg) : o.check_only ? check(s) : run(s, &o);
	}
	free(o.overrides);
out:
	teardown(s);
	free(s);
	log_stop(SVC_LOG_WAIT_MS);
	return status;
}

/* --- accessors ----------------------------------------------------------- */

struct event_base *svc_base(struct svc *s)
{
	return s->base;
}

struct chan *svc_chan(struct svc *s)
{
	return s->chan;
}

struct conf *svc_conf(const struct svc *s)
{
	return s->conf;
}

const struct svc_conf *svc_common(const struct svc *s)
{
	return &s->values;
}

const char *svc_name(const struct svc *s)
{
	return s->name;
}

uint64_t svc_epoch(const struct svc *s)
{
	return s->epoch;
}

const char *svc_remote(const struct svc *s)
{
	return s->remote ? s->remote : "";
}

int svc_has_keys(const struct svc *s)
{
	return s->keys != NULL;
}

void *svc_data(const struct svc *s)
{
	return s->data;
}

void svc_set_data(struct svc *s, void *data)
{
	s->data = s->stats = data;
}

int svc_draining(const struct svc *s)
{
	return s->draining;
}

void svc_ipc_endpoint(const struct svc *s, const char *name, char *out, size_t size)
{
	snprintf(out, size, "ipc://%s/%s.ipc", s->rundir, name);
}

void svc_sock_path(const struct svc *s, const char *name, char *out, size_t size)
{
	snprintf(out, size, "%s/%s.sock", s->rundir, name);
}

int svc_send(struct svc *s, struct peer *p, enum msg_type type, const struct msg_head *head,
             const void *body)
{
	int r = chan_send(s->chan, p, type, head, body);
	if (r < 0) {
		const struct msg_type_info *info = msg_type_find(type);
		const struct reqid *req = head && (head->req.hi || head->req.lo) ? &head->req : NULL;
		log_req(LOG_WARN, req, "send_failed", "peer=%s type=%s why=%s", log_quote(peer_name(p)),
		        info ? info->name : "?", err_name(r));
	}
	return r;
}
