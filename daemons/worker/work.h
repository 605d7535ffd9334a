/* work.h - what a worker keeps of a request: a checked copy of the message, its tokens growing
 * as they are generated. */
#ifndef WORKER_WORK_H
#define WORKER_WORK_H

#include "engine/engine.h"
#include "msg/chan.h"

struct constraint;

#define WORK_STOP_IDS_MAX 64u
#define WORK_KEY_BYTES 20u
#define WORK_BIASES_MAX 1024u
#define WORK_ALLOWED_MAX 16384u
#define WORK_BAD_MAX 4096u /* of the list that holds all bad words */

struct work {
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
	/* the message's, a copy: for work_request, and `edit` reads its lists */
	Pds__Sampling *asked;
	int prompt_logprobs, ignore_eos;
	int32_t prompt_top;            /* alternatives for a token of the prompt */
	struct constraint *constraint; /* NULL: none; constraint.h */
	uint32_t stop_ids[WORK_STOP_IDS_MAX], n_stop_ids;
};

/* A key for struct map. */
struct work_key {
	unsigned char b[WORK_KEY_BYTES];
};
struct work_key work_key(const struct reqid *id, uint32_t attempt);

/* ERR_INVALID with a sentence when the request does not fit the model (ids, context,
 * parameters); w is then empty. */
int work_init(struct work *w, const struct msg_head *head, const Pds__Request *r,
              const struct engine_info *info, struct err *err);
void work_fini(struct work *w);
/* r and s point into w. */
void work_request(const struct work *w, Pds__Request *r, Pds__Sampling *s);
/* Answer tokens so far; the next token has this index. */
static inline uint32_t work_index(const struct work *w)
{
	return w->n_tokens - w->prompt_tokens;
}
/* The draw of the token behind its own and `ahead` drafted ones, which stand behind them. */
struct engine_draw work_draw(const struct work *w, uint32_t ahead);
/* How probable its token `at`, of the prompt, was. */
static inline struct engine_draw work_score(const struct work *w, uint32_t at)
{
	return (struct engine_draw){.score = 1, .id = w->tokens[at], .logprobs = w->prompt_top};
}
/* 0, or ERR_CORRUPT with a sentence: the logits that r comes from are not finite. part: "prompt" or
 * "answer", of which they were for token `at`. */
int work_check_finite(const struct kern_drawn *r, const char *part, uint32_t at, struct err *err);
/* Appends the token and says whether it ends the answer. */
Pds__Finish work_append(struct work *w, uint32_t id, const struct engine_info *info);

/* A Token message from a sample; alternatives and all live in one malloc'd piece: free(). */
Pds__Token *work_token(const struct kern_drawn *r, int want_logprobs);

#endif
