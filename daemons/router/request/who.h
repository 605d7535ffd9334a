/* who.h - the sender of a request and the sender's ids, for the log and the answer's headers. */
#ifndef ROUTER_WHO_H
#define ROUTER_WHO_H

#include "http/http.h"

#include <stddef.h>

#define WHO_ID_MAX 128 /* of a client's own id: visible ASCII; any other is ignored */
#define WHO_HEADERS_MAX (WHO_ID_MAX + 128)

struct tenant;

struct who {
	/* fields of a log line: key=NAME client=ADDRESS path="/v1/..."; and those that the client has
	 * sent of client_id="..." trace_id=... forwarded_for="..." */
	char text[1000];
	char address[HTTP_ADDRESS_MAX];
	char client_id[WHO_ID_MAX + 1]; /* "": none */
	char traceparent[56];           /* "": none, or not as the W3C has it */
};

/* t: NULL if no access key is needed, or none was valid */
void who_init(struct who *w, const struct http_conn *c, const struct http_head *head,
              const struct tenant *t);
/* X-Request-Id (the client's own, else `id`; neither: "") and traceparent, as lines of an answer's
 * head. out: WHO_HEADERS_MAX bytes and the length of id. Returns how many it wrote. */
size_t who_headers(const struct who *w, const char *id, char *out, size_t size);

#endif
