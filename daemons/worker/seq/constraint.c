/* constraint.c - see constraint.h. A constraint that does not compile fails its own request only.
 *
 * Memory of all compiled constraints, in use and idle, comes from one pool (constraint_memory_mb).
 * Networks, which a request needs for as long as it lives, may take half of it; the rest is for
 * automaton states and masks, which can be computed again. Above HIGH of the pool the least
 * recently used constraints give memory back: idle ones are freed, those in use are trimmed. */
#include "constraint.h"
#include "copy.h"
#include "tasks.h"
#include "format/gguf.h"
#include "grammar/grammar.h"
#include "text/markers.h"
#include "util/list.h"
#include "util/log.h"
#include "util/map.h"
#include "util/mem.h"

#include <pthread.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* states and masks of one constraint; a sixteenth of the pool if that is less */
#define AUTOMATON_BYTES (16u << 20)
#define IDLE_MAX 32u               /* cached constraints that no request uses */
#define IDLE_BYTES_MAX (32u << 20) /* their memory */
/* After an expensive mask, as many cheap ones of the same constraint are left to the mask thread as
 * well: each try in a step costs all steps up to CONSTRAINT_STEPS. */
#define EXPENSIVE_MASKS 16u
#define LOOK_STEPS 256u /* enough to find a mask that is cached */
#define MASKS_NICE 10
#define HIGH(size) ((size) - (size) / 4)
#define LOW(size) ((size) / 2 + (size) / 8)

struct compiled {
	struct list use; /* constraints.by_use */
	unsigned char key[32];
	struct automaton *automaton;
	size_t network; /* bytes that cannot be trimmed */
	uint32_t users;
	int trimmed;                /* and not used since then */
	_Atomic uint32_t expensive; /* masks that the schedule thread does not try to compute */
};

struct constraints {
	struct grammar_vocab *vocab; /* NULL: none; `why` has the reason */
	/* for structures: includes the special tokens of markers.h; NULL: the model has none */
	struct grammar_vocab *marked;
	char why[200];
	const struct engine_info *info;
	size_t words;
	struct tasks *masks; /* the mask thread */
	void (*on_mask)(void *arg);
	void *on_mask_arg;
	struct quota_pool pool;
	pthread_mutex_t lock; /* guards the fields below */
	struct map *by_key;
	struct list by_use; /* all, the least recently used first */
	uint32_t n_idle;
	size_t networks; /* bytes */
};

struct constraint {
	struct constraints *all;
	struct compiled *compiled; /* NULL: not yet */
	uint64_t group;
	struct grammar_walk walk;
	_Atomic int busy; /* the mask thread has the request, by `task` */
	struct constraint_task task;
	/* 1 + the index of the token that mask 0 is for; task.code says whether it was computed. 0: no
	 * mask is kept */
	uint32_t masked;
	/* (masks, all->words): mask 0 is for the next draw, mask i for the one after i drafted
	 * tokens */
	uint64_t *mask;
	uint32_t masks;
	struct quota quota; /* pays for the text and the masks */
	Pds__Constraint message;
};

/* --- the vocabulary ------------------------------------------------------ */

static int is_among(const uint32_t *ids, size_t n, uint32_t id)
{
	for (size_t i = 0; i < n; i++)
		if (ids[i] == id)
			return 1;
	return 0;
}

/* Special tokens are left out unless they are in `special`. */
static struct grammar_vocab *arrange(const struct tokenizer *t, uint32_t n, const uint32_t *special,
                                     size_t n_special)
{
	const char **bytes = mem_array(n, sizeof *bytes);
	uint32_t *len = mem_array(n, sizeof *len);
	for (uint32_t id = 0; id < n && id < tokenizer_size(t); id++) {
		size_t own = 0;
		if (tokenizer_is_special(t, id) && !is_among(special, n_special, id))
			continue;
		bytes[id] = tokenizer_bytes(t, id, &own);
		len[id] = (uint32_t)own;
	}
	struct grammar_vocab *v = grammar_vocab_new(bytes, len, n);
	free(bytes);
	free(len);
	return v;
}

static void arrange_all(struct constraints *all, const struct tokenizer *t,
                        const struct engine_info *info)
{
	uint32_t ids[MARKERS_MAX];
	size_t n = markers_special(t, ids, MARKERS_MAX), kept = 0;
	for (size_t i = 0; i < n; i++)
		if (!is_among(info->eos, info->n_eos, ids[i]))
			ids[kept++] = ids[i];
	all->vocab = arrange(t, info->vocab, NULL, 0);
	all->marked = kept ? arrange(t, info->vocab, ids, kept) : NULL;
}

static int read_vocabulary(struct constraints *all, const char *path,
                           const struct engine_info *info, struct err *err)
{
	struct stat st;
	struct gguf *file = NULL;
	struct tokenizer *t = NULL;
	int folder = stat(path, &st) == 0 && S_ISDIR(st.st_mode),
		r = folder ? tokenizer_from_folder(path, &t, err) : gguf_open(path, &file, err);
	if (r == 0 && !folder)
		r = tokenizer_from_gguf(file, &t, err);
	if (r == 0)
		arrange_all(all, t, info);
	tokenizer_destroy(&t);
	gguf_close(&file);
	return r;
}

struct constraints *constraints_new(const char *model_path, const struct engine_info *info,
                                    size_t memory_bytes)
{
	struct constraints *all = mem_zalloc(sizeof *all);
	struct err err = {0};
	all->info = info;
	all->words = grammar_mask_words(info->vocab);
	all->pool.size = memory_bytes;
	all->by_key = map_new(sizeof((struct compiled *)0)->key);
	pthread_mutex_init(&all->lock, NULL);
	list_init(&all->by_use);
	if (tasks_new(&all->masks, "masks", MASKS_NICE, &err) < 0 ||
	    read_vocabulary(all, model_path, info, &err) < 0)
		snprintf(all->why, sizeof all->why, "%.190s", err.text);
	return all;
}

/* --- memory -------------------------------------------------------------- */

/* With the lock held, like all functions of this section. */
static void compiled_free(struct constraints *all, struct compiled *c)
{
	all->n_idle--;
	all->networks -= c->network;
	list_remove(&c->use);
	map_remove(all->by_key, c->key);
	automaton_destroy(&c->automaton);
	free(c);
}

static void drop_idle(struct constraints *all)
{
	size_t bytes = 0;
	list_each(n, &all->by_use) {
		struct compiled *c = list_entry(n, struct compiled, use);
		bytes += c->users ? 0 : automaton_bytes(c->automaton);
	}
	list_each_safe(n, next, &all->by_use) {
		struct compiled *c = list_entry(n, struct compiled, use);
		if (all->n_idle <= IDLE_MAX && bytes <= IDLE_BYTES_MAX)
			return;
		if (c->users)
			continue;
		bytes -= automaton_bytes(c->automaton);
		compiled_free(all, c);
	}
}

/* Frees or trims, least recently used first, until at most `bytes` of the pool are lent, if
 * possible. */
static void reclaim(struct constraints *all, const struct compiled *keep, size_t bytes)
{
	list_each_safe(n, next, &all->by_use) {
		struct compiled *c = list_entry(n, struct compiled, use);
		if (all->pool.lent <= bytes)
			return;
		if (c == keep)
			continue;
		if (!c->users) {
			compiled_free(all, c);
		} else if (!c->trimmed) {
			c->trimmed = automaton_trim(c->automaton);
		}
	}
}

/* Makes room for a network of this size. 0, or -1 if there is none. */
static int network_room(struct constraints *all, size_t bytes)
{
	size_t most = all->pool.size / 2;
	list_each_safe(n, next, &all->by_use) {
		struct compiled *c = list_entry(n, struct compiled, use);
		if (bytes <= most && all->networks <= most - bytes)
			break;
		if (!c->users)
			compiled_free(all, c);
	}
	if (bytes > most || all->networks > most - bytes)
		return -1;
	if (all->pool.lent + bytes > HIGH(all->pool.size))
		reclaim(all, NULL, LOW(all->pool.size) > bytes ? LOW(all->pool.size) - bytes : 0);
	return 0;
}

void constraints_destroy(struct constraints **allp)
{
	struct constraints *all = *allp;
	if (!all)
		return;
	tasks_destroy(&all->masks);
	list_each_safe(n, next, &all->by_use)
		compiled_free(all, list_entry(n, struct compiled, use));
	map_destroy(&all->by_key);
	pthread_mutex_destroy(&all->lock);
	grammar_vocab_destroy(&all->vocab);
	grammar_vocab_destroy(&all->marked);
	free(all);
	*allp = NULL;
}

void constraints_on_mask(struct constraints *all, void (*done)(void *arg), void *arg)
{
	all->on_mask = done;
	all->on_mask_arg = arg;
}

void constraints_wait(struct constraints *all)
{
	if (all->masks)
		tasks_wait(all->masks);
}

void constraints_json(struct constraints *all, struct buf *out)
{
	pthread_mutex_lock(&all->lock);
	buf_printf(out, ",\"constraints\":%zu,\"constraints_idle\":%u,\"constraint_bytes\":%zu",
	           map_count(all->by_key), all->n_idle, (size_t)all->pool.lent);
	pthread_mutex_unlock(&all->lock);
}

/* --- the cache ----------------------------------------------------------- */

static void constraint_key(const Pds__Constraint *m, unsigned char key[32])
{
	crypto_generichash_state h;
	unsigned char head[2] = {(unsigned char)m->kind, m->strict ? 1 : 0};
	crypto_generichash_init(&h, NULL, 0, 32);
	crypto_generichash_update(&h, head, sizeof head);
	crypto_generichash_update(&h, (const unsigned char *)m->text, strlen(m->text));
	crypto_generichash_final(&h, key, 32);
}

/* Lets k use what is compiled under this key. Returns 0 if nothing is. With the lock held. */
static int share(struct constraint *k, const unsigned char key[32])
{
	struct constraints *all = k->all;
	struct compiled *c = map_get(all->by_key, key);
	if (!c)
		return 0;
	all->n_idle -= c->users++ == 0;
	list_remove(&c->use);
	list_push_back(&all->by_use, &c->use);
	k->compiled = c;
	return 1;
}

static int constraint_no_memory(struct constraints *all, struct err *err)
{
	return err_set(err, ERR_NOMEM,
	               "compiled constraints take %zu of %zu MiB here (constraint_memory_mb)",
	               (size_t)all->pool.lent >> 20, (size_t)all->pool.size >> 20);
}

/* Takes ownership of g. *ret_c is not yet in any list or map. */
static int make_compiled(struct constraints *all, const Pds__Constraint *m, struct grammar *g,
                         struct compiled **ret_c, struct err *err)
{
	const struct grammar_vocab *v = m->kind == PDS__CONSTRAINT_KIND__CONSTRAINT_STRUCTURE &&
	                                        all->marked
	                                    ? all->marked
	                                    : all->vocab;
	size_t bytes = grammar_bytes(g), most = all->pool.size / 16;
	pthread_mutex_lock(&all->lock);
	int r = network_room(all, bytes);
	all->networks += r < 0 ? 0 : bytes;
	pthread_mutex_unlock(&all->lock);
	if (r < 0) {
		grammar_destroy(&g);
		return constraint_no_memory(all, err);
	}
	struct automaton *a = automaton_new(g, v, AUTOMATON_BYTES < most ? AUTOMATON_BYTES : most,
	                                    &all->pool);
	if (!a) {
		pthread_mutex_lock(&all->lock);
		all->networks -= bytes;
		pthread_mutex_unlock(&all->lock);
		return constraint_no_memory(all, err);
	}
	*ret_c = mem_zalloc(sizeof **ret_c);
	(*ret_c)->automaton = a;
	(*ret_c)->network = bytes;
	(*ret_c)->trimmed = 1;
	list_init(&(*ret_c)->use);
	return 0;
}

/* If another request has published the same constraint meanwhile, that one is used. */
static void constraint_publish(struct constraint *k, struct compiled *c,
                               const unsigned char key[32])
{
	struct constraints *all = k->all;
	pthread_mutex_lock(&all->lock);
	all->n_idle++;
	if (share(k, key)) {
		compiled_free(all, c);
	} else {
		memcpy(c->key, key, sizeof c->key);
		map_put(all->by_key, key, c);
		list_push_back(&all->by_use, &c->use);
		share(k, key);
	}
	pthread_mutex_unlock(&all->lock);
}

int constraint_take(struct constraints *all, struct request_copy *req, const Pds__Request *r,
                    struct err *err)
{
	const Pds__Constraint *m = r->constraint;
	unsigned char key[32];
	if (!m)
		return 0;
	if (!all || !all->vocab)
		return err_set(
			err, ERR_UNSUPPORTED,
			"constrained output needs the model's vocabulary, and this worker has none: %s",
			all ? all->why : "it has no model");
	if (!all->info->n_eos)
		return err_set(err, ERR_UNSUPPORTED,
		               "constrained output needs an end-of-sequence id, and the model names none");
	size_t len = strlen(m->text);
	if (len > GRAMMAR_TEXT_MAX)
		return err_set(err, ERR_INVALID, "the constraint has %zu bytes, the limit is %u", len,
		               GRAMMAR_TEXT_MAX);
	struct constraint *k = mem_zalloc(sizeof *k);
	quota_init(&k->quota, &all->pool, SIZE_MAX);
	pds__constraint__init(&k->message);
	k->all = all;
	k->message.kind = m->kind;
	k->message.strict = m->strict;
	k->message.text = quota_alloc(&k->quota, len + 1);
	k->mask = quota_array(&k->quota, all->words, sizeof *k->mask);
	k->masks = 1;
	req->constraint = k;
	if (!k->message.text || !k->mask) {
		constraint_detach(req);
		return constraint_no_memory(all, err);
	}
	memcpy(k->message.text, m->text, len + 1);
	constraint_key(&k->message, key);
	memcpy(&k->group, key, sizeof k->group);
	pthread_mutex_lock(&all->lock);
	share(k, key);
	pthread_mutex_unlock(&all->lock);
	return 0;
}

int constraint_is_ready(const struct request_copy *req)
{
	return !req->constraint || req->constraint->compiled;
}

int constraint_compile(struct request_copy *req, struct err *err)
{
	struct constraint *k = req->constraint;
	const Pds__Constraint *m = &k->message;
	unsigned char key[32];
	struct grammar *g;
	struct compiled *c = NULL;
	constraint_key(m, key);
	pthread_mutex_lock(&k->all->lock);
	int there = share(k, key), room = k->all->n_idle || k->all->networks < k->all->pool.size / 2;
	pthread_mutex_unlock(&k->all->lock);
	if (there)
		return 0;
	if (!room)
		return constraint_no_memory(k->all, err); /* do not compile in vain */
	int r = grammar_compile((enum grammar_kind)m->kind, m->text, strlen(m->text),
	                        m->strict ? GRAMMAR_STRICT : 0, &g, err);
	if (r == 0)
		r = make_compiled(k->all, m, g, &c, err);
	if (r < 0)
		return err_prefix(err, "constraint");
	constraint_publish(k, c, key);
	return 0;
}

void constraint_detach(struct request_copy *req)
{
	struct constraint *k = req->constraint;
	if (!k)
		return;
	if (!constraint_stop(req))
		tasks_wait_for(k->all->masks, &k->task);
	pthread_mutex_lock(&k->all->lock);
	if (k->compiled && --k->compiled->users == 0) {
		k->all->n_idle++;
		drop_idle(k->all);
	}
	pthread_mutex_unlock(&k->all->lock);
	free(k->mask);
	free(k->message.text);
	quota_fini(&k->quota);
	free(k);
	req->constraint = NULL;
}

void constraint_request(const struct request_copy *req, Pds__Request *r)
{
	r->constraint = req->constraint ? &req->constraint->message : NULL;
}

/* --- draws --------------------------------------------------------------- */

static void allow_end(const struct request_copy *req, const struct engine_info *info,
                      unsigned flags, uint64_t *mask)
{
	int may = flags & AUTOMATON_MAY_END && (!req->ignore_eos || !(flags & AUTOMATON_MAY_GO_ON));
	for (uint32_t i = 0; i < info->n_eos; i++) {
		uint64_t bit = 1ull << info->eos[i] % 64;
		uint64_t *word = &mask[info->eos[i] / 64];
		*word = may ? *word | bit : *word & ~bit;
	}
}

/* Marks c as most recently used. Reclaims memory from others if more than lent_max is lent. */
static void touch(struct constraints *all, struct compiled *c, size_t lent_max)
{
	pthread_mutex_lock(&all->lock);
	list_remove(&c->use);
	list_push_back(&all->by_use, &c->use);
	c->trimmed = 0;
	if (all->pool.lent > lent_max)
		reclaim(all, c, LOW(all->pool.size));
	pthread_mutex_unlock(&all->lock);
}

/* Computes the mask of the token after the answer and `ahead` drafted tokens, in *steps or, if that
 * is NULL, as many as a mask may cost. With drafted tokens the walk is not kept, since they may be
 * rejected. */
static int find_mask(struct request_copy *req, const struct engine_info *info, uint32_t ahead,
                     uint64_t *steps, struct err *err)
{
	struct constraint *k = req->constraint;
	struct compiled *c = k->compiled;
	struct grammar_walk tentative = k->walk, *walk = ahead ? &tentative : &k->walk;
	const uint32_t *answer = req->tokens + req->prompt_tokens;
	uint64_t *mask = k->mask + ahead * k->all->words;
	unsigned flags;
	int r = automaton_mask(c->automaton, walk, answer, request_copy_index(req) + ahead, steps, mask,
	                       &flags, err);
	if (r == ERR_NOMEM && !ahead) { /* a draft is not worth reclaiming for */
		touch(k->all, c, 0);
		r = automaton_mask(c->automaton, walk, answer, request_copy_index(req) + ahead, steps, mask,
		                   &flags, err);
	}
	if (r == 0)
		allow_end(req, info, flags, mask);
	return r;
}

/* Resizes the mask array to `masks`. Returns how many there is room for. */
static uint32_t room_for(struct constraint *k, uint32_t masks)
{
	size_t words = k->all->words, had = k->masks * words, want = masks * words;
	if (masks < k->masks) {
		uint64_t *rest = mem_try_grow(k->mask, want, sizeof *rest);
		if (rest) {
			k->mask = rest;
			k->masks = masks;
			quota_give(&k->quota, (had - want) * sizeof *rest);
		}
	}
	uint64_t *grown = masks > k->masks ? quota_grow(&k->quota, k->mask, had, want, sizeof *grown)
	                                   : NULL;
	if (grown) {
		k->mask = grown;
		k->masks = masks;
	}
	return masks < k->masks ? masks : k->masks;
}

/* --- masks beside the step ----------------------------------------------- */

/* On the mask thread. */
static int mask_beside(struct request_copy *req, struct err *err)
{
	struct constraint *k = req->constraint;
	struct compiled *c = k->compiled;
	uint64_t steps = CONSTRAINT_STEPS;
	int r = find_mask(req, k->all->info, 0, &steps, err);
	if (r == ERR_TIMEOUT) {
		if (!steps) /* else another thread has the automaton */
			c->expensive = EXPENSIVE_MASKS;
		return find_mask(req, k->all->info, 0, NULL, err);
	}
	if (c->expensive)
		c->expensive--;
	return r;
}

static void constraint_mask_done(struct constraint_task *t)
{
	struct constraint *k = t->req->constraint;
	struct constraints *all = k->all;
	k->masked = request_copy_index(t->req) + 1;
	k->busy = 0; /* from here on it may be freed */
	if (all->on_mask)
		all->on_mask(all->on_mask_arg);
}

int constraint_is_busy(const struct request_copy *req)
{
	return req->constraint && req->constraint->busy;
}

int constraint_stop(struct request_copy *req)
{
	struct constraint *k = req->constraint;
	if (k && k->busy && tasks_take_back(k->all->masks, &k->task))
		k->busy = 0;
	return !constraint_is_busy(req);
}

static void ask_mask_thread(struct request_copy *req)
{
	struct constraint *k = req->constraint;
	k->busy = 1;
	k->task = (struct constraint_task){
		.req = req, .group = k->group, .work = mask_beside, .done = constraint_mask_done};
	tasks_put(k->all->masks, &k->task, 0);
}

/* Of the next draw. */
static int next_mask(struct request_copy *req, const struct engine_info *info, uint64_t *steps,
                     struct err *err)
{
	struct constraint *k = req->constraint;
	uint64_t had = *steps;
	if (k->busy)
		return ERR_TIMEOUT;
	if (k->masked == request_copy_index(req) + 1)
		return k->task.code < 0 ? err_set(err, k->task.code, "%s", k->task.err.text) : 0;
	int r = find_mask(req, info, 0, steps, err);
	if (r == ERR_TIMEOUT) {
		if (had > CONSTRAINT_STEPS / 2 && !*steps)
			k->compiled->expensive = EXPENSIVE_MASKS;
		ask_mask_thread(req);
	}
	return r;
}

int constraint_prepare(struct request_copy *req, const struct engine_info *info, uint32_t ahead,
                       uint64_t *steps, struct err *err)
{
	struct constraint *k = req->constraint;
	struct err ignored;
	uint64_t look = LOOK_STEPS;
	uint32_t i = 1, n;
	if (!k)
		return (int)ahead;
	steps = k->compiled->expensive ? &look : steps;
	touch(k->all, k->compiled, HIGH(k->all->pool.size));
	int r = next_mask(req, info, steps, err);
	if (r < 0)
		return r;
	n = room_for(k, 1 + ahead);
	while (i < n && find_mask(req, info, i, steps, &ignored) == 0)
		i++;
	return (int)i - 1;
}

const uint64_t *constraint_allowed(const struct request_copy *req, uint32_t ahead)
{
	const struct constraint *k = req->constraint;
	return k ? k->mask + ahead * k->all->words : NULL;
}

Pds__Fault constraint_fault(int code)
{
	return code == ERR_NOMEM     ? PDS__FAULT__FAULT_OVERLOADED
	       : code == ERR_CORRUPT ? PDS__FAULT__FAULT_INTERNAL
	                             : PDS__FAULT__FAULT_INVALID;
}

uint32_t constraint_leading(struct request_copy *req, uint32_t n, uint64_t *steps)
{
	struct constraint *k = req->constraint;
	uint64_t look = LOOK_STEPS;
	steps = k && k->compiled->expensive ? &look : steps;
	return k ? automaton_leading(k->compiled->automaton, &k->walk, req->tokens + req->prompt_tokens,
	                             request_copy_index(req), req->tokens + req->n_tokens, n, steps)
	         : n;
}
