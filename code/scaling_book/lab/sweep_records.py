"""Records of finished runs: one file for each, written whole or not at all, and checked when read.

A record is ``{"config", "result", "provenance", "sha256"}``, in a file named after its config,
``<key>.json``. The checksum is that of the other three, so that a file cut short, edited or put
under another name is noticed. Numbers are written with all their digits; NaN and infinities, which
a run that diverges returns, are written as Python's json writes them.

`pack` gathers many records into one text file, with fewer digits, and `unpack` reads it.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeAlias

__all__ = [
    "Json",
    "Record",
    "RecordError",
    "canonical",
    "checked_config",
    "checked_json",
    "config_key",
    "load_records",
    "make_record",
    "pack",
    "read_record",
    "record_path",
    "remove_leftovers",
    "unpack",
    "write_record",
]

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"
Record: TypeAlias = dict[str, Any]

KEY = re.compile(r"[0-9a-f]{16}")
PARTS = ("config", "result", "provenance")


class RecordError(ValueError):
    """A record that cannot be used: damaged, or not the one its name promises."""


def canonical(value: Any) -> str:
    """The one way of writing `value` as JSON: in ASCII, names sorted, no spaces, one line."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def checked_json(value: Any, where: str) -> Any:
    """`value` as JSON gives it back, so that fresh results equal those read from a file.

    Raises
    ------
    TypeError
        If a part of it is no JSON, or a name in it no text; says which part.
    """
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value)
    if isinstance(value, list | tuple):
        return [checked_json(item, f"{where}[{i}]") for i, item in enumerate(value)]
    if isinstance(value, Mapping):
        for name in value:
            if not isinstance(name, str):
                raise TypeError(f"{where} has the name {name!r}: names in JSON are text; use str()")
        return {name: checked_json(item, f"{where}[{name!r}]") for name, item in value.items()}
    raise TypeError(
        f"{where} is of type {type(value).__name__}: JSON has null, booleans, numbers, text, lists "
        "and mappings; turn an array or tensor into these with .item() or .tolist()"
    )


def checked_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """The config as JSON gives it back: names, and values that are finite numbers, text or lists.

    Raises a TypeError or a ValueError that says which part is something else.
    """
    if not isinstance(config, Mapping):
        raise TypeError(f"a config is a mapping of names to values, not {config!r}")
    flat: dict[str, Any] = checked_json(config, "config")
    for name, value in flat.items():
        if _holds_mapping(value):
            raise TypeError(f"config[{name!r}] holds a mapping: configs are flat; name each entry")
        try:
            json.dumps(value, allow_nan=False)
        except ValueError:
            raise ValueError(f"config[{name!r}] is {value}: expected finite numbers") from None
    return flat


def _holds_mapping(value: Any) -> bool:
    return isinstance(value, dict) or (isinstance(value, list) and any(map(_holds_mapping, value)))


def config_key(config: Mapping[str, Any]) -> str:
    """The first 16 hexadecimal digits of the SHA-256 of the config's canonical JSON.

    The order of the names does not count. 1, 1.0 and true are three different values.
    """
    return hashlib.sha256(canonical(checked_config(config)).encode()).hexdigest()[:16]


def _checksum(record: Mapping[str, Any]) -> str:
    payload = canonical({part: record[part] for part in PARTS})
    return hashlib.sha256(payload.encode()).hexdigest()


def make_record(config: Mapping[str, Any], result: Any, provenance: Mapping[str, Any]) -> Record:
    """A record with its checksum, its parts as JSON gives them back."""
    record: Record = {
        "config": checked_config(config),
        "result": checked_json(result, "result"),
        "provenance": checked_json(provenance, "provenance"),
    }
    return record | {"sha256": _checksum(record)}


def _verified(text: str, where: str) -> Record:
    try:
        record = json.loads(text)
    except ValueError as error:
        raise RecordError(f"{where}: no JSON, perhaps cut short ({error})") from None
    if not isinstance(record, dict) or record.keys() != {*PARTS, "sha256"}:
        raise RecordError(f"{where}: expected exactly the entries {', '.join(PARTS)}, sha256")
    if record["sha256"] != _checksum(record):
        raise RecordError(f"{where}: its content does not fit its checksum")
    return record


def record_path(folder: Path, key: str) -> Path:
    """Where the record of the config with this key lies."""
    return folder / f"{key}.json"


def write_record(folder: Path, record: Record) -> Path:
    """Write the record whole or not at all, even if the machine stops in the middle."""
    path = record_path(folder, config_key(record["config"]))
    _write_whole(path, canonical(record) + "\n")
    return path


def _write_whole(path: Path, text: str) -> None:
    # On the same file system, or the replacement would not be one step.
    unfinished = path.with_name(f".{path.stem}.tmp")
    with unfinished.open("w", encoding="utf-8", newline="\n") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    unfinished.replace(path)
    with suppress(OSError):  # not every system lets a folder be opened
        entry = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(entry)
        finally:
            os.close(entry)


def remove_leftovers(folder: Path) -> int:
    """Remove what writers that were killed have left; returns how many files."""
    leftovers = [path for path in folder.glob(".*.tmp") if KEY.fullmatch(path.stem[1:])]
    for path in leftovers:
        path.unlink()
    return len(leftovers)


def read_record(path: Path) -> Record:
    """Read a record; raises a `RecordError` if it is damaged, or in the file of another config."""
    try:
        record = _verified(path.read_text(encoding="utf-8"), path.name)
    except UnicodeDecodeError:
        raise RecordError(f"{path.name}: no text in UTF-8") from None
    if path.stem != (key := _key_of(record, path.name)):
        raise RecordError(f"{path.name}: holds another config, whose key is {key}")
    return record


def _key_of(record: Record, where: str) -> str:
    try:
        return config_key(record["config"])
    except (TypeError, ValueError) as error:
        raise RecordError(f"{where}: {error}") from None


def load_records(folder: Path) -> list[Record]:
    """All records in a folder, in the order of their keys.

    Raises
    ------
    RecordError
        If one or more are damaged; names them all.
    """
    records, complaints = [], []
    for path in sorted(folder.glob("*.json")):
        if KEY.fullmatch(path.stem):
            try:
                records.append(read_record(path))
            except RecordError as error:
                complaints.append(str(error))
    if complaints:
        raise RecordError(
            f"{len(complaints)} damaged of {len(records) + len(complaints)} records in {folder}; "
            "run the sweep again, which repeats these:\n" + "\n".join(complaints)
        )
    return records


def _rounded(value: Any, digits: int) -> Any:
    if isinstance(value, float) and math.isfinite(value):
        return float(f"{value:.{digits}g}")
    if isinstance(value, list):
        return [_rounded(item, digits) for item in value]
    if isinstance(value, dict):
        return {name: _rounded(item, digits) for name, item in value.items()}
    return value


def _shared(mappings: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The entries that all mappings have in common."""
    if not mappings:
        return {}
    texts = [{canonical([name, value]) for name, value in one.items()} for one in mappings]
    return dict(json.loads(text) for text in set.intersection(*texts))


def pack(records: Iterable[Record], path: Path, *, digits: int = 17) -> None:
    """Write records into one text file: a line that says what all share, then one for each run.

    The lines are sorted by the keys of the configs, so the same records give the same file.

    Parameters
    ----------
    digits
        To how many significant digits the floating-point numbers in the results are rounded.
        17 keep every number as it is. Configs and integers are never rounded.
    """
    if not 1 <= digits <= 17:
        raise ValueError(f"digits must be from 1 to 17, not {digits}")
    by_key: dict[str, Record] = {}
    for record in records:
        key = config_key(record["config"])
        if canonical(by_key.setdefault(key, record)) != canonical(record):
            raise ValueError(f"two different records of {canonical(record['config'])}")
    chosen = [
        make_record(one["config"], _rounded(one["result"], digits), one["provenance"])
        for _, one in sorted(by_key.items())
    ]
    shared = _shared([one["provenance"] for one in chosen])
    lines = [canonical({"runs": len(chosen), "digits": digits, "provenance": shared})]
    for one in chosen:
        own = {name: v for name, v in one["provenance"].items() if name not in shared}
        lines.append(canonical(one | {"provenance": own}))
    _write_whole(path, "\n".join(lines) + "\n")


def unpack(path: Path) -> list[Record]:
    """The records that `pack` wrote, in the order of their keys.

    Raises
    ------
    RecordError
        If a line is damaged or missing.
    """
    first, *lines = path.read_text(encoding="utf-8").splitlines() or [""]
    try:
        head = json.loads(first)
        runs, shared = head["runs"], head["provenance"]
    except (ValueError, TypeError, KeyError):
        raise RecordError(f"{path.name}: its first line is not that of packed records") from None
    if len(lines) != runs:
        raise RecordError(f"{path.name}: {len(lines)} lines of runs, but {runs} are announced")
    records: list[Record] = []
    keys: list[str] = []
    for number, line in enumerate(lines, start=2):
        where = f"{path.name}, line {number}"
        try:
            one = json.loads(line)
            whole = canonical(one | {"provenance": shared | one["provenance"]})
        except (ValueError, TypeError, KeyError):
            raise RecordError(f"{where}: no record") from None
        records.append(_verified(whole, where))
        keys.append(_key_of(records[-1], where))
    if keys != sorted(set(keys)):
        raise RecordError(f"{path.name}: its lines are not in the order of their keys, each once")
    return records
