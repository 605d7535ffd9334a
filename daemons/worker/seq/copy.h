/* copy.h - a worker's copy of a request: the checked contents of Pds__Request, with the tokens
 * growing as they are generated. */
#ifndef WORKER_SEQ_COPY_H
#define WORKER_SEQ_COPY_H

#include "engine/engine.h"
#include "kv/hash.h"
#include "msg/chan.h"

struct constraint;

#define REQUEST_STOP_IDS_MAX 64u
#define ATTEMPT_KEY_BYTES 20u
#define REQUEST_BIASES_MAX 1024u
#define REQUEST_ALLOWED_MAX 16384u
#define REQUEST_BAD_MAX 4096u /* entries of the list that holds all bad words */

struct request_copy {
	struct reqid id;
	uint32_t attempt;
	uint64_t deadline_us;
	char router[48];
	uint64_t router_epoch;
	/* room_tokens: capacity of the array, which doubles as needed */
	uint32_t *tokens, n_tokens, room_tokens;
	uint32_t prompt_tokens, max_tokens;
	/* n_tokens on arrival: the prompt and the tokens of earlier attempts */
	uint32_t given_tokens;
	/* context length at which the answer ends: the model's, or the stage's limit */
	uint32_t limit_tokens;
	struct sample_params sampling;
	struct sample_edit *edit; /* NULL: none */
	/* copy of the message: request_copy_fill sends it, and `edit` reads its lists */
	Pds__Sampling *asked;
	Pds__Pooling pooling; /* not NONE: an embedding is made, nothing is drawn */
	int prompt_logprobs, ignore_eos;
	/* a draw cannot be prepared before the token before it is known, on which bad words depend */
	int needs_latest;
	int32_t prompt_top;            /* alternatives for a token of the prompt */
	struct constraint *constraint; /* NULL: none; constraint.h */
	uint32_t stop_ids[REQUEST_STOP_IDS_MAX], n_stop_ids;
	unsigned char cache_salt[CACHE_SALT_BYTES];
	int has_salt;
};

/* A key for struct map. */
struct attempt_key {
	unsigned char b[ATTEMPT_KEY_BYTES];
};
struct attempt_key attempt_key(const struct reqid *id, uint32_t attempt);
/* Of messages about this attempt. */
void request_copy_head(const struct request_copy *req, struct msg_head *ret);
struct worker;
struct worker_failure;
/* Tells the request's router, if it is still there, that the attempt has failed. */
void request_copy_fail(const struct request_copy *req, struct worker *w,
                       const struct worker_failure *f);

/* 0; ERR_INVALID with a sentence: the request does not fit the model (ids, context, parameters);
 * ERR_NOMEM. On error req is empty. */
int request_copy_init(struct request_copy *req, const struct msg_head *head, const Pds__Request *r,
                      const struct engine_info *info, struct err *err);
void request_copy_fini(struct request_copy *req);
/* Fills r and s; they point into req. */
void request_copy_fill(const struct request_copy *req, Pds__Request *r, Pds__Sampling *s);
/* Answer tokens so far; the next token has this index. */
static inline uint32_t request_copy_index(const struct request_copy *req)
{
	return req->n_tokens - req->prompt_tokens;
}
/* Its answer needs every token of the prompt to be computed: no prefix may be matched. */
static inline int request_copy_needs_all(const struct request_copy *req)
{
	return req->prompt_logprobs || req->pooling == PDS__POOLING__POOLING_MEAN;
}
/* The draw of the token after its own and `ahead` drafted ones, which are stored after them. */
struct engine_draw request_copy_draw(const struct request_copy *req, uint32_t ahead);
/* The draw of the token after the next one and `ahead` drafted ones, which only the device knows
 * yet; with `edit` none is drafted. */
struct engine_draw request_copy_draw_pending(const struct request_copy *req, uint32_t ahead);
/* The answer has no room for another token after `more` of them. */
static inline int request_copy_is_full(const struct request_copy *req, uint32_t more)
{
	return request_copy_index(req) + more >= req->max_tokens ||
	       req->n_tokens + more >= req->limit_tokens;
}
/* Asks for the probability of the prompt's token `at`. */
static inline struct engine_draw request_copy_score(const struct request_copy *req, uint32_t at)
{
	return (struct engine_draw){.score = 1, .id = req->tokens[at], .logprobs = req->prompt_top};
}
/* 0, or ERR_CORRUPT with a sentence if the logits were not finite. part: "prompt" or "answer"; at:
 * index of the token in it. */
int drawn_check_finite(const struct kern_drawn *r, const char *part, uint32_t at, struct err *err);
/* Appends the token and says whether it ends the answer. */
Pds__Finish request_copy_append(struct request_copy *w, uint32_t id,
                                const struct engine_info *info);

/* A Token message with its alternatives in one piece of memory; the caller frees it with free(). */
Pds__Token *drawn_token(const struct kern_drawn *r, int want_logprobs);

#endif
