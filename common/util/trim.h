/* trim.h - memory that was freed goes back to the system, so that a flood leaves no large process
 * behind. glibc's malloc keeps what lies below memory in use, and, after the first large block,
 * large blocks too. */
#ifndef UTIL_TRIM_H
#define UTIL_TRIM_H

#include <stddef.h>

struct trim {
	size_t last; /* bytes of own memory at the last tick */
	/* between the last two ticks, by a MiB or more: the next should come soon */
	int changed;
	size_t resident, kept; /* of own memory, and free in malloc: the least since the last trim */
};

/* Once, before the process has threads: from now on large blocks go back as soon as they are
 * freed. */
void trim_setup(struct trim *t);
/* About once a second while memory changes, from one thread: when much was freed and the process
 * does not grow, it goes back. That takes about 0.1 ms for each MiB, for which all threads that
 * allocate wait: malloc has its lock meanwhile, so that a thread for it would spare nobody.
 * Returns the bytes given back, usually 0. */
size_t trim_tick(struct trim *t);

#endif
