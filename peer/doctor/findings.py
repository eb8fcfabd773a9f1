"""Turns facts into findings: what is well, what is not with one remedy, and whether joining makes sense. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from dht.ground.clocks import CLOCK_SKEW_SECONDS
from dht.ground.errors import DeviceFault, Incompatible, LocalFault, NobodyReachable
from dht.ground.quantities import bit_rate_text, bytes_text, plural, seconds_text
from dht.identity.multiaddr import Multiaddr, parse_multiaddr
from dht.identity.speakable import speakable_name
from dht.p2pd.congestion_control import BBR
from peer.doctor.doctor_facts import DoctorFacts, LineFacts, MachineFacts, ReportedRun
from peer.plan.usual_home_needs import HomeNeeds
from peer.version import full_version, is_older

CLOCK_NOTED_SECONDS: Final = 5.0
"""Clock difference that shows that no time service runs; with one, clocks agree within a tenth of a second."""
CLOCK_SAME_SECONDS: Final = 0.1
NEWER: Final = "update this software from its source; in a clone: `git pull && pip install .`"
TIGHT_SHARE: Final = 0.85
"""Share of free memory or disk above which the next program may exhaust it."""
LEAST_RATE: Final = 1000.0
"""Rate in bit/s below which no figure is shown, because a peer's announcements need more."""
DISK_KEPT_BYTES: Final = 1_000_000_000
"""Disk space left free for other data."""

Level = Literal["ok", "note", "stop"]
"""Well; joining works, but could work better; joining makes no sense before this is fixed."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the answer.

    Attributes:
        what: the finding.
        remedy: what to do about it; empty if all is well.
        exit_code: exit code of the command, if this is the first obstacle.
    """

    subject: str
    level: Level
    what: str
    remedy: str = ""
    exit_code: int = LocalFault.exit_code


def diagnose(facts: DoctorFacts) -> tuple[Finding, ...]:
    """Return all findings in reading order."""
    return tuple(_findings(facts))


def exit_code_of(findings: Sequence[Finding]) -> int:
    """Return 0 if joining makes sense, otherwise the first obstacle's exit code."""
    return next((finding.exit_code for finding in findings if finding.level == "stop"), 0)


def told_apart(sentence: str) -> tuple[str, str]:
    """Split a sentence "WRONG; expected THIS; DO THAT" into fault and remedy."""
    what, _, advice = sentence.partition("; expected ")
    expected, _, remedy = advice.partition("; ")
    return what, remedy or (f"expected {expected}" if expected else "")


def _findings(facts: DoctorFacts) -> Iterator[Finding]:
    machine, run, needs = facts.machine, facts.run, facts.run.needs if facts.run else None
    yield _software(machine, run)
    if machine.kernels_fault:
        slower = "encoding takes about four times the processor time"
        remedy = "install a C compiler, such as gcc, then reinstall this software"
        yield Finding("kernels", "note", f"{machine.kernels_fault}: {slower}", remedy)
    yield _device(machine, needs)
    yield _memory(machine, needs)
    yield _disk(machine, needs)
    if machine.port_fault:
        yield Finding(
            "ports", "stop", f"this peer cannot listen: {machine.port_fault}", "choose other ports with --listen"
        )
    if not machine.has_way_out and not facts.line.asked:
        what = "none: this machine has no route to other machines, so it reaches no member"
        remedy = "connect it by cable or wireless, then run this command again"
        yield Finding("network", "stop", what, remedy, NobodyReachable.exit_code)
    if machine.congestion_control:
        yield _congestion(machine.congestion_control)
    if facts.run_fault:
        yield Finding("run", "stop", facts.run_fault, facts.run_remedy, facts.run_fault_code)
    if run is None:
        return
    yield _manifest(run)
    if run.own_code_hint:
        yield Finding("model", "note", "from its owner's own code, which `peer join` does not have", run.own_code_hint)
    if run.model_fault:
        yield Finding("model", "stop", run.model_fault, "", Incompatible.exit_code)
    if run.data_fault_code:
        yield Finding("data", "stop", run.data_fault, "", run.data_fault_code)
    elif run.data_fault:
        yield Finding("data", "note", run.data_fault, "docs/volunteer/join.md describes --data")
    elif run.data:
        yield Finding("data", "ok", run.data)
    yield from _weights(run)
    line = facts.line
    if not line.asked:
        why = "; ".join(line.faults) or "no member serves probes"
        yield Finding(
            "line", "note", f"not measured: {why}", "try again in a minute, or choose another member with --peers"
        )
        return
    yield _clock(line)
    yield _reachable(line)
    yield _rate("upload", line, line.upload_bits_per_second, line.upload_limit_bits_per_second, needs)
    yield _rate("download", line, line.download_bits_per_second, line.download_limit_bits_per_second, needs)


def _software(machine: MachineFacts, run: ReportedRun | None) -> Finding:
    shown = ", ".join(f"{name} {version}" for name, version in machine.versions.items() if version)
    missing = [name for name, version in machine.versions.items() if not version]
    if missing:
        what = f"{shown}; {' and '.join(missing)} cannot be found"
        return Finding("software", "stop", what, "install this software again; in its folder: `pip install .`")
    if run is not None and run.minimum_software and is_older(full_version(), run.minimum_software):
        what = f"{shown}; the run's owner asks for {run.minimum_software} or newer"
        return Finding("software", "stop", what, NEWER, Incompatible.exit_code)
    if run is not None and run.newer_software:
        what = f"{shown}; members run {run.newer_software}"
        return Finding("software", "note", what, NEWER)
    return Finding("software", "ok", shown)


def _device(machine: MachineFacts, needs: HomeNeeds | None) -> Finding:
    if machine.device_fault:
        return Finding(
            "device", "stop", machine.device_fault, "choose another device with --device", DeviceFault.exit_code
        )
    shown = machine.device
    free = machine.device_free_bytes
    if needs is None or free is None:
        return Finding("device", "ok", shown)
    shown += f"; the run needs {bytes_text(needs.device_bytes)} of {bytes_text(free)} free, activations not counted"
    if needs.device_bytes > free:
        remedy = "end other programs on the device, or choose a device with more memory"
        return Finding("device", "stop", shown, remedy, DeviceFault.exit_code)
    if needs.device_bytes > TIGHT_SHARE * free:
        return Finding("device", "note", shown, "end other programs on the device: activations may not fit")
    return Finding("device", "ok", shown)


def _memory(machine: MachineFacts, needs: HomeNeeds | None) -> Finding:
    free = machine.memory_free_bytes
    if free is None:
        return Finding("memory", "ok", "unknown on this machine")
    if needs is None:
        return Finding("memory", "ok", f"{bytes_text(free)} free")
    needed = needs.memory_bytes if machine.device_free_bytes is None else needs.host_bytes
    shown = f"the run needs {bytes_text(needed)} of {bytes_text(free)} free"
    if needed > free:
        return Finding("memory", "stop", shown, "end other programs, or join from a machine with more memory")
    if needed > TIGHT_SHARE * free:
        return Finding("memory", "note", shown, "end other programs before joining")
    return Finding("memory", "ok", shown)


def _disk(machine: MachineFacts, needs: HomeNeeds | None) -> Finding:
    free = machine.disk_free_bytes
    if machine.folder_fault:
        return Finding("disk", "stop", machine.folder_fault, "give another --data-dir")
    if free is None:
        what = f"{machine.data_dir} cannot be examined"
        return Finding("disk", "stop", what, "give a folder on a disk of this machine with --data-dir")
    if needs is None:
        return Finding("disk", "ok", f"{bytes_text(free)} free at {machine.data_dir}")
    shown = f"checkpoints need {bytes_text(needs.disk_bytes)} of {bytes_text(free)} free at {machine.data_dir}"
    if needs.disk_bytes > free:
        return Finding("disk", "stop", shown, "free some space, or choose a folder on another disk with --data-dir")
    if needs.disk_bytes + DISK_KEPT_BYTES > free:
        return Finding("disk", "note", shown, "free some space: on a full disk training continues without checkpoints")
    return Finding("disk", "ok", shown)


def _congestion(name: str) -> Finding:
    if name == BBR:
        return Finding("congestion", "ok", f"{name}: a lost packet does not slow rounds down")
    what = f"{name}: rounds take several times as long where packets are lost, as on many wireless lines"
    remedy = "on this whole machine: `sudo sysctl -w net.ipv4.tcp_congestion_control=bbr`"
    return Finding("congestion", "note", what, remedy)


def _manifest(run: ReportedRun) -> Finding:
    shown = f"{run.manifest_hash[:16]}, {plural(run.num_members, 'member')}"
    if run.has_ended:
        return Finding("manifest", "stop", f"{shown}; its owner has ended the run", "join another run", 4)
    if run.own_manifest_hash and run.own_manifest_hash != run.manifest_hash:
        what = f"{shown}; an earlier session left {run.own_manifest_hash[:16]} here, which is in effect a different run"
        return Finding("manifest", "note", what, "join with another --data-dir: the old checkpoints do not fit")
    if run.num_others:
        what = f"{shown}; {run.num_others} of them with a different manifest"
        return Finding("manifest", "note", what, "ask the run's owner which manifest is valid")
    if not run.num_members:
        return Finding("manifest", "note", f"{shown}: no member trains now", "join; the first trainer starts the run")
    return Finding("manifest", "ok", shown)


def _weights(run: ReportedRun) -> Iterator[Finding]:
    """Yield the finding about pretrained weights: a given folder must contain them; a missing one can be given on
    joining.
    """
    if run.weights_fault_code:
        yield Finding("weights", "stop", run.weights_fault, "", run.weights_fault_code)
    elif run.weights_fault:
        yield Finding("weights", "note", run.weights_fault, "`peer doctor` with the same --base DIR checks them")
    elif run.weights:
        yield Finding("weights", "ok", run.weights)


def _clock(line: LineFacts) -> Finding:
    offset = line.clock_offset_seconds
    if offset is None:
        return Finding("clock", "note", "no member reported its time", "ask again in a minute")
    shown = f"{seconds_text(round(abs(offset), 1))} {'behind' if offset > 0 else 'ahead of'} the members' clocks"
    remedy = "switch the system's time service on, for example: `timedatectl set-ntp true`"
    if abs(offset) > CLOCK_SKEW_SECONDS:
        return Finding("clock", "stop", f"{shown}: members treat this peer's records as expired", remedy)
    if abs(offset) > CLOCK_NOTED_SECONDS:
        return Finding("clock", "note", shown, remedy)
    return Finding("clock", "ok", shown if abs(offset) >= CLOCK_SAME_SECONDS else "agrees with the members' clocks")


def _reachable(line: LineFacts) -> Finding:
    back = line.dial_back
    if not back.is_known:
        why = "; ".join(line.faults) or "every connection to members goes through a relay"
        what = f"unknown: no member dialled back ({why})"
        return Finding("reachable", "note", what, "try again in a minute, or choose another member")
    if back.reached:
        addresses = [parse_multiaddr(address).without_peer_id() for address in back.reached]
        return Finding("reachable", "ok", f"yes, at {', '.join(map(str, addresses))}{_from_where(addresses)}")
    named = [parse_multiaddr(address).without_peer_id() for address, _ in back.failed]
    ports = ", ".join(f"{(address.transport or '').upper()} {address.port}" for address in named)
    what = (
        f"not from outside: no answer at {', '.join(map(str, named))}. Such a peer still contributes; it averages "
        "nothing for others, and reaches other homes by hole punching or through relays"
    )
    remedy = f"forward {ports} in the router to this machine (a fixed port: `--listen /ip4/0.0.0.0/tcp/4001`)"
    if any(address in line.own_addresses for address, _ in back.failed):
        remedy = f"open {ports} in the firewall of this machine: there is no router in between"
    return Finding("reachable", "note", what, remedy)


def _from_where(addresses: Sequence[Multiaddr]) -> str:
    if all(address.is_loopback for address in addresses):
        return " (tested from this machine; this proves nothing about other machines)"
    if all(address.ip is not None and address.ip.is_private for address in addresses):
        return " (tested from the same private network; this proves nothing about others)"
    return ""


def _rate(
    name: Literal["upload", "download"],
    line: LineFacts,
    measured: float | None,
    limit: float | None,
    needs: HomeNeeds | None,
) -> Finding:
    if measured is None:
        why = "; ".join(line.faults) or "no member answered"
        return Finding(name, "note", f"not measured: {why}", "ask again in a minute")
    shown = f"{bit_rate_text(measured)} with {', '.join(map(speakable_name, line.asked))}"
    rate = measured
    if limit is not None and limit < measured:
        rate, shown = limit, f"{shown}, limited to {bit_rate_text(limit)}"
    if needs is None:
        return Finding(name, "ok", shown)
    needed = needs.upload_bits_per_second if name == "upload" else needs.download_bits_per_second
    shown = f"{shown}; {_wanted(needed)}"
    if rate >= needed:
        return Finding(name, "ok", shown)
    raised = f", or raise --{name}-limit-mbit" if limit is not None and limit < measured else ""
    return Finding(name, "note", shown, f"some rounds will be missed; use a cable, end other transfers{raised}")


def _wanted(needed: float) -> str:
    """Return how much of the connection rounds need (bit/s)."""
    return (
        f"rounds need {bit_rate_text(needed)}"
        if needed >= LEAST_RATE
        else f"rounds need less than {bit_rate_text(LEAST_RATE)}"
    )
