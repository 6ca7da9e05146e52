"""What is written of a step is what is read."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pyarrow as pa
import pytest

from argosy.controller.producing import StepRecord
from argosy.controller.recording.rows import from_table, to_table
from argosy.types.errors import CorruptDataError
from argosy.types.ids import GroupId, PolicyVersion, SampleId
from argosy.types.records import (
    Abstained,
    Completion,
    Failed,
    FinishReason,
    Outcome,
    Prompt,
    Scored,
    VersionRun,
)

OLD, NEW = PolicyVersion("l0", 4, "aa" * 32), PolicyVersion("l1", 5, "bb" * 32)


def full(kind: type[Any], values: dict[str, Any]) -> Any:
    """An instance in which no field is left at its default: a field that is added must be recorded too."""
    made = kind(**values)
    for field in dataclasses.fields(kind):
        default = field.default
        if field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        assert getattr(made, field.name) != default, f"{kind.__name__}.{field.name} is not tried"
    return made


def rich_prompt() -> Prompt:
    return full(  # type: ignore[no-any-return]
        Prompt,
        {
            "group": GroupId(1, 2),
            "token_ids": (5, 6, 7),
            "data_source": "maths",
            "ground_truth": {"answer": [1, "zwei", None]},
            "extra_info": {"index": 9, "ünicode": "ß"},
            "text": "frage?",
            "index": 9,
            "messages": ({"role": "user", "content": "frage?"},),
            "tools": ({"type": "function", "function": {"name": "add"}},),
            "agent_name": "tool_agent",
        },
    )


def rich_completion(outcome: Outcome) -> Completion:
    return full(  # type: ignore[no-any-return]
        Completion,
        {
            "sample_id": SampleId(1, 2, 3, 4),
            "token_ids": (8, 9, 10, 11),
            "log_probs": (-0.1, -1e-9, 0.0, -math.pi),  # not float32: kept in full
            "versions": (VersionRun(OLD, 3), VersionRun(NEW, 1)),
            "finish_reason": FinishReason.LENGTH,
            "text": "antwort",
            "error": "hm",
            "purpose": "other",
            "cached_prompt_tokens": 3,
            "member_id": "rollout-1",
            "response_mask": (1, 1, 0, 1),
            "turn_count": 2,
            "turn_rewards": ((1, 0.5),),
            "messages": ({"role": "tool", "content": "4"},),
            "metrics": {"agent/calls": 1.0},
            "outcome": outcome,
        },
    )


def test_every_field_comes_back() -> None:
    scored = Scored(0.1, {"acc": True, "pred": "4", "len": 2.5}, (0.0, 0.25, 0.0, -0.15))
    rich = rich_completion(scored)
    plain = Completion(SampleId(0, 0, 0), (), (), (), FinishReason.STOP)
    others: dict[SampleId, Outcome] = {
        SampleId(0, 0, 0): Failed("timeout", "too slow"),
        SampleId(0, 0, 1): Abstained("no answer"),
        SampleId(0, 0, 2): Scored(-1.0),
    }
    completions = {
        rich.sample_id: rich,
        **{sample: dataclasses.replace(plain, sample_id=sample) for sample in others},
    }
    prompts = [rich_prompt(), Prompt(GroupId(0, 0), (1,), "toy", "x"), Prompt(GroupId(0, 7), (2,), "toy", None)]
    baselines = {GroupId(1, 2): 0.75, GroupId(0, 0): math.nan}
    record = StepRecord(3, prompts, completions, {rich.sample_id: scored, **others}, NEW, baselines)
    found = from_table(to_table(record), 3, NEW)
    assert found.completions == completions
    assert found.outcomes == record.outcomes
    assert found.prompts == prompts, "in their order, the one without samples too"
    assert found.baselines.keys() == baselines.keys()
    assert found.baselines[GroupId(1, 2)] == 0.75
    assert math.isnan(found.baselines[GroupId(0, 0)])
    assert (found.step, found.version) == (3, NEW)


def test_log_probs_of_engines_are_held_in_four_bytes() -> None:
    def kind(log_prob: float) -> pa.DataType:
        row = Completion(SampleId(0, 0, 0), (1,), (log_prob,), (VersionRun(OLD, 1),), FinishReason.STOP)
        record = StepRecord(1, [Prompt(GroupId(0, 0), (1,), "toy", "")], {row.sample_id: row}, {}, OLD)
        return to_table(record).column("log_probs").type.value_type

    assert kind(-0.5) == pa.float32()
    assert kind(-0.1) == pa.float64()


def test_another_table_is_refused() -> None:
    with pytest.raises(CorruptDataError, match="step 2 is no recorded step"):
        from_table(pa.table({"sample_id": ["x"]}), 2, None)
