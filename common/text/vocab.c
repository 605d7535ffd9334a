/* vocab.c - see vocab.h. Texts are copied, so the file may be closed.
 *
 * Byte-level vocabularies write each byte as a printable character: 33-126, 161-172 and 174-255 as
 * themselves, the other 68 bytes, in order, as U+0100 and up. The index hashes with a random factor
 * drawn per vocabulary. Only vocab_set can fail. */
#include "text/vocab.h"
#include "text/unicode.h"
#include "util/check.h"
#include "util/mem.h"

#include <sodium.h>
#include <stdlib.h>
#include <string.h>

struct vocab_slot {
	uint32_t id, tag; /* id UINT32_MAX: the slot is free; tag: high half of the hash */
};

/* The byte that a character stands for; -1: none. */
static int unmap_char(uint32_t cp)
{
	if ((cp >= 33 && cp <= 126) || (cp >= 161 && cp <= 172) || (cp >= 174 && cp <= 255))
		return (int)cp;
	if (cp < 256 || cp >= 256 + 68)
		return -1;
	unsigned i = cp - 256; /* index into 0-32, 127-160, 173 */
	return i <= 32 ? (int)i : i <= 66 ? (int)(i - 33 + 127) : 173;
}

size_t vocab_unmap(const char *text, size_t len, char *out)
{
	size_t n = 0;
	for (size_t i = 0; i < len;) {
		uint32_t cp;
		int step = utf8_step(text + i, len - i, &cp), byte = step > 0 ? unmap_char(cp) : -1;
		if (byte < 0)
			return SIZE_MAX;
		out[n++] = (char)byte;
		i += (size_t)step;
	}
	return n;
}

static int hex_digit(char c)
{
	return c >= '0' && c <= '9'   ? c - '0'
	       : c >= 'A' && c <= 'F' ? c - 'A' + 10
	       : c >= 'a' && c <= 'f' ? c - 'a' + 10
	                              : -1;
}

int vocab_byte_of(const char *text, size_t len)
{
	if (len != 6 || memcmp(text, "<0x", 3) || text[5] != '>')
		return -1;
	int high = hex_digit(text[3]), low = hex_digit(text[4]);
	return high < 0 || low < 0 ? -1 : high * 16 + low;
}

static uint64_t hash(const struct vocab *v, const char *p, size_t n)
{
	uint64_t h = n, w;
	for (; n >= 8; p += 8, n -= 8) {
		memcpy(&w, p, 8);
		h = (h ^ w) * v->factor;
		h ^= h >> 32;
	}
	w = 0;
	if (n >= 4) {
		uint32_t a, b;
		memcpy(&a, p, 4);
		memcpy(&b, p + n - 4, 4);
		w = (uint64_t)a << 32 | b;
	} else if (n) {
		w = (uint64_t)(unsigned char)p[0] << 16 | (uint64_t)(unsigned char)p[n / 2] << 8 |
		    (unsigned char)p[n - 1];
	}
	h = (h ^ w) * v->factor;
	h ^= h >> 29;
	h *= v->factor;
	return h ^ h >> 32;
}

/* The text that a token matches: byte-level tokens match their bytes, all others match their text,
 * whatever they decode to. */
static const char *key_of(const struct vocab *v, uint32_t id, size_t *ret_len)
{
	const struct vocab_token *t = &v->tokens[id];
	*ret_len = v->byte_level ? t->bytes_len : t->text_len;
	return v->byte_level ? vocab_bytes(v, id) : vocab_text(v, id);
}

static struct vocab_slot *slot_of(const struct vocab *v, const char *bytes, size_t len,
                                  uint32_t *ret_tag)
{
	uint64_t h = hash(v, bytes, len);
	uint32_t tag = *ret_tag = (uint32_t)(h >> 32);
	for (size_t i = h & v->mask;; i = (i + 1) & v->mask) {
		struct vocab_slot *s = &v->slots[i];
		if (s->id == UINT32_MAX)
			return s;
		size_t n;
		const char *key = key_of(v, s->id, &n);
		if (s->tag == tag && n == len && !memcmp(key, bytes, len))
			return s;
	}
}

uint32_t vocab_find(const struct vocab *v, const char *bytes, size_t len)
{
	uint32_t tag;
	return slot_of(v, bytes, len, &tag)->id;
}

uint32_t vocab_find_text(const struct vocab *v, const char *text, size_t len)
{
	for (uint32_t id = 0; id < v->n; id++)
		if (v->tokens[id].given && v->tokens[id].text_len == len &&
		    !memcmp(vocab_text(v, id), text, len))
			return id;
	return UINT32_MAX;
}

void vocab_init(struct vocab *v, uint32_t n)
{
	CHECK(n <= VOCAB_IDS_MAX);
	memset(v, 0, sizeof *v);
	v->n = n;
	v->tokens = mem_array(n, sizeof *v->tokens);
	for (uint32_t id = 0; id < n; id++)
		v->tokens[id].type = VOCAB_UNUSED;
}

void vocab_fini(struct vocab *v)
{
	free(v->tokens);
	free(v->texts);
	free(v->bytes);
	free(v->slots);
	memset(v, 0, sizeof *v);
}

static size_t append(char **blob, size_t *at, size_t *size, const char *s, size_t len)
{
	size_t where = *at;
	if (*at + len + 1 > *size) {
		*size = (*at + len) * 2 + 64;
		*blob = mem_grow(*blob, *size, 1);
	}
	if (len)
		memcpy(*blob + where, s, len);
	*at += len;
	return where;
}

int vocab_set(struct vocab *v, uint32_t id, const char *text, size_t len, enum vocab_type type)
{
	struct vocab_token *t = &v->tokens[id];
	CHECK(id < v->n && len <= VOCAB_TOKEN_MAX);
	if (t->given)
		return ERR_EXISTS;
	t->given = 1;
	t->type = (uint8_t)type;
	t->text = append(&v->texts, &v->texts_len, &v->texts_size, text, len);
	t->text_len = (uint32_t)len;
	return 0;
}

void vocab_set_bytes(struct vocab *v, uint32_t id, const char *bytes, size_t len)
{
	v->tokens[id].bytes = append(&v->bytes, &v->bytes_len, &v->bytes_size, bytes, len);
	v->tokens[id].bytes_len = (uint32_t)len;
}

static void make_bytes(struct vocab *v)
{
	char *tmp = mem_alloc(VOCAB_TOKEN_MAX);
	for (uint32_t id = 0; id < v->n; id++) {
		struct vocab_token *t = &v->tokens[id];
		size_t n = v->byte_level ? vocab_unmap(vocab_text(v, id), t->text_len, tmp) : SIZE_MAX;
		t->mapped = n != SIZE_MAX && n > 0;
		vocab_set_bytes(v, id, n == SIZE_MAX ? vocab_text(v, id) : tmp,
		                n == SIZE_MAX ? t->text_len : n);
	}
	free(tmp);
}

static int is_plain(const struct vocab *v, uint32_t id)
{
	return v->tokens[id].type == VOCAB_NORMAL || v->tokens[id].type == VOCAB_BYTE;
}

void vocab_index(struct vocab *v, int byte_level)
{
	CHECK(sodium_init() >= 0);
	randombytes_buf(&v->factor, sizeof v->factor);
	v->factor |= 1;
	v->byte_level = byte_level;
	v->mask = 63;
	while (v->mask + 1 < (size_t)v->n * 2)
		v->mask = v->mask * 2 + 1;
	v->slots = mem_array(v->mask + 1, sizeof *v->slots);
	for (size_t i = 0; i <= v->mask; i++)
		v->slots[i].id = UINT32_MAX;
	/* the buffer must exist even if every text is empty */
	append(&v->texts, &v->texts_len, &v->texts_size, "", 0);
	make_bytes(v);
	for (uint32_t id = 0; id < v->n; id++) {
		size_t len;
		uint32_t tag;
		const char *key = key_of(v, id, &len);
		if (!len || (byte_level && !v->tokens[id].mapped))
			continue;
		struct vocab_slot *slot = slot_of(v, key, len, &tag);
		if (slot->id != UINT32_MAX && is_plain(v, slot->id) && !is_plain(v, id))
			continue;
		*slot = (struct vocab_slot){id, tag};
		if (len > v->longest)
			v->longest = (uint32_t)len;
	}
}
