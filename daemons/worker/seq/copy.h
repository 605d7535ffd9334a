/* copy.h - what a worker keeps of a request: a checked copy of the message, its tokens growing
 * as they are generated. */
#ifndef WORKER_SEQ_COPY_H
#define WORKER_SEQ_COPY_H

#include "engine/engine.h"
#include "msg/chan.h"

struct constraint;

#define REQUEST_STOP_IDS_MAX 64u
#define ATTEMPT_KEY_BYTES 20u
#define REQUEST_BIASES_MAX 1024u
#define REQUEST_ALLOWED_MAX 16384u
#define REQUEST_BAD_MAX 4096u /* of the list that holds all bad words */

struct request_copy {
	struct reqid id;
	uint32_t attempt;
	uint64_t deadline_us;
	char router[48];
	uint64_t router_epoch;
	/* room: of the array, grows by doubling up to the context */
	uint32_t *tokens, n_tokens, room_tokens;
	uint32_t prompt_tokens, max_tokens;
	/* n_tokens when it came: prompt and earlier attempts */
	uint32_t given_tokens;
	/* context length at which the answer ends: the model's, or what the stage has room for */
	uint32_t limit_tokens;
	struct sample_params sampling;
	struct sample_edit *edit; /* NULL: none */
	/* the message's, a copy: for request_copy_fill, and `edit` reads its lists */
	Pds__Sampling *asked;
	int prompt_logprobs, ignore_eos;
	int32_t prompt_top;            /* alternatives for a token of the prompt */
	struct constraint *constraint; /* NULL: none; constraint.h */
	uint32_t stop_ids[REQUEST_STOP_IDS_MAX], n_stop_ids;
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

/* ERR_INVALID with a sentence when the request does not fit the model (ids, context,
 * parameters); req is then empty. */
int request_copy_init(struct request_copy *req, const struct msg_head *head, const Pds__Request *r,
                      const struct engine_info *info, struct err *err);
void request_copy_fini(struct request_copy *req);
/* r and s point into req. */
void request_copy_fill(const struct request_copy *req, Pds__Request *r, Pds__Sampling *s);
/* Answer tokens so far; the next token has this index. */
static inline uint32_t request_copy_index(const struct request_copy *req)
{
	return req->n_tokens - req->prompt_tokens;
}
/* The draw of the token behind its own and `ahead` drafted ones, which stand behind them. */
struct engine_draw request_copy_draw(const struct request_copy *req, uint32_t ahead);
/* How probable its token `at`, of the prompt, was. */
static inline struct engine_draw request_copy_score(const struct request_copy *req, uint32_t at)
{
	return (struct engine_draw){.score = 1, .id = req->tokens[at], .logprobs = req->prompt_top};
}
/* 0, or ERR_CORRUPT with a sentence: the logits that r comes from are not finite. part: "prompt" or
 * "answer", of which they were for token `at`. */
int drawn_check_finite(const struct kern_drawn *r, const char *part, uint32_t at, struct err *err);
/* Appends the token and says whether it ends the answer. */
Pds__Finish request_copy_append(struct request_copy *w, uint32_t id,
                                const struct engine_info *info);

/* A Token message from a sample; alternatives and all live in one malloc'd piece: free(). */
Pds__Token *drawn_token(const struct kern_drawn *r, int want_logprobs);

#endif
