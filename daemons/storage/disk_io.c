/* disk_io.c - block transfers through io_uring, or synchronously on the calling thread.
 *
 * Invariants: a request is in the ring (`flying`), in `over`, or the caller's. Requests submitted
 * together reach the kernel together, so that adjacent ones are merged into one transfer. The ring
 * always has one poll entry for the wake descriptor, so that a thread sleeping in the ring notices
 * new work. Device errors are the request's result; only a ring that cannot be entered at all is a
 * bug. */
#include "disk_io.h"

#include "util/check.h"
#include "util/mem.h"

#include <errno.h>
#include <liburing.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

struct disk_io {
	int ringed;
	struct io_uring ring;
	int wake_fd;
	unsigned flying;
	struct list over;
	ssize_t (*transfer)(int write, size_t bytes, off_t at);
};

static ssize_t transfer_all(int write, size_t bytes, off_t at)
{
	(void)write;
	(void)at;
	return (ssize_t)bytes;
}

int disk_datasync(const struct disk_calls *calls, int fd)
{
	return calls && calls->datasync ? calls->datasync(fd) : fdatasync(fd);
}

static void req_over(struct disk_io *io, struct disk_req *q, int result)
{
	q->result = result;
	list_push_back(&io->over, &q->link);
}

/* Accounts for a transfer with pread's result res. 1: the request is complete. */
static int req_advance(struct disk_io *io, struct disk_req *q, ssize_t res)
{
	if (res == -EINTR || res == -EAGAIN)
		return 0;
	if (res > 0)
		q->done += (size_t)res;
	if (res > 0 && q->done < q->bytes)
		return 0;
	req_over(io, q, res < 0 ? (int)-res : res == 0 ? ENODATA : 0);
	return 1;
}

/* 1: disk_io_wake has been called since the last time. */
static int wake_read(struct disk_io *io)
{
	uint64_t n;
	return read(io->wake_fd, &n, sizeof n) == (ssize_t)sizeof n;
}

/* --- synchronous --- */

static void plain_run(struct disk_io *io, struct disk_req *q)
{
	for (;;) {
		off_t at = q->at + (off_t)q->done;
		ssize_t n = io->transfer(q->write, q->bytes - q->done, at);
		if (n > 0) {
			n = q->write ? pwrite(q->fd, q->buf + q->done, (size_t)n, at)
			             : pread(q->fd, q->buf + q->done, (size_t)n, at);
			if (n < 0)
				n = -errno;
		}
		if (req_advance(io, q, n))
			return;
	}
}

static void plain_wait(struct disk_io *io)
{
	struct pollfd p = {.fd = io->wake_fd, .events = POLLIN};
	while (poll(&p, 1, -1) < 0)
		CHECK(errno == EINTR);
	wake_read(io);
}

/* --- io_uring --- */

static struct io_uring_sqe *ring_entry(struct disk_io *io)
{
	struct io_uring_sqe *e = io_uring_get_sqe(&io->ring);
	if (!e) { /* the ring is full of entries not yet submitted */
		io_uring_submit(&io->ring);
		e = io_uring_get_sqe(&io->ring);
	}
	CHECK(e);
	return e;
}

static void ring_arm_wake(struct disk_io *io)
{
	struct io_uring_sqe *e = ring_entry(io);
	io_uring_prep_poll_add(e, io->wake_fd, POLLIN);
	io_uring_sqe_set_data(e, NULL);
}

static void ring_put(struct disk_io *io, struct disk_req *q)
{
	off_t at = q->at + (off_t)q->done;
	ssize_t n = io->transfer(q->write, q->bytes - q->done, at);
	if (n <= 0) {
		req_over(io, q, n < 0 ? (int)-n : ENODATA);
		return;
	}
	struct io_uring_sqe *e = ring_entry(io);
	if (q->write)
		io_uring_prep_write(e, q->fd, q->buf + q->done, (unsigned)n, (uint64_t)at);
	else
		io_uring_prep_read(e, q->fd, q->buf + q->done, (unsigned)n, (uint64_t)at);
	io_uring_sqe_set_data(e, q);
	io->flying++;
}

/* Moves completed requests to `over`; 1: woken by disk_io_wake. */
static int ring_reap(struct disk_io *io)
{
	struct io_uring_cqe *c;
	int woken = 0;
	while (io_uring_peek_cqe(&io->ring, &c) == 0) {
		struct disk_req *q = io_uring_cqe_get_data(c);
		int res = c->res;
		io_uring_cqe_seen(&io->ring, c);
		if (q) {
			io->flying--;
			if (!req_advance(io, q, res))
				ring_put(io, q);
		} else {
			wake_read(io);
			woken = 1;
			ring_arm_wake(io);
		}
	}
	return woken;
}

static void ring_wait(struct disk_io *io)
{
	while (!ring_reap(io) && list_empty(&io->over)) {
		int r = io_uring_submit_and_wait(&io->ring, 1);
		if (r < 0 && r != -EINTR && r != -EAGAIN && r != -EBUSY)
			PANIC("io_uring: cannot wait: %s", strerror(-r));
	}
}

/* --- both --- */

void disk_io_submit(struct disk_io *io, struct disk_req *q)
{
	list_init(&q->link);
	q->done = 0;
	q->result = 0;
	if (io->ringed)
		ring_put(io, q);
	else
		plain_run(io, q);
}

void disk_io_send(struct disk_io *io)
{
	if (io->ringed && io_uring_sq_ready(&io->ring) > 0)
		io_uring_submit(&io->ring); /* the rest goes with the next call */
}

int disk_io_over(struct disk_io *io)
{
	if (io->ringed)
		ring_reap(io);
	return !list_empty(&io->over);
}

unsigned disk_io_flying(const struct disk_io *io)
{
	return io->flying;
}

void disk_io_wait(struct disk_io *io)
{
	if (io->ringed)
		ring_wait(io);
	else if (list_empty(&io->over))
		plain_wait(io);
}

struct disk_req *disk_io_take(struct disk_io *io)
{
	disk_io_send(io);
	if (list_empty(&io->over))
		return NULL;
	struct list *first = io->over.next;
	list_remove(first);
	return list_entry(first, struct disk_req, link);
}

void disk_io_wake(struct disk_io *io)
{
	uint64_t one = 1;
	ssize_t n = write(io->wake_fd, &one, sizeof one);
	(void)n; /* counter full: still readable */
}

static int ring_open(struct disk_io *io, unsigned depth, const struct disk_calls *calls,
                     struct err *err)
{
	int r = calls && calls->ring_init ? calls->ring_init(depth + 2, &io->ring)
	                                  : io_uring_queue_init(depth + 2, &io->ring, 0);
	if (r < 0)
		return err_set(err, ERR_UNSUPPORTED, "io_uring unavailable: %s", strerror(-r));
	static const int needed[] = {IORING_OP_READ, IORING_OP_WRITE, IORING_OP_POLL_ADD};
	struct io_uring_probe *p = io_uring_get_probe_ring(&io->ring);
	int there = p != NULL;
	for (size_t i = 0; p && i < sizeof needed / sizeof needed[0]; i++)
		there = there && io_uring_opcode_supported(p, needed[i]);
	io_uring_free_probe(p);
	if (!there) {
		io_uring_queue_exit(&io->ring);
		return err_set(err, ERR_UNSUPPORTED,
		               "this kernel's io_uring lacks reads or writes (needs 5.6)");
	}
	ring_arm_wake(io);
	return 0;
}

int disk_io_new(int ring, unsigned depth, const struct disk_calls *calls, struct disk_io **ret,
                struct err *err)
{
	struct disk_io *io = mem_zalloc(sizeof *io);
	list_init(&io->over);
	io->ringed = ring;
	io->transfer = calls && calls->transfer ? calls->transfer : transfer_all;
	io->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	int r = io->wake_fd < 0 ? err_set(err, ERR_IO, "eventfd: %s", strerror(errno)) : 0;
	if (r == 0 && ring)
		r = ring_open(io, depth, calls, err);
	if (r != 0) {
		if (io->wake_fd >= 0)
			close(io->wake_fd);
		free(io);
		return r;
	}
	*ret = io;
	return 0;
}

void disk_io_destroy(struct disk_io **iop)
{
	struct disk_io *io = *iop;
	if (!io)
		return;
	CHECK(list_empty(&io->over));
	if (io->ringed)
		io_uring_queue_exit(&io->ring);
	close(io->wake_fd);
	free(io);
	*iop = NULL;
}
