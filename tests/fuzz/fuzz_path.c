/* fuzz_path.c - what comes over a data connection between messagers, and SETUP. The first byte says
 * which: SETUP, HELLO, a frame's header as it is or with its MAC made right, or an encrypted
 * payload, of which the second byte says how it is cut. */
#include "daemons/messager/path/tcp_frame.h"
#include "tests/fuzz/fuzz.h"

#include <stdlib.h>
#include <string.h>

static const unsigned char secret[SECRET_BYTES] = "the secret of the pair";
static const unsigned char hello[HELLO_BYTES], nonce[NONCE_BYTES];

/* What was understood says the same when it is written again. */
static void run_setup(const uint8_t *data, size_t size)
{
	unsigned char out[SETUP_BYTES];
	struct setup s, again;
	memset(&s, 0, sizeof s);
	memset(&again, 0, sizeof again);
	if (setup_get(data, size, &s) < 0)
		return;
	fuzz_accepted();
	size_t n = setup_put(out, &s);
	must(n == size && setup_get(out, n, &again) == 0);
	must(s.kind == again.kind && s.port == again.port && s.connections == again.connections &&
	     s.encrypt == again.encrypt && s.aes == again.aes && s.pair == again.pair &&
	     memcmp(s.secret, again.secret, sizeof s.secret) == 0);
	must(s.kind == SETUP_ASK || (s.port > 0 && s.port < 65536 && s.connections > 0));
}

static void run_hello(const uint8_t *data, size_t size)
{
	unsigned char out[HELLO_BYTES];
	struct hello h;
	if (size != HELLO_BYTES || hello_get(data, &h) < 0)
		return;
	fuzz_accepted();
	must(h.cipher < CIPHER_COUNT && *cipher_name(h.cipher));
	hello_put(out, &h, secret);
	must(memcmp(out, data, HELLO_BYTES - PROOF_BYTES) == 0);
	must((hello_verify(data, secret) == 0) == (memcmp(out, data, HELLO_BYTES) == 0));
}

static void run_frame(const uint8_t *data, size_t size, int sign)
{
	enum { FIELDS = FRAME_HEAD_BYTES - 16, ZERO = 36 };
	static const uint8_t zero[4];
	unsigned char head[FRAME_HEAD_BYTES], out[FRAME_HEAD_BYTES];
	struct frame_keys k;
	struct frame f;
	if (size != FRAME_HEAD_BYTES)
		return;
	must(frame_keys_init(&k, CIPHER_NONE, FRAMES_OUT, hello, nonce, secret) == 0);
	memcpy(head, data, sizeof head);
	if (sign)
		crypto_generichash(head + FIELDS, 16, head, FIELDS, k.mac, sizeof k.mac);
	if (frame_get(head, &f, &k) == 0) {
		fuzz_accepted();
		must(f.type >= FRAME_DATA && f.type <= FRAME_REFUSE);
		frame_put(out, &f, &k);
		must(memcmp(out, head, sizeof head) == 0 || memcmp(head + ZERO, zero, sizeof zero) != 0);
		head[data[4] % sizeof head] ^= 1;
		must(frame_get(head, &f, &k) < 0);
	}
	frame_keys_fini(&k);
}

/* Parts of sizes drawn from `cuts`. Returns what frame_open_end says, 0 when sealing. */
static int run_parts(struct frame_keys *k, int seal, unsigned cuts, uint8_t *at, size_t size)
{
	seal ? frame_seal_begin(k, hello, 1) : frame_open_begin(k, hello, 1);
	for (size_t from = 0, n; from < size; from += n) {
		n = 1 + (cuts = cuts * 1103515245u + 12345u) / 65536u % 200;
		n = from + n > size ? size - from : n;
		if (seal)
			frame_seal_add(k, at + from, n, at + from);
		else
			frame_open_add(k, at + from, n);
	}
	if (!seal)
		return frame_open_end(k, at + size);
	frame_seal_end(k, at + size);
	return 0;
}

/* Bytes of a stranger are never taken for a payload; what was sealed comes back. */
static void run_payload(const uint8_t *data, size_t size, enum cipher cipher, unsigned cuts)
{
	struct frame_keys k;
	unsigned char *at = malloc(size + FRAME_TAG_BYTES);
	must(frame_keys_init(&k, cipher, FRAMES_OUT, hello, nonce, secret) == 0);
	memcpy(at, data, size);
	memset(at + size, 0, FRAME_TAG_BYTES);
	must(run_parts(&k, 0, cuts, at, size) < 0);
	memcpy(at, data, size);
	run_parts(&k, 1, cuts, at, size);
	must(run_parts(&k, 0, cuts * 7 + 1, at, size) == 0 && memcmp(at, data, size) == 0);
	frame_keys_fini(&k);
	free(at);
}

FUZZ(path, 1 << 12)
{
	if (size < 2)
		return 0;
	switch (data[0] % 7) {
	case 0: run_setup(data + 1, size - 1); break;
	case 1: run_hello(data + 1, size - 1); break;
	case 2:
	case 3: run_frame(data + 1, size - 1, data[0] % 7 == 3); break;
	case 4: run_payload(data + 2, size - 2, CIPHER_AES256GCM, data[1]); break;
	case 5: run_payload(data + 2, size - 2, CIPHER_CHACHA20, data[1]); break;
	case 6: run_payload(data + 2, size - 2, CIPHER_NONE, data[1]); break;
	}
	return 0;
}
