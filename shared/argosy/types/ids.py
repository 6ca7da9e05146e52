"""Names of samples and of weights: the two identities that everything else refers to.

A *sample* is one completion of one prompt; its id says where the prompt came from and which draw it is. A *policy
version* names one set of weights for ever: a rollback starts a new lineage, so that a step number never names two
different sets of weights.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from operator import attrgetter

_SAMPLE_ID = re.compile(r"^e(\d+)-p(\d+)-k(\d+)-a(\d+)$")
_GROUP_ID = re.compile(r"^e(\d+)-p(\d+)$")


@dataclass(frozen=True, slots=True, order=True)
class GroupId:
    """One prompt, drawn once: all samples of a group answer the same prompt.

    >>> str(GroupId(data_epoch=0, position=12))
    'e0-p12'
    >>> GroupId.parse("e0-p12")
    GroupId(data_epoch=0, position=12)
    """

    data_epoch: int
    """How many times the whole dataset has been passed before this draw."""
    position: int
    """Place in the (shuffled) order of that data epoch, from 0."""

    def __str__(self) -> str:
        return f"e{self.data_epoch}-p{self.position}"

    @classmethod
    def parse(cls, text: str) -> GroupId:
        """Read back what `str` wrote. Raises ValueError on anything else."""
        match = _GROUP_ID.match(text)
        if match is None:
            raise ValueError(f"a group id looks like 'e0-p12', got {text!r}")
        return cls(*map(int, match.groups()))


@dataclass(frozen=True, slots=True, order=True)
class SampleId:
    """One completion of one prompt.

    >>> sample = SampleId(data_epoch=0, position=12, k=3)
    >>> str(sample), str(sample.group)
    ('e0-p12-k3-a0', 'e0-p12')
    >>> SampleId.parse("e0-p12-k3-a0") == sample
    True
    """

    data_epoch: int
    """How many times the whole dataset has been passed before this draw."""
    position: int
    """Place of the prompt in the (shuffled) order of that data epoch, from 0."""
    k: int
    """Which of the n completions of the prompt, from 0."""
    attempt: int = 0
    """Which fresh generation of that completion, from 0. A re-dispatch that continues a partial answer keeps the
    attempt; a regeneration from scratch that must not repeat the same noise takes the next one."""

    def __str__(self) -> str:
        return f"e{self.data_epoch}-p{self.position}-k{self.k}-a{self.attempt}"

    @property
    def group(self) -> GroupId:
        """The prompt that this sample answers."""
        return GroupId(self.data_epoch, self.position)

    @classmethod
    def parse(cls, text: str) -> SampleId:
        """Read back what `str` wrote. Raises ValueError on anything else."""
        match = _SAMPLE_ID.match(text)
        if match is None:
            raise ValueError(f"a sample id looks like 'e0-p12-k3-a0', got {text!r}")
        return cls(*map(int, match.groups()))


SAMPLE_ORDER = attrgetter("data_epoch", "position", "k", "attempt")
"""For sorting many: ten times as fast as comparing the ids themselves, and the same order."""


@dataclass(frozen=True, slots=True)
class PolicyVersion:
    """Which weights: {lineage, step, manifest digest}.

    >>> PolicyVersion(lineage="main", step=3, digest="9f86d081").short
    'main@3#9f86d081'
    """

    lineage: str
    """A line of descent; a rollback starts a new one."""
    step: int
    """Optimizer steps of the controller's loop (`training/global_step`) behind these weights; 0 = as loaded."""
    digest: str
    """Hex digest of the weights manifest. Two versions with equal digests hold equal weights."""

    @property
    def short(self) -> str:
        """For people: `lineage@step#first eight digits of the digest`."""
        return f"{self.lineage}@{self.step}#{self.digest[:8]}"
