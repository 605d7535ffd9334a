/* codec.c - see codec.h. Runs on bytes from anywhere; every answer is a return code. */
#include "msg/codec.h"

#include <stdlib.h>
#include <string.h>

#define NAME_CHARS "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-"
#define LINK_BODY_MAX 16384u     /* of the link's own messages; HELLO is kept for as long as the link lasts */
#define BODY_BYTES (64u << 20)   /* what any decoded body may take ... */
#define BODY_FACTOR 8u           /* ... and for each byte that came: two bytes may ask for an empty sub-message of sixty */

static void *budget_alloc(void *left, size_t n)
{
	size_t *bytes = left;
	if (n > *bytes)
		return NULL;
	*bytes -= n;
	return malloc(n);
}

static void budget_free(void *left, void *p)
{
	(void)left;
	free(p);
}

static ProtobufCMessage *unpack_bounded(const ProtobufCMessageDescriptor *d, size_t len, const void *bytes)
{
	size_t left = BODY_BYTES + BODY_FACTOR * len;
	ProtobufCAllocator a = {.alloc = budget_alloc, .free = budget_free, .allocator_data = &left};
	return protobuf_c_message_unpack(d, &a, len, bytes);
}

int msg_decode(const void *env, size_t env_len, const void *body, size_t body_len, struct msg_in *ret, struct err *err)
{
	memset(ret, 0, sizeof *ret);
	ret->env = pds__envelope__unpack(NULL, env_len, env);
	if (!ret->env)
		return err_set(err, ERR_CORRUPT, "envelope of %zu bytes does not decode", env_len);
	if (ret->env->version != PROTOCOL_VERSION)
		return err_set(err, ERR_UNSUPPORTED, "protocol version %u from %.47s, here %u", ret->env->version, ret->env->sender, PROTOCOL_VERSION);
	size_t name = strlen(ret->env->sender);
	if (name == 0 || name > MSG_NAME_MAX)
		return err_set(err, ERR_CORRUPT, "sender's name has %zu bytes, allowed 1 to %u", name, MSG_NAME_MAX);
	if (strspn(ret->env->sender, NAME_CHARS) != name)
		return err_set(err, ERR_CORRUPT, "sender's name holds other characters than " NAME_CHARS);
	ret->info = msg_type_find(ret->env->type);
	if (!ret->info)
		return err_set(err, ERR_UNSUPPORTED, "message type %u from %s is unknown", ret->env->type, ret->env->sender);
	if ((ret->info->flags & MSG_REQUEST) && !ret->env->request_hi && !ret->env->request_lo)
		return err_set(err, ERR_CORRUPT, "%s from %s without a request id", ret->info->name, ret->env->sender);
	if ((ret->info->flags & MSG_REQUEST) && !ret->env->attempt)
		return err_set(err, ERR_CORRUPT, "%s from %s without an attempt number", ret->info->name, ret->env->sender);
	if ((ret->info->flags & MSG_LINK) && ret->info->type != MSG_CTL_REQUEST && ret->info->type != MSG_CTL_REPLY && body_len > LINK_BODY_MAX)
		return err_set(err, ERR_CORRUPT, "%s of %zu bytes from %s, allowed %u", ret->info->name, body_len, ret->env->sender, LINK_BODY_MAX);
	ret->body = unpack_bounded(ret->info->body, body_len, body);
	if (!ret->body)
		return err_set(err, ERR_CORRUPT, "%s of %zu bytes from %s does not decode", ret->info->name, body_len, ret->env->sender);
	int r = msg_validate(ret->info, ret->body, err);
	return r < 0 ? err_prefix(err, "%s from %s", ret->info->name, ret->env->sender) : 0;
}

void msg_in_fini(struct msg_in *m)
{
	if (m->body)
		protobuf_c_message_free_unpacked(m->body, NULL);
	if (m->env)
		pds__envelope__free_unpacked(m->env, NULL);
	memset(m, 0, sizeof *m);
}

static int check_request(const Pds__Request *r, struct err *err)
{
	if (!r || !r->sampling)
		return err_set(err, ERR_CORRUPT, "no request or no sampling parameters");
	if (r->n_tokens == 0 || r->n_tokens > MSG_TOKENS_MAX)
		return err_set(err, ERR_CORRUPT, "%zu tokens, allowed 1 to %u", r->n_tokens, MSG_TOKENS_MAX);
	if (r->prompt_tokens == 0 || r->prompt_tokens > r->n_tokens)
		return err_set(err, ERR_CORRUPT, "prompt_tokens %u of %zu tokens", r->prompt_tokens, r->n_tokens);
	if (r->max_tokens == 0 || r->n_tokens - r->prompt_tokens >= r->max_tokens)
		return err_set(err, ERR_CORRUPT, "max_tokens %u with %zu generated already", r->max_tokens, r->n_tokens - r->prompt_tokens);
	return 0;
}

static int check_hashes(size_t n, const ProtobufCBinaryData *hashes, struct err *err)
{
	for (size_t i = 0; i < n; i++)
		if (hashes[i].len != 32)
			return err_set(err, ERR_CORRUPT, "hash %zu has %zu bytes, not 32", i, hashes[i].len);
	return 0;
}

static int check_items(size_t n, Pds__StoreItem *const *items, struct err *err)
{
	for (size_t i = 0; i < n; i++)
		if (items[i]->hash.len != 32)
			return err_set(err, ERR_CORRUPT, "hash %zu has %zu bytes, not 32", i, items[i]->hash.len);
	return 0;
}

static int check_results(const Pds__StoreDone *d, struct err *err)
{
	for (size_t i = 0; i < d->n_results; i++)
		if (d->results[i]->hash.len != 32)
			return err_set(err, ERR_CORRUPT, "hash %zu has %zu bytes, not 32", i, d->results[i]->hash.len);
	return 0;
}

static int check_peers(const Pds__Peers *p, struct err *err)
{
	for (size_t i = 0; i < p->n_peers; i++)
		if (!p->peers[i]->name[0] || strlen(p->peers[i]->name) > MSG_NAME_MAX || strlen(p->peers[i]->endpoint) > MSG_ENDPOINT_MAX)
			return err_set(err, ERR_CORRUPT, "peer %zu has no name or endpoint within bounds", i);
	return 0;
}

static int need(const void *part, const char *what, struct err *err)
{
	return part ? 0 : err_set(err, ERR_CORRUPT, "no %s", what);
}

static int check_texts(const char *const *texts, size_t n, struct err *err)
{
	for (size_t i = 0; i < n; i++)
		if (strlen(texts[i]) > MSG_TEXT_MAX)
			return err_set(err, ERR_CORRUPT, "text %zu has %zu bytes, allowed %u", i, strlen(texts[i]), MSG_TEXT_MAX);
	return 0;
}

static int check_worker(const Pds__WorkerInfo *w, struct err *err)
{
	const char *texts[] = {w->role, w->endpoint, w->model, w->model_fingerprint, w->numerics, w->layout};
	return check_texts(texts, sizeof texts / sizeof *texts, err);
}

static int check_hello(const Pds__Hello *h, struct err *err)
{
	const char *texts[] = {h->program, h->process ? h->process->boot_id : ""};
	int r = check_texts(texts, sizeof texts / sizeof *texts, err);
	return r < 0 || !h->worker ? r : check_worker(h->worker, err);
}

static int check_tokens(const Pds__Tokens *t, struct err *err)
{
	for (size_t i = 0; i < t->n_sequences; i++)
		if (t->sequences[i]->attempt == 0)
			return err_set(err, ERR_CORRUPT, "sequence %zu without an attempt number", i);
	return 0;
}

/* Each `case` reads one field or calls one check: the table of what must be there. */
int msg_validate(const struct msg_type_info *info, const ProtobufCMessage *body, struct err *err)
{
#define AS(T) ((const Pds__##T *)body)
	switch (info->type) {
	case MSG_HELLO:
		return check_hello(AS(Hello), err);
	case MSG_REQUEST_SUBMIT:
		return AS(Submit)->n_candidates > 64 ? err_set(err, ERR_CORRUPT, "%zu candidates, allowed 64", AS(Submit)->n_candidates)
		                                     : check_request(AS(Submit)->request, err);
	case MSG_KV_RESERVE:
		return check_request(AS(Reserve)->request, err);
	case MSG_REQUEST_FIRST_TOKEN:
		return need(AS(FirstToken)->token, "token", err);
	case MSG_REQUEST_TOKENS:
		return check_tokens(AS(Tokens), err);
	case MSG_KV_GRANT:
		return need(AS(Grant)->lease, "lease", err);
	case MSG_LEASE_OPEN:
		return need(AS(LeaseOpen)->lease, "lease", err);
	case MSG_LEASE_OPENED:
		return need(AS(LeaseOpened)->lease, "lease", err);
	case MSG_LEASE_REVOKE:
		return need(AS(LeaseRevoke)->lease, "lease", err);
	case MSG_LEASE_REVOKED:
		return need(AS(LeaseRevoked)->lease, "lease", err);
	case MSG_KV_READY:
		return need(AS(KvReady)->lease, "lease", err);
	case MSG_KV_READY_ACK:
		return need(AS(KvReadyAck)->lease, "lease", err);
	case MSG_STORE_PUT:
		return check_items(AS(StorePut)->n_items, AS(StorePut)->items, err);
	case MSG_STORE_GET:
		return check_items(AS(StoreGet)->n_items, AS(StoreGet)->items, err);
	case MSG_STORE_LOOKUP:
		return check_hashes(AS(StoreLookup)->n_hashes, AS(StoreLookup)->hashes, err);
	case MSG_STORE_DONE:
		return check_results(AS(StoreDone), err);
	case MSG_WORKER_UPDATE:
		return AS(WorkerUpdate)->worker ? check_worker(AS(WorkerUpdate)->worker, err) : need(NULL, "worker", err);
	case MSG_PEERS:
		return check_peers(AS(Peers), err);
	default:
		return 0;
	}
#undef AS
}
