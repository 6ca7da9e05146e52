"""`argosy config`."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

from argosy.cli.config import add_parser
from argosy.config import Config, load
from argosy.config.docs import field_docs, generate
from argosy.config.keys import HONOURED, REFUSED, WARNED
from argosy.config.render import print_config, render, render_problems

REPOSITORY = Path(__file__).resolve().parents[3]


def run(*arguments: str) -> int:
    parser = argparse.ArgumentParser()
    add_parser(parser.add_subparsers())
    args = parser.parse_args(["config", *arguments])
    return int(args.func(args))


def test_coverage_prints_the_three_counts_and_every_key(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("coverage") == 0
    printed = capsys.readouterr().out
    assert printed.startswith(f"{len(HONOURED)} honoured, {len(REFUSED)} refused, {len(WARNED)} warned about\n")
    assert all(key in printed for key in (*HONOURED, *REFUSED, *WARNED))


def test_coverage_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("coverage", "--json") == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["counts"]["refused"] == len(REFUSED)
    assert answer["keys"]["trainer.device"]["targets"][0] == "argosy.trainer.device"
    statuses = [row["status"] for row in answer["keys"].values()]
    assert {status: statuses.count(status) for status in set(statuses)} == {
        key: count for key, count in answer["counts"].items() if key != "own"
    }


def test_show_prints_what_loads_back(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert run("show", "data.seed=3", "trainer.experiment_name=a=b") == 0
    (tmp_path / "shown.yaml").write_text(capsys.readouterr().out)
    assert load([], [tmp_path / "shown.yaml"]) == load(["data.seed=3", "trainer.experiment_name=a=b"])


def test_h1_show_ends_with_2_and_lists_the_problems(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("show", "learning_rte=1", "data.sede=1") == 2
    assert capsys.readouterr().err.splitlines() == [
        "configuration: 2 problems",
        "  learning_rte: no such key. Did you mean actor_rollout_ref.actor.optim.lr?",
        "  data.sede: no such key. Did you mean data.seed?",
    ]


def test_show_check(capsys: pytest.CaptureFixture[str], base: list[str]) -> None:
    assert run("show", "--check", *base) == 0
    assert run("show", "--changed", "--check", *base, "trainer.nnodes=2") == 2
    captured = capsys.readouterr()
    assert "nnodes: 2" in captured.out
    assert "trainer.nnodes: got 2" in captured.err


def test_committed_documentation_is_what_is_generated(tmp_path: Path) -> None:
    assert run("docs", "--output", str(tmp_path / "configuration.md")) == 0
    committed = (REPOSITORY / "docs" / "configuration.md").read_text(encoding="utf-8")
    assert (tmp_path / "configuration.md").read_text(encoding="utf-8") == committed, "run `argosy config docs`"


def test_docs_that_cannot_be_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("docs", "--output", str(tmp_path / "no" / "such" / "folder.md")) == 1
    assert "can't write" in capsys.readouterr().err


def test_a_field_without_docstring_is_an_error() -> None:
    assert field_docs(Config)["data"] == "Which rows are read."
    with pytest.raises(ValueError, match=r"Bare\.field has no docstring"):
        field_docs(Bare)


class Bare:
    field: int = 0


def test_documentation_has_every_field_with_its_default() -> None:
    text = generate()
    assert "| `actor_rollout_ref.actor.optim.lr` | number | `1e-06` |" in text
    assert "| `trainer.logger` | list of text | `[console, file, tensorboard]` |" in text


def test_render_only_what_changed() -> None:
    assert render(Config().with_values({"data.seed": 3}), only_changed=True) == "data:\n  seed: 3\n"
    assert render(Config(), only_changed=True) == ""
    changed = Config().with_values({"custom_reward_function.reward_kwargs": {"a": 1}})
    assert render(changed, only_changed=True) == "custom_reward_function:\n  reward_kwargs:\n    a: 1\n"


def test_print_config_without_and_with_a_terminal() -> None:
    from rich.console import Console

    config = Config().with_values({"trainer.experiment_name": "[red]x"})
    for terminal in (False, True):
        console = Console(force_terminal=terminal, width=80)
        with console.capture() as captured:
            print_config(config, console)
        assert "experiment_name" in captured.get()
        assert "red" in captured.get()


def test_render_problems_counts() -> None:
    assert render_problems("a\nb").splitlines()[0] == "configuration: 2 problems"
