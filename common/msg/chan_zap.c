/* chan_zap.c - links between hosts: CURVE on their sockets, and ZAP (ZeroMQ RFC 27), which asks for
 * each connection whether its public key is known.
 *
 * A connection of an unknown key gets no further than its handshake: the peer's HELLO is never
 * seen. The fingerprint of a known key is the connection's User-Id, which comes with each of its
 * messages: HELLO must have the name of that key, and a program of its role.
 *
 * An unknown key makes the folder of known keys be read again, at most once a second: a key that
 * was added counts without a restart. Refusals are counted, and logged once per key (once.h). */
#include "msg/chan_priv.h"
#include "util/clock.h"
#include "util/mem.h"
#include "util/once.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ZAP_ENDPOINT "inproc://zeromq.zap.01" /* fixed by RFC 27 */
#define ZAP_DOMAIN "pdserve"
#define ZAP_FRAMES 7 /* version, request id, domain, address, identity, mechanism, credentials */
#define ZAP_FRAME_BYTES 256u
#define REREAD_US 1000000u

struct zap {
	struct chan *c;
	void *z;
	struct event *ev, *again;
	uint64_t read_us; /* when the known keys were last read */
	struct once refused;
};

struct zap_frame {
	size_t len;
	unsigned char bytes[ZAP_FRAME_BYTES];
};

static int is_text(const struct zap_frame *f, const char *text)
{
	return f->len == strlen(text) && memcmp(f->bytes, text, f->len) == 0;
}

static const struct key *zap_find(struct zap *z, const unsigned char *public_key)
{
	struct keys *keys = z->c->opts.keys;
	const struct key *k = keys_find(keys, public_key);
	uint64_t now = clock_us();
	if (k || now - z->read_us < REREAD_US)
		return k;
	z->read_us = now;
	chan_keys_reload(z->c);
	return keys_find(keys, public_key);
}

int chan_has_keys_for(struct chan *c, const char *endpoint, const char *expected_name)
{
	char own_name[MSG_NAME_MAX + 1];
	const char *address = chan_endpoint_address(endpoint, own_name);
	if (strncmp(address, "ipc://", 6) == 0)
		return 1;
	const char *name = *own_name ? own_name : expected_name;
	uint64_t now = clock_us();
	if (!c->zap || !name)
		return 0;
	if (!keys_named(c->opts.keys, name) && now - c->zap->read_us >= REREAD_US) {
		c->zap->read_us = now;
		chan_keys_reload(c);
	}
	return keys_named(c->opts.keys, name) != NULL;
}

static void log_refused(struct zap *z, const struct zap_frame *address, const unsigned char *key)
{
	char print[KEY_PRINT_BYTES];
	z->c->counts.keys_refused++;
	if (!once_may_log(&z->refused, key, KEY_BYTES))
		return;
	key_fingerprint(key, print);
	log_warn("key_refused", "address=%.*s fingerprint=%s total=%llu why=%s", (int)address->len,
	         (const char *)address->bytes, print, (unsigned long long)z->c->counts.keys_refused,
	         log_quote("the key is not among the known ones"));
}

/* Reads one request. Returns its number of frames; 0: there is none. */
static int zap_take(struct zap *z, struct zap_frame *f)
{
	int n = 0;
	for (int more = 1; more; n++) {
		zmq_msg_t m;
		zmq_msg_init(&m);
		if (zmq_msg_recv(&m, z->z, ZMQ_DONTWAIT) < 0) {
			zmq_msg_close(&m);
			return n;
		}
		more = zmq_msg_more(&m);
		size_t len = zmq_msg_size(&m);
		if (n < ZAP_FRAMES) {
			f[n].len = len < ZAP_FRAME_BYTES ? len : ZAP_FRAME_BYTES;
			memcpy(f[n].bytes, zmq_msg_data(&m), f[n].len);
		}
		zmq_msg_close(&m);
	}
	return n;
}

/* 300, a temporary failure, and not 400 for a key that is not known: libzmq then closes the
 * connection silently and the peer connects again, after a pause, so that a key that is added later
 * counts. After 400 it never would. */
static void zap_answer(struct zap *z, const struct zap_frame *id, const struct key *k)
{
	const char *user = k ? k->print : "";
	zmq_send(z->z, "1.0", 3, ZMQ_SNDMORE | ZMQ_DONTWAIT);
	zmq_send(z->z, id->bytes, id->len, ZMQ_SNDMORE | ZMQ_DONTWAIT);
	zmq_send(z->z, k ? "200" : "300", 3, ZMQ_SNDMORE | ZMQ_DONTWAIT);
	zmq_send(z->z, k ? "OK" : "No", 2, ZMQ_SNDMORE | ZMQ_DONTWAIT);
	zmq_send(z->z, user, strlen(user), ZMQ_SNDMORE | ZMQ_DONTWAIT);
	zmq_send(z->z, "", 0, ZMQ_DONTWAIT);
}

static void zap_on_readable(evutil_socket_t fd, short what, void *arg)
{
	struct zap *z = arg;
	struct zap_frame f[ZAP_FRAMES];
	(void)fd;
	(void)what;
	for (;;) {
		int events = 0;
		size_t len = sizeof events;
		zmq_getsockopt(z->z, ZMQ_EVENTS, &events, &len);
		if (!(events & ZMQ_POLLIN))
			return;
		int n = zap_take(z, f);
		if (n < 2)
			return;
		int curve = n == ZAP_FRAMES && is_text(&f[0], "1.0") && is_text(&f[2], ZAP_DOMAIN) &&
		            is_text(&f[5], "CURVE") && f[6].len == KEY_BYTES;
		const struct key *k = curve ? zap_find(z, f[6].bytes) : NULL;
		if (curve && !k)
			log_refused(z, &f[3], f[6].bytes);
		zap_answer(z, &f[1], k);
		event_active(z->again, EV_READ, 1); /* ZeroMQ's descriptor is edge-triggered */
	}
}

int chan_zap_start(struct chan *c, struct err *err)
{
	struct zap *z = mem_zalloc(sizeof *z);
	int fd, zero = 0;
	size_t len = sizeof fd;
	z->c = c;
	c->zap = z;
	z->z = zmq_socket(c->ctx, ZMQ_REP);
	if (!z->z || zmq_setsockopt(z->z, ZMQ_LINGER, &zero, sizeof zero) < 0 ||
	    zmq_bind(z->z, ZAP_ENDPOINT) < 0 || zmq_getsockopt(z->z, ZMQ_FD, &fd, &len) < 0)
		return err_set(err, ERR_IO, "cannot authenticate links between hosts: %s",
		               zmq_strerror(zmq_errno()));
	z->ev = event_new(c->base, fd, EV_READ | EV_PERSIST, zap_on_readable, z);
	z->again = event_new(c->base, -1, 0, zap_on_readable, z);
	event_add(z->ev, NULL);
	return 0;
}

void chan_zap_stop(struct chan *c)
{
	struct zap *z = c->zap;
	if (!z)
		return;
	if (z->ev)
		event_free(z->ev);
	if (z->again)
		event_free(z->again);
	if (z->z)
		zmq_close(z->z);
	free(z);
	c->zap = NULL;
}

/* --- sockets ------------------------------------------------------------- */

static void set_own(void *z, const struct keys *keys)
{
	zmq_setsockopt(z, ZMQ_CURVE_PUBLICKEY, keys_own(keys)->public_key, KEY_BYTES);
	zmq_setsockopt(z, ZMQ_CURVE_SECRETKEY, keys_secret(keys), KEY_BYTES);
}

void chan_curve_server(const struct chan *c, void *z)
{
	int one = 1;
	zmq_setsockopt(z, ZMQ_CURVE_SERVER, &one, sizeof one);
	zmq_setsockopt(z, ZMQ_ZAP_DOMAIN, ZAP_DOMAIN, strlen(ZAP_DOMAIN));
	set_own(z, c->opts.keys);
}

int chan_curve_client(const struct keys *keys, void *z, const char *name, struct err *err)
{
	if (!keys)
		return err_set(err, ERR_INVALID,
		               "links to other hosts need keys: set `keys` and `pdctl keygen` one");
	const struct key *k = name && *name ? keys_named(keys, name) : NULL;
	if (!k)
		return err_set(err, ERR_INVALID, "there is no key of \"%s\" in %s/known",
		               name && *name ? name : "NAME: write NAME@tcp://HOST:PORT",
		               keys_folder(keys));
	zmq_setsockopt(z, ZMQ_CURVE_SERVERKEY, k->public_key, KEY_BYTES);
	set_own(z, keys);
	return 0;
}

/* --- what a connection may say ------------------------------------------- */

int chan_origin_check(const struct chan *c, const struct process_origin *o, const char *name,
                      const char *program, const Pds__Process *p, char *why, size_t size)
{
	enum key_role role;
	if (o->is_local)
		return process_origin_check(o, p, why, size);
	const struct key *k = o->key[0] && c->opts.keys ? keys_printed(c->opts.keys, o->key) : NULL;
	if (!k)
		snprintf(why, size, "the connection comes from another host and has no known key");
	else if (strcmp(k->name, name) != 0)
		snprintf(why, size, "the connection has the key of %s, not of %s", k->name, name);
	else if (key_role_of_program(program, &role) < 0 || role != k->role)
		snprintf(why, size, "the key of %s is for the role %s, not for %.40s", k->name,
		         key_role_name(k->role), program);
	else
		return 0;
	return ERR_INVALID;
}

/* The name that we connect to has another key now: the next connection is made with it. */
static void connect_with_new_key(struct chan *c, struct peer *p)
{
	const struct key *k = keys_named(c->opts.keys, p->expected);
	struct err err = {0};
	if (!p->server_key[0] || !k || strcmp(k->print, p->server_key) == 0)
		return;
	if (p->state == PEER_UP)
		chan_peer_down(c, p, "its key was replaced", PEER_REFUSED);
	if (p->state == PEER_DEAD)
		return; /* disconnected by its owner within `down` */
	/* none: it is connected when DNS answers */
	const char *address = chan_name_address(p);
	zmq_disconnect(p->dealer->z, address);
	if (chan_curve_client(c->opts.keys, p->dealer->z, p->expected, &err) < 0 ||
	    (*address && chan_zmq_connect(p->dealer->z, address) < 0))
		log_error("connect_failed", "endpoint=%s why=%s", log_quote(p->endpoint),
		          log_quote(err.text[0] ? err.text : zmq_strerror(zmq_errno())));
	snprintf(p->server_key, sizeof p->server_key, "%s", k->print);
	p->state = PEER_HELLO;
	p->hello_us = clock_us();
	p->hello_waits = 1; /* until the connection is up */
	chan_tick_soon(c, p->hello_us + c->timers.hello_us);
}

/* Peers whose key is not known any more are down at once. */
int chan_keys_reload(struct chan *c)
{
	if (!c->opts.keys || !keys_reload(c->opts.keys))
		return 0;
	/* the owner, when it is told, may disconnect others: they stay in memory until the next tick */
	struct peer **list = mem_array(c->n_peers, sizeof *list);
	size_t n = 0;
	list_each(it, &c->peers)
		list[n++] = list_entry(it, struct peer, node);
	for (size_t i = 0; i < n; i++)
		if (list[i]->state == PEER_UP && !list[i]->origin.is_local &&
		    !keys_printed(c->opts.keys, list[i]->origin.key))
			chan_peer_down(c, list[i], "its key is not known any more",
			               list[i]->dealer ? PEER_REFUSED : PEER_DEAD);
	for (size_t i = 0; i < n; i++)
		if (list[i]->state != PEER_DEAD)
			connect_with_new_key(c, list[i]);
	free(list);
	log_notice("keys_read", "folder=%s known=%zu", log_quote(keys_folder(c->opts.keys)),
	           keys_count(c->opts.keys));
	return 1;
}
