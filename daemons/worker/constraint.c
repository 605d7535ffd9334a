/* constraint.c - see constraint.h. A request whose constraint does not compile fails, nothing else does. An automaton has a bound on its memory, idle ones a bound on their number. */
#include "constraint.h"
#include "work.h"
#include "format/gguf.h"
#include "grammar/grammar.h"
#include "text/markers.h"
#include "util/list.h"
#include "util/log.h"
#include "util/map.h"
#include "util/mem.h"

#include <sodium.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define AUTOMATON_BYTES (16u << 20)
#define IDLE_MAX 32u

struct compiled {
	struct list idle;            /* least recently used first, while no request has it */
	unsigned char key[32];
	struct automaton *automaton;
	uint32_t users;
};

struct constraints {
	struct grammar_vocab *vocab; /* NULL: none, why says so */
	struct grammar_vocab *marked;    /* for calls: with the special tokens that are markers; NULL: the model has none such */
	char why[200];
	uint32_t n_eos;
	size_t words;
	struct map *by_key;
	struct list idle;
	uint32_t n_idle;
};

struct constraint {
	struct constraints *all;
	struct compiled *compiled;
	struct grammar_walk walk;
	uint64_t *mask;
	Pds__Constraint message;
};

/* --- the vocabulary ----------------------------------------------------------------------------------------------------------------- */

static int is_among(const uint32_t *ids, size_t n, uint32_t id)
{
	for (size_t i = 0; i < n; i++)
		if (ids[i] == id)
			return 1;
	return 0;
}

/* Of special tokens only those named. */
static struct grammar_vocab *arrange(const struct tokenizer *t, uint32_t n, const uint32_t *special, size_t n_special)
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

static void arrange_all(struct constraints *all, const struct tokenizer *t, const struct engine_info *info)
{
	uint32_t ids[MARKERS_MAX];
	size_t n = markers_special(t, ids, MARKERS_MAX), kept = 0;
	for (size_t i = 0; i < n; i++)
		if (!is_among(info->eos, info->n_eos, ids[i]))
			ids[kept++] = ids[i];
	all->vocab = arrange(t, info->vocab, NULL, 0);
	all->marked = kept ? arrange(t, info->vocab, ids, kept) : NULL;
}

static int read_vocabulary(struct constraints *all, const char *path, const struct engine_info *info, struct err *err)
{
	struct stat st;
	struct gguf *file = NULL;
	struct tokenizer *t = NULL;
	int folder = stat(path, &st) == 0 && S_ISDIR(st.st_mode), r = folder ? tokenizer_from_folder(path, &t, err) : gguf_open(path, &file, err);
	if (r == 0 && !folder)
		r = tokenizer_from_gguf(file, &t, err);
	if (r == 0)
		arrange_all(all, t, info);
	tokenizer_destroy(&t);
	gguf_close(&file);
	return r;
}

struct constraints *constraints_new(const char *model_path, const struct engine_info *info)
{
	struct constraints *all = mem_zalloc(sizeof *all);
	struct err err = {0};
	all->n_eos = info->n_eos;
	all->words = grammar_mask_words(info->vocab);
	all->by_key = map_new(sizeof((struct compiled *)0)->key);
	list_init(&all->idle);
	if (read_vocabulary(all, model_path, info, &err) < 0)
		snprintf(all->why, sizeof all->why, "%.190s", err.text);
	return all;
}

/* --- the cache ------------------------------------------------------------------------------------------------------------------------- */

static void compiled_free(struct constraints *all, struct compiled *c)
{
	map_remove(all->by_key, c->key);
	automaton_destroy(&c->automaton);
	free(c);
}

static void drop_idle(struct constraints *all, uint32_t most)
{
	while (all->n_idle > most) {
		struct compiled *c = list_entry(all->idle.next, struct compiled, idle);
		list_remove(&c->idle);
		all->n_idle--;
		compiled_free(all, c);
	}
}

void constraints_destroy(struct constraints **allp)
{
	struct constraints *all = *allp;
	if (!all)
		return;
	void *c;
	const void *key;
	for (size_t it = 0; map_next(all->by_key, &it, &key, &c);)
		compiled_free(all, c);
	map_destroy(&all->by_key);
	grammar_vocab_destroy(&all->vocab);
	grammar_vocab_destroy(&all->marked);
	free(all);
	*allp = NULL;
}

static void key_of(const Pds__Constraint *m, unsigned char key[32])
{
	crypto_generichash_state h;
	unsigned char head[2] = {(unsigned char)m->kind, m->strict ? 1 : 0};
	crypto_generichash_init(&h, NULL, 0, 32);
	crypto_generichash_update(&h, head, sizeof head);
	crypto_generichash_update(&h, (const unsigned char *)m->text, strlen(m->text));
	crypto_generichash_final(&h, key, 32);
}

static int compile(struct constraints *all, const Pds__Constraint *m, const unsigned char key[32], struct compiled **ret, struct err *err)
{
	struct grammar *g;
	int r = grammar_compile((enum grammar_kind)m->kind, m->text, strlen(m->text), m->strict ? GRAMMAR_STRICT : 0, &g, err);
	if (r < 0)
		return r;
	struct compiled *c = mem_zalloc(sizeof *c);
	memcpy(c->key, key, sizeof c->key);
	c->automaton = automaton_new(g, m->kind == PDS__CONSTRAINT_KIND__CONSTRAINT_STRUCTURE && all->marked ? all->marked : all->vocab, AUTOMATON_BYTES);
	list_init(&c->idle);
	map_put(all->by_key, key, c);
	*ret = c;
	return 0;
}

static int find(struct constraints *all, const Pds__Constraint *m, struct compiled **ret, struct err *err)
{
	unsigned char key[32];
	key_of(m, key);
	struct compiled *c = map_get(all->by_key, key);
	if (!c) {
		int r = compile(all, m, key, &c, err);
		if (r < 0)
			return r;
	} else if (!c->users) {
		list_remove(&c->idle);
		all->n_idle--;
	}
	c->users++;
	*ret = c;
	return 0;
}

int constraint_attach(struct constraints *all, struct work *w, const Pds__Request *r, struct err *err)
{
	const Pds__Constraint *m = r->constraint;
	struct compiled *c;
	if (!m)
		return 0;
	if (!all || !all->vocab)
		return err_set(err, ERR_UNSUPPORTED, "constrained output needs the model's vocabulary, and this worker has none: %s", all ? all->why : "it has no model");
	if (!all->n_eos)
		return err_set(err, ERR_UNSUPPORTED, "constrained output needs an end-of-sequence id, and the model names none");
	int code = find(all, m, &c, err);
	if (code < 0)
		return err_prefix(err, "constraint");
	struct constraint *k = w->constraint = mem_zalloc(sizeof *k);
	k->all = all;
	k->compiled = c;
	k->mask = mem_array(all->words, sizeof *k->mask);
	pds__constraint__init(&k->message);
	k->message.kind = m->kind;
	k->message.strict = m->strict;
	k->message.text = mem_strdup(m->text);
	return 0;
}

void constraint_detach(struct work *w)
{
	struct constraint *k = w->constraint;
	if (!k)
		return;
	if (--k->compiled->users == 0) {
		list_push_back(&k->all->idle, &k->compiled->idle);
		k->all->n_idle++;
		drop_idle(k->all, IDLE_MAX);
	}
	free(k->mask);
	free(k->message.text);
	free(k);
	w->constraint = NULL;
}

void constraint_request(const struct work *w, Pds__Request *r)
{
	r->constraint = w->constraint ? &w->constraint->message : NULL;
}

/* --- draws --------------------------------------------------------------------------------------------------------------------------------- */

static void allow_end(const struct work *w, const struct engine_info *info, unsigned flags)
{
	uint64_t *mask = w->constraint->mask;
	int may = flags & AUTOMATON_MAY_END && (!w->ignore_eos || !(flags & AUTOMATON_MAY_GO_ON));
	for (uint32_t i = 0; i < info->n_eos; i++) {
		uint64_t bit = 1ull << info->eos[i] % 64;
		uint64_t *word = &mask[info->eos[i] / 64];
		*word = may ? *word | bit : *word & ~bit;
	}
}

int constraint_draw(struct work *w, const struct engine_info *info, struct sampler *s, const float *logits, struct sample_result *ret, struct err *err)
{
	struct constraint *k = w->constraint;
	struct sample_at at = work_at(w, k ? k->mask : NULL);
	unsigned flags;
	if (k) {
		int r = automaton_mask(k->compiled->automaton, &k->walk, w->tokens + w->prompt_tokens, work_index(w), k->mask, &flags, err);
		if (r < 0)
			return r;
		allow_end(w, info, flags);
	}
	sampler_draw(s, logits, &w->sampling, &at, ret);
	return 0;
}

uint32_t constraint_leading(struct work *w, uint32_t n)
{
	struct constraint *k = w->constraint;
	return k ? automaton_leading(k->compiled->automaton, &k->walk, w->tokens + w->prompt_tokens, work_index(w), w->tokens + w->n_tokens, n) : n;
}
