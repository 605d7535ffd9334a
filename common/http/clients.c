/* clients.c - see clients.h. What always holds: an address is in the map while there are references
 * to it; `bytes` is the sum over the map. */
#include "http/clients.h"
#include "http/http.h"
#include "util/check.h"
#include "util/err.h"
#include "util/map.h"
#include "util/mem.h"

#include <netinet/in.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

struct http_clients {
	pthread_mutex_t lock;
	struct map *by_address;
	size_t bytes, bytes_max;
};

struct http_clients *clients_new(size_t bytes_max)
{
	struct http_clients *c = mem_zalloc(sizeof *c);
	pthread_mutex_init(&c->lock, NULL);
	c->by_address = map_new(sizeof((struct http_client *)0)->key);
	c->bytes_max = bytes_max;
	return c;
}

void clients_destroy(struct http_clients **cp)
{
	struct http_clients *c = *cp;
	if (!c)
		return;
	CHECK(map_count(c->by_address) == 0 && c->bytes == 0);
	map_destroy(&c->by_address);
	pthread_mutex_destroy(&c->lock);
	free(c);
	*cp = NULL;
}

/* IPv4 as ::ffff:a.b.c.d, IPv6 as its /64; others share one. */
static void address_key(const struct sockaddr *from, unsigned char key[16])
{
	static const unsigned char mapped[12] = {[10] = 0xff, [11] = 0xff};
	memset(key, 0, 16);
	if (from->sa_family == AF_INET) {
		memcpy(key, mapped, sizeof mapped);
		memcpy(key + 12, &((const struct sockaddr_in *)from)->sin_addr, 4);
	} else if (from->sa_family == AF_INET6) {
		const struct in6_addr *a = &((const struct sockaddr_in6 *)from)->sin6_addr;
		memcpy(key, a, IN6_IS_ADDR_V4MAPPED(a) ? 16 : 8);
	}
}

struct http_client *clients_find(struct http_clients *all, const struct sockaddr *from)
{
	unsigned char key[16];
	address_key(from, key);
	pthread_mutex_lock(&all->lock);
	struct http_client *c = map_get(all->by_address, key);
	if (!c && map_make_room(all->by_address) == 0 && (c = mem_try_array(1, sizeof *c))) {
		c->all = all;
		memcpy(c->key, key, sizeof key);
		list_init(&c->loop.waiting);
		fair_owner_init(&c->loop.turns);
		fair_owner_init(&c->tls.turns);
		map_put(all->by_address, key, c);
	}
	if (c)
		c->shared.refs++;
	pthread_mutex_unlock(&all->lock);
	return c;
}

/* One half of a key says nothing: it is the same for all addresses of that kind. */
uint64_t http_client_id(const struct http_client *c)
{
	uint64_t half[2];
	memcpy(half, c->key, sizeof half);
	return half[0] ^ half[1];
}

void client_hold(struct http_client *c)
{
	pthread_mutex_lock(&c->all->lock);
	c->shared.refs++;
	pthread_mutex_unlock(&c->all->lock);
}

/* Call with the lock held. Growing by this much, it holds no more than what then is free. */
static size_t room(const struct http_client *c)
{
	size_t free_bytes = c->all->bytes_max > c->all->bytes ? c->all->bytes_max - c->all->bytes : 0;
	return free_bytes > c->shared.bytes ? (free_bytes - c->shared.bytes) / 2 : 0;
}

int client_resize(struct http_client *c, size_t had, size_t now)
{
	if (had == now)
		return 0;
	pthread_mutex_lock(&c->all->lock);
	int full = now > had && now > CLIENT_SURE_BYTES && now - had > room(c);
	if (!full) {
		c->shared.bytes += now - had;
		c->all->bytes += now - had;
	}
	pthread_mutex_unlock(&c->all->lock);
	return full ? ERR_FULL : 0;
}

size_t client_room(struct http_client *c)
{
	pthread_mutex_lock(&c->all->lock);
	size_t n = room(c);
	pthread_mutex_unlock(&c->all->lock);
	return n;
}

size_t clients_bytes(struct http_clients *all)
{
	pthread_mutex_lock(&all->lock);
	size_t n = all->bytes;
	pthread_mutex_unlock(&all->lock);
	return n;
}

void client_put(struct http_client *c, size_t had)
{
	struct http_clients *all = c->all;
	pthread_mutex_lock(&all->lock);
	c->shared.bytes -= had;
	all->bytes -= had;
	int last = --c->shared.refs == 0;
	if (last) {
		CHECK(c->shared.bytes == 0);
		map_remove(all->by_address, c->key);
	}
	pthread_mutex_unlock(&all->lock);
	if (last)
		free(c);
}
