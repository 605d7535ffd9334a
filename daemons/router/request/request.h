/* request.h - one request of a client that needs the model's text or workers: from its body to its
 * answers.
 *
 *   NEW -> IN_POOL, PREPARED, END        it is refused, prepared at once, or given to a text thread
 *   IN_POOL -> PREPARED, ABANDONED, END  a text thread prepares it
 *   ABANDONED -> END                     the client is gone, or has its error; the text thread is
 *                                        not done yet
 *   PREPARED -> STARTING, ANSWERED, END  prompts and parameters are known
 *   STARTING -> RUNNING, ANSWERED, END   its attempts are made and submitted to workers, in steps
 *   RUNNING -> ANSWERED, END             workers make its answers; streams are sent at once
 *   ANSWERED -> WRITING, END             all answers are complete; the long beginning or end of a
 *                                        stream may still be sent in steps
 *   WRITING -> END                       a long complete answer is sent in steps
 *   END                                  its memory is freed
 *
 * request_step (request.c) passes each event to the function of the state (step_...), which acts
 * and returns the next state. It stands on answer.c (tokens become text), that on write.c (what
 * goes to the client), that on log.c (what a request leaves when it ends). All use the formats in
 * api/, which read the structures below but call nothing here.
 *
 * Memory is bounded by budget.h. Work whose amount a client decides is done in steps, each a
 * fraction of a millisecond; requests that have such work take turns.
 *
 * The request owns its answers, and each of them its attempt (attempt/attempt.h). It ends
 * exactly once: after its last answer, by a failure, or because the client left; its end cancels
 * all that still runs at workers. */
#ifndef ROUTER_REQUEST_H
#define ROUTER_REQUEST_H

#include "caller.h"
#include "textpool.h"
#include "who.h"
#include "daemons/router/api/dialect.h"
#include "daemons/router/api/prepare.h"
#include "daemons/router/router.h"

#define CLIENT_TOO_SLOW                                                            \
	"the client does not take its answer fast enough, or there is no room for it " \
	"(client_buffer_bytes, output_bytes_max)"

enum request_state {
	REQUEST_NEW,
	REQUEST_IN_POOL,
	REQUEST_ABANDONED,
	REQUEST_PREPARED,
	REQUEST_STARTING,
	REQUEST_RUNNING,
	REQUEST_ANSWERED,
	REQUEST_WRITING,
	REQUEST_END
};

enum request_event {
	REQUEST_ON_ENTER,       /* the state has just been entered */
	REQUEST_ON_PREPARED,    /* the text thread has given it back */
	REQUEST_ON_TURN,        /* its turn to do a step of long work */
	REQUEST_ON_ANSWERED,    /* its last answer has ended */
	REQUEST_ON_FAILURE,     /* of an attempt, or the client is too slow: prep.error */
	REQUEST_ON_ABORT,       /* by operator or client, who gets what has been generated so far */
	REQUEST_ON_DEADLINE,    /* of the present state */
	REQUEST_ON_CLIENT_GONE, /* conn is not valid any more */
	REQUEST_ON_STOP,        /* the router stops: an error for the client */
	REQUEST_ON_SHUTDOWN     /* the text threads have ended; connections are closed */
};

#define REQUEST_HEADERS_MAX (200u + WHO_HEADERS_MAX + TENANT_HEADERS_MAX)
#define ANSWER_IDS_BYTES 1024u /* of an answer's tokens, charged from the beginning */

struct answer {
	struct request *request;
	struct attempt *attempt; /* NULL: not begun, or answered without a worker */
	struct prompt *prompt;
	uint32_t index;
	struct detok detok;
	struct stop_scan scan;
	struct message *message; /* text that cannot belong to a stop string; NULL: stays in `text` */
	/* decoded, not yet sent and not in the message; its end may be the beginning of a stop
	 * string */
	struct buf text;
	size_t chars;         /* code points of all text so far */
	uint32_t n_tokens;    /* of the answer */
	uint64_t last_us;     /* when its last tokens arrived; 0: none yet */
	struct row_list rows; /* log-probabilities since the last chunk, or all (dialect.keeps) */
	size_t charged;       /* of the quota, for the attempt's tokens */
	float *embedding;     /* (embed.dimensions); NULL: not arrived, or not wanted */
	struct {              /* how much of the stream has been sent */
		size_t echo;      /* bytes of prompt->text */
		uint32_t rows;    /* of prompt->rows */
		uint32_t ids;     /* of the answer's tokens */
		int role, prompt_ids;
	} given;
	/* the stream is behind: its beginning (the prompt's echo and ids), or events that repeat an
	 * item, are long. They are sent in steps, and tokens wait meanwhile */
	int behind;
	int lost;                  /* no memory for a generated token: the answer ends before it */
	enum answer_finish finish; /* not NONE: no further text */
	int stopped;               /* index of the stop string that ended it, or -1 */
	int64_t stop_id;           /* the one of stop_token_ids that ended it, or -1 */
	int model_ended;           /* the model's own token has ended it */
};

/* All of it is the event loop's, but for `prep` (prepare.h). */
struct request {
	struct text_job job; /* first */
	struct request_prepare prep;
	enum request_state state;
	const struct dialect *dialect;
	struct router *r;
	struct list node;       /* router.requests */
	struct list turn;       /* router.turns while it has work to do in steps */
	struct http_conn *conn; /* NULL: the client is gone, or its answer was handed over */
	char id[64];
	struct who who;
	unsigned path; /* of router.errors */
	int status;    /* of the error that the client was sent; 0: none */
	struct caller *caller;
	struct tenant *tenant; /* NULL: no access key is needed */
	uint32_t running;      /* its part of tenant.running */
	uint64_t taken_tokens; /* from the tenant, for the prompts */
	uint64_t session;      /* of the header; 0: none */
	struct place_pin *pin; /* NULL: none */
	uint64_t begun_us, deadline_us;
	struct answer *answers;
	uint32_t n_answers, n_started, n_ended;
	uint32_t n_behind; /* answers whose stream is behind */
	uint32_t counted;  /* in router.n_answers */
	uint64_t seed;     /* of the present prompt's first answer */
	struct {
		struct buf head;           /* members that all chunks share */
		struct answer_parts parts; /* of the present stage, or of a chunk */
		uint32_t stage;            /* of a complete answer: the next list of parts */
		int warned;                /* a stream's warnings are in its first event */
		struct {                   /* responses, messages: the state of a stream */
			int begun;
			uint32_t ended; /* responses: lists of the last event that have been made */
			uint32_t items; /* messages: blocks that have begun; responses: items that have ended */
			/* messages: the last block */
			int in_block;
			enum message_kind kind;
			/* responses: the open item */
			int step;        /* of its events, the next */
			size_t bytes;    /* that deltas have given of its text */
			uint32_t rows;   /* and of its log-probabilities: up to this row */
			uint64_t number; /* of the next event */
		} events;
	} reply;
};

/* Takes over the body. path: its number in router.errors. t: the tenant; NULL: no access key is
 * needed. */
void request_begin(struct router *r, struct http_conn *conn, enum request_kind kind, unsigned path,
                   const struct http_head *head, const struct http_body *body, struct tenant *t);
void requests_stop(struct router *r);      /* fails all, with 503 */
void requests_shut_down(struct router *r); /* frees all; the text threads have ended */
/* Ends the request that this attempt belongs to, with finish reason "abort": the client gets
 * what has been generated so far. The first attempt's id stands for its request also after that
 * attempt has ended. of: the tenant that the request must belong to; NULL: any. 0 or
 * ERR_NOTFOUND. */
int request_abort(struct router *r, const struct reqid *id, const struct tenant *of);

/* log.c */

/* An id as clients have it: 32 hex digits, with or without a prefix (cmpl-, resp_). 0 or
 * ERR_INVALID. */
int request_id_parse(const char *text, struct reqid *ret);
/* Logs the one line that a request leaves at the level `notice` when it ends, and counts its error.
 * param: "" if the error is about none; why: "" if the request was served. REQUEST_CLIENT_GONE is a
 * status of the log alone, as in nginx. */
#define REQUEST_CLIENT_GONE 499
void request_log_end(struct request *q, const char *event, int status, const char *param,
                     const char *why);
uint64_t request_prompt_tokens(const struct request_prepare *p); /* of all its prompts */
void request_count_answer(const struct answer *ans);             /* when the answer is complete */
void request_count_longest(const struct request *q);             /* when all its answers are */

/* pin.c: which workers must take this request. 0 or -1 with the error set. */
int pin_read(struct request *q, const struct http_head *head);

/* answer.c */

void answer_init(struct answer *ans, struct request *q, struct prompt *prompt, uint32_t index);
void answer_fini(struct answer *ans);
void answer_finish(struct answer *ans, enum answer_finish finish);
/* attempt_hooks; owner: the answer */
enum attempt_verdict answer_tokens(void *owner, struct attempt *a, Pds__Token *const *tokens,
                                   size_t n, enum answer_finish last);
void answer_prompt(void *owner, struct attempt *a, const Pds__PromptLogprobs *m, size_t from,
                   size_t n);
int answer_embedding(void *owner, struct attempt *a, const float *values);

/* write.c */

/* Writes Retry-After, X-Request-Id, and what is left of the tenant's limits. e: the error that the
 * client is told; NULL: status 200. out: REQUEST_HEADERS_MAX bytes */
void request_headers(const struct request *q, const struct api_error *e, char *out);
void request_work_soon(struct request *q); /* it gets its turn (REQUEST_ON_TURN) */
void requests_wake(struct router *r);      /* for the turns of requests, and of attempts */
/* Streams the text so far. 0, or ERR_* when the client takes no more. */
int write_answer(struct answer *ans);
void write_answer_in_steps(struct answer *ans); /* the same, as the client takes it */
enum write_verdict {
	WRITE_ALL,     /* all of it was sent */
	WRITE_LATER,   /* the next step is made when the client has taken this one */
	WRITE_REFUSED, /* no room, or the client takes no more: prep.error, for the client */
	WRITE_CUT      /* the same, too late to tell the client: the connection is closed */
};
enum write_verdict write_behind(struct request *q); /* a step of a stream that is behind */
void write_stream_end(struct request *q);
/* The first step of a complete answer, and each further one. */
enum write_verdict write_complete(struct request *q);
enum write_verdict write_more(struct request *q);

#endif
