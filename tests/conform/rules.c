/* rules.c - what is demanded of a job (conform.h), run by run. */
#include "tests/conform/conform.h"
#include "tests/unit/skip.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* What came out of the first target of each numerics, of clean inputs and of poisoned ones: the
 * rest must have its bits. */
struct base {
	char numerics[64];
	struct result *clean, *poisoned;
	bool has_clean, has_poisoned; /* their KV */
};
struct bases {
	struct base base[16];
	unsigned count;
};

static const struct run {
	unsigned threads;
	enum kern_memory kind;
	bool split;
	enum order order;
	uint32_t chunk; /* CHUNKS: an index of chunk_sizes, moved on from job to job */
	/* of KV that nobody has written: NaN; large; 1.0 and the like; large */
	unsigned char fill;
} runs[] = {
	{1, KERN_MEM_DEVICE, false, ORDER_WHOLE, 0, 0xff},
	{1, KERN_MEM_DEVICE, false, ORDER_MIXED, 1, 0x7c},
	{2, KERN_MEM_SHARED, false, ORDER_ALONE, 0, 0x3f},
	{2, KERN_MEM_SHARED, false, ORDER_WHOLE, 0, 0xff},
	{2, KERN_MEM_SHARED, false, ORDER_CHUNKS, 0, 0xff},
	{2, KERN_MEM_SHARED, false, ORDER_MIXED, 2, 0x00},
	{3, KERN_MEM_PINNED, true, ORDER_REVERSED, 0, 0x7c},
	{3, KERN_MEM_PINNED, true, ORDER_CHUNKS, 3, 0xff},
	{3, KERN_MEM_PINNED, true, ORDER_ONE_BY_ONE, 0, 0x78},
};
static const uint32_t chunk_sizes[] = {5, 2, 16, 7, 3, 64, 12, 29, 4, 13, 50};

static uint32_t job_number;

/* --- a row against the reference ----------------------------------------- */

static void element_check(const struct job *j, uint32_t f, uint32_t row, uint32_t i, float got,
                          double want, double bound, bool poisoned)
{
	enum kern_dtype t = j->field[f].type;
	float rounded = format_round(t, want);
	bool finite = isfinite(got), near;
	if (bound == 0 && t != KERN_F32)
		/* it may have been rounded to float32 before */
		bound = format_error(t, want);
	near = bound == 0 ? got == rounded || (isnan(got) && isnan(rounded))
	                  : finite && fabs((double)got - want) <= bound;
	if (near && bound > 0)
		conform_stat(j->kind, fabs((double)got - want) / bound);
	if (near || (!finite && (poisoned || !isfinite(rounded))))
		return;
	conform_fail(
		"row %u (position %u of sequence %u): %s, element %u is %.9g, want %.9g within %.3g", row,
		world_position(&j->world, row), world_sequence(&j->world, row), j->field[f].name, i,
		(double)got, want, bound);
}

static struct expect expect_new(const struct job *j)
{
	struct expect e = {0};
	for (uint32_t f = 0; f < j->fields; f++)
		if (j->field[f].dir != IN) {
			e.value[f] = conform_alloc((size_t)j->field[f].sub * j->field[f].columns,
			                           sizeof **e.value);
			e.bound[f] = conform_alloc((size_t)j->field[f].sub * j->field[f].columns,
			                           sizeof **e.bound);
		}
	return e;
}

static void row_check(const struct job *j, const struct precision *p, const struct result *r,
                      uint32_t row, bool poisoned)
{
	size_t mark = conform_mark();
	struct expect e = expect_new(j);
	if (j->check_row)
		j->check_row(j, p, r, row, poisoned);
	else if (j->row)
		j->row(j, p, r, row, &e);
	for (uint32_t f = 0; f < j->fields && j->row; f++)
		for (uint32_t i = 0, n = j->field[f].sub * j->field[f].columns;
		     r->have[f] && r->have[f][row] && i < n; i++) {
			float got = r->out[f][(size_t)row * n + i];
			uint32_t bits;
			memcpy(&bits, &got, 4);
			if (e.untouched)
				EXPECT(bits == UNWRITTEN || (j->field[f].type != KERN_F32 && isnan(got)),
				       "row %u: %s, element %u was written", row, j->field[f].name, i);
			else
				element_check(j, f, row, i, got, e.value[f][i],
				              e.bound[f][i] + (j->field[f].type == KERN_F32 || e.bound[f][i] == 0
				                                   ? 0
				                                   : format_error(j->field[f].type, e.value[f][i])),
				              poisoned);
		}
	conform_release(mark);
}

/* --- rows against rows --------------------------------------------------- */

static bool same_bits(float a, float b)
{
	return !memcmp(&a, &b, 4) || (isnan(a) && isnan(b));
}

static void rows_compare(const struct job *j, const struct result *got, const struct result *want,
                         uint32_t f, uint32_t row)
{
	uint32_t n = j->field[f].sub * j->field[f].columns;
	for (uint32_t i = 0; i < n; i++) {
		float a = got->out[f][(size_t)row * n + i], b = want->out[f][(size_t)row * n + i];
		EXPECT(same_bits(a, b),
		       "row %u (position %u of sequence %u): %s, element %u is %.9g, want the bits of %.9g",
		       row, world_position(&j->world, row), world_sequence(&j->world, row),
		       j->field[f].name, i, (double)a, (double)b);
	}
}

static bool has_products(const struct job *j)
{
	return j->matrices && j->kind != KERN_OP_EMBED;
}

/* A row's bits may depend on its batch: where the library multiplies (kernels/cuda/weight.h). */
static bool may_vary(const struct job *j, const struct precision *p)
{
	bool any = false;
	for (uint32_t i = 0; i < j->matrices; i++)
		any |= j->matrix[i].type == KERN_BF16 && j->matrix[i].n % 8 == 0 && j->matrix[i].k % 8 == 0;
	return p->rows_vary && any && j->kind == KERN_OP_MATMUL;
}

/* Rows that the base lacks are held against the reference and taken; the others must have its
 * bits. Where they may vary all are held against the reference. */
static void absorb(const struct job *j, const struct precision *p, struct result *base,
                   bool *has_kv, const struct result *r, bool is_poisoned)
{
	for (uint32_t row = 0; row < world_rows(&j->world); row++) {
		bool news = false;
		for (uint32_t f = 0; f < j->fields; f++) {
			size_t n = (size_t)j->field[f].sub * j->field[f].columns;
			if (!r->have[f] || !r->have[f][row])
				continue;
			if (base->have[f][row] && !may_vary(j, p)) {
				rows_compare(j, r, base, f, row);
				continue;
			}
			memcpy(base->out[f] + row * n, r->out[f] + row * n, n * sizeof(float));
			news = base->have[f][row] = true;
		}
		if (news)
			row_check(j, p, r, row, is_poisoned);
	}
	if (j->check_pool)
		j->check_pool(j, r, j, *has_kv ? base : NULL);
	if (!*has_kv)
		memcpy(base->pool, r->pool, job_pool_bytes(j));
	*has_kv = true;
}

/* --- rows that are poisoned ---------------------------------------------- */

enum poison_kind {
	ALL_NAN,
	ONE_INFINITY,
	ALL_HUGE,
	ONE_NAN,
	ALL_MINUS_INFINITY,
	ONE_MINUS_INFINITY,
	POISON_KINDS
};
static const char *const poison_names[] = {"all NaN", "one infinity",  "all 1e25 times as large",
                                           "one NaN", "all -infinity", "one -infinity"};
enum { POISONS = SEQUENCES };
struct poison {
	uint32_t row;
	enum poison_kind kind;
	bool spreads;
};

static float poison_value(enum poison_kind kind, float x)
{
	switch (kind) {
	case ALL_NAN:
	case ONE_NAN: return NAN;
	case ONE_INFINITY: return INFINITY;
	case ALL_HUGE: return x * 1e25f;
	default: return -INFINITY;
	}
}

static void poison_field(struct job *p, uint32_t f, struct poison *x)
{
	uint32_t n = p->field[f].sub * p->field[f].columns,
			 last = x->kind == ONE_NAN ? n - 1 : rand_below(n);
	float *row = p->field[f].data + (job_data(p, f, x->row) - p->field[f].data);
	bool one = x->kind == ONE_INFINITY || x->kind == ONE_NAN || x->kind == ONE_MINUS_INFINITY;
	for (uint32_t i = one ? last : 0; i < (one ? last + 1 : n); i++)
		row[i] = format_round(p->field[f].type, (double)poison_value(x->kind, row[i]));
	x->spreads |= p->field[f].history || p->mixes;
}

static bool can_poison(const struct field *f)
{
	return f->dir != OUT && f->type != (enum kern_dtype)TYPE_U32;
}

/* A copy of the job with other data in some rows; one in each sequence, or several where there
 * is but one. */
static struct job *poisoned(const struct job *j, struct poison *x, uint32_t *ret_count)
{
	struct job *p = conform_alloc(1, sizeof *p);
	const struct world *w = &j->world;
	rand_seed(job_number);
	uint32_t fields[FIELDS], n = 0, rows = world_rows(w),
							 count = w->sequences > 1 || j->has_kv ? w->sequences
	                                 : rows < 5                    ? 1
	                                                               : 5;
	*p = *j;
	for (uint32_t f = 0; f < j->fields; f++) {
		if (!can_poison(&j->field[f]))
			continue;
		size_t floats = (size_t)(j->field[f].history ? w->all[w->sequences] : rows) *
		                j->field[f].sub * j->field[f].columns;
		p->field[f].data = conform_alloc(floats, sizeof(float));
		memcpy(p->field[f].data, j->field[f].data, floats * sizeof(float));
		fields[n++] = f;
	}
	for (uint32_t i = 0; n && i < count; i++) {
		uint32_t row = count == w->sequences ? w->live[i] + w->seq[i].rows / 2
		                                     : i * rows / count + rows / count / 2;
		x[i] = (struct poison){row, (enum poison_kind)((i + job_number) % POISON_KINDS), false};
		if (x[i].kind == ALL_NAN || x[i].kind == ALL_HUGE || x[i].kind == ALL_MINUS_INFINITY)
			for (uint32_t f = 0; f < n; f++)
				poison_field(p, fields[f], &x[i]);
		else
			poison_field(p, fields[(job_number / POISON_KINDS + i) % n], &x[i]);
	}
	*ret_count = n ? count : 0;
	return p;
}

static bool sees(const struct job *j, uint32_t row, const struct poison *x)
{
	const struct world *w = &j->world;
	uint32_t at = world_position(w, row), from = world_position(w, x->row);
	return row == x->row || (x->spreads && world_sequence(w, row) == world_sequence(w, x->row) &&
	                         at >= from && (!j->window || from + j->window > at));
}

/* Rows that see no poisoned row have the bits that they have without any; where bits may vary
 * they are right. */
static void isolation_check(const struct job *j, const struct precision *p,
                            const struct result *clean, const struct result *r,
                            const struct poison *x, uint32_t count)
{
	conform_about(4, "other rows hold NaN and infinities");
	for (uint32_t row = 0; row < world_rows(&j->world); row++) {
		bool hit = false;
		for (uint32_t i = 0; i < count; i++)
			hit |= sees(j, row, &x[i]);
		if (!hit && may_vary(j, p)) {
			row_check(j, p, r, row, false);
			continue;
		}
		for (uint32_t f = 0; !hit && f < j->fields; f++)
			if (r->have[f] && r->have[f][row] && clean->have[f][row])
				rows_compare(j, r, clean, f, row);
	}
	conform_about(4, "%s", "");
}

static void poison_runs(struct live *l, const struct job *j, const struct precision *pr,
                        struct base *base)
{
	struct poison x[POISONS];
	uint32_t count;
	size_t mark = conform_mark();
	struct job *p = poisoned(j, x, &count);
	for (uint32_t i = 0; count && i < 2; i++) {
		size_t inner = conform_mark();
		struct schedule s = schedule_make(&j->world, i ? ORDER_MIXED : ORDER_WHOLE, 3,
		                                  j->record_history != NULL);
		conform_about(2, "%s, some rows poisoned (%u %s)", s.name, x[0].row,
		              poison_names[x[0].kind]);
		struct result *r = live_run(l, p, &s, 0xff);
		isolation_check(j, pr, base->clean, r, x, count);
		absorb(p, pr, base->poisoned, &base->has_poisoned, r, true);
		conform_release(inner);
	}
	conform_release(mark);
}

/* --- all runs ------------------------------------------------------------ */

static struct base *base_find(struct bases *all, const struct job *j, const struct device *dev)
{
	const char *text = dev->ops->numerics(dev->d);
	for (unsigned i = 0; i < all->count; i++)
		if (!strcmp(all->base[i].numerics, text))
			return &all->base[i];
	struct base *b = &all->base[all->count++];
	*b = (struct base){.clean = result_new(j), .poisoned = result_new(j)};
	snprintf(b->numerics, sizeof b->numerics, "%s", text);
	return b;
}

/* Activations of a type that a target refused: of all fields of an operation's jobs, or of one
 * by its name. */
struct typed {
	enum kern_dtype type;
	const char *field;
};
static struct lack {
	const struct target *target;
	enum kern_op_kind kind;
	struct typed of;
} lacks[512];
static uint32_t lack_count;

static bool lacked(const struct target *t, const struct job *j, struct typed of)
{
	for (uint32_t i = 0; i < lack_count; i++) {
		const struct lack *l = &lacks[i];
		if (l->target == t && l->kind == j->kind && l->of.type == of.type &&
		    !strcmp(l->of.field, of.field))
			return true;
	}
	return false;
}

/* May the target refuse this? What is not float32, and on other backends than the CPU's
 * anything, in a sentence that names the operation. */
static void refused(const struct job *j, const struct device *dev, int rc, struct typed of)
{
	const char *text = dev->ops->last_error(dev->d);
	bool named = false;
	for (int k = 0; k < KERN_OPS; k++)
		named |= strstr(text, kern_op_name((enum kern_op_kind)k)) != NULL;
	EXPECT(rc == KERN_ENOTSUP && named, "refused with %d: \"%s\"", rc, text);
	EXPECT(of.type != KERN_F32 || strcmp(dev->target->backend, "cpu"), "refused: \"%s\"", text);
	if (of.type == KERN_F32)
		SKIP_PART("%s: %s", dev->target->name, text);
	else if (lack_count < LEN(lacks))
		lacks[lack_count++] = (struct lack){dev->target, j->kind, of};
}

/* The runs of the table from `from` on that have its device and buffers in common; returns how
 * many. */
static unsigned runs_like(const struct job *j, const struct device *dev, unsigned from,
                          struct bases *all, struct typed of, bool *ret_refused)
{
	const struct run *like = &runs[from];
	size_t mark;
	unsigned n = 0;
	int rc;
	struct base *base = base_find(all, j, dev);
	mark = conform_mark();
	struct live *l = live_new(j, dev, like->kind, like->split, &rc);
	*ret_refused = !l;
	if (!l)
		refused(j, dev, rc, of);
	for (; from + n < LEN(runs) && runs[from + n].threads == like->threads; n++) {
		const struct run *r = &runs[from + n];
		if (!l)
			continue;
		size_t inner = conform_mark();
		struct schedule s = schedule_make(
			&j->world, r->order,
			r->order == ORDER_CHUNKS ? chunk_sizes[(job_number + r->chunk) % LEN(chunk_sizes)]
									 : r->chunk,
			j->record_history != NULL);
		conform_about(2, "%u threads, %s", r->threads, s.name);
		absorb(j, &dev->target->precision, base->clean, &base->has_clean,
		       live_run(l, j, &s, r->fill), false);
		conform_release(inner);
	}
	if (l && like->threads == 2 && !j->clean)
		poison_runs(l, j, &dev->target->precision, base);
	if (l)
		live_free(&l);
	conform_release(mark);
	return n;
}

/* Whether rounded activations (kern_config.activations) change anything: products, and attention
 * of some targets. */
static bool is_rounded(const struct target *t, const struct job *j)
{
	return has_products(j) || (t->precision.bf16_mma && j->kind == KERN_OP_ATTENTION);
}

static void job_check_as(struct job *j, struct typed of)
{
	struct bases all = {.count = 0};
	size_t mark = conform_mark();
	for (unsigned t = 0; t < conform_target_count; t++) {
		if (conform_targets[t].activations != KERN_F32 && !is_rounded(&conform_targets[t], j))
			continue;
		bool no = lacked(&conform_targets[t], j, of);
		for (unsigned i = 0; i < LEN(runs) && !no;) {
			struct device *dev = device_get(&conform_targets[t], runs[i].threads);
			if (!dev)
				break;
			conform_about(1, of.type == KERN_F32 ? "%s" : "%s, %s as %s", dev->target->name,
			              of.field[0] ? of.field : "activations", kern_dtype_name(of.type));
			i += runs_like(j, dev, i, &all, of, &no);
		}
	}
	conform_release(mark);
}

static bool can_be_typed(const struct field *f)
{
	return f->type == KERN_F32 && !f->dense;
}

/* A copy whose fields of numbers, or the one of that name, have that type, and data that it can
 * hold. */
static struct job *with_type(const struct job *j, struct typed of)
{
	struct job *c = conform_alloc(1, sizeof *c);
	*c = *j;
	for (uint32_t f = 0; f < j->fields; f++) {
		struct field *x = &c->field[f];
		if (!can_be_typed(x) || (of.field[0] && strcmp(of.field, x->name) != 0))
			continue;
		x->type = of.type;
		if (!x->data)
			continue;
		size_t n = (size_t)(x->history ? j->world.all[j->world.sequences] : world_rows(&j->world)) *
		           x->sub * x->columns;
		x->data = conform_alloc(n, sizeof *x->data);
		for (size_t i = 0; i < n; i++)
			x->data[i] = format_round(of.type, (double)j->field[f].data[i]);
	}
	return c;
}

static void job_check_typed(const struct job *j, struct typed of)
{
	size_t mark = conform_mark();
	bool any = false;
	for (unsigned t = 0; t < conform_target_count; t++)
		any |= !conform_targets[t].absent && !lacked(&conform_targets[t], j, of);
	if (any)
		job_check_as(with_type(j, of), of);
	conform_release(mark);
}

void job_next_counts(void)
{
	job_number = job_number / conform_thin * conform_thin + conform_thin / 2;
}

void job_check(struct job *j)
{
	if (job_number++ % conform_thin !=
	    conform_thin / 2) /* so that tests of few shapes have one, too */
		return;
	job_check_as(j, (struct typed){KERN_F32, ""});
	for (int t = KERN_F16; t <= KERN_BF16; t++)
		job_check_typed(j, (struct typed){(enum kern_dtype)t, ""});
	/* beside others of float32 */
	const struct field *one = &j->field[job_number % j->fields];
	if (can_be_typed(one))
		job_check_typed(j, (struct typed){KERN_BF16, one->name});
}
