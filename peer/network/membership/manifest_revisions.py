"""Revisions: the owner's changes during a run, and the versions from which they apply at this peer.

A revision only adds to the manifest's `changes`. So peers with different revisions communicate, and the newer revision
spreads. Each change applies from an anchor version, which is the same moment of the run on every peer. The outer
learning rate applies from that version of each fragment, so that anchors stay equal bit for bit. All other changes
apply once the lowest version of a peer's fragments has reached the version.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from averaging.outer.outer_settings import OuterRule
from averaging.rounds.round_facts import Fact
from dht.admission.admission import Admission, MemberRules
from dht.ground.errors import Incompatible, LocalFault
from dht.ground.host import PeerId
from dht.ground.quantities import count_text
from dht.records.signed_manifest import RunRecord
from peer.config.access_sections import ChangeSection, is_serial
from peer.config.averaging_rules import rule_of
from peer.config.learning_rate_schedule import Cooldown, rate_factor
from peer.config.manifest import RunManifest, UnknownRules
from peer.config.section import MAX_WHOLE_NUMBER
from peer.events.peer_events import NOTED, RunChanged
from peer.installation import update_command
from peer.network.membership.run_handshake_policy import RunHandshakePolicy
from peer.version import full_version, is_older, software

WHEN_JOINING = MAX_WHOLE_NUMBER
"""A newcomer has no version and applies all changes at once, because its donors may have been admitted recently."""


def in_force(manifest: RunManifest, version: int) -> list[ChangeSection]:
    """Return the changes that apply at `version`, in the order of their versions."""
    changes = [change for change in manifest.changes if change.at_version <= version]
    return sorted(changes, key=lambda change: change.at_version)


def member_rules(manifest: RunManifest, owner_public_key: bytes, version: int) -> MemberRules:
    """Return the keys that may take part at `version`; for each key the later change applies."""
    members, revoked, revoked_tickets = set(manifest.access.members), set[str](), set[bytes]()
    for change in in_force(manifest, version):
        serials = set(filter(is_serial, change.revoke))
        keys = set(change.revoke) - serials
        members = (members | set(change.admit)) - keys
        revoked = (revoked - set(change.admit)) | keys
        revoked_tickets |= set(map(bytes.fromhex, serials))
    return MemberRules(
        manifest.access.mode,
        owner_public_key,
        frozenset(map(PeerId, members)),
        frozenset(map(PeerId, revoked)),
        frozenset(revoked_tickets),
    )


def manifest_of(record: RunRecord) -> RunManifest:
    """Parse the manifest in a signed record.

    Raises:
        Incompatible: the manifest does not fit this software.
    """
    try:
        return RunManifest.from_bytes(record.manifest)
    except UnknownRules as error:
        raise Incompatible(str(error)) from error
    except ValueError as error:
        raise Incompatible(
            f"the manifest of {record.run_id} does not fit this software ({software()}): {error} "
            "Expected a manifest of this version; install the version that the run's owner uses."
        ) from error


def apply_member_rules(admission: Admission, record: RunRecord) -> None:
    """Apply the member rules of the manifest to the admission; ignore an unreadable manifest."""
    try:
        manifest = RunManifest.from_bytes(record.manifest)
    except ValueError:
        return
    admission.set_rules(member_rules(manifest, record.owner_public_key, WHEN_JOINING))


def outer_lr_at(manifest: RunManifest, version: int) -> float:
    """Return eta0 of the commit that leaves `version` of a fragment."""
    rates = [change.outer_lr for change in in_force(manifest, version) if change.outer_lr is not None]
    return rates[-1] if rates else manifest.averaging.outer_lr


def cooldown_at(manifest: RunManifest, version: int) -> Cooldown | None:
    """Return the cool-down of the inner learning rate that applies at `version`; None if there is none."""
    found = None
    for change in in_force(manifest, version):
        if change.cooldown_from is not None and change.cooldown_tokens is not None:
            found = Cooldown(change.cooldown_from, change.cooldown_tokens)
    return found


def minimum_software_at(manifest: RunManifest, version: int) -> str:
    """Return the minimum software version, three numbers; empty if all versions are accepted."""
    wanted = [change.minimum_software for change in in_force(manifest, version) if change.minimum_software]
    return wanted[-1] if wanted else ""


def is_successor(newer: RunManifest, held: RunManifest) -> bool:
    """Whether a running peer with `held` can continue with `newer`: a later revision that only adds changes."""
    return newer.revision > held.revision and newer.hash == held.hash


def describe_changes(newer: RunManifest, held: RunManifest) -> str:
    """Return the changes of a revision in words."""
    return "; ".join(_phrase(change) for change in newer.changes if change not in held.changes)


def all_changes(manifest: RunManifest) -> list[str]:
    """Describe each change of the run so far."""
    return [_phrase(change) for change in manifest.changes]


def _phrase(change: ChangeSection) -> str:
    when = f"from version {change.at_version}" if change.at_version else "at once"
    parts = [
        *(f"{key[-8:]} is admitted" for key in change.admit),
        *(f"{f'invite {entry}' if is_serial(entry) else entry[-8:]} is revoked" for entry in change.revoke),
    ]
    if change.outer_lr is not None:
        parts.append(f"outer_lr {change.outer_lr:g}")
    if change.cooldown_tokens is not None:
        length = f"{count_text(change.cooldown_tokens)} tokens"
        first = (
            f"over {length} after the first {count_text(change.cooldown_from)}"
            if change.cooldown_from
            else (f"within the first {length}")
        )
        parts.append(f"the learning rate falls to its floor {first}")
    if change.minimum_software is not None:
        parts.append(f"software {change.minimum_software} or newer")
    if change.page is not None:
        parts.append(f"the page is {change.page}" if change.page else "the run has no page")
    if change.ends_run:
        parts.append("the run ends")
    noted = f'{NOTED}"{change.note}"' if change.note else ""
    if noted and not parts:
        return noted
    if len(parts) == 1 and change.cooldown_tokens is not None and not change.at_version:
        return f"{parts[0]}{noted and f'; {noted}'}"  # the token count gives the time
    before = ", " if change.cooldown_tokens is not None else " "
    return f"{', '.join(parts) or 'nothing'}{before}{when}{noted and f'; {noted}'}"


@dataclass(eq=False)
class ManifestRevisions:
    """The manifest in force at one peer and its consequences, from version to version.

    Attributes:
        owner_public_key: 32 bytes.
        handshake_policy: updated, like its admission, when the rules change.
        report: receives an event, once, when the run has ended here.
    """

    manifest: RunManifest
    owner_public_key: bytes
    me: PeerId
    handshake_policy: RunHandshakePolicy
    report: Callable[[Fact], None]

    def __post_init__(self) -> None:
        self.has_ended = False
        self._rule = rule_of(self.manifest)
        self._version: int | None = None
        self._fault: LocalFault | None = None
        self._enforce(WHEN_JOINING)

    def rule_at(self, version: int) -> OuterRule:
        """Return the outer rule of the commit that leaves `version` of a fragment."""
        outer_lr = outer_lr_at(self.manifest, version)
        return self._rule if outer_lr == self._rule.outer_lr else replace(self._rule, outer_lr=outer_lr)

    def rate_factor(self, run_tokens: int, version: int) -> float:
        """Return the inner learning rate as a share of its peak, at `run_tokens` on the run's clock and at this
        version.
        """
        return rate_factor(self.manifest.training.schedule, run_tokens, cooldown_at(self.manifest, version))

    def take(self, newer: RunManifest) -> bool:
        """Adopt a later revision; return False if it is not a successor (see `is_successor`)."""
        if not is_successor(newer, self.manifest):
            return False
        self.manifest = newer
        self._enforce(WHEN_JOINING if self._version is None else self._version)
        self._look_at_self()
        return True

    def reached(self, version: int) -> None:
        """Record that the lowest version of this peer's complete fragments is now `version`.

        Raises:
            Incompatible: this peer's key is revoked from here on, members refuse it, or its software is too old.
        """
        if version != self._version:
            self._version = version
            self._enforce(version)
            self._look_at_self()
        if self._fault is not None:
            raise self._fault

    def refused(self, told: str) -> None:
        """Record that members no longer admit this peer; `reached` raises the fault from now on."""
        self._fault = self._fault or Incompatible(
            f"members of the run refuse this peer ({told}); expected to remain a member; ask the owner of the run"
        )

    def _enforce(self, version: int) -> None:
        if self.handshake_policy.admission is not None:
            self.handshake_policy.admission.set_rules(member_rules(self.manifest, self.owner_public_key, version))
        self.handshake_policy.minimum_software = minimum_software_at(self.manifest, version)

    def _look_at_self(self) -> None:
        if self._version is None:
            return
        rules = member_rules(self.manifest, self.owner_public_key, self._version)
        if self.me in rules.revoked:
            self._fault = Incompatible(
                f"the owner of the run revoked this peer's key (revision {self.manifest.revision} of the manifest); "
                "expected to remain a member; ask the owner"
            )
        wanted = minimum_software_at(self.manifest, self._version)
        if wanted and is_older(full_version(), wanted):
            self._fault = Incompatible(
                f"the owner of the run requires software {wanted} or newer (revision {self.manifest.revision}); this "
                f"is {software()}; update it with {update_command()} and join again"
            )
        end = self.manifest.end_version
        if end is not None and self._version >= end and not self.has_ended:
            self.has_ended = True
            self.report(RunChanged(end_version=end or self._version))
