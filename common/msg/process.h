/* process.h - to know another process on this host and to notice its end at once (pidfd). */
#ifndef MSG_PROCESS_H
#define MSG_PROCESS_H

#include "control.pb-c.h"

/* Fills p with this process's identity; strings are static. */
void process_self(Pds__Process *p);
/* A pidfd (readable when the process ends) if p is on this host, in this PID namespace, and still lives; -1 otherwise.
 * *ret_dead is 1 when it is known to have ended already. */
int process_watch(const Pds__Process *p, int *ret_dead);

#endif
