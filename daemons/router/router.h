/* router.h - the parts of the router. One thread, the event loop's. Only text jobs run elsewhere,
 * and they see a request_prepare (api/prepare.h) and the model alone. */
#ifndef ROUTER_ROUTER_H
#define ROUTER_ROUTER_H

#include "daemons/router/api/keys.h"
#include "daemons/router/api/model.h"
#include "daemons/router/place/registry.h"
#include "daemons/router/attempt/attempt.h"
#include "http/http.h"
#include "svc/svc.h"
#include "daemons/router/request/textpool.h"
#include "util/list.h"
#include "util/log.h"
#include "util/once.h"
#include "util/quota.h"

/* The numbers of the table router_stats that are in no other structure. */
struct router_stats {
	uint64_t http_requests, success_stop, success_length, preemptions;
	struct stat_seconds ttft, tpot, itl, queue, prefill, decode, e2e, prepare;
	struct stat_sizes answer_prompt, answer_tokens, answer_longest;
	/* as of the last page */
	uint64_t running, waiting, kv_index, kv_stored, retry_after;
	struct http_counts http;
};

/* metrics.c: figures that differ by worker, key, path, ... */
enum router_family {
	FAMILY_KV_USAGE,
	FAMILY_SUCCESS,
	FAMILY_REFUSED,
	FAMILY_FAILED,
	FAMILY_PLACED,
	FAMILY_TENANT_REQUESTS,
	FAMILY_TENANT_RUNNING,
	FAMILY_TENANT_PROMPT,
	FAMILY_TENANT_GENERATED,
	FAMILY_TENANT_REFUSED,
	FAMILY_WORKERS, /* the first of those of each worker */
	WORKER_VALUES = 16,
	FAMILY_COUNT = FAMILY_WORKERS + WORKER_VALUES
};

/* config.c: filled from the configuration; what can be reloaded changes with it */
struct router_conf {
	struct http_opts http;
	const char *model, *chat_template, *tool_parser, *reasoning_parser, *served_model_name,
		*api_keys_file, *cors_allow_origin;
	struct conf_items model_aliases;
	uint32_t max_model_len; /* 0: none */
	uint32_t max_requests, max_choices;
	int allow_pinning, refuse_unknown;
	int embeds_mean;             /* embedding_pooling: mean, else last */
	int cors;                    /* OPTIONS is answered */
	uint32_t default_max_tokens; /* 0: none */
	uint32_t max_attempts;
	uint64_t request_timeout_us, retry_wait_us, stuck_us;
	uint32_t text_threads;
	size_t memory_bytes, request_memory_bytes; /* of all requests; limit of one */
	unsigned policy[PLACE_STAGES];             /* POLICY_* */
	double kv_load_weight;
	uint32_t breaker_error_pct;
	uint64_t breaker_open_us;
	size_t index_entries_max;
};
extern const struct conf_key router_keys[];

#define API_PATHS_MAX 32

/* Answers with an error, by path and status. */
struct api_errors {
	uint64_t n[API_PATHS_MAX][200]; /* 400 to 599 */
	struct log_note
		note[2]; /* of lines about those that began no request; 1: with a tenant's key */
};

struct router {
	struct svc *svc; /* NULL in tests */
	struct event_base *base;
	struct router_conf conf;
	struct api_keys keys;
	struct registry registry;
	struct attempts attempts;
	struct model *model;
	struct http_server *http;
	struct text_pool *text;
	struct router_stats stats;
	struct svc_timer *peers_due;        /* workers are to be told of each other; NULL: they know */
	struct svc_timer *tick, *slow_tick; /* tick: NULL while there are no attempts */
	/* call it after attempt_new: starts `tick`. NULL in tests, which tick themselves */
	void (*wake)(struct router *r);
	struct quota_pool memory; /* budget.h */
	struct {                  /* requests that have work to do in steps: request.c */
		struct event *ev;
		struct list waiting;
	} turns;
	/* scratch for output to a client; its content is lost when the function returns */
	struct buf out;
	struct api_errors errors;
	struct once unknown;  /* parameters of requests that were logged */
	struct list requests; /* struct request, node */
	uint32_t n_requests, n_answers;
	struct map *callers; /* struct caller by key */
	int draining;
	uint64_t drain_us; /* draining: when it began */
};

/* request/log.c. path: its number in `errors`; 0: none of this server's */
void api_count_error(struct router *r, unsigned path, int status);
/* route.c. families: router_families */
void api_errors_render(const struct router *r, const struct stat_family *families, struct buf *out);
/* http_opts.error_body: the edge's own errors count too */
size_t api_edge_error(void *arg, const char *path, int status, const char *text, char *out,
                      size_t size);

/* request.c: set up before the first request, torn down after the last. r is zeroed except for its
 * base and configuration. */
void requests_init(struct router *r);
void requests_fini(struct router *r);
/* about every 30 s: drops clients that do not read their answers */
void requests_tick(struct router *r, uint64_t now);
/* route.c: http_handlers of every HTTP request */
int api_head(void *arg, struct http_conn *c, struct http_head *head, size_t *body_max);
void api_request(void *arg, struct http_conn *c, struct http_request *q);
/* Tokens of the longest prompt and answer together that can be served now; 0: unknown. */
uint32_t router_context(const struct router *r);
/* the value of Retry-After, now, as the workers' load suggests */
uint32_t router_retry_after_s(const struct router *r);
/* request/write.c: Retry-After of an answer that is this error, if it has one */
void router_error_headers(struct router *r, const struct api_error *e, char *out, size_t size);
/* links.c: svc_hooks and attempts_opts.send */
extern const struct svc_msg links_messages[];
int links_send(void *arg, struct worker_record *w, enum msg_type type, const struct msg_head *head,
               const void *body);
int links_admit(struct svc *s, const char *name, uint64_t epoch, const Pds__Hello *hello,
                char *reason, size_t reason_len);
void links_up(struct svc *s, struct peer *p);
void links_down(struct svc *s, struct peer *p, const char *why);
/* metrics.c */
extern const struct stat_row router_stats[];
extern const struct stat_family router_families[FAMILY_COUNT];
void metrics_render(struct router *r, struct buf *out);
/* ctl.c */
extern const struct svc_ctl router_ctl[];

#endif
