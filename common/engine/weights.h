/* weights.h - what the loading of a model's parts has in common (weights.c has the rest, moe.c and
 * mla.c have theirs).
 *
 * A loader keeps the first error; after it every call does nothing and returns NULL or 0. Matrices
 * are the caller's, who frees them with the functions below, whether loading went well or not;
 * vectors go with the engine. */
#ifndef ENGINE_WEIGHTS_H
#define ENGINE_WEIGHTS_H

#include "engine/engine_impl.h"

struct loader {
	struct engine *e;
	struct err *err;
	int rc;
};

/* The tensor of a role in a layer, counted among the model's; 0 on an error. */
int load_find(struct loader *l, enum model_role role, uint32_t layer, struct model_tensor *t);
/* Counts a tensor that was found otherwise; rc is what finding it gave. Returns whether it is
 * there. */
int load_found(struct loader *l, int rc, const struct model_tensor *t);
/* Some rows of a matrix; NULL if there are none. The file's pages stay. */
struct kern_weight *load_rows(struct loader *l, const struct model_tensor *t, struct tp_share rows);
/* This rank's rows of a role's matrix; NULL if the model has no such role there. */
struct kern_weight *load_matrix(struct loader *l, enum model_role role, uint32_t layer);
/* The numbers of a tensor that is no block type, as floats, each plus `more`. */
kern_ptr load_vector(struct loader *l, const struct model_tensor *t, float more);
/* A matrix's bias, if `has`: this rank's rows; biases of a part of all experts, (experts, own).
 * 0: none. */
kern_ptr load_bias(struct loader *l, int has, enum model_role role, uint32_t layer);
kern_ptr load_expert_biases(struct loader *l, enum model_expert_part part, uint32_t layer,
                            struct tp_share own);
kern_ptr load_norm(struct loader *l, enum model_role role, uint32_t layer);

void free_matrix(struct engine *e, struct kern_weight **w);
void free_matrices(struct engine *e, struct kern_weight ***ws, uint32_t count);

#endif
