/* test_region.c - shared KV memory: what owner and peer see, and descriptors of a peer that must be refused. */
#include "kv/region.h"

#include <check.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static struct kv_layout l;
static struct kv_region own, peer;
static struct err e;

static void setup(void)
{
	ck_assert_int_eq(kv_layout_uniform(&l, 2, 2, 16, 8, KV_BF16), 0);   /* a block is 2,048 bytes */
	ck_assert_msg(kv_region_create(&own, &l, 7, &e) == 0, "%s", e.text);
}

static int map_dup(uint32_t blocks, int control, int data, int writable)
{
	return kv_region_map(&peer, &l, blocks, control < 0 ? control : dup(control), data < 0 ? data : dup(data), writable, &e);
}

static int fds_open(void)
{
	int n = 0;
	for (int fd = 0; fd < 256; fd++)
		n += fcntl(fd, F_GETFD) >= 0;
	return n;
}

START_TEST(owner_and_peer_see_the_same)
{
	ck_assert_uint_eq(own.data_bytes, 16384);   /* 14,336 in whole pages */
	for (uint32_t b = 0; b < 7; b++)
		ck_assert_uint_eq(own.generations[b], 0);
	own.generations[6] = 99;
	memset(own.data + kv_piece_offset(&l, 7, 1, 6), 0x5A, l.piece_bytes[1]);
	ck_assert_msg(map_dup(7, own.control_fd, own.data_fd, 1) == 0, "%s", e.text);
	ck_assert_uint_eq(peer.generations[6], 99);
	ck_assert_uint_eq(peer.data[kv_piece_offset(&l, 7, 1, 6) + l.piece_bytes[1] - 1], 0x5A);
	peer.data[0] = 1;
	ck_assert_uint_eq(own.data[0], 1);
	own.generations[0]++;
	ck_assert_uint_eq(peer.generations[0], 1);
	kv_region_fini(&own);
	ck_assert_uint_eq(peer.data[0], 1);   /* the peer keeps what it mapped */
	kv_region_fini(&peer);
	kv_region_fini(&peer);
}
END_TEST

START_TEST(nobody_can_resize_or_write_generations)
{
	ck_assert_int_lt(ftruncate(own.data_fd, 4096), 0);
	ck_assert_int_lt(ftruncate(own.data_fd, 1 << 20), 0);
	ck_assert_int_lt(ftruncate(own.control_fd, 4096), 0);
	ck_assert_ptr_eq(mmap(NULL, own.control_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, own.control_fd, 0), MAP_FAILED);
	ck_assert_int_lt(pwrite(own.control_fd, "x", 1, 0), 0);
	own.generations[3]++;   /* the owner's own mapping goes on */
	ck_assert_int_eq(fcntl(own.data_fd, F_GETFD), FD_CLOEXEC);
	ck_assert_int_eq(fcntl(own.control_fd, F_GETFD), FD_CLOEXEC);
}
END_TEST

START_TEST(read_only_peer_cannot_write)
{
	ck_assert_int_eq(map_dup(7, own.control_fd, own.data_fd, 0), 0);
	peer.data[0] = 1;
}
END_TEST

START_TEST(device_memory_has_no_data_descriptor)
{
	ck_assert_int_eq(map_dup(7, own.control_fd, -1, 1), 0);
	ck_assert_ptr_null(peer.data);
	ck_assert_int_eq(peer.data_fd, -1);
	own.generations[2] = 5;
	ck_assert_uint_eq(peer.generations[2], 5);
	kv_region_fini(&peer);
}
END_TEST

static int memory(size_t bytes, int seals)
{
	int fd = memfd_create("forged", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	ck_assert_int_eq(ftruncate(fd, (off_t)bytes), 0);
	if (seals)
		ck_assert_int_eq(fcntl(fd, F_ADD_SEALS, seals), 0);
	return fd;
}

START_TEST(forged_descriptors_are_refused)
{
	const int sealed = F_SEAL_SHRINK | F_SEAL_GROW;
	const int file = open("/proc/self/exe", O_RDONLY), open_ended = memory(own.data_bytes, F_SEAL_GROW),
	          brief = memory(own.data_bytes - 4096, sealed), zeros = memory(own.control_bytes, sealed), fit = memory(own.data_bytes, sealed);
	const struct {
		uint32_t blocks;
		int control, data, want;
	} t[] = {
		{7, -1, own.data_fd, ERR_IO},           {7, file, own.data_fd, ERR_INVALID},        {7, own.control_fd, file, ERR_INVALID},
		{7, own.control_fd, open_ended, ERR_INVALID}, {7, own.control_fd, brief, ERR_INVALID}, {7, zeros, own.data_fd, ERR_CORRUPT},
		{8, own.control_fd, own.data_fd, ERR_CORRUPT}, {0, own.control_fd, own.data_fd, ERR_INVALID},
		{UINT32_MAX, own.control_fd, own.data_fd, ERR_INVALID}, {UINT32_MAX - 1, own.control_fd, own.data_fd, ERR_INVALID},
		{7, own.data_fd, own.control_fd, ERR_INVALID}, {7, own.control_fd, fit, 0},
	};
	int before = fds_open();
	for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
		memset(&e, 0, sizeof e);
		int r = map_dup(t[i].blocks, t[i].control, t[i].data, 1);
		ck_assert_msg(r == t[i].want, "case %zu: %s, wanted %s (%s)", i, err_name(r), err_name(t[i].want), e.text);
		ck_assert(r == 0 || e.text[0]);
		kv_region_fini(&peer);
		ck_assert_int_eq(fds_open(), before);
	}
	struct kv_layout other;
	kv_layout_uniform(&other, 2, 2, 16, 8, KV_F32);
	ck_assert_int_lt(kv_region_map(&peer, &other, 7, dup(own.control_fd), dup(own.data_fd), 1, &e), 0);
	ck_assert_int_eq(fds_open(), before);
}
END_TEST

START_TEST(impossible_pools_are_refused)
{
	struct kv_region r;
	struct kv_layout big;
	kv_layout_uniform(&big, 1, 1, 1u << 22, 64, KV_BF16);   /* blocks of 1 GiB */
	int before = fds_open();
	ck_assert_int_eq(kv_region_create(&r, &big, 0, &e), ERR_INVALID);
	ck_assert_int_eq(kv_region_create(&r, &big, UINT32_MAX, &e), ERR_INVALID);
	ck_assert_int_lt(kv_region_create(&r, &big, UINT32_MAX - 1, &e), 0);   /* 4 EiB */
	ck_assert_str_ne(e.text, "");
	ck_assert_int_eq(r.data_fd, -1);
	ck_assert_int_eq(fds_open(), before);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("region");
	TCase *t = tcase_create("region");
	tcase_add_checked_fixture(t, setup, NULL);
	tcase_add_test(t, owner_and_peer_see_the_same);
	tcase_add_test(t, nobody_can_resize_or_write_generations);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)   /* they turn the signal into an exit of their own */
	tcase_add_test_raise_signal(t, read_only_peer_cannot_write, 11);
#else
	(void)read_only_peer_cannot_write;
#endif
	tcase_add_test(t, device_memory_has_no_data_descriptor);
	tcase_add_test(t, forged_descriptors_are_refused);
	tcase_add_test(t, impossible_pools_are_refused);
	suite_add_tcase(s, t);
	SRunner *r = srunner_create(s);
	srunner_run_all(r, CK_NORMAL);
	int failed = srunner_ntests_failed(r);
	srunner_free(r);
	return failed != 0;
}
