/* role.c - see role.h. */
#include "msg/role.h"
#include "util/err.h"

#include <string.h>

static const char *const names[ROLE_COUNT] = {"prefill", "decode", "mixed"};

const char *worker_role_name(enum worker_role r)
{
	return names[r];
}

int worker_role_parse(const char *s, enum worker_role *ret)
{
	for (int r = 0; s && r < ROLE_COUNT; r++)
		if (strcmp(s, names[r]) == 0) {
			*ret = (enum worker_role)r;
			return 0;
		}
	return ERR_INVALID;
}
