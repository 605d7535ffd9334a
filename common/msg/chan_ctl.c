/* chan_ctl.c - answers to pdctl.
 *
 * A process that may open the socket may ask without reading: ZeroMQ bounds a connection by
 * messages, but an answer may have megabytes. So each answer is counted until ZeroMQ has written it
 * out, and beyond ANSWERS_BYTES new questions are refused. The limit is twice as high for our own
 * user and root, so that others cannot lock them out. A daemon may answer later, for up to
 * CHAN_ASKED_MAX questions at a time. */
#include "msg/chan_priv.h"

#include "util/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define ANSWERS_BYTES ((size_t)64 << 20)

/* A question, with the connection that the answer goes to. */
struct chan_asked {
	struct list link; /* in chan.asked */
	struct sock *s;
	unsigned char rid[RID_MAX];
	size_t rid_len;
};

struct ctl_reply {
	_Atomic size_t *total;
	size_t len;
	unsigned char bytes[];
};

/* Called on ZeroMQ's thread, at the latest within zmq_ctx_term. */
static void answer_written(void *bytes, void *answer)
{
	struct ctl_reply *a = answer;
	(void)bytes;
	atomic_fetch_sub(a->total, a->len);
	free(a);
}

static int reply(struct chan *c, const struct chan_asked *to, int code, const char *text)
{
	Pds__CtlReply m = PDS__CTL_REPLY__INIT;
	Pds__Envelope env;
	unsigned char head[512];
	zmq_msg_t body;
	m.code = code;
	m.text = (char *)text;
	size_t len = pds__ctl_reply__get_packed_size(&m);
	struct ctl_reply *a = malloc(sizeof *a + len);
	if (!a)
		return ERR_NOMEM;
	*a = (struct ctl_reply){.total = &c->answers_bytes, .len = len};
	pds__ctl_reply__pack(&m, a->bytes);
	chan_envelope(c, NULL, MSG_CTL_REPLY, &env);
	atomic_fetch_add(&c->answers_bytes, len);
	if (zmq_msg_init_data(&body, a->bytes, len, answer_written, a) < 0) {
		answer_written(a->bytes, a);
		return ERR_NOMEM;
	}
	int r = chan_put_msg(to->s, to->rid, to->rid_len, head, pds__envelope__pack(&env, head), &body);
	zmq_msg_close(&body); /* does nothing if the message was sent */
	return r;
}

void chan_answer(struct chan *c, struct chan_asked *asked, int code, const char *text)
{
	if (reply(c, asked, code, text) == ERR_NOMEM)
		reply(c, asked, ERR_NOMEM, "out of memory for the answer");
	list_remove(&asked->link);
	c->n_asked--;
	free(asked);
}

/* Returns why a question is refused now, or NULL if it is not. */
static const char *refusal_reason(const struct chan *c, const struct incoming *in, char *text,
                                  size_t size)
{
	int own = in->origin.is_local && (in->origin.uid == 0 || in->origin.uid == geteuid());
	size_t most = own ? 2 * ANSWERS_BYTES : ANSWERS_BYTES;
	if (c->answers_bytes > most)
		snprintf(text, size, "answers of %zu MiB are not yet read, the limit is %zu MiB",
		         c->answers_bytes >> 20, most >> 20);
	else if (c->n_asked >= CHAN_ASKED_MAX)
		snprintf(text, size, "%u questions are not yet answered, the limit is %u", c->n_asked,
		         CHAN_ASKED_MAX);
	else
		return NULL;
	return text;
}

void chan_ctl(struct chan *c, const struct incoming *in, const char *why)
{
	const Pds__CtlRequest *q = (const Pds__CtlRequest *)in->m.body;
	char full[80], *text = NULL;
	const char *refused = refusal_reason(c, in, full, sizeof full);
	struct chan_asked *asked = mem_zalloc(sizeof *asked);
	asked->s = in->s;
	memcpy(asked->rid, in->rid, in->rid_len);
	asked->rid_len = in->rid_len;
	list_push_back(&c->asked, &asked->link);
	c->n_asked++;
	int code = refused ? ERR_FULL : ERR_UNSUPPORTED;
	if (!refused)
		refused = why;
	if (!refused && c->hooks.ctl)
		code = c->hooks.ctl(c->hooks.arg, asked, &in->origin, q->command, q->args, q->n_args,
		                    &text);
	if (code != CHAN_LATER)
		chan_answer(c, asked, code, refused ? refused : text ? text : "");
	free(text);
}

void chan_ctl_forget(struct chan *c)
{
	list_each_safe(it, nx, &c->asked) {
		list_remove(it);
		free(list_entry(it, struct chan_asked, link));
	}
}
