/* attach.h - the worker's descriptor connection to the messager or to storage of this host:
 * connect, hand over, notice the end, connect again.
 *
 * Only a process of our user or root is handed anything. `on` is called when the peer has mapped
 * our memory. `gone` is called when the peer of that epoch can no longer touch it: its end of the
 * connection is closed and its process is dead (pidfd); never after only one of the two, and never
 * by a timer. After `gone`, attach connects again: 20 times a second for the first 5 s, then twice
 * a second. A refusal is logged once per text. All on the event loop's thread. */
#ifndef WORKER_ATTACH_H
#define WORKER_ATTACH_H

#include "kv/handover.h"
#include "svc/svc.h"

struct attach;

struct attach_hooks {
	void *arg;
	void (*on)(void *arg, uint64_t peer_epoch, int bell_fd); /* bell_fd is the callee's, or -1 */
	void (*gone)(void *arg, uint64_t peer_epoch);
};

/* hello and fds are copied; the descriptors stay the caller's, open until attach_destroy. */
struct attach *attach_new(struct svc *s, const char *what, const char *path,
                          const struct handover_hello *hello, const struct handover_fds *fds,
                          const struct attach_hooks *hooks);
void attach_destroy(struct attach **a);
/* The same at the end of the process, with which the connection ends: after the goodbyes of the
 * links. If the messager saw it end first, prefill workers would report as lost what this worker
 * has given back. */
void attach_leave_open(struct attach **a);
/* Does the peer of this epoch have our memory? Reads an answer that has arrived: whatever the peer
 * sent after it, over another connection, may be handled first. */
int attach_is_on(struct attach *a, uint64_t epoch);
/* It is attached and its connection stands: without that it serves us no more, though it may still
 * have our memory. */
int attach_stands(const struct attach *a);
/* where other hosts reach the peer that was attached last (handover_reply.remote); "": they cannot,
 * or there was none */
const char *attach_remote(const struct attach *a);

#endif
