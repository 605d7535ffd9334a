/* moe.h - layers with a mixture of experts. */
#ifndef ENGINE_MOE_H
#define ENGINE_MOE_H

#include "engine/record.h"
#include "engine/weights.h"

/* One layer's matrices: this rank's columns of gate, up and down, or its whole experts; NULL if it
 * has none. */
struct moe {
	struct kern_weight *router;           /* (experts, hidden) */
	kern_ptr router_bias;                 /* (experts) or 0 */
	kern_ptr correction;                  /* (experts) or 0 */
	struct kern_weight *gate, *up, *down; /* of all experts, or of those that it has */
	struct kern_experts experts;
	struct kern_weight *shared_gate, *shared_up, *shared_down; /* NULL: none */
	/* each rank has a part of every sum: shared_down, and down unless it has whole experts, are
	 * divided by columns (weights_divided) */
	int summed;
};

/* Whether the ranks exchange what their whole experts give in some layer (shard.exchanges). */
int moe_exchanges(const struct engine *e);

/* NULL for a dense layer, and if the loader already has an error. */
struct moe *moe_load(struct loader *l, uint32_t layer);
void moe_free(struct engine *e, struct moe **m);

/* Records the layer from h to sum, which all ranks can read afterwards. */
void moe_record(struct recorder *r, uint32_t layer);

#endif
