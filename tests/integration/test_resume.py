"""Resuming, and what must not move because of something else."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from argosy.cli.main import main
from argosy.modeling.tiny import save_tiny_model
from support.toy import ToyJob, write_rows

pytestmark = pytest.mark.xdist_group("resume")


def train(toy_job: ToyJob, run: str, *overrides: str) -> int:
    """The job in this process."""
    words = toy_job.command(run, "argosy.placement=inprocess", *overrides)
    return main(words[words.index("train") :])


@pytest.fixture(scope="module")
def finished(toy_job: ToyJob) -> Path:
    """A run of four steps without validation, its checkpoints kept."""
    assert train(toy_job, "four", "trainer.total_training_steps=4", "trainer.save_freq=2") == 0
    return toy_job.folder / "four"


def copied(toy_job: ToyJob, finished: Path, run: str) -> None:
    shutil.copytree(finished, toy_job.folder / run)


def test_d14_validation_in_between_does_not_move_training(toy_job: ToyJob, finished: Path) -> None:
    assert train(toy_job, "validated", "trainer.total_training_steps=4", "trainer.test_freq=1") == 0
    assert toy_job.trained("validated") == toy_job.trained("four")
    lines = (toy_job.folder / "validated" / "metrics.jsonl").read_text().splitlines()
    validated = [json.loads(line) for line in lines if "val-core" in line]
    assert len(validated) == 5  # before the first step and after each
    assert {row["step"] for row in validated} == {0, 1, 2, 3, 4}


def test_h5_auto_goes_on_and_says_so(toy_job: ToyJob, finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    copied(toy_job, finished, "more")
    assert train(toy_job, "more", "trainer.total_training_steps=6") == 0
    assert "resumed from" in capsys.readouterr().out
    assert [row["step"] for row in toy_job.metrics("more")] == [1, 2, 3, 4, 5, 6]


def test_h5_explicit_path_starts_there_in_a_new_lineage(toy_job: ToyJob, finished: Path) -> None:
    copied(toy_job, finished, "back")
    folder = toy_job.folder / "back"
    code = train(
        toy_job, "back", "trainer.total_training_steps=4",
        "trainer.resume_mode=resume_path", f"trainer.resume_from_path={folder}/global_step_2",
    )  # fmt: skip
    assert code == 0
    assert toy_job.trained("back") == toy_job.trained("four"), "the same steps again, bit for bit"
    versions = [json.loads((toy_job.folder / run / "report.json").read_text())["version"] for run in ("four", "back")]
    assert [version.split("@")[0] for version in versions] == ["l0", "l1"], "a number never names two weights"
    digests = {version.split("#")[1] for version in versions}
    assert len(digests) == 1
    assert len(list((folder / "ledger" / "abandoned").rglob("step_*.jsonl"))) == 2


def test_h5_nothing_left_to_do(toy_job: ToyJob, finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    copied(toy_job, finished, "done")
    assert train(toy_job, "done", "trainer.total_training_steps=4") == 2
    assert "nothing to do" in capsys.readouterr().err


def test_h5_checkpoint_of_another_model(
    toy_job: ToyJob, finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copied(toy_job, finished, "other-model")
    save_tiny_model(tmp_path / "bigger", hidden_size=128)
    code = train(
        toy_job, "other-model", "trainer.total_training_steps=6", f"actor_rollout_ref.model.path={tmp_path}/bigger"
    )
    err = capsys.readouterr().err
    assert code != 0
    assert "embed_tokens" in err
    assert "Traceback" not in err


def test_c13_other_data_is_noticed(
    toy_job: ToyJob, finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copied(toy_job, finished, "other-data")
    write_rows(tmp_path / "other.jsonl", [f"different {i}" for i in range(24)])
    code = train(toy_job, "other-data", "trainer.total_training_steps=6", f"data.train_files={tmp_path}/other.jsonl")
    assert code == 2
    assert "data" in capsys.readouterr().err


def test_e3_damaged_checkpoint_is_refused_by_name(
    toy_job: ToyJob, finished: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copied(toy_job, finished, "damaged")
    victim = max((toy_job.folder / "damaged" / "global_step_4" / "actor").rglob("*"), key=lambda p: p.stat().st_size)
    victim.write_bytes(victim.read_bytes()[:-1])
    assert train(toy_job, "damaged", "trainer.total_training_steps=6") != 0
    assert f"{victim.name} has" in capsys.readouterr().err


def test_h9_learning_rate_zero_shows(toy_job: ToyJob) -> None:
    assert train(toy_job, "still", "trainer.total_training_steps=1", "actor_rollout_ref.actor.optim.lr=0") == 0
    [row] = toy_job.metrics("still")
    assert row["actor/grad_norm"] > 0
    assert row["training/trained_tokens"] > 0
    shares = {name: value for name, value in row.items() if "changed" in name}
    assert shares
    assert set(shares.values()) == {0.0}
