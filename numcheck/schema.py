"""The shape of a Record: one JSON Schema, published as docs/reference/records.schema.json and checked on reading.

Only the part of JSON Schema that `checker` understands is used here, so that reading needs no schema library.
Keys that a row has beyond its schema are allowed: a later version adds keys without a new schema number,
and raises `VERSION` only where an old reader would misread a row.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from typing import Any

from numcheck.verdict import Status

VERSION = 1
PHASES = ("regression", "grid", "draw", "shrink", "replay")
STATUSES = tuple(status.name for status in Status)
# How a broken kernel was made, and how it fared.
MADE = ("declared", "mutant")
SCORES = ("KILLED", "SURVIVED", "HUNG", "EQUIVALENT", "REFUTED", "STILLBORN", "ABSENT", "UNAVAILABLE")

Shape = dict[str, Any]
Check = Callable[[Any], str]

NON_FINITE = ("inf", "-inf", "nan")
TEXT: Shape = {"type": "string"}
# JSON bounds no number: beyond the largest float, arithmetic with one would end whoever reads the row.
LARGEST = sys.float_info.max
COUNT: Shape = {"type": "integer", "minimum": 0, "maximum": LARGEST}
FLAG: Shape = {"type": "boolean"}
ANYTHING: Shape = {}
FINITE: Shape = {"type": "number", "minimum": -LARGEST, "maximum": LARGEST}
# JSON has no infinities, so they are written by name.
NUMBER: Shape = {"anyOf": [FINITE, {"enum": list(NON_FINITE)}]}


def one_of(*values: str) -> Shape:
    """A string out of `values`."""
    return {"enum": list(values)}


def list_of(item: Shape) -> Shape:
    """A list of `item`s."""
    return {"type": "array", "items": item}


def map_of(value: Shape) -> Shape:
    """An object with any keys, each with a `value`."""
    return {"type": "object", "additionalProperties": value}


def record(required: Mapping[str, Shape], **optional: Shape) -> Shape:
    """An object that has the `required` keys and may have the `optional` ones."""
    return {"type": "object", "required": list(required), "properties": {**required, **optional}}


CASE = record(
    {"sizes": map_of(COUNT), "dtype": TEXT, "regime": TEXT, "layout": TEXT, "offset": COUNT},
    facts=map_of({"type": ["boolean", "number", "string"]}),
    seed=COUNT,
)
GATE = record(
    {"kind": TEXT, "output": TEXT, "value": NUMBER, "limit": NUMBER, "lower": NUMBER, "spread": NUMBER},
    reason=TEXT,
    vacuous=TEXT,
)
RUNG = record(
    {"name": TEXT, "runs": COUNT},
    hashes=map_of(list_of(TEXT)),
    flips=map_of(COUNT),
    flip_bound=NUMBER,
    note=TEXT,
)
FOOTPRINT = record(
    {"writers": COUNT, "addends": COUNT},
    multi=COUNT,
    atomic=FLAG,
    races=list_of(list_of({"type": "integer"})),
    unwritten=COUNT,
    measured=FLAG,
)
EVIDENCE = record(
    {"backend": one_of("interpreter", "device", "torch")},
    launches=list_of({"type": "array"}),
    operators=list_of(TEXT),
    footprints=map_of(FOOTPRINT),
    repairs=list_of(TEXT),
    peak_bytes=COUNT,
)
VERDICT: dict[str, Shape] = {
    "status": one_of(*STATUSES),
    "claim": TEXT,
    "outputs": map_of(record({"status": one_of(*STATUSES)}, why=TEXT, where=TEXT)),
    "gates": list_of(GATE),
    "rungs": list_of(RUNG),
    "hashes": map_of(TEXT),
    "evidence": EVIDENCE,
    # Whatever the law tells; of memory, these two are read again.
    "figures": record({}, measured=FINITE, formula=FINITE),
}
JUDGED: dict[str, Shape] = {"specs": TEXT, "spec": TEXT, "law": TEXT}

# Every row has these; `seq` counts a worker's rows from 0, `time` is UTC in ISO 8601, never going backwards in a file.
HEAD: dict[str, Shape] = {
    "schema": {"type": "integer", "minimum": 1},
    "kind": TEXT,
    "id": TEXT,
    "run": TEXT,
    "worker": TEXT,
    "seq": COUNT,
    "time": TEXT,
}
BODIES: dict[str, Shape] = {
    "run": record({"numcheck": TEXT}, facts=map_of(ANYTHING)),
    "environment": record({"environment": TEXT, "facts": map_of(ANYTHING)}),
    "started": record({**JUDGED, "phase": one_of(*PHASES), "case": CASE}),
    "case": record(
        {**JUDGED, "phase": one_of(*PHASES), "case": CASE, "environment": TEXT, **VERDICT},
        seconds=map_of(NUMBER),
    ),
    "pooled": record({**JUDGED, "environment": TEXT, **VERDICT}),
    "outcome": record(
        {**JUDGED, "environment": TEXT, "status": one_of(*STATUSES)},
        reason=TEXT,
        notes=list_of(TEXT),
        seed=COUNT,
        seconds=NUMBER,
        findings=list_of(record({"status": one_of(*STATUSES), "first": CASE, "shrunk": CASE})),
    ),
    "declared": record(
        {"specs": TEXT, "spec": TEXT, "contract": map_of(TEXT)}, oracle=TEXT, doc=TEXT, sources=map_of(TEXT)
    ),
    "certificate": record(
        {"oracle": TEXT, "status": TEXT},
        worst=NUMBER,
        by_output=map_of(NUMBER),
        cases=COUNT,
        limit=NUMBER,
        vjp=TEXT,
    ),
    "fault": record(
        {
            "specs": TEXT,
            "spec": TEXT,
            "fault": TEXT,
            "made": one_of(*MADE),
            "status": one_of(*SCORES),
            "law": TEXT,
            "why": TEXT,
            "environment": TEXT,
        },
        expected=TEXT,
        case=CASE,
        raised=FLAG,
        changed=FLAG,
        usual=FLAG,
        tried=map_of(COUNT),
        laws=map_of(FLAG),
        seconds=NUMBER,
        operator=TEXT,
        function=TEXT,
        file=TEXT,
        line=COUNT,
        text=TEXT,
        before=TEXT,
        after=TEXT,
        claim=TEXT,
        reason=TEXT,
        doc=TEXT,
        source=TEXT,
    ),
    "bench": record(
        {
            "specs": TEXT,
            "a": TEXT,
            "b": TEXT,
            "case": CASE,
            "pairs": COUNT,
            "ratio": NUMBER,
            "low": NUMBER,
            "high": NUMBER,
            "decides": FLAG,
            "environment": TEXT,
        }
    ),
    "unavailable": record({**JUDGED, "reason": TEXT, "needs": TEXT, "environment": TEXT}),
    "problem": record({"file": TEXT, "line": COUNT, "text": TEXT}),
    "end": record({"facts": map_of(ANYTHING)}),
}
KINDS = tuple(BODIES)


def json_schema() -> Shape:
    """The published JSON Schema (draft 2020-12) of one line of a records file."""
    rows = []
    for kind, body in BODIES.items():
        head = {**HEAD, "kind": {"const": kind}}
        rows.append(record({**head, **{k: body["properties"][k] for k in body["required"]}}))
        rows[-1]["properties"].update(body["properties"])
        rows[-1]["title"] = kind
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"numcheck records, schema {VERSION}",
        "description": "One row of an append-only JSON Lines file. 'inf', '-inf' and 'nan' stand for what JSON lacks.",
        "oneOf": rows,
    }


_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "object": (dict,),
    "array": (list,),
}


def checker(shape: Shape) -> Check:
    """A function that says what is wrong with a value ("gates[3].value is 'x', not a number"), or ""."""
    if not shape:
        return lambda value: ""
    if "anyOf" in shape:
        return _number
    if "enum" in shape:
        return _member(frozenset(shape["enum"]))
    names = shape["type"] if isinstance(shape["type"], list) else [shape["type"]]
    types = frozenset(t for name in names for t in _TYPES[name])
    label = " or ".join(names)
    if "items" in shape:
        return _array(checker(shape["items"]))
    if "additionalProperties" in shape:
        return _mapping(checker(shape["additionalProperties"]))
    if "properties" in shape:
        return _object(shape["required"], shape["properties"])
    least, most = shape.get("minimum"), shape.get("maximum")

    def leaf(value: Any) -> str:
        if type(value) not in types:  # exact types: a bool is no integer here
            return f" is {excerpt(value)}, not {_article(label)}"
        if most is not None and value > most:
            return f" is {excerpt(value)}, beyond {most:.3g}"
        return f" is {value}, below {least}" if least is not None and value < least else ""

    return leaf


def _number(value: Any) -> str:
    kind = type(value)
    if kind is int and abs(value) > LARGEST:
        return f" is {excerpt(value)}, beyond {LARGEST:.3g}"
    if kind is float or kind is int or (kind is str and value in NON_FINITE):
        return ""
    return f" is {excerpt(value)}, not a number"


def _member(allowed: frozenset[Any]) -> Check:
    def check(value: Any) -> str:
        if type(value) is str and value in allowed:
            return ""
        return f" is {excerpt(value)}, not one of {', '.join(sorted(allowed))}"

    return check


def _array(item: Check) -> Check:
    def check(value: Any) -> str:
        if type(value) is not list:
            return f" is {excerpt(value)}, not an array"
        for index, entry in enumerate(value):
            if wrong := item(entry):
                return f"[{index}]{wrong}"
        return ""

    return check


def _mapping(entry: Check) -> Check:
    def check(value: Any) -> str:
        if type(value) is not dict:
            return f" is {excerpt(value)}, not an object"
        for key, inner in value.items():
            if wrong := entry(inner):
                return f".{key}{wrong}"
        return ""

    return check


def _enough(shape: Shape) -> frozenset[type]:
    """The types of which any value has this shape: a look at the type then saves the call."""
    if "anyOf" in shape:
        return frozenset((float,))
    names = shape.get("type")
    if names in ("string", "boolean"):
        return frozenset(_TYPES[str(names)])
    return frozenset()


def _object(required: list[str], shapes: Mapping[str, Shape]) -> Check:
    checks = {key: (_enough(shape), checker(shape)) for key, shape in shapes.items()}
    must = [(key, *checks[key]) for key in required]
    may = [(key, *check) for key, check in checks.items() if key not in required]

    def check(value: Any) -> str:
        if type(value) is not dict:
            return f" is {excerpt(value)}, not an object"
        for key, enough, inner in must:
            if key not in value:
                return f" lacks {key!r}"
            if type(value[key]) not in enough and (wrong := inner(value[key])):
                return f".{key}{wrong}"
        for key, enough, inner in may:
            if key in value and type(value[key]) not in enough and (wrong := inner(value[key])):
                return f".{key}{wrong}"
        return ""

    return check


# Longest excerpt of a wrong value in a message: enough to recognise it, short enough for one line.
SHOWN = 40


def excerpt(value: Any) -> str:
    """`value` as a message shows it."""
    text = repr(value)
    return text if len(text) <= SHOWN else text[:SHOWN] + "..."


def _article(label: str) -> str:
    return ("an " if label[0] in "aeio" else "a ") + label


_HEAD = checker(record(HEAD))
_BODY = {kind: checker(body) for kind, body in BODIES.items()}


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON number")


_DECODER = json.JSONDecoder(parse_constant=_no_constant)


def parse(raw: bytes) -> tuple[Any, str]:
    """The row on one line of a records file, and what is wrong with it, or ""."""
    try:
        row = _DECODER.decode(raw.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        start = raw[:SHOWN].decode("utf-8", "replace")
        return None, f"is no JSON ({getattr(error, 'msg', error)}): {start}..."
    if wrong := _HEAD(row):
        return row, f"is no row: it{wrong}"
    if row["kind"] not in _BODY:
        return row, f"is a row of unknown kind {excerpt(row['kind'])}"
    return row, f"is no {row['kind']} row: it{wrong}" if (wrong := _BODY[row["kind"]](row)) else ""
