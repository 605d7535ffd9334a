/* endpoint.c - see endpoint.h. */
#include "util/endpoint.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <stdio.h>
#include <string.h>

#define HOST_MAX 128u
#define NAME_CHARACTERS "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-"

/* HOST of HOST:PORT, without the brackets of IPv6. Returns PORT; NULL: it is not of that form. */
static const char *split(const char *address, char host[HOST_MAX])
{
	const char *colon = strrchr(address, ':');
	size_t n = colon ? (size_t)(colon - address) : 0;
	if (!n || n >= HOST_MAX || !colon[1])
		return NULL;
	int brackets = n > 2 && address[0] == '[' && address[n - 1] == ']';
	memcpy(host, address + brackets, n - 2u * (unsigned)brackets);
	host[n - 2u * (unsigned)brackets] = 0;
	return colon + 1;
}

static int is_port(const char *text)
{
	size_t n = strlen(text);
	long port = n <= 5 && strspn(text, "0123456789") == n ? strtol(text, NULL, 10) : 0;
	return port > 0 && port <= 65535;
}

int endpoint_is_host(const char *text)
{
	struct in_addr v4;
	struct in6_addr v6;
	size_t n = strcspn(text, "%"); /* an interface may follow: fe80::1%eth0 */
	char address[INET6_ADDRSTRLEN];
	if (memchr(text, ':', n)) {
		snprintf(address, sizeof address, "%.*s", (int)(n < sizeof address ? n : 0), text);
		return inet_pton(AF_INET6, address, &v6) == 1;
	}
	if (strspn(text, "0123456789.") == strlen(text))
		return inet_pton(AF_INET, text, &v4) == 1;
	return strspn(text, NAME_CHARACTERS) == strlen(text);
}

int endpoint_is_address(const char *text)
{
	char host[HOST_MAX];
	const char *port = split(text, host);
	for (const char *c = text; *c; c++)
		if (*c <= ' ' || *c > '~' || strchr("\"'\\/@", *c))
			return 0;
	return port && is_port(port) && (endpoint_is_host(host) || endpoint_is_wildcard(text));
}

int endpoint_is_wildcard(const char *address)
{
	char host[HOST_MAX];
	struct in_addr v4;
	struct in6_addr v6;
	const char *port = split(address, host);
	if (!port)
		return 0;
	if (strcmp(host, "*") == 0 || strcmp(port, "*") == 0 || strspn(port, "0") == strlen(port))
		return 1;
	if (inet_aton(host, &v4)) /* also "0" */
		return v4.s_addr == htonl(INADDR_ANY);
	return inet_pton(AF_INET6, host, &v6) == 1 && IN6_IS_ADDR_UNSPECIFIED(&v6);
}

static size_t name_bytes(const char *text)
{
	size_t n = strspn(text, NAME_CHARACTERS);
	return n && n <= 47 && text[0] != '.' && strncmp(text + n, "@tcp://", 7) == 0 ? n : 0;
}

int endpoint_is_remote(const char *text)
{
	size_t n = strlen(text) <= ENDPOINT_BYTES_MAX ? name_bytes(text) : 0;
	const char *address = text + n + 7;
	return n && endpoint_is_address(address) && !endpoint_is_wildcard(address);
}

int endpoint_is_remote_of(const char *text, const char *name)
{
	size_t n = strlen(name);
	return endpoint_is_remote(text) && strncmp(text, name, n) == 0 && text[n] == '@';
}

void endpoint_host(const char *text, char *out, size_t size)
{
	const char *host = strstr(text, "tcp://"), *port = strrchr(text, ':');
	host = host ? host + 6 : text;
	host += *host == '[';
	size_t n = port && port > host ? (size_t)(port - host) : strlen(host);
	n -= n && host[n - 1] == ']';
	snprintf(out, size, "%.*s", (int)n, host);
}
