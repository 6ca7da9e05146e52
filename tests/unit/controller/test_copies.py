"""Copies of a run elsewhere: whole or not there at all, whoever dies, wakes up late, or damages a file."""

from __future__ import annotations

import ftplib
import hashlib
import json
import shutil
import sys
from pathlib import Path

import pytest

from argosy.config import Config
from argosy.config.validate.files import check_other_paths
from argosy.controller.copies import Copies, RemoteFolder, copies_of, filesystem, restore
from argosy.controller.copies.copies import MARK
from argosy.controller.launch.lock import RunFolderLock
from argosy.controller.prepare import PreparedRun
from argosy.controller.recovery import CheckpointStore
from argosy.types.errors import ConfigError, CorruptDataError, FencedError, StateError, StorageError


def save(run_dir: Path, step: int, weights: bytes, run_id: str = "run") -> None:
    """A checkpoint as a run makes them, and the books of its steps."""
    (run_dir / "ledger").mkdir(parents=True, exist_ok=True)
    for number in range(1, step + 1):
        (run_dir / "ledger" / f"step_{number:08d}.jsonl.gz").write_bytes(b"books of %d" % number)
    (run_dir / "ledger" / "lives.jsonl").write_text("{}\n")
    (run_dir / "metrics.jsonl").write_text("".join(f"{number}\n" for number in range(step)))
    store = CheckpointStore(run_dir, None)
    working = store.begin(step)
    (working / "actor" / "weights").write_bytes(weights)
    (working / "actor" / "same").write_bytes(b"the same in all")
    store.commit(step, run_id, working, {"step": step})


@pytest.fixture(params=["file", "local"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """By pyarrow's own file system, and by one of fsspec."""
    return f"{request.param}://{tmp_path}/elsewhere"


def copies_at(url: str, run_dir: Path, keep_count: int | None = None) -> Copies:
    run_dir.mkdir(exist_ok=True)
    return Copies(RemoteFolder(url), run_dir, keep_count)


def test_another_machine_goes_on_from_the_newest_copy(url: str, tmp_path: Path) -> None:
    here = copies_at(url, tmp_path / "here")
    for step, weights in ((2, b"two"), (4, b"four")):
        save(tmp_path / "here", step, weights)
        here.add(step, "run")
    save(tmp_path / "here", 6, b"not copied")
    there = tmp_path / "there"
    found = restore(copies_at(url, there), there, None)
    assert found is not None
    assert found.step == 4
    checkpoint = CheckpointStore(there, None).latest()
    assert checkpoint is not None
    assert (checkpoint.step, (checkpoint.actor / "weights").read_bytes()) == (4, b"four")
    assert sorted(path.name for path in (there / "ledger").glob("step_*")) == [
        f"step_{number:08d}.jsonl.gz" for number in range(1, 5)
    ]
    assert restore(copies_at(url, there), there, "run") is None, "it is as new now"
    assert restore(copies_at(url, tmp_path / "here"), tmp_path / "here", "run") is None, "and this one is newer"


def test_what_two_copies_have_in_common_is_sent_once_and_old_ones_go(url: str, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    copies = copies_at(url, run_dir, keep_count=2)
    for step in (1, 2, 3, 4):
        save(run_dir, step, b"weights of %d" % step)
        copies.add(step, "run")
    assert sorted(copies.folder.sizes("copies")) == [f"gen_00001.step_{step:09d}.json" for step in (3, 4)]
    lists = [copies.read((1, step)) for step in (3, 4)]
    used = {digest for copy in lists for digest in copy.files.values()}
    assert set(copies.folder.sizes("files")) == used
    shared = set(lists[0].files.values()) & set(lists[1].files.values())
    assert len(shared) >= 3, "the same weights file, and books"


@pytest.mark.parametrize("sent", range(12))
def test_e3_a_writer_that_dies_at_any_point_leaves_the_copy_before(
    url: str, tmp_path: Path, sent: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir, there = tmp_path / "run", tmp_path / "there"
    copies = copies_at(url, run_dir)
    save(run_dir, 1, b"one")
    copies.add(1, "run")
    save(run_dir, 2, b"two")
    left = sent
    real_write, real_send = RemoteFolder.write, RemoteFolder.send

    def dying(real: object) -> object:
        def do(self: RemoteFolder, *words: object) -> None:
            nonlocal left
            if not left:
                raise SystemExit("killed")
            left -= 1
            real(self, *words)  # type: ignore[operator]

        return do

    monkeypatch.setattr(RemoteFolder, "write", dying(real_write))
    monkeypatch.setattr(RemoteFolder, "send", dying(real_send))
    died = False
    try:
        copies.add(2, "run")
    except SystemExit:
        died = True
    monkeypatch.undo()
    found = restore(copies_at(url, there), there, None)
    assert found is not None
    assert found.step == (1 if died else 2)
    checkpoint = CheckpointStore(there, None).latest()
    assert checkpoint is not None
    assert (checkpoint.actor / "weights").read_bytes() == (b"one" if died else b"two")
    assert died or sent > 4, "it writes a few things"


def test_f8_a_writer_that_wakes_up_late_is_refused_and_changes_nothing(url: str, tmp_path: Path) -> None:
    old_dir, new_dir = tmp_path / "old", tmp_path / "new"
    old = copies_at(url, old_dir)
    save(old_dir, 2, b"two")
    old.add(2, "run")
    new = copies_at(url, new_dir)
    restore(new, new_dir, None)
    new.claim("run")
    save(old_dir, 8, b"eight, of a leader that is none")
    with pytest.raises(FencedError, match="must stop"):
        old.add(8, "run")
    save(new_dir, 4, b"four")
    new.add(4, "run")
    with pytest.raises(FencedError):
        old.add(8, "run")
    newest = new.newest()
    assert newest is not None
    assert (newest.generation, newest.step) == (2, 4)


def test_a_folder_that_was_left_behind_is_put_aside(url: str, tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    save(first, 2, b"two")
    copies_at(url, first).add(2, "run")
    save(first, 3, b"three, which nobody will know of")
    restore(copies_at(url, second), second, None)
    save(second, 4, b"four of the second machine")
    copies_at(url, second).add(4, "run")
    (first / "before-copy-1-1-of-long-ago").mkdir()
    restore(copies_at(url, first), first, "run")
    checkpoint = CheckpointStore(first, None).latest()
    assert checkpoint is not None
    assert (checkpoint.actor / "weights").read_bytes() == b"four of the second machine"
    [aside] = first.glob("before-copy-*")
    assert (aside / "global_step_3" / "actor" / "weights").read_bytes() == b"three, which nobody will know of"
    assert not (first / "global_step_3").exists()


def test_what_was_put_aside_outlives_a_restore_that_was_broken_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second one finds half of a copy in the folder; what the folder had before is put aside already."""
    elsewhere, ours = f"file://{tmp_path}/elsewhere", tmp_path / "ours"
    save(tmp_path / "other", 4, b"four")
    copies_at(elsewhere, tmp_path / "other").add(4, "run")
    save(ours, 2, b"two, of this machine alone")
    with monkeypatch.context() as patch:
        patch.setattr(sys.modules[restore.__module__], "write_atomically", broken_off)
        with pytest.raises(KeyboardInterrupt):
            restore(copies_at(elsewhere, ours), ours, "run")
    restore(copies_at(elsewhere, ours), ours, "run")
    weights = [path.read_bytes() for path in ours.glob("before-copy-*/global_step_2/actor/weights")]
    assert weights == [b"two, of this machine alone"]
    assert (ours / "global_step_4" / "actor" / "weights").read_bytes() == b"four"


def broken_off(*_: object) -> None:
    raise KeyboardInterrupt


def test_a_live_runs_folder_is_left_alone(tmp_path: Path) -> None:
    """A second start of the command, by mistake, finds newer copies than the folder's mark says."""
    elsewhere = f"file://{tmp_path}/elsewhere"
    save(tmp_path / "other", 4, b"four")
    copies_at(elsewhere, tmp_path / "other").add(4, "run")
    live = tmp_path / "live"
    save(live, 2, b"two")
    config = Config().with_values({"trainer.default_local_dir": str(live), "trainer.default_hdfs_dir": elsewhere})
    lock = RunFolderLock(live)
    lock.acquire()
    with pytest.raises(StateError, match=r"another run .* is using"):
        PreparedRun(config)
    assert sorted(path.name for path in live.glob("global_step_*")) == ["global_step_2"]
    assert not list(live.glob("before-copy-*"))
    lock.release()


def test_damage_and_another_run_are_refused(tmp_path: Path) -> None:
    url, run_dir, there = f"file://{tmp_path}/elsewhere", tmp_path / "run", tmp_path / "there"
    save(run_dir, 1, b"one")
    copy = copies_at(url, run_dir).add(1, "run")
    assert copy is not None
    with pytest.raises(ConfigError, match=r"copies of run run, and .* is run other's"):
        restore(copies_at(url, there), there, "other")
    content = tmp_path / "elsewhere" / "files" / copy.files["global_step_1/actor/weights"]
    content.write_bytes(b"onf")
    with pytest.raises(CorruptDataError, match="is damaged: it is not what global_step_1/actor/weights was"):
        restore(copies_at(url, there), there, None)
    content.unlink()
    with pytest.raises(CorruptDataError, match="lacks the content of global_step_1/actor/weights"):
        restore(copies_at(url, there), there, None)
    assert CheckpointStore(there, None).latest() is None
    (tmp_path / "elsewhere" / copy.key).write_text("{")
    with pytest.raises(CorruptDataError, match="is damaged"):
        restore(copies_at(url, there), there, None)


def test_what_fails_is_tried_again_and_then_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filesystem, "FIRST_PAUSE_S", 0.001)
    folder = RemoteFolder(f"file://{tmp_path}/elsewhere")
    folder.write("a/b", b"1")
    fails = 2
    real = folder._put

    def put(key: str) -> object:
        nonlocal fails
        fails -= 1
        if fails >= 0:
            raise OSError("the network")
        return real(key)

    monkeypatch.setattr(folder, "_put", put)
    folder.write("a/b", b"2")
    assert folder.read("a/b") == b"2"
    fails = 100
    with pytest.raises(StorageError, match=r"could not write a/b in file://.*tried 4 times: the network"):
        folder.write("a/b", b"3")
    with pytest.raises(FileNotFoundError):
        folder.read("a/c")
    assert folder.sizes("nowhere") == {}
    folder.remove("a/c")


def test_bad_places_are_refused_before_anything_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def told(**keys: str) -> str:
        return " ".join(
            check_other_paths(Config().with_values({f"trainer.{key}": value for key, value in keys.items()}))
        )

    assert "give a URL, such as s3://bucket/run" in told(default_hdfs_dir="/mnt/run")
    assert "is a URL already" in told(default_hdfs_dir="s3://a/b", default_local_dir="s3://a/c")
    assert "give credentials by the environment" in told(default_local_dir="s3://key:secret@bucket/run")
    assert "trainer.default" not in told(default_hdfs_dir="s3://bucket/run?region=x")
    monkeypatch.setattr(filesystem, "FIRST_PAUSE_S", 0.001)
    (tmp_path / "file").write_text("")
    with pytest.raises(
        StorageError, match=r"could not write writers/try-.* in file://.*another place with trainer\.default_hdfs"
    ):
        copies_at(f"file://{tmp_path}/file/below", tmp_path / "run").try_it()


def test_urls_that_can_not_be_opened_are_named_without_their_secrets() -> None:
    with pytest.raises(ConfigError, match="can't open nosuch://host/run: ") as told:
        RemoteFolder("nosuch://user:password@host/run?key=secret")
    assert "password" not in str(told.value)
    assert "secret" not in str(told.value)
    with pytest.raises(ConfigError, match="it ends with this process"):
        RemoteFolder("memory://run")


def test_which_copies_a_configuration_wants(tmp_path: Path) -> None:
    assert copies_of(Config(), tmp_path) is None
    url = f"file://{tmp_path}/elsewhere"
    for key in ("trainer.default_hdfs_dir", "trainer.default_local_dir"):
        config = Config().with_values({key: url, "trainer.experiment_name": "mine"})
        assert copies_of(config, tmp_path) is not None
        assert config.run_folder == Path("checkpoints/argosy/mine")


def test_a_mark_of_another_place_says_nothing(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    save(run_dir, 5, b"five")
    copies_at(f"file://{tmp_path}/one", run_dir).add(5, "run")
    other = copies_at(f"file://{tmp_path}/two", run_dir)
    assert other.marked() == (0, 0)
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    assert json.loads((run_dir / MARK).read_text())["step"] == 5
    assert restore(other, run_dir, "run") is not None


def test_what_was_cut_short_is_sent_again(tmp_path: Path) -> None:
    url, run_dir, there = f"file://{tmp_path}/elsewhere", tmp_path / "run", tmp_path / "there"
    save(run_dir, 1, b"weights")
    copies = copies_at(url, run_dir)
    copies.folder.write(f"files/{hashlib.sha256(b'weights').hexdigest()}", b"weig")
    copies.add(1, "run")
    assert restore(copies_at(url, there), there, None) is not None


def test_another_runs_copies_are_left_alone(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/elsewhere"
    save(tmp_path / "one", 3, b"one")
    one = copies_at(url, tmp_path / "one", keep_count=1)
    one.add(3, "run-one")
    save(tmp_path / "two", 1, b"two", "run-two")
    two = copies_at(url, tmp_path / "two", keep_count=1)
    with pytest.raises(ConfigError, match="holds copies of run run-one, and this is run run-two"):
        two.claim("run-two")
    with pytest.raises(ConfigError):
        two.add(1, "run-two")
    one.add(3, "run-one")  # and it is not shut out


def test_a_copy_that_is_removed_while_it_is_fetched_gives_way_to_the_newer(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir, there = tmp_path / "run", tmp_path / "there"
    save(run_dir, 1, b"one")
    writer = copies_at(url, run_dir, keep_count=1)
    writer.add(1, "run")
    save(run_dir, 2, b"two")
    real = RemoteFolder.fetch

    def fetch(self: RemoteFolder, key: str, to: Path) -> None:
        if not next(iter(writer.folder.sizes("copies"))).endswith("2.json"):
            writer.add(2, "run")
        real(self, key, to)

    monkeypatch.setattr(RemoteFolder, "fetch", fetch)
    found = restore(copies_at(url, there), there, None)
    assert found is not None
    assert found.step == 2
    checkpoint = CheckpointStore(there, None).latest()
    assert checkpoint is not None
    assert not (there / "global_step_1").exists()


@pytest.mark.parametrize("name", ["../../evil", "/evil", "global_step_1/../../evil"])
def test_a_list_that_names_files_elsewhere_is_refused(tmp_path: Path, name: str) -> None:
    url, run_dir, there = f"file://{tmp_path}/elsewhere", tmp_path / "run", tmp_path / "there"
    save(run_dir, 1, b"one")
    copy = copies_at(url, run_dir).add(1, "run")
    assert copy is not None
    path = tmp_path / "elsewhere" / copy.key
    made = json.loads(path.read_text())
    made["files"][name] = made["files"]["metrics.jsonl"]
    path.write_text(json.dumps(made))
    with pytest.raises(CorruptDataError, match="is no path in a run folder"):
        restore(copies_at(url, there), there, None)
    assert not list(tmp_path.rglob("evil"))


def test_errors_of_a_file_systems_own_kind_are_told_as_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as ftplib.Error, which is no OSError. What S3 would say again isn't asked again."""
    monkeypatch.setattr(filesystem, "FIRST_PAUSE_S", 0.001)
    folder = RemoteFolder(f"file://{tmp_path}/elsewhere")
    tries = 0

    def put(text: str) -> None:
        def failing(key: str) -> object:
            nonlocal tries
            tries += 1
            raise ftplib.error_perm(text)

        monkeypatch.setattr(folder, "_put", failing)

    put("550 no")
    with pytest.raises(StorageError, match="tried 4 times: 550 no"):
        folder.write("a", b"")
    tries = 0
    put("AWS Error NO_SUCH_BUCKET during CreateMultipartUpload")
    with pytest.raises(StorageError, match="NO_SUCH_BUCKET"):
        folder.write("a", b"")
    assert tries == 1


def test_what_is_given_up_is_not_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_dir = tmp_path / "run"
    save(run_dir, 1, b"one")
    copies = copies_at(f"file://{tmp_path}/elsewhere", run_dir)
    copies.claim("run")
    tries = 0

    def put(key: str) -> object:
        nonlocal tries
        tries += 1
        raise OSError("the network")

    monkeypatch.setattr(copies.folder, "_put", put)
    assert copies.add(1, "run", lambda: tries == 0) is None
    assert tries == 1
    monkeypatch.undo()
    assert copies.add(1, "run") is not None, "and the next one is tried as ever"
