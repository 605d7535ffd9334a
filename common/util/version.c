/* version.c - the version of this build. Only programs are linked with the commit's object
 * (tools/make-build-version): so a new commit compiles one file and links the programs, and no test
 * is built again. */
#include "util/version.h"

extern const char build_version_text[] __attribute__((weak));
extern const char build_commit_text[] __attribute__((weak));

const char *build_version(void)
{
	return build_version_text ? build_version_text : PDSERVE_VERSION;
}

const char *build_commit(void)
{
	return build_commit_text ? build_commit_text : "";
}
