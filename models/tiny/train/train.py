# SPDX-License-Identifier: Apache-2.0
"""Stage `train`: the target on text, then against its own loops, then the MTP layer.

The number of steps is what the wanted epochs need, or fewer where the time allowed is shorter;
the log records what was run.
"""
import argparse
import copy
import json
import math
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

import checkpoint
import evaluate
from model import MTP, Layer, Target, initialise, load_config
from muon import Muon

HERE = Path(__file__).resolve().parent
BOS = 0
WARM_UP = 150


class Windows:
    """Token windows: long ones at an offset of the stream, short ones at paragraph starts."""

    def __init__(self, arrays, split, device, seed):
        self.tokens = torch.from_numpy(arrays[split].astype(np.int64)).to(device)
        starts = arrays[split + "_paragraphs"].astype(np.int64)
        self.paragraphs = torch.from_numpy(starts).to(device)
        self.random = torch.Generator(device).manual_seed(seed)
        self.device, self.pending = device, {}

    def order(self, kind, length):
        """Starts for one pass over the text (or the paragraphs), shuffled."""
        starts = self.paragraphs
        if kind == "stream":
            offset = torch.randint(length, (1,), generator=self.random, device=self.device)
            starts = torch.arange(0, len(self.tokens), length, device=self.device) + offset
        starts = starts[starts + length <= len(self.tokens)]
        index = torch.randperm(len(starts), generator=self.random, device=self.device)
        return starts[index]

    def take(self, kind, count, length):
        left = self.pending.get((kind, length), self.paragraphs[:0])
        while len(left) < count:
            left = torch.cat((left, self.order(kind, length)))
        starts, self.pending[kind, length] = left[:count], left[count:]
        shift = 0 if kind == "stream" else 1
        ids = self.tokens[starts[:, None] + torch.arange(length, device=self.device) - shift]
        if shift:
            ids[:, 0] = BOS
        return ids


class Schedule:
    """Linear warm-up, a plateau, linear decay to zero. The total is set once speed is known."""

    def __init__(self, steps, seconds, probe=60, skip=40):
        self.steps, self.seconds, self.probe, self.skip = steps, seconds, probe, skip
        self.begin = self.mark = time.time()

    def rate(self, step):
        decay = (self.steps - step) / (0.6 * self.steps)
        return max(min(1.0, (step + 1) / WARM_UP, decay), 0.0)

    def tick(self, step, device):
        if step not in (self.skip, self.probe):
            return
        if device == "cuda":
            torch.cuda.synchronize()
        if step == self.probe:
            each = (time.time() - self.mark) / (self.probe - self.skip)
            left = self.seconds - (time.time() - self.begin)
            self.steps = min(self.steps, step + max(int(left / each), 1))
            print(f"{each * 1e3:.1f} ms a step, {self.steps} steps", flush=True)
        self.mark = time.time()


def optimisers(module, rate, decay):
    """Muon for matrices inside layers, AdamW for embedding, head, router and norms."""
    matrices, tables, vectors = [], [], []
    for name, p in module.named_parameters():
        if p.dim() == 1 or "gate.weight" in name:
            vectors.append(p)
        else:
            (tables if "embed" in name or "lm_head" in name else matrices).append(p)
    adam = [{"params": vectors, "weight_decay": 0.0}]
    adam += [{"params": tables, "weight_decay": decay}] if tables else []
    fused = vectors[0].device.type == "cuda"
    return [Muon(matrices, rate, decay),
            torch.optim.AdamW(adam, rate, betas=(0.9, 0.95), fused=fused)]


def update(module, opts, loss, rate, scale):
    loss.backward()
    torch.nn.utils.clip_grad_norm_(module.parameters(), 1.0)
    for opt in opts:
        for group in opt.param_groups:
            group["lr"] = rate * scale
        opt.step()
        opt.zero_grad(set_to_none=True)
    for part in module.modules():
        if hasattr(part, "balance"):
            part.balance(2e-3 * scale)


def autocast(device):
    return torch.autocast(device, torch.bfloat16)


def compiled(function, args):
    return torch.compile(function, dynamic=False) if args.compile else function


def head_loss(target, states, wanted):
    logits = target.lm_head(states).float()
    return F.cross_entropy(logits.flatten(0, 1), wanted.flatten())


def target_loss(target, run_layer, loss_of, ids):
    """Layers are compiled one by one: five of the six share one graph, which compiles fast."""
    x = F.dropout(target.embed_tokens(ids[:, :-1]), target.dropout, target.training)
    for layer in target.layers:
        x = run_layer(layer, x, target.rope[: x.shape[1]])
    return loss_of(target, target.norm(x), ids[:, 1:])


def train_target(target, windows, args, log):
    target.train()
    target.set_dropout(args.dropout)
    run_layer, opts = compiled(Layer.forward, args), optimisers(target, args.rate, args.decay)
    loss_of = compiled(head_loss, args)
    steps = math.ceil(args.epochs * len(windows.tokens) / args.batch)
    schedule, step, total = Schedule(steps, args.target_seconds), 0, 0.0
    while step < schedule.steps:
        kind, length = (("stream", 2048), ("paragraph", 512))[step % 2]
        ids = windows.take(kind, max(args.batch // length, 1), length + 1)
        with autocast(args.device):
            loss = target_loss(target, run_layer, loss_of, ids)
        update(target, opts, loss, args.rate, schedule.rate(step))
        total += loss.detach()
        step += 1
        schedule.tick(step, args.device)
        if step % 200 == 0:
            print(f"target {step} loss {total.item() / 200:.4f} "
                  f"{time.time() - schedule.begin:.0f} s", flush=True)
            total = 0.0
    target.eval()
    log["target"] = {"steps": step, "tokens": step * args.batch, "dropout": args.dropout,
                     "epochs": step * args.batch / len(windows.tokens), "rate": args.rate,
                     "decay": args.decay, "seconds": time.time() - schedule.begin}


def repeats(new):
    """[B, T] bool: the token ends a sequence of four that `new` held before."""
    grams = new[:, :-3]
    for shift in (1, 2, 3):
        grams = grams * 2048 + new[:, shift: shift + grams.shape[1]]
    same = (grams[:, :, None] == grams[:, None]).tril(-1).any(-1)
    return F.pad(same, (3, 0))


def loop_share(half, unseen, args):
    """Share of greedy texts, 48 tokens after 64 of unseen text, that repeat 30% or more."""
    prompt = unseen.take("paragraph", args.sequences // 4, 64)
    return (repeats(continued(half, prompt, 112, 0.0)[:, 64:]).sum(1) >= 0.3 * 45).float().mean()


def unlikelihood(target, ids, prompt):
    """-log(1 - p) of the tokens that end a repeated sequence of four in the model's own text."""
    marked = F.pad(repeats(ids[:, prompt:]), (prompt - 1, 0))
    logits = target.lm_head(target(ids[:, :-1])).float()
    p = logits.log_softmax(-1).gather(-1, ids[:, 1:, None])[..., 0].exp()
    return -(torch.log1p(-p.clamp(max=1 - 1e-4)) * marked).sum() / marked.sum().clamp(min=1)


def discourage_loops(target, windows, unseen, args, log):
    """Unlikelihood steps on the target's own greedy text beside ordinary steps on real text.

    Small models fall into loops when decoded greedily. The penalty follows the share of unseen
    prompts that still do, and the rate falls to zero so that real text has the last word.
    """
    target.train()
    begin, opts = time.time(), optimisers(target, args.loop_rate, args.decay)
    shares, weight, batches = [], args.loop_weight, args.sequences // 2
    for index in range(args.loop_rounds):
        half, scale = half_copy(target, args), 1 - index / args.loop_rounds
        if index % 3 == 0:
            shares.append(loop_share(half, unseen, args).item())
            weight *= 1.5 if shares[-1] > args.loop_share else 0.67
            print(f"loops {index} share {shares[-1]:.3f} next weight {weight:.3f} "
                  f"{time.time() - begin:.0f} s", flush=True)
        own = continued(half, windows.take("paragraph", batches, 48), 128, 0.0)
        for ids in own.split(batches // 8):
            text = windows.take("paragraph", max(args.batch // 512, 1), 513)
            with autocast(args.device):
                loss = head_loss(target, target(text[:, :-1]), text[:, 1:])
                loss = loss + weight * unlikelihood(target, ids, 48)
            update(target, opts, loss, args.loop_rate, scale)
    target.eval()
    shares.append(loop_share(half_copy(target, args), unseen, args).item())
    print(f"loops end share {shares[-1]:.3f}", flush=True)
    log["loops"] = {"rounds": args.loop_rounds, "shares": shares, "seconds": time.time() - begin}


@torch.no_grad()
def continuations(target, windows, args, count, length):
    """Text that the target writes itself after paragraph starts, half greedy and half sampled."""
    half, made = half_copy(target, args), []
    for index in range(count):
        prompt = windows.take("paragraph", args.sequences, (16, 32, 48, 64)[index // 2 % 4])
        temperature = 0.0 if index % 2 == 0 else (0.6, 0.9)[index // 2 % 2]
        made.append(continued(half, prompt, length, temperature))
    return torch.cat(made)


def half_copy(target, args):
    """A copy for writing text: bfloat16 where that is fast."""
    half = copy.deepcopy(target).eval()
    return half.to(torch.bfloat16 if args.device == "cuda" else torch.float32)


@torch.no_grad()
def continued(half, prompt, length, temperature):
    """The prompts [B, T] with the model's own text up to `length` tokens."""
    ids, first = F.pad(prompt, (0, length - prompt.shape[1])), 0
    cache = half.new_cache(len(ids), length, half.lm_head.weight.dtype)
    rows = torch.arange(length, device=ids.device).expand(len(ids), -1)
    for end in range(prompt.shape[1], length):
        state = half.cached(ids[:, first:end], cache, rows[:, first:end])[:, -1]
        ids[:, end], first = pick(half.lm_head(state).float(), temperature), end
    return ids


def pick(logits, temperature):
    if temperature == 0:
        return logits.argmax(-1)
    return torch.multinomial((logits / temperature).softmax(-1), 1)[:, 0]


def draft_loss(mtp, run_unroll, target, ids, steps):
    """Cross entropy against the target's distribution, and argmax agreement of each step."""
    with torch.no_grad():
        states = target(ids[:, :-1])
        teacher = target.lm_head(states[:, 1:]).float()
        embedding = target.embed_tokens(ids[:, 1:])
    outputs = run_unroll(embedding, states, target.rope[: states.shape[1]], steps)
    loss, agree = 0.0, []
    wanted = teacher[:, steps:]
    for step, out in enumerate(outputs):
        logits = target.lm_head(out[:, steps:-1]).float()
        loss = loss + 0.9 ** step * soft_cross_entropy(logits, wanted)
        agree.append((logits.argmax(-1) == wanted.argmax(-1)).float().mean().detach())
    return loss, torch.stack(agree)


def soft_cross_entropy(logits, teacher):
    return -(teacher.softmax(-1) * logits.log_softmax(-1)).sum(-1).mean()


def train_mtp(target, mtp, windows, args, log):
    begin = time.time()
    own = continuations(target, windows, args, args.continuations, 257)
    print(f"{own.numel()} tokens of the target's own text, {time.time() - begin:.0f} s", flush=True)
    log["own_tokens"] = own.numel()
    if not args.resume:
        mtp.layer.load_state_dict(target.layers[-1].state_dict())
    target.requires_grad_(False)
    mtp.train()
    opts, run_unroll = optimisers(mtp, args.mtp_rate, 0.05), compiled(mtp.unroll, args)
    schedule, step, agree = Schedule(args.mtp_steps, args.mtp_seconds), 0, {}
    while step < schedule.steps:
        real = step % 4 == 3
        if real:
            ids = windows.take("stream", max(args.batch // 4096, 1), 2049)
        else:
            index = torch.randint(len(own), (max(args.batch // 256, 1),), device=args.device)
            ids = own[index]
        with autocast(args.device):
            loss, share = draft_loss(mtp, run_unroll, target, ids, 3)
        update(mtp, opts, loss, args.mtp_rate, schedule.rate(step))
        agree.setdefault(real, []).append(share)
        step += 1
        schedule.tick(step, args.device)
        if step % 200 == 0:
            shares = {"text" if k else "own": [round(x, 3) for x in torch.stack(v).mean(0).tolist()]
                      for k, v in agree.items()}
            print(f"mtp {step} agreement {shares} {time.time() - schedule.begin:.0f} s", flush=True)
            agree = {}
    mtp.eval()
    log["mtp"] = {"steps": step, "rate": args.mtp_rate, "seconds": time.time() - schedule.begin}


def arguments(more=None, text=__doc__):
    """Options of this stage, and those that `more` adds for another one."""
    parser = argparse.ArgumentParser(description=text)
    if more:
        more(parser)
    parser.add_argument("--data", default=HERE / "data/tokens.npz")
    parser.add_argument("--out", default=HERE / "out")
    parser.add_argument("--resume", help="checkpoint to go on from, with the stages after text")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--no-compile", dest="compile", action="store_false")
    parser.add_argument("--batch", type=int, default=32768, help="tokens a step")
    parser.add_argument("--epochs", type=float, default=24)
    parser.add_argument("--target-seconds", type=float, default=1e9)
    parser.add_argument("--dropout", type=float, default=0.15)
    parser.add_argument("--rate", type=float, default=3e-3)
    parser.add_argument("--decay", type=float, default=0.2)
    parser.add_argument("--loop-rounds", type=int, default=24, help="of 8 steps each")
    parser.add_argument("--loop-share", type=float, default=0.12, help="loops among unseen prompts")
    parser.add_argument("--loop-rate", type=float, default=1e-3)
    parser.add_argument("--loop-weight", type=float, default=0.2)
    parser.add_argument("--continuations", type=int, default=8, help="batches the target writes")
    parser.add_argument("--sequences", type=int, default=4096, help="sequences in such a batch")
    parser.add_argument("--mtp-steps", type=int, default=2500)
    parser.add_argument("--mtp-seconds", type=float, default=1e9)
    parser.add_argument("--mtp-rate", type=float, default=2e-3)
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


def main():
    args = arguments()
    torch.manual_seed(args.seed)
    arrays, cfg = np.load(args.data), load_config()
    windows = Windows(arrays, "train", args.device, args.seed)
    unseen = Windows(arrays, "validation", args.device, args.seed)
    target, mtp = Target(cfg), MTP(cfg)
    initialise(target, cfg.num_hidden_layers)
    initialise(mtp, cfg.num_hidden_layers)
    target, mtp, log = target.to(args.device), mtp.to(args.device), {"machine": machine(args)}
    if args.resume:
        checkpoint.load_into(target, mtp, checkpoint.load(args.resume))
        target.set_dropout(args.dropout)
    else:
        train_target(target, windows, args, log)
    log["before_loops"] = validation(target.eval(), arrays)
    discourage_loops(target, windows, unseen, args, log)
    log["before_rounding"] = validation(target, arrays)
    checkpoint.round_trip(target, mtp)
    train_mtp(target, mtp, windows, args, log)
    checkpoint.round_trip(target, mtp)
    log["evaluation"], log["outputs"] = evaluate.report(target, mtp, args.data)
    out = Path(args.out)
    out.mkdir(parents=True, exist_ok=True)
    checkpoint.save(target, mtp, out)
    (out / "train.json").write_text(json.dumps(log))
    del log["outputs"]
    print(json.dumps(log, indent=1))


def validation(target, arrays):
    bits = evaluate.bits_per_byte(target, arrays["validation"], arrays["validation_bytes"])
    print(f"validation bits per byte {bits:.4f}", flush=True)
    return bits


def machine(args):
    name = torch.cuda.get_device_name() if args.device == "cuda" else "CPU"
    return f"{name}, torch {torch.__version__}"


if __name__ == "__main__":
    main()
