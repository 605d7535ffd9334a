/* record.h - recording the program of a step, as its parts see it: record.c, moe.c, mla.c. */
#ifndef ENGINE_RECORD_H
#define ENGINE_RECORD_H

#include "engine/engine_impl.h"

struct recorder {
	struct engine *e;
	struct kern_op *op; /* (n) */
	size_t n, room;
	enum kern_rows rows; /* of what is recorded now */
};

/* Appends an operation; its rows are the recorder's. */
void record(struct recorder *r, struct kern_op op);
/* Columns [from, ...) of a tensor. */
struct kern_tensor columns(struct kern_tensor t, size_t from);
/* y = x W^T + bias for this rank's columns `own` of y; nothing when there are fewer columns than
 * ranks. */
void record_project(struct recorder *r, struct kern_tensor y, struct kern_tensor x,
                    const struct kern_weight *w, kern_ptr bias, struct tp_share own);
/* x (R, parts, columns), leading dimension of a part, of which each rank has written its share,
 * of `width` columns each. */
struct kern_gathered gathered(struct kern_tensor x, uint32_t parts, struct tp_share share,
                              uint32_t width);
/* What every rank has written is there for all to read; b may be NULL. */
void record_gather(struct recorder *r, struct kern_gathered a, const struct kern_gathered *b);
/* act(gate) * up of h for this rank's columns, to `act` of all ranks. */
void record_gated(struct recorder *r, struct kern_tensor act, struct tp_share own,
                  const struct kern_weight *gate, kern_ptr gate_bias, const struct kern_weight *up,
                  kern_ptr up_bias);

#endif
