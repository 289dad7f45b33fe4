"""Explain: heat maps, pages and rankings for image models, attention for text models.

torch is imported inside the functions, so that wrong usage is refused at once.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from saccade.api.inputs import Say, check_ability, check_free
from saccade.errors import DataError, UsageError
from saccade.progress import track

if TYPE_CHECKING:
    from saccade.api.models import Model
    from saccade.data.image.formats import Source
    from saccade.data.image.preprocess import PictureSource
    from saccade.data.image.resize import Pixels
    from saccade.explain.explanation import Explanation
    from saccade.explain.faithfulness.ranking import Ranking
    from saccade.explain.heatmap import Heatmap
    from saccade.explain.page.content import PageContent
    from saccade.explain.text.attention import TextReading
    from saccade.nn.patch import Image
    from saccade.weights.identify import Identified

    Named = tuple[str, Source]
    NamedExplanation = tuple[str, Explanation | DataError]

OUT = Path("explained")
BATCH = 4
"""Images explained together: their gradients take more memory than an answer."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ExplainSettings:
    """What to explain, and what to write."""

    method: str = ""
    """A name in saccade.explain.methods.table; empty is the model's default."""
    target: str | None = None
    """A label, the number of a class or, for a text model, a translation; None is the model's answer."""
    html: Path | None = None
    """A page, or a folder of pages."""
    out: Path | None = None
    """A folder for a PNG and a JSON of each image."""
    folder: bool = False
    """Without `out`, make a new folder."""
    every: bool = False
    """Rank all methods that fit the model."""
    masks: Path | None = None
    """Masks of the objects; without `every`, only `method` is scored."""
    inside: bool = False
    quick: bool = False
    """Skip the faithfulness test."""
    device: str = "auto"

    @property
    def ranked(self) -> bool:
        """Whether methods are scored on all images together."""
        return self.every or self.masks is not None


class ImageResult(NamedTuple):
    """Results for images: each with its explanation or its error, and the ranking."""

    answers: "list[NamedExplanation]"
    ranking: "Ranking | None" = None


class TextResult(NamedTuple):
    """Results for texts."""

    readings: "list[TextReading]"


def explain(
    found: "Identified", inputs: "Sequence[Any]", name: str, settings: ExplainSettings, say: Say
) -> ImageResult | TextResult:
    """Explain what a model answers to images (names with sources) or, if it is a text model, to texts."""
    check_ability(found, "explain")
    if found.text:
        return TextResult(_explain_texts(found, inputs, settings, say))
    return _explain_images(found, inputs, name, settings, say)


def heat_maps(
    model: "Model", images: "Iterable[PictureSource]", method: str, target: int | None = None
) -> "list[Heatmap]":
    """Return a heat map for each image; `target` is the number of a class, or None for the predicted one."""
    from saccade.explain.methods import table

    how = table.find_method(method, model.module)
    made: list[Heatmap] = []
    waiting = iter(images)
    while chunk := list(islice(waiting, BATCH)):
        pixels, batch = _batch(model, chunk)
        made += table.heatmaps(how, model.module, batch, pixels, model.label, target)
    return made


def _batch(model: "Model", sources: "Sequence[PictureSource]") -> "tuple[list[Pixels], Image]":
    """Return images resized, and as the model sees them."""
    import numpy as np
    import torch

    pixels = [model.preprocess.pixels(source) for source in sources]
    image = np.stack([model.preprocess.normalise(each) for each in pixels])
    return pixels, torch.from_numpy(image).to(model.device)


def rank_methods(
    model: "Model",
    sources: "Sequence[Source]",
    targets: Sequence[int] | None = None,
    masks: Path | None = None,
    say: Say | None = None,
    names: Sequence[str] = (),
) -> "Ranking":
    """Rank methods by how faithful they are on some images; without `names`, all that fit the model."""
    import torch

    from saccade.explain.faithfulness.ranking import rank, read_masks
    from saccade.explain.methods.table import METHODS, fitting_methods

    module = model.module
    _, images = _batch(model, sources)
    if targets is None:
        with torch.inference_mode():
            labels = module(images).argmax(-1)
    else:
        labels = torch.tensor(targets, device=model.device)
    methods = {name: METHODS[name].function for name in names or fitting_methods(module)}
    found = None if masks is None else read_masks(masks, [_path(s) for s in sources], model.preprocess)
    if say is None:
        return rank(module, images, labels, methods, found)
    return rank(
        module, images, labels, methods, found, say=lambda done, total: say(f"measured {done} of {total}")
    )


def _path(source: "Source") -> Path:
    if isinstance(source, str | Path):
        return Path(source)
    raise UsageError("an image on stdin has no name, so no mask can be found for it; give it as a file")


def explain_one(
    model: "Model", name: str, source: "Source", method: str, settings: ExplainSettings, title: str
) -> "tuple[Explanation, PageContent | None]":
    """Explain one image; return the content of its page too if `settings.html` asks for one."""
    from saccade.explain.explanation import Question, explain_image
    from saccade.explain.page.content import page_content

    (pixels,), image = _batch(model, [source])
    quick = settings.quick or (settings.ranked and settings.html is None)  # the ranking measures anyway
    target = None if settings.target is None else model.index(settings.target)
    question = Question(name=Path(name).name, method=method, target=target, quick=quick)
    if settings.html is None:
        return explain_image(model.module, image, pixels, model.label, question), None
    content, explanation = page_content(
        model.module, image, pixels, model.label, question, title, settings.every
    )
    return explanation, content


def _explain_images(
    found: "Identified", images: "Sequence[Named]", name: str, settings: ExplainSettings, say: Say
) -> ImageResult:
    _check_images(len(images), settings)
    _check_html(settings.html, len(images), "images")
    check_free(settings.out)
    from saccade.api.load import load

    model = load(found, device=settings.device)
    model.check_classes()
    method = _method(model, settings.method)
    if settings.target is not None:
        model.index(settings.target)
    out = _make_folder(settings.out, settings.folder)
    answers = list(_explanations(model, images, name, method, settings, out, say))
    ready = [
        (source, answer)
        for (_, source), (_, answer) in zip(images, answers, strict=True)
        if not isinstance(answer, DataError)
    ]
    ranking = None
    if settings.ranked:
        if not ready:
            raise DataError("none of the images can be read; expected at least one to compare methods on")
        sources, targets = [s for s, _ in ready], [answer.heatmap.target for _, answer in ready]
        names = [] if settings.every else [method]
        ranking = rank_methods(model, sources, targets, settings.masks, say, names)
        if out is not None:
            from saccade.explain.faithfulness.ranking import ranking_plot
            from saccade.report.plots import save

            save(ranking_plot(ranking), out)
    if settings.inside:
        from saccade.explain.inside.inside import write_inside

        assert out is not None
        sources = [source for source, _ in ready]
        page, *_ = write_inside(out / "inside", model.module, model.preprocess, model.labels, sources)
        say(f"inside the model: {page}")
    if out is not None and any(out.iterdir()):
        say(f"images and numbers: {out}")
    elif out is not None:
        out.rmdir()  # no image could be read
    return ImageResult(answers, ranking)


def _check_images(count: int, settings: ExplainSettings) -> None:
    masks = settings.masks
    if masks is not None and not masks.is_dir():
        raise UsageError(f"there is no folder of masks at {str(masks)!r}; expected one file for each image")
    if settings.quick and settings.ranked:
        option = "--all" if settings.every else "--masks"
        raise UsageError(f"--quick and {option} were both given; scoring methods needs the test: choose one")
    if not count and (not settings.inside or settings.every or settings.html):
        raise UsageError("no image was given; expected files, folders or -; only --inside works without")


def _check_html(html: Path | None, count: int, noun: str) -> None:
    """Refuse a page, or a folder of pages, that cannot be written, before any work is done."""
    from saccade.explain.write import check_page, is_page

    if html is not None and is_page(html):
        check_page(html, count, noun)
    else:
        check_free(html)


def _make_folder(out: Path | None, wanted: bool) -> Path | None:
    """Return the folder asked for, or a new one if one is wanted."""
    from saccade.files.atomic import new_folder

    if out is None:
        return new_folder(OUT) if wanted else None
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{out} cannot be created ({error.strerror}); choose another folder") from error
    return out


def _method(model: "Model", name: str) -> str:
    """Return the method asked for, if it fits the model, or the model's default."""
    from saccade.explain.methods.table import DEFAULT, find_method, fitting_methods

    fitting = fitting_methods(model.module)
    return find_method(name or (DEFAULT if DEFAULT in fitting else fitting[0]), model.module).name


def _explanations(
    model: "Model",
    images: "Sequence[Named]",
    title: str,
    method: str,
    settings: ExplainSettings,
    out: Path | None,
    say: Say,
) -> "Iterator[NamedExplanation]":
    """Explain each image, and write its files."""
    from saccade.explain.page.content import QUICK
    from saccade.explain.write import ExplanationWriter
    from saccade.models.cost import macs

    writer = ExplanationWriter(title, settings.html, out)
    slow = macs(model.module, model.module.config.image) > QUICK
    if images and slow and not settings.quick and not settings.ranked:
        say("testing how faithful the maps are takes a while; --quick skips it")
    for name, source in track(images, len(images), "explaining"):
        try:
            explanation, content = explain_one(model, name, source, method, settings, title)
        except DataError as error:
            say(f"error: {error}")
            yield name, error
        else:
            writer.write(explanation, content)
            yield name, explanation
    page = writer.finish()
    if page is not None:
        say(f"page: {page}")


def _explain_texts(
    found: "Identified", texts: Sequence[str], settings: ExplainSettings, say: Say
) -> "list[TextReading]":
    given = {
        "--method": settings.method,
        "--all": settings.every,
        "--masks": settings.masks,
        "--inside": settings.inside,
        "--quick": settings.quick,
    }
    if others := [name for name, value in given.items() if value]:
        raise UsageError(
            f"{', '.join(others)} {'works' if len(others) == 1 else 'work'} for image models only; this is a "
            f"text model (task {found.task}). It accepts --target, --html, --out and --json"
        )
    if settings.target is not None and len(texts) > 1:
        raise UsageError(f"one translation was given for {len(texts)} texts; explain them one by one")
    html = settings.html
    _check_html(html, len(texts), "texts")
    check_free(settings.out)
    from saccade.explain.text.attention import read_text
    from saccade.explain.text.page import render_page, write_plots
    from saccade.explain.write import is_page
    from saccade.files.atomic import write_text
    from saccade.text.model import load_text

    loaded = load_text(found)
    readings = [read_text(loaded, text, settings.target) for text in texts]
    folder = _make_folder(settings.out, settings.folder)
    pages = None if html is None or is_page(html) else _make_folder(html, True)
    for i, reading in enumerate(readings, 1):
        if folder is not None:
            write_plots(reading, folder if len(texts) == 1 else folder / f"text-{i:03d}")
        if html is not None:
            page = html if pages is None else pages / f"text-{i:03d}.html"
            write_text(page, render_page(reading, found.path.name))
            say(f"page: {page}")
    if folder is not None:
        say(f"images and numbers: {folder}")
    return readings
