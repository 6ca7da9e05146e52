"""`trainer.*`: how long, how often, where to; seen on whole runs over services that answer at once."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from argosy.config import Config, load
from argosy.controller.ledger.lives import read_lives
from argosy.controller.loggers import build_loggers
from argosy.controller.prepare import PreparedRun
from argosy.types.errors import ConfigError
from unit.config.effects.recorded import run_recorded
from unit.config.effects.support import problems

Patch = pytest.MonkeyPatch


def wandb_settings(config: Config, folder: Path, monkeypatch: Patch) -> dict[str, object]:
    """What Weights & Biases is told."""
    import wandb

    told: dict[str, object] = {}

    class Finished:
        def finish(self) -> None:
            pass

    def init(**settings: object) -> Finished:
        told.update(settings)
        return Finished()

    monkeypatch.setattr(wandb, "init", init)
    folder.mkdir(exist_ok=True)
    for logger in build_loggers(config.with_values({"trainer.logger": ["wandb"]}), folder):
        logger.close()
    return told


def test_project_name(job: Config, tmp_path: Path, monkeypatch: Patch) -> None:
    changed = job.with_values({"trainer.project_name": "maths"})
    assert wandb_settings(changed, tmp_path / "log", monkeypatch)["project"] == "maths"
    assert str(load(["trainer.project_name=maths"]).run_folder) == "checkpoints/maths/default"


def test_experiment_name(job: Config, tmp_path: Path, monkeypatch: Patch) -> None:
    changed = job.with_values({"trainer.experiment_name": "first"})
    assert wandb_settings(changed, tmp_path / "log", monkeypatch)["name"] == "first"
    assert str(load(["trainer.experiment_name=first"]).run_folder) == "checkpoints/argosy/first"


async def test_default_local_dir(job: Config, tmp_path: Path, monkeypatch: Patch) -> None:
    await run_recorded(job.with_values({"trainer.default_local_dir": str(tmp_path / "elsewhere")}), monkeypatch)
    made = {path.name for path in (tmp_path / "elsewhere").iterdir()}
    assert {"config.yaml", "metrics.jsonl", "ledger", "global_step_2"} <= made
    assert not (tmp_path / "run").exists()


async def test_total_epochs(job: Config, monkeypatch: Patch) -> None:
    """Two steps a data epoch."""
    recorded = await run_recorded(job.with_values({"trainer.total_epochs": 3}), monkeypatch)
    assert len(recorded.updates) == 6


async def test_total_training_steps(job: Config, monkeypatch: Patch) -> None:
    recorded = await run_recorded(job.with_values({"trainer.total_training_steps": 5}), monkeypatch)
    assert len(recorded.updates) == 5


def test_machines(job: Config) -> None:
    """One value; more is refused and not silently one."""
    assert problems(job.with_values({"trainer.nnodes": 1})) == ""
    assert "trainer.nnodes: got 2" in problems(job.with_values({"trainer.nnodes": 2}))


async def test_logger(job: Config, monkeypatch: Patch) -> None:
    changed = job.with_values({"trainer.logger": ["tensorboard"]})
    recorded = await run_recorded(changed, monkeypatch)
    assert list((recorded.folder / "tensorboard").iterdir())
    assert (recorded.folder / "metrics.jsonl").stat().st_size
    other = await run_recorded(elsewhere(job), monkeypatch)
    assert not (other.folder / "tensorboard").exists()


def elsewhere(config: Config) -> Config:
    """The same run in another folder."""
    return config.with_values({"trainer.default_local_dir": f"{config.run_folder}-2"})


async def test_logger_console(job: Config, monkeypatch: Patch) -> None:
    shown = await run_recorded(job.with_values({"trainer.logger": ["console", "file"]}), monkeypatch)
    hidden = await run_recorded(elsewhere(job.with_values({"trainer.logger": ["file"]})), monkeypatch)
    assert ("step 1:" in shown.screen, "step 1:" in hidden.screen) == (True, False)


async def test_critic_warmup(job: Config, monkeypatch: Patch) -> None:
    """The first steps train only the critic; the policy's own steps and schedule begin after them."""
    ppo = job.with_values({"algorithm.adv_estimator": "gae", "trainer.total_training_steps": 3})
    warmed = await run_recorded(ppo.with_values({"trainer.critic_warmup": 2}), monkeypatch)
    assert (len(warmed.critic_updates), len(warmed.updates)) == (3, 1)
    assert warmed.mutations[0].expected_step == 0
    assert warmed.report is not None
    assert warmed.report.step == 3
    at_once = await run_recorded(elsewhere(ppo), monkeypatch)
    assert (len(at_once.critic_updates), len(at_once.updates)) == (3, 3)
    lengths = [
        PreparedRun(config).config.actor_rollout_ref.actor.optim.total_training_steps
        for config in (elsewhere(elsewhere(ppo)), elsewhere(elsewhere(ppo)).with_values({"trainer.critic_warmup": 2}))
    ]
    assert lengths == [3, 1]


async def test_save_freq(job: Config, monkeypatch: Patch) -> None:
    longer = job.with_values({"trainer.total_training_steps": 5})
    only_last = await run_recorded(longer, monkeypatch)
    assert only_last.checkpoints == ["global_step_5"]
    recorded = await run_recorded(elsewhere(longer).with_values({"trainer.save_freq": 2}), monkeypatch)
    assert recorded.checkpoints == ["global_step_2", "global_step_4", "global_step_5"]


async def test_test_freq(job: Config, monkeypatch: Patch) -> None:
    longer = job.with_values({"trainer.total_training_steps": 5})
    never = await run_recorded(longer, monkeypatch)
    assert never.calls("val") == [4]
    recorded = await run_recorded(elsewhere(longer).with_values({"trainer.test_freq": 2}), monkeypatch)
    assert recorded.calls("val") == [4] * 4  # before, and after steps 2, 4 and 5


async def test_val_before_train(job: Config, monkeypatch: Patch) -> None:
    recorded = await run_recorded(job.with_values({"trainer.val_before_train": False}), monkeypatch)
    assert recorded.calls("val") == []


async def test_val_only(job: Config, monkeypatch: Patch) -> None:
    recorded = await run_recorded(job.with_values({"trainer.val_only": True}), monkeypatch)
    assert (recorded.calls("val"), recorded.updates, recorded.checkpoints) == ([4], [], [])


def rows(folder: Path) -> dict[str, int]:
    """Lines of each file."""
    return {path.name: len(path.read_text().splitlines()) for path in sorted(folder.glob("*"))}


async def test_log_val_generations(job: Config, monkeypatch: Patch) -> None:
    none = await run_recorded(job, monkeypatch)
    assert rows(none.folder / "validation") == {}
    recorded = await run_recorded(elsewhere(job).with_values({"trainer.log_val_generations": 3}), monkeypatch)
    assert rows(recorded.folder / "validation") == {"0.jsonl": 3}


async def test_log_val_generations_beside_validation_data_dir(job: Config, tmp_path: Path, monkeypatch: Patch) -> None:
    changed = job.with_values({
        "trainer.log_val_generations": 3, "trainer.validation_data_dir": str(tmp_path / "all")
    })  # fmt: skip
    recorded = await run_recorded(changed, monkeypatch)
    assert (rows(recorded.folder / "validation"), rows(tmp_path / "all")) == ({"0.jsonl": 3}, {"0.jsonl": 4})


async def test_rollout_data_dir(job: Config, tmp_path: Path, monkeypatch: Patch) -> None:
    await run_recorded(job.with_values({"trainer.rollout_data_dir": str(tmp_path / "samples")}), monkeypatch)
    assert rows(tmp_path / "samples") == {"1.jsonl": 8, "2.jsonl": 8}
    first = json.loads((tmp_path / "samples/1.jsonl").read_text().splitlines()[0])
    assert {"input", "output", "gts", "score", "step"} <= first.keys()


async def test_validation_data_dir(job: Config, tmp_path: Path, monkeypatch: Patch) -> None:
    changed = job.with_values({"trainer.validation_data_dir": str(tmp_path / "answers"), "trainer.test_freq": 2})
    await run_recorded(changed, monkeypatch)
    assert rows(tmp_path / "answers") == {"0.jsonl": 4, "2.jsonl": 4}


@pytest.mark.parametrize("key", ["trainer.rollout_data_dir", "trainer.validation_data_dir"])
async def test_folders_may_begin_with_home(job: Config, tmp_path: Path, monkeypatch: Patch, key: str) -> None:
    """As in every other path of the configuration, `~` is the home folder."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    await run_recorded(job.with_values({key: "~/dumps"}), monkeypatch)
    assert rows(tmp_path / "home/dumps")


async def interrupted(job: Config, monkeypatch: Patch) -> None:
    """Leave checkpoints of steps 1 and 2."""
    values = {"trainer.total_training_steps": 2, "trainer.save_freq": 1}
    await run_recorded(job.with_values(values), monkeypatch)


async def test_resume_mode(job: Config, monkeypatch: Patch) -> None:
    await interrupted(job, monkeypatch)
    longer = job.with_values({"trainer.total_training_steps": 5})
    with pytest.raises(ConfigError, match="already holds checkpoints up to step 2"):
        PreparedRun(longer.with_values({"trainer.resume_mode": "disable"}))
    recorded = await run_recorded(longer.with_values({"trainer.resume_mode": "auto"}), monkeypatch)
    assert [mutation.expected_step for mutation in recorded.mutations] == [2, 3, 4]


@pytest.mark.parametrize("home", [False, True])
async def test_resume_from_path(job: Config, monkeypatch: Patch, home: bool) -> None:
    """The named folder and not the newest; it may begin with `~`."""
    await interrupted(job, monkeypatch)
    monkeypatch.setenv("HOME", str(job.run_folder))
    named = "~/global_step_1" if home else str(job.run_folder / "global_step_1")
    changed = elsewhere(job).with_values({
        "trainer.total_training_steps": 3, "trainer.resume_mode": "resume_path", "trainer.resume_from_path": named
    })  # fmt: skip
    recorded = await run_recorded(changed, monkeypatch)
    assert [mutation.expected_step for mutation in recorded.mutations] == [1, 2]


async def test_max_actor_ckpt_to_keep(job: Config, monkeypatch: Patch) -> None:
    often = job.with_values({"trainer.total_training_steps": 4, "trainer.save_freq": 1})
    recorded = await run_recorded(often.with_values({"trainer.max_actor_ckpt_to_keep": 2}), monkeypatch)
    assert recorded.checkpoints == ["global_step_3", "global_step_4"]
    assert len((await run_recorded(elsewhere(often), monkeypatch)).checkpoints) == 4


async def test_default_hdfs_dir(job: Config, tmp_path: Path, monkeypatch: Patch) -> None:
    """A run in a folder that has nothing goes on from the copy."""
    copied = {"trainer.default_hdfs_dir": f"file://{tmp_path}/far", "trainer.max_actor_ckpt_to_keep": 1}
    await run_recorded(
        job.with_values({"trainer.total_training_steps": 2, "trainer.save_freq": 1, **copied}), monkeypatch
    )
    assert [path.name for path in (tmp_path / "far" / "copies").iterdir()] == ["gen_00001.step_000000002.json"]
    (tmp_path / "far" / "writers" / "lineage_00004").touch()  # of a machine that was lost before its first copy
    changed = elsewhere(job).with_values({"trainer.total_training_steps": 3, **copied})
    recorded = await run_recorded(changed, monkeypatch)
    assert [mutation.expected_step for mutation in recorded.mutations] == [2]
    assert read_lives(changed.run_folder / "ledger")[-1].lineage == "l5", "none that any machine has used"
    assert sorted(path.name for path in (tmp_path / "far" / "writers").glob("lineage_*"))[-1] == "lineage_00005"
    refused = elsewhere(elsewhere(job)).with_values({"trainer.resume_mode": "disable", **copied})
    with pytest.raises(ConfigError, match="already holds copies of a run"):
        await run_recorded(refused, monkeypatch)


def test_device() -> None:
    """It sets those of the services that compute, whose effects are tested with argosy's keys."""
    services = load(["trainer.device=cuda:1"]).argosy
    computing = (services.trainer, services.critic, services.rollout, services.reference)
    assert {service.device for service in computing} == {"cuda:1"}
    assert services.reward == Config().argosy.reward
