/* fingerprint.h - what makes two models one: KV may be exchanged between workers, and found again,
 * only where fingerprints are equal.
 *
 * BLAKE2b-256 over the description (every number that changes a result), the tokenizer, and of each
 * tensor name, type, shape and XXH3-128 of all its bytes. XXH3 is no cryptographic hash: what it is
 * to tell apart are files that differ by mistake (another fine-tuning, a damaged copy), not one
 * that was made to collide, whose author could as well make the weights say anything. It reads a
 * file as fast as memory does. Hashing is a thread's work, which goes on while the weights are
 * loaded, ahead of that, and touches the same pages: opening a model waits for it at its end. */
#ifndef ENGINE_FINGERPRINT_H
#define ENGINE_FINGERPRINT_H

#include "engine/model.h"

struct fingerprint;

/* Begins to read. Both must stay as they are until the end. Never NULL. */
struct fingerprint *fingerprint_begin(const struct model_conf *conf,
                                      const struct model_source *src);
/* model_tensor_drop while it reads: what it touches of this tensor from now on is given back, too.
 * f may be NULL. */
void fingerprint_drop(struct fingerprint *f, const struct model_tensor *t);
/* Waits for it, frees it; *f NULL: nothing. hex: BLAKE2b-256 in hex; NULL: it is not wanted any
 * more, and ends soon. */
void fingerprint_end(struct fingerprint **f, char hex[65]);
static inline void model_fingerprint(const struct model_conf *conf, const struct model_source *src,
                                     char hex[65])
{
	struct fingerprint *f = fingerprint_begin(conf, src);
	fingerprint_end(&f, hex);
}
/* A cheap one for processes of one host that open the same path at the same time: of a tensor's
 * bytes it has a sample. */
void model_outline(const struct model_conf *conf, const struct model_source *src, char hex[65]);

#endif
