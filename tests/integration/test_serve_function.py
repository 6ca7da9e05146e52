"""`argosy serve reward --function`, as a user types it, and `argosy reward check` of it."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from argosy.reward.standalone import parse_address, parse_function
from argosy.rpc.clients.reward import RewardClient
from argosy.types.errors import InvalidInputError
from argosy.types.ids import SampleId
from argosy.types.records import Failed, Scored, ScoreRequest

ARGOSY = (sys.executable, "-m", "argosy.cli.main")
VERL = """
def compute_score(data_source, solution_str, ground_truth, extra_info=None, **kwargs):
    if solution_str == "hang":
        while True:
            pass
    return {"score": float(solution_str == ground_truth), "acc": solution_str == ground_truth}
"""


@contextmanager
def served(path: Path, *arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    command = [*ARGOSY, "serve", "reward", "--function", str(path), *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("listening on "), line
        yield process, line.removeprefix("listening on ").strip()
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


@pytest.fixture
def verl_file(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(VERL)
    return path


async def test_a_file_of_verl_is_served_checked_and_stopped(verl_file: Path) -> None:
    with served(verl_file, "--workers", "1", "--timeout", "1") as (process, address):
        command = [*ARGOSY, "reward", "check", address, "--json"]
        check = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True)
        assert check.returncode == 0, check.stdout + check.stderr
        found = json.loads(check.stdout)
        assert (found["failed"], found["warned"]) == (0, 0), found
        client = RewardClient(address)
        texts = ("4", "hang", "5")
        items = [ScoreRequest(SampleId(0, 0, k), "any", "", text, "4") for k, text in enumerate(texts)]
        outcomes = [result.outcome for result in await client.score(items, deadline_s=30)]
        await client.close()
        assert outcomes[0] == Scored(1.0, {"acc": True})
        assert isinstance(outcomes[1], Failed)
        assert outcomes[1].reason == "timeout"
        assert outcomes[2] == Scored(0.0, {"acc": False})
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0


def test_check_says_by_its_exit_code_that_nobody_is_there() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        check = subprocess.run(
            [*ARGOSY, "reward", "check", address, "--timeout", "0.3"], capture_output=True, text=True
        )  # fmt: skip
    assert check.returncode == 1
    assert "reachable" in check.stdout
    assert "1 failed" in check.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("reward", "--function", "not_there.py:f"), "there is no file"),
        (("reward", "--function", "not_there.py:1"), "--function must be path.py:name"),
        (("rollout", "--function", "a.py:f"), "role rollout doesn't go with it"),
        (("reward", "--function", "a.py:f", "argosy.reward.timeout_s=1"), "overrides doesn't go with it"),
        (("reward", "--function", "a.py:f", "--address", "nowhere"), "--address must be host:port"),
        (("reward", "--function", "a.py:f", "--address", "0.0.0.0:0"), "would let other machines in"),
        (("reward", "--workers", "3"), "--workers goes with --function only"),
    ],
)
def test_what_cant_work_is_one_line(
    arguments: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    from argosy.cli.main import main

    monkeypatch.chdir(tmp_path)
    assert main(["serve", *arguments]) in (1, 2)
    assert said in capsys.readouterr().err


def test_addresses_and_functions_are_read() -> None:
    assert parse_address("[::1]:80") == ("::1", 80)
    assert parse_function("/a/b.py").path == "/a/b.py"
    for text in ("", "4711", ":80", "a:99999", "a:b"):
        with pytest.raises(InvalidInputError):
            parse_address(text)
