/* request.h - one request of a client that needs the model's text or workers: from its body to its
 * answers.
 *
 *   made --> prepared: on the event loop, or on a text thread if that may take long
 *        --> its answers run, each as an attempt (attempt/attempt.h)
 *        --> written
 *
 * What it may hold of memory: budget.h. What may take long on the event loop is done in steps
 * (pace.h): submitting its attempts, a long beginning of a streamed answer, a long whole answer.
 *
 * The request owns its answers and they their attempts. It ends exactly once: with the last answer,
 * with a failure, or when the client leaves; its end cancels whatever still runs, everywhere. */
#ifndef ROUTER_REQUEST_H
#define ROUTER_REQUEST_H

#include "daemons/router/api/error.h"
#include "budget.h"
#include "message.h"
#include "pace.h"
#include "daemons/router/api/params.h"
#include "daemons/router/api/parts.h"
#include "daemons/router/router.h"
#include "text/chat_request.h"
#include "text/tokenizer.h"

#define REQUEST_NOT_TAKEN                                                          \
	"the client does not take its answer fast enough, or there is no room for it " \
	"(client_buffer_bytes, output_bytes_max)"

enum request_kind { REQUEST_COMPLETION, REQUEST_CHAT, REQUEST_TOKENIZE, REQUEST_DETOKENIZE };

/* Shared by all answers of it. */
struct prompt {
	struct token_list tokens;
	struct prefixes prefixes; /* hashes of its blocks; none when no policy asks */
	struct buf text;          /* to be echoed; else empty */
	size_t chars;             /* its code points */
	struct buf ids;           /* "1,2,3": return_token_ids; else empty */
	/* log-probabilities, if they are wanted: row i is token i's. Complete before its first
	 * answer has a token */
	struct rows rows;
	struct detok detok; /* of the tokens that have rows: where in the text they are */
	size_t row_chars;
};

#define ANSWER_IDS_BYTES 1024u /* of an answer's tokens, that are counted from the beginning */

struct answer {
	struct request *request;
	struct attempt *attempt; /* NULL: not begun, or answered without a worker */
	struct prompt *prompt;
	uint32_t index;
	struct detok detok;
	struct stop_scan scan;
	/* chat: takes over the text as soon as it is settled. NULL: the text is the answer */
	struct message *message;
	/* decoded and not yet given to the client; its end may be the beginning of a stop string */
	struct buf text;
	size_t chars;       /* code points of all text so far */
	uint32_t n_tokens;  /* of the answer */
	uint32_t ids_given; /* of them, in chunks */
	struct rows rows;   /* log-probabilities since the last chunk */
	/* what a stream begins with: what is echoed of the prompt, and its ids. So much of it was
	 * sent: */
	size_t echo_given;   /* bytes of prompt->text */
	uint32_t rows_given; /* of prompt->rows */
	int role_sent, ids_sent;
	/* it is long: the request sends it in steps, and tokens wait meanwhile */
	int opening;
	size_t charged; /* of the quota, for the attempt's tokens */
	/* something that was generated found no memory: the answer ends before it */
	int lost;
	int stopped;     /* index of the stop string that ended it, or -1 */
	int64_t stop_id; /* stop_token_ids: which one ended it, or -1 */
	/* by a token of its own, not by a limit or what the client named */
	int model_ended;
	enum answer_finish finish; /* not NONE: no further text */
	int ended;
};

struct request {
	struct text_job job; /* first: a job is its request */
	struct list node;
	struct router *r;
	const struct model *model;
	struct http_conn *conn; /* NULL: the client is gone */
	enum request_kind kind;
	int in_pool;
	struct quota quota; /* what it may hold; used by whoever has the request */
	struct json_account json;
	json_t *parsed;          /* the body, between the event loop and a text thread; else NULL */
	struct http_body body;   /* until it is parsed; its len stays */
	uint32_t context, vocab; /* limits as they were when the request came */
	uint32_t max_model_len;  /* context, to show */
	uint32_t max_choices;
	/* of the workers that there were when the request came; none: no policy asks */
	struct prefix_roots roots;
	uint64_t session;       /* of the header; 0: none */
	struct place_pin *pin;  /* NULL: none */
	struct api_error error; /* of preparing */
	int refused;            /* by budget_refuse */
	struct params p;
	struct message_opts message; /* chat */
	int must_call;               /* chat: tool_choice is "required" or names a function */
	Pds__Constraint constraint;  /* the form of the answers; kind 0: none. text is the request's */
	const char *bound_by;        /* the parameter that asked for it */
	struct prompt *prompts;
	size_t n_prompts;
	struct answer *answers;
	uint32_t n_answers, n_started, n_ended;
	uint32_t counted;   /* in router.n_answers */
	uint32_t n_opening; /* answers with `opening` */
	struct paced paced;
	/* of a whole answer: 0: its head, i: answer i - 1, n_answers + 1: its end */
	uint32_t stage;
	struct parts parts; /* of that stage, or of a chunk */
	/* max_tokens 0 with log-probabilities of the prompt: the one token that comes is not shown */
	int score_only;
	char id[64];
	struct buf head; /* the members that all chunks share */
	struct buf out;  /* an answer, or a chunk being built */
	int streaming;   /* the head of the stream is out */
	int over;        /* ended; whatever its attempts say now is nobody's business */
	int writing;     /* over, and a long answer is being sent */
	int64_t created_s;
	uint64_t begun_us, deadline_us, prepared_us, first_us;
};

/* What the body holds is the request's. */
void request_begin(struct router *r, struct http_conn *q, enum request_kind kind,
                   const struct http_head *head, const struct http_body *body);
/* tells the client, ends and frees the request */
void request_fail(struct request *q, const struct api_error *e);
void request_stop_all(struct router *r); /* fails all, with 503 */
/* frees all; no text threads any more */
void request_abort_all(struct router *r);
/* Ends the request in which this attempt is, with what there is, finish reason "abort". 0 or
 * ERR_NOTFOUND. */
int request_abort(struct router *r, const struct reqid *id);
uint32_t request_prompt_tokens(const struct request *q);
uint32_t request_output_tokens(const struct request *q);
uint32_t request_cached_tokens(const struct request *q);

/* api_*.c: from JSON to prompts and parameters, or to the answer in `out`; may run on a text
 * thread. 0 or -1 with q->error set. */
int api_completions_prepare(struct request *q, const json_t *o);
int api_chat_prepare(struct request *q, const json_t *o);
int api_tokenize_prepare(struct request *q, const json_t *o);
int api_detokenize_prepare(struct request *q, const json_t *o);
/* prompt.c: shared by them */
int prompt_need_text(struct request *q, const char *param);
int prompt_encode(struct request *q, struct prompt *p, const char *text, size_t len,
                  const char *param);
int prompt_check_lengths(struct request *q, const char *param);
/* What the answer needs of the prompts besides their tokens; p is what it needs. 0 or -1 with
 * q->error set. */
int prompt_keep(struct request *q);
/* The next rows of a prompt: n of m's tokens, from `from` on. */
void prompt_add_rows(struct request *q, struct prompt *p, const Pds__PromptLogprobs *m, size_t from,
                     size_t n);
static inline int prompt_is_told(const struct request *q, const struct prompt *p)
{
	return !q->p.sampling.prompt_logprobs || p->rows.n == p->tokens.n;
}
/* chat.c: the prompt of a chat request (o), appended to out. 0 or -1 with q->error set */
int chat_render(struct request *q, const json_t *o, struct buf *out);
int request_bad_body(struct request *q, const struct body_error *e); /* -1 */

/* tools.c: what of the request is about tools and thoughts, into q->message. 0 or -1 with
 * q->error set. */
int tools_read(struct request *q, const json_t *o, struct chat_tools *ret);
/* force.c: when the answer must be a call, its form. o: the request; prompt: as it was
 * rendered. 0 or -1 with q->error set. */
int tools_force(struct request *q, const json_t *o, const char *prompt, size_t len);
/* thoughts.c: the pieces (GRAMMAR_STRUCTURE) before those of a bound answer, an array that may
 * be empty: the rest of the thoughts that the prompt opened, or thoughts if the model wants them;
 * and, unless it is a call, what opens an answer. A new reference; NULL: there is no memory. */
json_t *thoughts_first(const struct request *q, const char *prompt, size_t len, int is_call);
/* format.c: what form the answers must have. 0 or -1 with q->error set. */
int format_read(struct request *q, const json_t *o);
/* Of a model that thinks the form is that of the answer behind the thoughts. prompt: as it was
 * rendered. 0 or -1 as above. */
int format_behind_thoughts(struct request *q, const char *prompt, size_t len);
/* kind: enum grammar_kind; text is malloc'd and taken */
int request_constrain(struct request *q, const char *param, unsigned kind, char *text, int strict);

/* pin.c: who must take this request. 0 or -1 with the error set. */
int pin_read(struct request *q, const struct http_head *head);

/* answer.c */
void answer_init(struct answer *ans, struct request *q, struct prompt *prompt, uint32_t index);
void answer_fini(struct answer *ans);
extern const struct attempt_hooks answer_hooks;
void answer_finish(struct answer *ans, enum answer_finish finish);
/* request.c, for answer.c and write.c */
void request_answer_ended(struct request *q, struct answer *ans);
void request_free(struct request *q);
/* Retry-After, X-Request-Id */
void request_headers(const struct request *q, int status, uint32_t least_s, char *out, size_t size);
/* sends out some of its attempts. 1: there are more; 0: none; -1: it has failed and is gone */
int request_start_some(struct request *q);
/* write.c: the answer to the client, in one piece or in steps */
/* streams what the answer has; 0 or ERR_* when the client takes no more */
int answer_send(struct request *q, struct answer *ans);
/* all answers have ended: the rest of the answer is written, and the request is freed by then */
void request_finish(struct request *q);
/* likewise, of a request that needs no worker */
void request_write(struct request *q);
int request_step(struct paced *p);
/* all log-probabilities of a prompt are there */
void request_prompt_told(struct request *q);

/* reply.c */
void reply_head(struct request *q);
/* One SSE event: the next piece of what the answer begins with, and when that is all sent,
 * text[0..text_len) and what came with it. 1: that is in it. */
int reply_chunk(struct request *q, struct answer *ans, size_t text_len, struct buf *out);
int reply_is_empty(const struct answer *ans); /* a chunk would tell nothing */
/* about what a stream of it still begins with; 0: nothing */
size_t reply_opening_bytes(const struct answer *ans);
void reply_usage_chunk(struct request *q, struct buf *out);
/* Goes on with a whole answer until out has `most` bytes, or a little more. 1: to the end. */
int reply_more(struct request *q, struct buf *out, size_t most);

#endif
