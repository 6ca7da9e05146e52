"""What is in a record, for people and as JSON."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from argosy.controller.recording.store import Record, StepEntry
from argosy.types.records import Completion, Failed, Outcome, Scored


def summary_of(record: Record) -> dict[str, Any]:
    """Of the whole record, from its index; no step is read."""
    entries = [record.entries[step] for step in record.steps]
    scores = [entry.mean_score for entry in entries if entry.mean_score is not None]
    head = record.head
    return {
        "folder": str(record.folder),
        "run_id": head.run_id,
        "model": head.model,
        "n": head.n,
        "train_batch_size": head.train_batch_size,
        "rollouts_only": head.rollouts_only,
        "steps": len(entries),
        "first_step": entries[0].step if entries else None,
        "last_step": entries[-1].step if entries else None,
        "prompts": sum(entry.prompt_count for entry in entries),
        "samples": sum(entry.sample_count for entry in entries),
        "tokens": sum(entry.token_count for entry in entries),
        "size_bytes": sum(entry.size_bytes for entry in entries),
        "mean_score": sum(scores) / len(scores) if scores else None,
    }


def step_rows(record: Record) -> list[dict[str, Any]]:
    """One row a step, from the index."""
    return [_row(record.entries[step]) for step in record.steps]


def _row(entry: StepEntry) -> dict[str, Any]:
    return {
        "step": entry.step,
        "prompts": entry.prompt_count,
        "samples": entry.sample_count,
        "tokens": entry.token_count,
        "mean_score": entry.mean_score,
        "mb": entry.size_bytes / 1e6,
    }


def step_details(record: Record, step: int) -> dict[str, Any]:
    """Of one step, read and checked. Raises as `Record.read`."""
    found = record.read(step).record
    lengths = sorted(len(row.token_ids) for row in found.completions.values())
    return {
        "step": step,
        "version": None if found.version is None else found.version.short,
        "prompts": len(found.prompts),
        "samples": len(found.completions),
        "tokens": sum(lengths),
        "length": {name: _quantile(lengths, share) for name, share in (("median", 0.5), ("p99", 0.99), ("max", 1.0))},
        "finish_reasons": dict(Counter(row.finish_reason.value for row in found.completions.values())),
        "outcomes": dict(Counter(type(outcome).__name__.lower() for outcome in found.outcomes.values())),
        "versions": dict(_versions(found.completions)),
        "turns": dict(Counter(row.turn_count for row in found.completions.values())),
        "mean_score": _mean([one.score for one in found.outcomes.values() if isinstance(one, Scored)]),
    }


def sample_details(record: Record, step: int, count: int) -> Iterator[dict[str, Any]]:
    """The first `count` samples of a step as people read them. Raises as `Record.read`."""
    found = record.read(step).record
    prompts = {prompt.group: prompt for prompt in found.prompts}
    for sample in sorted(found.completions)[:count]:
        row, outcome = found.completions[sample], found.outcomes.get(sample)
        yield {
            "sample_id": str(sample),
            "prompt": prompts[sample.group].text,
            "response": row.text,
            "ground_truth": prompts[sample.group].ground_truth,
            "tokens": len(row.token_ids),
            "finish_reason": row.finish_reason.value,
            "outcome": _outcome_text(outcome),
            "versions": [[run.version.short, run.token_count] for run in row.versions],
        }


def _versions(completions: Mapping[Any, Completion]) -> Counter[str]:
    """Tokens by the version that sampled them."""
    found: Counter[str] = Counter()
    for row in completions.values():
        for run in row.versions:
            found[run.version.short] += run.token_count
    return found


def _outcome_text(outcome: Outcome | None) -> str:
    if isinstance(outcome, Scored):
        return f"{outcome.score:g}"
    if isinstance(outcome, Failed):
        return f"failed: {outcome.reason} {outcome.message}".rstrip()
    return "none" if outcome is None else f"abstained: {outcome.reason}"


def _quantile(ordered: Sequence[int], share: float) -> int | None:
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else None


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
