"""Find the numbers that a page or a record states in words that a reader reads.

What is no statement is blanked first: code, options of directives, targets of links, and what the
rules of ``allowed.yml`` name. Everything keeps its place, so that a number knows its line.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

# -- what a reader does not read -------------------------------------------------------------------

FENCE = re.compile(r"^(`{3,}|~{3,}|:{3,})\s*(?:\{([^}]+)\})?(.*)$")
OPTION = re.compile(r"^\s*:([\w-]+):")
LABEL = re.compile(r"^\([^)]+\)=$")
# of other directives the argument is a name, not a title
TITLED = ("admonition", "grid-item-card", "dropdown", "prf:")
LINK_WITH_TEXT = re.compile(r"(\{[\w:+-]+\}`)([^`<]*)(<[^>`]*>`)")
ROLE_OR_CODE = re.compile(r"(?:\{[\w:+-]+\})?(`+)(?!`).*?(?<!`)\1(?!`)", re.S)
ADDRESS = re.compile(r"https?://\S+|\]\([^)]*\)|<!--.*?-->", re.S)
SUBSCRIPT = re.compile(r"_(?:\{[^{}]*\}|[A-Za-z0-9])")  # of a formula: q_1, z_{i0}
FORMULA = re.compile(r"\$\$.*?\$\$|\$[^$]+\$", re.S)

# -- numbers ---------------------------------------------------------------------------------------

SUPERSCRIPTS = str.maketrans("⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "-0123456789")
GLYPHS = {"½": 1 / 2, "¼": 1 / 4, "¾": 3 / 4, "⅓": 1 / 3, "⅔": 2 / 3, "⅛": 1 / 8}
UNITS = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
TEENS = ["ten", "eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen"]
SMALL = [*UNITS, *TEENS, "eighteen", "nineteen"]
TENS = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
LARGE = {"hundred": 100, "thousand": 1e3, "million": 1e6, "billion": 1e9}
WORDS = {word: float(value) for value, word in enumerate(SMALL, 1)}
WORDS |= {word: 10.0 * value for value, word in enumerate(TENS, 2)}
PARTS = {"half": 2, "halves": 2, "third": 3, "quarter": 4, "fifth": 5, "sixth": 6, "seventh": 7}
PARTS |= {"eighth": 8, "tenth": 10, "twentieth": 20, "hundredth": 100, "thousandth": 1000}
PARTS |= {"millionth": 1e6, "billionth": 1e9}

_PLAIN = r"[0-9]{1,3}(?:(?:,|\{,\})[0-9]{3})+(?:\.[0-9]+)?|[0-9]+(?:\.[0-9]+)?|\.[0-9]+"
_POWER = r"\^\{?[-−]?[0-9]+\}?|[⁻⁰¹²³⁴⁵⁶⁷⁸⁹]+"
_WORD = rf"(?:{'|'.join(TENS)})(?:-(?:{'|'.join(UNITS)}))?|{'|'.join(SMALL[::-1])}|dozen|twice"
DIGITS = re.compile(
    rf"""(?<![A-Za-z0-9_.])(?<![A-Za-z]-)
    (?:(?P<mantissa>{_PLAIN})\s*(?:·|×|\\cdot|\\times)\s*(?=10(?:{_POWER})))?
    (?:(?P<base>[0-9]+(?:\.[0-9]+)?)(?P<power>{_POWER})
      |(?P<above>[0-9]+)/(?P<below>[0-9]+)(?![0-9.])
      |(?P<plain>{_PLAIN})(?:e(?P<tens>[-+]?[0-9]+))?
      |(?P<glyph>[{"".join(GLYPHS)}]))
    (?P<percent>\s?(?:\\?%|per\ cent))?""",
    re.X,
)
IN_WORDS = re.compile(
    rf"""\b(?:(?P<first>{_WORD}|a)(?:\ \w+)?\ in\ (?:a\ )?
        (?P<second>{_WORD}|hundred|thousand|million)
      |(?P<whole>{_WORD})\ and\ a\ half
      |(?:(?P<count>{_WORD}|a|an|one)[ -](?:and\ a\ )?)?
       (?P<times>(?:ten|hundred)-)?(?P<part>{"|".join(PARTS)})s?(?=\b)
      |(?:(?P<many>{_WORD}|a)[ -])?(?P<large>{"|".join(LARGE)})
      |(?P<word>{_WORD}))\b(?P<percent>\s?per\ cent)?""",
    re.X | re.I,
)
HEDGE = re.compile(
    r"\b(about|nearly|almost|roughly|around|approximately|near|close to|some)\W*(?:\w+ )?$|≈\s*$"
)


@dataclass(frozen=True)
class Number:
    """A number as it is written.

    Parameters
    ----------
    text
        As it is written, with what makes it a percentage.
    value
        What it says; of a percentage, the share.
    step
        One unit of the last digit shown; 0 for a whole number that is not hedged.
    line
        Of the file, from 1.
    start, end
        Its place in the text.
    percent, hedged, formula
        Whether it is a percentage, follows *about* or the like, stands in a formula.
    parts
        Numerator and denominator of a fraction in digits, or the base of a power; not of ten.
    """

    text: str
    value: float
    step: float
    line: int
    start: int
    end: int
    percent: bool = False
    hedged: bool = False
    formula: bool = False
    parts: tuple[float, ...] = ()


def blank(text: str, start: int, end: int) -> str:
    """Replace a piece by spaces; lines stay lines."""
    return text[:start] + re.sub(r"[^\n]", " ", text[start:end]) + text[end:]


def _blank_all(pattern: re.Pattern[str], text: str) -> str:
    for match in list(pattern.finditer(text)):
        text = blank(text, *match.span())
    return text


def readable(markdown: str) -> str:
    """Blank what a reader of the page does not read as its words."""
    lines = markdown.split("\n")
    return words_of("\n".join(v.rjust(len(x)) for v, x in zip(_visible(lines), lines, strict=True)))


def _visible(lines: list[str]) -> Iterator[str]:
    """Yield the end of each line that is to be read."""
    fences: list[tuple[str, str]] = []  # those that are open, with the kind of what they hold
    options = front = lines[0] == "---"
    for place, line in enumerate(lines):
        kind = "front" if front else fences[-1][1] if fences else "words"
        fence, option = FENCE.match(line.strip()), OPTION.match(line)
        if front:
            front = not place or line != "---"
            yield ""
        elif fences and line.strip() == fences[-1][0]:
            fences.pop()
            yield "$$" if kind == "math" else ""
        elif kind == "code":
            yield ""
        elif fence:
            name = fence[2] or ("" if fence[1][0] == ":" else "code")
            # a sentence is what the answer on trial says, not this book
            name = "code" if name == "sentence" else name
            holds = next((k for k in ("code", "math") if name.startswith(k)), "words")
            fences.append((fence[1], holds))
            options = True
            yield "$$" if holds == "math" else fence[3] if name.startswith(TITLED) else ""
            continue
        elif options and option:
            yield line[option.end() :] if option[1] in ("alt", "caption") else ""
            continue
        else:
            yield "" if LABEL.match(line) else line
        options = False


def words_of(markdown: str) -> str:
    """Blank code, roles and addresses within running Markdown; the text of a link stays."""
    text = _blank_all(ADDRESS, markdown)
    text = LINK_WITH_TEXT.sub(lambda m: " " * len(m[1]) + m[2] + " " * len(m[3]), text)
    text = _blank_all(ROLE_OR_CODE, text)
    return FORMULA.sub(lambda m: SUBSCRIPT.sub(lambda s: " " * len(s[0]), m[0]), text)


def numbers(text: str, *, rules: Iterable[re.Pattern[str]] = (), line: int = 1) -> Iterator[Number]:
    """Yield the numbers of a text in its order.

    Parameters
    ----------
    text
        What `readable` or `words_of` returned.
    rules
        What to pass over.
    line
        The number of the text's first line.
    """
    for rule in rules:
        text = _blank_all(rule, text)
    formulas = [match.span() for match in FORMULA.finditer(text)]
    found = [_in_digits(m) for m in DIGITS.finditer(text)]
    found += [_in_words(m) for m in IN_WORDS.finditer(text)]
    for number in sorted(filter(None, found), key=lambda n: n.start):
        before = text[max(0, number.start - 40) : number.start].replace("\n", " ")
        hedged = bool(HEDGE.search(before))
        yield Number(
            number.text,
            number.value,
            number.step,
            line + text.count("\n", 0, number.start),
            number.start,
            number.end,
            number.percent,
            hedged,
            any(start <= number.start < end for start, end in formulas),
            number.parts,
        )


def _float(text: str) -> tuple[float, float]:
    """Return the value and the unit of its last digit."""
    text = text.replace("{,}", "").replace(",", "")
    decimals = len(text.partition(".")[2])
    return float(text), 10.0**-decimals if decimals else 0.0


def _in_digits(match: re.Match[str]) -> Number | None:
    value, step, parts = 0.0, 0.0, ()
    if match["base"]:
        exponent = int(match["power"].translate(SUPERSCRIPTS).strip("^{}").replace("−", "-"))
        unit = float(match["base"]) ** exponent
        value = unit
        if match["mantissa"]:
            mantissa, last = _float(match["mantissa"])
            value, step = mantissa * unit, (last or 1.0) * unit
        elif match["base"] == "10":
            step = unit
        else:
            parts = (float(match["base"]),)
    elif match["below"]:
        parts = (float(match["above"]), float(match["below"]))
        value = parts[0] / parts[1] if parts[1] else 0.0
    elif match["glyph"]:
        value = GLYPHS[match["glyph"]]
    else:
        value, step = _float(match["plain"])
        if match["tens"]:
            value, step = value * 10.0 ** int(match["tens"]), step * 10.0 ** int(match["tens"])
    if match["percent"]:
        value, step = value / 100, (step or 1.0) / 100
    return Number(
        match[0].strip(), value, step, 0, *match.span(), bool(match["percent"]), parts=parts
    )


def _word(text: str | None) -> float:
    if text is None or text.lower() in ("a", "an"):
        return 1.0
    text = text.lower()
    if text in LARGE:
        return LARGE[text]
    if text in ("twice", "dozen"):
        return {"twice": 2.0, "dozen": 12.0}[text]
    return sum(WORDS[word] for word in text.split("-"))


def _in_words(match: re.Match[str]) -> Number | None:
    step = 0.0
    if match["first"]:
        value = _word(match["first"]) / _word(match["second"])
        step = 1 / _word(match["second"])
    elif match["whole"]:
        value = _word(match["whole"]) + 0.5
        step = 0.5
    elif match["part"]:
        # "half" says a number by itself; "the third" and "a third thing" are ordinals
        whole = match["part"].lower() in ("half", "quarter")
        of = match[0].endswith("s") or match.string.startswith((" of", " as"), match.end())
        if not whole and match["count"] in (None, "a", "an", "A", "An") and not of:
            return None
        times = {"ten-": 10, "hundred-": 100}.get((match["times"] or "").lower(), 1)
        value = _word(match["count"]) / PARTS[match["part"].lower()] / times
        step = 0.2 * value
    elif match["large"]:
        value = _word(match["many"]) * LARGE[match["large"].lower()]
    elif match["word"].lower() == "one":
        return None
    else:
        value = _word(match["word"])
    if match["percent"]:
        value, step = value / 100, 0.01
    return Number(match[0], value, step, 0, *match.span(), bool(match["percent"]))
