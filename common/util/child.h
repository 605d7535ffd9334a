/* child.h - a process that this one starts and talks to over a socket. */
#ifndef UTIL_CHILD_H
#define UTIL_CHILD_H

#include "util/err.h"

#include <sys/types.h>

enum { CHILD_FD = 3 }; /* the child's end of the socket */

/* Starts `program` with argv and this process's environment; no signal is blocked or handled in it.
 * *ret_fd is this end of a SOCK_SEQPACKET pair. 0; ERR_IO: nothing was started. */
int child_start(const char *program, char *const *argv, pid_t *ret_pid, int *ret_fd,
                struct err *err);

#endif
