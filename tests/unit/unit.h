/* SPDX-License-Identifier: Apache-2.0 */
/* What every unit test includes: cmocka and the standard headers that it needs before it. */
#ifndef PLAIT_TESTS_UNIT_H
#define PLAIT_TESTS_UNIT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#endif
