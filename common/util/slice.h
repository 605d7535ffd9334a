/* slice.h - the time slice that the Linux scheduler gives a thread (EEVDF, Linux 6.12 and later).
 *
 * A thread that wakes up waits until the running one has used its slice (3 ms by default), unless
 * its own slice is shorter. Threads that only pass messages ask for a short one, so that a message
 * does not wait behind compute threads; their share of the processor stays the same. No privilege
 * is needed. Threads inherit the slice of the thread that creates them. Older kernels ignore the
 * request. */
#ifndef UTIL_SLICE_H
#define UTIL_SLICE_H

#define SLICE_SHORT_US 100u /* the kernel's minimum */

/* The calling thread's slice: SLICE_SHORT_US, or the kernel's default. */
void slice_short(void);
void slice_default(void);

#endif
