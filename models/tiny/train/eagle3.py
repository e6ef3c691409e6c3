# SPDX-License-Identifier: Apache-2.0
"""An EAGLE-3 head in plain PyTorch: one Llama layer over the target's token and hidden states.

Row i joins the embedding of token i+1 with the target's states of token i, or with the state that
the row before gave. Embedding and tokens are the target's; the head's own ids are a part of them.
"""
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import nn

from model import MLP, RMSNorm, draft_mask, linear


def rope_table(cfg):
    """[length, 2, d/2] of cos and sin."""
    half = cfg.head_dim // 2
    frequency = cfg.rope_theta ** (-torch.arange(half).float() / half)
    angle = torch.arange(cfg.max_position_embeddings).float()[:, None] * frequency
    return torch.stack((angle.cos(), angle.sin()), 1)


def rotate(x, rope):
    """Rotates pairs (x0, x[d/2]), (x1, x[d/2+1]), ... of x [.., heads, T, d]; rope [T, 2, d/2]."""
    cos, sin = rope[:, 0].to(x.dtype), rope[:, 1].to(x.dtype)
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


class Attention(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.heads, self.kv_heads = cfg.num_attention_heads, cfg.num_key_value_heads
        self.q_proj = linear(self.heads * cfg.head_dim, 2 * cfg.hidden_size)
        self.k_proj = linear(self.kv_heads * cfg.head_dim, 2 * cfg.hidden_size)
        self.v_proj = linear(self.kv_heads * cfg.head_dim, 2 * cfg.hidden_size)
        self.o_proj = linear(cfg.hidden_size, self.heads * cfg.head_dim)

    def split(self, x, heads):
        return x.unflatten(-1, (heads, -1)).transpose(1, 2)

    def queries(self, x, rope):
        return rotate(self.split(self.q_proj(x), self.heads), rope)

    def keys(self, x, rope):
        """(k, v), each [B, kv_heads, T, d]."""
        k, v = self.split(self.k_proj(x), self.kv_heads), self.split(self.v_proj(x), self.kv_heads)
        return rotate(k, rope), v

    def attend(self, q, k, v, mask):
        k, v = (t.repeat_interleave(self.heads // self.kv_heads, 1) for t in (k, v))
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None)
        return self.o_proj(out.transpose(1, 2).flatten(-2))


class MidLayer(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.input_layernorm = RMSNorm(cfg.hidden_size, cfg.rms_norm_eps)
        self.hidden_norm = RMSNorm(cfg.hidden_size, cfg.rms_norm_eps)
        self.self_attn = Attention(cfg)
        self.post_attention_layernorm = RMSNorm(cfg.hidden_size, cfg.rms_norm_eps)
        self.mlp = MLP(cfg.hidden_size, cfg.intermediate_size)

    def join(self, embedding, x):
        return torch.cat((self.input_layernorm(embedding), self.hidden_norm(x)), -1)

    def after_attention(self, x, attended):
        x = x + attended
        return x + self.mlp(self.post_attention_layernorm(x))


class Eagle3(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.cfg, self.aux = cfg, cfg.eagle_aux_hidden_state_layer_ids
        self.fc = linear(cfg.hidden_size, len(self.aux) * cfg.hidden_size)
        self.midlayer = MidLayer(cfg)
        self.norm = RMSNorm(cfg.hidden_size, cfg.rms_norm_eps)
        self.lm_head = linear(cfg.draft_vocab_size, cfg.hidden_size)
        self.register_buffer("d2t", torch.zeros(cfg.draft_vocab_size, dtype=torch.int64))
        self.register_buffer("t2d", torch.zeros(cfg.vocab_size, dtype=torch.bool))
        self.register_buffer("rope", rope_table(cfg), False)

    def set_vocabulary(self, ids):
        """The target ids of the draft ids, ascending."""
        self.d2t.copy_(ids - torch.arange(len(ids), device=ids.device))
        self.t2d.zero_()[ids] = True

    def target_ids(self):
        return torch.arange(len(self.d2t), device=self.d2t.device) + self.d2t

    def target_states(self, entering):
        return torch.cat([entering[j] for j in self.aux], -1)

    def logits(self, state):
        return self.lm_head(self.norm(state)).float()

    def unroll(self, embedding, target_states, steps):
        """States of `steps` draft steps on every row, as MTP.unroll of model.py makes them."""
        rows = torch.arange(embedding.shape[1], device=embedding.device)
        rope, attention = self.rope[: len(rows)], self.midlayer.self_attn
        state, keys, values, outputs = self.fc(target_states), [], [], []
        for step in range(steps):
            y = self.midlayer.join(embedding, state)
            k, v = attention.keys(y, rope)
            keys.append(k)
            values.append(v)
            mask = None if step == 0 else draft_mask(rows, step)
            attended = attention.attend(
                attention.queries(y, rope), torch.cat(keys, 2), torch.cat(values, 2), mask)
            outputs.append(self.midlayer.after_attention(state, attended))
            state = F.pad(outputs[-1], (0, 0, 1, 0))[:, :-1]
        return outputs

    def new_cache(self, length):
        cfg = self.cfg
        shape = (2, 1, cfg.num_key_value_heads, length, cfg.head_dim)
        return torch.zeros(shape, device=self.rope.device)

    def cached(self, embedding, x, cache, rows):
        """States of one sequence's rows [T]; x is fc's output or the state that was fed back."""
        attention, y = self.midlayer.self_attn, self.midlayer.join(embedding, x)
        cache[0][:, :, rows], cache[1][:, :, rows] = attention.keys(y, self.rope[rows])
        mask = torch.arange(cache.shape[3], device=rows.device)[None] <= rows[:, None]
        attended = attention.attend(attention.queries(y, self.rope[rows]), *cache, mask)
        return self.midlayer.after_attention(x, attended)

    def save(self, path):
        save_file({name: t.cpu() if name in ("d2t", "t2d") else t.cpu().to(torch.bfloat16)
                   for name, t in self.state_dict().items()}, path, metadata={"format": "pt"})
        path.chmod(0o644)

    def load(self, path):
        self.load_state_dict({name: t.float() if t.is_floating_point() else t
                              for name, t in load_file(path).items()})
