/* no_marks.h - included before every unit test: an assertion that holds costs nothing. libcheck
 * writes a message for each, so that it can say behind which one a test crashed; tests that
 * compare millions of values spent most of their time on that. What fails is reported as ever,
 * and a crash has the sanitizer's trace. */
#ifndef NO_MARKS_H
#define NO_MARKS_H

#include <check.h>

#undef ck_assert_msg
#define ck_assert_msg(expr, ...) \
	((expr)                      \
	     ? (void)0               \
	     : _ck_assert_failed(__FILE__, __LINE__, "Assertion '" #expr "' failed", ##__VA_ARGS__))

#endif
