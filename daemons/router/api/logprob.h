/* logprob.h - rows of log-probabilities as JSON. */
#ifndef ROUTER_LOGPROB_H
#define ROUTER_LOGPROB_H

#include "model.h"
#include "rows.h"
#include "util/buf.h"

/* What of a row is written. NAME to OFFSET are the four parallel arrays of completions. */
enum row_shape { ROW_NAME, ROW_VALUE, ROW_TOP, ROW_OFFSET, ROW_CHAT, ROW_PROMPT };

/* most: alternatives that are written, where the row has more. */
void logprob_row(const struct model *m, const struct row *r, enum row_shape shape, uint32_t most,
                 struct buf *out);
/* Rows from .. to - 1, with commas between them. */
void logprob_rows(const struct model *m, const struct rows *l, uint32_t from, uint32_t to,
                  enum row_shape shape, uint32_t most, struct buf *out);
void logprob_number(float v, struct buf *out); /* as "%.7g" */

#endif
