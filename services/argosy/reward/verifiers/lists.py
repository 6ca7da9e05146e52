r"""Answers of several members: `1, 2`, `x=4 \text{ and } x=9`, `(0, 1]`, `\{4, 9\}` (cases A1, A3, A6, A13).

A bare list and a set in braces have no order; round and square brackets have one, and the kind of bracket counts. A
`\pm` stands for both its values, a `\cup` joins the intervals of a list without order.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from argosy.reward.verifiers.latex import TEXT_CLOSE, TEXT_OPEN, plain, unwrap

MOST_ITEMS = 100
"""A longer list is compared by its spelling only."""
_GROUPED_NUMBER = re.compile(r"[-+]?\s*[$€£]?\s*\d{1,3}(?:,\d{3}){1,5}(?:\.\d+)?(?![\d,])\D*")
_JOINER = re.compile(rf"{TEXT_OPEN}\s*(?:,?\s*)(?:and|or)\s*{TEXT_CLOSE}|,?\s+(?:and|or)\s+")
_NAME = re.compile(
    r"\s*([A-Za-z](?:_\{?\w\}?)?|[A-Za-z]\([A-Za-z]\)|\([A-Za-z](?:,\s*[A-Za-z])+\)"
    r"|(?:\\(?:angle|overline|triangle)\s*)?\{?[A-Z]{2,4}\}?)\s*=(?!=)\s*"
)
"""`x =`, `x_1 =`, `f(x) =`, `(x, y) =`, `AB =`, `\\angle ABC =`."""
_PLUS_MINUS = re.compile(r"\\pm(?![A-Za-z])|\\mp(?![A-Za-z])|±|∓")
_MATRIX = re.compile(r"\\begin\{([pbvBV]?matrix|array)\}(?:\{[lcr|]*\})?(.*)\\end\{\1\}", re.DOTALL)
_SET = re.compile(r"\\\{(.*)\\\}", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Items:
    """The members of an answer, and what holds them together."""

    texts: tuple[str, ...]
    shape: str
    """"" for a bare list or a set, "∪" for a union, else the two brackets, as in "(]"."""

    @property
    def is_single(self) -> bool:
        """One bare member: not a list at all."""
        return len(self.texts) == 1 and not self.shape

    @property
    def ordered(self) -> bool:
        """Whether the order of the members counts."""
        return self.shape not in ("", "∪")


def split_items(text: str) -> Items:
    r"""The members of an answer at its top level; the whole text if it is no list.

    >>> split_items("(3,480)"), split_items("3,480").texts, split_items("x=4 and x=9").texts
    (Items(texts=('3', '480'), shape='()'), ('3,480',), ('x=4', 'x=9'))
    """
    bare = plain(unwrap(text))
    if _GROUPED_NUMBER.fullmatch(bare):
        return Items((bare,), "")
    braces = _SET.fullmatch(bare)
    if braces:
        return Items(_top_level(braces.group(1)), "")
    named = _NAME.match(bare)
    inner = bare[named.end() :] if named else bare
    shape = _brackets(inner)
    if shape:
        members = _top_level(inner[1:-1])
        if len(members) > 1:
            # The name stays with the first member, so that D=(0,1) is not E=(0,1).
            name = named.group(1) if named else "("
            return Items(members if name[0] == "(" else (f"{name}={members[0]}", *members[1:]), shape)
    union = inner.split(r"\cup")
    if 1 < len(union) <= MOST_ITEMS:
        return Items(tuple(piece.strip() for piece in union), "∪")
    members = tuple(one for member in _top_level(_JOINER.sub(",", bare)) for one in _both_signs(member))
    return Items(members, "") if 1 < len(members) <= MOST_ITEMS else Items((bare,), "")


def matrix_items(text: str) -> Items | None:
    r"""The members of a matrix row by row, its number of columns as the shape; None if the text is no matrix.

    >>> matrix_items(r"\begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}")
    Items(texts=('1', '2', '3', '4'), shape='2 columns')
    """
    match = _MATRIX.fullmatch(unwrap(text))
    if match is None or match.group(1).startswith(("v", "V")):
        return None
    rows = [row.split("&") for row in re.split(r"\\\\(?:\[[^\]]*\])?", match.group(2)) if row.strip()]
    if len({len(row) for row in rows}) != 1 or len(rows) * len(rows[0]) > MOST_ITEMS:
        return None
    return Items(tuple(member.strip() for row in rows for member in row), f"{len(rows[0])} columns")


def _both_signs(text: str) -> tuple[str, ...]:
    """`1 \\pm a` as `1 + a` and `1 - a`; of several signs all upper ones, and all lower ones."""
    if not _PLUS_MINUS.search(text):
        return (text,)

    def with_signs(plus: str, minus: str) -> str:
        return _PLUS_MINUS.sub(lambda sign: plus if sign.group() in ("\\pm", "±") else minus, text).strip()

    return with_signs("+", "-"), with_signs("-", "+")


def without_name(text: str, other: str) -> str:
    """Drop `x=` if the other text is no equation: `x=5` is 5, `x=2+3=5` too, but `x=5` is not `y=5`.

    >>> without_name("x=5", "5"), without_name("x=5", "y=5"), without_name("5x-2y+9=0", "3")
    ('5', 'x=5', '5x-2y+9=0')
    """
    bare = plain(unwrap(text))
    named = _NAME.match(bare)
    return text if named is None or "=" in other else bare.rpartition("=")[2].strip()


def without_same_name(gold: str, stated: str) -> tuple[str, str] | None:
    """Both right-hand sides, if both texts give a value to the same name; None otherwise.

    >>> without_same_name("f(x) = x + 1", "f(x)=1+x"), without_same_name("x=5", "y=5")
    (('x + 1', '1+x'), None)
    """
    sides = []
    for text in (gold, stated):
        bare = plain(unwrap(text))
        named = _NAME.match(bare)
        if named is None or "=" in bare[named.end() :]:
            return None
        sides.append((re.sub(r"\s", "", named.group(1)), bare[named.end() :]))
    (gold_name, gold_value), (stated_name, stated_value) = sides
    return (gold_value, stated_value) if gold_name == stated_name and gold_value and stated_value else None


def _brackets(text: str) -> str:
    """The brackets that enclose the whole text, or nothing."""
    if len(text) < 2 or text[0] not in "([" or text[-1] not in ")]":
        return ""
    depth = 0
    for index, character in enumerate(text):
        depth += (character in "([{") - (character in ")]}")
        if depth == 0 and index < len(text) - 1:
            return ""
    return text[0] + text[-1]


def _top_level(text: str) -> tuple[str, ...]:
    """Split at the commas and semicolons outside of any bracket."""
    pieces: list[str] = []
    depth = start = 0
    for index, character in enumerate(text):
        if character in "([{":
            depth += 1
        elif character in ")]}":
            depth -= 1
        elif character in ",;" and depth == 0:
            pieces.append(text[start:index].strip())
            start = index + 1
    pieces.append(text[start:].strip())
    return tuple(piece for piece in pieces if piece)
