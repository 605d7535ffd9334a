/* record.c - see spec.h: how long and how good the next draft of a sequence may be, learned from
 * its last ones.
 *
 * The longer the match with earlier tokens, the likelier the next token is the same again. In
 * answers of SmolLM2 (prose, code, chats, copies) it was for 0.2, 0.44, 0.65, 0.72, 0.8, 0.93, 0.99
 * of the matches of 1, 2, 3, 4, 8, 12, 32 tokens: the others are MISS / match. This is corrected by
 * how often this sequence's recent drafts were wrong. So a text that does not repeat gets no drafts
 * after a few wrong ones, except for long matches; what was learned fades, so that drafts are tried
 * again from time to time. */
#include "spec.h"

#define FIRST_LENGTH 4u
#define MISS 1.1
#define KEEP 0.99 /* part of what was learned that stays after a step */
#define DOUBT 1.5 /* wrong tokens, counted and expected, at the beginning of a sequence */
#define CORRECT_MIN 0.2
#define CORRECT_MAX 4.0

void spec_record_init(struct spec_record *r, uint32_t max_length)
{
	*r = (struct spec_record){.length = FIRST_LENGTH < max_length ? FIRST_LENGTH : max_length};
}

void spec_record_step(struct spec_record *r)
{
	r->wrong *= KEEP;
	r->expected *= KEEP;
}

double spec_record_miss(const struct spec_record *r)
{
	double c = (r->wrong + DOUBT) / (r->expected + DOUBT);
	return MISS * (c < CORRECT_MIN ? CORRECT_MIN : c > CORRECT_MAX ? CORRECT_MAX : c);
}

void spec_record_draft(struct spec_record *r, uint32_t match, uint32_t drafted, uint32_t right,
                       uint32_t max_length)
{
	for (uint32_t i = 0; i < drafted && i <= right; i++)
		r->expected += MISS / (match + i);
	if (right < drafted) {
		r->wrong++;
		r->length = right + 1;
	} else if (drafted >= r->length) {
		r->length = r->length * 2 < max_length ? r->length * 2 : max_length;
	}
}
