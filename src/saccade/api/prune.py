"""Prune: a model that looks at fewer patches, for a share of them or for a speed."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from saccade.api.inputs import Say, check_ability, identify_model, own_data
from saccade.errors import UsageError, check_number, check_word
from saccade.progress import tracking

if TYPE_CHECKING:
    from saccade.vision.pruned import PrunedComparison

HOW = ("drop", "merge", "merge-paper", "attention", "random")


class PruneResult(NamedTuple):
    """The folder of the pruned model and its comparison with the dense one."""

    folder: Path
    comparison: "PrunedComparison | None"
    """None if the dense model is fast enough; then `folder` is the dense model."""


def prune(
    model: str,
    data: str,
    say: Say,
    keep: float | None = None,
    target_ms: float | None = None,
    speed_up: float | None = None,
    how: str = "drop",
    batch: int = 1,
    minutes: float | None = None,
    out: Path | None = None,
    changes: Sequence[str] = (),
    format: str = "auto",
) -> PruneResult | None:
    """Prune a model and compare it with the dense one; under torchrun, only the leading process gets both.

    Args:
        keep: Share of the patches kept at each pruning stage; or give `target_ms` or `speed_up`.
        how: With `keep`: drop (trains), or without training merge, merge-paper, attention or random.
        batch: Batch size at which a target speed is measured.
    """
    speed = _required_speed(keep, target_ms, speed_up)
    check_word("--how", how, HOW)
    check_number("--batch", batch, 1, 4096)
    trains = speed is None and how == "drop"
    if not trains and (minutes is not None or changes):
        raise UsageError("--minutes and --set are for training, and only --keep with --how drop trains")
    if speed is not None and how != "drop":
        raise UsageError(
            "a target speed tries both dropping and merging and takes the better; leave out --how"
        )
    found = identify_model(model)  # refuses a damaged file before torch is imported
    check_ability(found, "prune")
    if not data and (own := own_data(found.folder, model)):
        data, format = own.source, own.format
        say(f"data: {data}, as split by {model}")
    from saccade.prune import prune as pruning
    from saccade.prune.learn import learn
    from saccade.vision import pruned

    if speed is not None:
        with tracking("searching for a plan"):
            folder = pruning.chosen(model, data, speed, batch, out, say, format)
        if folder is None:
            say("the dense model is already that fast; nothing was written")
            return PruneResult(Path(model), None)
        return PruneResult(folder, pruned.read_comparison(folder))
    assert keep is not None
    if not trains:
        folder = pruning.untrained(model, data, how, keep, out, format)
        return PruneResult(folder, pruned.read_comparison(folder))
    given = [*changes, *([] if minutes is None else [f"budget.minutes={minutes}"])]
    from saccade.processes import joined
    from saccade.train import start

    with joined() as team:
        run = learn(model, data, keep, out, given, format)
        run.go()
        if not team.leads:
            return None
        start.finish(run)
        return PruneResult(run.folder, pruned.read_comparison(run.folder))


def _required_speed(
    keep: float | None, target: float | None, faster: float | None
) -> Callable[[float], float] | None:
    """Return a function from the dense model's seconds to the speed-up it needs; None with --keep."""
    options = {"--keep": keep, "--target-ms": target, "--speed-up": faster}
    given = [name for name, value in options.items() if value is not None]
    if len(given) > 1:
        raise UsageError(f"{' and '.join(given)} were given; give one of them")
    if keep is not None:
        if not 0 < keep < 1:
            raise UsageError(
                f"--keep is {keep:g}; expected a share of the patches above 0 and below 1, such as 0.7"
            )
        return None
    if target is not None:
        check_number("--target-ms", target, 1e-3, 1e7)
        return lambda seconds: 1e3 * seconds / target
    if faster is not None:
        check_number("--speed-up", faster, 1.01, 100)
        return lambda _: faster
    raise UsageError("no target was given; give --keep 0.7, --target-ms 20 or --speed-up 1.5")
