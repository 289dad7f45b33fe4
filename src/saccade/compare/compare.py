"""Compare models on the same images, with the same recipe, seed and held-out images."""

from collections.abc import Callable
from pathlib import Path
from shlex import quote

from saccade.compare.measure import measure_costs, measure_reach
from saccade.compare.page import verdict
from saccade.compare.plan import Comparison, Cost, Row, hashed, hashed_content, recorded, write
from saccade.data.pictures import Pictures
from saccade.data.readers.open import open_images
from saccade.data.splits import Splits
from saccade.errors import StoppedError
from saccade.files.lock import lock
from saccade.metrics.interval import wilson
from saccade.progress import tracking
from saccade.report.run_record import read_history
from saccade.tasks import find_task
from saccade.train import start
from saccade.train.checkpoint import latest
from saccade.train.run import Run
from saccade.train.selection import CONTENT, Selection, data_changed
from saccade.wording import count, duration, percent

Say = Callable[[str], None]


def go(folder: Path, say: Say) -> tuple[Comparison, list[Row], list[Cost]]:
    """Train what is not trained yet, measure, and write the report."""
    made, rows = recorded(folder)
    _held = lock(folder)  # until this function returns
    found = open_images(made.data, made.kind)
    if hashed(found) != made.pictures:
        raise data_changed(made.data, folder, find_task().noun)
    if made.content and hashed_content(found) != made.content:
        raise data_changed(made.data, folder, find_task().noun, CONTENT)
    done = {(row.model, row.fraction) for row in rows}
    for number, (model, fraction) in enumerate(made.trainings, 1):
        if (model, fraction) in done:
            continue
        run = _run(folder, made, found, model, fraction)
        prefix = f"{number}/{len(made.trainings)}  {model} on {fraction * 100:g}% of the data"
        say(f"{prefix}: {count(len(run.job.splits.train), 'image')} to train on")
        run.label = f"{number}/{len(made.trainings)} {model}, step"
        row = _trained(folder, run, found, model, fraction)
        rows.append(row)
        say(
            f"{prefix}: accuracy {percent(row.accuracy)} (95% CI {percent(row.low)} to {percent(row.high)}) "
            f"after {row.epochs:.4g} epochs in {duration(row.seconds)}"
        )
        write(folder, made, rows, [])
    with tracking("measuring time and memory"):
        places = [_place(folder, model, made.fractions[-1]) for model in made.models]
        costs = measure_costs(made.models, places)
    write(folder, made, rows, costs)
    verdict(folder, made, rows, costs)
    return made, rows, costs


def _place(folder: Path, model: str, fraction: float) -> Path:
    """Return the folder of one training run."""
    return folder / f"{model}-{fraction * 100:g}"


def _run(folder: Path, made: Comparison, found: Splits[Pictures], model: str, fraction: float) -> Run:
    """Start one training run, or resume it if it was stopped."""
    task, place = find_task(), _place(folder, model, fraction)
    if (place / "recipe.json").is_file() and latest(place / "checkpoints")[0] is not None:
        return start.resume(task, place, brief=True)
    place.mkdir(exist_ok=True)
    selection = Selection(data=made.data, format=made.kind, fraction=fraction, blind=found.test is None)
    recipe, _ = start.default_recipe(task, found, model, made.changes)
    job, _ = start.start_job(task, recipe, selection.apply(found, recipe))
    return start.start_run(place, task, job, selection, brief=True)


def _trained(folder: Path, run: Run, found: Splits[Pictures], model: str, fraction: float) -> Row:
    """Train to the end, evaluate, and measure how far the model looks."""
    try:
        run.go()
    except StoppedError as error:
        raise StoppedError(
            f"Interrupted. Resume with: saccade compare --resume {quote(str(folder))}"
        ) from error
    scores, _ = start.evaluate_run(run)
    held = found.test or run.job.splits.val
    if scores is None or held is found.test:
        scores = run.task.evaluate(run.task.load(run.folder), held, "test")
    correct = int(scores.metrics["correct"])
    low, high = wilson(correct, scores.count)
    effective, attention = measure_reach(run.folder, held)
    history = read_history(run.folder / "events.jsonl", {})
    return Row(
        model=model,
        fraction=fraction,
        pictures=len(run.job.splits.train),
        held_out=scores.count,
        correct=correct,
        accuracy=scores.metrics["accuracy"],
        low=low,
        high=high,
        epochs=run.state.step / run.per_epoch,
        seconds=round(run.time_budget.spent if run.time_budget.seconds else history.seconds, 3),
        largest=max(scores.details["scores"]["support"]) / scores.count,
        effective=effective,
        attention=attention,
    )
