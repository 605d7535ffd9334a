/* record.h - recording the program of a step; shared by record.c, moe.c and mla.c. */
#ifndef ENGINE_RECORD_H
#define ENGINE_RECORD_H

#include "engine/engine_impl.h"

struct recorder {
	struct engine *e;
	struct kern_op *op; /* (n) */
	size_t n, room;
	enum kern_rows rows;      /* which rows the operations apply to that are recorded now */
	struct kern_tensor added; /* to x next: record_sum */
};

/* Appends an operation for the recorder's rows. */
void record(struct recorder *r, struct kern_op op);
/* Columns [from, ...) of a tensor. */
struct kern_tensor columns(struct kern_tensor t, size_t from);
/* y = x W^T + bias for this rank's columns `own` of y; records nothing if this rank has no
 * columns. */
void record_project(struct recorder *r, struct kern_tensor y, struct kern_tensor x,
                    const struct kern_weight *w, kern_ptr bias, struct tp_share own);
/* A tensor (R, parts, columns) in which each rank has written its share; x.ld is the leading
 * dimension of a part; each element of the share stands for `width` columns. */
struct kern_gathered gathered(struct kern_tensor x, uint32_t parts, struct tp_share share,
                              uint32_t width);
/* Waits until all ranks have written their shares, so that each can read everything; b may be NULL.
 * Records nothing if there is one rank. */
void record_gather(struct recorder *r, struct kern_gathered a, const struct kern_gathered *b);
/* Lets all ranks have what is added to x next: `output`, of which each has its columns, or, with
 * divided sums, `part`, of which each has a part of every sum. */
void record_sum(struct recorder *r, int summed);
/* act(gate) * up of h, for this rank's columns, into `act`. */
void record_gated(struct recorder *r, struct kern_tensor act, struct tp_share own,
                  const struct kern_weight *gate, kern_ptr gate_bias, const struct kern_weight *up,
                  kern_ptr up_bias);

#endif
