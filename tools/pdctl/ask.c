/* ask.c - finds daemons by their sockets and locks, and asks them.
 *
 * A daemon holds a lock on RUNDIR/NAME.lock while it lives; a socket without a lock holder is left
 * over from a killed daemon, a lock file alone from one that has stopped in order. Answers are only
 * printed: a malformed one is reported, nothing more. */
#include "pdctl.h"

#include "msg/chan.h"
#include "util/err.h"
#include "util/mem.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

static int is_alive(const char *rundir, const char *name)
{
	char *path = mem_printf("%s/%s.lock", rundir, name);
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	free(path);
	if (fd < 0)
		return errno != ENOENT;
	int held = flock(fd, LOCK_SH | LOCK_NB) < 0 && errno == EWOULDBLOCK;
	close(fd);
	return held;
}

static int is_router(const char *name)
{
	return strncmp(name, "router", 6) == 0;
}

static int by_name(const void *a, const void *b)
{
	const struct target *x = a, *y = b;
	return is_router(x->name) != is_router(y->name) ? is_router(y->name) - is_router(x->name)
	                                                : strcmp(x->name, y->name);
}

/* The file has what a daemon writes into its lock, "PID EPOCH". */
static int is_daemon_lock(const char *rundir, const char *file)
{
	char *path = mem_printf("%s/%s", rundir, file);
	FILE *f = fopen(path, "re");
	long long pid, epoch;
	int ok = f && fscanf(f, "%lld %lld", &pid, &epoch) == 2;
	if (f)
		fclose(f);
	free(path);
	return ok;
}

/* file is a socket, or a lock whose socket is gone. */
static void add_target(const struct options *o, const char *file, struct target **list, size_t *n)
{
	const char *end = strrchr(file, '.');
	struct target t = {0};
	size_t len = end ? (size_t)(end - file) : 0;
	if (!len || len >= sizeof t.name)
		return;
	memcpy(t.name, file, len);
	snprintf(t.endpoint, sizeof t.endpoint, "ipc://%s/%s.ipc", o->rundir, t.name);
	if (strcmp(end, ".lock") == 0) {
		t.left = access(t.endpoint + strlen("ipc://"), F_OK) != 0 &&
		         is_daemon_lock(o->rundir, file);
		if (!t.left)
			return;
	} else if (strcmp(end, ".ipc") != 0) {
		return;
	}
	t.alive = is_alive(o->rundir, t.name);
	*list = mem_grow(*list, *n + 1, sizeof **list);
	(*list)[(*n)++] = t;
}

static size_t one_by_endpoint(const struct options *o, struct target **ret_list)
{
	struct target *t = mem_zalloc(sizeof *t);
	snprintf(t->endpoint, sizeof t->endpoint, "%s", o->endpoint);
	snprintf(t->name, sizeof t->name, "%.63s", o->daemon ? o->daemon : o->endpoint);
	t->alive = 1;
	*ret_list = t;
	return 1;
}

size_t targets_scan(const struct options *o, struct target **ret_list)
{
	size_t n = 0;
	*ret_list = NULL;
	if (o->endpoint)
		return one_by_endpoint(o, ret_list);
	DIR *d = opendir(o->rundir);
	if (!d)
		return 0;
	for (struct dirent *e; (e = readdir(d));)
		add_target(o, e->d_name, ret_list, &n);
	closedir(d);
	if (n)
		qsort(*ret_list, n, sizeof **ret_list, by_name);
	return n;
}

size_t targets_find(const struct options *o, struct target **ret_list)
{
	size_t all = targets_scan(o, ret_list), n = 0;
	for (size_t i = 0; i < all; i++)
		if (!(*ret_list)[i].left)
			(*ret_list)[n++] = (*ret_list)[i];
	if (n)
		return n;
	free(*ret_list);
	*ret_list = NULL;
	if (access(o->rundir, R_OK | X_OK) != 0)
		fprintf(stderr, "pdctl: cannot read the run directory %s: %s; %s\n", o->rundir,
		        strerror(errno),
		        errno == EACCES ? "use sudo, or join the group that owns it (pdserve), or name "
		                          "another with -r"
		                        : "name another with -r, or start the daemons");
	else
		fprintf(stderr,
		        "pdctl: no daemon runs in %s; name another run directory with -r, or an endpoint "
		        "with -e\n",
		        o->rundir);
	return 0;
}

/* The only one that is named after its kind: router-1. n: there is none, or there are several. */
static size_t only_of_kind(const struct target *list, size_t n, const char *kind)
{
	size_t len = strlen(kind), at = n;
	for (size_t i = 0; i < n; i++) {
		if (strncmp(list[i].name, kind, len) != 0 || list[i].name[len] != '-')
			continue;
		if (at < n)
			return n;
		at = i;
	}
	return at;
}

int target_one(const struct options *o, const char *standard, struct target *ret)
{
	const char *want = o->daemon ? o->daemon : standard;
	struct target *list;
	size_t n = targets_find(o, &list), i = 0;
	if (!n)
		return EXIT_UNREACHABLE;
	while (!o->endpoint && i < n && strcmp(list[i].name, want) != 0)
		i++;
	if (i == n && !o->daemon)
		i = only_of_kind(list, n, standard);
	if (i < n)
		*ret = list[i];
	else
		fprintf(stderr,
		        "pdctl: no daemon named \"%s\" in %s; `pdctl status` lists them, -d names one\n",
		        want, o->rundir);
	free(list);
	return i < n ? EXIT_DONE : EXIT_UNREACHABLE;
}

int ask_text(const struct options *o, const struct target *t, const char *command,
             char *const *args, size_t n_args, char **ret_text)
{
	struct err err = {0};
	*ret_text = NULL;
	if (!t->alive) {
		*ret_text = mem_strdup("its process has ended");
		return EXIT_UNREACHABLE;
	}
	struct keys *keys = NULL;
	if (strncmp(t->endpoint, "ipc://", 6) != 0 &&
	    keys_open(o->keys, o->identity, &keys, &err) < 0) {
		*ret_text = mem_printf("%s%s", err.text,
		                       strstr(err.text, "ROLE") ? " (pdctl's own ROLE is operator)" : "");
		return EXIT_REFUSED;
	}
	int r = chan_ask(t->endpoint, keys, command, args, n_args, o->timeout_us, ret_text, &err);
	keys_close(&keys);
	if (r == 0)
		return EXIT_DONE;
	int answered = *ret_text != NULL, away = r == ERR_TIMEOUT || r == ERR_IO || r == ERR_CLOSED;
	free(*ret_text);
	*ret_text = mem_strdup(err.text[0] ? err.text : err_name(r));
	return away && !answered ? EXIT_UNREACHABLE : EXIT_REFUSED;
}

struct question {
	const struct options *o;
	const struct target *to;
	const char *command;
	char *const *args;
	size_t n_args;
	struct ctl_answer *answer;
	pthread_t thread;
	int started;
};

static void *put_question(void *arg)
{
	struct question *q = arg;
	q->answer->code = ask_text(q->o, q->to, q->command, q->args, q->n_args, &q->answer->text);
	return NULL;
}

void ask_each(const struct options *o, const struct target *list, size_t n, const char *command,
              char *const *args, size_t n_args, struct ctl_answer *ret)
{
	struct question *q = mem_zalloc(n * sizeof *q);
	for (size_t i = 0; i < n; i++) {
		q[i] = (struct question){o, &list[i], command, args, n_args, &ret[i], 0, 0};
		q[i].started = pthread_create(&q[i].thread, NULL, put_question, &q[i]) == 0;
		if (!q[i].started)
			put_question(&q[i]);
	}
	for (size_t i = 0; i < n; i++)
		if (q[i].started)
			pthread_join(q[i].thread, NULL);
	free(q);
}

int answer_json(const struct target *t, const char *command, struct ctl_answer *a,
                json_t **ret_json)
{
	json_error_t why;
	*ret_json = NULL;
	if (a->code != EXIT_DONE) {
		fprintf(stderr, "pdctl: %s: %s\n", t->name, a->text);
	} else if (!(*ret_json = json_loads(a->text, JSON_DECODE_ANY, &why))) {
		fprintf(stderr, "pdctl: %s: the answer to %s is not JSON: %s at byte %d\n", t->name,
		        command, why.text, why.position);
		a->code = EXIT_REFUSED;
	}
	free(a->text);
	a->text = NULL;
	return a->code;
}

int ask_json(const struct options *o, const struct target *t, const char *command,
             char *const *args, size_t n_args, json_t **ret_json)
{
	struct ctl_answer a;
	a.code = ask_text(o, t, command, args, n_args, &a.text);
	return answer_json(t, command, &a, ret_json);
}
