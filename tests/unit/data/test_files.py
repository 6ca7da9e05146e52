from __future__ import annotations

from pathlib import Path

import pytest

from argosy.controller.data.files import resolve_files
from argosy.types.errors import InvalidInputError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("b.parquet", "a.parquet", "c.jsonl", "notes.txt"):
        (tmp_path / name).write_text("x")
    return tmp_path


def test_one_file_many_files_and_globs(folder: Path) -> None:
    def names(*values: str) -> list[str]:
        return [path.name for path in resolve_files([f"{folder}/{value}" for value in values], "data.train_files")]

    assert [path.name for path in resolve_files(f"{folder}/a.parquet", "data.train_files")] == ["a.parquet"]
    assert names("b.parquet", "a.parquet") == ["b.parquet", "a.parquet"], "the order given is kept"
    assert names("*.parquet") == ["a.parquet", "b.parquet"]
    assert names("b.parquet", "*.parquet", "c.jsonl") == ["b.parquet", "a.parquet", "c.jsonl"], "none is read twice"


def test_a_name_that_looks_like_a_glob(tmp_path: Path) -> None:
    (tmp_path / "set[1].jsonl").write_text("x")
    assert resolve_files(f"{tmp_path}/set[1].jsonl", "k") == [tmp_path / "set[1].jsonl"]


def test_home_is_expanded(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(folder))
    assert resolve_files("~/c.jsonl", "k") == [folder / "c.jsonl"]


@pytest.mark.parametrize("value", ["", [], [""]])
def test_nothing_named(value: str | list[str]) -> None:
    with pytest.raises(InvalidInputError, match=r"data\.val_files names no file"):
        resolve_files(value, "data.val_files")


def test_what_is_wrong_is_said(folder: Path) -> None:
    with pytest.raises(InvalidInputError, match=r"data\.train_files: there is no file .*d\.parquet .*a\.parquet"):
        resolve_files(f"{folder}/d.parquet", "data.train_files")
    with pytest.raises(InvalidInputError, match=r"no file matches .*\*\.json "):
        resolve_files(f"{folder}/*.json", "k")
    with pytest.raises(InvalidInputError, match=r"folder .* does not exist"):
        resolve_files(f"{folder}/no/a.parquet", "k")
    with pytest.raises(InvalidInputError, match=r"is a folder; name its files.*\*\.parquet"):
        resolve_files(str(folder), "k")
    with pytest.raises(InvalidInputError, match=r"notes\.txt: its name must end in"):
        resolve_files(f"{folder}/notes.txt", "k")
    with pytest.raises(InvalidInputError, match="remote address"):
        resolve_files("hdfs://host/a.parquet", "k")
