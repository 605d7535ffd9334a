/* version.h - which build of the suite a program is. */
#ifndef UTIL_VERSION_H
#define UTIL_VERSION_H

#define PDSERVE_VERSION "0.1.0"

/* "0.1.0+0b8019f4", with "-dirty" if the sources were changed since that commit; "0.1.0" if the
 * commit is not known, as in tests (tools/make-build-version). One word. */
const char *build_version(void);
/* What `git describe` said: "0b8019f4", "v0.1.0-5-g0b8019f4-dirty"; "" if it is not known. */
const char *build_commit(void);

#endif
