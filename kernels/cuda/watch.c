/* watch.c - reports progress without host callbacks in a stream: a thread polls a pinned word every
 * WATCH_NS while runs that advance it are in progress, and sleeps otherwise. watch_forget cancels
 * runs that never advance (a broken device). */
#include "kernels/cuda/backend.h"

#include <stdbool.h>
#include <stdlib.h>
#include <time.h>

enum { WATCH_NS = 20000 };

struct cuda_watch {
	volatile uint64_t *pulse;
	void (*progressed)(void *arg);
	void *arg;
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t wake;
	uint64_t expected; /* value of *pulse; protected by lock, like: */
	bool ending;
};

/* Waits until growth beyond `seen` is expected; false: the watch ends. */
static bool watch_wait(struct cuda_watch *w, uint64_t seen)
{
	pthread_mutex_lock(&w->lock);
	while (!w->ending && w->expected <= seen)
		pthread_cond_wait(&w->wake, &w->lock);
	bool going = !w->ending;
	pthread_mutex_unlock(&w->lock);
	return going;
}

static void *watch_run(void *arg)
{
	struct cuda_watch *w = arg;
	uint64_t seen = 0;
	while (watch_wait(w, seen)) {
		uint64_t now = __atomic_load_n(w->pulse, __ATOMIC_ACQUIRE);
		if (now != seen) {
			seen = now;
			w->progressed(w->arg);
		} else
			nanosleep(&(struct timespec){.tv_nsec = WATCH_NS}, NULL);
	}
	return NULL;
}

int watch_new(volatile uint64_t *pulse, void (*progressed)(void *arg), void *arg,
              struct cuda_watch **ret_w)
{
	struct cuda_watch *w = calloc(1, sizeof *w);
	if (!w)
		return -1;
	*w = (struct cuda_watch){.pulse = pulse, .progressed = progressed, .arg = arg};
	pthread_mutex_init(&w->lock, NULL);
	pthread_cond_init(&w->wake, NULL);
	if (pthread_create(&w->thread, NULL, watch_run, w)) {
		pthread_cond_destroy(&w->wake);
		pthread_mutex_destroy(&w->lock);
		free(w);
		return -1;
	}
	*ret_w = w;
	return 0;
}

void watch_expect(struct cuda_watch *w, uint64_t growth)
{
	pthread_mutex_lock(&w->lock);
	w->expected += growth;
	pthread_cond_signal(&w->wake);
	pthread_mutex_unlock(&w->lock);
}

void watch_forget(struct cuda_watch *w)
{
	pthread_mutex_lock(&w->lock);
	w->expected = 0;
	pthread_mutex_unlock(&w->lock);
}

void watch_destroy(struct cuda_watch **wp)
{
	struct cuda_watch *w = *wp;
	if (!w)
		return;
	pthread_mutex_lock(&w->lock);
	w->ending = true;
	pthread_cond_signal(&w->wake);
	pthread_mutex_unlock(&w->lock);
	pthread_join(w->thread, NULL);
	pthread_cond_destroy(&w->wake);
	pthread_mutex_destroy(&w->lock);
	free(w);
	*wp = NULL;
}
