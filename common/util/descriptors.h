/* descriptors.h - the process's file descriptors: enough of them at start, and an accept that
 * survives their end.
 *
 * With no descriptor left accept(2) fails, and the connection stays in the listener's queue: a loop
 * that is told of it spins, and libzmq 4.3 aborts. The program's own accept4, defined here, takes
 * the place of libc's for all its libraries: it keeps one descriptor in reserve, by which it
 * takes such a connection and closes it at once. Its client sees an end of file. */
#ifndef UTIL_DESCRIPTORS_H
#define UTIL_DESCRIPTORS_H

#include "util/err.h"

#include <stdint.h>

/* Raises the process's limit as far as it may go and takes the reserve. ERR_FULL: fewer than need
 * are allowed; the text names both numbers. */
int descriptors_init(unsigned need, struct err *err);
unsigned descriptors_limit(void);
uint64_t descriptors_refused(void); /* connections that were closed for want of a descriptor */

#endif
