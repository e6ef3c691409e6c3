/* SPDX-License-Identifier: Apache-2.0 */
/* output.c: tokens, text and results of requests, as rank 0 tells them. */
#include <stdlib.h>
#include <string.h>

#include "core/status.h"
#include "engine/session.h"

static plait_status fill_result(const plait_output *o, const plait_sequence *q, plait_result *out)
{
    out->num_prompt = q->num_prompt;
    out->num_new = (int32_t)(q->num_known - q->num_prompt);
    out->finish = q->stopped     ? PLAIT_FINISH_STOP
                  : q->cancelled ? PLAIT_FINISH_CANCELLED
                                 : PLAIT_FINISH_LENGTH;
    out->steps = q->steps;
    out->num_drafted = q->num_drafted;
    out->num_accepted = q->num_accepted;
    out->prefill_s = q->first_s - q->start_s;
    out->decode_s = q->last_s - q->first_s;
    out->ids = malloc((size_t)(out->num_new + 1) * sizeof *out->ids);
    if (!out->ids)
        return plait_fail(PLAIT_E_NOMEM, "no memory for results");
    memcpy(out->ids, q->ids + q->num_prompt, (size_t)out->num_new * sizeof *out->ids);
    return plait_tokenizer_decode(o->tokenizer, out->ids, (size_t)(out->num_new - q->stopped), true,
                                  &out->text, &out->text_bytes);
}

/* The text that the tokens since the last call complete, and the tail of one that is finished. */
static plait_status fill_text(plait_output *o, plait_sequence *q, size_t *bytes)
{
    *bytes = 0;
    for (int64_t i = q->num_prompt + q->num_streamed; i < q->num_known - q->stopped; i++) {
        size_t more = 0;
        PLAIT_TRY(plait_text_stream_push(&q->stream, o->tokenizer, q->ids[i], true,
                                         o->text + *bytes, o->capacity - *bytes, &more));
        *bytes += more;
    }
    if (q->finished)
        *bytes += plait_text_stream_finish(&q->stream, o->text + *bytes);
    return PLAIT_OK;
}

plait_status plait_output_tell(plait_output *o, plait_sequence *q, int32_t *give_up)
{
    plait_stream_event event = {.request = q->index, .text = o->text};
    *give_up = 0;
    if (q->finished) {
        PLAIT_TRY(fill_result(o, q, &o->results[q->index]));
        event.result = &o->results[q->index];
    }
    if (!o->fn)
        return PLAIT_OK;
    PLAIT_TRY(fill_text(o, q, &event.text_bytes));
    event.ids = q->ids + q->num_prompt + q->num_streamed;
    event.num_ids = (int32_t)(q->num_known - q->num_prompt - q->num_streamed);
    q->num_streamed += event.num_ids;
    *give_up = o->fn(o->user, &event) != 0;
    return PLAIT_OK;
}
