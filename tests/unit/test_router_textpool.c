/* test_router_textpool.c - text threads: whose job is next, how many threads one caller has while
 * others wait, and what the queue takes. Jobs are made to wait for the test, not for a clock. */
/* run: threads */
#include "daemons/router/request/textpool.h"
#include "util/clock.h"
#include "util/err.h"

#include <check.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define JOBS 256

struct job {
	struct text_job job; /* first */
	char name;
};

static struct {
	pthread_mutex_t lock;
	char order[JOBS + 1]; /* in which jobs began */
	size_t n;
	int at_work[128], most[128]; /* of each name */
	sem_t go;                    /* a job ends */
	sem_t begun;
} T;
static struct job jobs[JOBS];
static size_t n_jobs;
static atomic_size_t posted;

static void work(struct text_job *j)
{
	unsigned char name = (unsigned char)((struct job *)j)->name;
	pthread_mutex_lock(&T.lock);
	T.order[T.n++] = (char)name;
	T.at_work[name]++;
	T.most[name] = T.at_work[name] > T.most[name] ? T.at_work[name] : T.most[name];
	pthread_mutex_unlock(&T.lock);
	sem_post(&T.begun);
	sem_wait(&T.go);
	pthread_mutex_lock(&T.lock);
	T.at_work[name]--;
	pthread_mutex_unlock(&T.lock);
}

static void post(void *arg, struct text_job *j)
{
	(void)arg;
	(void)j;
	atomic_fetch_add(&posted, 1);
}

static struct text_pool *begin(unsigned threads, size_t bound)
{
	memset(&T, 0, sizeof T);
	pthread_mutex_init(&T.lock, NULL);
	sem_init(&T.go, 0, 0);
	sem_init(&T.begun, 0, 0);
	n_jobs = 0;
	atomic_store(&posted, 0);
	return text_pool_new(threads, bound, post, NULL);
}

static int put(struct text_pool *p, struct text_caller *c, char name, size_t bytes)
{
	struct job *j = &jobs[n_jobs++];
	ck_assert_uint_le(n_jobs, JOBS);
	*j = (struct job){.job = {.work = work}, .name = name};
	return text_pool_put(p, c, &j->job, bytes);
}

static void wait_begun(int n)
{
	for (; n; n--)
		sem_wait(&T.begun);
}

static void end(struct text_pool *p)
{
	for (size_t i = 0; i < n_jobs; i++)
		sem_post(&T.go);
	text_pool_destroy(&p);
}

/* One at a time, while the only thread is held up: b's is next after at most one of a's, and by
 * bytes. */
TEST(a_neighbour_waits_for_one_job_of_a_greedy_caller)
{
	struct text_caller a, b;
	struct text_pool *p = begin(1, 1024);
	text_caller_init(&a);
	text_caller_init(&b);
	ck_assert_int_eq(put(p, &a, 'a', 600000), 0);
	wait_begun(1);
	for (int i = 0; i < 48; i++)
		ck_assert_int_eq(put(p, &a, 'a', 600000), 0);
	for (int i = 0; i < 20; i++)
		ck_assert_int_eq(put(p, &b, 'b', 20000), 0);
	for (int i = 0; i < 21; i++) {
		sem_post(&T.go);
		wait_begun(1);
	}
	pthread_mutex_lock(&T.lock);
	ck_assert_str_eq(T.order, "abbbbbbbbbbbbbbbbbbbba");
	pthread_mutex_unlock(&T.lock);
	end(p);
}

/* Few bytes that turn out to be many, or to be a form to compile: the caller waits for its next
 * turn as long as if they had been many from the start. */
TEST(what_a_job_took_beyond_its_bytes_counts)
{
	struct text_caller a, b;
	struct text_pool *p = begin(1, 1024);
	text_caller_init(&a);
	text_caller_init(&b);
	for (int i = 0; i < 8; i++) {
		put(p, &a, 'a', 0);
		jobs[n_jobs - 1].job.more = 99999;
	}
	wait_begun(1);
	for (int i = 0; i < 20; i++)
		put(p, &b, 'b', 19999);
	for (int i = 0; i < 13; i++) {
		sem_post(&T.go);
		wait_begun(1);
	}
	pthread_mutex_lock(&T.lock);
	ck_assert_str_eq(T.order, "abbbbbabbbbbab");
	pthread_mutex_unlock(&T.lock);
	end(p);
}

/* Small jobs that take long: their bytes do not say so, but half of the threads stay for others. */
TEST_LOOP(half_of_the_threads_while_others_wait, 0, 3)
{
	static const unsigned threads[] = {2, 4, 5};
	struct text_caller a, b, first;
	struct text_pool *p = begin(threads[_i], 1024);
	unsigned share = threads[_i] / 2;
	text_caller_init(&a);
	text_caller_init(&b);
	text_caller_init(&first);
	for (unsigned i = 0; i < threads[_i]; i++)
		put(p, &first, 'f', 1);
	wait_begun((int)threads[_i]);
	ck_assert_int_eq(T.most['f'], (int)threads[_i]); /* alone it has them all */
	for (int i = 0; i < 40; i++)
		put(p, &a, 'a', 0);
	for (int i = 0; i < 40; i++)
		put(p, &b, 'b', 1000000);
	for (unsigned i = 0; i < 20; i++) {
		/* the thread that has just begun is to wait behind the others, or it would end all jobs
		 * and leave the others with those that they had first */
		usleep(5000);
		sem_post(&T.go);
		wait_begun(1);
	}
	pthread_mutex_lock(&T.lock);
	ck_assert_int_eq(T.at_work['f'], 0);
	ck_assert_int_le(T.at_work['a'], (int)(threads[_i] - share));
	ck_assert_int_ge(T.at_work['b'], (int)share);
	pthread_mutex_unlock(&T.lock);
	end(p);
}

/* Its share of the queue is used up before the queue is: others still find room. */
TEST(a_greedy_caller_leaves_room_in_the_queue)
{
	struct text_caller a, b;
	struct text_pool *p = begin(1, 64);
	int n = 0;
	text_caller_init(&a);
	text_caller_init(&b);
	ck_assert_int_eq(put(p, &b, 'b', 1), 0);
	wait_begun(1);
	while (put(p, &a, 'a', 1) == 0)
		n++;
	ck_assert_int_ge(n, 56);
	ck_assert_int_lt(n, 64);
	ck_assert_int_eq(put(p, &b, 'b', 1), 0);
	ck_assert_int_eq(put(p, &a, 'a', 1), ERR_FULL);
	n_jobs = 64;
	end(p);
}

/* Those that nobody wants, and those that wait when the pool ends, are given back without work. */
TEST(all_jobs_are_given_back)
{
	struct text_caller a;
	struct text_pool *p = begin(2, 1024);
	text_caller_init(&a);
	/* the two threads are held up first, or a job could begin before it is skipped */
	for (int i = 0; i < 2; i++)
		ck_assert_int_eq(put(p, &a, 'a', 0), 0);
	wait_begun(2);
	for (int i = 2; i < 100; i++) {
		ck_assert_int_eq(put(p, &a, 'a', (size_t)i), 0);
		if (i % 2)
			text_job_skip(&jobs[i].job);
	}
	end(p);
	ck_assert_uint_eq(atomic_load(&posted), 100);
	ck_assert_uint_le(T.n, 51); /* two, and the even ones of 98 */
	ck_assert_uint_eq(a.at_work, 0);
	ck_assert_uint_eq(a.turns.n, 0);
}
