/* test_storage_pin.c - memory of the memory tier that is pinned for devices: in slices that no copy
 * crosses, and its pages stay while it is pinned. */
#include "daemons/storage/units.h"
#include "tests/unit/stack_world.h"

#include <sys/mman.h>

/* --- a device for which memory is pinned --------------------------------- */

enum { PINS_MAX = 16 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct pin {
	unsigned char *at;
	size_t bytes;
} pins[PINS_MAX];
static unsigned n_pins;
static atomic_int calls, refused; /* refused: of how many calls from now on */
static void *refused_at;

static int pin(int device, void *at, size_t bytes, char *errbuf, size_t errlen)
{
	ck_assert_int_eq(device, 3);
	atomic_fetch_add(&calls, 1);
	if (atomic_load(&refused) > 0) {
		atomic_fetch_sub(&refused, 1);
		refused_at = at;
		snprintf(errbuf, errlen, "no more");
		return KERN_ENOMEM;
	}
	pthread_mutex_lock(&lock);
	ck_assert_uint_lt(n_pins, PINS_MAX);
	pins[n_pins++] = (struct pin){at, bytes};
	pthread_mutex_unlock(&lock);
	return 0;
}

/* Its pages are still there. */
static void unpin(void *at)
{
	unsigned i = 0;
	pthread_mutex_lock(&lock);
	while (i < n_pins && pins[i].at != at)
		i++;
	ck_assert_uint_lt(i, n_pins);
	((volatile unsigned char *)at)[pins[i].bytes - 1] = 1;
	pins[i] = pins[--n_pins];
	pthread_mutex_unlock(&lock);
}

static const struct kern_copies device = {.name = "test", .pin = pin, .unpin = unpin};
static const struct kern_copies host = {.name = "host"};

static size_t bytes_pinned(void)
{
	size_t n = 0;
	pthread_mutex_lock(&lock);
	for (unsigned i = 0; i < n_pins; i++)
		n += pins[i].bytes;
	pthread_mutex_unlock(&lock);
	return n;
}

/* Which pin has all of a unit; the byte before it or after it may be in none or in that one. */
static unsigned pin_of(const unsigned char *unit)
{
	for (unsigned i = 0; i < n_pins; i++)
		if (unit >= pins[i].at && unit + UNIT_BYTES <= pins[i].at + pins[i].bytes)
			return i;
	return PINS_MAX;
}

/* --- units --------------------------------------------------------------- */

static int units_order(const void *a, const void *b)
{
	const unsigned char *const *x = a, *const *y = b;
	return *x < *y ? -1 : *x > *y;
}

TEST_CASE("pin", .timeout_s = 60);

/* Two ranges, of two slices and of one. Units that touch each other are in one slice. */
TEST(test_slices)
{
	enum { N = SLICE_UNITS + 100, M = 50 };
	static unsigned char *at[N + M];
	struct units u;
	struct units_range r;
	struct err err = {0};
	units_init(&u);
	ck_assert_msg(units_reserve(N, &r, &err) == 0, "%s", err.text);
	units_add(&u, r);
	ck_assert_int_eq(units_reserve(M, &r, &err), 0);
	units_add(&u, r);
	ck_assert_uint_eq(u.total, N + M);
	ck_assert_uint_eq(u.n_free, N + M);
	ck_assert_uint_eq(units_pinned(&u), 0);
	u.pinned_by = &device;
	for (int i = 0; i < 3; i++)
		ck_assert_int_eq(units_pin(&u, 3, &err), 1);
	ck_assert_int_eq(units_pin(&u, 3, &err), 0);
	ck_assert_uint_eq(n_pins, 3);
	ck_assert_uint_eq(units_pinned(&u), bytes_pinned());
	for (unsigned i = 0; i < N + M; i++)
		at[i] = units_take(&u);
	ck_assert_uint_eq(u.n_free, 0);
	qsort(at, N + M, sizeof at[0], units_order);
	for (unsigned i = 0; i < N + M; i++) {
		ck_assert_uint_lt(pin_of(at[i]), PINS_MAX);
		ck_assert(i == 0 || at[i] >= at[i - 1] + UNIT_BYTES);
		if (i && at[i] == at[i - 1] + UNIT_BYTES)
			ck_assert_uint_eq(pin_of(at[i]), pin_of(at[i - 1]));
	}
	units_fini(&u);
	ck_assert_uint_eq(n_pins, 0);
}

/* The page of a unit that is given back would be the device's, and the next one the tier's. */
TEST(test_pages_stay)
{
	struct units u;
	struct units_range r;
	struct err err = {0};
	for (int pinned = 0; pinned < 2; pinned++) {
		units_init(&u);
		ck_assert_int_eq(units_reserve(4, &r, &err), 0);
		units_add(&u, r);
		memset(r.at, 7, 4 * UNIT_BYTES);
		u.pinned_by = pinned ? &device : NULL;
		u.target = 1;
		ck_assert_uint_eq(units_retire(&u, 9), 3);
		ck_assert_uint_eq(u.total, 1);
		for (unsigned i = 0; i < 3; i++)
			ck_assert_int_eq(u.spare[i][100], pinned ? 7 : 0);
		units_fini(&u);
	}
}

/* --- the tier ------------------------------------------------------------ */

/* If nothing could be pinned, what a smaller capacity frees goes back to the system. */
TEST(test_refused)
{
	struct tier *t;
	struct err err = {0};
	unsigned char there;
	ck_assert_int_eq(tier_memory_new(4 * UNIT_BYTES, &t, &err), 0);
	refused = 1;
	ck_assert_int_lt(t->ops->pin(t, &device, 3, &err), 0);
	ck_assert_str_eq(err.text, "no more");
	ck_assert_int_eq(t->ops->resize(t, UNIT_BYTES, &err), 0);
	ck_assert_int_eq(mincore(refused_at, 4096, &there), 0);
	ck_assert_int_eq(there & 1, 0);
	ck_assert_int_eq(t->ops->resize(t, 8 * UNIT_BYTES, &err), 0);
	ck_assert_int_eq(t->ops->pin(t, &device, 3, &err), 1);
	refused = 1;
	ck_assert_int_lt(t->ops->pin(t, &device, 3, &err), 0); /* of what was added */
	ck_assert_uint_eq(n_pins, 1);
	t->ops->destroy(t);
	ck_assert_uint_eq(n_pins, 0);
}

/* What a smaller capacity has returned to the system does not come back as pinned memory. */
TEST(test_smaller)
{
	struct tier *t;
	struct err err = {0};
	ck_assert_int_eq(tier_memory_new(4 * UNIT_BYTES, &t, &err), 0);
	ck_assert_int_eq(t->ops->resize(t, 2 * UNIT_BYTES, &err), 0);
	ck_assert_int_lt(t->ops->pin(t, &device, 3, &err), 0);
	ck_assert_ptr_nonnull(strstr(err.text, "restart"));
	ck_assert_int_eq(calls, 0);
	ck_assert_int_eq(t->ops->resize(t, 4 * UNIT_BYTES, &err), 0);
	ck_assert_int_eq(t->ops->pin(t, &device, 3, &err), 1);
	ck_assert_int_eq(t->ops->resize(t, 2 * UNIT_BYTES, &err), 0); /* kept: still pinned */
	ck_assert_int_eq(t->ops->resize(t, 6 * UNIT_BYTES, &err), 0);
	ck_assert_int_eq(t->ops->pin(t, &device, 3, &err), 1);
	ck_assert_int_eq(t->ops->pin(t, &device, 3, &err), 0);
	t->ops->destroy(t);
	ck_assert_uint_eq(n_pins, 0);
}

/* --- the stack ----------------------------------------------------------- */

/* For the first who can; what is added later as well. */
TEST(test_stack)
{
	static const struct kern_copies other = {.name = "other", .pin = pin, .unpin = unpin};
	start(SLICE_UNITS + 1, TIER_RECYCLE, 0, 0, TIER_RECYCLE, 0);
	tier_stack_pin(s, &host, 0);
	tier_stack_pin(s, &device, 3);
	tier_stack_pin(s, &other, 4);
	UNTIL(bytes_pinned() >= (SLICE_UNITS + 1) * UNIT_BYTES);
	size_t before = bytes_pinned();
	tier_stack_resize(s, TIER_MEMORY, (SLICE_UNITS + 9) * UNIT_BYTES);
	UNTIL(bytes_pinned() >= before + 8 * UNIT_BYTES);
	end();
	ck_assert_uint_eq(n_pins, 0);
}

/* A refusal is not repeated. */
TEST(test_stack_refused)
{
	start(4, TIER_RECYCLE, 0, 0, TIER_RECYCLE, 0);
	refused = 1;
	tier_stack_pin(s, &device, 3);
	UNTIL(atomic_load(&calls) == 1);
	for (unsigned units = 8; units < 11; units++) {
		tier_stack_resize(s, TIER_MEMORY, units * UNIT_BYTES);
		UNTIL(stat_of(0).tier.capacity_bytes == units * UNIT_BYTES);
	}
	end();
	ck_assert_int_eq(calls, 1);
}

/* Storage without a memory tier has nothing to pin. */
TEST(test_stack_without_memory)
{
	start(0, TIER_RECYCLE, 0, 0, TIER_RECYCLE, 0);
	tier_stack_pin(s, &device, 3);
	end();
	ck_assert_int_eq(calls, 0);
}
