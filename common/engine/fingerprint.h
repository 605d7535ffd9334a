/* fingerprint.h - identifies a model: workers exchange KV, and find it again in storage, only if
 * their fingerprints are equal.
 *
 * BLAKE2b-256 over the description (every number that changes a result), the tokenizer, and of each
 * tensor the name, type, shape and XXH3-128 of all its bytes. XXH3 is not a cryptographic hash: it
 * must tell apart files that differ by mistake (another fine-tuning, a damaged copy), not a file
 * that was made to collide; its author could as well make the weights say anything. It reads a file
 * as fast as memory allows. A thread hashes while the weights are loaded, ahead of the loader on
 * the same pages; engine_open waits for it at the end. */
#ifndef ENGINE_FINGERPRINT_H
#define ENGINE_FINGERPRINT_H

#include "engine/model.h"

struct fingerprint;

/* Starts reading. Both arguments must stay unchanged until fingerprint_end. Never NULL. */
struct fingerprint *fingerprint_begin(const struct model_conf *conf,
                                      const struct model_source *src);
/* model_tensor_drop during the reading: pages of this tensor that the thread touches from now on
 * are given back too. f may be NULL. */
void fingerprint_drop(struct fingerprint *f, const struct model_tensor *t);
/* Waits for the thread and frees f; does nothing if *f is NULL. hex: receives the fingerprint in
 * hex; NULL: it is not needed any more, and the thread is stopped early. */
void fingerprint_end(struct fingerprint **f, char hex[65]);
static inline void model_fingerprint(const struct model_conf *conf, const struct model_source *src,
                                     char hex[65])
{
	struct fingerprint *f = fingerprint_begin(conf, src);
	fingerprint_end(&f, hex);
}
/* A cheap fingerprint for processes of one host that open the same path at the same time: it covers
 * only a sample of each tensor's bytes. */
void model_outline(const struct model_conf *conf, const struct model_source *src, char hex[65]);

#endif
