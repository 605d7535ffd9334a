/* test_svc_metrics.c - the metrics endpoint of every daemon (metrics_listen): what it serves, what
 * it refuses, and that no client delays, grows or ends the daemon.
 *
 * Each test starts a daemon without work of its own in a child, and is its client. */
/* run: waits */
#include "svc/svc.h"
#include "util/clock.h"
#include "util/mem.h"
#include "skip.h"
#include "tempdir.h"

#include <arpa/inet.h>
#include <check.h>
#include <dirent.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define WAIT_S 20
#ifdef __SANITIZE_ADDRESS__ /* it keeps freed memory */
#define GROWS_MAX (300u << 20)
#else
#define GROWS_MAX (16u << 20)
#endif
#define PROMPT_US 4000000u /* far less than any time limit of the endpoint, far more than a page */

static struct figures {
	uint64_t things, rendered;
} figures;
static const struct stat_row stats[] = {
	STAT_ROW(struct figures, things, COUNTER, "things_total", "Things done."),
	STAT_ROW(struct figures, rendered, COUNTER, "rendered_total", "Pages rendered."),
	STAT_END,
};

static char dir[TEST_FOLDER_BYTES];
static pid_t daemon_pid;
static uint16_t port;
static int drains_slowly; /* of the next daemon: it has work until stop_timeout_ms */

/* --- the daemon ---------------------------------------------------------- */

static int start(struct svc *s, struct err *err)
{
	(void)err;
	figures.things = 7;
	svc_set_data(s, &figures);
	return 0;
}

static void refresh(struct svc *s)
{
	(void)s;
	figures.rendered++;
}

static const char *role(struct svc *s)
{
	(void)s;
	return "tester";
}

static int is_idle(struct svc *s)
{
	(void)s;
	return !drains_slowly;
}

static const struct conf_key no_keys[] = {CONF_END};
static const struct svc_msg no_messages[] = {{0}};
static const struct svc_ctl no_ctl[] = {{0}};
static const struct svc_hooks hooks = {
	.program = "pdtestd",
	.default_name = "test",
	.keys = no_keys,
	.stats = stats,
	.messages = no_messages,
	.ctl = no_ctl,
	.start = start,
	.idle = is_idle,
	.role = role,
	.refresh = refresh,
};

/* A port that stays ours: the system gives it to nobody else, and a listener with SO_REUSEADDR may
 * use it. */
static uint16_t free_port(void)
{
	struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
	socklen_t len = sizeof a;
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1;
	ck_assert_int_eq(bind(fd, (struct sockaddr *)&a, sizeof a), 0);
	ck_assert_int_eq(setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one), 0);
	ck_assert_int_eq(getsockname(fd, (struct sockaddr *)&a, &len), 0);
	return ntohs(a.sin_port);
}

/* Its stderr goes to `to`, or with -1 nowhere. */
static void launch(const char *name, const char *listen_at, int to)
{
	char rundir[96], named[64], at[96], parent[32];
	snprintf(rundir, sizeof rundir, "rundir=%s", dir);
	snprintf(named, sizeof named, "name=%s", name);
	snprintf(at, sizeof at, "metrics_listen=%s", listen_at);
	snprintf(parent, sizeof parent, "%d", (int)getpid());
	daemon_pid = fork();
	ck_assert_int_ge(daemon_pid, 0);
	if (daemon_pid)
		return;
	char *argv[] = {
		(char *)"pdtestd",           (char *)"-o", rundir, (char *)"-o", named, (char *)"-o", at,
		(char *)"--die-with-parent", parent,       NULL};
	dup2(to >= 0 ? to : open("/dev/null", O_WRONLY), STDERR_FILENO);
	_exit(svc_main(9, argv, &hooks));
}

static int wait_status(void)
{
	int status;
	ck_assert_int_eq(waitpid(daemon_pid, &status, 0), daemon_pid);
	return status;
}

/* --- its clients --------------------------------------------------------- */

/* From 127.0.0.`from`; -1: not connected. */
static int dial_from(unsigned from)
{
	struct sockaddr_in me = {.sin_family = AF_INET,
	                         .sin_addr = {htonl(INADDR_LOOPBACK - 1 + from)}};
	struct sockaddr_in to = {.sin_family = AF_INET,
	                         .sin_port = htons(port),
	                         .sin_addr = {htonl(INADDR_LOOPBACK)}};
	struct timeval limit = {.tv_sec = WAIT_S};
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1;
	ck_assert_int_ge(fd, 0);
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
	ck_assert_int_eq(bind(fd, (struct sockaddr *)&me, sizeof me), 0);
	if (connect(fd, (struct sockaddr *)&to, sizeof to) == 0)
		return fd;
	close(fd);
	return -1;
}

static void begin(void)
{
	char at[32];
	int fd;
	test_folder(dir, "m");
	port = free_port();
	snprintf(at, sizeof at, "127.0.0.1:%u", port);
	launch("test-1", at, -1);
	for (uint64_t until = clock_us() + WAIT_S * 1000000u; (fd = dial_from(9)) < 0; usleep(1000))
		ck_assert_uint_lt(clock_us(), until);
	close(fd);
}

/* The daemon ends in order, whatever its clients did. */
static void end(void)
{
	ck_assert_int_eq(kill(daemon_pid, SIGTERM), 0);
	int status = wait_status();
	ck_assert_msg(status == 0, "the daemon ended with wait status %#x", (unsigned)status);
}

static void say(int fd, const char *text)
{
	send(fd, text, strlen(text), MSG_NOSIGNAL);
}

/* What comes until the server closes, or until `enough` bytes. */
static char *hear(int fd, size_t enough)
{
	size_t n = 0, room = 1u << 20;
	char *text = mem_alloc(room + 1);
	for (ssize_t k; n < room && n < enough; n += (size_t)k)
		if ((k = recv(fd, text + n, room - n, 0)) <= 0)
			break;
	text[n] = 0;
	return text;
}

/* The answer to METHOD PATH, on a connection of its own from 127.0.0.`from`. */
static char *ask_from(unsigned from, const char *line)
{
	char text[256];
	uint64_t t = clock_us();
	int fd = dial_from(from);
	ck_assert_int_ge(fd, 0);
	snprintf(text, sizeof text, "%s HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", line);
	say(fd, text);
	char *got = hear(fd, SIZE_MAX);
	close(fd);
	ck_assert_msg(clock_us() - t < PROMPT_US, "%s took %llu us", line,
	              (unsigned long long)(clock_us() - t));
	return got;
}

static void has(const char *text, const char *part)
{
	ck_assert_msg(strstr(text, part) != NULL, "no \"%s\" in:\n%s", part, text);
}

static void expect(const char *line, const char *part)
{
	char *got = ask_from(2, line);
	has(got, part);
	free(got);
}

/* A number on the page. */
static uint64_t metric(const char *name)
{
	char *page = ask_from(2, "GET /metrics"), line[128];
	snprintf(line, sizeof line, "\n%s{", name);
	has(page, line);
	uint64_t v = strtoull(strchr(strstr(page, line), ' '), NULL, 10);
	free(page);
	return v;
}

static void still_serves(void)
{
	expect("GET /health", "\"state\":\"running\"");
	ck_assert_int_eq(waitpid(daemon_pid, NULL, WNOHANG), 0);
}

/* --- what it serves ------------------------------------------------------ */

static const struct {
	const char *line, *part;
} answers[] = {
	{"GET /metrics", "HTTP/1.1 200 OK\r\n"},
	{"GET /metrics", "Content-Type: text/plain; version=0.0.4"},
	{"GET /metrics?x=1", "\npdserve_test_things_total{name=\"test-1\",role=\"tester\"} 7\n"},
	{"GET /metrics", "\n# TYPE pdserve_test_things_total counter\n"},
	{"GET /metrics", "\npdserve_peers_up{name=\"test-1\",role=\"tester\"} 0\n"},
	{"GET /metrics", "\npdserve_build_info{name=\"test-1\",role=\"tester\",program=\"pdtestd\","
                     "version=\""},
	{"GET /metrics", "\n# TYPE process_cpu_seconds_total counter\n"},
	{"GET /metrics", "\nprocess_resident_memory_bytes{"},
	{"GET /metrics", "\nprocess_start_time_seconds{"},
	{"GET /health", "{\"status\":\"ok\",\"state\":\"running\",\"name\":\"test-1\",\"role\":"
                    "\"tester\"}\n"},
	{"HEAD /health", "Content-Length: "},
	{"GET /", "HTTP/1.1 404 "},
	{"GET /metrics/", "HTTP/1.1 404 "},
	{"POST /v1/completions", "HTTP/1.1 404 "},
	{"POST /metrics", "HTTP/1.1 405 "},
	{"DELETE /health", "Allow: GET, HEAD\r\n"},
};

TEST_CASE("served", .timeout_s = 60);

TEST_LOOP(test_answers, 0, sizeof answers / sizeof *answers)
{
	begin();
	expect(answers[_i].line, answers[_i].part);
	end();
}

TEST(test_process)
{
	begin();
	time_t now = time(NULL), since = (time_t)metric("process_start_time_seconds");
	ck_assert_msg(since <= now && now - since < 60, "start %ld, now %ld", (long)since, (long)now);
	ck_assert_uint_ge(metric("process_resident_memory_bytes"), 1u << 20);
	usleep(150000); /* a page is kept for 100 ms */
	uint64_t before = metric("process_open_fds");
	int fd[3];
	for (int i = 0; i < 3; i++) {
		fd[i] = dial_from(3);
		say(fd[i], "GET /health HTTP/1.1\r\nHost: x\r\n\r\n");
		free(hear(fd[i], 50));
	}
	usleep(150000);
	ck_assert_uint_eq(metric("process_open_fds"), before + 3);
	ck_assert_uint_lt(before, metric("process_max_fds"));
	end();
}

/* Listing thousands of descriptors takes milliseconds: where the system knows their number, a page
 * takes less than that. */
TEST(test_many_descriptors)
{
	enum { MANY = 8000, ROUNDS = 8 };
	uint64_t list_us = UINT64_MAX, page_us = UINT64_MAX, n = 0;
	struct rlimit most;
	struct stat st;
	ck_assert_int_eq(getrlimit(RLIMIT_NOFILE, &most), 0);
	if (most.rlim_max < 2 * MANY || stat("/proc/self/fd", &st) < 0 || !st.st_size)
		SKIP("few descriptors are allowed, or Linux is older than 6.2");
	most.rlim_cur = most.rlim_max;
	ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &most), 0);
	for (int i = 0; i < MANY; i++)
		ck_assert_int_ge(dup(0), 0); /* the daemon inherits them */
	begin();
	for (int i = 0; i < ROUNDS; i++) {
		uint64_t t = clock_us();
		DIR *d = opendir("/proc/self/fd");
		while (readdir(d))
			;
		closedir(d);
		t = clock_us() - t;
		list_us = t < list_us ? t : list_us;
		usleep(110000);
		t = clock_us();
		n = metric("process_open_fds");
		t = clock_us() - t;
		page_us = t < page_us ? t : page_us;
	}
	ck_assert_msg(n >= MANY && n < MANY + 100, "%llu", (unsigned long long)n);
	ck_assert_msg(page_us < list_us, "a page took %llu us, listing the descriptors %llu",
	              (unsigned long long)page_us, (unsigned long long)list_us);
	end();
}

TEST(test_head_has_no_body)
{
	begin();
	char *got = ask_from(2, "HEAD /metrics");
	has(got, "HTTP/1.1 200 ");
	ck_assert_ptr_null(strstr(got, "pdserve_"));
	ck_assert_str_eq(strstr(got, "\r\n\r\n"), "\r\n\r\n");
	free(got);
	end();
}

/* Scrapers keep their connection. */
TEST(test_kept_alive)
{
	begin();
	int fd = dial_from(2);
	for (int i = 0; i < 3; i++) {
		say(fd, "GET /health HTTP/1.1\r\nHost: x\r\n\r\n");
		char *got = hear(fd, 50);
		has(got, "HTTP/1.1 200 ");
		free(got);
	}
	close(fd);
	end();
}

TEST(test_draining)
{
	drains_slowly = 1;
	begin();
	expect("GET /health", "\"status\":\"ok\""); /* it has started: SIGTERM lets it drain */
	ck_assert_int_eq(kill(daemon_pid, SIGTERM), 0);
	for (uint64_t until = clock_us() + WAIT_S * 1000000u;; usleep(10000)) {
		char *got = ask_from(2, "GET /health");
		int drains = strstr(got, "\"state\":\"draining\"") != NULL;
		ck_assert_msg(drains || clock_us() < until, "%s", got);
		free(got);
		if (drains)
			break;
	}
	kill(daemon_pid, SIGTERM); /* the second ends it at once */
	ck_assert_int_eq(WEXITSTATUS(wait_status()), 128 + SIGTERM);
}

/* --- hostile clients ----------------------------------------------------- */

TEST_CASE("hostile", .timeout_s = 60);

/* Rendering is what a client costs: all together get one page in 100 ms. */
TEST(test_rendered_once)
{
	begin();
	uint64_t began = clock_us(), before = metric("pdserve_test_rendered_total");
	for (int i = 0; i < 300; i++)
		free(ask_from(2 + (unsigned)i % 50, "GET /metrics"));
	usleep(110000);
	uint64_t pages = metric("pdserve_test_rendered_total") - before;
	ck_assert_msg(pages >= 1 && pages <= (clock_us() - began) / 100000 + 1, "%llu pages in %llu us",
	              (unsigned long long)pages, (unsigned long long)(clock_us() - began));
	end();
}

static const struct {
	const char *text;
	unsigned more; /* bytes 'a' after it */
	const char *status;
} wrong[] = {
	{"\x16\x03\x01\x02\x01\x01\xfc\x03\x03\r\n\r\n", 0, "HTTP/1.1 400 "}, /* TLS */
	{"GET / HTTP/1.1\nno: host\n\n\r\n\r\n", 0, "HTTP/1.1 400 "},
	{"GET /metrics HTTP/1.1\r\nX: ", 200000, "HTTP/1.1 431 "},
	{"GET /", 200000, "HTTP/1.1 431 "},
	{"GET /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999\r\n\r\n", 200000,
     "HTTP/1.1 413 "},
	{"GET /metrics HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nfffff\r\n", 200000,
     "HTTP/1.1 413 "},
	{"GET /metrics HTTP/3.0\r\nHost: x\r\n\r\n", 0, "HTTP/1.1 505 "},
};

TEST_LOOP(test_garbage, 0, sizeof wrong / sizeof *wrong)
{
	begin();
	int fd = dial_from(3);
	say(fd, wrong[_i].text);
	char *more = mem_alloc(wrong[_i].more + 1);
	memset(more, 'a', wrong[_i].more);
	send(fd, more, wrong[_i].more, MSG_NOSIGNAL);
	char *got = hear(fd, 13);
	has(got, wrong[_i].status);
	free(got);
	free(more);
	close(fd);
	still_serves();
	end();
}

/* Connections that send half of a request and wait, from one address and from many. */
static const unsigned addresses[] = {1, 100};

TEST_LOOP(test_many_connections, 0, sizeof addresses / sizeof *addresses)
{
	enum { N = 300 };
	static int fd[N];
	begin();
	uint64_t fds = metric("process_open_fds"), bytes = metric("process_resident_memory_bytes");
	for (int i = 0; i < N; i++) {
		fd[i] = dial_from(3 + (unsigned)i % addresses[_i]);
		if (fd[i] >= 0)
			say(fd[i], "GET /metrics HTTP/1.1\r\nHost: x\r\nX-");
	}
	usleep(150000);
	still_serves();
	ck_assert_uint_le(metric("process_open_fds"), fds + 64);
	ck_assert_uint_le(metric("process_resident_memory_bytes"), bytes + GROWS_MAX);
	end();
}

/* It sends a byte now and then. */
TEST(test_slow_client)
{
	begin();
	int fd = dial_from(3);
	uint64_t began = clock_us();
	say(fd, "GET /metrics HTTP/1.1\r\nHost: x\r\nX: ");
	fcntl(fd, F_SETFL, O_NONBLOCK);
	char got[256];
	ssize_t k;
	while ((k = recv(fd, got, sizeof got - 1, 0)) < 0 && clock_us() - began < WAIT_S * 1000000u) {
		say(fd, "a");
		usleep(50000);
	}
	ck_assert_int_gt((int)k, 0);
	got[k] = 0;
	has(got, "HTTP/1.1 408 ");
	still_serves();
	end();
}

/* It asks for thousands of pages and reads none. */
TEST(test_never_reads)
{
	static const char one[] = "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n";
	enum { CLIENTS = 15, EACH = 5000 };
	begin();
	uint64_t bytes = metric("process_resident_memory_bytes");
	int fd[CLIENTS];
	for (int i = 0; i < CLIENTS; i++) {
		fd[i] = dial_from(3 + (unsigned)i);
		fcntl(fd[i], F_SETFL, O_NONBLOCK);
		for (int n = 0; n < EACH; n++)
			if (send(fd[i], one, sizeof one - 1, MSG_NOSIGNAL) < (ssize_t)sizeof one - 1)
				break;
	}
	usleep(300000);
	still_serves();
	ck_assert_uint_le(metric("process_resident_memory_bytes"), bytes + GROWS_MAX);
	end();
}

/* It leaves in the middle of its request or of the answer: by a reset, or half. */
TEST(test_leaves)
{
	static const char *const said[] = {"", "GET /met", "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"};
	struct linger at_once = {.l_onoff = 1};
	begin();
	uint64_t fds = metric("process_open_fds");
	for (int i = 0; i < 300; i++) {
		int fd = dial_from(3 + (unsigned)i % 50);
		ck_assert_int_ge(fd, 0);
		say(fd, said[i % 3]);
		if (i & 1)
			shutdown(fd, SHUT_WR);
		else
			setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
		close(fd);
	}
	still_serves();
	for (uint64_t until = clock_us() + WAIT_S * 1000000u; metric("process_open_fds") > fds;
	     usleep(110000)) /* a page is kept for 100 ms */
		ck_assert_uint_lt(clock_us(), until);
	end();
}

/* --- the address --------------------------------------------------------- */

/* The start error of a daemon NAME with this metrics_listen. */
static char *refused(const char *name, const char *listen_at)
{
	int pair[2];
	ck_assert_int_eq(pipe(pair), 0);
	test_folder(dir, "m");
	launch(name, listen_at, pair[1]);
	close(pair[1]);
	char *text = mem_zalloc(4096);
	for (ssize_t n = 0, k; n < 4095 && (k = read(pair[0], text + n, (size_t)(4095 - n))) > 0;)
		n += k;
	close(pair[0]);
	int status = wait_status();
	ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 1, "%#x: %s", (unsigned)status, text);
	return text;
}

static const struct {
	const char *name, *listen_at, *part;
} addresses_refused[] = {
	{"test-1", "9600", "metrics_listen = \"9600\": allowed is HOST:PORT"},
	{"test-1", "127.0.0.1:", "allowed is HOST:PORT"},
	{"test-1", "127.0.0.1:70000", "a port of 0 to 65535"},
	{"test-1", "127.0.0.1:96a", "allowed is HOST:PORT"},
	{"test", "127.0.0.1:9600+", "the name \"test\" to the port: there is none; leave out the +"},
	{"test-9", "127.0.0.1:65530+", "more than 65535; choose a lower port"},
	{"test-1", "300.0.0.1:9600", "metrics_listen \"300.0.0.1:9600\": "},
};

TEST_CASE("address", .timeout_s = 60);

TEST_LOOP(test_wrong_address, 0, sizeof addresses_refused / sizeof *addresses_refused)
{
	char *text = refused(addresses_refused[_i].name, addresses_refused[_i].listen_at);
	has(text, "cannot start: ");
	has(text, addresses_refused[_i].part);
	free(text);
}

TEST(test_address_in_use)
{
	char at[32], part[192];
	begin();
	pid_t first = daemon_pid;
	snprintf(at, sizeof at, "127.0.0.1:%u", port);
	snprintf(part, sizeof part,
	         "cannot listen on metrics_listen \"%s\": Address already in use; stop what uses the "
	         "port, or choose another",
	         at);
	char *text = refused("test-2", at);
	has(text, part);
	free(text);
	daemon_pid = first;
	end();
}

/* The number at the end of the name is added. */
TEST(test_port_by_name)
{
	char at[32];
	int fd;
	test_folder(dir, "m");
	port = free_port();
	snprintf(at, sizeof at, "127.0.0.1:%u+", port - 12);
	launch("test-12", at, -1);
	for (uint64_t until = clock_us() + WAIT_S * 1000000u; (fd = dial_from(9)) < 0; usleep(1000))
		ck_assert_uint_lt(clock_us(), until);
	close(fd);
	expect("GET /health", "\"name\":\"test-12\"");
	end();
}

TEST(test_ipv6)
{
	char at[32];
	struct sockaddr_in6 to = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT};
	test_folder(dir, "m");
	port = free_port();
	to.sin6_port = htons(port);
	snprintf(at, sizeof at, "[::1]:%u", port);
	launch("test-1", at, -1);
	int fd = socket(AF_INET6, SOCK_STREAM, 0);
	ck_assert_int_ge(fd, 0);
	for (uint64_t until = clock_us() + WAIT_S * 1000000u;
	     connect(fd, (struct sockaddr *)&to, sizeof to) < 0; usleep(1000))
		ck_assert_uint_lt(clock_us(), until);
	say(fd, "GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
	char *got = hear(fd, SIZE_MAX);
	has(got, "HTTP/1.1 200 ");
	free(got);
	close(fd);
	end();
}
