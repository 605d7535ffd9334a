/* daemon.c - see rank.h. A bad answer of the worker, or none, costs a pause; nothing that it sends
 * ends the daemon. */
#include "rank.h"

#include "engine/engine.h"
#include "util/child.h"
#include "util/clock.h"
#include "util/endpoint.h"
#include "util/log_file.h"
#include "util/mem.h"
#include "util/sock.h"
#include "util/wire.h"

#include <errno.h>
#include <signal.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAUSE_MIN_US 200000u /* before the next offer; doubles while stages do not live long */
#define PAUSE_MAX_US 30000000u
#define GOOD_LIFE_US 10000000u

enum { TAG_WORKER = 1 };

struct rank_conf {
	const char *worker, *model;
	int device;
	uint32_t threads;
};

struct rank {
	struct svc *svc;
	struct rank_conf conf;
	struct peer *worker;
	int taken; /* the link to the worker is no offer any more: a new one will be */
	struct svc_timer *pause;
	uint64_t pause_us;
	/* the stage's process; 0: none */
	pid_t pid;
	int fd;                    /* its socket: the process ends when it is closed */
	struct engine_stage *next; /* what to start when it has ended; NULL: nothing */
	struct event *ended;
	uint64_t since_us;
	uint32_t stage, stages;
};

#define TO(field) CONF_TO(struct rank_conf, field)

static const struct conf_key keys[] = {
	{"worker", CONF_STRING, "", 0, 256, "", 0,
     "The worker whose pipeline this is a stage of: NAME@tcp://HOST:PORT, its `listen`, or "
     "ipc://PATH",
     NULL, TO(worker)},
	{"model", CONF_STRING, "", 0, 4000, "", 0,
     "GGUF file or Hugging Face folder on this host, of the same contents; empty: the worker's "
     "path",
     NULL, TO(model)},
	{"device", CONF_INT, "0", 0, 255, "", 0, "number of the (first) device among the backend's",
     NULL, TO(device)},
	{"threads", CONF_INT, "0", 0, 256, "threads", 0,
     "compute threads of all ranks of the stage; 0: one per core", NULL, TO(threads)},
	CONF_END,
};

/* --- offering ------------------------------------------------------------ */

static void offer(struct svc *s, void *arg)
{
	struct rank *r = arg;
	svc_timer_del(&r->pause);
	if (r->taken && peer_is_up(r->worker))
		chan_restart(svc_chan(s), r->worker);
}

static void offer_later(struct rank *r)
{
	int good = clock_us() - r->since_us >= GOOD_LIFE_US;
	r->pause_us = good ? PAUSE_MIN_US : 2 * r->pause_us;
	if (r->pause_us > PAUSE_MAX_US)
		r->pause_us = PAUSE_MAX_US;
	svc_timer_del(&r->pause);
	if (!svc_draining(r->svc))
		r->pause = svc_timer_add(r->svc, r->pause_us, offer, r);
}

static void up(struct svc *s, struct peer *p)
{
	struct rank *r = svc_data(s);
	(void)p;
	r->taken = 0;
	svc_timer_del(&r->pause);
}

static void say_ended(const struct rank *r, int status)
{
	char how[64];
	if (!status) { /* as with every end of a worker */
		log_notice("stage_ended", "stage=%u process=%d how=\"its worker has ended\" lived_us=%llu",
		           r->stage, (int)r->pid, (unsigned long long)(clock_us() - r->since_us));
		return;
	}
	if (WIFSIGNALED(status))
		snprintf(how, sizeof how, "signal %d", WTERMSIG(status));
	else
		snprintf(how, sizeof how, "status %d", WEXITSTATUS(status));
	log_warn("stage_ended", "stage=%u process=%d how=\"%s\" lived_us=%llu", r->stage, (int)r->pid,
	         how, (unsigned long long)(clock_us() - r->since_us));
}

/* --- the stage's process ------------------------------------------------- */

static void begin_next(struct rank *r);

static void on_ended(evutil_socket_t pidfd, short what, void *arg)
{
	struct rank *r = arg;
	int status = 0;
	(void)what;
	if (waitpid(r->pid, &status, WNOHANG) != r->pid)
		return;
	say_ended(r, status);
	event_free(r->ended);
	close((int)pidfd);
	close(r->fd);
	r->pid = 0;
	if (r->next)
		begin_next(r);
	else
		offer_later(r);
}

static int start_stage(struct rank *r, const struct engine_stage *stage, struct err *err)
{
	static char *const argv[] = {(char *)"pdrank", (char *)"stage", NULL};
	int rc = child_start("/proc/self/exe", argv, &r->pid, &r->fd, err);
	if (rc < 0)
		return rc;
	int pidfd = (int)syscall(SYS_pidfd_open, r->pid, 0);
	if (pidfd < 0 || sock_send(r->fd, stage, sizeof *stage, NULL, 0) < 0) {
		int no = errno;
		close(r->fd);
		kill(r->pid, SIGKILL);
		waitpid(r->pid, NULL, 0);
		r->pid = 0;
		if (pidfd >= 0)
			close(pidfd);
		return err_set(err, ERR_IO, "the process cannot be watched, or has ended: %s",
		               strerror(no));
	}
	r->ended = event_new(svc_base(r->svc), pidfd, EV_READ | EV_PERSIST, on_ended, r);
	event_add(r->ended, NULL);
	return 0;
}

static void drop_stage(struct engine_stage **stage)
{
	if (*stage)
		sodium_memzero(*stage, sizeof **stage);
	free(*stage);
	*stage = NULL;
}

static void fill_stage(const struct rank *r, const struct peer *p, const Pds__PipelineTake *m,
                       struct engine_stage *ret)
{
	const char *address = peer_address(p);
	*ret = (struct engine_stage){
		.stage = m->stage,
		.stages = m->stages,
		.port = (uint16_t)m->port,
		.ticket = {.id = m->ticket},
		.device_index = r->conf.device,
		.threads = r->conf.threads,
	};
	memcpy(ret->ticket.secret, m->secret.data, sizeof ret->ticket.secret);
	snprintf(ret->host, sizeof ret->host, "127.0.0.1");
	if (strncmp(address, "ipc:", 4) != 0)
		endpoint_host(address, ret->host, sizeof ret->host);
	snprintf(ret->model_path, sizeof ret->model_path, "%s", r->conf.model);
	snprintf(ret->log_file, sizeof ret->log_file, "%s", log_file_path() ? log_file_path() : "");
}

static void begin_next(struct rank *r)
{
	struct engine_stage *stage = r->next;
	struct err err = {0};
	r->next = NULL;
	r->since_us = clock_us();
	r->stage = stage->stage;
	r->stages = stage->stages;
	if (start_stage(r, stage, &err) < 0) {
		log_error("stage_failed", "stage=%u why=%s", r->stage, log_quote(err.text));
		offer_later(r);
	} else {
		log_notice("stage_started", "stage=%u stages=%u process=%d", r->stage, r->stages,
		           (int)r->pid);
	}
	drop_stage(&stage);
}

/* If a stage is running the worker has lost it: that one ends first. */
static void on_take(struct svc *s, struct peer *p, const struct msg_head *head,
                    const ProtobufCMessage *body)
{
	struct rank *r = svc_data(s);
	(void)head;
	if (svc_draining(s))
		return;
	drop_stage(&r->next);
	r->next = mem_alloc(sizeof *r->next);
	fill_stage(r, p, (const Pds__PipelineTake *)body, r->next);
	r->taken = 1;
	svc_timer_del(&r->pause);
	if (r->pid)
		kill(r->pid, SIGKILL);
	else
		begin_next(r);
}

/* --- hooks --------------------------------------------------------------- */

static int check(struct svc *s, struct err *err)
{
	struct rank_conf c;
	conf_fill(svc_conf(s), keys, &c);
	if (*c.worker && strncmp(c.worker, "ipc://", 6) != 0 && !endpoint_is_remote(c.worker))
		return err_set(err, ERR_INVALID,
		               "worker = \"%s\": allowed are NAME@tcp://HOST:PORT and ipc://PATH",
		               c.worker);
	return svc_check_file("model", c.model, err);
}

static int start(struct svc *s, struct err *err)
{
	struct rank *r = mem_zalloc(sizeof *r);
	int rc = check(s, err);
	r->svc = s;
	r->fd = -1;
	r->pause_us = PAUSE_MIN_US;
	conf_fill(svc_conf(s), keys, &r->conf);
	svc_set_data(s, r);
	if (rc < 0)
		return rc;
	if (!*r->conf.worker)
		return err_set(
			err, ERR_INVALID,
			"no worker: set `worker` to the NAME@tcp://HOST:PORT that a worker listens at");
	r->worker = chan_connect(svc_chan(s), r->conf.worker, NULL, TAG_WORKER);
	return r->worker ? 0 : err_set(err, ERR_IO, "cannot connect to %s", r->conf.worker);
}

static void drain(struct svc *s)
{
	struct rank *r = svc_data(s);
	svc_timer_del(&r->pause);
	drop_stage(&r->next);
}

/* The worker may be ending as well, and needs this stage for its last answers. */
static int idle(struct svc *s)
{
	return !((struct rank *)svc_data(s))->pid;
}

static void stop(struct svc *s)
{
	struct rank *r = svc_data(s);
	svc_timer_del(&r->pause);
	if (r->pid) {
		close((int)event_get_fd(r->ended));
		event_free(r->ended);
		close(r->fd);
		kill(r->pid, SIGKILL);
		waitpid(r->pid, NULL, 0);
	}
	free(r);
}

static void status(struct svc *s, struct buf *out)
{
	const struct rank *r = svc_data(s);
	const char *worker = r->conf.worker;
	char doing[360];
	if (r->pid)
		snprintf(doing, sizeof doing, "stage %u of %u at %s, process %d", r->stage, r->stages,
		         worker, (int)r->pid);
	else
		snprintf(doing, sizeof doing, "%s to %s",
		         !peer_is_up(r->worker) ? "not connected"
		         : r->taken             ? "not offered"
		                                : "offered",
		         worker);
	buf_adds(out, ",\"doing\":");
	buf_add_json(out, doing, strlen(doing));
}

int rank_daemon(int argc, char **argv)
{
	static const struct svc_msg messages[] = {{MSG_PIPELINE_TAKE, on_take, TAG_WORKER}, {0}};
	static const struct svc_hooks hooks = {.program = "pdrank",
	                                       .default_name = "rank",
	                                       .keys = keys,
	                                       .messages = messages,

	                                       .check = check,
	                                       .start = start,
	                                       .drain = drain,
	                                       .idle = idle,
	                                       .stop = stop,
	                                       .up = up,
	                                       .status = status};
	return svc_main(argc, argv, &hooks);
}
