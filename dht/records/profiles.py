"""Public profile of a contributor, a person with any number of machines, as a signed record. Pure.

The envelope is that of `signed_envelopes.py`. The key is the contributor's, not a machine's. A machine belongs to a
contributor if the profile lists the machine and the machine's record contains the key. So no one can claim another's
machine, or be claimed by it.

The highest sequence counts, whatever its expiry: a hidden profile stays hidden if an older one is replayed.
"""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass
from typing import Any, Final

from dht.ground.errors import PeerFault
from dht.ground.fields import check_real, check_text, check_whole, clean_text, pack, unpack
from dht.ground.host import PeerId
from dht.identity.keys import PUBLIC_KEY_BYTES, Identity, peer_id_of, public_key_of
from dht.records.peer_record import MAX_LABEL_LENGTH, MAX_RUN_ID_LENGTH, PeerRecord
from dht.records.signed_envelopes import HEAD_BYTES, check_expiry, open_sealed, seal

MAX_PROFILE_BYTES: Final = 3072
"""Size of 64 machines and the longest name and run id; 85 profiles fill a dictionary of the DHT."""
MAX_MACHINES: Final = 64
"""Machines of one contributor."""
MAX_PROFILE_LIFE_SECONDS: Final = 8 * 86_400.0
"""A contributor is remembered while all machines are off for a week. After a longer time, the first machine publishes
the profile again."""

_FORMAT = 1
_DOMAIN = b"murmuration profile\0"

_COUNTRIES: Final = """
AD AE AF AG AI AL AM AO AQ AR AS AT AU AW AX AZ BA BB BD BE BF BG BH BI BJ BL BM BN BO BQ BR BS BT BV BW BY
BZ CA CC CD CF CG CH CI CK CL CM CN CO CR CU CV CW CX CY CZ DE DJ DK DM DO DZ EC EE EG EH ER ES ET FI FJ FK
FM FO FR GA GB GD GE GF GG GH GI GL GM GN GP GQ GR GS GT GU GW GY HK HM HN HR HT HU ID IE IL IM IN IO IQ IR
IS IT JE JM JO JP KE KG KH KI KM KN KP KR KW KY KZ LA LB LC LI LK LR LS LT LU LV LY MA MC MD ME MF MG MH MK
ML MM MN MO MP MQ MR MS MT MU MV MW MX MY MZ NA NC NE NF NG NI NL NO NP NR NU NZ OM PA PE PF PG PH PK PL PM
PN PR PS PT PW PY QA RE RO RS RU RW SA SB SC SD SE SG SH SI SJ SK SL SM SN SO SR SS ST SV SX SY SZ TC TD TF
TG TH TJ TK TL TM TN TO TR TT TV TW TZ UA UG UM US UY UZ VA VC VE VG VI VN VU WF WS YE YT ZA ZM ZW
"""
COUNTRIES: Final = frozenset(_COUNTRIES.split())
"""ISO 3166-1 alpha-2."""


@dataclass(frozen=True, slots=True)
class Profile:
    """A contributor's statements in one run until `expires_at`; signed with the key inside `contributor_id`."""

    run_id: str
    contributor_id: PeerId
    sequence: int
    """Increases with each change by the contributor, but not when the same profile is published again."""
    issued_at: float
    """Unix seconds of that change."""
    expires_at: float
    name: str
    """At most 40 printable characters; empty: none. Always empty if hidden, like `country`."""
    country: str
    """ISO 3166 alpha-2, stated by the contributor, or empty."""
    is_hidden: bool
    machines: tuple[PeerId, ...]
    """Sorted by PeerId."""
    team: str = ""
    """At most 40 printable characters; empty: none. Always empty if hidden."""


def clean_name(text: str) -> str:
    """Return a name in the form that profiles accept: normalised, printable, trimmed, and cut."""
    normal = unicodedata.normalize("NFKC", text)
    # A letter and its accent combine only after the invisible joiner between them is removed.
    joined = unicodedata.normalize("NFKC", clean_text(normal, len(normal)))
    return clean_text(joined, MAX_LABEL_LENGTH)


def encode_profile(profile: Profile, contributor: Identity) -> bytes:
    """Sign and encode a profile; at most `MAX_PROFILE_BYTES`.

    Raises:
        ValueError: a field is out of range, or the key belongs to another contributor.
    """
    if profile.contributor_id != contributor.peer_id:
        raise ValueError(f"a profile of {profile.contributor_id} to be signed by {contributor.peer_id}")
    _check(profile)
    return seal(contributor, _DOMAIN, _pack(profile))


def decode_profile(data: bytes, *, run_id: str, now: float) -> Profile:
    """Check a profile completely and return it. `now` in unix seconds.

    Raises:
        PeerFault: the profile is too large, wrongly signed, of another run, expired, expires too late, or has a field
            out of range.
    """
    profile = open_sealed(data, MAX_PROFILE_BYTES, "profile", _DOMAIN, _unpack, _pack)
    who = profile.contributor_id
    if profile.run_id != run_id:
        raise PeerFault(who, f"sent a profile for run {profile.run_id}; expected {run_id}; it is ignored")
    check_expiry(who, "profile", profile.expires_at, now, MAX_PROFILE_LIFE_SECONDS)
    return profile


def claimed_sequence(data: bytes) -> int:
    """Return the sequence of a checked profile."""
    sequence = unpack(bytes(data[HEAD_BYTES:]))[2]
    assert type(sequence) is int
    return sequence


def contributor_id_of(record: PeerRecord) -> str:
    """Return the contributor in a machine's record; empty: none."""
    return peer_id_of(record.contributor_key) if record.contributor_key else ""


def profiles_key(run_id: str, shard: int) -> str:
    """Return the DHT key of one part of the profiles: a dictionary from contributor id to profile; `shard_of` returns
    the part.
    """
    return f"{run_id}/profiles/{shard}"


def _pack(profile: Profile) -> bytes:
    machines = b"".join(public_key_of(machine) for machine in profile.machines)
    return pack(
        [
            *(_FORMAT, profile.run_id, profile.sequence, float(profile.issued_at), float(profile.expires_at)),
            *(profile.name, profile.country, profile.is_hidden, machines, profile.team),
        ]
    )


def _unpack(body: bytes, contributor_id: PeerId) -> Profile:
    items: Any = unpack(body)
    if type(items) is not list or len(items) != 10 or type(items[0]) is not int or items[0] != _FORMAT:
        raise ValueError(f"an unknown format; expected format {_FORMAT}; one of the two sides needs an update")
    _, run_id, sequence, issued_at, expires_at, name, country, is_hidden, keys, team = items
    if type(keys) is not bytes or len(keys) % PUBLIC_KEY_BYTES or len(keys) > MAX_MACHINES * PUBLIC_KEY_BYTES:
        raise ValueError(f"machines of a wrong type or length; expected at most {MAX_MACHINES} keys")
    starts = range(0, len(keys), PUBLIC_KEY_BYTES)
    machines = tuple(peer_id_of(keys[start : start + PUBLIC_KEY_BYTES]) for start in starts)
    head = (run_id, contributor_id, sequence, issued_at, expires_at)
    profile = Profile(*head, name, country, is_hidden, machines, team)
    _check(profile)
    return profile


def _check(profile: Profile) -> None:
    check_text("run_id", profile.run_id, MAX_RUN_ID_LENGTH)
    check_whole("sequence", profile.sequence)
    check_real("issued_at", profile.issued_at, at_least=0.0)
    check_real("expires_at", profile.expires_at, at_least=0.0)
    check_text("name", profile.name, MAX_LABEL_LENGTH)
    check_text("team", profile.team, MAX_LABEL_LENGTH)
    for label, text in (("name", profile.name), ("team", profile.team)):
        if text != clean_name(text):
            raise ValueError(f"{label} {text!r:.80}; expected it trimmed and in normal form (NFKC)")
    if profile.country and (type(profile.country) is not str or profile.country not in COUNTRIES):
        raise ValueError(f"country {profile.country!r:.40}; expected two letters of ISO 3166, such as NL, or none")
    if type(profile.is_hidden) is not bool:
        raise ValueError("is_hidden of a wrong type; expected true or false")
    if profile.is_hidden and (profile.name or profile.country or profile.team):
        raise ValueError("a name, country or team in a hidden profile; expected none")
    if len(profile.machines) > MAX_MACHINES or list(profile.machines) != sorted(set(profile.machines)):
        raise ValueError(f"{len(profile.machines)} machines; expected at most {MAX_MACHINES}, each once, in order")
