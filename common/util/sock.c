/* sock.c - see sock.h.
 *
 * Invariants: the socket file of a live owner is never unlinked; every descriptor that we receive
 * is returned or closed. Peers are of our user or group, but nothing they send (sizes, descriptors)
 * has any effect beyond failing that one message. */
#include "util/sock.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77 /* Linux 6.5; older C libraries do not name it */
#endif

static int sock_address(const char *path, struct sockaddr_un *ret, struct err *err)
{
	size_t n = strlen(path), limit = sizeof ret->sun_path - 1;
	if (n == 0 || n > limit)
		return err_set(err, ERR_INVALID,
		               "socket path \"%s\" has %zu bytes, but the limit is 1 to %zu: use a shorter "
		               "run directory",
		               path, n, limit);
	memset(ret, 0, sizeof *ret);
	ret->sun_family = AF_UNIX;
	memcpy(ret->sun_path, path, n + 1);
	return 0;
}

static int sock_new(int flags, struct err *err)
{
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | flags, 0);
	return fd >= 0 ? fd : err_set(err, ERR_IO, "cannot create a local socket: %s", strerror(errno));
}

/* Removes a socket file whose owner is dead. The caller holds the path's lock. */
static int clear_dead(const struct sockaddr_un *a, struct err *err)
{
	struct stat st;
	if (lstat(a->sun_path, &st) < 0)
		return errno == ENOENT ? 0
		                       : err_set(err, ERR_IO, "cannot look at socket path %s: %s",
		                                 a->sun_path, strerror(errno));
	if (!S_ISSOCK(st.st_mode))
		return err_set(err, ERR_EXISTS,
		               "%s exists and is not a socket: remove it or choose another path",
		               a->sun_path);
	int fd = sock_new(SOCK_NONBLOCK, err);
	if (fd < 0)
		return fd;
	int alive = connect(fd, (const struct sockaddr *)a, sizeof *a) == 0 ||
	            (errno != ECONNREFUSED && errno != ENOENT);
	close(fd);
	if (alive)
		return err_set(
			err, ERR_EXISTS,
			"%s belongs to a running process: a second one under the same name is refused",
			a->sun_path);
	if (unlink(a->sun_path) < 0 && errno != ENOENT)
		return err_set(err, ERR_IO, "cannot remove the dead socket %s: %s", a->sun_path,
		               strerror(errno));
	return 0;
}

static int lock_path(const char *path, struct err *err)
{
	char name[sizeof((struct sockaddr_un *)0)->sun_path + 8];
	snprintf(name, sizeof name, "%s.lock", path);
	int fd = open(name, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
	if (fd < 0)
		return err_set(err, ERR_IO, "cannot open %s: %s", name, strerror(errno));
	if (flock(fd, LOCK_EX | LOCK_NB) < 0) {
		close(fd);
		return err_set(err, ERR_EXISTS,
		               "%s is being set up by another process: a second one under the same name is "
		               "refused",
		               path);
	}
	return fd;
}

int sock_listen(const char *path, mode_t mode, struct err *err)
{
	struct sockaddr_un a;
	int r = sock_address(path, &a, err);
	if (r < 0)
		return r;
	int lock = lock_path(path, err), fd = -1;
	if (lock < 0)
		return lock;
	if ((r = clear_dead(&a, err)) < 0 || (r = fd = sock_new(0, err)) < 0)
		goto out;
	/* connects are refused until listen, so nobody gets in before chmod */
	if (bind(fd, (struct sockaddr *)&a, sizeof a) < 0 || chmod(path, mode) < 0 ||
	    listen(fd, 64) < 0) {
		r = err_set(err, ERR_IO, "cannot listen on %s: %s", path, strerror(errno));
		close(fd);
	}
out:
	close(lock);
	return r;
}

int sock_accept(int listener)
{
	int fd;
	do
		fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
	while (fd < 0 && errno == EINTR);
	return fd >= 0 ? fd : errno == EAGAIN || errno == ECONNABORTED ? ERR_TIMEOUT : ERR_IO;
}

int sock_connect(const char *path, struct err *err)
{
	struct sockaddr_un a;
	int r = sock_address(path, &a, err), fd;
	if (r < 0 || (r = fd = sock_new(SOCK_NONBLOCK, err)) < 0)
		return r;
	if (connect(fd, (struct sockaddr *)&a, sizeof a) < 0) {
		r = errno == ENOENT || errno == ECONNREFUSED ? ERR_NOTFOUND
		    : errno == EAGAIN                        ? ERR_FULL
		                                             : ERR_IO;
		err_set(err, r, "cannot connect to %s: %s", path,
		        r == ERR_NOTFOUND ? "nobody is listening there"
		        : r == ERR_FULL   ? "its owner does not accept connections"
		                          : strerror(errno));
	} else if (fcntl(fd, F_SETFL, 0) < 0) {
		r = err_set(err, ERR_IO, "cannot set up the connection to %s: %s", path, strerror(errno));
	}
	if (r < 0)
		close(fd);
	return r;
}

union control {
	struct cmsghdr align;
	char bytes[CMSG_SPACE(SOCK_FDS_MAX * sizeof(int))];
};

int sock_send(int fd, const void *msg, size_t n, const int *fds, unsigned n_fds)
{
	if (n == 0 || n_fds > SOCK_FDS_MAX)
		return ERR_INVALID;
	struct iovec iov = {.iov_base = (void *)msg, .iov_len = n};
	union control c = {0};
	struct msghdr h = {.msg_iov = &iov, .msg_iovlen = 1};
	if (n_fds) {
		h.msg_control = c.bytes;
		h.msg_controllen = CMSG_SPACE(n_fds * sizeof(int));
		struct cmsghdr *m = CMSG_FIRSTHDR(&h);
		m->cmsg_level = SOL_SOCKET;
		m->cmsg_type = SCM_RIGHTS;
		m->cmsg_len = CMSG_LEN(n_fds * sizeof(int));
		memcpy(CMSG_DATA(m), fds, n_fds * sizeof(int));
	}
	ssize_t done;
	do
		done = sendmsg(fd, &h, MSG_NOSIGNAL);
	while (done < 0 && errno == EINTR);
	if (done >= 0)
		return 0;
	if (errno == EPIPE || errno == ECONNRESET || errno == ENOTCONN)
		return ERR_CLOSED;
	return errno == EAGAIN || errno == ENOBUFS ? ERR_FULL
	       : errno == EMSGSIZE                 ? ERR_INVALID
	                                           : ERR_IO;
}

/* Takes the descriptors out of the control data: stores the first max in fds and closes the rest.
 * Returns how many were stored. */
static unsigned take_fds(struct msghdr *h, int *fds, unsigned max)
{
	unsigned kept = 0;
	for (struct cmsghdr *m = CMSG_FIRSTHDR(h); m; m = CMSG_NXTHDR(h, m)) {
		if (m->cmsg_level != SOL_SOCKET || m->cmsg_type != SCM_RIGHTS)
			continue;
		size_t count = (m->cmsg_len - CMSG_LEN(0)) / sizeof(int);
		for (size_t i = 0; i < count; i++) {
			int got;
			memcpy(&got, CMSG_DATA(m) + i * sizeof got, sizeof got);
			if (kept < max)
				fds[kept++] = got;
			else
				close(got);
		}
	}
	return kept;
}

ssize_t sock_recv(int fd, void *msg, size_t size, int *fds, unsigned max_fds, unsigned *ret_fds)
{
	struct iovec iov = {.iov_base = msg, .iov_len = size};
	union control c = {0};
	struct msghdr h = {
		.msg_iov = &iov, .msg_iovlen = 1, .msg_control = c.bytes, .msg_controllen = sizeof c.bytes};
	ssize_t n;
	do
		n = recvmsg(fd, &h, MSG_CMSG_CLOEXEC);
	while (n < 0 && errno == EINTR);
	if (ret_fds)
		*ret_fds = 0;
	if (n < 0)
		return errno == EAGAIN                            ? ERR_TIMEOUT
		       : errno == ECONNRESET || errno == ENOTCONN ? ERR_CLOSED
		                                                  : ERR_IO;
	int cut = h.msg_flags & (MSG_TRUNC | MSG_CTRUNC);
	unsigned kept = take_fds(&h, fds, cut || !fds || !ret_fds ? 0 : max_fds);
	if (cut)
		return ERR_INVALID;
	if (ret_fds)
		*ret_fds = kept;
	return n;
}

/* For kernels before 6.5: opens the pidfd by process id. If the process has ended, another may have
 * its id by now, so the connection must still be open after the pidfd is. */
static int pidfd_by_number(int fd, pid_t pid)
{
	int p = (int)syscall(SYS_pidfd_open, pid, 0);
	if (p < 0)
		return errno == ESRCH ? ERR_CLOSED : errno == ENOSYS ? ERR_UNSUPPORTED : ERR_IO;
	struct pollfd now = {.fd = fd, .events = POLLRDHUP};
	if (poll(&now, 1, 0) > 0 && now.revents & (POLLHUP | POLLRDHUP)) {
		close(p);
		return ERR_CLOSED;
	}
	return p;
}

int sock_peer_pidfd(int fd, pid_t *ret_pid)
{
	struct ucred who;
	socklen_t n = sizeof who;
	if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &n) < 0)
		return errno == ENOTCONN ? ERR_CLOSED : ERR_IO;
	if (who.pid <= 0)
		return ERR_UNSUPPORTED;
	int p;
	n = sizeof p;
	if (getsockopt(fd, SOL_SOCKET, SO_PEERPIDFD, &p, &n) < 0) {
		if (errno == ESRCH || errno == ENODATA)
			return ERR_CLOSED;
		if ((p = pidfd_by_number(fd, who.pid)) < 0)
			return p;
	}
	*ret_pid = who.pid;
	return p;
}
