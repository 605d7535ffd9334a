/* parse.c - see parse.h.
 *
 * Strict, because with leniency two readers of the same bytes could disagree about where a request
 * ends or for whom it is. Refused are: a bare LF or CR, white space before a colon, a folded
 * header, both kinds of length, and a length, coding or host given twice. A refusal is answered
 * with a status and ends the connection. */
#include "http/parse.h"

#include <ctype.h>
#include <string.h>
#include <strings.h>

#define CHUNK_DIGITS_MAX 16u /* 64 bits */

static int is_token_char(unsigned char c)
{
	return isalnum(c) || (c && strchr("!#$%&'*+-.^_`|~", c));
}

static int fail(const char **why, int status, const char *text)
{
	*why = text;
	return status;
}

/* --- the authority: Host, and the target's ------------------------------- */

/* "name", "name:port", "1.2.3.4:port", "[v6]:port". No comma: other readers would see two hosts. */
static int is_authority(const char *s, size_t len)
{
	const char *end = s + len, *p = s;
	if (p < end && *p == '[') {
		while (++p < end && (isxdigit((unsigned char)*p) || *p == ':' || *p == '.'))
			;
		if (p == s + 1 || p == end || *p++ != ']')
			return 0;
	} else {
		while (p < end && *p != ':' && *p &&
		       (isalnum((unsigned char)*p) || strchr("-._~%!$&'()*+;=", *p)))
			p++;
	}
	if (p == s)
		return 0;
	if (p < end && *p == ':')
		for (p++; p < end && isdigit((unsigned char)*p);)
			p++;
	return p == end;
}

/* --- the request line ---------------------------------------------------- */

static int parse_version(const char *v, struct http_head *h, const char **why)
{
	if (strncmp(v, "HTTP/", 5) != 0 || !isdigit((unsigned char)v[5]) || v[6] != '.' ||
	    !isdigit((unsigned char)v[7]) || v[8])
		return fail(why, 400, "the request line does not end in an HTTP version");
	if (v[5] != '1' || v[7] > '1')
		return fail(why, 505, "only HTTP/1.0 and HTTP/1.1 are spoken here");
	h->minor = v[7] - '0';
	h->keep_alive = h->minor == 1;
	return 0;
}

/* A path, or a URL, whose authority is checked and then left out. */
static int parse_target(char *target, struct http_head *h, const char **why)
{
	static const char scheme[] = "http://";
	for (const char *p = target; *p; p++)
		if ((unsigned char)*p <= 0x20 || (unsigned char)*p >= 0x7f)
			return fail(why, 400, "the target holds a character that no target has");
	if (strncasecmp(target, scheme, sizeof scheme - 1) == 0) {
		const char *authority = target + sizeof scheme - 1;
		target = strchr(authority, '/');
		if (!target)
			return fail(why, 400, "the target has no path");
		if (!is_authority(authority, (size_t)(target - authority)))
			return fail(why, 400, "the target's host is none");
	}
	if (*target != '/')
		return fail(why, 400, "the target must be a path");
	h->path = target;
	h->query = "";
	char *query = strchr(target, '?');
	if (query) {
		*query = 0;
		h->query = query + 1;
	}
	return 0;
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
	h->method = line;
	int status = parse_version(version, h, why);
	return status ? status : parse_target(target, h, why);
}

/* --- header fields ------------------------------------------------------- */

static int take_length(const char *v, struct http_head *h, const char **why)
{
	uint64_t n = 0;
	if (h->has_length)
		return fail(why, 400, "Content-Length is given twice");
	if (!*v)
		return fail(why, 400, "Content-Length is empty");
	for (; *v; v++) {
		if (!isdigit((unsigned char)*v) || n > UINT64_MAX / 100)
			return fail(why, 400, "Content-Length is not a number that fits");
		n = n * 10 + (uint64_t)(*v - '0');
	}
	h->has_length = 1;
	h->content_length = n;
	return 0;
}

/* Is the list's last item "chunked"? */
static int ends_in_chunked(const char *list)
{
	static const char word[] = "chunked";
	size_t n = strlen(list), len = sizeof word - 1;
	return n > len && strcasecmp(list + n - len, word) == 0 && strchr(", \t", list[n - len - 1]);
}

/* A body whose coding does not end in "chunked" has no known end: 400. Another coding before
 * "chunked" is only unsupported: 501. */
static int take_coding(const char *v, struct http_head *h, const char **why)
{
	if (h->has_coding)
		return fail(why, 400, "Transfer-Encoding is given twice");
	h->has_coding = 1;
	if (strcasecmp(v, "chunked") == 0)
		h->chunked = 1;
	else if (is_token_char((unsigned char)*v) && strncasecmp(v, "chunked", 7) != 0 &&
	         ends_in_chunked(v))
		return fail(why, 501, "the only Transfer-Encoding known here is chunked");
	else
		return fail(why, 400, "Transfer-Encoding is not chunked");
	return 0;
}

static int take_host(const char *v, struct http_head *h, const char **why)
{
	if (h->host)
		return fail(why, 400, "Host is given twice");
	if (!is_authority(v, strlen(v)))
		return fail(why, 400, "Host is not the name or address of a host");
	h->host = v;
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

static int take_connection(const char *v, struct http_head *h, const char **why)
{
	(void)why;
	if (list_has(v, "close"))
		h->keep_alive = 0;
	else if (list_has(v, "keep-alive"))
		h->keep_alive = 1;
	return 0;
}

static int take_expect(const char *v, struct http_head *h, const char **why)
{
	if (strcasecmp(v, "100-continue") != 0)
		return fail(why, 400, "the only Expect known here is 100-continue");
	h->expect_continue = 1;
	return 0;
}

static int take_once(const char **field, const char *v, const char **why, const char *twice)
{
	if (**field)
		return fail(why, 400, twice);
	*field = v;
	return 0;
}

static int take_authorization(const char *v, struct http_head *h, const char **why)
{
	return take_once(&h->authorization, v, why, "Authorization is given twice");
}

static int take_api_key(const char *v, struct http_head *h, const char **why)
{
	if (*h->api_key && strcmp(h->api_key, v) != 0)
		return fail(why, 400, "the access key is given twice");
	h->api_key = v;
	return 0;
}

static int take_encoding(const char *v, struct http_head *h, const char **why)
{
	return take_once(&h->encoding, v, why, "Content-Encoding is given twice");
}

/* A proxy's X-Request-Id comes before the client's own, whatever their order is. */
static int take_client_request_id(const char *v, struct http_head *h, const char **why)
{
	(void)why;
	if (!*h->client_id)
		h->client_id = v;
	return 0;
}

static const struct {
	const char *name;
	int (*take)(const char *value, struct http_head *h, const char **why);
	size_t kept; /* take NULL: offset of the field that has the last value */
} fields[] = {
	{"host", take_host, 0},
	{"content-length", take_length, 0},
	{"transfer-encoding", take_coding, 0},
	{"connection", take_connection, 0},
	{"expect", take_expect, 0},
	{"authorization", take_authorization, 0},
	{"content-encoding", take_encoding, 0},
	{"api-key", take_api_key, 0},
	{"x-api-key", take_api_key, 0},
	{"access-control-request-headers", NULL, offsetof(struct http_head, asks_headers)},
	{"x-session-id", NULL, offsetof(struct http_head, session_id)},
	{"x-request-id", NULL, offsetof(struct http_head, client_id)},
	{"x-client-request-id", take_client_request_id, 0},
	{"traceparent", NULL, offsetof(struct http_head, traceparent)},
	{"x-forwarded-for", NULL, offsetof(struct http_head, forwarded_for)},
	{"x-pdserve-prefill", NULL, offsetof(struct http_head, pin_prefill)},
	{"x-pdserve-decode", NULL, offsetof(struct http_head, pin_decode)},
};

static int parse_field(const char *name, const char *v, struct http_head *h, const char **why)
{
	for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
		if ((name[0] | 0x20) != fields[i].name[0] || strcasecmp(name, fields[i].name) != 0)
			continue;
		if (fields[i].take)
			return fields[i].take(v, h, why);
		memcpy((char *)h + fields[i].kept, &v, sizeof v);
		return 0;
	}
	return 0;
}

/* The length of "name" of a line "name:...", or 0. */
static size_t name_length(const char *line, size_t len)
{
	size_t n = 0;
	while (n < len && is_token_char((unsigned char)line[n]))
		n++;
	return n < len && line[n] == ':' ? n : 0;
}

static int is_value(const char *v, size_t len)
{
	for (size_t i = 0; i < len; i++)
		if (((unsigned char)v[i] < 0x20 && v[i] != '\t') || v[i] == 0x7f)
			return 0;
	return 1;
}

/* line[0..len), followed by a NUL */
static int parse_header_line(char *line, size_t len, struct http_head *h, const char **why)
{
	size_t name = name_length(line, len);
	if (!name)
		return fail(why, 400, "a header line does not begin with a name and a colon");
	line[name] = 0;
	char *v = line + name + 1, *end = line + len;
	while (v < end && (*v == ' ' || *v == '\t'))
		v++;
	while (end > v && (end[-1] == ' ' || end[-1] == '\t'))
		*--end = 0;
	if (!is_value(v, (size_t)(end - v)))
		return fail(why, 400, "a header's value holds a control character");
	return parse_field(line, v, h, why);
}

/* Checks that involve several fields. */
static int check_head(struct http_head *h, const char **why)
{
	if (h->chunked && h->has_length)
		return fail(why, 400, "Content-Length and Transfer-Encoding exclude each other");
	if (h->chunked && h->minor == 0)
		return fail(why, 400, "HTTP/1.0 knows no Transfer-Encoding");
	if (!h->host && h->minor == 1)
		return fail(why, 400, "the request has no Host");
	if (h->minor == 0)
		h->expect_continue = 0;
	return 0;
}

int http_parse_head(char *text, size_t len, struct http_head *h, const char **why)
{
	memset(h, 0, sizeof *h);
	h->authorization = h->api_key = h->asks_headers = h->encoding = h->session_id = h->query = "";
	h->pin_prefill = h->pin_decode = h->client_id = h->traceparent = h->forwarded_for = "";
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
		int status = first ? parse_request_line(line, h, why)
		                   : parse_header_line(line, (size_t)(end - 1 - line), h, why);
		if (status)
			return status;
		first = 0;
		line = end + 1;
	}
	if (first)
		return fail(why, 400, "the request line is empty");
	return check_head(h, why);
}

/* --- chunks -------------------------------------------------------------- */

static size_t token_length(const char *s, size_t len)
{
	size_t n = 0;
	while (n < len && is_token_char((unsigned char)s[n]))
		n++;
	return n;
}

/* The length of a string in double quotes at the beginning of s; 0: there is none. */
static size_t quoted_length(const char *s, size_t len)
{
	if (!len || s[0] != '"')
		return 0;
	for (size_t i = 1; i < len; i++) {
		if (s[i] == '"')
			return i + 1;
		if (s[i] == '\\' && ++i == len)
			return 0;
		if (!is_value(s + i, 1))
			return 0;
	}
	return 0;
}

/* *( ";" name [ "=" ( token / quoted-string ) ] ) and nothing else */
static int are_extensions(const char *s, size_t len)
{
	while (len) {
		size_t n = s[0] == ';' ? token_length(s + 1, len - 1) : 0, value = 0;
		if (!n)
			return 0;
		n++;
		if (n < len && s[n] == '=') {
			n++;
			value = token_length(s + n, len - n);
			value = value ? value : quoted_length(s + n, len - n);
			if (!value)
				return 0;
		}
		s += n + value;
		len -= n + value;
	}
	return 1;
}

int http_parse_chunk_size(const char *line, size_t len, uint64_t *ret)
{
	uint64_t n = 0;
	size_t i = 0;
	for (; i < len && i < CHUNK_DIGITS_MAX && isxdigit((unsigned char)line[i]); i++) {
		char c = (char)tolower((unsigned char)line[i]);
		n = n << 4 | (uint64_t)(c <= '9' ? c - '0' : c - 'a' + 10);
	}
	if (i == 0 || !are_extensions(line + i, len - i))
		return -1;
	*ret = n;
	return 0;
}

int http_parse_trailer(const char *line, size_t len)
{
	size_t name = name_length(line, len);
	return name && is_value(line + name + 1, len - name - 1) ? 0 : -1;
}
