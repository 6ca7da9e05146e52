"""Groups of the stream as JSON values and back, exactly: what a checkpoint keeps of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from argosy.controller.groups import FinishedGroup
from argosy.types.ids import GroupId, PolicyVersion, SampleId
from argosy.types.records import (
    Abstained,
    Completion,
    Failed,
    FinishReason,
    Generated,
    Outcome,
    Prompt,
    Scored,
    VersionRun,
)

Json = dict[str, Any]


def generated_to_json(have: Generated) -> Json:
    """Tokens so far."""
    return {
        "token_ids": list(map(int, have.token_ids)),
        "log_probs": list(map(float, have.log_probs)),
        "versions": _versions_to_json(have.versions),
    }


def generated_from_json(value: Mapping[str, Any]) -> Generated:
    """What `generated_to_json` gave."""
    return Generated(tuple(value["token_ids"]), tuple(value["log_probs"]), _versions_from_json(value["versions"]))


def completion_to_json(one: Completion) -> Json:
    """All of a completion."""
    return {
        "sample_id": str(one.sample_id),
        "token_ids": list(map(int, one.token_ids)),
        "log_probs": list(map(float, one.log_probs)),
        "versions": _versions_to_json(one.versions),
        "finish_reason": one.finish_reason.value,
        "text": one.text,
        "error": one.error,
        "purpose": one.purpose,
        "cached_prompt_tokens": one.cached_prompt_tokens,
        "member_id": one.member_id,
        "response_mask": list(map(int, one.response_mask)),
        "turn_count": one.turn_count,
        "turn_rewards": [[int(index), float(reward)] for index, reward in one.turn_rewards],
        "messages": [dict(message) for message in one.messages],
        "metrics": {name: float(value) for name, value in one.metrics.items()},
        "outcome": None if one.outcome is None else outcome_to_json(one.outcome),
    }


def completion_from_json(value: Mapping[str, Any]) -> Completion:
    """What `completion_to_json` gave."""
    return Completion(
        sample_id=SampleId.parse(value["sample_id"]),
        token_ids=tuple(value["token_ids"]),
        log_probs=tuple(value["log_probs"]),
        versions=_versions_from_json(value["versions"]),
        finish_reason=FinishReason(value["finish_reason"]),
        text=value["text"],
        error=value["error"],
        purpose=value["purpose"],
        cached_prompt_tokens=value["cached_prompt_tokens"],
        member_id=value["member_id"],
        response_mask=tuple(value["response_mask"]),
        turn_count=value["turn_count"],
        turn_rewards=tuple((index, reward) for index, reward in value["turn_rewards"]),
        messages=tuple(value["messages"]),
        metrics=value["metrics"],
        outcome=None if value["outcome"] is None else outcome_from_json(value["outcome"]),
    )


def outcome_to_json(one: Outcome) -> Json:
    """A verdict, with its kind."""
    match one:
        case Scored(score, parts, token_scores):
            scores = list(map(float, token_scores))
            return {"kind": "scored", "score": float(score), "parts": dict(parts), "token_scores": scores}
        case Abstained(reason):
            return {"kind": "abstained", "reason": reason}
        case Failed(reason, message):
            return {"kind": "failed", "reason": reason, "message": message}


def outcome_from_json(value: Mapping[str, Any]) -> Outcome:
    """What `outcome_to_json` gave. Raises ValueError on an unknown kind."""
    match value["kind"]:
        case "scored":
            return Scored(value["score"], value["parts"], tuple(value["token_scores"]))
        case "abstained":
            return Abstained(value["reason"])
        case "failed":
            return Failed(value["reason"], value["message"])
        case kind:
            raise ValueError(f"an outcome is scored, abstained or failed, got {kind!r}")


def prompt_to_json(one: Prompt) -> Json:
    """All of a prompt."""
    return {
        "group": str(one.group),
        "token_ids": list(map(int, one.token_ids)),
        "data_source": one.data_source,
        "ground_truth": one.ground_truth,
        "extra_info": dict(one.extra_info),
        "text": one.text,
        "index": one.index,
        "messages": [dict(message) for message in one.messages],
        "tools": [dict(tool) for tool in one.tools],
        "agent_name": one.agent_name,
    }


def prompt_from_json(value: Mapping[str, Any]) -> Prompt:
    """What `prompt_to_json` gave."""
    return Prompt(
        group=GroupId.parse(value["group"]),
        token_ids=tuple(value["token_ids"]),
        data_source=value["data_source"],
        ground_truth=value["ground_truth"],
        extra_info=value["extra_info"],
        text=value["text"],
        index=value["index"],
        messages=tuple(value["messages"]),
        tools=tuple(value["tools"]),
        agent_name=value["agent_name"],
    )


def group_to_json(one: FinishedGroup) -> Json:
    """A finished group with everything that training needs of it."""
    return {
        "prompt": prompt_to_json(one.prompt),
        "completions": [completion_to_json(row) for _, row in sorted(one.completions.items())],
        "outcomes": {str(sample): outcome_to_json(outcome) for sample, outcome in sorted(one.outcomes.items())},
        "admitted_step": one.admitted_step,
        "oldest_step": one.oldest_step,
        "generate_s": one.generate_s,
        "score_s": one.score_s,
    }


def group_from_json(value: Mapping[str, Any]) -> FinishedGroup:
    """What `group_to_json` gave."""
    completions = [completion_from_json(row) for row in value["completions"]]
    return FinishedGroup(
        prompt=prompt_from_json(value["prompt"]),
        completions={row.sample_id: row for row in completions},
        outcomes={SampleId.parse(name): outcome_from_json(one) for name, one in value["outcomes"].items()},
        admitted_step=value["admitted_step"],
        oldest_step=value["oldest_step"],
        generate_s=value["generate_s"],
        score_s=value["score_s"],
    )


def _versions_to_json(runs: Iterable[VersionRun]) -> list[list[Any]]:
    return [[run.version.lineage, run.version.step, run.version.digest, run.token_count] for run in runs]


def _versions_from_json(rows: Sequence[Sequence[Any]]) -> tuple[VersionRun, ...]:
    return tuple(VersionRun(PolicyVersion(lineage, step, digest), count) for lineage, step, digest, count in rows)
