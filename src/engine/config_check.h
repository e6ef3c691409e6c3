/* SPDX-License-Identifier: Apache-2.0 */
/* What config.c (reading fields) and config_check.c (which models are run) share. */
#ifndef PLAIT_ENGINE_CONFIG_CHECK_H
#define PLAIT_ENGINE_CONFIG_CHECK_H

#include "engine/config.h"
#include "engine/json.h"

/* Sentences with what was found and what was wanted: E_FORMAT, and E_UNSUPPORTED for a valid value
   that this engine does not run. */
plait_status plait_config_wrong(const char *name, const cJSON *item, const char *wanted);
plait_status plait_config_unsupported(const char *name, const cJSON *item, const char *supported);

/* Which family the file says it is. Called before any number is read, so that the user reads
   "this is a Llama", not "no kv_lora_rank". */
plait_status plait_config_identify(const cJSON *root, const char *name, bool *v2);

/* Refuses a setting that has another value than those supported; other fields pass. */
plait_status plait_config_check_setting(const plait_config *config, const cJSON *item,
                                        const char *name);

/* What several fields say together; settles the number of groups. */
plait_status plait_config_check_together(plait_config *config, const cJSON *root, const char *name);

#endif
