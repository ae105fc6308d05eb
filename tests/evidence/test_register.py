"""The register is complete: every lead of the research notes is judged, once."""

from collections import Counter
from pathlib import Path

from pybtex.database import parse_file

from scaling_book.site.claims_file import load_claims

ROOT = Path(__file__).parents[2]
CLAIMS = load_claims(ROOT, list(parse_file(ROOT / "references.bib").entries))
# The research notes number what the answer claims from C01 to C91.
LEADS = [f"C{number:02d}" for number in range(1, 92)]


def test_every_lead_is_judged_by_one_claim():
    judged = Counter(
        lead for claim in CLAIMS.values() for lead in claim.leads if lead.startswith("C")
    )
    assert judged == Counter(LEADS)


def test_no_verdict_waits_for_runs():
    assert not [claim.slug for claim in CLAIMS.values() if claim.waits]
