/* moe.h - layers with a mixture of experts. */
#ifndef ENGINE_MOE_H
#define ENGINE_MOE_H

#include "engine/step.h"
#include "engine/weights.h"

/* One layer's. Of gate, up and down this rank's columns; entries are NULL where it has none. */
struct moe {
	struct kern_weight *router;                /* (experts, hidden) */
	float *router_bias;                        /* (experts) or NULL, on the device; so are experts' biases */
	float *correction;                         /* (experts) or NULL, on the device */
	struct kern_experts experts;
	struct kern_weight *shared_gate, *shared_up, *shared_down;   /* NULL: none */
};

/* NULL for a dense layer, and on an error of the loader if it came before anything was loaded. */
struct moe *moe_load(struct loader *l, uint32_t layer);
void moe_free(struct engine *e, struct moe **m);
/* Of the experts' tensors in the file; 0 for a dense layer. */
uint64_t moe_bytes(const struct engine *e, uint32_t layer);

/* Of a row, for sizes of an expert and of the shared one: in scratch act and own_act; in scratch route. 0 for a dense model. */
size_t moe_act_floats(const struct model_conf *c, uint32_t ffn, uint32_t shared_ffn);
size_t moe_route_floats(const struct model_conf *c);

/* From h (rows) to sum, which all ranks may read then. */
void moe_run(struct step *st, uint32_t layer, uint32_t rows);

#endif
