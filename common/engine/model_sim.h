/* model_sim.h - descriptions of a model and a device, from which the simulated accelerator works;
 * neither exists. */
#ifndef ENGINE_MODEL_SIM_H
#define ENGINE_MODEL_SIM_H

#include "engine/model.h"
#include "kernels/sim/options.h"
#include "kv/layout.h"

struct model_sim {
	struct model_conf conf;
	struct sim_options options; /* costs of operations, and how answers are generated */
	/* elements in eight bytes: the pool has one head of this size, whatever conf says */
	uint32_t kv_dim;
	char fingerprint[65]; /* of the group `model` */
	uint64_t params;      /* of the modelled model */
};

/* Reads a description as in etc/sim/. 0, ERR_IO, or ERR_INVALID with file, line, key, value and
 * range; *ret is valid only on success. */
int model_sim_open(const char *path, enum kv_type type, struct model_sim *ret, struct err *err);

#endif
