"""A contributor's profile: a file beside the contributor's key, and the signed profile for a run."""

from __future__ import annotations

import json
import shlex
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from dht.ground.errors import UsageFault
from dht.ground.fields import check_real, visible
from dht.ground.host import PeerId
from dht.ground.regular_files import open_regular
from dht.identity.keys import Identity, public_key_of
from dht.records.profiles import COUNTRIES, MAX_MACHINES, MAX_PROFILE_LIFE_SECONDS, Profile, clean_name
from peer.config.peer_config import PeerConfig
from peer.secret_files import write_secret
from peer.user_folders import contributor_key_path

LIFE_SECONDS = MAX_PROFILE_LIFE_SECONDS - 3600.0
"""Just under the longest life that holders accept."""
MAX_FILE_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class Choice:
    """Profile of a contributor; among several copies the one with the highest `sequence` applies."""

    sequence: int = 0
    issued_at: float = 0.0
    name: str = ""
    country: str = ""
    is_hidden: bool = False
    machines: tuple[PeerId, ...] = ()
    team: str = ""


def load_contributor(path: Path, *, create: bool) -> Identity:
    """Load the contributor's key; create it with mode 0600 if it is missing and `create` is true.

    Raises:
        UsageFault: the key is missing, cannot be read or created, or is readable by other users of this machine.
    """
    if not create and not path.exists():
        raise UsageFault(
            f"the key file {path} does not exist; expected the key file that `peer profile set --name NAME` creates; "
            "check --contributor-key, or create the file with that command"
        )
    try:
        return Identity.load_or_create(path) if create else Identity.load(path)
    except UsageFault as fault:
        raise UsageFault(str(fault).replace("--identity", "--contributor-key")) from fault


def choice_path(key_path: Path) -> Path:
    """Return the path of the profile that belongs to this key file."""
    return key_path.with_name(key_path.name + ".profile.json")


def read_choice(path: Path) -> Choice:
    """Read the profile choice in a file; an empty one if there is no file.

    Raises:
        UsageFault: the file is unreadable or contains values that no profile can have.
    """
    try:
        with open_regular(path) as file:
            content = file.read(MAX_FILE_BYTES)
    except FileNotFoundError:
        return Choice()
    except OSError as error:
        raise UsageFault(
            f"{path} cannot be read ({error.strerror}); expected a file that `peer profile set` wrote"
        ) from error
    try:
        return _checked(json.loads(content))
    except (ValueError, TypeError, RecursionError) as error:
        raise UsageFault(
            f"{path} is not a profile ({error}); expected a file that `peer profile set` wrote; move it away to start "
            "again"
        ) from error


def write_choice(path: Path, choice: Choice) -> None:
    """Replace the file atomically.

    Raises:
        LocalFault: the file is not writable.
    """
    write_secret(path, json.dumps(asdict(choice), indent=2) + "\n")


def changed(
    choice: Choice,
    now: float,
    *,
    name: str | None = None,
    country: str | None = None,
    team: str | None = None,
    is_hidden: bool = False,
    machines: tuple[PeerId, ...] | None = None,
) -> Choice:
    """Return the choice with the given values (None: unchanged), newer than all earlier ones.

    Raises:
        UsageFault: name or team is too long or unprintable, the country is unknown, a machine is not a PeerId, or there
            are too many machines.
    """
    wanted_name = _showable("name", choice.name if name is None else name)
    wanted_team = _showable("team", choice.team if team is None else team)
    wanted_country = choice.country if country is None else country.strip().upper()
    if wanted_country and wanted_country not in COUNTRIES:
        raise UsageFault(
            f"{(country or wanted_country)[:20]!r} is not a country; expected a two-letter ISO 3166 code such as NL, "
            "or '' for none"
        )
    wanted = choice.machines if machines is None else tuple(sorted(set(machines)))
    for machine in wanted:
        try:
            public_key_of(machine)
        except ValueError as error:
            raise UsageFault(f"{machine[:80]!r} is not a PeerId: {error}") from error
    if len(wanted) > MAX_MACHINES:
        raise UsageFault(f"{len(wanted)} machines; expected at most {MAX_MACHINES} of one contributor")
    return Choice(
        sequence=max(choice.sequence + 1, int(1000 * now)),
        issued_at=now,
        name="" if is_hidden else wanted_name,
        country="" if is_hidden else wanted_country,
        is_hidden=is_hidden,
        machines=wanted,
        team="" if is_hidden else wanted_team,
    )


def _showable(label: str, text: str) -> str:
    wanted = visible(text.strip())
    if clean_name(wanted) != wanted or bool(text.strip()) > bool(wanted):
        raise UsageFault(
            f"the {label} {text[:60]!a} cannot be shown; expected at most 40 printable characters, at least one of "
            f"them visible; choose another {label}"
        )
    return wanted


def merged(mine: Choice, theirs: Profile | None, me: PeerId, now: float) -> Choice:
    """Return the profile to publish: the newer of the local and the published profile, with this machine added.

    So a person's machines, each with its own file, converge to one list; a name is never taken from the older profile.
    """
    choice = mine
    if theirs is not None and theirs.sequence > mine.sequence:
        choice = Choice(**{name: getattr(theirs, name) for name in Choice.__dataclass_fields__})
    if me in choice.machines or len(choice.machines) >= MAX_MACHINES:
        return choice
    sequence = max(choice.sequence + 1, int(1000 * now)) if choice.sequence else int(1000 * now)
    return replace(choice, sequence=sequence, issued_at=now, machines=tuple(sorted({*choice.machines, me})))


def profile_of(choice: Choice, contributor: Identity, run_id: str, now: float) -> Profile:
    """Return the choice as a profile of one run, valid for about a week."""
    expires_at = now + LIFE_SECONDS
    return Profile(run_id=run_id, contributor_id=contributor.peer_id, expires_at=expires_at, **asdict(choice))


def unused_key(config: PeerConfig) -> str | None:
    """Return a hint if this person has a profile that a join does not use; None otherwise. No key signs without
    consent.
    """
    try:
        path = contributor_key_path()
        if config.contributor_key is not None or not path.is_file():
            return None
    except (OSError, UsageFault):
        return None  # without a home folder there is no profile
    return (
        "this work does not count towards your profile; to change this, add "
        f"{shlex.join(['--contributor-key', str(path)])}"
    )


def _checked(found: Any) -> Choice:
    if type(found) is not dict or set(found) != set(Choice.__dataclass_fields__):
        raise ValueError(f"expected the fields {', '.join(Choice.__dataclass_fields__)}")
    choice = Choice(**{**found, "machines": tuple(found["machines"])})
    if type(choice.sequence) is not int or type(choice.is_hidden) is not bool or choice.sequence < 0:
        raise ValueError("expected a whole number for sequence, and true or false for is_hidden")
    if not all(type(text) is str for text in (choice.name, choice.country, choice.team, *choice.machines)):
        raise ValueError("expected texts as name, country, team and machines")
    check_real("issued_at", choice.issued_at, at_least=0.0)
    kept = changed(choice, float(choice.issued_at), is_hidden=choice.is_hidden)
    return replace(kept, sequence=choice.sequence)
