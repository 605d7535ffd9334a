/* schema_format.c - string formats as regular expressions. Everything they match is valid by its
 * RFC (3339, 5321 without quoted or literal parts, 1123, 4291 without zones, 4122), but they do not
 * match everything valid (years start at 1000; no leap seconds). */
#include "regex.h"
#include "schema.h"

#include <string.h>

#define LEAP "(?:[1-9][0-9](?:0[48]|[2468][048]|[13579][26])|(?:[2468][048]|[13579][26])00)"
#define DATE                                                                                      \
	"(?:[1-9][0-9]{3}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[" \
	"12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8]))|" LEAP "-02-29)"
#define TIME                                                                                      \
	"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\\.[0-9]{1,9})?(?:Z|[+-](?:[01][0-9]|2[0-3]):[" \
	"0-5][0-9])"
#define OCTET "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
#define IPV4 OCTET "\\." OCTET "\\." OCTET "\\." OCTET
#define LABEL "[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
#define H "[0-9A-Fa-f]{1,4}"
#define ATOM "[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+"

static const struct {
	const char *name, *regex;
} formats[] = {
	{"date", DATE},
	{"time", TIME},
	{"date-time", DATE "T" TIME},
	{"duration", "P(?:[0-9]+W|(?:[0-9]+Y(?:[0-9]+M(?:[0-9]+D)?)?|[0-9]+M(?:[0-9]+D)?|[0-9]+D)(?:T(?"
                 ":[0-9]+H(?:[0-9]+M(?:[0-9]+S)?)?|[0-9]+M(?:[0-9]+S)?|[0-9]+S))?|"
                 "T(?:[0-9]+H(?:[0-9]+M(?:[0-9]+S)?)?|[0-9]+M(?:[0-9]+S)?|[0-9]+S))"},
	{"email", ATOM "(?:\\." ATOM ")*@" LABEL "(?:\\." LABEL "){1,8}"},
	{"hostname", LABEL "(?:\\." LABEL "){0,3}"},
	{"ipv4", IPV4},
	{"ipv6", "(?:" H ":){7}" H "|(?:" H ":){1,7}:|(?:" H ":){1,6}:" H "|(?:" H ":){1,5}(?::" H
             "){1,2}|(?:" H ":){1,4}(?::" H "){1,3}|(?:" H ":){1,3}(?::" H "){1,4}|(?:" H
             ":){1,2}(?::" H "){1,5}|" H ":(?::" H "){1,6}|:(?::" H "){1,7}|::"},
	{"uuid", "[0-9A-Fa-f]{8}-(?:[0-9A-Fa-f]{4}-){3}[0-9A-Fa-f]{12}"},
};

int schema_format(struct nfa *f, const char *name, uint32_t next, uint32_t *ret_begin)
{
	for (size_t i = 0; i < sizeof formats / sizeof *formats; i++)
		if (strcmp(name, formats[i].name) == 0)
			return regex_build(f, formats[i].regex, strlen(formats[i].regex),
			                   &(struct regex_opts){0}, next, ret_begin, NULL);
	return ERR_UNSUPPORTED;
}

int schema_has_format(const char *name)
{
	for (size_t i = 0; i < sizeof formats / sizeof *formats; i++)
		if (strcmp(name, formats[i].name) == 0)
			return 1;
	return 0;
}
