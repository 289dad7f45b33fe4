"""Forward speed and memory against transformers (sdpa), in one run, as ratios: `make bench`.

Candidates take turns, so that a slow moment of the machine hits both. The ratio is the median over rounds of
(their time / ours): above 1, ours is faster. Memory is the peak of a fresh process that runs one of the two.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import torch
import transformers

import saccade

SIZES = {"vit_ti16": (192, 3, 768), "vit_s16": (384, 6, 1536)}


def theirs(name: str) -> Any:
    width, heads, hidden = SIZES[name]
    sizes = {"hidden_size": width, "num_attention_heads": heads, "intermediate_size": hidden}
    config = transformers.ViTConfig(**sizes, num_labels=1000, attn_implementation="sdpa")
    return transformers.ViTForImageClassification(config).eval()


def ours(name: str) -> Any:
    return saccade.create(name).eval()


def run(model: Any, image: torch.Tensor) -> float:
    start = perf_counter()
    with torch.inference_mode():
        model(image)
    return perf_counter() - start


def ratios(name: str, batch: int, rounds: int) -> list[float]:
    image = torch.rand(batch, 3, 224, 224)
    peer, mine = theirs(name), ours(name)
    for model in (peer, mine):
        for _ in range(2):
            run(model, image)
    found = []
    for i in range(rounds):
        first, second = (peer, mine) if i % 2 else (mine, peer)
        times = {id(model): run(model, image) for model in (first, second)}
        found.append(times[id(peer)] / times[id(mine)])
    return found


def peak(who: str, name: str, batch: int) -> float:
    """MB that running forward adds to a process which holds the model, at its peak."""
    model = {"theirs": theirs, "ours": ours}[who](name)
    image = torch.rand(batch, 3, 224, 224)
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew from here
    before = _high_water()
    for _ in range(3):
        run(model, image)
    return _high_water() - before


def peaks(who: str, name: str, batch: int, times: int = 3) -> list[float]:
    """The peaks of fresh processes; the allocator's luck makes them differ."""
    command = [sys.executable, __file__, "--peak", who, name, str(batch)]
    return [float(subprocess.run(command, capture_output=True, check=True).stdout) for _ in range(times)]


def _high_water() -> float:
    line = next(
        line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")
    )
    return int(line.split()[1]) / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--peak", nargs=3, metavar=("WHO", "NAME", "BATCH"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.peak:
        who, name, batch = options.peak
        print(json.dumps(peak(who, name, int(batch))))
        return
    versions = f"torch {torch.__version__}, transformers {transformers.__version__}"
    print(f"{versions}, {torch.get_num_threads()} threads")
    print(
        f"{'model':10}{'batch':>6}{'speed ratio':>13}{'(quartiles)':>15}{'memory, MB: theirs':>20}{'ours':>7}"
    )
    for name in SIZES:
        for batch in (1, 16):
            found = sorted(ratios(name, batch, options.rounds if batch == 1 else max(options.rounds // 2, 5)))
            memory = [median(peaks(who, name, batch)) for who in ("theirs", "ours")]
            low, high = found[len(found) // 4], found[-len(found) // 4]
            spread = f"({low:.2f}-{high:.2f})"
            told = f"{name:10}{batch:6}{median(found):13.2f}{spread:>15}{memory[0]:20.0f}{memory[1]:7.0f}"
            print(told, flush=True)


if __name__ == "__main__":
    main()
