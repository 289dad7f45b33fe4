"""JPEG bytes to a model's input against torchvision-style Pillow code, on one core, in one run, as ratios.

Both theirs do what torchvision's Resize(256, bicubic), CenterCrop(224), ToTensor and Normalize do: one with
torchvision's own steps in torch, one with the usual numpy lines. Ours is `Preprocess`, exact (the default,
for answers) and fast (for training). Candidates take turns; the ratio is the median over rounds of
(their time / ours): above 1, ours is faster.
"""

import argparse
import io
import os
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import process_time

import numpy as np
import PIL
import torch
from PIL import Image, features

from saccade.data.image.preprocess import IMAGENET, Preprocess

MEAN, STD = (np.array(values, dtype=np.float32) for values in IMAGENET)
PREPROCESS = Preprocess(crop=0.875, mean=IMAGENET[0], std=IMAGENET[1])


def photograph(height: int, width: int) -> bytes:
    """Smooth shapes and grain as a JPEG of quality 90; 500 x 375 takes 70 kB, as photographs do."""
    y, x = np.mgrid[:height, :width] / max(height, width)
    shapes = np.stack([40 + 180 * x, 30 + 200 * y, 220 - 90 * x - 90 * y], axis=-1)
    grain = np.random.default_rng(0).normal(0, 12, (height, width, 3))
    buffer = io.BytesIO()
    Image.fromarray(np.clip(shapes + grain, 0, 255).astype(np.uint8)).save(buffer, "JPEG", quality=90)
    return buffer.getvalue()


def cropped(data: bytes) -> Image.Image:
    picture = Image.open(io.BytesIO(data)).convert("RGB")
    ratio = 256 / min(picture.size)
    wide, tall = (int(side * ratio) for side in picture.size)
    left, top = round((wide - 224) / 2), round((tall - 224) / 2)
    whole = picture.resize((wide, tall), Image.Resampling.BICUBIC)
    return whole.crop((left, top, left + 224, top + 224))


def theirs_numpy(data: bytes) -> np.ndarray:
    samples = np.asarray(cropped(data)).astype(np.float32) / 255
    return np.ascontiguousarray(((samples - MEAN) / STD).transpose(2, 0, 1))


def theirs_torch(data: bytes) -> np.ndarray:
    samples = torch.from_numpy(np.array(cropped(data), copy=True)).permute(2, 0, 1).contiguous()
    image = samples.to(torch.float32).div(255)
    mean, std = (torch.as_tensor(values).view(-1, 1, 1) for values in (MEAN, STD))
    return image.clone().sub_(mean).div_(std).numpy()


def ours_exact(data: bytes) -> np.ndarray:
    return PREPROCESS(data)


def ours_fast(data: bytes) -> np.ndarray:
    return PREPROCESS(data, fast=True)


Candidate = Callable[[bytes], np.ndarray]
CANDIDATES: tuple[Candidate, ...] = (theirs_numpy, theirs_torch, ours_exact, ours_fast)


def run(candidate: Candidate, data: bytes, times: int) -> float:
    """Seconds of the processor for one picture, the mean of some in a row: a loader too does nothing else."""
    start = process_time()
    for _ in range(times):
        candidate(data)
    return (process_time() - start) / times


def measure(data: bytes, rounds: int, times: int) -> list[dict[Candidate, float]]:
    for candidate in CANDIDATES:
        run(candidate, data, times)
    found = []
    for i in range(rounds):
        first = i % len(CANDIDATES)
        found.append({c: run(c, data, times) for c in CANDIDATES[first:] + CANDIDATES[:first]})
    return found


def grey_levels(found: np.ndarray, expected: np.ndarray) -> tuple[float, int]:
    """The mean and the largest difference of the pixels behind two inputs, of 255."""
    gap = np.abs(PREPROCESS.undo(found).astype(int) - PREPROCESS.undo(expected))
    return float(gap.mean()), int(gap.max())


def report(name: str, data: bytes, rounds: int, times: int) -> None:
    print(f"\n{name}, {len(data) / 1000:.0f} kB")
    print(f"{'':14}{'ms':>7}{'x numpy':>9}{'(quartiles)':>15}{'x torch':>9}{'grey levels: mean, max':>26}")
    found = measure(data, rounds, times)
    expected = theirs_torch(data)
    for candidate in CANDIDATES:
        mine = median(times[candidate] for times in found)
        ratios = sorted(times[theirs_numpy] / times[candidate] for times in found)
        strict = median(times[theirs_torch] / times[candidate] for times in found)
        spread = f"({ratios[len(ratios) // 4]:.2f}-{ratios[-len(ratios) // 4]:.2f})"
        mean, most = grey_levels(candidate(data), expected)
        told = f"{candidate.__name__:14}{mine * 1e3:7.2f}{median(ratios):9.2f}{spread:>15}{strict:9.2f}"
        print(f"{told}{mean:22.4f}, {most}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pictures", nargs="*", type=Path, help="JPEG files to measure instead")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument(
        "--times", type=int, default=10, help="pictures in a row for each candidate in a round"
    )
    options = parser.parse_args()
    torch.set_num_threads(1)
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    turbo = features.version("libjpeg_turbo")
    print(f"Pillow {PIL.__version__} (libjpeg-turbo {turbo}), torch {torch.__version__}, one thread")
    for path in options.pictures:
        report(path.name, path.read_bytes(), options.rounds, options.times)
    if not options.pictures:
        report("500 x 375", photograph(375, 500), options.rounds, options.times)
        report("4000 x 3000", photograph(3000, 4000), max(options.rounds // 10, 3), 1)


if __name__ == "__main__":
    main()
