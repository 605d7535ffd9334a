/* handshake.c - see handshake.h.
 *
 * What always holds: a handshake is at one place only: with the loop, which watches its socket; in
 * `waiting`, to be computed; with a thread; or in `done`. The loop moves it from the first to the
 * second and out of the last, a thread all else; both queues are under the lock. While the lock is
 * free the eventfd is readable if `done` has handshakes. An ended handshake that a thread has is
 * freed when it comes back. */
#include "http/handshake.h"
#include "http/clients.h"
#include "http/tls.h"
#include "util/check.h"
#include "util/mem.h"

#include <errno.h>
#include <event2/event.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#define DONE_MAX 16 /* handshakes that go on in one turn of the loop */
/* of the threads: under load the loop and what computes tokens come first */
#define THREAD_NICE 5

struct handshake {
	struct handshakes *all;
	struct http_client *client;
	struct fair_item turn; /* in `waiting` */
	struct list node;      /* in `done` */
	int away;              /* not with the loop */
	struct event *ready;
	SSL_CTX *tls;
	SSL *ssl; /* NULL before the client's first bytes */
	int fd;
	int result;              /* SSL_ERROR_*, of the last step */
	unsigned long code;      /* OpenSSL's reason, if it failed */
	handshake_done_fn *done; /* NULL: ended */
	void *arg;
};

struct handshakes {
	struct event_base *base;
	int fd; /* eventfd */
	struct event *on_done;
	pthread_mutex_t lock;
	pthread_cond_t some;
	struct fair_queue waiting; /* to be computed: addresses take turns */
	struct list done;          /* computed */
	int ends;
	unsigned n_threads;
	pthread_t threads[HANDSHAKE_THREADS];
};

/* --- threads ------------------------------------------------------------- */

static void compute(struct handshake *s)
{
	ERR_clear_error();
	s->result = SSL_ERROR_SSL;
	s->code = 0;
	if (!s->ssl && (!(s->ssl = SSL_new(s->tls)) || SSL_set_fd(s->ssl, s->fd) != 1)) {
		s->code = ERR_peek_error();
		return;
	}
	int r = SSL_accept(s->ssl);
	s->result = r == 1 ? SSL_ERROR_NONE : SSL_get_error(s->ssl, r);
	s->code = ERR_peek_error();
	ERR_clear_error();
}

/* The first of the client whose turn it is and that has no thread. Call with the lock held. */
static struct handshake *next_waiting(const struct handshakes *h)
{
	list_each(n, &h->waiting.owners) {
		struct http_client *c = list_entry(n, struct http_client, tls.turns.node);
		if (!c->tls.has_thread)
			return list_entry(fair_first(&c->tls.turns), struct handshake, turn);
	}
	return NULL;
}

static void *thread_main(void *arg)
{
	struct handshakes *h = arg;
	struct handshake *s;
	pthread_setname_np(pthread_self(), "tls");
	setpriority(PRIO_PROCESS, 0, THREAD_NICE); /* of this thread alone */
	pthread_mutex_lock(&h->lock);
	for (;;) {
		while (!(s = next_waiting(h)) && !h->ends)
			pthread_cond_wait(&h->some, &h->lock);
		if (h->ends)
			break;
		fair_take(&h->waiting, &s->turn);
		s->client->tls.has_thread = 1;
		pthread_mutex_unlock(&h->lock);
		compute(s);
		pthread_mutex_lock(&h->lock);
		s->client->tls.has_thread = 0;
		if (list_empty(&h->done))
			CHECK(eventfd_write(h->fd, 1) == 0);
		list_push_back(&h->done, &s->node);
	}
	pthread_mutex_unlock(&h->lock);
	return NULL;
}

/* --- the loop ------------------------------------------------------------ */

static void free_handshake(struct handshake *s)
{
	if (s->ready)
		event_free(s->ready);
	SSL_free(s->ssl);
	SSL_CTX_free(s->tls);
	if (s->fd >= 0)
		close(s->fd);
	client_put(s->client, 0);
	free(s);
}

/* A ClientHello begins with the byte 0x16, a request with a letter of its method. */
static int is_plain_http(int fd)
{
	char first;
	return recv(fd, &first, 1, MSG_PEEK) == 1 && first >= 'A' && first <= 'Z';
}

static void on_ready(evutil_socket_t fd, short what, void *arg)
{
	(void)what;
	struct handshake *s = arg;
	struct handshakes *h = s->all;
	if (!s->ssl && is_plain_http(fd)) {
		s->fd = -1;
		s->done(s->arg, NULL, fd, "");
		free_handshake(s);
		return;
	}
	s->away = 1;
	pthread_mutex_lock(&h->lock);
	fair_put(&h->waiting, &s->client->tls.turns, &s->turn, 1);
	pthread_cond_signal(&h->some);
	pthread_mutex_unlock(&h->lock);
}

static int watch(struct handshake *s, short what)
{
	return event_assign(s->ready, s->all->base, s->fd, what, on_ready, s) < 0 ||
	               event_add(s->ready, NULL) < 0
	           ? ERR_NOMEM
	           : 0;
}

static void came_back(struct handshake *s)
{
	SSL *ssl = NULL;
	char why[128];
	s->away = 0;
	if (s->done && ((s->result == SSL_ERROR_WANT_READ && watch(s, EV_READ) == 0) ||
	                (s->result == SSL_ERROR_WANT_WRITE && watch(s, EV_WRITE) == 0)))
		return;
	if (s->done && s->result == SSL_ERROR_NONE) {
		ssl = s->ssl;
		s->ssl = NULL;
		s->fd = -1;
	}
	tls_reason(s->code, why, sizeof why);
	if (s->done)
		s->done(s->arg, ssl, -1, why);
	free_handshake(s);
}

/* NULL: there is none, and the eventfd is not readable then. */
static struct handshake *next_done(struct handshakes *h)
{
	struct handshake *s = NULL;
	eventfd_t v;
	pthread_mutex_lock(&h->lock);
	if (list_empty(&h->done)) {
		eventfd_read(h->fd, &v);
	} else {
		s = list_entry(h->done.next, struct handshake, node);
		list_remove(&s->node);
	}
	pthread_mutex_unlock(&h->lock);
	return s;
}

static void on_done(evutil_socket_t fd, short what, void *arg)
{
	(void)fd;
	(void)what;
	struct handshake *s;
	for (int i = 0; i < DONE_MAX && (s = next_done(arg)); i++)
		came_back(s);
}

struct handshake *handshake_new(struct handshakes *h, SSL_CTX *tls, int fd,
                                struct http_client *client, handshake_done_fn *done, void *arg)
{
	struct handshake *s = mem_try_array(1, sizeof *s);
	if (!s) {
		close(fd);
		return NULL;
	}
	*s = (struct handshake){.all = h, .client = client, .fd = fd, .done = done, .arg = arg};
	list_init(&s->node);
	fair_item_init(&s->turn);
	client_hold(client);
	SSL_CTX_up_ref(tls);
	s->tls = tls;
	s->ready = event_new(h->base, fd, EV_READ, on_ready, s);
	if (s->ready && event_add(s->ready, NULL) == 0)
		return s;
	free_handshake(s);
	return NULL;
}

void handshake_end(struct handshake **sp)
{
	struct handshake *s = *sp;
	if (!s)
		return;
	*sp = NULL;
	struct handshakes *h = s->all;
	pthread_mutex_lock(&h->lock);
	int has_thread = s->away && !fair_waits(&s->turn) && list_empty(&s->node);
	fair_drop(&h->waiting, &s->turn);
	list_remove(&s->node);
	pthread_mutex_unlock(&h->lock);
	if (has_thread)
		s->done = NULL;
	else
		free_handshake(s);
}

/* --- life ---------------------------------------------------------------- */

int handshakes_new(struct event_base *base, struct handshakes **ret, struct err *err)
{
	int fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (fd < 0)
		return err_set(err, ERR_IO, "cannot create an eventfd: %s", strerror(errno));
	struct handshakes *h = mem_zalloc(sizeof *h);
	h->base = base;
	h->fd = fd;
	h->on_done = event_new(base, fd, EV_READ | EV_PERSIST, on_done, h);
	CHECK(h->on_done && event_add(h->on_done, NULL) == 0);
	fair_init(&h->waiting);
	list_init(&h->done);
	pthread_mutex_init(&h->lock, NULL);
	pthread_cond_init(&h->some, NULL);
	for (; h->n_threads < HANDSHAKE_THREADS; h->n_threads++) {
		int r = pthread_create(&h->threads[h->n_threads], NULL, thread_main, h);
		if (r == 0)
			continue;
		handshakes_destroy(&h);
		return err_set(err, ERR_NOMEM,
		               "cannot start a thread for TLS handshakes: %s; raise the limit on tasks",
		               strerror(r));
	}
	*ret = h;
	return 0;
}

void handshakes_destroy(struct handshakes **hp)
{
	struct handshakes *h = *hp;
	struct handshake *s;
	if (!h)
		return;
	pthread_mutex_lock(&h->lock);
	h->ends = 1;
	pthread_cond_broadcast(&h->some);
	pthread_mutex_unlock(&h->lock);
	for (unsigned i = 0; i < h->n_threads; i++)
		pthread_join(h->threads[i], NULL);
	while ((s = next_done(h)))
		free_handshake(s);
	event_free(h->on_done);
	close(h->fd);
	pthread_mutex_destroy(&h->lock);
	pthread_cond_destroy(&h->some);
	free(h);
	*hp = NULL;
}
