from __future__ import annotations

import json
from pathlib import Path

import pytest

from argosy.controller.recovery import LATEST, CheckpointStore, find_resume, read_checkpoint
from argosy.types.errors import ConfigError, CorruptDataError


def save(store: CheckpointStore, step: int, run_id: str = "run-1", content: bytes = b"weights") -> None:
    working = store.begin(step)
    (working / "actor" / "model.safetensors").write_bytes(content)
    store.commit(step, run_id, working, {"step": step})


def steps(store: CheckpointStore) -> list[int]:
    return [checkpoint.step for checkpoint in store.complete()]


def test_e3_interrupted_save_is_not_a_checkpoint(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, None)
    save(store, 1)
    (store.begin(2) / "actor" / "model.safetensors").write_bytes(b"half")
    (tmp_path / "global_step_3" / "actor").mkdir(parents=True)  # a folder that never got its manifest
    latest = store.latest()
    assert latest is not None
    assert latest.step == 1
    save(store, 2)  # the leftover is replaced
    save(store, 3)
    assert steps(store) == [1, 2, 3]


def test_e3_the_same_step_again_replaces_it_whole(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, None)
    save(store, 5, content=b"first")
    save(store, 5, content=b"second")
    assert (read_checkpoint(tmp_path / "global_step_5").actor / "model.safetensors").read_bytes() == b"second"
    assert [path.name for path in tmp_path.glob(".global*")] == []


@pytest.mark.parametrize("damage", ["truncate", "change", "delete"])
def test_e3_damaged_checkpoint_is_refused_by_name(tmp_path: Path, damage: str) -> None:
    store = CheckpointStore(tmp_path, None)
    save(store, 5)
    victim = tmp_path / "global_step_5" / "actor" / "model.safetensors"
    if damage == "delete":
        victim.unlink()
    else:
        victim.write_bytes(b"weigh" if damage == "truncate" else b"weightz")
    with pytest.raises(CorruptDataError, match=r"global_step_5 is damaged: model\.safetensors.*; restore it, or move"):
        store.latest()


def test_e4_keep_counts_steps_as_numbers(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, 2)
    for step in (900, 1000, 9900, 10000):
        save(store, step)
    assert steps(store) == [9900, 10000]


def test_e4_failed_save_keeps_the_old_one(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, 1)
    save(store, 1)
    (tmp_path / ".global_step_2.partial").write_bytes(b"a file where the folder should be")
    with pytest.raises(Exception, match="could not write"):
        store.begin(2)
    assert steps(store) == [1]
    assert (tmp_path / LATEST).read_text() == "1\n"


def test_e4_limit_holds_after_resume_and_strays_are_left_alone(tmp_path: Path) -> None:
    save(CheckpointStore(tmp_path, None), 99999, run_id="another-run")
    store = CheckpointStore(tmp_path, 1)
    save(store, 1)
    resumed = CheckpointStore(tmp_path, 1)
    latest = resumed.latest()
    assert latest is not None
    assert latest.step == 1, "the pointer decides, not the highest number"
    for step in (2, 3, 4):
        save(resumed, step)
    (tmp_path / "global_step_50").mkdir()  # partial: not counted as kept
    assert steps(resumed) == [4, 99999]


@pytest.mark.parametrize("moment", ["before", "while"])
def test_e3_kill_before_or_while_the_oldest_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """One checkpoint too many, or half of one aside: the first save of the next start sets both right."""

    def killed(path: Path, **_: object) -> None:
        if path.exists():
            raise SystemExit("killed")

    store = CheckpointStore(tmp_path, 1)
    save(store, 1)
    with monkeypatch.context() as patch:
        if moment == "before":
            patch.setattr(store, "_prune", lambda *_, **__: killed(tmp_path))
        else:
            patch.setattr("argosy.controller.recovery.shutil.rmtree", killed)
        with pytest.raises(SystemExit):
            save(store, 2)
    store = CheckpointStore(tmp_path, 1)
    assert steps(store) == ([1, 2] if moment == "before" else [2])
    assert (latest := store.latest()) is not None
    assert latest.step == 2
    save(store, 3)
    assert steps(store) == [3]
    assert not list(tmp_path.glob(".global_step_*"))


def test_h5_explicit_path_problems_are_errors(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, None)
    with pytest.raises(ConfigError, match="there is no checkpoint folder"):
        find_resume(store, "resume_path", str(tmp_path / "no"), tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match="no complete checkpoint"):
        find_resume(store, "resume_path", str(tmp_path / "empty"), tmp_path)
    with pytest.raises(ConfigError, match="resume_from_path"):
        find_resume(store, "resume_path", None, tmp_path)
    save(store, 3)
    with pytest.raises(ConfigError, match=r"did you mean .*global_step_3"):
        find_resume(store, "resume_path", str(tmp_path), tmp_path)


def test_h5_auto_with_nothing_is_a_new_run(tmp_path: Path) -> None:
    assert find_resume(CheckpointStore(tmp_path, None), "auto", None, tmp_path) is None


def test_h5_disable_never_overwrites(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, None)
    assert find_resume(store, "disable", None, tmp_path) is None
    save(store, 7)
    with pytest.raises(ConfigError, match="already holds checkpoints up to step 7"):
        find_resume(store, "disable", None, tmp_path)


def test_damaged_manifest_is_named(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, None)
    save(store, 1)
    (tmp_path / "global_step_1" / "manifest.json").write_text(json.dumps({"step": 1, "run_id": "x"}))
    with pytest.raises(CorruptDataError, match=r"manifest\.json can't be read"):
        read_checkpoint(tmp_path / "global_step_1")
