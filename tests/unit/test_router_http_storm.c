/* test_router_http_storm.c - what one client may make the event loop do at once: connections,
 * requests and TLS handshakes by the hundred, beside another client and another event. */
/* run: waits threads */
#include "tempdir.h"

#include "http_rig.h"

#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/rsa.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <time.h>

enum { CROWD = 150, SERVER_ACCEPTS = 16, REQUEST_US = 3000 /* more than one turn parses */ };

static unsigned hogs;        /* requests for /hog */
static unsigned hogs_before; /* the request for /victim */

static void slow_request(void *arg, struct http_conn *c, struct http_request *q)
{
	for (uint64_t end = clock_us() + REQUEST_US; clock_us() < end;)
		;
	if (strcmp(q->head->path, "/victim") == 0)
		hogs_before = hogs;
	else
		hogs++;
	request(arg, c, q);
}

static void begin_slow(void)
{
	struct err err = {0};
	struct http_handlers handlers = {.head = head, .request = slow_request};
	opts.max_connections = 4 * CROWD;
	hogs = 0;
	hogs_before = CROWD + 1;
	ck_assert_msg(http_new(base, &opts, &handlers, NULL, &server, &err) == 0, "%s", err.text);
}

static void crowd_asks(const int *fd)
{
	for (int i = 0; i < CROWD; i++)
		say(fd[i], "GET /hog HTTP/1.1\r\nHost: x\r\n\r\n");
}

static void close_all(const int *fd, int n)
{
	for (int i = 0; i < n; i++)
		close(fd[i]);
}

TEST(a_burst_is_accepted_in_parts)
{
	int fd[CROWD];
	opts.max_connections = 4 * CROWD;
	begin();
	for (int i = 0; i < CROWD; i++)
		fd[i] = dial();
	for (uint64_t before = 0; before < CROWD; before = counts().accepted) {
		event_base_loop(base, EVLOOP_ONCE);
		ck_assert_uint_le(counts().accepted, before + SERVER_ACCEPTS);
	}
	close_all(fd, CROWD);
}

/* One of another address is parsed after one of the many, or some: the loop's first look at the
 * sockets does not return all that are ready. */
TEST(addresses_take_turns)
{
	int fd[CROWD];
	begin_slow();
	for (int i = 0; i < CROWD; i++)
		fd[i] = dial();
	UNTIL(counts().accepted == CROWD);
	int victim = dial_from(2);
	UNTIL(counts().accepted == CROWD + 1);
	crowd_asks(fd);
	say(victim, "GET /victim HTTP/1.1\r\nHost: x\r\n\r\n");
	answered(victim, "HTTP/1.1 200 ", NULL);
	ck_assert_uint_le(hogs_before, 4);
	UNTIL(hogs == CROWD);
	close_all(fd, CROWD);
	close(victim);
}

static unsigned hogs_at_event;

static void on_event_beside(evutil_socket_t fd, short what, void *arg)
{
	(void)fd;
	(void)what;
	(void)arg;
	hogs_at_event = hogs;
}

/* The client's end is seen while its request waits to be parsed: it is answered all the same. */
TEST(a_request_and_its_end_at_once)
{
	char text[4096] = "";
	int fd[CROWD], closed = 0;
	begin_slow();
	for (int i = 0; i < CROWD; i++)
		fd[i] = dial();
	int last = dial();
	UNTIL(counts().accepted == CROWD + 1);
	crowd_asks(fd);
	say(last, "GET /victim HTTP/1.1\r\nHost: x\r\n\r\n");
	shutdown(last, SHUT_WR);
	UNTIL(closed, listen_to(last, text, sizeof text, &closed));
	ck_assert_msg(strncmp(text, "HTTP/1.1 200 ", 13) == 0, "%s", text);
	ck_assert_uint_gt(hogs_before, 1);
	close_all(fd, CROWD);
	close(last);
}

/* An event of a link becomes ready while a crowd's requests wait. */
TEST(a_link_waits_for_one_request)
{
	int fd[CROWD], link[2];
	ck_assert_int_eq(event_base_priority_init(base, 2), 0);
	begin_slow();
	for (int i = 0; i < CROWD; i++)
		fd[i] = dial();
	UNTIL(counts().accepted == CROWD);
	crowd_asks(fd);
	UNTIL(hogs > 0);
	ck_assert_uint_lt(hogs, CROWD / 2);
	ck_assert_int_eq(pipe(link), 0);
	struct event *ev = event_new(base, link[0], EV_READ, on_event_beside, NULL);
	event_priority_set(ev, 0);
	event_add(ev, NULL);
	unsigned before = hogs;
	ck_assert_int_eq((int)write(link[1], "x", 1), 1);
	UNTIL(!event_pending(ev, EV_READ, NULL));
	ck_assert_uint_le(hogs_at_event, before + 1);
	event_free(ev);
	close_all(link, 2);
	close_all(fd, CROWD);
}

/* --- TLS ----------------------------------------------------------------- */

static SSL_CTX *client_tls;

static char cert[2][TEST_FOLDER_BYTES], key[TEST_FOLDER_BYTES];

/* For this name, with the key. */
static void make_cert(const char *name, EVP_PKEY *pkey, const char *path)
{
	X509 *x = X509_new();
	ASN1_INTEGER_set(X509_get_serialNumber(x), 1);
	X509_gmtime_adj(X509_getm_notBefore(x), -60);
	X509_gmtime_adj(X509_getm_notAfter(x), 3600);
	X509_set_pubkey(x, pkey);
	X509_NAME_add_entry_by_txt(X509_get_subject_name(x), "CN", MBSTRING_ASC,
	                           (const unsigned char *)name, -1, -1, 0);
	X509_set_issuer_name(x, X509_get_subject_name(x));
	FILE *out = fopen(path, "w");
	ck_assert(X509_sign(x, pkey, EVP_sha256()) > 0 && out && PEM_write_X509(out, x));
	fclose(out);
	X509_free(x);
}

/* A key of this size makes a handshake expensive for the server. */
static void make_certs(void)
{
	EVP_PKEY *pkey = EVP_RSA_gen(3072);
	test_file(cert[0], "one.crt");
	test_file(cert[1], "two.crt");
	test_file(key, "tls.key");
	make_cert("one", pkey, cert[0]);
	make_cert("two", pkey, cert[1]);
	FILE *out = fopen(key, "w");
	ck_assert(out && PEM_write_PrivateKey(out, pkey, NULL, NULL, 0, NULL, NULL));
	fclose(out);
	EVP_PKEY_free(pkey);
}

static void set_up_tls(void)
{
	set_up();
	client_tls = SSL_CTX_new(TLS_client_method());
	opts.tls_cert = cert[0];
	opts.tls_key = key;
	opts.max_connections = 4 * CROWD;
}

TEST_CASE("tls", .timeout_s = 60, .setup_once = make_certs, .setup = set_up_tls,
          .teardown = tear_down);

struct secure {
	int fd;
	SSL *ssl;
};

/* Connects, and sends its ClientHello. */
static struct secure hello(unsigned from)
{
	struct secure s = {.fd = dial_from(from), .ssl = SSL_new(client_tls)};
	SSL_set_fd(s.ssl, s.fd);
	ck_assert_int_eq(SSL_connect(s.ssl), -1);
	return s;
}

static int is_answered(const struct secure *s)
{
	char c;
	return recv(s->fd, &c, 1, MSG_PEEK) == 1;
}

static void secured(struct secure *s, const char *want_name)
{
	char name[32] = "";
	int done = 0;
	UNTIL((done = SSL_connect(s->ssl)) == 1,
	      ck_assert_int_eq(SSL_get_error(s->ssl, done), SSL_ERROR_WANT_READ));
	X509 *x = SSL_get1_peer_certificate(s->ssl);
	X509_NAME_get_text_by_NID(X509_get_subject_name(x), NID_commonName, name, sizeof name);
	X509_free(x);
	if (want_name)
		ck_assert_str_eq(name, want_name);
}

static void serve(struct secure *s)
{
	static const char ask[] = "GET / HTTP/1.1\r\nHost: x\r\n\r\n";
	char text[4096];
	int n = 0;
	ck_assert_int_eq(SSL_write(s->ssl, ask, sizeof ask - 1), (int)sizeof ask - 1);
	UNTIL((n = SSL_read(s->ssl, text, sizeof text)) > 0);
	ck_assert_int_eq(strncmp(text, "HTTP/1.1 200 ", 13), 0);
}

static void leave(struct secure *s, int n)
{
	for (int i = 0; i < n; i++) {
		SSL_free(s[i].ssl);
		close(s[i].fd);
	}
}

static uint64_t cpu_us(clockid_t of)
{
	struct timespec t;
	clock_gettime(of, &t);
	return (uint64_t)t.tv_sec * 1000000u + (uint64_t)t.tv_nsec / 1000u;
}

/* An address begins many handshakes. The loop computes none of them, and one of another address
 * does not wait for all of them. */
TEST(a_storm_of_handshakes)
{
	struct secure s[CROWD], other;
	int answers = 0;
	begin();
	for (int i = 0; i < CROWD; i++)
		s[i] = hello(1);
	other = hello(2);
	secured(&other, "one");
	for (int i = 0; i < CROWD; i++)
		answers += is_answered(&s[i]);
	ck_assert_int_lt(answers, CROWD / 2);
	uint64_t loop = cpu_us(CLOCK_THREAD_CPUTIME_ID), all = cpu_us(CLOCK_PROCESS_CPUTIME_ID);
	UNTIL(is_answered(&s[CROWD - 1]));
	loop = cpu_us(CLOCK_THREAD_CPUTIME_ID) - loop;
	all = cpu_us(CLOCK_PROCESS_CPUTIME_ID) - all;
	ck_assert_msg(loop < all / 2, "the loop's thread computed for %llu of %llu us",
	              (unsigned long long)loop, (unsigned long long)all);
	serve(&other);
	leave(s, CROWD);
	leave(&other, 1);
}

/* Who sends half a ClientHello, or nothing, holds up nobody and is closed. */
TEST(half_a_handshake)
{
	enum { N = 20 };
	int fd[N], ends = 0;
	opts.read_us = 1500000;
	begin();
	for (int i = 0; i < N; i++) {
		fd[i] = dial();
		if (i % 2)
			say(fd[i], "\x16\x03\x01\x02");
	}
	struct secure other = hello(1);
	secured(&other, "one");
	serve(&other);
	UNTIL(counts().tls_failed == N);
	for (int i = 0; i < N; i++, ends = 0)
		UNTIL(ends, take(fd[i], &ends));
	ck_assert_uint_eq(counts().connections, 1);
	close_all(fd, N);
	leave(&other, 1);
}

/* A request without TLS is answered as such, whatever its method; other bytes end the connection
 * without a word. Nothing of them stays. */
TEST(plain_http_on_a_port_with_tls)
{
	int fd[256], closed;
	begin();
	for (int first = 0; first < 256; first++) {
		char text[] = {(char)first, 0};
		fd[first] = dial_from(1 + (unsigned)first % 7);
		ck_assert_int_eq(send(fd[first], text, 1, 0), 1);
	}
	for (int first = 0; first < 256; first++) {
		char text[2048] = "";
		closed = 0;
		if (first >= 'A' && first <= 'Z') {
			say(fd[first], "ET / HTTP/1.1\r\nHost: x\r\n\r\n");
			UNTIL(closed, listen_to(fd[first], text, sizeof text, &closed));
			ck_assert_msg(strncmp(text, "HTTP/1.1 400 ", 13) == 0 && strstr(text, "use https://"),
			              "%s", text);
		} else if (first != 0x16) {
			/* it may be the beginning of a ClientHello of SSLv2 */
			shutdown(fd[first], SHUT_WR);
			UNTIL(closed, listen_to(fd[first], text, sizeof text, &closed));
			ck_assert_msg(!strstr(text, "HTTP"), "%d: %s", first, text);
		}
	}
	close_all(fd, 256);
	UNTIL(counts().connections == 0);
	ck_assert_uint_eq(counts().refused, 26);
	ck_assert_uint_eq(counts().tls_failed, 256 - 26);
	ck_assert_uint_eq(heads, 0);
}

/* Those that are begun are finished with the certificate that they began with, or the new one. */
TEST(certificates_change_during_handshakes)
{
	enum { N = 40 };
	struct secure s[N], after;
	struct err err = {0};
	begin();
	for (int i = 0; i < N; i++)
		s[i] = hello(1 + (unsigned)i % 4);
	for (int i = 0; i < 10; i++) {
		turn();
		ck_assert_int_eq(http_set_tls(server, cert[i % 2], key, &err), 0);
	}
	for (int i = 0; i < N; i++)
		secured(&s[i], NULL);
	after = hello(1);
	secured(&after, "two");
	serve(&after);
	serve(&s[0]);
	leave(s, N);
	leave(&after, 1);
}

/* More than there is room for: each newcomer takes the place of one whose handshake waits, is
 * computed, or is done. */
TEST(handshakes_give_way)
{
	enum { N = 100 };
	struct secure s[N];
	opts.max_connections = 24;
	begin();
	for (int i = 0; i < N; i++) {
		s[i] = hello(1 + (unsigned)i % 3);
		if (i % 4 == 0)
			turn();
	}
	UNTIL(counts().accepted == N);
	ck_assert_uint_le(counts().connections, 24);
	struct secure last = hello(4);
	secured(&last, "one");
	serve(&last);
	leave(s, N);
	leave(&last, 1);
	UNTIL(counts().connections == 0);
}

/* Threads still compute for clients that have left, and for a server that ends. */
TEST(the_end_during_handshakes)
{
	enum { N = 60 };
	struct secure s[N];
	begin();
	for (int i = 0; i < N; i++)
		s[i] = hello(1 + (unsigned)i % 3);
	UNTIL(is_answered(&s[0]));
	leave(s, N / 2);
	turn();
	http_destroy(&server);
	leave(s + N / 2, N - N / 2);
}
