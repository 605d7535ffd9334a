/* main.c - pdrouterd: the client edge. Requests come in over HTTP, attempts go out to workers,
 * tokens come back.
 *
 * The router computes nothing and stores nothing: after a restart it is complete again as soon as
 * the workers have sent HELLO. */
#include "daemons/router/request/request.h"
#include "util/check.h"
#include "util/clock.h"
#include "util/mem.h"

#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TICK_US 50000u
#define SLOW_TICK_US 30000000u
/* drain: input is read for this long, so that requests sent before the drain are served */
#define LAST_LOOK_US 30000u

static const struct conf_key keys[] = {
	{"http_listen", CONF_STRING, "127.0.0.1:8080", 2, 255, "HOST:PORT", 0, "where clients connect",
     NULL},
	{"http_tls_cert", CONF_STRING, "", 0, 1023, "path", 1,
     "PEM file with the certificate of the HTTP interface and its chain: clients then use "
     "https://; "
     "empty: plain HTTP. After a reload new connections get the new one",
     NULL},
	{"http_tls_key", CONF_STRING, "", 0, 1023, "path", 1,
     "PEM file with the private key of http_tls_cert, without a password", NULL},
	{"model", CONF_STRING, "", 0, 1023, "path", 0,
     "GGUF file (or folder) whose tokenizer and chat template are used; empty: token ids only",
     NULL},
	{"chat_template", CONF_STRING, "", 0, 1023, "path", 0,
     "file with a chat template to use instead of the model's own; empty: the model's own", NULL},
	{"tool_parser", CONF_STRING, "auto", 1, 32, "", 0,
     "how the model writes calls of tools; auto: as its chat template shows", TOOL_PARSERS},
	{"reasoning_parser", CONF_STRING, "auto", 1, 32, "", 0,
     "how the model marks its thoughts; auto: as its chat template shows", REASONING_PARSERS},
	{"served_model_name", CONF_STRING, "", 0, 127, "", 0,
     "name of the model in the API; empty: that of its file or folder", NULL},
	{"model_aliases", CONF_LIST, "", 0, 64, "", 0,
     "further names that requests may have for the model, [\"gpt-4o\", \"small\"]; \"*\": any. "
     "Answers and metrics have served_model_name",
     NULL},
	{"api_keys_file", CONF_STRING, "", 0, 1023, "path", 1,
     "file with a line for each access key of clients: name, hash, limits (pdctl apikey makes "
     "one); "
     "clients send the key as Authorization: Bearer KEY; empty: no key needed",
     NULL},
	{"unknown_parameters", CONF_STRING, "warn", 0, 0, "", 1,
     "what a request has that this server does not know: warn (a log line, and warnings in the "
     "answer) or refuse (400)",
     "warn|refuse"},
	{"max_model_len", CONF_INT, "0", 0, 2147483647, "tokens", 1,
     "limit on prompt and answer together; 0: as long as the model and the workers' KV blocks "
     "allow",
     NULL},
	{"default_max_tokens", CONF_INT, "0", 0, 2147483647, "tokens", 1,
     "length of an answer whose request does not limit it; 0: 16 for completions, for chat what "
     "the context leaves",
     NULL},
	{"cors_allow_origin", CONF_STRING, "", 0, 255, "", 0,
     "origin whose web pages may use the API, or *: any; empty: none", NULL},
	{"max_requests", CONF_INT, "4096", 1, 100000, "answers", 1,
     "answers in progress at once; beyond that the reply is 429, and for one access key or address "
     "already when it would leave less than about an eighth to others",
     NULL},
	{"max_choices", CONF_INT, "128", 1, 4096, "answers", 1,
     "answers of one request (prompts times n)", NULL},
	{"max_embedding_inputs", CONF_INT, "2048", 1, 100000, "inputs", 1,
     "inputs of one request to /v1/embeddings; at most 64 of them are at work at once", NULL},
	{"embedding_pooling", CONF_STRING, "last", 0, 0, "", 1,
     "how an embedding is made of the hidden states of an input's tokens, unless the request says "
     "so: last (only the last token has seen all others) or mean",
     "last|mean"},
	{"max_connections", CONF_INT, "8192", 1, 500000, "connections", 0,
     "open client connections; beyond that an idle one is closed to make room, or the reply is 503",
     NULL},
	{"max_connections_per_address", CONF_INT, "0", 0, 500000, "connections", 0,
     "connections of one client address (IPv6: one /64); 0: at most as many as remain free, so a "
     "single address gets half of max_connections",
     NULL},
	{"max_header_bytes", CONF_INT, "65536", 1024, 1048576, "bytes", 0,
     "size limit of a request's head", NULL},
	{"max_body_bytes", CONF_INT, "4194304", 1024, 1073741824, "bytes", 0,
     "size limit of a request's body", NULL},
	{"input_bytes_max", CONF_INT, "67108864", 65536, 1099511627776, "bytes", 0,
     "total size of requests being received or waiting to be parsed, all clients together; beyond "
     "that all but small ones get 503. One client address may hold at most as much as remains "
     "free, so a single one gets half",
     NULL},
	{"max_memory_mb", CONF_INT, "128", 8, 1048576, "MiB", 1,
     "memory of all requests together: JSON, prompts, log-probabilities, unsent answers; beyond "
     "that the reply is 429",
     NULL},
	{"max_request_memory_mb", CONF_INT, "64", 1, 1048576, "MiB", 1,
     "memory of one request; a request that certainly needs more is refused, an answer that grows "
     "beyond it ends with finish_reason length",
     NULL},
	{"client_buffer_bytes", CONF_INT, "8388608", 65536, 1073741824, "bytes", 0,
     "output that one client has not read yet; beyond that its request is given up", NULL},
	{"output_bytes_max", CONF_INT, "50331648", 1048576, 1099511627776, "bytes", 0,
     "output that all clients together have not read yet; an address, and a connection within its "
     "address, may hold at most as much as remains free; 4096 bytes always fit. Beyond that a "
     "stream is given up, and a whole answer waits or becomes 503",
     NULL},
	{"request_timeout_ms", CONF_INT, "600000", 100, 86400000, "ms", 1,
     "time from a request's arrival to its last token", NULL},
	{"idle_timeout_ms", CONF_INT, "75000", 100, 3600000, "ms", 0,
     "a connection without a request is closed after this time", NULL},
	{"read_timeout_ms", CONF_INT, "30000", 100, 3600000, "ms", 0,
     "time from a request's first byte to its last", NULL},
	{"write_timeout_ms", CONF_INT, "60000", 100, 3600000, "ms", 0,
     "a client that reads nothing for this long is disconnected", NULL},
	{"max_attempts", CONF_INT, "3", 1, 100, "attempts", 1,
     "consecutive failed attempts allowed for an answer; progress resets the count; at most 4 "
     "times as many in total",
     NULL},
	{"retry_wait_ms", CONF_INT, "10000", 0, 3600000, "ms", 1,
     "how long an answer waits for a worker after a failed attempt", NULL},
	{"retry_after_s", CONF_INT, "1", 1, 3600, "s", 1,
     "smallest Retry-After; raised according to the workers' backlog and measured rates", NULL},
	{"retry_after_max_s", CONF_INT, "60", 1, 3600, "s", 1, "largest Retry-After", NULL},
	{"stuck_ms", CONF_INT, "30000", 100, 3600000, "ms", 0,
     "a worker that has work but completes no layer of a step within this time loses its requests "
     "to others, and is chosen last",
     NULL},
	{"text_threads", CONF_INT, "2", 1, 64, "threads", 0,
     "threads that parse and tokenize long prompts; one access key or address has at most half of "
     "them while others wait",
     NULL},
	{"text_inline_bytes", CONF_INT, "4096", 0, 1048576, "bytes", 1,
     "bodies up to this size are handled on the event loop", NULL},
	{"text_queue", CONF_INT, "1024", 1, 100000, "requests", 0,
     "long prompts waiting to be tokenized; beyond that the reply is 429, and for one access key "
     "or "
     "address already when it would leave less than about an eighth to others",
     NULL},
	{"prefill_policy", CONF_STRING, "kv_aware", 1, 32, "", 1,
     "which prefill (or mixed) worker takes a request", POLICY_CHOICES},
	{"decode_policy", CONF_STRING, "kv_aware", 1, 32, "", 1,
     "which decode worker takes over, and in which order the others are candidates",
     POLICY_CHOICES},
	{"session_fallback", CONF_STRING, "kv_aware", 1, 32, "", 1,
     "policy that session_affinity uses for requests without a session, and when the worker of the "
     "session is overloaded",
     POLICY_CHOICES_LOAD},
	{"session_overload", CONF_FLOAT, "2", 1, 1000, "times", 1,
     "session_affinity avoids a worker whose tokens in flight exceed the mean by this factor",
     NULL},
	{"kv_load_weight", CONF_FLOAT, "0.5", 0, 1000, "", 1,
     "kv_aware: cost of a token waiting at a prefill worker, relative to an uncached token of the "
     "request",
     NULL},
	{"kv_restore_weight", CONF_FLOAT, "0.25", 0, 1, "", 1,
     "kv_aware: cost of a token read from storage's memory, relative to computing it, where the "
     "worker has not measured it",
     NULL},
	{"kv_disk_weight", CONF_FLOAT, "0.5", 0, 1, "", 1,
     "kv_aware: cost of a token read from storage's disk, relative to computing it, where the "
     "worker has not measured it",
     NULL},
	{"kv_transfer_weight", CONF_FLOAT, "0.1", 0, 1000, "", 1,
     "kv_aware: cost of a token to be sent to a decode worker, relative to one already there",
     NULL},
	{"kv_room_weight", CONF_FLOAT, "4", 0, 1000, "", 1,
     "kv_aware: cost of a token for which a decode worker has no room, relative to one already "
     "there",
     NULL},
	{"kv_sequence_tokens", CONF_INT, "256", 0, 1000000, "tokens", 1,
     "kv_aware: cost of a sequence at a decode worker, in tokens, on top of its context and the "
     "new one's",
     NULL},
	{"kv_predict_ms", CONF_INT, "5000", 0, 600000, "ms", 1,
     "kv_aware: how long the blocks of a newly placed prompt count as cached before its worker "
     "reports them; 0: not at all",
     NULL},
	{"kv_index_entries", CONF_INT, "262144", 1024, 16777216, "blocks", 1,
     "blocks known of each worker's prefix index, and of its host's storage; up to 43 bytes each; "
     "further blocks are not tracked",
     NULL},
	{"policy_seed", CONF_INT, "0", 0, 9007199254740991, "", 1,
     "seed of the random policies; the same seed gives the same choices; 0: random", NULL},
	{"allow_pinning", CONF_BOOL, "false", 0, 0, "", 1,
     "accept X-Pdserve-Prefill: NAME and X-Pdserve-Decode: NAME,NAME, for tests and benchmarks",
     NULL},
	{"breaker_error_pct", CONF_INT, "50", 0, 100, "percent", 1,
     "share of a worker's outcomes that are its own failures, from which on it is taken out for a "
     "while; 0: never",
     NULL},
	{"breaker_min_requests", CONF_INT, "10", 1, 1000000, "outcomes", 1,
     "outcomes needed within breaker_window_ms before a worker is judged", NULL},
	{"breaker_window_ms", CONF_INT, "30000", 100, 3600000, "ms", 1,
     "window of outcomes that are judged together", NULL},
	{"breaker_open_ms", CONF_INT, "5000", 10, 3600000, "ms", 1,
     "time until a worker that was taken out is tried with one request; doubles up to 16 times "
     "while trials fail. Also how long a prefill and a decode worker are not paired after a "
     "hand-over between them has failed",
     NULL},
	CONF_END,
};

static uint64_t ms(const struct conf *c, const char *key)
{
	return (uint64_t)conf_int(c, key) * 1000;
}

static void read_policies(struct registry *g, const struct conf *c)
{
	uint64_t seed = (uint64_t)conf_int(c, "policy_seed");
	g->policy = (struct policy_opts){
		.policy = {[PLACE_PREFILL] = policy_find(conf_str(c, "prefill_policy")),
	               [PLACE_DECODE] = policy_find(conf_str(c, "decode_policy"))},
		.session_fallback = policy_find(conf_str(c, "session_fallback")),
		.kv_load_weight = conf_float(c, "kv_load_weight"),
		.kv_restore_weight = conf_float(c, "kv_restore_weight"),
		.kv_disk_weight = conf_float(c, "kv_disk_weight"),
		.kv_transfer_weight = conf_float(c, "kv_transfer_weight"),
		.kv_room_weight = conf_float(c, "kv_room_weight"),
		.session_overload = conf_float(c, "session_overload"),
		.kv_sequence_tokens = (uint32_t)conf_int(c, "kv_sequence_tokens"),
		.kv_predict_us = ms(c, "kv_predict_ms"),
	};
	g->breaker = (struct breaker_opts){
		.window_us = ms(c, "breaker_window_ms"),
		.open_us = ms(c, "breaker_open_ms"),
		.error_pct = (unsigned)conf_int(c, "breaker_error_pct"),
		.min_requests = (unsigned)conf_int(c, "breaker_min_requests"),
	};
	registry_set_index_max(g, (size_t)conf_int(c, "kv_index_entries"));
	if (seed)
		g->draw = seed;
}

static void read_conf(struct router *r)
{
	const struct conf *c = svc_conf(r->svc);
	r->conf.max_requests = (uint32_t)conf_int(c, "max_requests");
	r->conf.max_model_len = (uint32_t)conf_int(c, "max_model_len");
	r->conf.default_max_tokens = (uint32_t)conf_int(c, "default_max_tokens");
	r->conf.max_choices = (uint32_t)conf_int(c, "max_choices");
	r->conf.embedding_inputs_max = (uint32_t)conf_int(c, "max_embedding_inputs");
	r->conf.embedding_pooling = strcmp(conf_str(c, "embedding_pooling"), "mean") == 0
	                                ? PDS__POOLING__POOLING_MEAN
	                                : PDS__POOLING__POOLING_LAST;
	r->conf.retry_after_s = (uint32_t)conf_int(c, "retry_after_s");
	r->conf.request_timeout_us = ms(c, "request_timeout_ms");
	r->conf.body_max = (size_t)conf_int(c, "max_body_bytes");
	r->conf.text_inline_bytes = (size_t)conf_int(c, "text_inline_bytes");
	r->conf.out_bytes_max = (size_t)conf_int(c, "client_buffer_bytes");
	size_t all = (size_t)conf_int(c, "max_memory_mb") << 20,
		   one = (size_t)conf_int(c, "max_request_memory_mb") << 20;
	r->memory.size = all;
	r->conf.request_memory_bytes = one < all - all / 8 ? one : all - all / 8;
	r->conf.retry_after_max_s = (uint32_t)conf_int(c, "retry_after_max_s");
	r->conf.allow_pinning = conf_bool(c, "allow_pinning");
	r->conf.refuse_unknown = strcmp(conf_str(c, "unknown_parameters"), "refuse") == 0;
	read_policies(&r->registry, c);
	r->attempts.opts.max_attempts = (uint32_t)conf_int(c, "max_attempts");
	r->attempts.opts.retry_wait_us = ms(c, "retry_wait_ms");
}

/* --- life ---------------------------------------------------------------- */

static void on_job_done(struct svc *s, void *arg)
{
	struct text_job *j = arg;
	(void)s;
	j->done(j);
}

static void post_job(void *arg, struct text_job *j)
{
	svc_post(arg, on_job_done, j);
}

/* The timer runs only while attempts or summaries wait, so that an idle router sleeps. */
static void on_tick(struct svc *s, void *arg)
{
	struct router *r = svc_data(s);
	(void)arg;
	attempts_tick(&r->attempts, clock_us());
	if (!attempts_count(&r->attempts) && list_empty(&r->attempts.late))
		svc_timer_del(&r->tick);
}

static void on_slow_tick(struct svc *s, void *arg)
{
	struct router *r = svc_data(s);
	(void)arg;
	uint64_t now = clock_us();
	registry_forget(&r->registry, now);
	requests_tick(r, now);
}

static void wake(struct router *r)
{
	if (!r->tick)
		r->tick = svc_timer_add(r->svc, TICK_US, on_tick, NULL);
}

/* ERR_INVALID: it is no origin. */
static int cors_headers(const char *origin, char *out, size_t size, struct err *err)
{
	out[0] = 0;
	if (!*origin)
		return 0;
	for (const char *s = origin; *s; s++)
		if (*s <= ' ' || *s > '~' || *s == ',')
			return err_set(err, ERR_INVALID,
			               "cors_allow_origin must be * or one origin, like https://chat.example, "
			               "got \"%.200s\"",
			               origin);
	snprintf(out, size, "Access-Control-Allow-Origin: %s\r\nAccess-Control-Expose-Headers: *\r\n%s",
	         origin, strcmp(origin, "*") == 0 ? "" : "Vary: Origin\r\n");
	return 0;
}

static int start_http(struct router *r, struct err *err)
{
	const struct conf *c = svc_conf(r->svc);
	char headers[400];
	if (cors_headers(conf_str(c, "cors_allow_origin"), headers, sizeof headers, err) < 0)
		return ERR_INVALID;
	r->conf.cors = headers[0] != 0;
	struct http_opts o = {
		.setting = "http_listen",
		.listen = conf_str(c, "http_listen"),
		.tls_cert = conf_str(c, "http_tls_cert"),
		.tls_key = conf_str(c, "http_tls_key"),
		.max_header_bytes = (size_t)conf_int(c, "max_header_bytes"),
		.max_body_bytes = (size_t)conf_int(c, "max_body_bytes"),
		.in_bytes_max = (size_t)conf_int(c, "input_bytes_max"),
		.out_bytes_max = (size_t)conf_int(c, "client_buffer_bytes"),
		.out_total_max = (size_t)conf_int(c, "output_bytes_max"),
		.max_connections = (unsigned)conf_int(c, "max_connections"),
		.max_per_address = (unsigned)conf_int(c, "max_connections_per_address"),
		.idle_us = ms(c, "idle_timeout_ms"),
		.read_us = ms(c, "read_timeout_ms"),
		.write_us = ms(c, "write_timeout_ms"),
		.headers = headers,
		.limits_are_settings = 1,
		.error_body = api_edge_error,
	};
	static const struct http_handlers handlers = {.head = api_head, .request = api_request};
	int rc = http_new(r->base, &o, &handlers, r, &r->http, err);
	if (rc == 0)
		log_notice("listening", "http=%s port=%u tls=%s model=%s", log_quote(o.listen),
		           http_port(r->http), *o.tls_cert ? "yes" : "no", log_quote(r->model->name));
	if (rc == 0 && !r->keys.by_place && !http_is_local(r->http))
		log_warn("http_open_to_others",
		         "http=%s why=\"other hosts can connect, and no access key is needed "
		         "(api_keys_file)\"",
		         log_quote(o.listen));
	return rc;
}

/* Includes descriptors for connections beyond max_connections, which are answered too
 * (common/http/server.c). */
static unsigned descriptors(const struct conf *c, const char **ret_key)
{
	*ret_key = "max_connections";
	return http_descriptors((unsigned)conf_int(c, *ret_key));
}

static int load_keys(struct router *r, struct err *err)
{
	int rc = api_keys_load(&r->keys, conf_str(svc_conf(r->svc), "api_keys_file"), clock_us(), err);
	if (rc == 0)
		log_notice("api_keys", "needed=%s keys=%zu", r->keys.by_place ? "yes" : "no", r->keys.n);
	return rc;
}

/* All or nothing: what may fail comes before what changes anything. */
static int on_reload(struct svc *s, struct err *err)
{
	struct router *r = svc_data(s);
	const char *cert = conf_str(svc_conf(s), "http_tls_cert"),
			   *key = conf_str(svc_conf(s), "http_tls_key");
	int rc = http_set_tls(NULL, cert, key, err);
	if (rc < 0 || (rc = load_keys(r, err)) < 0 || (rc = http_set_tls(r->http, cert, key, err)) < 0)
		return rc;
	read_conf(r);
	return 0;
}

static void on_drain(struct svc *s)
{
	struct router *r = svc_data(s);
	r->draining = 1;
	r->drain_us = clock_us();
	http_drain(r->http);
}

/* A request has ended when its answer is written, but the socket may still have unsent bytes of it.
 * Input that arrived before the drain is read even when nothing is in progress. */
static int on_idle(struct svc *s)
{
	struct router *r = svc_data(s);
	return clock_us() - r->drain_us >= LAST_LOOK_US && r->n_requests == 0 && !http_busy(r->http);
}

/* Requests that are still open get an error; there is a moment left to send it. */
static void on_expire(struct svc *s)
{
	struct router *r = svc_data(s);
	log_warn("requests_stopped", "requests=%u answers=%zu", r->n_requests,
	         attempts_count(&r->attempts));
	requests_stop(r);
	http_drain(r->http);
}

static void on_stop(struct svc *s)
{
	struct router *r = svc_data(s);
	svc_timer_del(&r->peers_due);
	svc_timer_del(&r->tick);
	svc_timer_del(&r->slow_tick);
	text_pool_destroy(&r->text);
	requests_shut_down(r);
	requests_fini(r);
	http_destroy(&r->http);
	api_keys_fini(&r->keys);
	attempts_fini(&r->attempts);
	registry_fini(&r->registry);
	served_model_close(&r->model);
	svc_set_data(s, NULL);
	free(r);
}

static void set_up_libraries(void)
{
	if (sodium_init() < 0)
		check_fatal("libsodium cannot draw random numbers: the system's random device is missing");
	json_object_seed(0);
	json_account_setup();
}

/* *ret_m may be set on errors, too. */
static int open_model(const struct conf *c, struct model **ret_m, struct err *err)
{
	const char *const *aliases;
	int rc = served_model_open(conf_str(c, "model"), conf_str(c, "served_model_name"), ret_m, err);
	if (rc < 0)
		return rc;
	unsigned n = (unsigned)conf_list(c, "model_aliases", &aliases);
	model_set_aliases(*ret_m, aliases, n);
	if ((rc = model_use_template(*ret_m, conf_str(c, "chat_template"), err)) < 0)
		return rc;
	return model_set_parsers(*ret_m, conf_str(c, "tool_parser"), conf_str(c, "reasoning_parser"),
	                         err);
}

static int on_check(struct svc *s, struct err *err)
{
	const struct conf *c = svc_conf(s);
	struct api_keys clients = {0};
	struct model *m = NULL;
	char headers[400];
	set_up_libraries();
	int rc = cors_headers(conf_str(c, "cors_allow_origin"), headers, sizeof headers, err);
	if (rc == 0 && svc_can_read(s, "http_tls_cert") && svc_can_read(s, "http_tls_key"))
		rc = http_set_tls(NULL, conf_str(c, "http_tls_cert"), conf_str(c, "http_tls_key"), err);
	if (rc == 0 && svc_can_read(s, "api_keys_file"))
		rc = api_keys_load(&clients, conf_str(c, "api_keys_file"), clock_us(), err);
	api_keys_fini(&clients);
	if (rc == 0 && svc_can_read(s, "model") && svc_can_read(s, "chat_template"))
		rc = open_model(c, &m, err);
	served_model_close(&m);
	return rc;
}

static int set_up(struct router *r, struct err *err)
{
	const struct conf *c = svc_conf(r->svc);
	int rc = open_model(c, &r->model, err);
	if (rc < 0)
		return rc;
	if (r->model->calls && strcmp(conf_str(c, "tool_parser"), "auto") != 0 &&
	    !model_shows_tools(r->model))
		log_warn("template_without_tools", "tool_parser=%s model=%s effect=%s",
		         log_quote(conf_str(c, "tool_parser")), log_quote(r->model->name),
		         log_quote("its chat template does not show tools to the model, so that it can "
		                   "hardly call one (setting chat_template)"));
	if (!r->model->tokenizer)
		log_warn("no_tokenizer", "model=%s effect=\"only prompts of token ids are served\"",
		         log_quote(r->model->name));
	r->text = text_pool_new((unsigned)conf_int(c, "text_threads"),
	                        (size_t)conf_int(c, "text_queue"), post_job, r->svc);
	r->slow_tick = svc_timer_add(r->svc, SLOW_TICK_US, on_slow_tick, NULL);
	r->wake = wake;
	if ((rc = load_keys(r, err)) < 0)
		return rc;
	return start_http(r, err);
}

static int on_start(struct svc *s, struct err *err)
{
	struct router *r = mem_zalloc(sizeof *r);
	set_up_libraries();
	svc_set_data(s, r);
	r->svc = s;
	r->base = svc_base(s);
	r->stats = svc_stats(s);
	requests_init(r);
	registry_init(&r->registry, ms(svc_conf(s), "stuck_ms"));
	struct attempts_opts o = {.arg = r, .send = links_send};
	attempts_init(&r->attempts, &r->registry, &o);
	read_conf(r);
	int rc = set_up(r, err);
	if (rc < 0)
		on_stop(s);
	return rc;
}

static void on_status(struct svc *s, struct buf *out)
{
	struct router *r = svc_data(s);
	const struct attempts_counts *n = &r->attempts.counts;
	buf_printf(out, ",\"http\":\"%s\",\"port\":%u,\"tls\":%s,\"connections\":%u,\"model\":",
	           conf_str(svc_conf(s), "http_listen"), http_port(r->http),
	           http_has_tls(r->http) ? "true" : "false", http_connections(r->http));
	buf_add_json(out, r->model->name, strlen(r->model->name));
	buf_printf(out,
	           ",\"workers\":%u,\"requests\":%zu,\"done\":%llu,\"failed\":%llu,\"cancelled\":%llu,"
	           "\"retries\":%llu,\"output_tokens\":%llu",
	           r->registry.n_up, attempts_count(&r->attempts), (unsigned long long)n->done,
	           (unsigned long long)n->failed, (unsigned long long)n->cancelled,
	           (unsigned long long)n->retries, (unsigned long long)n->output_tokens);
}

static void on_metrics(struct svc *s, struct buf *out)
{
	metrics_render(svc_data(s), out);
}

int main(int argc, char **argv)
{
	static const struct svc_hooks hooks = {
		.program = "pdrouterd",
		.default_name = "router",
		.keys = keys,
		.stats = router_stats,
		.n_stats = STAT_COUNT,
		.messages = links_messages,
		.ctl = router_ctl,
		.descriptors = descriptors,
		.check = on_check,
		.start = on_start,
		.reload = on_reload,
		.drain = on_drain,
		.idle = on_idle,
		.expire = on_expire,
		.stop = on_stop,
		.status = on_status,
		.metrics = on_metrics,
		.admit = links_admit,
		.up = links_up,
		.down = links_down,
	};
	return svc_main(argc, argv, &hooks);
}
