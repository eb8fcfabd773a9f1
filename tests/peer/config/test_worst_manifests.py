"""Every field of a manifest at its smallest and largest value, alone and together: what a peer does with it is a
sentence or a run, at once and in bounded memory.

The fields are found in the code: a new one is tried here, and needs a value in `CHOICES` or `TEXTS`
unless it is a number.
"""

from __future__ import annotations

import functools
import math
import tracemalloc
import types
import typing
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from dht.ground.errors import DeviceFault, Incompatible, LocalFault
from peer.config.averaging_rules import codec_of, limits_of, rule_of, sent_bytes_of
from peer.config.data_source import source_here
from peer.config.manifest import RunManifest
from peer.config.model_shapes import layout_digest_of, num_orthogonalised, seed_sizes
from peer.config.validation_sentences import section_of
from peer.memory.least_memory import check_memory
from peer.plan.planning import plan_run
from tests.kit.tiers import examples

HOME_BYTES = 16 * 10**9
"""Free memory of a home's machine."""
MAX_TAKEN_BYTES = 64 * 1024 * 1024
"""Python's own, by whatever is worked out before a model is built."""


def bounds(field: FieldInfo) -> list[Any]:
    """The smallest and the largest value that a field takes; every choice of a Literal."""
    annotation = field.annotation
    parts = (
        typing.get_args(annotation)
        if typing.get_origin(annotation) in (types.UnionType, typing.Union)
        else (annotation,)
    )
    values: list[Any] = [None] if type(None) in parts else []
    for part in parts:
        if typing.get_origin(part) is typing.Literal:
            values += typing.get_args(part)
        elif part is bool:
            values += [False, True]
        elif part in (int, float):
            values += _number_bounds(field, part)
    return values


def _number_bounds(field: FieldInfo, kind: type) -> Iterator[Any]:
    step = {int: lambda value, towards: value + int(math.copysign(1, towards - value)), float: math.nextafter}[kind]
    for rule in field.metadata:
        for name, towards in (("ge", None), ("le", None), ("gt", math.inf), ("lt", -math.inf)):
            limit = getattr(rule, name, None)
            if limit is not None:
                yield kind(limit) if towards is None else step(kind(limit), towards)


def fields_of(model: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, FieldInfo]]:
    for name, field in model.model_fields.items():
        if (section := section_of(field.annotation)) is not None:
            yield from fields_of(section, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", field


CHOICES = {name: values for name, field in fields_of(RunManifest) if (values := bounds(field))}
TEXTS = {
    *(
        "name",
        "description",
        "data.source",
        "data.text_field",
        "access.members",
        "changes",
    ),
    *("licence", "page"),
    *(
        "code",
        "files",
        "model.adapter.targets",
        "model.frozen",
        "model.init.source",
        "model.init.digest",
    ),
}
"""Fields without bounds of this kind: patterns and lengths are in `test_manifest.py`, sources in
`test_data_source.py`, files and code in `test_allowed_files.py`, keys and changes in
`tests/swarms/test_revisions_live.py`."""


def manifest_of(values: dict[str, Any]) -> RunManifest | None:
    """None: refused when it is read, by a sentence."""
    fields: dict[str, Any] = {"name": "worst"}
    for name, value in values.items():
        if value is None:
            continue
        *sections, last = name.split(".")
        place = fields
        for section in sections:
            place = place.setdefault(section, {})
        place[last] = value
    if "num_parameters" in fields.get("model", {}):
        fields["model"]["layout_digest"] = "0" * 64
    try:
        return RunManifest.from_fields(fields)
    except ValueError:
        return None


def work_out(manifest: RunManifest) -> None:
    """All that a peer derives from a manifest before it takes memory for a model; raises nothing but a LocalFault."""
    RunManifest.from_bytes(manifest.to_bytes())
    source_here(manifest.data.source, None)
    sizes = seed_sizes(manifest)
    assert sum(sizes) < 10**14
    layout_digest_of(manifest)
    num_orthogonalised(manifest)
    rule_of(manifest)
    codec = codec_of(manifest)
    limits_of(sizes, codec)
    sent_bytes_of(manifest, sizes)
    plan_run(manifest, seed_sizes(manifest))
    for use in ("serve", "read", "train on a GPU", "train"):
        check_memory(manifest, use, HOME_BYTES)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", CHOICES)
def test_a_field_at_its_limits_is_a_run_or_a_sentence(name: str) -> None:
    for value in CHOICES[name]:
        manifest = manifest_of({name: value})
        if manifest is not None:
            taken = _bytes_taken(manifest)
            assert taken < MAX_TAKEN_BYTES, value


@settings(max_examples=examples(100, by_day=6))
@given(st.fixed_dictionaries({}, optional={name: st.sampled_from(values) for name, values in CHOICES.items()}))
def test_all_fields_at_their_limits_together(values: dict[str, Any]) -> None:
    manifest = manifest_of(values)
    if manifest is not None:
        assert _bytes_taken(manifest) < MAX_TAKEN_BYTES


def test_every_field_is_tried() -> None:
    names = {name for name, _ in fields_of(RunManifest)}
    assert names == CHOICES.keys() | TEXTS | {"model.layout_digest"}
    assert CHOICES["model.d_model"] == [8, 65_536]
    assert CHOICES["training.learning_rate"][0] == 5e-324


def _bytes_taken(manifest: RunManifest) -> int:
    return _bytes_taken_by(manifest.to_bytes())


@functools.cache  # a bound that is the default is one manifest for many fields
def _bytes_taken_by(manifest: bytes) -> int:
    tracemalloc.start()
    try:
        work_out(RunManifest.from_bytes(manifest))
    except (DeviceFault, Incompatible, LocalFault):
        pass
    finally:
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    return most
