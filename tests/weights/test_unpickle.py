"""Checkpoints of strangers: the weights come out bit for bit, and nothing in the file ever runs."""

import argparse
import json
import pickle
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from mmap import ACCESS_READ, mmap
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from malice import Malice, checkpoint, legacy, model_files, state, tensor
from torch import Tensor, nn

from saccade.errors import ModelError, ResourceError
from saccade.files.paths import Flaw
from saccade.weights.formats.pickle.child import FORBIDDEN, choose, read_legacy, read_zip
from saccade.weights.formats.pickle.convert import Report, unpickle
from saccade.weights.formats.tensors import read_tensors

WALK = """
import json, resource, sys
from pathlib import Path
from saccade.errors import ModelError
from saccade.weights.formats.pickle.convert import unpickle

def used():
    both = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(use.ru_utime + use.ru_stime for use in both), max(use.ru_maxrss for use in both) * 1024

told = {}
for path in json.load(sys.stdin):
    before = used()
    try:
        unpickle(Path(path), Path("out.safetensors"))
        words = "accepted"
    except ModelError as error:
        words = str(error)
    told[path] = words, *(after - start for after, start in zip(used(), before))
print(json.dumps([told, "torch" in sys.modules]))
"""
SAMPLE = ("system2.pkl", "memo.pkl", "system.pt", "beside.pt", "expanded.pt", "bomb.pt", "legacy-system.pth")


@pytest.fixture(scope="module")
def canary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("canary") / "sang"


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory, canary: Path) -> Iterator[list[Malice]]:
    folder = tmp_path_factory.mktemp("models")
    yield model_files(folder, canary)
    shutil.rmtree(folder)  # the bombs take 200 MB, and pytest would keep three generations of them


def walk(files: list[Malice], folder: Path) -> dict[str, tuple[str, float, int]]:
    """Convert each file in one fresh process: words, CPU seconds and growth; no torch, nothing written."""
    paths = json.dumps([str(malice.path) for malice in files])
    done = subprocess.run(
        [sys.executable, "-c", WALK],
        input=paths,
        capture_output=True,
        text=True,
        cwd=folder,
        timeout=300,
        check=True,
    )
    told, torch_was_imported = json.loads(done.stdout)
    assert not torch_was_imported
    assert not list(folder.iterdir())
    return told


def check(files: list[Malice], folder: Path, canary: Path) -> None:
    told = walk(files, folder)
    wrong = []
    for malice in files:
        words, seconds, grown = told[str(malice.path)]
        allowed = (malice.path.lstat().st_size if malice.path.exists() else 0) + 50 * 2**20
        if malice.convert not in words or not words.isprintable() or seconds > 2 or grown > allowed:
            wrong.append((malice.name, malice.convert, words, seconds, grown))
    assert not wrong
    assert not canary.exists()


def test_a_sample_of_malicious_files_is_refused_and_nothing_runs(corpus, tmp_path, canary):
    check([malice for malice in corpus if malice.name in SAMPLE], tmp_path, canary)


@pytest.mark.slow
def test_every_malicious_file_is_refused_and_nothing_runs(corpus, tmp_path, canary):
    check(corpus, tmp_path, canary)


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
def test_only_the_restricted_process_is_started_and_nothing_is_connected(corpus, tmp_path, canary):
    path = next(malice.path for malice in corpus if malice.name == "beside.pt")
    code = (
        "from pathlib import Path; from saccade.weights.formats.pickle.convert import unpickle; "
        f"unpickle(Path({str(path)!r}), Path('out'))"
    )
    trace = tmp_path / "trace"
    command = ["strace", "-f", "-o", str(trace), "-e", "trace=execve,connect", sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=60)
    if "ptrace" in done.stderr:
        pytest.skip("strace may not trace here")
    assert "posix.system" in done.stderr
    calls = [line for line in trace.read_text().splitlines() if "execve(" in line or "connect(" in line]
    assert len(calls) == 2
    assert all(f'execve("{sys.executable}"' in line for line in calls)
    assert not canary.exists()


@pytest.mark.parametrize(
    "action",
    [
        "import wave",
        "open('/etc/passwd')",
        "open('x', 'w')",
        "os.system('true')",
        "os.posix_spawn('/bin/true', ['true'], {})",
        "os.execv('/bin/true', ['true'])",
        "os.fork()",
        "os.listdir('/')",
        "subprocess.run(['true'])",
        "socket.socket()",
        "socket.getaddrinfo('localhost', 1)",
        "eval('1')",
        "ctypes.CDLL(None)",
        "pickle.loads(b'cposix\\nsystem\\n.')",
    ],
)
def test_the_restricted_process_ends_when_it_does_anything_but_compute(tmp_path, action):
    code = (
        "import ctypes, os, pickle, socket, subprocess\n"
        "from saccade.weights.formats.pickle.child import confine\nconfine(0)\n"
        f"try:\n    {action}\nfinally:\n    os._exit(0)"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=tmp_path, timeout=20).returncode == FORBIDDEN


def several() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    base = torch.randn(6, 8, generator=generator)
    return {
        "float32": base,
        "float16": base.half(),
        "bfloat16": base.bfloat16(),
        "float64": base.double(),
        "complex64": torch.view_as_complex(base.clone().reshape(6, 4, 2)).clone(),
        "int64": torch.arange(6),
        "int32": torch.arange(6, dtype=torch.int32),
        "int16": torch.arange(6, dtype=torch.int16),
        "int8": torch.arange(6, dtype=torch.int8),
        "uint8": torch.arange(6, dtype=torch.uint8),
        "bool": torch.tensor([True, False, True]),
        "transposed": base.t(),
        "channels_last": torch.randn(2, 3, 4, 5, generator=generator).to(memory_format=torch.channels_last),
        "shared": base[2:],
        "sliced": base[1:4, 2:7:2],
        "every_other": torch.arange(10)[1::2],
        "expanded": base[:1].expand(5, 8),
        "stretched": base[:, :1].expand(6, 7),
        "scalar": torch.tensor(3.5),
        "inner": base[3, 4],
        "empty": torch.zeros(0, 4),
        "parameter": nn.Parameter(torch.ones(2, 2)),
        "nan": torch.tensor([float("nan"), float("-inf")]),
    }


def bits(tensor: Tensor) -> bytes:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def assert_converts(saved: object, wanted: dict[str, Tensor], folder: Path, *, old: bool) -> Report:
    torch.save(saved, folder / "in.pt", _use_new_zipfile_serialization=not old)
    report = unpickle(folder / "in.pt", folder / "out.safetensors")
    found = read_tensors(folder / "out.safetensors")
    assert found.keys() == wanted.keys()
    for name, one in wanted.items():
        assert (found[name].dtype, found[name].shape) == (one.dtype, one.shape), name
        assert bits(found[name]) == bits(one), name
    assert report.tensors == len(wanted)
    assert sorted(path.name for path in folder.iterdir()) == ["in.pt", "out.safetensors"]
    return report


@pytest.mark.parametrize("old", [False, True])
def test_every_kind_of_tensor_comes_out_bit_for_bit(tmp_path, old):
    report = assert_converts(several(), several(), tmp_path, old=old)
    assert report == Report(len(several()), "", ())


def test_the_dtypes_that_have_no_storage_of_their_own_come_out_too(tmp_path):
    wanted = {"uint16": torch.arange(4).to(torch.uint16), "float8": torch.randn(4).to(torch.float8_e4m3fn)}
    assert_converts(wanted, wanted, tmp_path, old=False)


@pytest.mark.parametrize("old", [False, True])
def test_the_state_of_a_module_comes_out(tmp_path, old):
    module = nn.Sequential(nn.Conv2d(3, 4, 2), nn.BatchNorm2d(4), nn.Linear(4, 2))
    assert_converts(module.state_dict(), dict(module.state_dict()), tmp_path, old=old)


@pytest.mark.parametrize("old", [False, True])
def test_weights_beside_an_optimiser_and_arguments_are_found_and_the_rest_is_named(tmp_path, old):
    module = nn.Linear(3, 2)
    optimiser = torch.optim.AdamW(module.parameters())
    module(torch.ones(3)).sum().backward()
    optimiser.step()
    saved = {
        "epoch": 3,
        "model": module.state_dict(),
        "optimizer": optimiser.state_dict(),
        "args": argparse.Namespace(lr=1e-3, device=torch.device("cpu")),
        "best": np.float64(81.8),
        "shape": torch.Size([2, 3]),
    }
    report = assert_converts(saved, dict(module.state_dict()), tmp_path, old=old)
    assert report == Report(2, "model", ("epoch", "optimizer", "args", "best", "shape"))


@pytest.mark.parametrize(
    ("saved", "chosen", "dropped"),
    [
        (lambda w: w | {"step": 3}, "", ("step",)),
        (lambda w: {"state_dict": w, "step": torch.tensor(3)}, "state_dict", ("step",)),
        (lambda w: {"teacher": w, "student": {"a": torch.zeros(1)}}, "teacher", ("student",)),
        (lambda w: {"model_ema": {"a": torch.zeros(1)}, "model": w}, "model", ("model_ema",)),
        (
            lambda w: {"model": {"state_dict": w, "name": "vit"}, 7: 1},
            "model.state_dict",
            ("7", "model.name"),
        ),
        (lambda w: {"state_dict": {}, "module": w}, "module", ("state_dict",)),
        (lambda w: {"model": {"model": {"model": w}}}, "model.model.model", ()),
    ],
)
def test_the_choice_of_the_state_dict_is_fixed_and_reported(tmp_path, saved, chosen, dropped):
    weights = {"a": torch.ones(2), "b": torch.arange(3)}
    report = assert_converts(saved(weights), weights, tmp_path, old=False)
    assert report == Report(2, chosen, dropped)


def test_the_same_checkpoint_gives_the_same_bytes(tmp_path):
    torch.save(several(), tmp_path / "in.pt")
    written = []
    for name in ("a", "b"):
        unpickle(tmp_path / "in.pt", tmp_path / name)
        written.append((tmp_path / name).read_bytes())
    assert written[0] == written[1]


def test_a_whole_module_is_refused_by_the_name_of_its_class(tmp_path):
    torch.save(nn.Linear(2, 2), tmp_path / "old.pth")
    with pytest.raises(
        ModelError, match=r"old\.pth is a pickle that wants to call torch\.nn\.modules\.linear\.Linear"
    ):
        unpickle(tmp_path / "old.pth", tmp_path / "out")


def test_a_safetensors_file_needs_no_conversion(tmp_path):
    torch.save({"a": torch.ones(1)}, tmp_path / "in.pt")
    unpickle(tmp_path / "in.pt", tmp_path / "a.safetensors")
    with pytest.raises(ModelError, match="is a safetensors file already"):
        unpickle(tmp_path / "a.safetensors", tmp_path / "b.safetensors")


def test_a_refusal_leaves_the_old_output_alone(tmp_path):
    (tmp_path / "in.pt").write_bytes(checkpoint(pickle.dumps(print)))
    (tmp_path / "out").write_text("old")
    with pytest.raises(ModelError, match=r"builtins\.print.*nothing was executed"):
        unpickle(tmp_path / "in.pt", tmp_path / "out")
    assert (tmp_path / "out").read_text() == "old"
    assert len(list(tmp_path.iterdir())) == 2


def test_a_full_disk_is_told_as_such(tmp_path, monkeypatch):
    import saccade.weights.formats.pickle.convert as module

    torch.save({"a": torch.ones(1)}, tmp_path / "in.pt")
    monkeypatch.setattr(module, "_run", lambda *_: {"errno": 28})
    with pytest.raises(ResourceError, match=r"needs [\d,]+ bytes and [\d,]+ are free"):
        unpickle(tmp_path / "in.pt", tmp_path / "out")
    assert len(list(tmp_path.iterdir())) == 1


def test_a_verdict_that_contradicts_the_output_is_not_believed(tmp_path, monkeypatch):
    import saccade.weights.formats.pickle.convert as module

    torch.save({"a": torch.ones(1)}, tmp_path / "in.pt")
    for verdict, words in (
        ({"tensors": 1, "chosen": "", "dropped": []}, "at least 10"),
        ({"x": 1}, "contradict"),
    ):
        monkeypatch.setattr(module, "_run", lambda *_, verdict=verdict: verdict)
        with pytest.raises(ModelError, match=words):
            unpickle(tmp_path / "in.pt", tmp_path / "out")


@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("import os; os._exit(77)", "tried something forbidden"),
        ("import os; os.kill(os.getpid(), 9)", "Killed"),
        ("raise SystemExit(3)", "exit code 3"),
        ("import time; time.sleep(60)", "busy for 0.5 seconds"),
        ("print('no JSON')", "JSON"),
    ],
)
def test_a_restricted_process_that_fails_is_a_refusal(tmp_path, monkeypatch, program, words):
    import saccade.weights.formats.pickle.convert as module

    torch.save({"a": torch.ones(1)}, tmp_path / "in.pt")
    monkeypatch.setattr(module, "START", program)
    monkeypatch.setattr(module, "PATIENCE", 0.5 if "sleep" in program else 60)
    with pytest.raises(ModelError, match=words):
        unpickle(tmp_path / "in.pt", tmp_path / "out")
    assert len(list(tmp_path.iterdir())) == 1


@settings(max_examples=300, deadline=None)
@given(place=st.integers(0, 10_000), byte=st.integers(0, 255), old=st.booleans())
def test_a_changed_byte_of_a_pickle_never_raises_anything_but_a_flaw(place, byte, old):
    body = bytearray(state(tensor(1, (3,), (1,))))
    body[place % len(body)] = byte
    with tempfile.TemporaryFile() as file:
        file.write(legacy(bytes(body)) if old else checkpoint(bytes(body)))
        file.flush()
        with mmap(file.fileno(), 0, access=ACCESS_READ) as data:
            words = "accepted"
            try:
                views, _, _ = choose((read_legacy if old else read_zip)(data)[0])
                assert views
            except Flaw as flaw:
                words = flaw.found
            assert words.isprintable()
