/* path_fake.h - a transport that a test drives: it moves no bytes, and says what it was asked. One
 * path and one intake at a time. */
#ifndef TEST_PATH_FAKE_H
#define TEST_PATH_FAKE_H

#include "daemons/messager/path/path.h"
#include "util/check.h"
#include "util/mem.h"

#include <stdlib.h>
#include <string.h>

#define FAKE_INCOMING_MAX 256u

struct path {
	struct path_hooks hooks;
};

struct outgoing {
	struct outgoing_opts o;
	uint64_t given; /* bytes */
};

struct intake {
	struct path_hooks hooks;
};

enum fake_state { FAKE_OPEN, FAKE_CLOSING, FAKE_CLOSED };
struct incoming {
	struct incoming_opts o;
	struct intake *of;
	enum fake_state state;
	int complete;
	uint32_t dst0, dst_last; /* the first and the last block */
};

static struct {
	int paths, intakes;
	int said;                                /* messages PATH that reached a path */
	struct outgoing *out[FAKE_INCOMING_MAX]; /* those that have not ended */
	struct incoming *in[FAKE_INCOMING_MAX];  /* those that are not freed */
	unsigned n_out, n_in, n_ended;
	int bad_handle, refuses, closes_later; /* what it does next */
} fake;

static struct path *fake_path_new(void *t, const struct path_peer *who, const struct path_hooks *h)
{
	struct path *p = mem_zalloc(sizeof *p);
	(void)t, (void)who;
	p->hooks = *h;
	fake.paths++;
	return p;
}

static void fake_path_destroy(struct path **p)
{
	CHECK(fake.n_out == 0);
	fake.paths--;
	free(*p);
	*p = NULL;
}

static int fake_said(struct path *p, const void *bytes, size_t n, struct err *err)
{
	(void)p, (void)bytes, (void)n, (void)err;
	fake.said++;
	return 0;
}

static void fake_state(const struct path *p, struct path_state *ret)
{
	(void)p;
	*ret = (struct path_state){.transport = "fake"};
}

static int fake_outgoing_new(struct path *p, const struct outgoing_opts *o, struct outgoing **ret,
                             struct err *err)
{
	(void)p;
	if (fake.bad_handle)
		return err_set(err, ERR_INVALID, "a handle of %zu bytes", o->handle_bytes);
	struct outgoing *g = *ret = mem_zalloc(sizeof *g);
	g->o = *o;
	CHECK(fake.n_out < FAKE_INCOMING_MAX);
	fake.out[fake.n_out++] = g;
	return 0;
}

static void fake_outgoing_send(struct outgoing *g, uint32_t layer, uint32_t first, uint32_t n)
{
	CHECK(first + n <= g->o.blocks && layer < g->o.layout->layers);
	g->given += n * g->o.layout->piece_bytes[layer];
}

static void fake_outgoing_end(struct outgoing **g)
{
	for (unsigned i = 0; i < fake.n_out; i++)
		if (fake.out[i] == *g)
			fake.out[i] = fake.out[--fake.n_out];
	fake.n_ended++;
	free(*g);
	*g = NULL;
}

static struct intake *fake_intake_new(void *t, const struct path_peer *who,
                                      const struct path_hooks *h)
{
	struct intake *i = mem_zalloc(sizeof *i);
	(void)t, (void)who;
	i->hooks = *h;
	fake.intakes++;
	return i;
}

static void fake_intake_destroy(struct intake **i)
{
	for (unsigned k = fake.n_in; k-- > 0;)
		if (fake.in[k]->of == *i) {
			free(fake.in[k]);
			fake.in[k] = fake.in[--fake.n_in];
		}
	fake.intakes--;
	free(*i);
	*i = NULL;
}

static int fake_intake_said(struct intake *i, const void *bytes, size_t n, struct err *err)
{
	(void)i, (void)bytes, (void)n, (void)err;
	return 0;
}

static void fake_intake_state(const struct intake *i, struct path_state *ret)
{
	(void)i;
	*ret = (struct path_state){.transport = "fake"};
}

static int fake_incoming_new(struct intake *i, const struct incoming_opts *o, struct incoming **ret,
                             unsigned char *handle, size_t *ret_bytes, struct err *err)
{
	static unsigned char number;
	if (fake.refuses)
		return err_set(err, ERR_FULL, "no more");
	struct incoming *n = *ret = mem_zalloc(sizeof *n);
	CHECK(fake.n_in < FAKE_INCOMING_MAX);
	n->o = *o;
	n->of = i;
	n->dst0 = o->dst[0];
	n->dst_last = o->dst[o->blocks - 1];
	fake.in[fake.n_in++] = n;
	handle[0] = ++number;
	*ret_bytes = 1;
	return 0;
}

static int fake_incoming_complete(const struct incoming *n)
{
	CHECK(n->state == FAKE_OPEN);
	return n->complete;
}

static int fake_incoming_close(struct incoming *n)
{
	CHECK(n->state == FAKE_OPEN);
	n->state = fake.closes_later ? FAKE_CLOSING : FAKE_CLOSED;
	return n->state == FAKE_CLOSED;
}

static void fake_incoming_free(struct incoming **np)
{
	struct incoming *n = *np;
	CHECK(n->state == FAKE_CLOSED);
	for (unsigned i = 0; i < fake.n_in; i++)
		if (fake.in[i] == n)
			fake.in[i] = fake.in[--fake.n_in];
	free(n);
	*np = NULL;
}

static void fake_incoming_drop(struct incoming **np)
{
	(*np)->state = FAKE_CLOSED;
	fake_incoming_free(np);
}

/* The path has fenced off a lease that it was asked to close. */
__attribute__((unused)) static void fake_closed(struct incoming *n)
{
	CHECK(n->state == FAKE_CLOSING);
	n->state = FAKE_CLOSED;
	n->o.closed(n->o.arg);
}

static const struct path_ops fake_ops = {
	.name = "fake",
	.path_new = fake_path_new,
	.path_destroy = fake_path_destroy,
	.path_said = fake_said,
	.path_state = fake_state,
	.outgoing_new = fake_outgoing_new,
	.outgoing_send = fake_outgoing_send,
	.outgoing_end = fake_outgoing_end,
	.intake_new = fake_intake_new,
	.intake_destroy = fake_intake_destroy,
	.intake_said = fake_intake_said,
	.intake_state = fake_intake_state,
	.incoming_new = fake_incoming_new,
	.incoming_complete = fake_incoming_complete,
	.incoming_close = fake_incoming_close,
	.incoming_free = fake_incoming_free,
	.incoming_drop = fake_incoming_drop,
};

#endif
