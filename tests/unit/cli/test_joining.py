"""`argosy serve ROLE --run FOLDER` says at once why nobody can join."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from argosy.cli.joining import _names, config_of_run
from argosy.cli.main import main
from argosy.config import Config


def run_folder(tmp_path: Path, **keys: object) -> Path:
    """As a run leaves it that has ended: nothing listens at its etcd's address."""
    values: dict[str, object] = {"argosy.membership.endpoints": ("127.0.0.1:1",)}
    Config().with_values(values | keys).save(tmp_path / "services.yaml")
    return tmp_path


@pytest.mark.parametrize(
    ("role", "keys", "why"),
    [
        ("rollout", {"argosy.deterministic": True}, "argosy.deterministic=true keeps the servers that it began with"),
        ("reference", {"argosy.colocated": True}, "argosy.colocated=true keeps the servers that it began with"),
        ("trainer", {}, "a run has one trainer"),
        ("rollout", {}, "it is over, or its etcd is away"),
    ],
)
def test_run_that_takes_no_joiner_is_wrong_input(
    role: str, keys: dict[str, object], why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", role, "--run", str(run_folder(tmp_path, **keys))]) == 2
    assert why in capsys.readouterr().err


def test_folder_without_a_run_is_wrong_input(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "rollout", "--run", str(tmp_path)]) == 2
    assert "there is no services.yaml in it" in capsys.readouterr().err


def test_without_a_run_the_way_to_name_one_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "rollout"]) == 2
    assert "to join a run on this machine, give its folder with --run" in capsys.readouterr().err


def test_run_and_a_function_do_not_go_together(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "reward", "--function", "a.py:b", "--run", str(tmp_path)]) == 2
    assert "run doesn't go with it" in capsys.readouterr().err


def test_settings_of_the_run_can_be_changed_for_a_joiner(tmp_path: Path) -> None:
    folder = run_folder(tmp_path, **{"argosy.rollout.slot_count": 7})
    config = config_of_run(folder, "rollout", ["argosy.rollout.device=cuda:1"], [])
    assert (config.argosy.rollout.device, config.argosy.rollout.slot_count) == ("cuda:1", 7)
    assert config.argosy.membership.endpoints == ("127.0.0.1:1",)


def test_a_fleet_without_a_launcher_is_joined_by_what_its_leader_goes_by(tmp_path: Path) -> None:
    folder = run_folder(tmp_path, **{"argosy.rollout.slot_count": 7})  # of an earlier run here, with a launcher
    fleet = {"argosy.placement": "fleet", "argosy.run_id": "one", "argosy.membership.endpoints": ("127.0.0.1:2",)}
    Config().with_values(fleet | {"argosy.rollout.slot_count": 8}).save(folder / "config.yaml")
    assert config_of_run(folder, "rollout", [], []).argosy.rollout.slot_count == 8
    config = config_of_run(folder, "rollout", ["argosy.rollout.device=cuda:1"], [])
    assert (config.argosy.rollout.device, config.argosy.membership.endpoints) == ("cuda:1", ("127.0.0.1:2",))
    Config().save(folder / "config.yaml")
    assert config_of_run(folder, "rollout", [], []).argosy.rollout.slot_count == 7


def test_names_go_on_where_those_of_the_launcher_end(tmp_path: Path) -> None:
    config = config_of_run(run_folder(tmp_path), "rollout", [], [])
    assert list(itertools.islice(_names(config, "rollout", None), 2)) == ["rollout-1", "rollout-2"]
    assert list(itertools.islice(_names(config, "reference", None), 1)) == ["reference-0"]
    assert list(itertools.islice(_names(config, "reward", "letters"), 1)) == ["reward-letters-0"]
    pools = config.with_values({"argosy.pools": {"fast": {"count": 2}, "exact": {}}})
    assert list(itertools.islice(_names(pools, "rollout", "fast"), 1)) == ["rollout-fast-2"]
