"""Case H1: no key is dropped in silence; each is refused with its full path and a suggestion."""

from __future__ import annotations

from pathlib import Path

import pytest

from argosy.config import load, load_resolved
from argosy.types.errors import ConfigError


def refusal(*overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load(overrides)
    return caught.value.message


@pytest.mark.parametrize(
    ("override", "suggestion"),
    [
        ("learning_rte=1e-5", "actor_rollout_ref.actor.optim.lr"),
        ("num-epochs=3", "trainer.total_epochs"),
        ("trainer.total-epochs=3", "trainer.total_epochs"),
        ("actor_rollout_ref.actor.optim.lrr=1", "actor_rollout_ref.actor.optim.lr"),
        ("actor_rollout_ref.rollout.tempreature=1", "actor_rollout_ref.rollout.temperature"),
        ("trainer.lr=1e-6", "actor_rollout_ref.actor.optim.lr"),
        ("data.ppo_mini_batch_size=8", "actor_rollout_ref.actor.ppo_mini_batch_size"),
        ("actor_rollout_ref.temperature=1", "actor_rollout_ref.rollout.temperature"),
        ("max_staleness=0", "argosy.max_staleness"),
        ("argosy.rollout.slots_count=4", "argosy.rollout.slot_count"),
        ("actor_rollout_ref.rollout.gpu_memory_utilisation=0.4", "actor_rollout_ref.rollout.gpu_memory_utilization"),
        ("data.shuffle.x=1", "data.shuffle"),
        ("+data.sede=1", "data.seed"),
        ("++data.sede=1", "data.seed"),
        ("~data.sede", "data.seed"),
        ("actor_rollout_ref.actor.fsdp_config.dtpye=bfloat16", "actor_rollout_ref.actor.fsdp_config.dtype"),
    ],
)
def test_h1_typo_has_full_path_and_suggestion(override: str, suggestion: str) -> None:
    key = override.partition("=")[0].lstrip("+")
    message = refusal(override)
    assert message.startswith(f"{key}: no such key"), message
    assert suggestion in message.partition("Did you mean")[2]


@pytest.mark.parametrize(("override", "where"), [
    ("argosy.services.rollout.count=2", "argosy.pools={NAME: {count: 2}}"),
    ("argosy.rollout.servers=2", "argosy.pools={NAME: {count: 2}}"),
    ("argosy.services.reward.count=2", "argosy.reward.services={NAME: {count: 2}}"),
])  # fmt: skip
def test_h1_a_number_of_servers_says_where_it_belongs(override: str, where: str) -> None:
    assert where in refusal(override)


@pytest.mark.parametrize(
    ("override", "instead"),
    [
        ("data.batch_size=8", "data.train_batch_size"),
        ("actor_rollout_ref.actor.ppo_micro_batch_size=8", "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu"),
        ("actor_rollout_ref.rollout.log_prob_micro_batch_size=8", "log_prob_micro_batch_size_per_gpu"),
        ("trainer.val_generations_to_log_to_wandb=1", "trainer.log_val_generations"),
        ("trainer.remove_previous_ckpt_in_save=true", "trainer.max_actor_ckpt_to_keep"),
    ],
)
def test_h1_removed_key_names_its_successor(override: str, instead: str) -> None:
    message = refusal(override)
    assert "is refused" in message
    assert instead in message


def test_h1_nothing_near_says_where_the_keys_are() -> None:
    assert "argosy config docs" in refusal("xyzzyqq=1")


def test_h1_every_problem_at_once() -> None:
    message = refusal("learning_rte=1", "trainer.lr=1", "data.seed=x,y", "data.image_key=picture")
    assert [line.partition(":")[0].partition("=")[0] for line in message.splitlines()] == [
        "learning_rte",
        "trainer.lr",
        "data.seed",
        "data.image_key",
    ]


def test_h1_unknown_key_inside_a_mapping_argument() -> None:
    assert refusal("actor_rollout_ref.rollout={n: 4, nam: hf}").startswith("actor_rollout_ref.rollout.nam: no such key")


def test_h1_scalar_for_a_section() -> None:
    assert "is a section of keys" in refusal("actor_rollout_ref.rollout=3")
    assert "is a section of keys" in refusal("data=null")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("learning_rte: 1e-5\n", "learning_rte: no such key. Did you mean actor_rollout_ref.actor.optim.lr?"),
        ("data:\n  shufle: true\n", "data.shufle: no such key. Did you mean data.shuffle?"),
        ("data: 3\n", "data: is a section of keys"),
        ("trainer:\n  lr: 1\n", "Did you mean critic.optim.lr or actor_rollout_ref.actor.optim.lr?"),
        ("data:\n  seed: 1\n  shuffle: true\n  seed: 2\n", "line 4: the key 'seed' was already given in line 2"),
        ("trainer:\n  project_name: a\ndata:\n  seed: 1\ntrainer:\n  nnodes: 1\n", "line 5: the key 'trainer'"),
        ("1: a\n", "must be text"),
        ("- a\n", "wants `key: value` lines"),
        ("data: {seed: [\n", "line"),
        ("data:\n  seed: None\n", "line 2: None would be the text 'None'"),
        ("data:\n\tseed: 1\n", "line 2"),
    ],
)
def test_h1_file(tmp_path: Path, text: str, expected: str) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load([], [file])
    assert expected in caught.value.message
    assert str(file) in caught.value.message


def test_h1_missing_or_binary_file(tmp_path: Path) -> None:
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    for name in ("none.yaml", "binary.yaml"):
        with pytest.raises(ConfigError, match=name):
            load([], [tmp_path / name])


def test_h1_resolved_config_of_another_version_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("data:\n  sede: 1\n")
    with pytest.raises(ConfigError, match="not a resolved configuration"):
        load_resolved(tmp_path / "config.yaml")
