/* svc_post.c - work that other threads post to the loop, and timers.
 *
 * Invariant while the mutex is free: the eventfd is readable if items are waiting. A run takes the
 * items that are there when it begins; items posted by them wait for the loop's next round, so that
 * other events get their turn. */
#include "svc/svc_int.h"
#include "util/check.h"
#include "util/clock.h"
#include "util/mem.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define POSTS_MAX 1000000

void svc_post(struct svc *s, void (*fn)(struct svc *s, void *arg), void *arg)
{
	struct svc_posts *p = &s->posts;
	pthread_mutex_lock(&p->lock);
	if (p->n == p->size) {
		if (p->n >= POSTS_MAX)
			PANIC("%zu posts wait for the event loop: it hangs, or a caller has no bound", p->n);
		p->size = p->size ? p->size * 2 : 64;
		p->items = mem_grow(p->items, p->size, sizeof *p->items);
	}
	int first = p->n == 0;
	p->items[p->n++] = (struct svc_post_item){fn, arg};
	if (first)
		CHECK(eventfd_write(p->fd, 1) == 0);
	pthread_mutex_unlock(&p->lock);
}

void svc_posts_run(struct svc *s)
{
	struct svc_posts *p = &s->posts;
	eventfd_t v;
	pthread_mutex_lock(&p->lock);
	struct svc_post_item *items = p->items;
	size_t n = p->n;
	p->items = NULL;
	p->n = p->size = 0;
	if (n)
		CHECK(eventfd_read(p->fd, &v) == 0);
	pthread_mutex_unlock(&p->lock);
	for (size_t i = 0; i < n; i++)
		items[i].fn(s, items[i].arg);
	free(items);
}

static void on_posts(evutil_socket_t fd, short what, void *arg)
{
	(void)fd;
	(void)what;
	svc_posts_run(arg);
}

int svc_posts_start(struct svc *s, struct err *err)
{
	struct svc_posts *p = &s->posts;
	p->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (p->fd < 0)
		return err_set(err, ERR_IO, "cannot create an eventfd: %s", strerror(errno));
	p->ev = event_new(s->base, p->fd, EV_READ | EV_PERSIST, on_posts, s);
	if (!p->ev || event_add(p->ev, NULL) < 0)
		return err_set(err, ERR_IO, "cannot watch an eventfd");
	return 0;
}

void svc_posts_stop(struct svc *s)
{
	struct svc_posts *p = &s->posts;
	if (p->ev)
		event_free(p->ev);
	if (p->fd >= 0)
		close(p->fd);
	free(p->items);
	pthread_mutex_destroy(&p->lock);
}

struct svc_timer {
	struct svc *svc;
	struct event *ev;
	void (*fn)(struct svc *s, void *arg);
	void *arg;
};

static void timer_fired(evutil_socket_t fd, short what, void *arg)
{
	struct svc_timer *t = arg;
	(void)fd;
	(void)what;
	t->fn(t->svc, t->arg);
}

struct svc_timer *svc_timer_add(struct svc *s, uint64_t interval_us,
                                void (*fn)(struct svc *s, void *arg), void *arg)
{
	CHECK(interval_us > 0);
	struct svc_timer *t = mem_zalloc(sizeof *t);
	struct timeval tv = clock_timeval(interval_us);
	*t = (struct svc_timer){.svc = s, .fn = fn, .arg = arg};
	t->ev = event_new(s->base, -1, EV_PERSIST, timer_fired, t);
	CHECK(t->ev && event_add(t->ev, &tv) == 0);
	return t;
}

void svc_timer_del(struct svc_timer **t)
{
	if (!*t)
		return;
	event_free((*t)->ev);
	free(*t);
	*t = NULL;
}
