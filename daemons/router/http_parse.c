/* http_parse.c - see http_parse.h.
 *
 * Strict where leniency would let two readers of the same bytes disagree: a bare LF, a space before a colon, a folded header, both kinds of length or
 * two different lengths are refused. What is refused is answered with a status and ends the connection. */
#include "http_parse.h"

#include <ctype.h>
#include <string.h>
#include <strings.h>

static int is_token_char(unsigned char c)
{
	return isalnum(c) || (c && strchr("!#$%&'*+-.^_`|~", c));
}

static int fail(const char **why, int status, const char *text)
{
	*why = text;
	return status;
}

/* "METHOD SP target SP HTTP/1.x" */
static int parse_request_line(char *line, struct http_head *h, const char **why)
{
	char *target = strchr(line, ' ');
	char *version = target ? strchr(target + 1, ' ') : NULL;
	if (!version || target == line || version == target + 1)
		return fail(why, 400, "the request line is not METHOD TARGET VERSION");
	*target++ = 0;
	*version++ = 0;
	for (const char *p = line; *p; p++)
		if (!is_token_char((unsigned char)*p))
			return fail(why, 400, "the method holds a character that no method has");
	for (const char *p = target; *p; p++)
		if ((unsigned char)*p <= 0x20 || *p == 0x7f)
			return fail(why, 400, "the target holds a control character");
	if (strncmp(version, "HTTP/", 5) != 0)
		return fail(why, 400, "the request line does not end in an HTTP version");
	if (strcmp(version, "HTTP/1.1") != 0 && strcmp(version, "HTTP/1.0") != 0)
		return fail(why, 505, "only HTTP/1.0 and HTTP/1.1 are spoken here");
	if (*target != '/' && strncmp(target, "http://", 7) != 0)
		return fail(why, 400, "the target must be a path");
	if (*target != '/') {
		target = strchr(target + 7, '/');
		if (!target)
			return fail(why, 400, "the target has no path");
	}
	h->method = line;
	h->path = target;
	h->query = "";
	char *query = strchr(target, '?');
	if (query) {
		*query = 0;
		h->query = query + 1;
	}
	h->minor = version[7] - '0';
	h->keep_alive = h->minor == 1;
	return 0;
}

static int parse_length(const char *v, struct http_head *h, const char **why)
{
	uint64_t n = 0;
	if (!*v)
		return fail(why, 400, "Content-Length is empty");
	for (; *v; v++) {
		if (!isdigit((unsigned char)*v) || n > UINT64_MAX / 100)
			return fail(why, 400, "Content-Length is not a number that fits");
		n = n * 10 + (uint64_t)(*v - '0');
	}
	if (h->has_length && h->content_length != n)
		return fail(why, 400, "two Content-Length headers differ");
	h->has_length = 1;
	h->content_length = n;
	return 0;
}

/* Is word one of the comma-separated items of list? */
static int list_has(const char *list, const char *word)
{
	size_t n = strlen(word);
	for (const char *p = list; *p;) {
		p += strspn(p, ", \t");
		size_t len = strcspn(p, ",");
		size_t end = len;
		while (end && (p[end - 1] == ' ' || p[end - 1] == '\t'))
			end--;
		if (end == n && strncasecmp(p, word, n) == 0)
			return 1;
		p += len;
	}
	return 0;
}

static int parse_header(const char *name, const char *v, struct http_head *h, const char **why)
{
	if (strcasecmp(name, "content-length") == 0)
		return parse_length(v, h, why);
	if (strcasecmp(name, "transfer-encoding") == 0) {
		if (strcasecmp(v, "chunked") != 0)
			return fail(why, 501, "the only Transfer-Encoding known here is chunked");
		h->chunked = 1;
	} else if (strcasecmp(name, "connection") == 0) {
		if (list_has(v, "close"))
			h->keep_alive = 0;
		else if (list_has(v, "keep-alive"))
			h->keep_alive = 1;
	} else if (strcasecmp(name, "expect") == 0) {
		if (strcasecmp(v, "100-continue") != 0)
			return fail(why, 400, "the only Expect known here is 100-continue");
		h->expect_continue = 1;
	} else if (strcasecmp(name, "authorization") == 0) {
		h->authorization = v;
	} else if (strcasecmp(name, "x-session-id") == 0) {
		h->session_id = v;
	} else if (strcasecmp(name, "x-pdserve-prefill") == 0) {
		h->pin_prefill = v;
	} else if (strcasecmp(name, "x-pdserve-decode") == 0) {
		h->pin_decode = v;
	}
	return 0;
}

static int parse_header_line(char *line, struct http_head *h, const char **why)
{
	char *colon = strchr(line, ':');
	if (!colon || colon == line)
		return fail(why, 400, "a header line has no name");
	for (const char *p = line; p < colon; p++)
		if (!is_token_char((unsigned char)*p))
			return fail(why, 400, "a header's name holds a character that no name has");
	*colon = 0;
	char *v = colon + 1;
	v += strspn(v, " \t");
	size_t n = strlen(v);
	while (n && (v[n - 1] == ' ' || v[n - 1] == '\t'))
		v[--n] = 0;
	for (const char *p = v; *p; p++)
		if (((unsigned char)*p < 0x20 && *p != '\t') || *p == 0x7f)
			return fail(why, 400, "a header's value holds a control character");
	return parse_header(line, v, h, why);
}

int http_parse_head(char *text, size_t len, struct http_head *h, const char **why)
{
	memset(h, 0, sizeof *h);
	h->authorization = h->session_id = h->pin_prefill = h->pin_decode = h->query = "";
	if (memchr(text, 0, len))
		return fail(why, 400, "the request's head holds a NUL byte");
	int first = 1;
	for (char *line = text; line < text + len;) {
		char *end = memchr(line, '\n', (size_t)(text + len - line));
		if (!end || end == line || end[-1] != '\r')
			return fail(why, 400, "a line of the request's head does not end in CR LF");
		end[-1] = 0;
		if (!*line)
			break;
		int status = first ? parse_request_line(line, h, why) : parse_header_line(line, h, why);
		if (status)
			return status;
		first = 0;
		line = end + 1;
	}
	if (first)
		return fail(why, 400, "the request line is empty");
	if (h->chunked && h->has_length)
		return fail(why, 400, "Content-Length and Transfer-Encoding exclude each other");
	if (h->chunked && h->minor == 0)
		return fail(why, 400, "HTTP/1.0 knows no Transfer-Encoding");
	return 0;
}

int http_parse_chunk_size(const char *line, size_t len, uint64_t *ret)
{
	uint64_t n = 0;
	size_t i = 0;
	for (; i < len && isxdigit((unsigned char)line[i]); i++) {
		if (n >> 56)
			return -1;
		char c = (char)tolower((unsigned char)line[i]);
		n = n << 4 | (uint64_t)(c <= '9' ? c - '0' : c - 'a' + 10);
	}
	if (i == 0 || (i < len && line[i] != ';' && line[i] != ' ' && line[i] != '\t'))
		return -1;
	*ret = n;
	return 0;
}
