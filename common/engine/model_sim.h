/* model_sim.h - a model and a device that are described, not there: what the simulated
 * accelerator works from. */
#ifndef ENGINE_MODEL_SIM_H
#define ENGINE_MODEL_SIM_H

#include "engine/model.h"
#include "kernels/sim/options.h"
#include "kv/layout.h"

struct model_sim {
	struct model_conf conf;
	struct sim_options options; /* what they cost, and how answers come about */
	/* elements of eight bytes: the pool has one head of so many, whatever conf says */
	uint32_t kv_dim;
	char fingerprint[65]; /* of the group `model` */
	uint64_t params;      /* of the modelled model */
};

/* Reads a description as in etc/sim/. 0, ERR_IO, or ERR_INVALID with file, line, key, value and
 * range; *ret only on success. */
int model_sim_open(const char *path, enum kv_type type, struct model_sim *ret, struct err *err);

#endif
