/* chan_ctl.c - answers to pdctl.
 *
 * Who may open the socket may ask, and need not read: what its connection holds is bounded by
 * messages, and an answer may have megabytes. So each answer is counted until ZeroMQ has written
 * it out, and past ANSWERS_BYTES no question is worked on; past twice as many none of our own
 * user's or root's, whom others cannot lock out so. */
#include "msg/chan_priv.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define ANSWERS_BYTES ((size_t)64 << 20)

struct answer {
	_Atomic size_t *total;
	size_t len;
	unsigned char bytes[];
};

/* On ZeroMQ's thread, at the latest within zmq_ctx_term. */
static void written(void *bytes, void *answer)
{
	struct answer *a = answer;
	(void)bytes;
	atomic_fetch_sub(a->total, a->len);
	free(a);
}

static int reply(struct chan *c, const struct incoming *in, int code, const char *text)
{
	Pds__CtlReply m = PDS__CTL_REPLY__INIT;
	Pds__Envelope env;
	unsigned char head[512];
	zmq_msg_t body;
	m.code = code;
	m.text = (char *)text;
	size_t len = pds__ctl_reply__get_packed_size(&m);
	struct answer *a = malloc(sizeof *a + len);
	if (!a)
		return ERR_NOMEM;
	*a = (struct answer){.total = &c->answers_bytes, .len = len};
	pds__ctl_reply__pack(&m, a->bytes);
	chan_envelope(c, NULL, MSG_CTL_REPLY, &env);
	atomic_fetch_add(&c->answers_bytes, len);
	if (zmq_msg_init_data(&body, a->bytes, len, written, a) < 0) {
		written(a->bytes, a);
		return ERR_NOMEM;
	}
	int r = chan_put_msg(in->s, in->rid, in->rid_len, head, pds__envelope__pack(&env, head), &body);
	zmq_msg_close(&body);       /* nothing, if it was sent */
	return r;
}

void chan_ctl(struct chan *c, const struct incoming *in)
{
	const Pds__CtlRequest *q = (const Pds__CtlRequest *)in->m.body;
	char full[80], *text = NULL;
	int own = in->origin.uid == 0 || in->origin.uid == geteuid();
	size_t most = own ? 2 * ANSWERS_BYTES : ANSWERS_BYTES;
	if (c->answers_bytes > most) {
		snprintf(full, sizeof full, "answers of %zu MiB are not yet read, the limit is %zu MiB",
		         c->answers_bytes >> 20, most >> 20);
		reply(c, in, ERR_FULL, full);
		return;
	}
	int code = ERR_UNSUPPORTED;
	if (c->hooks.ctl)
		code = c->hooks.ctl(c->hooks.arg, &in->origin, q->command, q->args, q->n_args, &text);
	if (reply(c, in, code, text ? text : "") == ERR_NOMEM)
		reply(c, in, ERR_NOMEM, "no memory for the answer");
	free(text);
}
