/* test_prefill_tiers.c - a prefill worker and a real storage: what is written when, what is read
 * back, and what happens when storage is slow, stopped, restarted or has only some of it. The
 * world is prefill_world.h: router, messager and decode worker are this file's own. */
/* run: waits minutes */
#include "prefill_world.h"

/* With more patience than in service: what a loaded machine makes late is not what is tested
 * here. */
#define WITH_STORAGE "storage=storage", "storage_lookup_wait_ms=20000", "storage_read_wait_ms=20000"

static void ready(void)
{
	UNTIL(told("status", "storage_ready") == 1);
}

/* It is killed, and the worker knows. */
static void storage_gone(void)
{
	storage_kill();
	UNTIL(told("status", "storage_ready") == 0);
}

/* A prompt from begin to end; its first token, and how much of it was not computed. */
static const Pds__FirstToken *through(struct ask a)
{
	a.to = "1";
	struct transfer t = to_computed(D1, a);
	finish(D1, a.req, &t);
	UNTIL(requests_are("[]"));
	return first_token(a.req);
}

static uint32_t stored(void)
{
	return kv_count("cached_stored");
}

/* Cached blocks that are in that tier. */
static uint32_t stored_in(const char *tier)
{
	char quoted[64];
	const char *kv = ctl("kv");
	snprintf(quoted, sizeof quoted, "{\"tier\":\"%s\",\"cached_stored\":", tier);
	const char *at = strstr(kv, quoted);
	ck_assert_msg(at != NULL, "%s", kv);
	return (uint32_t)strtoul(at + strlen(quoted), NULL, 10);
}

static void settled(void)
{
	UNTIL(kv_count("due") + kv_count("writing") == 0);
}

/* --- policies ------------------------------------------------------------ */

TEST_CASE("policy", .timeout_s = 300);

TEST(test_recycle)
{
	world_begin(WITH_STORAGE, "kv_blocks=12");
	storage_start();
	ready();
	for (uint64_t r = 1; r <= 4; r++)
		through((struct ask){.req = r, .n = 128, .seed = (uint32_t)r});
	ck_assert_uint_eq(stored(), 0);
	ck_assert_uint_eq(metric("kv_written_blocks_total"), 0);
	ck_assert_uint_eq(kv_count("evictions"), 3 * 8 - 4);
	ck_assert_uint_eq(kv_count("evicted_stored"), 0);
	world_end();
}

/* The pool holds one and a half prompts, storage all of them: each comes back whole, its last
 * block but the last token. */
TEST(test_offload_and_back)
{
	world_begin(WITH_STORAGE, "kv_blocks=12", "kv_eviction=offload", "offload_wait_ms=20000");
	uint32_t want[5];
	for (uint64_t r = 1; r <= 4; r++)
		want[r] = alone((struct ask){.req = 90 + r, .n = 136, .to = "1", .seed = (uint32_t)r});
	storage_start();
	ready();
	for (uint64_t round = 0; round < 3; round++)
		for (uint64_t r = 1; r <= 4; r++) {
			const Pds__FirstToken *f = through(
				(struct ask){.req = round * 10 + r, .n = 136, .seed = (uint32_t)r});
			ck_assert_uint_eq(f->token->id, want[r]);
			ck_assert_uint_eq(f->timing->cached_tokens, round ? 128 : 0);
		}
	settled();
	/* those of the flushes; nothing else was lost */
	ck_assert_uint_eq(metric("kv_evicted_lost_total") - 4 * 8, 0);
	ck_assert_uint_gt(kv_count("evicted_stored"), 20);
	ck_assert_uint_eq(metric("storage_read_late_blocks_total"), 0);
	world_end();
}

/* Storage stands still: a prompt waits for offload_wait_ms and then evicts what is not written. */
TEST(test_offload_does_not_wait_for_ever)
{
	world_begin(WITH_STORAGE, "kv_blocks=12", "kv_eviction=offload", "offload_low_percent=1",
	            "offload_wait_ms=300", "storage_lookup_wait_ms=20",
	            "silence_ms=600000"); /* that storage counts as gone is not what ends the wait */
	storage_start();
	ready();
	through((struct ask){.req = 1, .n = 128, .seed = 1});
	kill(W.beside, SIGSTOP);
	uint64_t begin_us = clock_us();
	through((struct ask){.req = 2, .n = 128, .seed = 2});
	ck_assert_uint_ge(clock_us() - begin_us, 300000);
	ck_assert_uint_eq(kv_count("evicted_stored"), 0);
	UNTIL(kv_count("evictions") == 4);
	kill(W.beside, SIGCONT);
	world_end();
}

/* All of the pool is being read by a storage that stands still: what is needed is void and
 * taken. When storage goes on, it stores none of what has changed. */
TEST(test_pinned_blocks_are_taken_back)
{
	world_begin(WITH_STORAGE, "kv_blocks=8", "kv_eviction=write_through", "write_through_after=0",
	            "offload_wait_ms=100", "storage_lookup_wait_ms=20");
	uint32_t want = alone((struct ask){.req = 90, .n = 128, .to = "1", .seed = 2});
	storage_start();
	ready();
	kill(W.beside, SIGSTOP);
	through((struct ask){.req = 1, .n = 128, .seed = 1});
	/* a second may be over before this process looks */
	UNTIL(kv_count("readers") > 0 || metric("kv_not_written_blocks_total") > 0);
	const Pds__FirstToken *f = through((struct ask){.req = 2, .n = 128, .seed = 2});
	ck_assert_uint_eq(f->token->id, want);
	ck_assert_uint_eq(stored(), 0);
	kill(W.beside, SIGCONT);
	settled();
	flush();
	f = through((struct ask){.req = 3, .n = 128, .seed = 2});
	ck_assert_uint_eq(f->token->id, want);
	f = through((struct ask){.req = 4, .n = 128, .seed = 1});
	world_end();
}

TEST(test_write_through)
{
	world_begin(WITH_STORAGE, "kv_blocks=40", "kv_eviction=write_through", "write_through_after=2");
	storage_start();
	ready();
	for (uint64_t r = 1; r <= 3; r++) {
		ck_assert_uint_eq(stored(), 0);
		const Pds__FirstToken *f = through((struct ask){.req = r, .n = 80});
		ck_assert_uint_eq(f->timing->cached_tokens, r > 1 ? 64 : 0);
	}
	/* the fifth block holds the last token: it is computed each time, and was never used again */
	UNTIL(stored() == 4);
	through((struct ask){.req = 4, .n = 80, .seed = 4});
	settled();
	ck_assert_uint_eq(stored(), 4);
	UNTIL(metric("kv_written_blocks_total") == 4);
	world_end();
}

/* --- restarts ------------------------------------------------------------ */

TEST_CASE("restart", .timeout_s = 300);

TEST(test_marks_and_a_restart)
{
	world_begin(WITH_STORAGE, "kv_blocks=40", "kv_eviction=write_through", "write_through_after=0");
	storage_start();
	ready();
	through((struct ask){.req = 1, .n = 80});
	UNTIL(stored() == 5 && stored_in("memory") == 5);
	storage_gone();
	storage_start();
	ready();
	UNTIL(stored() == 5); /* written again, by itself */
	UNTIL(metric("kv_written_blocks_total") == 10);
	storage_gone();
	flush();
	storage_start();
	ready();
	const Pds__FirstToken *f = through((struct ask){.req = 2, .n = 80});
	ck_assert_uint_eq(f->timing->cached_tokens, 0);
	UNTIL(stored() == 5);
	flush();
	f = through((struct ask){.req = 3, .n = 80});
	ck_assert_uint_eq(f->timing->cached_tokens, 64);
	settled();
	/* what was just read is stored: not written again, but the one block that was computed */
	ck_assert_uint_le(metric("kv_written_blocks_total"), 16);
	UNTIL(metric("stored_tokens_total") == 64);
	world_end();
}

/* Storage is smaller than the pool and drops the oldest: what it no longer has does not count as
 * stored, and is not written to it without end. */
TEST(test_storage_forgets)
{
	world_begin(WITH_STORAGE, "kv_blocks=240", "kv_eviction=write_through",
	            "write_through_after=0");
	storage_start_with((const char *const[]){"memory_mb=1", NULL});
	ready();
	for (uint64_t r = 1; r <= 14; r++)
		through((struct ask){.req = r, .n = 160, .seed = (uint32_t)r});
	settled();
	UNTIL(metric("kv_written_blocks_total") == 140);
	UNTIL(stored() < 100);
	ck_assert_uint_gt(stored(), 0);
	pump_for(100000);
	ck_assert_uint_eq(metric("kv_written_blocks_total"), 140);
	world_end();
}

/* On disk it is still there afterwards, and the pool knows. */
TEST(test_disk_outlives_storage)
{
	char folder[128];
	world_begin(WITH_STORAGE, "kv_blocks=40", "kv_eviction=write_through", "write_through_after=0");
	snprintf(folder, sizeof folder, "disk_path=%s/disk", W.dir);
	const char *const disk[] = {"memory_mb=0", folder, "disk_mb=64", NULL};
	storage_start_with(disk);
	ready();
	through((struct ask){.req = 1, .n = 80});
	UNTIL(stored() == 5 && stored_in("disk") == 5);
	storage_gone();
	storage_start_with(disk);
	ready();
	UNTIL(stored() == 5);
	flush();
	const Pds__FirstToken *f = through((struct ask){.req = 2, .n = 80});
	ck_assert_uint_eq(f->timing->cached_tokens, 64);
	/* counted with the heartbeats */
	UNTIL(metric("storage_read_disk_blocks_total") == 4);
	world_end();
}

/* --- reading ------------------------------------------------------------- */

TEST_CASE("read", .timeout_s = 300);

/* Storage has the first three blocks of a prompt of eight: these are read, the rest is computed. */
TEST(test_partial_hit)
{
	world_begin(WITH_STORAGE, "kv_blocks=40", "kv_eviction=write_through", "write_through_after=0");
	uint32_t want = alone((struct ask){.req = 90, .n = 136, .to = "1", .seed = 7, .own_from = 48});
	storage_start();
	ready();
	through((struct ask){.req = 1, .n = 80});
	UNTIL(stored() == 5);
	flush();
	const Pds__FirstToken *f = through((struct ask){.req = 2, .n = 136, .seed = 7, .own_from = 48});
	ck_assert_uint_eq(f->token->id, want);
	ck_assert_uint_eq(f->timing->cached_tokens, 48);
	world_end();
}

/* Storage forgets what it has said it has, while the request waits for its grant: nothing comes,
 * all is computed. */
TEST(test_gone_since_the_look_up)
{
	world_begin(WITH_STORAGE, "kv_blocks=40", "kv_eviction=write_through", "write_through_after=0");
	storage_start();
	ready();
	uint32_t want = through((struct ask){.req = 1, .n = 80})->token->id;
	UNTIL(stored() == 5);
	flush();
	say_submit((struct ask){.req = 2, .n = 80, .to = "1"});
	UNTIL(count(D1, MSG_KV_RESERVE, 2));
	storage_gone();
	storage_start();
	ready();
	grant(D1, 2, 80);
	struct transfer t = transfer_of(2);
	const Pds__FirstToken *f = first_token(2);
	ck_assert_uint_eq(f->token->id, want);
	ck_assert_uint_eq(f->timing->cached_tokens, 0);
	UNTIL(metric("storage_read_late_blocks_total") == 4);
	finish(D1, 2, &t);
	world_end();
}

/* A prompt is computed, and used again: its blocks but the last are written in one batch, the
 * first that storage answers. Then it is here no more. */
static uint32_t written_in_one(uint32_t n)
{
	uint32_t token = through((struct ask){.req = 1, .n = n})->token->id, blocks = (n - 1) / BLOCK;
	ck_assert_uint_eq(through((struct ask){.req = 2, .n = n})->timing->cached_tokens,
	                  blocks * BLOCK);
	UNTIL(stored() == blocks);
	UNTIL(metric("kv_write_seconds_count") == 1);
	flush();
	return token;
}

#define ONE_BATCH \
	WITH_STORAGE, "kv_blocks=120", "kv_eviction=write_through", "write_through_after=1"

/* The answer to a read is late: what it was to give is computed after storage_read_wait_ms, and
 * neither before nor much later. */
TEST(test_late_read)
{
	world_begin(ONE_BATCH, "storage_read_wait_ms=150",
	            "fault=type=STORE_DONE:dir=in:nth=2:late=100%:60s");
	storage_start();
	ready();
	uint32_t want = written_in_one(80);
	uint64_t begin_us = clock_us();
	const Pds__FirstToken *f = through((struct ask){.req = 3, .n = 80});
	ck_assert_uint_ge(clock_us() - begin_us, 150000);
	ck_assert_uint_eq(f->token->id, want);
	ck_assert_uint_eq(f->timing->cached_tokens, 0);
	/* the fence was acknowledged */
	ck_assert_uint_eq(metric("fetches_abandoned_total"), 0);
	world_end();
}

/* A client that leaves says nothing of how fast storage is. */
TEST(test_cancelled_read)
{
	world_begin(ONE_BATCH, "fault=type=STORE_DONE:dir=in:nth=2:late=100%:60s");
	storage_start();
	ready();
	written_in_one(80);
	say_submit((struct ask){.req = 3, .n = 80, .to = "1"});
	grant(D1, 3, 80);
	UNTIL(told("status", "read") == 1);
	say_cancel(ROUTER, 3);
	UNTIL(requests_are("[]"));
	UNTIL(kv_count("held") == 0); /* the fence was acknowledged */
	ck_assert_uint_eq(kv_count("read_begin_us"), 0);
	ck_assert_uint_eq(metric("storage_read_late_blocks_total"), 0);
	world_end();
}

/* A switch waits for reads that were given up, too: storage may still write. It is done when the
 * last one has ended. */
TEST(test_role_after_a_read)
{
	world_begin(
		ONE_BATCH,
		"fault=type=STORE_DONE:dir=in:nth=2:late=100%:60s type=STORE_FENCED:dir=in:late=100%:300ms",
		"role_switch_timeout_ms=600000");
	storage_start();
	ready();
	written_in_one(80);
	say_submit((struct ask){.req = 3, .n = 80, .to = "1"});
	grant(D1, 3, 80);
	UNTIL(told("status", "read") == 1);
	ask_role("decode", 0);
	ck_assert_str_eq(ask_role(NULL, 0), "{\"role\":\"prefill\",\"switching\":\"decode\"}");
	say_cancel(ROUTER, 3);
	UNTIL(requests_are("[]"));
	UNTIL(role_is("decode"));
	ask_role("prefill", 0);
	UNTIL(role_is("prefill"));
	world_end();
}

/* Two parts of a read, 16 blocks and 13: only the first comes in time, and is used. */
TEST(test_half_a_read)
{
	world_begin(ONE_BATCH, "storage_read_wait_ms=3000",
	            "fault=type=STORE_DONE:dir=in:nth=3:late=100%:60s");
	storage_start();
	ready();
	uint32_t want = written_in_one(LONG);
	const Pds__FirstToken *f = through((struct ask){.req = 3, .n = LONG});
	ck_assert_uint_eq(f->token->id, want);
	ck_assert_uint_eq(f->timing->cached_tokens, 16 * BLOCK);
	UNTIL(metric("storage_read_late_blocks_total") == 13);
	world_end();
}

/* The other way round: what came is not contiguous with what is here, and nothing of it is used. */
TEST(test_second_half_of_a_read)
{
	world_begin(ONE_BATCH, "storage_read_wait_ms=400",
	            "fault=type=STORE_DONE:dir=in:nth=2:late=100%:60s");
	storage_start();
	ready();
	uint32_t want = written_in_one(LONG);
	const Pds__FirstToken *f = through((struct ask){.req = 3, .n = LONG});
	ck_assert_uint_eq(f->token->id, want);
	ck_assert_uint_eq(f->timing->cached_tokens, 0);
	world_end();
}

TEST(test_never_and_always)
{
	world_begin(WITH_STORAGE, "kv_blocks=40", "kv_eviction=write_through", "write_through_after=0",
	            "storage_read=never");
	storage_start();
	ready();
	through((struct ask){.req = 1, .n = 80});
	UNTIL(stored() == 5);
	flush();
	ck_assert_uint_eq(through((struct ask){.req = 2, .n = 80})->timing->cached_tokens, 0);
	ck_assert_uint_eq(kv_count("looked_up_blocks"), 0);
	UNTIL(stored() == 5);
	world_end();
}

/* A storage that is so slow that computing is faster: what was measured says so, and then
 * nothing is read, whatever storage has. */
TEST(test_not_worth_reading)
{
	world_begin(ONE_BATCH, "fault=type=STORE_DONE:dir=in:nth=2:late=100%:2s");
	storage_start();
	ready();
	uint32_t want = written_in_one(32);
	const Pds__FirstToken *f = through((struct ask){.req = 3, .n = 32});
	ck_assert_uint_eq(f->timing->cached_tokens,
	                  16); /* not known yet: read, one block in two seconds */
	flush();
	f = through((struct ask){.req = 4, .n = 32});
	ck_assert_uint_eq(f->token->id, want);
	ck_assert_uint_eq(f->timing->cached_tokens, 0);
	UNTIL(metric("storage_not_worth_blocks_total") == 1);
	const char *kv = ctl("kv");
	ck_assert_msg(strstr(kv, "\"break_even_blocks\":\"never\"") != NULL, "%s", kv);
	world_end();
}
