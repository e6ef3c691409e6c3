# SPDX-License-Identifier: Apache-2.0
"""Makes variants/NAME.bin: logits of transformers on small random models, in float32.

Each variants/NAME.json is the config.json of a model whose weights come from a counter hash, so
that no weights are kept: the C tests write the same checkpoints (tests/unit/random_model.c).
Weights are rounded to the dtype that the config names and widened again. README.md states all
formats. Needs torch, transformers and numpy; run from anywhere.
"""
import json
import math
from pathlib import Path

import numpy
import torch
from transformers import (DeepseekV2Config, DeepseekV2ForCausalLM, DeepseekV3Config,
                          DeepseekV3ForCausalLM)

from records import write_cases

HERE = Path(__file__).resolve().parent / "variants"
FAMILIES = {"deepseek_v2": (DeepseekV2Config, DeepseekV2ForCausalLM),
            "deepseek_v3": (DeepseekV3Config, DeepseekV3ForCausalLM)}
LENGTHS = (9, 90)
MIDDLE, LAST = 9, 3


def name_hash(name):
    value = 2166136261
    for byte in name.encode():
        value = (value ^ byte) * 16777619 & 0xFFFFFFFF
    return value


def uniform(name, count):
    """[count] integers in [-32768, 32767]: the high half of a mix of the name and the index."""
    x = numpy.arange(count, dtype=numpy.uint32) * numpy.uint32(0x9E3779B9)
    x += numpy.uint32(name_hash(name))
    x ^= x >> numpy.uint32(16)
    x *= numpy.uint32(0x85EBCA6B)
    x ^= x >> numpy.uint32(13)
    x *= numpy.uint32(0xC2B2AE35)
    x ^= x >> numpy.uint32(16)
    return (x >> numpy.uint32(16)).astype(numpy.int32) - 32768


def tensor(name, shape, dtype):
    """Norms lie around 1; the others have deviation gain / sqrt(columns)."""
    whole = torch.from_numpy(uniform(name, math.prod(shape))).float()
    if name.endswith("norm.weight"):
        value = 1 + whole * numpy.float32(2**-17)
    elif name.endswith("bias"):
        value = whole * numpy.float32(2**-18)
    else:
        gain = 2.0 if name.endswith("gate.weight") or "embed" in name or "head" in name else 1.0
        value = whole * numpy.float32(gain * math.sqrt(3 / shape[-1]) / 32768)
    return value.reshape(shape).to(dtype).float()


def checkpoint_shape(name, config, model):
    """The shape of a checkpoint's tensor; transformers keeps all experts of a layer in one."""
    hidden, width = config["hidden_size"], config["moe_intermediate_size"]
    if ".experts." in name:
        return (hidden, width) if "down_proj" in name else (width, hidden)
    return tuple(model.state_dict()[name].shape)


def fill(model, config, dtype):
    """Loads the checkpoint's tensors, by their names there, into the model."""
    state = {}
    for name, parameter in model.state_dict().items():
        if name == "lm_head.weight" and config.get("tie_word_embeddings"):
            continue
        if not name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            state[name] = tensor(name, tuple(parameter.shape), dtype)
            continue
        prefix, experts = name.rsplit(".", 1)[0], []
        parts = ["gate_proj", "up_proj"] if name.endswith("gate_up_proj") else ["down_proj"]
        for e in range(config["n_routed_experts"]):
            names = [f"{prefix}.{e}.{part}.weight" for part in parts]
            experts.append(torch.cat(
                [tensor(n, checkpoint_shape(n, config, model), dtype) for n in names]))
        state[name] = torch.stack(experts)
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert not unexpected and set(missing) <= {"lm_head.weight"}, (missing, unexpected)
    model.tie_weights()


def gap(scores, k):
    if k == scores.shape[-1]:
        return torch.full(scores.shape[:-1], math.inf)
    best = scores.topk(k + 1, -1).values
    return best[..., k - 1] - best[..., k]


def router_margin(hidden, gate, config):
    """Smaller of two gaps: last chosen group to first other, and the same for experts inside."""
    logits = hidden.reshape(-1, hidden.shape[-1]).float() @ gate.weight.float().T
    groups, kept = config.get("n_group") or 1, config.get("topk_group") or 1
    if config["model_type"] == "deepseek_v2":
        scores, best = logits.softmax(-1), 1
        if config["topk_method"] == "greedy":
            groups = kept = 1
    else:
        scores, best = logits.sigmoid() + gate.e_score_correction_bias, 2
    grouped = scores.unflatten(-1, (groups, -1))
    group_scores = grouped.topk(best, -1).values.sum(-1)
    allowed = torch.zeros_like(group_scores).scatter(
        -1, group_scores.topk(kept, -1).indices, 1.0).bool()
    limited = grouped.masked_fill(~allowed[..., None], -math.inf).flatten(-2)
    return torch.minimum(gap(group_scores, kept), gap(limited, config["num_experts_per_tok"]))


def with_margins(model, config, ids):
    margins, hooks = [], []
    for layer in model.model.layers:
        gate = getattr(layer.mlp, "gate", None)
        if gate is not None:
            hooks.append(gate.register_forward_hook(
                lambda m, inputs, _: margins.append(router_margin(inputs[0], m, config))))
    with torch.no_grad():
        logits = model(torch.tensor([ids])).logits[0]
    for hook in hooks:
        hook.remove()
    return logits, torch.stack(margins).amin(0)


def positions(length):
    middle = [length * (i + 1) // (MIDDLE + 1) for i in range(MIDDLE)]
    return sorted(set([0] + middle + list(range(length - LAST, length))))


def main():
    for file in sorted(HERE.glob("*.json")):
        config, cases = json.loads(file.read_text()), []
        make_config, make_model = FAMILIES[config["model_type"]]
        model = make_model._from_config(make_config(**config), attn_implementation="eager",
                                        dtype=torch.float32).eval()
        fill(model, config, getattr(torch, config["torch_dtype"]))
        for length in LENGTHS:
            ids = [int(x + 32768) % config["vocab_size"] for x in uniform(f"ids {length}", length)]
            logits, margins = with_margins(model, config, ids)
            rows = positions(length)
            cases.append({"tokens": ids, "margins": margins,
                          "rows": [(0, r, logits[r]) for r in rows]})
            print(f"{file.stem}: {length} tokens, {len(rows)} rows, smallest margin "
                  f"{margins.min():.2e}, deviation {logits.std():.3f}")
        write_cases(file.with_suffix(".bin"), config["vocab_size"], cases)


if __name__ == "__main__":
    main()
