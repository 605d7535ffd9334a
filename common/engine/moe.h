/* moe.h - layers with a mixture of experts. */
#ifndef ENGINE_MOE_H
#define ENGINE_MOE_H

#include "engine/record.h"
#include "engine/weights.h"

/* One layer's. Of gate, up and down this rank's columns; entries are NULL where it has none. */
struct moe {
	struct kern_weight *router; /* (experts, hidden) */
	kern_ptr router_bias;       /* (experts) or 0 */
	kern_ptr correction;        /* (experts) or 0 */
	struct kern_experts experts;
	struct kern_weight *shared_gate, *shared_up, *shared_down; /* NULL: none */
};

/* NULL for a dense layer, and on an error of the loader if it came before anything was loaded. */
struct moe *moe_load(struct loader *l, uint32_t layer);
void moe_free(struct engine *e, struct moe **m);
/* Of the experts' tensors in the file; 0 for a dense layer. */
uint64_t moe_bytes(const struct engine *e, uint32_t layer);

/* From h to sum, which all ranks may read then. */
void moe_record(struct recorder *r, uint32_t layer);

#endif
