/* fuzz_model.c - the description of a model: the metadata of a GGUF file, or config.json and the
 * other files of a folder. It is refused with a sentence, or all sizes are within the limits that
 * the engine relies on, and each tensor that is found has the bytes that its type and sizes need.
 * The folder's chat templates are read, too. */
#include "engine/model.h"
#include "tests/fuzz/fuzz.h"
#include "text/chat_set.h"

#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static volatile unsigned sum;

static void check_sizes(const struct model_conf *c)
{
	must(c->family && c->layers >= 1 && c->layers <= KV_LAYERS_MAX);
	must(c->hidden >= 1 && c->hidden <= MODEL_HIDDEN_MAX && c->heads >= 1);
	must(c->heads <= MODEL_HEADS_MAX && c->kv_heads >= 1 && c->heads % c->kv_heads == 0);
	must(c->head_dim >= 4 && c->head_dim <= MODEL_HEAD_DIM_MAX && c->head_dim % 4 == 0);
	must(c->context >= 1 && c->context <= MODEL_CONTEXT_MAX && c->vocab >= 1);
	must(c->rope_dims >= 2 && c->rope_dims <= c->head_dim && c->ropes <= MODEL_ROPES);
	must(c->norm_eps > 0 && c->attn_scale > 0 && c->n_eos <= MODEL_EOS_MAX);
	for (uint32_t i = 0; i < c->n_eos; i++)
		must(c->eos[i] < c->vocab);
	for (uint32_t t = 0; t < c->ropes; t++)
		for (uint32_t i = 0; i < c->rope_dims / 2; i++)
			must(isfinite(c->rope[t].inv_freq[i]));
	for (uint32_t l = 0; l < c->layers; l++)
		must(c->layer[l].rope < c->ropes && (!c->layer[l].experts || c->experts.count));
	must(c->experts.count <= KERN_EXPERTS_MAX && c->experts.active <= KERN_EXPERTS_USED_MAX);
}

static void check_tensor(int rc, struct model_tensor *t, const struct err *err)
{
	if (rc < 0) {
		must(err->text[0]);
		return;
	}
	for (size_t i = 0; i < t->bytes; i++)
		sum += ((const unsigned char *)t->data)[i];
	free(t->own);
}

static void check_tensors(const struct model_source *src, const struct model_conf *c)
{
	for (int role = 0; role < MODEL_ROLES; role++) {
		struct model_tensor t = {0};
		struct err err = {0};
		if (!model_has_role(c, (enum model_role)role, 0))
			continue;
		check_tensor(model_role_get(src, c, (enum model_role)role, 0, &t, &err), &t, &err);
	}
	for (int part = 0; c->layer[0].experts && part < MODEL_EXPERT_PARTS; part++) {
		struct model_tensor t = {0};
		struct err err = {0};
		check_tensor(model_expert_get(src, c, (enum model_expert_part)part, 0, c->experts.count - 1,
		                              &t, &err),
		             &t, &err);
	}
}

static void run(const char *path)
{
	static struct model_conf c;
	struct model_source src;
	struct err err = {0};
	if (model_open(path, &c, &src, &err) < 0) {
		must(err.text[0] && !strchr(err.text, '\n'));
		return;
	}
	fuzz_accepted();
	check_sizes(&c);
	check_tensors(&src, &c);
	model_close(&src);
}

static void run_gguf(const uint8_t *data, size_t size)
{
	char path[64];
	int fd = memfd_create("gguf", MFD_CLOEXEC);
	must(fd >= 0 && write(fd, data, size) == (ssize_t)size);
	snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
	run(path);
	close(fd);
}

FUZZ(model, 1 << 14)
{
	struct chat_set chats = {0};
	struct err err = {0};
	if (size >= 4 && memcmp(data, "GGUF", 4) == 0) {
		run_gguf(data, size);
		return 0;
	}
	const char *folder = fuzz_files(data, size);
	run(folder);
	must(chat_set_from_folder(folder, &chats, &err) == 0 || err.text[0]);
	chat_set_fini(&chats);
	return 0;
}
