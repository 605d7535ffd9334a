/* main.c - pdmessagerd: moves KV blocks between the pools of this host's workers while the prompt
 * is still being computed.
 *
 * One event loop thread does everything: svc/attached.h receives descriptors, the links deliver
 * messages, mover.c and transfer.c copy. The pump runs the mover after every event that may let a
 * transfer go on: a doorbell, a message, a worker that attaches or detaches, and a slow timer while
 * transfers are open. Before the loop sleeps, the messager says so in the rings and checks them
 * once more; an idle messager does nothing until a bell rings. It leaves nothing behind when it is
 * killed: the rings belong to the workers, and the next messager continues from them. */
#include "mover.h"
#include "svc/attached.h"
#include "svc/svc.h"
#include "util/clock.h"
#include "util/mem.h"

#include <stdlib.h>
#include <string.h>

enum messager_stat {
	MS_BYTES,
	MS_SENT,
	MS_CANCELLED,
	MS_REVOKED,
	MS_REFUSED,
	MS_STALLED,
	MS_DEADLINE,
	MS_PEER_GONE,
	MS_MALFORMED,
	MS_COPY_FAILED,
	MS_PIECES,
	MS_COPIES,
	MS_HANDOVERS_REFUSED,
	MS_WORKERS,
	MS_TRANSFERS,
	MS_COPY_SECONDS,
	MS_TAIL_SECONDS,
	MS_TRANSFER_SECONDS,
	MS_REACTION_SECONDS,
	MS_COUNT
};

struct messager {
	struct svc *svc;
	struct mover *mover;
	struct attached *attached; /* connections of workers */
	struct event *pump_ev;     /* zero timer: more to copy, after other events */
	struct event *scan_ev;     /* while transfers are open */
	uint64_t scan_us;
	int scanning;
	uint64_t bytes_counted;
};

static const struct conf_key keys[] = {
	{"stall_ms", CONF_INT, "2000", 10, 600000, "ms", 1,
     "longest time that a transfer waits for progress of the prefill worker, for the decode "
     "worker's memory, for a link or for an answer; then it ends",
     NULL},
	{"slice_kb", CONF_INT, "1024", 16, 1048576, "KiB", 1,
     "bytes copied before the messager handles other events", NULL},
	{"scan_ms", CONF_INT, "20", 1, 10000, "ms", 1,
     "while transfers are open, the messager checks the transfer rings this often, even without a "
     "doorbell",
     NULL},
	{"workers_max", CONF_INT, "64", 2, 1024, "workers", 0, "maximum number of attached workers",
     NULL},
	CONF_END,
};

static const struct stat_def stats[MS_COUNT] = {
	[MS_BYTES] = {"pdserve_transfer_bytes_total", "KV bytes copied.", STAT_COUNTER},
	[MS_SENT] = {"pdserve_transfers_sent_total",
                 "Transfers whose KV was delivered and acknowledged.", STAT_COUNTER},
	[MS_CANCELLED] = {"pdserve_transfers_cancelled_total",
                      "Transfers that the prefill worker cancelled.", STAT_COUNTER},
	[MS_REVOKED] = {"pdserve_transfers_revoked_total",
                    "Transfers whose lease the decode worker revoked.", STAT_COUNTER},
	[MS_REFUSED] = {"pdserve_transfers_refused_total",
                    "Transfers whose lease the decode worker refused to open.", STAT_COUNTER},
	[MS_STALLED] = {"pdserve_transfers_stalled_total", "Transfers that reached the stall limit.",
                    STAT_COUNTER},
	[MS_DEADLINE] = {"pdserve_transfers_deadline_total", "Transfers whose deadline passed.",
                     STAT_COUNTER},
	[MS_PEER_GONE] = {"pdserve_transfers_peer_gone_total", "Transfers with a worker that ended.",
                      STAT_COUNTER},
	[MS_MALFORMED] = {"pdserve_transfers_malformed_total",
                      "Transfers with counts, blocks, names or layouts that do not fit.",
                      STAT_COUNTER},
	[MS_COPY_FAILED] = {"pdserve_transfers_copy_failed_total",
                        "Transfers with a copy that failed on the device.", STAT_COUNTER},
	[MS_PIECES] = {"pdserve_transfer_pieces_total", "Pieces (layer, block) copied.", STAT_COUNTER},
	[MS_COPIES] = {"pdserve_transfer_copies_total",
                   "Copies into which neighbouring pieces were joined.", STAT_COUNTER},
	[MS_HANDOVERS_REFUSED] = {"pdserve_handovers_refused_total",
                              "Workers whose memory was refused.", STAT_COUNTER},
	[MS_WORKERS] = {"pdserve_workers", "Workers whose memory is mapped.", STAT_GAUGE},
	[MS_TRANSFERS] = {"pdserve_transfers_open", "Open transfers.", STAT_GAUGE},
	[MS_COPY_SECONDS] = {"pdserve_transfer_copy_seconds",
                         "Time spent copying, per delivered transfer.", STAT_SECONDS},
	[MS_TAIL_SECONDS] = {"pdserve_transfer_tail_seconds",
                         "Last layer seen computed until all blocks were delivered.", STAT_SECONDS},
	[MS_TRANSFER_SECONDS] = {"pdserve_transfer_seconds",
                             "Transfer found until closed, per delivered transfer.", STAT_SECONDS},
	[MS_REACTION_SECONDS] = {"pdserve_transfer_reaction_seconds",
                             "Doorbell until the blocks that it announced were copied.",
                             STAT_SECONDS},
};

static struct messager *messager_of(struct svc *s)
{
	return svc_data(s);
}

/* --- what the mover asks of us ------------------------------------------- */

static uint64_t out_now(void *arg)
{
	(void)arg;
	return clock_us();
}

static struct peer *peer_of(struct messager *m, const char *name, uint64_t epoch)
{
	struct peer *p = chan_find(svc_chan(m->svc), name);
	return p && peer_is_up(p) && peer_epoch(p) == epoch ? p : NULL;
}

static int out_linked(void *arg, const char *name, uint64_t epoch)
{
	return peer_of(arg, name, epoch) != NULL;
}

static int out_send(void *arg, const char *name, uint64_t epoch, enum msg_type type,
                    const struct msg_head *head, const ProtobufCMessage *body)
{
	struct messager *m = arg;
	struct peer *p = peer_of(m, name, epoch);
	return p ? chan_send(svc_chan(m->svc), p, type, head, body) : ERR_CLOSED;
}

static void out_ended(void *arg, const struct transfer_report *r)
{
	static const enum messager_stat counter[END_COUNT] = {
		[END_SENT] = MS_SENT,
		[END_CANCELLED] = MS_CANCELLED,
		[END_REVOKED] = MS_REVOKED,
		[END_REFUSED] = MS_REFUSED,
		[END_STALLED] = MS_STALLED,
		[END_DEADLINE] = MS_DEADLINE,
		[END_PEER_GONE] = MS_PEER_GONE,
		[END_MALFORMED] = MS_MALFORMED,
		[END_COPY_FAILED] = MS_COPY_FAILED,
	};
	struct messager *m = arg;
	struct stat_set *s = svc_stats(m->svc);
	stat_add(s, counter[r->end], 1);
	stat_add(s, MS_PIECES, r->pieces);
	stat_add(s, MS_COPIES, r->runs);
	if (r->end != END_SENT)
		return;
	stat_observe_us(s, MS_COPY_SECONDS, r->copy_us);
	stat_observe_us(s, MS_TAIL_SECONDS, r->tail_us);
	stat_observe_us(s, MS_TRANSFER_SECONDS, r->life_us);
}

/* Workers keep their pools and hand their descriptors to the next process. */
static void out_lost(void *arg, const char *why)
{
	(void)arg;
	svc_leave(why);
}

/* --- the pump ------------------------------------------------------------ */

static void scan_while_open(struct messager *m, int open)
{
	if (open == m->scanning)
		return;
	m->scanning = open;
	const struct timeval tv = clock_timeval(m->scan_us);
	if (open)
		event_add(m->scan_ev, &tv);
	else
		event_del(m->scan_ev);
}

static void pump_soon(struct messager *m)
{
	/* a timer, not event_active: the loop polls all other events first */
	event_add(m->pump_ev, &(struct timeval){0});
}

/* Checks the rings and moves the transfers; called after anything that may let one go on. */
static void messager_pump(struct messager *m)
{
	mover_sleeping(m->mover, 0);
	enum mover_turn turn = mover_turn(m->mover);
	if (turn != MOVER_BUSY) {
		mover_sleeping(m->mover, 1);
		turn = mover_turn(m->mover); /* a transfer published before P saw the 1 rang no bell */
	}
	if (turn == MOVER_BUSY) {
		mover_sleeping(m->mover, 0);
		pump_soon(m);
	}
	scan_while_open(m, turn != MOVER_IDLE);
	stat_add(svc_stats(m->svc), MS_BYTES, mover_bytes(m->mover) - m->bytes_counted);
	m->bytes_counted = mover_bytes(m->mover);
	stat_set_value(svc_stats(m->svc), MS_TRANSFERS, mover_open_transfers(m->mover));
}

static void on_pump(evutil_socket_t fd, short what, void *arg)
{
	(void)fd;
	(void)what;
	messager_pump(arg);
}

/* --- workers ------------------------------------------------------------- */

/* The pump runs after the answer: no lease is opened for a worker that does not know us yet. */
static int on_attach(void *arg, const struct attached_memory *h, void **ret_worker, struct err *err)
{
	struct messager *m = arg;
	(void)err;
	*ret_worker = mover_add(m->mover, h->hello->name, h->hello->epoch, &h->layout, &h->region,
	                        h->ring);
	pump_soon(m);
	return 0;
}

static void on_detach(void *arg, void *worker, const char *why)
{
	struct messager *m = arg;
	(void)why;
	if (!m->mover) /* we stop: mover_destroy has removed the workers */
		return;
	mover_remove(m->mover, worker);
	pump_soon(m);
}

static void on_bell(void *arg)
{
	struct messager *m = arg;
	uint64_t begin = clock_us(), before = mover_bytes(m->mover);
	messager_pump(m);
	if (mover_bytes(m->mover) != before)
		stat_observe_us(svc_stats(m->svc), MS_REACTION_SECONDS, clock_us() - begin);
}

/* --- messages ------------------------------------------------------------ */

static void on_lease_opened(struct svc *s, struct peer *p, const struct msg_head *head,
                            const ProtobufCMessage *body)
{
	(void)head;
	mover_lease_opened(messager_of(s)->mover, peer_name(p), peer_epoch(p),
	                   (const Pds__LeaseOpened *)body);
	messager_pump(messager_of(s));
}

static void on_lease_revoke(struct svc *s, struct peer *p, const struct msg_head *head,
                            const ProtobufCMessage *body)
{
	mover_lease_revoke(messager_of(s)->mover, peer_name(p), peer_epoch(p), head,
	                   (const Pds__LeaseRevoke *)body);
	messager_pump(messager_of(s));
}

static void on_kv_ready_ack(struct svc *s, struct peer *p, const struct msg_head *head,
                            const ProtobufCMessage *body)
{
	(void)head;
	mover_kv_ready_ack(messager_of(s)->mover, peer_name(p), peer_epoch(p),
	                   (const Pds__KvReadyAck *)body);
	messager_pump(messager_of(s));
}

static const struct svc_msg messages[] = {
	{MSG_LEASE_OPENED, on_lease_opened},
	{MSG_LEASE_REVOKE, on_lease_revoke},
	{MSG_KV_READY_ACK, on_kv_ready_ack},
	{0},
};

static void on_up(struct svc *s, struct peer *p)
{
	struct messager *m = messager_of(s);
	mover_linked(m->mover, peer_name(p), peer_epoch(p));
	messager_pump(m);
}

/* --- life ---------------------------------------------------------------- */

static struct mover_limits limits_of(struct svc *s)
{
	const struct conf *c = svc_conf(s);
	return (struct mover_limits){(uint64_t)conf_int(c, "stall_ms") * 1000u,
	                             (size_t)conf_int(c, "slice_kb") << 10};
}

static void messager_stop(struct svc *s)
{
	struct messager *m = messager_of(s);
	if (!m)
		return;
	/* workers are not told: the next messager continues from the rings */
	mover_destroy(&m->mover);
	attached_close(&m->attached, "the messager ends");
	event_free(m->pump_ev);
	event_free(m->scan_ev);
	free(m);
	svc_set_data(s, NULL);
}

static int messager_start(struct svc *s, struct err *err)
{
	struct messager *m = mem_zalloc(sizeof *m);
	const struct mover_out out = {m, out_now, out_linked, out_send, out_ended, out_lost};
	const struct mover_limits limits = limits_of(s);
	const struct attached_hooks hooks = {.svc = s,
	                                     .arg = m,
	                                     .workers_max = (unsigned)conf_int(svc_conf(s),
	                                                                       "workers_max"),
	                                     .stat_workers = MS_WORKERS,
	                                     .stat_refused = MS_HANDOVERS_REFUSED,
	                                     .attach = on_attach,
	                                     .detach = on_detach,
	                                     .bell = on_bell};
	m->svc = s;
	m->scan_us = (uint64_t)conf_int(svc_conf(s), "scan_ms") * 1000u;
	m->mover = mover_new(&out, &limits);
	m->pump_ev = event_new(svc_base(s), -1, 0, on_pump, m);
	m->scan_ev = event_new(svc_base(s), -1, EV_PERSIST, on_pump, m);
	svc_set_data(s, m);
	int r = attached_listen(&hooks, &m->attached, err);
	if (r < 0)
		messager_stop(s);
	return r;
}

static int messager_reload(struct svc *s, struct err *err)
{
	struct messager *m = messager_of(s);
	(void)err;
	const struct mover_limits limits = limits_of(s);
	mover_set_limits(m->mover, &limits);
	m->scan_us = (uint64_t)conf_int(svc_conf(s), "scan_ms") * 1000u;
	scan_while_open(m, 0);
	messager_pump(m);
	return 0;
}

/* When told to stop, the messager continues all transfers, new ones too, until none is open or the
 * time is up. The rest stays in the rings for the next messager and waits until that has
 * started. */
static int messager_idle(struct svc *s)
{
	return mover_open_transfers(messager_of(s)->mover) == 0;
}

static void messager_status(struct svc *s, struct buf *out)
{
	const struct messager *m = messager_of(s);
	buf_printf(out, ",\"open_transfers\":%u,\"bytes\":%llu,\"revoked_leases\":%u,\"attached\":",
	           mover_open_transfers(m->mover), (unsigned long long)mover_bytes(m->mover),
	           mover_revoked(m->mover));
	mover_workers_json(m->mover, out);
}

static int ctl_transfers(struct svc *s, char *const *args, size_t n_args, struct buf *out,
                         struct err *err)
{
	(void)args;
	if (n_args)
		return err_set(err, ERR_INVALID, "transfers takes no arguments, %zu were given", n_args);
	mover_transfers_json(messager_of(s)->mover, out);
	return 0;
}

static const struct svc_ctl ctl[] = {
	{"transfers", ctl_transfers, "open transfers: request, state, from, to, blocks sent, age", 0},
	{0},
};

/* For each worker: connection, doorbell, ring, memory, process (pidfd), link. */
static unsigned descriptors(const struct conf *c, const char **ret_key)
{
	*ret_key = "workers_max";
	return 6 * (unsigned)conf_int(c, *ret_key);
}

int main(int argc, char **argv)
{
	static const struct svc_hooks hooks = {
		.program = "pdmessagerd",
		.descriptors = descriptors,
		.default_name = "messager",
		.keys = keys,
		.stats = stats,
		.n_stats = MS_COUNT,
		.messages = messages,
		.ctl = ctl,
		.start = messager_start,
		.reload = messager_reload,
		.idle = messager_idle,
		.stop = messager_stop,
		.status = messager_status,
		.up = on_up,
	};
	return svc_main(argc, argv, &hooks);
}
