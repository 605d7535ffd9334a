/* moe.h - layers with a mixture of experts. */
#ifndef ENGINE_MOE_H
#define ENGINE_MOE_H

#include "engine/record.h"
#include "engine/weights.h"

/* One layer's matrices: this rank's columns of gate, up and down; NULL if it has none. */
struct moe {
	struct kern_weight *router; /* (experts, hidden) */
	kern_ptr router_bias;       /* (experts) or 0 */
	kern_ptr correction;        /* (experts) or 0 */
	struct kern_experts experts;
	struct kern_weight *shared_gate, *shared_up, *shared_down; /* NULL: none */
};

/* NULL for a dense layer, and if the loader already has an error. */
struct moe *moe_load(struct loader *l, uint32_t layer);
void moe_free(struct engine *e, struct moe **m);
/* Bytes of this rank's part of all experts, or where ranks share memory of all of them; 0 for a
 * dense layer. */
uint64_t moe_bytes(const struct engine *e, uint32_t layer);

/* Records the layer from h to sum, which all ranks can read afterwards. */
void moe_record(struct recorder *r, uint32_t layer);

#endif
