/* SPDX-License-Identifier: Apache-2.0 */
/* What checkpoint.c (finding tensors) and checkpoint_load.c (reading them) share. */
#ifndef PLAIT_ENGINE_CHECKPOINT_TABLE_H
#define PLAIT_ENGINE_CHECKPOINT_TABLE_H

#include <stdatomic.h>

#include "engine/checkpoint.h"
#include "engine/safetensors.h"

struct plait_checkpoint {
    plait_safetensors *files;
    char **names; /* of the files, within the folder */
    size_t num_files;
    plait_tensor *tensors; /* sorted by name; names and data belong to files */
    atomic_uchar *used;    /* one flag for each tensor; ranks load at the same time */
    size_t count;
    int64_t block_rows, block_cols;
};

/* NULL if there is none. */
const plait_tensor *plait_checkpoint_find(const plait_checkpoint *checkpoint, const char *name);

#endif
