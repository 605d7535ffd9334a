/* test_msg_keys.c - keys, and links between hosts that they authenticate: over loopback TCP, with
 * everybody who must not get in. */
/* run: waits */
#include "dns_rig.h"
#include "msg/chan_priv.h"
#include "msg/keys.h"
#include "msg_pair.h"
#include "tempdir.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <zmq.h>

static char server_keys[TEST_FOLDER_BYTES], client_keys[TEST_FOLDER_BYTES];

static void write_text(const char *path, const char *text, int mode)
{
	unlink(path);
	FILE *f = fopen(path, "w");
	ck_assert(f && fputs(text, f) >= 0 && fclose(f) == 0 && chmod(path, mode) == 0);
}

static void copy_key(const char *from, const char *name, const char *to)
{
	char path[200], text[KEY_FILE_BYTES] = "";
	snprintf(path, sizeof path, "%s/%s.pub", from, name);
	FILE *f = fopen(path, "r");
	ck_assert(f && fread(text, 1, sizeof text - 1, f) > 0 && fclose(f) == 0);
	snprintf(path, sizeof path, "%s/known/%s.pub", to, name);
	write_text(path, text, 0644);
}

static void make_key(const char *folder, const char *name, enum key_role role)
{
	struct err err = {0};
	ck_assert_msg(keys_generate(folder, name, role, &err) == 0, "%s", err.text);
}

static struct keys *open_keys(const char *folder, const char *name)
{
	struct err err = {0};
	struct keys *k = NULL;
	ck_assert_msg(keys_open(folder, name, &k, &err) == 0, "%s", err.text);
	return k;
}

static int free_port(void)
{
	int s = socket(AF_INET, SOCK_STREAM, 0);
	struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t len = sizeof a;
	ck_assert(bind(s, (struct sockaddr *)&a, sizeof a) == 0);
	ck_assert(getsockname(s, (struct sockaddr *)&a, &len) == 0);
	close(s);
	return ntohs(a.sin_port);
}

/* --- files ---------------------------------------------------------------- */

TEST_CASE("files");

TEST(a_pair_is_written_and_read)
{
	char folder[TEST_FOLDER_BYTES], path[200];
	struct stat st;
	struct err err = {0};
	test_folder(folder, "keys");
	make_key(folder, "decode-1", KEY_WORKER);
	snprintf(path, sizeof path, "%s/decode-1.secret", folder);
	ck_assert(stat(path, &st) == 0 && (st.st_mode & 0777) == 0600);
	copy_key(folder, "decode-1", folder);
	struct keys *k = open_keys(folder, "decode-1");
	ck_assert_uint_eq(keys_count(k), 1);
	const struct key *own = keys_own(k), *known = keys_at(k, 0);
	ck_assert_str_eq(known->name, "decode-1");
	ck_assert_int_eq(known->role, KEY_WORKER);
	ck_assert_mem_eq(known->public_key, own->public_key, KEY_BYTES);
	ck_assert_str_eq(known->print, own->print);
	ck_assert_ptr_eq(keys_printed(k, own->print), known);
	/* neither file is written over */
	ck_assert_int_eq(keys_generate(folder, "decode-1", KEY_WORKER, &err), ERR_EXISTS);
	ck_assert_int_eq(keys_generate(folder, "../x", KEY_WORKER, &err), ERR_INVALID);
	ck_assert_int_eq(keys_generate(folder, ".x", KEY_WORKER, &err), ERR_INVALID);
	keys_close(&k);
}

/* the pair of zmq_curve(7) */
#define PUBLIC "rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7"
#define SECRET "JTKVSB%%)wK0E.X)V>+}o?pNmC{O&4W4b!Ni{Lh6"

static const struct {
	const char *text;
	int mode;
	const char *want; /* in the error */
} secrets[] = {
	{"name n\nrole worker\npublic " PUBLIC "\nsecret " SECRET "\n", 0600, NULL},
	{"# x\r\nname   n\r\nrole\tworker\r\npublic " PUBLIC "\r\nsecret " SECRET, 0600, NULL},
	{"name n\nrole worker\npublic " PUBLIC "\nsecret " SECRET "\n", 0640, "chmod 600"},
	{"name n\nrole worker\npublic " PUBLIC "\nsecret " SECRET "\n", 0604, "chmod 600"},
	{"name n\nrole worker\npublic " PUBLIC "\n", 0600, "no secret"},
	{"name m\nrole worker\npublic " PUBLIC "\nsecret " SECRET "\n", 0600, "key of \"m\""},
	{"name n\nrole cook\npublic " PUBLIC "\nsecret " SECRET "\n", 0600, "role has no valid value"},
	{"name n\nrole worker\npublic abc\nsecret " SECRET "\n", 0600, "public has no valid value"},
	{"name n\nname n\nrole worker\npublic " PUBLIC "\n", 0600, "name is there twice"},
	{"name n\ncolour red\n", 0600, "\"colour\" is none of"},
	{"name n\npublic " PUBLIC "\nsecret " SECRET "\n", 0600, "lacks the line \"role\""},
	{"name n\nrole worker\npublic " PUBLIC "\nsecret " PUBLIC "\n", 0600,
     "is not that of the secret"},
	{"", 0600, "lacks the line \"name\""},
};

TEST_LOOP(secrets_are_checked, 0, sizeof secrets / sizeof *secrets)
{
	char folder[TEST_FOLDER_BYTES], path[200];
	struct err err = {0};
	struct keys *k = NULL;
	test_folder(folder, "keys");
	snprintf(path, sizeof path, "%s/n.secret", folder);
	write_text(path, secrets[_i].text, secrets[_i].mode);
	int r = keys_open(folder, "n", &k, &err);
	if (secrets[_i].want) {
		ck_assert_int_eq(r, ERR_INVALID);
		ck_assert_msg(strstr(err.text, secrets[_i].want), "%s", err.text);
	} else {
		ck_assert_msg(r == 0, "%s", err.text);
	}
	keys_close(&k);
}

TEST(a_missing_secret_says_what_to_do)
{
	char folder[TEST_FOLDER_BYTES];
	struct err err = {0};
	struct keys *k = NULL;
	test_folder(folder, "keys");
	ck_assert_int_eq(keys_open(folder, "n", &k, &err), ERR_INVALID);
	ck_assert_msg(strstr(err.text, "pdctl keygen n"), "%s", err.text);
}

TEST(bad_files_and_repetitions_are_left_out)
{
	char folder[TEST_FOLDER_BYTES], path[200], big[KEY_FILE_BYTES + 2];
	test_folder(folder, "keys");
	make_key(folder, "a", KEY_ROUTER);
	make_key(folder, "b", KEY_WORKER);
	copy_key(folder, "a", folder);
	copy_key(folder, "b", folder);
	struct keys *k = open_keys(folder, "a");
	ck_assert_uint_eq(keys_count(k), 2);
	ck_assert_int_eq(keys_reload(k), 0);
	memset(big, '#', sizeof big);
	big[sizeof big - 1] = 0;
	static const struct {
		const char *file, *text;
	} more[] = {{"c.pub", "name b\nrole worker\npublic " PUBLIC "\n"}, /* a name that is taken */
	            {"d.pub", "name d\nrole worker\n"},
	            {"e.txt", "name e\nrole worker\npublic " PUBLIC "\n"}, /* no .pub */
	            {"f.pub", NULL}};
	for (size_t i = 0; i < sizeof more / sizeof *more; i++) {
		snprintf(path, sizeof path, "%s/known/%s", folder, more[i].file);
		write_text(path, more[i].text ? more[i].text : big, 0644);
	}
	ck_assert_int_eq(keys_reload(k), 0);
	ck_assert_uint_eq(keys_count(k), 2);
	snprintf(path, sizeof path, "%s/known/g.pub", folder);
	write_text(path, "name g\nrole worker\npublic " PUBLIC "\n", 0644);
	ck_assert_int_eq(keys_reload(k), 1);
	ck_assert_ptr_nonnull(keys_named(k, "g"));
	unlink(path);
	ck_assert_int_eq(keys_reload(k), 1);
	ck_assert_ptr_null(keys_named(k, "g"));
	keys_close(&k);
}

/* --- links ---------------------------------------------------------------- */

static struct keys *keys_a, *keys_b;
static struct side a, b;
static char listen_at[100];

/* A router that is to listen, and a worker that has its key; the router knows the worker's if
 * `known`. */
static void links_prepare(int known)
{
	base_setup();
	test_folder(server_keys, "server");
	test_folder(client_keys, "client");
	make_key(server_keys, "router-1", KEY_ROUTER);
	make_key(client_keys, "decode-1", KEY_WORKER);
	copy_key(server_keys, "router-1", client_keys);
	if (known)
		copy_key(client_keys, "decode-1", server_keys);
	else
		ck_assert(mkdir(server_keys, 0755) < 0); /* it is there, and known/ is empty */
	keys_a = open_keys(server_keys, "router-1");
	keys_b = open_keys(client_keys, "decode-1");
	snprintf(listen_at, sizeof listen_at, "tcp://127.0.0.1:%d", free_port());
	struct chan_opts o = pair_opts(0);
	o.silence_us = 2000000;
	a = (struct side){.name = "router-1", .epoch = 1000, .opts = o};
	a.opts.program = "pdrouterd";
	a.opts.keys = keys_a;
	a.opts.listen = listen_at;
	b = (struct side){.name = "decode-1", .epoch = 2000, .opts = o};
	b.opts.program = "pddecoded";
	b.opts.keys = keys_b;
	snprintf(b.to, sizeof b.to, "router-1@%.80s", listen_at);
}

static void links_setup(int known)
{
	links_prepare(known);
	side_start(base, &a);
}

static void links_teardown(void)
{
	if (b.c)
		side_stop(&b);
	if (a.c)
		side_stop(&a);
	keys_close(&keys_a);
	keys_close(&keys_b);
	base_teardown();
}

static void until(int (*cond)(void), const char *what)
{
	for (uint64_t end = clock_us() + 30000000; !cond(); pump_ms(base, 2))
		ck_assert_msg(clock_us() < end, "%s", what);
}

static uint64_t refused(void)
{
	struct chan_counts n;
	chan_counts(a.c, &n);
	return n.keys_refused;
}

static int both_up(void)
{
	return a.p && b.p;
}

static int a_up(void)
{
	return a.p != NULL;
}

static int one_was_refused(void)
{
	return refused() > 0;
}

TEST_CASE("links", .timeout_s = 60);

TEST(hosts_with_keys_talk)
{
	links_setup(1);
	side_start(base, &b);
	until(both_up, "the link comes up");
	for (unsigned i = 0; i < 500; i++) {
		ck_assert_int_eq(say_type(&a, numbered_type(i)), 0);
		ck_assert_int_eq(say_type(&b, numbered_type(i)), 0);
	}
	until_settled(&a, &b, "messages both ways");
	ck_assert_str_eq(peer_name(a.p), "decode-1");
	ck_assert_str_eq(peer_name(b.p), "router-1");
	ck_assert_uint_eq(refused(), 0);
	/* a new life of the worker takes its place */
	side_stop(&b);
	side_start(base, &b);
	until(both_up, "the link comes up again");
	links_teardown();
}

static unsigned char cut_rid[RID_MAX];

static int has_another_connection(void)
{
	return a.p && a.p->rid_len && memcmp(a.p->rid, cut_rid, a.p->rid_len) != 0;
}

/* A cut ends the connection, by address and by name: the link goes on over another one. */
TEST_LOOP(a_cut_ends_the_connection, 0, 2)
{
	struct dns dns;
	links_setup(1);
	dns_start(&dns, base);
	dns_add(&dns, "router.test", T_A, "127.0.0.1", 0);
	b.opts.dns_servers = dns.servers;
	b.fault = "type=KV_DENY:dir=out:nth=1:cut=100%";
	if (_i)
		snprintf(b.to, sizeof b.to, "router-1@tcp://router.test%s", strrchr(listen_at, ':'));
	side_start(base, &b);
	until(both_up, "the link comes up");
	ck_assert_int_eq(say_type(&b, MSG_PEERS), 0);
	until_settled(&a, &b, "before the cut");
	memcpy(cut_rid, a.p->rid, a.p->rid_len);
	ck_assert_int_eq(say_type(&b, MSG_KV_DENY), 0);
	until(has_another_connection, "a cut ended no connection");
	until_settled(&a, &b, "after the cut");
	ck_assert_uint_eq(a.downs + b.downs, 0);
	side_stop(&b);
	dns_stop(&dns);
	links_teardown();
}

static int silence_was_noticed(void)
{
	return a.downs > 0;
}

/* Whatever a peer of another host says about its process: the one that has that number here is not
 * its own. The peer is a process of this host here, so only where its link is from makes the
 * difference. */
TEST(the_process_of_another_host_is_not_watched)
{
	int status;
	links_prepare(1);
	a.opts.silence_us = 500000;
	pid_t pid = fork(); /* before there are threads, which may hold locks */
	if (pid == 0) {
		struct event_base *own = event_base_new();
		side_start(own, &b);
		pump_ms(own, 60000);
		_exit(0);
	}
	side_start(base, &a);
	until(a_up, "the link comes up");
	kill(pid, SIGKILL);
	ck_assert_int_eq(waitpid(pid, &status, 0), pid);
	until(silence_was_noticed, "its silence is noticed");
	ck_assert_str_eq(a.why, "silent for too long");
	links_teardown();
}

TEST(an_unknown_key_gets_no_further_than_its_handshake)
{
	links_setup(0);
	side_start(base, &b);
	until(one_was_refused, "it is refused");
	pump_ms(base, 300);
	ck_assert_ptr_null(a.p);
	ck_assert_ptr_null(b.p);
	struct chan_counts n;
	chan_counts(a.c, &n);
	ck_assert_uint_eq(n.received, 0);
	/* the operator adds it: no restart is needed */
	copy_key(client_keys, "decode-1", server_keys);
	until(both_up, "a key that was added counts");
	links_teardown();
}

TEST(a_key_that_is_removed_ends_its_link)
{
	char path[200];
	links_setup(1);
	side_start(base, &b);
	until(both_up, "the link comes up");
	snprintf(path, sizeof path, "%s/known/decode-1.pub", server_keys);
	unlink(path);
	ck_assert_int_eq(chan_keys_reload(a.c), 1);
	ck_assert_ptr_null(a.p);
	pump_ms(base, 1500);
	ck_assert_ptr_null(a.p);
	links_teardown();
}

static const struct {
	const char *name, *program, *why;
} liars[] = {
	{"decode-2", "pddecoded", "has the key of decode-1, not of decode-2"},
	{"router-1", "pdrouterd", "has the key of decode-1, not of router-1"},
	{"decode-1", "pdrouterd", "for the role worker, not for pdrouterd"},
	{"decode-1", "something", "for the role worker, not for something"},
};

/* What the last line "refused" of the log says; the log goes to a file. */
static int log_has(const char *path, const char *text)
{
	char line[1024];
	int found = 0;
	fflush(stderr);
	FILE *f = fopen(path, "r");
	while (f && fgets(line, sizeof line, f))
		found |= strstr(line, text) != NULL;
	if (f)
		fclose(f);
	return found;
}

TEST_LOOP(a_key_is_bound_to_its_name_and_role, 0, sizeof liars / sizeof *liars)
{
	char path[TEST_FOLDER_BYTES];
	test_file(path, "log");
	ck_assert_ptr_nonnull(freopen(path, "w", stderr));
	links_setup(1);
	b.name = liars[_i].name;
	b.opts.program = liars[_i].program;
	side_start(base, &b);
	for (uint64_t end = clock_us() + 20000000; !log_has(path, liars[_i].why); pump_ms(base, 10))
		ck_assert_msg(clock_us() < end, "not refused: %s", liars[_i].why);
	ck_assert_ptr_null(a.p);
	ck_assert_ptr_null(b.p);
	links_teardown();
}

TEST(a_server_with_another_key_is_not_talked_to)
{
	char path[200];
	links_setup(1);
	side_stop(&a);
	keys_close(&keys_a);
	snprintf(path, sizeof path, "%s/router-1.secret", server_keys);
	unlink(path);
	snprintf(path, sizeof path, "%s/router-1.pub", server_keys);
	unlink(path);
	make_key(server_keys, "router-1", KEY_ROUTER);
	keys_a = open_keys(server_keys, "router-1");
	a.opts.keys = keys_a;
	side_start(base, &a);
	side_start(base, &b);
	pump_ms(base, 1000);
	ck_assert_ptr_null(a.p);
	ck_assert_ptr_null(b.p);
	links_teardown();
}

TEST(a_key_that_was_replaced_counts_after_a_reload)
{
	char path[200];
	links_setup(1);
	side_start(base, &b);
	until(both_up, "the link comes up");
	side_stop(&a);
	keys_close(&keys_a);
	for (int i = 0; i < 2; i++) {
		snprintf(path, sizeof path, "%s/router-1.%s", server_keys, i ? "pub" : "secret");
		ck_assert_int_eq(unlink(path), 0);
	}
	make_key(server_keys, "router-1", KEY_ROUTER);
	keys_a = open_keys(server_keys, "router-1");
	a.opts.keys = keys_a;
	a.epoch++;
	side_start(base, &a);
	pump_ms(base, 300);
	ck_assert_ptr_null(a.p);
	copy_key(server_keys, "router-1", client_keys);
	ck_assert_int_eq(chan_keys_reload(b.c), 1);
	until(both_up, "the link comes up with the new key");
	/* again, while it is up: nothing changes */
	ck_assert_int_eq(chan_keys_reload(b.c), 0);
	pump_ms(base, 50);
	ck_assert(both_up());
	links_teardown();
}

TEST(without_curve_nobody_gets_in)
{
	char hello[] = "hello", answer[8];
	int zero = 0;
	links_setup(1);
	void *ctx = zmq_ctx_new(), *z = zmq_socket(ctx, ZMQ_DEALER);
	zmq_setsockopt(z, ZMQ_LINGER, &zero, sizeof zero);
	ck_assert_int_eq(zmq_connect(z, listen_at), 0);
	for (int i = 0; i < 50; i++) {
		zmq_send(z, hello, sizeof hello, ZMQ_SNDMORE | ZMQ_DONTWAIT);
		zmq_send(z, hello, sizeof hello, ZMQ_DONTWAIT);
		pump_ms(base, 10);
		ck_assert_int_lt(zmq_recv(z, answer, sizeof answer, ZMQ_DONTWAIT), 0);
	}
	struct chan_counts n;
	chan_counts(a.c, &n);
	ck_assert_uint_eq(n.received + n.bad, 0);
	zmq_close(z);
	zmq_ctx_term(ctx);
	links_teardown();
}

/* Over ipc libzmq takes any User-Id that a peer puts into its READY. Speaks ZMTP 3.0 (RFC 23). */
static void say_hello_with_user_id(int fd, const char *user_id)
{
	unsigned char greeting[64] = {0xff, [9] = 0x7f, [10] = 3}, ready[200], head[255], body[255];
	memcpy(greeting + 12, "NULL", 4);
	size_t n = 2;
	const char *props[][2] = {{"Socket-Type", "DEALER"}, {"Identity", ""}, {"User-Id", user_id}};
	memcpy(ready + n, "\5READY", 6);
	n += 6;
	for (int i = 0; i < 3; i++) {
		size_t name = strlen(props[i][0]), value = strlen(props[i][1]);
		ready[n++] = (unsigned char)name;
		memcpy(ready + n, props[i][0], name);
		n += name;
		ready[n] = ready[n + 1] = ready[n + 2] = 0;
		ready[n + 3] = (unsigned char)value;
		memcpy(ready + n + 4, props[i][1], value);
		n += 4 + value;
	}
	ready[0] = 4; /* a command of less than 256 bytes */
	ready[1] = (unsigned char)(n - 2);
	Pds__Envelope env = PDS__ENVELOPE__INIT;
	Pds__Hello hello = PDS__HELLO__INIT;
	env.version = PROTOCOL_VERSION;
	env.type = MSG_HELLO;
	env.sender = (char *)"decode-1";
	env.epoch = 5000;
	hello.program = (char *)"pddecoded"; /* and does not say which process it is */
	hello.nth = 1;
	hello.silence_ms = 2000;
	head[0] = 1; /* more frames follow */
	head[1] = (unsigned char)pds__envelope__pack(&env, head + 2);
	body[0] = 0;
	body[1] = (unsigned char)pds__hello__pack(&hello, body + 2);
	ck_assert(write(fd, greeting, sizeof greeting) == sizeof greeting);
	ck_assert(write(fd, ready, n) == (ssize_t)n);
	pump_ms(base, 300); /* until libzmq has read them */
	ck_assert(write(fd, head, head[1] + 2u) == head[1] + 2);
	ck_assert(write(fd, body, body[1] + 2u) == body[1] + 2);
}

TEST(a_local_peer_has_no_key)
{
	char path[TEST_FOLDER_BYTES], log[TEST_FOLDER_BYTES];
	struct sockaddr_un at = {.sun_family = AF_UNIX};
	test_file(log, "log");
	ck_assert_ptr_nonnull(freopen(log, "w", stderr));
	links_setup(1);
	side_stop(&a);
	test_file(path, "a.ipc");
	snprintf(a.bind, sizeof a.bind, "ipc://%s", path);
	side_start(base, &a);
	snprintf(at.sun_path, sizeof at.sun_path, "%s", path);
	int fd = socket(AF_UNIX, SOCK_STREAM, 0);
	ck_assert_int_eq(connect(fd, (struct sockaddr *)&at, sizeof at), 0);
	say_hello_with_user_id(fd, keys_own(keys_b)->print);
	for (uint64_t end = clock_us() + 20000000; !log_has(log, "hello_refused"); pump_ms(base, 10))
		ck_assert_msg(clock_us() < end && !a.p, "a local peer is believed to have a key: %d",
		              a.p != NULL);
	ck_assert(log_has(log, "does not say which process it is"));
	ck_assert_ptr_null(a.p);
	close(fd);
	links_teardown();
}

TEST(a_reading_that_fails_changes_nothing)
{
	char path[200], away[220];
	links_setup(1);
	side_start(base, &b);
	until(both_up, "the link comes up");
	snprintf(path, sizeof path, "%s/known", server_keys);
	snprintf(away, sizeof away, "%s.away", path);
	ck_assert_int_eq(rename(path, away), 0);
	ck_assert_int_eq(chan_keys_reload(a.c), 0);
	ck_assert_ptr_nonnull(a.p);
	ck_assert_uint_eq(keys_count(keys_a), 1);
	links_teardown();
}

TEST(what_cannot_be_connected_to)
{
	links_setup(1);
	side_start(base, &b);
	/* no name, an unknown name, no keys */
	ck_assert_ptr_null(chan_connect(b.c, listen_at, NULL, 1));
	ck_assert_ptr_null(chan_connect(b.c, listen_at, "router-2", 1));
	char other[120];
	snprintf(other, sizeof other, "router-1@%s", listen_at);
	ck_assert_ptr_null(chan_connect(b.c, other, "router-2", 1));
	ck_assert_int_eq(chan_has_keys_for(b.c, other, NULL), 1);
	ck_assert_int_eq(chan_has_keys_for(b.c, listen_at, "router-1"), 1);
	ck_assert_int_eq(chan_has_keys_for(b.c, listen_at, NULL), 0);
	ck_assert_int_eq(chan_has_keys_for(b.c, "ipc:///tmp/none.ipc", NULL), 1);
	ck_assert_int_eq(chan_has_keys_for(b.c, listen_at, "router-2"), 0);
	make_key(server_keys, "router-2", KEY_ROUTER); /* it is added */
	copy_key(server_keys, "router-2", client_keys);
	pump_ms(base, 1100);
	ck_assert_int_eq(chan_has_keys_for(b.c, listen_at, "router-2"), 1);
	/* an @ in a path names nobody */
	struct peer *p = chan_connect(b.c, "ipc:///tmp/a@b/none.ipc", NULL, 1);
	ck_assert_ptr_nonnull(p);
	ck_assert_str_eq(peer_expected(p), "");
	ck_assert_str_eq(peer_endpoint(p), "ipc:///tmp/a@b/none.ipc");
	struct chan_opts o = pair_opts(0);
	struct side c = {.name = "decode-3", .epoch = 3000, .opts = o};
	side_start(base, &c);
	ck_assert_ptr_null(chan_connect(c.c, listen_at, "router-1", 1));
	ck_assert_int_eq(chan_has_keys_for(c.c, listen_at, "router-1"), 0);
	side_stop(&c);
	/* listening needs keys */
	struct chan_hooks h = {0};
	struct err err = {0};
	o.name = "x";
	o.program = "test";
	o.epoch = 1;
	o.listen = "tcp://127.0.0.1:1";
	ck_assert_int_eq(chan_new(base, &o, &h, &c.c, &err), ERR_INVALID);
	ck_assert_msg(strstr(err.text, "keys"), "%s", err.text);
	links_teardown();
}
