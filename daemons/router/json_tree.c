/* json_tree.c - see json_tree.h. jansson (2.14) cannot be refused memory: where it ignores that, it
 * reads and writes past what it has. So what a text would take is known before it is loaded. The
 * sizes are those of its structures in glibc's blocks; test_router_keys holds them against jansson
 * itself. */
#include "json_tree.h"

#include <ctype.h>
#include <string.h>

enum {
	ARRAY_BYTES = 144,  /* and a table for 8 elements */
	OBJECT_BYTES = 256, /* and 8 buckets */
	ELEMENT_BYTES = 24, /* a table is twice as large as it was, which is there until it is copied */
	MEMBER_BYTES = 144, /* likewise; with the key's node */
	STRING_BYTES = 80,
	NUMBER_BYTES = 32,
	LONGEST_TIMES = 3   /* the text of a string while it is gathered */
};

struct counts {
	size_t arrays, objects, elements, members, strings, string_bytes, longest, numbers;
};

/* Behind the string that begins at p with a quote. */
static const char *string_end(const char *p, const char *end)
{
	for (p++; p < end && *p != '"'; p++)
		p += *p == '\\' && p + 1 < end;
	return p < end ? p + 1 : end;
}

static const char *take_string(const char *p, const char *end, struct counts *n)
{
	const char *after = string_end(p, end);
	size_t len = (size_t)(after - p);
	n->strings++;
	n->string_bytes += len;
	n->longest = len > n->longest ? len : n->longest;
	return after;
}

static const char *take_number(const char *p, const char *end, struct counts *n)
{
	const char *begin = p;
	while (p < end && (isalnum((unsigned char)*p) || *p == '.' || *p == '-' || *p == '+'))
		p++;
	n->numbers++;
	n->longest = (size_t)(p - begin) > n->longest ? (size_t)(p - begin) : n->longest;
	return p;
}

size_t json_tree_bytes(const char *text, size_t len)
{
	struct counts n = {0};
	for (const char *p = text, *end = text + len; p < end;) {
		if (*p == '"') {
			p = take_string(p, end, &n);
			continue;
		}
		if (isalnum((unsigned char)*p) || *p == '-') {   /* also true, false, null: they take nothing */
			p = take_number(p, end, &n);
			continue;
		}
		n.arrays += *p == '[';
		n.objects += *p == '{';
		n.elements += *p == ',';
		n.members += *p == ':';
		p++;
	}
	return n.arrays * ARRAY_BYTES + n.objects * OBJECT_BYTES + n.elements * ELEMENT_BYTES +
	       n.members * MEMBER_BYTES + n.strings * STRING_BYTES + n.string_bytes +
	       n.numbers * NUMBER_BYTES + n.longest * LONGEST_TIMES + 1024;
}
