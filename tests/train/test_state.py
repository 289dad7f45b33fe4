"""Checkpoints: whole or not there, and every damage is seen."""

import json
import os
import random

import pytest
import torch

from saccade.errors import ModelError
from saccade.train.checkpoint import latest, read, restore_module, save


def groups(value=1.0):
    return {"module": {"a": torch.full((3, 4), value), "b": torch.arange(3)}, "optimizer": {}}


def test_what_was_saved_is_read(tmp_path):
    save(tmp_path, 7, groups(2.5), {"step": 7, "sums": {"loss": 0.1}})
    place, told = latest(tmp_path)
    found, state = read(place)
    assert told == []
    assert torch.equal(found["module"]["a"], torch.full((3, 4), 2.5))
    assert state == {"step": 7, "sums": {"loss": 0.1}}


def test_the_last_two_are_kept(tmp_path):
    for step in (1, 2, 3, 10):
        save(tmp_path, step, groups(), {})
    assert [p.name for p in sorted(tmp_path.iterdir())] == ["step-000000003", "step-000000010"]


def test_the_same_state_is_the_same_bytes(tmp_path):
    for name in ("x", "y"):
        save(tmp_path / name, 5, groups(), {"step": 5})
    files = [sorted((tmp_path / name / "step-000000005").iterdir()) for name in ("x", "y")]
    assert [p.read_bytes() for p in files[0]] == [p.read_bytes() for p in files[1]]


DAMAGES = {
    "a byte flipped": lambda p: p.write_bytes(p.read_bytes()[:-1] + bytes([p.read_bytes()[-1] ^ 1])),
    "cut short": lambda p: p.write_bytes(p.read_bytes()[: len(p.read_bytes()) // 2]),
    "emptied": lambda p: p.write_bytes(b""),
    "removed": lambda p: p.unlink(),
    "a link": lambda p: (os.rename(p, p.with_suffix(".real")), os.symlink(p.with_suffix(".real"), p)),
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", ["module.safetensors", "state.json", "manifest.json"])
def test_a_damaged_checkpoint_is_passed_over_and_the_one_before_is_used(damage, name, tmp_path):
    save(tmp_path, 1, groups(1.0), {"step": 1})
    save(tmp_path, 2, groups(2.0), {"step": 2})
    DAMAGES[damage](tmp_path / "step-000000002" / name)
    place, told = latest(tmp_path)
    assert place.name == "step-000000001"
    assert len(told) == 1


def test_a_manifest_of_another_step_is_not_believed(tmp_path):
    save(tmp_path, 1, groups(), {})
    save(tmp_path, 2, groups(), {})
    manifest = tmp_path / "step-000000002" / "manifest.json"
    manifest.write_bytes((tmp_path / "step-000000001" / "manifest.json").read_bytes())
    place, told = latest(tmp_path)
    assert place.name == "step-000000001"
    assert "manifest of another checkpoint" in told[0]


def test_a_save_that_was_cut_off_counts_for_nothing(tmp_path):
    save(tmp_path, 1, groups(), {})
    (tmp_path / "step-000000002.tmp").mkdir()
    (tmp_path / "step-000000002.tmp" / "module.safetensors").write_bytes(b"half")
    assert latest(tmp_path)[0].name == "step-000000001"
    save(tmp_path, 2, groups(), {})
    assert latest(tmp_path)[0].name == "step-000000002"


def test_numbers_that_are_not_finite_are_never_written(tmp_path):
    save(tmp_path, 1, groups(), {})
    with pytest.raises(ModelError, match="module a holds non-finite numbers"):
        save(tmp_path, 2, groups(float("nan")), {})
    assert latest(tmp_path)[0].name == "step-000000001"


def test_an_empty_folder_has_no_checkpoint(tmp_path):
    assert latest(tmp_path) == (None, [])
    (tmp_path / "manifest.json").write_text(json.dumps({}))
    assert latest(tmp_path) == (None, [])


def two(folder):
    """Two checkpoints; the newer one, and its files."""
    for step in (1, 2):
        full = {**groups(step), "optimizer": {"a/step": torch.tensor(float(step))}}
        save(folder, step, full, {"step": step, "sums": {"loss": 0.5}})
    newer = folder / "step-000000002"
    return newer, sorted(newer.iterdir())


def test_every_cut_and_every_changed_byte_is_seen(tmp_path):
    newer, files = two(tmp_path)
    whole = {path: path.read_bytes() for path in files}
    source = random.Random(0)
    damaged = [(p, d[: len(d) * i // 20]) for p, d in whole.items() for i in range(20)]
    for _ in range(200):
        path = source.choice(files)
        data = bytearray(whole[path])
        data[source.randrange(len(data))] ^= source.randrange(1, 256)
        damaged.append((path, bytes(data)))
    for path, data in damaged:
        path.write_bytes(data)
        assert latest(tmp_path)[0].name == "step-000000001", (path, data)
        path.write_bytes(whole[path])
    assert latest(tmp_path) == (newer, [])


def test_a_file_of_another_step_and_one_that_was_not_saved_are_seen(tmp_path):
    newer, files = two(tmp_path)
    for path in files:
        data = path.read_bytes()
        path.write_bytes((tmp_path / "step-000000001" / path.name).read_bytes())
        assert latest(tmp_path)[0].name == "step-000000001"
        path.write_bytes(data)
    (newer / "ema.safetensors").write_bytes((newer / "module.safetensors").read_bytes())
    place, told = latest(tmp_path)
    assert place.name == "step-000000001"
    assert "holds ema.safetensors, which was not saved with it" in told[0]


def test_the_checkpoint_gone_on_from_is_kept_and_not_the_damaged_ones_after_it(tmp_path):
    for step in (1, 2):
        save(tmp_path, step, groups(step), {})
    for step in (2, 7, 8):
        (tmp_path / f"step-{step:09}").mkdir(exist_ok=True)
        (tmp_path / f"step-{step:09}" / "manifest.json").write_text("{}")
    (tmp_path / "step-000000009.tmp").mkdir()
    place, told = latest(tmp_path)
    assert (place.name, len(told)) == ("step-000000001", 3)
    save(tmp_path, 3, groups(), {}, place)
    assert [p.name for p in sorted(tmp_path.iterdir())] == ["step-000000001", "step-000000003"]


@pytest.mark.parametrize("name", ["step-000000002.tmp", "step-000000002.old.tmp"])
def test_a_whole_checkpoint_that_was_killed_on_its_way_counts(tmp_path, name):
    newer, _ = two(tmp_path)
    newer.rename(tmp_path / name)
    place, told = latest(tmp_path)
    assert (place, told) == (newer, [])
    assert read(place)[1]["step"] == 2


def test_tensors_of_another_model_are_refused(tmp_path):
    module = torch.nn.Linear(2, 3)
    with pytest.raises(ModelError, match=r"does not match the model in recipe\.json"):
        restore_module(module, {"weight": torch.zeros(3, 2)})
    with pytest.raises(ModelError, match=r"does not match the model in recipe\.json"):
        restore_module(module, {"weight": torch.zeros(2, 3), "bias": torch.zeros(3)})
