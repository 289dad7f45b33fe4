"""Check a dataset: examine every image, find suspected labels with a trained model, write the page."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from saccade.check import page
from saccade.check.examine import Examination, examine
from saccade.check.page import CheckResult
from saccade.data.pictures import Pictures
from saccade.data.readers.open import open_images
from saccade.data.splits import Splits
from saccade.errors import check_number
from saccade.wording import count

if TYPE_CHECKING:
    from saccade.check.label_errors import LabelErrors


def check_data(
    data: str,
    say: Callable[[str], None],
    format: str = "auto",
    quick: bool = False,
    workers: int = 2,
    run: Path | None = None,
    html: Path | None = None,
) -> CheckResult:
    """Examine a dataset; with `run`, list labels that its model contradicts; with `html`, write a page."""
    check_number("workers", workers, 1, 256)
    if html is not None:
        page.check_target(html)
    found = open_images(data, format)
    say(found.summary)
    suspicion: LabelErrors | None = None
    models = None
    if run is not None:
        from saccade.check.label_errors import find_label_errors, load_models

        models = load_models(run, found)
    seen = examine(found, workers, not quick)
    if models is not None:
        suspicion = find_label_errors(models, found, seen)
    findings = CheckResult(data, found, seen, summary(found, seen, suspicion), suspicion)
    if html is not None:
        page.write_page(html, findings)
    return findings


def summary(found: Splits[Pictures], seen: Examination, suspicion: "LabelErrors | None") -> str:
    """Count what was found in one line."""
    suspected = suspicion.count if suspicion is not None else 0
    if seen.sound and not found.warnings and not suspected:
        return "no problems found"
    counts = [
        (len(seen.unreadable), "unreadable image", ""),
        (len(seen.contradictions), "contradiction", ""),
        (len(seen.leaks), "leak", " between splits"),
        (sum(each.exact for each in seen.duplicates), "duplicate", ""),
        (len(found.warnings), "note", ""),
        (suspected, "suspected label", ""),
    ]
    return "found: " + ", ".join(f"{count(n, noun)}{end}" for n, noun, end in counts if n)
