/* test_pool_model.c - the block pool under random operations, compared with a naive model after
 * each. */
#include "pool_model.h"

static void op_take(struct seq *s, uint32_t n, enum kv_state state)
{
	uint32_t out[16], evict[N], can = m_next(N, evict), nfree = m_count(KV_FREE);
	int r = kv_pool_take(pool, n, state, &A, out);
	ck_assert_int_eq(r, n <= nfree + can ? 0 : ERR_FULL);
	if (r < 0)
		return;
	for (uint32_t i = 0; nfree + i < n; i++)
		m_free(evict[i]);
	for (uint32_t i = 0; i < n; i++) {
		ck_assert_int_eq(m[out[i]].state, KV_FREE);
		m[out[i]].state = state;
		m[out[i]].refs = 1;
		m[out[i]].gen++;
		s->block[s->n++] = out[i];
	}
}

/* A new sequence along the path to a random hash: match what is there, take the rest. */
static void op_begin(struct seq *s)
{
	uint32_t path[16], n = 0, rev[16], out[16];
	for (int id = rand() % (int)HASHES; id >= 0; id = parent_of((uint32_t)id))
		rev[n++] = (uint32_t)id;
	struct kv_hash h[16];
	for (uint32_t i = 0; i < n; i++)
		h[i] = H(path[i] = rev[n - 1 - i]);
	uint32_t want = 0;
	while (want < n && m_find(path[want]) >= 0)
		want++;
	ck_assert_uint_eq(kv_pool_probe(pool, h, n), want);
	ck_assert_uint_eq(kv_pool_match(pool, h, n, &B, out), want);
	memset(s, 0, sizeof *s);
	s->live = 1;
	memcpy(s->id, path, sizeof path);
	for (uint32_t i = 0; i < want; i++) {
		ck_assert_int_eq(m_find(path[i]), (int)out[i]);
		s->block[s->n++] = out[i];
		if (m[out[i]].state == KV_CACHED) {
			m[out[i]].state = KV_HELD;
			if (m[out[i]].copy == COPY_FRESH)
				m[out[i]].copy = COPY_NONE;
		}
		m[out[i]].uses++;
		m_uses(out[i]);
		m[out[i]].refs++;
	}
	m_wake();
	s->leased = rand() % 2;
	op_take(s, n - want, s->leased ? KV_LEASED : KV_HELD);
}

static void op_publish(struct seq *s)
{
	if (!s->n)
		return;
	uint32_t i = (uint32_t)rand() % s->n, b = s->block[i];
	int was = m_find(s->id[i]), parent = parent_of(s->id[i]);
	struct kv_hash h = H(s->id[i]), up = H((uint32_t)parent);
	int r = kv_pool_publish(pool, b, &h, parent >= 0 ? &up : NULL);
	ck_assert_int_eq(r, was < 0 || was == (int)b);
	if (was < 0) {
		m[b].indexed = 1;
		m[b].id = s->id[i];
		m[b].uses = 0;
		m_uses(b);
	}
}

static void op_release(struct seq *s)
{
	kv_pool_release(pool, s->block, s->n);
	for (uint32_t i = s->n; i-- > 0;)
		if (--m[s->block[i]].refs == 0)
			m_rest(s->block[i]);
	s->live = 0;
}

static void op_arrived(struct seq *s)
{
	kv_pool_lease_to_held(pool, s->block, s->n);
	for (uint32_t i = 0; i < s->n; i++)
		m[s->block[i]].state = KV_HELD;
}

static void m_pin(uint32_t at, uint32_t block, uint64_t pin)
{
	pins[at].block = block;
	pins[at].pin = pin;
	pins[at].live = 1;
	m[block].readers++;
}

static void op_pin(uint32_t at)
{
	uint32_t b = (uint32_t)rand() % N;
	uint64_t gen;
	if (pins[at].live || m[b].state == KV_FREE)
		return;
	uint64_t pin = kv_pool_read_begin(pool, b, &gen);
	ck_assert_uint_eq(gen, m[b].gen);
	for (uint32_t i = 0; i < PINS; i++)
		ck_assert_uint_ne(pins[i].pin, pin);
	m_pin(at, b, pin);
}

static void op_unpin(uint32_t at) /* also of pins that have ended */
{
	if (!pins[at].pin)
		return;
	if (rand() % 2)
		kv_pool_read_end(pool, pins[at].pin);
	else
		kv_pool_void(pool, pins[at].pin);
	uint32_t b = pins[at].block;
	if (pins[at].live && --m[b].readers == 0 && m[b].state != KV_CACHED && !m[b].refs)
		m_rest(b);
	pins[at].live = 0;
}

static void op_collect(void)
{
	struct kv_due out[N];
	uint32_t n = (uint32_t)rand() % 5, room = 0, at = 0;
	for (uint32_t i = 0; i < PINS; i++)
		room += !pins[i].live;
	n = n < room ? n : room;
	uint32_t count = kv_pool_collect(pool, n, out);
	for (uint32_t i = 0; i < count; i++) {
		int want = m_next_copy();
		ck_assert_int_eq((int)out[i].block, want);
		struct kv_hash is = H(m[want].id);
		ck_assert_mem_eq(&out[i].hash, &is, sizeof is);
		ck_assert_uint_eq(out[i].generation, m[want].gen);
		m[want].copy = COPY_WRITING;
		while (pins[at].live)
			at++;
		m_pin(at, out[i].block, out[i].pin);
	}
	if (count < n)
		ck_assert_int_eq(m_next_copy(), -1);
	m_armed = m_next_copy() < 0;
}

static void op_set_stored(void)
{
	uint32_t b = (uint32_t)rand() % N;
	for (int i = 0; i < 4 && m[b].copy != COPY_WRITING; i++)
		b = (uint32_t)rand() % N;
	uint64_t gen = m[b].gen - (uint64_t)(rand() % 4 == 0);
	unsigned tier = (unsigned)rand() % 4;
	kv_pool_set_stored(pool, b, gen, tier);
	if (!m[b].indexed || gen != m[b].gen || (!tier && m[b].copy != COPY_WRITING))
		return;
	m[b].copy = tier ? COPY_STORED : COPY_NONE;
	m[b].tier = tier;
}

static void op_note(void)
{
	uint64_t hash[6];
	uint32_t n = (uint32_t)rand() % 6;
	unsigned tier = (unsigned)rand() % 6;
	int is_stored = rand() % 2;
	for (uint32_t i = 0; i < n; i++) {
		hash[i] = (uint64_t)rand() % HASHES;
		int b = m_find((uint32_t)hash[i]);
		if (b < 0 || !tier || tier > 3)
			continue;
		if (is_stored && m[b].copy != COPY_WRITING && tier > m[b].tier) {
			m[b].copy = COPY_STORED;
			m[b].tier = tier;
		} else if (!is_stored && m[b].copy == COPY_STORED && m[b].tier == tier) {
			m[b].copy = COPY_NONE;
			m[b].tier = 0;
		}
	}
	kv_pool_note_stored(pool, tier, hash, n, is_stored);
}

static void op_want(const struct seq *s)
{
	uint32_t want = 0;
	for (uint32_t i = 0; i < s->n; i++)
		want += m[s->block[i]].indexed && m_want(s->block[i], 0);
	ck_assert_uint_eq(kv_pool_want_stored(pool, s->block, s->n), want);
}

static void op_forget(void)
{
	unsigned tier = 1 + (unsigned)rand() % 3;
	kv_pool_forget_stored(pool, tier);
	uint32_t order[2 * N], n = m_cached(order);
	for (uint32_t b = 0; b < N; b++)
		order[n++] = b;
	for (uint32_t i = 0; i < n; i++) {
		uint32_t b = order[i];
		if (m[b].copy == COPY_STORED && m[b].tier == tier) {
			m[b].copy = COPY_NONE;
			m[b].tier = 0;
			m_want(b, 0);
		} else if (m[b].copy == COPY_NONE && m[b].state == KV_CACHED) {
			m[b].copy = COPY_FRESH;
		}
	}
}

static void op_unstored_for(void)
{
	uint32_t n = (uint32_t)rand() % N, by_age[N], cached = m_cached(by_age),
			 nfree = m_count(KV_FREE), k = n > nfree ? n - nfree : 0, want = 0;
	if (k > cached)
		k = cached;
	for (uint32_t i = k; i-- > 0;) {
		want += m[by_age[i]].copy != COPY_STORED;
		m_want(by_age[i], 1);
	}
	ck_assert_uint_eq(kv_pool_unstored_for(pool, n), want);
}

static void on_wake(void *arg)
{
	ck_assert_ptr_eq(arg, pins);
	wakes++;
}

static void op_flush(void)
{
	uint32_t want = 0;
	for (uint32_t b = 0; b < N; b++)
		if (m[b].state == KV_CACHED && !m[b].readers) {
			m_free(b);
			want++;
		}
	ck_assert_uint_eq(kv_pool_flush(pool), want);
}

static void compare(void)
{
	uint32_t any[N], readers = 0;
	for (uint32_t b = 0; b < N; b++) {
		struct kv_block_info i;
		kv_pool_block(pool, b, &i);
		ck_assert_msg(
			i.state == m[b].state && i.refs == m[b].refs && i.readers == m[b].readers &&
				!i.indexed == !m[b].indexed && i.generation == m[b].gen && i.stored == m[b].tier,
			"block %u: %s refs %u readers %u indexed %d gen %llu; the model: %s %u %u %d %llu", b,
			kv_state_name(i.state), i.refs, i.readers, i.indexed, (unsigned long long)i.generation,
			kv_state_name(m[b].state), m[b].refs, m[b].readers, m[b].indexed,
			(unsigned long long)m[b].gen);
		readers += m[b].readers > 0;
	}
	struct kv_stats s;
	uint32_t copies[COPY_STATES] = {0}, stored[4] = {0};
	for (uint32_t b = 0; b < N; b++) {
		copies[m[b].copy]++;
		stored[m[b].tier] += m[b].tier && m[b].state == KV_CACHED;
	}
	kv_pool_stats(pool, &s);
	ck_assert_uint_eq(s.due, copies[COPY_DUE]);
	ck_assert_uint_eq(s.writing, copies[COPY_WRITING]);
	ck_assert_uint_eq(s.stored[0], stored[1] + stored[2] + stored[3]);
	ck_assert_mem_eq(s.stored + 1, stored + 1, 3 * sizeof *stored);
	ck_assert_uint_eq(s.evicted_stored, m_evicted_stored);
	m_wake();
	ck_assert_int_eq(wakes, m_wakes);
	ck_assert_uint_eq(s.readers, readers);
	ck_assert_uint_eq(s.evictable, m_next(N, any));
	for (int k = 0; k < KV_STATE_COUNT; k++)
		ck_assert_uint_eq(s.by_state[k], m_count((enum kv_state)k));
}

TEST_LOOP(random_operations_against_the_model, 0, 8)
{
	srand((unsigned)_i + 1);
	make(N);
	memset(m, 0, sizeof m);
	memset(seqs, 0, sizeof seqs);
	memset(pins, 0, sizeof pins);
	static const struct {
		uint32_t low, after;
	} policies[] = {{0, COPIES_NEVER},
	                {8, COPIES_NEVER},
	                {N, COPIES_NEVER},
	                {0, 0},
	                {0, 2},
	                {5, 1},
	                {1, COPIES_NEVER},
	                {14, 3}};
	m_low = policies[_i].low;
	m_after = policies[_i].after;
	m_due_first = m_due_last = 1u << 30;
	m_clock = m_evicted_stored = 0;
	wakes = m_wakes = 0;
	m_armed = 1;
	kv_pool_write_policy(pool, m_low, m_after, on_wake, pins);
	for (int op = 0; op < OPS; op++) {
		struct seq *s = &seqs[(uint32_t)rand() % SEQS];
		uint32_t at = (uint32_t)rand() % PINS;
		int what = rand() % 100;
		if (what < 20 && !s->live)
			op_begin(s);
		else if (what < 55 && s->live)
			op_publish(s);
		else if (what < 65 && s->live)
			op_release(s);
		else if (what < 70 && s->live)
			op_arrived(s);
		else if (what < 78)
			op_pin(at);
		else if (what < 90)
			op_unpin(at);
		else if (what < 93)
			op_collect();
		else if (what < 96)
			op_set_stored();
		else if (what < 97 && rand() % 2)
			op_want(s);
		else if (what < 97)
			op_note();
		else if (what < 98)
			op_unstored_for();
		else if (rand() % 4 == 0)
			op_flush();
		else if (rand() % 8 == 0)
			op_forget();
		kv_pool_verify(pool);
		compare();
	}
}
