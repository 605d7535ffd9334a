/* url.c - see url.h. */
#include "url.h"

#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <unistd.h>

#define CONNECT_WAIT_S 3

/* Parses HOST or [IPv6], optionally with :PORT. Returns the rest of the text; NULL: invalid. */
static const char *read_authority(const char *p, struct url *u)
{
	size_t n, bracket = *p == '[';
	p += bracket;
	n = strcspn(p, bracket ? "]" : ":/?#");
	if (n == 0 || n >= sizeof u->host || (bracket && p[n] != ']'))
		return NULL;
	memcpy(u->host, p, n);
	u->host[n] = 0;
	p += n + bracket;
	snprintf(u->port, sizeof u->port, u->tls ? "443" : "80");
	if (*p != ':')
		return p;
	n = strspn(p + 1, "0123456789");
	if (n == 0 || n >= sizeof u->port || atoi(p + 1) < 1 || atoi(p + 1) > 65535)
		return NULL;
	snprintf(u->port, sizeof u->port, "%.*s", (int)n, p + 1);
	return p + 1 + n;
}

static int is_safe(const char *s)
{
	for (; *s; s++)
		if ((unsigned char)*s <= ' ' || (unsigned char)*s >= 127 || *s == '"' || *s == '@')
			return 0;
	return 1;
}

int url_parse(const char *text, struct url *ret, struct err *err)
{
	struct url u = {.tls = strncmp(text, "https://", 8) == 0};
	const char *p = u.tls ? text + 8 : strncmp(text, "http://", 7) == 0 ? text + 7 : text;
	if (!is_safe(text) || (p == text && strstr(text, "://")) || !(p = read_authority(p, &u)) ||
	    (*p && *p != '/') || strlen(p) >= sizeof u.path || strpbrk(p, "?#"))
		return err_set(
			err, ERR_INVALID,
			"\"%.100s\" is not an address of the form http[s]://HOST:PORT (port 1 to 65535)", text);
	size_t n = strlen(p);
	while (n && p[n - 1] == '/')
		n--;
	if (n >= 3 && memcmp(p + n - 3, "/v1", 3) == 0)
		n -= 3; /* OpenAI's clients take this as part of the base address */
	memcpy(u.path, p, n);
	snprintf(u.authority, sizeof u.authority, strchr(u.host, ':') ? "[%s]:%s" : "%s:%s", u.host,
	         u.port);
	*ret = u;
	return 0;
}

/* Does a server listen there? Waits at most CONNECT_WAIT_S seconds. */
static int listens(const struct addrinfo *a)
{
	struct timeval wait = {.tv_sec = CONNECT_WAIT_S};
	int fd = socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return 0;
	setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &wait, sizeof wait);
	int r = connect(fd, a->ai_addr, a->ai_addrlen);
	close(fd);
	return r == 0;
}

/* A name may have several addresses (localhost: ::1 and 127.0.0.1). Uses the first one with a
 * listening server, or else the first one. */
int url_resolve(struct url *u, struct err *err)
{
	struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *list;
	int r = getaddrinfo(u->host, u->port, &hints, &list);
	if (r)
		return err_set(err, ERR_NOTFOUND, "cannot look up %s: %s", u->host, gai_strerror(r));
	const struct addrinfo *a = list;
	while (list->ai_next && a && !listens(a))
		a = a->ai_next;
	if (!a)
		a = list;
	memcpy(&u->addr, a->ai_addr, a->ai_addrlen);
	u->addr_len = a->ai_addrlen;
	freeaddrinfo(list);
	return 0;
}
