/* chan_ask.c - pdctl's side of the control connection: one question, one answer, a bounded wait. */
#include "msg/chan_priv.h"
#include "util/clock.h"
#include "util/least.h"
#include "util/mem.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define HELLO_WAIT_MS 300 /* at most, and at most a fifth of the whole wait */

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

static int send_one(void *z, enum msg_type type, const ProtobufCMessage *body)
{
	Pds__Envelope env = PDS__ENVELOPE__INIT;
	env.version = PROTOCOL_VERSION;
	env.type = type;
	env.sender = (char *)"pdctl";
	size_t en = pds__envelope__get_packed_size(&env), qn = protobuf_c_message_get_packed_size(body);
	unsigned char *b = mem_alloc(en + qn);
	pds__envelope__pack(&env, b);
	protobuf_c_message_pack(body, b + en);
	int r = zmq_send(z, b, en, ZMQ_SNDMORE) < 0 || zmq_send(z, b + en, qn, 0) < 0 ? ERR_TIMEOUT : 0;
	free(b);
	return r;
}

static int send_question(void *z, const char *command, char *const *args, size_t n_args)
{
	Pds__CtlRequest q = PDS__CTL_REQUEST__INIT;
	q.command = (char *)command;
	q.args = (char **)args;
	q.n_args = n_args;
	return send_one(z, MSG_CTL_REQUEST, &q.base);
}

/* What a daemon answered, of this protocol or of another one. */
static int ask_take_answer(const struct msg_in *m, char **ret_text, struct err *err)
{
	uint32_t version = m->env->version;
	if (m->info->type == MSG_WELCOME && version == PROTOCOL_VERSION)
		return err_set(err, ERR_TIMEOUT, "no answer in time");
	if (m->info->type == MSG_WELCOME)
		return err_set(err, ERR_UNSUPPORTED, "runs protocol %u, this pdctl speaks %u", version,
		               PROTOCOL_VERSION);
	if (m->info->type != MSG_CTL_REPLY)
		return err_set(err, ERR_CORRUPT, "the answer is a %s", m->info->name);
	const Pds__CtlReply *a = (const Pds__CtlReply *)m->body;
	int r = a->code == 0 && version != PROTOCOL_VERSION ? ERR_UNSUPPORTED : a->code;
	*ret_text = mem_strdup(a->text);
	return r == 0 ? 0 : err_set(err, r, "%s", a->text);
}

static int read_answer(void *z, int ms, char **ret_text, struct err *err)
{
	zmq_msg_t f[2];
	zmq_setsockopt(z, ZMQ_RCVTIMEO, &ms, sizeof ms);
	int n = 0, r;
	for (; n < 2; n++) {
		zmq_msg_init(&f[n]);
		if (zmq_msg_recv(&f[n], z, 0) < 0) {
			zmq_msg_close(&f[n]);
			break;
		}
	}
	struct msg_in m = {0};
	if (n < 2) {
		r = err_set(err, ERR_TIMEOUT, "no answer in time");
	} else {
		r = msg_decode_head(zmq_msg_data(&f[0]), zmq_msg_size(&f[0]), zmq_msg_size(&f[1]), &m, err);
		if (r == 0 || (r == ERR_UNSUPPORTED && m.info))
			r = msg_decode_body(&m, zmq_msg_data(&f[1]), zmq_msg_size(&f[1]), err);
		if (r == 0)
			r = ask_take_answer(&m, ret_text, err);
	}
	msg_in_fini(&m);
	for (int i = 0; i < n; i++)
		zmq_msg_close(&f[i]);
	return r;
}

/* Protocols 3 and 4 drop a question of another one in silence, but answer its HELLO (PROTOCOL.md,
 * "Another protocol"): without an answer, says HELLO near the end of the wait. A daemon of this
 * protocol, which is only slow, may still answer the question then. */
static int wait_for_answer(void *z, int ms, char **ret_text, struct err *err)
{
	int hello_ms = (int)least(HELLO_WAIT_MS, (uint64_t)ms / 5);
	uint64_t end = clock_us() + (uint64_t)ms * 1000u, now;
	int r = read_answer(z, ms - hello_ms, ret_text, err);
	if (r != ERR_TIMEOUT || *ret_text)
		return r;
	Pds__Hello h = PDS__HELLO__INIT;
	h.program = (char *)"pdctl";
	send_one(z, MSG_HELLO, &h.base);
	while (r == ERR_TIMEOUT && !*ret_text && (now = clock_us()) < end)
		r = read_answer(z, (int)((end - now + 999) / 1000u), ret_text, err);
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
	if (net && !*name)
		return err_set(err, ERR_INVALID,
		               "%s lacks the daemon's name, which selects its key: NAME@%s", endpoint,
		               endpoint);
	void *z = zmq_socket(shared_context(), ZMQ_DEALER);
	if (!z)
		return err_set(err, ERR_IO, "cannot open a socket: %s", zmq_strerror(zmq_errno()));
	zmq_setsockopt(z, ZMQ_LINGER, &zero, sizeof zero);
	zmq_setsockopt(z, ZMQ_SNDTIMEO, &ms, sizeof ms);
	r = net ? chan_curve_client(keys, z, name, err) : 0;
	if (r == 0 && chan_zmq_connect(z, endpoint) < 0)
		r = err_set(err, ERR_CLOSED, "cannot connect to %s: %s", endpoint,
		            zmq_strerror(zmq_errno()));
	if (r == 0 && send_question(z, command, args, n_args) < 0)
		r = err_set(err, ERR_TIMEOUT, "%s did not accept the question in time", endpoint);
	if (r == 0 && (r = wait_for_answer(z, ms, ret_text, err)) == ERR_TIMEOUT && !*ret_text)
		err_set(err, r, "no answer from %s within %d ms%s", endpoint, ms,
		        net ? "; it answers only if it knows our key and we know its key" : "");
	zmq_close(z);
	return r;
}
