/* clock.h - time in microseconds. Deadlines are monotonic and never leave the host: messages
 * carry the time that remains. */
#ifndef UTIL_CLOCK_H
#define UTIL_CLOCK_H

#include <stdint.h>
#include <sys/time.h>
#include <time.h>

static inline uint64_t clock_us(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000u + (uint64_t)t.tv_nsec / 1000u;
}

static inline uint64_t clock_ns(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static inline uint64_t clock_unix_us(void)
{
	struct timespec t;
	clock_gettime(CLOCK_REALTIME, &t);
	return (uint64_t)t.tv_sec * 1000000u + (uint64_t)t.tv_nsec / 1000u;
}

/* Time until a monotonic deadline, 0 if it has passed. */
static inline uint64_t clock_left_us(uint64_t deadline_us)
{
	uint64_t now = clock_us();
	return deadline_us > now ? deadline_us - now : 0;
}

/* For libevent's timers. */
static inline struct timeval clock_timeval(uint64_t us)
{
	return (struct timeval){(time_t)(us / 1000000u), (suseconds_t)(us % 1000000u)};
}

#endif
