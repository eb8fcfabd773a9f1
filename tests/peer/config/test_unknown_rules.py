"""A run of other rules is refused before it trains, with one sentence; what only reads its model goes on reading it."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from averaging.rules import RULES
from dht.ground.errors import Incompatible
from dht.identity.keys import Identity, make_run_id
from dht.records.signed_manifest import sign_run_record
from peer.config.manifest import RunManifest, UnknownRules, manifest_hash, manifest_rules
from peer.network.membership.manifest_revisions import manifest_of

OWNER = Identity.from_seed(bytes(32))
NEWEST = RunManifest(name="tiny")


def with_rules(rules: object, **others: object) -> bytes:
    """The manifest of a run with these rules."""
    fields = json.loads(NEWEST.to_bytes()) | others | {"rules": rules}
    return json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()


@pytest.mark.parametrize(
    ("manifest", "named", "remedy"),
    [
        (with_rules(RULES + 1), f"follows rules {RULES + 1}; expected rules {RULES}", "update this software: `"),
        # Only the number says why there is a field that nobody knows.
        (with_rules(RULES + 1, new_field=1), f"follows rules {RULES + 1};", "update this software: `"),
    ],
)
def test_a_run_of_other_rules_is_refused_with_one_sentence(manifest: bytes, named: str, remedy: str) -> None:
    with pytest.raises(Incompatible) as caught:
        manifest_of(sign_run_record(make_run_id("tiny", OWNER.public_key), manifest, OWNER))
    told = str(caught.value)
    assert named in told
    assert remedy in told
    assert "new_field" not in told
    assert ". " not in told


@pytest.mark.parametrize(
    "make",
    [
        lambda: RunManifest.from_fields({"name": "tiny", "rules": RULES + 1}),
        lambda: RunManifest.from_bytes(with_rules(RULES + 1)),
    ],
)
def test_a_run_file_cannot_ask_for_other_rules(make: Callable[[], RunManifest]) -> None:
    with pytest.raises(UnknownRules):
        make()


@pytest.mark.parametrize("rules", [True, "1", 1.0, 0, 2**60, [1]])
def test_rules_that_are_no_number_are_a_wrong_field(rules: object) -> None:
    with pytest.raises(ValueError, match=r"^rules is "):
        RunManifest.from_bytes(with_rules(rules))


@pytest.mark.parametrize("rules", [RULES, RULES + 1])
def test_a_model_of_other_rules_can_be_read_and_keeps_the_hash_of_its_run(rules: int) -> None:
    data = with_rules(rules)
    manifest = RunManifest.from_bytes(data, takes_part=False)
    assert (manifest.rules, manifest.to_bytes()) == (rules, data)
    assert manifest_hash(data) == manifest.hash
    assert manifest_rules(data) == rules
    with pytest.raises(UnknownRules, match="follows rules 2;"):
        RunManifest.from_bytes(with_rules(RULES + 1, new_field=1), takes_part=False)


@pytest.mark.parametrize(
    "data", [b"", b"[]", b"\xff", b"[" * 10_000, b'{"rules":"1"}', b'{"rules":true}', b'{"rules":-1}']
)
def test_bytes_that_name_no_rules_have_none(data: bytes) -> None:
    assert manifest_rules(data) == 0
