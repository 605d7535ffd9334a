/* disk_index.c - the disk tier's tables in LMDB.
 *
 * What always holds after a commit: a block's record, its place in `order` and its place in `slots` are there together or not at all. LMDB never writes over what
 * the last commit can see, so kill -9 at any point leaves the last commit. The map starts small and doubles when it is full; while it is
 * replaced no reader is inside (`gate`). A reader's transaction is open only during one look-up, so the writer can always use freed pages again.
 *
 * A record whose own checksum does not hold is told as ERR_CORRUPT and can be dropped; errors of the file are returned, nothing here ends the process. */
#include "disk_index.h"
#include "disk_record.h"

#include "util/check.h"
#include "util/list.h"
#include "util/log.h"
#include "util/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAP_BYTES_FIRST ((size_t)16 << 20)
#define MAP_BYTES_MAX ((size_t)1 << 42)

struct noted {
	struct tier_key key;
	int stored, all;             /* all: everything is gone */
};

struct disk_index {
	char *file;
	unsigned flags, readers_max;
	MDB_env *env;
	MDB_dbi table[DISK_TABLES];
	size_t map_bytes;
	MDB_txn *txn;                /* the writer's */
	int (*commit)(void);
	pthread_rwlock_t gate;       /* read: inside a look-up; write: the map or the environment is replaced */
	pthread_mutex_t lock;
	struct list readers;
	void (*_Atomic changed)(void *arg, const struct tier_key *key, int stored);
	void *changed_arg;
	struct noted *noted;         /* what the open transaction changes */
	size_t n_noted, noted_size;
	char text[192];
};

struct disk_reader {
	struct list link;
	struct disk_index *ix;
	MDB_txn *txn;                /* reset between look-ups; NULL: to be begun */
};

/* --- errors --- */

static int code_of(int rc)
{
	switch (rc) {
	case 0:
		return 0;
	case MDB_NOTFOUND:
		return ERR_NOTFOUND;
	case MDB_MAP_FULL:
		return ERR_NOMEM;
	case ENOSPC:
	case EDQUOT:
	case EFBIG:
		return ERR_FULL;
	case MDB_CORRUPTED:
	case MDB_PAGE_NOTFOUND:
	case MDB_INVALID:
	case MDB_VERSION_MISMATCH:
	case MDB_BAD_TXN:
	case MDB_CURSOR_FULL:
	case MDB_INCOMPATIBLE:
		return ERR_CORRUPT;
	case MDB_PANIC:
		return ERR_CLOSED;
	default:
		return ERR_IO;
	}
}

static int failed(struct disk_index *ix, const char *what, int rc)
{
	if (rc != 0 && rc != MDB_NOTFOUND)
		snprintf(ix->text, sizeof ix->text, "the index: %s: %s", what, mdb_strerror(rc));
	return code_of(rc);
}

const char *disk_index_text(const struct disk_index *ix)
{
	return ix->text;
}

/* --- opening --- */

static size_t map_for(const char *file)
{
	struct stat st;
	size_t bytes = MAP_BYTES_FIRST;
	uint64_t have = stat(file, &st) == 0 && st.st_size > 0 ? (uint64_t)st.st_size : 0;
	while (bytes < MAP_BYTES_MAX && bytes < 2 * have)
		bytes *= 2;
	return bytes;
}

static int tables_open(struct disk_index *ix)
{
	int rc = mdb_txn_begin(ix->env, NULL, 0, &ix->txn);
	for (int t = 0; rc == 0 && t < DISK_TABLES; t++)
		rc = mdb_dbi_open(ix->txn, disk_table_name[t], MDB_CREATE, &ix->table[t]);
	if (rc == 0)
		rc = mdb_txn_commit(ix->txn);
	else if (ix->txn)
		mdb_txn_abort(ix->txn);
	ix->txn = NULL;
	return rc;
}

static int env_open(struct disk_index *ix)
{
	int dead;
	int rc = mdb_env_create(&ix->env);
	if (rc == 0)
		rc = mdb_env_set_maxdbs(ix->env, DISK_TABLES);
	if (rc == 0)
		rc = mdb_env_set_maxreaders(ix->env, ix->readers_max + 2);
	if (rc == 0)
		rc = mdb_env_set_mapsize(ix->env, ix->map_bytes);
	if (rc == 0)
		rc = mdb_env_open(ix->env, ix->file, ix->flags, 0600);
	if (rc == 0)
		rc = mdb_reader_check(ix->env, &dead);   /* of a process that was killed inside a look-up */
	return rc == 0 ? tables_open(ix) : rc;
}

int disk_index_open(const char *folder, unsigned readers, int sync, int (*commit)(void), struct disk_index **ret, struct err *err)
{
	struct disk_index *ix = mem_zalloc(sizeof *ix);
	ix->file = mem_printf("%s/index", folder);
	ix->flags = MDB_NOSUBDIR | MDB_NOTLS | MDB_NORDAHEAD | (sync ? 0 : MDB_NOSYNC | MDB_NOMETASYNC);
	ix->readers_max = readers;
	ix->commit = commit;
	ix->map_bytes = map_for(ix->file);
	pthread_rwlock_init(&ix->gate, NULL);
	pthread_mutex_init(&ix->lock, NULL);
	list_init(&ix->readers);
	int rc = env_open(ix);
	if (rc != 0) {
		int code = err_set(err, code_of(rc), "the index %s: %s", ix->file, mdb_strerror(rc));
		disk_index_close(&ix);
		return code;
	}
	*ret = ix;
	return 0;
}

void disk_index_close(struct disk_index **ixp)
{
	struct disk_index *ix = *ixp;
	if (!ix)
		return;
	CHECK(list_empty(&ix->readers));
	disk_index_abort(ix);
	if (ix->env)
		mdb_env_close(ix->env);
	pthread_rwlock_destroy(&ix->gate);
	pthread_mutex_destroy(&ix->lock);
	free(ix->file);
	free(ix->noted);
	free(ix);
	*ixp = NULL;
}

int disk_index_renew(struct disk_index *ix)
{
	char *lock = mem_printf("%s-lock", ix->file);
	disk_index_abort(ix);
	pthread_rwlock_wrlock(&ix->gate);
	list_each(it, &ix->readers) {
		struct disk_reader *r = list_entry(it, struct disk_reader, link);
		if (r->txn)
			mdb_txn_abort(r->txn);
		r->txn = NULL;
	}
	if (ix->env)
		mdb_env_close(ix->env);
	unlink(ix->file);
	unlink(lock);
	ix->map_bytes = MAP_BYTES_FIRST;
	int rc = env_open(ix);
	if (rc != 0) {
		mdb_env_close(ix->env);
		ix->env = NULL;
	}
	pthread_rwlock_unlock(&ix->gate);
	free(lock);
	return failed(ix, "begin anew", rc);
}

int disk_index_sync(struct disk_index *ix)
{
	if (!ix->env)
		return ERR_CLOSED;
	return failed(ix, "sync", mdb_env_sync(ix->env, 1));
}

int disk_index_reserve(struct disk_index *ix, uint64_t bytes)
{
	int fd;
	if (!ix->env || mdb_env_get_fd(ix->env, &fd) != 0)
		return 0;
	if (fallocate(fd, FALLOC_FL_KEEP_SIZE, 0, (off_t)bytes) == 0 || errno == EOPNOTSUPP)
		return 0;
	return failed(ix, "preallocate", errno);
}

uint64_t disk_index_file_bytes(struct disk_index *ix)
{
	struct stat st;
	return stat(ix->file, &st) == 0 ? (uint64_t)st.st_size : 0;
}

/* --- readers --- */

struct disk_reader *disk_reader_new(struct disk_index *ix)
{
	struct disk_reader *r = mem_zalloc(sizeof *r);
	r->ix = ix;
	pthread_mutex_lock(&ix->lock);
	list_push_back(&ix->readers, &r->link);
	pthread_mutex_unlock(&ix->lock);
	return r;
}

void disk_reader_destroy(struct disk_reader **rp)
{
	struct disk_reader *r = *rp;
	if (!r)
		return;
	pthread_mutex_lock(&r->ix->lock);
	list_remove(&r->link);
	pthread_mutex_unlock(&r->ix->lock);
	if (r->txn)
		mdb_txn_abort(r->txn);
	free(r);
	*rp = NULL;
}

int disk_reader_find(struct disk_reader *r, const struct tier_key *key, struct disk_record *ret)
{
	struct disk_index *ix = r->ix;
	pthread_rwlock_rdlock(&ix->gate);
	int rc = !ix->env ? MDB_PANIC : r->txn ? mdb_txn_renew(r->txn) : mdb_txn_begin(ix->env, NULL, MDB_RDONLY, &r->txn);
	if (rc != 0) {
		if (r->txn)
			mdb_txn_abort(r->txn);
		r->txn = NULL;
		pthread_rwlock_unlock(&ix->gate);
		return code_of(rc);
	}
	MDB_val k = disk_val(key->b, sizeof key->b), v;
	rc = mdb_get(r->txn, ix->table[DISK_BLOCKS], &k, &v);
	int code = code_of(rc);
	if (code == 0 && !disk_block_unpack(key->b, &v, ret))
		code = ERR_CORRUPT;
	mdb_txn_reset(r->txn);
	pthread_rwlock_unlock(&ix->gate);
	return code;
}

/* --- walks beside the writer --- */

/* A cursor of the reader's transaction; after it walk_end, whatever it says. */
static int walk_begin(struct disk_reader *r, enum disk_table t, MDB_cursor **ret)
{
	*ret = NULL;
	pthread_rwlock_rdlock(&r->ix->gate);
	int rc = !r->ix->env ? MDB_PANIC : r->txn ? mdb_txn_renew(r->txn) : mdb_txn_begin(r->ix->env, NULL, MDB_RDONLY, &r->txn);
	if (rc != 0) {
		if (r->txn)
			mdb_txn_abort(r->txn);
		r->txn = NULL;
		return code_of(rc);
	}
	return code_of(mdb_cursor_open(r->txn, r->ix->table[t], ret));
}

static void walk_end(struct disk_reader *r, MDB_cursor *c)
{
	if (c)
		mdb_cursor_close(c);
	if (r->txn)
		mdb_txn_reset(r->txn);
	pthread_rwlock_unlock(&r->ix->gate);
}

uint32_t disk_reader_list(struct disk_reader *r, struct tier_cursor *at, uint32_t max, struct tier_key *ret)
{
	MDB_cursor *c;
	MDB_val k = disk_val(at->key.b, sizeof at->key.b), v;
	uint32_t n = 0;
	int rc = walk_begin(r, DISK_BLOCKS, &c) == 0 ? mdb_cursor_get(c, &k, &v, MDB_SET_RANGE) : MDB_NOTFOUND;
	if (rc == 0 && at->number && k.mv_size == sizeof at->key.b && memcmp(k.mv_data, at->key.b, sizeof at->key.b) == 0)
		rc = mdb_cursor_get(c, &k, &v, MDB_NEXT);
	for (; rc == 0 && n < max; rc = mdb_cursor_get(c, &k, &v, MDB_NEXT)) {
		if (k.mv_size != sizeof ret->b)
			continue;
		memcpy(ret[n].b, k.mv_data, sizeof ret->b);
		at->key = ret[n++];
		at->number = 1;
	}
	at->end = rc != 0;
	walk_end(r, c);
	return n;
}

/* Reads the record that an entry of the order names. */
static int order_entry(struct disk_reader *r, const MDB_val *entry, struct tier_key *key, struct disk_record *rec)
{
	MDB_val k, v;
	if (entry->mv_size != sizeof key->b)
		return 0;
	memcpy(key->b, entry->mv_data, sizeof key->b);
	k = disk_val(key->b, sizeof key->b);
	return mdb_get(r->txn, r->ix->table[DISK_BLOCKS], &k, &v) == 0 && disk_block_unpack(key->b, &v, rec);
}

uint32_t disk_reader_coldest(struct disk_reader *r, uint32_t slot_bytes, uint32_t among, uint64_t *after, uint32_t max, struct tier_due *ret)
{
	MDB_cursor *c;
	struct disk_order_key from = disk_order_key(slot_bytes, 0);
	MDB_val k = disk_val(&from, sizeof from), v;
	uint32_t n = 0;
	int rc = walk_begin(r, DISK_ORDER, &c) == 0 ? mdb_cursor_get(c, &k, &v, MDB_SET_RANGE) : MDB_NOTFOUND;
	for (; rc == 0 && among && n < max; among--, rc = mdb_cursor_get(c, &k, &v, MDB_NEXT)) {
		struct disk_order_key o;
		struct disk_record rec;
		uint64_t used;
		if (k.mv_size != sizeof o || memcmp(k.mv_data, from.slot_bytes, sizeof from.slot_bytes) != 0)
			break;
		memcpy(&o, k.mv_data, sizeof o);
		memcpy(&used, o.used, sizeof used);
		used = be64toh(used);
		if (used <= *after || !order_entry(r, &v, &ret[n].key, &rec))
			continue;
		ret[n++].bytes = rec.bytes;
		*after = used;
	}
	walk_end(r, c);
	return n;
}

/* Calls each for all entries of a table; `each` gets the raw entry. */
static int table_walk(struct disk_index *ix, enum disk_table t, int (*each)(void *arg, const MDB_val *key, const MDB_val *val), void *arg)
{
	MDB_txn *txn;
	MDB_cursor *c;
	MDB_val key, val;
	int rc = mdb_txn_begin(ix->env, NULL, MDB_RDONLY, &txn), r = 0;
	if (rc != 0)
		return failed(ix, "read", rc);
	rc = mdb_cursor_open(txn, ix->table[t], &c);
	if (rc == 0) {
		while (r == 0 && (rc = mdb_cursor_get(c, &key, &val, MDB_NEXT)) == 0)
			r = each(arg, &key, &val);
		mdb_cursor_close(c);
	}
	mdb_txn_abort(txn);
	return r != 0 ? r : rc == MDB_NOTFOUND ? 0 : failed(ix, "read", rc);
}

struct block_walk {
	int (*each)(void *arg, const struct tier_key *key, const struct disk_record *rec);
	void *arg;
};

static int walk_block(void *arg, const MDB_val *key, const MDB_val *val)
{
	struct block_walk *w = arg;
	struct tier_key k;
	struct disk_record rec;
	if (key->mv_size != sizeof k.b || !disk_block_unpack(key->mv_data, val, &rec))
		return ERR_CORRUPT;
	memcpy(k.b, key->mv_data, sizeof k.b);
	return w->each(w->arg, &k, &rec);
}

int disk_index_each_block(struct disk_index *ix, int (*each)(void *arg, const struct tier_key *key, const struct disk_record *rec), void *arg)
{
	struct block_walk w = {each, arg};
	return table_walk(ix, DISK_BLOCKS, walk_block, &w);
}

struct segment_walk {
	int (*each)(void *arg, uint32_t segment, uint32_t slot_bytes, uint32_t slots);
	void *arg;
};

static int walk_segment(void *arg, const MDB_val *key, const MDB_val *val)
{
	struct segment_walk *w = arg;
	uint32_t number, slot_bytes, slots;
	if (!disk_segment_unpack(key, val, &number, &slot_bytes, &slots))
		return ERR_CORRUPT;
	return w->each(w->arg, number, slot_bytes, slots);
}

int disk_index_each_segment(struct disk_index *ix, int (*each)(void *arg, uint32_t segment, uint32_t slot_bytes, uint32_t slots), void *arg)
{
	struct segment_walk w = {each, arg};
	return table_walk(ix, DISK_SEGMENTS, walk_segment, &w);
}

/* --- the writer --- */

void disk_index_watch(struct disk_index *ix, void (*changed)(void *arg, const struct tier_key *key, int stored), void *arg)
{
	ix->changed_arg = arg;
	atomic_store(&ix->changed, changed);
}

static void note(struct disk_index *ix, const struct tier_key *key, int stored)
{
	if (!atomic_load(&ix->changed))
		return;
	if (ix->n_noted == ix->noted_size) {
		ix->noted_size = ix->noted_size ? ix->noted_size * 2 : 64;
		ix->noted = mem_grow(ix->noted, ix->noted_size, sizeof *ix->noted);
	}
	struct noted *n = &ix->noted[ix->n_noted++];
	n->all = key == NULL;
	n->stored = stored;
	if (key)
		n->key = *key;
}

static void tell_noted(struct disk_index *ix)
{
	void (*changed)(void *arg, const struct tier_key *key, int stored) = atomic_load(&ix->changed);
	for (size_t i = 0; i < ix->n_noted; i++)
		changed(ix->changed_arg, ix->noted[i].all ? NULL : &ix->noted[i].key, ix->noted[i].stored);
	ix->n_noted = 0;
}

int disk_index_begin(struct disk_index *ix)
{
	CHECK(!ix->txn);
	ix->n_noted = 0;
	return failed(ix, "begin", ix->env ? mdb_txn_begin(ix->env, NULL, 0, &ix->txn) : MDB_PANIC);
}

static int entry_put(struct disk_index *ix, enum disk_table t, const void *key, size_t key_bytes, const void *val, size_t val_bytes, unsigned flags)
{
	MDB_val k = disk_val(key, key_bytes), v = disk_val(val, val_bytes);
	return failed(ix, "write", mdb_put(ix->txn, ix->table[t], &k, &v, flags));
}

/* 0 also when it was not there. */
static int entry_drop(struct disk_index *ix, enum disk_table t, const void *key, size_t key_bytes)
{
	MDB_val k = disk_val(key, key_bytes);
	int rc = mdb_del(ix->txn, ix->table[t], &k, NULL);
	return rc == MDB_NOTFOUND ? 0 : failed(ix, "delete", rc);
}

int disk_index_add(struct disk_index *ix, const struct tier_key *key, const struct disk_record *rec)
{
	struct disk_block_value v = disk_block_pack(key, rec);
	struct disk_order_key o = disk_order_key(rec->slot_bytes, rec->used);
	struct disk_slot_key s = disk_slot_key(rec->segment, rec->slot);
	note(ix, key, 1);
	int r = entry_put(ix, DISK_BLOCKS, key->b, sizeof key->b, &v, sizeof v, 0);
	if (r == 0)
		r = entry_put(ix, DISK_ORDER, &o, sizeof o, key->b, sizeof key->b, 0);
	return r == 0 ? entry_put(ix, DISK_SLOTS, &s, sizeof s, key->b, sizeof key->b, 0) : r;
}

int disk_index_get(struct disk_index *ix, const struct tier_key *key, struct disk_record *ret)
{
	MDB_val k = disk_val(key->b, sizeof key->b), v;
	int r = failed(ix, "read", mdb_get(ix->txn, ix->table[DISK_BLOCKS], &k, &v));
	return r == 0 && !disk_block_unpack(key->b, &v, ret) ? ERR_INVALID : r;
}

int disk_index_touch(struct disk_index *ix, const struct tier_key *key, uint64_t used, struct disk_record *ret)
{
	int r = disk_index_get(ix, key, ret);
	if (r != 0)
		return r == ERR_INVALID ? ERR_NOTFOUND : r;
	struct disk_order_key before = disk_order_key(ret->slot_bytes, ret->used), now = disk_order_key(ret->slot_bytes, used);
	ret->used = used;
	struct disk_block_value v = disk_block_pack(key, ret);
	r = entry_drop(ix, DISK_ORDER, &before, sizeof before);
	if (r == 0)
		r = entry_put(ix, DISK_ORDER, &now, sizeof now, key->b, sizeof key->b, 0);
	return r == 0 ? entry_put(ix, DISK_BLOCKS, key->b, sizeof key->b, &v, sizeof v, 0) : r;
}

/* The first entry of that table that names the key, by looking at all: out, *ret_entry is its key. For damage only. */
static int entry_seek_drop(struct disk_index *ix, enum disk_table t, const struct tier_key *key, void *ret_entry, size_t bytes)
{
	MDB_cursor *c;
	MDB_val k, v;
	int rc = mdb_cursor_open(ix->txn, ix->table[t], &c);
	if (rc != 0)
		return failed(ix, "read", rc);
	while ((rc = mdb_cursor_get(c, &k, &v, MDB_NEXT)) == 0)
		if (k.mv_size == bytes && v.mv_size == sizeof key->b && memcmp(v.mv_data, key->b, sizeof key->b) == 0) {
			memcpy(ret_entry, k.mv_data, bytes);
			rc = mdb_cursor_del(c, 0);
			break;
		}
	mdb_cursor_close(c);
	return failed(ix, "delete", rc);
}

/* What a record that does not hold should say is known from the entries that name its block. ERR_NOTFOUND: there are none, and only the record went. */
static int damaged_drop(struct disk_index *ix, const struct tier_key *key, struct disk_record *ret)
{
	struct disk_order_key o;
	struct disk_slot_key s;
	note(ix, key, 0);
	int order = entry_seek_drop(ix, DISK_ORDER, key, &o, sizeof o), slot = entry_seek_drop(ix, DISK_SLOTS, key, &s, sizeof s);
	int r = entry_drop(ix, DISK_BLOCKS, key->b, sizeof key->b);
	if (r == 0)
		r = order != 0 ? order : slot;
	return r == 0 && !disk_entries_unpack(&o, &s, ret) ? ERR_NOTFOUND : r;
}

int disk_index_drop(struct disk_index *ix, const struct tier_key *key, uint64_t born, struct disk_record *ret)
{
	int r = disk_index_get(ix, key, ret);
	if (r == 0 && born && ret->born != born)
		return ERR_NOTFOUND;
	if (r == ERR_INVALID)
		return born ? ERR_NOTFOUND : damaged_drop(ix, key, ret);
	if (r != 0)
		return r;
	struct disk_order_key o = disk_order_key(ret->slot_bytes, ret->used);
	struct disk_slot_key s = disk_slot_key(ret->segment, ret->slot);
	note(ix, key, 0);
	r = entry_drop(ix, DISK_ORDER, &o, sizeof o);
	if (r == 0)
		r = entry_drop(ix, DISK_SLOTS, &s, sizeof s);
	return r == 0 ? entry_drop(ix, DISK_BLOCKS, key->b, sizeof key->b) : r;
}

int disk_index_drop_all(struct disk_index *ix)
{
	int rc = 0;
	note(ix, NULL, 0);
	for (int t = DISK_BLOCKS; rc == 0 && t <= DISK_SLOTS; t++)
		rc = mdb_drop(ix->txn, ix->table[t], 0);
	return failed(ix, "drop", rc);
}

/* The first entry whose key is not below `from` and shares its first 4 bytes. */
static int first_like(struct disk_index *ix, enum disk_table t, const void *from, size_t bytes, MDB_val *ret_key, MDB_val *ret_val)
{
	MDB_cursor *c;
	MDB_val k = disk_val(from, bytes), v;
	int rc = mdb_cursor_open(ix->txn, ix->table[t], &c);
	if (rc != 0)
		return failed(ix, "read", rc);
	rc = mdb_cursor_get(c, &k, &v, MDB_SET_RANGE);
	mdb_cursor_close(c);
	if (rc == 0 && (k.mv_size != bytes || memcmp(k.mv_data, from, 4) != 0))
		return ERR_NOTFOUND;
	if (rc == 0 && v.mv_size != TIER_KEY_BYTES)
		rc = MDB_CORRUPTED;
	*ret_key = k;
	*ret_val = v;
	return failed(ix, "read", rc);
}

int disk_index_oldest(struct disk_index *ix, uint32_t slot_bytes, uint64_t *ret_used)
{
	struct disk_order_key from = disk_order_key(slot_bytes, 0);
	MDB_val k, v;
	uint64_t used;
	int r = first_like(ix, DISK_ORDER, &from, sizeof from, &k, &v);
	if (r == 0) {
		memcpy(&used, (unsigned char *)k.mv_data + offsetof(struct disk_order_key, used), sizeof used);
		*ret_used = be64toh(used);
	}
	return r;
}

/* Drops the block that the first entry like `from` names; an entry that names none is only removed. */
static int drop_first(struct disk_index *ix, enum disk_table t, const void *from, size_t bytes, struct disk_record *ret)
{
	for (;;) {
		MDB_val k, v;
		unsigned char entry[sizeof(struct disk_order_key)];
		struct tier_key key;
		int r = first_like(ix, t, from, bytes, &k, &v);
		if (r != 0)
			return r;
		memcpy(entry, k.mv_data, bytes);   /* the pages move when something is deleted */
		memcpy(key.b, v.mv_data, sizeof key.b);
		r = disk_index_drop(ix, &key, 0, ret);
		if (r != 0 && r != ERR_NOTFOUND)
			return r;
		int named = r == 0;
		r = entry_drop(ix, t, entry, bytes);
		if (r != 0 || named)
			return r;
	}
}

int disk_index_evict(struct disk_index *ix, uint32_t slot_bytes, struct disk_record *ret)
{
	struct disk_order_key from = disk_order_key(slot_bytes, 0);
	return drop_first(ix, DISK_ORDER, &from, sizeof from, ret);
}

int disk_index_drop_in(struct disk_index *ix, uint32_t segment, struct disk_record *ret)
{
	struct disk_slot_key from = disk_slot_key(segment, 0);
	return drop_first(ix, DISK_SLOTS, &from, sizeof from, ret);
}

int disk_index_segment_add(struct disk_index *ix, uint32_t segment, uint32_t slot_bytes, uint32_t slots)
{
	struct disk_segment_value v = {slot_bytes, slots, segment, 0, 0};
	unsigned char key[4];
	v.check = disk_segment_check(&v);
	disk_put_be32(key, segment);
	return entry_put(ix, DISK_SEGMENTS, key, sizeof key, &v, sizeof v, 0);
}

int disk_index_segment_drop(struct disk_index *ix, uint32_t segment)
{
	unsigned char key[4];
	disk_put_be32(key, segment);
	return entry_drop(ix, DISK_SEGMENTS, key, sizeof key);
}

int disk_index_commit(struct disk_index *ix)
{
	int rc = ix->commit ? ix->commit() : 0;
	if (rc != 0) {
		disk_index_abort(ix);
		return failed(ix, "commit", rc);
	}
	rc = mdb_txn_commit(ix->txn);
	ix->txn = NULL;
	if (rc == 0)
		tell_noted(ix);
	return failed(ix, "commit", rc);
}

void disk_index_abort(struct disk_index *ix)
{
	if (ix->txn)
		mdb_txn_abort(ix->txn);
	ix->txn = NULL;
}

int disk_index_grow(struct disk_index *ix)
{
	CHECK(!ix->txn);
	if (ix->map_bytes >= MAP_BYTES_MAX)
		return failed(ix, "grow", ENOSPC);
	pthread_rwlock_wrlock(&ix->gate);
	int rc = mdb_env_set_mapsize(ix->env, ix->map_bytes * 2);
	if (rc == 0)
		ix->map_bytes *= 2;
	pthread_rwlock_unlock(&ix->gate);
	if (rc == 0)
		log_info("disk_index_grown", "map_mib=%zu", ix->map_bytes >> 20);
	return failed(ix, "grow", rc);
}
