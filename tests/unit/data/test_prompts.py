from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from argosy.controller.data import PromptOptions, PromptSource, build_prompts
from argosy.controller.data.truncation import truncate
from argosy.text import TextTokenizer
from argosy.types.errors import ConfigError, InvalidInputError
from argosy.types.ids import GroupId

MakeRow = Callable[..., dict[str, Any]]
Load = Callable[..., PromptSource]


def test_a_prompt_holds_the_row(load: Load, row: MakeRow, tokenizer: TextTokenizer) -> None:
    source = load([row(0), row(1), row(2)])
    prompt = source.prompt(1, GroupId(4, 7))
    assert prompt.group == GroupId(4, 7)
    assert prompt.token_ids == tokenizer.encode_prompt([{"role": "user", "content": "q1"}])
    assert prompt.text == "<|im_start|>user\nq1<|im_end|>\n<|im_start|>assistant\n"
    assert (prompt.data_source, prompt.ground_truth, prompt.index) == ("toy", "1", 1)
    assert prompt.extra_info == {"split": "train", "index": 1}
    assert [one.index for one in source.in_order()] == [0, 1, 2]


def test_template_arguments_reach_the_template(load: Load, row: MakeRow, tokenizer_folder: Path) -> None:
    from argosy.text import load_tokenizer

    using = load_tokenizer(tokenizer_folder, chat_template="{{ messages[0]['content'] }}{{ mode }}")
    source = load([row(0)], using=using, template_kwargs={"mode": "!"})
    assert source.prompt(0, GroupId(0, 0)).text == "q0!"


def test_c11_the_filter_counts_the_ids_that_are_sent(
    load: Load, row: MakeRow, plus_twelve: TextTokenizer, caplog: pytest.LogCaptureFixture
) -> None:
    """Limit 32, the template adds 12: 20 bytes make exactly 32 and stay, 21 make 33 and go, 30 go too."""
    rows = [row(0, "a" * 20), row(1, "b" * 21), row(2, "c" * 30), row(3, "d")]
    with caplog.at_level(logging.WARNING):
        source = load(rows, using=plus_twelve, max_prompt_length=32, filter_overlong_prompts=True)
    assert [one.index for one in source.in_order()] == [0, 3]
    assert source.ids.lengths.tolist() == [32, 13]
    assert source.dropped_count == 2
    assert "left out 2 of 4 prompts longer than 32 tokens (the longest has 42)" in caplog.text


def test_c11_tools_count(load: Load, row: MakeRow, plus_twelve: TextTokenizer) -> None:
    rows = [row(0, "a"), row(1, "a", tools=[{"name": "look", "description": "x" * 40}])]
    source = load(rows, using=plus_twelve, max_prompt_length=32, filter_overlong_prompts=True)
    assert [one.index for one in source.in_order()] == [0]


def test_c11_all_rows_too_long(load: Load, row: MakeRow, plus_twelve: TextTokenizer) -> None:
    rows = [row(0, "a" * 40), row(1, "a" * 50)]
    with pytest.raises(InvalidInputError, match=r"all 2 prompts are longer than .*=32 tokens \(the shortest has 52\)"):
        load(rows, using=plus_twelve, max_prompt_length=32, filter_overlong_prompts=True)


def test_c11_truncation_error_names_the_first(load: Load, row: MakeRow, plus_twelve: TextTokenizer) -> None:
    rows = [row(0, "a"), row(1, "b" * 21), row(2, "c" * 30)]
    with pytest.raises(InvalidInputError, match=r"2 of 3 prompts are longer .* the first is row 1 with 33;"):
        load(rows, using=plus_twelve, max_prompt_length=32)


@pytest.mark.parametrize("how", ["left", "right", "middle"])
def test_c11_truncation(load: Load, row: MakeRow, plus_twelve: TextTokenizer, how: str) -> None:
    text = "".join(chr(ord("a") + index) for index in range(26))
    full = plus_twelve.encode_prompt([{"role": "user", "content": text}])
    source = load([row(0, text), row(1, "x")], using=plus_twelve, max_prompt_length=32, truncation=how)
    cut, whole = source.in_order()
    expected = {"left": full[-32:], "right": full[:32], "middle": full[:16] + full[-16:]}[how]
    assert cut.token_ids == expected
    assert cut.text == plus_twelve.decode(expected, skip_special_tokens=False)
    assert len(whole.token_ids) == 13
    assert source.truncated_count == 1


def test_truncation_of_odd_limits() -> None:
    row = np.arange(9)
    assert truncate(row, 4, "middle").tolist() == [0, 1, 7, 8]
    assert truncate(row, 5, "middle").tolist() == [0, 1, 6, 7, 8]
    assert truncate(row, 9, "left").tolist() == list(range(9))
    assert truncate(row, 1, "left").tolist() == [8]
    with pytest.raises(ValueError, match="must be left, right or middle"):
        truncate(row, 3, "up")


def test_max_samples(load: Load, row: MakeRow) -> None:
    rows = [row(index) for index in range(20)]

    def indices(**options: Any) -> list[int]:
        return [one.index for one in load(rows, **options).in_order()]

    assert indices(max_samples=5) == [0, 1, 2, 3, 4]
    assert indices(max_samples=50) == indices() == list(range(20))
    drawn = indices(max_samples=5, shuffle=True, seed=3)
    assert drawn == indices(max_samples=5, shuffle=True, seed=3) == sorted(set(drawn))
    assert len(drawn) == 5
    assert drawn != indices(max_samples=5, shuffle=True, seed=4)
    with pytest.raises(ConfigError, match="limit on samples is 0"):
        indices(max_samples=0)


def test_options_are_checked() -> None:
    with pytest.raises(ConfigError, match=r"data\.truncation must be one of .* got 'up'"):
        PromptOptions(files=("a",), truncation="up")
    with pytest.raises(ConfigError, match=r"max_prompt_length must be at least 1, got 0"):
        PromptOptions(files=("a",), max_prompt_length=0)


def test_the_digest_names_prompts_and_their_order(load: Load, row: MakeRow) -> None:
    rows = [row(index) for index in range(4)]
    digest = load(rows).digest
    assert load(rows).digest == digest
    assert load(rows[::-1]).digest != digest
    assert load([*rows[:3], row(3, "other")]).digest != digest


def test_a_bad_row_is_found_at_start(load: Load, row: MakeRow) -> None:
    with pytest.raises(InvalidInputError, match=r"row 1500 \(from 0\): column 'prompt'"):
        load([*(row(index) for index in range(1500)), row(1500, prompt=[])])


def test_large_sets_are_templated_in_pieces(load: Load, row: MakeRow) -> None:
    source = load([row(index) for index in range(2500)])
    assert len(source) == 2500
    assert [source.prompt(place, GroupId(0, place)).text.split("\n")[1] for place in (0, 1023, 1024, 2499)] == [
        f"q{place}<|im_end|>" for place in (0, 1023, 1024, 2499)
    ]
    assert all(
        source.ids[place].tolist() == list(source.prompt(place, GroupId(0, place)).token_ids) for place in (0, 1024)
    )


def test_the_configuration_is_honoured(tmp_path: Path, row: MakeRow, tokenizer: TextTokenizer) -> None:
    """Each key of `data` that prompts depend on reaches them."""
    from argosy.config import Config
    from argosy.controller.data.prompts import options_of

    cfg = Config()
    data = dataclasses.replace(
        cfg.data,
        train_files=("t.jsonl",),
        val_files=("v1.jsonl", "v2.jsonl"),
        prompt_key="p",
        reward_fn_key="s",
        max_prompt_length=7,
        filter_overlong_prompts=True,
        truncation="left",
        train_max_samples=3,
        val_max_samples=4,
        shuffle=False,
        validation_shuffle=True,
        seed=9,
        apply_chat_template_kwargs={"enable_thinking": False},
    )
    cfg = dataclasses.replace(cfg, data=data)
    expected = PromptOptions(
        files=("t.jsonl",),
        prompt_key="p",
        reward_fn_key="s",
        max_prompt_length=7,
        filter_overlong_prompts=True,
        truncation="left",
        max_samples=3,
        seed=9,
        template_kwargs={"enable_thinking": False},
    )
    assert options_of(cfg, "train") == expected
    assert options_of(cfg, "val") == dataclasses.replace(
        expected, files=("v1.jsonl", "v2.jsonl"), name="data.val_files", max_samples=4, shuffle=True
    )
    with pytest.raises(ValueError, match="'train' or 'val'"):
        options_of(cfg, "test")


def test_many_files(tmp_path: Path, row: MakeRow, tokenizer: TextTokenizer) -> None:
    import json

    for name in "ab":
        (tmp_path / f"{name}.jsonl").write_text(json.dumps(row(ord(name))))
    source = build_prompts(PromptOptions(files=(f"{tmp_path}/*.jsonl",)), tokenizer)
    assert [one.ground_truth for one in source.in_order()] == ["97", "98"]
