from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from argosy.cli.main import build_parser, main


def test_help_teaches_and_is_light() -> None:
    started = time.monotonic()
    result = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "argosy.cli.main", "--help"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert result.returncode == 0
    for command in (
        "train",
        "serve",
        "config",
        "algorithms",
        "data",
        "model",
        "reward",
        "argosy train algorithm.adv_estimator=grpo",
    ):
        assert command in result.stdout
    heavy = ("torch", "transformers", "grpc", "pyarrow", "hydra", "numpy")
    imported = {line.rsplit("|", 1)[-1].strip() for line in result.stderr.splitlines()}
    assert imported.isdisjoint(heavy)
    assert time.monotonic() - started < 30  # a hang guard; it takes well under a second


@pytest.mark.parametrize("command", ["train", "serve", "config", "algorithms", "data", "model", "reward"])
def test_every_command_has_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([command, "--help"])
    assert ended.value.code == 0
    assert "usage: argosy" in capsys.readouterr().out


def test_keys_may_stand_around_options() -> None:
    from argosy.cli.main import _parse

    args = _parse(build_parser(), ["train", "a=1", "--json", "b=2"])
    assert args.overrides == ["a=1", "b=2"]
    assert args.json


def test_unknown_options_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["train", "a=1", "--jsno"])
    assert ended.value.code == 2
    assert "--jsno" in capsys.readouterr().err


def test_a_place_that_can_not_be_used_is_one_message(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_bytes(b"")
    words = ["data", "make", "--task", "chain_sum", "--train", "2", "--val", "1"]
    assert main([*words, "--out", str(tmp_path / "file" / "data")]) == 1
    err = capsys.readouterr().err
    assert err == f"argosy: error: can't use {tmp_path}/file/data: Not a directory\n"
