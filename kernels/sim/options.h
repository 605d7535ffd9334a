/* options.h - what a simulated device models: kern_config.options of the backend "sim", copied when
 * it is opened.
 *
 * A program's shapes determine the modelled size: a matrix (n, k) counts as n x k weights,
 * attention as heads x head_dim. Nothing of that size exists. Weights are sizes only, a row of
 * activations is one 64-bit word, and a KV piece has two words per token: kern_kv_layer's heads and
 * head_dim are the modelled size, block_stride_bytes the real one, at least 16 bytes per token:
 * first K's words, V's at the end. */
#ifndef SIM_OPTIONS_H
#define SIM_OPTIONS_H

#include <stdint.h>

struct sim_options {
	/* per weight and row; 2, or less if a row uses a part of the weights (experts) */
	double weight_flops;
	double weight_bytes; /* per weight, read once per step */
	double kv_bytes;     /* per value of K or V, whatever the pool's type */
	uint32_t tp;         /* devices that share the work (tensor parallel); at least 1 */
	/* per device and second, as achieved in practice */
	double flops, bandwidth, link_bandwidth;
	/* fixed times: per layer, for its two exchanges (tp > 1), per step */
	double launch_us, exchange_us, step_us;
	double time_scale; /* factor of every duration; 0: no time passes */
	uint64_t seed;     /* of the answers */
	double eos_rate;   /* share of tokens that end the sequence; 0: none */
	uint32_t eos[8], n_eos;
	/* every step checks every sequence's whole context, rather than contexts that are new to the
	 * device and a sample */
	int check_always;
	uint64_t hang_step; /* for tests: this step, counted from 1, never ends; 0: none */
};

#endif
