/* transport.h - which transports this messager has, by name. */
#ifndef MESSAGER_TRANSPORT_H
#define MESSAGER_TRANSPORT_H

#include "path/path.h"

#define TRANSPORTS_MAX 2

struct transports {
	/* in order of preference: an intake offers the first */
	struct {
		const struct path_ops *ops;
		void *transport;
	} at[TRANSPORTS_MAX];
	int n;
};

/* The index of the transport of this name, or -1. */
int transport_named(const struct transports *t, const char *name);

#endif
