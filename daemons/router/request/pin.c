/* pin.c - the headers X-Pdserve-Prefill: NAME and X-Pdserve-Decode: NAME[,NAME...], by which a test
 * or a benchmark chooses the workers of a request.
 *
 * Without allow_pinning such a header is refused, because a measurement on another worker than the
 * one asked for would be misleading. An unknown name is refused; a worker that is known but not
 * ready is a 503. */
#include "request.h"
#include "util/mem.h"

#include <stdio.h>
#include <string.h>

/* Takes one name from *list, without blanks, and its comma. 0 or -1. */
static int next_name(struct request *q, const char *header, const char **list, char *ret)
{
	const char *s = *list + strspn(*list, " \t");
	size_t n = strcspn(s, ","), len = n;
	while (len && (s[len - 1] == ' ' || s[len - 1] == '\t'))
		len--;
	*list = s + n + (s[n] == ',');
	if (len == 0 || len >= WORKER_NAME_MAX)
		return api_bad(&q->prep.error, header, "%s names a worker by 1 to %d bytes, got %zu",
		               header, WORKER_NAME_MAX - 1, len);
	snprintf(ret, WORKER_NAME_MAX, "%.*s", (int)len, s);
	if (!registry_find(&q->r->registry, ret))
		return api_bad(&q->prep.error, header, "%s: there is no worker %s", header, ret);
	return 0;
}

int pin_read(struct request *q, const struct http_head *head)
{
	static const char for_prefill[] = "X-Pdserve-Prefill", for_decode[] = "X-Pdserve-Decode";
	const char *prefill = head->pin_prefill, *decode = head->pin_decode;
	if (!*prefill && !*decode)
		return 0;
	if (!q->r->conf.allow_pinning)
		return api_bad(&q->prep.error, *prefill ? for_prefill : for_decode,
		               "%s is refused: pinning is off (allow_pinning)",
		               *prefill ? for_prefill : for_decode);
	q->pin = mem_zalloc(sizeof *q->pin);
	if (*prefill && next_name(q, for_prefill, &prefill, q->pin->prefill) < 0)
		return -1;
	if (*prefill)
		return api_bad(&q->prep.error, for_prefill, "%s names one worker, got \"%.80s\"",
		               for_prefill, head->pin_prefill);
	while (*decode) {
		if (q->pin->n_decode == PLACE_CANDIDATES_MAX)
			return api_bad(&q->prep.error, for_decode, "%s names more than %d workers", for_decode,
			               PLACE_CANDIDATES_MAX);
		if (next_name(q, for_decode, &decode, q->pin->decode[q->pin->n_decode++]) < 0)
			return -1;
	}
	return 0;
}
