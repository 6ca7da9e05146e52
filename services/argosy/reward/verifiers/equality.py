r"""Whether two texts state the same mathematical answer, and which rule says so. In this order:

1. `spelling`: equal after `latex.plain`, without spaces;
2. `choice`: a single-letter gold `A` … `J`: `\text{C}`, `(C)` and `C: 14 m` choose C (case A18);
3. `words`: a gold of words (`\text{Evelyn}`, `east`) is compared as words;
4. `number`: two numbers are compared exactly (`numbers`: 0.5714 is not 4/7; a percent sign is a unit or 1/100);
5. `list`: see `lists` (case A6: a part of the answers is not the answer; bare lists have no order, brackets have one);
6. `equation`: `x=5` is 5, but `x+5=5` is not: what stands right of a sign is not the answer (case A13);
7. `qualified`: an answer with a text box that is more than a unit (`\text{ million}`, `\text{ or }`) isn't the gold
   without one. `notation`: a number with its base (`17_8`), a ratio or a time (`3:4`), and infinity (`\infty - 1` has
   no value) are equal only as they are spelled;
8. `value`: both are evaluated to 60 digits (`values`); a decimal in a formula must be exact to ten places; equations
   and inequalities may be scaled, turned around and their terms moved (`relations`);
9. `unevaluated`: an integral, a sum, a product or a limit is no answer, unless spelled as the gold;
10. `costly`: what `complexity` refuses, is too long, or takes math-verify too long, is equal only in its spelling
    (case A11);
11. `math-verify`: its parser and grader on exactly these two texts, never on several candidates.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from argosy.reward.verifiers import algebra, relations, values
from argosy.reward.verifiers.choice import names_another
from argosy.reward.verifiers.complexity import MOST_DEPTH, depth, is_too_costly, is_too_large_for_algebra
from argosy.reward.verifiers.isolation import OverrunError
from argosy.reward.verifiers.latex import TEXT_CLOSE, TEXT_OPEN, plain, squeezed, unwrap, words
from argosy.reward.verifiers.lists import Items, matrix_items, split_items, without_name, without_same_name
from argosy.reward.verifiers.numbers import is_qualified, read_number
from argosy.reward.verifiers.tokens import UnreadableError

MOST_CHARACTERS = 4000
"""A longer answer is compared by its spelling only."""
_CHOICE = re.compile(r"\(?([A-J])\)?(?P<rest>\s*[:.)]\s.*|\s*[:.)]?)", re.DOTALL)
_WORD = re.compile(r"(?<![A-Za-z\\])[A-Za-z]{2,}")
_FORMULA_WORDS = frozenset(
    re.findall(
        r"\w+",
        "and or if for where sin cos tan cot sec csc log ln exp mod gcd lcm max min det pi sqrt begin end frac infty",
    )
)
_COMMAND_OR_TEXT = re.compile(rf"\\[A-Za-z]+(?:\{{[A-Za-z]+\}})?|{TEXT_OPEN}[^{TEXT_CLOSE}]*{TEXT_CLOSE}")
_NEARLY = re.compile(
    r"\\(?:approx|sim|simeq|cong|equiv|propto|to|implies|iff|Rightarrow|rightarrow)(?![A-Za-z])|[≈≡→⇒~]"
)
_SPELLED_ONLY = re.compile(r"(?<![A-Za-z_}])\d+_\{?\d|\d\s*:\s*\d")
"""A number with its base, `17_8`, and a ratio or a time, `8:30`."""
_INFINITE = re.compile(r"[-+]?\s*\\infty")
_ALL_WORDS = re.compile(r"[A-Za-z][A-Za-z .,'’:-]*")
_UNEVALUATED = re.compile(r"\\(?:i*int|oint|sum|prod|lim|limsup|liminf|partial|nabla|cdots|ldots|dots)(?![A-Za-z])")


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether the answer is right, and the rule that decided."""

    right: bool
    rule: str

    def __bool__(self) -> bool:
        return self.right


def judge(gold: str, stated: str) -> Verdict:
    """Compare by the rules above. `gold` and `stated` are not exchangeable.

    >>> judge(r"\\frac12", "0.5"), judge("x=4, x=9", "9"), judge(r"2\\sqrt{3}", r"\\sqrt{12}")
    (Verdict(right=True, rule='number'), Verdict(right=False, rule='list'), Verdict(right=True, rule='value'))
    """
    spelled, spelled_gold = squeezed(stated), squeezed(gold)
    if not spelled:
        return Verdict(False, "empty")
    if spelled == spelled_gold:
        return Verdict(True, "spelling")
    if len(stated) > MOST_CHARACTERS or depth(stated) > MOST_DEPTH:
        return Verdict(False, "costly")
    if re.fullmatch(r"\(?[A-J]\)?", spelled_gold):
        return Verdict(choice(stated) == spelled_gold.strip("()"), "choice")
    if is_words(gold):
        return Verdict(words(gold) == words(stated), "words")
    return _judge_items(split_items(gold), split_items(stated), gold, stated)


def equal(gold: str, stated: str) -> bool:
    """`judge` without the rule."""
    return judge(gold, stated).right


def choice(stated: str) -> str | None:
    r"""The letter that an answer chooses.

    >>> choice(r"\text{C}"), choice("(C)"), choice("C: 14 m"), choice("CD"), choice("C: or D")
    ('C', 'C', 'C', None, None)
    """
    bare = plain(unwrap(stated)).replace(TEXT_OPEN, "").replace(TEXT_CLOSE, "").strip()
    match = _CHOICE.fullmatch(bare)
    return match.group(1) if match and not names_another(match.group("rest").casefold()) else None


def is_words(text: str) -> bool:
    r"""Whether a gold is meant as words: a `\text{…}` box, or only words, one of three letters or more."""
    bare = plain(unwrap(text))
    if bare.startswith(TEXT_OPEN) and bare.endswith(TEXT_CLOSE) and bare.count(TEXT_OPEN) == 1:
        return True
    found = [word.lower() for word in _WORD.findall(bare)]
    return _ALL_WORDS.fullmatch(bare) is not None and any(
        word not in _FORMULA_WORDS and len(word) > 2 for word in found
    )


def unreadable(gold: str) -> str:
    """What is wrong with a gold; empty if it can be read. Prose with a number in it is neither words nor a formula."""
    bare = plain(unwrap(gold))
    if is_words(gold) or read_number(gold) is not None or is_too_costly(gold):
        return ""
    formulas = _COMMAND_OR_TEXT.sub(" ", bare)
    stray = [word for word in _WORD.findall(formulas) if word.islower() and word not in _FORMULA_WORDS]
    if len(stray) > 1 or any(len(word) > 3 for word in stray):
        return "is prose with formulas in it, neither words nor one formula"
    if not all(map(_is_readable, split_items(gold).texts)):
        return "can't be parsed as a formula"
    return ""


def _is_readable(text: str) -> bool:
    bare = plain(unwrap(text))
    if TEXT_OPEN in bare or is_words(text) or is_too_costly(text) or read_number(text) is not None:
        return True
    # What we can't evaluate is compared by its spelling, so that math-verify need not try it either.
    return _can_be_evaluated(bare) or _UNEVALUATED.search(bare) is not None or algebra.parses(bare)


def _can_be_evaluated(text: str) -> bool:
    try:
        relations.read_relations(text) if relations.has_relation(text) else values.read_cached(text)
    except (UnreadableError, RecursionError):
        return False
    return True


def _judge_items(gold: Items, stated: Items, gold_text: str, stated_text: str) -> Verdict:
    if gold.is_single and stated.is_single:
        pair = without_same_name(gold_text, stated_text)
        if pair is not None:
            return judge(*pair)
        return _judge_one(without_name(gold_text, stated_text), without_name(stated_text, gold_text))
    if gold.shape == stated.shape and len(gold.texts) == len(stated.texts):
        return Verdict(_equal_in_order(gold, stated) if gold.ordered else _equal_in_any_order(gold, stated), "list")
    # One text may stand for several values, or be a set by another name: x \in (0, 1).
    either_single = gold.is_single or stated.is_single
    has_symbols = re.search(r"\\cup|\\in\b", gold_text + stated_text) is not None
    return _judge_formulas(gold_text, stated_text) if either_single and has_symbols else Verdict(False, "list")


def _equal_in_order(gold: Items, stated: Items) -> bool:
    return all(map(equal, gold.texts, stated.texts))


def _equal_in_any_order(gold: Items, stated: Items) -> bool:
    left = list(stated.texts)
    for text in gold.texts:
        spelled = squeezed(text)
        match = next((other for other in left if squeezed(other) == spelled), None)
        if match is None:
            match = next((other for other in left if equal(text, other)), None)
        if match is None:
            return False
        left.remove(match)
    return True


def _judge_one(gold: str, stated: str) -> Verdict:
    if squeezed(gold) == squeezed(stated):
        return Verdict(True, "spelling")
    gold_number, stated_number = read_number(gold), read_number(stated)
    if gold_number is not None and stated_number is not None:
        return Verdict(gold_number.equals(stated_number), "number")
    gold_items, stated_items = split_items(gold), split_items(stated)
    if not (gold_items.is_single and stated_items.is_single):
        return _judge_items(gold_items, stated_items, gold, stated)
    gold_matrix, stated_matrix = matrix_items(gold), matrix_items(stated)
    if gold_matrix is not None and stated_matrix is not None:
        same_shape = gold_matrix.shape == stated_matrix.shape and len(gold_matrix.texts) == len(stated_matrix.texts)
        return Verdict(same_shape and _equal_in_order(gold_matrix, stated_matrix), "list")
    return _judge_formulas(gold, stated)


def _kind(text: str) -> tuple[bool, bool]:
    """Whether it holds an equation or inequality, and whether something is only nearly or formally equal in it."""
    bare = plain(text)
    return relations.has_relation(bare), _NEARLY.search(bare) is not None


def _bare_indices(text: str) -> str:
    """`17_{8}` as `17_8`, without spaces."""
    return re.sub(r"_\{(\w+)\}", r"_\1", squeezed(text))


def _compare_by_value(gold: str, stated: str) -> bool | None:
    if relations.has_relation(gold) != relations.has_relation(stated):
        return None
    return (relations.equal_relations if relations.has_relation(gold) else values.equal_values)(gold, stated)


def _judge_formulas(gold: str, stated: str) -> Verdict:
    """Bounded evaluation first, then what math-verify says."""
    if _kind(gold) != _kind(stated):
        return Verdict(False, "equation")  # math-verify would take the right-hand side for the answer (case A13)
    if is_qualified(stated) and not is_qualified(gold):
        return Verdict(False, "qualified")  # math-verify would leave out the words
    plain_gold, plain_stated = plain(unwrap(gold)), plain(unwrap(stated))
    if _INFINITE.fullmatch(plain_gold):
        return Verdict(squeezed(stated).lstrip("+") == squeezed(gold).lstrip("+"), "notation")
    if _SPELLED_ONLY.search(plain_gold) or _SPELLED_ONLY.search(plain_stated):
        return Verdict(_bare_indices(plain_gold) == _bare_indices(plain_stated), "notation")
    same = _compare_by_value(plain_gold, plain_stated)
    if same is not None:
        return Verdict(same, "value")
    if _UNEVALUATED.search(plain_gold) or _UNEVALUATED.search(plain_stated):
        return Verdict(False, "unevaluated")
    if any(is_too_costly(text) or is_too_large_for_algebra(text) for text in (gold, stated)):
        return Verdict(False, "costly")
    try:
        return Verdict(algebra.equal(plain_gold, plain_stated), "math-verify")
    except OverrunError:
        return Verdict(False, "costly")
