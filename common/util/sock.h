/* sock.h - local sockets (SOCK_SEQPACKET: whole messages) through which processes of one host hand
 * descriptors over, and by which one learns that the other is dead.
 *
 * All descriptors made here are close-on-exec. Nothing here polls; blocking and waiting are the
 * caller's choice (O_NONBLOCK, an event loop). Errors are ERR_*; those with a `struct err` say
 * which path and why. */
#ifndef UTIL_SOCK_H
#define UTIL_SOCK_H

#include "util/err.h"

#include <stddef.h>
#include <sys/types.h>

#define SOCK_FDS_MAX 16u

/* Listens under path, with these permissions (0600 for one user, 0660 for a group). A socket file
 * whose owner is dead (a connect is refused) is replaced; while its owner lives, or when path is
 * something else than a socket: ERR_EXISTS. Two that start at the same moment are told apart by
 * a lock on `path`.lock, held during the call. Returns the descriptor. */
int sock_listen(const char *path, mode_t mode, struct err *err);
/* Takes one connection. Returns the descriptor, ERR_TIMEOUT (a non-blocking listener has none, or
 * the one that waited has ended or was refused for want of a descriptor; more may wait), or
 * ERR_IO (errno says why). */
int sock_accept(int listener);
/* Never waits. Returns the descriptor (it blocks), ERR_NOTFOUND (no such path, or nobody listens
 * there), ERR_FULL (the listener does not accept: stopped or flooded), ERR_INVALID or ERR_IO. */
int sock_connect(const char *path, struct err *err);
/* One message, with copies of up to SOCK_FDS_MAX descriptors; n >= 1. 0, ERR_INVALID (sizes),
 * ERR_FULL (the socket does not block and has no room), ERR_CLOSED (the peer is gone; no
 * SIGPIPE), or ERR_IO. */
int sock_send(int fd, const void *msg, size_t n, const int *fds, unsigned n_fds);
/* One message. Returns its length, 0 at end of file, ERR_TIMEOUT when a non-blocking socket has
 * none, ERR_CLOSED (connection reset), ERR_INVALID (longer than size, or with descriptors that
 * could not all be received; all of it is dropped, the socket stays usable), or ERR_IO. The
 * *ret_fds descriptors in fds are the caller's, those beyond max_fds are closed; on any error
 * there are none. */
ssize_t sock_recv(int fd, void *msg, size_t size, int *fds, unsigned max_fds, unsigned *ret_fds);
/* The process that made the other end of a connection (connect or listen): a pidfd, or ERR_CLOSED
 * (it is gone already), ERR_UNSUPPORTED (it lives in another pid namespace), ERR_IO. */
int sock_peer_pidfd(int fd, pid_t *ret_pid);
/* 1 when the process has ended, 0 while it lives. Does not wait; the pidfd may also be put into
 * an event loop (readable when dead). */
int sock_peer_dead(int pidfd);

#endif
