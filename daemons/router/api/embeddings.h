/* embeddings.h - the answer of POST /v1/embeddings. */
#ifndef ROUTER_API_EMBEDDINGS_H
#define ROUTER_API_EMBEDDINGS_H

#include <stddef.h>

struct answer;
struct request_prepare;

/* Keeps what the answer shows of an embedding: its first elements (dimensions), normalised unless
 * the client does not want that. 0 or -1: no memory. values: (embed.hidden) */
int embeddings_keep(struct answer *ans, const float *values);
/* Memory that embeddings_keep takes. */
size_t embeddings_bytes(const struct request_prepare *q);
#endif
