"""The disk transport: chains of versions, whatever is missing, damaged, half-written or can't be written."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from argosy.types.errors import (
    AbortedError,
    CorruptDataError,
    DeadlineError,
    InvalidInputError,
    NotFoundError,
    StorageError,
)
from argosy.types.records import TransferOffer
from argosy.weightsync import Snapshot, Staging, chain_writer
from argosy.weightsync.chain import ChainSettings, Link, chains_to, read_links
from argosy.weightsync.chain_reader import read_version
from argosy.weightsync.chain_writer import publish
from argosy.weightsync.transports import SendOptions, TransferPlan, load_transport
from argosy.weightsync.transports import disk as disk_transport

State = dict[str, torch.Tensor]
PLAN = TransferPlan("sync-1", 2, 60, "fence")
TIES = {"head.weight": "embed.weight"}


def small_state() -> State:
    """Two tensors of more than one part, a tied head, a scalar, an empty one."""
    generator = torch.Generator().manual_seed(0)
    embed = torch.randn(300, 1000, generator=generator).bfloat16()
    return {
        "embed.weight": torch.cat([embed, embed, embed]),
        "layer.weight": torch.randn(33, 7, generator=generator),
        "layer.scale": torch.tensor(0.5),
        "layer.empty": torch.zeros(0, 4),
    }


class Sender:
    """Publishes one version after another into a folder; each changes a few elements of two tensors."""

    def __init__(self, folder: Path, base_every: int = 4, keep: int = 100) -> None:
        self.folder = folder
        self.options = SendOptions(folder=str(folder), chain=ChainSettings(base_every, keep))
        self.state = small_state()
        self.snapshot: Snapshot | None = None
        self.step = -1

    def freeze(self) -> Snapshot:
        self.step += 1
        generator = torch.Generator().manual_seed(self.step)
        places = torch.randperm(self.state["embed.weight"].numel(), generator=generator)[:50]
        self.state["embed.weight"].view(-1)[places] += 1
        self.state["layer.scale"] += 1
        tensors = {**self.state, "head.weight": self.state["embed.weight"]}
        self.snapshot = Snapshot.freeze("main", self.step, tensors, TIES, reuse=self.snapshot, delta=True)
        return self.snapshot

    async def send(self) -> Snapshot:
        snapshot = self.freeze()
        await disk_transport.open_transfer(snapshot, PLAN, self.options)
        return snapshot

    async def send_many(self, count: int) -> list[tuple[Snapshot, State]]:
        """The manifests (as snapshots that were retired) and what they held."""
        return [
            (snapshot, {name: tensor.clone() for name, tensor in snapshot.tensors().items()})
            for snapshot in [await self.send() for _ in range(count)]
        ]

    def kinds(self) -> list[str]:
        return [link.kind for link in read_links(self.folder)]

    def links(self, kind: str) -> list[Link]:
        return [link for link in read_links(self.folder) if link.kind == kind]


async def take(folder: Path, snapshot: Snapshot, reuse: Staging | None = None, deadline_s: float = 60) -> Staging:
    """What a receiver does."""
    staging = Staging(snapshot.manifest, reuse=reuse)
    offer = TransferOffer("disk", "sync-1", snapshot.manifest.version, str(folder))
    await load_transport("disk").receive(offer, snapshot, snapshot.manifest, staging, deadline_s)
    return staging


def assert_holds(staging: Staging, state: State) -> None:
    held = staging.finish()
    assert all(torch.equal(held[name], tensor) for name, tensor in state.items())
    assert held["head.weight"].data_ptr() == held["embed.weight"].data_ptr()


def leftovers(folder: Path) -> list[Path]:
    return list(folder.glob(".partial-*"))


def damage(link: Link, how: str) -> None:
    """Spoil a link's weights (or its record)."""
    path = link.folder / link.files[0].name
    if how == "flipped":
        data = bytearray(path.read_bytes())
        data[-5] ^= 1
        path.write_bytes(data)
    elif how == "cut":
        path.write_bytes(path.read_bytes()[:-7])
    elif how == "gone":
        path.unlink()
    elif how == "record":
        (link.folder / "version.json").write_text((link.folder / "version.json").read_text().replace("main", "mian"))
    elif how == "header":
        data = bytearray(path.read_bytes())
        data[12] ^= 0xFF
        path.write_bytes(data)


async def test_deltas_follow_a_base_and_every_few_versions_there_is_a_base_again(tmp_path: Path) -> None:
    sender = Sender(tmp_path / "weights", base_every=3)
    for _ in range(8):
        snapshot = await sender.send()
        assert_holds(await take(sender.folder, snapshot), snapshot.tensors())
    assert sender.kinds() == ["base", "delta", "delta", "delta", "base", "delta", "delta", "delta", "base", "delta"]
    links = read_links(sender.folder)
    assert max(len(chain) for link in links for chain in chains_to(links, link.version)[:1]) == 3
    base, delta = sender.links("base")[0], sender.links("delta")[0]
    assert delta.files[0].size < base.files[0].size / 100
    plain = load_file(base.folder / base.files[0].name)
    assert set(plain) == set(sender.state), "any reader of safetensors takes a base"
    assert plain["embed.weight"].dtype == torch.bfloat16


async def test_a_receiver_that_holds_the_version_before_reads_only_the_delta(tmp_path: Path) -> None:
    sender = Sender(tmp_path)
    held = await take(tmp_path, await sender.send())
    snapshot = await sender.send()
    damage(sender.links("base")[0], "gone")
    assert_holds(await take(tmp_path, snapshot, reuse=held), snapshot.tensors())
    with pytest.raises(NotFoundError, match="a file is missing"):
        await take(tmp_path, snapshot)


async def test_held_bytes_that_were_spoilt_are_replaced_from_the_base(tmp_path: Path) -> None:
    sender = Sender(tmp_path)
    held = await take(tmp_path, await sender.send())
    assert held.is_whole
    held.buffer.memory[1000] ^= 1
    snapshot = await sender.send()
    assert_holds(await take(tmp_path, snapshot, reuse=held), snapshot.tensors())


@pytest.mark.parametrize("how", ["flipped", "cut", "gone", "record", "header"])
@pytest.mark.parametrize("which", ["base", "delta"])
async def test_a_damaged_link_is_named_and_costs_nothing_behind_the_next_base(
    tmp_path: Path, how: str, which: str
) -> None:
    """base 0, deltas 1 2 3, base 3, deltas 4 5: what can be reached around the damage is, the rest is refused."""
    sender = Sender(tmp_path, base_every=3)
    versions = []
    for _ in range(6):
        snapshot = await sender.send()
        versions.append((snapshot.manifest, {name: t.clone() for name, t in snapshot.tensors().items()}))
    assert sender.snapshot is not None
    assert sender.kinds() == ["base", "delta", "delta", "delta", "base", "delta", "delta"]
    spoilt = sender.links(which)[0]
    damage(spoilt, how)
    reachable = {"base": {3, 4, 5}, "delta": {0, 3, 4, 5}}[which]
    for step, (manifest, state) in enumerate(versions):
        staging = Staging(manifest)
        offer = TransferOffer("disk", "s", manifest.version, str(tmp_path))
        if step in reachable:
            await disk_transport.receive(offer, sender.snapshot, manifest, staging, 60)
            assert_holds(staging, state)
        else:
            with pytest.raises((CorruptDataError, NotFoundError), match=spoilt.folder.name):
                await disk_transport.receive(offer, sender.snapshot, manifest, staging, 60)
            assert staging.received_byte_count == 0


async def test_a_damaged_base_is_gone_round_by_the_delta_beside_it(tmp_path: Path) -> None:
    sender = Sender(tmp_path, base_every=2)
    for _ in range(3):
        snapshot = await sender.send()
    assert sender.kinds() == ["base", "delta", "delta", "base"]
    damage(sender.links("base")[1], "flipped")
    assert_holds(await take(tmp_path, snapshot), snapshot.tensors())


async def test_offering_a_version_again_mends_it_with_a_base(tmp_path: Path) -> None:
    """A receiver refused it: the controller tries again, the sender reads back what it wrote."""
    sender = Sender(tmp_path)
    await sender.send()
    snapshot = await sender.send()
    damage(sender.links("delta")[0], "flipped")
    with pytest.raises(CorruptDataError, match="damaged"):
        await take(tmp_path, snapshot)
    await disk_transport.open_transfer(snapshot, PLAN, sender.options)
    assert_holds(await take(tmp_path, snapshot), snapshot.tensors())
    assert sender.kinds() == ["base", "delta", "base"]
    await disk_transport.open_transfer(snapshot, PLAN, sender.options)
    assert sender.kinds() == ["base", "delta", "base"], "a sound one is left alone"


async def test_a_version_after_a_missing_link_is_written_whole(tmp_path: Path) -> None:
    sender = Sender(tmp_path)
    await sender.send()
    damage(sender.links("base")[0], "gone")
    snapshot = await sender.send()
    assert sender.kinds()[-1] == "base"
    assert_holds(await take(tmp_path, snapshot), snapshot.tensors())


@pytest.mark.parametrize("keep", [1, 2, 5])
async def test_e4_old_versions_go_only_when_no_chain_needs_them(tmp_path: Path, keep: int) -> None:
    """After every send each of the `keep` newest versions can be read, and the number of links is bounded."""
    sender = Sender(tmp_path, base_every=3, keep=keep)
    stray = tmp_path / "notes"
    stray.mkdir()
    kept: list[Snapshot] = []
    most = 0
    for _ in range(14):
        snapshot = await sender.send()
        kept = [*kept, snapshot][-keep:]
        for one in kept:
            assert (await take(tmp_path, one)).is_whole
        most = max(most, len(read_links(tmp_path)))
    assert most <= keep + 5
    numbers = [link.sequence for link in read_links(tmp_path)]
    assert numbers == sorted(numbers)
    assert numbers[0] > 8, "the first ones are gone"
    assert stray.is_dir(), "what is no link is not touched"


async def test_e4_links_of_another_run_with_higher_steps_do_not_win(tmp_path: Path) -> None:
    other = Sender(tmp_path)
    other.step = 90_000
    await other.send()
    sender = Sender(tmp_path, keep=1)
    snapshot = await sender.send()
    assert [link.version for link in read_links(tmp_path)] == [snapshot.manifest.version]


async def test_e3_half_written_folders_are_ignored_and_cleared_by_the_next_writer(tmp_path: Path) -> None:
    sender = Sender(tmp_path)
    first = await sender.send()
    link = read_links(tmp_path)[0]
    half = tmp_path / f".partial-{link.folder.name}"
    half.mkdir()
    (half / "weights-00001.safetensors").write_bytes(b"half")
    no_record = tmp_path / "00000099-base-main-7-aaaaaaaaaaaa"
    no_record.mkdir()
    assert_holds(await take(tmp_path, first), first.tensors())
    snapshot = await sender.send()
    assert_holds(await take(tmp_path, snapshot), snapshot.tensors())
    assert not half.exists()
    assert not no_record.exists()
    assert read_links(tmp_path)[-1].sequence == 100


KILLED = """
import os, signal, sys, threading
sys.path.insert(0, {tests!r})
from pathlib import Path
from unit.weightsync.test_disk import Sender
import argosy.weightsync.chain_writer as writer
import safetensors.torch

calls = 0
whole_sync = writer._sync

def sync(path):
    global calls
    calls += 1
    if calls == number:
        os.kill(os.getpid(), signal.SIGKILL)
    whole_sync(path)

for number in (1, 2, 3, 4):
    child = os.fork()
    if child == 0:
        sender = Sender(Path({folder!r}) / str(number))
        writer.publish(sender.folder, sender.freeze(), sender.options.chain, threading.Event())
        writer._sync = sync
        writer.publish(sender.folder, sender.freeze(), sender.options.chain, threading.Event())
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
"""


async def test_e3_a_writer_killed_half_way_leaves_the_old_version_and_is_followed_by_another(tmp_path: Path) -> None:
    """SIGKILL before each of the four syncs of a link: weights, record, folder, and the parent after the rename."""
    program = KILLED.format(tests=str(Path(__file__).parents[2]), folder=str(tmp_path))
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", program], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    for number in (1, 2, 3, 4):
        sender = Sender(tmp_path / str(number))
        first = sender.freeze()
        assert_holds(await take(sender.folder, first), first.tensors())
        assert len(read_links(sender.folder)) == (2 if number == 4 else 1)
        second = await sender.send()
        assert_holds(await take(sender.folder, second), second.tensors())
        assert leftovers(sender.folder) == []
        assert len([link for link in read_links(sender.folder) if link.version == second.manifest.version]) == 1


FULL = """
import resource, sys, threading
sys.path.insert(0, {tests!r})
from pathlib import Path
from unit.weightsync.test_disk import Sender
from argosy.types.errors import StorageError
from argosy.weightsync.chain_writer import publish

sender = Sender(Path({folder!r}))
publish(sender.folder, sender.freeze(), sender.options.chain, threading.Event())
resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
try:
    publish(sender.folder, sender.freeze(), sender.options.chain, threading.Event())
except StorageError as error:
    print(error)
"""


async def test_a_full_disk_is_told_and_leaves_the_version_before(tmp_path: Path) -> None:
    folder = tmp_path / "weights"
    program = FULL.format(tests=str(Path(__file__).parents[2]), folder=str(folder))
    done = await asyncio.to_thread(subprocess.run, [sys.executable, "-c", program], capture_output=True, text=True)
    assert "no space left" in done.stdout, done.stderr
    assert "argosy.weight_sync.disk_path" in done.stdout
    assert len(read_links(folder)) == 1
    assert leftovers(folder) == []
    sender = Sender(folder)
    snapshot = sender.freeze()
    assert_holds(await take(folder, snapshot), snapshot.tensors())


@pytest.mark.parametrize("place", ["file", "read-only"])
async def test_a_folder_that_can_not_be_written_is_told(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").write_text("not a folder")
    folder = tmp_path / "file" / "weights" if place == "file" else Path("/proc/sys/argosy")
    with pytest.raises(StorageError, match=r"argosy\.weight_sync\.disk_path"):
        await Sender(folder).send()


async def test_without_a_folder_the_key_is_named() -> None:
    with pytest.raises(InvalidInputError, match=r"argosy\.weight_sync\.disk_path"):
        await disk_transport.open_transfer(Sender(Path()).freeze(), PLAN, SendOptions())


async def test_a_folder_that_the_receiver_does_not_see_is_named(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="nowhere"):
        await take(tmp_path / "nowhere", Sender(tmp_path).freeze())


async def test_after_its_deadline_a_slow_reader_writes_nothing_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file server that answers too late: the thread is left behind, and can't touch the staging any more."""
    sender = Sender(tmp_path)
    snapshot = await sender.send()
    late, begun, ended = threading.Event(), threading.Event(), threading.Event()

    def slow(*arguments: object) -> object:
        begun.set()
        late.wait(30)
        try:
            return read_version(*arguments)  # type: ignore[arg-type]
        finally:
            ended.set()

    monkeypatch.setattr(disk_transport, "read_version", slow)
    staging = Staging(snapshot.manifest)
    staging.buffer.memory[:] = 77
    offer = TransferOffer("disk", "s", snapshot.manifest.version, str(tmp_path))
    with pytest.raises(DeadlineError, match=r"within 0\.2 s"):
        await disk_transport.receive(offer, snapshot, snapshot.manifest, staging, 0.2)
    assert begun.is_set()
    late.set()
    await asyncio.to_thread(ended.wait, 30)
    assert (staging.buffer.memory == 77).all()
    assert staging.received_byte_count == 0


async def test_a_writer_gives_up_at_the_deadline(tmp_path: Path) -> None:
    stop = threading.Event()
    stop.set()
    with pytest.raises(AbortedError):
        publish(tmp_path, Sender(tmp_path).freeze(), ChainSettings(), stop)
    assert read_links(tmp_path) == []
    assert leftovers(tmp_path) == []


async def test_a_writer_that_hung_brings_no_old_version_forth(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The deadline passes while the last file is being synced: the link is not moved to its place any more."""
    stop = threading.Event()
    whole_sync = chain_writer._sync

    def sync(path: Path) -> None:
        whole_sync(path)
        if path.name.startswith(".partial-"):
            stop.set()

    monkeypatch.setattr(chain_writer, "_sync", sync)
    with pytest.raises(AbortedError):
        publish(tmp_path, Sender(tmp_path).freeze(), ChainSettings(), stop)
    assert read_links(tmp_path) == []
    assert leftovers(tmp_path) == []


@pytest.fixture
def hanging(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """A file server that does not answer until the event is set: no file can be synced."""
    alive = threading.Event()
    whole_sync = chain_writer._sync

    def sync(path: Path) -> None:
        alive.wait(30)
        whole_sync(path)

    monkeypatch.setattr(chain_writer, "_sync", sync)
    yield alive
    alive.set()
    with chain_writer._WRITING:  # until the last thread is through
        pass


async def test_what_a_hung_writer_reads_is_held_until_it_has_ended(tmp_path: Path, hanging: threading.Event) -> None:
    sender = Sender(tmp_path)
    snapshot = sender.freeze()
    hurried = dataclasses.replace(PLAN, deadline_s=0.2)
    threads = threading.active_count()
    for _ in range(2):  # the second one waits for the first, and gives up in time
        with pytest.raises(DeadlineError):
            await asyncio.wait_for(disk_transport.open_transfer(snapshot, hurried, sender.options), 5)
    assert snapshot._reader_count > 0
    following = Snapshot.freeze("main", 1, sender.state, reuse=snapshot)
    assert following.buffer.memory is not snapshot.buffer.memory, "the thread still reads it"
    hanging.set()
    end = asyncio.get_running_loop().time() + 10
    while snapshot._reader_count or threading.active_count() > threads:
        assert asyncio.get_running_loop().time() < end
        await asyncio.sleep(0.01)
    assert read_links(tmp_path) == []
    assert leftovers(tmp_path) == []


async def test_no_more_than_some_threads_wait_for_a_dead_file_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sender = Sender(tmp_path)
    snapshot = await sender.send()
    alive, waiting = threading.Event(), []

    def slow(*arguments: object) -> object:
        waiting.append(threading.current_thread())
        alive.wait(30)
        return read_version(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(disk_transport, "read_version", slow)
    for _ in range(disk_transport.MAX_LEFT_BEHIND):
        with pytest.raises(DeadlineError):
            await take(tmp_path, snapshot, deadline_s=0.02)
    with pytest.raises(StorageError, match="does not answer"):
        await take(tmp_path, snapshot, deadline_s=0.02)
    assert len(waiting) == disk_transport.MAX_LEFT_BEHIND
    assert all(thread.daemon for thread in waiting), "they would hold up the end of the process"
    alive.set()
    for thread in waiting:
        await asyncio.to_thread(thread.join, 10)
    await asyncio.sleep(0.01)
    assert (await take(tmp_path, snapshot)).is_whole


WRITER = """
import sys, threading
sys.path.insert(0, {tests!r})
from pathlib import Path
from unit.weightsync.test_disk import Sender
import argosy.weightsync.chain_writer as writer

whole_sync = writer._sync

def sync(path):
    print("writing", flush=True)
    sys.stdin.readline()
    whole_sync(path)

writer._sync = sync
sender = Sender(Path({folder!r}))
writer.publish(sender.folder, sender.freeze(), sender.options.chain, threading.Event())
"""


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that writes a version, a line of its input for each file that it syncs."""
    program = WRITER.format(tests=str(Path(__file__).parents[2]), folder=str(tmp_path))
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", program]
    with subprocess.Popen(
        command, env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        yield process
        process.kill()


async def test_a_second_writer_is_refused_and_removes_nothing_of_the_first(
    tmp_path: Path, writer: subprocess.Popen[str]
) -> None:
    assert writer.stdout is not None
    assert await asyncio.to_thread(writer.stdout.readline) == "writing\n"
    with pytest.raises(StorageError, match="another process writes"):
        await Sender(tmp_path).send()
    assert len(leftovers(tmp_path)) == 1, "the first one's"
    await asyncio.to_thread(writer.communicate, "\n" * 10)
    assert writer.returncode == 0
    assert len(read_links(tmp_path)) == 1
    await Sender(tmp_path).send()  # the same version: found, and sound
    assert len(read_links(tmp_path)) == 1


async def test_unchanged_versions_and_big_models_in_several_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("argosy.weightsync.chain_writer.SHARD_BYTES", 1000)
    sender = Sender(tmp_path)
    first = await sender.send()
    assert len(read_links(tmp_path)[0].files) == 2
    assert_holds(await take(tmp_path, first), first.tensors())
    tensors = first.tensors()
    same = Snapshot.freeze("main", 9, tensors, TIES, reuse=first, delta=True)
    await disk_transport.open_transfer(same, PLAN, sender.options)
    assert read_links(tmp_path)[-1].files[0].tensors == {}
    assert_holds(await take(tmp_path, same), same.tensors())
