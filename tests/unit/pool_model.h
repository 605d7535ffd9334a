/* pool_model.h - a naive block pool: what the real one must answer to the same calls. Every
 * question is a walk over all blocks. */
#ifndef TESTS_POOL_MODEL_H
#define TESTS_POOL_MODEL_H

#include "pool_rig.h"

#define N 20u
#define HASHES 40u /* hash id i has parent (i - 1) / 3; id 0 hangs on the root */
#define SEQS 6u
#define PINS 24u
#define OPS 6000

static struct {
	enum kv_state state;
	uint32_t refs, readers, id;
	int indexed;
	uint64_t used, gen;
	enum copy_state copy;
	unsigned tier;
	uint32_t uses;
	uint64_t due; /* order among the DUE */
} m[N];
static uint64_t m_clock, m_due_first, m_due_last;
static uint32_t m_low, m_after;
static uint64_t m_evicted_stored;
static int m_armed, wakes, m_wakes;

static struct seq {
	uint32_t n, block[16], id[16];
	int live, leased;
} seqs[SEQS];

static struct {
	uint64_t pin;
	uint32_t block;
	int live;
} pins[PINS];

static inline int parent_of(uint32_t id)
{
	return id ? (int)(id - 1) / 3 : -1;
}

static inline int m_find(uint32_t id)
{
	for (uint32_t b = 0; b < N; b++)
		if (m[b].indexed && m[b].id == id)
			return (int)b;
	return -1;
}

/* The next to evict when those in `gone` are gone already, or -1. */
static inline int m_oldest(const int *gone)
{
	int best = -1;
	for (uint32_t b = 0; b < N; b++) {
		if (m[b].state != KV_CACHED || m[b].readers || gone[b])
			continue;
		int leaf = 1;
		for (uint32_t c = 0; c < N; c++)
			if (m[c].indexed && !gone[c] && parent_of(m[c].id) == (int)m[b].id)
				leaf = 0;
		if (leaf && (best < 0 || m[b].used < m[best].used))
			best = (int)b;
	}
	return best;
}

static inline uint32_t m_next(uint32_t n, uint32_t *out)
{
	int gone[N] = {0}, b;
	uint32_t count = 0;
	while (count < n && (b = m_oldest(gone)) >= 0) {
		gone[b] = 1;
		out[count++] = (uint32_t)b;
	}
	return count;
}

static inline void m_free(uint32_t b)
{
	m_evicted_stored += m[b].indexed && m[b].copy == COPY_STORED;
	m[b].state = KV_FREE;
	m[b].indexed = 0;
	m[b].copy = COPY_NONE;
	m[b].tier = 0;
}

static inline int m_want(uint32_t b, int first)
{
	if (m[b].copy != COPY_NONE && m[b].copy != COPY_FRESH)
		return 0;
	m[b].copy = COPY_DUE;
	m[b].due = first ? --m_due_first : ++m_due_last;
	return 1;
}

static inline void m_uses(uint32_t b)
{
	if (m_after != COPIES_NEVER && m[b].uses >= m_after)
		m_want(b, 0);
}

static inline void m_rest(uint32_t b)
{
	if (m[b].indexed) {
		m[b].state = KV_CACHED;
		m[b].used = ++m_clock;
		if (m[b].copy == COPY_NONE)
			m[b].copy = COPY_FRESH;
	} else if (!m[b].readers) {
		m_free(b);
	}
}

static inline uint32_t m_count(enum kv_state s)
{
	uint32_t n = 0;
	for (uint32_t b = 0; b < N; b++)
		n += m[b].state == s;
	return n;
}

/* Cached blocks by last use, from the one used longest ago. */
static inline uint32_t m_cached(uint32_t *out)
{
	uint32_t n = 0;
	for (uint64_t t = 0; t <= m_clock; t++)
		for (uint32_t b = 0; b < N; b++)
			if (m[b].state == KV_CACHED && m[b].used == t)
				out[n++] = b;
	return n;
}

/* The next to be written, or -1. */
static inline int m_next_copy(void)
{
	int best = -1;
	for (uint32_t b = 0; b < N; b++)
		if (m[b].copy == COPY_DUE && (best < 0 || m[b].due < m[best].due))
			best = (int)b;
	uint32_t by_age[N], n = m_cached(by_age), nfree = m_count(KV_FREE);
	for (uint32_t i = 0; best < 0 && i < n && i + nfree < m_low; i++)
		if (m[by_age[i]].copy == COPY_FRESH)
			best = (int)by_age[i];
	return best;
}

/* After each call of the pool. */
static inline void m_wake(void)
{
	if (!m_armed || m_next_copy() < 0)
		return;
	m_armed = 0;
	m_wakes++;
}

#endif
