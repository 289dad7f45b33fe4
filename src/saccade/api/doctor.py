"""Check this machine, or a model."""

import os
import platform
import shutil
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from saccade import __version__
from saccade.api.inputs import identify_model
from saccade.errors import DataError, UsageError

if TYPE_CHECKING:
    from PIL.Image import Image

    from saccade.data.image.formats import Source
    from saccade.data.image.preprocess import Preprocess

EXTRAS = {"huggingface_hub": "hub"}
MOST = 64
"""Images that the normalisation is tested on."""


class Diagnosis(NamedTuple):
    """A test and its result."""

    test: str
    verdict: str
    """ok, unknown or wrong."""
    words: str


def check_machine() -> list[Diagnosis]:
    """Report what is installed, and the cores, memory and disk."""
    from importlib import metadata, util

    import torch

    python = f"{__version__}, Python {platform.python_version()}, {platform.platform()}"
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else "none"
    level = torch.backends.cpu.get_cpu_capability()
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    free = shutil.disk_usage(".").free
    rows = [
        Diagnosis("saccade", "ok", python),
        Diagnosis("torch", "ok", f"{torch.__version__}, {torch.get_num_threads()} threads, {level}"),
        Diagnosis("accelerator", "ok", str(accelerator)),
        Diagnosis("memory", "ok", f"{memory / 2**30:.0f} GiB"),
        Diagnosis("disk", "ok" if free > 2**30 else "wrong", f"{free / 2**30:.0f} GiB free here"),
    ]
    for package, extra in EXTRAS.items():
        if util.find_spec(package) is None:
            rows.append(Diagnosis(package, "unknown", f"not installed: pip install 'saccade[{extra}]'"))
        else:
            rows.append(Diagnosis(package, "ok", metadata.version(package)))
    return rows


def check_model(model: str, images: "Sequence[Source] | None" = None) -> list[Diagnosis]:
    """Report what a model is, and test its weights and, on ordinary `images`, its normalisation."""
    from saccade.weights.lineage import ancestors, words_for

    found = identify_model(model, "any")
    if found.exported:
        if images is not None:
            raise UsageError(f"{model} is an exported graph; --pictures needs the run it was exported from")
        from saccade.engine.exported import diagnose

        made = [Diagnosis(*row) for row in diagnose(found)]
        return [*made, *(Diagnosis("made from", "ok", words_for(entry)) for entry in ancestors(found))]
    found.check_images()
    from saccade.models.cost import parameters
    from saccade.weights import diagnose as tests
    from saccade.weights.load import load

    loaded = load(found, verify=False)
    module, preprocess = loaded.module, loaded.preprocess
    shape = f"{type(module).__name__} of {parameters(module):,} parameters: {module.config}"
    labelled = "ok" if loaded.labels or not module.config.classes else "unknown"
    unused = f"{loaded.layout}, {len(found.headers)} tensors, {len(loaded.unused)} not needed"
    rows = [
        Diagnosis("layout", "ok", unused),
        Diagnosis("model", "ok", shape),
        Diagnosis("preprocessing", "ok", str(preprocess)),
        Diagnosis("labels", labelled, f"{len(loaded.labels)} of {module.config.classes}"),
    ]
    rows += [Diagnosis("made from", "ok", words_for(entry)) for entry in ancestors(found)]
    if found.code:
        words = f"the model refers to code of its own ({', '.join(found.code)}); ignored"
        rows.append(Diagnosis("code", "ok", words))
    results = [*tests.check_files(found), *tests.check_weights(module)]
    results.append(tests.check_probe(module, preprocess, found.model and found.model.get("probe")))
    if images is None:
        words = "give ordinary images with --pictures to test it"
        results.append(tests.Finding("normalisation", "unknown", words))
    else:
        results.append(tests.check_normalisation(module, preprocess, _views(images, preprocess)))
    return rows + [Diagnosis(r.test, r.verdict, r.words) for r in results]


def _views(images: "Sequence[Source]", preprocess: "Preprocess") -> list["Image"]:
    """Resize up to MOST images, spread over all; skip those that cannot be read."""
    views = []
    for source in images[:: max(1, len(images) // MOST)][:MOST]:
        try:
            views.append(preprocess.view(source))
        except DataError:
            continue
    if not views:
        raise DataError(f"none of the {len(images)} images can be read; expected at least one")
    return views
