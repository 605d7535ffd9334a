/* value.h - parses numbers, times, shares and distributions from the command line. Errors say which
 * option, what was given and what is allowed. */
#ifndef PDBENCH_VALUE_H
#define PDBENCH_VALUE_H

#include "options.h"

int value_uint(const char *name, const char *text, uint64_t min, uint64_t max, uint64_t *ret,
               struct err *err);
int value_double(const char *name, const char *text, double min, double max, double *ret,
                 struct err *err);
/* "250us", "500ms", "5s", "2m", "1h"; without a unit: seconds. */
int value_time(const char *name, const char *text, uint64_t min_us, uint64_t max_us,
               uint64_t *ret_us, struct err *err);
/* "0.05" or "5%" */
int value_share(const char *name, const char *text, double *ret, struct err *err);
/* "512", "100-900", "lognormal:MEAN,SIGMA" or "lognormal:MEAN,SIGMA,MAX" */
int value_dist(const char *name, const char *text, double min, double max, struct dist *ret,
               struct err *err);
/* Like value_dist, with times instead of numbers. */
int value_time_dist(const char *name, const char *text, struct dist *ret, struct err *err);
/* "20" (requests), or a time with its unit */
int value_span(const char *name, const char *text, struct span *ret, struct err *err);
/* "ttft=500ms,tpot=50ms" */
int value_slo(const char *name, const char *text, struct slo *ret, struct err *err);

#endif
