/* sock.h - local sockets (SOCK_SEQPACKET: whole messages) through which processes of one host pass
 * descriptors to each other and notice each other's death.
 *
 * All descriptors made here are close-on-exec. Functions block unless the descriptor does not; none
 * polls. Errors are ERR_*; functions with a `struct err` name the path and the reason. */
#ifndef UTIL_SOCK_H
#define UTIL_SOCK_H

#include "util/err.h"

#include <stddef.h>
#include <sys/types.h>

#define SOCK_FDS_MAX 18u

/* Listens at path with permissions `mode` (0600 for one user, 0660 for a group). Replaces a socket
 * file whose owner is dead (it refuses a connect). ERR_EXISTS: its owner lives, or path is not a
 * socket, or another process is in this call for the same path (it holds the lock file
 * `path`.lock). Returns the descriptor. */
int sock_listen(const char *path, mode_t mode, struct err *err);
/* Accepts one connection. Returns the descriptor, ERR_TIMEOUT (the listener is non-blocking and has
 * none, or the waiting one was aborted or was closed because no descriptor was free; more may be
 * waiting), or ERR_IO (see errno). */
int sock_accept(int listener);
/* Never waits. Returns a blocking descriptor, ERR_NOTFOUND (no such path, or nobody is listening
 * there), ERR_FULL (the listener does not accept: it hangs or is overloaded), ERR_INVALID or
 * ERR_IO. */
int sock_connect(const char *path, struct err *err);
/* Sends one message of n >= 1 bytes with copies of up to SOCK_FDS_MAX descriptors. 0, ERR_INVALID
 * (bad sizes), ERR_FULL (a non-blocking socket has no room), ERR_CLOSED (the peer is gone; no
 * SIGPIPE), or ERR_IO. */
int sock_send(int fd, const void *msg, size_t n, const int *fds, unsigned n_fds);
/* Receives one message. Returns its length, 0 at end of file, ERR_TIMEOUT (a non-blocking socket
 * has none), ERR_CLOSED (connection reset), ERR_INVALID (the message is longer than size, or not
 * all of its descriptors could be received: it is dropped, the socket stays usable), or ERR_IO. The
 * caller owns the *ret_fds descriptors stored in fds; those beyond max_fds are closed. On an error
 * *ret_fds is 0. */
ssize_t sock_recv(int fd, void *msg, size_t size, int *fds, unsigned max_fds, unsigned *ret_fds);
/* Returns a pidfd of the process at the other end of a connection (the one that called connect or
 * listen), or ERR_CLOSED (it is gone), ERR_UNSUPPORTED (it is in another pid namespace, or the
 * kernel has no pidfds), ERR_IO. */
int sock_peer_pidfd(int fd, pid_t *ret_pid);

#endif
