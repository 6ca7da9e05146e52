"""Dumps for people: `{folder}/{step}.jsonl` with input, output, gts, score, step (verl's names)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from argosy.types.ids import SampleId
from argosy.types.records import Completion, Failed, Outcome, Prompt, Scored


def write_dump(
    folder: Path,
    step: int,
    prompts: Sequence[Prompt],
    completions: Mapping[SampleId, Completion],
    outcomes: Mapping[SampleId, Outcome],
    limit: int | None = None,
) -> Path:
    """Write one line per sample, in sample order; at most `limit` of them. What UTF-8 lacks is escaped."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{step}.jsonl"
    by_group = {prompt.group: prompt for prompt in prompts}
    with path.open("w", encoding="utf-8", errors="backslashreplace") as file:
        for sample in sorted(completions)[:limit]:
            prompt, completion, outcome = by_group[sample.group], completions[sample], outcomes.get(sample)
            row: dict[str, object] = {
                "sample_id": str(sample),
                "input": prompt.text,
                "output": completion.text,
                "gts": prompt.ground_truth,
                "score": outcome.score if isinstance(outcome, Scored) else None,
                "step": step,
                "finish_reason": completion.finish_reason.value,
            }
            if completion.response_mask:
                row |= {
                    "num_turns": completion.message_count,
                    "messages": list(completion.messages),
                    "turn_rewards": [list(pair) for pair in completion.turn_rewards],
                    "metrics": dict(completion.metrics),
                }
            if isinstance(outcome, Scored):
                row |= dict(outcome.parts)
            elif isinstance(outcome, Failed):
                row["failed"] = f"{outcome.reason}: {outcome.message}"
            file.write(json.dumps(row, ensure_ascii=False, default=str) + "\n")
    return path
