"""A run is recorded and trained again from its record; rollouts are made without a trainer."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from argosy.cli.main import main
from argosy.controller.recording.store import Record
from argosy.modeling.tiny import save_tiny_model
from support.toy import ToyJob

pytestmark = pytest.mark.xdist_group("replay")

BASE = ("argosy.placement=inprocess", "trainer.val_before_train=False", "trainer.test_freq=-1")
STEPS = "trainer.total_training_steps=3"


def call(toy_job: ToyJob, command: str, run: str, *words: str) -> int:
    """A command in this process, with the job's keys."""
    line = toy_job.command(run, *BASE)
    return main([command, *line[line.index("train") + 1 :], *words])


def weights(toy_job: ToyJob, run: str) -> bytes:
    return (toy_job.folder / run / "hf" / "model.safetensors").read_bytes()


@pytest.fixture(scope="module")
def recorded(toy_job: ToyJob) -> Path:
    """A run of three steps with its record."""
    assert call(toy_job, "train", "recorded", STEPS, "argosy.record.enable=true") == 0
    return toy_job.folder / "recorded"


def test_a_replay_gives_the_same_weights_bit_for_bit(toy_job: ToyJob, recorded: Path) -> None:
    no_data = ("data.train_files=[]", "data.val_files=[]")
    assert call(toy_job, "train", "replayed", STEPS, f"argosy.replay.path={recorded}", *no_data) == 0
    assert weights(toy_job, "replayed") == weights(toy_job, "recorded")
    assert toy_job.trained("replayed") == toy_job.trained("recorded")


def test_a_replay_resumes(toy_job: ToyJob, recorded: Path) -> None:
    assert call(toy_job, "train", "twice", "trainer.total_training_steps=1", f"argosy.replay.path={recorded}") == 0
    assert call(toy_job, "train", "twice", f"argosy.replay.path={recorded}") == 0
    assert weights(toy_job, "twice") == weights(toy_job, "recorded"), "as many steps as the record has"


def test_a_resumed_run_goes_on_with_its_record(toy_job: ToyJob, recorded: Path) -> None:
    for steps in (1, 3):
        words = (f"trainer.total_training_steps={steps}", "argosy.record.enable=true")
        assert call(toy_job, "train", "again", *words) == 0
    ours, theirs = Record(toy_job.folder / "again"), Record(recorded)
    assert ours.steps == theirs.steps == [1, 2, 3]
    for step in ours.steps:
        one, other = ours.read(step).record, theirs.read(step).record
        assert {s: row.token_ids for s, row in one.completions.items()} == {
            s: row.token_ids for s, row in other.completions.items()
        }


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("actor_rollout_ref.rollout.n=4",), "has n=8 samples per prompt, actor_rollout_ref.rollout.n is 4"),
        (("data.train_batch_size=16", "actor_rollout_ref.actor.ppo_mini_batch_size=16"), "has 8 prompts per step"),
        (("trainer.total_training_steps=5",), "has steps 1 to 3; step 4 is wanted"),
        (("algorithm.adv_estimator=remax",), "has no greedy answers"),
        (("data.max_prompt_length=4",), "has a prompt of"),
    ],
)
def test_what_does_not_fit_is_refused(
    toy_job: ToyJob, recorded: Path, words: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(toy_job, "train", "refused", f"argosy.replay.path={recorded}", *words) == 2
    assert said in capsys.readouterr().err


def test_another_vocabulary_is_refused(
    toy_job: ToyJob, recorded: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = save_tiny_model(tmp_path / "other")
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    first, second = sorted(vocabulary)[:2]
    vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    words = (f"argosy.replay.path={recorded}", f"actor_rollout_ref.model.path={folder}")
    assert call(toy_job, "train", "foreign", *words) == 2
    assert "its token ids mean something else there" in capsys.readouterr().err


def test_a_damaged_record_is_refused(
    toy_job: ToyJob, recorded: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "copy"
    folder.mkdir()
    for file in (recorded / "record").iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    victim = folder / "step-00000003.parquet"
    victim.write_bytes(victim.read_bytes()[:-1])
    assert call(toy_job, "train", "damaged", f"argosy.replay.path={folder}") == 1
    assert "step 3: step-00000003.parquet has" in capsys.readouterr().err
    assert not (toy_job.folder / "damaged" / "metrics.jsonl").exists(), "no step was trained before it was found"


def test_rollouts_without_a_trainer_go_on_and_can_be_replayed(
    toy_job: ToyJob, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(toy_job, "rollout", "rollouts", "--steps", "1", "--json") == 0
    first = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (first["steps"], first["prompts"], first["samples"]) == (1, 8, 64)
    assert call(toy_job, "rollout", "rollouts", "--steps", "2", "--json") == 0
    second = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (second["steps"], second["samples"], second["run_id"]) == (2, 128, first["run_id"])
    record = Record(Path(second["record"]))
    groups = [prompt.group for step in record.steps for prompt in record.read(step).record.prompts]
    assert len(set(groups)) == 16, "the second start went on in the data"
    assert call(toy_job, "train", "from-rollouts", f"argosy.replay.path={second['record']}") == 0
    assert [row["step"] for row in toy_job.metrics("from-rollouts")] == [1, 2]


def test_show(recorded: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["record", "show", str(recorded), "--check", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["steps"], found["samples"], found["n"]) == (3, 192, 8)
    assert main(["record", "show", str(recorded), "--step", "2", "--samples", "1", "--json"]) == 0
    step = json.loads(capsys.readouterr().out)
    assert step["outcomes"] == {"scored": 64}
    assert step["first_samples"][0]["sample_id"].startswith("e0-p")
    assert main(["record", "show", str(recorded), "--step", "9"]) == 2
    assert "has no step 9: it has steps 1 to 3" in capsys.readouterr().err
