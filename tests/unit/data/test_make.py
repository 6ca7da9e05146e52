from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from argosy.controller.data.make import MakeOptions, TaskSpec, make_splits, write_splits
from argosy.controller.data.rows import Dataset
from argosy.types.errors import InvalidInputError

SUM = TaskSpec("chain_sum", {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1})


def options(*tasks: TaskSpec, train: int = 40, val: int = 20, **more: Any) -> MakeOptions:
    return MakeOptions(tasks=tasks or (SUM,), train_count=train, val_count=val, **more)


def questions(rows: list[dict[str, Any]]) -> list[str]:
    return [row["extra_info"]["question"] for row in rows]


def test_train_and_val_share_no_question() -> None:
    splits = make_splits(options(train=140, val=60))
    train, val = questions(splits["train"].rows), questions(splits["val"].rows)
    assert (len(train), len(val)) == (140, 60)
    assert len({*train, *val}) == 200, "there are just 200 such sums: none is drawn twice"


def test_a_mixture_has_equal_shares_and_stays_disjoint() -> None:
    splits = make_splits(options(SUM, TaskSpec("gcd", {"max_value": 50}), SUM, train=61, val=31))
    for rows, count in ((splits["train"].rows, 61), (splits["val"].rows, 31)):
        sources = [row["data_source"] for row in rows]
        assert len(rows) == count
        assert abs(sources.count("reasoning_gym/chain_sum") - 2 * count / 3) <= 1
        assert sources != sorted(sources), "the tasks are mixed, not one after the other"
        assert [row["extra_info"]["index"] for row in rows] == list(range(count))
    everything = questions(splits["train"].rows) + questions(splits["val"].rows)
    assert len(set(everything)) == len(everything)


def test_equal_options_give_equal_rows() -> None:
    assert make_splits(options(seed=3)) == make_splits(options(seed=3))
    assert make_splits(options(seed=3)) != make_splits(options(seed=4))


def test_rows_have_verls_schema_and_load(tmp_path: Path) -> None:
    splits = make_splits(options(SUM, TaskSpec("gcd"), system_prompt="Be brief.", question_format="{question} Now!"))
    paths = write_splits(splits, tmp_path / "new" / "folder")
    assert sorted(path.name for path in (tmp_path / "new" / "folder").iterdir()) == ["train.parquet", "val.parquet"]
    for name in ("train", "val"):
        rows = list(Dataset([paths[name]]).rows())
        assert len(rows) == len(splits[name].rows)
        first = rows[0]
        assert [message["role"] for message in first.messages] == ["system", "user"]
        assert first.messages[0]["content"] == "Be brief."
        assert first.messages[1]["content"] == first.extra_info["question"] + " Now!"
        assert first.data_source in ("reasoning_gym/chain_sum", "reasoning_gym/gcd")
        assert first.ground_truth == splits[name].rows[0]["reward_model"]["ground_truth"]
        assert (first.extra_info["split"], first.extra_info["index"]) == (name, 0)
        assert first.data_source == f"reasoning_gym/{first.extra_info['task']}"


def test_answers_are_right() -> None:
    splits = make_splits(options(question_format="{expression}"))
    for row in splits["train"].rows:
        left, sign, right = row["prompt"][0]["content"].split()
        value = int(left) + int(right) if sign == "+" else int(left) - int(right)
        assert row["reward_model"]["ground_truth"] == str(value)


def test_the_share_of_the_commonest_answer() -> None:
    splits = make_splits(options(train=180, val=20))
    answers = [row["reward_model"]["ground_truth"] for row in splits["train"].rows]
    assert splits["train"].constant_share == max(map(answers.count, answers)) / 180
    mixed = make_splits(options(SUM, TaskSpec("coin_flip"), train=20, val=0))
    assert mixed["train"].constant_share >= 2 / 20
    assert mixed["val"].rows == []


def test_too_few_distinct_questions_says_the_numbers() -> None:
    with pytest.raises(
        InvalidInputError, match=r"chain_sum with min_terms=2, .* gave 200 distinct .* and 201 are needed"
    ):
        make_splits(options(train=180, val=21))


def test_task_specs() -> None:
    assert TaskSpec.parse("gcd") == TaskSpec("gcd")
    spec = TaskSpec.parse("a:x=1,y=[1,2],z='p,q',t=true,n=null,w=word", ["x=3", "s=-0.5"])
    assert spec == TaskSpec("a", {"x": 1, "s": -0.5, "y": [1, 2], "z": "p,q", "t": True, "n": None, "w": "word"})
    for wrong in ("a:x", "a:=3", "a:1x=3"):
        with pytest.raises(InvalidInputError, match="looks like max_terms=2"):
            TaskSpec.parse(wrong)


@pytest.mark.parametrize(
    ("task", "message"),
    [
        (TaskSpec("chainsum"), r"no task 'chainsum'; did you mean chain_sum"),
        (TaskSpec("zzzzzz"), r"no task 'zzzzzz'; there are .*gcd"),
        (TaskSpec("chain_sum", {"digits": 1}), r"chain_sum has no argument digits; it has .*max_digits"),
        (TaskSpec("chain_sum", {"seed": 1}), r"has no argument seed"),
        (TaskSpec("chain_sum", {"min_terms": 9}), r"refuses its arguments .*max_terms must be >= min_terms"),
    ],
)
def test_wrong_tasks(task: TaskSpec, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        make_splits(options(task))


def test_wrong_options() -> None:
    with pytest.raises(InvalidInputError, match="name at least one --task"):
        MakeOptions(tasks=(), train_count=1, val_count=1)
    with pytest.raises(InvalidInputError, match="got 0 and 1"):
        options(train=0, val=1)
    with pytest.raises(InvalidInputError, match=r"'\{nothing\}' does not fit chain_sum .*expression.*question"):
        make_splits(options(question_format="{nothing}"))
