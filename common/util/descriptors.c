/* descriptors.c - see descriptors.h.
 *
 * Any thread may call accept4. While refuse_one uses the reserve, it is LOST: another thread may
 * take the descriptor that was freed, and then refuse_one cannot reopen the reserve. So a thread
 * that accepts a connection while the reserve is LOST reopens the reserve first, and keeps the
 * connection only if there are descriptors for both. */
#include "util/descriptors.h"
#include "util/clock.h"
#include "util/log.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#define LOG_EVERY_US 1000000u
#define BACK_OFF_MS 1   /* a connection waits but there is no descriptor to accept and close it */
#define NOT_WANTED (-2) /* value of `reserve` before descriptors_init */
#define LOST (-1)       /* value of `reserve`: no descriptor could be opened for it */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static _Atomic int reserve = NOT_WANTED; /* written with the lock held */
static uint64_t refused, logged_us;
static unsigned needed;
static _Atomic uint32_t guarded_port; /* 0: none */
static _Atomic unsigned guarded_most; /* its connections have descriptors below this number */

static int take_reserve(void)
{
	int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
	return fd >= 0 ? fd : LOST;
}

int descriptors_init(unsigned need, struct err *err)
{
	struct rlimit l;
	if (getrlimit(RLIMIT_NOFILE, &l) < 0)
		return err_set(err, ERR_IO, "cannot read the limit on file descriptors: %s",
		               strerror(errno));
	l.rlim_cur = l.rlim_max;
	setrlimit(RLIMIT_NOFILE, &l);
	if (descriptors_limit() < need)
		return err_set(err, ERR_FULL,
		               "needs %u file descriptors, the system allows %u: raise the limit (ulimit "
		               "-Hn, LimitNOFILE= of the unit)",
		               need, descriptors_limit());
	pthread_mutex_lock(&lock);
	needed = need;
	if (reserve < 0)
		reserve = take_reserve();
	pthread_mutex_unlock(&lock);
	return 0;
}

void descriptors_guard_port(uint16_t port)
{
	unsigned limit = descriptors_limit(), most = needed + DESCRIPTORS_STRANGERS;
	unsigned left = limit > 2 * DESCRIPTORS_KEPT ? limit - DESCRIPTORS_KEPT : limit / 2;
	guarded_most = most < left ? most : left;
	guarded_port = port;
}

unsigned descriptors_limit(void)
{
	struct rlimit l;
	if (getrlimit(RLIMIT_NOFILE, &l) < 0)
		return 0;
	return l.rlim_cur == RLIM_INFINITY || l.rlim_cur > INT32_MAX ? INT32_MAX : (unsigned)l.rlim_cur;
}

uint64_t descriptors_refused(void)
{
	pthread_mutex_lock(&lock);
	uint64_t n = refused;
	pthread_mutex_unlock(&lock);
	return n;
}

static void log_exhausted(uint64_t n)
{
	log_error(
		"descriptors_exhausted",
		"limit=%u refused_connections=%llu remedy=\"raise ulimit -Hn, LimitNOFILE= of the unit\"",
		descriptors_limit(), (unsigned long long)n);
}

/* Accepts and closes one waiting connection, if any. Returns the errno value for accept4. */
static int refuse_one(int listener)
{
	struct pollfd p = {.fd = listener, .events = POLLIN};
	int code = EAGAIN, waits, say;
	pthread_mutex_lock(&lock);
	int held = reserve;
	reserve = LOST; /* before close: from then on another thread may take the descriptor */
	if (held >= 0)
		close(held);
	if ((waits = poll(&p, 1, 0) > 0)) {
		int fd = (int)syscall(SYS_accept4, listener, NULL, NULL, SOCK_CLOEXEC);
		if (fd >= 0) {
			close(fd);
			refused++;
			code = ECONNABORTED;
		}
	}
	reserve = take_reserve();
	uint64_t n = refused;
	if ((say = waits && (!logged_us || clock_us() - logged_us > LOG_EVERY_US)))
		logged_us = clock_us();
	pthread_mutex_unlock(&lock);
	if (say)
		log_exhausted(n);
	if (waits && code == EAGAIN)
		poll(NULL, 0, BACK_OFF_MS);
	return code;
}

/* The system gives out the lowest free number, so a descriptor's number says how many are in
 * use. */
static int is_too_many(int fd)
{
	struct sockaddr_storage a;
	socklen_t len = sizeof a;
	if (!guarded_port || (unsigned)fd < guarded_most ||
	    getsockname(fd, (struct sockaddr *)&a, &len) < 0)
		return 0;
	if (a.ss_family == AF_INET)
		return ntohs(((struct sockaddr_in *)&a)->sin_port) == guarded_port;
	return a.ss_family == AF_INET6 && ntohs(((struct sockaddr_in6 *)&a)->sin6_port) == guarded_port;
}

static int turn_away(int fd)
{
	close(fd);
	pthread_mutex_lock(&lock);
	uint64_t n = ++refused, now = clock_us();
	int say = !logged_us || now - logged_us > LOG_EVERY_US;
	if (say)
		logged_us = now;
	pthread_mutex_unlock(&lock);
	if (say)
		log_warn("connections_refused", "port=%u open_descriptors=%u refused_connections=%llu",
		         (unsigned)guarded_port, (unsigned)guarded_most, (unsigned long long)n);
	return -1;
}

/* fd was accepted while the reserve was LOST. Returns fd, or -1 if it was closed to reopen the
 * reserve. */
static int reopen_reserve(int fd)
{
	pthread_mutex_lock(&lock);
	if (reserve == LOST)
		reserve = take_reserve();
	if (reserve == LOST) {
		close(fd);
		fd = -1;
		refused++;
		reserve = take_reserve();
	}
	pthread_mutex_unlock(&lock);
	return fd;
}

/* Replaces libc's accept4 for the whole process. */
int accept4(int fd, struct sockaddr *address, socklen_t *len, int flags)
{
	int r = (int)syscall(SYS_accept4, fd, address, len, flags);
	if (r < 0 && (errno == EMFILE || errno == ENFILE))
		errno = refuse_one(fd);
	else if (r >= 0 && reserve == LOST && (r = reopen_reserve(r)) < 0)
		errno = ECONNABORTED;
	if (r >= 0 && is_too_many(r)) {
		r = turn_away(r);
		errno = ECONNABORTED;
	}
	return r;
}
