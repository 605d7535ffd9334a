/* crew.h - threads that execute the phases of a job together.
 *
 * A phase is a number of items. Each item is executed once, by whichever thread claims it. A phase
 * starts when all items of the previous one are done; threads wait for nothing else, so a thread
 * that is not scheduled delays the others only if it has claimed an item. An item's result must
 * therefore not depend on the thread that executes it. One crew_run at a time. A run allocates
 * nothing; its only system calls put threads to sleep after 50 us of waiting and wake them. */
#ifndef CPU_CREW_H
#define CPU_CREW_H

#include <stddef.h>
#include <stdint.h>

enum { CREW_PHASES = 63 };

struct crew;

struct crew_phase {
	/* Number of items; called once per run, by any thread, when all items of the previous phase are
	 * done. */
	uint32_t (*items)(const void *ctx);
	/* worker is below crew_threads */
	void (*item)(const void *ctx, uint32_t item, unsigned worker);
	const void *ctx;
	/* Memory with the phase's description, prefetched during the previous phase, or NULL. A step
	 * streams all weights of a model through the caches, which evicts it. */
	const void *near;
	size_t near_bytes;
};

/* threads (at most KERN_THREADS_MAX) includes the caller of crew_run; NULL: out of memory or
 * threads */
struct crew *crew_new(unsigned threads);
void crew_destroy(struct crew **crew);
unsigned crew_threads(const struct crew *crew);
/* Grows while a run advances, every few phases; callable from any thread. */
uint64_t crew_pulse(const struct crew *crew);
/* Memory per phase in the run buffer. */
size_t crew_phase_bytes(unsigned threads);
/* Makes room for runs of n phases; call between runs, before the first with more than CREW_PHASES.
 * -1: out of memory. */
int crew_grow(struct crew *crew, size_t n);
/* Returns when all items of all phases are done. */
void crew_run(struct crew *crew, const struct crew_phase *phases, size_t n);

#endif
