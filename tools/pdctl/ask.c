/* ask.c - finds daemons by their sockets and asks them.
 *
 * A daemon holds a lock on RUNDIR/NAME.lock while it lives; a socket without a lock holder is left
 * over from a killed daemon. Answers are only printed: a malformed one is reported, nothing
 * more. */
#include "pdctl.h"

#include "msg/chan.h"
#include "util/err.h"
#include "util/mem.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
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

static void add_target(const struct options *o, const char *file, struct target **list, size_t *n)
{
	size_t len = strlen(file);
	struct target t = {0};
	if (len < 5 || len - 4 >= sizeof t.name || strcmp(file + len - 4, ".ipc") != 0)
		return;
	memcpy(t.name, file, len - 4);
	snprintf(t.endpoint, sizeof t.endpoint, "ipc://%s/%s", o->rundir, file);
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

size_t targets_find(const struct options *o, struct target **ret_list)
{
	size_t n = 0;
	*ret_list = NULL;
	if (o->endpoint)
		return one_by_endpoint(o, ret_list);
	DIR *d = opendir(o->rundir);
	if (!d) {
		fprintf(stderr,
		        "pdctl: cannot read the run directory %s: %s; name another with -r, or start the "
		        "daemons\n",
		        o->rundir, strerror(errno));
		return 0;
	}
	for (struct dirent *e; (e = readdir(d));)
		add_target(o, e->d_name, ret_list, &n);
	closedir(d);
	if (n)
		qsort(*ret_list, n, sizeof **ret_list, by_name);
	else
		fprintf(stderr,
		        "pdctl: no daemon runs in %s; name another run directory with -r, or an endpoint "
		        "with -e\n",
		        o->rundir);
	return n;
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
		*ret_text = mem_strdup(err.text);
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

int ask_json(const struct options *o, const struct target *t, const char *command,
             char *const *args, size_t n_args, json_t **ret_json)
{
	char *text;
	json_error_t why;
	*ret_json = NULL;
	int r = ask_text(o, t, command, args, n_args, &text);
	if (r != EXIT_DONE) {
		fprintf(stderr, "pdctl: %s: %s\n", t->name, text);
	} else if (!(*ret_json = json_loads(text, JSON_DECODE_ANY, &why))) {
		fprintf(stderr, "pdctl: %s: the answer to %s is not JSON: %s at byte %d\n", t->name,
		        command, why.text, why.position);
		r = EXIT_REFUSED;
	}
	free(text);
	return r;
}
