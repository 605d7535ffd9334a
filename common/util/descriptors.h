/* descriptors.h - the process's file descriptors: raises the limit at start, and replaces accept4
 * by one that copes with running out of them.
 *
 * Without a free descriptor, accept(2) fails and the connection stays in the listener's queue: an
 * event loop on the listener spins, and libzmq 4.3 aborts. The accept4 defined here replaces libc's
 * for the program and all its libraries. It keeps one descriptor in reserve; when none is free it
 * uses the reserve to accept the connection and closes it at once. The client sees end of file. */
#ifndef UTIL_DESCRIPTORS_H
#define UTIL_DESCRIPTORS_H

#include "util/err.h"

#include <stdint.h>

#define DESCRIPTORS_STRANGERS 1024u
#define DESCRIPTORS_KEPT 64u

/* Raises the process's limit to its hard limit and opens the reserve. ERR_FULL: the hard limit is
 * below `need`; the text names both numbers. */
int descriptors_init(unsigned need, struct err *err);
unsigned descriptors_limit(void);
/* Connections that no descriptor was free for, or that a guarded port did not take. */
uint64_t descriptors_refused(void);
/* Connections to this TCP port, from whomever, leave descriptors to everybody else: while the
 * process holds DESCRIPTORS_STRANGERS more than it needs (descriptors_init), or all but
 * DESCRIPTORS_KEPT of its limit, they are closed at once. One port; call after descriptors_init. */
void descriptors_guard_port(uint16_t port);

#endif
