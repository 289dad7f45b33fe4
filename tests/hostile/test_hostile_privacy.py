"""No verb looks up a name, opens a connection, or writes outside of the working folder and our cache."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import forked
import pytest
import torch
from hub import Hub
from spoken import folder as spoken
from terminal import picture, small
from trees import tree

from saccade.cli.app import VERBS
from saccade.weights.formats.tensors import read_tensors

SOURCE = Path(__file__).parents[2] / "src" / "saccade"
QUICK = "--set budget.epochs=1 --set budget.batch=8 --set workers=1"
LINES = {
    "check": "check pictures --html page.html",
    "train": f"train pictures --model vit_xs2_12 --out run {QUICK} --set track=tensorboard",
    "evaluate": "evaluate model animals --engine auto",
    "bench": "bench exported --data animals --engine onnx,openvino --seconds 0.1",
    "predict": "predict model photo.png",
    "predict with the best engine": "predict exported photo.png",
    "predict with onnx": "predict exported photo.png --engine onnx",
    "predict with openvino": "predict exported photo.png --engine openvino",
    "explain": "explain model photo.png --html page.html --method attention",
    "embed": "embed model pictures --out embedded --map pca",
    "export": "export model out",
    "export openvino": "export model out --to openvino",
    "translate": "translate transformer hello",
    "complete": "complete gpt the --tokens 3",
    "fill": "fill bert [MASK]",
    "runs": "runs .",
    "models": "models vit_b16",
    "convert": "convert timm/pytorch_model.bin --out out",
    "pull": "pull us/pets",
    "doctor": "doctor model",
    "prune": "prune model animals --keep 0.5 --how attention --out pruned",
}
SLOW = {
    "demo": "demo --epochs 1 --out demo",
    "compare": f"compare pictures --models vit_xs4_12,vit_xs6_12 --out compared {QUICK}",
    "probe": "train pictures --probe --model model --out run",
    "language": "train text.txt --out run --set budget.steps=2 --set budget.score=2",
    "prune and train": f"prune model animals --keep 0.5 --out pruned {QUICK}",
    "export int8": "export model out --int8 --data animals",
}
HOOK = """
import os, sys
def watch(event, arguments):
    if event in ("socket.getaddrinfo", "socket.gethostbyname", "socket.gethostbyaddr"):
        told = f"{event} {arguments[0]!r}"
    elif event in ("socket.connect", "socket.sendto") and isinstance(arguments[1], tuple):
        told = f"{event} {arguments[1][0]!r}"
    elif event == "os.mkdir" or event == "open" and (arguments[2] or 0) & (os.O_WRONLY | os.O_RDWR):
        told = "" if isinstance(arguments[0], int) else f"write {os.path.abspath(os.fsdecode(arguments[0]))}"
    else:
        return
    if told and not told.endswith("watched"):
        with open(os.environ["WATCHED"], "a", errors="replace") as file:
            print(told, file=file)
sys.addaudithook(watch)
"""
LOOPBACK = ("127.0.0.1", "::1", "localhost")


@pytest.fixture(scope="module")
def work(tmp_path_factory) -> Path:
    """A folder with all that the verbs need; each works in a copy of it."""
    folder = tmp_path_factory.mktemp("privacy") / "work"
    tree(folder / "pictures", {"cat": 12, "dog": 12})
    tree(folder / "animals", {"cat": 6, "dog": 6, "bird": 6, "fish": 6, "horse": 6})
    small().save(folder / "model")
    picture(folder / "photo.png")
    for kind in ("transformer", "gpt", "bert"):
        spoken(kind, folder)
    (folder / "text.txt").write_text("the cat sat on the mat\n" * 400)
    timm = small().save(folder / "timm", "timm")
    torch.save(dict(read_tensors(timm / "model.safetensors")), timm / "pytorch_model.bin")
    (folder / ".hook").mkdir()
    (folder / ".hook" / "sitecustomize.py").write_text(HOOK)
    done = forked.run("export", "model", "exported", cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder


def traceable() -> bool:
    strace = shutil.which("strace")
    return strace is not None and subprocess.run([strace, "-qq", "true"], capture_output=True).returncode == 0


def below(path: str, *folders: Path) -> bool:
    whole = os.path.normpath(path)
    return any(whole == str(folder) or whole.startswith(f"{folder}/") for folder in folders)


def traced(path: Path, cwd: Path) -> tuple[list[str], list[str]]:
    """Files opened to be written and addresses asked, of native code too."""
    written, asked = [], []
    for line in path.read_text(errors="replace").splitlines():
        if "= -1 E" in line and "EINPROGRESS" not in line:
            continue
        if re.search(r"(connect|sendto)\(.*AF_INET|/etc/resolv.conf|systemd/resolve", line):
            asked.append(line)
        elif re.search(r"O_WRONLY|O_RDWR|O_CREAT|mkdir|creat\(", line) and (
            name := re.search(r'"([^"]*)"', line)
        ):
            written.append(os.path.join(cwd, name[1]))
    return written, asked


def watched(line: str, work: Path, room: Path, address: str = "") -> None:
    """Run a verb with empty folders for all that is not its work, and see that they stay empty."""
    folder, home, cache, temporary = (room / name for name in ("work", "home", "cache", "tmp"))
    shutil.copytree(work, folder)
    for place in (home, cache, temporary):
        place.mkdir()
    gone = ("CI", "TF_BUILD", "JENKINS_URL", "MPLCONFIGDIR", "TORCHINDUCTOR_CACHE_DIR", "HF_HOME", "HF_TOKEN")
    gone += ("HF_HUB_OFFLINE",) if address else ()
    env = {name: value for name, value in os.environ.items() if name not in gone}
    env |= {"HOME": str(home), "XDG_CACHE_HOME": str(cache), "TMPDIR": str(temporary)}
    env |= {"PYTHONPATH": str(folder / ".hook"), "WATCHED": str(room / "watched"), "HF_ENDPOINT": address}
    env |= {"PYTHONDONTWRITEBYTECODE": "1", "ORT_DISABLE_TELEMETRY": "0"}
    words = [sys.executable, "-m", "saccade", *line.split()]
    if strace := traceable():
        calls = "connect,sendto,open,openat,creat,mkdir,mkdirat"
        words = ["strace", "-f", "-qq", "-o", str(room / "traced"), "-e", f"trace={calls}", *words]
    done = subprocess.run(
        words, cwd=folder, env=env, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=300
    )
    assert done.returncode == 0, done.stderr
    caches = {"saccade", "huggingface"} if address else {"saccade"}
    left = [str(path) for place in (home, temporary) for path in place.rglob("*")]
    left += [str(path) for path in cache.iterdir() if path.name not in caches]
    assert left == []
    told = (room / "watched").read_text().splitlines() if (room / "watched").exists() else []
    written = [words.removeprefix("write ") for words in told if words.startswith("write ")]
    asked = [words for words in told if not words.startswith("write ")]
    if strace:
        more, names = traced(room / "traced", folder)
        written, asked = written + more, asked + names
    inside = (folder, cache, temporary, room / "watched", Path("/dev"), Path("/proc"))
    assert [path for path in written if not below(path, *inside)] == []
    if address:
        asked = [words for words in asked if not any(name in words for name in LOOPBACK)]
        asked = [words for words in asked if "resolv" not in words]
    assert asked == []


@pytest.mark.parametrize("name", [name for name in LINES if name != "pull"])
def test_a_verb_neither_calls_nor_writes_elsewhere(name, work, tmp_path):
    watched(LINES[name], work, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", SLOW)
def test_a_long_verb_neither_calls_nor_writes_elsewhere(name, work, tmp_path):
    watched(SLOW[name], work, tmp_path)


def test_pull_calls_the_hub_alone_and_says_nothing_of_what_is_installed(work, tmp_path):
    files = {path.name: path.read_bytes() for path in (work / "model").iterdir()}
    with Hub({"us/pets": files}) as hub:
        watched(LINES["pull"], work, tmp_path, hub.address)
        agents = {request.headers.get("user-agent", "") for request in hub.requests}
    assert agents
    assert not any("torch" in agent or "numpy" in agent for agent in agents), agents


def test_every_verb_is_watched():
    verbs = {line.split()[0] for line in (*LINES.values(), *SLOW.values())}
    assert verbs == set(VERBS)


def test_runtimes_that_phone_home_are_imported_in_one_place_only():
    importing = re.compile(
        r"^\s*(import|from) (onnxruntime|openvino)\b|import_module\(.(onnxruntime|openvino)", re.M
    )
    assert [path for path in SOURCE.rglob("*.py") if importing.search(path.read_text())] == []


@pytest.mark.parametrize("name", ["onnxruntime", "openvino"])
def test_a_program_that_uses_the_library_is_as_quiet(name, tmp_path):
    env = {key: value for key, value in os.environ.items() if key not in ("CI", "TF_BUILD", "JENKINS_URL")}
    env |= {
        "HOME": str(tmp_path / "home"),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "TMPDIR": str(tmp_path),
    }
    (tmp_path / "home").mkdir()
    line = f"from saccade.libraries import import_runtime; import_runtime({name!r})"
    subprocess.run([sys.executable, "-B", "-c", line], env=env, cwd=tmp_path, check=True)
    assert [path for path in tmp_path.rglob("*") if path != tmp_path / "home"] == []
