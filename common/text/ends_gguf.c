/* ends_gguf.c - files name one eos, and seldom more; converters leave out the token that ends a
 * turn where the model has another eos (Phi-3, Gemma 3). llama.cpp goes by these texts
 * and by some of models that do not run here (llama-vocab.cpp, special_eog_ids). */
#include "ends_gguf.h"

#include <string.h>

enum { CONTROL = 3, USER_DEFINED = 4 }; /* of tokenizer.ggml.token_type */

/* "</s>" only as a control token: Gemma has it as the end of struck text. */
static const char *const texts[] = {"<|eot_id|>",      "<|im_end|>", "<|end|>",
                                    "<|return|>",      "<|call|>",   "<end_of_turn>",
                                    "<|endoftext|>",   "<|eom_id|>", "<EOT>",
                                    "[EOT]",           "[EOS]",      "</s>",
                                    "<|end_of_text|>", "_<EOT>",     "<end_of_utterance>"};
enum { TEXTS = sizeof texts / sizeof *texts };

static int is_end(struct gguf_str s)
{
	int i = 0;
	while (i < TEXTS && !gguf_str_is(s, texts[i]))
		i++;
	return i < TEXTS;
}

static int is_text(const struct gguf *g, uint32_t id, const char *text)
{
	struct gguf_str s;
	return gguf_array_str(g, "tokenizer.ggml.tokens", id, &s) == 0 && gguf_str_is(s, text);
}

/* In the harmony format <|end|> ends a message, others follow it in the same answer. */
static unsigned drop_messages(const struct gguf *g, uint32_t *ids, unsigned n)
{
	int found = 0;
	for (unsigned i = 0; i < n; i++)
		found |= is_text(g, ids[i], "<|return|>") ? 1 : is_text(g, ids[i], "<|call|>") ? 2 : 0;
	unsigned kept = 0;
	for (unsigned i = 0; i < n; i++)
		if (found != 3 || !is_text(g, ids[i], "<|end|>"))
			ids[kept++] = ids[i];
	return kept;
}

unsigned ends_from_gguf(const struct gguf *g, uint32_t *ids, unsigned max)
{
	enum gguf_type type, text_type;
	size_t count, texts_count;
	const void *types, *none;
	unsigned n = 0;
	if (gguf_get_array(g, "tokenizer.ggml.token_type", &type, &count, &types) < 0 ||
	    (type != GGUF_I32 && type != GGUF_U32) ||
	    gguf_get_array(g, "tokenizer.ggml.tokens", &text_type, &texts_count, &none) < 0 ||
	    text_type != GGUF_STRING || texts_count != count)
		return 0;
	for (size_t i = 0; i < count && n < max; i++) {
		struct gguf_str s;
		uint32_t of;
		memcpy(&of, (const char *)types + i * 4, 4);
		if ((of == CONTROL || of == USER_DEFINED) &&
		    gguf_array_str(g, "tokenizer.ggml.tokens", i, &s) == 0 && is_end(s) &&
		    (of == CONTROL || !gguf_str_is(s, "</s>")))
			ids[n++] = (uint32_t)i;
	}
	return drop_messages(g, ids, n);
}
