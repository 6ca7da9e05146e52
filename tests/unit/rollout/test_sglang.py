"""The adapter to SGLang, over a small server that speaks its protocol: what is asked, what is made of the answers, and
what happens when the server fails. The real server runs in the contract suite (marked `engine`)."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from argosy.rollout.core import RolloutCore, RolloutOptions
from argosy.rollout.engines.sampling.sample import Sample
from argosy.rollout.engines.sglang.answer import read_piece
from argosy.rollout.engines.sglang.client import SglangClient
from argosy.rollout.engines.sglang.command import free_port, server_arguments
from argosy.rollout.engines.sglang.engine import SglangEngine
from argosy.rollout.engines.sglang.options import SglangOptions
from argosy.rollout.engines.sglang.payload import check_params, segment_payload
from argosy.rollout.engines.sglang.server import ServerProcess
from argosy.rollout.engines.sglang.stub import write_stub
from argosy.rollout.engines.sglang.weights import WeightFolders
from argosy.types.errors import (
    ArgosyError,
    DeadlineError,
    InternalError,
    InvalidInputError,
    NotFoundError,
    StateError,
    UnavailableError,
)
from argosy.types.ids import PolicyVersion
from argosy.types.records import FinishReason, GenerateRequest, Mutation, TokenRun
from support.freezing import freeze
from unit.rollout.support import Told, request

FAKE = Path(__file__).parents[2] / "support/fake_sglang"
V1 = PolicyVersion("main", 1, "1" * 64)


def sample_of(one: GenerateRequest, *, eos: frozenset[int] = frozenset({2})) -> Sample:
    stops = (frozenset() if one.params.ignore_eos else eos).union(one.params.stop_token_ids)
    return Sample(one, stop_ids=stops, stops=None, max_model_len=200, deliver=lambda event: None)


def payload(**params: Any) -> dict[str, Any]:
    body = segment_payload(sample_of(request(**params)), "r1", vocab_size=259, stream_interval=1)
    return {**body, **body.pop("sampling_params")}


def test_filters_ask_for_the_distribution_that_is_sampled_from() -> None:
    assert payload()["return_sampling_mask"] is False
    assert payload(temperature=0.0, top_k=5)["return_sampling_mask"] is False, "greedy: of the argmax, as documented"
    for params in ({"top_k": 5}, {"top_p": 0.9}, {"min_p": 0.1}):
        assert payload(**params)["return_sampling_mask"] is True
    assert payload(top_p=0.9)["top_k"] == 259, "a mask needs a finite top_k"
    assert (payload(top_p=0.0)["top_k"], payload(top_p=0.0)["top_p"]) == (1, 1.0)
    for off in (-1, 0, 259, 999):
        assert payload(top_k=off)["return_sampling_mask"] is False


def test_filters_beyond_what_can_be_renormalised_are_refused() -> None:
    check_params(request(top_k=40, top_p=0.9).params, vocab_size=259, filter_tokens=50)
    check_params(request(temperature=0.5).params, vocab_size=259, filter_tokens=50)
    for params in ({"top_p": 0.9}, {"top_k": 60}):
        with pytest.raises(InvalidInputError, match=r"params\.top_k"):
            check_params(request(**params).params, vocab_size=259, filter_tokens=50)


def test_ends_of_segments() -> None:
    assert payload(ignore_eos=False, stop_token_ids=(7,))["stop_token_ids"] == [2, 7]
    assert payload(ignore_eos=True, stop_token_ids=(7,))["ignore_eos"] is True
    first = payload(ignore_eos=False, min_tokens=4, max_tokens=9)
    assert (first["max_new_tokens"], first["ignore_eos"], set(first["logit_bias"])) == (4, True, {"2"})
    assert "logit_bias" not in payload(ignore_eos=True, min_tokens=4)
    assert payload(max_tokens=900)["max_new_tokens"] == 200 - 25


def test_answers_are_refused_without_log_probs() -> None:
    told = {"output_ids": [5, 6], "meta_info": {"output_token_logprobs": [[-1.0, 5, None]], "finish_reason": None}}
    with pytest.raises(InternalError, match="1 log-probs for 2 tokens"):
        read_piece(told, filtered=False)
    with pytest.raises(InternalError, match="0 log-probs for 2 tokens"):
        read_piece(told, filtered=True)


def test_the_stub_of_torchvision_can_be_imported_and_not_used(tmp_path: Path) -> None:
    program = (
        "import torchvision, torchvision.transforms.v2.functional as F\n"
        "from torchvision.transforms import Compose, InterpolationMode\n"
        "assert InterpolationMode.BICUBIC == 'BICUBIC'\n"
        "try:\n    Compose()\nexcept NotImplementedError as error:\n    print(error)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(write_stub(tmp_path))}
    found = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True, timeout=30
    )
    assert "not installed: no Compose" in found.stdout


def test_weights_are_held_until_the_next(tmp_path: Path) -> None:
    """Another process reads them through the folder, and no byte is on a disk."""
    folders = WeightFolders(tmp_path)
    matrix = torch.arange(6.0).reshape(2, 3).T
    first = folders.write({"a": matrix})
    folders.keep(first)
    program = "import sys; from safetensors.torch import load_file as f; print(f(sys.argv[1])['a'].tolist())"
    seen = subprocess.run(
        [sys.executable, "-c", program, str(first / "model.safetensors")], capture_output=True, text=True, check=True
    )
    assert seen.stdout.strip() == str(matrix.tolist())
    assert (first / "model.safetensors").is_symlink()
    second = folders.write({"a": torch.zeros(1)})
    held = folders.read()["a"]
    folders.keep(second)
    assert torch.equal(held, matrix), "what was read outlives the file"
    assert not first.exists()
    folders.drop(second)
    assert not second.exists()
    with pytest.raises(ArgosyError):
        folders.read()


def test_weights_that_can_not_be_written_leave_nothing(tmp_path: Path) -> None:
    folders = WeightFolders(tmp_path)
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(ArgosyError):
        folders.write({"a": torch.zeros(2, dtype=torch.complex64)})
    assert list(tmp_path.iterdir()) == []
    assert len(os.listdir("/proc/self/fd")) == before


class Served(Told[SglangEngine]):
    """The adapter with what it told."""

    async def failure(self) -> BaseException:
        async with asyncio.timeout(10):
            while not self.engine.failed.done():  # noqa: ASYNC110 - it is a thread's future
                await asyncio.sleep(0.01)
        return self.engine.failed.result()

    async def sampled(self, count: int) -> None:
        async with asyncio.timeout(20):
            while self.engine.counts().generated_token_count < count:  # noqa: ASYNC110 - the server's doing
                await asyncio.sleep(0.002)


Make = Callable[..., Awaitable[Served]]


@pytest.fixture
async def make(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Make]:
    made: list[SglangEngine] = []

    async def start(fault: str = "", **values: Any) -> Served:
        monkeypatch.setenv("PYTHONPATH", str(FAKE))
        monkeypatch.setenv("FAKE_SGLANG", fault)
        defaults: dict[str, Any] = {
            "slot_count": 4, "device": "cpu", "start_timeout_s": 20.0, "call_timeout_s": 10.0, "health_interval_s": 0.1,
        }  # fmt: skip
        engine = SglangEngine(
            SglangOptions(str(tiny), **(defaults | values)), lambda ids: "".join(f"<{token}>" for token in ids)
        )
        made.append(engine)
        await engine.start()
        return Served(engine)

    yield start
    for engine in made:
        await engine.close()


def expected(one: GenerateRequest, count: int) -> tuple[int, ...]:
    ids = list(one.prompt_ids)
    for _ in range(count):
        ids.append((3 * ids[-1] + 7) % 250 + 3)
    return tuple(ids[len(one.prompt_ids) :])


async def test_samples_through_the_server(make: Make) -> None:
    found = await make()
    asked = [request(k, position=p, prompt=(5 + p, 9 + p), max_tokens=10) for p in range(3) for k in range(3)]
    for one, done in zip(asked, await found.run(asked, interval=3), strict=True):
        assert done.token_ids == expected(one, 10)
        assert (set(done.log_probs), done.finish_reason) == ({-1.0}, FinishReason.LENGTH)
        assert [run.version for run in done.versions] == [found.engine.version]
    [filtered] = await found.run([request(20, top_p=0.9)])
    assert set(filtered.log_probs) == {-2.0}
    runs = [e for e in found.events if isinstance(e, TokenRun) and e.sample_id == asked[0].sample_id]
    assert [run.offset for run in runs] == [0, 3, 6]


async def test_stops_that_the_server_does_not_know(make: Make) -> None:
    found = await make()
    one = request(prompt=(5, 9), max_tokens=20)
    words = expected(one, 20)
    [by_id] = await found.run([replace(one, params=replace(one.params, stop_token_ids=(words[6],)))])
    assert (by_id.token_ids, by_id.finish_reason) == (words[:7], FinishReason.STOP)
    [by_text] = await found.run(
        [replace(request(1, prompt=(5, 9)), params=replace(one.params, stop=(f"{words[4]}><",)))]
    )
    assert (by_text.token_ids, by_text.finish_reason) == (words[:6], FinishReason.STOP)
    late = replace(one.params, stop_token_ids=(words[2], words[8]), min_tokens=5, ignore_eos=False)
    [banned] = await found.run([replace(request(2, prompt=(5, 9)), params=late)])
    assert words[2] not in banned.token_ids
    assert len(banned.token_ids) >= 5


async def test_abort_and_pause_keep_every_token(make: Make) -> None:
    found = await make(slot_count=1)
    asked = [request(k, prompt=(5 + k, 9), max_tokens=800) for k in range(8)]
    await found.engine.submit(asked, found.events.append, 0)
    await found.sampled(10)
    assert await found.engine.abort({asked[0].key, asked[7].key}) == 2
    running, waiting = await found.ends([asked[0], asked[7]])
    assert running.finish_reason is waiting.finish_reason is FinishReason.ABORTED
    assert running.token_ids == expected(asked[0], len(running.token_ids))
    assert (len(running.token_ids) > 0, waiting.token_ids) == (True, ())
    await found.engine.pause("keep")
    counts = found.engine.counts()
    assert (counts.running, counts.waiting) == (0, 6)
    await asyncio.sleep(0.05)
    assert found.engine.counts() == counts
    await found.engine.resume()
    for one, done in zip(asked[1:7], await found.ends(asked[1:7]), strict=True):
        assert done.token_ids == expected(one, 800)


async def test_an_update_in_flight_is_exact_about_versions(make: Make) -> None:
    found = await make()
    one = request(prompt=(5, 9), max_tokens=150)
    await found.engine.submit([one], found.events.append, 4)
    await found.sampled(20)
    first = found.engine.version
    with pytest.raises(NotFoundError):
        await found.engine.held_state()
    await found.engine.swap_weights({"model.norm.weight": torch.ones(3)}, V1)
    assert found.engine.counts().cached_token_count == 0
    assert torch.equal((await found.engine.held_state())["model.norm.weight"], torch.ones(3))
    [done] = await found.ends([one])
    assert done.token_ids == expected(one, 150)
    assert [run.version for run in done.versions] == [first, V1]


def key_of(config: Path) -> tuple[str, int]:
    """The key in a server's file, and who may read that."""
    return config.read_text().partition('"')[2].partition('"')[0], config.stat().st_mode & 0o777


async def test_only_who_has_the_key_may_ask_the_server(make: Make) -> None:
    found = await make()
    process = psutil.Process(found.engine.server_process_id)
    line = process.cmdline()
    key, mode = key_of(Path(line[line.index("--config") + 1]))
    assert (len(key), mode) == (64, 0o600)
    assert key not in " ".join(line)
    address = f"127.0.0.1:{line[line.index('--port') + 1]}"
    stranger = SglangClient(address, key="another", call_timeout_s=5.0)
    with pytest.raises(InternalError, match="401"):
        await stranger.call("/flush_cache")
    assert not await stranger.is_ready()
    await stranger.close()


async def test_a_stranger_on_the_port_is_not_taken_for_the_server() -> None:
    """Which answers everything, since it wants no key."""
    port = free_port()
    stranger = ServerProcess(["--port", str(port), "--weight-version", "v"], {**os.environ, "PYTHONPATH": str(FAKE)})
    await stranger.start()
    client = SglangClient(f"127.0.0.1:{port}", key="ours", call_timeout_s=5.0)
    try:
        async with asyncio.timeout(10):
            while not await is_there(client):  # noqa: ASYNC110 - another process
                await asyncio.sleep(0.05)
        assert not await client.is_ready()
    finally:
        await client.close()
        await stranger.stop(0)


async def is_there(client: SglangClient) -> bool:
    try:
        await client.check("/ready", 5.0)
    except UnavailableError:
        return False
    return True


async def test_a_gate_that_opens_for_a_moment_lets_nobody_in(make: Make) -> None:
    found = await make()
    await found.engine.pause("keep")
    one = request(max_tokens=20)
    await found.engine.submit([one], found.events.append, 0)
    await asyncio.sleep(0.05)
    await found.engine.resume()
    await found.engine.pause("keep")  # before any sample had its turn
    await asyncio.sleep(0.1)
    assert found.engine.counts().generated_token_count == 0
    await found.engine.resume()
    [done] = await found.ends([one])
    assert done.token_ids == expected(one, 20)


async def test_refused_weights_leave_it_stale_and_fail_what_runs(make: Make) -> None:
    found = await make("refuses_weights")
    one = request(max_tokens=150)
    await found.engine.submit([one], found.events.append, 0)
    await found.sampled(5)
    with pytest.raises(InternalError, match="bad weights"):
        await found.engine.swap_weights({"model.norm.weight": torch.ones(3)}, V1)
    assert found.engine.version is None
    [done] = await found.ends([one])
    assert (done.finish_reason, len(done.token_ids) >= 5) == (FinishReason.FAILED, True)


@pytest.mark.parametrize(
    ("fault", "told"),
    [("no_log_probs", "log-probs"), ("other_version", "'another'"), ("refuses_requests", "top_z is unknown")],
)
async def test_a_wrong_answer_fails_its_sample(make: Make, fault: str, told: str) -> None:
    found = await make(fault)
    [done] = await found.run([request()])
    assert (done.finish_reason, done.token_ids) == (FinishReason.FAILED, ())
    assert told in done.error
    assert not found.engine.failed.done()


@pytest.mark.parametrize(("fault", "error"), [("dies_at_start", InternalError), ("never_ready", DeadlineError)])
async def test_a_server_that_does_not_start(make: Make, fault: str, error: type[ArgosyError]) -> None:
    with pytest.raises(error):
        await make(fault, start_timeout_s=1.5)


async def test_d6_a_killed_server_fails_its_samples_at_once(make: Make) -> None:
    found = await make()
    one = request(max_tokens=150)
    await found.engine.submit([one], found.events.append, 0)
    await found.sampled(5)
    os.kill(found.engine.server_process_id, signal.SIGKILL)
    [done] = await found.ends([one])
    assert (done.finish_reason, len(done.token_ids) >= 5) == (FinishReason.FAILED, True)
    assert "ended with -9" in str(await found.failure())
    with pytest.raises(ArgosyError, match="gone"):
        await found.engine.submit([request(1)], found.events.append, 0)


@pytest.mark.parametrize("fault", ["unwell", "frozen"])
async def test_d6_a_server_that_no_longer_answers_has_failed(make: Make, fault: str) -> None:
    found = await make(fault, health_timeout_s=0.6)
    one = request(max_tokens=170)
    await found.engine.submit([one], found.events.append, 0)
    await found.sampled(2)
    started = time.monotonic()
    if fault == "frozen":
        await asyncio.to_thread(freeze, found.engine.server_process_id)
    else:
        await found.engine.submit([request(k, max_tokens=170) for k in range(1, 30)], found.events.append, 0)
    assert "has not answered" in str(await found.failure())
    assert time.monotonic() - started < 20  # a hang guard
    assert (await found.ends([one]))[0].finish_reason in (FinishReason.FAILED, FinishReason.LENGTH)
    assert found.engine.version is None


async def test_close_ends_samples_and_the_server(make: Make) -> None:
    found = await make()
    one = request(max_tokens=170)
    await found.engine.submit([one], found.events.append, 0)
    await found.sampled(2)
    process = psutil.Process(found.engine.server_process_id)
    await found.engine.close()
    assert (await found.ends([one]))[0].finish_reason is FinishReason.ABORTED
    assert not process.is_running()


def test_the_server_dies_with_a_killed_service() -> None:
    """PR_SET_PDEATHSIG holds over exec."""
    program = (
        "import asyncio, os, signal\n"
        "from argosy.rollout.engines.sglang.server import ServerProcess\n"
        "async def main():\n"
        "    server = ServerProcess(['--port', '0', '--weight-version', 'v'], os.environ)\n"
        "    await server.start()\n"
        "    print(server.process_id, flush=True)\n"
        "    await asyncio.sleep(1.0)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "asyncio.run(main())\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(FAKE)}
    parent = subprocess.run(
        [sys.executable, "-c", program], env=environment, stdout=subprocess.PIPE, text=True, check=False, timeout=30
    )
    assert parent.returncode == -signal.SIGKILL
    child = int(parent.stdout)
    deadline = time.monotonic() + 5
    while psutil.pid_exists(child) and psutil.Process(child).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline, "the server outlives its service"
        time.sleep(0.05)


def test_arguments_of_ours_cannot_be_repeated(tiny: Path) -> None:
    from argosy.rollout.engines.folder import ModelFolder
    from argosy.rollout.engines.sglang.facts import facts_of

    options = SglangOptions(str(tiny), arguments=("--port=1",))
    with pytest.raises(InvalidInputError, match="--port"):
        server_arguments(options, facts_of(ModelFolder(tiny), options), 5, "v", on_cpu=True)


async def test_its_core_can_be_served_and_ended_before_the_server_is_up(tmp_path: Path) -> None:
    """A service listens while its engine loads, and may be told to end then."""
    engine = SglangEngine(SglangOptions(str(tmp_path)), lambda ids: "")
    core = RolloutCore(engine, RolloutOptions(), lambda ids: "")
    source = core.weight_source()
    with pytest.raises(StateError, match="not been started"):
        await source.get_manifest()
    await core.drain(Mutation("", 0, "end", deadline_s=5.0))
    await core.close()
