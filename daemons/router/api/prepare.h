/* prepare.h - from a request's body to prompts and parameters: the part of a request that a text
 * thread may have. While a thread has it nobody else touches it; the thread sees nothing else of
 * the request.
 *
 * The functions return 0, or -1 with q->error set, unless they say otherwise. */
#ifndef ROUTER_PREPARE_H
#define ROUTER_PREPARE_H

#include "budget.h"
#include "chat_message.h"
#include "error.h"
#include "logprob.h"
#include "params.h"
#include "tenant.h"
#include "daemons/router/place/prefixes.h"
#include "http/http.h"
#include "text/chat_request.h"
#include "text/tokenizer.h"

enum request_kind {
	KIND_COMPLETION,
	KIND_CHAT,
	KIND_RESPONSES, /* these two are made into a chat request */
	KIND_MESSAGES,
	KIND_EMBEDDING,
	KIND_COUNT_TOKENS, /* of a request of KIND_MESSAGES */
	KIND_TOKENIZE,
	KIND_DETOKENIZE
};

/* Of a request for embeddings. */
struct embed_params {
	/* set by the event loop: elements of the workers' embeddings, 0 if none makes any; the default
	 * of `pooling` */
	uint32_t hidden, inputs_max;
	int never; /* no known worker makes embeddings, up or down */
	Pds__Pooling pooling;
	uint32_t dimensions; /* elements that the client wants */
	int normalize, base64;
};

/* Shared by the answers to it. */
struct prompt {
	struct token_list tokens;
	struct prefixes prefixes; /* hashes of its blocks; empty unless a policy uses them */
	struct buf text;          /* to be echoed; else empty */
	int is_given;             /* text is the client's own; else decoded from the tokens */
	size_t chars;             /* code points of text */
	struct buf ids;           /* "1,2,3": return_token_ids; else empty */
	/* log-probabilities, if wanted: row i belongs to token i. Complete before the first token of
	 * an answer */
	struct row_list rows;
	struct detok detok; /* of the tokens that have rows; gives their place in the text */
	size_t row_chars;
};

/* What is made from the body. It is the event loop's, but a text thread's while the request is
 * IN_POOL or ABANDONED (request/request.h). */
struct request_prepare {
	/* set by the event loop when the request arrives */
	enum request_kind kind;
	const struct model *model;
	int64_t created_s;
	uint32_t context, vocab; /* the limits at that time */
	uint32_t max_model_len;  /* context, for the answer of /tokenize */
	uint32_t prompt_max;     /* of the prefill workers; 0: unknown */
	uint32_t max_answers, default_max_tokens;
	int refuse_unknown; /* refuse unknown parameters instead of warning */
	/* the tenant whose cached prefixes it shares; "": those without a salt */
	char salt_name[TENANT_NAME_MAX];
	struct prefix_roots roots; /* of the workers at that time; empty: no policy uses them */
	struct http_body body;     /* freed when it is parsed; its len stays */
	int is_gzip;               /* the body is compressed */
	size_t body_max;           /* limit on the decompressed length */
	json_t *parsed;            /* the body, on its way to a text thread; else NULL */
	struct json_account json;
	struct quota quota; /* memory that the request holds, to its end */
	/* results */
	size_t extra_bytes; /* work beyond that of body.len bytes: text_job.more */
	struct api_error error;
	int refused; /* budget_refuse has set the error */
	struct params p;
	struct buf warnings;         /* members of a JSON array, for the answer; empty: none */
	struct buf echo;             /* responses: members of the answer that repeat the request */
	struct message_opts message; /* chat */
	int must_call;               /* chat: tool_choice is "required" or names a function */
	Pds__Constraint constraint;  /* form of the answers; kind 0: none. Owns its text */
	const char *bound_by;        /* the parameter that asked for it */
	unsigned char cache_salt[CACHE_SALT_BYTES]; /* if has_salt */
	int has_salt;
	struct prompt *prompts;
	size_t n_prompts;
	struct embed_params embed;
	int score_only; /* max_tokens 0 with prompt log-probabilities: the one token is not shown */
	struct buf out; /* count_tokens, tokenize and detokenize: the answer */
	uint64_t prepared_us;
};

/* The body becomes prompts and parameters. May take long: see request_parse_is_slow. */
void request_parse(struct request_prepare *q);
/* Parses the JSON of a short body. 1: request_parse will take long. 0: it will not, or there is an
 * error. */
int request_parse_is_slow(struct request_prepare *q);
void request_prepare_fini(struct request_prepare *q);
/* One file each: from JSON to prompts and parameters, or to the answer in `out`. */
int api_completions_prepare(struct request_prepare *q, const json_t *o);
int api_chat_prepare(struct request_prepare *q, const json_t *o);
int api_responses_prepare(struct request_prepare *q, const json_t *o);
int api_messages_prepare(struct request_prepare *q, const json_t *o);
int api_count_tokens_prepare(struct request_prepare *q, const json_t *o);
int api_tokenize_prepare(struct request_prepare *q, const json_t *o);
int api_detokenize_prepare(struct request_prepare *q, const json_t *o);
int api_embeddings_prepare(struct request_prepare *q, const json_t *o);
/* completions.c: the prompts, from a string, strings, ids or lists of ids */
int prompts_read(struct request_prepare *q, const json_t *v, const char *param);
/* prompt.c: shared by them */
int prompt_need_text(struct request_prepare *q, const char *param);
int prompt_encode(struct request_prepare *q, struct prompt *p, const char *text, size_t len,
                  const char *param);
int prompt_check_lengths(struct request_prepare *q, const char *param);
/* Keeps what the answer needs of the prompts besides their tokens: text, ids, rows. */
int prompt_keep(struct request_prepare *q);
/* Adds the next rows of a prompt: n of m's tokens, from `from` on. */
void prompt_add_rows(const struct request_prepare *q, struct prompt *p,
                     const Pds__PromptLogprobs *m, size_t from, size_t n);
/* Is it answered by workers? */
static inline int request_kind_needs_workers(enum request_kind k)
{
	return k <= KIND_EMBEDDING;
}
static inline const char *request_kind_max_tokens(enum request_kind k) /* the parameter's name */
{
	return k == KIND_RESPONSES ? "max_output_tokens" : "max_tokens";
}
static inline int prompt_rows_complete(const struct request_prepare *q, const struct prompt *p)
{
	return !q->p.sampling.prompt_logprobs || p->rows.n == p->tokens.n;
}
/* unknown.c: parameters that this server does not know become q->warnings, or are refused. */
int params_unknown(struct request_prepare *q, const json_t *o);
/* The schema of such a request's body, for /openapi.json. */
void params_describe(enum request_kind kind, struct buf *out);
/* Likewise for keywords of a schema that constrain nothing (grammar_ignored). where: the schema */
struct grammar;
int params_ignored(struct request_prepare *q, const char *param, const char *where,
                   const struct grammar *g);
/* Returns a new object with the members of o that this kind of request and a chat request have in
 * common. NULL: no memory. */
json_t *params_of_chat(const json_t *o, enum request_kind kind);
/* chat.c: the prompt of a chat request (o), appended to out. ret_tools: its tools, for
 * chat_tools_fini; NULL: not wanted */
int chat_render(struct request_prepare *q, const json_t *o, struct buf *out,
                struct chat_tools *ret_tools);
/* tools.c: reads what the request says about tools and thoughts into q->message. */
int tools_read(struct request_prepare *q, const json_t *o, struct chat_tools *ret);
/* Sets the form of an answer that must be a call. o: the request; prompt: as rendered. */
int tools_force(struct request_prepare *q, const json_t *o, const struct chat_tools *tools,
                const char *prompt, size_t len);
/* format.c: reads the form that the answers must have. */
int format_read(struct request_prepare *q, const json_t *o);
int format_is_asked(const json_t *o); /* 1: it has to be compiled, which takes milliseconds */
/* If the model thinks, the form applies to the answer after its thoughts. prompt: as rendered. */
int format_behind_thoughts(struct request_prepare *q, const char *prompt, size_t len);
/* The pieces (GRAMMAR_STRUCTURE) before those of a constrained answer, as an array that may be
 * empty: the rest of the thoughts that the prompt opened, or thoughts if the model wants them;
 * and, unless it is a call, what opens an answer. A new reference; NULL: no memory. */
json_t *format_thoughts(const struct request_prepare *q, const char *prompt, size_t len,
                        int is_call);
/* kind: enum grammar_kind; text is malloc'd and taken */
int format_constrain(struct request_prepare *q, const char *param, unsigned kind, char *text,
                     int strict);

#endif
