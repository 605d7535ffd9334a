/* version.h - of all programs of the suite. */
#ifndef UTIL_VERSION_H
#define UTIL_VERSION_H

#define PDSERVE_VERSION "0.1.0"

#endif
