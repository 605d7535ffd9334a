/* pdbench_run.h - one whole run of pdbench in this process against a scripted server: the
 * command line in, the records and figures out. */
#ifndef TEST_PDBENCH_RUN_H
#define TEST_PDBENCH_RUN_H

#include "pdbench/probe.h"
#include "pdbench/report.h"
#include "pdbench/run.h"

#include "pdbench_server.h"

#include <signal.h>

struct outcome_of {
	struct bench_options o;
	struct result r;
	struct figures f;
	struct server_info says;
	struct err e;
	int code;
};

static inline void bench(struct outcome_of *b, struct server *s, const char *line)
{
	char text[1024], *argv[64] = {(char *)(uintptr_t) "pdbench"}, *at;
	int n = 1;
	snprintf(text, sizeof text, "--quiet %s http://127.0.0.1:%u", line, s ? s->port : 1);
	for (char *w = strtok_r(text, " ", &at); w; w = strtok_r(NULL, " ", &at))
		argv[n++] = w;
	memset(b, 0, sizeof *b);
	ck_assert_msg(options_parse(n, argv, &b->o, &b->e) == OPTIONS_RUN, "%s: %s", line, b->e.text);
	for (unsigned i = 0; i < b->o.n_urls; i++)
		ck_assert_int_eq(url_resolve(&b->o.urls[i], &b->e), 0);
	b->code = run_load(&b->o, &b->says, &b->r, &b->e);
	figures_make(&b->r, &b->o, &b->f);
}

static inline void over(struct outcome_of *b, struct server **s)
{
	result_fini(&b->r);
	options_fini(&b->o);
	if (s)
		server_destroy(s);
}

static inline int answer_well(struct request *q)
{
	return say_all(q, q->max_tokens);
}

static inline int say_503_empty(struct request *q)
{
	return say(q, "HTTP/1.1 503 No\r\nContent-Length: 0\r\n\r\n");
}

static inline int never_answer(struct request *q)
{
	char c;
	recv(q->fd, &c, 1, 0); /* until the client leaves */
	return 1;
}

TEST_START(bench_start)
{
	signal(SIGPIPE, SIG_IGN);
	unsetenv("OPENAI_API_KEY");
}

TEST_CASE("run", .timeout_s = 120);

#endif
