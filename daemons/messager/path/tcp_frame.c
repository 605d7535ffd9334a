/* tcp_frame.c - see tcp_frame.h. MACs and derived keys are keyed BLAKE2b (libsodium) with a label
 * for each purpose, so that none can stand for another. Payloads are sealed by libcrypto: its
 * AES-256-GCM takes less than half of libsodium's time, and its Poly1305, for payloads that are not
 * encrypted, a twelfth of BLAKE2b's. */
#include "tcp_frame.h"

#include "util/check.h"
#include "util/err.h"

#include <endian.h>
#include <limits.h>
#include <string.h>

static const unsigned char hello_magic[8] = "PDPATH2";
static const unsigned char setup_magic[4] = "PDT2";

static unsigned char *put32(unsigned char *at, uint32_t v)
{
	v = htole32(v);
	memcpy(at, &v, sizeof v);
	return at + sizeof v;
}

static unsigned char *put64(unsigned char *at, uint64_t v)
{
	v = htole64(v);
	memcpy(at, &v, sizeof v);
	return at + sizeof v;
}

static uint32_t get32(const unsigned char **at)
{
	uint32_t v;
	memcpy(&v, *at, sizeof v);
	*at += sizeof v;
	return le32toh(v);
}

static uint64_t get64(const unsigned char **at)
{
	uint64_t v;
	memcpy(&v, *at, sizeof v);
	*at += sizeof v;
	return le64toh(v);
}

/* --- over the control link ----------------------------------------------- */

size_t setup_put(unsigned char *out, const struct setup *s)
{
	unsigned char *at = out;
	memcpy(at, setup_magic, sizeof setup_magic);
	at = put32(at + sizeof setup_magic, s->kind);
	if (s->kind == SETUP_ASK)
		return (size_t)(at - out);
	at = put32(at, s->port);
	at = put32(at, s->connections);
	at = put32(at, (s->encrypt ? 1u : 0u) | (s->aes ? 2u : 0u));
	at = put64(at, s->pair);
	memcpy(at, s->secret, SECRET_BYTES);
	return SETUP_BYTES;
}

int setup_get(const unsigned char *at, size_t n, struct setup *ret)
{
	struct setup s = {0};
	if (n < 8 || memcmp(at, setup_magic, sizeof setup_magic) != 0)
		return ERR_INVALID;
	at += sizeof setup_magic;
	s.kind = get32(&at);
	if (s.kind == SETUP_TELL && n == SETUP_BYTES) {
		s.port = get32(&at);
		s.connections = get32(&at);
		uint32_t flags = get32(&at);
		s.encrypt = flags & 1u;
		s.aes = flags >> 1 & 1u;
		s.pair = get64(&at);
		memcpy(s.secret, at, SECRET_BYTES);
		if (s.port == 0 || s.port > 65535 || s.connections == 0)
			return ERR_INVALID;
	} else if (s.kind != SETUP_ASK || n != 8) {
		return ERR_INVALID;
	}
	*ret = s;
	return 0;
}

/* --- handshake ----------------------------------------------------------- */

const char *cipher_name(enum cipher c)
{
	static const char *const names[] = {"plain", "aes256-gcm", "chacha20-poly1305"};
	CHECK(c < CIPHER_COUNT);
	return names[c];
}

/* Keyed BLAKE2b over label, a and b. */
static void mac(unsigned char *out, size_t n, const unsigned char *key, const char label[8],
                const unsigned char *a, size_t a_bytes, const unsigned char *b, size_t b_bytes)
{
	crypto_generichash_state h;
	crypto_generichash_init(&h, key, 32, n);
	crypto_generichash_update(&h, (const unsigned char *)label, 8);
	crypto_generichash_update(&h, a, a_bytes);
	if (b_bytes)
		crypto_generichash_update(&h, b, b_bytes);
	crypto_generichash_final(&h, out, n);
}

static int is_proof(const unsigned char *at, const unsigned char *want)
{
	return sodium_memcmp(at, want, PROOF_BYTES) == 0 ? 0 : ERR_CORRUPT;
}

void hello_put(unsigned char out[HELLO_BYTES], const struct hello *h, const unsigned char *secret)
{
	unsigned char *at = out;
	memcpy(at, hello_magic, sizeof hello_magic);
	at = put64(at + sizeof hello_magic, h->pair);
	at = put32(at, h->connection);
	at = put32(at, h->cipher);
	memcpy(at, h->nonce, NONCE_BYTES);
	mac(out + HELLO_BYTES - PROOF_BYTES, PROOF_BYTES, secret, "hello..", out,
	    HELLO_BYTES - PROOF_BYTES, NULL, 0);
}

int hello_get(const unsigned char at[HELLO_BYTES], struct hello *ret)
{
	struct hello h;
	if (memcmp(at, hello_magic, sizeof hello_magic) != 0)
		return ERR_INVALID;
	at += sizeof hello_magic;
	h.pair = get64(&at);
	h.connection = get32(&at);
	h.cipher = get32(&at);
	if (h.cipher >= CIPHER_COUNT)
		return ERR_INVALID;
	memcpy(h.nonce, at, NONCE_BYTES);
	*ret = h;
	return 0;
}

int hello_verify(const unsigned char at[HELLO_BYTES], const unsigned char *secret)
{
	unsigned char want[PROOF_BYTES];
	mac(want, PROOF_BYTES, secret, "hello..", at, HELLO_BYTES - PROOF_BYTES, NULL, 0);
	return is_proof(at + HELLO_BYTES - PROOF_BYTES, want);
}

void welcome_put(unsigned char out[WELCOME_BYTES], const unsigned char hello[HELLO_BYTES],
                 const unsigned char nonce[NONCE_BYTES], const unsigned char *secret)
{
	memcpy(out, nonce, NONCE_BYTES);
	mac(out + NONCE_BYTES, PROOF_BYTES, secret, "welcome", hello, HELLO_BYTES, nonce, NONCE_BYTES);
}

int welcome_verify(const unsigned char at[WELCOME_BYTES], const unsigned char hello[HELLO_BYTES],
                   const unsigned char *secret)
{
	unsigned char want[WELCOME_BYTES];
	welcome_put(want, hello, at, secret);
	return is_proof(at + NONCE_BYTES, want + NONCE_BYTES);
}

void proof_put(unsigned char out[PROOF_BYTES], const unsigned char hello[HELLO_BYTES],
               const unsigned char nonce[NONCE_BYTES], const unsigned char *secret)
{
	mac(out, PROOF_BYTES, secret, "proof..", hello, HELLO_BYTES, nonce, NONCE_BYTES);
}

int proof_verify(const unsigned char at[PROOF_BYTES], const unsigned char hello[HELLO_BYTES],
                 const unsigned char nonce[NONCE_BYTES], const unsigned char *secret)
{
	unsigned char want[PROOF_BYTES];
	proof_put(want, hello, nonce, secret);
	return is_proof(at, want);
}

/* --- frames -------------------------------------------------------------- */

int frame_keys_init(struct frame_keys *k, enum cipher cipher, enum frame_direction d,
                    const unsigned char hello[HELLO_BYTES], const unsigned char nonce[NONCE_BYTES],
                    const unsigned char *secret)
{
	static const char labels[][2][8] = {
		[FRAMES_OUT] = {"mac-out", "aes-out"},
		[FRAMES_BACK] = {"mac-back", "aes-back"},
	};
	unsigned char key[32];
	*k = (struct frame_keys){.cipher = cipher};
	mac(k->mac, sizeof k->mac, secret, labels[d][0], hello, HELLO_BYTES, nonce, NONCE_BYTES);
	mac(key, sizeof key, secret, labels[d][1], hello, HELLO_BYTES, nonce, NONCE_BYTES);
	k->aead = EVP_CIPHER_CTX_new();
	int ok = k->aead && EVP_EncryptInit_ex(k->aead,
	                                       cipher == CIPHER_AES256GCM ? EVP_aes_256_gcm()
	                                                                  : EVP_chacha20_poly1305(),
	                                       NULL, key, NULL);
	sodium_memzero(key, sizeof key);
	if (!ok)
		frame_keys_fini(k);
	return ok ? 0 : ERR_UNSUPPORTED;
}

void frame_keys_fini(struct frame_keys *k)
{
	EVP_CIPHER_CTX_free(k->aead);
	sodium_memzero(k, sizeof *k);
}

enum { MACED_BYTES = FRAME_HEAD_BYTES - 16 };

void frame_put(unsigned char out[FRAME_HEAD_BYTES], const struct frame *f,
               const struct frame_keys *k)
{
	unsigned char *at = put32(out, 0x50440000u | f->type);
	at = put32(at, f->length);
	at = put64(at, f->number);
	at = put32(at, f->handle);
	at = put32(at, f->generation);
	at = put32(at, f->layer);
	at = put32(at, f->first);
	at = put32(at, f->n);
	at = put32(at, 0);
	at = put64(at, f->sum);
	crypto_generichash(at, 16, out, MACED_BYTES, k->mac, sizeof k->mac);
}

int frame_get(const unsigned char at[FRAME_HEAD_BYTES], struct frame *ret,
              const struct frame_keys *k)
{
	unsigned char want[16];
	struct frame f;
	crypto_generichash(want, sizeof want, at, MACED_BYTES, k->mac, sizeof k->mac);
	if (sodium_memcmp(want, at + MACED_BYTES, sizeof want) != 0)
		return ERR_CORRUPT;
	uint32_t type = get32(&at) ^ 0x50440000u;
	if (type < FRAME_DATA || type > FRAME_REFUSE)
		return ERR_CORRUPT;
	f.type = type;
	f.length = get32(&at);
	f.number = get64(&at);
	f.handle = get32(&at);
	f.generation = get32(&at);
	f.layer = get32(&at);
	f.first = get32(&at);
	f.n = get32(&at);
	get32(&at);
	f.sum = get64(&at);
	*ret = f;
	return 0;
}

/* Nonce and associated data. Calls of libcrypto fail only if they are made in a wrong order. */
static void aead_begin(struct frame_keys *k, const unsigned char head[FRAME_HEAD_BYTES],
                       uint64_t number, int seal)
{
	unsigned char nonce[12] = {0};
	int n;
	put64(nonce, number);
	CHECK(EVP_CipherInit_ex(k->aead, NULL, NULL, NULL, nonce, seal));
	CHECK(EVP_CipherUpdate(k->aead, NULL, &n, head, FRAME_HEAD_BYTES));
}

void frame_seal_begin(struct frame_keys *k, const unsigned char head[FRAME_HEAD_BYTES],
                      uint64_t number)
{
	CHECK(number >= k->next);
	k->next = number + 1;
	aead_begin(k, head, number, 1);
}

void frame_seal_add(struct frame_keys *k, const void *in, size_t n, unsigned char *out)
{
	int done;
	unsigned char *to = k->cipher == CIPHER_NONE ? NULL : out; /* NULL: associated data */
	CHECK(n <= INT_MAX && EVP_EncryptUpdate(k->aead, to, &done, in, (int)n));
}

void frame_seal_end(struct frame_keys *k, unsigned char tag[FRAME_TAG_BYTES])
{
	unsigned char none[16];
	int n;
	CHECK(EVP_EncryptFinal_ex(k->aead, none, &n));
	CHECK(EVP_CIPHER_CTX_ctrl(k->aead, EVP_CTRL_AEAD_GET_TAG, FRAME_TAG_BYTES, tag));
}

void frame_open_begin(struct frame_keys *k, const unsigned char head[FRAME_HEAD_BYTES],
                      uint64_t number)
{
	aead_begin(k, head, number, 0);
}

void frame_open_add(struct frame_keys *k, unsigned char *at, size_t n)
{
	int done;
	unsigned char *to = k->cipher == CIPHER_NONE ? NULL : at;
	CHECK(n <= INT_MAX && EVP_DecryptUpdate(k->aead, to, &done, at, (int)n));
}

int frame_open_end(struct frame_keys *k, const unsigned char tag[FRAME_TAG_BYTES])
{
	unsigned char none[16];
	int n;
	CHECK(EVP_CIPHER_CTX_ctrl(k->aead, EVP_CTRL_AEAD_SET_TAG, FRAME_TAG_BYTES, (void *)tag));
	return EVP_DecryptFinal_ex(k->aead, none, &n) == 1 ? 0 : ERR_CORRUPT;
}
