"""Accuracy and speed of dropping and merging without training: `python benchmarks/tokens_imagenet.py DATA`.

DATA holds a ViT-Ti in timm's layout and a zip of ImageNet pictures of 224 pixels, in folders named after the
number of their class. One line a candidate: top-1, what was lost against the dense model, how many answers
are still those of the dense model, and the median over batches of (dense time / time), taken in turns, with
its quartiles. With `--file sums.json` it can be stopped at any time and goes on from there.
"""

import argparse
import json
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import median
from time import perf_counter

import torch
from torch import Tensor

import saccade
from saccade.models.vit import ViT
from saccade.tokens.merge import decreasing, merge
from saccade.tokens.prune import prune

WEIGHTS, PICTURES = "vit_tiny_patch16_224.fp16.safetensors", "imagenet_val_1000_224.zip"


def candidates(vit: ViT) -> dict[str, ViT]:
    """The dense model first."""
    made: dict[str, ViT] = {"dense": vit}
    made |= {f"merge r={rate}": merge(vit, rate) for rate in (4, 8, 13, 16)}
    made |= {f"merge r={rate} paper": merge(vit, rate, "paper") for rate in (4, 8, 13, 16)}
    made["merge r=8 down"] = merge(vit, decreasing(vit.config.depth, 8))
    for by in ("attention", "random"):
        made |= {f"{by} {keep}": prune(vit, keep, by=by) for keep in (0.9, 0.8, 0.7, 0.5)}
    return made


def batches(model: saccade.Model, path: Path, size: int, first: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Pictures and the numbers of their classes."""
    preprocess = replace(model.preprocess, crop=1.0)  # the pictures were cropped when the set was made
    with zipfile.ZipFile(path) as archive:
        names = [name for name in archive.namelist() if not name.endswith("/")][first:]
        for start in range(0, len(names), size):
            chunk = names[start : start + size]
            image = preprocess.batch([archive.read(name) for name in chunk])
            yield torch.from_numpy(image), torch.tensor([int(Path(name).parent.name) for name in chunk])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--ways", default="", help="only those whose names begin so, beside the dense model")
    parser.add_argument("--file", type=Path, help="keep the sums here, and go on from those that it holds")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    model = saccade.load(options.data / WEIGHTS)
    assert isinstance(model.module, ViT)
    models = candidates(model.module)
    models = {name: made for name, made in models.items() if name == "dense" or name.startswith(options.ways)}
    right, same = dict.fromkeys(models, 0), dict.fromkeys(models, 0)
    times: dict[str, list[float]] = {name: [] for name in models}
    seen = 0
    if options.file is not None and options.file.exists():
        right, same, times, seen = json.loads(options.file.read_text(encoding="utf-8"))
    for module in models.values():
        with torch.inference_mode():
            module(torch.zeros(options.batch, 3, *model.preprocess.size))
    for image, label in batches(model, options.data / PICTURES, options.batch, seen):
        answers: dict[str, Tensor] = {}
        turns = list(models.items())
        for name, module in turns if seen // options.batch % 2 else [turns[0], *turns[:0:-1]]:
            start = perf_counter()
            with torch.inference_mode():
                answers[name] = module(image).argmax(-1)
            times[name].append(perf_counter() - start)
            right[name] += int((answers[name] == label).sum())
            same[name] += int((answers[name] == answers["dense"]).sum())
        seen += label.shape[0]
        if options.file is not None:
            options.file.write_text(json.dumps([right, same, times, seen]), encoding="utf-8")
    print(f"{seen} pictures, batch {options.batch}, {options.threads} threads")
    print(f"{'way':18}{'top-1 %':>9}{'lost':>7}{'same %':>8}{'speed ratio':>13}{'(quartiles)':>14}")
    for name in models:
        by = sorted(a / b for a, b in zip(times["dense"], times[name], strict=True))
        ratio, spread = median(by), f"({by[len(by) // 4]:.2f}-{by[-1 - len(by) // 4]:.2f})"
        lost = 100 * (right["dense"] - right[name]) / seen
        print(
            f"{name:18}{100 * right[name] / seen:9.1f}{lost:7.1f}{100 * same[name] / seen:8.1f}"
            f"{ratio:13.2f}{spread:>14}"
        )


if __name__ == "__main__":
    main()
