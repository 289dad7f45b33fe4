"""What a busy machine costs: training steps beside other programs, by OpenMP's waiting policy and threads.

Threads that wait for one another by spinning (OpenMP's default) take the processor from the very thread
that they wait for, once other programs want it too. Each setting runs in fresh processes: on the machine as
it is, and beside as many busy loops as there are cores. With n threads on c cores and b busy loops a fair
scheduler leaves us a share of min(1, c / (n + b)) of the cores that we use; the cost is the slowdown times
that share: 1 is fair, and `saccade` may cost 1.5 at most. The settings take turns, round by round; medians.
"""

import argparse
import os
import subprocess
import sys
from statistics import median
from time import perf_counter

CASES = {
    "small ViT on 96 px, batch 32": ("conv_vit_xs16_96", 32),
    "small ViT on 32 px, batch 64": ("vit_xs4_32", 64),
    "ViT-Ti/16, batch 8": ("vit_ti16", 8),
}
SETTINGS: dict[str, dict[str, str]] = {
    "OpenMP's default": {},
    "spin 10,000 times": {"GOMP_SPINCOUNT": "10000"},
    "spin 1,000 times": {"GOMP_SPINCOUNT": "1000"},
    "passive": {"OMP_WAIT_POLICY": "PASSIVE"},
    "one thread": {"OMP_NUM_THREADS": "1"},
}
BUSY = "while True: pass"
OURS = "saccade"


def work(name: str, batch: int, seconds: float) -> None:
    """Train for some seconds; print images per second and the number of threads."""
    import torch
    import torch.nn.functional as F

    import saccade
    from saccade.processes import keep_freed_memory
    from saccade.train.optim import adamw

    keep_freed_memory()
    torch.manual_seed(0)
    module = saccade.create(name, classes=10)
    image = torch.randn(batch, 3, *module.config.image)
    label = torch.randint(10, (batch,))
    optimizer = adamw(module, 1e-3, 0.05)
    done, start = -3, perf_counter()
    while perf_counter() - start < seconds:
        optimizer.zero_grad()
        F.cross_entropy(module(image), label).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        done += 1
        if done == 0:  # the first steps are slower
            start = perf_counter()
    print(done * batch / (perf_counter() - start), torch.get_num_threads())


def rate(case: str, setting: dict[str, str], busy: int, seconds: float) -> tuple[float, int]:
    """Return the images per second beside this many busy loops, and the threads."""
    name, batch = CASES[case]
    others = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(busy)]
    try:
        command = [sys.executable, __file__, "--work", name, "--batch", str(batch), "--seconds", str(seconds)]
        done = subprocess.run(
            command, check=True, capture_output=True, text=True, env={**os.environ, **setting}
        )
    finally:
        for other in others:
            other.kill()
            other.wait()
    found, threads = done.stdout.split()
    return float(found), int(threads)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--work", metavar="MODEL", help=argparse.SUPPRESS)
    parser.add_argument("--batch", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--seconds", type=float, default=5.0, help="for each measurement")
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    if given.work:
        work(given.work, given.batch, given.seconds)
        return
    from saccade.libraries import OPENMP

    settings = {**SETTINGS, OURS: OPENMP}
    cores = len(os.sched_getaffinity(0))
    print(f"{cores} cores; images per second alone, beside {cores} busy loops, and the cost (1 is fair)")
    for case in CASES:
        print(f"\n{case}")
        quiet: dict[str, list[float]] = {name: [] for name in settings}
        busy: dict[str, list[float]] = {name: [] for name in settings}
        threads = {}
        for _ in range(given.rounds):
            for name, setting in settings.items():
                alone, threads[name] = rate(case, setting, 0, given.seconds)
                quiet[name].append(alone)
                busy[name].append(rate(case, setting, cores, given.seconds)[0])
        for name in settings:
            alone, beside = median(quiet[name]), median(busy[name])
            cost = alone / beside * min(1.0, cores / (threads[name] + cores))
            print(f"{name:18} {alone:7.1f} {beside:7.1f}   cost {cost:4.2f}")


if __name__ == "__main__":
    main()
