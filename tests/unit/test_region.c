/* test_region.c - shared KV memory: what owner and peer see, and descriptors of a peer that must
 * be refused. */
#include "pool_memory.h"

#include <check.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static struct kv_layout l;
static struct pool_memory own, peer;
static struct err e;

static void setup(void)
{
	ck_assert_int_eq(kv_layout_uniform(&l, 2, 2, 16, 8, KV_BF16), 0); /* a block is 2,048 bytes */
	ck_assert_msg(pool_memory_new(&own, &l, 7, &e) == 0, "%s", e.text);
}

static int map_dup(uint32_t blocks, int control, int data)
{
	return pool_memory_map(&peer, &l, blocks, control < 0 ? control : dup(control),
	                       data < 0 ? data : dup(data), &e);
}

static int fds_open(void)
{
	int n = 0;
	for (int fd = 0; fd < 256; fd++)
		n += fcntl(fd, F_GETFD) >= 0;
	return n;
}

TEST_CASE("region", .setup = setup);

TEST(owner_and_peer_see_the_same)
{
	ck_assert_uint_eq(own.region.data_bytes, 14336);
	for (uint32_t b = 0; b < 7; b++)
		ck_assert_uint_eq(own.region.generations[b], 0);
	own.region.generations[6] = 99;
	memset(own.data + kv_piece_offset(&l, 7, 1, 6), 0x5A, l.piece_bytes[1]);
	ck_assert_msg(map_dup(7, own.region.control_fd, own.region.data.fd[0]) == 0, "%s", e.text);
	ck_assert_uint_eq(peer.region.generations[6], 99);
	ck_assert_uint_eq(peer.data[kv_piece_offset(&l, 7, 1, 6) + l.piece_bytes[1] - 1], 0x5A);
	peer.data[0] = 1;
	ck_assert_uint_eq(own.data[0], 1);
	own.region.generations[0]++;
	ck_assert_uint_eq(peer.region.generations[0], 1);
	pool_memory_fini(&own);
	ck_assert_uint_eq(peer.data[0], 1); /* the peer keeps what it mapped */
	pool_memory_fini(&peer);
	pool_memory_fini(&peer);
}

TEST(nobody_can_resize_or_write_generations)
{
	ck_assert_int_lt(ftruncate(own.region.data.fd[0], 4096), 0);
	ck_assert_int_lt(ftruncate(own.region.data.fd[0], 1 << 20), 0);
	ck_assert_int_lt(ftruncate(own.region.control_fd, 4096), 0);
	ck_assert_ptr_eq(mmap(NULL, own.region.control_bytes, PROT_READ | PROT_WRITE, MAP_SHARED,
	                      own.region.control_fd, 0),
	                 MAP_FAILED);
	ck_assert_int_lt(pwrite(own.region.control_fd, "x", 1, 0), 0);
	own.region.generations[3]++; /* the owner's own mapping goes on */
	ck_assert_int_eq(fcntl(own.region.data.fd[0], F_GETFD), FD_CLOEXEC);
	ck_assert_int_eq(fcntl(own.region.control_fd, F_GETFD), FD_CLOEXEC);
}

TEST(a_backend_that_is_not_there)
{
	struct kv_region r;
	struct kv_data data = one_part(dup(own.region.data.fd[0]));
	data.device[0] = 1;
	ck_assert_int_eq(kv_region_map(&r, &l, 7, "none", dup(own.region.control_fd), &data, &e),
	                 ERR_UNSUPPORTED);
	ck_assert_ptr_nonnull(strstr(e.text, "blocks on device 1 of backend none cannot be copied: "
	                                     "backend: found none, expected cpu, sim or an"));
	ck_assert_ptr_null(r.pool);
	ck_assert_uint_eq(r.data.parts, 0);
}

static int memory(size_t bytes, int seals)
{
	int fd = memfd_create("forged", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	ck_assert_int_eq(ftruncate(fd, (off_t)bytes), 0);
	if (seals)
		ck_assert_int_eq(fcntl(fd, F_ADD_SEALS, seals), 0);
	return fd;
}

static int mappings(void)
{
	int n = 0, c;
	FILE *f = fopen("/proc/self/maps", "r");
	ck_assert_ptr_nonnull(f);
	while ((c = fgetc(f)) != EOF)
		n += c == '\n';
	fclose(f);
	return n;
}

TEST(memory_that_is_given_back_is_not_mapped_any_more)
{
	int before = 0;
	for (int i = 0; i < 20; i++) {
		ck_assert_msg(map_dup(7, own.region.control_fd, own.region.data.fd[0]) == 0, "%s", e.text);
		pool_memory_fini(&peer);
		if (i == 9)
			before = mappings();
	}
	ck_assert_int_le(mappings(), before);
}

/* A file, which its owner can cut off under the mapping, cannot be sealed at all. */
static int file_like(int fd, size_t bytes)
{
	char path[] = "/tmp/pdserve-region-XXXXXX", *copy = malloc(bytes);
	int out = mkstemp(path);
	ck_assert(out >= 0 && copy && pread(fd, copy, bytes, 0) == (ssize_t)bytes);
	ck_assert_int_eq(pwrite(out, copy, bytes, 0), (ssize_t)bytes);
	unlink(path);
	free(copy);
	return out;
}

TEST(forged_descriptors_are_refused)
{
	const int sealed = F_SEAL_SHRINK | F_SEAL_GROW;
	const int file = open("/proc/self/exe", O_RDONLY),
			  open_ended = memory(own.region.data_bytes, F_SEAL_GROW),
			  control_file = file_like(own.region.control_fd, own.region.control_bytes),
			  brief = memory(own.region.data_bytes - 1, sealed),
			  zeros = memory(own.region.control_bytes, sealed),
			  fit = memory(own.region.data_bytes, sealed);
	const struct {
		uint32_t blocks;
		int control, data, want;
	} t[] = {
		{7, -1, own.region.data.fd[0], ERR_IO},
		{7, file, own.region.data.fd[0], ERR_INVALID},
		{7, control_file, own.region.data.fd[0], ERR_INVALID},
		{7, own.region.control_fd, file, ERR_INVALID},
		{7, own.region.control_fd, open_ended, ERR_INVALID},
		{7, own.region.control_fd, brief, ERR_INVALID},
		{7, zeros, own.region.data.fd[0], ERR_CORRUPT},
		{8, own.region.control_fd, own.region.data.fd[0], ERR_CORRUPT},
		{0, own.region.control_fd, own.region.data.fd[0], ERR_INVALID},
		{UINT32_MAX, own.region.control_fd, own.region.data.fd[0], ERR_INVALID},
		{UINT32_MAX - 1, own.region.control_fd, own.region.data.fd[0], ERR_INVALID},
		{7, own.region.data.fd[0], own.region.control_fd, ERR_INVALID},
		{7, own.region.control_fd, fit, 0},
	};
	int before = fds_open();
	for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
		memset(&e, 0, sizeof e);
		int r = map_dup(t[i].blocks, t[i].control, t[i].data);
		ck_assert_msg(r == t[i].want, "case %zu: %s, wanted %s (%s)", i, err_name(r),
		              err_name(t[i].want), e.text);
		ck_assert(r == 0 || e.text[0]);
		pool_memory_fini(&peer);
		ck_assert_int_eq(fds_open(), before);
	}
	struct kv_layout other;
	kv_layout_uniform(&other, 2, 2, 16, 8, KV_F32);
	ck_assert_int_lt(pool_memory_map(&peer, &other, 7, dup(own.region.control_fd),
	                                 dup(own.region.data.fd[0]), &e),
	                 0);
	ck_assert_int_eq(fds_open(), before);
}

TEST(impossible_pools_are_refused)
{
	struct kv_region r;
	struct kv_layout big;
	char text[256] = "";
	void *at;
	int fd;
	kv_layout_uniform(&big, 1, 1, 1u << 22, 64, KV_BF16); /* blocks of 1 GiB */
	int before = fds_open();
	struct kv_data none = one_part(dup(0)), other = one_part(dup(0));
	ck_assert_int_eq(kv_region_create(&r, &big, 0, &none, &e), ERR_INVALID);
	ck_assert_int_eq(kv_region_create(&r, &big, UINT32_MAX, &other, &e), ERR_INVALID);
	ck_assert_uint_eq(r.data.parts, 0);
	/* 4 EiB */
	ck_assert_int_eq(host_shared_new(big.block_bytes * (UINT32_MAX - 1), &at, &fd, text,
	                                 sizeof text),
	                 KERN_ENOMEM);
	ck_assert_str_ne(text, "");
	ck_assert_int_eq(fds_open(), before);
}
