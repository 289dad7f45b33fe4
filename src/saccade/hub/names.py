"""Names on the hub: what a person types, what a listing may name, and which files a model needs."""

import re
from collections.abc import Iterable

from saccade.errors import ModelError, UsageError
from saccade.wording import one_line

WORD = r"\w(?:[\w.-]*\w)?"
NAME = re.compile(rf"(?:hf-hub:|hf_hub:|hf:)?({WORD}/{WORD})(?:@(.+))?", re.ASCII)
REVISION = re.compile(rf"{WORD}(?:/{WORD})*", re.ASCII)
SETTINGS = {
    "config.json", "preprocessor_config.json", "model.json", "preprocess.json", "labels.txt",
    "tokenizer.json", "tokenizer.source.json", "tokenizer_config.json",
    "vocab.json", "merges.txt", "vocab.txt",
}  # fmt: skip
WEIGHTS = (  # the first kind that is there is taken: a single file, or shards together with their index
    (r"model\.safetensors", ""),
    (r"model(-\d+-of-\d+\.safetensors|\.safetensors\.index\.json)", "model.safetensors.index.json"),
    (r"(?!.*-\d+-of-)[\w.-]+\.safetensors", ""),
    (r"[\w.-]+\.npz", ""),
    (r"pytorch_model\.bin", ""),
    (r"pytorch_model(-\d+-of-\d+\.bin|\.bin\.index\.json)", "pytorch_model.bin.index.json"),
    (r"(?!training_args|optimizer|scheduler|.*-\d+-of-)[\w.-]+\.bin", ""),
)
EXAMPLES = {"model": "google/vit-base-patch16-224", "dataset": "uoft-cs/cifar10"}


def read_name(name: str, revision: str | None = None, kind: str = "model") -> tuple[str, str]:
    """Read "owner/name", "hf-hub:owner/name" or "owner/name@revision" into owner/name and a revision."""
    match = NAME.fullmatch(name)
    if match is None or len(match[1]) > 96 or re.search(r"--|\.\.|\.git$", match[1]):
        raise UsageError(
            f"{name[:60]!r} is not a name on the hub; names look like {EXAMPLES[kind]} or "
            "owner/name@revision; give the two words that its page shows, without an address or a path"
        )
    wanted = sorted({text for text in (revision, match[2]) if text is not None}) or ["main"]
    if len(wanted) > 1 or len(wanted[0]) > 100 or ".." in wanted[0] or not REVISION.fullmatch(wanted[0]):
        raise UsageError(
            f"{' and '.join(repr(text[:60]) for text in wanted)} is not a revision of {match[1]}; "
            "expected one branch, tag or commit, such as main; leave it out for the newest"
        )
    return match[1], wanted[0]


def is_plain(name: str) -> bool:
    """Return whether a listed file name only leads down: never up, out, or to hidden files."""
    parts = name.split("/")
    return (
        name.isprintable()
        and not re.search(r"[\\:]", name)
        and all(part and part[0] not in ".~" and len(part.encode()) <= 200 for part in parts)
        and len(name.encode()) <= 1000
    )


def choose_files(names: Iterable[str], repo: str) -> list[str]:
    """Return the files that a model needs: its settings, then its weights, of the safest kind there is.

    Only files at the top count, so no listing can lead out of the folder. A repository that has nothing but
    pickles gives its .bin, which the loader refuses, naming `saccade convert`.
    """
    names = sorted(names)
    for kind, index in WEIGHTS:
        found = [name for name in names if re.fullmatch(kind, name, re.ASCII)]
        if index in found or (not index and len(found) == 1):
            return [name for name in names if name in SETTINGS] + found
        if not index and found:
            some = ", ".join(one_line(name, 60) for name in found[:5])
            raise ModelError(
                f"{repo} has {len(found)} weight files ({some}); expected one, or "
                "model.safetensors; download the one you want by hand and give its path"
            )
    raise ModelError(
        f"{repo} has no weights among its {len(names)} files; expected model.safetensors or an .npz "
        "at the top; choose a repository that has one"
    )
