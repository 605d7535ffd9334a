/* who.c - see who.h. https://www.w3.org/TR/trace-context (traceparent). */
#include "who.h"
#include "daemons/router/api/tenant.h"
#include "util/log.h"

#include <stdio.h>
#include <string.h>

#define TRACE_ID_AT 3 /* "00-" */
#define TRACE_ID_LEN 32

/* 00-<32 hex>-<16 hex>-<2 hex>, in lower case, and no id of zeros alone */
static int is_traceparent(const char *s)
{
	static const char form[] = "00-xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx-xxxxxxxxxxxxxxxx-xx";
	size_t i = 0;
	for (; form[i]; i++)
		if (form[i] == 'x' ? !s[i] || !strchr("0123456789abcdef", s[i]) : s[i] != form[i])
			return 0;
	return !s[i] && strspn(s + TRACE_ID_AT, "0") < TRACE_ID_LEN &&
	       strspn(s + TRACE_ID_AT + TRACE_ID_LEN + 1, "0") < 16;
}

/* Returns s, quoted for a log line; at most `most` bytes of it. */
static const char *quote(const char *s, size_t most)
{
	char text[WHO_ID_MAX + 1];
	snprintf(text, sizeof text, "%.*s", (int)most, s);
	return log_quote(text);
}

void who_init(struct who *w, const struct http_conn *c, const struct http_head *head,
              const struct tenant *t)
{
	size_t size = sizeof w->text, len = strlen(head->client_id);
	w->client_id[0] = w->traceparent[0] = 0;
	snprintf(w->address, sizeof w->address, "%s", http_address(c));
	int is_visible = 1;
	for (const char *s = head->client_id; *s; s++)
		is_visible &= *s > 0x20 && *s < 0x7f;
	if (len <= WHO_ID_MAX && is_visible)
		memcpy(w->client_id, head->client_id, len + 1);
	if (is_traceparent(head->traceparent))
		memcpy(w->traceparent, head->traceparent, sizeof w->traceparent);
	size_t n = (size_t)snprintf(w->text, size, "key=%s client=%s path=%s", t ? t->name : "-",
	                            w->address, quote(head->path, WHO_ID_MAX));
	if (*w->client_id)
		n += (size_t)snprintf(w->text + n, size - n, " client_id=%s", log_quote(w->client_id));
	if (*w->traceparent)
		n += (size_t)snprintf(w->text + n, size - n, " trace_id=%.*s", TRACE_ID_LEN,
		                      w->traceparent + TRACE_ID_AT);
	if (*head->forwarded_for)
		snprintf(w->text + n, size - n, " forwarded_for=%s", quote(head->forwarded_for, 80));
}

size_t who_headers(const struct who *w, const char *id, char *out, size_t size)
{
	size_t n = 0;
	out[0] = 0;
	if (*w->client_id || *id)
		n += (size_t)snprintf(out, size, "X-Request-Id: %s\r\n", *w->client_id ? w->client_id : id);
	if (*w->traceparent)
		n += (size_t)snprintf(out + n, size - n, "traceparent: %s\r\n", w->traceparent);
	return n;
}
