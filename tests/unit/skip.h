/* skip.h - a test that cannot run here says so. libcheck knows no such thing: what returns early
 * has passed. tools/run-tests reads these lines, counts them, takes the first kind from those that
 * passed, and names each reason. */
#ifndef TESTS_SKIP_H
#define TESTS_SKIP_H

#include <netdb.h>
#include <stdio.h>
#include <unistd.h>

#define SKIP_NO_MODEL "PD_MODEL is not set to the SmolLM2 file"
#define SKIP_NO_LOCALHOST "localhost does not resolve here: is there an /etc/hosts?"

/* In a test's own function: the test has not run, and ends. */
#define SKIP(...)                                         \
	do {                                                  \
		dprintf(STDOUT_FILENO, "\nSKIP 1: " __VA_ARGS__); \
		dprintf(STDOUT_FILENO, "\n");                     \
		return;                                           \
	} while (0)

/* A part of a test, such as one of several variants, has not run; the test goes on. */
#define SKIP_PART(...)                                    \
	do {                                                  \
		dprintf(STDOUT_FILENO, "\nSKIP 0: " __VA_ARGS__); \
		dprintf(STDOUT_FILENO, "\n");                     \
	} while (0)

static inline int localhost_resolves(void)
{
	struct addrinfo *list = NULL;
	int code = getaddrinfo("localhost", NULL, NULL, &list);
	if (code == 0)
		freeaddrinfo(list);
	return code == 0;
}

#endif
