"""The measurement behind each claim: what is measured, what the law says, what is refuted.

One module per section of the answer on trial. Each claim has a slug, and a function decorated
with ``@evidence(slug)`` that returns measurements; ``python -m scaling_book.evidence`` runs them.
Importing this package loads neither NumPy nor torch: the modules are loaded when they are run.
"""

from scaling_book.evidence.core import (
    EvidenceError,
    Measurement,
    against_the_answer,
    evidence,
    problems,
    run,
    run_all,
    slugs,
)

__all__ = [
    "EvidenceError",
    "Measurement",
    "against_the_answer",
    "evidence",
    "problems",
    "run",
    "run_all",
    "slugs",
]
