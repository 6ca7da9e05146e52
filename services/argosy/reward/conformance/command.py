"""What `argosy reward check` prints."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from argosy.reward.conformance.findings import Finding, Result, failures
from argosy.reward.conformance.run import check_server
from argosy.reward.conformance.samples import read_samples

_MARKS = {
    Result.PASSED: "[green]✓ passed[/green]",
    Result.WARNED: "[yellow]! warning[/yellow]",
    Result.FAILED: "[red]✗ failed[/red]",
    Result.SKIPPED: "[dim]- skipped[/dim]",
}


def check(address: str, *, timeout_s: float, sample_file: Path | None, vocabulary_size: int, as_json: bool) -> int:
    """Check the server and print the findings; 1 if any check failed, else 0."""
    samples = [] if sample_file is None else read_samples(sample_file)
    findings = asyncio.run(check_server(address, timeout_s=timeout_s, samples=samples, vocabulary_size=vocabulary_size))
    counts = Counter(finding.result for finding in findings)
    if as_json:
        print(json.dumps({"address": address, **_counts(counts), "checks": [_entry(finding) for finding in findings]}))
    else:
        _print(address, findings, counts)
    return 1 if failures(findings) else 0


def _counts(counts: Counter[Result]) -> dict[str, int]:
    return {result.value: counts[result] for result in Result}


def _entry(finding: Finding) -> dict[str, str | float]:
    return {
        "check": finding.check,
        "about": finding.about,
        "result": finding.result.value,
        "wrong": finding.wrong,
        "advice": finding.advice,
        "seconds": round(finding.seconds, 4),
    }


def _print(address: str, findings: Sequence[Finding], counts: Counter[Result]) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console(highlight=False)
    table = Table(title=f"rewards at {address}", title_justify="left")
    for name in ("check", "result"):
        table.add_column(name, no_wrap=True)
    for name in ("what was wrong", "what to do"):
        table.add_column(name, overflow="fold")
    for finding in findings:
        table.add_row(finding.check, _MARKS[finding.result], escape(finding.wrong), escape(finding.advice))
    console.print(table)
    console.print(", ".join(f"{counts[result]} {result.value}" for result in Result if counts[result]))
