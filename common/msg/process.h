/* process.h - to know another process on this host, to check what it says of itself, and to
 * notice its end at once (pidfd). */
#ifndef MSG_PROCESS_H
#define MSG_PROCESS_H

#include "control.pb-c.h"

#include <stddef.h>
#include <stdint.h>

/* The process that made the other end of a local connection, as the kernel tells it. pid is 0 where
 * that process lives in a PID namespace that cannot be seen from here. */
struct process_origin {
	int is_local; /* 0: the connection is not local, the rest is 0 */
	uint32_t uid, gid, pid;
};

/* text: libzmq's "Peer-Address" of a message; NULL: not local. */
void process_origin_parse(const char *text, struct process_origin *ret);
int process_origin_same(const struct process_origin *a, const struct process_origin *b);
/* Whether p, which the other end says of itself, is the process that made the connection, and is of
 * our user or root's. 0, or ERR_INVALID with a sentence in why. p may be NULL: it said nothing. */
int process_origin_check(const struct process_origin *o, const Pds__Process *p, char *why,
                         size_t why_len);
/* Whether the process has this group, as its own or as one of its others. */
int process_origin_in_group(const struct process_origin *o, uint32_t gid);

/* Fills p with this process's identity; strings are static. */
void process_self(Pds__Process *p);
/* A pidfd (readable when the process ends) if p is on this host, in this PID namespace, and still
 * lives; -1 otherwise. *ret_dead is 1 when it is known to have ended already. */
int process_watch(const Pds__Process *p, int *ret_dead);

#endif
