"""The facts that `peer doctor` collects about a machine, a run, and the connection between them, without judgement.
Pure.
"""

from __future__ import annotations

from dataclasses import dataclass

from peer.network.reachability.probe_client import DialBack
from peer.plan.usual_home_needs import HomeNeeds

NOT_DIALLED = DialBack()


@dataclass(frozen=True, slots=True)
class MachineFacts:
    """Facts about this machine, without a run.

    Attributes:
        versions: versions of this software and its dependencies; empty: missing.
        device: name of the device; empty with a `device_fault`, the sentence why it is unusable.
        device_free_bytes: free memory of the device itself; None: it uses the machine's memory, or unknown.
        memory_free_bytes: memory of the machine that processes may use without swapping; None: unknown.
        disk_free_bytes: free space at the data folder's place; None: unknown.
        port_fault: the sentence why the listen addresses are unusable; empty: they are usable.
        congestion_control: TCP congestion control, by the kernel's name; empty: unknown.
        folder_fault: the sentence why the data folder is not writable; empty: it is.
        kernels_fault: the sentence why there are no compiled kernels; empty: there are.
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
    """Facts about the run, according to its members.

    Attributes:
        own_manifest_hash: hash of the manifest left by an earlier session; empty: none.
        newer_software: newest software of members, if newer than this machine's; empty: none is newer.
        minimum_software: software version that the owner requires now; empty: any.
        num_others: members with a different manifest.
        needs: None for a model from its owner's own code.
        own_code_hint: location of that code; empty for every other model.
        model_fault: the sentence why this machine cannot build the run's model; empty: it can.
        data: the data that this machine would train on; empty for a model from its owner's own code.
        data_fault: the missing data; empty: none.
        data_fault_code: exit code of the `data_fault`; 0: the user has not chosen data.
        weights: the pretrained weights of the run, and their place on this machine; empty: it needs none.
        weights_fault: why the weights are unavailable here; empty: they are available.
        weights_fault_code: exit code of the `weights_fault`; 0: the user has not given a folder.
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
    """The connection between this machine and members of the run; None: not measured.

    Attributes:
        asked: PeerIds of the members that answered.
        upload_limit_bits_per_second, download_limit_bits_per_second: limits of this machine's owner.
        own_addresses: this machine's listen addresses as it sees them, with its PeerId.
        faults: why members did not answer some questions.
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
    """All facts; `run_fault` is the sentence why no run could be asked, with its exit code.

    Attributes:
        run_remedy: what to do about the `run_fault`; empty: unknown.
    """

    machine: MachineFacts
    run: ReportedRun | None = None
    line: LineFacts = NOT_MEASURED
    run_fault: str = ""
    run_remedy: str = ""
    run_fault_code: int = 0
