/* chan_ask.c - pdctl's side of the control connection: one question, one answer, a bounded wait. */
#include "msg/chan_priv.h"
#include "util/clock.h"
#include "util/mem.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void *context;

static void open_context(void)
{
	context = zmq_ctx_new();
}

/* One for all questions of the process, which may be asked by several threads: libzmq may crash if
 * one thread opens the first context while another closes the last one. */
static void *shared_context(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	pthread_once(&once, open_context);
	return context;
}

static int send_question(void *z, const char *command, char *const *args, size_t n_args)
{
	Pds__Envelope env = PDS__ENVELOPE__INIT;
	Pds__CtlRequest q = PDS__CTL_REQUEST__INIT;
	env.version = PROTOCOL_VERSION;
	env.type = MSG_CTL_REQUEST;
	env.sender = (char *)"pdctl";
	q.command = (char *)command;
	q.args = (char **)args;
	q.n_args = n_args;
	size_t en = pds__envelope__get_packed_size(&env), qn = pds__ctl_request__get_packed_size(&q);
	unsigned char *b = mem_alloc(en + qn);
	pds__envelope__pack(&env, b);
	pds__ctl_request__pack(&q, b + en);
	int r = zmq_send(z, b, en, ZMQ_SNDMORE) < 0 || zmq_send(z, b + en, qn, 0) < 0 ? ERR_TIMEOUT : 0;
	free(b);
	return r;
}

static int read_answer(void *z, char **ret_text, struct err *err)
{
	zmq_msg_t f[2];
	int n = 0, r;
	for (; n < 2; n++) {
		zmq_msg_init(&f[n]);
		if (zmq_msg_recv(&f[n], z, 0) < 0) {
			zmq_msg_close(&f[n]);
			break;
		}
	}
	struct msg_in m = {0};
	if (n < 2)
		r = err_set(err, ERR_TIMEOUT, "no answer in time");
	else if ((r = msg_decode(zmq_msg_data(&f[0]), zmq_msg_size(&f[0]), zmq_msg_data(&f[1]),
	                         zmq_msg_size(&f[1]), &m, err)) == 0) {
		if (m.info->type == MSG_CTL_REPLY) {
			const Pds__CtlReply *a = (const Pds__CtlReply *)m.body;
			r = a->code;
			*ret_text = mem_strdup(a->text);
			if (r != 0)
				err_set(err, r, "%s", a->text);
		} else {
			r = err_set(err, ERR_CORRUPT, "the answer is a %s", m.info->name);
		}
	}
	msg_in_fini(&m);
	for (int i = 0; i < n; i++)
		zmq_msg_close(&f[i]);
	return r;
}

const char *chan_endpoint_address(const char *endpoint, char *name)
{
	const char *at = strchr(endpoint, '@'), *scheme = strstr(endpoint, "://");
	*name = 0;
	if (!at || !scheme || at > scheme)
		return endpoint; /* a path may have an @ */
	snprintf(name, MSG_NAME_MAX + 1, "%.*s", (int)(at - endpoint), endpoint);
	return at + 1;
}

int chan_ask(const char *endpoint, const struct keys *keys, const char *command, char *const *args,
             size_t n_args, uint64_t timeout_us, char **ret_text, struct err *err)
{
	int r, ms = (int)(timeout_us / 1000u), zero = 0;
	if (strncmp(endpoint, "ipc://", 6) == 0 && access(endpoint + 6, W_OK) != 0)
		return err_set(err, ERR_CLOSED, "nothing is listening on %s", endpoint);
	char name[MSG_NAME_MAX + 1];
	endpoint = chan_endpoint_address(endpoint, name);
	int net = strncmp(endpoint, "ipc://", 6) != 0;
	void *z = zmq_socket(shared_context(), ZMQ_DEALER);
	if (!z)
		return err_set(err, ERR_IO, "cannot open a socket: %s", zmq_strerror(zmq_errno()));
	zmq_setsockopt(z, ZMQ_LINGER, &zero, sizeof zero);
	zmq_setsockopt(z, ZMQ_SNDTIMEO, &ms, sizeof ms);
	zmq_setsockopt(z, ZMQ_RCVTIMEO, &ms, sizeof ms);
	r = net ? chan_curve_client(keys, z, name, err) : 0;
	if (r == 0 && chan_zmq_connect(z, endpoint) < 0)
		r = err_set(err, ERR_CLOSED, "cannot connect to %s: %s", endpoint,
		            zmq_strerror(zmq_errno()));
	if (r == 0 && send_question(z, command, args, n_args) < 0)
		r = err_set(err, ERR_TIMEOUT, "%s did not accept the question in time", endpoint);
	if (r == 0 && (r = read_answer(z, ret_text, err)) == ERR_TIMEOUT && !*ret_text)
		err_set(err, r, "no answer from %s within %d ms%s", endpoint, ms,
		        net ? "; it answers only if it knows our key and we know its key" : "");
	zmq_close(z);
	return r;
}
