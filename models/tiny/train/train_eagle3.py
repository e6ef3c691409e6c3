# SPDX-License-Identifier: Apache-2.0
"""Stage `eagle3`: trains the EAGLE-3 head of ../eagle3 for the target as it is stored.

Text that the target wrote itself and real text, `--unroll` draft steps that feed the state back,
against the target's distribution over the head's ids. Then greedy and sampled speculation over the
held-out prompts; with --eval only that, on the stored head.
"""
import json
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

import evaluate
from eagle3 import Eagle3
from model import initialise, load_config
from train import HERE, Schedule, Windows, arguments, autocast, compiled, continuations
from train import machine, optimisers, update

FOLDER = HERE.parent / "eagle3"


def draft_loss(head, run_unroll, target, ids, steps):
    """Cross entropy against the target's distribution, and argmax agreement of each step."""
    with torch.no_grad():
        entering = []
        hidden = target(ids[:, :-1], entering)
        teacher = target.lm_head(hidden[:, 1 + steps:]).float()
        states, embedding = head.target_states(entering), target.embed_tokens(ids[:, 1:])
        wanted, best = teacher.softmax(-1)[..., head.t2d], teacher.argmax(-1)
    loss, agree, names = 0.0, [], head.target_ids()
    for step, out in enumerate(run_unroll(embedding, states, steps)):
        logits = head.logits(out[:, steps:-1])
        loss = loss - 0.9 ** step * (wanted * logits.log_softmax(-1)).sum(-1).mean()
        agree.append((names[logits.argmax(-1)] == best).float().mean().detach())
    return loss, torch.stack(agree)


def start(cfg, target, windows, own):
    """A head with the most frequent ids of text and of the target's own text."""
    head = Eagle3(cfg).to(own.device)
    initialise(head, 1)
    size = cfg.vocab_size
    count = (torch.bincount(windows.tokens, minlength=size) / len(windows.tokens)
             + torch.bincount(own.flatten(), minlength=size) / own.numel())
    head.set_vocabulary(count.topk(cfg.draft_vocab_size).indices.sort().values)
    with torch.no_grad():
        head.lm_head.weight.copy_(target.lm_head.weight[head.target_ids()])
        head.norm.weight.copy_(target.norm.weight)
    return head.train()


def train(cfg, target, windows, args, log):
    begin = time.time()
    own = continuations(target, windows, args, args.continuations, 257)
    print(f"{own.numel()} tokens of the target's own text, {time.time() - begin:.0f} s", flush=True)
    head = start(cfg, target, windows, own)
    opts, run_unroll = optimisers(head, args.rate, 0.05), compiled(head.unroll, args)
    schedule, step, agree = Schedule(args.steps, args.seconds), 0, {}
    while step < schedule.steps:
        real = step % 4 == 3
        if real:
            ids = windows.take("stream", max(args.batch // 4096, 1), args.window + 1)
        else:
            index = torch.randint(len(own), (max(args.batch // 256, 1),), device=args.device)
            ids = own[index]
        with autocast(args.device):
            loss, share = draft_loss(head, run_unroll, target, ids, args.unroll)
        update(head, opts, loss, args.rate, schedule.rate(step))
        agree.setdefault(real, []).append(share)
        step += 1
        schedule.tick(step, args.device)
        if step % 200 == 0:
            shares = {"text" if k else "own": [round(x, 3) for x in torch.stack(v).mean(0).tolist()]
                      for k, v in agree.items()}
            print(f"eagle3 {step} agreement {shares} {time.time() - schedule.begin:.0f} s",
                  flush=True)
            agree = {}
    log["eagle3"] = {"steps": step, "rate": args.rate, "own_tokens": own.numel(),
                     "seconds": time.time() - schedule.begin}
    return head


class Speculator:
    """Decoding of one sequence with drafts of the head, greedy at temperature 0."""

    def __init__(self, target, head, prompt, length, temperature):
        self.target, self.head, self.temperature = target, head, temperature
        self.device = target.rope.device
        self.tokens, self.committed = list(prompt), 0
        self.cache = target.new_cache(1, length, torch.float32)
        self.draft_cache = head.new_cache(length)
        self.names = head.target_ids()
        p, self.states = self.run_target(self.tokens, 0)
        self.tokens.append(self.pick(p[-1]))

    def pick(self, p):
        return torch.multinomial(p, 1).item() if self.temperature else p.argmax(-1).item()

    def distribution(self, logits):
        if self.temperature:
            return (logits / self.temperature).softmax(-1)
        return F.one_hot(logits.argmax(-1), logits.shape[-1]).float()

    def run_target(self, tokens, first):
        """(distribution after each token, the states that the head takes)"""
        entering, rows = [], torch.arange(first, first + len(tokens), device=self.device)[None]
        ids = torch.tensor([tokens], device=self.device)
        hidden = self.target.cached(ids, self.cache, rows, entering)
        p = self.distribution(self.target.lm_head(hidden)[0].float())
        return p, self.head.target_states(entering)

    def run_head(self, tokens, x, first):
        rows = torch.arange(first, first + len(tokens), device=self.device)
        embedding = self.target.embed_tokens(torch.tensor([tokens], device=self.device))
        return self.head.cached(embedding, x, self.draft_cache, rows)[:, -1:]

    def draft(self, count):
        """Drafts and the distribution that each was drawn from."""
        first, drafts, q = self.committed, [], []
        state = self.run_head(self.tokens[first + 1:], self.head.fc(self.states), first)
        self.committed = len(self.tokens) - 1
        for step in range(count):
            q.append(torch.zeros(self.target.cfg.vocab_size, device=self.device))
            q[-1][self.names] = self.distribution(self.head.logits(state)[0, 0])
            drafts.append(self.pick(q[-1]))
            if step + 1 < count:
                state = self.run_head(drafts[-1:], state, self.committed + step)
        return drafts, q

    def step(self, count):
        """One target pass over the last token and `count` drafts; returns drafts accepted."""
        drafts, q = self.draft(count)
        p, states = self.run_target([self.tokens[-1]] + drafts, len(self.tokens) - 1)
        accepted = 0
        while accepted < count:
            x = drafts[accepted]
            if torch.rand(()).item() * q[accepted][x].item() >= p[accepted][x].item():
                break
            accepted += 1
        rest = (p[accepted] - q[accepted]).clamp(min=0) if accepted < count else p[accepted]
        self.tokens += drafts[:accepted] + [self.pick(rest)]
        self.states = states[:, : accepted + 1]
        return accepted


@torch.no_grad()
def speculate(target, head, prompt, temperature):
    """(new tokens, target steps, drafts accepted at each place) as evaluate.speculate counts."""
    new, drafts = evaluate.NEW_TOKENS, evaluate.DRAFTS
    run = Speculator(target, head, prompt, len(prompt) + new + drafts + 1, temperature)
    steps, accepted = 0, [0] * drafts
    while (left := len(prompt) + new - len(run.tokens)) > 0:
        taken = run.step(min(drafts, left))
        steps += 1
        for place in range(min(taken, drafts)):
            accepted[place] += 1
    return run.tokens[len(prompt): len(prompt) + new], steps, accepted


def report(target, head, prompts, temperature, repeats):
    runs = [speculate(target, head, p, temperature) for p in prompts for _ in range(repeats)]
    kept = [r for r in runs if evaluate.repeated_share(r[0]) < evaluate.REPEATED]
    steps = sum(r[1] for r in kept)
    return {"runs": len(runs), "kept": len(kept),
            "gained_per_step": sum(len(r[0]) - 1 for r in kept) / steps,
            "accepted_at_place": [sum(r[2][i] for r in kept) / steps
                                  for i in range(evaluate.DRAFTS)],
            "gained_per_step_all": sum(len(r[0]) - 1 for r in runs) / sum(r[1] for r in runs)}


def options(parser):
    parser.add_argument("--unroll", type=int, default=4, help="draft steps of a training row")
    parser.add_argument("--steps", type=int, default=6000)
    parser.add_argument("--seconds", type=float, default=1e9)
    parser.add_argument("--window", type=int, default=2048, help="tokens of real text")
    parser.add_argument("--prompts", type=int, default=32, help="held-out prompts to measure")
    parser.add_argument("--eval", action="store_true")


def main():
    args = arguments(options, __doc__)
    torch.manual_seed(args.seed)
    arrays, cfg = np.load(args.data), load_config(FOLDER / "config.json")
    target, _ = evaluate.load_models(HERE.parent, args.device)
    target.requires_grad_(False)
    out = Path(args.out)
    out.mkdir(parents=True, exist_ok=True)
    log, path = {"machine": machine(args)}, FOLDER / "model.safetensors"
    if not args.eval:
        path = out / "eagle3.safetensors"
        windows = Windows(arrays, "train", args.device, args.seed)
        train(cfg, target, windows, args, log).save(path)
    head = Eagle3(cfg).to(args.device).eval()
    head.load(path)
    prompts = [[t for t in row.tolist() if t >= 0] for row in arrays["prompts"][: args.prompts]]
    for temperature, repeats in ((0.0, 1), (1.0, 4)):
        log[f"temperature {temperature}"] = report(target, head, prompts, temperature, repeats)
    print(json.dumps(log, indent=1))


if __name__ == "__main__":
    main()
