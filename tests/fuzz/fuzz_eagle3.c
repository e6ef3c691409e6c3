/* SPDX-License-Identifier: Apache-2.0 */
/* config.json of an EAGLE-3 head for a target of six layers: refused with a sentence, or it fits.
 */
#include "engine/eagle3.h"

#include "fuzz.h"

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned seed)
{
    return fuzz_mutate_json(data, size, max_size, seed);
}

int fuzz_one(const uint8_t *data, size_t size)
{
    const plait_config target = {.num_layers = 6, .hidden_size = 256, .vocab_size = 2048};
    plait_eagle3_config c;
    if (plait_eagle3_config_parse((const char *)data, size, "config.json", &target, &c) !=
        PLAIT_OK) {
        CHECK(*plait_last_error());
        return 0;
    }
    CHECK(c.hidden_size == target.hidden_size && c.vocab_size == target.vocab_size);
    CHECK(c.draft_vocab_size > 0 && c.draft_vocab_size <= c.vocab_size);
    CHECK(c.intermediate_size > 0 && c.rms_norm_eps > 0);
    CHECK(c.num_kv_heads > 0 && c.num_heads > 0 && c.num_heads % c.num_kv_heads == 0);
    CHECK(c.head_dim > 0 && c.head_dim % 2 == 0 && c.rope.dim == c.head_dim);
    CHECK(c.aux[0] >= 0 && c.aux[0] < c.aux[1] && c.aux[1] < c.aux[2] && c.aux[2] < 6);
    float freq[1 << 13];
    plait_rope_inv_freq(&c.rope, freq);
    for (int32_t i = 0; i < c.rope.dim / 2; i++)
        CHECK(freq[i] - freq[i] == 0);
    return 0;
}
