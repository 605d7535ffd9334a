/* params.h - the parameters of a request, read from JSON and checked: an error names the parameter,
 * the value and the range. Known parameters that this build does not support are refused,
 * unless their value asks for nothing; for unknown ones see unknown.c. */
#ifndef ROUTER_PARAMS_H
#define ROUTER_PARAMS_H

#include "error.h"
#include "request.pb-c.h"
#include "stop.h"
#include "text/body.h"
#include "text/tokenizer.h"

#include <jansson.h>
#include <stdint.h>

#define PARAM_STOP_IDS_MAX 64
#define PARAM_LOGPROBS_MAX 20
#define PARAM_BIASES_MAX 1024
#define PARAM_ALLOWED_MAX 16384
#define PARAM_BAD_WORDS_MAX 128
#define PARAM_BAD_BYTES_MAX 128
#define PARAM_BAD_TOKENS_MAX 4096 /* of all bad words, with a length for each */

struct params {
	int stream, include_usage, continuous_usage;
	int echo, ignore_eos, return_token_ids, include_stop, skip_special, add_special;
	int timings, timings_per_token; /* in the answer; in each event, too */
	int has_max_tokens;
	uint32_t max_tokens;
	uint32_t n;
	int logprobs;        /* alternatives per token, -1: none wanted */
	int prompt_logprobs; /* of the prompt's tokens, in vLLM's shape; -1: none wanted */
	uint32_t min_tokens;
	/* number of the prompt's last tokens to keep; 0: all, -1: as many as fit */
	int64_t truncate;
	Pds__Sampling sampling; /* seed: see has_seed; its lists are the params' */
	int has_seed;
	struct stop_set *stop; /* NULL: none */
	uint32_t stop_ids[PARAM_STOP_IDS_MAX];
	size_t n_stop_ids;
	uint64_t session; /* policy_key of prompt_cache_key, or else of user; 0: neither */
};

/* Readers of one member: absent or null gives the default. 0 or -1 with the error set. */
int param_int(const json_t *o, const char *name, int64_t min, int64_t max, int64_t def,
              int64_t *ret, struct api_error *e);
int param_bool(const json_t *o, const char *name, int def, int *ret, struct api_error *e);
int param_is_set(const json_t *o, const char *name);
static inline const char *param_show(const json_t *v)
{
	return body_show(v);
}

/* Reads all that completions and chat share. n_max: limit on n. */
int params_read(const json_t *o, int chat, uint32_t n_max, struct params *p, struct api_error *e);
/* truncate_prompt_tokens */
int params_read_truncate(const json_t *o, struct params *p, struct api_error *e);
/* Reads those that name tokens, by id or by text: logit_bias, allowed_token_ids, bad_words. t NULL:
 * no tokenizer, so no text. Call it after params_read. */
int params_read_ids(const json_t *o, const struct tokenizer *t, uint32_t vocab, struct params *p,
                    struct api_error *e);
void params_fini(struct params *p);

#endif
