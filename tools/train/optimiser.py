# SPDX-License-Identifier: Apache-2.0
"""Muon for matrices, AdamW for tables, norms and scalars.

Muon (Keller Jordan, 2024) steps along the nearest orthogonal matrix of the momentum, found by a few Newton-Schulz
iterations; the step is scaled to the size of an AdamW step as in "Muon is scalable for LLM training" (Liu et al. 2025).
Matrices of one shape are stepped together.
"""
import torch

ITERATION = (3.4445, -4.7750, 2.0315)
VECTOR_SHARE = 0.3


def orthogonal(matrices, iterations=5):
    """matrices [n, rows, columns] -> about U V^T of each singular value decomposition, bf16."""
    x = matrices.bfloat16()
    tall = x.shape[1] > x.shape[2]
    x = x.mT if tall else x
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    a, b, c = ITERATION
    for _ in range(iterations):
        square = x @ x.mT
        x = a * x + (b * square + c * square @ square) @ x
    return x.mT if tall else x


class Optimiser:
    """step(factor) moves every parameter of `module` with its peak rate times factor.

    Norms and scalars move slower than tables: some begin at 0.1.
    """

    def __init__(self, module, matrix_rate, table_rate, decay=0.1, momentum=0.95):
        self.matrix_rate, self.table_rate, self.decay, self.momentum = matrix_rate, table_rate, decay, momentum
        self.shapes, rest = {}, []
        for name, parameter in module.named_parameters():
            if parameter.ndim == 2 and "embed_tokens" not in name:
                self.shapes.setdefault(tuple(parameter.shape), []).append(parameter)
            else:
                rest.append(parameter)
        self.momenta = {shape: torch.zeros(len(ps), *shape, device=ps[0].device) for shape, ps in self.shapes.items()}
        self.rest = rest
        groups = [{"params": [p for p in rest if p.ndim == 2], "share": 1.0},
                  {"params": [p for p in rest if p.ndim == 1], "share": VECTOR_SHARE}]
        self.tables = torch.optim.AdamW(groups, lr=table_rate, betas=(0.9, 0.95), eps=1e-10, weight_decay=0.0,
                                        fused=rest[0].is_cuda)

    @torch.no_grad()
    def step(self, factor):
        torch.nn.utils.clip_grad_norm_(self.rest, 1.0)
        for group in self.tables.param_groups:
            group["lr"] = self.table_rate * group["share"] * factor
        self.tables.step()
        rate = self.matrix_rate * factor
        for shape, parameters in self.shapes.items():
            gradient = torch.stack([p.grad for p in parameters])
            momentum = self.momenta[shape]
            momentum.lerp_(gradient, 1 - self.momentum)
            update = orthogonal(gradient.lerp(momentum, self.momentum)).float()
            torch._foreach_mul_(parameters, 1 - rate * self.decay)
            torch._foreach_add_(parameters, list(update.unbind()), alpha=-rate * 0.2 * max(shape) ** 0.5)
        for parameters in [self.rest, *self.shapes.values()]:
            for parameter in parameters:
                parameter.grad = None
