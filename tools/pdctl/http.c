/* http.c - one POST by libcurl, over TLS if the address says https; the body is passed on as it
 * arrives. The caller can end it at any time: hooks->stop_fd. A server that is silent for SILENCE_S
 * seconds is an error with a reason. No proxy is asked: the address is a router's. */
#include "pdctl.h"

#include "util/check.h"
#include "util/mem.h"

#include <curl/curl.h>
#include <stdlib.h>
#include <string.h>

#define SILENCE_S 120L
#define WAIT_MS 1000

struct post {
	CURL *easy;
	const struct http_hooks *hooks;
	char text[CURL_ERROR_SIZE]; /* libcurl's reason */
};

static int status_of(const struct post *p)
{
	long status = 0;
	curl_easy_getinfo(p->easy, CURLINFO_RESPONSE_CODE, &status);
	return (int)status;
}

static size_t on_bytes(char *data, size_t one, size_t n, void *arg)
{
	struct post *p = arg;
	(void)one;
	return p->hooks->body(p->hooks->arg, status_of(p), data, n) ? CURL_WRITEFUNC_ERROR : n;
}

static char *reason(const struct post *p, CURLcode code)
{
	const char *text = *p->text ? p->text : curl_easy_strerror(code);
	long error = 0;
	curl_easy_getinfo(p->easy, CURLINFO_OS_ERRNO, &error);
	switch (code) {
	case CURLE_COULDNT_CONNECT:
		return mem_printf("cannot connect: %s", error ? strerror((int)error) : text);
	case CURLE_OPERATION_TIMEDOUT: return mem_printf("no answer for %ld s", SILENCE_S);
	case CURLE_SSL_CONNECT_ERROR:
		return mem_printf("no TLS connection (%s): does the port speak TLS, or plain http://?",
		                  text);
	case CURLE_PEER_FAILED_VERIFICATION:
		return mem_printf("%s: name its authority's file by --cacert, and the host as the "
		                  "certificate does by -u https://NAME:PORT; --insecure accepts any",
		                  text);
	default: return mem_strdup(text);
	}
}

/* Until the answer has ended, or stop_fd is readable. */
static CURLcode run(const struct post *p, CURLM *multi)
{
	struct curl_waitfd stop = {.fd = p->hooks->stop_fd, .events = CURL_WAIT_POLLIN};
	unsigned n_stop = p->hooks->stop_fd >= 0;
	int runs, left;
	while (curl_multi_perform(multi, &runs) == CURLM_OK && runs) {
		if (curl_multi_poll(multi, &stop, n_stop, WAIT_MS, NULL) != CURLM_OK)
			break;
		if (stop.revents)
			return CURLE_ABORTED_BY_CALLBACK;
	}
	const CURLMsg *m = curl_multi_info_read(multi, &left);
	return m ? m->data.result : CURLE_FAILED_INIT;
}

static CURLcode post(struct post *p, const struct http_peer *s, const char *url,
                     struct curl_slist *head, const char *body)
{
	CURL *c = p->easy;
	CURLM *multi = curl_multi_init();
	CURLcode code = CURLE_FAILED_INIT;
	curl_easy_setopt(c, CURLOPT_URL, url);
	curl_easy_setopt(c, CURLOPT_PROTOCOLS_STR, "http,https");
	curl_easy_setopt(c, CURLOPT_HTTP_VERSION, CURL_HTTP_VERSION_1_1);
	curl_easy_setopt(c, CURLOPT_PROXY, "");
	curl_easy_setopt(c, CURLOPT_NOSIGNAL, 1L);
	curl_easy_setopt(c, CURLOPT_CONNECTTIMEOUT, SILENCE_S);
	curl_easy_setopt(c, CURLOPT_LOW_SPEED_LIMIT, 1L);
	curl_easy_setopt(c, CURLOPT_LOW_SPEED_TIME, SILENCE_S);
	curl_easy_setopt(c, CURLOPT_HTTPHEADER, head);
	curl_easy_setopt(c, CURLOPT_POSTFIELDS, body);
	curl_easy_setopt(c, CURLOPT_WRITEFUNCTION, on_bytes);
	curl_easy_setopt(c, CURLOPT_WRITEDATA, p);
	curl_easy_setopt(c, CURLOPT_ERRORBUFFER, p->text);
	curl_easy_setopt(c, CURLOPT_SSL_VERIFYPEER, s->insecure ? 0L : 1L);
	curl_easy_setopt(c, CURLOPT_SSL_VERIFYHOST, s->insecure ? 0L : 2L);
	if (s->cacert)
		curl_easy_setopt(c, CURLOPT_CAINFO, s->cacert);
	if (multi && curl_multi_add_handle(multi, c) == CURLM_OK) {
		code = run(p, multi);
		curl_multi_remove_handle(multi, c);
	}
	curl_multi_cleanup(multi);
	return code;
}

int http_post(const struct http_peer *s, const char *path, const char *body,
              const struct http_hooks *hooks, char **ret_why)
{
	if (s->key && strpbrk(s->key, "\r\n")) {
		*ret_why = mem_strdup("the access key contains a line break");
		return -1;
	}
	struct post p = {.easy = curl_easy_init(), .hooks = hooks};
	CHECK(p.easy);
	char *url = mem_printf("%s%s", s->base, path),
		 *key = mem_printf("Authorization: Bearer %s", s->key ? s->key : "");
	struct curl_slist *head = curl_slist_append(NULL, "Content-Type: application/json");
	head = curl_slist_append(head, "Expect:");
	if (s->key)
		head = curl_slist_append(head, key);
	CURLcode code = post(&p, s, url, head, body);
	if (code == CURLE_OK)
		hooks->body(hooks->arg, status_of(&p), "", 0);
	int stopped = code == CURLE_WRITE_ERROR || code == CURLE_ABORTED_BY_CALLBACK;
	if (code != CURLE_OK && !stopped)
		*ret_why = reason(&p, code);
	curl_slist_free_all(head);
	curl_easy_cleanup(p.easy);
	free(url);
	free(key);
	return code == CURLE_OK ? 0 : stopped ? HTTP_STOPPED : -1;
}
