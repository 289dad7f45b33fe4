"""Model files of other people: what they are, what they hold, their tensors, and how ours are written.

No refusal here imports torch, and nothing here unpickles; see `pickle.convert` for that.
"""

from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from io import BufferedReader
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import TYPE_CHECKING, Any

from saccade.files.atomic import replacing
from saccade.files.atomic import write_text as write_text
from saccade.files.paths import REMEDY, Flaw, check_name, open_file, refusal, shown
from saccade.files.strict_json import read_json as read_json
from saccade.weights.formats.kind import kind as kind
from saccade.weights.formats.kind import kind_of
from saccade.weights.formats.safetensors import CODES, TENSORS, arrange, nbytes, read_headers, write_header
from saccade.weights.formats.safetensors import Header as Header
from saccade.weights.formats.zip import members

if TYPE_CHECKING:
    import torch

CONVERT = "run `saccade convert {} --out FOLDER`, which reads it in a restricted process"
WANTED = ", where a .safetensors or .npz file or a folder with model.safetensors was expected"
PICKLES = {
    "torch": "is a torch checkpoint, which is a pickle that could run code",
    "torch-legacy": "is a torch checkpoint of the old format, which is a pickle that could run code",
    "pickle": "is a pickle, which could run code",
}
OTHERS = {
    "empty": ("is empty", REMEDY),
    "torchscript": (
        "is a TorchScript archive, which is a program",
        "ask its author for the weights as safetensors",
    ),
    "tar": ("is a tar archive (torch wrote them until 2017)", "save it again with a newer torch"),
    "npy": ("is a single NumPy array", "save all arrays with numpy.savez"),
    "hdf5": ("is an HDF5 file, as Keras writes them", "ask its author for a safetensors file"),
    "gguf": (
        "is a GGUF file, as llama.cpp reads them",
        "ask its author for the safetensors file it was made from",
    ),
    "onnx": ("is an ONNX graph, which has no model that could be trained", "ask its author for the weights"),
    "json": ("is a JSON file and holds no weights", "give the folder it lies in"),
    "html": ("is a web page, as a download that needs a login saves", "download the file itself"),
    "lfs-pointer": ("is a git-lfs pointer and not the file it stands for", "run `git lfs pull` beside it"),
    "gzip": ("is a gzip file", "unpack it first"),
    "zip": ("is a zip file without arrays or a checkpoint", "unpack it first"),
    "unknown": ("starts like no model file known here", REMEDY),
}
SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"


def unreadable(path: Path, what: str) -> Flaw:
    """Say why a file of this kind cannot be read here, and what to do about it."""
    if what in PICKLES:
        return Flaw(PICKLES[what] + WANTED, CONVERT.format(shown(path)))
    found, remedy = OTHERS[what]
    return Flaw(found + WANTED, remedy)


def headers(path: Path) -> dict[str, Header]:
    """Return name, shape and dtype of every tensor of a file or folder, checked, numbers unread."""
    if path.is_dir():
        return {name: header for part in _parts(path).values() for name, header in part.items()}
    return _file_headers(path)


def _file_headers(path: Path) -> dict[str, Header]:
    with open_file(path) as file:
        return headers_of(path, file)


def headers_of(path: Path, file: BufferedReader) -> dict[str, Header]:
    """Do what `headers` does for a file that is open already; the path is for the words only."""
    what = kind_of(file)
    try:
        if what == "safetensors":
            return read_headers(file.fileno())
        if what in ("npz", "zip"):
            with mmap(file.fileno(), 0, access=ACCESS_READ) as data:
                if what == "npz":
                    from saccade.weights.formats.npz import (
                        layouts,  # NumPy is not needed to refuse the other kinds
                    )

                    return {name: layout.header for name, (_, layout) in layouts(data).items()}
                members(data)  # a damaged zip says itself what is wrong
        raise unreadable(path, what)
    except Flaw as flaw:
        raise refusal(path, flaw) from flaw


def _parts(folder: Path) -> dict[Path, dict[str, Header]]:
    """Return each weight file of a folder with the headers of its tensors."""
    if (folder / SINGLE).exists():
        files = [folder / SINGLE]
    elif (folder / INDEX).exists():
        return _shards(folder)
    else:
        files = sorted(folder.glob("*.safetensors"))
    if len(files) != 1:
        pickles = sorted(file.name for pattern in ("*.bin", "*.pt", "*.pth") for file in folder.glob(pattern))
        remedy = f"run `saccade convert {shown(folder / pickles[0])}`" if pickles else "check the folder"
        found = (
            f"holds {len(files)} safetensors files and neither {SINGLE} nor {INDEX}, where one was expected"
        )
        raise refusal(folder, Flaw(found, remedy))
    return {files[0]: _file_headers(files[0])}


def _shards(folder: Path) -> dict[Path, dict[str, Header]]:
    index = folder / INDEX
    listed = _weight_map(index, read_json(index))
    parts: dict[Path, dict[str, Header]] = {}
    for shard in sorted(set(listed.values())):
        if not (folder / shard).exists():
            raise refusal(index, Flaw(f"names the shard {shown(shard)}, which is not in the folder", REMEDY))
        parts[folder / shard] = _file_headers(folder / shard)
    for name, shard in listed.items():
        if name not in parts[folder / shard]:
            raise refusal(
                index, Flaw(f"lists tensor '{shown(name)}' in {shown(shard)}, which does not have it")
            )
    for shard_path, part in parts.items():
        for name in part:
            # A tensor that nobody lists would be lost without a word, or win over its namesake by chance.
            if listed.get(name) != shard_path.name:
                raise refusal(
                    shard_path, Flaw(f"holds tensor '{shown(name)}', which {INDEX} does not list there")
                )
    return parts


def _weight_map(index: Path, value: dict[str, Any]) -> dict[str, str]:
    listed = value.get("weight_map")
    if not isinstance(listed, dict) or not 0 < len(listed) <= TENSORS:
        raise refusal(index, Flaw("has no weight_map that gives each tensor its file"))
    for name, shard in listed.items():
        plain = isinstance(shard, str) and shard.isprintable() and not set(shard) & set("/\\:")
        if not plain or not shard.endswith(".safetensors") or shard.startswith("."):
            found = f"puts tensor '{shown(name)}' into '{shown(shard)}'"
            raise refusal(index, Flaw(found + ", where the name of a file beside it was expected"))
    return listed


def tensors(path: Path, *, names: Iterable[str] | None = None) -> dict[str, "torch.Tensor"]:
    """Load all tensors, or those named, of what `headers` accepts; safetensors are mapped and not copied."""
    wanted = None if names is None else set(names)
    with ExitStack() as stack:
        if path.is_dir():
            opened = [(part, stack.enter_context(open_file(part))) for part in _parts(path)]
        else:
            opened = [(path, stack.enter_context(open_file(path)))]
        # Headers again, of the very files that stay open until they are loaded.
        parts = [(part, file, headers_of(part, file)) for part, file in opened]
        missing = (wanted or set()) - {name for _, _, held in parts for name in held}
        if missing:
            found = f"has no tensor '{shown(min(missing))}', which was expected"
            raise refusal(path, Flaw(found, "check that it is the model meant"))
        loaded: dict[str, torch.Tensor] = {}
        for part, file, held in parts:
            chosen = [name for name in held if wanted is None or name in wanted]
            load = _load_npz if kind_of(file) == "npz" else _load_safetensors
            try:
                loaded.update(load(file, chosen))
            except Flaw as flaw:
                raise refusal(part, flaw) from flaw
    return loaded


def _load_safetensors(file: BufferedReader, names: list[str]) -> dict[str, "torch.Tensor"]:
    import torch
    from safetensors import SafetensorError, safe_open

    loaded = {}
    # The open descriptor and not the path: what was checked cannot be exchanged before it is mapped.
    try:
        with safe_open(f"/dev/fd/{file.fileno()}", framework="pt") as opened:
            for name in names:
                loaded[name] = opened.get_tensor(name)
    except (SafetensorError, OSError) as error:
        raise Flaw(f"is refused by the safetensors library ({shown(error)})") from error
    for name, tensor in loaded.items():
        if tensor.dtype is torch.bool and tensor.numel() and tensor.view(torch.uint8).max() > 1:
            raise Flaw(
                f"has tensor '{shown(name)}' of truth values with other bytes than the 0 and 1 expected"
            )
    return loaded


def _load_npz(file: BufferedReader, names: list[str]) -> dict[str, "torch.Tensor"]:
    import torch

    from saccade.weights.formats.npz import array, layouts

    loaded = {}
    with mmap(file.fileno(), 0, access=ACCESS_READ) as data:
        found = layouts(data)
        for name in names:
            member, layout = found[name]
            tensor = torch.from_numpy(array(data, member, layout))
            loaded[name] = tensor.view(torch.bfloat16) if layout.header.dtype == "bfloat16" else tensor
    return loaded


def write_safetensors(
    path: Path, tensors: Mapping[str, "torch.Tensor"], metadata: Mapping[str, str] | None = None
) -> None:
    """Write tensors so that the file is whole or not there; the same tensors always give the same bytes."""
    import torch

    if not tensors:
        raise refusal(path, Flaw("would hold no tensor, where at least one was expected", "save a model"))
    described = {}
    for name, tensor in tensors.items():
        dtype = str(tensor.dtype).removeprefix("torch.")
        try:
            check_name(name)
            if dtype not in CODES or tensor.layout is not torch.strided or tensor.is_meta:
                raise Flaw(f"cannot hold tensor '{shown(name)}' ({dtype}, {tensor.layout}, {tensor.device})")
        except Flaw as flaw:
            raise refusal(path, flaw) from flaw
        described[name] = Header(tuple(tensor.shape), dtype)
    start = write_header(described, metadata or {})
    with replacing(path, len(start) + sum(map(nbytes, described.values()))) as file:
        file.write(start)
        for name in arrange(described):
            flat = tensors[name].detach().cpu().resolve_conj().resolve_neg().contiguous().reshape(-1)
            file.write(flat.view(torch.uint8).numpy().data)
