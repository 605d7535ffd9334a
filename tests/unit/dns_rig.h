/* dns_rig.h - a name server on the test's event loop, UDP and TCP on a port of 127.0.0.1, whose
 * records and faults the test changes while it runs. */
#ifndef TESTS_DNS_RIG_H
#define TESTS_DNS_RIG_H

#include <arpa/inet.h>
#include <arpa/nameser.h>
#include <check.h>
#include <event2/event.h>
#include <netinet/in.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define DNS_RECORDS_MAX 64u
#define DNS_BYTES_MAX 8192u

enum dns_fault { DNS_NONE, DNS_SILENT, DNS_SERVFAIL, DNS_TRUNCATES, DNS_GARBAGE };

struct dns_record {
	const char *name;
	unsigned type; /* T_A, T_AAAA, T_SRV */
	const char *value;
	unsigned port; /* SRV */
};

struct dns {
	struct event_base *base;
	int udp, tcp;
	struct event *udp_ev, *tcp_ev;
	char servers[40]; /* for dns_servers */
	struct dns_record records[DNS_RECORDS_MAX];
	unsigned n;
	enum dns_fault fault;
	unsigned asked, asked_tcp;
	uint32_t seed;
};

static inline void dns_add(struct dns *d, const char *name, unsigned type, const char *value,
                           unsigned port)
{
	ck_assert_uint_lt(d->n, DNS_RECORDS_MAX);
	d->records[d->n++] = (struct dns_record){name, type, value, port};
}

static inline void dns_clear(struct dns *d)
{
	d->n = 0;
}

static inline size_t dns_put_name(unsigned char *out, const char *name)
{
	size_t n = 0;
	while (*name) {
		size_t label = strcspn(name, ".");
		out[n++] = (unsigned char)label;
		memcpy(out + n, name, label);
		n += label;
		name += label + (name[label] == '.');
	}
	out[n++] = 0;
	return n;
}

static inline size_t dns_put16(unsigned char *out, unsigned v)
{
	out[0] = (unsigned char)(v >> 8);
	out[1] = (unsigned char)v;
	return 2;
}

static inline size_t dns_put_record(unsigned char *out, const struct dns_record *r)
{
	unsigned char data[400];
	size_t n = 0, len = 0;
	if (r->type == T_SRV) {
		len += dns_put16(data, 10);
		len += dns_put16(data + len, 5);
		len += dns_put16(data + len, r->port);
		len += dns_put_name(data + len, r->value);
	} else {
		inet_pton(r->type == T_A ? AF_INET : AF_INET6, r->value, data);
		len = r->type == T_A ? 4 : 16;
	}
	n += dns_put16(out, 0xc00c); /* the question's name */
	n += dns_put16(out + n, r->type);
	n += dns_put16(out + n, C_IN);
	n += dns_put16(out + n, 0);
	n += dns_put16(out + n, 1); /* TTL */
	n += dns_put16(out + n, (unsigned)len);
	memcpy(out + n, data, len);
	return n + len;
}

static inline uint32_t dns_random(struct dns *d)
{
	d->seed = d->seed * 1664525u + 1013904223u;
	return d->seed >> 8;
}

/* Changes, cuts or extends an answer behind its id. */
static inline size_t dns_spoil(struct dns *d, unsigned char *out, size_t n)
{
	unsigned changes = 1 + dns_random(d) % 8;
	while (changes--)
		out[2 + dns_random(d) % (n - 2)] = (unsigned char)dns_random(d);
	if (dns_random(d) % 4 == 0)
		n = dns_random(d) % (n + 1);
	if (dns_random(d) % 8 == 0)
		for (unsigned i = dns_random(d) % 300; i > 0; i--)
			out[n++] = (unsigned char)dns_random(d);
	return n;
}

/* Returns the length of the answer; 0: none. */
static inline size_t dns_answer(struct dns *d, const unsigned char *q, size_t len, int tcp,
                                unsigned char *out)
{
	char name[300] = "";
	size_t at = 12, n;
	unsigned found = 0, answers = 0;
	while (at < len && q[at] && at + q[at] < len && strlen(name) + q[at] < sizeof name - 2) {
		snprintf(name + strlen(name), sizeof name - strlen(name), "%s%.*s", *name ? "." : "", q[at],
		         (const char *)q + at + 1);
		at += q[at] + 1u;
	}
	if (at + 5 > len)
		return 0;
	unsigned type = q[at + 1] << 8 | q[at + 2];
	n = at + 5;
	memcpy(out, q, n);
	d->asked++;
	d->asked_tcp += (unsigned)tcp;
	if (d->fault == DNS_SILENT)
		return 0;
	int cut = d->fault == DNS_TRUNCATES && !tcp;
	for (unsigned i = 0; i < d->n; i++) {
		if (strcasecmp(d->records[i].name, name) != 0)
			continue;
		found = 1;
		if (d->records[i].type != type || cut || d->fault == DNS_SERVFAIL)
			continue;
		n += dns_put_record(out + n, &d->records[i]);
		answers++;
	}
	out[2] = (unsigned char)(0x84 | (q[2] & 1) | (cut ? 2 : 0));
	out[3] = (unsigned char)(0x80 | (d->fault == DNS_SERVFAIL ? 2 : found ? 0 : 3));
	dns_put16(out + 6, answers);
	dns_put16(out + 8, 0);
	dns_put16(out + 10, 0);
	return d->fault == DNS_GARBAGE ? dns_spoil(d, out, n) : n;
}

static inline void dns_on_udp(evutil_socket_t fd, short what, void *arg)
{
	struct dns *d = arg;
	unsigned char q[600], out[DNS_BYTES_MAX];
	struct sockaddr_in from;
	socklen_t from_len = sizeof from;
	(void)what;
	ssize_t len = recvfrom(fd, q, sizeof q, 0, (struct sockaddr *)&from, &from_len);
	size_t n = len > 12 ? dns_answer(d, q, (size_t)len, 0, out) : 0;
	if (n)
		sendto(fd, out, n, 0, (struct sockaddr *)&from, from_len);
}

struct dns_client {
	struct dns *dns;
	struct event *ev;
};

/* One question; c-ares writes it at once. */
static inline void dns_on_client(evutil_socket_t c, short what, void *arg)
{
	struct dns_client *client = arg;
	unsigned char q[600], out[DNS_BYTES_MAX + 2];
	ssize_t len = what & EV_READ ? recv(c, q, sizeof q, 0) : 0;
	size_t n = len > 14 ? dns_answer(client->dns, q + 2, (size_t)len - 2, 1, out + 2) : 0;
	dns_put16(out, (unsigned)n);
	if (n)
		ck_assert_int_eq(send(c, out, n + 2, MSG_NOSIGNAL), (ssize_t)n + 2);
	close(c);
	event_free(client->ev);
	free(client);
}

static inline void dns_on_tcp(evutil_socket_t fd, short what, void *arg)
{
	struct timeval patience = {1, 0};
	struct dns_client *client = malloc(sizeof *client);
	struct dns *d = arg;
	(void)what;
	int c = accept(fd, NULL, NULL);
	ck_assert(client && c >= 0);
	client->dns = d;
	client->ev = event_new(d->base, c, EV_READ, dns_on_client, client);
	event_add(client->ev, &patience);
}

static inline void dns_start(struct dns *d, struct event_base *on)
{
	struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t len = sizeof a;
	*d = (struct dns){.base = on, .seed = 1};
	d->tcp = socket(AF_INET, SOCK_STREAM, 0);
	d->udp = socket(AF_INET, SOCK_DGRAM, 0);
	ck_assert_int_eq(bind(d->tcp, (struct sockaddr *)&a, sizeof a), 0);
	ck_assert_int_eq(listen(d->tcp, 64), 0);
	ck_assert_int_eq(getsockname(d->tcp, (struct sockaddr *)&a, &len), 0);
	ck_assert_int_eq(bind(d->udp, (struct sockaddr *)&a, sizeof a), 0);
	snprintf(d->servers, sizeof d->servers, "127.0.0.1:%u", ntohs(a.sin_port));
	d->udp_ev = event_new(on, d->udp, EV_READ | EV_PERSIST, dns_on_udp, d);
	d->tcp_ev = event_new(on, d->tcp, EV_READ | EV_PERSIST, dns_on_tcp, d);
	event_add(d->udp_ev, NULL);
	event_add(d->tcp_ev, NULL);
}

static inline void dns_stop(struct dns *d)
{
	event_free(d->udp_ev);
	event_free(d->tcp_ev);
	close(d->udp);
	close(d->tcp);
}

#endif
