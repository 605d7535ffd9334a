/* value.c - see value.h. Nothing here allocates. Trailing characters are an error. */
#include "value.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define TIME_MAX_US (7 * 24 * 3600 * 1000000ull)
#define SIGMA_MAX 5.0

int value_uint(const char *name, const char *text, uint64_t min, uint64_t max, uint64_t *ret,
               struct err *err)
{
	char *end;
	errno = 0;
	unsigned long long v = strtoull(text, &end, 10);
	if (!isdigit((unsigned char)*text) || *end || errno || v < min || v > max)
		return err_set(err, ERR_INVALID,
		               "%s must be a whole number from %llu to %llu, got \"%.60s\"", name,
		               (unsigned long long)min, (unsigned long long)max, text);
	*ret = v;
	return 0;
}

/* Accepts digits with a point and an exponent: no sign, nan, inf or hexadecimal. *ret_end: the rest
 * of the text. */
static int read_double(const char *text, const char **ret_end, double *ret)
{
	char digits[64];
	size_t n = strspn(text, "0123456789."), exponent = text[n] == 'e' || text[n] == 'E';
	if (exponent) {
		exponent += text[n + 1] == '-' || text[n + 1] == '+';
		size_t k = strspn(text + n + exponent, "0123456789");
		exponent = k ? exponent + k : 0;
	}
	n += exponent;
	if (n == 0 || n >= sizeof digits)
		return -1;
	memcpy(digits, text, n);
	digits[n] = 0;
	char *end;
	*ret = strtod(digits, &end);
	*ret_end = text + n;
	return *end || end == digits || !isfinite(*ret) ? -1 : 0;
}

int value_double(const char *name, const char *text, double min, double max, double *ret,
                 struct err *err)
{
	const char *end;
	double v;
	if (read_double(text, &end, &v) < 0 || *end || v < min || v > max)
		return err_set(err, ERR_INVALID, "%s must be a number from %g to %g, got \"%.60s\"", name,
		               min, max, text);
	*ret = v;
	return 0;
}

/* A number with its unit, in microseconds. *ret_end: the rest of the text. */
static int read_time(const char *text, const char **ret_end, double *ret_us)
{
	static const struct {
		const char *unit;
		double us;
	} units[] = {{"us", 1}, {"ms", 1e3}, {"s", 1e6}, {"m", 60e6}, {"h", 3600e6}};
	const char *end;
	double v;
	if (read_double(text, &end, &v) < 0)
		return -1;
	size_t n = strspn(end, "abcdefghijklmnopqrstuvwxyz");
	*ret_us = v * 1e6;
	*ret_end = end + n;
	if (n == 0)
		return 0;
	for (size_t i = 0; i < sizeof units / sizeof *units; i++) {
		if (strlen(units[i].unit) == n && memcmp(units[i].unit, end, n) == 0) {
			*ret_us = v * units[i].us;
			return 0;
		}
	}
	return -1;
}

int value_time(const char *name, const char *text, uint64_t min_us, uint64_t max_us,
               uint64_t *ret_us, struct err *err)
{
	const char *end;
	double us;
	if (read_time(text, &end, &us) < 0 || *end || us < (double)min_us || us > (double)max_us)
		return err_set(err, ERR_INVALID,
		               "%s must be a time from %g s to %g s, such as 250us, 500ms, 5s, 2m or 1h, "
		               "got \"%.60s\"",
		               name, (double)min_us / 1e6, (double)max_us / 1e6, text);
	*ret_us = (uint64_t)llround(us);
	return 0;
}

int value_share(const char *name, const char *text, double *ret, struct err *err)
{
	const char *end;
	double v;
	int bad = read_double(text, &end, &v) < 0;
	if (!bad && *end == '%') {
		v /= 100;
		end++;
	}
	if (bad || *end || v > 1)
		return err_set(err, ERR_INVALID,
		               "%s must be a share from 0 to 1 or from 0%% to 100%%, got \"%.60s\"", name,
		               text);
	*ret = v;
	return 0;
}

typedef int read_fn(const char *text, const char **ret_end, double *ret);

static int dist_from(const char *text, read_fn *read, struct dist *d)
{
	const char *end;
	if (strncmp(text, "lognormal:", 10) == 0) {
		d->kind = DIST_LOGNORMAL;
		if (read(text + 10, &end, &d->a) < 0 || *end != ',' ||
		    read_double(end + 1, &end, &d->b) < 0 || d->b > SIGMA_MAX)
			return -1;
		return *end == 0                                                       ? 0
		       : *end == ',' && read(end + 1, &end, &d->max) == 0 && *end == 0 ? 0
		                                                                       : -1;
	}
	if (strncmp(text, "uniform:", 8) == 0)
		text += 8;
	if (read(text, &end, &d->a) < 0)
		return -1;
	if (*end == 0) {
		d->kind = DIST_FIXED;
		return 0;
	}
	d->kind = DIST_UNIFORM;
	return (*end == '-' || *end == ',') && read(end + 1, &end, &d->b) == 0 && *end == 0 &&
	               d->b >= d->a
	           ? 0
	           : -1;
}

int value_dist(const char *name, const char *text, double min, double max, struct dist *ret,
               struct err *err)
{
	struct dist d = {.max = max};
	int bad = dist_from(text, read_double, &d) < 0 || d.a < min || d.a > max || d.max > max ||
	          d.max < min || (d.kind == DIST_UNIFORM && d.b > max);
	if (bad)
		return err_set(err, ERR_INVALID,
		               "%s must be N, LOW-HIGH, or lognormal:MEAN,SIGMA[,MAX] with numbers from %g "
		               "to %g and sigma up to %g, got \"%.60s\"",
		               name, min, max, SIGMA_MAX, text);
	*ret = d;
	return 0;
}

int value_time_dist(const char *name, const char *text, struct dist *ret, struct err *err)
{
	struct dist d = {.max = (double)TIME_MAX_US};
	if (dist_from(text, read_time, &d) < 0 || d.a > d.max || d.max > (double)TIME_MAX_US)
		return err_set(err, ERR_INVALID,
		               "%s must be a time like 500ms, a range like 1s-5s, or "
		               "lognormal:MEAN,SIGMA[,MAX], got \"%.60s\"",
		               name, text);
	*ret = d;
	return 0;
}

int value_span(const char *name, const char *text, struct span *ret, struct err *err)
{
	*ret = (struct span){0};
	if (*text && strspn(text, "0123456789") == strlen(text))
		return value_uint(name, text, 0, 10000000, &ret->count, err);
	return value_time(name, text, 0, TIME_MAX_US, &ret->us, err);
}

int value_slo(const char *name, const char *text, struct slo *ret, struct err *err)
{
	struct slo s = {0};
	const struct {
		const char *key;
		uint64_t *us;
	} keys[] = {{"ttft", &s.ttft_us}, {"tpot", &s.tpot_us}, {"itl", &s.itl_us}, {"e2e", &s.e2e_us}};
	for (const char *p = text; *p;) {
		char part[48], label[80];
		size_t n = strcspn(p, ","), k = strcspn(p, "=,"), i = 0;
		while (i < 4 && (strlen(keys[i].key) != k || memcmp(keys[i].key, p, k) != 0))
			i++;
		if (i == 4 || p[k] != '=' || n - k - 1 >= sizeof part)
			return err_set(err, ERR_INVALID,
			               "%s must be a list of ttft=, tpot=, itl= or e2e= with a time, such as "
			               "ttft=500ms,tpot=50ms, got \"%.60s\"",
			               name, text);
		snprintf(part, sizeof part, "%.*s", (int)(n - k - 1), p + k + 1);
		snprintf(label, sizeof label, "%s: %s", name, keys[i].key);
		if (value_time(label, part, 1, TIME_MAX_US, keys[i].us, err) < 0)
			return ERR_INVALID;
		p += n + (p[n] == ',');
	}
	if (!s.ttft_us && !s.tpot_us && !s.itl_us && !s.e2e_us)
		return err_set(err, ERR_INVALID,
		               "%s contains no limit; it must be a list like ttft=500ms,tpot=50ms", name);
	*ret = s;
	return 0;
}
