"""A step's prompts, samples and outcomes as an Arrow table, and back, without loss.

One row per sample, in the order of sample ids. What belongs to a prompt (columns `prompt_*`, `data_source`,
`ground_truth`, `extra_info`, `baseline`) stands in the first row of its group only and is null in the others, since a
group shares it. A prompt of which no sample is left has a row without a sample.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from argosy.controller.producing import StepRecord
from argosy.controller.stream_codec import outcome_from_json
from argosy.types.errors import CorruptDataError
from argosy.types.ids import GroupId, PolicyVersion, SampleId
from argosy.types.records import (
    Completion,
    FinishReason,
    Outcome,
    Prompt,
    Scored,
    VersionRun,
)

VERSION_RUN = pa.struct({"lineage": pa.string(), "step": pa.int64(), "digest": pa.string(), "token_count": pa.int32()})
Row = Mapping[str, Any]


def to_table(record: StepRecord) -> pa.Table:
    """The rows of a step."""
    places = {prompt.group: place for place, prompt in enumerate(record.prompts)}
    samples = sorted(record.completions)
    lone = sorted(places.keys() - {sample.group for sample in samples})
    rows: list[SampleId | None] = [*samples, *(None for _ in lone)]
    firsts = _firsts(samples) + lone
    prompts = [None if group is None else record.prompts[places[group]] for group in firsts]
    completions = [None if sample is None else record.completions[sample] for sample in rows]
    outcomes = [None if sample is None else record.outcomes.get(sample) for sample in rows]
    columns = {"sample_id": pa.array([None if sample is None else str(sample) for sample in rows], pa.string())}
    columns |= {"prompt_place": pa.array([None if g is None else places[g] for g in firsts], pa.int32())}
    columns |= _prompt_columns(prompts)
    columns["baseline"] = pa.array([None if g is None else record.baselines.get(g) for g in firsts], pa.float64())
    return pa.table(columns | _completion_columns(completions) | _outcome_columns(completions, outcomes))


def from_table(table: pa.Table, step: int, version: PolicyVersion | None) -> StepRecord:
    """The step that `to_table` wrote. Raises CorruptDataError on a table of another making."""
    try:
        return _from_columns({name: table.column(name) for name in table.column_names}, step, version)
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise CorruptDataError(f"step {step} is no recorded step: {type(error).__name__}: {error}") from error


def _from_columns(columns: Mapping[str, pa.ChunkedArray], step: int, version: PolicyVersion | None) -> StepRecord:
    lists = {name: column.to_pylist() for name, column in columns.items()}
    prompts: dict[int, Prompt] = {}
    baselines: dict[GroupId, float] = {}
    completions: dict[SampleId, Completion] = {}
    outcomes: dict[SampleId, Outcome] = {}
    for number in range(len(lists["sample_id"])):
        row = {name: values[number] for name, values in lists.items()}
        if row["prompt_place"] is not None:
            prompt = _prompt(row)
            prompts[row["prompt_place"]] = prompt
            if row["baseline"] is not None:
                baselines[prompt.group] = row["baseline"]
        if row["sample_id"] is not None:
            sample = SampleId.parse(row["sample_id"])
            outcome = _outcome(row)
            if outcome is not None:
                outcomes[sample] = outcome
            completions[sample] = _completion(sample, row, outcome)
    ordered = [prompts[place] for place in sorted(prompts)]
    return StepRecord(step, ordered, completions, outcomes, version, baselines)


def _firsts(samples: Sequence[SampleId]) -> list[GroupId | None]:
    """For each sample its group if it is the group's first, else None."""
    groups = [sample.group for sample in samples]
    return [group if place == 0 or groups[place - 1] != group else None for place, group in enumerate(groups)]


# --- prompts ---------------------------------------------------------------------------------------------------------


def _prompt_columns(prompts: Sequence[Prompt | None]) -> dict[str, pa.Array]:
    def column(kind: pa.DataType, get: Callable[[Prompt], Any]) -> pa.Array:
        return pa.array([None if prompt is None else get(prompt) for prompt in prompts], kind)

    return {
        "group": column(pa.string(), lambda prompt: str(prompt.group)),
        "prompt_index": column(pa.int64(), lambda prompt: prompt.index),
        "prompt_ids": _lists([None if prompt is None else prompt.token_ids for prompt in prompts], np.int32),
        "prompt_text": column(pa.string(), lambda prompt: prompt.text),
        "prompt_messages": column(pa.string(), lambda prompt: _json(prompt.messages)),
        "prompt_tools": column(pa.string(), lambda prompt: _json(prompt.tools)),
        "agent_name": column(pa.string(), lambda prompt: prompt.agent_name),
        "data_source": column(pa.string(), lambda prompt: prompt.data_source),
        "ground_truth": column(pa.string(), lambda prompt: _json(prompt.ground_truth)),
        "extra_info": column(pa.string(), lambda prompt: _json(prompt.extra_info)),
    }


def _prompt(row: Row) -> Prompt:
    return Prompt(
        group=GroupId.parse(row["group"]),
        token_ids=tuple(row["prompt_ids"]),
        data_source=row["data_source"],
        ground_truth=json.loads(row["ground_truth"]),
        extra_info=json.loads(row["extra_info"]),
        text=row["prompt_text"],
        index=row["prompt_index"],
        messages=tuple(json.loads(row["prompt_messages"])),
        tools=tuple(json.loads(row["prompt_tools"])),
        agent_name=row["agent_name"],
    )


# --- samples ---------------------------------------------------------------------------------------------------------


def _completion_columns(rows: Sequence[Completion | None]) -> dict[str, pa.Array]:
    def column(kind: pa.DataType, get: Callable[[Completion], Any]) -> pa.Array:
        return pa.array([None if row is None else get(row) for row in rows], kind)

    return {
        "response_ids": _lists([None if row is None else row.token_ids for row in rows], np.int32),
        "log_probs": _lists([None if row is None else row.log_probs for row in rows], np.float64),
        "response_mask": _lists([None if row is None else row.response_mask for row in rows], np.int8),
        "versions": column(pa.list_(VERSION_RUN), _versions),
        "finish_reason": column(pa.string(), lambda row: row.finish_reason.value),
        "text": column(pa.string(), lambda row: row.text),
        "error": column(pa.string(), lambda row: row.error),
        "purpose": column(pa.string(), lambda row: row.purpose),
        "cached_prompt_tokens": column(pa.int64(), lambda row: row.cached_prompt_tokens),
        "member_id": column(pa.string(), lambda row: row.member_id),
        "turn_count": column(pa.int32(), lambda row: row.turn_count),
        "turn_rewards": column(pa.string(), lambda row: _json(row.turn_rewards)),
        "messages": column(pa.string(), lambda row: _json(row.messages)),
        "metrics": column(pa.string(), lambda row: _json(row.metrics)),
    }


def _completion(sample: SampleId, row: Row, outcome: Outcome | None) -> Completion:
    return Completion(
        sample_id=sample,
        token_ids=tuple(row["response_ids"]),
        log_probs=tuple(row["log_probs"]),
        versions=tuple(
            VersionRun(PolicyVersion(run["lineage"], run["step"], run["digest"]), run["token_count"])
            for run in row["versions"]
        ),
        finish_reason=FinishReason(row["finish_reason"]),
        text=row["text"],
        error=row["error"],
        purpose=row["purpose"],
        cached_prompt_tokens=row["cached_prompt_tokens"],
        member_id=row["member_id"],
        response_mask=tuple(row["response_mask"]),
        turn_count=row["turn_count"],
        turn_rewards=tuple((index, reward) for index, reward in json.loads(row["turn_rewards"])),
        messages=tuple(json.loads(row["messages"])),
        metrics=json.loads(row["metrics"]),
        outcome=outcome if row["own_outcome"] else None,
    )


def _versions(row: Completion) -> list[dict[str, Any]]:
    return [
        {
            "lineage": run.version.lineage,
            "step": run.version.step,
            "digest": run.version.digest,
            "token_count": run.token_count,
        }
        for run in row.versions
    ]


# --- outcomes --------------------------------------------------------------------------------------------------------


def _outcome_columns(
    completions: Sequence[Completion | None], outcomes: Sequence[Outcome | None]
) -> dict[str, pa.Array]:
    scored = [outcome if isinstance(outcome, Scored) else None for outcome in outcomes]
    return {
        "outcome": pa.array([_kind(outcome) for outcome in outcomes], pa.string()),
        "score": pa.array([None if one is None else one.score for one in scored], pa.float64()),
        "score_parts": pa.array([None if one is None else _json(one.parts) for one in scored], pa.string()),
        "token_scores": _lists([None if one is None else one.token_scores for one in scored], np.float64),
        "reason": pa.array([_said(outcome, "reason") for outcome in outcomes], pa.string()),
        "message": pa.array([_said(outcome, "message") for outcome in outcomes], pa.string()),
        "own_outcome": pa.array([row is not None and row.outcome is not None for row in completions], pa.bool_()),
    }


def _kind(outcome: Outcome | None) -> str | None:
    return None if outcome is None else type(outcome).__name__.lower()


def _said(outcome: Outcome | None, name: str) -> str | None:
    return None if outcome is None or isinstance(outcome, Scored) else getattr(outcome, name, "")


def _outcome(row: Row) -> Outcome | None:
    if row["outcome"] is None:
        return None
    parts = {} if row["score_parts"] is None else json.loads(row["score_parts"])
    return outcome_from_json({**row, "kind": row["outcome"], "parts": parts})


# --- cells -----------------------------------------------------------------------------------------------------------


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _lists(rows: Sequence[Sequence[Any] | None], kind: Any) -> pa.Array:
    """A list column. Numbers that are all float32 are held as such, which loses nothing and halves the file."""
    lengths = np.array([0 if row is None else len(row) for row in rows], np.int64)
    values = np.fromiter(itertools.chain.from_iterable(_present(rows)), kind, int(lengths.sum()))
    if values.dtype == np.float64:
        narrow = values.astype(np.float32)
        if np.array_equal(narrow.astype(np.float64), values, equal_nan=True):
            values = narrow
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
    missing = np.array([row is None for row in rows], bool)
    return pa.LargeListArray.from_arrays(pa.array(offsets), pa.array(values), mask=pa.array(missing))


def _present(rows: Iterable[Sequence[Any] | None]) -> Iterable[Sequence[Any]]:
    return (row for row in rows if row is not None)


def mean_score(table: pa.Table) -> float:
    """Of the samples that have a score; NaN if none has."""
    scores = [score for score in table.column("score").to_pylist() if score is not None]
    return sum(scores) / len(scores) if scores else math.nan
