/* main.c - pdrouterd: the client edge. Requests in over HTTP, attempts out to workers, tokens
 * back.
 *
 * The router computes nothing and keeps nothing: a restarted one is whole again as soon as the
 * workers have said HELLO. */
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
#define LAST_LOOK_US 30000u /* before the end: what clients had sent by then is read */

static const struct conf_key keys[] = {
	{"http_listen", CONF_STRING, "127.0.0.1:8080", 2, 255, "HOST:PORT", 0, "where clients connect",
     NULL},
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
     "name of the model in the API; empty: the file's own", NULL},
	{"api_keys", CONF_LIST, "", 0, 64, "", CONF_RELOADABLE | CONF_SECRET,
     "clients must send one of these as Authorization: Bearer KEY; empty: no key needed", NULL},
	{"max_requests", CONF_INT, "4096", 1, 100000, "sequences", 1,
     "at work at once; past it the answer is 429", NULL},
	{"max_choices", CONF_INT, "128", 1, 4096, "answers", 1, "of one request: prompts times n",
     NULL},
	{"max_connections", CONF_INT, "8192", 1, 500000, "connections", 0,
     "open client connections; past it one without a request makes room, or the answer is 503",
     NULL},
	{"max_connections_per_address", CONF_INT, "0", 0, 500000, "connections", 0,
     "of one client address (IPv6: of one /64); 0: as many as it leaves to others, so one alone "
     "has half of max_connections",
     NULL},
	{"max_header_bytes", CONF_INT, "65536", 1024, 1048576, "bytes", 0, "of a request's head", NULL},
	{"max_body_bytes", CONF_INT, "4194304", 1024, 1073741824, "bytes", 0, "of a request's body",
     NULL},
	{"input_bytes_max", CONF_INT, "67108864", 65536, 1099511627776, "bytes", 0,
     "of requests that arrive or wait to be parsed, for all clients; past it the answer to all but "
     "small ones is 503. A client address may hold as many as it leaves to others, one alone half "
     "of them",
     NULL},
	{"max_memory_mb", CONF_INT, "128", 8, 1048576, "MiB", 1,
     "of all requests together: their JSON, prompts, log-probabilities, answers that were not "
     "sent; past it the answer is 429",
     NULL},
	{"max_request_memory_mb", CONF_INT, "64", 1, 1048576, "MiB", 1,
     "of one request; one that needs more for certain is refused, an answer that grows past it "
     "ends with finish_reason length",
     NULL},
	{"client_buffer_bytes", CONF_INT, "8388608", 65536, 1073741824, "bytes", 0,
     "not yet taken by one client; past it its request is given up", NULL},
	{"output_bytes_max", CONF_INT, "50331648", 1048576, 1099511627776, "bytes", 0,
     "not yet taken by all clients; an address may leave as many as it leaves to others, one alone "
     "half of them, and a connection as many as it leaves to others of its address; 4096 always "
     "fit. Past it a stream is given up, a whole answer waits or becomes 503",
     NULL},
	{"request_timeout_ms", CONF_INT, "600000", 100, 86400000, "ms", 1,
     "from a request's arrival to its last token", NULL},
	{"idle_timeout_ms", CONF_INT, "75000", 100, 3600000, "ms", 0,
     "a connection without a request is closed", NULL},
	{"read_timeout_ms", CONF_INT, "30000", 100, 3600000, "ms", 0,
     "from a request's first byte to its last", NULL},
	{"write_timeout_ms", CONF_INT, "60000", 100, 3600000, "ms", 0,
     "a client that takes nothing for so long is gone", NULL},
	{"max_attempts", CONF_INT, "3", 1, 100, "attempts", 1,
     "of a sequence that workers may lose in a row before it fails; after one that brought tokens "
     "the count begins anew, to 4 times as many in all",
     NULL},
	{"retry_wait_ms", CONF_INT, "10000", 0, 3600000, "ms", 1,
     "how long a lost attempt waits for a worker", NULL},
	{"retry_after_s", CONF_INT, "1", 1, 3600, "s", 1,
     "the least that Retry-After says; more when the workers' backlog and measured rates say so",
     NULL},
	{"retry_after_max_s", CONF_INT, "60", 1, 3600, "s", 1, "the most that Retry-After says", NULL},
	{"stuck_ms", CONF_INT, "30000", 100, 3600000, "ms", 0,
     "a worker that has work but completes no layer of a step for so long loses its requests to "
     "others, and is chosen last",
     NULL},
	{"text_threads", CONF_INT, "2", 1, 64, "threads", 0,
     "for parsing and tokenizing of long prompts", NULL},
	{"text_inline_bytes", CONF_INT, "4096", 0, 1048576, "bytes", 1,
     "bodies up to this size are handled on the event loop", NULL},
	{"text_queue", CONF_INT, "1024", 1, 100000, "requests", 0,
     "long prompts that wait to be tokenized; past it the answer is 429", NULL},
	{"prefill_policy", CONF_STRING, "kv_aware", 1, 32, "", 1,
     "which prefill (or mixed) worker takes a request", POLICY_CHOICES},
	{"decode_policy", CONF_STRING, "kv_aware", 1, 32, "", 1,
     "which decode worker goes on, and the order of the others", POLICY_CHOICES},
	{"session_fallback", CONF_STRING, "kv_aware", 1, 32, "", 1,
     "policy of session_affinity for requests without a session, and when its worker has too much",
     POLICY_CHOICES_LOAD},
	{"session_overload", CONF_FLOAT, "2", 1, 1000, "times", 1,
     "session_affinity gives way past so many times the mean of tokens in flight", NULL},
	{"kv_load_weight", CONF_FLOAT, "0.5", 0, 1000, "", 1,
     "kv_aware: what a token that waits at a prefill worker weighs against an uncached token of "
     "the request",
     NULL},
	{"kv_restore_weight", CONF_FLOAT, "0.25", 0, 1, "", 1,
     "kv_aware: what a token to be read from storage's memory weighs against one to be computed, "
     "where the worker has not measured that",
     NULL},
	{"kv_disk_weight", CONF_FLOAT, "0.5", 0, 1, "", 1,
     "kv_aware: what a token to be read from storage's disk weighs against one to be computed, "
     "where the worker has not measured that",
     NULL},
	{"kv_transfer_weight", CONF_FLOAT, "0.1", 0, 1000, "", 1,
     "kv_aware: what a token to be sent to a decode worker weighs against one that is there", NULL},
	{"kv_room_weight", CONF_FLOAT, "4", 0, 1000, "", 1,
     "kv_aware: what a token that finds no room at a decode worker weighs against one that is "
     "there",
     NULL},
	{"kv_sequence_tokens", CONF_INT, "256", 0, 1000000, "tokens", 1,
     "kv_aware: what a sequence at a decode worker weighs besides the context that it has and the "
     "new one brings",
     NULL},
	{"kv_predict_ms", CONF_INT, "5000", 0, 600000, "ms", 1,
     "kv_aware: how long blocks of a prompt that was just placed count as there before its worker "
     "says so; 0: not at all",
     NULL},
	{"kv_index_entries", CONF_INT, "262144", 1024, 16777216, "blocks", 1,
     "known of each worker's prefix index, and as many of its host's storage, at most 43 bytes "
     "each; what comes past it is not known",
     NULL},
	{"policy_seed", CONF_INT, "0", 0, 9007199254740991, "", 1,
     "of the policies that draw: equal seeds, equal choices; 0: drawn at start", NULL},
	{"allow_pinning", CONF_BOOL, "false", 0, 0, "", 1,
     "take X-Pdserve-Prefill: NAME and X-Pdserve-Decode: NAME,NAME, for tests and benchmarks",
     NULL},
	{"breaker_error_pct", CONF_INT, "50", 0, 100, "percent", 1,
     "of a worker's outcomes that are its own failures; from there on it is left out for a while; "
     "0: never",
     NULL},
	{"breaker_min_requests", CONF_INT, "10", 1, 1000000, "outcomes", 1,
     "within breaker_window_ms, before that is judged", NULL},
	{"breaker_window_ms", CONF_INT, "30000", 100, 3600000, "ms", 1,
     "of outcomes that are judged together", NULL},
	{"breaker_open_ms", CONF_INT, "5000", 10, 3600000, "ms", 1,
     "until a worker that was left out is tried with one request; doubles up to 16 times that "
     "while trials fail",
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
	const char *const *api_keys;
	int n_api_keys = conf_list(c, "api_keys", &api_keys);
	api_keys_set(&r->keys, api_keys, (size_t)n_api_keys);
	r->conf.max_requests = (uint32_t)conf_int(c, "max_requests");
	r->conf.max_choices = (uint32_t)conf_int(c, "max_choices");
	r->conf.retry_after_s = (uint32_t)conf_int(c, "retry_after_s");
	r->conf.request_timeout_us = ms(c, "request_timeout_ms");
	r->conf.text_inline_bytes = (size_t)conf_int(c, "text_inline_bytes");
	r->conf.out_bytes_max = (size_t)conf_int(c, "client_buffer_bytes");
	size_t all = (size_t)conf_int(c, "max_memory_mb") << 20,
		   one = (size_t)conf_int(c, "max_request_memory_mb") << 20;
	r->memory.size = all;
	r->conf.request_memory_bytes = one < all - all / 8 ? one : all - all / 8;
	r->conf.retry_after_max_s = (uint32_t)conf_int(c, "retry_after_max_s");
	r->conf.allow_pinning = conf_bool(c, "allow_pinning");
	read_policies(&r->registry, c);
	r->attempts.opts.max_attempts = (uint32_t)conf_int(c, "max_attempts");
	r->attempts.opts.retry_wait_us = ms(c, "retry_wait_ms");
}

/* --- workers ------------------------------------------------------------- */

static int send_to_worker(void *arg, struct worker *w, enum msg_type type,
                          const struct msg_head *head, const void *body)
{
	struct router *r = arg;
	return svc_send(r->svc, w->peer, type, head, body);
}

static void add_peer(Pds__Peer *p, struct worker *w)
{
	pds__peer__init(p);
	p->name = w->name;
	p->endpoint = w->endpoint;
	p->role = (char *)worker_role_name(w->role);
	p->epoch = w->epoch;
}

/* Tells every worker who the others are, so that their connections exist before the first
 * request. */
static void send_peers(struct router *r)
{
	unsigned n = r->registry.n_up;
	Pds__Peer *peers = mem_array(n, sizeof *peers), **list = mem_array(n, sizeof *list);
	list_each(to, &r->registry.workers) {
		struct worker *w = list_entry(to, struct worker, node);
		struct msg_head head = {0};
		Pds__Peers body = PDS__PEERS__INIT;
		if (!worker_is_up(w))
			continue;
		list_each(it, &r->registry.workers) {
			struct worker *o = list_entry(it, struct worker, node);
			if (o == w || !worker_is_up(o))
				continue;
			add_peer(&peers[body.n_peers], o);
			list[body.n_peers] = &peers[body.n_peers];
			body.n_peers++;
		}
		body.peers = list;
		svc_send(r->svc, w->peer, MSG_PEERS, &head, &body);
	}
	free(peers);
	free(list);
}

static int on_admit(struct svc *s, const char *name, uint64_t epoch, const Pds__Hello *hello,
                    char *reason, size_t reason_len)
{
	struct router *r = svc_data(s);
	(void)epoch;
	if (!hello->worker)
		return 0;
	return registry_admit(&r->registry, name, hello->worker,
	                      r->model->tokenizer ? tokenizer_size(r->model->tokenizer) : 0, reason,
	                      reason_len);
}

static void on_up(struct svc *s, struct peer *p)
{
	struct router *r = svc_data(s);
	const Pds__WorkerInfo *info = peer_worker(p);
	if (!info)
		return;
	struct worker *w = registry_up(&r->registry, p, peer_name(p), peer_epoch(p), info, clock_us());
	peer_set_data(p, w);
	log_info("worker_up", "worker=%s role=%s epoch=%016llx endpoint=%s numerics=%s blocks=%u",
	         w->name, worker_role_name(w->role), (unsigned long long)w->epoch,
	         log_quote(w->endpoint), log_quote(w->numerics), w->blocks);
	send_peers(r);
	attempts_worker_up(&r->attempts);
}

static void on_down(struct svc *s, struct peer *p, const char *why)
{
	struct router *r = svc_data(s);
	/* no router: it has ended, and its registry with it */
	struct worker *w = r ? peer_data(p) : NULL;
	if (!w || w->peer != p)
		return;
	log_warn("worker_down", "worker=%s requests=%u why=%s", w->name, w->requests, log_quote(why));
	enum worker_end how = peer_said_goodbye(p) ? WORKER_GOODBYE : WORKER_LOST;
	if (peer_begins_anew(p))
		how = WORKER_ANEW;
	registry_down(&r->registry, w, clock_us());
	if (how == WORKER_GOODBYE)
		registry_ended_in_order(w);
	attempts_worker_down(&r->attempts, w, why, how);
	send_peers(r);
}

static struct worker *sender(struct peer *p)
{
	struct worker *w = peer_data(p);
	return w && w->peer == p ? w : NULL;
}

static void on_first_token(struct svc *s, struct peer *p, const struct msg_head *head,
                           const ProtobufCMessage *body)
{
	struct router *r = svc_data(s);
	struct worker *w = sender(p);
	if (w)
		attempts_first_token(&r->attempts, w, head, (const Pds__FirstToken *)body);
}

static void on_prompt_logprobs(struct svc *s, struct peer *p, const struct msg_head *head,
                               const ProtobufCMessage *body)
{
	struct router *r = svc_data(s);
	struct worker *w = sender(p);
	if (w)
		attempts_prompt(&r->attempts, w, head, (const Pds__PromptLogprobs *)body);
}

static void on_tokens(struct svc *s, struct peer *p, const struct msg_head *head,
                      const ProtobufCMessage *body)
{
	struct router *r = svc_data(s);
	struct worker *w = sender(p);
	(void)head;
	if (w)
		attempts_tokens(&r->attempts, w, (const Pds__Tokens *)body);
}

static void on_failed(struct svc *s, struct peer *p, const struct msg_head *head,
                      const ProtobufCMessage *body)
{
	struct router *r = svc_data(s);
	struct worker *w = sender(p);
	if (w)
		attempts_failed(&r->attempts, w, head, (const Pds__Failed *)body);
}

static void on_heartbeat(struct svc *s, struct peer *p, const struct msg_head *head,
                         const ProtobufCMessage *body)
{
	struct worker *w = sender(p);
	(void)s;
	(void)head;
	if (w)
		registry_beat(w, (const Pds__Heartbeat *)body, clock_us());
}

static void on_kv_events(struct svc *s, struct peer *p, const struct msg_head *head,
                         const ProtobufCMessage *body)
{
	struct router *r = svc_data(s);
	struct worker *w = sender(p);
	(void)head;
	if (w)
		registry_kv_events(&r->registry, w, (const Pds__KvEvents *)body);
}

/* A role was switched: the peers hear of it, and what waited for such a worker is tried. What
 * runs there stays what it is. */
static void on_worker_update(struct svc *s, struct peer *p, const struct msg_head *head,
                             const ProtobufCMessage *body)
{
	struct router *r = svc_data(s);
	struct worker *w = sender(p);
	const Pds__WorkerUpdate *m = (const Pds__WorkerUpdate *)body;
	char why[256];
	(void)head;
	if (!w || !m->worker)
		return;
	enum worker_role had = w->role;
	if (registry_update(&r->registry, w, m->worker, why, sizeof why) < 0) {
		log_warn("worker_update_refused", "worker=%s why=%s", w->name, log_quote(why));
		return;
	}
	log_info("worker_update", "worker=%s from=%s role=%s requests=%u", w->name,
	         worker_role_name(had), worker_role_name(w->role), w->requests);
	send_peers(r);
	attempts_worker_up(&r->attempts);
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

/* Only while there is something to tick for: an idle router sleeps. */
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

static size_t edge_error(int status, const char *text, char *out, size_t size)
{
	struct api_error e = {0};
	struct buf b;
	api_fault(&e, status, "%s", text);
	buf_init(&b, size - 1);
	api_error_json(&e, &b);
	size_t n = b.len;
	memcpy(out, b.data, n);
	buf_fini(&b);
	return n;
}

static int start_http(struct router *r, struct err *err)
{
	const struct conf *c = svc_conf(r->svc);
	struct http_opts o = {
		.listen = conf_str(c, "http_listen"),
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
		.error_body = edge_error,
	};
	static const struct http_handlers handlers = {.head = api_head, .request = api_request};
	int rc = http_new(r->base, &o, &handlers, r, &r->http, err);
	if (rc == 0)
		log_info("listening", "http=%s port=%u model=%s", log_quote(o.listen), http_port(r->http),
		         log_quote(r->model->name));
	return rc;
}

/* Connections past max_connections are answered, too (listen.c). */
static unsigned descriptors(const struct conf *c, const char **ret_key)
{
	*ret_key = "max_connections";
	return http_descriptors((unsigned)conf_int(c, *ret_key));
}

static void on_reload(struct svc *s)
{
	read_conf(svc_data(s));
}

static void on_drain(struct svc *s)
{
	struct router *r = svc_data(s);
	r->draining = 1;
	r->drain_us = clock_us();
	http_drain(r->http);
}

/* A request has ended when its answer is written; the client may still have to take what the socket
 * had no room for. What was sent before the end began is looked at, even when nothing is left to
 * do. */
static int on_idle(struct svc *s)
{
	struct router *r = svc_data(s);
	return clock_us() - r->drain_us >= LAST_LOOK_US && r->n_requests == 0 && !http_busy(r->http);
}

/* What is not answered by now is told so; the answers have a moment to leave. */
static void on_expire(struct svc *s)
{
	struct router *r = svc_data(s);
	log_warn("requests_stopped", "requests=%u answers=%zu", r->n_requests,
	         attempts_count(&r->attempts));
	request_stop_all(r);
	http_drain(r->http);
}

static void on_stop(struct svc *s)
{
	struct router *r = svc_data(s);
	svc_timer_del(&r->tick);
	svc_timer_del(&r->slow_tick);
	text_pool_destroy(&r->text);
	request_abort_all(r);
	requests_fini(r);
	http_destroy(&r->http);
	api_keys_fini(&r->keys);
	attempts_fini(&r->attempts);
	registry_fini(&r->registry);
	model_close(&r->model);
	svc_set_data(s, NULL);
	free(r);
}

static int set_up(struct router *r, struct err *err)
{
	const struct conf *c = svc_conf(r->svc);
	int rc = model_open(conf_str(c, "model"), conf_str(c, "served_model_name"), &r->model, err);
	if (rc < 0)
		return rc;
	rc = model_use_template(r->model, conf_str(c, "chat_template"), err);
	if (rc < 0)
		return rc;
	rc = model_set_parsers(r->model, conf_str(c, "tool_parser"), conf_str(c, "reasoning_parser"),
	                       err);
	if (rc < 0)
		return rc;
	if (!r->model->tokenizer)
		log_warn("no_tokenizer", "model=%s effect=\"only prompts of token ids are served\"",
		         log_quote(r->model->name));
	r->text = text_pool_new((unsigned)conf_int(c, "text_threads"),
	                        (size_t)conf_int(c, "text_queue"), post_job, r->svc);
	r->slow_tick = svc_timer_add(r->svc, SLOW_TICK_US, on_slow_tick, NULL);
	r->wake = wake;
	return start_http(r, err);
}

static int on_start(struct svc *s, struct err *err)
{
	struct router *r = mem_zalloc(sizeof *r);
	if (sodium_init() < 0)
		check_fatal("libsodium cannot draw random numbers: the system's random device is missing");
	json_object_seed(0);
	json_account_setup();
	svc_set_data(s, r);
	r->svc = s;
	r->base = svc_base(s);
	r->stats = svc_stats(s);
	requests_init(r);
	registry_init(&r->registry, ms(svc_conf(s), "stuck_ms"));
	struct attempts_opts o = {.arg = r, .send = send_to_worker};
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
	buf_printf(out, ",\"http\":\"%s\",\"port\":%u,\"connections\":%u,\"model\":",
	           conf_str(svc_conf(s), "http_listen"), http_port(r->http), http_connections(r->http));
	buf_add_json(out, r->model->name, strlen(r->model->name));
	buf_printf(out,
	           ",\"workers\":%u,\"requests\":%zu,\"done\":%llu,\"failed\":%llu,\"cancelled\":%llu,"
	           "\"retries\":%llu,\"output_tokens\":%llu",
	           r->registry.n_up, attempts_count(&r->attempts), (unsigned long long)n->done,
	           (unsigned long long)n->failed, (unsigned long long)n->cancelled,
	           (unsigned long long)n->retries, (unsigned long long)n->output_tokens);
}

static const struct svc_msg messages[] = {
	{MSG_REQUEST_FIRST_TOKEN, on_first_token},
	{MSG_REQUEST_PROMPT_LOGPROBS, on_prompt_logprobs},
	{MSG_REQUEST_TOKENS, on_tokens},
	{MSG_REQUEST_FAILED, on_failed},
	{MSG_HEARTBEAT, on_heartbeat},
	{MSG_KV_EVENTS, on_kv_events},
	{MSG_WORKER_UPDATE, on_worker_update},
	{0},
};

int main(int argc, char **argv)
{
	static const struct svc_hooks hooks = {
		.program = "pdrouterd",
		.default_name = "router",
		.keys = keys,
		.stats = router_stats,
		.n_stats = STAT_COUNT,
		.messages = messages,
		.ctl = router_ctl,
		.descriptors = descriptors,
		.start = on_start,
		.reload = on_reload,
		.drain = on_drain,
		.idle = on_idle,
		.expire = on_expire,
		.stop = on_stop,
		.status = on_status,
		.admit = on_admit,
		.up = on_up,
		.down = on_down,
	};
	return svc_main(argc, argv, &hooks);
}
