# SPDX-License-Identifier: Apache-2.0
"""Stage `eval`: bits per byte on held-out text, and greedy speculation over the held-out prompts.

Everything runs in float32 on the weights as the checkpoint holds them.
"""
import argparse
import json
import math
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

import checkpoint
from model import MTP, Target, load_config

HERE = Path(__file__).resolve().parent
NEW_TOKENS, DRAFTS, REPEATED = 48, 3, 0.3


def load_models(folder, device):
    cfg = load_config(Path(folder) / "config.json")
    target, mtp = Target(cfg), MTP(cfg)
    checkpoint.load_into(target, mtp, checkpoint.load(folder))
    return target.to(device).eval(), mtp.to(device).eval()


@torch.no_grad()
def bits_per_byte(target, tokens, size, length=2048, batch=8):
    """Mean over windows of `length`; the first token of each window is given, not predicted."""
    device = target.lm_head.weight.device
    windows = len(tokens) // length
    ids = torch.from_numpy(tokens[: windows * length].astype(np.int64)).view(windows, length)
    loss = count = 0
    for part in ids.split(batch):
        part = part.to(device)
        logits = target.lm_head(target(part)).float()
        loss += F.cross_entropy(logits[:, :-1].flatten(0, 1), part[:, 1:].flatten(),
                                reduction="sum").item()
        count += part[:, 1:].numel()
    return loss / count / math.log(2) * len(tokens) / float(size)


class Speculator:
    """Greedy decoding of one sequence with drafts by the recurrent MTP layer."""

    def __init__(self, target, mtp, prompt, length):
        self.target, self.mtp, self.device = target, mtp, target.rope.device
        self.tokens, self.committed = list(prompt), 0
        self.cache = target.new_cache(1, length, torch.float32)
        self.draft_cache = torch.zeros_like(self.cache[0])
        self.states = self.run_target(self.tokens, 0)
        self.tokens.append(self.best(self.states[:, -1:])[0])

    def rows(self, first, count):
        return torch.arange(first, first + count, device=self.device)[None]

    def ids(self, tokens):
        return torch.tensor([tokens], device=self.device)

    def best(self, states):
        return self.target.lm_head(states)[0].argmax(-1).tolist()

    def run_target(self, tokens, first):
        return self.target.cached(self.ids(tokens), self.cache, self.rows(first, len(tokens)))

    def run_mtp(self, tokens, states, first):
        embedding = self.target.embed_tokens(self.ids(tokens))
        return self.mtp.cached(embedding, states, self.target.rope, self.draft_cache,
                               self.rows(first, len(tokens)))

    def draft(self, count):
        """Rows with fresh target states first, then the fed-back state row by row."""
        first, drafts = self.committed, []
        state = self.run_mtp(self.tokens[first + 1:], self.states, first)[:, -1:]
        self.committed = len(self.tokens) - 1
        for step in range(count):
            drafts += self.best(state)
            if step + 1 < count:
                state = self.run_mtp(drafts[-1:], state, self.committed + step)
        return drafts

    def step(self, count):
        """One target pass over the last token and `count` drafts; returns drafts accepted."""
        drafts = self.draft(count)
        first = len(self.tokens) - 1
        states = self.run_target([self.tokens[-1]] + drafts, first)
        best, accepted = self.best(states), 0
        while accepted < count and drafts[accepted] == best[accepted]:
            accepted += 1
        self.tokens += best[: accepted + 1]
        self.states = states[:, : accepted + 1]
        return accepted


@torch.no_grad()
def speculate(target, mtp, prompt, new_tokens=NEW_TOKENS, drafts=DRAFTS):
    """(new tokens, target steps, drafts accepted at each place)"""
    run, steps = Speculator(target, mtp, prompt, len(prompt) + new_tokens + drafts + 1), 0
    accepted = [0] * drafts
    while (left := len(prompt) + new_tokens - len(run.tokens)) > 0:
        taken = run.step(min(drafts, left))
        steps += 1
        for place in range(min(taken, drafts)):
            accepted[place] += 1
    return run.tokens[len(prompt): len(prompt) + new_tokens], steps, accepted


def repeated_share(tokens):
    grams = [tuple(tokens[i: i + 4]) for i in range(len(tokens) - 3)]
    return 1 - len(set(grams)) / len(grams)


def draft_report(target, mtp, prompts):
    runs = [speculate(target, mtp, prompt) for prompt in prompts]
    share = [repeated_share(tokens) for tokens, _, _ in runs]
    kept = [run for run, s in zip(runs, share) if s < REPEATED]
    steps = sum(run[1] for run in kept)
    gained = sum(len(run[0]) - 1 for run in kept)
    return {
        "prompts": len(prompts), "kept": len(kept),
        "left_out_share": 1 - len(kept) / len(prompts),
        "gained_per_step": gained / max(steps, 1),
        "gained_per_step_mean_of_prompts": float(np.mean([47 / run[1] for run in kept])),
        "gained_per_step_all": sum(len(r[0]) - 1 for r in runs) / sum(r[1] for r in runs),
        "accepted_at_place": [sum(r[2][i] for r in kept) / max(steps, 1) for i in range(DRAFTS)],
        "repeated_share_mean": float(np.mean(share)),
    }, [run[0] for run in runs]


def report(target, mtp, data):
    arrays = np.load(data)
    prompts = [[t for t in row.tolist() if t >= 0] for row in arrays["prompts"]]
    result, outputs = draft_report(target, mtp, prompts)
    for split in ("validation", "heldout"):
        result[split + "_bits_per_byte"] = bits_per_byte(
            target, arrays[split], arrays[split + "_bytes"])
    return result, outputs


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", default=HERE.parent)
    parser.add_argument("--data", default=HERE / "data/tokens.npz")
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    result, outputs = report(*load_models(args.folder, device), args.data)
    print(json.dumps(result, indent=1))
    tokenizer = Path(args.folder) / "tokenizer.json"
    from tokenizers import Tokenizer
    decode = Tokenizer.from_file(str(tokenizer)).decode
    for tokens in outputs:
        print(f"{repeated_share(tokens):.2f}", repr(decode(tokens)))


if __name__ == "__main__":
    main()
