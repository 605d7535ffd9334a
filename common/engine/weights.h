/* weights.h - loading the parts of a model, shared by weights.c, moe.c and mla.c.
 *
 * A loader keeps the first error; after it every call does nothing and returns NULL or 0. The
 * caller owns the matrices and frees them with the functions below, also after an error; vectors
 * belong to the engine. With `size` nothing is loaded, and every call returns NULL or 0, too. */
#ifndef ENGINE_WEIGHTS_H
#define ENGINE_WEIGHTS_H

#include "engine/engine_impl.h"

struct loader {
	struct engine *e;
	struct err *err;
	int rc;
	struct weights_size *size; /* NULL: load; else add up what loading would take */
	unsigned char *fp8;        /* rows of an FP8 matrix; memory for fp8_bytes, NULL at first */
	size_t fp8_bytes;
};

/* Finds the tensor of a role in a layer and counts it in the model's parameters; 0 on an error. */
int load_find(struct loader *l, enum model_role role, uint32_t layer, struct model_tensor *t);
/* Counts a tensor that was found by another function, which returned rc. Returns 1 if there is no
 * error. */
int load_found(struct loader *l, int rc, const struct model_tensor *t);
/* Loads a part of a tensor as matrix `i` of *w, of `count`, which the first one to be loaded
 * creates; nothing if the part is empty. With `size` each counts for all of `count`. Keeps the
 * file's pages. */
struct matrix_part {
	struct tp_share rows, columns; /* columns.count 0: all */
};
void load_part(struct loader *l, const struct model_tensor *t, struct matrix_part part,
               uint32_t count, uint32_t i, struct kern_weight **w);
/* Loads this rank's part of a role's matrix; NULL if the model has no such role in the layer. */
struct kern_weight *load_matrix(struct loader *l, enum model_role role, uint32_t layer);
/* Loads a vector as floats, each element plus `more`; block types are an error. */
kern_ptr load_vector(struct loader *l, const struct model_tensor *t, float more);
/* load_bias: a matrix's bias, this rank's rows, if `has`; of sums that are divided rank 0 adds it.
 * load_expert_biases: biases of one part of this rank's experts, (experts, own). 0: none. */
kern_ptr load_bias(struct loader *l, int has, enum model_role role, uint32_t layer);
kern_ptr load_expert_biases(struct loader *l, enum model_expert_part part, uint32_t layer,
                            struct tp_share own);
kern_ptr load_norm(struct loader *l, enum model_role role, uint32_t layer);

void free_matrix(struct engine *e, struct kern_weight **w);

#endif
