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
/* Long prompts that wait to be tokenized. They are bounded by max_memory_mb and input_bytes_max;
 * this is more than text_threads tokenize before clients give up. */
#define TEXT_QUEUE 1024u

static void read_conf(struct router *r)
{
	struct router_conf *c = &r->conf;
	conf_fill(svc_conf(r->svc), router_keys, c);
	if (c->request_memory_bytes > c->memory_bytes - c->memory_bytes / 8)
		c->request_memory_bytes = c->memory_bytes - c->memory_bytes / 8;
	r->memory.size = c->memory_bytes;
	r->registry.stuck_us = c->stuck_us;
	memcpy(r->registry.policy.policy, c->policy, sizeof c->policy);
	r->registry.policy.kv_load_weight = c->kv_load_weight;
	r->registry.breaker.error_pct = c->breaker_error_pct;
	r->registry.breaker.open_us = c->breaker_open_us;
	registry_set_index_max(&r->registry, c->index_entries_max);
	r->attempts.opts.max_attempts = c->max_attempts;
	r->attempts.opts.retry_wait_us = c->retry_wait_us;
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

/* The timer runs only while there are attempts, so that an idle router sleeps. */
static void on_tick(struct svc *s, void *arg)
{
	struct router *r = svc_data(s);
	(void)arg;
	attempts_tick(&r->attempts, clock_us());
	if (!attempts_count(&r->attempts))
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
	const struct http_opts *o = &r->conf.http;
	char headers[400];
	if (cors_headers(r->conf.cors_allow_origin, headers, sizeof headers, err) < 0)
		return ERR_INVALID;
	r->conf.cors = headers[0] != 0;
	r->conf.http.setting = "http_listen";
	r->conf.http.headers = headers;
	r->conf.http.limits_are_settings = 1;
	r->conf.http.error_body = api_edge_error;
	static const struct http_handlers handlers = {.head = api_head, .request = api_request};
	int rc = http_new(r->base, o, &handlers, r, &r->http, err);
	r->conf.http.headers = NULL; /* copied */
	if (rc == 0)
		log_notice("listening", "http=%s port=%u tls=%s model=%s", log_quote(o->listen),
		           http_port(r->http), *o->tls_cert ? "yes" : "no", log_quote(r->model->name));
	if (rc == 0 && !r->keys.by_place && !http_is_local(r->http))
		log_warn("http_open_to_others",
		         "http=%s why=\"other hosts can connect, and no access key is needed "
		         "(api_keys_file)\"",
		         log_quote(o->listen));
	return rc;
}

/* Includes descriptors for connections beyond max_connections, which are answered too
 * (common/http/server.c). */
static unsigned descriptors(const struct svc *s, char *ret_setting, size_t size)
{
	struct router_conf c;
	conf_fill(svc_conf(s), router_keys, &c);
	snprintf(ret_setting, size, "max_connections = %u", c.http.max_connections);
	return http_descriptors(c.http.max_connections);
}

static int load_keys(struct router *r, const char *file, struct err *err)
{
	int rc = api_keys_load(&r->keys, file, clock_us(), err);
	if (rc == 0)
		log_notice("api_keys", "needed=%s keys=%zu", r->keys.by_place ? "yes" : "no", r->keys.n);
	return rc;
}

/* All or nothing: what may fail comes before what changes anything. */
static int on_reload(struct svc *s, struct err *err)
{
	struct router *r = svc_data(s);
	struct router_conf c;
	conf_fill(svc_conf(s), router_keys, &c);
	int rc = http_set_tls(NULL, c.http.tls_cert, c.http.tls_key, err);
	if (rc < 0 || (rc = load_keys(r, c.api_keys_file, err)) < 0 ||
	    (rc = http_set_tls(r->http, c.http.tls_cert, c.http.tls_key, err)) < 0)
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
static int open_model(const struct router_conf *c, struct model **ret_m, struct err *err)
{
	int rc = served_model_open(c->model, c->served_model_name, ret_m, err);
	if (rc < 0 ||
	    (rc = model_set_aliases(*ret_m, c->model_aliases.item, c->model_aliases.n, err)) < 0 ||
	    (rc = model_use_template(*ret_m, c->chat_template, err)) < 0)
		return rc;
	return model_set_parsers(*ret_m, c->tool_parser, c->reasoning_parser, err);
}

static int on_check(struct svc *s, struct err *err)
{
	struct router_conf c;
	struct api_keys clients = {0};
	struct model *m = NULL;
	char headers[400];
	set_up_libraries();
	conf_fill(svc_conf(s), router_keys, &c);
	const char *const files[][2] = {{"http_tls_cert", c.http.tls_cert},
	                                {"http_tls_key", c.http.tls_key},
	                                {"api_keys_file", c.api_keys_file},
	                                {"model", c.model},
	                                {"chat_template", c.chat_template}};
	int rc = cors_headers(c.cors_allow_origin, headers, sizeof headers, err);
	if (rc == 0)
		rc = http_check_listen("http_listen", c.http.listen, err);
	for (size_t i = 0; rc == 0 && i < sizeof files / sizeof *files; i++)
		rc = svc_check_file(files[i][0], files[i][1], err);
	if (rc == 0)
		rc = http_set_tls(NULL, c.http.tls_cert, c.http.tls_key, err);
	if (rc == 0)
		rc = api_keys_load(&clients, c.api_keys_file, clock_us(), err);
	api_keys_fini(&clients);
	if (rc == 0)
		rc = open_model(&c, &m, err);
	served_model_close(&m);
	return rc;
}

static int set_up(struct router *r, struct err *err)
{
	const struct router_conf *c = &r->conf;
	int rc = open_model(c, &r->model, err);
	if (rc < 0)
		return rc;
	if (r->model->calls && strcmp(c->tool_parser, "auto") != 0 &&
	    !toolcall_format_is_generic(r->model->calls) && !model_shows_tools(r->model))
		log_warn("template_without_tools", "tool_parser=%s model=%s effect=%s",
		         log_quote(c->tool_parser), log_quote(r->model->name),
		         log_quote("its chat template does not show tools to the model, so that it can "
		                   "hardly call one (setting chat_template)"));
	if (!r->model->tokenizer)
		log_warn("no_tokenizer", "model=%s effect=\"only prompts of token ids are served\"",
		         log_quote(r->model->name));
	r->text = text_pool_new(r->conf.text_threads, TEXT_QUEUE, post_job, r->svc);
	r->slow_tick = svc_timer_add(r->svc, SLOW_TICK_US, on_slow_tick, NULL);
	r->wake = wake;
	if ((rc = load_keys(r, c->api_keys_file, err)) < 0)
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
	requests_init(r);
	registry_init(&r->registry, 0);
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
	           r->conf.http.listen, http_port(r->http), http_has_tls(r->http) ? "true" : "false",
	           http_connections(r->http));
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
		.keys = router_keys,
		.stats = router_stats,
		.stats_labels = "model_name",
		.families = router_families,
		.n_families = FAMILY_COUNT,
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
