/* attention.cu - attention's work: lists of items (attention.h), and planning.
 *
 * A list is made on the device in each run, because KERN_OP_ADVANCE moves positions there, and
 * used by all attention operations that agree in what it depends on. Spans with at least LEAST
 * vectors are attention_prefill.cu's, if there is a kernel for the shape, except those that would
 * keep a few of its blocks busy when all others have ended: attention_decode.cu divides a context
 * among blocks.
 *
 * A tile's chunks are divided so that there are about `wanted` items of equal length in all. Blocks
 * write the states of single chunks, or of runs if an item has as much; the last one to end merges
 * them. If there is no room for all these states or items, items are made longer until there is. */
#include "kernels/cuda/attention.h"

enum {
	LIST_THREADS = 256,
	LENGTHS = 64, /* that items are sorted by */
	LEAST = PREFILL_VECTORS / 2,
	DECODE_ROWS = 64,       /* graphs of no more rows are for decoding */
	DECODE_BLOCKS = 4,      /* that run at once on a multiprocessor, as registers allow */
	STATES_BYTES = 64 << 20 /* at most, of divided tiles */
};

enum kind { DECODE, PREFILL, KINDS };

struct list_args {
	const struct kern_batch *batch;
	int rows; /* enum kern_rows */
	uint32_t group, heads, window, multiprocessors;
	/* for the self-test: least chunks of an item; prefill also where it does not pay */
	uint32_t least;
	bool always;
	struct {
		struct attention_list list;
		uint32_t vectors;                      /* of a tile; 0: there is no kernel */
		uint32_t wanted, item_room, unit_room; /* wanted 0: tiles are not divided */
	} of[KINDS];
};

/* --- lists --------------------------------------------------------------- */

struct list_shared {
	unsigned long long candidates; /* chunks of all tiles of spans that may be prefill's */
	unsigned long long chunks;     /* of all tiles of the list */
	uint32_t longest;              /* chunks of a tile */
	uint32_t items, units;         /* of the list: units of divided tiles alone */
	uint32_t divided, state;       /* numbers of the next divided tile and of its first state */
	uint32_t at[LENGTHS];          /* items of each length; then where the next one is written */
};

static __device__ inline struct list_shared &shared(void)
{
	return *(struct list_shared *)shared_memory();
}

/* Whether a tile takes at most twice as long as all spans' tiles if they are divided evenly. */
static __device__ inline bool is_prefill(const struct list_args &a, const struct kern_span &span)
{
	uint32_t vectors = span.rows * a.group;
	if (!a.of[PREFILL].vectors || vectors < LEAST)
		return false;
	struct attention_sees sees = tile_sees(span, vectors - 1, 1, a.group, a.window);
	uint32_t chunks = sees.last / CHUNK - sees.first / CHUNK + 1;
	return a.always ||
	       (unsigned long long)chunks * a.multiprocessors / 2 <= shared().candidates * a.heads;
}

/* Calls f(span, begin, first, end) for all tiles of a list; chunks first to end - 1. A warp for a
 * span, a lane for a tile. */
template <typename F>
static __device__ inline void each_tile(const struct list_args &a, uint32_t kind, F f)
{
	uint32_t spans, size = a.of[kind].vectors;
	const struct kern_span *span = batch_spans(a.batch, a.rows, &spans);
	for (uint32_t i = threadIdx.x / WARP; i < spans; i += LIST_THREADS / WARP) {
		uint32_t vectors = span[i].rows * a.group;
		if (is_prefill(a, span[i]) != (kind == PREFILL))
			continue;
		for (uint32_t begin = threadIdx.x % WARP * size; begin < vectors; begin += WARP * size) {
			uint32_t n = vectors - begin < size ? vectors - begin : size;
			struct attention_sees sees = tile_sees(span[i], begin, n, a.group, a.window);
			f(i, begin, sees.first / CHUNK, sees.last / CHUNK + 1);
		}
	}
	__syncthreads();
}

/* How tiles are divided: into items of `length` chunks; shorter tiles are one item. */
struct division {
	uint32_t length, unit;
};

static __device__ inline struct division division_of(uint32_t length)
{
	return length < RUN_CHUNKS ? division{length, 1}
	                           : division{length / RUN_CHUNKS * RUN_CHUNKS, RUN_CHUNKS};
}

static __device__ inline uint32_t units_of(struct division d, uint32_t first, uint32_t end)
{
	return (end - 1) / d.unit - first / d.unit + 1;
}

/* Items of a tile: those of a divided one begin and end with a unit. */
static __device__ inline uint32_t items_of(struct division d, uint32_t first, uint32_t end)
{
	return end - first <= d.length ? 1 : (end - first / d.unit * d.unit + d.length - 1) / d.length;
}

/* The shortest items for which there is room. */
static __device__ struct division choose_division(const struct list_args &a, uint32_t kind)
{
	struct list_shared &s = shared();
	uint32_t length = UINT32_MAX;
	if (a.of[kind].wanted) {
		unsigned long long each = s.chunks * a.heads / a.of[kind].wanted + 1;
		length = each < UINT32_MAX ? (uint32_t)each : UINT32_MAX;
		length = length > a.least ? length : a.least;
	}
	for (;; length = length < RUN_CHUNKS ? (uint32_t)RUN_CHUNKS : 2 * length) {
		struct division d = division_of(length);
		if (threadIdx.x == 0)
			s.items = s.units = 0;
		__syncthreads();
		each_tile(a, kind, [&](uint32_t, uint32_t, uint32_t first, uint32_t end) {
			uint32_t items = items_of(d, first, end);
			atomicAdd(&s.items, items);
			if (items > 1)
				atomicAdd(&s.units, units_of(d, first, end));
		});
		/* undivided tiles always have room */
		if (length > INT32_MAX ||
		    (s.items <= a.of[kind].item_room && s.units <= a.of[kind].unit_room))
			return d;
		__syncthreads();
	}
}

/* The counter of items with about this length; the longest items have the first counter. */
static __device__ inline uint32_t *place_of_length(uint32_t chunks, uint32_t longest)
{
	return &shared().at[LENGTHS - 1 - (uint64_t)chunks * (LENGTHS - 1) / longest];
}

/* Calls f(chunks) for all items of a tile: [first, end) of each. */
template <typename F>
static __device__ inline void each_item(struct division d, uint32_t first, uint32_t end, F f)
{
	if (items_of(d, first, end) == 1) {
		f(first, end);
		return;
	}
	for (uint32_t begin = first / d.unit * d.unit; begin < end; begin += d.length)
		f(begin > first ? begin : first, end - begin < d.length ? end : begin + d.length);
}

/* A block for each kind of list. */
KERNEL(attention_items, LIST_THREADS, struct list_args)
{
	struct list_shared &s = shared();
	uint32_t kind = blockIdx.x;
	const struct attention_list &list = a.of[kind].list;
	if (threadIdx.x == 0)
		s = list_shared{1ull << 40}; /* more than there can be */
	__syncthreads();
	each_tile(a, PREFILL, [&](uint32_t, uint32_t, uint32_t first, uint32_t end) {
		atomicAdd(&s.chunks, end - first);
	});
	if (threadIdx.x == 0) {
		s.candidates = s.chunks;
		s.chunks = 0;
	}
	__syncthreads();
	each_tile(a, kind, [&](uint32_t, uint32_t, uint32_t first, uint32_t end) {
		atomicAdd(&s.chunks, end - first);
		atomicMax(&s.longest, end - first);
	});
	const struct division d = choose_division(a, kind);
	uint32_t longest = s.longest < d.length ? s.longest : d.length;
	each_tile(a, kind, [&](uint32_t, uint32_t, uint32_t first, uint32_t end) {
		each_item(d, first, end, [&](uint32_t from, uint32_t to) {
			atomicAdd(place_of_length(to - from, longest), 1u);
		});
	});
	if (threadIdx.x == 0) {
		for (uint32_t i = 0, before = 0, items; i < LENGTHS; i++, before += items) {
			items = s.at[i];
			s.at[i] = before;
		}
		*list.work = attention_work{0, s.items, d.unit};
	}
	__syncthreads();
	each_tile(a, kind, [&](uint32_t span, uint32_t begin, uint32_t first, uint32_t end) {
		struct attention_item item = {span, begin, first, end, items_of(d, first, end)};
		if (item.parts > 1) {
			item.divided = atomicAdd(&s.divided, 1u);
			item.state = atomicAdd(&s.state, units_of(d, first, end));
			for (uint32_t h = 0; h < a.heads; h++)
				list.done[item.divided * a.heads + h] = 0;
		}
		each_item(d, first, end, [&](uint32_t from, uint32_t to) {
			item.first = from;
			item.end = to;
			list.item[atomicAdd(place_of_length(to - from, longest), 1u)] = item;
		});
	});
}

/* --- planning ------------------------------------------------------------ */

/* Memory for a list of at most `items` items; a divided tile has at least two. */
static size_t list_bytes(size_t items, uint32_t heads)
{
	return 256 + items * sizeof(struct attention_item) + items / 2 * heads * sizeof(uint32_t);
}

static struct attention_list list_at(unsigned char *memory, size_t items)
{
	struct attention_item *item = (struct attention_item *)(memory + 256);
	return {(struct attention_work *)memory, item, (uint32_t *)(item + items)};
}

/* How much tiles of the decode kernel may be divided: all chunks, as far as there is memory. */
static void plan_division(const struct plan *p, const struct attention_args *a, struct list_args *l)
{
	uint32_t see = p->limits->positions;
	see = a->window && a->window < see ? a->window + CHUNK : see;
	size_t chunks = see / CHUNK + 1,
		   tiles = plan_rows(p) * (size_t)a->group / a->vectors + p->spans,
		   room = STATES_BYTES /
	              (a->vectors * a->kv.kv_heads * sizeof(float) * state_ld(a->out_dim));
	if (see <= CHUNK)
		return;
	l->of[DECODE].wanted = 2 * DECODE_BLOCKS * (uint32_t)p->dev->multiprocessors;
	l->of[DECODE].unit_room = (uint32_t)(tiles * chunks < room ? tiles * chunks : room);
}

/* The lists of the operation; plans the kernel that makes them if no earlier operation has. */
static void plan_lists(struct plan *p, const struct attention_args *a, bool prefill,
                       struct list_args *l)
{
	const struct kern_limits *limits = p->limits;
	/* of the same size of a program, operations with the same key have the same lists */
	const uint32_t key[] = {(uint32_t)a->rows, a->group,       a->kv.kv_heads, a->window,
	                        a->out_dim,        a->kv.head_dim, prefill};
	size_t rows = a->rows == KERN_ROWS_ALL ? limits->rows : limits->tail_rows, bytes[KINDS];
	static_assert(sizeof key == sizeof p->lists[0].key, "a key is all of that");
	for (int kind = 0; kind < KINDS; kind++) {
		size_t size = kind == DECODE ? DECODE_VECTORS : PREFILL_VECTORS;
		l->of[kind].item_room = (uint32_t)(rows * a->group / size + limits->spans +
		                                   l->of[kind].wanted);
		bytes[kind] = (list_bytes(l->of[kind].item_room, a->kv.kv_heads) + 255) / 256 * 256;
	}
	unsigned i = 0, n = sizeof p->lists / sizeof *p->lists;
	while (i < p->list_count && i < n && memcmp(p->lists[i].key, key, sizeof key))
		i++;
	bool is_new = i == p->list_count || i == n;
	if (is_new) {
		i = p->list_count++ % n;
		memcpy(p->lists[i].key, key, sizeof key);
		p->lists[i].memory = plan_keep(p, NULL, bytes[DECODE] + bytes[PREFILL]);
	}
	unsigned char *memory = (unsigned char *)p->lists[i].memory;
	l->of[DECODE].list = list_at(memory, l->of[DECODE].item_room);
	l->of[PREFILL].list = list_at(memory + bytes[DECODE], l->of[PREFILL].item_room);
	if (is_new)
		PLAN(p, attention_items, l->of[PREFILL].vectors ? KINDS : 1, 1, LIST_THREADS,
		     sizeof(struct list_shared), *l);
}

/* Plans one of the two kernels, with at most `blocks` blocks. */
static void plan_kind(struct plan *p, struct attention_args a, const struct list_args *l,
                      enum kind kind, struct attention_kernel k, size_t blocks)
{
	a.vectors = l->of[kind].vectors;
	a.list = l->of[kind].list;
	size_t items = (size_t)l->of[kind].item_room * l->heads, value = sizeof(float) * a.vectors,
		   states = l->of[kind].unit_room * value * l->heads * state_ld(a.out_dim);
	blocks = blocks < items ? blocks : items;
	if (p->limits->positions > CHUNK) {
		a.states = (float *)plan_room(p, ROOM_PARTIAL,
		                              states + blocks * value * round_up(a.out_dim, COLUMNS));
		a.runs = a.states + states / sizeof(float);
	}
	plan_launch(p, k.name, k.kernel, (uint32_t)blocks, 1, k.threads, k.shared_bytes, &a, sizeof a);
}

void plan_attention(struct plan *p)
{
	const struct kern_op *op = p->op;
	const struct kern_kv_layer *kv = &op->attention.kv;
	struct attention_args a = {p->batch, *kv, op->attention.out, op->attention.q,
	                           (const float *)op->attention.sinks.v};
	size_t quad_bytes = kern_dtype_bytes(kv->dtype, 4);
	a.heads = op->attention.heads;
	a.group = a.heads / kv->kv_heads;
	a.window = op->attention.window;
	a.out_dim = kv->latent ? kv->latent : kv->head_dim;
	a.scale = op->attention.scale;
	a.rows = op->rows;
	a.aligned = kv->base.v % quad_bytes == 0 && kv->block_stride_bytes % quad_bytes == 0;
	if ((uint64_t)plan_rows(p) * a.heads > INT32_MAX) {
		plan_fail(p, KERN_EINVAL, "%u rows of %u heads: more than %d in all", plan_rows(p), a.heads,
		          INT32_MAX);
		return;
	}
	if (!plan_rows(p))
		return;
	size_t vectors = (size_t)plan_rows(p) * a.group, processors = (size_t)p->dev->multiprocessors;
	struct attention_kernel prefill = attention_prefill_kernel(p, &a), decode;
	struct list_args l = {p->batch,
	                      a.rows,
	                      a.group,
	                      kv->kv_heads,
	                      a.window,
	                      (uint32_t)processors,
	                      p->dev->attention_least,
	                      p->dev->prefill_always || cuda_wgmma() > 1};
	if (prefill.kernel && vectors >= LEAST &&
	    (l.always || 2 * (vectors / LEAST) * kv->kv_heads >= processors))
		l.of[PREFILL].vectors = PREFILL_VECTORS;
	/* larger tiles where a row, or prompts, can fill them */
	a.vectors = 2 * DECODE_VECTORS;
	if (prefill.kernel || (a.group <= DECODE_VECTORS && plan_rows(p) <= DECODE_ROWS) ||
	    attention_decode_kernel(p, &a).shared_bytes > (size_t)p->dev->shared_max)
		a.vectors = DECODE_VECTORS;
	decode = attention_decode_kernel(p, &a);
	l.of[DECODE].vectors = a.vectors;
	plan_division(p, &a, &l);
	plan_lists(p, &a, prefill.kernel != NULL, &l);
	if (l.of[PREFILL].vectors)
		plan_kind(p, a, &l, PREFILL, prefill, processors);
	plan_kind(p, a, &l, DECODE, decode, DECODE_BLOCKS * processors);
}
