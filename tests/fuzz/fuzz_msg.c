/* fuzz_msg.c - a message of a peer: envelope and body (msg/codec.h). The first byte is the number
 * of a type, whose body the rest is, in a good envelope; 0: the second byte is the size of the
 * envelope, which follows, and behind it the body. A message that is refused has a reason to be
 * logged; one that is taken has what every daemon relies on, and says the same when sent on. */
#include "msg/codec.h"
#include "tests/fuzz/fuzz.h"

#include <stdlib.h>
#include <string.h>

static void check_refusal(int rc, const struct err *err, const struct msg_in *m)
{
	must((rc == ERR_CORRUPT || rc == ERR_UNSUPPORTED) && err->text[0]);
	for (const char *c = err->text; *c; c++)
		must(*c >= ' ' && *c <= '~');
	/* a HELLO of another version is answered: its sender must be known, and its type */
	must(rc != ERR_UNSUPPORTED || (m->env && m->env->sender[0]));
}

/* --- what daemons rely on ------------------------------------------------ */

static void check_lease(const Pds__Lease *l)
{
	must(l != NULL);
}

static void check_request(const Pds__Request *r)
{
	must(r && r->sampling && r->n_tokens && r->n_tokens <= MSG_TOKENS_MAX);
	must(r->prompt_tokens && r->prompt_tokens <= r->n_tokens);
	must(r->n_tokens - r->prompt_tokens < r->max_tokens);
	must(!r->cache_salt.len || r->cache_salt.len == 32);
}

static void check_worker(const Pds__WorkerInfo *w)
{
	must(strlen(w->role) <= MSG_TEXT_MAX && strlen(w->model) <= MSG_TEXT_MAX &&
	     strlen(w->model_fingerprint) <= MSG_TEXT_MAX && strlen(w->numerics) <= MSG_TEXT_MAX &&
	     strlen(w->layout) <= MSG_TEXT_MAX && strlen(w->endpoint) <= MSG_TEXT_MAX &&
	     strlen(w->remote) <= MSG_TEXT_MAX && strlen(w->messager) <= MSG_TEXT_MAX);
}

static void check_items(Pds__StoreItem *const *items, size_t n)
{
	for (size_t i = 0; i < n; i++)
		must(items[i]->hash.len == 32 && items[i]->hash.data);
}

static void check_body(enum msg_type type, const ProtobufCMessage *m)
{
#define AS(T) ((const Pds__##T *)m)
	switch (type) {
	case MSG_HELLO: must(strlen(AS(Hello)->program) <= MSG_TEXT_MAX); break;
	case MSG_WORKER_UPDATE: check_worker(AS(WorkerUpdate)->worker); break;
	case MSG_REQUEST_SUBMIT:
		must(AS(Submit)->n_candidates <= 64);
		check_request(AS(Submit)->request);
		break;
	case MSG_KV_RESERVE: check_request(AS(Reserve)->request); break;
	case MSG_REQUEST_FIRST_TOKEN: must(AS(FirstToken)->token != NULL); break;
	case MSG_REQUEST_TOKENS:
		for (size_t i = 0; i < AS(Tokens)->n_sequences; i++)
			must(AS(Tokens)->sequences[i]->attempt);
		break;
	case MSG_KV_GRANT: check_lease(AS(Grant)->lease); break;
	case MSG_LEASE_OPEN: check_lease(AS(LeaseOpen)->lease); break;
	case MSG_LEASE_OPENED: check_lease(AS(LeaseOpened)->lease); break;
	case MSG_LEASE_REVOKE: check_lease(AS(LeaseRevoke)->lease); break;
	case MSG_LEASE_REVOKED: check_lease(AS(LeaseRevoked)->lease); break;
	case MSG_KV_READY: check_lease(AS(KvReady)->lease); break;
	case MSG_KV_READY_ACK: check_lease(AS(KvReadyAck)->lease); break;
	case MSG_STORE_PUT: check_items(AS(StorePut)->items, AS(StorePut)->n_items); break;
	case MSG_STORE_GET: check_items(AS(StoreGet)->items, AS(StoreGet)->n_items); break;
	case MSG_STORE_LOOKUP:
		for (size_t i = 0; i < AS(StoreLookup)->n_hashes; i++)
			must(AS(StoreLookup)->hashes[i].len == 32);
		break;
	case MSG_PEERS:
		must(AS(Peers)->n_peers <= MSG_PEERS_MAX);
		for (size_t i = 0; i < AS(Peers)->n_peers; i++)
			must(AS(Peers)->peers[i]->name[0] &&
			     strlen(AS(Peers)->peers[i]->name) <= MSG_NAME_MAX &&
			     strlen(AS(Peers)->peers[i]->endpoint) <= MSG_ENDPOINT_MAX);
		break;
	case MSG_POOLS: must(AS(Pools)->n_pools <= 1024); break;
	default: break;
	}
#undef AS
}

static void check_envelope(const struct msg_in *m, size_t body_len)
{
	const Pds__Envelope *e = m->env;
	size_t n = strlen(e->sender);
	must(e->version == PROTOCOL_VERSION && n > 0 && n <= MSG_NAME_MAX);
	must(e->epoch <= INT64_MAX);
	must(!strpbrk(e->sender, " \"\n/=") && (uint32_t)m->info->type == e->type);
	if (m->info->flags & MSG_REQUEST)
		must((e->request_hi || e->request_lo) && e->attempt);
	must(!e->more || (m->info->flags & MSG_NUMBERED));
	if (m->info->type == MSG_HELLO || m->info->type == MSG_ACK)
		must(body_len <= 16384);
}

/* --- one message --------------------------------------------------------- */

static uint8_t *packed(const ProtobufCMessage *m, size_t *ret_n)
{
	*ret_n = protobuf_c_message_get_packed_size(m);
	uint8_t *p = malloc(*ret_n + 1);
	must(protobuf_c_message_pack(m, p) == *ret_n);
	return p;
}

/* A field of a later version: kept, and written again, by a library that may write it wrongly. */
static int has_unknown(const ProtobufCMessage *m)
{
	for (unsigned i = 0; i < m->descriptor->n_fields; i++) {
		const ProtobufCFieldDescriptor *f = &m->descriptor->fields[i];
		const char *at = (const char *)m + f->offset;
		int is_list = f->label == PROTOBUF_C_LABEL_REPEATED;
		if (f->type != PROTOBUF_C_TYPE_MESSAGE)
			continue;
		size_t n = is_list ? *(const size_t *)((const char *)m + f->quantifier_offset) : 1;
		ProtobufCMessage *const *part = is_list ? *(ProtobufCMessage * *const *)at
		                                        : (ProtobufCMessage *const *)at;
		for (size_t k = 0; k < n; k++)
			if (part[k] && has_unknown(part[k]))
				return 1;
	}
	return m->n_unknown_fields != 0;
}

/* Written again it is read as the same. A number may be written in more bytes than it needs, or a
 * negative one in fewer: at most twice as many come out. */
static void check_again(const struct msg_in *m, size_t body_len)
{
	struct msg_in again;
	struct err err = {0};
	size_t env_n, body_n, n;
	uint8_t *env = packed(&m->env->base, &env_n), *body = packed(m->body, &body_n), *p;
	must(body_n <= 2 * body_len);
	int rc = msg_decode(env, env_n, body, body_n, &again, &err);
	if (!has_unknown(&m->env->base) && !has_unknown(m->body)) {
		must(rc == 0);
		p = packed(again.body, &n);
		must(n == body_n && memcmp(p, body, n) == 0);
		free(p);
		p = packed(&again.env->base, &n);
		must(n == env_n && memcmp(p, env, n) == 0);
		free(p);
	}
	free(env);
	free(body);
	msg_in_fini(&again);
}

static void run(const uint8_t *env, size_t env_n, const uint8_t *body, size_t body_n)
{
	struct msg_in m;
	struct err err = {0};
	int rc = msg_decode(env, env_n, body, body_n, &m, &err);
	if (rc < 0) {
		check_refusal(rc, &err, &m);
	} else {
		fuzz_accepted();
		check_envelope(&m, body_n);
		check_body(m.info->type, m.body);
		check_again(&m, body_n);
	}
	msg_in_fini(&m);
	must(!m.env && !m.body);
}

FUZZ(msg, 1 << 15)
{
	Pds__Envelope e = PDS__ENVELOPE__INIT;
	size_t n;
	if (size < 2)
		return 0;
	if (data[0] == 0) {
		n = data[1] < size - 2 ? data[1] : size - 2;
		run(data + 2, n, data + 2 + n, size - 2 - n);
		return 0;
	}
	e.version = PROTOCOL_VERSION;
	e.type = data[0];
	e.sender = (char *)"decode-1";
	e.epoch = e.seq = e.attempt = 1;
	e.request_lo = 7;
	uint8_t *env = packed(&e.base, &n);
	run(env, n, data + 1, size - 1);
	free(env);
	return 0;
}
