"""What a program may do and use in the sandbox, and how the sandbox itself fails."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

ISOLATION = ("required", "allowed_without")
CONTROL_GROUPS = ("auto", "required", "off")
CREDIT = ("mean", "all")
LANGUAGES = ("python", "cpp", "javascript", "bash")


class SandboxError(Exception):
    """The sandbox didn't do its work: nothing is known about the program (case G11)."""


class SandboxUnavailableError(SandboxError):
    """This machine can't isolate programs, and running them without isolation isn't allowed. Says which part failed."""


class SandboxBusyError(SandboxError):
    """The machine was too busy to finish in the time there is: no fault of the program."""


@dataclass(frozen=True, slots=True)
class SandboxOptions:
    """Limits of one run, and of all runs of one sample."""

    isolation: str = "required"
    """"required": no isolation, no run. "allowed_without": what the kernel refuses is left out, with limits and the
    system call filter only."""
    control_groups: str = "auto"
    """"auto": programs are bounded by control groups where this process may make some. "required": no groups that bound
    memory and processes, no run. "off": the sums are looked at from time to time only."""
    test_timeout_s: float = 4.0
    """Seconds for one test, both of processor time of all its processes and of time on the clock; time spent waiting
    for a processor doesn't count."""
    sample_timeout_s: float = 8.0
    """The same for all tests and the compiler together; tests that it leaves no time for are not passed."""
    memory_bytes: int = 1024**3
    """Memory of all processes of a run together."""
    tmp_bytes: int = 64 * 1024**2
    """Size of the private /tmp, and of the largest file."""
    output_bytes: int = 16 * 1024**2
    """Standard output, and everything that the call-based tests return, of one run. More ends it."""
    process_count: int = 32
    """Processes and threads that a program may have at the same time."""
    languages: tuple[str, ...] = ("python",)
    """Which languages are run."""
    credit: str = "mean"
    """"mean": the score is the share of tests passed; "all": 1 when all passed, else 0."""
    site_packages: bool = True
    """Programs may import what is installed beside the reward service, numpy for one."""

    background: bool = False
    """Programs get what nobody else wants of the processors. Of the clock only the time in which nothing of a program
    wanted one counts then, so that waiting can't end it."""

    def __post_init__(self) -> None:
        for name, allowed in (("isolation", ISOLATION), ("credit", CREDIT), ("control_groups", CONTROL_GROUPS)):
            if getattr(self, name) not in allowed:
                raise ValueError(f"got {name}={getattr(self, name)!r}; want one of {allowed}")
        unknown = set(self.languages) - set(LANGUAGES)
        if unknown or not self.languages:
            raise ValueError(f"got languages {list(self.languages)}; want some of {list(LANGUAGES)}")
        for name in (
            "test_timeout_s", "sample_timeout_s", "memory_bytes", "tmp_bytes", "output_bytes", "process_count",
        ):  # fmt: skip
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} must be positive, got {getattr(self, name)}")


def read_options(values: Mapping[str, Any]) -> SandboxOptions:
    """From JSON, where tuples are lists."""
    return SandboxOptions(**{**values, "languages": tuple(values["languages"])})
