/* serve.c - requests of workers: put, get, look-up, fence; and the replies.
 *
 * Invariants: a batch is answered once, when nothing of it is in progress; its fence is
 * acknowledged after that answer (at once if there is no such batch). Batch numbers of one
 * attachment only increase: a number that was used or fenced never starts again, however late its
 * message arrives. A worker that is down, detached or has a new epoch has only batches that are
 * ending.
 *
 * Every field of a message is checked here before use; an error in one item is that item's result,
 * an error in the message is the result of all its items. No message affects anything but its own
 * batch. */
#include "storage.h"

#include "util/check.h"
#include "util/clock.h"
#include "util/log.h"
#include "util/mem.h"

#include <stdlib.h>
#include <string.h>

static struct storage *storage_of(struct svc *s)
{
	return svc_data(s);
}

/* --- replies --- */

static void result_set(Pds__StoreResult *r, ProtobufCBinaryData hash, uint32_t block,
                       uint64_t generation, Pds__StoreCode code, enum tier_id tier,
                       const char *text)
{
	pds__store_result__init(r);
	r->hash = hash;
	r->block = block;
	r->generation = generation;
	r->code = code;
	if (tier)
		r->tier = (char *)tier_name(tier);
	if (text)
		r->text = (char *)text;
}

static void send_results(struct svc *s, struct peer *p, uint64_t number, Pds__StoreResult *result,
                         size_t n)
{
	Pds__StoreDone done = PDS__STORE_DONE__INIT;
	Pds__StoreResult **list = mem_array(n + 1, sizeof *list);
	for (size_t i = 0; i < n; i++)
		list[i] = &result[i];
	done.batch = number;
	done.n_results = n;
	done.results = list;
	svc_send(s, p, MSG_STORE_DONE, NULL, &done);
	free(list);
}

/* Replies with the same result for all items of a message that was not started. */
static void refuse(struct svc *s, struct peer *p, uint64_t number, Pds__StoreItem **items, size_t n,
                   Pds__StoreCode code, const char *why)
{
	if (n > BATCH_ITEMS_MAX)
		n = BATCH_ITEMS_MAX;
	Pds__StoreResult *result = mem_array(n + 1, sizeof *result);
	for (size_t i = 0; i < n; i++)
		result_set(&result[i], items[i]->hash, items[i]->block, items[i]->generation, code,
		           TIER_NONE, why);
	storage_of(s)->stats.refused++;
	log_debug("batch_refused", "worker=%s batch=%llu items=%zu why=%s", log_quote(peer_name(p)),
	          (unsigned long long)number, n, log_quote(why));
	send_results(s, p, number, result, n);
	free(result);
}

static void send_fenced(struct svc *s, struct peer *p, uint64_t number)
{
	Pds__StoreFenced m = PDS__STORE_FENCED__INIT;
	m.batch = number;
	svc_send(s, p, MSG_STORE_FENCED, NULL, &m);
}

/* The peer that this client's replies go to, or NULL if it is gone or has a new epoch. */
static struct peer *client_peer(const struct storage_client *c)
{
	struct peer *p = chan_find(svc_chan(c->st->svc), c->name, 0);
	return p && peer_epoch(p) == c->epoch ? p : NULL;
}

/* --- finished batches --- */

#define KEY_TAIL(key) ((key)->b + sizeof(key)->b - KEY_SALT_BYTES)

/* Converts a worker's hash to a tier key, whose last bytes identify the layout. */
static void key_of_hash(const struct storage_client *c, const unsigned char *hash,
                        struct tier_key *ret)
{
	memcpy(ret->b, hash, sizeof ret->b);
	memcpy(KEY_TAIL(ret), c->salt, KEY_SALT_BYTES);
}

static void count_item(struct storage_stats *f, const struct batch *b, const struct copy_item *it)
{
	switch (it->code) {
	case PDS__STORE_CODE__STORE_OK: ++*(b->kind == COPY_PUT ? &f->put_blocks : &f->gets_hit); break;
	case PDS__STORE_CODE__STORE_MISS: f->gets_missed++; break;
	case PDS__STORE_CODE__STORE_VOID: f->put_void++; break;
	case PDS__STORE_CODE__STORE_CANCELLED: f->cancelled++; break;
	case PDS__STORE_CODE__STORE_FULL: f->full++; break;
	default: f->errors++;
	}
}

static void count_batch(struct storage *st, const struct batch *b)
{
	struct storage_stats *f = &st->stats;
	int put = b->kind == COPY_PUT;
	for (uint32_t i = 0; i < b->n; i++)
		count_item(f, b, &b->item[i]);
	*(put ? &f->put_bytes : &f->get_bytes) += b->bytes;
	stat_observe_us(put ? &f->put_seconds : &f->get_seconds, clock_us() - b->begun_us);
}

static void answer(struct storage_client *c, struct batch *b)
{
	struct svc *s = c->st->svc;
	struct peer *p = client_peer(c);
	if (!p)
		return; /* the worker learns from the lost link that no reply comes */
	Pds__StoreResult *result = mem_array(b->n, sizeof *result);
	for (uint32_t i = 0; i < b->n; i++) {
		struct copy_item *it = &b->item[i];
		ProtobufCBinaryData hash = {0};
		if (!it->refused) {
			memcpy(KEY_TAIL(&it->key), it->tail, sizeof it->tail);
			hash = (ProtobufCBinaryData){.len = sizeof it->key.b, .data = it->key.b};
		}
		result_set(&result[i], hash, it->block, it->generation, it->code, it->tier, it->text);
	}
	send_results(s, p, b->number, result, b->n);
	if (b->fence_wanted)
		send_fenced(s, p, b->number);
	free(result);
}

/* On the loop's thread: nothing of the batch is in progress. */
static void batch_over(struct svc *s, void *arg)
{
	struct batch *b = arg;
	struct storage_client *c = b->owner;
	struct storage *st = storage_of(s);
	count_batch(st, b);
	log_debug("batch_done", "worker=%s batch=%llu kind=%s items=%u bytes=%llu", log_quote(c->name),
	          (unsigned long long)b->number, b->kind == COPY_PUT ? "put" : "get", b->n,
	          (unsigned long long)b->bytes);
	answer(c, b);
	list_remove(&b->link);
	c->n_batches--;
	c->n_items -= b->n;
	batch_free(b);
	client_free_if_done(c);
}

void serve_finished(void *storage, struct batch *b)
{
	struct storage *st = storage;
	svc_post(st->svc, batch_over, b);
}

/* --- puts and gets --- */

static struct batch *batch_find(struct storage_client *c, uint64_t number)
{
	list_each(it, &c->batches) {
		struct batch *b = list_entry(it, struct batch, link);
		if (b->number == number)
			return b;
	}
	return NULL;
}

static void item_refuse(struct copy_item *it, const char *why)
{
	it->refused = 1;
	it->code = PDS__STORE_CODE__STORE_ERROR;
	it->text = why;
}

static void item_read(struct storage_client *c, const Pds__StoreItem *m, struct copy_item *it)
{
	it->block = m->block;
	it->generation = m->generation;
	if (m->hash.len != sizeof it->key.b) {
		item_refuse(it, "the hash does not have 32 bytes");
		return;
	}
	key_of_hash(c, m->hash.data, &it->key);
	memcpy(it->tail, m->hash.data + sizeof it->key.b - sizeof it->tail, sizeof it->tail);
	if (m->block >= c->target.region.blocks)
		item_refuse(it, "the block is beyond the region handed over");
}

static void batch_begin(struct storage_client *c, enum copy_kind kind, uint64_t number,
                        Pds__StoreItem **items, size_t n)
{
	struct batch *b = batch_new(kind, &c->target, (uint32_t)n);
	b->owner = c;
	b->number = number;
	for (size_t i = 0; i < n; i++)
		item_read(c, items[i], &b->item[i]);
	c->last_batch = number;
	list_push_back(&c->batches, &b->link);
	c->n_batches++;
	c->n_items += b->n;
	copier_submit(c->st->copier, b);
}

static void serve_batch(struct svc *s, struct peer *p, enum copy_kind kind, uint64_t number,
                        Pds__StoreItem **items, size_t n)
{
	struct storage_client *c = client_find(storage_of(s), peer_name(p), peer_epoch(p));
	if (!c)
		refuse(s, p, number, items, n, PDS__STORE_CODE__STORE_ERROR,
		       "this worker process has not handed its memory over");
	else if (n == 0 || n > BATCH_ITEMS_MAX)
		refuse(s, p, number, items, n, PDS__STORE_CODE__STORE_ERROR, "a batch has 1 to 4096 items");
	else if (number <= c->last_batch && batch_find(c, number))
		/* its reply is still to come */
		log_debug("batch_repeated", "worker=%s batch=%llu", log_quote(c->name),
		          (unsigned long long)number);
	else if (number <= c->last_batch)
		refuse(s, p, number, items, n, PDS__STORE_CODE__STORE_CANCELLED,
		       "this batch number is already used or fenced");
	else if (svc_draining(s))
		refuse(s, p, number, items, n, PDS__STORE_CODE__STORE_FULL, "storage is shutting down");
	else if (c->n_batches >= CLIENT_BATCHES_MAX || c->n_items + n > CLIENT_ITEMS_MAX)
		refuse(s, p, number, items, n, PDS__STORE_CODE__STORE_FULL,
		       "1024 batches or 65536 blocks of this worker are in progress");
	else
		batch_begin(c, kind, number, items, n);
}

void serve_put(struct svc *s, struct peer *p, const struct msg_head *head,
               const ProtobufCMessage *body)
{
	(void)head;
	const Pds__StorePut *m = (const Pds__StorePut *)body;
	serve_batch(s, p, COPY_PUT, m->batch, m->items, m->n_items);
}

void serve_get(struct svc *s, struct peer *p, const struct msg_head *head,
               const ProtobufCMessage *body)
{
	(void)head;
	const Pds__StoreGet *m = (const Pds__StoreGet *)body;
	serve_batch(s, p, COPY_GET, m->batch, m->items, m->n_items);
}

void serve_fence(struct svc *s, struct peer *p, const struct msg_head *head,
                 const ProtobufCMessage *body)
{
	(void)head;
	const Pds__StoreFence *m = (const Pds__StoreFence *)body;
	struct storage *st = storage_of(s);
	struct batch *under_way = NULL;
	list_each(it, &st->clients) { /* including detached clients whose last batches are ending */
		struct storage_client *c = list_entry(it, struct storage_client, link);
		if (c->epoch != peer_epoch(p) || strcmp(c->name, peer_name(p)) != 0)
			continue;
		if (m->batch > c->last_batch)
			c->last_batch = m->batch; /* final, even if it overtook its batch */
		struct batch *b = batch_find(c, m->batch);
		if (b)
			under_way = b;
	}
	if (!under_way) {
		send_fenced(s, p, m->batch);
		return;
	}
	under_way->fence_wanted = 1;
	copier_cancel(st->copier, under_way);
}

void serve_cancel(struct storage_client *c)
{
	list_each(it, &c->batches) /* batch_over removes them from the list later */
		copier_cancel(c->st->copier, list_entry(it, struct batch, link));
}

void serve_down(struct svc *s, struct peer *p, const char *why)
{
	(void)why;
	struct storage *st = storage_of(s);
	tell_down(st->tell, p);
	list_each(it, &st->clients) {
		struct storage_client *c = list_entry(it, struct storage_client, link);
		if (c->epoch == peer_epoch(p) && strcmp(c->name, peer_name(p)) == 0)
			serve_cancel(c);
	}
}

unsigned serve_batches(const struct storage *st)
{
	unsigned n = 0;
	list_each(it, &st->clients)
		n += list_entry(it, struct storage_client, link)->n_batches;
	return n;
}

/* --- lookups --- */

struct finding {
	struct tier_find find;
	struct list link;
	struct storage *st;
	char name[HANDOVER_NAME_MAX];
	uint64_t epoch, number;
	unsigned char *where; /* after the keys */
	struct tier_key key[];
};

static void found(struct svc *s, void *arg)
{
	struct finding *f = arg;
	struct peer *p = chan_find(svc_chan(s), f->name, 0);
	if (p && peer_epoch(p) == f->epoch) {
		Pds__StoreFound m = PDS__STORE_FOUND__INIT;
		uint32_t tiers[BATCH_ITEMS_MAX];
		m.batch = f->number;
		for (; m.leading < f->find.n && f->where[m.leading]; m.leading++)
			tiers[m.leading] = f->where[m.leading];
		m.n_tiers = m.leading;
		m.tiers = tiers;
		svc_send(s, p, MSG_STORE_FOUND, NULL, &m);
	}
	list_remove(&f->link);
	storage_of(s)->n_findings--;
	free(f);
}

static void find_done(struct tier_find *find)
{
	struct finding *f = (struct finding *)find;
	svc_post(f->st->svc, found, f);
}

/* Converts the hashes to keys, up to the first invalid one; returns their number. */
static uint32_t keys_read(const struct storage_client *c, const Pds__StoreLookup *m, size_t n,
                          struct tier_key *key)
{
	for (uint32_t i = 0; i < n; i++) {
		if (m->hashes[i].len != sizeof key[i].b)
			return i;
		key_of_hash(c, m->hashes[i].data, &key[i]);
	}
	return (uint32_t)n;
}

void serve_lookup(struct svc *s, struct peer *p, const struct msg_head *head,
                  const ProtobufCMessage *body)
{
	(void)head;
	const Pds__StoreLookup *m = (const Pds__StoreLookup *)body;
	struct storage *st = storage_of(s);
	struct storage_client *c = client_find(st, peer_name(p), peer_epoch(p));
	int look = c && st->n_findings < FINDINGS_MAX; /* without an attachment nothing is stored */
	size_t n = !look ? 0 : m->n_hashes < BATCH_ITEMS_MAX ? m->n_hashes : BATCH_ITEMS_MAX;
	struct finding *f = mem_zalloc(sizeof *f + n * (sizeof f->key[0] + 1));
	f->st = st;
	strncpy(f->name, peer_name(p), sizeof f->name - 1);
	f->epoch = peer_epoch(p);
	f->number = m->batch;
	f->find.key = f->key;
	f->find.where = f->where = (unsigned char *)&f->key[n];
	f->find.leading = 1;
	f->find.n = look ? keys_read(c, m, n, f->key) : 0;
	f->find.bytes = c ? c->target.layout.block_bytes : 0;
	f->find.prefetch = m->prefetch;
	f->find.done = find_done;
	list_push_back(&st->findings, &f->link);
	st->n_findings++;
	st->stats.lookups++;
	st->tier->ops->lookup(st->tier, &f->find);
}

/* --- the end --- */

void serve_forget(struct storage *st)
{
	list_each(it, &st->clients) {
		struct storage_client *c = list_entry(it, struct storage_client, link);
		list_each_safe(at, nx, &c->batches)
			batch_free(list_entry(at, struct batch, link));
		list_init(&c->batches);
		c->n_batches = c->n_items = 0;
	}
	list_each_safe(it, nx, &st->findings)
		free(list_entry(it, struct finding, link));
	list_init(&st->findings);
	st->n_findings = 0;
}
