/* router_says.h - a router of router_world.h whose workers write a given text, in a model's format
 * of calls and thoughts. */
#ifndef TESTS_ROUTER_SAYS_H
#define TESTS_ROUTER_SAYS_H

#include "router_client.h"
#include "real_model.h"

#define SAYS_TOKENS_MAX 20000

static uint32_t script[SAYS_TOKENS_MAX];

/* says: ends with <|im_end|>, an end of sequence */
static inline struct world *says_world(const char *tool_parser, const char *reasoning_parser,
                                       const char *says, size_t out_bytes_max)
{
	struct world *w = world_new(model, out_bytes_max);
	struct token_list l = {0};
	struct err err = {0};
	ck_assert_msg(model_set_parsers(&w->model, tool_parser, reasoning_parser, &err) == 0, "%s",
	              err.text);
	ck_assert_int_eq(tokenizer_encode(model->tokenizer, says, strlen(says), TOKENIZE_PARSE_SPECIAL,
	                                  SAYS_TOKENS_MAX, &l),
	                 0);
	memcpy(script, l.ids, l.n * sizeof *script);
	w->script = script;
	w->n_script = l.n;
	w->stop_at = (uint32_t)l.n - 1;
	token_list_fini(&l);
	return w;
}

#endif
