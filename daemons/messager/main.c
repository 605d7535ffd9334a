/* main.c - pdmessagerd: moves KV blocks between the pools of this host's workers, and to those of
 * other hosts, while the prompt is still being computed.
 *
 * One event loop thread does everything: svc/attached.h receives descriptors, the links deliver
 * messages, mover.c and transfer.c copy. The pump runs the mover after every event that may let a
 * transfer go on: a doorbell, a message, a worker that attaches or detaches, and a slow timer while
 * transfers are open. Before the loop sleeps, the messager says so in the rings and checks them
 * once more; an idle messager does nothing until a bell rings. It leaves nothing behind when it is
 * killed: the rings belong to the workers, and the next messager continues from them. */
#include "inbound.h"
#include "mover.h"
#include "pairs.h"
#include "path/rdma.h"
#include "path/tcp.h"
#include "remote.h"
#include "svc/attached.h"
#include "svc/svc.h"
#include "util/clock.h"
#include "util/endpoint.h"
#include "util/mem.h"

#include <arpa/inet.h>
#include <stdlib.h>
#include <string.h>

/* The numbers of `stats`. */
struct messager_stats {
	uint64_t bytes, pieces, copies, handovers_refused, workers, transfers;
	uint64_t ended[END_COUNT];
	struct stat_seconds copy, tail, transfer, reaction;
};

/* While transfers are open the rings are looked at this often even without a doorbell: the limit on
 * what a lost one costs. */
#define SCAN_US 20000u

enum rdma_use { RDMA_AUTO, RDMA_OFF, RDMA_REQUIRED }; /* in the order of the key's choices */

struct messager_conf {
	struct mover_limits limits;
	uint64_t canary_us;
	uint32_t data_port, data_connections, workers_max;
	int data_encrypted, rdma_gid_index;
	enum rdma_use rdma;
	const char *rdma_device;
};

struct messager {
	struct svc *svc;
	struct messager_conf conf;
	struct messager_stats stats;
	struct mover *mover;
	struct transports transports;
	struct rdma *rdma; /* one of them, or NULL */
	struct remotes *remotes;
	struct inbounds *inbounds;
	struct attached *attached; /* connections of workers */
	struct event *pump_ev;     /* zero timer: more to copy, after other events */
	struct event *scan_ev;     /* while transfers are open */
	int scanning;
	struct pairs *pairs; /* of transfers from this host's workers */
};

#define TO(field) CONF_TO(struct messager_conf, field)
#define US(field) CONF_US(struct messager_conf, field)

static const struct conf_key keys[] = {
	{"stall_ms", CONF_INT, "2000", 10, 600000, "ms", 1,
     "longest time that a transfer waits for progress of the prefill worker, for the decode "
     "worker's memory, for a link or for an answer; then it ends",
     NULL, US(limits.stall_us)},
	{"slice_kb", CONF_INT, "1024", 16, 1048576, "KiB", 1,
     "bytes copied before the messager handles other events", NULL,
     CONF_TIMES(struct messager_conf, limits.slice_bytes, 1024)},
	{"data_port", CONF_INT, "0", 0, 65535, "", 0,
     "TCP port at the address of `listen` where messagers of other hosts send KV; 0: any free one",
     NULL, TO(data_port)},
	{"data_connections", CONF_INT, "2", 1, TCP_CONNECTIONS_MAX, "connections", 0,
     "TCP connections to each messager that this host sends KV to", NULL, TO(data_connections)},
	{"data_encrypted", CONF_BOOL, "true", 0, 0, "", 0,
     "encrypt KV on its way to and from other hosts; false only on a network that you trust: it is "
     "still authenticated, but can be read. If either end wants it, it is encrypted",
     NULL, TO(data_encrypted)},
	{"rdma", CONF_STRING, "off", 0, 0, "", 0,
     "RDMA to the messagers of other hosts that have it, for KV in host memory. auto: if this host "
     "has "
     "a device; required: this messager does not start without one, and neither sends nor takes KV "
     "by "
     "TCP",
     "auto|off|required", TO(rdma)},
	{"rdma_device", CONF_STRING, "", 0, 255, "", 0,
     "names of the RDMA devices to use, such as \"mlx5_0, mlx5_1\"; empty: all that have an active "
     "port. KV goes through the one that is nearest to its memory (NUMA node)",
     NULL, TO(rdma_device)},
	{"rdma_gid_index", CONF_INT, "-1", -1, 255, "", 0,
     "index of the port's GID; -1: RoCE v2 with the address of a local interface, if there is one",
     NULL, TO(rdma_gid_index)},
	{"canary_ms", CONF_INT, "5000", 0, 3600000, "ms", 0,
     "a small transfer to each messager of another host at this interval shows that the way works "
     "and how fast (pdctl links); 0: none",
     NULL, US(canary_us)},
	{"workers_max", CONF_INT, "64", 2, 1024, "workers", 0, "maximum number of attached workers",
     NULL, TO(workers_max)},
	CONF_GONE("scan_ms", "it is 20 now; remove the key"),
	CONF_GONE("rdma_port", "the first active port is used; remove the key"),
	CONF_END,
};

#define ROW(field, type, name, help) STAT_ROW(struct messager, stats.field, type, name, help)

static const struct stat_row stats[] = {
	ROW(bytes, COUNTER, "transfer_bytes_total", "KV bytes copied."),
	ROW(ended[END_SENT], COUNTER, "transfers_sent_total",
        "Transfers whose KV was delivered and acknowledged."),
	ROW(ended[END_CANCELLED], COUNTER, "transfers_cancelled_total",
        "Transfers that the prefill worker cancelled."),
	ROW(ended[END_REVOKED], COUNTER, "transfers_revoked_total",
        "Transfers whose lease the decode worker revoked."),
	ROW(ended[END_REFUSED], COUNTER, "transfers_refused_total",
        "Transfers whose lease the decode worker refused to open."),
	ROW(ended[END_STALLED], COUNTER, "transfers_stalled_total",
        "Transfers that reached the stall limit."),
	ROW(ended[END_DEADLINE], COUNTER, "transfers_deadline_total",
        "Transfers whose deadline passed."),
	ROW(ended[END_PEER_GONE], COUNTER, "transfers_peer_gone_total",
        "Transfers with a worker that ended."),
	ROW(ended[END_MALFORMED], COUNTER, "transfers_malformed_total",
        "Transfers with counts, blocks, names or layouts that do not fit."),
	ROW(ended[END_COPY_FAILED], COUNTER, "transfers_copy_failed_total",
        "Transfers with a copy that failed on the device."),
	ROW(pieces, COUNTER, "transfer_pieces_total", "Pieces (layer, block) copied."),
	ROW(copies, COUNTER, "transfer_copies_total",
        "Copies into which neighbouring pieces were joined."),
	ROW(handovers_refused, COUNTER, "handovers_refused_total", "Workers whose memory was refused."),
	ROW(workers, GAUGE, "workers", "Workers whose memory is mapped."),
	ROW(transfers, GAUGE, "transfers_open", "Open transfers."),
	ROW(copy, SECONDS, "transfer_copy_seconds", "Time spent copying, per delivered transfer."),
	ROW(tail, SECONDS, "transfer_tail_seconds",
        "Last layer seen computed until all blocks were delivered."),
	ROW(transfer, SECONDS, "transfer_seconds",
        "Transfer found until closed, per delivered transfer."),
	ROW(reaction, SECONDS, "transfer_reaction_seconds",
        "Doorbell until the blocks that it announced were copied."),
	STAT_END,
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

static struct peer *peer_of(const struct messager *m, const char *name, uint64_t epoch)
{
	struct peer *p = chan_find(svc_chan(m->svc), name, 0);
	return p && peer_epoch(p) == epoch ? p : NULL;
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
	struct messager *m = arg;
	struct messager_stats *s = &m->stats;
	s->ended[r->end]++;
	s->pieces += r->pieces;
	s->copies += r->runs;
	if (r->end != END_SENT)
		return;
	stat_observe_us(&s->copy, r->copy_us);
	stat_observe_us(&s->tail, r->tail_us);
	stat_observe_us(&s->transfer, r->life_us);
	pairs_add(m->pairs, r->from, r->to, r->bytes, r->tail_us);
}

/* Workers keep their pools and hand their descriptors to the next process. */
static void out_lost(void *arg, const char *why)
{
	(void)arg;
	svc_leave(why);
}

static void pump_soon(struct messager *m)
{
	/* a timer, not event_active: the loop polls all other events first */
	event_add(m->pump_ev, &(struct timeval){0});
}

static void out_wake(void *arg)
{
	pump_soon(arg);
}

static int out_fence(void *arg, const struct lease_key *lease)
{
	const struct messager *m = arg;
	return inbound_fence(m->inbounds, lease);
}

static void out_unmap(void *arg, const struct kv_region *region)
{
	const struct messager *m = arg;
	if (m->rdma)
		rdma_pool_gone(m->rdma, region);
}

static const char *out_unreachable(void *arg, const char *decode)
{
	const struct messager *m = arg;
	return remotes_unreachable(m->remotes, decode);
}

static int out_send_link(void *arg, void *peer, enum msg_type type, const struct msg_head *head,
                         const ProtobufCMessage *body)
{
	const struct messager *m = arg;
	return chan_send(svc_chan(m->svc), peer, type, head, body);
}

/* --- the pump ------------------------------------------------------------ */

static void scan_while_open(struct messager *m, int open)
{
	if (open == m->scanning)
		return;
	m->scanning = open;
	const struct timeval tv = clock_timeval(SCAN_US);
	if (open)
		event_add(m->scan_ev, &tv);
	else
		event_del(m->scan_ev);
}

/* Checks the rings and moves the transfers; called after anything that may let one go on. */
static void messager_pump(struct messager *m)
{
	int waits = inbound_turn(m->inbounds);
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
	scan_while_open(m, turn != MOVER_IDLE || waits);
	m->stats.bytes = mover_bytes(m->mover);
	m->stats.transfers = mover_open_transfers(m->mover);
}

static void on_pump(evutil_socket_t fd, short what, void *arg)
{
	(void)fd;
	(void)what;
	messager_pump(arg);
}

/* The device must know a pool before it can send from it or be written; a large one takes
 * seconds. */
static void rdma_register(struct messager *m, const struct mover_local *w)
{
	struct err err = {0};
	if (m->rdma && rdma_pool_add(m->rdma, w->region, &err) < 0)
		log_warn("rdma_pool_refused", "worker=%s why=%s", w->name, log_quote(err.text));
}

/* --- workers ------------------------------------------------------------- */

/* The pump runs after the answer: no lease is opened for a worker that does not know us yet. */
static int on_attach(void *arg, const struct attached_memory *h, void **ret_worker, struct err *err)
{
	struct messager *m = arg;
	struct mover_local w;
	if (m->rdma && !h->region.pool->host)
		return err_set(err, ERR_UNSUPPORTED,
		               "RDMA cannot reach KV in memory of %s yet: set rdma = \"off\" in the "
		               "messager's configuration",
		               h->region.pool->by->name);
	*ret_worker = mover_add(m->mover, h->hello->name, h->hello->epoch, &h->layout, &h->region,
	                        h->ring);
	if (mover_find_local(m->mover, h->hello->name, h->hello->epoch, &w))
		rdma_register(m, &w);
	inbound_pools_changed(m->inbounds);
	pump_soon(m);
	return 0;
}

static void on_detach(void *arg, void *worker, const char *why)
{
	struct messager *m = arg;
	(void)why;
	if (!m->mover) /* we stop: mover_destroy has removed the workers */
		return;
	inbound_worker_gone(m->inbounds, mover_worker_name(worker), mover_worker_epoch(worker));
	remotes_named(m->remotes, mover_worker_name(worker), NULL);
	mover_remove(m->mover, worker);
	inbound_pools_changed(m->inbounds);
	pump_soon(m);
}

static void on_bell(void *arg)
{
	struct messager *m = arg;
	uint64_t begin = clock_us(), before = mover_bytes(m->mover);
	messager_pump(m);
	if (mover_bytes(m->mover) != before)
		stat_observe_us(&m->stats.reaction, clock_us() - begin);
}

/* --- messages ------------------------------------------------------------ */

/* The link's end that other messagers have connected to; NULL for all other peers. */
static struct inbound_link *link_of(const struct peer *p)
{
	return peer_tag(p) == REMOTE_TAG ? NULL : peer_data(p);
}

/* From the messager of another host that this one connected to. */
static void from_remote(struct messager *m, struct peer *p, enum msg_type type,
                        const ProtobufCMessage *body)
{
	remotes_message(m->remotes, p, type, body);
	messager_pump(m);
}

/* A worker that has not handed us its memory grants no leases here, and names no other hosts. */
static int is_unattached(struct svc *s, const struct peer *p, enum msg_type type)
{
	struct mover_local w;
	if (mover_find_local(messager_of(s)->mover, peer_name(p), peer_epoch(p), &w))
		return 0;
	svc_refuse(s, p, type, "its memory is not attached");
	return 1;
}

/* The other end of a link carries KV in one direction only. */
static int is_wrong_way(struct svc *s, const struct peer *p, enum msg_type type, int from_receiver)
{
	if (from_receiver ? peer_tag(p) == REMOTE_TAG : link_of(p) != NULL)
		return 0;
	svc_refuse(s, p, type, "KV does not go that way on this link");
	return 1;
}

static void on_lease_opened(struct svc *s, struct peer *p, const struct msg_head *head,
                            const ProtobufCMessage *body)
{
	struct messager *m = messager_of(s);
	const Pds__LeaseOpened *b = (const Pds__LeaseOpened *)body;
	(void)head;
	if (peer_tag(p) == REMOTE_TAG) {
		from_remote(m, p, MSG_LEASE_OPENED, body);
		return;
	}
	if (is_unattached(s, p, MSG_LEASE_OPENED))
		return;
	mover_lease_opened(m->mover, peer_name(p), peer_epoch(p), b);
	inbound_lease_opened(m->inbounds, peer_name(p), peer_epoch(p), b);
	messager_pump(m);
}

static void on_lease_revoke(struct svc *s, struct peer *p, const struct msg_head *head,
                            const ProtobufCMessage *body)
{
	struct messager *m = messager_of(s);
	if (peer_tag(p) == REMOTE_TAG) {
		from_remote(m, p, MSG_LEASE_REVOKE, body);
		return;
	}
	if (link_of(p)) {
		svc_refuse(s, p, MSG_LEASE_REVOKE, "it grants no leases");
		return;
	}
	mover_lease_revoke(m->mover, peer_name(p), peer_epoch(p), head, (const Pds__LeaseRevoke *)body);
	messager_pump(m);
}

static void on_kv_ready_ack(struct svc *s, struct peer *p, const struct msg_head *head,
                            const ProtobufCMessage *body)
{
	struct messager *m = messager_of(s);
	const Pds__KvReadyAck *b = (const Pds__KvReadyAck *)body;
	(void)head;
	if (peer_tag(p) == REMOTE_TAG) {
		from_remote(m, p, MSG_KV_READY_ACK, body);
		return;
	}
	if (is_unattached(s, p, MSG_KV_READY_ACK))
		return;
	mover_kv_ready_ack(m->mover, peer_name(p), peer_epoch(p), b);
	inbound_kv_ready_ack(m->inbounds, peer_name(p), peer_epoch(p), b);
	messager_pump(m);
}

static void on_pools(struct svc *s, struct peer *p, const struct msg_head *head,
                     const ProtobufCMessage *body)
{
	(void)head;
	if (!is_wrong_way(s, p, MSG_POOLS, 1))
		from_remote(messager_of(s), p, MSG_POOLS, body);
}

static void on_path(struct svc *s, struct peer *p, const struct msg_head *head,
                    const ProtobufCMessage *body)
{
	(void)head;
	if (peer_tag(p) == REMOTE_TAG)
		from_remote(messager_of(s), p, MSG_PATH, body);
	else if (!is_wrong_way(s, p, MSG_PATH, 0))
		inbound_path(link_of(p), (const Pds__Path *)body);
}

static void on_lease_open(struct svc *s, struct peer *p, const struct msg_head *head,
                          const ProtobufCMessage *body)
{
	if (is_wrong_way(s, p, MSG_LEASE_OPEN, 0))
		return;
	inbound_lease_open(link_of(p), head, (const Pds__LeaseOpen *)body);
	messager_pump(messager_of(s));
}

static void on_kv_ready(struct svc *s, struct peer *p, const struct msg_head *head,
                        const ProtobufCMessage *body)
{
	if (is_wrong_way(s, p, MSG_KV_READY, 0))
		return;
	inbound_kv_ready(link_of(p), head, (const Pds__KvReady *)body);
	messager_pump(messager_of(s));
}

static void on_peers(struct svc *s, struct peer *p, const struct msg_head *head,
                     const ProtobufCMessage *body)
{
	(void)head;
	if (!is_unattached(s, p, MSG_PEERS))
		remotes_named(messager_of(s)->remotes, peer_name(p), (const Pds__Peers *)body);
}

static const struct svc_msg messages[] = {
	{MSG_LEASE_OPEN, on_lease_open, 0},
	{MSG_LEASE_OPENED, on_lease_opened, 0},
	{MSG_LEASE_REVOKE, on_lease_revoke, 0},
	{MSG_KV_READY, on_kv_ready, 0},
	{MSG_KV_READY_ACK, on_kv_ready_ack, 0},
	{MSG_PEERS, on_peers, 0},
	{MSG_POOLS, on_pools, 0},
	{MSG_PATH, on_path, 0},
	{0},
};

static int is_messager(const struct peer *p)
{
	return strcmp(peer_program(p), "pdmessagerd") == 0;
}

static void on_up(struct svc *s, struct peer *p)
{
	struct messager *m = messager_of(s);
	if (peer_tag(p) == REMOTE_TAG)
		remotes_up(m->remotes, p);
	else if (is_messager(p))
		peer_set_data(p, inbound_up(m->inbounds, p, peer_name(p), peer_epoch(p)));
	else {
		attached_link_up(m->attached, p);
		mover_linked(m->mover, peer_name(p), peer_epoch(p));
		inbound_linked(m->inbounds, peer_name(p), peer_epoch(p));
	}
	messager_pump(m);
}

static void on_down(struct svc *s, struct peer *p, const char *why)
{
	struct messager *m = messager_of(s);
	if (!m)
		return;
	if (peer_tag(p) == REMOTE_TAG)
		remotes_down(m->remotes, p, why);
	else if (link_of(p))
		inbound_down(link_of(p));
	else
		return;
	messager_pump(m);
}

/* --- life ---------------------------------------------------------------- */

/* The address of `listen` if it is numeric; else all. */
static void data_address(const struct svc *s, char *out, size_t size)
{
	struct in6_addr parsed;
	endpoint_host(svc_common(s)->listen, out, size);
	if (inet_pton(AF_INET, out, &parsed) != 1 && inet_pton(AF_INET6, out, &parsed) != 1)
		*out = 0;
}

static void transport_add(struct messager *m, const struct path_ops *ops, void *transport)
{
	m->transports.at[m->transports.n].ops = ops;
	m->transports.at[m->transports.n++].transport = transport;
}

static int rdma_open(struct messager *m, struct err *err)
{
	const struct verbs *v = verbs_load(err);
	struct rdma_opts opts = RDMA_OPTS_DEFAULT;
	opts.device = m->conf.rdma_device;
	opts.gid_index = m->conf.rdma_gid_index;
	opts.canary_us = m->conf.canary_us;
	int r = v ? rdma_transport_new(svc_base(m->svc), v, &opts, &m->rdma, err) : ERR_NOTFOUND;
	if (r == 0)
		transport_add(m, &rdma_path_ops, m->rdma);
	return r;
}

static int tcp_open(struct messager *m, struct err *err)
{
	const struct messager_conf *c = &m->conf;
	struct tcp_transport *tcp = NULL;
	char address[64];
	data_address(m->svc, address, sizeof address);
	const struct tcp_opts opts = {.address = *address ? address : NULL,
	                              .port = (uint16_t)c->data_port,
	                              .connections = c->data_connections,
	                              .encrypt = c->data_encrypted,
	                              .lost = svc_leave,
	                              .canary_us = c->canary_us ? c->canary_us : UINT64_MAX};
	int r = tcp_transport_new(svc_base(m->svc), &opts, &tcp, err);
	if (r == 0)
		transport_add(m, &tcp_path_ops, tcp);
	return r;
}

/* Without keys there are no other hosts. RDMA comes first: it is used where both ends have it. A
 * device that the configuration names must be there. */
static int transports_open(struct messager *m, struct err *err)
{
	const struct messager_conf *c = &m->conf;
	int required = c->rdma == RDMA_REQUIRED;
	if (!svc_has_keys(m->svc))
		return 0;
	if (c->rdma != RDMA_OFF) {
		int r = rdma_open(m, err);
		if (r < 0 && (required || *c->rdma_device)) {
			const struct err why = *err;
			return err_set(err, r, "rdma = \"%s\", rdma_device = \"%s\": %.200s",
			               required ? "required" : "auto", c->rdma_device, why.text);
		}
		if (r < 0)
			log_notice("no_rdma", "transport=tcp why=%s", log_quote(err->text));
	}
	return required ? 0 : tcp_open(m, err);
}

static void transports_close(struct messager *m)
{
	while (m->transports.n) {
		void *t = m->transports.at[--m->transports.n].transport;
		if (t == m->rdma)
			rdma_transport_destroy(&m->rdma);
		else
			tcp_transport_destroy((struct tcp_transport **)&t);
	}
}

static void messager_stop(struct svc *s)
{
	struct messager *m = messager_of(s);
	/* workers are not told: the next messager continues from the rings */
	mover_shutdown(m->mover);
	remotes_destroy(&m->remotes);
	inbound_destroy(&m->inbounds);
	mover_destroy(&m->mover);
	pairs_destroy(&m->pairs);
	transports_close(m);
	attached_close(&m->attached, "the messager ends");
	event_free(m->pump_ev);
	event_free(m->scan_ev);
	free(m);
	svc_set_data(s, NULL);
}

static int messager_start(struct svc *s, struct err *err)
{
	struct messager *m = mem_zalloc(sizeof *m);
	const struct mover_out out = {.arg = m,
	                              .now_us = out_now,
	                              .linked = out_linked,
	                              .send = out_send,
	                              .ended = out_ended,
	                              .lost = out_lost,
	                              .wake = out_wake,
	                              .fence = out_fence,
	                              .unmap = out_unmap,
	                              .unreachable = out_unreachable};
	conf_fill(svc_conf(s), keys, &m->conf);
	const struct attached_hooks hooks = {.svc = s,
	                                     .arg = m,
	                                     .workers_max = m->conf.workers_max,
	                                     .workers = &m->stats.workers,
	                                     .refused = &m->stats.handovers_refused,
	                                     .attach = on_attach,
	                                     .detach = on_detach,
	                                     .bell = on_bell};
	m->svc = s;
	m->pairs = pairs_new();
	m->mover = mover_new(&out, &m->conf.limits);
	m->remotes = remotes_new(s, m->mover, &m->transports);
	m->inbounds = inbound_new(&(struct inbound_out){m, out_send_link, out_wake}, m->mover,
	                          &m->transports);
	m->pump_ev = event_new(svc_base(s), -1, 0, on_pump, m);
	m->scan_ev = event_new(svc_base(s), -1, EV_PERSIST, on_pump, m);
	svc_set_data(s, m);
	int r = transports_open(m, err);
	return r < 0 ? r : attached_listen(&hooks, &m->attached, err);
}

static int messager_reload(struct svc *s, struct err *err)
{
	struct messager *m = messager_of(s);
	(void)err;
	conf_fill(svc_conf(s), keys, &m->conf);
	mover_set_limits(m->mover, &m->conf.limits);
	messager_pump(m);
	return 0;
}

/* When told to stop, the messager continues all transfers, new ones too, until none is open or the
 * time is up. The rest stays in the rings for the next messager and waits until that has
 * started. */
static int messager_idle(struct svc *s)
{
	const struct messager *m = messager_of(s);
	return mover_open_transfers(m->mover) == 0 && inbound_count(m->inbounds) == 0;
}

static void messager_status(struct svc *s, struct buf *out)
{
	const struct messager *m = messager_of(s);
	buf_printf(out, ",\"open_transfers\":%u,\"bytes\":%llu,\"revoked_leases\":%u,\"attached\":",
	           mover_open_transfers(m->mover), (unsigned long long)mover_bytes(m->mover),
	           mover_revoked(m->mover));
	mover_workers_json(m->mover, out);
	buf_adds(out, ",\"pairs\":");
	pairs_json(m->pairs, out);
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

static int ctl_links(struct svc *s, char *const *args, size_t n_args, struct buf *out,
                     struct err *err)
{
	const struct messager *m = messager_of(s);
	(void)args;
	if (n_args)
		return err_set(err, ERR_INVALID, "links takes no arguments, %zu were given", n_args);
	buf_addc(out, '[');
	unsigned n = remotes_json(m->remotes, out);
	inbound_json(m->inbounds, out, n == 0);
	buf_addc(out, ']');
	return 0;
}

static const struct svc_ctl ctl[] = {
	{"links", ctl_links,
     "ways to and from other hosts' messagers: transport, bytes, canary, errors", 0},
	{"transfers", ctl_transfers, "open transfers: request, state, from, to, blocks sent, age", 0},
	{0},
};

/* For each worker: connection, doorbell, ring, memory, process (pidfd), link. */
static unsigned descriptors(const struct svc *s, char *ret_setting, size_t size)
{
	struct messager_conf c;
	conf_fill(svc_conf(s), keys, &c);
	snprintf(ret_setting, size, "workers_max = %u", c.workers_max);
	return 6 * c.workers_max;
}

int main(int argc, char **argv)
{
	static const struct svc_hooks hooks = {
		.program = "pdmessagerd",
		.descriptors = descriptors,
		.default_name = "messager",
		.keys = keys,
		.stats = stats,
		.messages = messages,
		.ctl = ctl,
		.advertises = 1,
		.start = messager_start,
		.reload = messager_reload,
		.idle = messager_idle,
		.stop = messager_stop,
		.status = messager_status,
		.up = on_up,
		.down = on_down,
	};
	return svc_main(argc, argv, &hooks);
}
