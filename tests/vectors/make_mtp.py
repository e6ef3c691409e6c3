# SPDX-License-Identifier: Apache-2.0
"""Makes mtp.bin: draft logits of the MTP layer of models/tiny, in float32.

The target's states come from transformers. The MTP layer below is written for this file alone,
from the DeepSeek-V3 report (section 2.2), DeepSeek's published modelling code for the decoder
layer, and vLLM's handling of shift, position 0 and recurrence. It is slow and direct on purpose.
README.md states the format.
"""
import json
import math

import torch

from make_logits import (HERE, MODEL, PROMPTS, dequantised, load_model, router_margin, token_ids)
from records import write_cases
from transformers import AutoTokenizer

STEPS = 3


def rms_norm(x, weight, eps):
    return x / torch.sqrt((x * x).mean(-1, keepdim=True) + eps) * weight


def mscale(factor, coefficient):
    return 1.0 if factor <= 1 else 0.1 * coefficient * math.log(factor) + 1.0


def yarn_frequency(config, pair):
    """Frequency of one rotary pair, interpolated, kept or blended as YaRN says."""
    scaling, dim = config["rope_scaling"], config["qk_rope_head_dim"]
    base, length = config["rope_theta"], scaling["original_max_position_embeddings"]

    def pair_of(turns):
        return dim * math.log(length / (turns * 2 * math.pi)) / (2 * math.log(base))

    low = max(math.floor(pair_of(scaling["beta_fast"])), 0)
    high = min(math.ceil(pair_of(scaling["beta_slow"])), dim - 1)
    blend = min(max((pair - low) / max(high - low, 0.001), 0.0), 1.0)
    plain = base ** (-2.0 * pair / dim)
    return plain / scaling["factor"] * blend + plain * (1.0 - blend)


def rotate(x, position, config):
    """Interleaved pairs of one row's last dimension, turned by the row's position."""
    scaling = config["rope_scaling"]
    ratio = mscale(scaling["factor"], scaling["mscale"]) / mscale(
        scaling["factor"], scaling["mscale_all_dim"])
    out = x.clone()
    for pair in range(x.shape[-1] // 2):
        angle = torch.tensor(position * yarn_frequency(config, pair), dtype=torch.float64)
        cos, sin = (angle.cos() * ratio).float(), (angle.sin() * ratio).float()
        a, b = x[..., 2 * pair], x[..., 2 * pair + 1]
        out[..., 2 * pair], out[..., 2 * pair + 1] = a * cos - b * sin, a * sin + b * cos
    return out


class MtpLayer:
    """One sequence; the cache is a list of latent rows, one per draft KV index."""

    def __init__(self, config, weights):
        self.config, self.weights = config, weights
        self.prefix = f"model.layers.{config['num_hidden_layers']}."
        self.latents, self.margins = [], []

    def w(self, name):
        return self.weights[self.prefix + name + ".weight"]

    def norm(self, x, name):
        return rms_norm(x, self.w(name), self.config["rms_norm_eps"])

    def attention(self, x, position):
        c = self.config
        heads, nope, rope = c["num_attention_heads"], c["qk_nope_head_dim"], c["qk_rope_head_dim"]
        rank, v_dim = c["kv_lora_rank"], c["v_head_dim"]
        q = (self.w("self_attn.q_proj") @ x).view(heads, nope + rope)
        q = torch.cat((q[:, :nope], rotate(q[:, nope:], position, c)), -1)
        kv = self.w("self_attn.kv_a_proj_with_mqa") @ x
        latent = self.norm(kv[:rank], "self_attn.kv_a_layernorm")
        self.latents.append(torch.cat((latent, rotate(kv[rank:], position, c))))
        cache = torch.stack(self.latents)
        up = (cache[:, :rank] @ self.w("self_attn.kv_b_proj").T).view(-1, heads, nope + v_dim)
        k_rope = cache[:, None, rank:].expand(-1, heads, -1)
        k = torch.cat((up[..., :nope], k_rope), -1)
        m = mscale(c["rope_scaling"]["factor"], c["rope_scaling"]["mscale_all_dim"])
        score = torch.einsum("hd,shd->hs", q, k) * ((nope + rope) ** -0.5 * m * m)
        out = torch.einsum("hs,shv->hv", score.softmax(-1), up[..., nope:])
        return self.w("self_attn.o_proj") @ out.flatten()

    def mlp(self, x, name):
        gate = torch.nn.functional.silu(self.w(name + ".gate_proj") @ x)
        return self.w(name + ".down_proj") @ (gate * (self.w(name + ".up_proj") @ x))

    def experts(self, x):
        c = self.config
        bias = self.weights[self.prefix + "mlp.gate.e_score_correction_bias"]
        scores = torch.sigmoid(self.w("mlp.gate") @ x)
        self.margins.append(router_margin(x[None], self.w("mlp.gate"), bias, c)[0])
        choice, per_group = scores + bias, c["n_routed_experts"] // c["n_group"]
        groups = choice.view(c["n_group"], per_group).topk(2, -1).values.sum(-1)
        best = groups.topk(c["topk_group"]).indices.tolist()
        open_to = [e for e in range(len(choice)) if e // per_group in best]
        picked = sorted(open_to, key=lambda e: -choice[e].item())[: c["num_experts_per_tok"]]
        total = sum(scores[e] for e in picked) + 1e-20
        out = self.mlp(x, "mlp.shared_experts")
        for e in picked:
            weight = scores[e] / total * c["routed_scaling_factor"]
            out = out + weight * self.mlp(x, f"mlp.experts.{e}")
        return out

    def row(self, token, state, index):
        """The normed state of row `index`: the embedding of token index+1 beside state index."""
        embedding = self.weights["model.embed_tokens.weight"][token]
        if index == 0:
            embedding = torch.zeros_like(embedding)
        joined = torch.cat((self.norm(embedding, "enorm"), self.norm(state, "hnorm")))
        x = self.w("eh_proj") @ joined
        x = x + self.attention(self.norm(x, "input_layernorm"), index)
        x = x + self.experts(self.norm(x, "post_attention_layernorm"))
        return self.norm(x, "shared_head.norm")


def draft_case(config, weights, model, ids):
    """Teacher-forced rows of the prompt, then recurrent drafts from the target's greedy token."""
    with torch.no_grad():
        states = model.model(torch.tensor([ids])).last_hidden_state[0]
    head, layer, rows = weights["lm_head.weight"], MtpLayer(config, weights), []
    known = ids + [(head @ states[-1]).argmax().item()]
    for index, state in enumerate(states):
        fed = layer.row(known[index + 1], state, index)
        if index in (0, 1, len(ids) // 2) or index >= len(ids) - 3:
            rows.append((1, index, head @ fed))
    for step in range(2, STEPS + 1):
        drafted = rows[-1][2].argmax().item()
        fed = layer.row(drafted, fed, len(ids) + step - 2)
        rows.append((step, len(ids) + step - 2, head @ fed))
    margins = torch.stack(layer.margins[: len(ids)])
    return {"tokens": ids, "margins": margins, "rows": rows}


def main():
    config = json.loads((MODEL / "config.json").read_text())
    weights = dequantised(MODEL)
    model, tokenizer = load_model(config, weights), AutoTokenizer.from_pretrained(MODEL)
    cases = []
    for text, count in PROMPTS[:5]:
        cases.append(draft_case(config, weights, model, token_ids(tokenizer, text, count)))
        print(len(cases[-1]["tokens"]), "tokens", [row[:2] for row in cases[-1]["rows"]])
    write_cases(HERE / "mtp.bin", config["vocab_size"], cases)


if __name__ == "__main__":
    main()
