/* live.c - a job on a device: its buffers with guards around them, its programs, and runs of a
 * schedule. Every byte of every buffer is written before a step and looked at after it: the live
 * rows of outputs are taken, everything else must be as it was. Programs of one operation each
 * run several steps before the host waits. */
#include "tests/conform/conform.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { GUARD = 64, FLIGHTS = 4 }; /* steps under way */

struct buffer {
	struct kern_mem mem;
	size_t bytes;
	/* of nobody's bytes; before a step; after it */
	unsigned char *blank, *image[FLIGHTS], *seen[FLIGHTS];
};

struct place {
	uint32_t buffer;
	size_t first, ld;
}; /* of row 0, in bytes; ld in elements */

struct live_own {
	uint32_t buffers, programs, salt, flights;
	struct buffer buffer[FIELDS];
	struct place place[FIELDS];
	struct kern_mem constant[CONSTS], pool, batch[FLIGHTS];
	struct kern_program *program[OPS_MAX], *history;
	unsigned char *batch_image[FLIGHTS];
};

/* Which rows the slots of a batch are. */
struct slots {
	uint32_t rows[2], *live[2], *all[2];
}; /* [enum kern_rows] */

static size_t type_bytes(enum kern_dtype t)
{
	return t == KERN_F16 || t == KERN_BF16 ? 2 : 4;
}

static void row_put(enum kern_dtype t, unsigned char *to, const float *v, uint32_t n)
{
	if (type_bytes(t) == 4)
		memcpy(to, v, 4 * (size_t)n);
	for (uint32_t i = 0; type_bytes(t) == 2 && i < n; i++) {
		uint16_t h = format_bits(t, v[i]);
		memcpy(to + 2 * (size_t)i, &h, 2);
	}
}

static void row_get(enum kern_dtype t, float *v, const unsigned char *from, uint32_t n)
{
	if (type_bytes(t) == 4)
		memcpy(v, from, 4 * (size_t)n);
	for (uint32_t i = 0; type_bytes(t) == 2 && i < n; i++)
		v[i] = (float)format_value(t, from, i);
}

/* --- buffers ------------------------------------------------------------- */

static bool can_share(const struct field *f, enum kern_memory kind)
{
	return kind != KERN_MEM_DEVICE && !f->dense && f->sub == 1 && type_bytes(f->type) == 4;
}

/* Fields side by side, the rows of one between the rows of another, with some columns of nobody. */
static void place_together(const struct job *j, struct live_own *o, enum kern_memory kind,
                           uint32_t rows)
{
	size_t row = 3, at[FIELDS];
	uint32_t count = 0;
	for (uint32_t f = 0; f < j->fields; f++)
		if (can_share(&j->field[f], kind)) {
			at[f] = row = (row + 3) / 4 * 4; /* addresses of tensors are 16-byte aligned */
			row += j->field[f].columns + 1 + f % 2;
			count++;
		}
	row += row % 4 == 0; /* leading dimensions any */
	for (uint32_t f = 0; f < j->fields; f++)
		if (can_share(&j->field[f], kind))
			o->place[f] = (struct place){0, GUARD + 4 * at[f], row};
	if (count)
		o->buffer[o->buffers++].bytes = 2 * GUARD + 4 * row * rows;
}

static void place_fields(const struct job *j, struct live_own *o, enum kern_memory kind)
{
	uint32_t rows = world_limits(&j->world).rows;
	place_together(j, o, kind, rows);
	for (uint32_t f = 0; f < j->fields; f++) {
		const struct field *x = &j->field[f];
		if (can_share(x, kind))
			continue;
		o->place[f] = (struct place){o->buffers, GUARD, x->dense ? x->columns : x->columns + 1 + f};
		o->buffer[o->buffers++].bytes = 2 * GUARD +
		                                4 * ((type_bytes(x->type) * o->place[f].ld * rows * x->sub +
		                                      3) /
		                                     4);
	}
}

static void buffers_new(struct live *l, enum kern_memory kind)
{
	struct live_own *o = l->own;
	place_fields(l->job, o, kind);
	for (uint32_t i = 0; i < o->buffers; i++) {
		struct buffer *b = &o->buffer[i];
		b->mem = mem_get(l->dev, kind, b->bytes);
		b->blank = conform_alloc(b->bytes, 1);
		for (size_t at = 0; at < b->bytes; at += 4)
			*(uint32_t *)(void *)(b->blank + at) = UNWRITTEN;
		for (uint32_t n = 0; n < o->flights; n++) {
			b->image[n] = conform_alloc(b->bytes, 1);
			b->seen[n] = conform_alloc(b->bytes, 1);
		}
	}
	for (uint32_t f = 0; f < l->job->fields; f++) {
		const struct place *p = &o->place[f];
		l->field[f] = (struct kern_tensor){kern_at(o->buffer[p->buffer].mem.dev, p->first), p->ld,
		                                   l->job->field[f].type};
	}
	for (uint32_t c = 0; c < l->job->constants; c++) {
		o->constant[c] = mem_get(l->dev, KERN_MEM_DEVICE, l->job->constant[c].bytes);
		mem_put(l->dev, o->constant[c].dev, l->job->constant[c].data, l->job->constant[c].bytes);
		l->constant[c] = o->constant[c].dev;
	}
}

size_t job_pool_bytes(const struct job *j)
{
	return j->has_kv ? j->world.blocks * j->kv.block_stride_bytes + GUARD : 0;
}

static void pool_new(struct live *l, enum kern_memory kind)
{
	l->kv = l->job->kv;
	if (!l->job->has_kv)
		return;
	l->own->pool = mem_get(l->dev, kind == KERN_MEM_DEVICE ? kind : KERN_MEM_SHARED,
	                       job_pool_bytes(l->job));
	l->kv.base = l->own->pool.dev;
}

struct kern_weight *weight_get(const struct device *dev, enum kern_dtype type, uint32_t count,
                               uint32_t n, uint32_t k, const void *data)
{
	struct kern_weight *w;
	const unsigned char *from = data;
	device_ok(dev, dev->ops->weight_new(dev->d, type, count, n, k, &w), "weight_new");
	for (uint32_t i = 0; i < count; i++, from += n * kern_dtype_bytes(type, k))
		device_ok(dev, dev->ops->weight_load(dev->d, w, i, from, 0), "weight_load");
	return w;
}

static void weights_new(struct live *l)
{
	const struct job *j = l->job;
	l->w = conform_alloc(j->matrices, sizeof(struct kern_weight *));
	for (uint32_t i = 0, first = 0; i < j->matrices; i++) {
		const struct matrix *m = &j->matrix[i];
		size_t bytes = (size_t)(matrix_row(m, m->n - 1) - m->data) +
		               kern_dtype_bytes(m->type, m->k);
		unsigned char *data = malloc(bytes);
		memcpy(data, m->data, bytes);
		first = m->count ? i : first;
		if (m->count)
			device_ok(l->dev,
			          l->dev->ops->weight_new(l->dev->d, m->type, m->count, m->n, m->k, &l->w[i]),
			          "weight_new");
		device_ok(l->dev,
		          l->dev->ops->weight_load(l->dev->d, l->w[first], i - first, data, m->row_bytes),
		          "weight_load");
		memset(data, 0xff, bytes); /* nobody reads it any more */
		free(data);
	}
}

/* --- programs ------------------------------------------------------------ */

static int programs_new(struct live *l, bool split)
{
	struct live_own *o = l->own;
	const struct kern_ops *k = l->dev->ops;
	struct kern_limits limits = world_limits(&l->job->world);
	struct kern_op op[OPS_MAX] = {0};
	uint32_t n = l->job->record(l->job, l, op);
	int rc = 0;
	/* every fourth program of the CUDA backend is planned without wgmma, and so is compared; a job
	 * has three for each target */
	static unsigned programs;
	const char *set = getenv("PDSERVE_CUDA_WGMMA");
	char *before = set ? strdup(set) : NULL;
	if (programs++ % 4 == 3)
		setenv("PDSERVE_CUDA_WGMMA", "0", 1);
	for (uint32_t i = 0; i < n && !rc; i += split ? 1 : n) {
		rc = k->program_new(l->dev->d, op + i, split ? 1 : n, &limits, &o->program[o->programs]);
		o->programs += rc == 0;
	}
	if (!rc && l->job->record_history) {
		memset(op, 0, sizeof op);
		n = l->job->record_history(l->job, l, op);
		rc = k->program_new(l->dev->d, op, n, &limits, &o->history);
	}
	if (before)
		setenv("PDSERVE_CUDA_WGMMA", before, 1);
	else
		unsetenv("PDSERVE_CUDA_WGMMA");
	free(before);
	memset(op, 0xff, sizeof op); /* the operations are copied */
	return rc;
}

struct live *live_new(const struct job *j, const struct device *dev, enum kern_memory kind,
                      bool split, int *ret_rc)
{
	struct live *l = conform_alloc(1, sizeof *l);
	*l = (struct live){.job = j, .dev = dev, .own = conform_alloc(1, sizeof *l->own)};
	l->own->flights = split ? FLIGHTS : 1;
	buffers_new(l, kind);
	pool_new(l, kind);
	weights_new(l);
	for (uint32_t n = 0; n < l->own->flights; n++) {
		l->own->batch[n] = mem_get(dev, KERN_MEM_PINNED, batch_bytes(&j->world));
		l->own->batch_image[n] = conform_alloc(batch_bytes(&j->world), 1);
	}
	*ret_rc = programs_new(l, split);
	if (*ret_rc)
		live_free(&l);
	return l;
}

void live_free(struct live **lp)
{
	struct live *l = *lp;
	const struct kern_ops *k = l->dev->ops;
	struct kern_device *d = l->dev->d;
	for (uint32_t i = 0; i < l->own->programs; i++)
		k->program_destroy(&l->own->program[i]);
	if (l->own->history)
		k->program_destroy(&l->own->history);
	for (uint32_t i = 0; i < l->job->matrices; i++)
		k->weight_destroy(d, &l->w[i]);
	for (uint32_t i = 0; i < l->own->buffers; i++)
		k->mem_free(d, &l->own->buffer[i].mem);
	for (uint32_t i = 0; i < l->job->constants; i++)
		k->mem_free(d, &l->own->constant[i]);
	k->mem_free(d, &l->own->pool);
	for (uint32_t n = 0; n < l->own->flights; n++)
		k->mem_free(d, &l->own->batch[n]);
	*lp = NULL;
}

/* --- a step -------------------------------------------------------------- */

static unsigned char *element_at(const struct live *l, uint32_t f, unsigned char *of, uint32_t slot,
                                 uint32_t sub)
{
	const struct place *p = &l->own->place[f];
	return of + p->first +
	       ((size_t)slot * l->job->field[f].sub + sub) * p->ld * type_bytes(l->job->field[f].type);
}

static struct slots slots_of(const struct world *w, const struct step *st)
{
	struct slots s = {0};
	for (int k = 0; k < 2; k++) {
		s.live[k] = conform_alloc(world_limits(w).rows, sizeof(uint32_t));
		s.all[k] = conform_alloc(world_limits(w).rows, sizeof(uint32_t));
	}
	for (int k = 0; k < 2; k++)
		for (uint32_t i = 0; i < st->parts; i++) {
			const struct part
				*p = &st->part[k == KERN_ROWS_TAIL && st->tail_reversed ? st->parts - 1 - i : i];
			uint32_t from = k == KERN_ROWS_TAIL ? p->rows - p->tail : 0;
			for (uint32_t r = from; r < p->rows; r++) {
				uint32_t at = s.rows[k]++;
				s.all[k][at] = w->all[p->seq] + p->position + r;
				/* of history: not used */
				s.live[k][at] = w->live[p->seq] + p->position + r - w->seq[p->seq].position;
			}
		}
	return s;
}

/* What is in the buffers before a step. */
static void images_fill(struct live *l, const struct job *data, const struct slots *s, bool history,
                        uint32_t flight)
{
	for (uint32_t i = 0; i < l->own->buffers; i++)
		memcpy(l->own->buffer[i].image[flight], l->own->buffer[i].blank, l->own->buffer[i].bytes);
	for (uint32_t f = 0; f < data->fields; f++) {
		const struct field *x = &data->field[f];
		unsigned char *image = l->own->buffer[l->own->place[f].buffer].image[flight];
		if (x->dir == OUT || (history && !x->history))
			continue;
		for (uint32_t i = 0; i < s->rows[x->rows]; i++)
			for (uint32_t j = 0; j < x->sub; j++) {
				uint32_t row = x->history ? s->all[x->rows][i] : s->live[x->rows][i];
				row_put(x->type, element_at(l, f, image, i, j),
				        x->data + ((size_t)row * x->sub + j) * x->columns, x->columns);
			}
	}
}

/* Takes the live rows of an output from what was seen, and copies them to the image: what
 * differs then was written wrongly. Of the history nothing is kept. */
static void rows_take(struct live *l, uint32_t f, const struct slots *s, struct result *r,
                      bool history, uint32_t flight)
{
	const struct field *x = &l->job->field[f];
	struct buffer *b = &l->own->buffer[l->own->place[f].buffer];
	for (uint32_t i = 0; i < s->rows[x->rows]; i++) {
		uint32_t row = s->live[x->rows][i];
		for (uint32_t j = 0; j < x->sub; j++) {
			unsigned char *from = element_at(l, f, b->seen[flight], i, j);
			memcpy(element_at(l, f, b->image[flight], i, j), from,
			       x->columns * type_bytes(x->type));
			if (!history)
				row_get(x->type, r->out[f] + ((size_t)row * x->sub + j) * x->columns, from,
				        x->columns);
		}
		if (!history)
			r->have[f][row] = true;
	}
}

static void buffer_compare(const struct live *l, uint32_t i, uint32_t flight)
{
	const struct buffer *b = &l->own->buffer[i];
	const unsigned char *image = b->image[flight], *seen = b->seen[flight];
	size_t at = 0;
	if (!memcmp(image, seen, b->bytes))
		return;
	while (image[at] == seen[at])
		at++;
	for (uint32_t f = 0; f < l->job->fields; f++) {
		const struct place *p = &l->own->place[f];
		size_t e = type_bytes(l->job->field[f].type);
		if (p->buffer == i)
			conform_fail("written where it may not: byte %zu of the buffer of %s (%u columns, "
			             "leading dimension %zu): row %td, column %td",
			             at, l->job->field[f].name, l->job->field[f].columns, p->ld,
			             ((ptrdiff_t)at - (ptrdiff_t)p->first) / (ptrdiff_t)(p->ld * e),
			             ((ptrdiff_t)at - (ptrdiff_t)p->first) / (ptrdiff_t)e % (ptrdiff_t)p->ld);
	}
}

static void step_write(struct live *l, const struct step *st, uint32_t flight)
{
	struct live_own *o = l->own;
	size_t bytes = batch_bytes(&l->job->world);
	batch_write(&l->job->world, st, o->salt++, NULL, o->batch_image[flight]);
	if (o->batch[flight].host)
		memcpy(o->batch[flight].host, o->batch_image[flight], bytes);
	else
		mem_put(l->dev, o->batch[flight].dev, o->batch_image[flight], bytes);
	for (uint32_t i = 0; i < o->buffers; i++)
		device_ok(l->dev,
		          l->dev->ops->upload(l->dev->s, o->buffer[i].mem.dev, o->buffer[i].image[flight],
		                              o->buffer[i].bytes),
		          "upload");
}

static void step_begin(struct live *l, const struct job *data, const struct step *st,
                       uint32_t flight)
{
	const struct kern_ops *k = l->dev->ops;
	struct live_own *o = l->own;
	size_t mark = conform_mark();
	struct slots s = slots_of(&data->world, st);
	images_fill(l, data, &s, st->history, flight);
	conform_release(mark);
	step_write(l, st, flight);
	for (uint32_t i = 0; i < (st->history ? 1 : o->programs); i++)
		device_ok(l->dev,
		          k->run(l->dev->s, st->history ? o->history : o->program[i], &o->batch[flight]),
		          "run");
	for (uint32_t i = 0; i < o->buffers; i++)
		device_ok(l->dev,
		          k->download(l->dev->s, o->buffer[i].seen[flight], o->buffer[i].mem.dev,
		                      o->buffer[i].bytes),
		          "download");
}

static void step_end(struct live *l, const struct job *data, const struct step *st,
                     struct result *r, uint32_t flight)
{
	size_t mark = conform_mark();
	struct slots s = slots_of(&data->world, st);
	for (uint32_t f = 0; f < data->fields; f++)
		if (data->field[f].dir != IN)
			rows_take(l, f, &s, r, st->history, flight);
	for (uint32_t i = 0; i < l->own->buffers; i++)
		buffer_compare(l, i, flight);
	conform_release(mark);
}

/* --- a schedule ---------------------------------------------------------- */

struct result *result_new(const struct job *j)
{
	static uint64_t id;
	struct result *r = conform_alloc(1, sizeof *r);
	r->id = ++id;
	for (uint32_t f = 0; f < j->fields; f++)
		if (j->field[f].dir != IN) {
			r->have[f] = conform_alloc(world_rows(&j->world), sizeof **r->have);
			r->out[f] = conform_alloc((size_t)world_rows(&j->world) * j->field[f].sub *
			                              j->field[f].columns,
			                          sizeof **r->out);
		}
	r->pool = conform_alloc(job_pool_bytes(j), 1);
	return r;
}

struct result *live_run(struct live *l, const struct job *data, const struct schedule *s,
                        unsigned char fill)
{
	struct result *r = result_new(data);
	size_t bytes = job_pool_bytes(data);
	uint32_t flights = l->own->flights;
	r->fill = fill;
	memset(r->pool, fill, bytes);
	if (bytes)
		mem_put(l->dev, l->own->pool.dev, r->pool, bytes);
	for (uint32_t i = 0; i < s->steps; i++) {
		const struct step *st = &s->step[i];
		conform_about(3, "step %u, %u sequences, the first with %u rows at %u", i, st->parts,
		              st->part[0].rows, st->part[0].position);
		step_begin(l, data, st, i % flights);
		if ((i + 1) % flights && i + 1 < s->steps)
			continue;
		device_ok(l->dev, l->dev->ops->sync(l->dev->s), "sync");
		for (uint32_t n = i / flights * flights; n <= i; n++)
			step_end(l, data, &s->step[n], r, n % flights);
	}
	conform_about(3, "%s", "");
	if (bytes)
		mem_take(l->dev, r->pool, l->own->pool.dev, bytes);
	return r;
}
