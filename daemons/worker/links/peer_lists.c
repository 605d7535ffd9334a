/* peer_lists.c - see peer_lists.h. */
#include "daemons/worker/links/peer_lists.h"
#include "util/check.h"
#include "util/mem.h"

#include <stdlib.h>
#include <string.h>

static Pds__Peers *copy_of(const Pds__Peers *m)
{
	size_t n = pds__peers__get_packed_size(m);
	unsigned char *b = mem_alloc(n + 1);
	pds__peers__pack(m, b);
	Pds__Peers *copy = pds__peers__unpack(NULL, n, b);
	CHECK(copy);
	free(b);
	return copy;
}

int peer_lists_take(struct peer_lists *l, const struct peer *router, const Pds__Peers *m)
{
	unsigned i = 0;
	while (i < l->n && l->list[i].router != router)
		i++;
	if (i == l->n) {
		if (l->n == PEER_LISTS_MAX)
			return ERR_FULL;
		l->list[l->n++] = (struct peer_list){.router = router};
	} else {
		pds__peers__free_unpacked(l->list[i].peers, NULL);
	}
	l->list[i].peers = copy_of(m);
	return 0;
}

void peer_lists_drop(struct peer_lists *l, const struct peer *router)
{
	for (unsigned i = 0; i < l->n; i++) {
		if (l->list[i].router != router)
			continue;
		pds__peers__free_unpacked(l->list[i].peers, NULL);
		l->list[i] = l->list[--l->n];
		return;
	}
}

/* By name, the entry that counts first. */
static int compare_peers(const void *a, const void *b)
{
	const Pds__Peer *x = *(Pds__Peer *const *)a, *y = *(Pds__Peer *const *)b;
	int by_name = strcmp(x->name, y->name);
	if (by_name)
		return by_name;
	if (x->epoch != y->epoch)
		return x->epoch > y->epoch ? -1 : 1;
	if (!x->messager[0] != !y->messager[0])
		return x->messager[0] ? -1 : 1;
	return strcmp(x->endpoint, y->endpoint); /* any order, but always the same */
}

void peer_lists_union(const struct peer_lists *l, int with_messager, Pds__Peers *ret)
{
	size_t n = 0, kept = 0;
	for (unsigned i = 0; i < l->n; i++)
		n += l->list[i].peers->n_peers;
	pds__peers__init(ret);
	ret->peers = mem_array(n + 1, sizeof *ret->peers);
	for (unsigned i = 0; i < l->n; i++)
		for (size_t k = 0; k < l->list[i].peers->n_peers; k++)
			ret->peers[ret->n_peers++] = l->list[i].peers->peers[k];
	qsort(ret->peers, n, sizeof *ret->peers, compare_peers);
	const char *last = "";
	for (size_t i = 0; i < n; i++) {
		Pds__Peer *p = ret->peers[i];
		int again = strcmp(p->name, last) == 0;
		last = p->name;
		if (!again && (!with_messager || p->messager[0]))
			ret->peers[kept++] = p;
	}
	ret->n_peers = kept;
}

void peer_lists_fini(struct peer_lists *l)
{
	for (unsigned i = 0; i < l->n; i++)
		pds__peers__free_unpacked(l->list[i].peers, NULL);
	l->n = 0;
}
