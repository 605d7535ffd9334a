/* vocab.c - arranges a vocabulary for walking: three trees of tokens by their bytes, one by their
 * shapes. Tokens need not be whole UTF-8. Tokens longer than TOKEN_MAX bytes are left out. */
#include "grammar_int.h"
#include "util/check.h"
#include "util/mem.h"

#include <stdlib.h>
#include <string.h>

#define TOKEN_MAX 255u

/* The first matching cell counts. Bytes of 80 .. bf that belong to no other cell have the mark 80,
 * so 81 .. bf can be used as marks. */
const struct vocab_cell vocab_cell[CELLS] = {
	{'a', 'z', 0, 'a'},       {'A', 'Z', 0, 'A'},       {'0', '9', 0, '0'},
	{0xc2, 0xdf, 0, 0xc2},    {0xe1, 0xec, 0, 0xe1},    {0xee, 0xef, 0, 0xee},
	{0xf1, 0xf3, 0, 0xf1},    {0xa0, 0xbf, 0xe0, 0xa0}, {0x80, 0x9f, 0xed, 0x81},
	{0x90, 0xbf, 0xf0, 0x90}, {0x80, 0x8f, 0xf4, 0x82}, {0x80, 0xbf, 0, 0x80},
};

struct trie_entry {
	const char *s;
	uint32_t len, id;
};

static int entry_cmp(const void *a, const void *b)
{
	const struct trie_entry *x = a, *y = b;
	int c = memcmp(x->s, y->s, x->len < y->len ? x->len : y->len);
	return c                  ? c
	       : x->len != y->len ? (x->len > y->len) - (x->len < y->len)
	                          : (x->id > y->id) - (x->id < y->id);
}

static int kind_of(const char *s, uint32_t len)
{
	if (len > NFA_LOOKAHEAD)
		return TRIE_LONG;
	for (uint32_t i = 0; i < len; i++)
		if (!vocab_is_plain((unsigned char)s[i]))
			return TRIE_OTHER;
	return TRIE_PLAIN;
}

static void shape_of(const char *s, uint32_t len, char *ret)
{
	for (uint32_t i = 0; i < len; i++) {
		unsigned char b = (unsigned char)s[i], before = i ? (unsigned char)s[i - 1] : 0, mark = b;
		for (unsigned c = 0; c < CELLS; c++)
			if (b >= vocab_cell[c].lo && b <= vocab_cell[c].hi &&
			    (!vocab_cell[c].before || vocab_cell[c].before == before)) {
				mark = vocab_cell[c].mark;
				break;
			}
		ret[i] = (char)mark;
	}
}

/* A node's subtree ends at the next node that is not deeper. */
static void find_skips(struct trie *t)
{
	uint32_t open[TOKEN_MAX + 1], depth = 0;
	for (uint32_t i = 0; i <= t->n; i++) {
		uint32_t d = i < t->n ? t->node[i].depth : 1;
		while (depth >= d)
			t->node[open[depth--]].skip = i;
		if (i < t->n)
			open[depth = d] = i;
	}
}

static void trie_build(struct trie *t, struct trie_entry *e, uint32_t n)
{
	uint32_t size = 0;
	qsort(e, n, sizeof *e, entry_cmp);
	for (uint32_t i = 0; i < n; i++)
		size += e[i].len;
	t->node = mem_array((size_t)size + 1, sizeof *t->node);
	t->id = mem_array((size_t)n + 1, sizeof *t->id);
	for (uint32_t i = 0; i < n; i++) {
		uint32_t common = 0;
		t->id[i] = e[i].id;
		if (i)
			while (common < e[i].len && common < e[i - 1].len &&
			       e[i].s[common] == e[i - 1].s[common])
				common++;
		/* only the last of these nodes gets the token: its `tokens` range is not empty */
		for (uint32_t d = common; d < e[i].len; d++)
			t->node[t->n++] = (struct trie_node){.tokens = i,
			                                     .byte = (uint8_t)e[i].s[d],
			                                     .depth = (uint8_t)(d + 1)};
	}
	t->node[t->n].tokens = n;
	t->node = mem_grow(t->node, (size_t)t->n + 1, sizeof *t->node);
	find_skips(t);
}

static void shapes_build(struct grammar_vocab *v, struct trie_entry *e)
{
	char *shapes = mem_array((size_t)v->at[v->n] + 1, 1);
	uint32_t count = 0;
	v->shaped = mem_array(grammar_mask_words(v->n), sizeof *v->shaped);
	for (uint32_t i = 0; i < v->n; i++) {
		uint32_t len = v->at[i + 1] - v->at[i];
		if (!len || len > NFA_LOOKAHEAD)
			continue;
		shape_of(v->bytes + v->at[i], len, shapes + v->at[i]);
		e[count++] = (struct trie_entry){shapes + v->at[i], len, i};
		v->shaped[i / 64] |= 1ull << i % 64;
	}
	trie_build(&v->shape, e, count);
	for (unsigned c = 0; c < CELLS; c++)
		v->cell_of[vocab_cell[c].mark] = (uint8_t)(c + 1);
	free(shapes);
}

struct grammar_vocab *grammar_vocab_new(const char *const *bytes, const uint32_t *len, uint32_t n)
{
	struct grammar_vocab *v = mem_zalloc(sizeof *v);
	struct trie_entry *e = mem_array((size_t)n + 1, sizeof *e);
	size_t total = 0;
	v->n = n;
	v->at = mem_array((size_t)n + 1, sizeof *v->at);
	for (uint32_t i = 0; i < n; i++) {
		v->at[i] = (uint32_t)total;
		total += bytes[i] && len[i] <= TOKEN_MAX ? len[i] : 0;
	}
	CHECK(total < UINT32_MAX);
	v->at[n] = (uint32_t)total;
	v->bytes = mem_array(total + 1, 1);
	for (uint32_t i = 0; i < n; i++)
		if (v->at[i + 1] > v->at[i])
			memcpy(v->bytes + v->at[i], bytes[i], len[i]);
	for (int k = 0; k < TRIES; k++) {
		uint32_t count = 0;
		for (uint32_t i = 0; i < n; i++) {
			uint32_t own = v->at[i + 1] - v->at[i];
			if (!own || kind_of(v->bytes + v->at[i], own) != k)
				continue;
			e[count++] = (struct trie_entry){v->bytes + v->at[i], own, i};
		}
		trie_build(&v->trie[k], e, count);
	}
	shapes_build(v, e);
	free(e);
	return v;
}

void grammar_vocab_destroy(struct grammar_vocab **vp)
{
	struct grammar_vocab *v = *vp;
	if (!v)
		return;
	for (int k = 0; k < TRIES; k++) {
		free(v->trie[k].node);
		free(v->trie[k].id);
	}
	free(v->shape.node);
	free(v->shape.id);
	free(v->shaped);
	free(v->bytes);
	free(v->at);
	free(v);
	*vp = NULL;
}

uint32_t grammar_vocab_size(const struct grammar_vocab *v)
{
	return v->n;
}
