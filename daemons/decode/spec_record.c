/* spec_record.c - see spec.h: what a sequence's next draft may be like, by what its last ones were.
 *
 * The more of the last tokens stood before, the likelier the next one is the same again: in answers
 * of SmolLM2 (prose, code, chats, copies) it was for 0.2, 0.44, 0.65, 0.72, 0.8, 0.93, 0.99 of the
 * matches of 1, 2, 3, 4, 8, 12, 32 tokens, hence MISS / match for the others. How much more often
 * or more rarely it is so in this sequence of late corrects that. So a text that does not repeat
 * is left alone after a few wrong drafts, but for long matches; as what was learned fades, it is
 * tried again from time to time. */
#include "spec.h"

#define FIRST_LENGTH 4u
#define MISS 1.1
#define KEEP 0.99 /* of what was learned, from step to step */
#define DOUBT 1.5 /* wrong tokens, seen and expected, that a sequence begins with */
#define CORRECT_MIN 0.2
#define CORRECT_MAX 4.0

void spec_record_init(struct spec_record *r, uint32_t most)
{
	*r = (struct spec_record){.length = FIRST_LENGTH < most ? FIRST_LENGTH : most};
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
                       uint32_t most)
{
	for (uint32_t i = 0; i < drafted && i <= right; i++)
		r->expected += MISS / (match + i);
	if (right < drafted) {
		r->wrong++;
		r->length = right + 1;
	} else if (drafted >= r->length) {
		r->length = r->length * 2 < most ? r->length * 2 : most;
	}
}
