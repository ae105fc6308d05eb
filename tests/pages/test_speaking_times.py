"""The short answers of chapter 3 are as long as their page says, counted as they are spoken."""

import re
from itertools import accumulate
from pathlib import Path

PAGE = Path(__file__).parents[2] / "chapters/3-the-thirty-second-answer/index.md"
ANSWER = re.compile(r"Say this in the interview\n:class: tip\n(.*?)\n:::", re.S)
# longer signs first, because they contain the shorter ones
SPOKEN = {
    "√d_k": "root d k",
    "q·k": "q dot k",
    "d_k": "d k",
    "W_Q": "w q",
    "float16": "float sixteen",
    "float32": "float thirty two",
    "T5": "t five",
    "64": "sixty four",
}


def spoken_words(answer: str) -> int:
    """Count the words between the quotation marks of an answer."""
    words = re.sub(r"\{\w+\}`([^`<]*)<[^`]*`", r"\1", answer)
    words = " ".join(re.findall(r'"([^"]*)"', words))
    for sign, said in SPOKEN.items():
        words = words.replace(sign, said)
    return len([word for word in words.split() if re.search(r"\w", word)])


def test_the_page_states_the_counts():
    text = PAGE.read_text("utf8")
    counts = [spoken_words(answer) for answer in ANSWER.findall(text)]
    stated = re.search(r"for words in \(([\d, ]+)\):", text)
    # each answer builds on the one before
    assert list(accumulate(counts)) == [int(number) for number in stated[1].split(",")]


def test_each_answer_fits_its_time():
    counts = accumulate(spoken_words(answer) for answer in ANSWER.findall(PAGE.read_text("utf8")))
    for words, seconds in zip(counts, (15, 30, 90), strict=True):
        assert words / 2.7 < seconds < words / 2.3


def test_signs_count_as_they_are_said():
    assert spoken_words('Add: "{proof}`Divide q·k by √d_k, <a-slug>` at 64."') == 11
