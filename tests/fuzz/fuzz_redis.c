/* fuzz_redis.c - what a Redis server answers. The first byte is what the tier is asked for, and
 * what of the answers is made right; then come the answers, each behind its length in two bytes,
 * one for each command. With none left the connections end. Every operation ends once; a block is
 * given out only if the server sent it whole, under its key and with its checksum; what is counted
 * is no more than what was asked for. */
#include "daemons/storage/redis.h"
#include "daemons/storage/redis_value.h"
#include "daemons/storage/sum.h"
#include "tests/fuzz/fuzz.h"
#include "util/clock.h"
#include "util/mem.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define LINES 3
#define BLOCK_BYTES 200u
#define VALUE_BYTES (REDIS_VALUE_HEAD_BYTES + BLOCK_BYTES)
#define KEYS 4u
#define LONG_US 10000000u
#define FLAG_VALUES 8   /* keys and checksums of values are right */
#define FLAG_FIGURES 16 /* INFO and DBSIZE get answers of the input, too */

static const struct tier_key key = {"the key that is asked for"};

static struct server {
	int listener, conn[LINES], n_conns, over; /* over: eventfd, readable when the operation is */
	uint8_t *in, *at, *end;
	int figures, dry;
} s;

/* --- the server ---------------------------------------------------------- */

static void hang_up(void)
{
	for (int i = 0; i < s.n_conns; i++)
		close(s.conn[i]);
	s.n_conns = 0;
	s.dry = 1;
}

static void say(int fd, const void *p, size_t n)
{
	(void)!send(fd, p, n, MSG_NOSIGNAL | MSG_DONTWAIT);
}

/* The next answer of the input. */
static void say_next(int fd)
{
	if (s.end - s.at < 2) {
		hang_up();
		return;
	}
	size_t n = s.at[0] | (size_t)s.at[1] << 8, left = (size_t)(s.end - s.at - 2);
	n = n < left ? n : left;
	say(fd, s.at + 2, n);
	s.at += 2 + n;
	if (s.end - s.at < 2) /* the last one: nobody has to wait for more */
		shutdown(fd, SHUT_WR);
}

static void answer(int fd, const char *command)
{
	static const char figures[] = "$29\r\nused_memory:5\r\nmaxmemory:1000\r\n";
	int is_figure = strcmp(command, "INFO") == 0 || strcmp(command, "DBSIZE") == 0;
	if (strcmp(command, "EXISTS") == 0)
		say(fd, ":0\r\n", 4);
	else if (!is_figure || s.figures)
		say_next(fd);
	else if (command[0] == 'I')
		say(fd, figures, sizeof figures - 1);
	else
		say(fd, ":3\r\n", 4);
}

/* Answers each command in these bytes. They come whole: they are short, and written at once. */
static void serve(int fd, const char *text, size_t n)
{
	static const char *const commands[] = {"EXISTS", "INFO",   "DBSIZE",  "STRLEN", "GETRANGE",
	                                       "SET",    "UNLINK", "PEXPIRE", "SCAN"};
	for (size_t i = 0; i < n && !s.dry; i++)
		for (size_t k = 0; k < sizeof commands / sizeof *commands; k++) {
			size_t len = strlen(commands[k]);
			if (i > 0 && text[i - 1] == '\n' && n - i > len + 1 && text[i + len] == '\r' &&
			    memcmp(text + i, commands[k], len) == 0) {
				answer(fd, commands[k]);
				break;
			}
		}
}

/* One turn: 1 if the operation is over. */
static int turn(void)
{
	struct pollfd p[2 + LINES] = {{s.over, POLLIN, 0}, {s.listener, POLLIN, 0}};
	char text[8192];
	int n = s.n_conns;
	for (int i = 0; i < n; i++)
		p[2 + i] = (struct pollfd){s.conn[i], POLLIN, 0};
	poll(p, 2 + (nfds_t)n, 100);
	for (int i = 0; i < n && !s.dry; i++) {
		ssize_t got = p[2 + i].revents ? recv(s.conn[i], text, sizeof text, MSG_DONTWAIT) : 0;
		if (got > 0)
			serve(s.conn[i], text, (size_t)got);
		else if (p[2 + i].revents)
			hang_up();
	}
	if ((p[1].revents & POLLIN) && s.n_conns < LINES) {
		int fd = accept4(s.listener, NULL, NULL, SOCK_CLOEXEC);
		if (s.dry)
			close(fd);
		else
			s.conn[s.n_conns++] = fd;
	}
	return (p[0].revents & POLLIN) != 0;
}

/* --- one operation ------------------------------------------------------- */

static struct result {
	struct tier_op op;
	struct tier_find find;
	struct tier_flush flush;
	unsigned char bytes[BLOCK_BYTES], where[KEYS];
	int moved, over, code;
} r;

static void end(void)
{
	r.over++;
	(void)!write(s.over, &(uint64_t){1}, 8);
}

static int move_in(struct tier_op *op, const struct tier_span *span, unsigned n)
{
	must(n == 1 && span[0].bytes == BLOCK_BYTES && op == &r.op);
	memset(span[0].at, 0x77, BLOCK_BYTES);
	op->sum = sum_spans(span, n);
	return 0;
}

static int move_out(struct tier_op *op, const struct tier_span *span, unsigned n)
{
	must(n == 1 && span[0].bytes == BLOCK_BYTES && op == &r.op && !r.moved);
	memcpy(r.bytes, span[0].at, BLOCK_BYTES);
	r.moved = 1;
	return 0;
}

static void op_done(struct tier_op *op, int code, enum tier_id tier, const char *text)
{
	(void)op, (void)text;
	must((tier == TIER_REDIS) == (code == 0));
	r.code = code;
	end();
}

static void find_done(struct tier_find *f)
{
	(void)f;
	end();
}

static void flush_done(struct tier_flush *f)
{
	must(f->code == 0 || f->text[0] || f->code == ERR_CLOSED);
	end();
}

static void begin(struct tier *t, unsigned what)
{
	static struct tier_key keys[KEYS];
	memset(&r, 0, sizeof r);
	for (unsigned i = 0; i < KEYS; i++) {
		keys[i] = key;
		keys[i].b[31] = (unsigned char)i;
	}
	r.op = (struct tier_op){.key = key, .bytes = BLOCK_BYTES, .done = op_done};
	r.op.move = what % 4 == 0 ? move_out : move_in;
	r.find = (struct tier_find){
		.key = keys, .where = r.where, .n = KEYS, .bytes = BLOCK_BYTES, .done = find_done};
	r.find.leading = what / 4 % 2;
	r.find.until_us = clock_us() + LONG_US;
	r.flush.done = flush_done;
	switch (what % 4) {
	case 0: t->ops->get(t, &r.op); break;
	case 1: t->ops->put(t, &r.op); break;
	case 2: t->ops->lookup(t, &r.find); break;
	case 3: t->ops->flush(t, &r.flush); break;
	}
}

/* --- what came of it ----------------------------------------------------- */

static size_t times(const char *text)
{
	size_t n = 0;
	for (const uint8_t *at = s.in; (at = memmem(at, (size_t)(s.end - at), text, strlen(text)));
	     at++)
		n++;
	return n;
}

/* The server has sent head and block in one piece. */
static void check_got(void)
{
	unsigned char value[VALUE_BYTES];
	const struct tier_span span = {r.bytes, BLOCK_BYTES};
	redis_value_head(value, &key, BLOCK_BYTES, sum_spans(&span, 1));
	memcpy(value + REDIS_VALUE_HEAD_BYTES, r.bytes, BLOCK_BYTES);
	must(r.moved && memmem(s.in, (size_t)(s.end - s.in), value, sizeof value));
}

static void check(unsigned what)
{
	size_t found = 0;
	must(r.over == 1);
	switch (what % 4) {
	case 0:
		must(r.code != ERR_STALE && (r.code == 0 || !r.moved));
		if (r.code == 0) {
			fuzz_accepted();
			check_got();
		}
		break;
	case 1: must(r.code != 0 || times("+") || times(":264")); break;
	case 2:
		for (unsigned i = 0; i < KEYS; i++)
			found += r.where[i] == TIER_REDIS;
		must(found <= times(":264") + times(":+264"));
		break;
	case 3: must(r.flush.blocks <= times(TIER_REDIS_PREFIX)); break;
	}
}

/* --- one input ----------------------------------------------------------- */

/* Keys and checksums of all that begins like a value. */
static void make_right(uint8_t *p, const uint8_t *to)
{
	for (; (p = memmem(p, (size_t)(to - p), "pdkv-1\r\n", 8)); p++) {
		if ((size_t)(to - p) < VALUE_BYTES)
			return;
		const struct tier_span span = {p + REDIS_VALUE_HEAD_BYTES, BLOCK_BYTES};
		redis_value_head(p, &key, BLOCK_BYTES, sum_spans(&span, 1));
	}
}

static void server_start(struct sockaddr_un *a)
{
	s.over = eventfd(0, EFD_CLOEXEC);
	s.listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	must(bind(s.listener, (struct sockaddr *)a, sizeof *a) == 0 && listen(s.listener, 8) == 0);
}

static void run(struct tier *t, unsigned what)
{
	struct tier_stat stat;
	uint64_t until = clock_us() + LONG_US;
	do { /* it connects */
		turn();
		t->ops->stat(t, &stat);
		must(clock_us() < until);
	} while (strcmp(stat.state, "ready") != 0 && !s.dry);
	begin(t, what);
	while (!turn())
		must(clock_us() < until);
	check(what);
	t->ops->stat(t, &stat);
	must(stat.state[0] && strlen(stat.state) < sizeof stat.state);
}

FUZZ(redis, 1 << 12)
{
	struct tier *t = NULL;
	struct err err = {0};
	struct sockaddr_un a = {.sun_family = AF_UNIX};
	if (size < 1)
		return 0;
	memset(&s, 0, sizeof s);
	s.in = s.at = malloc(size);
	memcpy(s.in, data + 1, size - 1);
	s.end = s.in + size - 1;
	s.figures = (data[0] & FLAG_FIGURES) != 0;
	if (data[0] & FLAG_VALUES)
		make_right(s.in, s.end);
	snprintf(a.sun_path, sizeof a.sun_path, "%s/redis", fuzz_files((const uint8_t *)"", 0));
	char *address = mem_printf("unix:%s", a.sun_path);
	server_start(&a);
	const struct tier_redis_opts o = {.address = address, .timeout_ms = 300, .lookup_ms = 300};
	must(tier_redis_new(&o, &t, &err) == 0);
	run(t, data[0]);
	t->ops->destroy(t);
	hang_up();
	close(s.listener);
	close(s.over);
	free(address);
	free(s.in);
	return 0;
}
