# SPDX-License-Identifier: Apache-2.0
"""Checkpoints as DeepSeek ships them: fp8-e4m3 weights with one float32 scale per 128x128 block."""
import json
import re
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

BLOCK = 128
FP8_MAX = 448.0
SHARD_BYTES = 12_000_000
# Everything else is a matrix of attention, MLP or eh_proj, and those are stored in fp8.
KEPT = re.compile(r"embed_tokens|lm_head|norm|gate\.weight|e_score_correction_bias")


def block_view(weight):
    """[rows/128, 128, cols/128, 128] of the weight padded with zeros to whole blocks."""
    rows, cols = weight.shape
    padded = torch.nn.functional.pad(weight, (0, -cols % BLOCK, 0, -rows % BLOCK))
    return padded.reshape(-(-rows // BLOCK), BLOCK, -(-cols // BLOCK), BLOCK)


def quantise(weight):
    """(fp8 weight, float32 scale_inv per block); the weight is their product."""
    blocks = block_view(weight.float())
    scale = (blocks.abs().amax((1, 3)) / FP8_MAX).clamp(min=1e-12)
    scaled = (blocks / scale[:, None, :, None]).clamp(-FP8_MAX, FP8_MAX)
    shape = (blocks.shape[0] * BLOCK, blocks.shape[2] * BLOCK)
    quantised = scaled.reshape(shape)[: weight.shape[0], : weight.shape[1]]
    return quantised.contiguous().to(torch.float8_e4m3fn), scale


def dequantise(quantised, scale):
    blocks = block_view(quantised.float()) * scale[:, None, :, None]
    full = blocks.reshape(blocks.shape[0] * BLOCK, -1)
    return full[: quantised.shape[0], : quantised.shape[1]].contiguous()


def checkpoint_names(target, mtp):
    """Pairs (name in the checkpoint, float32 tensor) of the whole model, in storage order."""
    last = target.cfg.num_hidden_layers
    for name, tensor in target.state_dict().items():
        yield from split_experts(name if name.startswith("lm_head") else "model." + name, tensor)
    for name, tensor in mtp.state_dict().items():
        name = name.removeprefix("layer.")
        yield from split_experts(f"model.layers.{last}.{name}", tensor)


def split_experts(name, tensor):
    found = re.fullmatch(r"(.*\.experts)\.(\w+_proj)", name)
    if not found:
        yield name, tensor
        return
    for index, expert in enumerate(tensor):
        yield f"{found[1]}.{index}.{found[2]}.weight", expert


def load_into(target, mtp, tensors):
    """The inverse of checkpoint_names, from a dictionary of float32 tensors."""
    with torch.no_grad():
        for name, tensor in checkpoint_names(target, mtp):
            tensor.copy_(tensors[name])


def stored(name, tensor):
    """The tensors that a file holds for one weight."""
    tensor = tensor.detach().cpu().float()
    if name.endswith("e_score_correction_bias"):
        return {name: tensor.clone()}
    if KEPT.search(name):
        return {name: tensor.to(torch.bfloat16)}
    quantised, scale = quantise(tensor)
    return {name: quantised, name + "_scale_inv": scale}


def restored(tensors):
    """float32 tensors of everything in a stored dictionary."""
    scales = {n: t for n, t in tensors.items() if n.endswith("_scale_inv")}
    return {name: dequantise(t, scales[name + "_scale_inv"])
            if name + "_scale_inv" in scales else t.float()
            for name, t in tensors.items() if name not in scales}


def round_trip(target, mtp):
    """Rounds the weights in place to what the checkpoint will hold."""
    tensors = {}
    for name, tensor in checkpoint_names(target, mtp):
        tensors.update(stored(name, tensor))
    load_into(target, mtp, restored(tensors))


def save(target, mtp, folder):
    """Two shards and their index."""
    shards, size = [{}], 0
    for name, tensor in checkpoint_names(target, mtp):
        for key, value in stored(name, tensor).items():
            if size > SHARD_BYTES and len(shards) == 1 and not key.endswith("_scale_inv"):
                shards.append({})
            shards[-1][key] = value
            size += value.numel() * value.element_size()
    folder, index = Path(folder), {}
    for number, shard in enumerate(shards, 1):
        file = f"model-{number:05}-of-{len(shards):05}.safetensors"
        save_file(shard, folder / file, metadata={"format": "pt"})
        (folder / file).chmod(0o644)
        index.update(dict.fromkeys(shard, file))
    text = {"metadata": {"total_size": size}, "weight_map": dict(sorted(index.items()))}
    (folder / "model.safetensors.index.json").write_text(json.dumps(text, indent=1) + "\n")


def load(folder):
    """float32 tensors of a checkpoint folder, dequantised."""
    tensors = {}
    for file in sorted(Path(folder).glob("model-*.safetensors")):
        tensors.update(load_file(file))
    return restored(tensors)
