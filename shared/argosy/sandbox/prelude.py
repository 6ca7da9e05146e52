"""Names that programs may use without importing them, as solutions in the public data sets do (`List[int]`)."""

from __future__ import annotations

import bisect
import collections
import copy
import datetime
import decimal
import fractions
import functools
import heapq
import itertools
import json
import math
import operator
import os
import random
import re
import statistics
import string
import sys
import time
import typing
from types import ModuleType
from typing import Any

_MODULES: tuple[ModuleType, ...] = (
    bisect, collections, copy, datetime, decimal, fractions, functools, heapq, itertools, json, math, operator, os,
    random, re, statistics, string, sys, time, typing,
)  # fmt: skip
_FROM: tuple[tuple[ModuleType, str], ...] = (
    (typing, "Any Callable Dict FrozenSet Generator Iterable Iterator List Optional Sequence Set Tuple Union"),
    (collections, "Counter OrderedDict defaultdict deque namedtuple"),
    (heapq, "heapify heappop heappush heappushpop heapreplace nlargest nsmallest"),
    (bisect, "bisect_left bisect_right insort insort_left insort_right"),
    (functools, "cache cmp_to_key lru_cache partial reduce"),
    (itertools, "accumulate chain combinations combinations_with_replacement groupby permutations product zip_longest"),
    (math, "ceil comb factorial floor gcd inf isqrt lcm log log2 pi sqrt"),
    (fractions, "Fraction"),
    (decimal, "Decimal"),
)


def names() -> dict[str, Any]:
    """Name → module or function. A program that imports or defines such a name itself has its own."""
    found: dict[str, Any] = {module.__name__: module for module in _MODULES}
    found.update(exit=sys.exit, quit=sys.exit)  # `site`, which isn't imported here, brings them elsewhere
    for module, listed in _FROM:
        found.update({name: getattr(module, name) for name in listed.split()})
    return found
