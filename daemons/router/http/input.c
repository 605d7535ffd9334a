/* input.c - from a connection's bytes to requests: what is read, kept, handed over or refused. */
#include "conn.h"
#include "util/clock.h"
#include "util/log.h"
#include "util/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void http_body_free(struct http_body *b)
{
	if (!b->data)
		return;
	free(b->data);
	b->data = NULL;
	client_put(b->client, b->charged);
}

int conn_has_begun(const struct http_conn *c)
{
	return http_frame_begun(&c->frame) || evbuffer_get_length(bufferevent_get_input(c->bev));
}

void conn_refuse(struct http_conn *c, int status, const char *text)
{
	struct http_server *h = c->server;
	char body[1024];
	unsigned more;
	size_t n = h->opts.error_body ? h->opts.error_body(status, text, body, sizeof body)
	                              : (size_t)snprintf(body, sizeof body, "%s\n", text);
	h->refused++;
	if (http_note_due(&h->refused_note, &more))
		log_info("http_refused", "status=%d why=%s more=%u", status, log_quote(text), more);
	conn_waits(c, 0);
	evbuffer_drain(bufferevent_get_input(c->bev),
	               evbuffer_get_length(bufferevent_get_input(c->bev)));
	c->keep_alive = 0;
	c->refused = 1;
	c->state = CONN_ANSWERING;
	http_reply(c, status, h->opts.error_body ? "application/json" : "text/plain",
	           status == 503 ? "Retry-After: 1\r\n" : NULL, body, n);
}

/* --- what is held -------------------------------------------------------- */

static void no_room(struct http_conn *c)
{
	struct http_server *h = c->server;
	unsigned more;
	if (http_note_due(&h->full_note, &more))
		log_warn("http_full", "what=input bytes=%zu limit=%zu more=%u", clients_bytes(h->clients),
		         h->opts.in_bytes_max, more);
	if (c->state == CONN_READING)
		conn_refuse(c, 503,
		            "this server has no room for the request now (input_bytes_max); try "
		            "again in a second");
	else
		conn_lost(c); /* it sends further requests while one is answered */
}

static size_t held_by(const struct http_conn *c)
{
	return http_frame_held(&c->frame) + evbuffer_get_length(bufferevent_get_input(c->bev));
}

void conn_uncharge(struct http_conn *c)
{
	size_t held = held_by(c);
	if (held < c->in_bytes && client_resize(c->client, c->in_bytes, held) == 0)
		c->in_bytes = held;
}

/* What the connection holds is charged to its client. 0, or ERR_FULL: there is no room for it, and
 * it was refused. */
static int charge(struct http_conn *c)
{
	size_t held = held_by(c);
	int r = client_resize(c->client, c->in_bytes, held);
	if (r == 0)
		c->in_bytes = held;
	else
		no_room(c);
	return r;
}

/* --- steps --------------------------------------------------------------- */

/* One request a turn: who sends many behind each other does not keep the loop from others. What
 * follows the last one is dropped at once. */
static int answered(const struct http_conn *c)
{
	return c->state == CONN_FLUSHING;
}

/* This and the next return 1 if there may be more to do, 0 if more bytes are needed or it is
 * another's turn. A request refused here has sent only its head, and nothing else of it is kept. */
static int take_head(struct http_conn *c)
{
	struct http_server *h = c->server;
	struct http_head *head = &c->frame.head;
	size_t body_max = h->opts.max_body_bytes;
	int has_body = head->chunked || head->content_length;
	conn_waits(c, 0);
	c->state = CONN_ANSWERING;
	c->keep_alive = head->keep_alive && !has_body;
	c->refused = has_body;
	if (h->handlers.head(h->arg, c, head, &body_max))
		return answered(c);
	c->state = CONN_READING;
	c->refused = 0;
	if (http_frame_go_on(&c->frame, body_max) < 0) {
		conn_refuse(c, c->frame.status, c->frame.why);
		return 0;
	}
	if (head->content_length > CLIENT_SURE_BYTES && head->content_length > client_room(c->client)) {
		no_room(c);
		return 0;
	}
	if (head->expect_continue && has_body)
		evbuffer_add(bufferevent_get_output(c->bev), "HTTP/1.1 100 Continue\r\n\r\n", 25);
	return 1;
}

static int hand_over(struct http_conn *c)
{
	struct http_server *h = c->server;
	struct buf *b = &c->frame.body;
	if (charge(c) < 0)
		return 0;
	char *data = b->data ? b->data : mem_try_array(1, 1);
	if (!data) {
		conn_refuse(c, 503, "this server has no memory for the request now");
		return 0;
	}
	struct http_request q = {.head = &c->frame.head, .body = {data, b->len, c->client, b->size}};
	c->in_bytes -= b->size;
	memset(b, 0, sizeof *b);
	client_hold(c->client);
	c->state = CONN_ANSWERING;
	c->keep_alive = c->frame.head.keep_alive;
	h->handlers.request(h->arg, c, &q);
	http_body_free(&q.body);
	return answered(c);
}

static int step_reading(struct http_conn *c)
{
	struct evbuffer *in = bufferevent_get_input(c->bev);
	size_t n = evbuffer_get_contiguous_space(in), used;
	if (!http_frame_begun(&c->frame)) {
		if (!n || http_unsent(c) >= HTTP_UNREAD_MAX)
			return 0;
		c->since_us = clock_us();
	}
	enum http_event event = http_frame_feed(
		&c->frame, n ? (const char *)evbuffer_pullup(in, (ev_ssize_t)n) : "", n, &used);
	evbuffer_drain(in, used);
	switch (event) {
	case HTTP_MORE: return used > 0;
	case HTTP_HEAD: return take_head(c);
	case HTTP_REQUEST: return hand_over(c);
	case HTTP_BAD: conn_refuse(c, c->frame.status, c->frame.why); return 0;
	}
	return 0;
}

static int step(struct http_conn *c)
{
	struct evbuffer *in = bufferevent_get_input(c->bev);
	switch (c->state) {
	case CONN_READING: return step_reading(c);
	case CONN_FLUSHING:
	case CONN_LINGER: evbuffer_drain(in, evbuffer_get_length(in)); return 0;
	case CONN_ANSWERING:
	case CONN_DEAD: return 0;
	}
	return 0;
}

void conn_go_on(struct http_conn *c)
{
	while (step(c))
		;
	if (c->state != CONN_DEAD)
		charge(c);
}
