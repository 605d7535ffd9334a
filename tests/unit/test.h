/* test.h - included before every unit and daemon test: tests that register themselves, for the
 * one main of main.c, and assertions that cost nothing while they hold.
 *
 *	TEST_CASE("links", .timeout_s = 60, .setup = open_both, .teardown = close_both);
 *	TEST(a_message_arrives)
 *	{
 *	}
 *	TEST_LOOP(refused, 0, COUNT(refusals))      once for each _i from 0 to below COUNT(refusals)
 *	{
 *	}
 *
 * They run in the order of the file, each in a process of its own. The suite has the program's
 * name, and so has the case of what stands before the first TEST_CASE. */
#ifndef TESTS_TEST_H
#define TESTS_TEST_H

#include <check.h>

/* libcheck writes a message for each assertion, so that it can say behind which one a test
 * crashed; tests that compare millions of values spent most of their time on that. What fails is
 * reported as ever, and a crash has the sanitizer's trace. */
#undef ck_assert_msg
#define ck_assert_msg(expr, ...) \
	((expr)                      \
	     ? (void)0               \
	     : _ck_assert_failed(__FILE__, __LINE__, "Assertion '" #expr "' failed", ##__VA_ARGS__))

struct test_case {
	const char *name;
	double timeout_s;         /* of each test; 0: libcheck's default */
	void (*setup)(void);      /* before each test, in its process */
	void (*teardown)(void);   /* after it */
	void (*setup_once)(void); /* before the case's first test, in the program's process */
};

/* What a file registers: one of the three. */
struct test_entry {
	int order; /* in the file, headers included */
	void (*start)(int argc, char **argv);
	const struct test_case *opens;
	void (*add)(TCase *c);
	TCase *made; /* of `opens` */
	struct test_entry *next;
};
void test_register(struct test_entry *e);

#define TEST_ENTRY_(FN, ORDER, ...)                                       \
	__attribute__((constructor)) static void FN(void)                     \
	{                                                                     \
		static struct test_entry entry = {.order = (ORDER), __VA_ARGS__}; \
		test_register(&entry);                                            \
	}

#define TEST_ADD_(NAME, ...)                                                  \
	static void NAME##_fn(int _i);                                            \
	static const TTest NAME##_ttest = {#NAME, NAME##_fn, __FILE__, __LINE__}; \
	static void NAME##_add(TCase *c_)                                         \
	{                                                                         \
		__VA_ARGS__;                                                          \
	}                                                                         \
	TEST_ENTRY_(NAME##_register, __COUNTER__, .add = NAME##_add)              \
	static void NAME##_fn(int _i __attribute__((unused)))

#define TEST(NAME) TEST_ADD_(NAME, tcase_add_test(c_, &NAME##_ttest))
#define TEST_LOOP(NAME, FROM, TO) \
	TEST_ADD_(NAME, tcase_add_loop_test(c_, &NAME##_ttest, (int)(FROM), (int)(TO)))
/* The test must end by the signal, or with the status. */
#define TEST_SIGNAL(NAME, SIGNAL) \
	TEST_ADD_(NAME, tcase_add_test_raise_signal(c_, &NAME##_ttest, SIGNAL))
#define TEST_SIGNAL_LOOP(NAME, SIGNAL, FROM, TO) \
	TEST_ADD_(NAME,                              \
	          tcase_add_loop_test_raise_signal(c_, &NAME##_ttest, SIGNAL, (int)(FROM), (int)(TO)))
#define TEST_EXIT(NAME, STATUS) TEST_ADD_(NAME, tcase_add_exit_test(c_, &NAME##_ttest, STATUS))

/* TEST_CASE("name", .timeout_s = ...): the tests below belong to it; one of the same name as
 * before, without more, goes on with that. */
#define TEST_CASE(...) TEST_CASE_(__COUNTER__, __VA_ARGS__)
#define TEST_CASE_(N, ...) TEST_CASE_N_(N, __VA_ARGS__)
#define TEST_CASE_N_(N, ...)                                             \
	static const struct test_case test_case_##N = {.name = __VA_ARGS__}; \
	TEST_ENTRY_(test_case_##N##_register, N, .opens = &test_case_##N)

/* TEST_START(name) { ... }: before the suite runs, in the program's process, with argc and argv. A
 * program that was started as something else than a suite ends here, by exit. */
#define TEST_START(NAME)                                     \
	static void NAME(int argc, char **argv);                 \
	TEST_ENTRY_(NAME##_register, __COUNTER__, .start = NAME) \
	static void NAME(int argc __attribute__((unused)), char **argv __attribute__((unused)))

#endif
