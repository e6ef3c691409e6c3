# SPDX-License-Identifier: Apache-2.0
"""Makes eagle3.bin and eagle3_residual.bin: draft logits of models/tiny/eagle3, in float32.

The target's states come from transformers. The layer below is written for this file alone, from the
EAGLE-3 paper and its authors' modelling code, and vLLM's handling of shift, residual and d2t. It is
slow and direct on purpose. README.md states the format.
"""
import json
import math

import torch
from safetensors.torch import load_file

from make_logits import HERE, MODEL, PROMPTS, dequantised, load_model, token_ids
from records import write_cases
from transformers import AutoTokenizer

STEPS = 3


def rms_norm(x, weight, eps):
    return x / torch.sqrt((x * x).mean(-1, keepdim=True) + eps) * weight


class Head:
    """One sequence; keys and values are lists, one entry per draft KV index."""

    def __init__(self, config, weights, embedding):
        self.config, self.weights, self.embedding = config, weights, embedding
        self.keys, self.values = [], []

    def w(self, name):
        return self.weights[name + ".weight"]

    def norm(self, x, name):
        return rms_norm(x, self.w(name), self.config["rms_norm_eps"])

    def rotate(self, x, position):
        """Llama's rotary embedding of [heads, d]: the first half of d pairs with the second."""
        half = x.shape[-1] // 2
        out = x.clone()
        for i in range(half):
            angle = position * self.config["rope_theta"] ** (-2.0 * i / x.shape[-1])
            cos, sin = math.cos(angle), math.sin(angle)
            out[:, i] = x[:, i] * cos - x[:, i + half] * sin
            out[:, i + half] = x[:, i + half] * cos + x[:, i] * sin
        return out

    def attention(self, x, position):
        heads, kv_heads = self.config["num_attention_heads"], self.config["num_key_value_heads"]
        q = self.rotate((self.w("midlayer.self_attn.q_proj") @ x).view(heads, -1), position)
        k = (self.w("midlayer.self_attn.k_proj") @ x).view(kv_heads, -1)
        self.keys.append(self.rotate(k, position))
        self.values.append((self.w("midlayer.self_attn.v_proj") @ x).view(kv_heads, -1))
        keys, values, out = torch.stack(self.keys), torch.stack(self.values), []
        for head in range(heads):
            kv = head // (heads // kv_heads)
            score = keys[:, kv] @ q[head] / math.sqrt(q.shape[-1])
            out.append(score.softmax(-1) @ values[:, kv])
        return self.w("midlayer.self_attn.o_proj") @ torch.cat(out)

    def row(self, token, x, index):
        """The state before the final norm of row `index`: token index+1 beside x."""
        both = torch.cat((self.norm(self.embedding[token], "midlayer.input_layernorm"),
                          self.norm(x, "midlayer.hidden_norm")))
        if self.config["norm_before_residual"]:
            x = self.norm(x, "midlayer.hidden_norm")
        x = x + self.attention(both, index)
        y = self.norm(x, "midlayer.post_attention_layernorm")
        gate = torch.nn.functional.silu(self.w("midlayer.mlp.gate_proj") @ y)
        return x + self.w("midlayer.mlp.down_proj") @ (gate * (self.w("midlayer.mlp.up_proj") @ y))

    def logits(self, x):
        return self.w("lm_head") @ self.norm(x, "norm")


def draft_case(config, weights, target, model, ids):
    """Teacher-forced rows of the prompt, then recurrent drafts from the target's greedy token."""
    with torch.no_grad():
        out = model.model(torch.tensor([ids]), output_hidden_states=True)
    # hidden_states[j] of transformers is what enters layer j, before any norm.
    aux = torch.cat([out.hidden_states[j][0] for j in config["eagle_aux_hidden_state_layer_ids"]],
                    -1)
    last = target["lm_head.weight"] @ out.last_hidden_state[0, -1]
    head, rows = Head(config, weights, target["model.embed_tokens.weight"]), []
    known = ids + [last.argmax().item()]
    for index, states in enumerate(aux):
        fed = head.row(known[index + 1], head.w("fc") @ states, index)
        if index in (0, 1, len(ids) // 2) or index >= len(ids) - 3:
            rows.append((1, index, head.logits(fed)))
    for step in range(2, STEPS + 1):
        drafted = rows[-1][2].argmax().item()
        token = drafted + weights["d2t"][drafted].item()
        fed = head.row(token, fed, len(ids) + step - 2)
        rows.append((step, len(ids) + step - 2, head.logits(fed)))
    return {"tokens": ids, "margins": torch.full((len(ids),), math.inf), "rows": rows}


def main():
    folder = MODEL / "eagle3"
    config = json.loads((folder / "config.json").read_text())
    weights = {name: t.float() if t.is_floating_point() else t
               for name, t in load_file(folder / "model.safetensors").items()}
    target = dequantised(MODEL)
    model = load_model(json.loads((MODEL / "config.json").read_text()), target)
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    prompts = [token_ids(tokenizer, text, count) for text, count in PROMPTS[:5]]
    for name, residual, number in (("eagle3.bin", False, 5), ("eagle3_residual.bin", True, 2)):
        config["norm_before_residual"] = residual
        cases = [draft_case(config, weights, target, model, ids) for ids in prompts[:number]]
        print(name, [[row[:2] for row in case["rows"]] for case in cases])
        write_cases(HERE / name, config["draft_vocab_size"], cases)


if __name__ == "__main__":
    main()
