/* SPDX-License-Identifier: Apache-2.0 */
/* tools/explain.h - the parts of plait explain: what was asked, the answer in three forms. */
#ifndef PLAIT_TOOLS_EXPLAIN_H
#define PLAIT_TOOLS_EXPLAIN_H

#include <stdint.h>

#include <plait/backend.h>

typedef struct plait_explanation {
    plait_requirement need;
    plait_selection selection;
    int64_t memory; /* bytes of a rank for one layer's cache; 0: not asked */
} plait_explanation;

void plait_explain_json(const plait_explanation *e);
void plait_explain_text(const plait_explanation *e);

/* The table of all backends, the same on every machine with one instruction set. */
void plait_explain_markdown(void);

/* Whether the configuration can be split across dcp ranks; then the tokens that fit. */
int plait_explain_fits(const plait_explanation *e, int32_t dcp, int64_t *tokens);

#endif
