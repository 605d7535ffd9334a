/* clients.c - the workers whose memory this daemon has mapped (svc/attached.h handles their
 * connections).
 *
 * Invariant: a client's memory is unmapped only when none of its batches is in progress; until then
 * it stays in the list, detached. The end of its connection cancels its batches. */
#include "storage.h"

#include "util/log.h"
#include "util/mem.h"

#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct storage_client *client_find(struct storage *st, const char *name, uint64_t epoch)
{
	return attached_find(st->attached, name, epoch);
}

void client_free_if_done(struct storage_client *c)
{
	if (c->attached || c->n_batches)
		return;
	list_remove(&c->link);
	kv_region_fini(&c->target.region);
	free(c);
}

static void layout_salt(const char *text, unsigned char ret[KEY_SALT_BYTES])
{
	unsigned char hash[crypto_generichash_BYTES];
	crypto_generichash(hash, sizeof hash, (const unsigned char *)text, strlen(text), NULL, 0);
	memcpy(ret, hash, KEY_SALT_BYTES);
}

static int client_attach(void *arg, const struct attached_memory *m, void **ret_worker,
                         struct err *err)
{
	struct storage *st = arg;
	struct storage_client *c = mem_zalloc(sizeof *c);
	(void)err;
	c->st = st;
	c->attached = 1;
	c->epoch = m->hello->epoch;
	snprintf(c->name, sizeof c->name, "%s", m->hello->name);
	copy_target_init(&c->target, &m->layout, &m->region);
	kv_layout_text(&m->layout, c->layout, sizeof c->layout);
	layout_salt(c->layout, c->salt);
	list_init(&c->batches);
	list_push_back(&st->clients, &c->link);
	tell_attached(st->tell, c);
	tier_stack_pin(st->tier, c->target.region.pool->by, c->target.region.data.device[0]);
	*ret_worker = c;
	return 0;
}

static void client_detach(void *arg, void *worker, const char *why)
{
	struct storage_client *c = worker;
	(void)arg;
	if (c->n_batches)
		log_notice("batches_given_up", "worker=%s batches=%u why=%s", log_quote(c->name),
		           c->n_batches, log_quote(why));
	c->attached = 0;
	serve_cancel(c);
	client_free_if_done(c);
}

int clients_start(struct storage *st, struct err *err)
{
	const struct attached_hooks hooks = {.svc = st->svc,
	                                     .arg = st,
	                                     .workers_max = st->conf.workers_max,
	                                     .workers = &st->stats.workers,
	                                     .attach = client_attach,
	                                     .detach = client_detach};
	list_init(&st->clients);
	return attached_listen(&hooks, &st->attached, err);
}

void clients_stop(struct storage *st)
{
	attached_close(&st->attached, "storage ends");
	/* detached earlier; serve_forget freed their batches */
	list_each_safe(it, nx, &st->clients)
		client_free_if_done(list_entry(it, struct storage_client, link));
}
