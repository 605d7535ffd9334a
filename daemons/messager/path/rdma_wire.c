/* rdma_wire.c - see rdma_wire.h. Reading trusts nothing: sizes and ranges are checked here, what
 * the numbers mean is not. */
#include "rdma_wire.h"
#include "util/check.h"

#include <endian.h>
#include <string.h>

#define RDMA_VERSION 2u
#define QPN_MIN 2u /* 0 and 1 are the subnet's own */
#define BITS24 0xffffffu

struct wire_out {
	unsigned char *at;
	size_t n;
};

static void put(struct wire_out *w, uint64_t v, size_t bytes)
{
	v = htole64(v);
	memcpy(w->at + w->n, &v, bytes);
	w->n += bytes;
}

/* Past the end it reads zeros, and `ok` becomes 0. */
struct wire_in {
	const unsigned char *at;
	size_t left;
	int ok;
};

static uint64_t take(struct wire_in *r, size_t bytes)
{
	uint64_t v = 0;
	if (r->left < bytes) {
		r->ok = 0;
		r->left = 0;
		return 0;
	}
	memcpy(&v, r->at, bytes);
	r->at += bytes;
	r->left -= bytes;
	return le64toh(v);
}

/* --- messages ------------------------------------------------------------ */

static void put_address(struct wire_out *w, const struct rdma_address *a)
{
	memcpy(w->at + w->n, a->gid.raw, sizeof a->gid.raw);
	w->n += sizeof a->gid.raw;
	put(w, a->qpn, 4);
	put(w, a->psn, 4);
	put(w, a->lid, 2);
	put(w, a->mtu, 1);
	put(w, a->link_layer, 1);
	put(w, a->reads, 1);
	put(w, 0, 3);
}

size_t rdma_msg_write(const struct rdma_msg *m, unsigned char *out)
{
	struct wire_out w = {out, 0};
	put(&w, RDMA_VERSION, 1);
	put(&w, m->kind, 1);
	put(&w, m->lane, 1);
	put(&w, 0, 1);
	put(&w, m->round, 4);
	put(&w, m->session, 8);
	switch (m->kind) {
	case RDMA_OFFER:
		put_address(&w, &m->address);
		put(&w, m->canary_at, 8);
		put(&w, m->canary_key, 4);
		put(&w, m->canary_bytes, 4);
		break;
	case RDMA_ACCEPT: put_address(&w, &m->address); break;
	case RDMA_READY:
	case RDMA_END: break;
	case RDMA_RESET:
	case RDMA_REFUSE:
		memcpy(out + w.n, m->text, strlen(m->text));
		w.n += strlen(m->text);
		break;
	case RDMA_KEYS:
	case RDMA_DONE:
	case RDMA_ASK:
	case RDMA_CLOSE:
		CHECK(m->n <= (m->kind == RDMA_KEYS ? RDMA_KEYS_MAX : RDMA_LEASES_MAX));
		put(&w, m->n, 4);
		for (uint32_t i = 0; i < m->n; i++) {
			put(&w, m->lease[i].lease, 8);
			if (m->kind == RDMA_KEYS)
				put(&w, m->lease[i].key, 4);
		}
	}
	CHECK(w.n <= PATH_SAY_MAX);
	return w.n;
}

static int gid_is_zero(const union ibv_gid *g)
{
	static const union ibv_gid zero;
	return memcmp(g, &zero, sizeof zero) == 0;
}

static int take_address(struct wire_in *r, struct rdma_address *a, struct err *err)
{
	if (r->left < sizeof a->gid.raw)
		return err_set(err, ERR_INVALID, "message ends within its address");
	memcpy(a->gid.raw, r->at, sizeof a->gid.raw);
	r->at += sizeof a->gid.raw;
	r->left -= sizeof a->gid.raw;
	a->qpn = (uint32_t)take(r, 4);
	a->psn = (uint32_t)take(r, 4);
	a->lid = (uint16_t)take(r, 2);
	a->mtu = (uint8_t)take(r, 1);
	a->link_layer = (uint8_t)take(r, 1);
	a->reads = (uint8_t)take(r, 1);
	uint64_t zero = take(r, 3);
	if (!r->ok)
		return err_set(err, ERR_INVALID, "message ends within its address");
	if (a->qpn < QPN_MIN || a->qpn > BITS24)
		return err_set(err, ERR_INVALID, "queue pair %u (must be %u to %u)", a->qpn, QPN_MIN,
		               BITS24);
	if (a->psn > BITS24)
		return err_set(err, ERR_INVALID, "PSN %u (limit %u)", a->psn, BITS24);
	if (a->mtu < IBV_MTU_256 || a->mtu > IBV_MTU_4096)
		return err_set(err, ERR_INVALID, "MTU code %u (must be %d to %d)", a->mtu, IBV_MTU_256,
		               IBV_MTU_4096);
	if (a->link_layer != IBV_LINK_LAYER_ETHERNET && a->link_layer != IBV_LINK_LAYER_INFINIBAND)
		return err_set(err, ERR_INVALID, "unknown link layer %u", a->link_layer);
	if (a->link_layer == IBV_LINK_LAYER_ETHERNET ? gid_is_zero(&a->gid) : a->lid == 0)
		return err_set(err, ERR_INVALID, "address without %s",
		               a->link_layer == IBV_LINK_LAYER_ETHERNET ? "GID" : "LID");
	if (a->reads == 0 || zero != 0)
		return err_set(err, ERR_INVALID, "%s",
		               zero ? "reserved bytes are not zero" : "it serves no RDMA READ");
	return 0;
}

static int take_leases(struct wire_in *r, struct rdma_msg *m, struct err *err)
{
	uint32_t most = m->kind == RDMA_KEYS ? RDMA_KEYS_MAX : RDMA_LEASES_MAX;
	m->n = (uint32_t)take(r, 4);
	if (m->n == 0 || m->n > most)
		return err_set(err, ERR_INVALID, "message of %u leases (must be 1 to %u)", m->n, most);
	for (uint32_t i = 0; i < m->n; i++) {
		m->lease[i].lease = take(r, 8);
		m->lease[i].key = m->kind == RDMA_KEYS ? (uint32_t)take(r, 4) : 0;
		if (r->ok && m->lease[i].lease == 0)
			return err_set(err, ERR_INVALID, "lease number 0");
	}
	return 0;
}

static int take_body(struct wire_in *r, struct rdma_msg *m, struct err *err)
{
	switch (m->kind) {
	case RDMA_OFFER: {
		int e = take_address(r, &m->address, err);
		m->canary_at = take(r, 8);
		m->canary_key = (uint32_t)take(r, 4);
		m->canary_bytes = (uint32_t)take(r, 4);
		return e;
	}
	case RDMA_ACCEPT: return take_address(r, &m->address, err);
	case RDMA_READY:
	case RDMA_END: return 0;
	case RDMA_RESET:
	case RDMA_REFUSE:
		if (r->left > RDMA_TEXT_MAX)
			return err_set(err, ERR_INVALID, "text of %zu bytes (limit %u)", r->left,
			               RDMA_TEXT_MAX);
		for (size_t i = 0; i < r->left; i++)
			m->text[i] = (char)(r->at[i] < ' ' || r->at[i] > '~' ? '?' : r->at[i]);
		m->text[r->left] = 0;
		r->left = 0;
		return 0;
	case RDMA_KEYS:
	case RDMA_DONE:
	case RDMA_ASK:
	case RDMA_CLOSE: return take_leases(r, m, err);
	}
	return err_set(err, ERR_INVALID, "unknown kind %d", (int)m->kind);
}

int rdma_msg_read(const void *bytes, size_t n, struct rdma_msg *ret, struct err *err)
{
	struct wire_in r = {bytes, n, 1};
	if (n < RDMA_HEAD_BYTES || n > PATH_SAY_MAX)
		return err_set(err, ERR_INVALID, "RDMA message of %zu bytes (must be %u to %u)", n,
		               RDMA_HEAD_BYTES, PATH_SAY_MAX);
	unsigned version = (unsigned)take(&r, 1);
	ret->kind = (enum rdma_kind)take(&r, 1);
	ret->lane = (unsigned)take(&r, 1);
	unsigned zero = (unsigned)take(&r, 1);
	ret->round = (uint32_t)take(&r, 4);
	ret->session = take(&r, 8);
	if (version != RDMA_VERSION)
		return err_set(err, ERR_INVALID, "RDMA message of version %u (this end has %u)", version,
		               RDMA_VERSION);
	if (zero != 0 || ret->round == 0 || ret->session == 0)
		return err_set(err, ERR_INVALID, "RDMA message of round %u, session %s", ret->round,
		               ret->session ? "set, or reserved bytes that are not zero" : "0");
	if (ret->lane >= RDMA_LANES_MAX)
		return err_set(err, ERR_INVALID, "RDMA message of lane %u (limit %u)", ret->lane,
		               RDMA_LANES_MAX);
	int e = take_body(&r, ret, err);
	if (e == 0 && (!r.ok || r.left > 0))
		e = err_set(err, ERR_INVALID, r.ok ? "%zu bytes too many" : "it is cut (%zu bytes)",
		            r.ok ? r.left : n);
	if (e < 0)
		err_prefix(err, "RDMA message of kind %d", (int)ret->kind);
	return e;
}

/* --- handles ------------------------------------------------------------- */

void rdma_handle_write(const struct rdma_handle *h, unsigned char *out)
{
	struct wire_out w = {out, 0};
	put(&w, RDMA_VERSION, 4);
	put(&w, h->key, 4);
	put(&w, h->session, 8);
	put(&w, h->round, 4);
	put(&w, h->lane, 4);
	put(&w, h->lease, 8);
	put(&w, h->at, 8);
	put(&w, h->bytes, 8);
	CHECK(w.n == RDMA_HANDLE_BYTES);
}

int rdma_handle_read(const void *bytes, size_t n, struct rdma_handle *ret, struct err *err)
{
	struct wire_in r = {bytes, n, 1};
	if (n != RDMA_HANDLE_BYTES)
		return err_set(err, ERR_INVALID, "RDMA handle of %zu bytes (must be %u)", n,
		               RDMA_HANDLE_BYTES);
	uint64_t version = take(&r, 4);
	ret->key = (uint32_t)take(&r, 4);
	ret->session = take(&r, 8);
	ret->round = (uint32_t)take(&r, 4);
	ret->lane = (unsigned)take(&r, 4);
	ret->lease = take(&r, 8);
	ret->at = take(&r, 8);
	ret->bytes = take(&r, 8);
	if (version != RDMA_VERSION)
		return err_set(err, ERR_INVALID, "RDMA handle of version %u (this end has %u)",
		               (unsigned)version, RDMA_VERSION);
	if (ret->session == 0 || ret->lease == 0 || ret->lane >= RDMA_LANES_MAX)
		return err_set(err, ERR_INVALID, "RDMA handle of lane %u (limit %u), session or lease %s",
		               ret->lane, RDMA_LANES_MAX, ret->session && ret->lease ? "set" : "0");
	if (ret->bytes == 0 || ret->at > UINT64_MAX - ret->bytes)
		return err_set(err, ERR_INVALID, "RDMA handle of a pool of %llu bytes at %llx",
		               (unsigned long long)ret->bytes, (unsigned long long)ret->at);
	return 0;
}
