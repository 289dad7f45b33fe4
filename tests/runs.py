"""Run folders as training writes them, made in a moment: curves that look like a run's, and real scores."""

import base64
import csv
import io
import json
import math

import numpy as np
from PIL import Image

from saccade.metrics.classify import scores

BEGAN = 1_790_000_000.0
HOSTILE = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "\x1b[31mred\x1b[0m",
    "gnp\u202eexe",
    "$\\frac{1}{0}$",
    "& &amp; 'quoted'",
    "猫",
    "كلب",
    "n" * 300,
    "</title></style><b>",
]


def thumbnail(seed, side=48, kind="JPEG"):
    rng = np.random.default_rng(seed)
    x, y = np.meshgrid(*[np.linspace(0, 1, side)] * 2)
    a, b, c = rng.random(3), rng.random(3), rng.random(3)
    pixels = np.clip(x[..., None] * a + y[..., None] * b + 0.3 * c, 0, 1) * 255
    made = io.BytesIO()
    Image.fromarray(pixels.astype(np.uint8)).save(made, kind)
    return base64.b64encode(made.getvalue()).decode()


def judged(classes, pictures, seed=0, skill=4.0):
    """Probabilities and labels of a model that is mostly right and takes some neighbours for each other."""
    rng = np.random.default_rng(seed)
    labels = np.arange(pictures) % classes
    logits = rng.normal(size=(pictures, classes))
    logits[np.arange(pictures), labels] += skill
    logits[np.arange(pictures), (labels + 1) % classes] += skill * 0.55 * (labels % 3 == 0)
    p = np.exp(1.8 * logits)
    return p / p.sum(1, keepdims=True), labels


def events(epochs, per_epoch, killed=False):
    """Lines of events.jsonl: start, steps, epochs, saves, end."""
    rng, time, steps = np.random.default_rng(1), BEGAN, epochs * per_epoch
    yield {"kind": "start", "time": time, "step": 0, "epoch": 0.0, "parameters": 5_543_716}
    for step in range(1, steps + 1):
        time += 0.21 + 0.02 * rng.random()
        share = step / steps
        rate = 1e-3 * (share / 0.1 if share < 0.1 else 0.5 + 0.5 * math.cos(math.pi * (share - 0.1) / 0.9))
        loss = 0.3 + 3.2 * math.exp(-5 * share) + 0.1 * rng.random()
        numbers = {"loss": loss, "lr": rate, "accuracy": 1 - loss / 4, "images_per_second": 300.0}
        yield {"kind": "step", "time": time, "step": step, "epoch": step / per_epoch, **numbers}
        if step % per_epoch == 0:
            time += 1.5
            yield {
                "kind": "epoch",
                "time": time,
                "step": step,
                **epoch(step // per_epoch, epochs, step, rate),
            }
            yield {"kind": "save", "time": time + 0.2, "step": step, "epoch": step / per_epoch}
    yield {"kind": "note", "time": time, "step": steps, "text": "the head was replaced: 1000 -> 37 classes"}
    if not killed:
        yield {"kind": "end", "time": time + 1, "step": steps, "epoch": float(epochs), "reason": "done"}


def epoch(number, epochs, step, rate):
    share = number / epochs
    return {
        "epoch": number,
        "train_loss": 0.35 + 3.2 * math.exp(-5 * share),
        "val_loss": 0.3 + 3.0 * math.exp(-5 * share) + 0.25 * share**3,
        "val_accuracy": 0.945 - 0.9 * math.exp(-6 * share),
        "lr": rate,
        "seconds": number * 12.5,
        "images_per_second": 301.5,
    }


def make(folder, classes=37, pictures=370, epochs=20, per_epoch=35, killed=False, names=None):
    """Write a whole run folder and return it."""
    folder.mkdir(parents=True, exist_ok=True)
    names = names or [f"Breed {i}" for i in range(classes)]
    p, labels = judged(classes, pictures)
    write = {
        "recipe.json": {
            "model": "vit_ti16",
            "seed": 0,
            "optim": {"lr": 1e-3, "decay": 0.05},
            "budget": {"epochs": epochs},
        },
        "env.json": {
            "python": "3.11.9",
            "versions": {"torch": "2.13.0", "saccade": "0.1.0"},
            "cpu": "2 cores",
        },
        "data.json": {
            "source": "photos/pets",
            "kind": "folders",
            "splits": {
                "train": {"pictures": 1110, "fingerprint": "ab12" * 16},
                "val": {"pictures": pictures},
            },
            "skipped": [{"path": f"{name}.jpg", "class": name, "reason": "is empty"} for name in names[:3]],
        },
        "evaluation.json": {
            "split": "val",
            "scores": scores(p, labels).to_json(),
            "mistakes": mistakes(p, labels, names),
        },
        "samples.json": [
            {"thumbnail": thumbnail(i, kind="PNG"), "label": names[i % classes]} for i in range(8)
        ],
    }
    for name, value in write.items():
        (folder / name).write_text(json.dumps(value), encoding="utf-8")
    (folder / "command.txt").write_text("saccade train photos/pets --model vit_ti16\n", encoding="utf-8")
    (folder / "labels.txt").write_text("".join(f"{name}\n" for name in names), encoding="utf-8")
    told = list(events(epochs, per_epoch, killed))
    lines = "".join(json.dumps(event) + "\n" for event in told)
    (folder / "events.jsonl").write_text(lines + '{"kind": "step", "ti' * killed, encoding="utf-8")
    columns = [
        "epoch",
        "step",
        "seconds",
        "train_loss",
        "val_loss",
        "val_accuracy",
        "lr",
        "images_per_second",
    ]
    with (folder / "results.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, columns, lineterminator="\n", extrasaction="ignore")
        writer.writeheader()
        writer.writerows(event for event in told if event["kind"] == "epoch")
    return folder


def mistakes(p, labels, names, most=12):
    answers = p.argmax(1)
    wrong = np.flatnonzero(answers != labels)
    worst = wrong[np.argsort(-p[wrong, answers[wrong]])][:most]
    return [
        {
            "picture": f"{names[labels[i]]}_{i}.jpg",
            "path": f"photos/pets/{names[labels[i]]}/{i}.jpg",
            "label": names[labels[i]],
            "predicted": names[answers[i]],
            "score": float(p[i, answers[i]]),
            "thumbnail": thumbnail(int(i)),
        }
        for i in worst
    ]
