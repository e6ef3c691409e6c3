/* SPDX-License-Identifier: Apache-2.0 */
/* backend/backend.h - the folder's own table: profiles of kernels that are not here. */
#ifndef PLAIT_BACKEND_BACKEND_H
#define PLAIT_BACKEND_BACKEND_H

#include <plait/backend.h>

#include "backend/bridge.h"

/* Known kernels of other projects, as data. */
int32_t plait_profile_count(void);
const plait_backend *plait_profile_get(int32_t i);

/* The note of a row, or an empty one. */
const plait_row_note *plait_backend_note(const plait_backend *backend, int32_t row);

/* The rows of a batch as the requirement tells them. */
struct plait_bridge_rows plait_backend_rows(const plait_requirement *need, int32_t heads_max);

/* Microseconds of one more launch on the requirement's device. */
double plait_backend_launch_us(const plait_requirement *need);

#endif
