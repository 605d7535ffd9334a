/* test_msg_load.c - links of a daemon that has much else to do: links come first, leave time to
 * other events, and nobody is taken for silent whose messages lie unread. The event loop is as the
 * daemons' (svc.c): two priorities, and a limit of time for the events of a turn. */
#include "msg/chan_priv.h"
#include "tempdir.h"
#include "util/clock.h"
#include "util/log.h"

enum { OTHERS = 40, MESSAGES = 4000, WORK_US = 1000, HANDLER_US = 100, SILENCE_MS = 200 };

static struct event_base *loop;
static struct event *others[OTHERS];
static unsigned works; /* times that one of them has come */
static char endpoint[100];

struct end {
	struct chan *c;
	struct peer *p;
	int downs;
	unsigned messages, works_at[MESSAGES];
	unsigned handler_us;
};

static void spend(uint64_t us)
{
	for (uint64_t end = clock_us() + us; clock_us() < end;)
		;
}

static void on_work(evutil_socket_t fd, short what, void *arg)
{
	(void)fd;
	(void)what;
	works++;
	spend(WORK_US);
	event_active(*(struct event **)arg, EV_TIMEOUT, 0); /* there is always more of it */
}

static void on_up(void *arg, struct peer *p)
{
	((struct end *)arg)->p = p;
}

static void on_down(void *arg, struct peer *p, const char *why)
{
	(void)p;
	(void)why;
	((struct end *)arg)->downs++;
}

static void on_message(void *arg, struct peer *p, enum msg_type type, const struct msg_head *head,
                       const ProtobufCMessage *body)
{
	struct end *s = arg;
	(void)p;
	(void)head;
	(void)body;
	if (type != MSG_KV_DENY)
		return;
	s->works_at[s->messages++] = works;
	spend(s->handler_us);
}

static void open_end(struct end *s, const char *name, const char *bind_to)
{
	struct chan_opts o = {.program = "test",
	                      .name = name,
	                      .epoch = 10,
	                      .bind = bind_to,
	                      .heartbeat_us = 20000,
	                      .silence_us = SILENCE_MS * 1000u,
	                      .window_messages = 2 * MESSAGES,
	                      .window_bytes = 16u << 20,
	                      .peers_max = 4,
	                      .message_bytes_max = 1 << 20};
	struct chan_hooks h = {.arg = s, .up = on_up, .down = on_down, .message = on_message};
	struct err err = {0};
	*s = (struct end){0};
	ck_assert_msg(chan_new(loop, &o, &h, &s->c, &err) == 0, "%s", err.text);
}

static void run_ms(unsigned ms)
{
	struct timeval tv = clock_timeval(ms * 1000u);
	event_base_loopexit(loop, &tv);
	event_base_dispatch(loop);
}

static struct end to, from;

static void set_up(void)
{
	char path[TEST_FOLDER_BYTES];
	struct event_config *cfg = event_config_new();
	event_config_set_max_dispatch_interval(cfg, &(struct timeval){0, 4000}, -1, 0);
	loop = event_base_new_with_config(cfg);
	event_config_free(cfg);
	event_base_priority_init(loop, 2);
	test_file(path, "msg.ipc");
	snprintf(endpoint, sizeof endpoint, "ipc://%s", path);
	works = 0;
	for (int i = 0; i < OTHERS; i++)
		others[i] = event_new(loop, -1, 0, on_work, &others[i]);
	open_end(&to, "to", endpoint);
	open_end(&from, "from", NULL);
	ck_assert(chan_connect(from.c, endpoint, "to", 1));
	for (int i = 0; i < 1000 && !(to.p && from.p); i++)
		run_ms(10);
	ck_assert(to.p && from.p);
}

static void tear_down(void)
{
	chan_destroy(&from.c);
	chan_destroy(&to.c);
	for (int i = 0; i < OTHERS; i++)
		event_free(others[i]);
	event_base_free(loop);
}

static void send_all_beside_others(void)
{
	for (int i = 0; i < OTHERS; i++)
		event_active(others[i], EV_TIMEOUT, 0);
	Pds__Deny d = PDS__DENY__INIT;
	struct msg_head h = {{1, 2}, 7, 0};
	for (int i = 0; i < MESSAGES; i++)
		ck_assert_int_eq(chan_send(from.c, from.p, MSG_KV_DENY, &h, &d.base), 0);
}

static void take_all(void)
{
	for (int i = 0; i < 6000 && to.messages < MESSAGES; i++)
		run_ms(10);
	ck_assert_uint_eq(to.messages, MESSAGES);
}

TEST_START(load_quiet)
{
	log_init("test", NULL);
	log_set_level("error");
}

TEST_CASE("load", .timeout_s = 120, .setup = set_up, .teardown = tear_down);

/* Each message waits for a few of the other events, although these never end. */
TEST(links_come_before_other_events)
{
	enum { IN_TURN = 12 };
	send_all_beside_others();
	take_all();
	for (int i = 1; i < MESSAGES; i++)
		ck_assert_uint_le(to.works_at[i], to.works_at[i - 1] + IN_TURN);
	ck_assert_int_eq(to.downs + from.downs, 0);
}

/* A link whose messages do not end leaves time to the other events: on an idle machine to one in
 * each of its turns, of which there are about 200. */
TEST(other_events_get_time_beside_links)
{
	to.handler_us = HANDLER_US;
	send_all_beside_others();
	take_all();
	unsigned beside = to.works_at[MESSAGES - 1] - to.works_at[0];
	ck_assert_msg(beside > 20, "only %u times beside %d messages", beside, MESSAGES);
}

/* Heartbeats that lie in the socket, unread: not for ever, because others share the socket. */
TEST(unread_is_not_silent)
{
	struct sock *s = to.c->bound;
	event_del(s->ev);
	s->rests = 1; /* until nobody ends it */
	to.c->n_rests++;
	run_ms(7 * SILENCE_MS); /* at most 5 times silence_us is allowed, without work */
	ck_assert_int_eq(to.downs, 0);
	run_ms(5 * SILENCE_MS);
	ck_assert_int_eq(to.downs, 1);
}
