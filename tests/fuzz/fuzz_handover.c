/* fuzz_handover.c - a worker that hands over its shared memory (kv/handover.h), and a peer that
 * answers. Both begin as they should: the input changes bytes of the message, of its length and
 * number of descriptors, what they are, and the headers of the memory. The other end refuses it
 * with a sentence, or has memory that it can read to the last word; no descriptor is left. */
#include "kv/handover.h"
#include "kv/ring.h"
#include "tests/fuzz/fuzz.h"
#include "tests/unit/pool_memory.h"
#include "util/sock.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <unistd.h>

#define BLOCKS 24u
#define LAYERS 3u
#define SLOTS 4u
#define EPOCH 100u
#define FDS 5

/* Changes of this many bytes: each a place, a width and a value. */
static void change(struct fuzz_input *in, void *at, size_t bytes)
{
	for (unsigned n = (unsigned)fuzz_take(in, 1) % 8; n; n--) {
		size_t place = (size_t)fuzz_take(in, 2) % bytes, width = 1 + fuzz_take(in, 1) % 8;
		uint64_t v = fuzz_take(in, width);
		memcpy((unsigned char *)at + place, &v, width < bytes - place ? width : bytes - place);
	}
}

static struct world {
	struct kv_layout layout;
	struct pool_memory pool, half; /* half: with one of two heads, a part of a divided pool */
	struct ring *ring;
	int sock[2], given[FDS];
} w;

/* What is handed over in place of a descriptor. */
static int descriptor(unsigned kind, int good, size_t bytes)
{
	int fd = -1;
	switch (kind % 6) {
	case 0: return dup(good);
	case 1: /* its owner may cut it short while others read it */
		fd = memfd_create("unsealed", MFD_ALLOW_SEALING | MFD_CLOEXEC);
		for (off_t at = 0; (size_t)at < bytes;) /* a signal may cut it short */
			must(sendfile(fd, good, &at, bytes - (size_t)at) > 0 || errno == EINTR);
		return fd;
	case 2:
		fd = memfd_create("short", MFD_ALLOW_SEALING | MFD_CLOEXEC);
		must(ftruncate(fd, 100) == 0 && fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) == 0);
		return fd;
	case 3: return open("/dev/null", O_RDWR | O_CLOEXEC);
	case 4: return dup(w.pool.region.control_fd);
	default: return dup(w.sock[0]);
	}
}

/* --- the hello ----------------------------------------------------------- */

static void check_hello(const struct handover_hello *h, const struct kv_layout *l,
                        const struct handover_fds *fds)
{
	struct kv_layout again = *l;
	must(h->magic == HANDOVER_MAGIC && h->version == HANDOVER_VERSION);
	must(h->epoch && h->epoch <= INT64_MAX);
	must(h->name[0] && memchr(h->name, 0, sizeof h->name) && !strpbrk(h->name, " /\"\n"));
	must(h->backend[0] && memchr(h->backend, 0, sizeof h->backend));
	must(h->parts && h->parts <= KERN_PARTS_MAX && h->stages && h->parts % h->stages == 0);
	must(kv_layout_divides(l, kv_data_parts(&fds->data)));
	for (uint32_t i = 0; i < h->parts; i++)
		must(h->device[i] >= 0 && fds->data.fd[i] >= 0 && fds->data.device[i] == h->device[i]);
	must(h->blocks && l->block_bytes && l->layers == h->layers && l->layers <= KV_LAYERS_MAX);
	must(kv_layout_finish(&again) == 0 && again.block_bytes == l->block_bytes);
	must(fds->control >= 0 && fds->data.parts == h->parts && fds->data.stages == h->stages &&
	     (fds->ring >= 0) == (h->ring_slots != 0));
	must(h->ring_slots <= RING_SLOTS_MAX);
}

/* All that was mapped is there. */
static void read_all(const struct handover_hello *h, const struct kv_region *r, struct ring *ring)
{
	static struct ring_transfer t;
	volatile uint64_t sum = 0;
	enum ring_state state;
	uint64_t gen;
	for (uint32_t i = 0; i < h->blocks; i++)
		sum += r->generations[i];
	if (r->pool->host)
		sum += r->pool->host[0] + (uint64_t)r->pool->host[r->data_bytes - 1];
	for (uint32_t s = 0; ring && s < h->ring_slots; s++) {
		must(ring_peek(ring, s, &gen) <= RING_VOID);
		if (ring_read(ring, s, &t, &gen, &state) == 0)
			sum += t.tokens;
		for (uint32_t l = 0; l < h->layers; l++)
			sum += ring_progress(ring, s, l, gen);
		sum += (uint64_t)ring_in_schedule(ring, s, gen);
	}
	(void)sum;
}

static void attach(const struct handover_hello *h, const struct kv_layout *l,
                   const struct handover_fds *fds)
{
	struct kv_region region;
	struct ring *ring = NULL;
	struct err err = {0};
	int r = kv_region_map(&region, l, h->blocks, h->backend, fds->control, &fds->data, &err);
	if (r < 0) {
		must(err.text[0] && !region.generations && !region.data.parts);
		if (fds->ring >= 0)
			close(fds->ring);
		return;
	}
	if (fds->ring >= 0)
		r = ring_map(fds->ring, h->ring_slots, h->ring_layers, h->epoch, &ring, &err);
	must(r == 0 || (err.text[0] && !ring));
	if (r == 0)
		fuzz_accepted();
	for (int i = 0; i < FDS; i++) /* the worker takes it back, if it can */
		(void)!ftruncate(w.given[i], 0);
	read_all(h, &region, ring);
	ring_destroy(&ring);
	kv_region_fini(&region);
}

static void run_hello(struct fuzz_input *in)
{
	struct handover_hello h, got;
	struct kv_layout l;
	struct err err = {0};
	size_t bytes;
	struct handover_fds out;
	int fds[FDS], ring_at;
	unsigned kinds = (unsigned)fuzz_take(in, 1), n_fds = (unsigned)fuzz_take(in, 1) % (FDS + 1);
	handover_hello_init(&h, "prefill-1", EPOCH, &w.layout, BLOCKS, "cpu");
	h.parts = h.stages = 1;
	h.ring_slots = SLOTS;
	h.ring_layers = LAYERS;
	change(in, &h, sizeof h);
	size_t cut = (size_t)fuzz_take(in, 1);
	change(in, (unsigned char *)w.pool.region.generations - 4096, 32);
	void *ring = ring_mapping(w.ring, &bytes);
	change(in, ring, 64);
	fds[0] = descriptor(kinds % 6, w.pool.region.control_fd, w.pool.region.control_bytes);
	const struct pool_memory *part = h.parts == 2 ? &w.half : &w.pool;
	ring_at = h.parts == 2 ? 3 : 2;
	for (int i = 1; i < ring_at; i++)
		fds[i] = descriptor(kinds / 6 % 6, part->region.data.fd[0], part->region.data_bytes);
	for (int i = ring_at; i < FDS; i++)
		fds[i] = descriptor(kinds / 36 % 6, ring_fd(w.ring), bytes);
	must(sock_send(w.sock[0], &h, sizeof h - cut, fds, n_fds) == 0);
	memcpy(w.given, fds, sizeof w.given);
	int r = handover_receive(w.sock[1], &got, &l, &out, &err);
	must(r == 0 || err.text[0]);
	if (r == 0) {
		check_hello(&got, &l, &out);
		attach(&got, &l, &out);
	}
	for (int i = 0; i < FDS; i++)
		close(w.given[i]);
}

/* --- the reply ----------------------------------------------------------- */

static void run_reply(struct fuzz_input *in)
{
	struct handover_reply a = {HANDOVER_MAGIC, HANDOVER_VERSION, 7, 0, "", "m@tcp://h:7003"}, got;
	struct err err = {0};
	unsigned n_fds = (unsigned)fuzz_take(in, 1) % 3;
	int bell = -1, fds[2] = {w.sock[0], w.sock[0]};
	change(in, &a, sizeof a);
	size_t cut = (size_t)fuzz_take(in, 1);
	must(sock_send(w.sock[0], &a, sizeof a - cut, fds, n_fds) == 0);
	int r = handover_result(w.sock[1], &got, &bell, &err);
	must(r == 0 || (err.text[0] && bell < 0));
	if (r < 0)
		return;
	fuzz_accepted();
	must(got.epoch && got.code <= 0 && memchr(got.text, 0, sizeof got.text));
	must(memchr(got.remote, 0, sizeof got.remote));
	must(!got.remote[0] || endpoint_is_remote(got.remote));
	must(bell < 0 || got.code == 0);
	/* whatever it is, ringing it does not wait */
	ring_set_bell(w.ring, bell);
	ring_sleeping(w.ring, 1);
	for (int i = 0; i < 3; i++)
		ring_bell(w.ring);
}

/* --- one input ----------------------------------------------------------- */

static unsigned descriptors(void)
{
	DIR *d = opendir("/proc/self/fd");
	unsigned n = 0;
	must(d != NULL);
	while (readdir(d))
		n++;
	closedir(d);
	return n;
}

FUZZ(handover, 1 << 9)
{
	struct fuzz_input in = {data, data + size};
	struct err e = {0};
	unsigned before = descriptors();
	memset(&w, 0, sizeof w);
	struct kv_layout half;
	kv_layout_uniform(&w.layout, LAYERS, 2, 4, 4, KV_F32);
	kv_layout_uniform(&half, LAYERS, 1, 4, 4, KV_F32);
	must(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, w.sock) == 0);
	must(pool_memory_new(&w.pool, &w.layout, BLOCKS, &e) == 0 &&
	     pool_memory_new(&w.half, &half, BLOCKS, &e) == 0 &&
	     ring_create(SLOTS, LAYERS, EPOCH, &w.ring, &e) == 0);
	if (fuzz_take(&in, 1) % 4 == 0)
		run_reply(&in);
	else
		run_hello(&in);
	ring_destroy(&w.ring);
	pool_memory_fini(&w.pool);
	pool_memory_fini(&w.half);
	close(w.sock[0]);
	close(w.sock[1]);
	must(descriptors() == before);
	return 0;
}
