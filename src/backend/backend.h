/* SPDX-License-Identifier: Apache-2.0 */
/* backend/backend.h - the folder's own table: profiles of kernels that are not here. */
#ifndef PLAIT_BACKEND_BACKEND_H
#define PLAIT_BACKEND_BACKEND_H

#include <plait/backend.h>

/* Known kernels of other projects, as data. */
int32_t plait_profile_count(void);
const plait_backend *plait_profile_get(int32_t i);

/* The note of a row, or an empty one. */
const plait_row_note *plait_backend_note(const plait_backend *backend, int32_t row);

/* Microseconds of one more launch on the requirement's device. */
double plait_backend_launch_us(const plait_requirement *need);

#endif
