"""`data.*` changes which rows are read and what becomes of them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from argosy.config import Config
from argosy.controller.prepare import PreparedRun
from argosy.controller.stages.prompt import training_params
from argosy.rollout.build import build_core, core_options_of
from argosy.types.errors import ConfigError, InvalidInputError
from support.toy import write_rows
from unit.config.effects.recorded import run_recorded
from unit.config.effects.support import prompts, texts


def drawn(config: Config) -> list[int]:
    """Row numbers of two data epochs, in the order in which they are trained on."""
    sampler = PreparedRun(config).sampler
    return [prompt.index for _ in range(4) for prompt in sampler.next_batch()]


def test_train_files(job: Config, tmp_path: Path) -> None:
    write_rows(tmp_path / "more.jsonl", ["another"])
    changed = job.with_values({"data.train_files": [*job.data.train_files, str(tmp_path / "more.jsonl")]})
    assert len(texts(job)) == 8
    assert len(texts(changed)) == 9
    assert "another" in texts(changed)[-1]


def test_val_files(job: Config, tmp_path: Path) -> None:
    write_rows(tmp_path / "more.jsonl", ["another"])
    changed = job.with_values({"data.val_files": [str(tmp_path / "more.jsonl")]})
    assert len(PreparedRun(job).held_out) == 4
    assert ["another" in prompt.text for prompt in PreparedRun(changed).held_out] == [True]


def test_train_max_samples(job: Config) -> None:
    limited = job.with_values({"data.train_max_samples": 5})
    assert (PreparedRun(job).total_steps, PreparedRun(limited).total_steps, len(texts(limited))) == (2, 1, 5)


def test_val_max_samples(job: Config) -> None:
    assert texts(job.with_values({"data.val_max_samples": 3}), "val") == texts(job, "val")[:3]


@pytest.mark.parametrize("split", ["train", "val"])
def test_prompt_key(job: Config, tmp_path: Path, split: str) -> None:
    rename(tmp_path / f"{split}.jsonl", "prompt", "messages")
    with pytest.raises(InvalidInputError, match="prompt"):
        texts(job, split)
    assert texts(job.with_values({"data.prompt_key": "messages"}), split)


def test_reward_fn_key(job: Config, tmp_path: Path) -> None:
    rename(tmp_path / "train.jsonl", "ability", "scorer")
    changed = job.with_values({"data.reward_fn_key": "scorer"})
    assert {prompt.data_source for prompt in prompts(changed).in_order()} == {"toy"}
    rows = [json.loads(line) | {"scorer": "other"} for line in (tmp_path / "train.jsonl").read_text().splitlines()]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert {prompt.data_source for prompt in prompts(changed).in_order()} == {"other"}
    assert {prompt.data_source for prompt in prompts(job).in_order()} == {"toy"}


def rename(file: Path, old: str, new: str) -> None:
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    file.write_text("".join(json.dumps({new if key == old else key: row[key] for key in row}) + "\n" for row in rows))


def test_max_prompt_length(job: Config) -> None:
    changed = job.with_values({"data.max_prompt_length": 20})
    with pytest.raises(InvalidInputError, match=r"longer than data\.max_prompt_length=20"):
        texts(changed)
    assert (core_options_of(job).max_model_len, core_options_of(changed).max_model_len) == (72, 28)


def test_max_response_length(job: Config) -> None:
    changed = job.with_values({"data.max_response_length": 5})
    assert (training_params(job).max_tokens, training_params(changed).max_tokens) == (8, 5)
    assert core_options_of(changed).max_model_len == 69


def test_train_batch_size(job: Config) -> None:
    changed = PreparedRun(job.with_values({"data.train_batch_size": 2}))
    assert (len(changed.sampler.next_batch()), changed.total_steps) == (2, 4)
    assert (len(PreparedRun(job).sampler.next_batch()), PreparedRun(job).total_steps) == (4, 2)


async def test_val_batch_size(job: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    only = job.with_values({"trainer.val_only": True})
    assert (await run_recorded(only, monkeypatch)).calls("val") == [4]
    changed = only.with_values({"data.val_batch_size": 3})
    assert (await run_recorded(changed, monkeypatch)).calls("val") == [3, 1]


def test_shuffle(job: Config) -> None:
    assert drawn(job.with_values({"data.shuffle": False})) == [*range(8), *range(8)]
    shuffled = drawn(job.with_values({"data.shuffle": True}))
    assert sorted(shuffled[:8]) == list(range(8))
    assert shuffled[:8] != shuffled[8:]


def test_seed(job: Config) -> None:
    first, again, other = (drawn(job.with_values({"data.seed": seed})) for seed in (1, 1, 2))
    assert first == again != other


def test_validation_shuffle(job: Config) -> None:
    few = job.with_values({"data.val_max_samples": 2, "data.seed": 1})
    changed = few.with_values({"data.validation_shuffle": True})
    assert texts(few, "val") == texts(job, "val")[:2]
    assert texts(changed, "val") != texts(few, "val")


def test_filter_overlong_prompts(job: Config, tmp_path: Path) -> None:
    write_rows(tmp_path / "train.jsonl", ["short"] * 4 + ["long " * 20])
    with pytest.raises(InvalidInputError, match="longer than"):
        texts(job)
    assert len(texts(job.with_values({"data.filter_overlong_prompts": True}))) == 4


def test_truncation(job: Config, tmp_path: Path) -> None:
    write_rows(tmp_path / "train.jsonl", ["<begin>" + "long " * 20 + "<end>"] * 4)
    found = {how: texts(job.with_values({"data.truncation": how}))[0] for how in ("left", "right", "middle")}
    parts = {how: ("<begin>" in text, "<end>" in text) for how, text in found.items()}
    assert parts == {"left": (False, True), "right": (True, False), "middle": (True, True)}
    with pytest.raises(InvalidInputError, match="longer than"):
        texts(job.with_values({"data.truncation": "error"}))


def test_trust_remote_code(job: Config, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """In the controller and in rollout, which both load the tokenizer."""
    import transformers

    asked: list[bool] = []

    def load(*_: object, trust_remote_code: bool, **__: Any) -> None:
        asked.append(trust_remote_code)
        raise OSError("only asked")

    monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", load)
    folder = shutil.copytree(job.actor_rollout_ref.model.path, tmp_path / "own")
    job = job.with_values({"actor_rollout_ref.model.path": str(folder)})
    file = folder / "tokenizer_config.json"
    own = {"auto_map": {"AutoTokenizer": ["own.Own", None]}}
    file.write_text(json.dumps(json.loads(file.read_text()) | own))
    for config in (job, job.with_values({"data.trust_remote_code": True})):
        for use in (prompts, build_core):
            with pytest.raises(InvalidInputError, match="only asked"):
                use(config)
    assert asked == [False, False, True, True]


def test_apply_chat_template_kwargs(job: Config) -> None:
    template = "{{ messages[0]['content'] }}{{ ' /think' if think }}"
    plain = job.with_values({"actor_rollout_ref.model.custom_chat_template": template})
    changed = plain.with_values({"data.apply_chat_template_kwargs": {"think": True}})
    assert (texts(plain)[0], texts(changed)[0]) == ("question 0", "question 0 /think")


def test_too_few_rows_are_refused(job: Config) -> None:
    with pytest.raises(ConfigError, match="fewer than one batch"):
        PreparedRun(job.with_values({"data.train_max_samples": 3}))
