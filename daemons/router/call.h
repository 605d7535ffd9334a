/* call.h - one API call that needs the model's text or workers: from its body to its answer.
 *
 *   made -> prepared (here, or on a text thread when the body is long) -> its choices run as sequences -> answered
 *
 * The call owns its choices and they their sequences. It ends exactly once: by the last choice's end, by a failure, or by the client's leaving;
 * ending cancels whatever still runs, everywhere. */
#ifndef ROUTER_CALL_H
#define ROUTER_CALL_H

#include "api_error.h"
#include "message.h"
#include "params.h"
#include "router.h"
#include "text/chat_request.h"
#include "text/tokenizer.h"

enum call_kind { CALL_COMPLETION, CALL_CHAT, CALL_TOKENIZE, CALL_DETOKENIZE };

struct prompt {
	struct token_list tokens;
	struct prefixes prefixes;    /* hashes of its blocks; none when no policy asks */
	char *text;                  /* as given, when it is echoed; NULL: token ids were given */
	size_t text_len;
};

/* JSON fragments of log-probabilities, without their brackets; chat uses `content` alone. */
struct logprob_parts {
	struct buf content;          /* chat: objects; completions: token strings */
	struct buf values, top, offsets;
	struct buf prompt;           /* prompt_logprobs: one for each token of the prompt; sent once, at the end */
};

struct choice {
	struct call *call;
	struct seq *seq;             /* NULL: not begun, or answered without a worker */
	struct prompt *prompt;
	uint32_t index;
	struct detok detok;
	struct stop_scan scan;
	struct message *message;     /* chat: takes over the text as soon as it is settled. NULL: the text is the answer */
	struct buf text;             /* decoded and not yet given to the client; its end may be the beginning of a stop string */
	size_t chars;                /* code points of all text so far */
	uint32_t n_tokens;           /* of the answer */
	struct logprob_parts parts;  /* since the last chunk */
	struct buf ids;              /* "1,2,3", since the last chunk */
	int role_sent, prompt_sent;
	int stopped;                 /* index of the stop string that ended it, or -1 */
	int64_t stop_id;             /* stop_token_ids: which one ended it, or -1 */
	enum seq_finish finish;      /* not NONE: no further text */
	int ended;
};

struct call {
	struct text_job job;         /* first: a job is its call */
	struct list node;
	struct router *r;
	const struct model *model;
	struct http_conn *conn;      /* NULL: the client is gone */
	enum call_kind kind;
	int in_pool;
	struct http_body body;       /* until it is prepared */
	uint32_t context, vocab;     /* limits as they were when the call came */
	uint32_t max_model_len;      /* context, to show */
	uint32_t max_choices;
	size_t parse_bytes_max;
	struct prefix_roots roots;   /* of the workers that there were when the call came; none: no policy asks */
	uint64_t session;            /* of the header; 0: none */
	struct place_pin *pin;       /* NULL: none */
	struct api_error error;      /* of preparing */
	struct params p;
	struct message_opts message;   /* chat */
	int must_call;               /* chat: tool_choice is "required" or names a function */
	Pds__Constraint constraint;  /* the form of the answers; kind 0: none. text is the call's */
	struct prompt *prompts;
	size_t n_prompts;
	struct choice *choices;
	uint32_t n_choices, n_ended;
	int score_only;              /* max_tokens 0 with log-probabilities of the prompt: the one token that comes is not shown */
	char id[64];
	struct buf head;             /* the members that all chunks share */
	struct buf out;              /* an answer, or a chunk being built */
	int streaming;               /* the head of the stream is out */
	int over;                    /* ended; whatever its sequences say now is nobody's business */
	int64_t created_s;
	uint64_t begun_us, deadline_us, prepared_us, first_us;
};

/* What the body holds is the call's. */
void call_begin(struct router *r, struct http_conn *c, enum call_kind kind,
                const struct http_head *head, const struct http_body *body);
void call_fail(struct call *c, const struct api_error *e);           /* tells the client, ends and frees the call */
void call_stop_all(struct router *r);                                /* fails all, with 503 */
void call_abort_all(struct router *r);                               /* frees all; no text threads any more */
/* Ends the call in which this sequence is, with what there is, finish reason "abort". 0 or ERR_NOTFOUND. */
int call_abort(struct router *r, const struct reqid *id);
uint32_t call_prompt_tokens(const struct call *c);
uint32_t call_output_tokens(const struct call *c);
uint32_t call_cached_tokens(const struct call *c);

/* api_*.c: from JSON to prompts and parameters, or to the answer in `out`; may run on a text thread. 0 or -1 with c->error set. */
int api_completions_prepare(struct call *c, const json_t *o);
int api_chat_prepare(struct call *c, const json_t *o);
int api_tokenize_prepare(struct call *c, const json_t *o);
int api_detokenize_prepare(struct call *c, const json_t *o);
/* prompt.c: shared by them */
int prompt_need_text(struct call *c, const char *param);
int prompt_encode(struct call *c, struct prompt *p, const char *text, size_t len, const char *param);
int prompt_check_lengths(struct call *c, const char *param);
/* api_chat.c: the prompt of a chat request (o), appended to out. 0 or -1 with c->error set */
int chat_render(struct call *c, const json_t *o, struct buf *out);
int call_bad_body(struct call *c, const struct body_error *e);       /* -1 */

/* api_tools.c: what of the request is about tools and thoughts, into c->message. 0 or -1 with c->error set. */
int tools_read(struct call *c, const json_t *o, struct chat_tools *ret);
/* api_force.c: when the answer must be a call, its form. o: the request; prompt: as it was rendered. 0 or -1 with c->error set. */
int tools_force(struct call *c, const json_t *o, const char *prompt, size_t len);
/* api_format.c: what form the answers must have. 0 or -1 with c->error set. */
int format_read(struct call *c, const json_t *o);
int call_constrain(struct call *c, const char *param, unsigned kind, char *text, int strict);    /* kind: enum grammar_kind; text is malloc'd and taken */

/* pin.c: who must take this call. 0 or -1 with the error set. */
int pin_read(struct call *c, const struct http_head *head);

/* choice.c */
void choice_init(struct choice *ch, struct call *c, struct prompt *prompt, uint32_t index);
void choice_fini(struct choice *ch);
extern const struct seq_hooks choice_hooks;
void choice_finish(struct choice *ch, enum seq_finish finish);
/* call.c, for choice.c */
int call_chunk(struct call *c, struct choice *ch);       /* streams what the choice has; 0 or ERR_* when the client takes no more */
void call_choice_ended(struct call *c, struct choice *ch);
void call_prompt_logprobs(struct choice *ch, Pds__Token *const *tokens, size_t n);

/* logprob.c */
void logprob_add(struct choice *ch, const Pds__Token *t);            /* of an answer's token, before it is decoded */
void logprob_add_prompt(struct choice *ch, uint32_t id, const Pds__Token *t, size_t chars_before);   /* t NULL: the first one */
void logprob_add_prompt_entry(struct choice *ch, const Pds__Token *t);                               /* for prompt_logprobs; likewise */

/* reply.c */
void reply_head(struct call *c);
void reply_chunk(struct call *c, struct choice *ch, size_t text_len, struct buf *out);   /* one SSE event with text[0..text_len) */
int reply_is_empty(const struct choice *ch);   /* a chunk would tell nothing */
void reply_usage_chunk(struct call *c, struct buf *out);
void reply_whole(struct call *c, struct buf *out);

#endif
