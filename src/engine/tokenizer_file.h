/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of tokenizer.json around the model: what splits text and what is put around it. */
#ifndef PLAIT_ENGINE_TOKENIZER_FILE_H
#define PLAIT_ENGINE_TOKENIZER_FILE_H

#include "engine/json.h"
#include "engine/tokenizer_parts.h"

/* Reads normalizer, pre_tokenizer, decoder and post_processor of a tokenizer whose tokens are
   read; DIR/tokenizer_config.json too where the post-processor adds nothing. */
plait_status plait_tokenizer_read_parts(plait_tokenizer *tokenizer, const cJSON *root,
                                        const char *dir);

#endif
