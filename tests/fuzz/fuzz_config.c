/* SPDX-License-Identifier: Apache-2.0 */
/* config.json, and generation_config.json after a NUL byte: whatever the text holds, it is refused
   with a sentence or its numbers lie inside their bounds and fit each other. */
#include <math.h>

#include <plait/status.h>

#include "engine/config.h"
#include "fuzz.h"

static void check_config(const plait_config *c)
{
    static float freq[1 << 13];
    CHECK(c->vocab_size > 0 && c->hidden_size > 0 && c->num_layers > 0 && c->num_heads > 0);
    CHECK(c->kv_lora_rank > 0 && c->q_lora_rank >= 0 && c->qk_nope_dim > 0 && c->v_dim > 0);
    CHECK(c->num_groups > 0 && c->num_experts % c->num_groups == 0);
    CHECK(c->groups_per_token > 0 && c->groups_per_token <= c->num_groups);
    CHECK(c->experts_per_token > 0 &&
          c->experts_per_token <= c->num_experts / c->num_groups * c->groups_per_token);
    CHECK(c->rope.dim == c->qk_rope_dim && c->rope.dim % 2 == 0 && c->rope.dim <= 1 << 14);
    CHECK(c->num_eos >= 0 && c->num_eos <= PLAIT_CONFIG_MAX_EOS);
    for (int32_t i = 0; i < c->num_eos; i++)
        CHECK(c->eos_ids[i] >= 0 && c->eos_ids[i] < c->vocab_size);
    CHECK(c->bos_id < c->vocab_size);
    CHECK(isfinite(c->routed_scaling_factor) && c->rms_norm_eps > 0);
    plait_rope_inv_freq(&c->rope, freq);
    for (int32_t i = 0; i < c->rope.dim / 2; i++)
        CHECK(isfinite(freq[i]));
    CHECK(isfinite(plait_rope_cos_sin_factor(&c->rope)));
    CHECK(isfinite(plait_rope_softmax_scale(&c->rope, c->qk_nope_dim + c->qk_rope_dim)));
    for (int32_t l = 0; l < c->num_layers + c->num_mtp_layers; l++)
        plait_config_layer_is_moe(c, l);
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned seed)
{
    return fuzz_mutate_json(data, size, max_size, seed);
}

int fuzz_one(const uint8_t *data, size_t size)
{
    plait_config c;
    plait_status status;
    if (size && memchr(data, 0, size)) {
        fuzz_put_two("config.json", "generation_config.json", data, size);
        status = plait_config_load(fuzz_folder(), &c);
    } else {
        status = plait_config_parse((const char *)data, size, "config.json", &c);
    }
    if (status == PLAIT_OK) {
        check_config(&c);
    } else {
        CHECK(*plait_last_error());
        CHECK(c.vocab_size == 0 && c.num_layers == 0);
    }
    return 0;
}
