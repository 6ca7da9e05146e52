"""The samples that are sent: made up, or the user's own from a file."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from argosy.api.reward.v1 import reward_service_pb2 as pb
from argosy.rpc.codec.reward import item_to_pb
from argosy.types.errors import InvalidInputError
from argosy.types.ids import SampleId
from argosy.types.records import ScoreRequest

MOST_SAMPLES = 1000
"""Lines of a sample file."""
_NAMES = {
    "data_source", "response_text", "ground_truth", "extra_info", "prompt_text", "messages", "prompt_ids",
    "response_ids", "score",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Sample:
    """A completion to judge, and the score that it should get, if that is known."""

    data_source: str
    response_text: str
    ground_truth: Any = None
    extra_info: Mapping[str, Any] = field(default_factory=dict)
    prompt_text: str = "What is 2+2?"
    messages: tuple[Mapping[str, Any], ...] = ({"role": "user", "content": "What is 2+2?"},)
    prompt_ids: tuple[int, ...] = ()
    response_ids: tuple[int, ...] = ()
    score: float | None = None
    """What the server should say; None: not known."""


def read_samples(path: Path) -> list[Sample]:
    """The samples of a file of JSON lines. InvalidInputError names the line that is wrong."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInputError(f"--sample-file: {path} can't be read: {error}") from error
    samples = [_sample(line, f"line {number} of {path}") for number, line in enumerate(lines, 1) if line.strip()]
    if not 1 <= len(samples) <= MOST_SAMPLES:
        raise InvalidInputError(f"--sample-file: {path} has {len(samples)} samples; give 1 to {MOST_SAMPLES}")
    return samples


def _sample(line: str, where: str) -> Sample:
    try:
        entry = json.loads(line)
    except ValueError as error:
        raise InvalidInputError(f"--sample-file: {where} is not JSON: {error}") from error
    if not isinstance(entry, dict) or not {"data_source", "response_text"} <= entry.keys() <= _NAMES:
        raise InvalidInputError(
            f"--sample-file: {where} must be an object with data_source and response_text, and of "
            f"{', '.join(sorted(_NAMES - {'data_source', 'response_text'}))} what you like; got {line[:100]!r}"
        )
    for name in ("messages", "prompt_ids", "response_ids"):
        if name in entry:
            entry[name] = tuple(entry[name])
    return Sample(**entry)


@dataclass(frozen=True, slots=True)
class SampleMaker:
    """Makes the items of one server's checks, from what its capabilities ask for."""

    capabilities: pb.GetCapabilitiesResponse
    given: Sequence[Sample] = ()
    vocabulary_size: int = 256
    """Token ids that we make up are below it."""

    def source(self) -> str:
        """A data source that the server says it judges."""
        if self.given:
            return self.given[0].data_source
        return concrete(next(iter(self.capabilities.data_sources), "*"))

    def sample(self, number: int) -> Sample:
        """The sample with a number: right and wrong answers in turn, in markers that most scorers look for."""
        if self.given:
            return self.given[number % len(self.given)]
        truth = str(number - number % 2)
        text = f"<think>\nCounting.\n</think>\nIt is <answer>{number}</answer>, so \\boxed{{{number}}}\n#### {number}"
        return Sample(self.source(), text, truth, {"index": number})

    def item(self, number: int, **changes: str) -> pb.ScoreItem:
        """The sample with a number as a message with id e0-p<number>-k0-a0; `changes` are fields of the message."""
        sample = self.sample(number)
        wants_ids, wants_messages = self.capabilities.needs_token_ids, self.capabilities.needs_messages
        request = ScoreRequest(
            SampleId(0, number, 0),
            sample.data_source,
            sample.prompt_text,
            sample.response_text,
            sample.ground_truth,
            sample.extra_info,
            sample.prompt_ids or self._ids(5),
            sample.response_ids or self._ids(7),
            messages=sample.messages,
        )
        message = item_to_pb(request, with_ids=wants_ids, with_messages=wants_messages)
        for name, value in changes.items():
            setattr(message, name, value)
        return message

    def items(self, count: int) -> list[pb.ScoreItem]:
        """Items 0 to count - 1."""
        return [self.item(number) for number in range(count)]

    def _ids(self, count: int) -> tuple[int, ...]:
        return tuple(number % self.vocabulary_size for number in range(1, count + 1))


def concrete(source: str) -> str:
    """A name that a declared data source stands for: "math/*" → "math/conformance".

    >>> concrete("*"), concrete("gsm8k")
    ('argosy/conformance', 'gsm8k')
    """
    if source == "*":
        return "argosy/conformance"
    return f"{source[:-1]}conformance" if source.endswith("*") else source
