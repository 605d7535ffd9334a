/* crew.h - threads that walk through the phases of a job together.
 *
 * A phase is a number of items. Every item is done once, by whichever thread claims it; a phase
 * begins when all items of the one before are done, and that is the only thing that threads wait
 * for: one that the kernel has not scheduled holds nothing up unless it has claimed an item. So an
 * item's result must not depend on which thread does it. One crew_run at a time. A run allocates
 * nothing; its only system calls are the sleep and the waking of threads that have waited for
 * longer than 50 us. */
#ifndef CPU_CREW_H
#define CPU_CREW_H

#include <stddef.h>
#include <stdint.h>

enum { CREW_PHASES = 63, CREW_THREADS_MAX = 64 };

struct crew;

struct crew_phase {
	/* How many items there are; called once a run, by any thread, when all items of the phase
	 * before are done. */
	uint32_t (*items)(const void *ctx);
	/* worker is below crew_threads */
	void (*item)(const void *ctx, uint32_t item, unsigned worker);
	const void *ctx;
	/* Memory with the phase's description, prefetched during the phase before, or NULL: a step
	 * streams all weights of a model through the caches, which pushes it out of them. */
	const void *near;
	size_t near_bytes;
};

/* threads counts the caller of crew_run too; NULL when memory or threads are lacking */
struct crew *crew_new(unsigned threads);
void crew_destroy(struct crew **crew);
unsigned crew_threads(const struct crew *crew);
/* Grows while a run advances, with every few phases; any thread. */
uint64_t crew_pulse(const struct crew *crew);
/* Memory of a phase in the room for runs. */
size_t crew_phase_bytes(unsigned threads);
/* Room for runs of n phases: between runs, before the first of more than CREW_PHASES. -1 when
 * memory is lacking. */
int crew_grow(struct crew *crew, size_t n);
/* Returns when all items of all phases are done. */
void crew_run(struct crew *crew, const struct crew_phase *phases, size_t n);

#endif
