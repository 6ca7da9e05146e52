"""Which run a command means."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from argosy.controller.running import find_endpoint
from argosy.types.errors import InvalidInputError, UnavailableError


def serve(folder: Path, address: str) -> None:
    folder.mkdir(parents=True)
    (folder / "endpoint.json").write_text(json.dumps({"address": address}))


def test_a_folder_or_the_only_run_below(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidInputError, match="no run is under way below the current folder"):
        find_endpoint(None)
    serve(tmp_path / "checkpoints" / "project" / "first", "127.0.0.1:1")
    assert find_endpoint(None) == "127.0.0.1:1"
    serve(tmp_path / "runs" / "second", "127.0.0.1:2")
    with pytest.raises(InvalidInputError, match=r"which of checkpoints/project/first, runs/second\?"):
        find_endpoint(None)
    assert find_endpoint(Path("runs/second")) == "127.0.0.1:2"


@pytest.mark.parametrize("content", [None, "{", "[]", "{}"])
def test_a_run_that_is_not_there(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "endpoint.json").write_text(content)
    with pytest.raises(UnavailableError, match=r"endpoint\.json"):
        find_endpoint(tmp_path)
    with pytest.raises(InvalidInputError, match="there is no folder"):
        find_endpoint(tmp_path / "elsewhere")
