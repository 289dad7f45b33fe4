"""How long `import saccade`, `saccade --help` and a first prediction take, in fresh processes: the best.

The prediction is of an exported ViT-Ti, on the engine that `auto` remembers for one picture.
"""

import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

COMMANDS: dict[str, tuple[list[str], float | None]] = {
    "python -c pass": ([sys.executable, "-c", "pass"], None),
    "import saccade": ([sys.executable, "-c", "import saccade"], 0.1),
    "saccade --help": ([str(Path(sys.executable).with_name("saccade")), "--help"], 0.35),
}


def best(command: list[str], times: int = 7) -> float:
    """Seconds of the fastest run."""
    found = []
    for _ in range(times):
        start = perf_counter()
        subprocess.run(command, check=True, capture_output=True)
        found.append(perf_counter() - start)
    return min(found)


def predict(folder: Path) -> list[str]:
    """The command that asks an exported ViT-Ti of random weights about a picture, once it has measured."""
    import numpy as np
    from PIL import Image

    import saccade
    from saccade.data.image.preprocess import Preprocess
    from saccade.engine.export import export_model
    from saccade.weights.load import Loaded

    export_model(folder / "ti", Loaded(saccade.create("vit_ti16"), Preprocess(), []), "onnx")
    pixels = np.random.default_rng(0).integers(0, 256, (375, 500, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(folder / "picture.jpg")
    command = [*COMMANDS["saccade --help"][0][:1], "predict", str(folder / "ti"), str(folder / "picture.jpg")]
    subprocess.run(command, check=True, capture_output=True)
    return command


def main() -> None:
    with TemporaryDirectory() as scratch:
        report({**COMMANDS, "saccade predict": (predict(Path(scratch)), 0.8)})


def report(commands: dict[str, tuple[list[str], float | None]]) -> None:
    """Print a line for each."""
    for name, (command, limit) in commands.items():
        told = "" if limit is None else f"(limit {limit} s)"
        print(f"{name:16} {best(command):.3f} s  {told}")


if __name__ == "__main__":
    main()
