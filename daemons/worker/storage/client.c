/* client.c - see client.h.
 *
 * A batch waits for the loop, is sent (asked.epoch), and completes; a get that was given up waits
 * for its fence before (asked.fence_us). Only the loop's thread sends a batch, completes it and
 * frees it; other threads add batches and mark them unwanted, under the lock. Completions
 * are given to `done` without the lock, which may ask and cancel.
 *
 * Invariants: a batch is sent only while the link's peer and the process that maps our memory have
 * the same epoch, so each sent batch is ended either by an answer or by `gone` of that epoch. A get
 * completes only on an answer, on the fence's acknowledgement, or on `gone`; the fence is requested
 * again each second and when the link comes up, because storage may have forgotten it or been
 * stopped. Answers are checked against the request; a mismatch is an error of that item. */
#include "client.h"

#include "daemons/worker/links/attach.h"
#include "util/check.h"
#include "util/clock.h"
#include "util/list.h"
#include "util/log.h"
#include "util/mem.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define FENCE_AGAIN_US 1000000u

struct asked {
	struct list link;
	atomic_int unwanted; /* store_cancel */
	uint64_t deadline_us, begun_us;
	uint64_t fence_us; /* given up: when to send the next STORE_FENCE; 0: it is not */
	uint64_t epoch;    /* of the storage it was sent to; 0: it waits for the loop */
	uint32_t n;
	int prefetch;                 /* lookups */
	struct kv_hash *hash;         /* (n), lookups */
	struct store_completion *out; /* filled in as answers arrive */
};

struct store {
	struct svc *svc;
	char name[HANDOVER_NAME_MAX];
	uint32_t batches_max;
	void (*on_ready)(void *arg, uint64_t epoch);
	void (*done)(void *arg, struct store_completion *c);
	void *arg;
	struct peer *peer;   /* the link, up or not */
	uint64_t link_epoch; /* of storage while the link is up, else 0 */
	struct attach *attach;
	uint64_t memory_epoch; /* of the storage that maps our memory, 0: none */
	atomic_int ready;
	struct event *timer;

	pthread_mutex_t lock; /* the fields below */
	struct list table;    /* of asked, in the order of their numbers */
	uint32_t n;           /* of the table */
	uint64_t last_number;
	int posted, destroyed;
	struct store_counts counts;
};

static void loop_run(struct svc *s, void *arg);

/* --- completion; on the loop --- */

static void set_reason(struct store_completion *c, int code, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));
static void set_reason(struct store_completion *c, int code, const char *fmt, ...)
{
	va_list ap;
	c->code = code;
	va_start(ap, fmt);
	vsnprintf(c->text, sizeof c->text, fmt, ap);
	va_end(ap);
}

/* Items without an answer fail with the batch's reason. */
static void fill_results(struct store_completion *c)
{
	Pds__StoreCode code = c->code == ERR_CLOSED || c->code == ERR_INVALID
	                          ? PDS__STORE_CODE__STORE_ERROR
	                          : PDS__STORE_CODE__STORE_CANCELLED;
	for (uint32_t i = 0; i < c->n; i++) {
		c->result[i].code = code;
		snprintf(c->result[i].text, sizeof c->result[i].text, "%.*s",
		         (int)sizeof c->result[i].text - 1, c->text);
	}
}

static void count_completion(struct store_counts *k, const struct store_completion *c,
                             uint32_t asked)
{
	k->timeouts += c->code == ERR_TIMEOUT;
	k->looked_up += c->op == STORE_OP_LOOKUP ? asked : 0;
	for (uint32_t i = 0; i < c->leading && c->tiers; i++)
		k->found[c->tiers[i]]++;
	for (uint32_t i = 0; i < c->n; i++) {
		Pds__StoreCode code = c->result[i].code;
		if (code == PDS__STORE_CODE__STORE_OK)
			c->op == STORE_OP_PUT ? k->put[c->result[i].tier]++ : k->got[c->result[i].tier]++;
		k->missed_blocks += code == PDS__STORE_CODE__STORE_MISS;
		k->errors += code == PDS__STORE_CODE__STORE_ERROR;
	}
}

static void asked_free(struct asked *a)
{
	free(a->hash);
	free(a->out);
	free(a);
}

/* The batch ends; answered 0: results are filled from the batch's reason. */
static void complete(struct store *st, struct asked *a, int answered, int quiet)
{
	struct store_completion *c = a->out;
	if (!answered)
		fill_results(c);
	c->quiet = quiet;
	c->epoch = a->epoch;
	c->took_us = clock_us() - a->begun_us;
	/* a lookup has no results; its `leading` is set from the answer */
	while (c->leading < c->n && c->result[c->leading].code == PDS__STORE_CODE__STORE_OK)
		c->leading++;
	if (c->code != 0)
		log_debug("store_batch_failed", "batch=%llu op=%d items=%u code=%s why=%s",
		          (unsigned long long)c->batch, (int)c->op, a->n, err_name(c->code),
		          log_quote(c->text));
	pthread_mutex_lock(&st->lock);
	list_remove(&a->link);
	st->n--;
	count_completion(&st->counts, c, a->n);
	pthread_mutex_unlock(&st->lock);
	a->out = NULL; /* the callee's */
	asked_free(a);
	st->done(st->arg, c);
}

/* --- sending; on the loop --- */

static int send_items(struct store *st, const struct asked *a)
{
	Pds__StoreItem *item = mem_array(a->n, sizeof *item), **list = mem_array(a->n, sizeof *list);
	for (uint32_t i = 0; i < a->n; i++) {
		struct store_item *from = &a->out->result[i].item;
		pds__store_item__init(&item[i]);
		item[i].hash = (ProtobufCBinaryData){.len = sizeof from->hash.b, .data = from->hash.b};
		item[i].block = from->block;
		item[i].generation = from->generation;
		list[i] = &item[i];
	}
	int put = a->out->op == STORE_OP_PUT;
	Pds__StorePut mput = PDS__STORE_PUT__INIT;
	Pds__StoreGet mget = PDS__STORE_GET__INIT;
	mput.batch = mget.batch = a->out->batch;
	mput.n_items = mget.n_items = a->n;
	mput.items = mget.items = list;
	int r = svc_send(st->svc, st->peer, put ? MSG_STORE_PUT : MSG_STORE_GET, NULL,
	                 put ? (void *)&mput : (void *)&mget);
	free(list);
	free(item);
	return r;
}

static int send_lookup(struct store *st, const struct asked *a)
{
	ProtobufCBinaryData *hash = mem_array(a->n, sizeof *hash);
	for (uint32_t i = 0; i < a->n; i++)
		hash[i] = (ProtobufCBinaryData){.len = sizeof a->hash[i].b, .data = a->hash[i].b};
	Pds__StoreLookup m = PDS__STORE_LOOKUP__INIT;
	m.batch = a->out->batch;
	m.n_hashes = a->n;
	m.hashes = hash;
	m.prefetch = a->prefetch;
	int r = svc_send(st->svc, st->peer, MSG_STORE_LOOKUP, NULL, &m);
	free(hash);
	return r;
}

static void send_fence(struct store *st, struct asked *a)
{
	Pds__StoreFence m = PDS__STORE_FENCE__INIT;
	m.batch = a->out->batch;
	a->fence_us = clock_us() + FENCE_AGAIN_US;
	if (st->link_epoch == a->epoch)
		svc_send(st->svc, st->peer, MSG_STORE_FENCE, NULL, &m);
}

/* The batch was sent and is not wanted any more. A put is void by the block's generation and a
 * lookup touches nothing; only a get must be fenced. */
static void batch_give_up(struct store *st, struct asked *a)
{
	if (a->out->op != STORE_OP_LOOKUP)
		send_fence(st, a);
	if (a->out->op != STORE_OP_GET)
		complete(st, a, 0, a->out->op == STORE_OP_LOOKUP);
}

static void batch_send(struct store *st, struct asked *a)
{
	if (a->unwanted) {
		set_reason(a->out, ERR_CANCELLED, "given up before it was sent");
	} else if (a->deadline_us && a->deadline_us <= clock_us()) {
		set_reason(a->out, ERR_TIMEOUT, "the deadline passed before it was sent");
	} else if (!atomic_load(&st->ready)) {
		set_reason(a->out, ERR_CLOSED, "storage %s is not attached", st->name);
	} else {
		a->epoch = st->link_epoch;
		int r = a->out->op == STORE_OP_LOOKUP ? send_lookup(st, a) : send_items(st, a);
		if (r == 0)
			return;
		set_reason(a->out, r, "cannot send to storage %s: %s", st->name, err_name(r));
	}
	complete(st, a, 0, 1);
}

/* --- the loop's round --- */

/* Sends a batch, gives it up, or asks for its fence. Returns when to look at it again; 0: not
 * before a message or a link event arrives. */
static uint64_t asked_step(struct store *st, struct asked *a, uint64_t now)
{
	uint64_t deadline = a->deadline_us;
	if (!a->epoch) {
		batch_send(st, a);
		return deadline; /* a may be freed; an unnecessary look does no harm */
	}
	if (a->fence_us) {
		if (st->link_epoch != a->epoch)
			return 0; /* store_up or gone */
		if (a->fence_us <= now)
			send_fence(st, a);
		return a->fence_us;
	}
	if (a->unwanted)
		set_reason(a->out, ERR_CANCELLED, "given up");
	else if (deadline && deadline <= now)
		set_reason(a->out, ERR_TIMEOUT, "storage %s did not answer within %llu us", st->name,
		           (unsigned long long)(deadline - a->begun_us));
	else
		return deadline;
	batch_give_up(st, a);
	return now + FENCE_AGAIN_US;
}

/* The batches that are in the table now. Only the loop removes batches, so the pointers stay valid
 * until it does. */
static struct asked **snapshot(struct store *st, uint32_t *ret_n)
{
	struct asked **list = mem_array(st->batches_max, sizeof *list);
	uint32_t n = 0;
	pthread_mutex_lock(&st->lock);
	list_each(it, &st->table)
		list[n++] = list_entry(it, struct asked, link);
	pthread_mutex_unlock(&st->lock);
	*ret_n = n;
	return list;
}

static void round_all(struct store *st)
{
	uint32_t n;
	struct asked **list = snapshot(st, &n);
	uint64_t now = clock_us(), next = UINT64_MAX;
	for (uint32_t i = 0; i < n; i++) {
		uint64_t at = asked_step(st, list[i], now);
		if (at && at < next)
			next = at;
	}
	free(list);
	if (next == UINT64_MAX) {
		event_del(st->timer);
		return;
	}
	uint64_t left = clock_left_us(next);
	struct timeval tv = clock_timeval(left);
	event_add(st->timer, &tv);
}

static void client_on_timer(evutil_socket_t fd, short what, void *arg)
{
	(void)fd;
	(void)what;
	round_all(arg);
}

static void loop_run(struct svc *s, void *arg)
{
	(void)s;
	struct store *st = arg;
	pthread_mutex_lock(&st->lock);
	st->posted = 0;
	int destroyed = st->destroyed;
	pthread_mutex_unlock(&st->lock);
	if (destroyed) {
		pthread_mutex_destroy(&st->lock);
		free(st);
		return;
	}
	round_all(st);
}

/* With the lock held. */
static void wake_loop(struct store *st)
{
	if (st->posted)
		return;
	st->posted = 1;
	svc_post(st->svc, loop_run, st);
}

/* --- messages from storage; on the loop --- */

/* The batch that an answer from p is about, if it was sent to this epoch of p; NULL: completed
 * already, or never sent. */
static struct asked *asked_find(struct store *st, struct peer *p, uint64_t batch)
{
	struct asked *found = NULL;
	pthread_mutex_lock(&st->lock);
	list_each(it, &st->table) {
		struct asked *a = list_entry(it, struct asked, link);
		if (a->out->batch == batch && a->epoch && a->epoch == peer_epoch(p))
			found = a;
	}
	pthread_mutex_unlock(&st->lock);
	return found;
}

const char *store_tier_name(unsigned tier)
{
	static const char *const names[STORE_TIERS] = {"", "memory", "disk", "redis"};
	return tier < STORE_TIERS ? names[tier] : "";
}

static unsigned char tier_parse(const char *text)
{
	for (unsigned char t = STORE_TIER_MEMORY; t < STORE_TIERS; t++)
		if (strcmp(text, store_tier_name(t)) == 0)
			return t;
	return STORE_TIER_NONE;
}

static void result_read(const Pds__StoreResult *m, struct store_result *r)
{
	if (m->block != r->item.block || m->generation != r->item.generation ||
	    (m->hash.len && (m->hash.len != sizeof r->item.hash.b ||
	                     memcmp(m->hash.data, r->item.hash.b, sizeof r->item.hash.b) != 0))) {
		r->code = PDS__STORE_CODE__STORE_ERROR;
		snprintf(r->text, sizeof r->text, "storage's answer names another block");
		return;
	}
	r->code = m->code <= PDS__STORE_CODE__STORE_CANCELLED ? m->code : PDS__STORE_CODE__STORE_ERROR;
	r->tier = tier_parse(m->tier);
	if (r->code != PDS__STORE_CODE__STORE_OK && r->code != PDS__STORE_CODE__STORE_MISS)
		snprintf(r->text, sizeof r->text, "%s", m->text);
}

static void on_done(struct store *st, struct peer *p, const Pds__StoreDone *m)
{
	struct asked *a = asked_find(st, p, m->batch);
	if (!a || a->out->op == STORE_OP_LOOKUP)
		return;
	if (m->n_results != a->n) {
		set_reason(a->out, ERR_INVALID, "storage answered %zu results to %u items", m->n_results,
		           a->n);
		complete(st, a, 0, 1);
		return;
	}
	for (uint32_t i = 0; i < a->n; i++)
		result_read(m->results[i], &a->out->result[i]);
	complete(st, a, 1, 1);
}

static void on_found(struct store *st, struct peer *p, const Pds__StoreFound *m)
{
	struct asked *a = asked_find(st, p, m->batch);
	if (!a || a->out->op != STORE_OP_LOOKUP)
		return;
	a->out->leading = m->leading < a->n ? m->leading : a->n;
	/* there is room for n; see asked_new */
	unsigned char *tier = (unsigned char *)a->out->result;
	for (uint32_t i = 0; i < a->out->leading && i < m->n_tiers; i++)
		tier[i] = m->tiers[i] < STORE_TIERS ? (unsigned char)m->tiers[i] : STORE_TIER_NONE;
	complete(st, a, 1, 1);
}

static void on_fenced(struct store *st, struct peer *p, const Pds__StoreFenced *m)
{
	struct asked *a = asked_find(st, p, m->batch);
	if (a && a->fence_us)
		complete(st, a, 0, 1);
}

void store_message(struct store *st, struct peer *p, const ProtobufCMessage *body)
{
	if (!st || p != st->peer)
		return; /* only storage may answer batches */
	if (body->descriptor == &pds__store_done__descriptor)
		on_done(st, p, (const Pds__StoreDone *)body);
	else if (body->descriptor == &pds__store_found__descriptor)
		on_found(st, p, (const Pds__StoreFound *)body);
	else if (body->descriptor == &pds__store_fenced__descriptor)
		on_fenced(st, p, (const Pds__StoreFenced *)body);
}

/* --- the link, and who maps our memory --- */

static void set_ready(struct store *st)
{
	int ready = st->memory_epoch && st->link_epoch == st->memory_epoch;
	if (atomic_exchange(&st->ready, ready) == ready)
		return;
	log_notice(ready ? "storage_ready" : "storage_away", "storage=%s", log_quote(st->name));
	if (ready && st->on_ready)
		st->on_ready(st->arg, st->link_epoch);
}

void store_up(struct store *st, struct peer *p)
{
	if (!st || p != st->peer)
		return;
	st->link_epoch = peer_epoch(p);
	set_ready(st);
	uint32_t n;
	struct asked **list = snapshot(st, &n);
	for (uint32_t i = 0; i < n; i++)
		if (list[i]->fence_us)
			send_fence(st, list[i]);
	free(list);
	round_all(st);
}

void store_down(struct store *st, struct peer *p, const char *why)
{
	if (!st || p != st->peer)
		return;
	uint64_t epoch = st->link_epoch;
	st->link_epoch = 0;
	set_ready(st);
	uint32_t n;
	struct asked **list = snapshot(st, &n);
	for (uint32_t i = 0; i < n; i++) {
		struct asked *a = list[i];
		if (!a->epoch || a->fence_us || a->epoch != epoch)
			continue;
		set_reason(a->out, ERR_CLOSED, "the link to storage %s is down: %s", st->name, why);
		batch_give_up(st, a);
	}
	free(list);
}

static void on_attached(void *arg, uint64_t epoch, int bell_fd)
{
	struct store *st = arg;
	if (bell_fd >= 0)
		close(bell_fd);
	st->memory_epoch = epoch;
	set_ready(st);
}

/* Storage of this epoch can touch nothing any more: its batches complete. */
static void on_gone(void *arg, uint64_t epoch)
{
	struct store *st = arg;
	if (st->memory_epoch == epoch)
		st->memory_epoch = 0;
	set_ready(st);
	uint32_t n;
	struct asked **list = snapshot(st, &n);
	for (uint32_t i = 0; i < n; i++) {
		struct asked *a = list[i];
		if (!a->epoch || a->epoch != epoch)
			continue;
		if (!a->fence_us)
			set_reason(a->out, ERR_CLOSED, "storage %s is gone", st->name);
		complete(st, a, 0, 1);
	}
	free(list);
}

/* --- asking; any thread --- */

static struct asked *asked_new(enum store_op op, uint32_t n, uint64_t deadline_us, void *user)
{
	struct asked *a = mem_zalloc(sizeof *a);
	uint32_t results = op == STORE_OP_LOOKUP ? 0 : n;
	/* a lookup's tiers, otherwise the results */
	size_t behind = op == STORE_OP_LOOKUP ? n : (size_t)n * sizeof(struct store_result);
	list_init(&a->link);
	a->deadline_us = deadline_us;
	a->begun_us = clock_us();
	a->n = n;
	a->out = mem_zalloc(sizeof *a->out + behind);
	a->out->op = op;
	if (op == STORE_OP_LOOKUP)
		a->out->tiers = (unsigned char *)a->out->result;
	a->out->user = user;
	a->out->n = results;
	return a;
}

/* Adds the batch to the table and wakes the loop; frees it on error. */
static int batch_ask(struct store *st, struct asked *a, uint64_t *ret_batch)
{
	pthread_mutex_lock(&st->lock);
	int r = !atomic_load(&st->ready) ? ERR_CLOSED : st->n >= st->batches_max ? ERR_FULL : 0;
	if (r == 0) {
		st->n++;
		a->out->batch = ++st->last_number;
		if (ret_batch)
			*ret_batch = a->out->batch;
		list_push_back(&st->table, &a->link);
		wake_loop(st);
	}
	pthread_mutex_unlock(&st->lock);
	if (r != 0)
		asked_free(a);
	return r;
}

static int ask_items(struct store *st, enum store_op op, const struct store_item *items, uint32_t n,
                     uint64_t deadline_us, void *user, uint64_t *ret_batch)
{
	if (n == 0 || n > STORE_ITEMS_MAX)
		return ERR_INVALID;
	struct asked *a = asked_new(op, n, deadline_us, user);
	for (uint32_t i = 0; i < n; i++)
		a->out->result[i].item = items[i];
	return batch_ask(st, a, ret_batch);
}

int store_put(struct store *st, const struct store_item *items, uint32_t n, uint64_t deadline_us,
              void *user, uint64_t *ret_batch)
{
	return ask_items(st, STORE_OP_PUT, items, n, deadline_us, user, ret_batch);
}

int store_get(struct store *st, const struct store_item *items, uint32_t n, uint64_t deadline_us,
              void *user, uint64_t *ret_batch)
{
	return ask_items(st, STORE_OP_GET, items, n, deadline_us, user, ret_batch);
}

int store_lookup(struct store *st, const struct kv_hash *hashes, uint32_t n, int prefetch,
                 uint64_t deadline_us, void *user, uint64_t *ret_batch)
{
	if (n == 0 || n > STORE_ITEMS_MAX)
		return ERR_INVALID;
	struct asked *a = asked_new(STORE_OP_LOOKUP, n, deadline_us, user);
	a->prefetch = prefetch;
	a->hash = mem_array(n, sizeof *a->hash);
	memcpy(a->hash, hashes, n * sizeof *a->hash);
	return batch_ask(st, a, ret_batch);
}

void store_cancel(struct store *st, uint64_t batch)
{
	pthread_mutex_lock(&st->lock);
	list_each(it, &st->table) {
		struct asked *a = list_entry(it, struct asked, link);
		if (a->out->batch == batch) {
			a->unwanted = 1;
			wake_loop(st);
		}
	}
	pthread_mutex_unlock(&st->lock);
}

void store_completion_free(struct store_completion **c)
{
	free(*c);
	*c = NULL;
}

int store_ready(const struct store *st)
{
	return atomic_load(&st->ready);
}

void store_counts(struct store *st, struct store_counts *ret)
{
	pthread_mutex_lock(&st->lock);
	*ret = st->counts;
	pthread_mutex_unlock(&st->lock);
	ret->ready = atomic_load(&st->ready);
}

/* --- life --- */

struct store *store_new(struct svc *s, const struct store_opts *opts)
{
	char where[256];
	svc_ipc_endpoint(s, opts->name, where, sizeof where);
	struct peer *peer = chan_connect(svc_chan(s), where, opts->name, opts->tag);
	if (!peer)
		return NULL;
	struct store *st = mem_zalloc(sizeof *st);
	st->svc = s;
	st->peer = peer;
	st->batches_max = opts->batches_max;
	st->on_ready = opts->on_ready;
	st->done = opts->done;
	st->arg = opts->arg;
	snprintf(st->name, sizeof st->name, "%s", opts->name);
	pthread_mutex_init(&st->lock, NULL);
	list_init(&st->table);
	st->timer = event_new(svc_base(s), -1, 0, client_on_timer, st);
	svc_sock_path(s, opts->name, where, sizeof where);
	struct attach_hooks hooks = {.arg = st, .on = on_attached, .gone = on_gone};
	st->attach = attach_new(s, "storage", where, opts->hello, &opts->fds, &hooks);
	return st;
}

static void completion_drop(void *arg, struct store_completion *c)
{
	(void)arg;
	store_completion_free(&c);
}

void store_destroy(struct store **stp)
{
	struct store *st = *stp;
	if (!st)
		return;
	st->done = completion_drop;
	chan_disconnect(svc_chan(st->svc), st->peer); /* may call store_down */
	attach_destroy(&st->attach);
	*stp = NULL;
	event_free(st->timer);
	pthread_mutex_lock(&st->lock);
	list_each_safe(it, nx, &st->table)
		asked_free(list_entry(it, struct asked, link));
	list_init(&st->table);
	st->destroyed = 1;
	int posted = st->posted;
	pthread_mutex_unlock(&st->lock);
	if (posted)
		return; /* the loop frees it */
	pthread_mutex_destroy(&st->lock);
	free(st);
}
