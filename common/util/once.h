/* once.h - which of the events that others cause are still worth a log line. Each is logged once:
 * it is remembered with the latest ONCE_KEPT others. Events that are all different do not fill the
 * log either: ONCE_BURST of them are logged at once, further ones every ONCE_US. */
#ifndef UTIL_ONCE_H
#define UTIL_ONCE_H

#include <stddef.h>
#include <stdint.h>

#define ONCE_KEPT 64u
#define ONCE_BURST 32u
#define ONCE_US 200000u

struct once { /* all zero: nothing was logged */
	uint64_t kept[ONCE_KEPT];
	unsigned n;
	uint64_t full_us; /* when ONCE_BURST lines may be logged at once again */
};

/* 1: log it now. what, len: all that makes the event another one. */
int once_may_log(struct once *o, const void *what, size_t len);

#endif
