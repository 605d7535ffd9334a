/* test_messager_frame.c - the ciphers of data connections, held against libsodium's, and what must
 * not be decrypted. */
/* run: parser */
#include "daemons/messager/path/tcp_frame.h"
#include "util/err.h"
#include "util/least.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

enum { BYTES = 70000, NUMBER = 0x0102030405 };

static unsigned char hello[HELLO_BYTES] = "hello", nonce[NONCE_BYTES] = "nonce",
					 secret[SECRET_BYTES] = "secret";
static unsigned char plain[BYTES], out[BYTES + FRAME_TAG_BYTES], head[FRAME_HEAD_BYTES];

static void begin(struct frame_keys *k, enum cipher cipher, enum frame_direction d)
{
	ck_assert_int_eq(frame_keys_init(k, cipher, d, hello, nonce, secret), 0);
	for (size_t i = 0; i < BYTES; i++)
		plain[i] = (unsigned char)(i * 7 + i / 251);
	memset(head, 'h', sizeof head);
}

/* In parts of at most `most` bytes. */
static void seal(struct frame_keys *k, uint64_t number, size_t n, size_t most)
{
	if (k->cipher == CIPHER_NONE)
		memcpy(out, plain, n);
	frame_seal_begin(k, head, number);
	for (size_t at = 0, part; at < n; at += part) {
		part = least(most, n - at);
		frame_seal_add(k, plain + at, part, out + at);
	}
	frame_seal_end(k, out + n);
}

static int open_up(struct frame_keys *k, uint64_t number, size_t n, size_t most)
{
	frame_open_begin(k, head, number);
	for (size_t at = 0, part; at < n; at += part) {
		part = least(most, n - at);
		frame_open_add(k, out + at, part);
	}
	return frame_open_end(k, out + n);
}

/* The key as PROTOCOL.md derives it. */
static void key_of(unsigned char key[32])
{
	crypto_generichash_state h;
	crypto_generichash_init(&h, secret, 32, 32);
	crypto_generichash_update(&h, (const unsigned char *)"aes-out", 8);
	crypto_generichash_update(&h, hello, sizeof hello);
	crypto_generichash_update(&h, nonce, sizeof nonce);
	crypto_generichash_final(&h, key, 32);
}

/* What a loop number means: cipher and the largest part. */
static const enum cipher ciphers[] = {CIPHER_AES256GCM, CIPHER_CHACHA20, CIPHER_NONE};
static const size_t parts[] = {BYTES, 4096, 1000, 17, 1};

TEST_LOOP(ciphers_are_the_standard_ones, 0, 15)
{
	static unsigned char want[BYTES], tag[FRAME_TAG_BYTES], all[FRAME_HEAD_BYTES + BYTES];
	static const size_t sizes[] = {1, 15, 16, 17, 4096, BYTES};
	const enum cipher cipher = ciphers[_i % 3];
	unsigned char key[32], at[12] = {5, 4, 3, 2, 1};
	struct frame_keys k, other;
	begin(&k, cipher, FRAMES_OUT);
	begin(&other, cipher, FRAMES_OUT);
	key_of(key);
	for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++, at[0]++) {
		const size_t n = sizes[i];
		/* not encrypted: nothing is, and the header and then the payload are associated data */
		memcpy(all, head, sizeof head);
		memcpy(all + sizeof head, plain, n);
		if (cipher == CIPHER_NONE)
			crypto_aead_chacha20poly1305_ietf_encrypt_detached(want, tag, NULL, plain, 0, all,
			                                                   sizeof head + n, NULL, at, key);
		else if (cipher == CIPHER_CHACHA20)
			crypto_aead_chacha20poly1305_ietf_encrypt_detached(want, tag, NULL, plain, n, head,
			                                                   sizeof head, NULL, at, key);
		else if (crypto_aead_aes256gcm_is_available())
			crypto_aead_aes256gcm_encrypt_detached(want, tag, NULL, plain, n, head, sizeof head,
			                                       NULL, at, key);
		seal(&k, NUMBER + i, n, parts[_i / 3]);
		if (cipher == CIPHER_NONE)
			memcpy(want, plain, n);
		if (cipher != CIPHER_AES256GCM || crypto_aead_aes256gcm_is_available()) {
			ck_assert_mem_eq(out, want, n);
			ck_assert_mem_eq(out + n, tag, sizeof tag);
		}
		ck_assert_int_eq(open_up(&other, NUMBER + i, n, parts[(_i / 3 + 2) % 5]), 0);
		ck_assert_mem_eq(out, plain, n);
	}
	frame_keys_fini(&k);
	frame_keys_fini(&other);
}

TEST_LOOP(what_is_not_authentic, 0, 3)
{
	struct frame_keys k, other, back;
	begin(&k, ciphers[_i], FRAMES_OUT);
	begin(&other, ciphers[_i], FRAMES_OUT);
	begin(&back, ciphers[_i], FRAMES_BACK);
	seal(&k, 1, 1000, 300);
	out[1000 + FRAME_TAG_BYTES - 1] ^= 1;
	ck_assert_int_eq(open_up(&other, 1, 1000, 1000), ERR_CORRUPT);
	seal(&k, 2, 1000, 300);
	out[999] ^= 0x80;
	ck_assert_int_eq(open_up(&other, 2, 1000, 1000), ERR_CORRUPT);
	seal(&k, 3, 1000, 300);
	head[FRAME_HEAD_BYTES - 1] ^= 1;
	ck_assert_int_eq(open_up(&other, 3, 1000, 1000), ERR_CORRUPT);
	seal(&k, 4, 1000, 300);
	ck_assert_int_eq(open_up(&other, 5, 1000, 1000), ERR_CORRUPT);
	seal(&k, 6, 1000, 300);
	memmove(out + 900, out + 1000, FRAME_TAG_BYTES);
	ck_assert_int_eq(open_up(&other, 6, 900, 1000), ERR_CORRUPT);
	seal(&k, 7, 1000, 300);
	ck_assert_int_eq(open_up(&back, 7, 1000, 1000), ERR_CORRUPT);
	/* a frame that was left in its middle spoils nothing */
	frame_open_begin(&other, head, 8);
	frame_open_add(&other, out, 333);
	seal(&k, 9, 1000, 300);
	ck_assert_int_eq(open_up(&other, 9, 1000, 1000), 0);
	ck_assert_mem_eq(out, plain, 1000);
	frame_keys_fini(&k);
	frame_keys_fini(&other);
	frame_keys_fini(&back);
}

/* Two payloads under one nonce would give both away. */
TEST_SIGNAL_LOOP(a_number_is_sealed_once, 6, 0, 6)
{
	struct frame_keys k;
	begin(&k, ciphers[_i % 3], FRAMES_OUT);
	seal(&k, 7, 100, 100);
	seal(&k, 8, 100, 100);
	seal(&k, _i / 3 ? 7 : 8, 100, 100);
}

TEST_LOOP(keys_are_wiped, 0, 3)
{
	static const struct frame_keys none;
	struct frame_keys k;
	begin(&k, ciphers[_i], FRAMES_OUT);
	ck_assert_ptr_nonnull(k.aead);
	frame_keys_fini(&k);
	ck_assert_mem_eq(&k, &none, sizeof k);
	frame_keys_fini(&k);
}

TEST_START(cryptography)
{
	if (sodium_init() < 0)
		exit(EXIT_FAILURE);
}
