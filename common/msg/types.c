/* types.c - the table behind types.h. */
#include "msg/types.h"

#include <stddef.h>

static const struct msg_type_info table[] = {
#define X(name, number, body, flags) {MSG_##name, #name, &pds__##body##__descriptor, flags},
	MSG_TYPES(X)
#undef X
};

const struct msg_type_info *msg_type_find(uint32_t number)
{
	for (size_t i = 0; i < sizeof table / sizeof *table; i++)
		if ((uint32_t)table[i].type == number)
			return &table[i];
	return NULL;
}
