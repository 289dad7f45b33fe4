"""What `saccade train PHOTOS` reaches with pretrained weights and no options, beside a probe of the same.

    python benchmarks/finetune.py DATA [--keep FOLDER] [--only default]

DATA holds vit_tiny_patch16_224.fp16.safetensors and three archives of photographs: oxford_pets_128_1480.zip,
ants_bees_256.zip, and imagenet_val_1000_224.zip with one image of each class in folders named by its number.
They become a dataset of 2,690 photographs in 47 classes: 37 breeds of cats and dogs, ants, bees, and eight
broad classes of ImageNet. The weights are put into a cache as the hub would, under the name vit_ti16.augreg,
and HF_HUB_OFFLINE is set. Each command runs in a process of its own; neither finds features of the other.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path
from time import monotonic

from saccade.metrics.interval import wilson
from saccade.weights.pretrained import PRETRAINED, SMALL

GROUPS = {  # the classes of ImageNet by number; dogs and domestic cats are left to the pets
    "bird": ((7, 25), (80, 101), (127, 147)),
    "fish": ((0, 7), (389, 398)),
    "food": ((924, 970),),
    "landscape": ((970, 981),),
    "mammal": ((101, 107), (147, 151), (269, 281), (286, 300), (330, 389)),
    "plant": ((984, 1000),),
    "reptile": ((25, 69),),
    "thing": ((398, 924),),
}
WEIGHTS = "vit_tiny_patch16_224.fp16.safetensors"
CONFIG = {
    "architecture": "vit_tiny_patch16_224",
    "num_classes": 1000,
    "num_features": 192,
    "global_pool": "token",
    "pretrained_cfg": {
        "input_size": [3, 224, 224],
        "interpolation": "bicubic",
        "crop_pct": 0.9,
        "mean": [0.5] * 3,
        "std": [0.5] * 3,
        "num_classes": 1000,
    },
}


def group(number: int) -> str:
    """Return the broad class of one of ImageNet's, or nothing."""
    return next((name for name, spans in GROUPS.items() if any(a <= number < b for a, b in spans)), "")


def make_photos(data: Path, folder: Path) -> int:
    """Write the class folders; return how many photographs there are."""
    count = 0
    for archive in ("oxford_pets_128_1480.zip", "ants_bees_256.zip", "imagenet_val_1000_224.zip"):
        with zipfile.ZipFile(data / archive) as found:
            for member in found.namelist():
                *parents, name = member.split("/")
                if len(parents) == 2 and parents[0] in ("train", "val"):
                    label = parents[1]
                else:
                    label = group(int(parents[0])) if len(parents) == 1 and parents[0].isdecimal() else ""
                if label and name:
                    path = folder / label / name
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_bytes(found.read(member))
                    count += 1
    return count


def make_cache(data: Path, home: Path) -> None:
    """Write the weights where the hub's client would have put them."""
    repository = home / "hub" / f"models--{PRETRAINED[SMALL].hub.replace('/', '--')}"
    snapshot = repository / "snapshots" / ("0" * 40)
    snapshot.mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("0" * 40)
    shutil.copy(data / WEIGHTS, snapshot / "model.safetensors")
    (snapshot / "config.json").write_text(json.dumps(CONFIG))


def measure(photos: Path, home: Path, out: Path, options: Sequence[str]) -> str:
    """Train in a process of its own; return the accuracy with its interval, and the time."""
    environment = {**os.environ, "HF_HOME": str(home), "HF_HUB_OFFLINE": "1"}
    words = [sys.executable, "-m", "saccade", "train", str(photos), *options, "--out", str(out)]
    load, began = os.getloadavg()[0], monotonic()
    subprocess.run(words, check=True, env=environment)
    seconds = monotonic() - began
    scores = json.loads((out / "evaluation.json").read_text(encoding="utf-8"))["scores"]
    low, high = wilson(int(scores["correct"]), int(scores["count"]))
    return (
        f"{scores['accuracy']:.1%} of {scores['count']} (95% CI {low:.1%} to {high:.1%}), "
        f"{seconds / 60:.1f} min, load {load:.1f} before and {os.getloadavg()[0]:.1f} after"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path)
    parser.add_argument("--keep", type=Path, help="where to keep the photographs and the runs")
    parser.add_argument("--only", choices=("default", "probe"))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        place = options.keep or Path(scratch)
        photos, home = place / "photos", place / "home"
        if not photos.exists():
            print(f"{make_photos(options.data, photos):,} photographs in {photos}", file=sys.stderr)
            make_cache(options.data, home)
        for name, words in (("default", []), ("probe", ["--probe"])):
            if options.only in (None, name):
                found = measure(photos, home, place / name / "run", words)
                print(f"saccade train photos {' '.join(words)}: {found}", flush=True)


if __name__ == "__main__":
    main()
