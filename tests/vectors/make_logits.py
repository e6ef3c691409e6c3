# SPDX-License-Identifier: Apache-2.0
"""Makes logits.bin: logits of transformers' DeepseekV3ForCausalLM on models/tiny, in float32.

The weights are dequantised here, so what is compared is the model, not a quantised kernel. The
router margins come from hooks on the transformers modules. README.md states the format.
Needs torch, transformers and safetensors; run from anywhere.
"""
import json
import tempfile
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer, DeepseekV3ForCausalLM

from records import write_cases

HERE = Path(__file__).resolve().parent
MODEL = HERE.parents[1] / "models/tiny"
BLOCK = 128
# (prompt text, tokens kept); a text that is too short is repeated. 700 passes the original context.
PROMPTS = (
    ("The read() function", 0),
    ("SELECT name, count(*) FROM users WHERE age > 30 GROUP BY name ORDER BY 2 DESC;", 0),
    ("def main(argv):\n    for path in argv[1:]:\n        with open(path) as f:\n"
     "            print(len(f.read()))\n", 0),
    ("Café, naïve, Straße, 日本語のテキスト, emoji 🙂 and numbers 1234567890.", 0),
    ("A transaction is a unit of work that either happens completely or not at all. ", 128),
    ("PostgreSQL uses a multiversion model, so that each statement sees a snapshot of data. "
     "The Python interpreter compiles source text to bytecode, which a virtual machine runs. ",
     200),
    ("Indexes speed up queries, but each one must be maintained when its table changes. "
     "A generator yields values one at a time and keeps its local state between calls. "
     "Locks are held until the end of the transaction that took them. ", 700),
)
MIDDLE, LAST = 12, 4


def dequantised(folder):
    stored = {}
    for file in sorted(folder.glob("model-*.safetensors")):
        stored.update(load_file(file))
    weights = {}
    for name, tensor in stored.items():
        if name.endswith("_scale_inv"):
            continue
        weight, scale = tensor.float(), stored.get(name + "_scale_inv")
        if scale is not None:
            scale = scale.repeat_interleave(BLOCK, 0).repeat_interleave(BLOCK, 1)
            weight = weight * scale[: weight.shape[0], : weight.shape[1]]
        weights[name] = weight.contiguous()
    return weights


def load_model(config, weights):
    """transformers reads a plain float32 checkpoint without the MTP layer."""
    last = f"model.layers.{config['num_hidden_layers']}."
    plain = {k: v for k, v in config.items() if k != "quantization_config"}
    plain.update(num_nextn_predict_layers=0, torch_dtype="float32")
    with tempfile.TemporaryDirectory() as folder:
        kept = {k: v for k, v in weights.items() if not k.startswith(last)}
        save_file(kept, Path(folder) / "model.safetensors", metadata={"format": "pt"})
        (Path(folder) / "config.json").write_text(json.dumps(plain))
        return DeepseekV3ForCausalLM.from_pretrained(
            folder, dtype=torch.float32, attn_implementation="eager").eval()


def gap(scores, k):
    best = scores.topk(k + 1, -1).values
    return best[..., k - 1] - best[..., k]


def router_margin(hidden, weight, bias, config):
    """Smaller of two gaps: last chosen group to first other, and the same for experts inside.

    Experts outside the chosen groups cannot be selected, so they take no part in the second gap.
    """
    hidden = hidden.reshape(-1, hidden.shape[-1]).float()
    scores = (hidden @ weight.float().T).sigmoid() + bias
    groups = scores.unflatten(-1, (config["n_group"], -1))
    group_scores = groups.topk(2, -1).values.sum(-1)
    chosen = group_scores.topk(config["topk_group"], -1).indices
    allowed = torch.zeros_like(group_scores).scatter(-1, chosen, 1.0).bool()
    limited = groups.masked_fill(~allowed[..., None], float("-inf")).flatten(-2)
    return torch.minimum(gap(group_scores, config["topk_group"]),
                         gap(limited, config["num_experts_per_tok"]))


def with_margins(model, config, ids):
    """(logits [T, vocabulary], margin [T]): the smallest margin over the MoE layers."""
    margins, hooks = [], []
    for layer in model.model.layers:
        gate = getattr(layer.mlp, "gate", None)
        if gate is not None:
            hooks.append(gate.register_forward_hook(
                lambda m, inputs, _: margins.append(router_margin(
                    inputs[0], m.weight, m.e_score_correction_bias, config))))
    with torch.no_grad():
        logits = model(torch.tensor([ids])).logits[0]
    for hook in hooks:
        hook.remove()
    return logits, torch.stack(margins).amin(0)


def token_ids(tokenizer, text, count):
    ids = tokenizer(text).input_ids
    while len(ids) < count:
        ids += tokenizer(text, add_special_tokens=False).input_ids
    return ids[:count] if count else ids


def positions(length):
    middle = [length * (i + 1) // (MIDDLE + 1) for i in range(MIDDLE)]
    return sorted(set([0] + middle + list(range(length - LAST, length))))


def main():
    config = json.loads((MODEL / "config.json").read_text())
    model = load_model(config, dequantised(MODEL))
    tokenizer, cases = AutoTokenizer.from_pretrained(MODEL), []
    for text, count in PROMPTS:
        ids = token_ids(tokenizer, text, count)
        logits, margins = with_margins(model, config, ids)
        rows = positions(len(ids))
        cases.append({"tokens": ids, "margins": margins, "rows": [(0, r, logits[r]) for r in rows]})
        print(f"{len(ids)} tokens, {len(rows)} rows, smallest margin {margins.min():.2e}, "
              f"deviation {logits.std():.3f}")
    write_cases(HERE / "logits.bin", config["vocab_size"], cases)


if __name__ == "__main__":
    main()
