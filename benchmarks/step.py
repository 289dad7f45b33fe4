"""A training step (forward, backward, fused AdamW) against timm in eager mode, in one run, as ratios.

timm needs an environment of its own (see timm_peer.py). Each candidate has a process of its own, set up as
its training sets it up: ours keeps freed memory (processes.py), timm's is left as Python starts it. They
take turns step by step, so that a slow moment of the machine hits both. The ratio is the median over rounds
of (their time / ours): above 1, ours is faster.
"""

import argparse
import multiprocessing
from multiprocessing.connection import Connection
from statistics import median, quantiles
from time import perf_counter
from typing import Any

CASES: dict[str, tuple[str, dict[str, Any], int, int]] = {
    "small CIFAR ViT, batch 128": (
        "vit_xs4_32",
        {"img_size": 32, "patch_size": 4, "embed_dim": 64, "depth": 4, "num_heads": 4, "mlp_ratio": 2},
        10,
        128,
    ),
    "ViT-Ti/16, batch 16": ("vit_ti16", {}, 1000, 16),
}
WHO = {"timm": (False, False), "saccade": (True, True), "saccade, memory given back": (True, False)}
"""Each candidate: is it ours, does it keep freed memory."""


def work(pipe: Connection, case: str, ours: bool, keep: bool) -> None:
    """Time one step whenever asked, until told to end."""
    import torch
    import torch.nn.functional as F
    from timm_peer import timm

    import saccade
    from saccade.processes import keep_freed_memory
    from saccade.train.optim import adamw

    if keep:
        assert keep_freed_memory()
    name, options, classes, batch = CASES[case]
    torch.manual_seed(0)
    module: Any = saccade.create(name, classes=classes)
    image = torch.randn(batch, 3, *module.config.image)
    label = torch.randint(classes, (batch,))
    if ours:
        optimizer = adamw(module, 1e-3, 0.05)
    else:
        count = sum(p.numel() for p in module.parameters())
        module = timm.create_model("vit_tiny_patch16_224", num_classes=classes, **options)
        assert abs(sum(p.numel() for p in module.parameters()) - count) <= 192
        optimizer = torch.optim.AdamW(module.parameters(), lr=1e-3, weight_decay=0.05, fused=True)
    module.train()
    pipe.send(0.0)
    while pipe.recv():
        start = perf_counter()
        optimizer.zero_grad(set_to_none=True)
        F.cross_entropy(module(image), label).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        pipe.send(perf_counter() - start)


def times(case: str, rounds: int) -> dict[str, list[float]]:
    """Seconds of each candidate's steps, in the order of the rounds."""
    context = multiprocessing.get_context("spawn")
    pipes, workers = {}, []
    for who, (ours, keep) in WHO.items():
        pipes[who], theirs = context.Pipe()
        workers.append(context.Process(target=work, args=(theirs, case, ours, keep), daemon=True))
        workers[-1].start()
        pipes[who].recv()
    found: dict[str, list[float]] = {who: [] for who in WHO}
    for i in range(rounds + 3):
        for who in list(WHO)[:: 1 if i % 2 else -1]:
            pipes[who].send(True)
            seconds = pipes[who].recv()
            if i >= 3:
                found[who].append(seconds)
    for pipe, worker in zip(pipes.values(), workers, strict=True):
        pipe.send(False)
        worker.join()
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=31)
    rounds = parser.parse_args().rounds
    for case in CASES:
        found = times(case, rounds)
        for who in list(WHO)[1:]:
            ratios = [a / b for a, b in zip(found["timm"], found[who], strict=True)]
            low, middle, high = quantiles(ratios, n=4)
            print(
                f"{case:28} timm / {who:27} {middle:.2f} (quartiles {low:.2f} to {high:.2f}; "
                f"medians {median(found['timm']):.3f} and {median(found[who]):.3f} s)",
                flush=True,
            )


if __name__ == "__main__":
    main()
