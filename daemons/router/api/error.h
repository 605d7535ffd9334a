/* error.h - what a client is told when its request is refused or fails, in OpenAI's shape or in
 * Anthropic's. */
#ifndef ROUTER_API_ERROR_H
#define ROUTER_API_ERROR_H

#include "util/buf.h"

struct api_error {
	int status; /* of HTTP; 0: no error */
	/* smallest Retry-After, if the status has one; 0: as the workers' load suggests */
	uint32_t retry_after_s;
	int by_key; /* a limit of the access key: Retry-After is retry_after_s, whatever the load */
	const char *type, *code; /* static strings; code may be NULL */
	char param[64];          /* "" : none */
	char text[512];
};

/* 400, invalid_request_error. Returns -1, for `return api_bad(...)`. */
int api_bad(struct api_error *e, const char *param, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));
/* Any status; type and code follow from it. Returns -1. */
int api_fault(struct api_error *e, int status, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));
void api_error_json(const struct api_error *e, struct buf *out); /* {"error":{...}} */
/* {"type":"error","error":{...}}: the type follows from the status; no param, no code */
void api_error_json_messages(const struct api_error *e, struct buf *out);

#endif
