"""A progress bar for work on a whole dataset."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")
_WORTH_A_BAR = 4096
"""Rows below which the work is done before a bar could be read."""


def progress_over(items: Iterable[T], title: str, row_count: int, rows_per_item: int, show: bool) -> Iterator[T]:
    """The items, with a bar on stderr if the set is big, `show` is on and stderr is a terminal."""
    if not show or row_count < _WORTH_A_BAR or not sys.stderr.isatty():
        yield from items
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=row_count)
        for item in items:
            yield item
            bar.advance(task, rows_per_item)
