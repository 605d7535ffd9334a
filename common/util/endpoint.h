/* endpoint.h - addresses where daemons of other hosts reach one: NAME@tcp://HOST:PORT. */
#ifndef UTIL_ENDPOINT_H
#define UTIL_ENDPOINT_H

#include <stddef.h>

#define ENDPOINT_BYTES_MAX 200u /* of an endpoint, in messages and in the hand-over's reply */

/* 1 if text is a host's name or address; without the brackets of an IPv6 address. What has digits
 * and dots only is an address. */
int endpoint_is_host(const char *text);
/* 1 if text is HOST:PORT: printable, no quotes, no '/' or '@', a port from 1 to 65535. */
int endpoint_is_address(const char *text);
/* 1 if text is NAME@tcp://HOST:PORT of a host that can be connected to (no wildcard), in at most
 * ENDPOINT_BYTES_MAX bytes. */
int endpoint_is_remote(const char *text);
/* The same, and NAME is this one. */
int endpoint_is_remote_of(const char *text, const char *name);
/* 1 if the host of HOST:PORT stands for all addresses of a machine (0.0.0.0, ::, *), or if the port
 * is a wildcard (* or 0): nobody can connect to it. */
int endpoint_is_wildcard(const char *address);

/* HOST of [NAME@]tcp://HOST:PORT, without the brackets of an IPv6 address. */
void endpoint_host(const char *text, char *out, size_t size);

#endif
