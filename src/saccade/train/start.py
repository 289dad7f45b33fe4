"""Begin a run, or go on with one, whatever its task: open the data, choose the recipe, make the folder."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from saccade import values
from saccade.errors import DataError, ModelError, UsageError, check_word
from saccade.files.atomic import new_folder, sweep
from saccade.models.text.names import is_text
from saccade.processes import Team, launch, restarted
from saccade.recipe import Training
from saccade.tasks.classify.job import CLASSIFY
from saccade.tasks.language.task import LANGUAGE
from saccade.tasks.translate.task import TRANSLATE
from saccade.text.recipe import TASKS
from saccade.train.checkpoint import latest
from saccade.train.run import Run
from saccade.train.subject import Asked, Opened, Subject, describe
from saccade.weights.formats.tensors import read_json, write_text

PAIRS = (".tsv", ".jsonl")
"""What a list of pictures and sentence pairs may both be."""
PLAIN = (".txt", ".text", ".md")
SUBJECTS: dict[str, Subject] = {"classify": CLASSIFY, "translate": TRANSLATE, "language": LANGUAGE}


def task_of(data: str, model: str, changes: Sequence[str]) -> str:
    """The task where none was asked for: the recipe's, else the model's, else language for a text."""
    set_to = {text.partition("=")[0].strip(): text.partition("=")[2].strip() for text in changes}
    if "task" in set_to:
        return set_to["task"]
    name = model or set_to.get("model", "")
    if is_text(name):
        return "language" if name.startswith(("gpt", "bert")) else "translate"
    return _kept(Path(name)) or ("language" if data.removesuffix(".gz").endswith(PLAIN) else "classify")


def _kept(model: Path) -> str:
    """The task of a model folder that was trained on text, ours or Hugging Face's."""
    for name, field in (("model.json", "task"), ("config.json", "model_type")):
        if (model / name).is_file():
            found = str(read_json(model / name).get(field))
            return {"gpt2": "language", "bert": "language"}.get(found, found if found in TASKS else "")
    return ""


def start(
    data: str,
    model: str = "",
    out: Path | None = None,
    changes: Sequence[str] = (),
    kind: str = "auto",
    quiet: bool = False,
    made: bool = False,
    task: str = "",
) -> Run:
    """A run about to begin: all is read and checked, and its folder holds what is needed to repeat it.

    Args:
        made: `out` is there already, and empty but for the data.
        task: classify, translate or language; "" for what data and model look like.
    """
    guessed, task = not task, task or task_of(data, model, changes)
    check_word("task", task, SUBJECTS)
    asked = Asked(data=data, model=model, changes=_without_task(changes), kind=kind, task=task)
    try:
        opened = SUBJECTS[task].open(asked)
    except DataError as error:
        if guessed and task == "classify" and data.removesuffix(".gz").endswith(PAIRS):
            raise DataError(f"{error}; if it holds sentence pairs, give --task translate") from error
        raise
    wanted, team = place(data, out), opened.material.team
    folder = wanted if made else team.told(new_folder(wanted) if team.leads else wanted)
    run = begin(folder, opened, quiet)
    for words in opened.told:
        run.log.say(words)
    return run


def _without_task(changes: Sequence[str]) -> list[str]:
    return [text for text in changes if text.partition("=")[0].strip() != "task"]


def place(data: str, out: Path | None) -> Path:
    """Where a run goes if nothing is there yet."""
    return out or Path("runs") / (Path(data).resolve().name or "run")


def interrupted(data: str, out: Path | None, team: Team) -> Path | None:
    """The run that torchrun has begun and, as a process failed, begins again."""
    if not restarted():
        return None
    wanted, mine = place(data, out), launch()
    found = [
        path.parent
        for path in sorted(wanted.parent.glob("*/launch.txt"))
        if path.parent.name.startswith(wanted.name)
        and path.read_text(encoding="utf-8") == mine
        and latest(path.parent / "checkpoints")[0] is not None
    ]
    return team.told(found[-1] if found else None)


def begin(folder: Path, opened: Opened, quiet: bool = False, brief: bool = False, command: str = "") -> Run:
    """A run in a folder that is made already."""
    material = opened.material
    run = Run(folder, material, quiet, brief)
    if material.team.leads:
        for name, text in opened.files.items():
            write_text(folder / name, text)
        describe(folder, material.recipe, opened.data, command)
        if started := launch():
            write_text(folder / "launch.txt", started)
    run.log.event("start", 0, parameters=sum(p.numel() for p in material.module.parameters()))
    run.save()
    return run


def resume(folder: Path, quiet: bool = False, brief: bool = False) -> Run:
    """A run as its newest whole checkpoint has it; refused if the data are not those it began with."""
    recipe, described = recorded(folder)
    opened = SUBJECTS[described.get("task", "classify")].reopen(folder, recipe, described)
    place, damaged = latest(folder / "checkpoints")
    if place is None and (damaged or (folder / "results.csv").exists()):
        raise ModelError(f"{folder} has no whole checkpoint to go on from; start anew")
    sweep(folder)
    run = Run(folder, opened.material, quiet, brief)
    for words in damaged:
        run.log.say(f"note: {words}")
    if place is None:  # killed before its first step
        run.save()
    else:
        run.restore(place)
    if not brief:
        run.log.say(f"going on from step {run.state.step} of {run.plan.steps}")
    run.log.event("resume", run.state.step)
    return run


def recorded(folder: Path) -> tuple[Training, dict[str, Any]]:
    """The recipe that a run folder records, and what it says of its data."""
    if not (folder / "recipe.json").is_file():
        raise UsageError(
            f"{folder} is no run folder (it has no recipe.json); give the folder that training made"
        )
    found = read_json(folder / "recipe.json")
    if found.get("method") == "probe":
        raise UsageError(
            f"{folder} is a linear probe, which takes seconds and cannot be gone on with; run it again "
            "(the features that were computed are kept)"
        )
    described = read_json(folder / "data.json")
    task = described.get("task", "classify")
    if task not in SUBJECTS:
        raise ModelError(f"{folder / 'data.json'} is of the task {task!r}; expected {', '.join(SUBJECTS)}")
    try:
        return values.from_json(SUBJECTS[task].recipe, found), described
    except ValueError as error:
        raise ModelError(f"{folder / 'recipe.json'} cannot be used: {error}") from error


def finish(run: Run) -> Path:
    """Judge the best model on what was held back, and write the report."""
    task = getattr(run.material.recipe, "task", "classify")
    told, page = SUBJECTS[task].conclude(run)
    if told:
        run.log.say(told)
    run.log.say(f"report: {page}")
    return page
