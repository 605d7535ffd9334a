/* kv.c - chains of verifiable words in the KV pool.
 *
 * A token's K in a layer is a function of all earlier tokens, through the K of the previous token,
 * which is read from the pool. A block that is wrong, stale, torn or from another sequence would
 * therefore change the answer; it is detected first. A context that the device has not computed
 * itself (a sequence that arrived, was restored, or starts with matched blocks) is checked from its
 * start. A context that it has computed is recognised by a record at its last block: a hash of the
 * block table, the position and the chain there. For such a context every step checks the newest
 * positions, and one block in one layer, in turn. A broken chain is a device error that names
 * layer, block and position; the step fails and is counted. */
#include "kernels/sim/sim.h"

enum { NEWEST = 8 }; /* positions checked in every step */

/* One layer in one step. */
struct kv_walk {
	const struct kern_program *p;
	const struct kern_kv_layer *kv;
	uint64_t salt;         /* of the layer */
	const uint32_t *table; /* of the current sequence */
};

static uint64_t *piece(const struct kern_kv_layer *kv, uint32_t block)
{
	return (uint64_t *)(void *)(kv->base.v + (size_t)block * kv->block_stride_bytes);
}

/* Distance in words from K to V, which is at the end of the piece. Scales, if the type has any,
 * would be between and are not used. */
static size_t v_behind(const struct kern_kv_layer *kv)
{
	return kv->block_stride_bytes / sizeof(uint64_t) - kv->block_tokens;
}

static uint64_t chain(uint64_t before, uint64_t v, uint32_t position, uint64_t salt)
{
	return sim_mix(before, v ^ (salt + (uint64_t)position * 0xa24baed4963ee407u));
}

uint64_t sim_kv_chain(const struct kern_kv_layer *kv, const uint32_t *table, uint32_t position)
{
	return piece(kv, table[position / kv->block_tokens])[position % kv->block_tokens];
}

static uint64_t chain_before(const struct kv_walk *w, uint32_t position)
{
	return position ? sim_kv_chain(w->kv, w->table, position - 1) : w->salt;
}

int sim_kv_check(struct kern_program *p, const struct kern_kv_layer *kv)
{
	size_t bytes = kv->block_stride_bytes;
	if (!kv->block_tokens || bytes % sizeof(uint64_t) ||
	    bytes / kv->block_tokens < 2 * sizeof(uint64_t) || kv->layer >= SIM_LAYERS_MAX ||
	    (p->block_tokens && p->block_tokens != kv->block_tokens))
		return sim_fail(
			p->dev, KERN_EINVAL,
			"KV of layer %u, %u tokens in %zu bytes: a simulated device needs blocks of "
			"one size, at least 16 bytes a token, and at most %d layers",
			kv->layer, kv->block_tokens, bytes, SIM_LAYERS_MAX);
	p->block_tokens = kv->block_tokens;
	return KERN_OK;
}

/* --- checking ------------------------------------------------------------ */

static int broken(const struct kv_walk *w, uint32_t position)
{
	struct kern_device *dev = w->p->dev;
	uint32_t entry = position / w->kv->block_tokens;
	atomic_fetch_add_explicit(&dev->kv_faults, 1, memory_order_relaxed);
	return sim_fail(dev, KERN_EDEVICE,
	                "KV fault: layer %u, block %u (entry %u of its table): position %u does not "
	                "follow from position %lld",
	                w->kv->layer, w->table[entry], entry, position, (long long)position - 1);
}

/* Checks that each position in [from, to) follows from the previous one. */
static int check(const struct kv_walk *w, uint32_t from, uint32_t to)
{
	uint32_t bt = w->kv->block_tokens;
	uint64_t before = chain_before(w, from);
	for (uint32_t at = from; at < to;) {
		const uint64_t *k = piece(w->kv, w->table[at / bt]), *v = k + v_behind(w->kv);
		uint32_t end = at - at % bt + bt;
		for (end = end < to ? end : to; at < end; at++) {
			uint64_t c = k[at % bt];
			if (c != chain(before, v[at % bt], at, w->salt))
				return broken(w, at);
			before = c;
		}
	}
	return KERN_OK;
}

/* Checks the newest positions, and in one layer per step one block; each block gets its turn. */
static int check_sample(const struct kv_walk *w, uint32_t position)
{
	uint32_t bt = w->kv->block_tokens;
	uint64_t step = w->p->dev->step, turn = step / w->p->layers;
	if (w->kv->layer == step % w->p->layers && position > NEWEST) {
		uint32_t block = (uint32_t)(turn % ((position - 1) / bt + 1)), from = block * bt,
				 to = from + bt;
		int rc = check(w, from, to < position ? to : position);
		if (rc)
			return rc;
	}
	return check(w, position > NEWEST ? position - NEWEST : 0, position);
}

/* --- records, over block tables ------------------------------------------ */

/* The record of the block that ends a context of `position` tokens. In a very large pool blocks
 * share records and are checked more often. */
static uint64_t *record_at(const struct kv_walk *w, uint32_t position)
{
	uint64_t block = w->table[(position - 1) / w->kv->block_tokens];
	return &w->p->dev->record[(block * w->p->layers + w->kv->layer) % SIM_RECORDS];
}

/* The record's value for a context of `position` tokens; table_hash: of the entries that cover it.
 * Never 0. */
static uint64_t record_value(const struct kv_walk *w, uint64_t table_hash, uint32_t position)
{
	return sim_mix(sim_mix(table_hash, position), chain_before(w, position)) | 1;
}

static uint64_t hash_entries(uint64_t h, const uint32_t *table, uint32_t from, uint32_t to)
{
	for (uint32_t i = from; i < to; i++)
		h = sim_mix(h, table[i]);
	return h;
}

void sim_kv_tables(struct kern_program *p)
{
	const struct kern_span *sp = kern_part(p->batch, p->batch->span);
	uint32_t bt = p->block_tokens;
	for (uint32_t i = 0; i < p->batch->spans && bt; i++) {
		const uint32_t *table = kern_part(p->batch, p->batch->table + sp[i].table);
		uint32_t before = (sp[i].position + bt - 1) / bt,
				 after = (sp[i].position + sp[i].rows + bt - 1) / bt;
		p->hash[i][0] = hash_entries(0, table, 0, before);
		p->hash[i][1] = hash_entries(p->hash[i][0], table, before, after);
	}
}

/* --- writing ------------------------------------------------------------- */

static int check_context(const struct kv_walk *w, uint32_t position, uint64_t table_hash)
{
	if (!position)
		return KERN_OK;
	if (!w->p->dev->opt.check_always &&
	    *record_at(w, position) == record_value(w, table_hash, position))
		return check_sample(w, position);
	return check(w, 0, position);
}

static void extend(const struct kv_walk *w, const struct kern_span *sp, const uint64_t *v,
                   const uint32_t *slot)
{
	const struct kern_kv_layer *kv = w->kv;
	uint64_t c = chain_before(w, sp->position);
	for (uint32_t i = 0; i < sp->rows; i++) {
		uint64_t *k = piece(kv, slot[i] / kv->block_tokens) + slot[i] % kv->block_tokens;
		c = chain(c, v[i], sp->position + i, w->salt);
		k[0] = c;
		k[v_behind(kv)] = v[i];
	}
}

int sim_kv_write(struct kern_program *p, const struct kern_kv_layer *kv, const uint64_t *v)
{
	const struct kern_batch *b = p->batch;
	const struct kern_span *sp = kern_part(b, b->span);
	const uint32_t *slot = kern_part(b, b->slots);
	struct kv_walk w = {.p = p, .kv = kv, .salt = sim_mix(p->dev->opt.seed, kv->layer)};
	for (uint32_t i = 0; i < b->spans; i++, sp++) {
		w.table = kern_part(b, b->table + sp->table);
		int rc = check_context(&w, sp->position, p->hash[i][0]);
		if (rc)
			return rc;
		extend(&w, sp, v + sp->row, slot + sp->row);
		*record_at(&w, sp->position + sp->rows) = record_value(&w, p->hash[i][1],
		                                                       sp->position + sp->rows);
	}
	return KERN_OK;
}
