/* SPDX-License-Identifier: Apache-2.0 */
/*
 * plait/version.h - version numbers and the export macro.
 *
 * The major number changes with any break of the ABI. Structs that the caller fills begin with a
 * size field, so that new members can be added at their end without a break.
 */
#ifndef PLAIT_VERSION_H
#define PLAIT_VERSION_H

#define PLAIT_VERSION_MAJOR  0
#define PLAIT_VERSION_MINOR  1
#define PLAIT_VERSION_PATCH  0
#define PLAIT_VERSION_STRING "0.1.0"

/* Only symbols with PLAIT_API leave the shared library. */
#if defined(__GNUC__)
#define PLAIT_API __attribute__((visibility("default")))
#else
#define PLAIT_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* The version of the library that is running, "major.minor.patch". A static string. Thread-safe. */
PLAIT_API const char *plait_version(void);

#ifdef __cplusplus
}
#endif
#endif
