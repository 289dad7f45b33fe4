"""Engines against timm, transformers and bare runtimes, batch by batch in one run, as ratios.

timm and transformers live in an environment of their own (see timm_peer.py); --peers is its interpreter.
The bare runtimes run the plain graph of the whole model with the settings that they start with; `auto` is
what `saccade predict` and `saccade evaluate` run. Candidates take turns, each in a process of its own,
after a pause in which the threads of the one before fall asleep; a turn is the median of the batches that
fit into a quarter of a second, no more than five. A ratio is the median over rounds of (their time / ours):
above 1, ours is faster. `again` is a second process of the bare OpenVINO: how far its ratio to the first is
from 1 tells how much the machine alone makes of nothing.

    python benchmarks/engines.py --peers ENV/bin/python [--size s] [--batch 8] [--rounds 15] [--int8]
"""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median, quantiles
from time import sleep
from typing import Any

NAMES = {"ti": "tiny", "s": "small", "b": "base"}
WORK = """
import sys, time, warnings
warnings.simplefilter("ignore")
import numpy as np
who, graph, size, batch = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
x = np.random.default_rng(0).normal(size=(batch, 3, 224, 224)).astype(np.float32)
SIZES = {"ti": (192, 3), "s": (384, 6), "b": (768, 12)}
if who in ("timm", "transformers"):
    import torch
    library = torch.library.Library("torchvision", "DEF")  # as in timm_peer.py
    for word in ("nms", "qnms"):
        library.define(f"{word}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    if who == "timm":
        import timm
        names = {"ti": "tiny", "s": "small", "b": "base"}
        module = timm.create_model(f"vit_{names[size]}_patch16_224").eval()
    else:
        from transformers import ViTConfig, ViTForImageClassification
        width, heads = SIZES[size]
        module = ViTForImageClassification(ViTConfig(hidden_size=width, num_attention_heads=heads,
            intermediate_size=4 * width, num_labels=1000)).eval()
    picture = torch.from_numpy(x)
    def ask():
        with torch.inference_mode():
            module(picture)
elif who == "onnxruntime":
    import onnxruntime
    session = onnxruntime.InferenceSession(graph)
    def ask():
        session.run(None, {"image": x})
elif who in ("openvino", "again"):
    import openvino
    core = openvino.Core()
    model = core.read_model(graph)
    model.reshape(list(x.shape))
    request = core.compile_model(model, "CPU").create_infer_request()
    def ask():
        request.infer([x])
else:
    from pathlib import Path
    from saccade.engine.select import open_exported
    from saccade.engine.exported import read_exported
    engine = open_exported(read_exported(Path(graph)), "auto", batch)
    def ask():
        engine.run(x)
    print(engine.name, file=sys.stderr)
ask()
print("ready", flush=True)
for _ in sys.stdin:
    taken = []
    while len(taken) < 5 and sum(taken) < 0.25:
        start = time.perf_counter()
        ask()
        taken.append(time.perf_counter() - start)
    print(sorted(taken)[len(taken) // 2], flush=True)
"""


def make(folder: Path, size: str, int8: bool) -> dict[str, Path]:
    """The plain graph of a random model for the bare runtimes, and our exported folders of the same."""
    import numpy as np
    import onnx
    import torch

    import saccade
    from saccade.data.image.preprocess import Preprocess
    from saccade.engine.export import export_model
    from saccade.engine.graph.drawing import draw
    from saccade.weights.load import Loaded

    torch.manual_seed(0)
    module: Any = saccade.create(f"vit_{size}16")
    with torch.no_grad():
        module.head.weight.normal_(std=0.05)
    plain = folder / "plain.onnx"
    onnx.save(draw(module, torch.randn(2, 3, 48, 64), "image", ["b", 3, "h", "w"], ["logits"]), plain)
    loaded = Loaded(module, Preprocess(), [])
    print("float32:", export_model(folder / "float32", loaded, "onnx"), file=sys.stderr)
    made = {"plain": plain, "auto": folder / "float32"}
    if int8:
        chance = np.random.default_rng(1)
        some = [chance.normal(size=(4, 3, 224, 224)).astype(np.float32) for _ in range(2)]
        print("int8:", export_model(folder / "int8", loaded, "onnx", calibration=some), file=sys.stderr)
        made["auto int8"] = folder / "int8"
    return made


def times(made: dict[str, Path], size: str, batch: int, rounds: int, peers: str) -> dict[str, list[float]]:
    """Seconds of each candidate's batches, in the order of the rounds."""
    who = {"auto": (sys.executable, made["auto"])}
    if "auto int8" in made:
        who["auto int8"] = (sys.executable, made["auto int8"])
    who |= dict.fromkeys(("onnxruntime", "openvino", "again"), (sys.executable, made["plain"]))
    who |= dict.fromkeys(("timm", "transformers"), (peers, made["plain"])) if peers else {}
    workers = {}
    room = tempfile.TemporaryDirectory()  # so that `auto` measures in this run
    for name, (python, graph) in who.items():
        command = [python, "-c", WORK, name, str(graph), size, str(batch)]
        workers[name] = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "XDG_CACHE_HOME": room.name},
        )
        assert workers[name].stdout is not None
        assert workers[name].stdout.readline() == "ready\n", name  # type: ignore[union-attr]
    found: dict[str, list[float]] = {name: [] for name in workers}
    for i in range(rounds + 2):
        first = i % len(workers)
        for name in [*list(workers)[first:], *list(workers)[:first]]:
            stdin, stdout = workers[name].stdin, workers[name].stdout
            assert stdin is not None
            assert stdout is not None
            sleep(0.03)  # some runtimes keep their threads awake for a while
            stdin.write("go\n")
            stdin.flush()
            seconds = float(stdout.readline())
            if i >= 2:
                found[name].append(seconds)
    for worker in workers.values():
        assert worker.stdin is not None
        worker.stdin.close()
        worker.wait()
    room.cleanup()
    return found


def told(found: dict[str, list[float]], size: str, batch: int, theirs: str, ours: str) -> float:
    """Print how two candidates compare, and return the ratio."""
    pairs = zip(found[theirs], found[ours], strict=True)
    low, middle, high = quantiles([a / b for a, b in pairs], n=4)
    print(
        f"{size:2} batch {batch}  {theirs:12} / {ours:9} {middle:.2f} "
        f"(quartiles {low:.2f} to {high:.2f}; medians {median(found[theirs]) * 1e3:.1f} "
        f"and {median(found[ours]) * 1e3:.1f} ms)",
        flush=True,
    )
    return middle


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--peers", default="")
    parser.add_argument("--size", choices=NAMES, action="append")
    parser.add_argument("--batch", type=int, action="append")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--int8", action="store_true")
    parser.add_argument("--keep", type=Path, help="Where the graphs are made, or were made before.")
    words = parser.parse_args()
    for size in words.size or NAMES:
        with tempfile.TemporaryDirectory() as scratch:
            folder = (words.keep or Path(scratch)) / size
            made = {"plain": folder / "plain.onnx", "auto": folder / "float32"}
            if words.int8:
                made["auto int8"] = folder / "int8"
            if not all(path.exists() for path in made.values()):
                folder.mkdir(parents=True, exist_ok=True)
                made = make(folder, size, words.int8)
            for batch in words.batch or (1, 8):
                found = times(made, size, batch, words.rounds, words.peers)
                peers = [name for name in found if name != "again" and not name.startswith("auto")]
                for ours in (name for name in found if name.startswith("auto")):
                    ratios = {theirs: told(found, size, batch, theirs, ours) for theirs in peers}
                    worst = min(ratios, key=ratios.__getitem__)
                    print(f"{size:2} batch {batch}  {ours} is {ratios[worst]:.2f} x the fastest, {worst}")
                told(found, size, batch, "again", "openvino")


if __name__ == "__main__":
    main()
