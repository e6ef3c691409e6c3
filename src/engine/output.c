/* SPDX-License-Identifier: Apache-2.0 */
/* output.c: tokens, text and results of requests, as rank 0 tells them. */
#include <string.h>

#include "core/status.h"
#include "engine/session.h"

static void fill_result(const plait_sequence *q, plait_result *out)
{
    out->num_prompt = q->num_prompt;
    out->num_new = (int32_t)(q->num_known - q->num_prompt);
    out->finish = q->stopped || q->cut ? PLAIT_FINISH_STOP
                  : q->cancelled       ? PLAIT_FINISH_CANCELLED
                                       : PLAIT_FINISH_LENGTH;
    out->num_cached = q->num_reused > 0 ? q->num_reused : 0;
    out->steps = q->steps;
    out->num_drafted = q->num_drafted;
    out->num_accepted = q->num_accepted;
    out->prefill_s = q->first_s - q->start_s;
    out->decode_s = q->last_s - q->first_s;
    memcpy(out->ids, q->ids + q->num_prompt, (size_t)out->num_new * sizeof *out->ids);
}

plait_status plait_output_tell(plait_output *o, plait_sequence *q, const plait_text_buffer *text,
                               int32_t *give_up)
{
    plait_stream_event event = {.request = q->index, .text = text->text, .text_bytes = text->bytes};
    const int64_t told = q->finished ? q->num_known - q->num_prompt : q->reader.num_final;
    *give_up = 0;
    plait_result *result = &o->results[q->index];
    memcpy(result->text + result->text_bytes, text->text, text->bytes);
    result->text_bytes += text->bytes;
    result->text[result->text_bytes] = 0;
    if (q->finished) {
        fill_result(q, result);
        event.result = result;
    }
    event.ids = q->ids + q->num_prompt + q->num_streamed;
    event.num_ids = (int32_t)(told - q->num_streamed);
    q->num_streamed = told;
    if (o->fn)
        *give_up = o->fn(o->user, &event) != 0;
    return PLAIT_OK;
}
