/* compiler.c - see compiler.h. */
#include "compiler.h"
#include "constraint.h"
#include "util/mem.h"

#include <pthread.h>
#include <stdlib.h>

struct compiler {
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t wake, empty;
	struct list tasks;
	int busy, stop;
};

static struct compile_task *next(struct compiler *c)
{
	struct compile_task *t = NULL;
	pthread_mutex_lock(&c->lock);
	c->busy = 0;
	if (list_empty(&c->tasks))
		pthread_cond_broadcast(&c->empty);
	while (list_empty(&c->tasks) && !c->stop)
		pthread_cond_wait(&c->wake, &c->lock);
	if (!list_empty(&c->tasks)) {
		t = list_entry(c->tasks.next, struct compile_task, node);
		list_remove(&t->node);
		c->busy = 1;
	}
	pthread_mutex_unlock(&c->lock);
	return t;
}

static void *compiler_main(void *arg)
{
	struct compiler *c = arg;
	struct compile_task *t;
	pthread_setname_np(pthread_self(), "compiler");
	while ((t = next(c))) {
		t->code = *t->cancelled ? ERR_CANCELLED : constraint_compile(t->req, &t->err);
		t->done(t);
	}
	return NULL;
}

int compiler_new(struct compiler **ret_c, struct err *err)
{
	struct compiler *c = mem_zalloc(sizeof *c);
	pthread_mutex_init(&c->lock, NULL);
	pthread_cond_init(&c->wake, NULL);
	pthread_cond_init(&c->empty, NULL);
	list_init(&c->tasks);
	if (pthread_create(&c->thread, NULL, compiler_main, c) != 0) {
		free(c);
		return err_set(err, ERR_NOMEM, "cannot start the thread that compiles constraints");
	}
	*ret_c = c;
	return 0;
}

void compiler_destroy(struct compiler **cp)
{
	struct compiler *c = *cp;
	if (!c)
		return;
	pthread_mutex_lock(&c->lock);
	c->stop = 1;
	pthread_cond_signal(&c->wake);
	pthread_mutex_unlock(&c->lock);
	pthread_join(c->thread, NULL);
	pthread_mutex_destroy(&c->lock);
	pthread_cond_destroy(&c->wake);
	pthread_cond_destroy(&c->empty);
	free(c);
	*cp = NULL;
}

void compiler_put(struct compiler *c, struct compile_task *t, int first)
{
	pthread_mutex_lock(&c->lock);
	if (first)
		list_push_front(&c->tasks, &t->node);
	else
		list_push_back(&c->tasks, &t->node);
	pthread_cond_signal(&c->wake);
	pthread_mutex_unlock(&c->lock);
}

void compiler_wait(struct compiler *c)
{
	pthread_mutex_lock(&c->lock);
	while (c->busy || !list_empty(&c->tasks))
		pthread_cond_wait(&c->empty, &c->lock);
	pthread_mutex_unlock(&c->lock);
}
