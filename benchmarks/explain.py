"""What `relevance` costs beside a plain forward pass and the usual way to compute it: speed and memory.

The usual way is that of Chefer, Gur, Wolf 2021 as one would write it down from the paper: run the model with
every activation kept, take the gradient of the logit by every attention matrix, then ask autograd for the
relevance of each layer in turn, from the positive and the negative parts of its input and its weights.

All take turns in one run, so that a slow moment of the machine hits each; a ratio is the median over rounds.
Memory is what a fresh process adds at its peak to that of the loaded model.

The last line compares plain forward passes of two processes that take turns: one has imported every module of
`explain` and explained a picture, the other has not. It is of processor time.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from time import perf_counter

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn

import saccade
from saccade.explain.methods.relevance import generic, relevance
from saccade.explain.replay import Moment, moments
from saccade.models.vit import ViT

NAME = "vit_b16"
ANSWERS = """
import importlib, pkgutil, sys, torch, saccade
from time import process_time
vit, image = saccade.create("vit_ti16").eval(), torch.rand(1, 3, 224, 224)
if sys.argv[1] == "explain":
    import saccade.explain
    for found in pkgutil.walk_packages(saccade.explain.__path__, "saccade.explain."):
        importlib.import_module(found.name)
    sys.modules["saccade.explain.methods.relevance"].relevance(vit, image, torch.tensor([3]))
for _ in sys.stdin:
    start = process_time()
    with torch.inference_mode():
        for _ in range(10):
            vit(image)
    print(process_time() - start, flush=True)
"""


def _linear(layer: nn.Linear, x: Tensor, r: Tensor) -> Tensor:
    """Eq. 5 from the four parts."""
    parts = [x.clamp(min=0).detach().requires_grad_(), x.clamp(max=0).detach().requires_grad_()]
    weights = layer.weight.detach().clamp(min=0), layer.weight.detach().clamp(max=0)
    with torch.enable_grad():
        z = [F.linear(part, weight) for part, weight in zip(parts, weights, strict=True)]
        s = r / (z[0] + z[1]).detach().clamp_min(1e-9)
        found = [torch.autograd.grad(one, part, s)[0] for one, part in zip(z, parts, strict=True)]
    return (parts[0] * found[0] + parts[1] * found[1]).detach()


def _two(f: Callable[[Tensor, Tensor], Tensor], u: Tensor, v: Tensor, r: Tensor) -> tuple[Tensor, Tensor]:
    """Eq. 7, then Eq. 9."""
    u, v = u.detach().requires_grad_(), v.detach().requires_grad_()
    with torch.enable_grad():
        z = f(u, v)
        s = r / torch.where(z == 0, 1e-9, z).detach()
        gu, gv = torch.autograd.grad(z, (u, v), s)
    ru, rv = (u * gu).detach(), (v * gv).detach()
    a, b = ru.sum(), rv.sum()
    factor = r.sum() / (a.abs() + b.abs())
    return ru * factor * a.sign(), rv * factor * b.sign()


def _flat(x: Tensor) -> Tensor:
    return rearrange(x, "b h n k -> b n (h k)")


def _through(moment: Moment, r: Tensor) -> tuple[Tensor, Tensor]:
    """Relevance of a block's attention and of what enters it."""
    block, layers = moment.block, moment.block.attention
    x = block.norm2(moment.middle)
    skip, r = _two(torch.add, moment.middle, moment.out - moment.middle, r)
    r = skip + _linear(block.mlp.up, x, _linear(block.mlp.down, F.gelu(block.mlp.up(x)), r))
    skip, r = _two(torch.add, moment.z, moment.middle - moment.z, r)
    r = _linear(layers.out, _flat(moment.heads), r)
    r = r.unflatten(-1, (layers.heads, -1)).transpose(1, 2)  # type: ignore[no-untyped-call]
    rp, rv = _two(torch.matmul, moment.attention, moment.v, r)
    rq, rk = _two(torch.matmul, moment.q, moment.k.mT, rp)
    x = block.norm1(moment.z)
    for layer, part in ((layers.q, rq), (layers.k, rk.mT), (layers.v, rv)):
        skip = skip + _linear(layer, x, _flat(part))
    return rp, skip


def usual(vit: ViT, image: Tensor, target: Tensor) -> Tensor:
    """A map, the usual way."""
    kept = list(moments(vit, image, explicit=True))
    z = kept[-1].out
    score = vit.read(z).gather(1, target[:, None]).sum()
    gradients = torch.autograd.grad(score, [moment.attention for moment in kept])
    with torch.no_grad():
        head, r = vit.head, torch.zeros_like(z)
        assert isinstance(head, nn.Linear)
        one = F.one_hot(target, head.weight.shape[0]).float()
        r[:, 0] = _linear(head, vit.features(z), one)
        rolled = torch.eye(z.shape[1])
        for moment, g in zip(reversed(kept), reversed(gradients), strict=True):
            rp, r = _through(moment, r)
            rolled = rolled @ (torch.eye(z.shape[1]) + (g * rp).clamp(min=0).mean(1)[0])
    return rolled[0, 1:]


def forward(vit: ViT, image: Tensor, _: Tensor) -> Tensor:
    """An answer."""
    with torch.inference_mode():
        return vit(image)


WAYS: dict[str, Callable[[ViT, Tensor, Tensor], Tensor]] = {
    "forward": forward,
    "relevance": relevance,
    "generic": generic,
    "usual": usual,
}


def made(name: str) -> tuple[ViT, Tensor, Tensor]:
    torch.manual_seed(0)
    vit = saccade.create(name).eval()
    assert isinstance(vit, ViT)
    for p in vit.head.parameters():
        nn.init.normal_(p, std=0.02)
    return vit, torch.rand(1, 3, *vit.config.image), torch.tensor([3])


def times(name: str, rounds: int) -> list[dict[str, float]]:
    """Seconds of each way, round after round."""
    given, found = made(name), []
    for number in range(rounds + 1):
        order = list(WAYS) if number % 2 else list(WAYS)[::-1]
        taken = {}
        for way in order:
            start = perf_counter()
            WAYS[way](*given)
            taken[way] = perf_counter() - start
        found.append(taken)
    return found[1:]  # the first round warms up


def _high_water() -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) / 1024


def peak(way: str, name: str) -> float:
    """MB that a way adds to a process which holds the model, at its peak."""
    given = made(name)
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew from here
    before = _high_water()
    for _ in range(3):
        WAYS[way](*given)
    return _high_water() - before


def peaks(way: str, name: str, count: int = 3) -> float:
    """The median over fresh processes; the allocator's luck makes them differ."""
    command = [sys.executable, __file__, "--peak", way, "--name", name]
    runs = (subprocess.run(command, capture_output=True, check=True) for _ in range(count))
    return median(float(run.stdout) for run in runs)


def unchanged(rounds: int) -> list[float]:
    """How many times as fast a plain pass is once `explain` has been imported and used, round by round."""
    found: dict[str, list[float]] = {"plain": [], "explain": []}
    with ExitStack() as stack:
        asked = {
            way: stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-c", ANSWERS, way],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                    bufsize=1,
                )
            )
            for way in found
        }
        for number in range(rounds + 1):
            for way in list(found)[:: 1 if number % 2 else -1]:
                given, answer = asked[way].stdin, asked[way].stdout
                assert given is not None
                assert answer is not None
                given.write("\n")
                found[way].append(float(answer.readline()))
    pairs = zip(found["plain"][1:], found["explain"][1:], strict=True)
    return sorted(plain / explain for plain, explain in pairs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--name", default=NAME)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--peak", choices=WAYS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.peak:
        print(json.dumps(peak(options.peak, options.name)))
        return
    print(f"{options.name}, one picture, torch {torch.__version__}, {torch.get_num_threads()} threads")
    print(f"{'':10}{'ms':>8}{'x forward':>11}{'usual / it':>12}{'MB':>8}{'x forward':>11}")
    found = times(options.name, options.rounds)
    memory = {way: peaks(way, options.name) for way in WAYS}
    for way in WAYS:
        own = median(taken[way] for taken in found) * 1000
        ratio = median(taken[way] / taken["forward"] for taken in found)
        gain = median(taken["usual"] / taken[way] for taken in found)
        told = f"{way:10}{own:8.0f}{ratio:11.2f}{gain:12.2f}{memory[way]:8.0f}"
        print(f"{told}{memory[way] / memory['forward']:11.2f}", flush=True)
    ratios = unchanged(4 * options.rounds)
    low, high = ratios[len(ratios) // 4], ratios[3 * len(ratios) // 4]
    print(
        f"plain forward of vit_ti16 with explain imported: {median(ratios):.3f} x ({low:.3f} to {high:.3f})"
    )


if __name__ == "__main__":
    main()
