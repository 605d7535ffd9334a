/* url.h - the address for requests: http[s]://HOST[:PORT][/PATH], resolved once. */
#ifndef PDBENCH_URL_H
#define PDBENCH_URL_H

#include "util/err.h"

#include <sys/socket.h>

struct url {
	int tls; /* https */
	/* path: without the trailing slash and a trailing /v1 */
	char host[256], port[6], path[256];
	char authority[272]; /* for the Host header */
	struct sockaddr_storage addr;
	socklen_t addr_len; /* 0: not resolved */
};

int url_parse(const char *text, struct url *ret, struct err *err);
int url_resolve(struct url *u, struct err *err); /* blocks; ERR_NOTFOUND: unknown name */

#endif
