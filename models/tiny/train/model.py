# SPDX-License-Identifier: Apache-2.0
"""DeepSeek-V3 in plain PyTorch: MLA attention, group-limited MoE, and the MTP layer.

Every routed expert runs on every token and unselected ones get weight zero. With eight experts of
width 128 that is cheaper on a GPU than gathering tokens, and the result is the same.
"""
import json
import math
from pathlib import Path
from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch import nn

CONFIG_PATH = Path(__file__).resolve().parent.parent / "config.json"


def load_config(path=CONFIG_PATH):
    return SimpleNamespace(**json.loads(Path(path).read_text()))


def yarn_mscale(factor, mscale):
    return 0.1 * mscale * math.log(factor) + 1.0 if factor > 1 else 1.0


def yarn_inverse_frequencies(cfg):
    """Pairs below `low` turn too fast to need scaling; those above `high` are interpolated."""
    scaling, dim = cfg.rope_scaling, cfg.qk_rope_head_dim

    def correction_dim(rotations):
        length = scaling["original_max_position_embeddings"]
        return dim * math.log(length / (rotations * 2 * math.pi)) / (2 * math.log(cfg.rope_theta))

    low = max(math.floor(correction_dim(scaling["beta_fast"])), 0)
    high = min(math.ceil(correction_dim(scaling["beta_slow"])), dim - 1)
    ramp = (torch.arange(dim // 2).float() - low) / max(high - low, 0.001)
    keep = 1.0 - ramp.clamp(0, 1)
    plain = 1.0 / cfg.rope_theta ** (torch.arange(0, dim, 2).float() / dim)
    return plain / scaling["factor"] * (1 - keep) + plain * keep


def rope_table(cfg, length):
    """[length, 2, rope/2] of cos and sin, times the ratio of the two mscale factors."""
    scaling = cfg.rope_scaling
    angle = torch.arange(length).float()[:, None] * yarn_inverse_frequencies(cfg)[None]
    ratio = yarn_mscale(scaling["factor"], scaling["mscale"]) / yarn_mscale(
        scaling["factor"], scaling["mscale_all_dim"])
    return torch.stack((angle.cos(), angle.sin()), 1) * ratio


def softmax_scale(cfg):
    scaling = cfg.rope_scaling
    mscale = yarn_mscale(scaling["factor"], scaling["mscale_all_dim"])
    return (cfg.qk_nope_head_dim + cfg.qk_rope_head_dim) ** -0.5 * mscale * mscale


def apply_rope(x, rope):
    """Rotates pairs (x0, x1), (x2, x3), ... of x [..., T, rope] by `rope` [.., T, 2, rope/2]."""
    cos, sin = rope[..., 0, :].to(x.dtype), rope[..., 1, :].to(x.dtype)
    a, b = x[..., 0::2], x[..., 1::2]
    return torch.stack((a * cos - b * sin, b * cos + a * sin), -1).flatten(-2)


def linear(rows, cols):
    return nn.Linear(cols, rows, bias=False)


class RMSNorm(nn.Module):
    def __init__(self, size, eps):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x):
        y = x.float()
        y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + self.eps)
        return (y * self.weight).to(x.dtype)


class Attention(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.heads, self.nope, self.rope = (
            cfg.num_attention_heads, cfg.qk_nope_head_dim, cfg.qk_rope_head_dim)
        self.rank, self.v = cfg.kv_lora_rank, cfg.v_head_dim
        self.q_proj = linear(self.heads * (self.nope + self.rope), cfg.hidden_size)
        self.kv_a_proj_with_mqa = linear(self.rank + self.rope, cfg.hidden_size)
        self.kv_a_layernorm = RMSNorm(self.rank, cfg.rms_norm_eps)
        self.kv_b_proj = linear(self.heads * (self.nope + self.v), self.rank)
        self.o_proj = linear(cfg.hidden_size, self.heads * self.v)
        self.scale = softmax_scale(cfg)

    def queries(self, x, rope):
        q = self.q_proj(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        rope = rope if rope.dim() == 3 else rope[:, None]
        return torch.cat((q[..., : self.nope], apply_rope(q[..., self.nope:], rope)), -1)

    def latent(self, x, rope):
        """The cached row: normalised latent, then the shared rope key. [B, T, rank + rope]"""
        c, k = self.kv_a_proj_with_mqa(x).split((self.rank, self.rope), -1)
        return torch.cat((self.kv_a_layernorm(c), apply_rope(k, rope)), -1)

    def expand(self, latent):
        """Keys and values per head. Values are padded to the key size, which flash wants."""
        c, k_rope = latent.split((self.rank, self.rope), -1)
        kv = self.kv_b_proj(c).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        k_rope = k_rope[:, None].expand(-1, self.heads, -1, -1)
        k = torch.cat((kv[..., : self.nope], k_rope), -1)
        return k, F.pad(kv[..., self.nope:], (0, self.nope + self.rope - self.v))

    def attend(self, q, k, v, mask=None):
        out = F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=mask is None, scale=self.scale)
        return self.o_proj(out[..., : self.v].transpose(1, 2).flatten(-2))

    def forward(self, x, rope):
        return self.attend(self.queries(x, rope), *self.expand(self.latent(x, rope)))

    def absorbed(self, x, rope, cache, mask):
        """Attention over a latent cache [B, S, rank + rope], not expanded; mask [B, T, S]."""
        q = self.queries(x, rope)
        w = self.kv_b_proj.weight.unflatten(0, (self.heads, -1)).to(x.dtype)
        q_latent = torch.einsum("bhtn,hnr->bhtr", q[..., : self.nope], w[:, : self.nope])
        q_full = torch.cat((q_latent, q[..., self.nope:]), -1).flatten(1, 2)
        score = (q_full @ cache.transpose(1, 2)).unflatten(1, (self.heads, -1)).float()
        score = score.mul(self.scale).masked_fill(~mask[:, None], float("-inf"))
        p = score.softmax(-1).to(x.dtype).flatten(1, 2)
        out = (p @ cache[..., : self.rank]).unflatten(1, (self.heads, -1))
        out = torch.einsum("bhtr,hvr->bthv", out, w[:, self.nope:])
        return self.o_proj(out.flatten(-2))


class MLP(nn.Module):
    def __init__(self, hidden, width):
        super().__init__()
        self.gate_proj = linear(width, hidden)
        self.up_proj = linear(width, hidden)
        self.down_proj = linear(hidden, width)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Experts(nn.Module):
    """The routed experts as three stacks [experts, rows, cols]."""

    def __init__(self, cfg):
        super().__init__()
        shape = (cfg.n_routed_experts, cfg.moe_intermediate_size, cfg.hidden_size)
        self.gate_proj = nn.Parameter(torch.empty(shape))
        self.up_proj = nn.Parameter(torch.empty(shape))
        self.down_proj = nn.Parameter(torch.empty(shape[0], shape[2], shape[1]))

    def forward(self, x, weights):
        gate = F.linear(x, self.gate_proj.flatten(0, 1))
        up = F.linear(x, self.up_proj.flatten(0, 1))
        y = (F.silu(gate) * up).unflatten(-1, weights.shape[-1:] + (-1,))
        y = (y * weights.unsqueeze(-1).to(y.dtype)).flatten(-2)
        return F.linear(y, self.down_proj.transpose(0, 1).flatten(1))


class Router(nn.Module):
    """Sigmoid scores; the correction bias takes part in the choice, never in the weights."""

    def __init__(self, cfg):
        super().__init__()
        self.cfg = cfg
        self.weight = nn.Parameter(torch.empty(cfg.n_routed_experts, cfg.hidden_size))
        self.register_buffer("e_score_correction_bias", torch.zeros(cfg.n_routed_experts))
        self.register_buffer("load", torch.zeros(cfg.n_routed_experts), persistent=False)

    def choose(self, choice):
        """0/1 mask of the chosen experts, group limit first: the sum of a group's two best."""
        cfg = self.cfg
        groups = choice.unflatten(-1, (cfg.n_group, -1))
        best = groups.topk(2, -1).values.sum(-1).topk(cfg.topk_group, -1).indices
        allowed = torch.zeros_like(groups[..., 0]).scatter(-1, best, 1.0).unsqueeze(-1)
        limited = groups.masked_fill(allowed == 0, float("-inf")).flatten(-2)
        picked = limited.topk(cfg.num_experts_per_tok, -1).indices
        return torch.zeros_like(choice).scatter(-1, picked, 1.0)

    def forward(self, x):
        with torch.autocast(x.device.type, enabled=False):
            scores = F.linear(x.float(), self.weight.float()).sigmoid()
            chosen = self.choose((scores + self.e_score_correction_bias).detach())
            weights = scores * chosen
            weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
            return weights * self.cfg.routed_scaling_factor, chosen

    def balance(self, rate):
        """Moves the bias toward even load, DeepSeek's replacement for an auxiliary loss."""
        self.e_score_correction_bias += rate * (self.load.mean() - self.load).sign()
        self.load.zero_()


class MoE(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.gate = Router(cfg)
        self.experts = Experts(cfg)
        self.shared_experts = MLP(
            cfg.hidden_size, cfg.moe_intermediate_size * cfg.n_shared_experts)

    def forward(self, x):
        weights, chosen = self.gate(x)
        if self.training:
            with torch.no_grad():
                self.gate.load += chosen.flatten(0, -2).sum(0)
        return self.experts(x, weights) + self.shared_experts(x)


class Layer(nn.Module):
    def __init__(self, cfg, index):
        super().__init__()
        self.self_attn = Attention(cfg)
        dense = index < cfg.first_k_dense_replace
        self.mlp = MLP(cfg.hidden_size, cfg.intermediate_size) if dense else MoE(cfg)
        self.input_layernorm = RMSNorm(cfg.hidden_size, cfg.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(cfg.hidden_size, cfg.rms_norm_eps)
        self.dropout = 0.0

    def drop(self, x):
        return F.dropout(x, self.dropout, self.training) if self.dropout else x

    def after_attention(self, x, attended):
        x = x + self.drop(attended)
        return x + self.drop(self.mlp(self.post_attention_layernorm(x)))

    def forward(self, x, rope):
        return self.after_attention(x, self.self_attn(self.input_layernorm(x), rope))

    def cached(self, x, rope, cache, rows, mask):
        """Writes the latents of x at `rows` [B, T] of `cache`, then attends what `mask` shows."""
        y = self.input_layernorm(x)
        index = rows[..., None].expand(-1, -1, cache.shape[-1])
        cache.scatter_(1, index, self.self_attn.latent(y, rope).to(cache.dtype))
        return self.after_attention(x, self.self_attn.absorbed(y, rope, cache, mask))


class Target(nn.Module):
    """The six-layer model. `forward` gives hidden states after the final norm.

    Both passes append the residual stream that enters each layer to `entering`, if it is a list.
    """

    def __init__(self, cfg):
        super().__init__()
        self.cfg = cfg
        self.embed_tokens = nn.Embedding(cfg.vocab_size, cfg.hidden_size)
        self.layers = nn.ModuleList(Layer(cfg, i) for i in range(cfg.num_hidden_layers))
        self.norm = RMSNorm(cfg.hidden_size, cfg.rms_norm_eps)
        self.lm_head = linear(cfg.vocab_size, cfg.hidden_size)
        self.register_buffer("rope", rope_table(cfg, cfg.max_position_embeddings), False)
        self.dropout = 0.0

    def set_dropout(self, p):
        self.dropout = p
        for layer in self.layers:
            layer.dropout = p

    def forward(self, ids, entering=None):
        x = self.embed_tokens(ids)
        if self.dropout:
            x = F.dropout(x, self.dropout, self.training)
        for layer in self.layers:
            if entering is not None:
                entering.append(x)
            x = layer(x, self.rope[: ids.shape[1]])
        return self.norm(x)

    def new_cache(self, batch, length, dtype):
        cfg, weight = self.cfg, self.embed_tokens.weight
        shape = (cfg.num_hidden_layers, batch, length, cfg.kv_lora_rank + cfg.qk_rope_head_dim)
        return torch.zeros(shape, dtype=dtype, device=weight.device)

    def cached(self, ids, cache, rows, entering=None):
        """Hidden states of `ids` [B, T] that stand at `rows` [B, T] of their sequences."""
        keys = torch.arange(cache.shape[2], device=ids.device)
        mask = keys[None, None] <= rows[..., None]
        x = self.embed_tokens(ids).to(cache.dtype)
        for layer, layer_cache in zip(self.layers, cache):
            if entering is not None:
                entering.append(x)
            x = layer.cached(x, self.rope[rows], layer_cache, rows, mask)
        return self.norm(x)


class SharedHead(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.norm = RMSNorm(cfg.hidden_size, cfg.rms_norm_eps)


class MTP(nn.Module):
    """One draft layer. Row i joins the embedding of token i+1 with a state of token i."""

    def __init__(self, cfg):
        super().__init__()
        self.enorm = RMSNorm(cfg.hidden_size, cfg.rms_norm_eps)
        self.hnorm = RMSNorm(cfg.hidden_size, cfg.rms_norm_eps)
        self.eh_proj = linear(cfg.hidden_size, 2 * cfg.hidden_size)
        self.layer = Layer(cfg, cfg.num_hidden_layers)
        self.shared_head = SharedHead(cfg)

    def join(self, embedding, state, rows):
        embedding = embedding.masked_fill((rows == 0)[..., None], 0.0)
        return self.eh_proj(torch.cat((self.enorm(embedding), self.hnorm(state)), -1))

    def unroll(self, embedding, state, rope, steps):
        """Normed states of `steps` draft steps on every row, as if each row began a draft.

        In step s row i is fed row i-1 of step s-1. It sees the first-step keys of rows up to i-s,
        then the keys that its own draft made: step t at row i-(s-t), itself last.
        """
        rows = torch.arange(state.shape[1], device=state.device)
        attention, keys, values, outputs = self.layer.self_attn, [], [], []
        for step in range(steps):
            x = self.join(embedding, state, rows[None].expand(state.shape[:2]))
            y = self.layer.input_layernorm(x)
            k, v = attention.expand(attention.latent(y, rope))
            keys.append(k)
            values.append(v)
            mask = None if step == 0 else draft_mask(rows, step)
            attended = attention.attend(
                attention.queries(y, rope), torch.cat(keys, 2), torch.cat(values, 2), mask)
            out = self.shared_head.norm(self.layer.after_attention(x, attended))
            outputs.append(out)
            state = F.pad(out, (0, 0, 1, 0))[:, :-1]
        return outputs

    def cached(self, embedding, state, rope, cache, rows):
        mask = torch.arange(cache.shape[1], device=rows.device)[None, None] <= rows[..., None]
        x = self.join(embedding, state, rows)
        return self.shared_head.norm(self.layer.cached(x, rope[rows], cache, rows, mask))


def draft_mask(rows, step):
    """[T, (step+1)*T]: which keys of draft steps 0..step each row of this step sees.

    A row below `step` has no such draft; it sees its own key only, so that softmax stays finite.
    """
    gap = rows[:, None] - rows[None]
    parts = [gap >= step] + [gap == step - t for t in range(1, step)] + [gap == 0]
    return torch.cat(parts, 1)


def initialise(module, layers, generator=None):
    """Normal weights of deviation 1/sqrt(fan-in); projections into the residual are smaller."""
    for name, p in module.named_parameters():
        if p.dim() < 2:
            continue
        std = 0.02 if "embed" in name or "lm_head" in name else p.shape[-1] ** -0.5 * 0.6
        if name.endswith(("o_proj.weight", "down_proj.weight", "down_proj")):
            std /= math.sqrt(2 * layers)
        with torch.no_grad():
            p.normal_(0, std, generator=generator)
