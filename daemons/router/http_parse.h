/* http_parse.h - the head of an HTTP/1.x request and the sizes of chunks, from bytes that nobody has checked. No I/O, no allocation. */
#ifndef ROUTER_HTTP_PARSE_H
#define ROUTER_HTTP_PARSE_H

#include <stddef.h>
#include <stdint.h>

struct http_head {
	const char *method, *path, *query;    /* query: after '?', or "" */
	const char *authorization;            /* or "" */
	const char *session_id;               /* X-Session-Id, or "" */
	const char *pin_prefill, *pin_decode; /* X-Pdserve-Prefill, X-Pdserve-Decode, or "" */
	int minor;                            /* HTTP/1.minor */
	int keep_alive, chunked, expect_continue;
	int has_length;
	uint64_t content_length;
};

/* text[0..len) is the head with its empty line; it is cut up in place and must live as long as ret. 0, or the status to answer (400, 501, 505)
 * with *ret_why. */
int http_parse_head(char *text, size_t len, struct http_head *ret, const char **ret_why);
/* A chunk's size line, without CR LF. 0 or -1. */
int http_parse_chunk_size(const char *line, size_t len, uint64_t *ret);

#endif
