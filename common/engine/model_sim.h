/* model_sim.h - a model and a device that are described, not there: what the simulated accelerator works from. */
#ifndef ENGINE_MODEL_SIM_H
#define ENGINE_MODEL_SIM_H

#include "engine/model.h"
#include "kernels/sim/options.h"
#include "kv/layout.h"

struct model_sim {
	struct model_conf conf;      /* layers, vocabulary and context of the model; the smallest sizes otherwise */
	struct sim_options sim;      /* what the modelled sizes cost */
	char fingerprint[65];        /* of the group `model` */
	uint64_t params;             /* of the modelled model */
};

/* Reads a description as in etc/sim/. 0, ERR_IO, or ERR_INVALID with file, line, key, value and range; *ret only on success. */
int model_sim_open(const char *path, enum kv_type type, struct model_sim *ret, struct err *err);

#endif
