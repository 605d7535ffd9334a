/* tcp_frame.h - what goes over a data connection, as bytes: handshake, frames, their keys. No
 * input or output. All numbers are little-endian. */
#ifndef MESSAGER_TCP_FRAME_H
#define MESSAGER_TCP_FRAME_H

#include <openssl/evp.h>
#include <sodium.h>
#include <stddef.h>
#include <stdint.h>

#define SECRET_BYTES 32u
#define NONCE_BYTES 32u
#define PROOF_BYTES 32u
#define HELLO_BYTES (8u + 8u + 4u + 4u + NONCE_BYTES + PROOF_BYTES)
#define WELCOME_BYTES (NONCE_BYTES + PROOF_BYTES)

#define FRAME_HEAD_BYTES 64u
#define FRAME_TAG_BYTES 16u           /* behind a payload */
#define FRAME_PAYLOAD_MAX (16u << 20) /* a piece of KV that is larger cannot be sent */

#define SETUP_BYTES (4u + 4u * 4u + 8u + SECRET_BYTES)

/* --- over the control link ----------------------------------------------- */

enum setup_kind { SETUP_ASK = 1, SETUP_TELL };

struct setup {
	enum setup_kind kind;
	uint32_t port, connections; /* connections: at most that many */
	int encrypt, aes;           /* aes: this CPU has the instructions */
	uint64_t pair;
	unsigned char secret[SECRET_BYTES];
};

/* out has SETUP_BYTES. Returns the number of bytes used. */
size_t setup_put(unsigned char *out, const struct setup *s);
/* 0 or ERR_INVALID. */
int setup_get(const unsigned char *at, size_t n, struct setup *ret);

/* --- handshake ----------------------------------------------------------- */

/* Numbers are part of the protocol. CIPHER_NONE: the payload is not encrypted, but authenticated
 * like the others, as associated data of ChaCha20-Poly1305. */
enum cipher { CIPHER_NONE, CIPHER_AES256GCM, CIPHER_CHACHA20, CIPHER_COUNT };
const char *cipher_name(enum cipher c);

struct hello {
	uint64_t pair;
	uint32_t connection;
	enum cipher cipher;
	unsigned char nonce[NONCE_BYTES];
};

void hello_put(unsigned char out[HELLO_BYTES], const struct hello *h, const unsigned char *secret);
/* Without a look at the MAC. 0 or ERR_INVALID. */
int hello_get(const unsigned char at[HELLO_BYTES], struct hello *ret);
/* 0, or ERR_CORRUPT: the sender does not have the secret. */
int hello_verify(const unsigned char at[HELLO_BYTES], const unsigned char *secret);

/* Both proofs cover everything that both sides have said. */
void welcome_put(unsigned char out[WELCOME_BYTES], const unsigned char hello[HELLO_BYTES],
                 const unsigned char nonce[NONCE_BYTES], const unsigned char *secret);
int welcome_verify(const unsigned char at[WELCOME_BYTES], const unsigned char hello[HELLO_BYTES],
                   const unsigned char *secret);
void proof_put(unsigned char out[PROOF_BYTES], const unsigned char hello[HELLO_BYTES],
               const unsigned char nonce[NONCE_BYTES], const unsigned char *secret);
int proof_verify(const unsigned char at[PROOF_BYTES], const unsigned char hello[HELLO_BYTES],
                 const unsigned char nonce[NONCE_BYTES], const unsigned char *secret);

/* --- frames -------------------------------------------------------------- */

/* One direction of one connection; of zeros: none. Not to be copied. */
struct frame_keys {
	EVP_CIPHER_CTX *aead;
	enum cipher cipher;
	uint64_t next; /* the lowest number that may be sealed */
	unsigned char mac[32];
};

enum frame_direction { FRAMES_OUT = 1, FRAMES_BACK }; /* to the receiver, to the sender */

/* 0, or ERR_UNSUPPORTED: libcrypto does not have the cipher (or no memory for it). */
int frame_keys_init(struct frame_keys *k, enum cipher cipher, enum frame_direction d,
                    const unsigned char hello[HELLO_BYTES], const unsigned char nonce[NONCE_BYTES],
                    const unsigned char *secret);
/* Wipes them; also keys of zeros. */
void frame_keys_fini(struct frame_keys *k);

enum frame_type { FRAME_DATA = 1, FRAME_CANARY, FRAME_ACK, FRAME_REFUSE };
enum frame_refusal { REFUSED_NOT = 0, REFUSED_CLOSED, REFUSED_STALE, REFUSED_MALFORMED };

struct frame {
	enum frame_type type;
	uint32_t length; /* of the payload, without the tag */
	uint64_t number; /* of the frames in this direction, from 1 */
	uint32_t handle, generation;
	uint32_t layer, first;
	uint32_t n;   /* DATA: blocks; REFUSE: enum frame_refusal */
	uint64_t sum; /* ACK: frames that arrived; else 0 */
};

void frame_put(unsigned char out[FRAME_HEAD_BYTES], const struct frame *f,
               const struct frame_keys *k);
/* ERR_CORRUPT: wrong MAC, or an unknown type. */
int frame_get(const unsigned char at[FRAME_HEAD_BYTES], struct frame *ret,
              const struct frame_keys *k);

/* A payload part by part, then its tag. The number is the nonce, so a key seals each number once:
 * they rise. Encrypted bytes go to `out`, which may be `in`; CIPHER_NONE does not use it. */
void frame_seal_begin(struct frame_keys *k, const unsigned char head[FRAME_HEAD_BYTES],
                      uint64_t number);
void frame_seal_add(struct frame_keys *k, const void *in, size_t n, unsigned char *out);
void frame_seal_end(struct frame_keys *k, unsigned char tag[FRAME_TAG_BYTES]);

/* Decrypts in place. Nobody may use the bytes before frame_open_end has returned 0; ERR_CORRUPT:
 * head or bytes are not what was sealed. A frame may be left at any point. */
void frame_open_begin(struct frame_keys *k, const unsigned char head[FRAME_HEAD_BYTES],
                      uint64_t number);
void frame_open_add(struct frame_keys *k, unsigned char *at, size_t n);
int frame_open_end(struct frame_keys *k, const unsigned char tag[FRAME_TAG_BYTES]);

#endif
