/* rdma_side.c - see rdma_side.h. */
#include "rdma_side.h"
#include "rdma_nic.h"
#include "util/check.h"
#include "util/log.h"

#include <stdio.h>
#include <string.h>

int rdma_side_say(struct rdma_side *s, const struct rdma_msg *m)
{
	unsigned char out[PATH_SAY_MAX];
	size_t n = rdma_msg_write(m, out);
	return s->hooks.say(s->hooks.arg, out, n);
}

void rdma_side_owe_end(struct rdma_side *s, unsigned lane, uint64_t session)
{
	s->ended[lane] = session;
	rdma_tell(s->t, &s->due);
}

/* A sender's lane that has ended, or was never offered, has no session. */
static const struct rdma_qp *lane_in_use(const struct rdma_side *s, unsigned lane)
{
	const struct rdma_qp *q = s->lanes[lane];
	return q && q->session ? q : NULL;
}

/* NULL if all lanes are up, else why not. */
static const char *why_down(const struct rdma_side *s)
{
	const char *why = "no queue pair has been offered: the receiver has no pool that RDMA can "
					  "write";
	for (unsigned i = 0; i < RDMA_LANES_MAX; i++) {
		const struct rdma_qp *q = lane_in_use(s, i);
		if (q && q->state != RDMA_QP_UP)
			return q->why;
		if (q)
			why = NULL;
	}
	return why;
}

/* One hook is called, at the end: it may destroy s. An END that cannot be sent is not repeated: the
 * other end asks again. */
static void side_tell(struct rdma_due *d)
{
	struct rdma_side *s = list_entry(d, struct rdma_side, due);
	for (unsigned i = 0; i < RDMA_LANES_MAX; i++) {
		if (!s->ended[i])
			continue;
		struct rdma_msg m = {.kind = RDMA_END, .lane = i, .round = 1, .session = s->ended[i]};
		s->ended[i] = 0;
		rdma_tell(s->t, d);
		rdma_side_say(s, &m);
		return;
	}
	const char *why = why_down(s);
	int up = !why;
	if (up == s->told_up)
		return;
	s->told_up = up;
	s->hooks.up(s->hooks.arg, up, up ? "" : why);
}

void rdma_side_init(struct rdma_side *s, struct rdma *t, const struct rdma_qp_end *end,
                    const struct path_peer *peer, const struct path_hooks *hooks)
{
	s->t = t;
	s->end = end;
	s->peer = *peer;
	s->hooks = *hooks;
	s->due.tell = side_tell;
	list_init(&s->node);
	list_init(&s->due.node);
}

void rdma_side_fini(struct rdma_side *s)
{
	for (unsigned i = 0; i < RDMA_LANES_MAX; i++)
		CHECK(!s->lanes[i]);
	list_remove(&s->node);
	list_remove(&s->due.node);
}

/* --- pdctl links ------------------------------------------------------------ */

static void add_lane(const struct path_state *of, struct path_state *sum)
{
	sum->bytes += of->bytes;
	sum->frames += of->frames;
	sum->repeated_bytes += of->repeated_bytes;
	sum->restarts += of->restarts;
	sum->errors += of->errors;
	sum->canaries += of->canaries;
	sum->canaries_lost += of->canaries_lost;
	if (of->canary_us > sum->canary_us) {
		sum->canary_us = of->canary_us;
		sum->canary_mbit_s = of->canary_mbit_s;
	}
	if (of->last_error_at_us > sum->last_error_at_us) {
		sum->last_error_at_us = of->last_error_at_us;
		memcpy(sum->last_error, of->last_error, sizeof sum->last_error);
	}
}

/* The NICs of its queue pairs, each once, with the number of its queue pairs if it is above 1. */
static void show_nics(const struct rdma_side *s, char *out, size_t size)
{
	size_t at = 0;
	for (unsigned i = 0; i < s->t->n_nics && at < size; i++) {
		const struct rdma_nic *n = s->t->nics[i];
		enum ibv_mtu mtu = IBV_MTU_4096;
		unsigned lanes = 0;
		char text[160];
		for (unsigned k = 0; k < RDMA_LANES_MAX; k++) {
			const struct rdma_qp *q = lane_in_use(s, k);
			if (!q || q->nic != n)
				continue;
			lanes++;
			if (q->other_known && q->other.mtu < mtu)
				mtu = (enum ibv_mtu)q->other.mtu;
		}
		if (!lanes)
			continue;
		rdma_nic_show(n, mtu, text, sizeof text);
		at += (size_t)snprintf(out + at, size - at, "%s%s", at ? "; " : "", text);
		if (lanes > 1 && at < size)
			at += (size_t)snprintf(out + at, size - at, ", %u queue pairs", lanes);
	}
}

void rdma_side_show(const struct rdma_side *s, struct path_state *ret)
{
	*ret = (struct path_state){.transport = rdma_path_ops.name,
	                           .up = why_down(s),
	                           .errors = s->errors};
	for (unsigned i = 0; i < RDMA_LANES_MAX; i++)
		if (s->lanes[i])
			add_lane(&s->lanes[i]->shown, ret);
	show_nics(s, ret->via, sizeof ret->via);
}
