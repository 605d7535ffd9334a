/* process.h - identifies other processes on this host, checks what they say about themselves, and
 * notices their end at once (pidfd). */
#ifndef MSG_PROCESS_H
#define MSG_PROCESS_H

#include "control.pb-c.h"

#include "msg/keys.h"

#include <stddef.h>
#include <stdint.h>

/* The other end of a connection. Local: the process, as reported by the kernel; pid is 0 if that
 * process is in a PID namespace that is not visible here. From another host: the key that CURVE has
 * authenticated. */
struct process_origin {
	int is_local;
	uint32_t uid, gid, pid;    /* local; else 0 */
	char key[KEY_PRINT_BYTES]; /* from another host: the key's fingerprint; else "" */
};

/* address: libzmq's "Peer-Address" of a message; key: its "User-Id". Both may be NULL. */
void process_origin_parse(const char *address, const char *key, struct process_origin *ret);
/* The process at the other end of a local socket: the one that called connect, or listen. 0, or
 * ERR_INVALID with a sentence in why: it runs as another user than ours and root. */
int process_origin_of(int sock, struct process_origin *ret, char *why, size_t why_len);
int process_origin_same(const struct process_origin *a, const struct process_origin *b);
/* Checks that p, as the other end describes itself, is the process that made the connection, and
 * runs as our user or root. 0, or ERR_INVALID with a sentence in why. p may be NULL: no
 * description. */
int process_origin_check(const struct process_origin *o, const Pds__Process *p, char *why,
                         size_t why_len);
/* 1 if the process has this group, as its primary or a supplementary one. */
int process_origin_in_group(const struct process_origin *o, uint32_t gid);

/* Fills p with this process's identity; strings are static. */
void process_self(Pds__Process *p);
/* Returns a pidfd (readable when the process ends) if p is on this host, in this PID namespace, and
 * alive; else -1. *ret_dead is 1 if the process is known to have ended. */
int process_watch(const Pds__Process *p, int *ret_dead);

#endif
