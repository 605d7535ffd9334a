/* probe.h - what a server is asked before the load begins. */
#ifndef PDBENCH_PROBE_H
#define PDBENCH_PROBE_H

#include "options.h"
#include "work.h"

struct probe_answer {
	int status;
	struct buf body;
};

/* Sends the request (head and body; its memory is taken over) to the first address. Returns 0 with
 * the answer of any status, or ERR_*: no server, or no answer within wait_s. The caller calls
 * buf_fini(&ret->body) in both cases. */
int probe_exchange(const struct bench_options *o, struct buf *request, unsigned wait_s,
                   struct probe_answer *ret, struct err *err);

/* Asks the first address for GET /v1/models. Returns 0, or ERR_CLOSED: no server, or access denied.
 * If the server does not support the request, returns 0 with *ret empty and the reason in err. */
int probe_server(const struct bench_options *o, struct server_info *ret, struct err *err);

/* Finds out which form of requests the server takes, with small requests: token ids or text,
 * completions or chat, and which parameters beside OpenAI's. Changes o (text, chat, natural_end)
 * and *server accordingly, and describes what changed in server->adapted. A server that says how
 * large its vocabulary is, as pdserve does, takes all; only the length of its words is measured.
 * Returns 0, or ERR_CLOSED: access denied. If the server takes no form that is known, returns 0
 * with nothing changed and the reason in err. */
int adapt_to_server(struct bench_options *o, struct server_info *server, struct err *err);

#endif
