"""Numbers: whole numbers, decimals, fractions, percents. The truth is a comparison of `Fraction`s."""

from __future__ import annotations

import random
from fractions import Fraction

from answer_pairs.pair import Family, Pair

UNITS = ("apples", "cm", r"\text{ cm}", r"\text{ dollars}", r"^\circ", "km/h", r"\text{ cm}^2", "minutes")


def grouped(value: int) -> str:
    return f"{value:,}"


def whole(chance: random.Random) -> Pair:
    """A whole number in many spellings, and the slips that models and extractors make."""
    value = chance.choice([chance.randrange(-99, 100), chance.randrange(1000, 10**7), chance.randrange(100, 999_999)])
    spellings: dict[str, str] = {
        "plain": str(value),
        "grouped": grouped(value),
        "grouped in braces": grouped(value).replace(",", "{,}"),
        "currency": f"${grouped(value)}" if value >= 0 else f"-${grouped(-value)}",
        "escaped currency": rf"\${value}",
        "cents": f"{grouped(value)}.00",
        "unit": f"{value} {chance.choice(UNITS)}".replace(r" \text", r"\text").replace(" ^", "^"),
        "full stop": f"{value}.",
        "bold": f"**{value}**",
        "over one": rf"\frac{{{value}}}{{1}}",
        "unreduced": rf"\frac{{{3 * value}}}{{3}}",
        "worked out": f"{value - 7} + 7 = {value}",
        "named": f"x = {value}",
    }
    slips: dict[str, tuple[str, Fraction]] = {
        "one more": (str(value + 1), Fraction(value + 1)),
        "other sign": (str(-value), Fraction(-value)),
        "ten times": (str(value * 10), Fraction(value * 10)),
        "a tenth": (str(value / 10), Fraction(value, 10)),
        "a half more": (f"{value}.5", Fraction(value) + (Fraction(1, 2) if value >= 0 else Fraction(-1, 2))),
        "last group": (str(abs(value))[-3:], Fraction(int(str(abs(value))[-3:]))),
        "last digit lost": (f"{abs(value) // 10}", Fraction(abs(value) // 10)),
        "digits exchanged": (str(value)[::-1].strip("-"), Fraction(int(str(value)[::-1].strip("-") or 0))),
        "reciprocal": (rf"\frac{{1}}{{{value}}}", Fraction(1, value) if value else Fraction(10**9)),
    }
    gold = chance.choice([str(value), grouped(value)])
    if chance.random() < 0.5:
        how = chance.choice(list(spellings))
        return Pair(gold, spellings[how], True, how)
    how = chance.choice(list(slips))
    text, other = slips[how]
    return Pair(gold, text, other == value, how)


def fraction(chance: random.Random) -> Pair:
    """A fraction, and its neighbours. A rounded decimal is not the fraction."""
    value = Fraction(chance.randrange(-30, 60), chance.randrange(2, 30))
    top, bottom = value.numerator, value.denominator
    k = chance.randrange(2, 6)
    sign, size = ("-" if value < 0 else ""), abs(value)
    part, rest = divmod(size.numerator, size.denominator)
    spellings = {
        "slash": f"{top}/{bottom}",
        "frac": rf"\frac{{{top}}}{{{bottom}}}",
        "dfrac": rf"\dfrac{{{top}}}{{{bottom}}}",
        "sign outside": rf"{sign}\frac{{{size.numerator}}}{{{bottom}}}",
        "sign below": rf"\frac{{{-top}}}{{{-bottom}}}",
        "unreduced": rf"\frac{{{k * top}}}{{{k * bottom}}}",
        "named": rf"k = \frac{{{top}}}{{{bottom}}}",
        "unit": rf"\frac{{{top}}}{{{bottom}}}\text{{ cm}}",
    }
    if len(f"{size.numerator}{bottom}") == 2:
        spellings["short"] = rf"{sign}\frac{size.numerator}{bottom}"
    if part and rest:
        spellings["mixed"] = rf"{sign}{part}\frac{{{rest}}}{{{bottom}}}"
        spellings["mixed, plain"] = f"{sign}{part} {rest}/{bottom}"
    if bottom in (2, 4, 5, 8, 10, 16, 20, 25):
        spellings["decimal"] = str(float(value))
    slips = {
        "upside down": (rf"\frac{{{bottom}}}{{{top}}}", Fraction(bottom, top) if top else None),
        "one above": (rf"\frac{{{top + 1}}}{{{bottom}}}", Fraction(top + 1, bottom)),
        "one below": (rf"\frac{{{top}}}{{{bottom + 1}}}", Fraction(top, bottom + 1)),
        "top alone": (str(top), Fraction(top)),
        "bottom alone": (str(bottom), Fraction(bottom)),
        "other sign": (rf"\frac{{{-top}}}{{{bottom}}}", -value),
        "rounded": (f"{float(value):.4f}", Fraction(f"{float(value):.4f}")),
        "digits run together": (f"{top}{bottom}", Fraction(int(f"{top}{bottom}"))),
    }
    gold = chance.choice([f"{top}/{bottom}", rf"\frac{{{top}}}{{{bottom}}}"])
    if chance.random() < 0.5:
        how = chance.choice(list(spellings))
        return Pair(gold, spellings[how], True, how)
    how = chance.choice(list(slips))
    text, other = slips[how]
    return Pair(gold, text, other == value, how)


def decimal(chance: random.Random) -> Pair:
    """A decimal with up to four places."""
    places = chance.randrange(1, 5)
    digits = chance.randrange(1, 10**6)
    value = Fraction(digits, 10**places)
    gold = f"{digits / 10**places:.{places}f}"
    spellings = {
        "plain": gold,
        "zeros": gold + "00",
        "currency": f"${gold}",
        "fraction": rf"\frac{{{digits}}}{{{10**places}}}",
        "power of ten": rf"{digits} \times 10^{{-{places}}}",
        "exponent": f"{digits}e-{places}",
    }
    whole_part, _, decimals = gold.partition(".")
    if whole_part == "0":
        spellings["no zero in front"] = f".{decimals}"
    slips = {
        "last place": (f"{(digits + 1) / 10**places:.{places}f}", Fraction(digits + 1, 10**places)),
        "no point": (str(digits), Fraction(digits)),
        "point moved": (f"{digits / 10 ** (places + 1):.{places + 1}f}", Fraction(digits, 10 ** (places + 1))),
        "cut": (whole_part, Fraction(whole_part)),
        "decimals alone": (decimals, Fraction(decimals)),
        "sign": (f"-{gold}", -value),
    }
    if chance.random() < 0.5:
        how = chance.choice(list(spellings))
        return Pair(gold, spellings[how], True, how)
    how = chance.choice(list(slips))
    text, other = slips[how]
    return Pair(gold, text, other == value, how)


def percent(chance: random.Random) -> Pair:
    """A percentage: by our policy its sign is a unit or a hundredth; nothing else is forgiven."""
    tenths = chance.randrange(1, 1000)
    value = Fraction(tenths, 10)
    shown = f"{tenths / 10:g}"
    answers: dict[str, tuple[str, bool]] = {
        "same": (rf"{shown}\%", True),
        "no sign": (shown, True),
        "words": (f"{shown} percent", True),
        "hundredth": (f"{Fraction(tenths, 1000).limit_denominator()}", True),
        "hundred times": (f"{float(value * 100):g}", False),
        "hundred times, sign": (rf"{float(value * 100):g}\%", False),
        "hundredth, sign": (rf"{tenths / 1000:g}\%", False),
        "one more": (rf"{float(value + 1):g}\%", False),
    }
    how = chance.choice(list(answers))
    text, right = answers[how]
    return Pair(rf"{shown}\%", text, right, how)


FAMILIES: dict[str, Family] = {"whole numbers": whole, "fractions": fraction, "decimals": decimal, "percents": percent}
