/* test_storage_redis_hostile.c - the Redis tier behind a line that is cut, slowed or damaged at any
 * point, and against a server that says what no Redis says. Whatever comes: every operation ends,
 * no wrong block is served, no more is received than was asked for, and it works again when the
 * other side does. */
/* run: parser */
#include "redis_rig.h"

/* --- a line with faults, in front of a real server ----------------------- */

enum { UP, DOWN };

static struct front line;
static struct {
	/* bytes from now on; then the connection that carries the last one is closed. Negative:
	 * never */
	_Atomic long cut_after[2];
	_Atomic long flip_every[2];       /* one bit in about so many bytes; 0: none */
	_Atomic unsigned chunk, pause_us; /* at most chunk bytes, then a pause; 0: as they come */
	_Atomic unsigned cuts, flips;
} fault;

static int line_connect(void)
{
	struct sockaddr_un a = {.sun_family = AF_UNIX};
	strcpy(a.sun_path, rig.path);
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (connect(fd, (struct sockaddr *)&a, sizeof a) != 0) {
		close(fd);
		return -1;
	}
	return fd;
}

static void damage(int way, char *p, size_t n, uint64_t *seed)
{
	long every = fault.flip_every[way];
	for (size_t i = 0; every && i < n; i++) {
		*seed = *seed * 6364136223846793005u + 1442695040888963407u;
		if ((*seed >> 33) % (uint64_t)every == 0) {
			p[i] ^= (char)(1 << (*seed >> 61));
			fault.flips++;
		}
	}
}

/* 0: this connection is over. */
static int pass(int way, int from, int to, uint64_t *seed)
{
	static _Thread_local char b[65536];
	unsigned chunk = fault.chunk;
	ssize_t n = recv(from, b, chunk ? chunk : sizeof b, 0);
	if (n <= 0)
		return 0;
	int cut = 0;
	long left = fault.cut_after[way];
	if (left >= 0) {
		cut = n >= left;
		n = cut ? left : n;
		fault.cut_after[way] = cut ? -1 : left - n;
		fault.cuts += (unsigned)cut;
	}
	damage(way, b, (size_t)n, seed);
	for (ssize_t at = 0, sent; at < n; at += sent)
		if ((sent = send(to, b + at, (size_t)(n - at), MSG_NOSIGNAL)) <= 0)
			return 0;
	if (fault.pause_us)
		usleep(fault.pause_us);
	return !cut;
}

static void line_serve(struct front_conn *c)
{
	int server = line_connect();
	uint64_t seed = c->number * 77 + 5;
	struct pollfd p[2] = {{.fd = c->fd, .events = POLLIN}, {.fd = server, .events = POLLIN}};
	while (server >= 0 && poll(p, 2, -1) > 0)
		if ((p[0].revents && !pass(UP, c->fd, server, &seed)) ||
		    (p[1].revents && !pass(DOWN, server, c->fd, &seed)))
			break;
	if (server >= 0)
		close(server);
}

static void line_start(void)
{
	memset(&fault, 0, sizeof fault);
	fault.cut_after[UP] = fault.cut_after[DOWN] = -1;
	server_start();
	front_start(&line, line_serve, NULL);
}

static void line_stop(void)
{
	server_stop();
	front_stop(&line);
}

/* It works, perhaps after a while. */
static void works(struct tier *t, unsigned name)
{
	uint64_t until = clock_us() + LONG_US;
	for (;; usleep(1000)) {
		ck_assert_uint_lt(clock_us(), until);
		if (put(t, name, BLOCK) == 0 && get(t, name, BLOCK) == 0 &&
		    lookup(t, name, 1, BLOCK, LONG_US, NULL) == 1)
			return;
	}
}

TEST_CASE("line", .timeout_s = 120, .setup = line_start, .teardown = line_stop);

/* The line is cut after N bytes in one direction, wherever that is: in a command, a length, a
 * block, between replies. */
TEST(test_cut_anywhere)
{
	static const long at[] = {0,           1,           3,          20,    37,         60,
	                          90,          95,          100,        120,   140,        160,
	                          200,         1000,        60000,      BLOCK, BLOCK + 70, BLOCK + 100,
	                          BLOCK + 160, BLOCK + 210, BLOCK + 300};
	unsigned name = 0, ended[2] = {0};
	struct tier *t = tier_at(line.unix_path, (struct tier_redis_opts){.timeout_ms = 5000});
	works(t, 1000);
	for (size_t i = 0; i < sizeof at / sizeof at[0]; i++)
		for (int way = UP; way <= DOWN; way++) {
			unsigned cuts = fault.cuts;
			struct rop o[4];
			fault.cut_after[way] = at[i];
			for (unsigned k = 0; k < 4; k++, name++)
				k & 1 ? rop_begin_get(t, &o[k], 1000, BLOCK) : rop_begin_put(t, &o[k], name, BLOCK);
			for (unsigned k = 0; k < 4; k++)
				ended[rop_end(&o[k]) == 0]++;
			ck_assert_uint_gt(fault.cuts, cuts);
			works(t, name);
		}
	ck_assert_uint_gt(ended[0], 40); /* cut off, and got through all the same */
	ck_assert_uint_gt(ended[1], 20);
	ck_assert_uint_eq(stat_of(t).corrupt, 0);
	t->ops->destroy(t);
}

/* Bits change on the way, in either direction: broken protocol, wrong keys, damaged blocks. What
 * is served is right. */
TEST(test_damaged_line)
{
	struct tier *t = tier_at(line.unix_path, (struct tier_redis_opts){.timeout_ms = 200});
	unsigned right = 0;
	works(t, 1000);
	for (int way = UP; way <= DOWN; way++) {
		unsigned flips = fault.flips;
		fault.flip_every[way] = 150000;
		for (uint64_t until = clock_us() + LONG_US; fault.flips < flips + 25; usleep(200)) {
			struct rop o[8];
			for (unsigned k = 0; k < 8; k++)
				k & 1 ? rop_begin_get(t, &o[k], k - 1, BLOCK)
					  : rop_begin_put(t, &o[k], k, BLOCK + (fault.flips & 1));
			for (unsigned k = 0; k < 8; k++)
				right += rop_end(&o[k]) == 0;
			lookup(t, 0, 8, BLOCK, 100000, NULL);
			ck_assert_uint_lt(clock_us(), until);
		}
		fault.flip_every[way] = 0;
		RIG_DO(&rig, "FLUSHALL");
		works(t, 2000 + (unsigned)way);
	}
	ck_assert_uint_gt(right, 0);
	t->ops->destroy(t);
}

/* A line of some 400 KB/s: blocks do not come in time, each operation ends by its limit, and the
 * tier says why it is away. */
TEST(test_slow_line)
{
	struct tier *t = tier_at(line.unix_path,
	                         (struct tier_redis_opts){.timeout_ms = 250, .depth = 4});
	struct rop o[12];
	uint64_t us;
	works(t, 1000);
	ck_assert_int_eq(put(t, 1, 20 * BLOCK), 0);
	fault.pause_us = 5000;
	fault.chunk = 2000;
	for (unsigned k = 0; k < 12; k++)
		k & 1 ? rop_begin_get(t, &o[k], 1, 20 * BLOCK)
			  : rop_begin_put(t, &o[k], 100 + k, 20 * BLOCK);
	for (unsigned k = 0; k < 12; k++) {
		int code = rop_end(&o[k]);
		ck_assert_msg(code == ERR_TIMEOUT || code == ERR_CLOSED, "%d", code);
		ck_assert_uint_lt(o[k].us, 5000000);
	}
	/* it is soon ready again, for a greeting comes in time */
	for (uint64_t until = clock_us() + LONG_US; strncmp(stat_of(t).state, "away: ", 6);) {
		ck_assert_uint_lt(clock_us(), until);
		get(t, 1, 20 * BLOCK);
	}
	lookup(t, 1, 1, 20 * BLOCK, 30000, &us);
	ck_assert_uint_lt(us, 5000000);
	fault.pause_us = fault.chunk = 0;
	wait_state(t, "ready");
	works(t, 1000);
	ck_assert_int_eq(get(t, 1, 20 * BLOCK), 0);
	t->ops->destroy(t);
}

/* --- a server that is none ----------------------------------------------- */

/* What it answers to the first command of this name; all else it answers like an empty Redis. */
static struct script {
	const char *command, *answer;
	size_t bytes;        /* of answer; 0: up to its NUL */
	const char *forever; /* then this without end, until nobody takes it */
	int closes;
} script;
static struct front fake;
static _Atomic int played;
static _Atomic size_t forever_bytes;
static _Atomic int foreign_unlinks;

/* One argument, at most 64 bytes of it kept. 0 at the end of the stream. */
static int read_arg(FILE *in, char *out)
{
	char line_text[64];
	if (!fgets(line_text, sizeof line_text, in) || line_text[0] != '$')
		return 0;
	size_t n = strtoul(line_text + 1, NULL, 10);
	for (size_t i = 0; i < n + 2; i++) {
		int ch = fgetc(in);
		if (ch < 0)
			return 0;
		if (i < 63 && i < n)
			out[i] = (char)ch;
	}
	out[n < 63 ? n : 63] = 0;
	return 1;
}

static void send_all(int fd, const char *p, size_t n)
{
	for (ssize_t sent; n && (sent = send(fd, p, n, MSG_NOSIGNAL)) > 0; p += sent, n -= (size_t)sent)
		;
}

static int play(int fd)
{
	send_all(fd, script.answer, script.bytes ? script.bytes : strlen(script.answer));
	for (ssize_t n; script.forever &&
	                (n = send(fd, script.forever, strlen(script.forever), MSG_NOSIGNAL)) > 0;)
		forever_bytes += (size_t)n;
	return !script.closes && !script.forever;
}

static void answer_as_empty(int fd, const char *command)
{
	static const char *const says[][2] = {
		{"AUTH", "+OK\r\n"},         {"SELECT", "+OK\r\n"},
		{"SET", "+OK\r\n"},          {"GETRANGE", "$0\r\n\r\n"},
		{"INFO", "$4\r\na:1\n\r\n"}, {"SCAN", "*2\r\n$1\r\n0\r\n*0\r\n"}};
	const char *a = ":0\r\n";
	for (size_t i = 0; i < sizeof says / sizeof says[0]; i++)
		if (!strcmp(says[i][0], command))
			a = says[i][1];
	send_all(fd, a, strlen(a));
}

static void fake_serve(struct front_conn *c)
{
	char head[64], arg[2][64];
	FILE *in = fdopen(dup(c->fd), "r");
	while (fgets(head, sizeof head, in) && head[0] == '*') {
		int n = atoi(head + 1), there = 1;
		for (int i = 0; i < n && there; i++)
			there = read_arg(in, arg[i > 0]);
		if (!there)
			break;
		if (!strcmp(arg[0], "UNLINK") &&
		    strncmp(arg[1], TIER_REDIS_PREFIX, strlen(TIER_REDIS_PREFIX)) != 0)
			foreign_unlinks++;
		if (script.command && !strcmp(arg[0], script.command) && !atomic_exchange(&played, 1)) {
			if (!play(c->fd))
				break;
		} else {
			answer_as_empty(c->fd, arg[0]);
		}
	}
	fclose(in);
}

/* Starts a server that plays it and a tier against it. */
static struct tier *against(struct script s)
{
	script = s;
	played = 0;
	forever_bytes = 0;
	foreign_unlinks = 0;
	front_start(&fake, fake_serve, NULL);
	return tier_at(fake.unix_path, (struct tier_redis_opts){.timeout_ms = 80, .password = "x"});
}

static void against_end(struct tier *t)
{
	t->ops->destroy(t);
	front_stop(&fake);
	ck_assert_int_eq(played, 1);
	/* the block, other replies, one read, and what sockets hold */
	ck_assert_msg(forever_bytes < BLOCK + 65536 + 262144 + (2u << 20), "%zu bytes were taken",
	              forever_bytes);
}

static const struct script odd_answers[] = {
	{.answer = "+OK\r\n"},
	{.answer = ":5\r\n"},
	{.answer = "$-1\r\n"},
	{.answer = "*-1\r\n"},
	{.answer = "*0\r\n"},
	{.answer = "*2\r\n:1\r\n:2\r\n"},
	{.answer = "HTTP/1.1 400 Bad Request\r\n\r\n"},
	{.answer = "\0\0\0\0", .bytes = 4},
	{.answer = "\r\n"},
	{.answer = "$\r\n"},
	{.answer = "$abc\r\n"},
	{.answer = "$-2\r\n"},
	{.answer = "$9223372036854775807\r\n"},
	{.answer = "$18446744073709551615\r\n"},
	{.answer = "*99999999999\r\n"},
	{.answer = "*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n:1\r\n"},
	{.answer = "-\r\n"},
	{.answer = "-ERR \001\002\033[31m\r\n"},
	{.answer = "$0\r\n\r\n:1\r\n:2\r\n"},
	{.answer = "$5\r\nhello\r\n"},
	{.answer = "$100065\r\nhalf of it", .closes = 1},
	{.answer = "$100065\r\nhalf of it"},
	{.answer = "", .closes = 1},
	{.answer = ""},
	{.answer = "$999999999\r\n",
     .forever =
         "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"},
	{.answer = "+",
     .forever =
         "yyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyy"},
	{.answer = "*2000000000\r\n",
     .forever = ":1\r\n:1\r\n:1\r\n:1\r\n:1\r\n:1\r\n:1\r\n:1\r\n:1\r\n:1\r\n:1\r\n:1\r\n:1\r\n"},
	{.answer = "",
     .forever =
         "+OK\r\n+OK\r\n+OK\r\n+OK\r\n+OK\r\n+OK\r\n+OK\r\n+OK\r\n+OK\r\n+OK\r\n+OK\r\n+OK\r\n"},
};

TEST_CASE("server", .timeout_s = 60);

/* The answer to a get, a put's question or a put is one of those; then the server is an empty
 * Redis. */
TEST_LOOP(test_odd_answer, 0, sizeof odd_answers / sizeof odd_answers[0])
{
	static const char *const command[] = {"GETRANGE", "STRLEN", "SET"};
	for (int c = 0; c < 3; c++) {
		struct script s = odd_answers[_i];
		s.command = command[c];
		struct tier *t = against(s);
		struct rop o;
		wait_state(t, "ready");
		if (c == 0)
			rop_begin_get(t, &o, 1, BLOCK);
		else
			rop_begin_put(t, &o, 1, BLOCK);
		int code = rop_end(&o);
		/* it is a right answer to this */
		int fine = c == 0   ? !strncmp(s.answer, "$0", 2)
		           : c == 1 ? s.answer[0] == ':'
		                    : s.answer[0] == '+' || s.forever;
		ck_assert_msg(code != 0 || fine, "%s: %d", s.answer, code);
		ck_assert_uint_lt(o.us, 5000000);
		for (uint64_t until = clock_us() + LONG_US;
		     put(t, 2, BLOCK) != 0 || get(t, 3, BLOCK) != ERR_NOTFOUND; usleep(1000))
			ck_assert_uint_lt(clock_us(), until);
		against_end(t);
	}
}

/* The same to the greeting: a state, and the next attempt succeeds. */
TEST_LOOP(test_odd_greeting, 0, sizeof odd_answers / sizeof odd_answers[0])
{
	struct script s = odd_answers[_i];
	s.command = "EXISTS";
	struct tier *t = against(s);
	wait_state(t, "ready");
	/* 80 ms are no more than a busy machine may need */
	for (uint64_t until = clock_us() + LONG_US; put(t, 2, BLOCK) != 0; usleep(1000))
		ck_assert_uint_lt(clock_us(), until);
	against_end(t);
}

#define K "$13\r\npdserve:1:abc\r\n"
#define K10 K K K K K K K K K K

static const struct script odd_scans[] = {
	{.answer = "+OK\r\n"},
	{.answer = "*1\r\n$1\r\n0\r\n"},
	{.answer = "*2\r\n:0\r\n*0\r\n"},
	{.answer = "*2\r\n$30\r\n012345678901234567890123456789\r\n*0\r\n"},
	{.answer = "*2\r\n$1\r\n0\r\n*3\r\n$6\r\nforeig\r\n$19\r\npdserve:2:000000000\r\n$"
               "20\r\nsomebody:1:000000000\r\n"},
	{.answer = "*2\r\n$1\r\n0\r\n*1\r\n*1\r\n$1\r\nx\r\n"},
	{.answer = "*2\r\n*1\r\n$1\r\n0\r\n*0\r\n"},
	{.answer = "*2\r\n$1\r\n0\r\n*1000000000\r\n", .forever = K10 K10 K10 K10 K10 K10 K10 K10},
	{.answer = "-NOPERM this user has no permissions\r\n"},
	{.answer = ""},
	{.answer = "", .closes = 1},
};

/* A flush that is answered with rubbish ends, touches no key of others, and the tier works on. */
TEST_LOOP(test_odd_scan, 0, sizeof odd_scans / sizeof odd_scans[0])
{
	struct script s = odd_scans[_i];
	s.command = "SCAN";
	struct tier *t = against(s);
	wait_state(t, "ready");
	int code;
	tier_flushed(t, &code);
	/* that one is an answer of Redis, though its keys are not ours */
	ck_assert(code == ERR_IO || (code == 0 && _i == 4));
	for (uint64_t until = clock_us() + LONG_US; strcmp(stat_of(t).state, "ready") != 0 || !played;
	     usleep(1000))
		ck_assert_uint_lt(clock_us(), until);
	for (uint64_t until = clock_us() + LONG_US; put(t, 1, BLOCK) != 0; usleep(1000))
		ck_assert_uint_lt(clock_us(), until);
	script.command = NULL;
	t->ops->destroy(t);
	front_stop(&fake);
	ck_assert_int_eq(foreign_unlinks, 0);
	ck_assert_uint_lt(forever_bytes, 4u << 20);
}
