/* watch.c - asks every daemon once an interval, each in a thread of its own.
 *
 * The threads run until the process ends: one may be waiting for a daemon that hangs. Daemons that
 * have ended are still looked at, since they may come back under their name. */
#include "watch.h"

#include "util/clock.h"
#include "util/mem.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

struct watcher {
	const struct options *o;
	uint64_t interval_us;
	pthread_mutex_t lock;
	pthread_cond_t news;
	struct watched **list;
	size_t n;
};

struct asker {
	struct watcher *w;
	struct watched *d;
};

static void sample_fini(struct sample *s)
{
	json_decref(s->status);
	json_decref(s->workers);
	free(s->metrics);
	*s = (struct sample){0};
}

static json_t *ask_quietly(const struct options *o, const struct target *t, const char *command,
                           int *ret_code)
{
	char *text;
	*ret_code = ask_text(o, t, command, NULL, 0, &text);
	json_t *j = *ret_code == EXIT_DONE ? json_loads(text, JSON_DECODE_ANY, NULL) : NULL;
	free(text);
	return j;
}

/* Returns an exit code. */
static int take_sample(const struct options *o, const struct target *t, struct sample *s)
{
	int code, ignored;
	*s = (struct sample){.status = ask_quietly(o, t, "status", &code)};
	const char *program = json_string_value(json_object_get(s->status, "program"));
	if (!program)
		return code ? code : EXIT_REFUSED;
	int router = strcmp(program, "pdrouterd") == 0;
	if (router)
		s->workers = ask_quietly(o, t, "workers", &ignored);
	if ((router || strcmp(program, "pdmessagerd") == 0) &&
	    ask_text(o, t, "metrics", NULL, 0, &s->metrics) != EXIT_DONE) {
		free(s->metrics);
		s->metrics = NULL;
	}
	s->at_us = clock_us();
	return code;
}

static void keep_sample(struct watched *d, struct sample *s, int code)
{
	d->code = code;
	d->rounds++;
	if (!s->at_us) {
		sample_fini(s);
		return;
	}
	sample_fini(&d->before);
	d->before = d->now;
	d->now = *s;
}

static void *ask_always(void *arg)
{
	struct asker a = *(struct asker *)arg;
	free(arg);
	for (;;) {
		uint64_t due = clock_us() + a.w->interval_us;
		struct sample s = {0};
		pthread_mutex_lock(&a.w->lock);
		struct target at = a.d->at;
		pthread_mutex_unlock(&a.w->lock);
		int code = at.alive && !at.left ? take_sample(a.w->o, &at, &s) : EXIT_UNREACHABLE;
		pthread_mutex_lock(&a.w->lock);
		keep_sample(a.d, &s, code);
		pthread_cond_broadcast(&a.w->news);
		pthread_mutex_unlock(&a.w->lock);
		struct timespec t = {(time_t)(clock_left_us(due) / 1000000u),
		                     (long)(clock_left_us(due) % 1000000u) * 1000};
		nanosleep(&t, NULL);
	}
	return NULL;
}

struct watcher *watch_new(const struct options *o, uint64_t interval_us)
{
	pthread_condattr_t attr;
	struct watcher *w = mem_zalloc(sizeof *w);
	w->o = o;
	w->interval_us = interval_us;
	pthread_mutex_init(&w->lock, NULL);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&w->news, &attr);
	pthread_condattr_destroy(&attr);
	return w;
}

static struct watched *known(const struct watcher *w, const char *name)
{
	for (size_t i = 0; i < w->n; i++)
		if (strcmp(w->list[i]->at.name, name) == 0)
			return w->list[i];
	return NULL;
}

static int by_name(const void *a, const void *b)
{
	const struct watched *x = *(struct watched *const *)a, *y = *(struct watched *const *)b;
	return strverscmp(x->at.name, y->at.name);
}

static void start(struct watcher *w, const struct target *t)
{
	pthread_t thread;
	struct asker *a = mem_zalloc(sizeof *a);
	struct watched *d = mem_zalloc(sizeof *d);
	d->at = *t;
	d->first_us = clock_us();
	*a = (struct asker){w, d};
	w->list = mem_grow(w->list, w->n + 1, sizeof *w->list);
	w->list[w->n++] = d;
	if (pthread_create(&thread, NULL, ask_always, a) != 0) {
		free(a);
		d->code = EXIT_REFUSED;
		return;
	}
	pthread_detach(thread);
}

size_t watch_find(struct watcher *w)
{
	struct target *found;
	size_t n = targets_scan(w->o, &found);
	pthread_mutex_lock(&w->lock);
	for (size_t i = 0; i < w->n; i++) {
		w->list[i]->at.alive = 0; /* unless it is found */
		w->list[i]->at.left = 1;
	}
	for (size_t i = 0; i < n; i++) {
		struct watched *d = known(w, found[i].name);
		if (w->o->daemon && strcmp(w->o->daemon, found[i].name) != 0)
			continue;
		if (d)
			d->at = found[i];
		else
			start(w, &found[i]);
	}
	if (w->n)
		qsort(w->list, w->n, sizeof *w->list, by_name);
	n = w->n;
	pthread_mutex_unlock(&w->lock);
	free(found);
	return n;
}

static int all_asked(const struct watcher *w, unsigned rounds)
{
	for (size_t i = 0; i < w->n; i++)
		if (w->list[i]->rounds - w->list[i]->waited < rounds)
			return 0;
	return 1;
}

int watch_wait(struct watcher *w, unsigned rounds, uint64_t timeout_us)
{
	uint64_t end = clock_us() + timeout_us;
	struct timespec t = {(time_t)(end / 1000000u), (long)(end % 1000000u) * 1000};
	int late = 0;
	pthread_mutex_lock(&w->lock);
	for (size_t i = 0; i < w->n; i++)
		w->list[i]->waited = w->list[i]->rounds;
	while (!all_asked(w, rounds) && !late)
		late = pthread_cond_timedwait(&w->news, &w->lock, &t) != 0;
	pthread_mutex_unlock(&w->lock);
	return !late;
}

struct watched *const *watch_lock(struct watcher *w, size_t *ret_n)
{
	pthread_mutex_lock(&w->lock);
	*ret_n = w->n;
	return w->list;
}

void watch_unlock(struct watcher *w)
{
	pthread_mutex_unlock(&w->lock);
}
