/* http.c - a small HTTP/1.1 client: one POST on its own connection; the body is passed on as it
 * arrives.
 *
 * Accepts chunked bodies, bodies with a length, and bodies until the end of the connection; headers
 * are bounded. A server that is silent for SILENCE_S seconds, or closes early, is an error with a
 * reason. The caller can end it at any time after the host's address is known: hooks->stop_fd. */
#include "pdctl.h"

#include "util/err.h"
#include "util/mem.h"

#include <errno.h>
#include <netdb.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

#define HEAD_BYTES_MAX 65536
#define SILENCE_S 120

struct reader {
	int fd, status, stopped;
	const struct http_hooks *hooks;
	struct buf in; /* received, not consumed yet */
	int chunked, ended;
	long long left; /* of the body or the chunk; -1: until the end of the connection */
	char *why;
};

static int fail(struct reader *r, char *why)
{
	free(r->why);
	r->why = why;
	return -1;
}

static int stop(struct reader *r)
{
	r->stopped = 1;
	return fail(r, mem_strdup("ended by the user"));
}

/* Waits until the connection can be read or written, as `events` says. */
static int wait_ready(struct reader *r, short events)
{
	struct pollfd p[2] = {{.fd = r->fd, .events = events},
	                      {.fd = r->hooks->stop_fd, .events = POLLIN}};
	int k;
	do
		k = poll(p, 2, SILENCE_S * 1000);
	while (k < 0 && errno == EINTR);
	if (k < 0)
		return fail(r, mem_printf("cannot wait for the server: %s", strerror(errno)));
	if (k == 0)
		return fail(r, mem_printf("no answer for %d s", SILENCE_S));
	return p[1].revents ? stop(r) : 0;
}

/* 0, or an errno; -1: r->why says the reason. */
static int connect_one(struct reader *r, const struct addrinfo *a)
{
	int why = 0;
	socklen_t size = sizeof why;
	r->fd = socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, a->ai_protocol);
	if (r->fd < 0)
		return errno;
	if (connect(r->fd, a->ai_addr, a->ai_addrlen) < 0 && errno != EINPROGRESS)
		why = errno;
	else if (wait_ready(r, POLLOUT) < 0)
		return -1;
	else
		getsockopt(r->fd, SOL_SOCKET, SO_ERROR, &why, &size);
	if (why) {
		close(r->fd);
		r->fd = -1;
	}
	return why;
}

static int connect_to(struct reader *r, const char *base, char *host, size_t host_size)
{
	char port[16] = "80";
	const char *p = strncmp(base, "http://", 7) == 0 ? base + 7 : base;
	size_t n = strcspn(p, ":/");
	if (n == 0 || n >= host_size)
		return fail(r, mem_printf("\"%s\" is not an address of the form http://HOST:PORT", base));
	memcpy(host, p, n);
	host[n] = 0;
	if (p[n] == ':')
		snprintf(port, sizeof port, "%.*s", (int)strcspn(p + n + 1, "/"), p + n + 1);
	struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *list, *a;
	int e = getaddrinfo(host, port, &hints, &list);
	if (e)
		return fail(r, mem_printf("cannot look up %s: %s", host, gai_strerror(e)));
	for (a = list, e = -1; a && r->fd < 0 && !r->why; a = a->ai_next)
		e = connect_one(r, a);
	freeaddrinfo(list);
	if (e > 0)
		fail(r, mem_printf("cannot connect to %s port %s: %s", host, port, strerror(e)));
	return e ? -1 : 0;
}

static int send_all(struct reader *r, const char *data, size_t n)
{
	while (n) {
		ssize_t k = send(r->fd, data, n, MSG_NOSIGNAL);
		if (k < 0 && errno != EINTR && errno != EAGAIN)
			return fail(r, mem_printf("cannot send the request: %s", strerror(errno)));
		if (k < 0 && wait_ready(r, POLLOUT) < 0)
			return -1;
		if (k > 0) {
			data += k;
			n -= (size_t)k;
		}
	}
	return 0;
}

/* 1: more has arrived, 0: the connection has ended. */
static int more(struct reader *r)
{
	char piece[16384];
	ssize_t k;
	do {
		if (wait_ready(r, POLLIN) < 0)
			return -1;
		k = recv(r->fd, piece, sizeof piece, 0);
	} while (k < 0 && (errno == EINTR || errno == EAGAIN));
	if (k < 0)
		return fail(r, mem_printf("cannot read the answer: %s", strerror(errno)));
	if (k > 0)
		buf_add(&r->in, piece, (size_t)k);
	return k > 0;
}

static void use(struct reader *r, size_t n)
{
	memmove(r->in.data, r->in.data + n, r->in.len - n + 1);
	r->in.len -= n;
}

/* The next line without its end, as a malloc'd text; NULL on failure. */
static char *next_line(struct reader *r)
{
	char *end;
	while (!r->in.len || !(end = memchr(r->in.data, '\n', r->in.len))) {
		if (r->in.len > HEAD_BYTES_MAX) {
			fail(r, mem_printf("the answer has a line of more than %d bytes", HEAD_BYTES_MAX));
			return NULL;
		}
		int k = more(r);
		if (k == 0)
			fail(r, mem_strdup("the connection ended in the middle of the answer"));
		if (k <= 0)
			return NULL;
	}
	size_t n = (size_t)(end - r->in.data), text = n && r->in.data[n - 1] == '\r' ? n - 1 : n;
	char *line = mem_printf("%.*s", (int)text, r->in.data);
	use(r, n + 1);
	return line;
}

static int read_head(struct reader *r)
{
	char *line = next_line(r);
	if (!line)
		return -1;
	int ok = sscanf(line, "HTTP/1.%*d %d", &r->status) == 1;
	free(line);
	if (!ok)
		return fail(r, mem_strdup("the answer is not HTTP"));
	r->left = -1;
	for (int lines = 0; (line = next_line(r)) != NULL; lines++) {
		int last = !*line;
		if (strncasecmp(line, "Content-Length:", 15) == 0)
			r->left = atoll(line + 15);
		if (strncasecmp(line, "Transfer-Encoding:", 18) == 0)
			r->chunked = strstr(line, "chunked") != NULL;
		free(line);
		if (last)
			return 0;
		if (lines > 200)
			return fail(r, mem_strdup("the answer has more than 200 header lines"));
	}
	return -1;
}

/* Passes on the received part of the body or of the chunk. */
static int hand_on(struct reader *r)
{
	size_t n = r->in.len;
	if (r->left >= 0 && (long long)n > r->left)
		n = (size_t)r->left;
	if (n && r->hooks->body(r->hooks->arg, r->status, r->in.data, n))
		return stop(r);
	if (n)
		use(r, n);
	if (r->left >= 0)
		r->left -= (long long)n;
	return 0;
}

/* The body, or one chunk of it. */
static int read_part(struct reader *r)
{
	for (;;) {
		if (hand_on(r) < 0)
			return -1;
		if (r->left == 0)
			return 0;
		int k = more(r);
		if (k < 0)
			return -1;
		if (k == 0)
			return r->left < 0
			           ? 0
			           : fail(r, mem_strdup("the connection ended in the middle of the answer"));
	}
}

static int read_chunks(struct reader *r)
{
	for (;;) {
		char *line = next_line(r), *end;
		if (!line)
			return -1;
		r->left = strtoll(line, &end, 16);
		int bad = end == line || r->left < 0;
		free(line);
		if (bad)
			return fail(r, mem_strdup("the answer has a malformed chunk"));
		if (r->left == 0)
			return 0;
		if (read_part(r) < 0 || !(line = next_line(r)))
			return -1;
		free(line);
	}
}

static int post(struct reader *r, const char *host, const char *path, const char *key,
                const char *body)
{
	char *head = mem_printf(
		"POST %s HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\nContent-Length: "
		"%zu\r\n%s%s%sConnection: close\r\n\r\n",
		path, host, strlen(body), key ? "Authorization: Bearer " : "", key ? key : "",
		key ? "\r\n" : "");
	int bad = send_all(r, head, strlen(head)) < 0 || send_all(r, body, strlen(body)) < 0 ||
	          read_head(r) < 0;
	free(head);
	if (bad || (r->chunked ? read_chunks(r) : read_part(r)) < 0)
		return -1;
	r->hooks->body(r->hooks->arg, r->status, "", 0);
	return 0;
}

int http_post(const char *base, const char *path, const char *key, const char *body,
              const struct http_hooks *hooks, char **ret_why)
{
	char host[256];
	if (key && strpbrk(key, "\r\n")) {
		*ret_why = mem_strdup("the API key contains a line break");
		return -1;
	}
	struct reader r = {.fd = -1, .hooks = hooks};
	buf_init(&r.in, 0);
	int code = connect_to(&r, base, host, sizeof host);
	if (code == 0)
		code = post(&r, host, path, key, body);
	if (code < 0 && r.stopped)
		code = HTTP_STOPPED;
	if (code < 0)
		*ret_why = r.why;
	else
		free(r.why);
	buf_fini(&r.in);
	if (r.fd >= 0)
		close(r.fd);
	return code;
}
