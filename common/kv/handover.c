/* handover.c - see handover.h.
 *
 * One fixed-size message in each direction. A hello is accepted or rejected as a whole: magic,
 * version, terminated names, layout, and exactly the descriptors that its sizes require; on
 * rejection all received descriptors are closed. kv_region_map and ring_map check whether the
 * memory behind a descriptor has those sizes. Both messages fit into any socket buffer, so a send
 * does not wait for the peer. */
#include "kv/handover.h"
#include "kv/ring.h"
#include "util/check.h"
#include "util/sock.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define BLOCKS_MAX (UINT32_MAX - 1) /* KV_BLOCK_NONE is not a block number */

enum { FDS_MAX = KERN_PARTS_MAX + 2 };
_Static_assert(FDS_MAX <= SOCK_FDS_MAX, "a hello's descriptors do not fit a message");

void handover_fds_close(struct handover_fds *f)
{
	if (f->control >= 0)
		close(f->control);
	if (f->ring >= 0)
		close(f->ring);
	f->control = f->ring = -1;
	kv_data_close(&f->data);
}

static void close_all(const int *fds, unsigned n)
{
	for (unsigned i = 0; i < n; i++)
		close(fds[i]);
}

void handover_hello_init(struct handover_hello *h, const char *name, uint64_t epoch,
                         const struct kv_layout *layout, uint32_t blocks, const char *backend)
{
	memset(h, 0, sizeof *h);
	h->magic = HANDOVER_MAGIC;
	h->version = HANDOVER_VERSION;
	CHECK(strlen(name) < sizeof h->name && strlen(backend) < sizeof h->backend);
	strcpy(h->name, name);
	strcpy(h->backend, backend);
	h->epoch = epoch;
	h->blocks = blocks;
	h->layers = layout->layers;
	h->block_tokens = layout->block_tokens;
	h->kv_type = (uint32_t)layout->type;
	memcpy(h->layer, layout->layer, layout->layers * sizeof *h->layer);
}

/* Names are used in logs, paths and replies. */
static int name_holds(const char *name, size_t size)
{
	size_t n = strnlen(name, size);
	if (n == 0 || n == size)
		return 0;
	for (size_t i = 0; i < n; i++)
		if (name[i] <= ' ' || name[i] > '~' || name[i] == '"' || name[i] == '/')
			return 0;
	return 1;
}

static int layout_of(const struct handover_hello *h, struct kv_layout *ret)
{
	memset(ret, 0, sizeof *ret);
	ret->layers = h->layers;
	ret->block_tokens = h->block_tokens;
	ret->type = (enum kv_type)h->kv_type;
	memcpy(ret->layer, h->layer, sizeof ret->layer);
	return kv_layout_finish(ret);
}

static int parts_check(const struct handover_hello *h, struct err *err)
{
	if (!h->parts || h->parts > KERN_PARTS_MAX)
		return err_set(err, ERR_INVALID,
		               "hand-over of %s: a pool of %u parts, the limits are 1 and %d", h->name,
		               h->parts, KERN_PARTS_MAX);
	if (!h->stages || h->parts % h->stages)
		return err_set(err, ERR_INVALID,
		               "hand-over of %s: a pool of %u parts in %u stages, expected a divisor",
		               h->name, h->parts, h->stages);
	for (uint32_t i = 0; i < h->parts; i++)
		if (h->device[i] < 0)
			return err_set(err, ERR_INVALID,
			               "hand-over of %s: part %u of the pool is on device %d, the least is 0",
			               h->name, i, h->device[i]);
	return 0;
}

static int hello_check(const struct handover_hello *h, size_t n, unsigned n_fds,
                       struct kv_layout *ret_layout, struct err *err)
{
	if (n >= offsetof(struct handover_hello, name) && h->magic == HANDOVER_MAGIC &&
	    h->version != HANDOVER_VERSION)
		return err_set(err, ERR_UNSUPPORTED, "hand-over has version %u, this daemon speaks %u",
		               h->version, HANDOVER_VERSION);
	if (n != sizeof *h || h->magic != HANDOVER_MAGIC)
		return err_set(err, ERR_CORRUPT,
		               "hand-over message is malformed: %zu bytes, expected %zu with our magic", n,
		               sizeof *h);
	if (!name_holds(h->name, sizeof h->name) || h->epoch == 0 || h->epoch > INT64_MAX)
		return err_set(err, ERR_INVALID, "hand-over has an invalid name or epoch");
	if (!name_holds(h->backend, sizeof h->backend))
		return err_set(err, ERR_INVALID, "hand-over of %s has an invalid backend", h->name);
	if (parts_check(h, err) < 0)
		return ERR_INVALID;
	if (h->blocks == 0 || h->blocks > BLOCKS_MAX || layout_of(h, ret_layout) < 0)
		return err_set(err, ERR_INVALID,
		               "hand-over of %s: %u blocks of %u layers of %u tokens of type %u are not a "
		               "valid KV pool",
		               h->name, h->blocks, h->layers, h->block_tokens, h->kv_type);
	if (h->ring_slots > RING_SLOTS_MAX ||
	    (h->ring_slots ? h->ring_layers != h->layers : h->ring_layers != 0))
		return err_set(err, ERR_INVALID,
		               "hand-over of %s: a ring of %u slots and %u layers does not fit a pool of "
		               "%u layers (limit %u slots)",
		               h->name, h->ring_slots, h->ring_layers, h->layers, RING_SLOTS_MAX);
	if (!kv_layout_divides(ret_layout, (struct kv_parts){h->stages, h->parts / h->stages}))
		return err_set(err, ERR_INVALID,
		               "hand-over of %s: a pool of %u parts in %u stages, but %u layers of %u KV "
		               "heads",
		               h->name, h->parts, h->stages, h->layers, h->layer[0].heads);
	unsigned want = 1 + h->parts + (h->ring_slots != 0);
	if (n_fds != want)
		return err_set(err, ERR_INVALID,
		               "hand-over of %s came with %u descriptors, its sizes require %u", h->name,
		               n_fds, want);
	return 0;
}

int handover_receive(int sock, struct handover_hello *ret_hello, struct kv_layout *ret_layout,
                     struct handover_fds *ret_fds, struct err *err)
{
	int fds[FDS_MAX];
	unsigned n_fds = 0;
	struct handover_hello h;
	struct kv_layout l;
	ssize_t n = sock_recv(sock, &h, sizeof h, fds, FDS_MAX, &n_fds);
	if (n <= 0) {
		int code = n == 0 ? ERR_CLOSED : (int)n;
		close_all(fds, n_fds); /* an empty message may bring some, too */
		return err_set(err, code, "cannot receive a hand-over: %s", err_name(code));
	}
	int r = hello_check(&h, (size_t)n, n_fds, &l, err);
	if (r < 0) {
		close_all(fds, n_fds);
		return r;
	}
	*ret_hello = h;
	*ret_layout = l;
	*ret_fds = (struct handover_fds){.control = fds[0],
	                                 .ring = h.ring_slots ? fds[1 + h.parts] : -1,
	                                 .data = {.parts = h.parts, .stages = h.stages}};
	memcpy(ret_fds->data.fd, fds + 1, h.parts * sizeof *fds);
	memcpy(ret_fds->data.device, h.device, sizeof h.device);
	return 0;
}

int handover_answer(int sock, uint64_t epoch, int code, const char *text, const char *remote,
                    int bell_fd)
{
	CHECK(strlen(remote) <= ENDPOINT_BYTES_MAX);
	struct handover_reply a = {
		.magic = HANDOVER_MAGIC, .version = HANDOVER_VERSION, .epoch = epoch, .code = code};
	snprintf(a.text, sizeof a.text, "%s", text ? text : "");
	snprintf(a.remote, sizeof a.remote, "%s", code == 0 ? remote : "");
	return sock_send(sock, &a, sizeof a, &bell_fd, bell_fd >= 0 && code == 0 ? 1 : 0);
}

int handover_offer(int sock, const struct handover_hello *hello, const struct handover_fds *f,
                   struct err *err)
{
	struct handover_hello h = *hello;
	int fds[FDS_MAX] = {f->control};
	unsigned n = 1;
	CHECK((h.ring_slots != 0) == (f->ring >= 0) && f->data.parts <= KERN_PARTS_MAX);
	if (!f->data.parts)
		return err_set(err, ERR_UNSUPPORTED,
		               "the KV pool of %s cannot be handed over: its memory has no descriptor",
		               h.name);
	h.parts = f->data.parts;
	h.stages = kv_data_parts(&f->data).stages;
	memcpy(h.device, f->data.device, h.parts * sizeof *h.device);
	for (uint32_t i = 0; i < h.parts; i++)
		fds[n++] = f->data.fd[i];
	if (f->ring >= 0)
		fds[n++] = f->ring;
	int r = sock_send(sock, &h, sizeof h, fds, n);
	return r == 0
	           ? 0
	           : err_set(err, r, "cannot hand over the KV memory of %s: %s", h.name, err_name(r));
}

static int reply_check(const struct handover_reply *a, size_t n, struct err *err)
{
	if (n >= offsetof(struct handover_reply, epoch) && a->magic == HANDOVER_MAGIC &&
	    a->version != HANDOVER_VERSION)
		return err_set(err, ERR_UNSUPPORTED,
		               "the reply to the hand-over has version %u, this daemon speaks %u",
		               a->version, HANDOVER_VERSION);
	if (n != sizeof *a || a->magic != HANDOVER_MAGIC || !memchr(a->text, 0, sizeof a->text))
		return err_set(
			err, ERR_CORRUPT,
			"the reply to the hand-over is malformed: %zu bytes, expected %zu with our magic", n,
			sizeof *a);
	if (a->epoch == 0 || a->code > 0)
		return err_set(err, ERR_INVALID, "the reply to the hand-over has epoch %llu and code %d",
		               (unsigned long long)a->epoch, a->code);
	if (!memchr(a->remote, 0, sizeof a->remote) || (a->remote[0] && !endpoint_is_remote(a->remote)))
		return err_set(err, ERR_INVALID,
		               "the reply to the hand-over has the address \"%.60s\", not "
		               "NAME@tcp://HOST:PORT",
		               a->remote);
	return 0;
}

int handover_result(int sock, struct handover_reply *ret, int *ret_bell_fd, struct err *err)
{
	struct handover_reply a;
	int bell = -1;
	unsigned n_fds = 0;
	ssize_t n = sock_recv(sock, &a, sizeof a, &bell, 1, &n_fds);
	if (n <= 0) {
		int code = n == 0 ? ERR_CLOSED : (int)n;
		close_all(&bell, n_fds);
		return err_set(err, code, "no reply to the hand-over: %s", err_name(code));
	}
	int r = reply_check(&a, (size_t)n, err);
	if (n_fds && (r < 0 || a.code)) {
		close(bell);
		bell = -1;
	}
	if (r < 0)
		return r;
	*ret = a;
	*ret_bell_fd = n_fds ? bell : -1;
	return 0;
}
