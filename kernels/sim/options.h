/* options.h - what a simulated device models: kern_config.options of the backend "sim", copied when
 * it is opened.
 *
 * A program says how large a modelled model is: a matrix (n, k) counts as n x k weights, attention
 * as heads x head_dim. Nothing of that size exists. Weights are sizes, a row of activations is one
 * 64-bit word, and a KV piece has two words a token: kern_kv_layer's heads and head_dim say what
 * is modelled, its block_stride_bytes what there is, at least 16 bytes a token: K's words first,
 * V's at the end. */
#ifndef SIM_OPTIONS_H
#define SIM_OPTIONS_H

#include <stdint.h>

struct sim_options {
	/* of one weight and row; 2, less where a row meets a part of them (experts) */
	double weight_flops;
	double weight_bytes; /* of one weight, read once a step */
	double kv_bytes;     /* of one value of K or V, whatever type the pool has */
	uint32_t tp;         /* devices that share the work (tensor parallel); at least 1 */
	/* of one device, per second, as they are reached, not as they are sold */
	double flops, bandwidth, link_bandwidth;
	/* fixed: a layer, its two exchanges (tp > 1), a step */
	double launch_us, exchange_us, step_us;
	double time_scale; /* every duration is multiplied by it; 0: no time passes */
	uint64_t seed;     /* of the answers */
	double eos_rate;   /* share of the tokens that end the sequence; 0: none does */
	uint32_t eos[8], n_eos;
	/* every step walks every sequence's whole context, instead of what is new to the device and
	 * a sample */
	int check_always;
	uint64_t hang_step; /* for tests: this step, counted from 1, never ends; 0: none */
};

#endif
