/* options.h - the command line, parsed and checked: every value is in its range, and every
 * combination makes sense.
 *
 * Times are in microseconds. Strings belong to argv, everything else to the struct: options_fini
 * frees it. */
#ifndef PDBENCH_OPTIONS_H
#define PDBENCH_OPTIONS_H

#include "url.h"
#include "util/buf.h"
#include "util/err.h"

#include <jansson.h>
#include <openssl/types.h>
#include <stdint.h>
#include <stdio.h>

#define URLS_MAX 16

enum arrivals { ARRIVE_POISSON, ARRIVE_CONSTANT, ARRIVE_TRACE };

/* A length or a time, fixed or random. */
struct dist {
	enum { DIST_FIXED, DIST_UNIFORM, DIST_LOGNORMAL } kind;
	/* FIXED: a; UNIFORM: a to b inclusive; LOGNORMAL: a = mean, b = sigma of the logarithm */
	double a, b;
	double max; /* larger random values are reduced to this */
};

/* A number of requests or a time; the other is 0. */
struct span {
	uint64_t count, us;
};

struct slo {
	uint64_t ttft_us, tpot_us, itl_us, e2e_us; /* 0: no limit */
};

struct bench_options {
	struct url urls[URLS_MAX];
	unsigned n_urls;
	/* load */
	double rate;          /* requests/s; > 0: open loop */
	unsigned concurrency; /* > 0: closed loop */
	enum arrivals arrivals;
	int has_arrivals;
	uint64_t number;      /* of measured requests; 0: no limit */
	uint64_t duration_us; /* of the measured part; 0: no limit */
	struct span warmup;
	uint64_t ramp_us, timeout_us;
	/* open loop: requests above this limit wait, and their waiting time counts */
	unsigned in_flight_max;
	double abort_fraction;
	int fresh_connections;
	/* workload */
	struct dist input, output, rounds, think_us;
	int has_input, has_output, has_rounds;
	uint32_t prefix_tokens, prefix_groups;
	int text, chat;
	/* token ids are in [low, high); high 0: use the server's vocabulary */
	uint32_t vocab_low, vocab_high;
	const char *lengths, *trace;
	double time_scale, sample;
	uint32_t length_scale, trace_block;
	uint32_t max_input, max_output; /* 0: limited by the server's context only */
	/* truncate requests that are too long, instead of skipping them */
	int clip;
	/* requests */
	double temperature;
	uint64_t seed;
	int natural_end; /* 1: do not send ignore_eos */
	/* 1: the server does not count tokens, so answers are not checked for their length */
	int any_length;
	int sessions;  /* 1: send the conversation in X-Session-Id */
	int token_ids; /* 1: request the answer's token ids */
	const char *model, *api_key;
	const char *cacert; /* file of the authorities to trust; NULL: the system's */
	int insecure;
	SSL_CTX *tls;       /* NULL: no address is https */
	struct buf headers; /* "Name: value\r\n" ... */
	json_t *extra;      /* object; NULL: none */
	/* results */
	struct slo slo;
	int has_slo;
	double allow_fraction;
	uint64_t allow_count;
	const char *json, *requests, *svg, *result_prefix, *title;
	int quiet;
};

enum options_result { OPTIONS_RUN, OPTIONS_HELP, OPTIONS_VERSION };

/* Returns OPTIONS_RUN, what was requested instead, or ERR_INVALID with err set. `o` is always
 * initialised: call options_fini. */
int options_parse(int argc, char **argv, struct bench_options *o, struct err *err);
void options_fini(struct bench_options *o);
void options_help(FILE *f);

#endif
