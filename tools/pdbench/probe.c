/* probe.c - see probe.h: one request, and the server's models. */
#include "probe.h"
#include "client.h"

#include <jansson.h>
#include <string.h>

#define ANSWER_MAX (1u << 20)
#define WAIT_S 10

struct probe {
	struct event_base *base;
	struct probe_answer *answer;
	int over;
	struct err why;
};

static int on_body(void *arg, int status, const char *data, size_t n, uint64_t now_us)
{
	struct probe *p = arg;
	(void)status;
	(void)now_us;
	return buf_add(&p->answer->body, data, n) < 0;
}

static void on_end(void *arg, int status, const struct err *why, uint64_t now_us)
{
	struct probe *p = arg;
	(void)now_us;
	p->answer->status = status;
	p->over = 1;
	if (why)
		p->why = *why;
	event_base_loopbreak(p->base);
}

static uint32_t whole_number(const json_t *o, const char *name)
{
	const json_t *v = json_object_get(o, name);
	return json_is_integer(v) && json_integer_value(v) > 0 && json_integer_value(v) < UINT32_MAX
	           ? (uint32_t)json_integer_value(v)
	           : 0;
}

/* Uses the first model of the list, or the one named by --model. */
static void read_models(const json_t *j, const char *wanted, struct server_info *ret)
{
	const json_t *list = json_object_get(j, "data");
	for (size_t i = 0; i < json_array_size(list); i++) {
		const json_t *m = json_array_get(list, i);
		const char *id = json_string_value(json_object_get(m, "id"));
		if (!id || strlen(id) >= sizeof ret->model || (wanted && strcmp(id, wanted) != 0))
			continue;
		snprintf(ret->model, sizeof ret->model, "%s", id);
		ret->context = whole_number(m, "max_model_len");
		ret->vocab = whole_number(m, "vocab_size");
		return;
	}
}

int probe_exchange(const struct bench_options *o, struct buf *request, unsigned wait_s,
                   struct probe_answer *ret, struct err *err)
{
	static const struct call_hooks hooks = {on_body, on_end};
	struct probe p = {.base = event_base_new(), .answer = ret};
	struct timeval limit = {.tv_sec = (time_t)wait_s};
	ret->status = 0;
	buf_init(&ret->body, ANSWER_MAX);
	if (!p.base)
		return err_set(err, ERR_IO, "cannot create an event loop");
	struct bench_client *c = client_new(p.base, &o->urls[0], o->tls, 1);
	struct call *x = client_call(c, request, &hooks, &p);
	event_base_loopexit(p.base, &limit);
	event_base_dispatch(p.base);
	if (!p.over) {
		call_drop(x);
		err_set(&p.why, ERR_TIMEOUT, "%s did not answer within %u s", o->urls[0].authority, wait_s);
	}
	client_destroy(&c);
	event_base_free(p.base);
	int code = p.why.code == ERR_TIMEOUT ? ERR_TIMEOUT : ERR_CLOSED;
	return p.why.code < 0 ? err_set(err, code, "%s", p.why.text) : 0;
}

static void judge(const struct probe_answer *a, const struct bench_options *o,
                  struct server_info *ret, struct err *err)
{
	json_error_t why;
	json_t *j = json_loadb(a->body.data ? a->body.data : "", a->body.len, 0, &why);
	if (a->status != 200) {
		const char *text = json_string_value(
			json_object_get(json_object_get(j, "error"), "message"));
		err_set(err, ERR_NOTFOUND, "GET /v1/models returned status %d%s%.200s", a->status,
		        text ? ": " : "", text ? text : "");
	} else if (!j)
		err_set(err, ERR_NOTFOUND, "GET /v1/models did not return JSON");
	else
		read_models(j, o->model, ret);
	json_decref(j);
}

int probe_server(const struct bench_options *o, struct server_info *ret, struct err *err)
{
	struct probe_answer a;
	struct buf request;
	memset(ret, 0, sizeof *ret);
	buf_init(&request, 0);
	buf_printf(&request,
	           "GET %s/v1/models HTTP/1.1\r\nHost: %s\r\nUser-Agent: pdbench\r\nConnection: "
	           "close\r\n%s%s%s%s\r\n",
	           o->urls[0].path, o->urls[0].authority, o->api_key ? "Authorization: Bearer " : "",
	           o->api_key ? o->api_key : "", o->api_key ? "\r\n" : "",
	           o->headers.data ? o->headers.data : "");
	int code = probe_exchange(o, &request, WAIT_S, &a, err);
	if (code == 0 && (a.status == 401 || a.status == 403))
		code = err_set(err, ERR_CLOSED,
		               "%s denied access with status %d: give --api-key KEY or set OPENAI_API_KEY",
		               o->urls[0].authority, a.status);
	else if (code == 0)
		judge(&a, o, ret, err);
	buf_fini(&a.body);
	return code;
}
