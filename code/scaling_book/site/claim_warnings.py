"""How a fault in the claims is told: a warning with its place, which fails the build."""

from __future__ import annotations

from sphinx.util import logging

logger = logging.getLogger(__name__)


def warn(text: str, where: tuple[str, int] | str) -> None:
    """Warn of a fault.

    Parameters
    ----------
    text
        What is wrong and what to do.
    where
        A document and its line, or a file with a line: ``chapters/1/claims.yml:4``.
    """
    logger.warning("%s", text, location=where, type="book", subtype="claim")
