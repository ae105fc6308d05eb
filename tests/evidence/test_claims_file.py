"""A record that is not as it must be is refused, with the file, the slug and what to do."""

from pathlib import Path

import pytest
import yaml

from scaling_book.site.claims_file import ClaimsFileError, load_claims

BIBLIOGRAPHY = ["vaswani2017", "yang2022"]
SOURCE = {"cite": "vaswani2017", "where": "footnote 4", "status": "read"}
READ = {"quote": "has mean 0 and variance dk", "seen": "arXiv 1706.03762v7"}
GOOD = {
    "name": "The mean is zero",
    "leads": ["C08"],
    "phrase": "均值仍为 0",
    "answer": "The mean stays 0.",
    "verdict": "holds-if",
    "right": "Zero if one of the two is centred.",
    "conditions": "Independent vectors.",
    "sources": [SOURCE | READ],
    "page": "chapters/1-a/page",
}


def write(source: Path, text: str, chapter: str = "1-a") -> None:
    folder = source / "chapters" / chapter
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "claims.yml").write_text(text, "utf8")


def dump(records: object) -> str:
    return yaml.safe_dump(records, allow_unicode=True, sort_keys=False)


def error_of(source: Path) -> str:
    with pytest.raises(ClaimsFileError) as caught:
        load_claims(source, BIBLIOGRAPHY)
    return str(caught.value)


def test_good_records_are_read_in_order(tmp_path):
    write(tmp_path, dump({"later": GOOD}), "2-b")
    write(tmp_path, dump({"zeta": GOOD, "alpha": GOOD | {"no_evidence": "A matter of words."}}))
    claims = load_claims(tmp_path, BIBLIOGRAPHY)
    assert list(claims) == ["zeta", "alpha", "later"]
    assert claims["alpha"].no_evidence == "A matter of words."
    assert claims["zeta"].sources[0].where == "footnote 4"
    assert claims["zeta"].chapter == "chapters/1-a"
    assert (claims["zeta"].line, claims["alpha"].line) == (1, 17)


def test_a_book_without_records_has_no_claims(tmp_path):
    assert load_claims(tmp_path, BIBLIOGRAPHY) == {}


BAD = {
    "missing field": ({"right": None}, "the field 'right' is missing; add it"),
    "unknown field": ({"verdikt": "x"}, "the field 'verdikt' is unknown; did you mean 'verdict'?"),
    "strange field": ({"q": 1}, "the field 'q' is unknown; known: name, leads"),
    "bad verdict": ({"verdict": "true"}, "verdict must be one of holds, holds-if, misleading"),
    "verdict that YAML reads as true": ({"verdict": True}, "verdict must be one of"),
    "long phrase": ({"phrase": "长" * 26}, "phrase has 26 characters, at most 25 may be quoted"),
    "empty text": ({"answer": "  "}, "answer must be text"),
    "text that is a number": ({"name": 512}, "name must be text, in quotes if YAML reads it"),
    "leads without a list": ({"leads": "C08"}, "leads must be a list such as [C05]"),
    "strange lead": ({"leads": ["8"]}, "leads must be a list such as [C05]"),
    "sources without a list": ({"sources": "none"}, "sources must be a list, `[]` if there are"),
    "source that is a text": (
        {"sources": ["vaswani2017"]},
        "source 1: must be a mapping with cite, where and status",
    ),
    "source of unknown key": (
        {"sources": [{"cite": "vaswani2071", "where": "§3", "status": "read"}]},
        "source 1: references.bib has no entry 'vaswani2071'; did you mean 'vaswani2017'?",
    ),
    "source without a place": (
        {"sources": [{"cite": "vaswani2017", "status": "read"}]},
        "source 1: the field 'where' is missing; add it",
    ),
    "source of unknown status": (
        {"sources": [{"cite": "vaswani2017", "where": "§3", "status": "heard"}]},
        "source 1: status must be one of read, secondary",
    ),
    "source with a passage": (
        {"sources": [SOURCE | {"quote": "x" * 201, "seen": "the paper"}]},
        "source 1: quote has 201 characters, at most 200 may be quoted",
    ),
    "claim that waits for nothing": ({"waits": ""}, "waits must be text"),
}


@pytest.mark.parametrize("fault", BAD)
def test_a_bad_record_is_refused(fault, tmp_path):
    changes, message = BAD[fault]
    record = {key: value for key, value in (GOOD | changes).items() if value is not None}
    write(tmp_path, dump({"the-claim": record}))
    assert f"chapters/1-a/claims.yml:1: the-claim: {message}" in error_of(tmp_path)


@pytest.mark.parametrize(
    ("source", "fault"),
    [
        (SOURCE | READ, None),
        (SOURCE | {"status": "secondary"}, None),
        (SOURCE | {"quote": READ["quote"]}, "it was read, so it needs the field 'seen'"),
        (SOURCE | {"seen": READ["seen"]}, "it was read, so it needs the field 'quote'"),
        (SOURCE | READ | {"status": "secondary"}, "it is known through others, so it cannot"),
    ],
)
def test_who_read_a_source_can_quote_it(source, fault, tmp_path):
    write(tmp_path, dump({"the-claim": GOOD | {"sources": [source]}}))
    if fault is None:
        assert load_claims(tmp_path, BIBLIOGRAPHY)["the-claim"].sources[0].where == "footnote 4"
    else:
        assert f"the-claim: source 1: {fault}" in error_of(tmp_path)


def test_a_provisional_verdict_says_what_it_waits_for(tmp_path):
    write(tmp_path, dump({"the-claim": GOOD | {"waits": "training runs"}}))
    assert load_claims(tmp_path, BIBLIOGRAPHY)["the-claim"].waits == "training runs"


def test_a_slug_must_be_kebab_case(tmp_path):
    write(tmp_path, dump({"The_Claim": GOOD}))
    assert "claims.yml:1: The_Claim: the slug must be kebab-case" in error_of(tmp_path)


def test_a_record_must_be_a_mapping(tmp_path):
    write(tmp_path, dump({"the-claim": "holds"}))
    assert "claims.yml:1: the-claim: must be a mapping of fields" in error_of(tmp_path)


def test_a_slug_may_not_stand_in_two_files(tmp_path):
    write(tmp_path, dump({"the-claim": GOOD}))
    write(tmp_path, dump({"the-claim": GOOD}), "2-b")
    assert (
        "chapters/2-b/claims.yml:1: the-claim: is recorded in chapters/1-a/claims.yml already; "
        "rename or merge one"
    ) in error_of(tmp_path)


def test_a_slug_may_not_stand_twice_in_one_file(tmp_path):
    write(tmp_path, dump({"the-claim": GOOD}) + dump({"the-claim": GOOD}))
    assert "chapters/1-a/claims.yml:17: 'the-claim' stands twice; keep one" in error_of(tmp_path)


@pytest.mark.parametrize("text", ["", "- a\n- b\n"])
def test_a_file_must_hold_records(text, tmp_path):
    write(tmp_path, text)
    assert "chapters/1-a/claims.yml:1: holds no records" in error_of(tmp_path)


def test_broken_yaml_is_named_with_its_line(tmp_path):
    write(tmp_path, "the-claim:\n  name: [\n  x: y\n")
    assert "chapters/1-a/claims.yml:4: " in error_of(tmp_path)


def test_all_faults_are_told_at_once(tmp_path):
    write(tmp_path, dump({"one": GOOD | {"verdict": "x"}, "two": GOOD | {"phrase": ""}}))
    assert len(error_of(tmp_path).splitlines()) == 2
