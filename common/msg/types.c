/* types.c - the table behind types.h. */
#include "msg/types.h"

#include <stddef.h>
#include <string.h>

static const struct msg_type_info types[] = {
#define X(name, number, body, flags, from) \
	{MSG_##name, #name, &pds__##body##__descriptor, flags, from},
	MSG_TYPES(X)
#undef X
};

const struct msg_type_info *msg_type_find(uint32_t number)
{
	for (size_t i = 0; i < sizeof types / sizeof *types; i++)
		if ((uint32_t)types[i].type == number)
			return &types[i];
	return NULL;
}

int msg_type_is_from(const struct msg_type_info *info, const char *program)
{
	static const struct {
		const char *program;
		unsigned from;
	} table[] = {{"pdrouterd", FROM_R},   {"pdprefilld", FROM_W}, {"pddecoded", FROM_W},
	             {"pdmessagerd", FROM_M}, {"pdstoraged", FROM_S}, {"pdrank", FROM_K}};
	for (size_t i = 0; i < sizeof table / sizeof *table; i++)
		if (strcmp(table[i].program, program) == 0)
			return (info->from & table[i].from) != 0;
	return info->from == FROM_ANY;
}
