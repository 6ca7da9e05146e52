from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from argosy.cli import data as data_cli
from argosy.types.errors import InvalidInputError

MakeRow = Callable[..., dict[str, Any]]


def run(*words: str) -> int:
    parser = argparse.ArgumentParser()
    data_cli.add_parser(parser.add_subparsers())
    args = parser.parse_args(["data", *words])
    return int(args.func(args))


def make(folder: Path, *words: str) -> int:
    sums = ["--task", "chain_sum:max_terms=2,max_digits=1", "--train", "12", "--val", "5", "--out", str(folder)]
    return run("make", *sums, *words)


def test_make_then_show(tmp_path: Path, tokenizer_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert make(tmp_path, "--system-prompt", "Hm.", "--prompt-suffix", " {now}", "--json") == 0
    made = json.loads(capsys.readouterr().out)
    assert {name: entry["row_count"] for name, entry in made.items()} == {"train": 12, "val": 5}

    assert run("show", made["val"]["path"], "--model", str(tokenizer_folder), "-n", "2", "--json") == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["row_count"] == 5
    assert shown["data_sources"] == {"reasoning_gym/chain_sum": 5}
    assert len(shown["rows"]) == 2
    assert shown["rows"][0]["prompt"].startswith("<|im_start|>system\nHm.<|im_end|>\n<|im_start|>user\n")
    assert "= {now}<|im_end|>" in shown["rows"][0]["prompt"]
    assert shown["prompt_length"]["unit"] == "tokens"
    assert shown["prompt_length"]["min"] <= shown["prompt_length"]["mean"] <= shown["prompt_length"]["max"]


def test_made_data_is_replaced_only_by_force(tmp_path: Path) -> None:
    assert make(tmp_path) == 0
    made = (tmp_path / "train.parquet").read_bytes()
    assert make(tmp_path) == 0  # the same rows again
    with pytest.raises(InvalidInputError, match=r"train\.parquet and .*val\.parquet exist with other rows.*--force"):
        make(tmp_path, "--seed", "1")
    assert (tmp_path / "train.parquet").read_bytes() == made
    assert make(tmp_path, "--seed", "1", "--force") == 0
    assert (tmp_path / "train.parquet").read_bytes() != made
    (tmp_path / "val.parquet").write_bytes(b"my notes")
    with pytest.raises(InvalidInputError, match=r"/val\.parquet exists with other rows"):
        make(tmp_path, "--seed", "1")


def test_for_people(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert make(tmp_path) == 0
    text = capsys.readouterr().out
    assert "12 rows" in text
    assert "guessing the commonest answer" in text
    assert run("show", f"{tmp_path}/*.parquet", "-n", "1") == 0
    text = capsys.readouterr().out
    assert "17 rows" in text
    assert "user: State the final answer" in text


def test_show_names_a_bad_row(tmp_path: Path, row: MakeRow) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps(row(0)) + "\n" + json.dumps(row(1, prompt="text")))
    with pytest.raises(InvalidInputError, match=r"row 1 .*plain string"):
        run("show", str(path))


def test_other_columns_of_other_names(tmp_path: Path, row: MakeRow, capsys: pytest.CaptureFixture[str]) -> None:
    renamed = row(0)
    renamed["q"], renamed["src"] = renamed.pop("prompt"), renamed.pop("data_source")
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps(renamed))
    assert run("show", str(path), "--prompt-key", "q", "--reward-fn-key", "src", "--json") == 0
    assert json.loads(capsys.readouterr().out)["data_sources"] == {"toy": 1}
