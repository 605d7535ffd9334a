/* machine.h - what the process may use of this machine: processors and memory, as its affinity and
 * its control groups leave them.
 *
 * `root` is "", or in tests a folder that has a proc and a sys of its own. */
#ifndef UTIL_MACHINE_H
#define UTIL_MACHINE_H

#include <stdint.h>

/* Threads that compute without getting in each other's way: one per core, not per hyperthread, of
 * the processors in the affinity, and no more than the quota of any control group around the
 * process pays for, rounded down. At least 1. */
unsigned machine_threads(const char *root);

/* Bytes that the process may still allocate: the machine's available memory, or what a control
 * group around the process has left, if that is less. Page cache that can be given back counts as
 * free. UINT64_MAX: unknown. */
uint64_t machine_memory(const char *root);

#endif
