"""A training step (forward, backward, fused AdamW) against timm in eager mode, in one run, as ratios.

timm needs an environment of its own (see timm_peer.py). Candidates take turns, so that a slow moment of the
machine hits both. The ratio is the median over rounds of (their time / ours): above 1, ours is faster.
"""

import argparse
from collections.abc import Callable
from statistics import quantiles
from time import perf_counter
from typing import Any

import torch
import torch.nn.functional as F
from timm_peer import timm

import saccade
from saccade.train.optim import adamw

CASES = {
    "small CIFAR ViT, batch 128": (
        "vit_xs4_32",
        {"img_size": 32, "patch_size": 4, "embed_dim": 64, "depth": 4, "num_heads": 4, "mlp_ratio": 2},
        10,
        128,
    ),
    "ViT-Ti/16, batch 16": ("vit_ti16", {}, 1000, 16),
}


def stepper(
    module: Any, optimizer: torch.optim.Optimizer, image: torch.Tensor, label: torch.Tensor
) -> Callable[[], float]:
    """Time one step."""

    def step() -> float:
        start = perf_counter()
        optimizer.zero_grad(set_to_none=True)
        F.cross_entropy(module(image), label).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        return perf_counter() - start

    return step


def ratios(name: str, options: dict[str, Any], classes: int, batch: int, rounds: int) -> list[float]:
    mine = saccade.create(name, classes=classes).train()
    theirs = timm.create_model("vit_tiny_patch16_224", num_classes=classes, **options).train()
    assert abs(sum(p.numel() for p in theirs.parameters()) - sum(p.numel() for p in mine.parameters())) <= 192
    image = torch.randn(batch, 3, *mine.config.image)
    label = torch.randint(classes, (batch,))
    fused = torch.optim.AdamW(theirs.parameters(), lr=1e-3, weight_decay=0.05, fused=True)
    steps = [stepper(theirs, fused, image, label), stepper(mine, adamw(mine, 1e-3, 0.05), image, label)]
    for step in steps:
        step(), step()
    found = []
    for i in range(rounds):
        order = (0, 1) if i % 2 else (1, 0)
        times = {which: steps[which]() for which in order}
        found.append(times[0] / times[1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=31)
    rounds = parser.parse_args().rounds
    for told, (name, options, classes, batch) in CASES.items():
        low, middle, high = quantiles(ratios(name, options, classes, batch, rounds), n=4)
        print(f"{told:28} timm / saccade: {middle:.2f} (quartiles {low:.2f} to {high:.2f})")


if __name__ == "__main__":
    main()
