"""Which files of a repository a model is made of."""

import re
from collections.abc import Iterable

from saccade.errors import ModelError

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


def choose(names: Iterable[str], repo: str) -> list[str]:
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
            raise ModelError(
                f"{repo} holds {len(found)} files of weights ({', '.join(found[:5])}); expected one, or "
                "model.safetensors; download the one you want by hand and give its path"
            )
    raise ModelError(
        f"{repo} holds no weights among its {len(names)} files; expected model.safetensors or an .npz "
        "at the top; choose a repository that has one"
    )
