/* output.c - answers, whole or streamed, and the bound on what clients have not taken yet: one for
 * all (out_total_max), shared by addresses as clients.h shares the input, and within an address by
 * its connections in the same way. So neither an address nor, behind a proxy, a connection shuts
 * out others. A connection may always hold HTTP_SURE_BYTES. */
#include "http/conn.h"
#include "util/check.h"
#include "util/clock.h"
#include "util/log.h"

#include <string.h>
#include <time.h>

void conn_count_output(struct http_conn *c)
{
	size_t now = http_unsent(c);
	c->server->out_bytes += now - c->out_bytes;
	c->client->loop.out_bytes += now - c->out_bytes;
	c->out_bytes = now;
}

/* So much of max that as much remains free. */
static size_t half_of(size_t max, size_t others)
{
	return max > others ? (max - others) / 2 : 0;
}

/* How many bytes this connection may leave unread, including those it leaves already. */
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

static void note_full(struct http_server *h)
{
	unsigned more;
	if (log_note_due(&h->full_note, &more))
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
		{415, "Unsupported Media Type"},
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

/* The head but for its empty line, in server.head, which may lack memory: see its `full`. */
static struct buf *make_head(struct http_conn *c, int status, const char *type, const char *extra)
{
	struct buf *head = &c->server->head;
	if (c->server->stopping)
		c->keep_alive = 0;
	buf_reset(head);
	buf_adds(head, "HTTP/1.1 ");
	buf_add_uint(head, (uint64_t)status);
	buf_addc(head, ' ');
	buf_adds(head, reason(status));
	buf_adds(head, "\r\n");
	buf_adds(head, date_header());
	buf_adds(head, "Content-Type: ");
	buf_adds(head, type);
	buf_adds(head, "\r\n");
	buf_adds(head, c->server->headers);
	buf_adds(head, extra ? extra : "");
	if (!c->keep_alive)
		buf_adds(head, "Connection: close\r\n");
	else if (c->frame.head.minor == 0)
		buf_adds(head, "Connection: keep-alive\r\n");
	return head;
}

static int write_whole(struct http_conn *c, int status, const char *type, const char *extra,
                       const void *body, size_t len)
{
	struct evbuffer *out = bufferevent_get_output(c->bev);
	struct buf *head = make_head(c, status, type, extra);
	const char *method = c->frame.head.method;
	int is_head = method && strcmp(method, "HEAD") == 0;
	buf_adds(head, "Content-Length: ");
	buf_add_uint(head, len);
	buf_adds(head, "\r\n\r\n");
	if (head->full || evbuffer_add(out, head->data, head->len) < 0)
		return ERR_NOMEM;
	return is_head || evbuffer_add(out, body, len) == 0 ? 0 : ERR_NOMEM;
}

int conn_write_answer(struct http_conn *c, int status, const char *type, const char *extra,
                      const void *body, size_t len)
{
	static const char text[] =
		"{\"error\":{\"message\":\"this server has no room for the answer now "
		"(output_bytes_max); try again in a second\","
		"\"type\":\"server_error\",\"param\":null,\"code\":\"unavailable\"}}";
	if (len <= HTTP_SURE_BYTES || http_unsent(c) + len <= share(c))
		return write_whole(c, status, type, extra, body, len);
	note_full(c->server);
	c->keep_alive = 0;
	return write_whole(c, 503, "application/json", "Retry-After: 1\r\n", text, sizeof text - 1);
}

void http_reply(struct http_conn *c, int status, const char *type, const char *extra,
                const void *body, size_t len)
{
	if (c->state == CONNECTION_CLOSED)
		return;
	CHECK(c->state == CONNECTION_AUTHORISING || c->state == CONNECTION_SERVING);
	if (conn_write_answer(c, status, type, extra, body, len) < 0) {
		c->owner.gone = NULL; /* no memory: better no answer than half of one */
		connection_step(c, CONNECTION_ON_CLOSE);
	} else {
		connection_step(c, CONNECTION_ON_ANSWERED);
	}
}

void http_stream_begin(struct http_conn *c, const char *type, const char *extra)
{
	if (c->state == CONNECTION_CLOSED)
		return;
	CHECK(c->state == CONNECTION_SERVING);
	if (c->frame.head.minor == 0)
		c->keep_alive = 0;
	struct buf *head = make_head(c, 200, type, extra);
	buf_adds(head, c->frame.head.minor ? "Transfer-Encoding: chunked\r\n" : "");
	/* nginx would pass events on in clumps */
	buf_adds(head, "Cache-Control: no-cache\r\nX-Accel-Buffering: no\r\n\r\n");
	int r = head->full ? ERR_NOMEM
	                   : evbuffer_add(bufferevent_get_output(c->bev), head->data, head->len);
	connection_step(c, r < 0 ? CONNECTION_ON_NO_MEMORY : CONNECTION_ON_STREAM);
}

int http_is_streaming(const struct http_conn *c)
{
	return c->state == CONNECTION_STREAMING || c->state == CONNECTION_BROKEN;
}

static int has_room(struct http_conn *c, size_t n)
{
	if (n <= http_room(c))
		return 1;
	if (http_unsent(c) + n <= c->server->opts.out_bytes_max)
		note_full(c->server);
	return 0;
}

/* "1f4\r\n"; returns its length, at most 18 */
static size_t chunk_size_line(size_t n, char out[24])
{
	size_t digits = 1;
	while (digits < 16 && n >> 4 * digits)
		digits++;
	for (size_t i = digits; i-- > 0; n >>= 4)
		out[i] = "0123456789abcdef"[n & 15];
	memcpy(out + digits, "\r\n", 2);
	return digits + 2;
}

int http_stream_add(struct http_conn *c, const void *data, size_t n)
{
	if (c->state == CONNECTION_CLOSED || n == 0)
		return 0;
	CHECK(http_is_streaming(c));
	struct evbuffer *out = bufferevent_get_output(c->bev);
	if (c->state == CONNECTION_BROKEN || !has_room(c, n))
		return ERR_FULL;
	if (c->frame.head.minor == 0)
		return evbuffer_add(out, data, n) < 0 ? ERR_FULL : 0;
	/* the chunk's frame and its data in one piece, without a further copy: all of it or nothing */
	struct evbuffer_iovec room;
	char size[24];
	size_t len = chunk_size_line(n, size);
	if (evbuffer_reserve_space(out, (ev_ssize_t)(len + n + 2), &room, 1) < 1)
		return ERR_FULL;
	char *p = room.iov_base;
	memcpy(p, size, len);
	memcpy(p + len, data, n);
	memcpy(p + len + n, "\r\n", 2);
	room.iov_len = len + n + 2;
	return evbuffer_commit_space(out, &room, 1) < 0 ? ERR_FULL : 0;
}

void http_stream_end(struct http_conn *c)
{
	if (c->state == CONNECTION_CLOSED)
		return;
	CHECK(http_is_streaming(c));
	if (c->state == CONNECTION_BROKEN ||
	    (c->frame.head.minor && evbuffer_add(bufferevent_get_output(c->bev), "0\r\n\r\n", 5) < 0))
		http_drop(c); /* no memory: the missing end shows that the answer is not whole */
	else
		connection_step(c, CONNECTION_ON_ANSWERED);
}

void http_drop(struct http_conn *c)
{
	struct http_server *h = c->server;
	unsigned more;
	if (http_is_streaming(c)) {
		h->cut++;
		if (log_note_due(&h->cut_note, &more))
			log_warn("http_answer_cut", "unsent=%zu more=%u", http_unsent(c), more);
	}
	c->owner.gone = NULL;
	connection_step(c, CONNECTION_ON_CLOSE);
}

void http_on_taken(struct http_conn *c, void (*fn)(void *arg), void *arg)
{
	c->owner.taken = fn;
	c->owner.taken_arg = arg;
}

void http_on_gone(struct http_conn *c, void (*fn)(void *arg), void *arg)
{
	c->owner.gone = fn;
	c->owner.gone_arg = arg;
}
