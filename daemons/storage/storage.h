/* storage.h - shared by the parts of pdstoraged: the attached workers and the calls between daemon,
 * clients, serve and events.
 *
 *  clients.c     workers that handed their memory over, until their last batch is finished
 *  serve.c       messages in, batches to the copier, replies out
 *  events.c      tells workers which blocks are stored and which are gone
 *  tiers.c       configures the tiers, reports their figures
 *  daemon.c      start, end, pdctl
 *  copier.c      the copy threads: between a worker's region and the stack of tiers
 *  tier_stack.c  several tiers as one; stack_copy.c copies between them; memory.c, block.c;
 *                redis.c; disk.c (README.md)
 *
 * Everything runs on the loop's thread except serve_finished and tell_changed. */
#ifndef STORAGE_STORAGE_H
#define STORAGE_STORAGE_H

#include "copier.h"
#include "disk.h"
#include "redis.h"
#include "tier.h"
#include "tier_stack.h"

#include "svc/attached.h"
#include "svc/svc.h"
#include "util/list.h"

#include <stdint.h>

#define KEY_SALT_BYTES 8         /* the last bytes of a key; the others are the hash */
#define BATCH_ITEMS_MAX 4096u    /* per message */
#define CLIENT_BATCHES_MAX 1024u /* in progress per worker */
#define CLIENT_ITEMS_MAX 65536u  /* in all batches of a worker */
/* look-ups in progress, all workers; further ones find nothing */
#define FINDINGS_MAX 1024u

/* One attachment of a worker that handed its memory over. After detaching it remains until its last
 * batch is finished. */
struct storage_client {
	struct list link;
	struct storage *st;
	char name[HANDOVER_NAME_MAX];
	uint64_t epoch;
	struct copy_target target;
	char layout[KV_LAYOUT_TEXT_MAX];
	/* hash of the layout: equal block hashes under different layouts are different blocks */
	unsigned char salt[KEY_SALT_BYTES];
	int attached;
	uint64_t last_batch; /* batch numbers increase; those up to this one are used */
	struct list batches;
	unsigned n_batches, n_items;
};

/* Read and write rates of a tier as moving averages. */
struct tier_rate {
	double read_bytes, read_us, write_bytes, write_us;
};

/* The numbers of the table storage_stats. */
struct storage_stats {
	uint64_t put_blocks, put_bytes, put_void, gets_hit, gets_missed, get_bytes, lookups, cancelled,
		full, errors, refused, workers, kv_events, kv_lists, kv_overflows;
	struct stat_seconds put_seconds, get_seconds;
	/* as of the last call of tiers_figures; all tiers together, and each */
	uint64_t batches, evictions, corrupt, blocks, bytes, capacity;
	struct stack_stat tier[TIER_IDS];
};

/* Values of storage_keys. */
struct storage_conf {
	uint64_t memory_bytes, kv_events_us;
	int memory_eviction, disk_eviction; /* 0: auto; else 1 + enum tier_policy */
	uint32_t after;                     /* write_through: hits */
	unsigned low_percent;               /* offload */
	struct tier_disk_opts disk;
	struct tier_redis_opts redis; /* without password */
	const char *redis_password_file;
	uint32_t threads, workers_max;
};

struct storage {
	struct svc *svc;
	struct storage_conf conf;
	struct storage_conf at_start; /* for the stack's thread, which opens the tiers */
	struct tier *tier;            /* the stack */
	struct tell *tell;            /* NULL: events are off */
	struct copier *copier;
	struct list findings; /* look-ups in progress */
	unsigned n_findings;
	struct list flushing; /* flushes that pdctl waits for */
	struct attached *attached;
	struct list clients; /* attached ones, and detached ones with batches in progress */
	struct storage_stats stats;
	struct tier_rate rate[TIER_IDS];
	struct svc_timer *timer;
};

extern const struct svc_hooks storage_hooks;  /* daemon.c */
extern const struct stat_row storage_stats[]; /* stats.c */
extern const struct conf_key storage_keys[];  /* keys.c */

/* --- clients.c --- */
int clients_start(struct storage *st, struct err *err);
void clients_stop(struct storage *st); /* every batch must be finished */
/* attached, or NULL */
struct storage_client *client_find(struct storage *st, const char *name, uint64_t epoch);
/* unmaps and frees a detached client without batches */
void client_free_if_done(struct storage_client *c);

/* --- serve.c --- */
void serve_put(struct svc *s, struct peer *p, const struct msg_head *head,
               const ProtobufCMessage *body);
void serve_get(struct svc *s, struct peer *p, const struct msg_head *head,
               const ProtobufCMessage *body);
void serve_lookup(struct svc *s, struct peer *p, const struct msg_head *head,
                  const ProtobufCMessage *body);
void serve_fence(struct svc *s, struct peer *p, const struct msg_head *head,
                 const ProtobufCMessage *body);
void serve_finished(void *storage, struct batch *b); /* the copier's hook; any thread */
void serve_cancel(struct storage_client *c);         /* cancels all its batches */
void serve_down(struct svc *s, struct peer *p, const char *why);
/* at the end: frees batches that will not be answered */
void serve_forget(struct storage *st);
unsigned serve_batches(const struct storage *st);

/* --- tiers.c --- */
int tiers_check_files(struct svc *s, struct err *err); /* svc_hooks.check */
int tiers_start(struct storage *st, struct err *err);
int tiers_reload(struct storage *st, struct err *err);
void tiers_stop(struct storage *st);
void tiers_figures(struct storage *st);               /* brings st->stats up to date */
void tiers_json(struct storage *st, struct buf *out); /* a list */
int tiers_find(const char *name, enum tier_id *ret);  /* 0 or ERR_NOTFOUND */

/* --- events.c --- */
struct tell;
/* interval 0: returns NULL, which all functions accept */
struct tell *tell_new(struct storage *st, uint64_t interval_us);
void tell_destroy(struct tell **t);
/* any thread; key NULL: the tier was opened */
void tell_changed(void *tell, enum tier_id id, const struct tier_key *key, int stored);
void tell_list(struct svc *s, struct peer *p, const struct msg_head *head,
               const ProtobufCMessage *body);
void tell_attached(struct tell *t, const struct storage_client *c);
void tell_down(struct tell *t, const struct peer *p);

#endif
