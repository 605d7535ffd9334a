/* tls.c - see tls.h. What a client sends may end its own connection, nothing else: OpenSSL's queue
 * of errors is emptied by whoever calls it. */
#include "http/tls.h"

#include <event2/buffer.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <stdio.h>
#include <string.h>

void tls_reason(unsigned long code, char *out, size_t size)
{
	const char *text = code ? ERR_reason_error_string(code) : NULL;
	snprintf(out, size, "%s", text ? text : "the client has closed the connection");
}

/* OpenSSL's first reason; the last ones say only in which function it was. */
static int fail(struct err *err, const char *setting, const char *file)
{
	unsigned long code = ERR_get_error();
	const char *text = code ? ERR_reason_error_string(code) : NULL;
	if (code && ERR_GET_LIB(code) == ERR_LIB_SYS)
		text = strerror(ERR_GET_REASON(code));
	ERR_clear_error();
	return err_set(err, ERR_INVALID, "%s %s: %s", setting, file, text ? text : "unknown error");
}

/* A key with a passphrase would be asked for at the terminal. arg: set to 1. */
static int no_password(char *buf, int size, int writes, void *arg)
{
	(void)buf;
	(void)size;
	(void)writes;
	*(int *)arg = 1;
	return -1;
}

/* A client that offers protocols must offer HTTP/1.1. */
static int select_protocol(SSL *ssl, const unsigned char **ret, unsigned char *ret_len,
                           const unsigned char *offered, unsigned len, void *arg)
{
	static const unsigned char ours[] = "\x08http/1.1";
	(void)ssl;
	(void)arg;
	return SSL_select_next_proto((unsigned char **)ret, ret_len, ours, sizeof ours - 1, offered,
	                             len) == OPENSSL_NPN_NEGOTIATED
	           ? SSL_TLSEXT_ERR_OK
	           : SSL_TLSEXT_ERR_ALERT_FATAL;
}

int tls_open(const char *cert, const char *key, SSL_CTX **ret, struct err *err)
{
	ERR_clear_error();
	SSL_CTX *c = SSL_CTX_new(TLS_server_method());
	if (!c)
		return fail(err, "http_tls_cert", cert);
	int r = 0, asked = 0;
	SSL_CTX_set_min_proto_version(c, TLS1_2_VERSION);
	/* HTTP knows by itself where a message ends, so that an end without close_notify tells as much
	 * as one over plain TCP */
	SSL_CTX_set_options(c, SSL_OP_NO_COMPRESSION | SSL_OP_NO_RENEGOTIATION |
	                           SSL_OP_CIPHER_SERVER_PREFERENCE | SSL_OP_IGNORE_UNEXPECTED_EOF);
	SSL_CTX_set_session_cache_mode(c, SSL_SESS_CACHE_OFF); /* resumption is by tickets alone */
	SSL_CTX_set_mode(c, SSL_MODE_RELEASE_BUFFERS);
	SSL_CTX_set_default_passwd_cb(c, no_password);
	SSL_CTX_set_default_passwd_cb_userdata(c, &asked);
	SSL_CTX_set_alpn_select_cb(c, select_protocol, NULL);
	if (SSL_CTX_use_certificate_chain_file(c, cert) != 1)
		r = fail(err, "http_tls_cert", cert);
	else if (SSL_CTX_use_PrivateKey_file(c, key, SSL_FILETYPE_PEM) != 1 ||
	         SSL_CTX_check_private_key(c) != 1)
		r = asked
		        ? err_set(err, ERR_INVALID,
		                  "http_tls_key %s: it has a passphrase, which nobody can enter here", key)
		        : fail(err, "http_tls_key", key);
	SSL_CTX_set_default_passwd_cb_userdata(c, NULL);
	ERR_clear_error();
	if (r < 0)
		SSL_CTX_free(c);
	else
		*ret = c;
	return r;
}

void tls_close(SSL_CTX **tls)
{
	SSL_CTX_free(*tls);
	*tls = NULL;
}

void tls_take(SSL *ssl, struct evbuffer *in)
{
	struct evbuffer_iovec room;
	int n = SSL_pending(ssl);
	if (n <= 0 || evbuffer_reserve_space(in, n, &room, 1) < 1)
		return;
	n = SSL_read(ssl, room.iov_base, n);
	room.iov_len = n > 0 ? (size_t)n : 0;
	evbuffer_commit_space(in, &room, 1);
}

void tls_end(SSL *ssl)
{
	SSL_shutdown(ssl);
	ERR_clear_error();
}
