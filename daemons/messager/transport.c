/* transport.c - see transport.h. */
#include "transport.h"

#include <stdio.h>
#include <string.h>

int transport_named(const struct transports *t, const char *name)
{
	for (int i = 0; i < t->n; i++)
		if (strcmp(t->at[i].ops->name, name) == 0)
			return i;
	return -1;
}

void transport_list(const struct transports *t, char out[TRANSPORTS_TEXT_MAX])
{
	size_t at = 0;
	*out = 0;
	for (int i = 0; i < t->n; i++)
		at += (size_t)snprintf(out + at, TRANSPORTS_TEXT_MAX - at, "%s%s", i ? "," : "",
		                       t->at[i].ops->name);
}

static int has(const char *list, const char *name)
{
	size_t n = strlen(name);
	for (const char *at = list; *at; at += strcspn(at, ","), at += *at == ',')
		if (strncmp(at, name, n) == 0 && (!at[n] || at[n] == ','))
			return 1;
	return 0;
}

int transport_best(const struct transports *t, const void *list, size_t n)
{
	char text[TRANSPORTS_TEXT_MAX];
	if (n >= sizeof text)
		return -1;
	memcpy(text, list, n);
	text[n] = 0;
	for (int i = 0; i < t->n; i++)
		if (has(text, t->at[i].ops->name))
			return i;
	return -1;
}
