/* kv.c - chains of checkable words in the KV pool.
 *
 * A token's K in a layer is a function of all tokens before it, through the K of the token before, which is read from the pool. So a block
 * that is wrong, stale, torn or of another sequence changes the answer, and before that it is found: a context that the device
 * has not followed itself is walked from its start (a sequence that arrived, that was restored, or that begins with matched blocks). A context that it has
 * followed is known by a record at its last block: over the block table, the position and the chain there. Of such a context the
 * newest positions are checked in every step, and one block in one layer, in turn.
 * A chain that does not hold is an error of the device that names layer, block and position; the step fails and is counted. */
#include "kernels/sim/sim.h"

#include <stdlib.h>
#include <sys/mman.h>

enum { NEWEST = 8 };   /* positions that are checked in every step */

/* What the functions below need of one layer in one step. */
struct walk {
	struct kern_device *dev;
	const struct kern_kv_layer *kv;
	uint64_t salt;                 /* of the layer */
	const uint32_t *table;         /* of the present sequence */
};

static uint64_t *piece(const struct kern_kv_layer *kv, uint32_t block)
{
	return (uint64_t *)(void *)((unsigned char *)kv->base + (size_t)block * kv->block_stride_bytes);
}

/* V begins so many words behind K: it is the end of the piece. Scales, where the type has them, lie between and are not used. */
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

static uint64_t chain_before(const struct walk *w, uint32_t position)
{
	return position ? sim_kv_chain(w->kv, w->table, position - 1) : w->salt;
}

/* --- checking ----------------------------------------------------------------------------------------------------------------- */

static int broken(const struct walk *w, uint32_t position)
{
	uint32_t entry = position / w->kv->block_tokens;
	atomic_fetch_add_explicit(&w->dev->kv_faults, 1, memory_order_relaxed);
	return sim_fail(w->dev, KERN_EDEVICE, "KV fault: layer %u, block %u (entry %u of its table), position %u is not what follows position %lld",
	                w->kv->layer, w->table[entry], entry, position, (long long)position - 1);
}

/* Positions [from, to): each must follow from the one before. */
static int check(const struct walk *w, uint32_t from, uint32_t to)
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

/* The newest positions, and in one layer of this step one block: each block's turn comes. */
static int check_sample(const struct walk *w, uint32_t position)
{
	uint32_t bt = w->kv->block_tokens;
	uint64_t turn = w->dev->step / w->dev->sim.layers;
	if (w->kv->layer == w->dev->step % w->dev->sim.layers && position > NEWEST) {
		uint32_t block = (uint32_t)(turn % ((position - 1) / bt + 1)), from = block * bt, to = from + bt;
		int rc = check(w, from, to < position ? to : position);
		if (rc)
			return rc;
	}
	return check(w, position > NEWEST ? position - NEWEST : 0, position);
}

/* --- records ------------------------------------------------------------------------------------------------------------------ */

static struct sim_region *region_of(struct kern_device *dev, const struct kern_kv_layer *kv)
{
	for (unsigned i = 0; i < SIM_REGIONS; i++) {
		struct sim_region *r = &dev->region[i];
		if (r->host && (unsigned char *)kv->base >= r->host && (unsigned char *)kv->base < r->host + r->bytes)
			return r;
	}
	return NULL;
}

/* One word for each (layer, block), in memory that is taken page by page as it is used. */
static int records_map(struct kern_device *dev, struct sim_region *r, const struct kern_kv_layer *kv)
{
	size_t pieces = r->bytes / kv->block_stride_bytes;
	if (r->record)
		return KERN_OK;
	void *p = mmap(NULL, pieces * sizeof *r->record, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (p == MAP_FAILED)
		return sim_fail(dev, KERN_ENOMEM, "no memory for the records of a pool of %zu pieces", pieces);
	r->record = p;
	r->record_bytes = pieces * sizeof *r->record;
	r->blocks = (uint32_t)(pieces / dev->sim.layers);
	return KERN_OK;
}

void sim_records_free(struct sim_region *r)
{
	if (r->record)
		munmap(r->record, r->record_bytes);
	*r = (struct sim_region){0};
}

static uint64_t *record_at(const struct walk *w, const struct sim_region *r, uint32_t position)
{
	return &r->record[(size_t)w->kv->layer * r->blocks + w->table[(position - 1) / w->kv->block_tokens]];
}

/* What the record says of a context of `position` tokens, table_hash being that of the entries that cover it. Never 0. */
static uint64_t record_value(const struct walk *w, uint64_t table_hash, uint32_t position)
{
	return sim_mix(sim_mix(table_hash, position), chain_before(w, position)) | 1;
}

/* --- block tables ---------------------------------------------------------------------------------------------------------------- */

static uint64_t hash_entries(uint64_t h, const uint32_t *table, uint32_t from, uint32_t to)
{
	for (uint32_t i = from; i < to; i++)
		h = sim_mix(h, table[i]);
	return h;
}

/* Once a step: the tables are the same in all layers. */
static int hash_tables(struct kern_device *dev, const struct kern_kv_layer *kv, const struct kern_batch *b)
{
	struct sim_tables *t = &dev->tables;
	uint32_t bt = kv->block_tokens;
	if (t->step == dev->step && kv->layer)
		return KERN_OK;
	if (b->spans > t->room) {
		void *p = realloc(t->hash, b->spans * sizeof *t->hash);
		if (!p)
			return sim_fail(dev, KERN_ENOMEM, "no memory for %u spans", b->spans);
		t->hash = p;
		t->room = b->spans;
	}
	for (uint32_t i = 0; i < b->spans; i++) {
		const struct kern_span *sp = &b->span_host[i];
		uint32_t before = (sp->position + bt - 1) / bt, after = (sp->position + sp->rows + bt - 1) / bt;
		t->hash[i].before = hash_entries(0, b->block_table + sp->table, 0, before);
		t->hash[i].after = hash_entries(t->hash[i].before, b->block_table + sp->table, before, after);
	}
	t->step = dev->step;
	return KERN_OK;
}

/* --- writing ------------------------------------------------------------------------------------------------------------------ */

static int check_context(const struct walk *w, const struct sim_region *r, uint32_t position, uint64_t table_hash)
{
	if (!position)
		return KERN_OK;
	if (!w->dev->sim.check_always && *record_at(w, r, position) == record_value(w, table_hash, position))
		return check_sample(w, position);
	return check(w, 0, position);
}

static void extend(const struct walk *w, const struct kern_span *sp, const float *v, size_t ld)
{
	uint32_t bt = w->kv->block_tokens;
	uint64_t c = chain_before(w, sp->position);
	for (uint32_t i = 0; i < sp->rows; i++) {
		uint32_t at = sp->position + i;
		uint64_t *k = piece(w->kv, w->table[at / bt]) + at % bt, x = sim_row_get(v + (size_t)i * ld);
		c = chain(c, x, at, w->salt);
		k[0] = c;
		k[v_behind(w->kv)] = x;
	}
}

static int check_layer(struct kern_device *dev, const struct kern_kv_layer *kv, const struct kern_batch *b, struct sim_region **ret_r)
{
	if (kv->kv_heads != 1 || kern_dtype_bytes(kv->dtype, kv->head_dim) != sizeof(uint64_t))
		return sim_fail(dev, KERN_EINVAL, "KV of %u heads of %u elements, the simulated device has one head of 8 bytes", kv->kv_heads, kv->head_dim);
	if (kv->layer >= dev->sim.layers || b->rows > dev->max_rows)
		return sim_fail(dev, KERN_EINVAL, "layer %u of %u, %u rows of at most %u", kv->layer, dev->sim.layers, b->rows, dev->max_rows);
	*ret_r = region_of(dev, kv);
	if (!*ret_r)
		return sim_fail(dev, KERN_EINVAL, "the KV pool is not registered");
	return records_map(dev, *ret_r, kv);
}

int sim_op_kv_write(struct kern_stream *s, const struct kern_kv_layer *kv, const float *k, const float *v, size_t ld,
                    const struct kern_batch *b)
{
	struct kern_device *dev = s->dev;
	struct sim_region *r = NULL;
	struct walk w = {.dev = dev, .kv = kv, .salt = sim_mix(dev->sim.seed, kv->layer)};
	(void)k;
	int rc = check_layer(dev, kv, b, &r);
	if (rc || (rc = hash_tables(dev, kv, b)))
		return rc;
	sim_clock_charge(dev, sim_layer_ns(&dev->sim, b));
	for (uint32_t i = 0; i < b->spans; i++) {
		const struct kern_span *sp = &b->span_host[i];
		const struct sim_table_hash *h = &dev->tables.hash[i];
		w.table = b->block_table + sp->table;
		if ((rc = check_context(&w, r, sp->position, h->before)))
			return rc;
		extend(&w, sp, v + (size_t)sp->row * ld, ld);
		*record_at(&w, r, sp->position + sp->rows) = record_value(&w, h->after, sp->position + sp->rows);
	}
	return KERN_OK;
}
