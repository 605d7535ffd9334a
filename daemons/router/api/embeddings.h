/* embeddings.h - the answer of POST /v1/embeddings. */
#ifndef ROUTER_API_EMBEDDINGS_H
#define ROUTER_API_EMBEDDINGS_H

#include <stddef.h>

struct answer;
struct request_prepare;

/* Keeps the part of an embedding that the answer shows: its first elements (dimensions), normalised
 * unless the client does not want that. 0 or -1: no memory. values: (embed.hidden) */
int embeddings_keep(struct answer *ans, const float *values);
/* The memory that embeddings_keep takes for one embedding. */
size_t embeddings_bytes(const struct request_prepare *q);
#endif
