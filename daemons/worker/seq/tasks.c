/* tasks.c - see tasks.h. */
#include "tasks.h"
#include "util/mem.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

struct tasks {
	pthread_t thread;
	char name[16];
	int nice;
	pthread_mutex_t lock;
	pthread_cond_t wake, idle;   /* idle: `now` or the list has changed */
	struct list tasks;           /* by round, and by arrival within a round */
	uint64_t round;              /* of the task that was taken last */
	struct constraint_task *now; /* NULL: none */
	int stop;
};

static struct constraint_task *next(struct tasks *c)
{
	struct constraint_task *t = NULL;
	pthread_mutex_lock(&c->lock);
	c->now = NULL;
	pthread_cond_broadcast(&c->idle);
	while (list_empty(&c->tasks) && !c->stop)
		pthread_cond_wait(&c->wake, &c->lock);
	if (!list_empty(&c->tasks)) {
		t = list_entry(c->tasks.next, struct constraint_task, node);
		list_remove(&t->node);
		c->round = t->round;
		c->now = t;
	}
	pthread_mutex_unlock(&c->lock);
	return t;
}

static void *tasks_main(void *arg)
{
	struct tasks *c = arg;
	struct constraint_task *t;
	pthread_setname_np(pthread_self(), c->name);
	if (c->nice)
		setpriority(PRIO_PROCESS, (id_t)gettid(), c->nice);
	while ((t = next(c))) {
		int skip = t->cancelled && *t->cancelled;
		t->code = skip ? ERR_CANCELLED : t->work(t->req, &t->err);
		t->done(t);
	}
	return NULL;
}

int tasks_new(struct tasks **ret_c, const char *name, int nice, struct err *err)
{
	struct tasks *c = mem_zalloc(sizeof *c);
	pthread_mutex_init(&c->lock, NULL);
	pthread_cond_init(&c->wake, NULL);
	pthread_cond_init(&c->idle, NULL);
	list_init(&c->tasks);
	snprintf(c->name, sizeof c->name, "%s", name);
	c->nice = nice;
	if (pthread_create(&c->thread, NULL, tasks_main, c) != 0) {
		free(c);
		return err_set(err, ERR_NOMEM, "cannot start the thread \"%s\" for constraints", name);
	}
	*ret_c = c;
	return 0;
}

void tasks_destroy(struct tasks **cp)
{
	struct tasks *c = *cp;
	if (!c)
		return;
	pthread_mutex_lock(&c->lock);
	c->stop = 1;
	pthread_cond_signal(&c->wake);
	pthread_mutex_unlock(&c->lock);
	pthread_join(c->thread, NULL);
	pthread_mutex_destroy(&c->lock);
	pthread_cond_destroy(&c->wake);
	pthread_cond_destroy(&c->idle);
	free(c);
	*cp = NULL;
}

void tasks_put(struct tasks *c, struct constraint_task *t, int first)
{
	pthread_mutex_lock(&c->lock);
	struct list *at = c->tasks.prev;
	/* the round that is being served may have served this group already */
	t->round = c->round + !first;
	list_each(it, &c->tasks) {
		const struct constraint_task *other = list_entry(it, struct constraint_task, node);
		if (other->group == t->group && !first)
			t->round = other->round + 1;
	}
	while (at != &c->tasks &&
	       (first || list_entry(at, struct constraint_task, node)->round > t->round))
		at = at->prev;
	list_push_front(at, &t->node); /* after `at` */
	pthread_cond_signal(&c->wake);
	pthread_mutex_unlock(&c->lock);
}

int tasks_take_back(struct tasks *c, struct constraint_task *t)
{
	pthread_mutex_lock(&c->lock);
	int waits = 0;
	list_each(it, &c->tasks)
		waits |= it == &t->node;
	if (waits) {
		list_remove(&t->node);
		pthread_cond_broadcast(&c->idle);
	}
	pthread_mutex_unlock(&c->lock);
	return waits;
}

void tasks_wait(struct tasks *c)
{
	pthread_mutex_lock(&c->lock);
	while (c->now || !list_empty(&c->tasks))
		pthread_cond_wait(&c->idle, &c->lock);
	pthread_mutex_unlock(&c->lock);
}

void tasks_wait_for(struct tasks *c, const struct constraint_task *t)
{
	pthread_mutex_lock(&c->lock);
	while (c->now == t)
		pthread_cond_wait(&c->idle, &c->lock);
	pthread_mutex_unlock(&c->lock);
}
