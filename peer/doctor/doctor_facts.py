"""What `peer doctor` found out about a machine, a run, and the line between them: values that say nothing yet. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from peer.network.reachability.probe_client import DialBack
from peer.plan.usual_home_needs import HomeNeeds

NOT_DIALLED = DialBack()


@dataclass(frozen=True, slots=True)
class MachineFacts:
    """This machine, without a run.

    Attributes:
        versions: of this software and what it stands on, empty: missing.
        device: as people know it; empty with a `device_fault`, the sentence of why it cannot be used.
        device_free_bytes: memory of the device itself; None: it trains in the machine's memory, or nobody knows.
        memory_free_bytes: of the machine, as much as processes may take without swapping; None: unknown.
        disk_free_bytes: where the data folder is, or would be; None: unknown.
        port_fault: the sentence of why the addresses to listen on cannot be used; empty: they can.
        congestion_control: of TCP, as the kernel calls it; empty: unknown.
        folder_fault: the sentence of why the data folder cannot be written; empty: it can.
        kernels_fault: the sentence of why there are no compiled kernels; empty: there are.
        has_way_out: whether a network leads out of this machine.
    """

    versions: dict[str, str]
    device: str
    device_fault: str
    device_free_bytes: int | None
    memory_free_bytes: int | None
    disk_free_bytes: int | None
    data_dir: str
    port_fault: str
    congestion_control: str = ""
    kernels_fault: str = ""
    folder_fault: str = ""
    has_way_out: bool = True


@dataclass(frozen=True, slots=True)
class ReportedRun:
    """The run, as its members tell it.

    Attributes:
        own_manifest_hash: of the manifest that an earlier session left here; empty: none.
        newer_software: what members run that is newer than ours; empty: nothing is.
        minimum_software: what the run's owner asks for now; empty: anything.
        num_others: members that follow another manifest.
        needs: None for a model from its owner's own code.
        own_code_hint: where that code is; empty for every other model.
        model_fault: the sentence of why this machine cannot build the run's model; empty: it can.
        data: what this machine would train on; empty for a model from its owner's own code.
        data_fault: what is missing; empty: nothing.
        data_fault_code: of the `data_fault`; 0: nobody said which data.
        weights: the given ones that the run stands on, and where this machine has them; empty: it needs none.
        weights_fault: why they cannot be had here; empty: they can.
        weights_fault_code: of the `weights_fault`; 0: nobody said where they are.
    """

    run_id: str
    manifest_hash: str
    own_manifest_hash: str
    num_members: int
    num_others: int
    newer_software: str
    minimum_software: str
    has_ended: bool
    needs: HomeNeeds | None
    own_code_hint: str = ""
    model_fault: str = ""
    data: str = ""
    data_fault: str = ""
    data_fault_code: int = 0
    weights: str = ""
    weights_fault: str = ""
    weights_fault_code: int = 0


@dataclass(frozen=True, slots=True)
class LineFacts:
    """The line between this machine and members of the run; None: not measured.

    Attributes:
        asked: PeerIds of the members that answered.
        upload_limit_bits_per_second, download_limit_bits_per_second: what the owner of this machine allows.
        own_addresses: what this machine listens on, as it sees itself, with its PeerId.
        faults: why members did not answer a part of it.
    """

    asked: tuple[str, ...] = ()
    clock_offset_seconds: float | None = None
    round_trip_seconds: float | None = None
    upload_bits_per_second: float | None = None
    download_bits_per_second: float | None = None
    upload_limit_bits_per_second: float | None = None
    download_limit_bits_per_second: float | None = None
    dial_back: DialBack = NOT_DIALLED
    own_addresses: tuple[str, ...] = ()
    faults: tuple[str, ...] = ()


NOT_MEASURED = LineFacts()


@dataclass(frozen=True, slots=True)
class DoctorFacts:
    """Everything; `run_fault` is the sentence of why no run could be asked, with the exit code that goes with it.

    Attributes:
        run_remedy: what to do about the `run_fault`; empty: nothing is known to help.
    """

    machine: MachineFacts
    run: ReportedRun | None = None
    line: LineFacts = NOT_MEASURED
    run_fault: str = ""
    run_remedy: str = ""
    run_fault_code: int = 0
