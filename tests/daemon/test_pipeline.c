/* test_pipeline.c - stages of a worker's pipeline on other hosts: how pdrank and a worker find each
 * other. A real pdrank with a worker that is played, and a real worker with ranks that are played,
 * some of which lie, are late, or end. */
/* run: waits */
#include "world.h"

#include "children.h"
#include "util/version.h"
#include "util/wire.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/un.h>

enum { PLAYERS = 4 };

/* A played daemon: a rank, which connects to the worker, or a worker that a rank connects to. */
struct player {
	struct chan *c;
	struct peer *p;         /* the other end, while the link is up */
	struct peer *connected; /* of a rank: the worker, up or not */
	unsigned ups, takes;
	Pds__PipelineTake take; /* the last one */
	unsigned char secret[WIRE_SECRET_BYTES];
	char build[100], program[20];
};
static struct player player[PLAYERS];

static void player_up(void *arg, struct peer *p)
{
	struct player *a = arg;
	a->p = p;
	a->ups++;
}

static void player_down(void *arg, struct peer *p, const char *why)
{
	struct player *a = arg;
	(void)why;
	if (a->p == p)
		a->p = NULL;
}

static int player_admit(void *arg, const char *name, uint64_t epoch, const Pds__Hello *h,
                        char *reason, size_t len)
{
	struct player *a = arg;
	(void)name, (void)epoch, (void)reason, (void)len;
	snprintf(a->build, sizeof a->build, "%s", h->build);
	snprintf(a->program, sizeof a->program, "%s", h->program);
	return 0;
}

static void player_hears(void *arg, struct peer *p, enum msg_type type, const struct msg_head *head,
                         const ProtobufCMessage *body)
{
	struct player *a = arg;
	(void)p, (void)head;
	if (type != MSG_PIPELINE_TAKE)
		return;
	a->take = *(const Pds__PipelineTake *)body;
	memcpy(a->secret, a->take.secret.data, sizeof a->secret);
	a->takes++;
}

static void player_open(struct player *a, const char *name, const char *program, const char *to)
{
	char endpoint[128];
	struct err e = {0};
	static uint64_t epoch = 1000;
	endpoint_of(to ? to : name, endpoint);
	struct chan_opts o = {.program = program,
	                      .name = name,
	                      .epoch = ++epoch,
	                      .bind = to ? NULL : endpoint,
	                      .heartbeat_us = 200000,
	                      .silence_us = WAIT_US,
	                      .window_messages = 1024,
	                      .window_bytes = 1u << 24,
	                      .peers_max = 8,
	                      .message_bytes_max = 1u << 20};
	struct chan_hooks h = {.arg = a,
	                       .admit = player_admit,
	                       .up = player_up,
	                       .down = player_down,
	                       .message = player_hears};
	*a = (struct player){0};
	ck_assert_msg(chan_new(W.base, &o, &h, &a->c, &e) == 0, "%s", e.text);
	if (to)
		a->connected = chan_connect(a->c, endpoint, to, 1);
}

static void player_close(struct player *a)
{
	a->p = NULL;
	if (a->c)
		chan_destroy(&a->c);
}

/* The build of the programs: a played rank must have it, which a test does not know by itself. */
char build_version_text[100];

static void find_build(void)
{
	char command[700];
	snprintf(command, sizeof command, "%s/pdrank --version", W.bin);
	FILE *f = popen(command, "r");
	ck_assert(f && fscanf(f, "pdrank %99[^,],", build_version_text) == 1);
	pclose(f);
}

static void world_begin(const char *name)
{
	struct timeval ms = {0, 1000};
	find_build();
	world_folder();
	list_init(&W.got);
	W.name = name;
	W.base = event_base_new();
	W.tick = event_new(W.base, -1, EV_PERSIST, on_tick, NULL);
	event_add(W.tick, &ms);
}

static void close_world(void)
{
	kill(W.daemon, SIGTERM);
	for (int i = 0; i < PLAYERS; i++)
		player_close(&player[i]);
	world_ended();
}

static int says(const char *text)
{
	struct err err = {0};
	return ctl_code("status", NULL, WAIT_US, &err) == 0 && strstr(W.text, text) != NULL;
}

static const char *refusal(const struct player *a)
{
	return peer_refusal(a->connected);
}

static int is_closed(int fd)
{
	char c;
	return recv(fd, &c, 1, MSG_DONTWAIT | MSG_PEEK) == 0;
}

/* --- pdrank, with a worker that is played -------------------------------- */

TEST_CASE("rank", .timeout_s = 150);

/* Where the played worker listens for stages. */
static int door = -1;
static uint16_t door_port;

static void door_for_stages(void)
{
	struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
	socklen_t size = sizeof a;
	door = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	ck_assert(bind(door, (struct sockaddr *)&a, sizeof a) == 0 && listen(door, 4) == 0 &&
	          getsockname(door, (struct sockaddr *)&a, &size) == 0);
	door_port = ntohs(a.sin_port);
}

static struct player *rank_start(void)
{
	static char worker[160];
	static const char *settings[] = {"name=rank-1", worker, NULL};
	world_begin("rank-1");
	door_for_stages();
	snprintf(worker, sizeof worker, "worker=ipc://%s/decode.ipc", W.dir);
	player_open(&player[0], "decode", "pddecoded", NULL);
	W.daemon = process_start("pdrank", (const char *const *const[]){settings, NULL});
	UNTIL(player[0].p);
	return &player[0];
}

static struct wire_ticket say_take(const struct player *worker, uint16_t port)
{
	Pds__PipelineTake m = PDS__PIPELINE_TAKE__INIT;
	struct wire_ticket t;
	wire_ticket_make(&t);
	m.stage = 1;
	m.stages = 2;
	m.port = port;
	m.ticket = t.id;
	m.secret = (ProtobufCBinaryData){sizeof t.secret, t.secret};
	ck_assert_int_eq(chan_send(worker->c, worker->p, MSG_PIPELINE_TAKE, NULL, &m.base), 0);
	return t;
}

static struct wire *await_stage(const struct wire_ticket *t)
{
	unsigned char hello[WIRE_HELLO_BYTES];
	struct wire *w = NULL;
	int fd = -1;
	UNTIL((fd = accept(door, NULL, NULL)) >= 0);
	ck_assert_int_eq(recv(fd, hello, sizeof hello, MSG_WAITALL), sizeof hello);
	ck_assert(wire_hello_id(hello) == t->id);
	ck_assert_int_eq(wire_accept(fd, hello, t, &w), 0);
	return w;
}

static pid_t stage_process(void)
{
	pid_t pid[CHILDREN_MAX];
	return children(W.daemon, pid) == 1 ? pid[0] : 0;
}

TEST(a_rank_offers_itself_again_when_its_stage_has_ended)
{
	struct player *worker = rank_start();
	ck_assert_str_eq(worker->program, "pdrank");
	ck_assert_str_eq(worker->build, build_version_text);
	UNTIL(says("\"doing\":\"offered to ipc:"));
	for (unsigned life = 1; life <= 3; life++) {
		struct wire_ticket t = say_take(worker, door_port);
		struct wire *w = await_stage(&t);
		UNTIL(says("\"doing\":\"stage 1 of 2 at ipc:"));
		pid_t pid = stage_process();
		ck_assert_int_gt(pid, 0);
		uint64_t begun_us = clock_us();
		if (life == 2) {
			kill(pid, SIGKILL);
			UNTIL(is_closed(wire_fd(w)));
			ck_assert_uint_lt(clock_us() - begun_us, 1000000);
		}
		wire_destroy(&w);
		UNTIL(worker->p && worker->ups == life + 1);
		UNTIL(!stage_process());
	}
	close_world();
}

TEST(a_stage_that_cannot_connect_is_offered_again)
{
	struct player *worker = rank_start();
	close(door);
	say_take(worker, door_port);
	UNTIL(worker->p && worker->ups == 2);
	/* a worker that listens, but is another one */
	door_for_stages();
	struct wire_ticket t = say_take(worker, door_port);
	unsigned char hello[WIRE_HELLO_BYTES];
	struct wire *w = NULL;
	int fd = -1;
	UNTIL((fd = accept(door, NULL, NULL)) >= 0);
	ck_assert_int_eq(recv(fd, hello, sizeof hello, MSG_WAITALL), sizeof hello);
	t.secret[0] ^= 1;
	ck_assert_int_eq(wire_accept(fd, hello, &t, &w), ERR_CORRUPT);
	close(fd);
	UNTIL(worker->p && worker->ups == 3);
	close_world();
}

TEST(a_stage_ends_with_its_rank)
{
	struct player *worker = rank_start();
	struct wire_ticket t = say_take(worker, door_port);
	struct wire *w = await_stage(&t);
	uint64_t begun_us = clock_us();
	/* also if it does not look */
	kill(stage_process(), SIGSTOP);
	process_kill(&W.daemon);
	UNTIL(is_closed(wire_fd(w)));
	ck_assert_uint_lt(clock_us() - begun_us, 1000000);
	wire_destroy(&w);
}

TEST(a_rank_that_is_told_to_end_waits_for_its_worker)
{
	struct player *worker = rank_start();
	struct wire_ticket t = say_take(worker, door_port);
	struct wire *w = await_stage(&t);
	kill(W.daemon, SIGTERM);
	pump_for(300000);
	ck_assert(!is_closed(wire_fd(w)));
	wire_destroy(&w);
	uint64_t begun_us = clock_us();
	process_ended(&W.daemon);
	ck_assert_uint_lt(clock_us() - begun_us, 8000000);
}

/* --- a worker, with ranks that are played -------------------------------- */

TEST_CASE("worker", .timeout_s = 150);

static void worker_again(void)
{
	static const char *const settings[] = {"model=" GOLDEN,
	                                       "block_tokens=16",
	                                       "storage=none",
	                                       "messager=none",
	                                       "threads=1",
	                                       "kv_type=f32",
	                                       "remote_stages=2",
	                                       "pipeline_parallel=3",
	                                       "role=mixed",
	                                       "kv_blocks=16",
	                                       NULL};
	W.daemon = process_start("pddecoded", (const char *const *const[]){settings, NULL});
}

static void worker_start(void)
{
	world_begin("decode");
	worker_again();
}

static int dial(uint32_t port)
{
	struct sockaddr_in a = {.sin_family = AF_INET,
	                        .sin_addr = {htonl(INADDR_LOOPBACK)},
	                        .sin_port = htons((uint16_t)port)};
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	ck_assert(connect(fd, (struct sockaddr *)&a, sizeof a) == 0);
	return fd;
}

/* What a taken rank's process does; wire_connect waits for the worker, which is another process. */
static int connect_stage(const struct player *a, struct wire **ret_w)
{
	struct wire_ticket t = {.id = a->take.ticket};
	struct err err = {0};
	memcpy(t.secret, a->secret, sizeof t.secret);
	return wire_connect("127.0.0.1", (uint16_t)a->take.port, &t, ret_w, &err);
}

static void offer_again(struct player *a, const char *name)
{
	player_close(a);
	player_open(a, name, "pdrank", "decode");
	UNTIL(a->takes);
}

TEST(a_worker_takes_ranks_when_enough_are_there)
{
	struct wire *w[2] = {NULL};
	worker_start();
	UNTIL(says("\"state\":\"waiting\""));
	ck_assert(says("waiting for stages of its pipeline: 0 of 2 here"));
	player_open(&player[1], "rank-b", "pdrank", "decode");
	UNTIL(says("1 of 2 here"));
	pump_for(700000);
	ck_assert_uint_eq(player[1].takes, 0);
	player_open(&player[0], "rank-a", "pdrank", "decode");
	UNTIL(player[0].takes && player[1].takes);
	for (unsigned i = 0; i < 2; i++) {
		ck_assert_uint_eq(player[i].take.stage, i + 1);
		ck_assert_uint_eq(player[i].take.stages, 3);
	}
	/* the other one's ticket, and secret */
	player[2] = player[0];
	player[2].take.ticket = player[1].take.ticket;
	ck_assert_int_eq(connect_stage(&player[2], &w[0]), ERR_CLOSED);
	player[2].c = NULL;
	ck_assert_int_eq(connect_stage(&player[0], &w[0]), 0);
	/* a ticket is used once */
	ck_assert_int_eq(connect_stage(&player[0], &w[1]), ERR_CLOSED);
	UNTIL(says("\"rank\":\"rank-a\",\"connected\":true"));
	ck_assert(says("\"state\":\"waiting\""));
	/* one that ends loses its place, and gets it again */
	wire_destroy(&w[0]);
	UNTIL(says("\"stage\":1,\"rank\":\"\""));
	offer_again(&player[0], "rank-a");
	ck_assert_int_eq(connect_stage(&player[0], &w[0]), 0);
	UNTIL(says("\"rank\":\"rank-a\",\"connected\":true"));
	wire_destroy(&w[0]);
	close_world();
}

/* Waits for a word to systemd. */
static int is_told(int systemd, const char *want)
{
	char text[400];
	ssize_t n = recv(systemd, text, sizeof text - 1, MSG_DONTWAIT);
	text[n > 0 ? n : 0] = 0;
	return strstr(text, want) != NULL;
}

TEST(systemd_allows_a_whole_start_after_the_wait)
{
	struct sockaddr_un a = {.sun_family = AF_UNIX};
	struct wire *w[2] = {NULL};
	int systemd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	test_file(a.sun_path, "systemd");
	ck_assert(bind(systemd, (struct sockaddr *)&a, sizeof a) == 0);
	setenv("NOTIFY_SOCKET", a.sun_path, 1);
	worker_start();
	UNTIL(is_told(systemd, "EXTEND_TIMEOUT_USEC=40000000\n"));
	player_open(&player[0], "rank-a", "pdrank", "decode");
	player_open(&player[1], "rank-b", "pdrank", "decode");
	for (unsigned i = 0; i < 2; i++) {
		UNTIL(player[i].takes);
		ck_assert_int_eq(connect_stage(&player[i], &w[i]), 0);
	}
	UNTIL(is_told(systemd, "EXTEND_TIMEOUT_USEC=600000000"));
	wire_destroy(&w[0]);
	wire_destroy(&w[1]);
	close(systemd);
	close_world();
}

TEST(a_rank_that_does_not_connect_loses_its_place)
{
	struct wire *w[2] = {NULL};
	worker_start();
	player_open(&player[0], "rank-a", "pdrank", "decode");
	player_open(&player[1], "rank-b", "pdrank", "decode");
	UNTIL(player[0].takes && player[1].takes);
	ck_assert_int_eq(connect_stage(&player[1], &w[1]), 0);
	player_open(&player[2], "rank-c", "pdrank", "decode");
	UNTIL(player[2].takes);
	ck_assert_uint_eq(player[2].take.stage, 1);
	ck_assert_int_eq(connect_stage(&player[0], &w[0]), ERR_CLOSED);
	/* it ends without having connected: the first one comes again */
	player_close(&player[2]);
	UNTIL(says("1 of 2 here"));
	offer_again(&player[0], "rank-a");
	ck_assert_uint_eq(player[0].take.stage, 1);
	wire_destroy(&w[1]);
	close_world();
}

TEST(strangers_at_the_port_keep_nobody_out)
{
	enum { MANY = 60 };
	int fd[MANY];
	char noise[WIRE_HELLO_BYTES] = "GET / HTTP/1.1\r\n";
	struct wire *w = NULL;
	worker_start();
	player_open(&player[0], "rank-a", "pdrank", "decode");
	player_open(&player[1], "rank-b", "pdrank", "decode");
	UNTIL(player[0].takes && player[1].takes);
	int loud = dial(player[0].take.port), silent = dial(player[0].take.port);
	uint64_t begun_us = clock_us();
	ck_assert_int_eq(send(loud, noise, sizeof noise, 0), sizeof noise);
	UNTIL(is_closed(loud));
	UNTIL(is_closed(silent));
	ck_assert_uint_gt(clock_us() - begun_us, 2000000);
	for (unsigned i = 0; i < MANY; i++)
		fd[i] = dial(player[0].take.port);
	ck_assert_int_eq(connect_stage(&player[0], &w), 0);
	/* of those only the latest are still heard */
	UNTIL(is_closed(fd[0]) && is_closed(fd[MANY / 2]));
	for (unsigned i = 0; i < MANY; i++)
		close(fd[i]);
	wire_destroy(&w);
	close_world();
}

TEST(another_build_and_other_programs_are_refused)
{
	char own[100];
	worker_start();
	UNTIL(says("0 of 2 here"));
	snprintf(own, sizeof own, "%s", build_version_text);
	snprintf(build_version_text, sizeof build_version_text, "0.0.9+old");
	player_open(&player[0], "rank-a", "pdrank", "decode");
	UNTIL(refusal(&player[0]));
	ck_assert(strstr(refusal(&player[0]), "yours is 0.0.9+old") &&
	          strstr(refusal(&player[0]), own));
	snprintf(build_version_text, sizeof build_version_text, "%s", own);
	player_open(&player[1], "prefill", "pdprefilld", "decode");
	UNTIL(refusal(&player[1]));
	ck_assert_str_eq(refusal(&player[1]), "this worker waits for stages of its pipeline");
	ck_assert(says("0 of 2 here"));
	close_world();
}

TEST(a_worker_that_waits_can_be_told_to_end)
{
	worker_start();
	UNTIL(says("0 of 2 here"));
	ctl("stop");
	process_ended(&W.daemon);
	worker_again();
	UNTIL(says("0 of 2 here"));
	close_world();
}
