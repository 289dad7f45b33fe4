"""Embed: the vectors of images, or of the words of a text model; their neighbours, scores and map."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from saccade.api.inputs import Say, check_ability, own_source, send
from saccade.errors import SaccadeError, UsageError
from saccade.files.atomic import new_folder, run_path
from saccade.progress import tracking

if TYPE_CHECKING:
    from saccade.embedding.analogies import Near
    from saccade.embedding.embedded import EmbedData, Embedded
    from saccade.embedding.survey import EmbedSettings, Survey
    from saccade.embedding.words import Contrast, WordVectors
    from saccade.weights.identify import Identified
    from saccade.weights.load import Loaded

FEW = 4
"""Reading this many batches here is faster than starting a worker process."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EmbedOptions:
    """What to embed, and what to ask of the vectors."""

    data: str = ""
    """Empty for a text model, which maps its own words."""
    out: Path | None = None
    way: str = "tsne"
    """pca, tsne or umap."""
    split: str = ""
    """For a translation model: source or target."""
    query: Sequence[str] = ()
    analogy: tuple[str, str, str] | None = None
    top: int = 5
    """Neighbours of each query."""
    index: str = "exact"
    changes: Sequence[str] = field(default_factory=list)
    """NAME=VALUE for saccade.embedding.survey.EmbedSettings."""
    format: str = "auto"
    device: str = "auto"

    @property
    def asks(self) -> bool:
        """Whether neighbours are asked for rather than a map."""
        return bool(self.query) or self.analogy is not None


class Nearest(NamedTuple):
    """The neighbours of each query."""

    answers: "list[tuple[str, list[Near]]]"
    noun: str
    """picture or word."""
    unread: Sequence[str] = ()


class ImageMap(NamedTuple):
    """The survey of images, and the page with their map."""

    survey: "Survey"
    folder: Path
    page: Path

    @property
    def unread(self) -> list[str]:
        """Names of the images that could not be read."""
        return self.survey.found.unread


class WordMap(NamedTuple):
    """The words of a text model, and the page with their map."""

    words: "WordVectors"
    contrast: "dict[str, Contrast]"
    folder: Path
    page: Path
    unread: Sequence[str] = ()


def embed(found: "Identified", name: str, options: EmbedOptions, say: Say) -> Nearest | ImageMap | WordMap:
    """Return the neighbours that `options` ask for, or write a map to a new folder."""
    if options.asks and options.out is not None:
        raise UsageError("--query and --analogy only list neighbours and write no folder; leave out --out")
    check_ability(found, "embed")
    if found.text:
        return _embed_words(found, options)
    return _embed_images(found, name, options, say)


def _embed_images(found: "Identified", name: str, options: EmbedOptions, say: Say) -> Nearest | ImageMap:
    if not options.data:
        own = own_source(found.folder, name)
        options = replace(options, data=own.source, format=own.format)
        say(f"data: {own.source}, which {name} was trained on")
    data = options.data
    from saccade.embedding.embedded import open_pictures
    from saccade.embedding.survey import EmbedSettings
    from saccade.recipe import override

    settings = override(EmbedSettings(way=options.way, index=options.index), options.changes)
    images = open_pictures(data, options.format)
    for words in (images.summary, *(f"note: {words}" for words in images.warnings)):
        say(words)
    from saccade.weights.load import load

    if not options.asks:
        images = _split_as_trained(found.path, images, say)
    if options.split:
        images = images.only(options.split)
    loaded = load(found)
    send(loaded, options.device)
    title = Path(data).resolve().name
    out = options.out or run_path(data, "embed-")
    vectors = _vectors(loaded, images, out, settings)
    if options.asks:
        from saccade.embedding.analogies import nearest_images

        answers = nearest_images(
            loaded, vectors, list(options.query), options.analogy, options.top, settings.metric
        )
        return Nearest(answers, "picture", vectors.unread)
    titles = (
        f"{title or data} as {Path(name).resolve().name or name} sees it",
        f"The images of {data}, embedded by {name}.",
    )
    return _map_images(vectors, settings, out, titles, min(*loaded.preprocess.size, 32))


def _split_as_trained(run: Path, images: "EmbedData", say: Say) -> "EmbedData":
    """Split images as the run that was trained on them did, so that unseen ones are scored."""
    from saccade import values
    from saccade.files.strict_json import read_json
    from saccade.recipe import Recipe
    from saccade.train.selection import Selection

    found = images.collection
    if found is None or not (run / "recipe.json").is_file() or not (run / "data.json").is_file():
        return images
    try:
        recipe, described = read_json(run / "recipe.json"), read_json(run / "data.json")
        kept = values.from_json(Recipe, {name: recipe[name] for name in ("seed", "val") if name in recipe})
        chosen = Selection.recorded(described).apply(found, kept)
    except (SaccadeError, ValueError):  # other images: they cannot be split as the run's were
        return images
    trained = described.get("train")
    if not isinstance(trained, dict) or chosen.train.fingerprint() != trained.get("fingerprint"):
        return images
    if chosen.val is None and chosen.test is None:
        say("note: the model was trained on all of these images, so its scores are optimistic")
    elif chosen.by_name.keys() != images.splits.keys():
        say("note: split into train and val as in the run")
    return replace(images, splits=chosen.by_name, collection=chosen)


def _vectors(loaded: "Loaded", images: "EmbedData", out: Path, settings: "EmbedSettings") -> "Embedded":
    from saccade.embedding.embedded import embed as embed_images
    from saccade.train.log import Log
    from saccade.vision.features import FOLDER, Extract

    cache = out.parent / FOLDER
    steps = sum(-(-len(each) // settings.batch) for each in images.splits.values())
    workers = settings.workers if steps > FEW else 0
    log = Log(cache, steps)
    log.open("features")
    try:
        extract = Extract(loaded.module, loaded.preprocess, cache, settings.batch, workers, log)
        return embed_images(extract, images)
    finally:
        log.close()


def _map_images(
    found: "Embedded", settings: "EmbedSettings", out: Path, words: tuple[str, str], side: int
) -> ImageMap:
    from saccade.embedding import map_page
    from saccade.embedding.embedded import sketch
    from saccade.embedding.survey import add_pixel_score, survey, write_survey

    with tracking(f"computing neighbours, scores and a map of {len(found.vectors):,} images"):
        seen = survey(found, settings)
    sketches = sketch(found.images, map_page.rows_on_page(seen), side, max(1, settings.workers))
    seen = add_pixel_score(seen, sketches.pixels)
    folder = new_folder(out)
    write_survey(folder, seen)
    return ImageMap(seen, folder, map_page.write_map(folder, seen, sketches, *words))


def _embed_words(found: "Identified", options: EmbedOptions) -> Nearest | WordMap:
    given = {
        "--index": options.index != "exact",
        "--set": options.changes,
        "--format": options.format != "auto",
    }
    if others := [name for name, value in given.items() if value]:
        works = "works" if len(others) == 1 else "work"
        raise UsageError(f"{', '.join(others)} {works} for image models only; this is a text model")
    if options.data:
        raise UsageError(
            f"{found.path.name} is a text model (task {found.task}); its words are in its folder; "
            "leave out DATA"
        )
    from saccade.embedding.words import contrast, word_vectors, write_words
    from saccade.text.model import load_text

    known = word_vectors(load_text(found), options.split or "source")
    if options.asks:
        answers = [(word, known.near(word, options.top)) for word in options.query]
        if options.analogy is not None:
            a, b, c = options.analogy
            answers.append((f"{c} + {b} - {a}", known.analogy(a, b, c, options.top)))
        return Nearest(answers, "word")
    name = found.folder.resolve().name
    folder = new_folder(options.out or run_path(found.folder, "embed-"))
    page = write_words(folder, known, options.way, f"The words of {name}")
    return WordMap(known, contrast(known), folder, page)
