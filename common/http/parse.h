/* parse.h - the lines of an HTTP/1.x request (head, size lines of chunks, trailer fields), from
 * unchecked bytes. RFC 9110 and 9112, strictly. No I/O, no allocation. */
#ifndef HTTP_PARSE_H
#define HTTP_PARSE_H

#include <stddef.h>
#include <stdint.h>

struct http_head {
	const char *method, *path, *query;    /* query: after '?', or "" */
	const char *authorization;            /* or "" */
	const char *api_key;                  /* api-key (Azure's) or x-api-key (Anthropic's), or "" */
	const char *asks_headers;             /* Access-Control-Request-Headers, or "" */
	const char *encoding;                 /* Content-Encoding, or "" */
	const char *session_id;               /* X-Session-Id, or "" */
	const char *client_id;                /* X-Request-Id, else X-Client-Request-Id, or "" */
	const char *traceparent;              /* W3C's, or "" */
	const char *forwarded_for;            /* X-Forwarded-For, or "" */
	const char *host;                     /* Host; NULL: HTTP/1.0 without it */
	const char *pin_prefill, *pin_decode; /* X-Pdserve-Prefill, X-Pdserve-Decode, or "" */
	int minor;                            /* HTTP/1.minor */
	int keep_alive, chunked, expect_continue;
	int has_length, has_coding; /* the field was there */
	uint64_t content_length;
	const void *route; /* set by the handler of the head for the handler of the request */
};

/* text[0..len) is the head with its empty line; it is cut up in place and must live as long as ret.
 * 0, or the status to answer (400, 501, 505) with *ret_why. */
int http_parse_head(char *text, size_t len, struct http_head *ret, const char **ret_why);
/* A chunk's size line, without CR LF: 1 to 16 hexadecimal digits, then extensions (";name",
 * ";name=value", ";name=\"value\"") without white space around them. 0 or -1. */
int http_parse_chunk_size(const char *line, size_t len, uint64_t *ret);
/* A line of the trailer, without CR LF; its content is ignored. 0 or -1. */
int http_parse_trailer(const char *line, size_t len);

#endif
