"""Results as a notebook shows them: predictions, and the run that trained a model."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from saccade.errors import UsageError
from saccade.report.html import Html, tag
from saccade.vision.model import Prediction
from saccade.wording import duration, percent

if TYPE_CHECKING:
    from saccade.report.run_record import Record
    from saccade.task import Task

BAR = "display:inline-block;height:0.7em;background:#0969da"
WIDEST = 12
"""Width of the bar at 100% confidence, in em."""


class Predictions(list[Prediction]):
    """The likeliest classes of one image, best first; a plain list that a notebook shows as a table."""

    def _repr_html_(self) -> str:
        rows = [
            [
                prediction.label,
                percent(prediction.score),
                tag("span", style=f"{BAR};width:{WIDEST * prediction.score:.2f}em"),
            ]
            for prediction in self
        ]
        return html_table(["label", "score", ""], rows)


class TrainedRun:
    """The folder of a run: its result, its curve and its report; a notebook shows the epochs as a table."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def report(self) -> Path:
        """The page that reports the run."""
        return self.folder / "report.html"

    @property
    def record(self) -> "Record":
        """Everything that the folder holds."""
        from saccade.report.run_record import read_record

        return read_record(self.folder)

    @property
    def summary(self) -> str:
        """The result in one line."""
        record = self.record
        if not record.evaluation:
            raise UsageError(f"{self.folder} has no evaluation; the run was stopped before it finished")
        task = _task(record)
        return task.summary(task.revive(record.evaluation))

    def _repr_html_(self) -> str:
        record = self.record
        task = _task(record)
        words = self.summary if record.evaluation else "stopped before it finished"
        heads = ["epoch", "training loss", *(f"validation {m.title.lower()}" for m in task.metrics.values())]
        rows = [
            [
                f"{epoch.epoch:g}",
                f"{epoch.train_loss:.4g}",
                *(metric.words(epoch.metric(name)) for name, metric in task.metrics.items()),
            ]
            for epoch in record.epochs
        ]
        took = f"{duration(record.events.seconds)}; report: {self.report}"
        return tag(
            "div", tag("p", tag("strong", record.name), f": {words} ({took})"), html_table(heads, rows)
        )

    def __repr__(self) -> str:
        return f"TrainedRun({str(self.folder)!r})"


def _task(record: "Record") -> "Task":
    from saccade.tasks import find_task

    return find_task(str(record.data.get("task", "")))


def html_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> Html:
    """Return a table; whatever is not HTML already is escaped."""
    head = tag("thead", tag("tr", *(tag("th", each) for each in heads)))
    body = tag("tbody", *(tag("tr", *(tag("td", cell) for cell in row)) for row in rows))
    return tag("table", head, body)
