"""Count the dots in an image, by regression: a whole task in one file, as an example of the contract."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from saccade.data.image.augment import Augment
from saccade.data.image.preprocess import Preprocess
from saccade.data.loader import by_number, once
from saccade.data.readers.manifest import read_table
from saccade.models import names
from saccade.models.build import build
from saccade.models.modules import evaluating
from saccade.recipe import Budget, Optim
from saccade.task import Evaluation, Job, Metric, Task
from saccade.vision.model import VisionModel, load_vision, wrap_vision
from saccade.vision.recipe import VisionRecipe
from saccade.weights.save import save_folder


@dataclass(frozen=True, kw_only=True, slots=True)
class DotsRecipe(VisionRecipe):
    augment: Augment = field(default_factory=lambda: Augment(crop=(1.0, 1.0), ratio=(1.0, 1.0), flip=0.5))


class Count(NamedTuple):
    dots: float


class DotCounter(VisionModel):
    outputs = ("dots",)

    def answer(self, outputs, back):
        return Count(float(super().answer(outputs, back)["dots"][0]))


class Dots(Task):
    name, noun, unit, counted = "dots", "images", "images", "pictures"
    metrics = {"error": Metric("Mean error", better="lower"), "exact": Metric("Counted exactly", "percent")}
    headline, fold_metrics, recipe = "error", metrics, DotsRecipe
    abilities, fields = frozenset({"folds", "explain"}), ("dots",)
    outputs = {"dots": 1e-4}

    def matches(self, data, model):
        return Path(data, "dots.csv").is_file()

    def open(self, data, recipe, format="auto"):
        return read_table(Path(data, "dots.csv"), target=float)

    def plan(self, splits, model):
        made = DotsRecipe(
            model=model or "vit_xs4_16", optim=Optim(lr=3e-3), budget=Budget(epochs=3, batch=8), workers=0
        )
        return made, f"{len(splits.train):,} images: a small ViT; augmentation only flips"

    def start(self, recipe, splits, resume=None):
        torch.manual_seed(recipe.seed)
        config = names.config(recipe.model, 1)
        return DotsJob(
            recipe=recipe, splits=splits, module=build(config), preprocess=Preprocess(size=config.image)
        )

    def load(self, source, engine="", images=1, top=5):
        return load_vision(source, DotCounter, self.outputs, engine, images)

    def wrap(self, loaded, top=5, network=None):
        return wrap_vision(loaded, DotCounter, network=network)

    def evaluate(self, model, examples, split):
        found = list(self.predict(model, map(examples.open, range(len(examples)))))
        read = [(i, each.dots) for i, each in enumerate(found) if isinstance(each, Count)]
        gap = np.abs([dots - examples.targets[i] for i, dots in read])
        scores = {"error": float(gap.mean()), "exact": float((gap < 0.5).mean())}
        rows = [
            {"name": examples.name(i), "target": f"{examples.targets[i]:g}", "dots": f"{dots:.3f}"}
            for i, dots in read
        ]
        details = {"split": split, "scores": {**scores, "count": len(gap)}}
        return Evaluation(split=split, count=len(gap), metrics=scores, details=details, rows=rows)


@dataclass(kw_only=True)
class DotsJob(Job):
    preprocess: Preprocess

    def example(self, data, target, draws):
        plain = draws is None
        image = self.preprocess(data) if plain else self.recipe.augment(data, self.preprocess, draws)
        return {"image": image, "target": np.float32(target)}

    @property
    def steps(self):
        return max(1, len(self.splits.train) // self.recipe.budget.batch)

    def batches(self, first, last, part):
        order = {"batch": self.recipe.budget.batch, "per_epoch": self.steps, "seed": self.recipe.seed}
        more = {"first": first, "last": last, "part": part, "workers": self.recipe.workers}
        return by_number(self.splits.train, self.example, **order, **more)

    def loss(self, module, batch, progress):
        return {"loss": (module(batch["image"])[:, 0] - batch["target"]).square().mean()}

    def score(self, module, team):
        if self.splits.val is None:
            return {}
        parts = once(self.splits.val, self.example, part=team.part)
        with evaluating(module):
            gap = torch.cat([(module(b["image"])[:, 0] - b["target"]).abs() for b in parts])
        total, exact, count = team.sum([gap.sum().item(), float((gap < 0.5).sum()), float(len(gap))])
        return {"error": total / count, "exact": exact / count}

    def save(self, folder, module):
        save_folder(folder, module, self.preprocess, ["dots"], task="dots")
