/* test_router_keys.c - who may come in and with how much: access keys, what is decided at a
 * request's head, JSON that takes much memory. */
#include "daemons/router/api/keys.h"
#include "router_client.h"
#include "util/log.h"

#include <signal.h>

/* --- keys ---------------------------------------------------------------- */

static const struct {
	const char *authorization;
	int good;
} forms[] = {
	{"Bearer alpha", 1},
	{"Bearer beta-2", 1},
	{"bearer alpha", 1},
	{"BEARER alpha", 1},
	{"Bearer  alpha", 1},
	{"Bearer      beta-2", 1},
	{"", 0},
	{"alpha", 0},
	{"Bearer", 0},
	{"Bearer ", 0},
	{"Bearer  ", 0},
	{"Beareralpha", 0},
	{"Bearer\talpha", 0},
	{"Bearer: alpha", 0},
	{"Bearer=alpha", 0},
	{"Basic alpha", 0},
	{"Bearer alph", 0},
	{"Bearer alphaa", 0},
	{"Bearer Alpha", 0},
	{"Bearer alpha beta-2", 0},
	{"Bearer alpha,", 0},
	{"Bearer Bearer alpha", 0},
	{"Bearer \"alpha\"", 0},
	{"Token alpha", 0},
	{" Bearer alpha", 0},
};

START_TEST(key_forms)
{
	static const char *const keys[] = {"alpha", "beta-2", ""};
	struct api_keys k = {0};
	ck_assert_int_eq(api_keys_allow(&k, forms[_i].authorization), 1); /* no key is needed */
	api_keys_set(&k, keys, 3);
	ck_assert_msg(api_keys_allow(&k, forms[_i].authorization) == forms[_i].good, "\"%s\"",
	              forms[_i].authorization);
	api_keys_set(&k, keys + 1, 1);
	ck_assert_int_eq(api_keys_allow(&k, "Bearer alpha"), 0);
	ck_assert_int_eq(api_keys_allow(&k, "Bearer beta-2"), 1);
	api_keys_set(&k, NULL, 0);
	ck_assert_int_eq(api_keys_allow(&k, forms[_i].authorization), 1);
	api_keys_fini(&k);
}
END_TEST

/* --- the head ------------------------------------------------------------ */

#define KEY "Authorization: Bearer alpha\r\n"
#define LONG "Content-Length: 100000\r\n"

/* Heads, without a byte of a body. "100": the body is asked for. */
static const struct {
	const char *line, *fields;
	int status;
	const char *part;
} heads[] = {
	{"POST /v1/completions", LONG, 401, "WWW-Authenticate: Bearer\r\n"},
	{"POST /v1/completions", LONG "Authorization: alpha\r\n", 401, "invalid_api_key"},
	{"POST /v1/chat/completions", "Transfer-Encoding: chunked\r\n", 401, "invalid_api_key"},
	{"POST /v1/completions", LONG KEY, 100, ""},
	{"POST /tokenize", "Transfer-Encoding: chunked\r\n" KEY, 100, ""},
	{"POST /v1/completions", "Content-Length: 100000000\r\n" KEY, 413, "max_body_bytes"},
	{"POST /v1/completions", "Content-Length: 100000000\r\n", 401, "invalid_api_key"},
	{"POST /v1/abort", LONG KEY, 413, "100000 bytes"},
	{"POST /v1/abort", LONG, 401, "invalid_api_key"},
	{"PUT /v1/completions", LONG KEY, 405, "Allow: POST\r\n"},
	{"PUT /v1/completions", LONG, 405, "Allow: POST\r\n"},
	{"POST /health", LONG, 405, "Allow: GET\r\n"},
	{"POST /nothing", LONG, 404, "/nothing"},
	{"GET /health", LONG, 413, "100000 bytes"},
	{"GET /metrics", "Content-Length: 100\r\n", 100, ""},
	{"GET /v1/models", "Content-Length: 100\r\n", 401, "invalid_api_key"},
};

START_TEST(decided_at_the_head)
{
	static const char *const keys[] = {"alpha"};
	struct world *w = world_new(NULL, 1u << 20);
	char want[32], *text = mem_zalloc(1 << 16);
	char *request = mem_printf("%s HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\n%s\r\n",
	                           heads[_i].line, heads[_i].fields);
	size_t n = 0;
	struct http_counts held;
	api_keys_set(&w->r.keys, keys, 1);
	int fd = dial(http_port(w->r.http));
	ck_assert_int_gt((int)send(fd, request, strlen(request), 0), 0);
	while (!strstr(text, "\r\n\r\n") ||
	       (heads[_i].status != 100 && !strpbrk(strstr(text, "\r\n\r\n") + 4, "}\n"))) {
		event_base_loop(w->base, EVLOOP_ONCE);
		ssize_t k = recv(fd, text + n, (1 << 16) - 1 - n, MSG_DONTWAIT);
		n += k > 0 ? (size_t)k : 0;
	}
	snprintf(want, sizeof want, "HTTP/1.1 %d ", heads[_i].status);
	ck_assert_msg(strncmp(text, want, strlen(want)) == 0, "%s", text);
	has(text, heads[_i].part);
	ck_assert_uint_eq(w->r.n_requests, 0);
	http_counts(w->r.http, &held);
	ck_assert_uint_le(held.in_bytes, 4096);
	close(fd);
	free(text);
	free(request);
	world_free(w);
}
END_TEST

/* --- memory -------------------------------------------------------------- */

/* A body whose values take 80 times its size is told so; others of its size are read. */
START_TEST(body_of_many_values)
{
	enum { LEN = 300000 };
	struct world *w = world_new(NULL, 1u << 20);
	char *body = mem_zalloc(LEN + 100), *at = body + sprintf(body, "{\"prompt\":[");
	w->r.conf.request_memory_bytes = 4u << 20;
	while (at < body + LEN)
		at += sprintf(at, "%s", _i ? "12345678," : "{},");
	strcpy(at, "1]}");
	char *out = ask(w, "/v1/completions", body);
	has(out, "HTTP/1.1 400 ");
	has(out, _i ? "is out of range; the vocabulary" : "(max_request_memory_mb)");
	free(out);
	free(body);
	world_free(w);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("router_keys");
	TCase *c = tcase_create("keys");
	log_init("test", NULL);
	log_set_level("error");
	signal(SIGPIPE, SIG_IGN); /* as the daemon skeleton does */
	tcase_set_timeout(c, 60);
	tcase_add_loop_test(c, key_forms, 0, (int)(sizeof forms / sizeof *forms));
	tcase_add_loop_test(c, decided_at_the_head, 0, (int)(sizeof heads / sizeof *heads));
	tcase_add_loop_test(c, body_of_many_values, 0, 2);
	suite_add_tcase(suite, c);
	SRunner *sr = srunner_create(suite);
	srunner_run_all(sr, CK_NORMAL);
	int failed = srunner_ntests_failed(sr);
	srunner_free(sr);
	return failed ? 1 : 0;
}
