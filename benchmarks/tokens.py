"""Dropping and merging patches against the dense model, in one run, as ratios: `python benchmarks/tokens.py`.

`--engine onnx` or `openvino` runs the graphs that `saccade export` writes; eager torch otherwise.

Candidates take turns, so that a slow moment of the machine hits all. A ratio is the median over rounds of
(dense time / time): above 1, fewer patches are faster; `best` compares the fastest rounds, which other work
on the machine spoils least. `last block` is the dense model with its last block for the class token only,
which the others do too. Weights are random, as they do not matter for speed.
"""

import argparse
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import cast

import numpy as np
import onnx
import torch
from torch import Tensor, nn

import saccade
from saccade.data.image.preprocess import Preprocess
from saccade.engine.engine import Engine, release
from saccade.engine.graph.model import build_graph
from saccade.engine.onnx import Onnx
from saccade.engine.openvino import OpenVino
from saccade.engine.torch import Eager
from saccade.models.build import config_of
from saccade.models.vit import ViT
from saccade.nn.patch import Image
from saccade.tokens.cost import Config, macs
from saccade.tokens.merge import decreasing, merge
from saccade.tokens.prune import prune
from saccade.tokens.walk import Walk, run

CIFAR = {"width": 192, "depth": 9, "heads": 3, "hidden": 384}
CASES: dict[str, tuple[str, dict[str, int], tuple[int, ...]]] = {
    "deit_s16": ("deit_s16", {}, (1, 8)),
    "cifar": ("vit_ti4_32", CIFAR, (1, 32)),
    "conv_vit_mini4_32": ("conv_vit_mini4_32", {}, (1, 32)),
}
"""A name, changes to its config, and the batches to measure."""


class Last(nn.Module):
    """The dense model, its last block for the tokens that are read."""

    def __init__(self, vit: ViT) -> None:
        super().__init__()
        self.vit, self.asked = vit, None if vit.config.pool == "mean" else 1

    def forward(self, image: Image) -> Tensor:
        return self.vit.read(run(self.vit, Walk(self.vit, image), self.vit.embed(image), self.asked))


def candidates(vit: ViT) -> dict[str, nn.Module]:
    """The dense model first; the rates of merging are those of 196 patches in 12 blocks, scaled."""
    patches = vit.config.grid[0] * vit.config.grid[1]
    made: dict[str, nn.Module] = {"dense": vit, "last block": Last(vit)}
    made |= {f"keep {keep}": prune(vit, keep) for keep in (0.9, 0.7, 0.5)}
    made["attention 0.7"] = prune(vit, 0.7, by="attention")
    rates = [round(r * patches / 196 * 12 / vit.config.depth) for r in (8, 13, 16)]
    made |= {f"merge r={rate}": merge(vit, rate) for rate in rates}
    made[f"merge r={rates[1]} down"] = merge(vit, decreasing(vit.config.depth, rates[1]))
    return made


def cost(module: nn.Module) -> int:
    """Multiply-accumulates, with all tokens in the last block."""
    vit = module.vit if isinstance(module, Last) else module
    assert isinstance(vit, ViT)
    config = config_of(vit)
    assert isinstance(config, Config)
    return macs(config)


def on(engine: str, module: nn.Module, room: Path) -> Engine:
    """A model on an engine."""
    if engine == "eager":
        return Eager(cast(ViT, module))  # `Last` is asked in the same way
    place = room / f"{len(list(room.iterdir()))}.onnx"
    assert isinstance(module, ViT)
    onnx.save(build_graph(module, Preprocess()), place)
    return (Onnx if engine == "onnx" else OpenVino)(place)


def seconds(engine: Engine, pixels: np.ndarray) -> float:
    start = perf_counter()
    engine.run(pixels)
    return perf_counter() - start


def times(engines: dict[str, Engine], pixels: np.ndarray, rounds: int) -> dict[str, list[float]]:
    """Seconds of each candidate, round by round, in turns."""
    names = list(engines)
    for engine in engines.values():
        seconds(engine, pixels)
    found: dict[str, list[float]] = {name: [] for name in names}
    for i in range(rounds):
        for name in names if i % 2 else names[::-1]:
            found[name].append(seconds(engines[name], pixels))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only", choices=list(CASES), nargs="*", default=list(CASES))
    parser.add_argument("--ways", nargs="*", help="such as 'keep 0.7' 'merge r=13'; default: all of them")
    parser.add_argument("--batches", type=int, nargs="*")
    parser.add_argument("--engine", choices=("eager", "onnx", "openvino"), default="eager")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print(f"{options.engine} {release(options.engine)}, {options.threads} threads, {options.rounds} rounds")
    print(
        f"{'model':18}{'batch':>6}  {'way':16}{'GMAC':>7}{'ratio':>8}{'(quartiles)':>14}{'best':>7}{'ms':>9}"
    )
    for case in options.only:
        name, changes, batches = CASES[case]
        vit = saccade.create(name, classes=1000, **changes).eval()
        assert isinstance(vit, ViT)
        models = candidates(vit)
        if options.ways is not None:
            models = {way: module for way, module in models.items() if way in ("dense", *options.ways)}
        if options.engine != "eager":
            models.pop("last block", None)  # their graphs do that for the dense model too
        for batch in options.batches or batches:
            pixels = np.random.default_rng(0).random((batch, 3, *vit.config.image), dtype=np.float32)
            with TemporaryDirectory() as room:
                engines = {way: on(options.engine, module, Path(room)) for way, module in models.items()}
                found = times(engines, pixels, options.rounds)
            for way, seen in found.items():
                by = sorted(a / b for a, b in zip(found["dense"], seen, strict=True))
                spread = f"({by[len(by) // 4]:.2f}-{by[-1 - len(by) // 4]:.2f})"
                best = min(found["dense"]) / min(seen)
                told = f"{cost(models[way]) / 1e9:7.3f}{median(by):8.2f}{spread:>14}{best:7.2f}"
                print(f"{case:18}{batch:6}  {way:16}{told}{1e3 * median(seen):9.1f}", flush=True)


if __name__ == "__main__":
    main()
