/* test_messager_tcp.c - KV over TCP data connections: exact bytes by each way, the window, turns,
 * cuts, leases that are closed or stale, and everything that a stranger or a peer may send. */
#include "tcp_rig.h"

#include <arpa/inet.h>
#include <netinet/in.h>

/* --- bytes --------------------------------------------------------------- */

static void exact(int encrypt, int far, uint32_t frame_bytes)
{
	struct tcp_opts o = rig_opts;
	struct lease l[3];
	rig_random = 7;
	o.encrypt = encrypt;
	o.frame_bytes = frame_bytes;
	o.connections = 3;
	struct rig *r = rig_new(&o, &rig_opts, 7, 16, far);
	for (unsigned i = 0; i < 3; i++) {
		lease_open(&l[i], r, 1 + 15 * i, 14); /* blocks 0, 15, 30, 45.. are nobody's */
		lease_send_all(&l[i]);
	}
	RIG_WAIT(r, l[0].bytes == lease_all(l) && l[1].bytes == lease_all(l + 1) &&
	                l[2].bytes == lease_all(l + 2));
	for (unsigned i = 0; i < 3; i++) {
		ck_assert_int_eq(OPS->incoming_complete(l[i].in), 1);
		lease_check(&l[i]);
		check_untouched(r, 15 * i, 15 * i + 1);
		lease_end(&l[i]);
	}
	check_untouched(r, 45, RIG_BLOCKS);
	struct path_state s;
	OPS->path_state(r->path, &s);
	ck_assert_ptr_null(s.up);
	ck_assert_uint_eq(s.bytes, 3 * 14 * r->layout.block_bytes);
	ck_assert_uint_eq(s.repeated_bytes, 0);
	ck_assert_uint_eq(s.errors, 0);
	ck_assert_ptr_nonnull(strstr(s.via, encrypt ? "aes256-gcm" : "plain"));
	OPS->intake_state(r->intake, &s);
	ck_assert_uint_eq(s.bytes, 3 * 14 * r->layout.block_bytes);
	ck_assert_uint_eq(s.errors, 0);
	rig_free(r);
}

START_TEST(bytes_are_exact)
{
	static const struct {
		int encrypt, far;
		uint32_t frame_bytes;
	} ways[] = {{0, 0, 0},    {0, 0, 600}, {0, 0, 1},   {0, 1, 0},
	            {0, 1, 1100}, {1, 0, 0},   {1, 0, 900}, {1, 1, 700}};
	exact(ways[_i].encrypt, ways[_i].far, ways[_i].frame_bytes);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("messager_tcp");
	TCase *t = tcase_create("bytes");
	tcase_add_loop_test(t, bytes_are_exact, 0, 8);
	tcase_set_timeout(t, 60);
	suite_add_tcase(s, t);
	SRunner *r = srunner_create(s);
	srunner_run_all(r, CK_ENV);
	int failed = srunner_ntests_failed(r);
	srunner_free(r);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
