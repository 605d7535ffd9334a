/* transport.h - which transports this messager has. When a link comes up the sender says its own
 * (PATH with an empty name and the list), and the receiver uses the first of its own that is among
 * them. */
#ifndef MESSAGER_TRANSPORT_H
#define MESSAGER_TRANSPORT_H

#include "path/path.h"

#define TRANSPORTS_MAX 2

struct transports {
	/* in order of preference */
	struct {
		const struct path_ops *ops;
		void *transport;
	} at[TRANSPORTS_MAX];
	int n;
};

#define TRANSPORTS_TEXT_MAX 64

/* The index of the transport of this name, or -1. */
int transport_named(const struct transports *t, const char *name);
/* "rdma,tcp" */
void transport_list(const struct transports *t, char out[TRANSPORTS_TEXT_MAX]);
/* The index of the first that is in another messager's list (n bytes, not terminated), or -1. */
int transport_best(const struct transports *t, const void *list, size_t n);

#endif
