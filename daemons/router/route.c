/* route.c - from an HTTP request to the function that answers it: one table of paths, access keys,
 * and the small endpoints. */
#include "daemons/router/request/request.h"
#include "daemons/router/request/who.h"
#include "util/clock.h"
#include "util/version.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef void api_fn(struct router *r, struct http_conn *c, struct http_request *q);

#define REFUSED_HEADERS_MAX (64 + TENANT_HEADERS_MAX)

struct route {
	/* a path that ends in / matches all paths below it, "/" only itself; * matches one part */
	const char *method, *path;
	api_fn *fn; /* NULL: a request of this `kind` */
	enum {
		OPEN, /* without an access key */
		KEYED,
		WORKS /* with a key, and refused while the router stops */
	} admits;
	size_t body_max; /* and max_body_bytes */
	enum request_kind kind;
	const char *about; /* a sentence's beginning, for /openapi.json */
};

static unsigned path_number(const struct http_head *head);

/* t: the owner of the access key; NULL: none. extra: lines of the answer's head, or NULL */
static void reply_error(struct router *r, struct http_conn *c, const struct http_head *head,
                        const struct tenant *t, const struct api_error *e, const char *extra)
{
	char lines[WHO_HEADERS_MAX + REFUSED_HEADERS_MAX];
	struct who who;
	struct buf b;
	unsigned more;
	who_init(&who, c, head, t);
	size_t n = who_headers(&who, "", lines, sizeof lines);
	snprintf(lines + n, sizeof lines - n, "%s", extra ? extra : "");
	buf_init(&b, 0);
	dialect_of_path(head->path)->error(e, &b);
	api_count_error(r, path_number(head), e->status);
	if (log_note_due(&r->errors.note[t != NULL], &more))
		log_notice("request_refused", "%s method=%s status=%d why=%s more=%u", who.text,
		           head->method, e->status, log_quote(e->text), more);
	http_reply(c, e->status, "application/json", lines, b.data, b.len);
	buf_fini(&b);
}

/* The owner of an admitted request's key, for the log; NULL: no key is needed, or the keys have
 * changed. */
static const struct tenant *tenant_of(const struct router *r, const struct http_request *q)
{
	struct tenant *t;
	api_keys_allow(&r->keys, q->head->authorization, q->head->api_key, &t);
	return t;
}

/* name: the model's, or an alias */
static void add_model(const struct router *r, const char *name, struct buf *b)
{
	const struct model *m = r->model;
	uint32_t context = router_context(r), vocab = registry_vocab(&r->registry);
	buf_adds(b, "{\"id\":");
	buf_add_json(b, name, strlen(name));
	buf_printf(b, ",\"object\":\"model\",\"created\":%lld,\"owned_by\":\"pdserve\",\"root\":",
	           (long long)m->created_s);
	buf_add_json(b, m->name, strlen(m->name));
	buf_adds(b, ",\"parent\":null,\"max_model_len\":");
	if (context)
		buf_printf(b, "%u", context);
	else
		buf_adds(b, "null");
	if (vocab)
		buf_printf(b, ",\"vocab_size\":%u", vocab); /* for clients that send token ids */
	buf_addc(b, '}');
}

static void reply_json(struct http_conn *c, struct buf *b)
{
	http_reply(c, 200, "application/json", NULL, b->data ? b->data : "", b->len);
	buf_fini(b);
}

static void models(struct router *r, struct http_conn *c, struct http_request *q)
{
	struct buf b;
	(void)q;
	buf_init(&b, 0);
	buf_adds(&b, "{\"object\":\"list\",\"data\":[");
	add_model(r, r->model->name, &b);
	for (unsigned i = 0; i < r->model->n_aliases; i++) {
		if (strcmp(r->model->aliases[i], "*") == 0)
			continue;
		buf_addc(&b, ',');
		add_model(r, r->model->aliases[i], &b);
	}
	buf_adds(&b, "]}");
	reply_json(c, &b);
}

/* GET /tokenizer_info, as vLLM has it: what a client needs beside /tokenize and /detokenize to do
 * without files of the model. */
static void tokenizer_info(struct router *r, struct http_conn *c, struct http_request *q)
{
	const struct text_model *m = &r->model->text;
	const struct chat_template *t = chat_set_choose(&m->chats, 0);
	struct api_error e = {0};
	const char *name;
	const json_t *v;
	struct buf b;
	size_t len;
	if (!r->model->tokenizer) {
		api_fault(&e, 404, "the model %s has no tokenizer here", r->model->name);
		reply_error(r, c, q->head, tenant_of(r, q), &e, NULL);
		return;
	}
	buf_init(&b, 0);
	buf_printf(&b, "{\"tokenizer_class\":\"PreTrainedTokenizerFast\",\"vocab_size\":%u",
	           tokenizer_size(r->model->tokenizer));
	if (router_context(r))
		buf_printf(&b, ",\"model_max_length\":%u", router_context(r));
	json_object_foreach(m->chats.special_tokens, name, v) {
		buf_addc(&b, ',');
		buf_add_json(&b, name, strlen(name));
		buf_addc(&b, ':');
		buf_add_json(&b, json_string_value(v), json_string_length(v));
	}
	if (t) {
		const char *text = chat_template_text(t, &len);
		buf_adds(&b, ",\"chat_template\":");
		buf_add_json(&b, text, len);
	}
	buf_addc(&b, '}');
	reply_json(c, &b);
}

static int hex_digit(char c)
{
	return c >= '0' && c <= '9'   ? c - '0'
	       : c >= 'a' && c <= 'f' ? c - 'a' + 10
	       : c >= 'A' && c <= 'F' ? c - 'A' + 10
	                              : -1;
}

/* %xx -> bytes, cut at size - 1. */
static void url_decode(const char *s, char *out, size_t size)
{
	size_t n = 0;
	while (*s && n + 1 < size) {
		int hi = *s == '%' ? hex_digit(s[1]) : -1, lo = hi >= 0 ? hex_digit(s[2]) : -1;
		out[n++] = lo >= 0 ? (char)(hi << 4 | lo) : *s;
		s += lo >= 0 ? 3 : 1;
	}
	out[n] = 0;
}

static int unknown_model(const struct router *r, const char *name, struct api_error *e)
{
	api_fault(e, 404, "the model \"%.128s\" does not exist; this server has %s", name,
	          r->model->name);
	snprintf(e->param, sizeof e->param, "model");
	e->code = "model_not_found";
	return -1;
}

/* GET /v1/models/NAME */
static void one_model(struct router *r, struct http_conn *c, struct http_request *q)
{
	char name[256];
	struct api_error e = {0};
	struct buf b;
	url_decode(q->head->path + strlen("/v1/models/"), name, sizeof name);
	if (!model_has_name(r->model, name)) {
		unknown_model(r, name, &e);
		reply_error(r, c, q->head, tenant_of(r, q), &e, NULL);
		return;
	}
	buf_init(&b, 0);
	add_model(r, name, &b);
	reply_json(c, &b);
}

/* For a supervisor, which restarts a process that does not answer. */
static void live(struct router *r, struct http_conn *c, struct http_request *q)
{
	(void)r;
	(void)q;
	http_reply(c, 200, "application/json", NULL, "{\"status\":\"ok\"}", 15);
}

/* Answers 200 with this body if a request can be served; else 503 with the reason. */
static void reply_ready(struct router *r, struct http_conn *c, const char *body)
{
	const char *missing = r->draining ? "draining" : place_missing(&r->registry, clock_us());
	char extra[64], text[160];
	if (!missing) {
		http_reply(c, 200, "application/json", NULL, body, strlen(body));
		return;
	}
	snprintf(extra, sizeof extra, "Retry-After: %u\r\n", router_retry_after_s(r));
	int n = snprintf(text, sizeof text, "{\"status\":\"%s\",\"workers\":%u}", missing,
	                 r->registry.n_up);
	http_reply(c, 503, "application/json", extra, text, (size_t)n);
}

static void health(struct router *r, struct http_conn *c, struct http_request *q)
{
	(void)q;
	reply_ready(r, c, "{\"status\":\"ok\"}"); /* as llama.cpp's server says it */
}

static void ready(struct router *r, struct http_conn *c, struct http_request *q)
{
	char body[64];
	(void)q;
	snprintf(body, sizeof body, "{\"status\":\"ready\",\"workers\":%u}", r->registry.n_up);
	reply_ready(r, c, body);
}

/* GET /version, as vLLM has it */
static void version(struct router *r, struct http_conn *c, struct http_request *q)
{
	char text[128];
	(void)r;
	(void)q;
	int n = snprintf(text, sizeof text, "{\"version\":\"%s\"}", build_version());
	http_reply(c, 200, "application/json", NULL, text, (size_t)n);
}

static void metrics(struct router *r, struct http_conn *c, struct http_request *q)
{
	(void)q;
	svc_metrics_reply(r->svc, c);
}

#define SMALL_BYTES_MAX 4096u /* of a body that is parsed on the event loop, or ignored */

/* POST /v1/abort {"request_id": "cmpl-..." or 32 hex digits}: only of the same access key */
static void abort_request(struct router *r, struct http_conn *c, struct http_request *q)
{
	struct api_error e = {0};
	struct tenant *t = NULL;
	struct reqid id;
	json_error_t bad;
	json_t *o = json_load(q->body.data, q->body.len, 0, &bad);
	const json_t *v = json_object_get(o, "request_id");
	const char *s = json_string_value(v);
	if (!s || request_id_parse(s, &id) < 0)
		api_bad(&e, "request_id", "request_id must be the id of a request, got %s", param_show(v));
	else if (!api_keys_allow(&r->keys, q->head->authorization, q->head->api_key, &t) ||
	         request_abort(r, &id, t) < 0) /* the keys may have changed since the head arrived */
		api_fault(&e, 404, "no request %.64s is running here", s);
	json_decref(o);
	if (e.status)
		reply_error(r, c, q->head, t, &e, NULL);
	else
		http_reply(c, 200, "application/json", NULL, "{\"aborted\":true}", 16);
}

static api_fn page, openapi;

static const struct route routes[] = {
	{"POST", "/v1/completions", NULL, WORKS, SIZE_MAX, KIND_COMPLETION, "OpenAI: completions"},
	{"POST", "/v1/chat/completions", NULL, WORKS, SIZE_MAX, KIND_CHAT, "OpenAI: chat"},
	{"POST", "/v1/embeddings", NULL, WORKS, SIZE_MAX, KIND_EMBEDDING, "OpenAI: embeddings"},
	{"POST", "/v1/responses", NULL, WORKS, SIZE_MAX, KIND_RESPONSES, "OpenAI: responses"},
	{"POST", "/v1/messages", NULL, WORKS, SIZE_MAX, KIND_MESSAGES, "Anthropic: messages"},
	{"POST", "/v1/messages/count_tokens", NULL, WORKS, SIZE_MAX, KIND_COUNT_TOKENS,
     "Anthropic: the number of a prompt's tokens"},
	{"GET", "/v1/models", models, KEYED, SMALL_BYTES_MAX, 0, "the model, by all its names"},
	{"GET", "/v1/models/", one_model, KEYED, SMALL_BYTES_MAX, 0, "the model by one of its names"},
	{"GET", "/tokenizer_info", tokenizer_info, KEYED, SMALL_BYTES_MAX, 0,
     "vLLM: the tokenizer's settings and the chat template"},
	{"POST", "/v1/abort", abort_request, KEYED, SMALL_BYTES_MAX, 0,
     "ends a request with what there is"},
	{"POST", "/openai/deployments/*/completions", NULL, WORKS, SIZE_MAX, KIND_COMPLETION,
     "Azure: completions"},
	{"POST", "/openai/deployments/*/chat/completions", NULL, WORKS, SIZE_MAX, KIND_CHAT,
     "Azure: chat"},
	{"POST", "/openai/deployments/*/embeddings", NULL, WORKS, SIZE_MAX, KIND_EMBEDDING,
     "Azure: embeddings"},
	{"POST", "/tokenize", NULL, WORKS, SIZE_MAX, KIND_TOKENIZE,
     "vLLM: the tokens of a prompt or of messages"},
	{"POST", "/detokenize", NULL, WORKS, SIZE_MAX, KIND_DETOKENIZE, "vLLM: the text of tokens"},
	{"GET", "/", page, OPEN, SMALL_BYTES_MAX, 0, "what this is and how to ask it, as HTML"},
	{"GET", "/openapi.json", openapi, OPEN, SMALL_BYTES_MAX, 0, "this document"},
	{"GET", "/version", version, OPEN, SMALL_BYTES_MAX, 0, "vLLM: the version of this server"},
	{"GET", "/live", live, OPEN, SMALL_BYTES_MAX, 0, "200 as long as the router answers"},
	{"GET", "/health", health, OPEN, SMALL_BYTES_MAX, 0, "200 when a request can be served"},
	{"GET", "/ready", ready, OPEN, SMALL_BYTES_MAX, 0, "the same, with the number of workers"},
	{"GET", "/metrics", metrics, OPEN, SMALL_BYTES_MAX, 0, "figures for Prometheus"},
};

/* Its number in router.errors; 0: none of this server's. */
static unsigned path_number(const struct http_head *head)
{
	const struct route *route = head->route;
	_Static_assert(sizeof routes / sizeof *routes < API_PATHS_MAX, "room for each path");
	return route ? 1 + (unsigned)(route - routes) : 0;
}

/* --- what a visitor sees ------------------------------------------------- */

static void add_html(struct buf *b, const char *s)
{
	for (; *s; s++) {
		if (*s == '<' || *s == '>' || *s == '&')
			buf_printf(b, "&#%d;", *s);
		else
			buf_addc(b, *s);
	}
}

#define PAGE_NAMES_BYTES 900u /* of the model's names: the others are left out */

/* GET /: for whoever opens the address in a browser. Below 2 KiB, and nothing from elsewhere. Where
 * there are access keys, aliases are not shown. */
static void page(struct router *r, struct http_conn *c, struct http_request *q)
{
	const struct model *m = r->model;
	const char *host = q->head->host;
	struct buf b;
	size_t n = 0;
	while (host && host[n] && (isalnum((unsigned char)host[n]) || strchr("-.:[]", host[n])))
		n++;
	/* the client's own name for this server, if a shell takes it as it is */
	const char *address = n && !host[n] && n < 100 ? host : "ADDRESS:PORT";
	buf_init(&b, 0);
	buf_printf(
		&b,
		"<!doctype html><html lang=en><meta charset=utf-8><title>pdserve</title>"
		"<style>body{font-family:sans-serif;margin:2em}pre{white-space:pre-wrap}</style>"
		"<h1>pdserve</h1><p>A server of a large language model (version %s), with the APIs of "
		"OpenAI and Anthropic. Model: <code>",
		build_version());
	add_html(&b, m->name);
	for (unsigned i = 0; i < m->n_aliases && !r->keys.n && b.len < PAGE_NAMES_BYTES; i++) {
		if (strcmp(m->aliases[i], "*") == 0)
			continue;
		buf_adds(&b, "</code>, <code>");
		add_html(&b, m->aliases[i]);
	}
	buf_printf(
		&b,
		"</code></p><pre>curl http%s://%s/v1/chat/completions -H 'Content-Type: "
		"application/json'%s -d '{\"messages\":[{\"role\":\"user\",\"content\":\"What is the "
		"capital of France?\"}]}'</pre><p>",
		http_has_tls(r->http) ? "s" : "", address,
		r->keys.n ? " -H 'Authorization: Bearer KEY'" : "");
	for (size_t i = 0; i < sizeof routes / sizeof *routes; i++)
		if (strcmp(routes[i].method, "GET") == 0 && routes[i].fn != one_model && routes[i].path[1])
			buf_printf(&b, "<a href=%s>%s</a> ", routes[i].path, routes[i].path);
	buf_adds(&b, "</p></html>\n");
	http_reply(c, 200, "text/html; charset=utf-8", NULL, b.data, b.len);
	buf_fini(&b);
}

/* Adds one path to /openapi.json. */
static void describe_route(const struct router *r, const struct route *t, struct buf *b)
{
	size_t n = strlen(t->path), star = strcspn(t->path, "*");
	int has_name = t->path[star] || (n > 1 && t->path[n - 1] == '/');
	buf_printf(b, "\"%.*s%s%s\":{\"%s\":{\"summary\":\"%s\"", (int)star, t->path,
	           has_name ? "{model}" : "", t->path[star] ? t->path + star + 1 : "",
	           *t->method == 'G' ? "get" : "post", t->about);
	if (has_name)
		buf_adds(b, ",\"parameters\":[{\"name\":\"model\",\"in\":\"path\",\"required\":true,"
		            "\"schema\":{\"type\":\"string\"}}]");
	if (*t->method == 'P') {
		buf_adds(b, ",\"requestBody\":{\"required\":true,\"content\":{\"application/json\":{"
		            "\"schema\":");
		if (t->fn)
			buf_adds(b, "{\"type\":\"object\",\"required\":[\"request_id\"],\"properties\":{"
			            "\"request_id\":{\"type\":\"string\"}}}");
		else
			params_describe(t->kind, b);
		buf_adds(b, "}}}");
	}
	if (t->admits != OPEN && r->keys.n)
		buf_adds(b, ",\"security\":[{\"bearer\":[]},{\"x-api-key\":[]},{\"api-key\":[]}]");
	buf_adds(b, ",\"responses\":{\"200\":{\"description\":\"the answer\"},\"default\":{"
	            "\"description\":\"an error: the parameter, the value, the limit\"}}}}");
}

/* GET /openapi.json: from the table of paths, and that of parameters (unknown.c) */
static void openapi(struct router *r, struct http_conn *c, struct http_request *q)
{
	struct buf b;
	(void)q;
	buf_init(&b, 0);
	buf_printf(
		&b,
		"{\"openapi\":\"3.1.0\",\"info\":{\"title\":\"pdserve\",\"version\":\"%s\"},\"paths\":{",
		build_version());
	for (size_t i = 0; i < sizeof routes / sizeof *routes; i++) {
		buf_adds(&b, i ? "," : "");
		describe_route(r, &routes[i], &b);
	}
	buf_adds(&b, "},\"components\":{\"securitySchemes\":{"
	             "\"bearer\":{\"type\":\"http\",\"scheme\":\"bearer\"},"
	             "\"x-api-key\":{\"type\":\"apiKey\",\"in\":\"header\",\"name\":\"x-api-key\"},"
	             "\"api-key\":{\"type\":\"apiKey\",\"in\":\"header\",\"name\":\"api-key\"}}}}");
	reply_json(c, &b);
}

/* --- from a path to its row ---------------------------------------------- */

/* Paths that are not this server's count as one. */
void api_errors_render(const struct router *r, const struct stat_family *families, struct buf *out)
{
	for (unsigned m = 0; m < 2; m++) {
		const struct stat_def *d = &families[FAMILY_REFUSED + m].def;
		stat_render_head(d, "", out);
		for (unsigned p = 0; p <= sizeof routes / sizeof *routes; p++)
			for (unsigned i = 100 * m; i < 100 * m + 100; i++)
				if (r->errors.n[p][i])
					buf_printf(out, "%s{path=\"%s\",status=\"%u\"} %llu\n", d->name,
					           p ? routes[p - 1].path : "other", 400 + i,
					           (unsigned long long)r->errors.n[p][i]);
	}
}

/* NULL: no such route; *ret_other is then a route of the same path for another method, or NULL. */
static const struct route *find_route(const struct http_head *head, const struct route **ret_other)
{
	const char *method = strcmp(head->method, "HEAD") == 0 ? "GET" : head->method;
	*ret_other = NULL;
	for (size_t i = 0; i < sizeof routes / sizeof *routes; i++) {
		const char *path = head->path, *row = routes[i].path;
		size_t n = strlen(row), star = strcspn(row, "*");
		int matches;
		if (row[star]) /* Azure's: this part is the model's name */
			matches = strncmp(row, path, star) == 0 && path[star] != '/' &&
			          strcmp(row + star + 1, path + star + strcspn(path + star, "/")) == 0;
		else if (n > 1 && row[n - 1] == '/')
			matches = strncmp(row, path, n) == 0 && path[n];
		else
			matches = strcmp(row, path) == 0;
		if (!matches)
			continue;
		if (strcmp(method, routes[i].method) == 0)
			return &routes[i];
		*ret_other = &routes[i];
	}
	return NULL;
}

#define ASKS_HEADERS_MAX 1000u

/* A browser asks whether a page of another origin may send a request like this. */
static void reply_preflight(struct http_conn *c, const struct http_head *head)
{
	struct buf b;
	buf_init(&b, 0);
	buf_printf(&b,
	           "Access-Control-Allow-Methods: GET, POST\r\nAccess-Control-Max-Age: 600\r\n"
	           "Access-Control-Allow-Headers: %s\r\n",
	           *head->asks_headers && strlen(head->asks_headers) <= ASKS_HEADERS_MAX
	               ? head->asks_headers
	               : "*");
	http_reply(c, 200, "text/plain", b.data, "", 0);
	buf_fini(&b);
}

/* extra: REFUSED_HEADERS_MAX bytes, here and below */
static void refuse_key(struct api_error *e, char *extra)
{
	api_fault(e, 401,
	          "the access key is missing or wrong: send it as Authorization: Bearer KEY, or as "
	          "x-api-key: KEY");
	snprintf(extra, 64, "WWW-Authenticate: Bearer\r\n");
}

static void refused_headers(struct router *r, struct tenant *t, const struct api_error *e,
                            char *extra)
{
	router_error_headers(r, e, extra, 64);
	tenant_headers(t, clock_us(), extra + strlen(extra));
}

size_t api_edge_error(void *arg, const char *path, int status, const char *text, char *out,
                      size_t size)
{
	struct http_head head = {.method = "", .path = path};
	const struct route *other, *route = find_route(&head, &other);
	struct api_error e = {0};
	struct buf b;
	head.route = route ? route : other;
	api_count_error(arg, path_number(&head), status);
	api_fault(&e, status, "%s", text);
	buf_init(&b, size - 1);
	dialect_of_path(path)->error(&e, &b);
	size_t n = b.len;
	memcpy(out, b.data, n);
	buf_fini(&b);
	return n;
}

int api_head(void *arg, struct http_conn *c, struct http_head *head, size_t *body_max)
{
	struct router *r = arg;
	struct api_error e = {0};
	char extra[REFUSED_HEADERS_MAX] = "";
	const struct route *other, *route = find_route(head, &other);
	struct tenant *t = NULL;
	const char *encoding = head->encoding;
	char name[256], decoded[256];
	size_t star;
	r->stats.http_requests++;
	head->route = route ? route : other;
	if (r->conf.cors && strcmp(head->method, "OPTIONS") == 0) {
		reply_preflight(c, head);
		return 1;
	}
	if (!route && other) {
		api_fault(&e, 405, "%.200s takes %s, not %.20s", head->path, other->method, head->method);
		snprintf(extra, sizeof extra, "Allow: %s\r\n", other->method);
	} else if (!route) {
		api_fault(&e, 404, "there is no %.200s here", head->path);
	} else if (route->admits != OPEN &&
	           !api_keys_allow(&r->keys, head->authorization, head->api_key, &t)) {
		refuse_key(&e, extra);
	} else if (head->content_length > route->body_max) {
		api_fault(&e, 413, "the body has %llu bytes; %.200s takes at most %zu",
		          (unsigned long long)head->content_length, head->path, route->body_max);
	} else if (*encoding && strcasecmp(encoding, "identity") != 0 &&
	           (route->fn || strcasecmp(encoding, "gzip") != 0)) {
		api_fault(&e, 415, "Content-Encoding %.40s is not known here: %s", encoding,
		          route->fn ? "send the body as it is" : "send gzip, or the body as it is");
	} else if (route->admits == WORKS && r->draining) {
		api_fault(&e, 503, "this server is shutting down");
		router_error_headers(r, &e, extra, sizeof extra);
	} else if (route->admits == WORKS && t && tenant_check(t, clock_us(), &e) < 0) {
		refused_headers(r, t, &e, extra);
	} else if (route->path[star = strcspn(route->path, "*")]) {
		/* the path names a model */
		const char *part = head->path + star;
		snprintf(name, sizeof name, "%.*s", (int)strcspn(part, "/"), part);
		url_decode(name, decoded, sizeof decoded);
		if (!model_has_name(r->model, decoded))
			unknown_model(r, decoded, &e);
	}
	if (e.status) {
		reply_error(r, c, head, t, &e, extra);
		return 1;
	}
	*body_max = route->body_max < *body_max ? route->body_max : *body_max;
	return 0;
}

/* Key and limits were checked when the head arrived, and are checked again now: since then keys may
 * have changed, and requests of the same key may have begun. */
void api_request(void *arg, struct http_conn *c, struct http_request *q)
{
	const struct route *route = q->head->route;
	struct router *r = arg;
	struct api_error e = {0};
	char extra[REFUSED_HEADERS_MAX] = "";
	struct tenant *t = NULL;
	if (route->fn) {
		route->fn(arg, c, q);
		return;
	}
	if (!api_keys_allow(&r->keys, q->head->authorization, q->head->api_key, &t))
		refuse_key(&e, extra);
	else if (t && tenant_check(t, clock_us(), &e) < 0)
		refused_headers(r, t, &e, extra);
	if (e.status) {
		reply_error(r, c, q->head, t, &e, extra);
		return;
	}
	struct http_body body = q->body;
	q->body.data = NULL;
	request_begin(arg, c, route->kind, path_number(q->head), q->head, &body, t);
}
