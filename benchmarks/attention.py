"""How full, windowed and chunked attention grow with the number of patches: `python benchmarks/attention.py`.

Time is that of the processor, the least of some rounds taken in turns; memory is the peak that a fresh
process adds. Slopes are those of a straight line through the logarithms: 2 means that twice the patches cost
four times as much.
"""

import argparse
import json
import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from time import process_time

import torch
from torch import Tensor

from saccade.nn.attention import attend, probabilities
from saccade.nn.variants.chunked import chunked
from saccade.nn.variants.windowed import windowed

SIDES = (32, 40, 48, 64)
MEMORY = (32, 48, 64)
HEADS, KEY, WINDOW, CHUNK = 3, 64, 8, 256
Heads = tuple[Tensor, Tensor, Tensor]


def ways(side: int) -> dict[str, Callable[[Heads], Tensor]]:
    """Each on a picture of side x side patches."""
    return {
        "full": lambda x: probabilities(x[0], x[1]) @ x[2],
        "full, fused": lambda x: attend(*x),
        "windowed": lambda x: windowed(*x, (side, side), WINDOW),
        "chunked": lambda x: chunked(*x, size=CHUNK),
    }


def heads(side: int) -> Heads:
    """Queries, keys and values of the patches and a class token."""
    q, k, v = (torch.randn(1, HEADS, side * side + 1, KEY) for _ in range(3))
    return q, k, v


def times(side: int, rounds: int) -> dict[str, float]:
    """Seconds of each way."""
    x, found = heads(side), dict.fromkeys(ways(side), math.inf)
    for _ in range(rounds):
        for name, way in ways(side).items():
            start = process_time()
            with torch.inference_mode():
                way(x)
            found[name] = min(found[name], process_time() - start)
    return found


def peak(name: str, side: int) -> float:
    """MB that one way adds to this process at its peak."""
    x, way = heads(side), ways(side)[name]
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew from here
    before = _high_water()
    with torch.inference_mode():
        way(x)
    return _high_water() - before


def _high_water() -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) / 1024


def fresh(name: str, side: int) -> float:
    """The same in a process of its own."""
    command = [sys.executable, __file__, "--peak", name, str(side)]
    return float(subprocess.run(command, capture_output=True, check=True).stdout)


def slope(points: dict[int, float]) -> float:
    """Of the logarithm, by least squares, against that of the number of patches."""
    x, y = [math.log(side * side) for side in points], [math.log(max(v, 1e-9)) for v in points.values()]
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    over = sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True))
    return over / sum((a - mean_x) ** 2 for a in x)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--peak", nargs=2, metavar=("WAY", "SIDE"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.peak:
        print(json.dumps(peak(options.peak[0], int(options.peak[1]))))
        return
    clock = {side: times(side, options.rounds) for side in SIDES}
    print(f"{'way':14}" + "".join(f"{side * side:>10,}" for side in SIDES) + "   patches, ms; slope of time")
    for name in ways(1):
        seconds = {side: clock[side][name] for side in SIDES}
        told = "".join(f"{1e3 * s:10.1f}" for s in seconds.values())
        print(f"{name:14}{told}{slope(seconds):8.2f}", flush=True)
    print(
        f"{'way':14}" + "".join(f"{side * side:>10,}" for side in MEMORY) + "   patches, MB; slope of memory"
    )
    for name in ways(1):
        added = {side: fresh(name, side) for side in MEMORY}
        told = "".join(f"{mb:10.1f}" for mb in added.values())
        print(f"{name:14}{told}{slope(added):8.2f}", flush=True)


if __name__ == "__main__":
    main()
