from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from argosy.algorithms.families import FAMILIES
from argosy.cli.main import main

REPOSITORY = Path(__file__).resolve().parents[3]


def run(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["algorithms", *words]) == 0
    return capsys.readouterr().out


def test_lists_every_algorithm_with_formula_and_paper(capsys: pytest.CaptureFixture[str]) -> None:
    flat = "".join(run(capsys).split())
    for family in FAMILIES.values():
        assert "".join(family.title.split()) in flat
        for name, entry in family.entries.items():
            assert name in flat
            assert "".join(entry.formula.split())[:20] in flat
            assert "".join(entry.paper.split())[:12] in flat


def test_a_family_alone(capsys: pytest.CaptureFixture[str]) -> None:
    out = run(capsys, "aggregation")
    assert "seq-mean-token-sum-norm" in out
    assert "reinforce_plus_plus" not in out


def test_one_in_full(capsys: pytest.CaptureFixture[str]) -> None:
    out = run(capsys, "gae")
    for part in (
        "A_t = Σ_l (γλ)^l δ_{t+l}",
        "arXiv:1506.02438",
        "algorithm.adv_estimator=gae",
        "algorithm.lam=1.0",
        "λ; 1 compares whole returns with the critic",
        "a critic",
    ):
        assert part in out


def test_a_name_in_two_families_shows_both(capsys: pytest.CaptureFixture[str]) -> None:
    out = run(capsys, "gpg")
    assert "algorithm.adv_estimator=gpg" in out
    assert "policy_loss.loss_mode=gpg" in out


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    rows = json.loads(run(capsys, "--json"))
    assert len(rows) == sum(len(family.entries) for family in FAMILIES.values())
    (vanilla,) = json.loads(run(capsys, "vanilla", "--json"))
    assert vanilla["family"] == "losses"
    assert {"key", "default", "meaning", "accepts"} == set(vanilla["keys"][0])


def test_an_unknown_name_is_answered_with_near_ones(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["algorithms", "grop"]) == 2
    assert "no algorithm is called 'grop'; there is grpo" in capsys.readouterr().err


def test_the_committed_document_is_up_to_date(capsys: pytest.CaptureFixture[str]) -> None:
    committed = (REPOSITORY / "docs" / "algorithms.md").read_text(encoding="utf-8")
    assert run(capsys, "--markdown") == committed, "run `argosy algorithms --markdown > docs/algorithms.md`"


def test_needs_no_torch() -> None:
    code = "import sys; from argosy.cli.main import main; main(['algorithms']); assert 'torch' not in sys.modules"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
