# SPDX-License-Identifier: Apache-2.0
"""Muon for the matrices: momentum whose update is made orthogonal by Newton-Schulz steps."""
import torch


def orthogonalised(x):
    """Pushes the singular values of each matrix of a stack toward 1 (quintic iteration, bf16)."""
    y = x.bfloat16()
    tall = y.shape[-2] > y.shape[-1]
    y = y.transpose(-1, -2) if tall else y
    y = y / (y.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(5):
        gram = y @ y.transpose(-1, -2)
        y = 3.4445 * y + (-4.7750 * gram + 2.0315 * gram @ gram) @ y
    return y.transpose(-1, -2) if tall else y


class Muon(torch.optim.Optimizer):
    """Matrices of one shape are updated as one stack; a stack of experts counts as matrices.

    The update is scaled to the root mean square that AdamW's has, so that both share one rate.
    """

    def __init__(self, params, lr, weight_decay=0.0, momentum=0.95):
        super().__init__(params, dict(lr=lr, weight_decay=weight_decay, momentum=momentum))
        self.shapes = {}
        for p in self.param_groups[0]["params"]:
            self.shapes.setdefault(tuple(p.shape[-2:]), []).append(p)
        self.buffers = {}

    @torch.no_grad()
    def step(self):
        group = self.param_groups[0]
        for shape, params in self.shapes.items():
            grad = torch.cat([p.grad.reshape(-1, *shape) for p in params])
            buffer = self.buffers.setdefault(shape, torch.zeros_like(grad))
            buffer.lerp_(grad, 1 - group["momentum"])
            update = orthogonalised(grad.lerp(buffer, group["momentum"]))
            counts = [p.numel() // (shape[0] * shape[1]) for p in params]
            for p, part in zip(params, update.split(counts)):
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.add_(part.reshape(p.shape).float(), alpha=-0.2 * max(shape) ** 0.5 * group["lr"])
