/* trim.h - returns freed memory to the system, so that a burst of requests does not leave a large
 * process behind. glibc's malloc keeps free memory that lies below memory in use and, by default,
 * after the first large block also large ones. */
#ifndef UTIL_TRIM_H
#define UTIL_TRIM_H

#include <stddef.h>

struct trim {
	size_t last; /* resident bytes at the last tick */
	/* resident memory changed by a MiB or more between the last two ticks: call the next soon */
	int changed;
	/* minimum since the last trim, in bytes: resident memory, and free memory inside malloc */
	size_t resident, kept;
};

/* Call once, before the process has threads. From then on large blocks return to the system as soon
 * as they are freed. */
void trim_setup(struct trim *t);
/* Call from one thread, about once a second while memory changes. If much was freed and the process
 * does not grow, it trims: about 0.1 ms per MiB, during which every thread that allocates waits for
 * malloc's lock (so a separate thread would not help). Returns the bytes given back, usually 0. */
size_t trim_tick(struct trim *t);

#endif
