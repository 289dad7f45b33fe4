"""A model to be measured: where it lies, what it takes, what its answers are called."""

from dataclasses import dataclass
from pathlib import Path

from saccade.data.image.preprocess import Preprocess
from saccade.engine.exported import read_exported
from saccade.weights.identify import Identified, identify, locate


@dataclass(frozen=True, kw_only=True, slots=True)
class Subject:
    """A model folder, another's weights, or an exported folder."""

    name: str
    path: Path
    preprocess: Preprocess
    labels: tuple[str, ...] = ()
    macs: int = 0
    """Multiply-accumulates for a picture; 0 if nobody knows."""
    takes: str = "floats"
    """floats, or bytes: a graph that does the preprocessing itself, of one picture at a time."""


def subject(model: str, scratch: Path) -> Subject:
    """What a word on the command line stands for; a model by name is written, untrained, into `scratch`."""
    if not Path(model).exists() and _is_name(model):
        return _drafted(model, scratch)
    known = identify(locate(model))
    if known.exported:
        found = read_exported(known)
        macs = found.facts["export"].get("macs", 0)
        return Subject(
            name=model,
            path=known.path,
            preprocess=found.preprocess,
            labels=tuple(found.labels),
            macs=macs if isinstance(macs, int) else 0,
            takes=found.takes,
        )
    return _loaded(model, known)


def _is_name(model: str) -> bool:
    from saccade.models import names

    return bool(names.GRAMMAR.fullmatch(model) or names.RESNET.fullmatch(model))


def _loaded(name: str, known: Identified) -> Subject:
    from saccade.tokens.cost import macs_of
    from saccade.weights.load import load

    found = load(known)
    work = macs_of(found.module, found.preprocess.size)
    labels = tuple(found.labels)
    return Subject(name=name, path=known.path, preprocess=found.preprocess, labels=labels, macs=work)


def _drafted(name: str, scratch: Path) -> Subject:
    from saccade.models import names
    from saccade.models.build import build
    from saccade.weights.save import save_folder

    made = names.config(name)
    module = build(made).eval()
    save_folder(scratch / "model", module, Preprocess(size=module.config.image), [])
    return _loaded(name, identify(scratch / "model"))
