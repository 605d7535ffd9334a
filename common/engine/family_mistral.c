/* family_mistral.c - Mistral: llama with one window for all layers. Its GGUF files use llama's
 * name. */
#include "engine/family.h"

const struct family family_mistral = {
	.name = {NULL, "mistral"},
	.rope = {KERN_ROPE_INTERLEAVED, KERN_ROPE_HALF},
	.window = FAMILY_WINDOW_ALL,
};
