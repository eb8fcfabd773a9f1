"""`peer doctor`: checks this machine, asks members of a run, and reports whether joining makes sense."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any, Final

from dht.ground.errors import Incompatible, LocalFault, NobodyReachable, PeerFault, PeerUnreachable
from dht.ground.host import PeerId
from dht.identity.multiaddr import parse_peer_multiaddr
from dht.identity.speakable import speakable_name
from dht.records.peer_record import PeerRecord
from peer.config.manifest import RunManifest
from peer.config.peer_config import PeerConfig
from peer.config.training_section import check_optimizer_bits
from peer.console.progress import tell_progress
from peer.doctor.doctor_facts import DoctorFacts, LineFacts, ReportedRun
from peer.doctor.findings import diagnose, exit_code_of, told_apart
from peer.doctor.machine_facts import look_at_machine
from peer.doctor.report import print_report
from peer.memory.base_bits import check_base_bits
from peer.network.membership.address_check import lacks_network
from peer.network.membership.manifest_revisions import manifest_of, minimum_software_at
from peer.network.membership.run_finding import local_record
from peer.network.reachability.probe_client import Probe, probing
from peer.observe.ended_run import SEARCH_SECONDS
from peer.observe.known_addresses import known_end
from peer.observe.observer import RunObserver, observe
from peer.observe.observer_entry import observer_entry
from peer.observe.run_and_address import Target
from peer.plan.usual_home_needs import HomeNeeds, home_needs
from peer.trainer.data.prepared_folder import data_facts
from peer.trainer.hf.base_weights import base_facts
from peer.trainer.hf.run_model import check_architecture, check_joinable
from peer.version import full_version, is_older, version_order
from peer.view.run_view import RunView

MAX_ASKED: Final = 3
"""Most members asked, one after the other, until all questions are answered."""


def run_doctor(config: PeerConfig, target: Target | None, timeout_seconds: float, as_json: bool, then: str = "") -> int:
    """Check this machine and, with a `target`, a run; print the findings. Return the exit code.

    Args:
        config: the configuration for `peer join`; without a target its run id is ignored.
        then: the command that joins, shown if joining makes sense.
    """
    tell_progress("examining this machine")
    facts = DoctorFacts(look_at_machine(config))
    if target is not None:
        facts = _about_run(facts, config, target, timeout_seconds)
    code = exit_code_of(diagnose(facts))
    if as_json:
        print(json.dumps(doctor_json(facts, code)))
    else:
        print_report("this machine" if target is None else target.run_id, facts, then)
    return code


def _about_run(facts: DoctorFacts, config: PeerConfig, target: Target, timeout_seconds: float) -> DoctorFacts:
    """Add facts about the run; ask no member if the run is over, and only briefly if its end is signed here."""
    end = known_end(config) or target.end
    if end is not None and end.is_over:
        return replace(facts, run_fault=end.known, run_remedy=end.remedy, run_fault_code=Incompatible.exit_code)
    if end is not None:
        timeout_seconds = min(timeout_seconds, SEARCH_SECONDS)
    if not facts.machine.has_way_out and lacks_network(target.addresses):
        return facts  # the machine's finding covers this
    tell_progress(f"asking members of {target.run_id}, for {timeout_seconds:.0f} s at most")
    return _with_run(facts, config, replace(target, end=end), timeout_seconds)


def doctor_json(facts: DoctorFacts, code: int) -> dict[str, Any]:
    """Return the answer as plain values."""
    return {
        "schema": 1,
        "makes_sense": code == 0,
        "exit_code": code,
        "findings": [asdict(finding) for finding in diagnose(facts)],
        "facts": asdict(facts),
    }


def _with_run(facts: DoctorFacts, config: PeerConfig, target: Target, timeout_seconds: float) -> DoctorFacts:
    try:
        observer, records, view, line = asyncio.run(_asked(facts, config, target, timeout_seconds))
    except LocalFault as fault:
        if target.end is not None and isinstance(fault, NobodyReachable):
            remedy = target.end.remedy
            told = str(target.end.nobody_left(target.addresses)).removesuffix(f". {remedy}")
        else:
            told, remedy = told_apart(str(fault).removeprefix(f"run {target.run_id}: "))
        return replace(facts, run_fault=told, run_remedy=remedy, run_fault_code=fault.exit_code)
    needs = None
    model_fault = _model_fault(observer, config)
    if observer.manifest.model.kind != "custom" and not (facts.machine.device_fault or model_fault):
        needs = home_needs(observer.manifest, config.base_bits, config.optimizer_bits)
    run = replace(_run_facts(observer, records, view, config, needs), model_fault=model_fault)
    if observer.manifest.model.kind != "custom":
        try:
            limit_bytes = int(config.data_limit_gib * 2**30)
            run = replace(run, data=data_facts(observer.manifest, config.data, limit_bytes))
        except LocalFault as fault:
            code = 0 if config.data is None else fault.exit_code
            run = replace(run, data_fault=str(fault), data_fault_code=code)
        run = _with_weights(run, observer.manifest, config)
    return replace(facts, run=run, line=line)


async def _asked(
    facts: DoctorFacts, config: PeerConfig, target: Target, timeout_seconds: float
) -> tuple[RunObserver, list[PeerRecord], RunView, LineFacts]:
    listen = () if facts.machine.port_fault else config.listen_addresses
    entry = observer_entry(target.run_id, config.data_dir, config.identity)
    if entry is None:
        entry = observer_entry(target.run_id, target.observer_folder)
    async with observe(
        *(target.run_id, target.addresses, timeout_seconds, "p2pd", entry),
        listen=listen,
        announce=config.announce,
    ) as observer:
        records = await observer.records()
        view = await observer.run_view(records)
        return observer, records, view, await _ask_members(observer, records, target, config)


def _with_weights(run: ReportedRun, manifest: RunManifest, config: PeerConfig) -> ReportedRun:
    """Add whether this machine has the weights on which the run is based."""
    try:
        return replace(run, weights=base_facts(manifest, config.base, tell_progress))
    except LocalFault as fault:
        code = 0 if config.base is None else fault.exit_code
        return replace(run, weights_fault=str(fault), weights_fault_code=code)


def _model_fault(observer: RunObserver, config: PeerConfig) -> str:
    """Return why this machine cannot build the run's model: a missing or old library, no task data,
    unsupported bits.
    """
    manifest = observer.manifest
    try:
        if manifest.model.kind == "hf":
            check_joinable(observer.run_id, manifest)
            check_architecture(manifest)
        check_base_bits(manifest, config.base_bits)
        check_optimizer_bits(manifest.training.optimizer, config.optimizer_bits)
    except LocalFault as fault:
        return str(fault)
    return ""


def _run_facts(
    observer: RunObserver,
    records: Sequence[PeerRecord],
    view: RunView,
    config: PeerConfig,
    needs: HomeNeeds | None,
) -> ReportedRun:
    manifest = observer.manifest
    version = min(view.versions, default=0)
    newer = [record.software for record in view.electors if is_older(full_version(), record.software)]
    ends = manifest.end_version
    return ReportedRun(
        run_id=observer.run_id,
        manifest_hash=manifest.hash.hex(),
        own_manifest_hash=_own_manifest_hash(config),
        num_members=len(records),
        num_others=sum(record.manifest_hash != manifest.hash for record in records),
        newer_software=max(newer, key=version_order, default=""),
        minimum_software=minimum_software_at(manifest, version),
        has_ended=ends is not None and version >= ends,
        needs=needs,
        own_code_hint=manifest.own_code_hint,
    )


def _own_manifest_hash(config: PeerConfig) -> str:
    record, _ = local_record(config.run_record_path, config.run_id)
    if record is None:
        return ""
    try:
        return manifest_of(record).hash.hex()
    except LocalFault:
        return "unreadable"


async def _ask_members(
    observer: RunObserver, records: Sequence[PeerRecord], target: Target, config: PeerConfig
) -> LineFacts:
    line = LineFacts(
        own_addresses=tuple(observer.host.addresses()),
        upload_limit_bits_per_second=_bits(config.upload_limit_mbit),
        download_limit_bits_per_second=_bits(config.download_limit_mbit),
    )
    # Dialable members first, because with a member behind a relay the relay would be measured.
    ordered = sorted(records, key=lambda record: (not record.reachable, record.role != "seed", record.peer_id))
    # Members without a record, such as a seed that waits for the first trainer, also answer.
    given = [parse_peer_multiaddr(address)[0] for address in target.addresses]
    for member in list(dict.fromkeys([*(record.peer_id for record in ordered), *given]))[:MAX_ASKED]:
        try:
            async with probing(observer.host, observer.handshake_policy, member, time.monotonic, time.time) as probe:
                line = await _ask(probe, line, observer.host.addresses())
                line = replace(line, asked=(*line.asked, member))
        except PeerFault as fault:
            line = replace(line, faults=(*line.faults, in_vain(member, fault)))
        if line.asked and line.dial_back.is_known:
            break
    return line


def in_vain(member: PeerId, fault: PeerFault) -> str:
    """Return a sentence about a failed request to a member."""
    reason = fault.reason if isinstance(fault, PeerUnreachable) else fault.what
    return f"the measurement with {speakable_name(member)} failed: {reason}"


async def _ask(probe: Probe, line: LineFacts, addresses: list[str]) -> LineFacts:
    """Return the facts with one member's answers, which replace earlier ones."""
    offset, round_trip = await probe.read_clock()
    line = replace(line, clock_offset_seconds=offset, round_trip_seconds=round_trip)
    dial_back = await probe.dial_back(addresses)
    line = replace(line, dial_back=dial_back if dial_back.is_known else line.dial_back)
    down, up = await probe.download_bits_per_second(), await probe.upload_bits_per_second()
    return replace(
        line,
        download_bits_per_second=max(down, line.download_bits_per_second or 0.0),
        upload_bits_per_second=max(up, line.upload_bits_per_second or 0.0),
    )


def _bits(mbit: float | None) -> float | None:
    return None if mbit is None else 1e6 * mbit
