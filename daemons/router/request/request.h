/* request.h - one request of a client that needs the model's text or workers: from its body to its
 * answers.
 *
 *   NEW -> IN_POOL, PREPARED, END        it is refused, prepared at once, or given to a text thread
 *   IN_POOL -> PREPARED, ABANDONED, END  a text thread prepares it
 *   ABANDONED -> END                     the client is gone, or has its error; the text thread is
 *                                        not done yet
 *   PREPARED -> STARTING, ANSWERED, END  prompts and parameters are known
 *   STARTING -> RUNNING, ANSWERED, END   its attempts are made and submitted to workers, in steps
 *   RUNNING -> ANSWERED, END             workers make its answers; what is streamed goes out at
 * once
 *   ANSWERED -> WRITING, END             all answers are complete; the long beginning or end of a
 *                                        stream may still be going out, in steps
 *   WRITING -> END                       a long whole answer is going out, in steps
 *   END                                  its memory is freed
 *
 * request_step moves it on: with each event the function of its state (step_...) acts and returns
 * the next state. request.c has those functions, prepare.h what a text thread may do, answer.c how
 * tokens become what is sent, write.c what is sent in steps.
 *
 * Memory is bounded by budget.h. Work whose amount a client decides is done in steps, each a
 * fraction of a millisecond; requests that have such work take turns.
 *
 * The request owns its answers, and each of them its attempt (attempt/attempt.h). It ends exactly
 * once: after its last answer, by a failure, or because the client left; its end cancels whatever
 * still runs at workers. */
#ifndef ROUTER_REQUEST_H
#define ROUTER_REQUEST_H

#include "caller.h"
#include "prepare.h"
#include "who.h"
#include "daemons/router/api/dialect.h"
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
	REQUEST_ON_ABORT,       /* by the operator or the client: what there is, is the answer */
	REQUEST_ON_DEADLINE,    /* of the present state */
	REQUEST_ON_CLIENT_GONE, /* conn is not valid any more */
	REQUEST_ON_STOP,        /* the router stops: the client is told so */
	REQUEST_ON_SHUTDOWN     /* the text threads have ended; nobody is told anything */
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
	/* takes over the text as soon as it is settled. NULL: the text is the answer */
	struct message *message;
	/* decoded and not yet given to the client; its end may be the beginning of a stop string */
	struct buf text;
	size_t chars;      /* code points of all text so far */
	uint32_t n_tokens; /* of the answer */
	uint64_t last_us;  /* when its last tokens came; 0: none came */
	struct rows rows;  /* log-probabilities since the last chunk, or all (dialect.keeps) */
	size_t charged;    /* of the quota, for the attempt's tokens */
	float *embedding;  /* (embed.dimensions); NULL: it is not here yet, or none was asked for */
	struct {           /* how much of the stream has been sent */
		size_t echo;   /* bytes of prompt->text */
		uint32_t rows; /* of prompt->rows */
		uint32_t ids;  /* of the answer's tokens */
		int role, prompt_ids;
	} given;
	/* the stream is behind: its beginning (what is echoed of the prompt, and its ids) is long, or
	 * what repeats an item that has ended. The request sends it in steps, and tokens wait
	 * meanwhile */
	int behind;
	int lost;                  /* no memory for something generated: the answer ends before it */
	enum answer_finish finish; /* not NONE: no further text */
	int stopped;               /* index of the stop string that ended it, or -1 */
	int64_t stop_id;           /* the one of stop_token_ids that ended it, or -1 */
	int model_ended;           /* by the model's own token, not by a limit or the client's wish */
};

/* Besides prep, all of it is the event loop's. */
struct request {
	struct request_prepare prep; /* first */
	enum request_state state;
	const struct dialect *dialect;
	struct router *r;
	struct list node;       /* router.requests */
	struct list turn;       /* router.turns while it has work to do in steps */
	struct http_conn *conn; /* NULL: the client is gone or has been told all */
	char id[64];
	struct who who;
	unsigned path; /* api_path */
	int status;    /* that the client was told; 0: 200, or nothing yet */
	struct caller *caller;
	struct tenant *tenant; /* NULL: no access key is needed */
	uint32_t running;      /* its part of tenant.running */
	uint64_t taken_tokens; /* from the tenant, for the prompts */
	uint64_t session;      /* of the header; 0: none */
	struct place_pin *pin; /* NULL: none */
	uint64_t begun_us, deadline_us;
	struct answer *answers;
	uint32_t n_answers, n_started, n_ended;
	uint32_t n_behind; /* answers that are */
	uint32_t counted;  /* in router.n_answers */
	uint64_t seed;     /* of the present prompt's first answer */
	struct {
		struct buf head;           /* members that all chunks share */
		struct answer_parts parts; /* of the present stage, or of a chunk */
		uint32_t stage;            /* of a whole answer: the next list of parts */
		int warned;                /* a stream's warnings are in its first event */
		struct {                   /* responses, messages: what has been made of a stream */
			int begun;
			uint32_t ended; /* responses: lists of the last event that have been made */
			uint32_t items; /* messages: blocks that have begun; responses: items that are over */
			/* messages: the last block */
			int in_block;
			enum message_kind kind;
			/* responses: the item that is not over */
			int step;        /* of its events, the next */
			size_t bytes;    /* that deltas have given of its text */
			uint32_t rows;   /* and of its log-probabilities: up to this row */
			uint64_t number; /* of the next event */
		} events;
	} reply;
};

/* Takes over the body. t: whose it is; NULL: no access key is needed. */
void request_begin(struct router *r, struct http_conn *q, enum request_kind kind,
                   const struct http_head *head, const struct http_body *body, struct tenant *t);
/* After it the request may be gone. */
void request_step(struct request *q, enum request_event e);
/* Too late to tell the client that there is no room or no memory for the rest of the answer. */
void request_cut(struct request *q);
void request_work_soon(struct request *q); /* it gets its turn (REQUEST_ON_TURN) */
/* Its answers are at work no more: others may have their places. */
void request_uncount(struct request *q);
void requests_stop(struct router *r);      /* fails all, with 503 */
void requests_shut_down(struct router *r); /* frees all; the text threads have ended */
/* An id as clients have it: 32 hex digits, behind a prefix (cmpl-, resp_) or not. 0 or
 * ERR_INVALID. */
int request_id_parse(const char *text, struct reqid *ret);
/* Ends the request of this attempt with what there is, finish reason "abort". The first attempt
 * stands for its request also when it has ended. of: only one of this tenant; NULL: any. 0 or
 * ERR_NOTFOUND. */
int request_abort(struct router *r, const struct reqid *id, const struct tenant *of);
/* The one line that a request leaves at the level `notice` when it ends (log.c). param: "" if it is
 * about none; why: "" if it was served. REQUEST_CLIENT_GONE is a status of the log alone, as nginx
 * has it. */
#define REQUEST_CLIENT_GONE 499
void request_log_end(struct request *q, const char *event, int status, const char *param,
                     const char *why);
uint64_t request_prompt_tokens(const struct request_prepare *p); /* of all its prompts */
/* Retry-After, X-Request-Id, what is left of the tenant's limits. e: what it is told; NULL: status
 * 200. out: REQUEST_HEADERS_MAX bytes */
void request_headers(const struct request *q, const struct api_error *e, char *out);

/* place/pin.c: which workers must take this request. 0 or -1 with the error set. */
int pin_read(struct request *q, const struct http_head *head);

/* answer.c */
void answer_init(struct answer *ans, struct request *q, struct prompt *prompt, uint32_t index);
void answer_fini(struct answer *ans);
extern const struct attempt_hooks answer_hooks;
void answer_finish(struct answer *ans, enum answer_finish finish);
/* Streams what there is. 0, or ERR_* when the client takes no more. */
int answer_send(struct answer *ans);
void answer_send_later(struct answer *ans);     /* in steps, as the client takes them (write.c) */
size_t answer_behind(const struct answer *ans); /* see dialect.behind; 0: it is not */
/* The next events of a stream: up to about max_size bytes of what it is behind with, then of its
 * text. 0 or ERR_FULL. */
int answer_send_event(struct answer *ans, size_t max_size);

/* write.c: what goes to the client in steps. The verdicts: */
enum write_verdict {
	WRITE_ALL,     /* all of it is out */
	WRITE_LATER,   /* the next step comes when the client has taken this one */
	WRITE_REFUSED, /* no room, or the client takes no more: prep.error, which it is to be told */
	WRITE_CUT      /* the same, too late to tell: the connection is closed */
};
void write_begin_stream(struct request *q);         /* does nothing if it has begun */
void write_soon(struct request *q);                 /* the next step, as soon as there is room */
enum write_verdict write_behind(struct request *q); /* a step of a stream that is behind */
void write_stream_end(struct request *q);
/* The first step of a whole answer, and each further one. */
enum write_verdict write_whole(struct request *q);
enum write_verdict write_more(struct request *q);

#endif
