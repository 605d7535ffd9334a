/* output.c - answers: whole or streamed, and what of them clients have not taken yet. The last
 * part has one bound for all, shared by addresses as clients.h shares the input, and what an
 * address may leave is shared by its connections in the same way. So neither an address nor, behind
 * a proxy, a connection shuts out others. HTTP_SURE_BYTES of a connection always fit. */
#include "conn.h"
#include "util/check.h"
#include "util/clock.h"
#include "util/log.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

void conn_count_output(struct http_conn *c)
{
	size_t now = http_unsent(c);
	c->server->out_bytes += now - c->out_bytes;
	c->client->loop.out_bytes += now - c->out_bytes;
	c->out_bytes = now;
}

/* As much of max as is left free then. */
static size_t half_of(size_t max, size_t others)
{
	return max > others ? (max - others) / 2 : 0;
}

/* How much this connection may leave unread, with what it leaves already. */
static size_t share(struct http_conn *c)
{
	struct http_server *h = c->server;
	conn_count_output(c);
	size_t of_address = c->client->loop.out_bytes;
	size_t address_max = half_of(h->opts.out_total_max, h->out_bytes - of_address);
	size_t max = half_of(address_max, of_address - c->out_bytes);
	return max > HTTP_SURE_BYTES ? max : HTTP_SURE_BYTES;
}

size_t http_room(struct http_conn *c)
{
	size_t max = share(c), unsent = http_unsent(c);
	if (max > c->server->opts.out_bytes_max)
		max = c->server->opts.out_bytes_max;
	return max > unsent ? max - unsent : 0;
}

static void no_room(struct http_server *h)
{
	unsigned more;
	if (http_note_due(&h->full_note, &more))
		log_warn("http_full", "what=output bytes=%zu limit=%zu more=%u", h->out_bytes,
		         h->opts.out_total_max, more);
}

static const char *reason(int status)
{
	static const struct {
		int status;
		const char *text;
	} known[] = {
		{200, "OK"},
		{400, "Bad Request"},
		{401, "Unauthorized"},
		{404, "Not Found"},
		{405, "Method Not Allowed"},
		{408, "Request Timeout"},
		{413, "Content Too Large"},
		{429, "Too Many Requests"},
		{431, "Request Header Fields Too Large"},
		{500, "Internal Server Error"},
		{501, "Not Implemented"},
		{503, "Service Unavailable"},
		{504, "Gateway Timeout"},
		{505, "HTTP Version Not Supported"},
	};
	for (size_t i = 0; i < sizeof known / sizeof *known; i++)
		if (known[i].status == status)
			return known[i].text;
	return "Status";
}

/* The next request is there; others have their turn first. Without memory for that it is now. */
static void request_later(struct http_conn *c)
{
	static const struct timeval at_once = {0};
	if (event_add(c->later, &at_once) < 0)
		event_active(c->later, EV_TIMEOUT, 0);
}

/* The answer is complete: next request, or flush and close. */
void conn_answered(struct http_conn *c)
{
	c->gone = NULL;
	c->taken = NULL;
	c->streaming = 0;
	c->since_us = clock_us();
	http_frame_next(&c->frame);
	conn_uncharge(c);
	conn_count_output(c);
	if (!c->keep_alive || c->server->stopping) {
		c->state = CONN_FLUSHING;
		return;
	}
	c->state = CONN_READING;
	if (evbuffer_get_length(bufferevent_get_input(c->bev)))
		request_later(c);
}

/* "Date: ...\r\n", made once a second. */
static const char *date_header(void)
{
	static char text[64];
	static time_t made;
	time_t now = time(NULL);
	struct tm tm;
	if (now != made && gmtime_r(&now, &tm)) {
		strftime(text, sizeof text, "Date: %a, %d %b %Y %H:%M:%S GMT\r\n", &tm);
		made = now;
	}
	return text;
}

/* Less than 0: no memory. */
static int write_head(struct http_conn *c, int status, const char *type, const char *extra)
{
	struct evbuffer *out = bufferevent_get_output(c->bev);
	if (c->server->stopping)
		c->keep_alive = 0;
	const char *connection = "";
	if (!c->keep_alive)
		connection = "Connection: close\r\n";
	else if (c->frame.head.minor == 0)
		connection = "Connection: keep-alive\r\n";
	return evbuffer_add_printf(out, "HTTP/1.1 %d %s\r\n%sContent-Type: %s\r\n%s%s", status,
	                           reason(status), date_header(), type, extra ? extra : "", connection);
}

static int write_whole(struct http_conn *c, int status, const char *type, const char *extra,
                       const void *body, size_t len)
{
	struct evbuffer *out = bufferevent_get_output(c->bev);
	const char *method = c->frame.head.method;
	int r = write_head(c, status, type, extra);
	if (r >= 0)
		r = evbuffer_add_printf(out, "Content-Length: %zu\r\n\r\n", len);
	if (r >= 0 && (!method || strcmp(method, "HEAD") != 0))
		r = evbuffer_add(out, body, len);
	return r < 0 ? ERR_NOMEM : 0;
}

void http_reply(struct http_conn *c, int status, const char *type, const char *extra,
                const void *body, size_t len)
{
	if (c->state == CONN_DEAD)
		return;
	CHECK(c->state == CONN_ANSWERING && !c->streaming);
	int r;
	if (len <= HTTP_SURE_BYTES || http_unsent(c) + len <= share(c)) {
		r = write_whole(c, status, type, extra, body, len);
	} else {
		static const char text[] =
			"{\"error\":{\"message\":\"this server has no room for the answer now "
			"(output_bytes_max); try again in a second\","
			"\"type\":\"server_error\",\"param\":null,\"code\":\"unavailable\"}}";
		no_room(c->server);
		c->keep_alive = 0;
		r = write_whole(c, 503, "application/json", "Retry-After: 1\r\n", text, sizeof text - 1);
	}
	if (r < 0)
		conn_kill(c); /* no memory: better no answer than half of one */
	else
		conn_answered(c);
}

void http_stream_begin(struct http_conn *c, const char *type, const char *extra)
{
	if (c->state == CONN_DEAD)
		return;
	CHECK(c->state == CONN_ANSWERING && !c->streaming);
	c->streaming = 1;
	if (c->frame.head.minor == 0)
		c->keep_alive = 0;
	c->no_head = write_head(c, 200, type, extra) < 0 ||
	             evbuffer_add_printf(bufferevent_get_output(c->bev),
	                                 "%sCache-Control: no-cache\r\n\r\n",
	                                 c->frame.head.minor ? "Transfer-Encoding: chunked\r\n" : "") <
	                 0;
}

static int has_room(struct http_conn *c, size_t n)
{
	if (n <= http_room(c))
		return 1;
	if (http_unsent(c) + n <= c->server->opts.out_bytes_max)
		no_room(c->server);
	return 0;
}

int http_stream_add(struct http_conn *c, const void *data, size_t n)
{
	if (c->state == CONN_DEAD || n == 0)
		return 0;
	CHECK(c->streaming);
	struct evbuffer *out = bufferevent_get_output(c->bev);
	if (c->no_head || !has_room(c, n))
		return ERR_FULL;
	if (c->frame.head.minor == 0)
		return evbuffer_add(out, data, n) < 0 ? ERR_FULL : 0;
	char size[24];
	int k = snprintf(size, sizeof size, "%zx\r\n", n);
	/* nothing below fails then: all of a chunk, or nothing */
	if (evbuffer_expand(out, n + 32) < 0)
		return ERR_FULL;
	evbuffer_add(out, size, (size_t)k);
	evbuffer_add(out, data, n);
	return evbuffer_add(out, "\r\n", 2);
}

void http_stream_end(struct http_conn *c)
{
	if (c->state == CONN_DEAD)
		return;
	CHECK(c->streaming);
	if (c->no_head ||
	    (c->frame.head.minor && evbuffer_add(bufferevent_get_output(c->bev), "0\r\n\r\n", 5) < 0))
		http_drop(c); /* no memory: its end shows that it is not whole */
	else
		conn_answered(c);
}
