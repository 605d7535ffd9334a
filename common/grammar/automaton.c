/* automaton.c - see automaton.h: builds states by closure and interning when they are first
 * reached.
 *
 * Invariants: a state's configs are sorted and distinct. Every config can still be finished within
 * the nesting limit (nfa_node.need), so the dead state is the only dead end for bytes. Whether a
 * state is dead depends only on the network and the bytes, never on what is cached. The one
 * exception is `full`: its results are not valid and are repeated after a renewal. */
#include "automaton.h"
#include "util/check.h"
#include "util/mem.h"

#include <stdlib.h>
#include <string.h>

#define SEEN_SIZE 16384u /* hash table of visited configs; a closure may fill half of it */
#define NONE UINT32_MAX
/* measured: per node that a closure visits, per config found, per config followed; per closure for
 * each class of bytes */
enum { VISIT_STEPS = 3, FOUND_STEPS = 16, FOLLOW_STEPS = 1 };

/* Initial capacities. */
enum {
	STATES_FIRST = 64,
	CONFIGS_FIRST = 1024,
	LEVELS_FIRST = 128,
	ROWS_FIRST = 32,
	TABLE_FIRST = 512
};

/* --- closure ------------------------------------------------------------- */

/* Working memory, one per thread. */
struct closure {
	struct {
		uint32_t node, stack, turn;
	} seen[SEEN_SIZE];
	uint32_t turn, n_seen;
	struct config pending[SEEN_SIZE / 2], found[CONFIGS_MAX];
	uint32_t n_pending, n_found;
	int over; /* 1: a limit was exceeded, the state counts as dead */
};

static __thread struct closure *scratch;
static pthread_key_t scratch_key;
static pthread_once_t scratch_once = PTHREAD_ONCE_INIT;

static void make_key(void)
{
	pthread_key_create(&scratch_key, free);
}

/* Allocates this thread's scratch if needed. Returns 0, or -1: out of memory. */
static int scratch_ready(struct automaton *a)
{
	if (scratch)
		return 0;
	pthread_once(&scratch_once, make_key);
	scratch = mem_try_array(1, sizeof *scratch);
	if (!scratch) {
		a->quota.over = QUOTA_NO_MEMORY;
		return -1;
	}
	pthread_setspecific(scratch_key, scratch);
	return 0;
}

static struct closure *closure_begin(void)
{
	if (++scratch->turn == 0) {
		memset(scratch->seen, 0, sizeof scratch->seen);
		scratch->turn = 1;
	}
	scratch->n_seen = scratch->n_pending = scratch->n_found = 0;
	scratch->over = 0;
	return scratch;
}

static uint32_t hash_pair(uint32_t a, uint32_t b)
{
	uint64_t h = ((uint64_t)a << 32 | b) * 0x9E3779B97F4A7C15u;
	return (uint32_t)(h >> 32);
}

static void visit(const struct automaton *a, struct closure *c, uint32_t node, uint32_t stack)
{
	if (c->over || a->level[stack].depth + a->f->node[node].need > GRAMMAR_DEPTH_MAX)
		return;
	uint32_t i = hash_pair(node, stack) % SEEN_SIZE;
	for (; c->seen[i].turn == c->turn; i = (i + 1) % SEEN_SIZE)
		if (c->seen[i].node == node && c->seen[i].stack == stack)
			return;
	if (++c->n_seen > SEEN_SIZE / 2) {
		c->over = 1;
		return;
	}
	c->seen[i].node = node;
	c->seen[i].stack = stack;
	c->seen[i].turn = c->turn;
	c->pending[c->n_pending++] = (struct config){node, stack};
}

void *automaton_grow(struct automaton *a, void *p, uint32_t *size, uint32_t n, size_t each)
{
	uint32_t want = 2 * *size > n ? 2 * *size : n;
	if (n <= *size)
		return p;
	void *more = quota_grow(&a->quota, p, *size, want, each);
	if (more)
		*size = want;
	else
		a->full = 1;
	return more;
}

static int level_room(struct automaton *a, uint32_t n)
{
	struct automaton_level *more = automaton_grow(a, a->level, &a->size_levels, n, sizeof *more);
	a->level = more ? more : a->level;
	return more ? 0 : -1;
}

static int state_room(struct automaton *a, uint32_t n)
{
	struct state *more = automaton_grow(a, a->state, &a->size_states, n, sizeof *more);
	a->state = more ? more : a->state;
	return more ? 0 : -1;
}

static int config_room(struct automaton *a, uint32_t n)
{
	struct config *more = automaton_grow(a, a->config, &a->size_configs, n, sizeof *more);
	a->config = more ? more : a->config;
	return more ? 0 : -1;
}

static int row_room(struct automaton *a, uint32_t n)
{
	uint32_t *more = automaton_grow(a, a->row, &a->size_rows, n, a->row_len * sizeof *more);
	a->row = more ? more : a->row;
	return more ? 0 : -1;
}

/* Makes room for n entries. Returns 0; 1 if all entries must be inserted again; -1 with `full` set:
 * out of memory. */
static int table_grow(struct automaton *a, struct automaton_table *t, uint32_t n)
{
	uint32_t size = t->size ? t->size * 2 : TABLE_FIRST;
	if (n * 2 < t->size)
		return 0;
	uint32_t *slot = quota_array(&a->quota, size, sizeof *slot);
	if (!slot) {
		a->full = 1;
		return -1;
	}
	quota_free(&a->quota, t->slot, t->size * sizeof *t->slot);
	t->slot = slot;
	t->size = size;
	return 1;
}

static void level_place(struct automaton *a, uint32_t l)
{
	uint32_t i = hash_pair(a->level[l].ret, a->level[l].up) & (a->levels.size - 1);
	while (a->levels.slot[i])
		i = (i + 1) & (a->levels.size - 1);
	a->levels.slot[i] = l + 1;
}

/* The stack `up` with one more return node pushed. 0 with `full` set: no room. */
static uint32_t level_of(struct automaton *a, uint32_t ret, uint32_t up)
{
	for (uint32_t i = hash_pair(ret, up) & (a->levels.size - 1); a->levels.slot[i];
	     i = (i + 1) & (a->levels.size - 1)) {
		uint32_t l = a->levels.slot[i] - 1;
		if (a->level[l].ret == ret && a->level[l].up == up)
			return l;
	}
	if (a->n_levels == a->max_levels) {
		a->full = 1;
		return 0;
	}
	int again = level_room(a, a->n_levels + 1) < 0 ? -1
	                                               : table_grow(a, &a->levels, a->n_levels + 1);
	if (again < 0)
		return 0;
	a->level[a->n_levels] = (struct automaton_level){ret, up, a->level[up].depth + 1, NONE};
	a->n_levels++;
	for (uint32_t l = again ? 1 : a->n_levels - 1; l < a->n_levels; l++)
		level_place(a, l);
	return a->n_levels - 1;
}

static void config_found(struct closure *c, uint32_t node, uint32_t stack)
{
	if (c->n_found == CONFIGS_MAX)
		c->over = 1;
	else
		c->found[c->n_found++] = (struct config){node, stack};
}

/* Follows all transitions that consume no byte. What it finds is sorted and interned. */
static void closure_run(struct automaton *a, struct closure *c)
{
	while (c->n_pending && !c->over && !a->full) {
		struct config at = c->pending[--c->n_pending];
		const struct nfa_node *n = &a->f->node[at.node];
		switch ((enum nfa_kind)n->kind) {
		case NFA_SET: config_found(c, at.node, at.stack); break;
		case NFA_SPLIT:
			visit(a, c, n->a, at.stack);
			visit(a, c, n->b, at.stack);
			break;
		case NFA_CALL:
			if (n->b == 0)
				visit(a, c, a->f->rule[n->a], at.stack);
			else if (a->level[at.stack].depth < GRAMMAR_DEPTH_MAX)
				visit(a, c, a->f->rule[n->a], level_of(a, n->b, at.stack));
			break;
		case NFA_RET:
			if (at.stack)
				visit(a, c, a->level[at.stack].ret, a->level[at.stack].up);
			else
				config_found(c, 0, 0);
			break;
		}
	}
	automaton_charge(a, VISIT_STEPS * c->n_seen + FOUND_STEPS * c->n_found);
}

/* --- states -------------------------------------------------------------- */

static int config_cmp(const void *x, const void *y)
{
	const struct config *a = x, *b = y;
	return a->node != b->node ? (a->node > b->node) - (a->node < b->node)
	                          : (a->stack > b->stack) - (a->stack < b->stack);
}

static void config_sort(struct config *c, uint32_t n)
{
	if (n > 16) {
		qsort(c, n, sizeof *c, config_cmp);
		return;
	}
	for (uint32_t i = 1; i < n; i++)
		for (uint32_t k = i; k && config_cmp(&c[k - 1], &c[k]) > 0; k--) {
			struct config t = c[k];
			c[k] = c[k - 1];
			c[k - 1] = t;
		}
}

static uint32_t config_hash(const struct config *c, uint32_t n)
{
	uint32_t h = n;
	for (uint32_t i = 0; i < n; i++)
		h = hash_pair(h ^ c[i].node, c[i].stack + h);
	return h;
}

static void state_place(struct automaton *a, uint32_t s)
{
	uint32_t i = config_hash(a->config + a->state[s].first, a->state[s].n) & (a->states.size - 1);
	while (a->states.slot[i])
		i = (i + 1) & (a->states.size - 1);
	a->states.slot[i] = s + 1;
}

/* Returns 0, or -1 with `full` set: out of memory. */
static int state_add(struct automaton *a, const struct config *c, uint32_t n)
{
	if (state_room(a, a->n_states + 1) < 0 || config_room(a, a->n_configs + n) < 0)
		return -1;
	int again = table_grow(a, &a->states, a->n_states + 1);
	if (again < 0)
		return -1;
	if (n)
		memcpy(a->config + a->n_configs, c, n * sizeof *c);
	a->state[a->n_states] = (struct state){a->n_configs, n, NONE, STATE_UNKNOWN, NONE};
	a->n_configs += n;
	a->n_states++;
	for (uint32_t s = again ? 0 : a->n_states - 1; s < a->n_states; s++)
		state_place(a, s);
	return 0;
}

/* The state of these configs, which are sorted here. STATE_DEAD with `full` set: no room. */
static uint32_t state_of(struct automaton *a, struct config *c, uint32_t n)
{
	config_sort(c, n);
	for (uint32_t i = config_hash(c, n) & (a->states.size - 1); a->states.slot[i];
	     i = (i + 1) & (a->states.size - 1)) {
		const struct state *s = &a->state[a->states.slot[i] - 1];
		if (s->n == n && memcmp(a->config + s->first, c, n * sizeof *c) == 0)
			return a->states.slot[i] - 1;
	}
	if (a->n_states == a->max_states || a->n_configs + n > a->max_configs) {
		a->full = 1;
		return STATE_DEAD;
	}
	return state_add(a, c, n) < 0 ? STATE_DEAD : a->n_states - 1;
}

static uint32_t closure_state(struct automaton *a, struct closure *c)
{
	closure_run(a, c);
	return c->over || a->full ? STATE_DEAD : state_of(a, c->found, c->n_found);
}

static uint32_t *row_of(struct automaton *a, uint32_t s)
{
	uint32_t k = a->row_len;
	if (a->state[s].row == NONE) {
		if (a->n_rows == a->max_rows) {
			a->full = 1;
			return NULL;
		}
		if (row_room(a, a->n_rows + 1) < 0)
			return NULL;
		a->state[s].row = a->n_rows++;
		memset(a->row + (size_t)a->state[s].row * k, 0xff, k * sizeof *a->row);
	}
	return a->row + (size_t)a->state[s].row * k;
}

/* Starts the closure of the configs reached by `byte`. *ret_alike: all bytes that the same configs
 * accept. */
static struct closure *closure_follow(struct automaton *a, uint32_t s, unsigned byte,
                                      struct byte_set *ret_alike)
{
	struct closure *c = closure_begin();
	const struct nfa *f = a->f;
	automaton_charge(a, FOLLOW_STEPS * a->state[s].n + f->n_classes / 8);
	memset(ret_alike, 0xff, sizeof *ret_alike);
	for (uint32_t i = 0; i < a->state[s].n; i++) {
		struct config at = a->config[a->state[s].first + i];
		const struct nfa_node *n = &f->node[at.node];
		if (n->kind != NFA_SET)
			continue;
		int takes = byte_has(&f->set[n->a], byte);
		for (unsigned w = 0; w < 4; w++)
			ret_alike->w[w] &= takes ? f->set[n->a].w[w] : ~f->set[n->a].w[w];
		if (takes)
			visit(a, c, n->b, at.stack);
	}
	return c;
}

int automaton_is_over(struct automaton *a, uint32_t s, unsigned char byte)
{
	struct byte_set alike;
	struct closure *c = closure_follow(a, s, byte, &alike);
	closure_run(a, c);
	return c->over;
}

uint32_t automaton_next(struct automaton *a, uint32_t s, unsigned char byte)
{
	unsigned class = a->f->class_of[byte];
	uint32_t *row = s == STATE_DEAD ? NULL : row_of(a, s);
	if (!row)
		return STATE_DEAD;
	if (row[class] != STATE_UNKNOWN)
		return row[class];
	struct byte_set alike;
	uint32_t t = closure_state(a, closure_follow(a, s, byte, &alike));
	if (a->full)
		return t;
	row = row_of(a, s);
	for (unsigned k = 0; k < a->f->n_classes; k++)
		if (byte_has(&alike, a->f->byte_of[k]))
			row[k] = t;
	return t;
}

uint32_t automaton_next_in(struct automaton *a, uint32_t s, unsigned cell)
{
	uint32_t *row = s == STATE_DEAD ? NULL : row_of(a, s), t;
	if (!row)
		return STATE_DEAD;
	if (row[a->f->n_classes + cell] != STATE_UNKNOWN)
		return row[a->f->n_classes + cell];
	automaton_charge(a, a->cell[cell].n);
	t = automaton_next(a, s, a->cell[cell].byte[0]);
	for (unsigned i = 1; i < a->cell[cell].n && t != STATE_MIXED; i++)
		if (automaton_next(a, s, a->cell[cell].byte[i]) != t)
			t = STATE_MIXED;
	if (a->full)
		return STATE_DEAD;
	return row_of(a, s)[a->f->n_classes + cell] = t;
}

/* --- aliases ------------------------------------------------------------- */

static uint32_t level_alias(struct automaton *a, uint32_t l)
{
	if (l == 0 || a->full)
		return 0;
	automaton_charge(a, 1);
	if (a->level[l].alias == NONE) {
		uint32_t up = level_alias(a, a->level[l].up),
				 as = level_of(a, a->f->node[a->level[l].ret].alias, up);
		a->level[l].alias = as;
	}
	return a->level[l].alias;
}

uint32_t automaton_alias(struct automaton *a, uint32_t s)
{
	struct config own[CONFIGS_MAX];
	uint32_t n = a->state[s].n, kept = 0;
	if (!a->g->counted || a->state[s].alias != STATE_UNKNOWN)
		return a->g->counted ? a->state[s].alias : s;
	for (uint32_t i = 0; i < n; i++) {
		struct config c = a->config[a->state[s].first + i];
		own[i] = (struct config){c.node, level_alias(a, c.stack)};
	}
	automaton_charge(a, FOUND_STEPS * n);
	config_sort(own, n);
	for (uint32_t i = 0; i < n; i++)
		if (!kept || config_cmp(&own[kept - 1], &own[i]) != 0)
			own[kept++] = own[i];
	uint32_t as = a->full ? STATE_DEAD : state_of(a, own, kept);
	if (!a->full)
		a->state[s].alias = as;
	return as;
}

/* --- lives --------------------------------------------------------------- */

/* Free of charge: what follows a renewal pays for it. */
static void life_begin(struct automaton *a)
{
	uint64_t steps = a->steps;
	a->steps = UINT64_MAX;
	a->life++;
	a->full = 0;
	a->n_states = a->n_configs = a->n_rows = 0;
	a->n_levels = 1;
	a->n_slots = a->hand = 0;
	a->level[0] = (struct automaton_level){0, 0, 0, 0};
	memset(a->states.slot, 0, a->states.size * sizeof *a->states.slot);
	memset(a->levels.slot, 0, a->levels.size * sizeof *a->levels.slot);
	state_add(a, NULL, 0); /* the dead state; there is room for it */
	struct closure *c = closure_begin();
	visit(a, c, a->f->start, 0);
	a->start = closure_state(a, c);
	a->steps = steps;
	if (a->full)
		a->start = STATE_UNKNOWN; /* no memory at present: computed again at the next use */
}

int automaton_begin(struct automaton *a)
{
	if (scratch_ready(a) < 0)
		return -1;
	if (a->start == STATE_UNKNOWN)
		life_begin(a);
	return a->start == STATE_UNKNOWN ? -1 : 0;
}

/* Copies level l of the old table to the new one. The recursion is bounded by GRAMMAR_DEPTH_MAX. */
static uint32_t level_copy(struct automaton *a, const struct automaton_level *old, uint32_t l)
{
	return l == 0 ? 0 : level_of(a, old[l].ret, level_copy(a, old, old[l].up));
}

uint32_t automaton_renew(struct automaton *a, uint32_t s)
{
	struct config own[CONFIGS_MAX];
	uint32_t n = a->state[s].n;
	/* the tables are cleared, levels are copied, the start's closure is made again */
	automaton_charge(a, (a->states.size + a->levels.size) / 32 + a->n_levels / 4 + 16 * n +
	                        VISIT_STEPS * SEEN_SIZE / 2);
	if (a->spent)
		return STATE_DEAD;
	struct automaton_level *old = mem_try_array(a->n_levels, sizeof *old);
	if (!old) {
		life_begin(a);
		a->quota.over = QUOTA_NO_MEMORY;
		a->lost = 1;
		return a->start == STATE_UNKNOWN ? STATE_DEAD : a->start;
	}
	memcpy(own, a->config + a->state[s].first, n * sizeof *own);
	memcpy(old, a->level, a->n_levels * sizeof *old);
	life_begin(a);
	for (uint32_t i = 0; i < n; i++)
		own[i].stack = level_copy(a, old, own[i].stack);
	free(old);
	return state_of(a, own, n);
}

static uint32_t count_within(size_t bytes, size_t each, uint32_t least)
{
	size_t n = bytes / each;
	return n < least ? least : n > 1u << 20 ? 1u << 20 : (uint32_t)n;
}

static void set_limits(struct automaton *a)
{
	/* Half of the memory is for masks. The other four tables get an eighth each: a level is at most
	 * as large as two configs, a state with its table slot at most as large as a row. */
	size_t part = a->bytes_max / 8;
	a->max_states = count_within(part, sizeof *a->state + 8, 4096);
	a->max_rows = count_within(part, a->row_len * sizeof *a->row, 2048);
	a->max_configs = count_within(part, sizeof *a->config, 16 * CONFIGS_MAX);
	/* large enough for any single state after a renewal */
	a->max_levels = count_within(part, sizeof *a->level + 8,
	                             CONFIGS_MAX * GRAMMAR_DEPTH_MAX + 4096);
	a->words = a->v ? grammar_mask_words(a->v->n) : 0;
	a->max_slots = a->v ? count_within(4 * part, a->words * 8 + sizeof *a->slot, 16) : 0;
}

/* Picks one byte of each class per cell, and of the plain bytes. */
static void find_representatives(struct automaton *a)
{
	unsigned char seen[CELLS + 1][256] = {{0}};
	for (unsigned b = 0; b < 256; b++) {
		unsigned char class = a->f->class_of[b];
		for (unsigned c = 0; c < CELLS; c++)
			if (b >= vocab_cell[c].lo && b <= vocab_cell[c].hi && !seen[c][class]++)
				a->cell[c].byte[a->cell[c].n++] = (unsigned char)b;
		if (vocab_is_plain((unsigned char)b) && !seen[CELLS][class]++)
			a->plain[a->n_plain++] = (unsigned char)b;
	}
}

static int first_arrays(struct automaton *a)
{
	if (state_room(a, STATES_FIRST) < 0 || config_room(a, CONFIGS_FIRST) < 0 ||
	    level_room(a, LEVELS_FIRST) < 0 || row_room(a, ROWS_FIRST) < 0)
		return -1;
	return table_grow(a, &a->states, 0) < 0 || table_grow(a, &a->levels, 0) < 0 ? -1 : 0;
}

static void automaton_fini(struct automaton *a)
{
	pthread_mutex_destroy(&a->lock);
	free(a->state);
	free(a->config);
	free(a->level);
	free(a->row);
	free(a->states.slot);
	free(a->levels.slot);
	free(a->mask);
	free(a->slot);
	free(a->run);
	quota_fini(&a->quota);
	free(a);
}

struct automaton *automaton_new(struct grammar *g, const struct grammar_vocab *v, size_t bytes_max,
                                struct quota_pool *pool)
{
	struct automaton *a = mem_zalloc(sizeof *a);
	a->g = g;
	a->f = &g->f;
	a->v = v;
	a->bytes_max = bytes_max;
	a->row_len = a->f->n_classes + CELLS;
	a->steps = UINT64_MAX;
	pthread_mutex_init(&a->lock, NULL);
	quota_init(&a->quota, pool, SIZE_MAX);
	set_limits(a);
	if (scratch_ready(a) < 0 || quota_take(&a->quota, sizeof *a + grammar_bytes(g)) < 0 ||
	    first_arrays(a) < 0) {
		automaton_destroy(&a);
		return NULL;
	}
	find_representatives(a);
	life_begin(a);
	if (a->start == STATE_UNKNOWN)
		automaton_destroy(&a);
	return a;
}

void automaton_destroy(struct automaton **ap)
{
	if (!*ap)
		return;
	grammar_destroy(&(*ap)->g);
	automaton_fini(*ap);
	*ap = NULL;
}

size_t automaton_bytes(struct automaton *a)
{
	pthread_mutex_lock(&a->lock);
	size_t n = a->quota.used;
	pthread_mutex_unlock(&a->lock);
	return n;
}

/* Shrinks p, an array of *size elements, to n elements. */
static void *array_shrink(struct automaton *a, void *p, uint32_t *size, uint32_t n, size_t each)
{
	void *less = *size > n ? mem_try_grow(p, n, each) : NULL;
	if (!less)
		return p;
	quota_give(&a->quota, (*size - n) * each);
	*size = n;
	return less;
}

static void drop_masks(struct automaton *a)
{
	quota_free(&a->quota, a->mask, a->size_slots * a->words * sizeof *a->mask);
	quota_free(&a->quota, a->slot, a->size_slots * sizeof *a->slot);
	quota_free(&a->quota, a->run, a->size_runs * sizeof *a->run);
	a->mask = NULL;
	a->slot = NULL;
	a->run = NULL;
	a->size_slots = a->size_runs = a->n_runs = 0;
}

int automaton_trim(struct automaton *a)
{
	if (pthread_mutex_trylock(&a->lock) != 0)
		return 0;
	a->state = array_shrink(a, a->state, &a->size_states, STATES_FIRST, sizeof *a->state);
	a->config = array_shrink(a, a->config, &a->size_configs, CONFIGS_FIRST, sizeof *a->config);
	a->level = array_shrink(a, a->level, &a->size_levels, LEVELS_FIRST, sizeof *a->level);
	a->row = array_shrink(a, a->row, &a->size_rows, ROWS_FIRST, a->row_len * sizeof *a->row);
	a->states.slot = array_shrink(a, a->states.slot, &a->states.size, TABLE_FIRST,
	                              sizeof *a->states.slot);
	a->levels.slot = array_shrink(a, a->levels.slot, &a->levels.size, TABLE_FIRST,
	                              sizeof *a->levels.slot);
	drop_masks(a);
	a->life++; /* invalidates all walks; the tables are filled again by the next one */
	a->start = STATE_UNKNOWN;
	pthread_mutex_unlock(&a->lock);
	return 1;
}

int automaton_probe(struct grammar *g, struct err *err)
{
	struct automaton *a = automaton_new(g, NULL, 0, NULL);
	if (!a)
		return err_set(err, ERR_NOMEM, "out of memory while checking the constraint");
	uint32_t start = a->start;
	automaton_fini(a);
	return start == STATE_DEAD
	           ? err_set(
					 err, ERR_FULL,
					 "the constraint is too ambiguous: its start has more than %u interpretations",
					 CONFIGS_MAX)
	           : 0;
}
