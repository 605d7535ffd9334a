/* codec.c - see codec.h. Input may be any bytes; every error is a return code. */
#include "msg/codec.h"
#include "util/wire.h"

#include <stdlib.h>
#include <string.h>

#define NAME_CHARS "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-"
/* limit for the link's own messages: a HELLO is kept as long as the link exists */
#define LINK_BODY_MAX 16384u
#define BODY_BYTES (64u << 20) /* memory that a decoded body may take ... */
/* ... plus this for each encoded byte: two bytes may encode an empty sub-message of sixty */
#define BODY_FACTOR 8u

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

static ProtobufCMessage *unpack_bounded(const ProtobufCMessageDescriptor *d, size_t len,
                                        const void *bytes)
{
	size_t left = BODY_BYTES + BODY_FACTOR * len;
	ProtobufCAllocator a = {.alloc = budget_alloc, .free = budget_free, .allocator_data = &left};
	return protobuf_c_message_unpack(d, &a, len, bytes);
}

static int check_sender(const char *sender, struct err *err)
{
	size_t n = strlen(sender);
	if (n == 0 || n > MSG_NAME_MAX)
		return err_set(err, ERR_CORRUPT, "sender's name has %zu bytes, allowed 1 to %u", n,
		               MSG_NAME_MAX);
	if (strspn(sender, NAME_CHARS) != n)
		return err_set(err, ERR_CORRUPT, "sender's name has characters other than " NAME_CHARS);
	return 0;
}

static int is_ctl(uint32_t type)
{
	return type == MSG_CTL_REQUEST || type == MSG_CTL_REPLY;
}

int msg_is_of_all_versions(uint32_t type)
{
	return type == MSG_HELLO || type == MSG_WELCOME || is_ctl(type);
}

static int check_head(const Pds__Envelope *env, const struct msg_type_info *info, size_t body_len,
                      struct err *err)
{
	if (env->epoch > INT64_MAX) /* pdctl reads no larger number in a daemon's status */
		return err_set(err, ERR_CORRUPT, "%s from %s has epoch %llu, allowed up to %lld",
		               info->name, env->sender, (unsigned long long)env->epoch,
		               (long long)INT64_MAX);
	if ((info->flags & MSG_REQUEST) && !env->request_hi && !env->request_lo)
		return err_set(err, ERR_CORRUPT, "%s from %s without a request id", info->name,
		               env->sender);
	if ((info->flags & MSG_REQUEST) && !env->attempt)
		return err_set(err, ERR_CORRUPT, "%s from %s without an attempt number", info->name,
		               env->sender);
	if ((info->flags & MSG_LINK) && !is_ctl(info->type) && body_len > LINK_BODY_MAX)
		return err_set(err, ERR_CORRUPT, "%s of %zu bytes from %s, allowed %u", info->name,
		               body_len, env->sender, LINK_BODY_MAX);
	if (env->more && !(info->flags & MSG_NUMBERED))
		return err_set(err, ERR_CORRUPT, "%s from %s is in parts, but its type is not numbered",
		               info->name, env->sender);
	return 0;
}

int msg_decode_head(const void *env, size_t env_len, size_t body_len, struct msg_in *ret,
                    struct err *err)
{
	memset(ret, 0, sizeof *ret);
	Pds__Envelope *e = ret->env = pds__envelope__unpack(NULL, env_len, env);
	if (!e)
		return err_set(err, ERR_CORRUPT, "envelope of %zu bytes does not decode", env_len);
	int r = check_sender(e->sender, err);
	if (r < 0)
		return r;
	const struct msg_type_info *info = msg_type_find(e->type);
	if (e->version != PROTOCOL_VERSION) {
		ret->info = msg_is_of_all_versions(e->type) ? info : NULL;
		return err_set(err, ERR_UNSUPPORTED, "%s speaks protocol version %u, this daemon %u",
		               e->sender, e->version, PROTOCOL_VERSION);
	}
	if (!info)
		return err_set(err, ERR_UNSUPPORTED, "message type %u from %s is unknown", e->type,
		               e->sender);
	ret->info = info;
	return check_head(e, info, body_len, err);
}

int msg_decode_body(struct msg_in *m, const void *body, size_t len, struct err *err)
{
	m->body = unpack_bounded(m->info->body, len, body);
	if (!m->body)
		return err_set(err, ERR_CORRUPT, "%s of %zu bytes from %s does not decode", m->info->name,
		               len, m->env->sender);
	int r = msg_validate(m->info, m->body, err);
	return r < 0 ? err_prefix(err, "%s from %s", m->info->name, m->env->sender) : 0;
}

int msg_decode(const void *env, size_t env_len, const void *body, size_t body_len,
               struct msg_in *ret, struct err *err)
{
	int r = msg_decode_head(env, env_len, body_len, ret, err);
	return r < 0 ? r : msg_decode_body(ret, body, body_len, err);
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
		return err_set(err, ERR_CORRUPT, "%zu tokens, allowed 1 to %u", r->n_tokens,
		               MSG_TOKENS_MAX);
	if (r->prompt_tokens == 0 || r->prompt_tokens > r->n_tokens)
		return err_set(err, ERR_CORRUPT, "prompt_tokens %u of %zu tokens", r->prompt_tokens,
		               r->n_tokens);
	if (r->max_tokens == 0 || r->n_tokens - r->prompt_tokens >= r->max_tokens)
		return err_set(err, ERR_CORRUPT, "max_tokens %u with %zu generated already", r->max_tokens,
		               r->n_tokens - r->prompt_tokens);
	if (r->cache_salt.len && r->cache_salt.len != 32)
		return err_set(err, ERR_CORRUPT, "cache_salt has %zu bytes, not 32", r->cache_salt.len);
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
			return err_set(err, ERR_CORRUPT, "hash %zu has %zu bytes, not 32", i,
			               items[i]->hash.len);
	return 0;
}

static int check_results(const Pds__StoreDone *d, struct err *err)
{
	for (size_t i = 0; i < d->n_results; i++)
		if (d->results[i]->hash.len != 32)
			return err_set(err, ERR_CORRUPT, "hash %zu has %zu bytes, not 32", i,
			               d->results[i]->hash.len);
	return 0;
}

static int check_peers(const Pds__Peers *p, struct err *err)
{
	if (p->n_peers > MSG_PEERS_MAX)
		return err_set(err, ERR_CORRUPT, "%zu peers, allowed %u", p->n_peers, MSG_PEERS_MAX);
	for (size_t i = 0; i < p->n_peers; i++)
		if (!p->peers[i]->name[0] || strlen(p->peers[i]->name) > MSG_NAME_MAX ||
		    strlen(p->peers[i]->endpoint) > MSG_ENDPOINT_MAX ||
		    strlen(p->peers[i]->messager) > MSG_ENDPOINT_MAX)
			return err_set(err, ERR_CORRUPT,
			               "peer %zu has no name, or a name or an endpoint is too long", i);
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
			return err_set(err, ERR_CORRUPT, "text %zu has %zu bytes, allowed %u", i,
			               strlen(texts[i]), MSG_TEXT_MAX);
	return 0;
}

static int check_worker(const Pds__WorkerInfo *w, struct err *err)
{
	const char *texts[] = {w->role,   w->endpoint, w->model,  w->model_fingerprint, w->numerics,
	                       w->layout, w->site,     w->remote, w->messager};
	return check_texts(texts, sizeof texts / sizeof *texts, err);
}

static int check_hello_body(const Pds__Hello *h, struct err *err)
{
	const char *texts[] = {h->program, h->process ? h->process->boot_id : "", h->build};
	int r = check_texts(texts, sizeof texts / sizeof *texts, err);
	return r < 0 || !h->worker ? r : check_worker(h->worker, err);
}

static int check_tokens_body(const Pds__Tokens *t, struct err *err)
{
	for (size_t i = 0; i < t->n_sequences; i++)
		if (t->sequences[i]->attempt == 0)
			return err_set(err, ERR_CORRUPT, "sequence %zu without an attempt number", i);
	return 0;
}

static int check_take(const Pds__PipelineTake *t, struct err *err)
{
	if (!t->stage || t->stage >= t->stages)
		return err_set(err, ERR_CORRUPT, "stage %u of %u", t->stage, t->stages);
	if (!t->port || t->port > UINT16_MAX || !t->ticket || t->secret.len != WIRE_SECRET_BYTES)
		return err_set(err, ERR_CORRUPT, "a ticket of %zu bytes for port %u, expected %u",
		               t->secret.len, t->port, WIRE_SECRET_BYTES);
	return 0;
}

/* One case per type: the list of what each message must contain. */
int msg_validate(const struct msg_type_info *info, const ProtobufCMessage *body, struct err *err)
{
#define AS(T) ((const Pds__##T *)body)
	switch (info->type) {
	case MSG_HELLO: return check_hello_body(AS(Hello), err);
	case MSG_REQUEST_SUBMIT:
		return AS(Submit)->n_candidates > 64
		           ? err_set(err, ERR_CORRUPT, "%zu candidates, allowed 64",
		                     AS(Submit)->n_candidates)
		           : check_request(AS(Submit)->request, err);
	case MSG_KV_RESERVE: return check_request(AS(Reserve)->request, err);
	case MSG_REQUEST_FIRST_TOKEN: return need(AS(FirstToken)->token, "token", err);
	case MSG_REQUEST_TOKENS: return check_tokens_body(AS(Tokens), err);
	case MSG_KV_GRANT: return need(AS(Grant)->lease, "lease", err);
	case MSG_LEASE_OPEN: return need(AS(LeaseOpen)->lease, "lease", err);
	case MSG_LEASE_OPENED: return need(AS(LeaseOpened)->lease, "lease", err);
	case MSG_LEASE_REVOKE: return need(AS(LeaseRevoke)->lease, "lease", err);
	case MSG_LEASE_REVOKED: return need(AS(LeaseRevoked)->lease, "lease", err);
	case MSG_KV_READY: return need(AS(KvReady)->lease, "lease", err);
	case MSG_KV_READY_ACK: return need(AS(KvReadyAck)->lease, "lease", err);
	case MSG_STORE_PUT: return check_items(AS(StorePut)->n_items, AS(StorePut)->items, err);
	case MSG_STORE_GET: return check_items(AS(StoreGet)->n_items, AS(StoreGet)->items, err);
	case MSG_STORE_LOOKUP:
		return check_hashes(AS(StoreLookup)->n_hashes, AS(StoreLookup)->hashes, err);
	case MSG_STORE_DONE: return check_results(AS(StoreDone), err);
	case MSG_WORKER_UPDATE:
		return AS(WorkerUpdate)->worker ? check_worker(AS(WorkerUpdate)->worker, err)
		                                : need(NULL, "worker", err);
	case MSG_PEERS: return check_peers(AS(Peers), err);
	case MSG_PIPELINE_TAKE: return check_take(AS(PipelineTake), err);
	case MSG_POOLS:
		return AS(Pools)->n_pools > 1024
		           ? err_set(err, ERR_CORRUPT, "%zu pools, allowed 1024", AS(Pools)->n_pools)
		           : 0;
	default: return 0;
	}
#undef AS
}
