"""PeerConfig: everything that a volunteer may choose. A flag overrides the file, and the file overrides the default."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NamedTuple, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from dht.ground.errors import UsageFault
from dht.ground.fields import visible
from dht.ground.regular_files import open_regular, read_regular, write_whole
from dht.identity.keys import split_run_id
from dht.identity.multiaddr import parse_multiaddr, parse_peer_multiaddr
from peer.config.data_source import OWN_PATTERN
from peer.config.validation_sentences import explain, read_toml, shown
from peer.secret_files import make_secret_folder
from peer.user_folders import RUN_RECORD_NAME as RUN_RECORD_NAME
from peer.user_folders import expanded, user_data_dir_here

CHECKPOINTS_NAME = "checkpoints"
"""The folder of checkpoints in a peer's data folder."""

OBSERVER_NAME = "observer"
"""The folder of an observer's key and pass in a peer's data folder."""

IDENTITY_NAME = "identity.key"
"""The key of a peer, in its data folder."""

ADDRESSES_NAME = "addresses.json"
"""File in a peer's data folder with the addresses at which members last reached it; its owner's invites use them."""

MAX_CACHED_PEERS = 50
"""Maximum number of stored addresses of earlier sessions: far more than a join dials, so that some still work after a
month of absence."""

MAX_CACHED_PEERS_BYTES = 64 * 1024
"""Twice the size of `MAX_CACHED_PEERS` addresses of the longest kind."""

IPV4_ANYWHERE: Final = "/ip4/0.0.0.0/tcp/0"
IPV6_ANYWHERE: Final = "/ip6/::/tcp/0"
Precision = Literal["auto", "bf16", "fp16", "fp32"]
Attention = Literal["sdpa", "eager", "flash"]
OptimizerBits = Literal["32", "8"]
BaseBits = Literal["full", "8", "4"]
TrackerKind = Literal["trackio", "wandb", "csv"]

_Given = TypeVar("_Given")
_Parsed = TypeVar("_Parsed")


def _data_dir_of(validated: dict[str, Any]) -> Path:
    return user_data_dir_here() / str(validated["run_id"])


def _identity_of(validated: dict[str, Any]) -> Path:
    folder: Path = validated["data_dir"]
    return folder / IDENTITY_NAME


class ChoiceMark(Enum):
    """Mark of a choice that not every command uses."""

    TRAINING = "training"
    """A choice about training: a seed does not use it, and a user's own loop replaces it."""
    OWN_TERMINAL = "terminal"
    """A choice about output: a user's own loop prints its figures itself."""
    ONCE = "once"
    """A choice for one start only: the command that restarts the peer omits it."""


class Shown(NamedTuple):
    """Placeholder for the value of a field in `--help`; the default for a number is N."""

    metavar: str


def _as_value_error(parse: Callable[[_Given], _Parsed], text: _Given) -> _Parsed:
    # pydantic collects ValueErrors and adds the field's name, but does not catch our own faults.
    try:
        return parse(text)
    except UsageFault as error:
        raise ValueError(str(error)) from error


def _run_id(text: str) -> str:
    _as_value_error(split_run_id, text)
    return text


def _members(addresses: tuple[str, ...]) -> tuple[str, ...]:
    for address in addresses:
        _as_value_error(parse_peer_multiaddr, address)
    return tuple(dict.fromkeys(addresses))


def _with_ports(addresses: tuple[str, ...]) -> tuple[str, ...]:
    example = "expected something like /ip4/0.0.0.0/tcp/4001"
    for address in addresses:
        parsed = _as_value_error(lambda text: parse_multiaddr(text, example), address)
        if parsed.transport is None:
            raise ValueError(f"{address!r} has no port; {example}")
        if parsed.peer_id is not None:
            raise ValueError(f"{address!r} names a peer; {example}, because this peer's id is added automatically")
    return addresses


def _own(addresses: tuple[str, ...]) -> tuple[str, ...]:
    if not addresses:
        raise ValueError("the list is empty; expected at least one address such as /ip4/0.0.0.0/tcp/0")
    return _with_ports(addresses)


def _with_kind(source: object) -> object:
    """Return a data source unchanged; refuse a bare path, which lacks the prefix with the kind of its files."""
    if isinstance(source, str) and ":" not in source:
        kind = {".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet"}.get(Path(source).suffix.lower(), "text")
        raise ValueError(
            f"{shown(source)} has no kind; expected text:, jsonl:, parquet: or tokens: and a path, or "
            f"hf:ORG/NAME@REVISION; for a file or folder on this machine, write {kind}: before the path"
        )
    return source


def _dialable(addresses: tuple[str, ...]) -> tuple[str, ...]:
    for address in _with_ports(addresses):
        if parse_multiaddr(address).port == 0:
            raise ValueError(f"{address!r} has port 0, which no member can dial; give the forwarded port")
    return addresses


def _seen(name: str) -> str:
    """Return the name without invisible characters."""
    if name.strip() and not visible(name).strip():
        raise ValueError(f"{name!a} is invisible; expected at least one visible character")
    return visible(name)


def _at_home(path: Path | None) -> Path | None:
    return None if path is None else _as_value_error(expanded, path)


class PeerConfig(BaseModel):
    """One volunteer's choices, frozen. Relative paths start at the working directory.

    A choice is defined only here. Its flag, its key in peer.toml, its help, its checks, its argument of
    `murmuration.join` and its value in the network process follow from the field.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    run_id: Annotated[str, Shown("RUN"), AfterValidator(_run_id)] = Field(description="the run: NAME.FINGERPRINT")
    peers: Annotated[tuple[str, ...], Shown("MULTIADDR..."), AfterValidator(_members), ChoiceMark.ONCE] = Field(
        default=(), strict=False, description="addresses of members to dial first; several may follow"
    )
    device: Annotated[str, Shown("DEVICE"), ChoiceMark.TRAINING] = Field(
        default="auto",
        pattern="^(auto|cpu|mps|cuda(:[0-9]{1,2})?)$",
        examples=["auto", "cpu", "cuda", "cuda:1", "mps"],
        description="device to train on: auto (the fastest available), cpu, cuda, cuda:N or mps",
    )
    devices: Annotated[int | None, ChoiceMark.TRAINING] = Field(
        default=None, ge=1, le=64, description="train on N GPUs (on cpu: N processes) as one peer; default: one"
    )
    shard: Annotated[bool, ChoiceMark.TRAINING] = Field(
        default=False, description="split the model across the devices (FSDP2)"
    )
    offload: Annotated[bool, ChoiceMark.TRAINING] = Field(
        default=False,
        description="keep reference copies in host memory; with --shard also parameters and optimizer state",
    )
    data_dir: Annotated[Path, Shown("DIR"), AfterValidator(_at_home)] = Field(
        default_factory=_data_dir_of, strict=False, description="folder for key, checkpoints and logs"
    )
    identity: Annotated[Path, Shown("FILE"), AfterValidator(_at_home)] = Field(
        default_factory=_identity_of, strict=False, description="key file of this peer; created if it is missing"
    )
    listen: Annotated[tuple[str, ...], Shown("MULTIADDR"), AfterValidator(_own)] = Field(
        default=(),
        strict=False,
        description="addresses to listen on; port 0 chooses a free port; default: all interfaces, any port",
    )
    announce: Annotated[tuple[str, ...], Shown("MULTIADDR"), AfterValidator(_dialable)] = Field(
        default=(),
        strict=False,
        description="addresses to announce to others, for a forwarded port; default: detected",
    )
    data: Annotated[str | None, Shown("SOURCE"), BeforeValidator(_with_kind), ChoiceMark.TRAINING] = Field(
        default=None,
        pattern=OWN_PATTERN,
        max_length=4096,
        examples=["stdlib:", "text:PATH", "jsonl:PATH", "parquet:PATH", "tokens:PATH", "hf:ORG/NAME@REVISION"],
        description="your own data: text:, jsonl:, parquet: or tokens:PATH, stdlib: or hf:ORG/NAME@REVISION; default: "
        "the run's own source",
    )
    data_limit_gib: Annotated[float, ChoiceMark.TRAINING] = Field(
        default=20.0,
        ge=0.01,
        le=10**6,
        description="disk space for downloaded and tokenized data, in GiB; the oldest data is deleted",
    )
    precision: Annotated[Precision, ChoiceMark.TRAINING] = Field(
        default="auto",
        description="number format for matrix products: bf16, fp16 or fp32; auto: bf16 on CUDA, fp32 elsewhere",
    )
    compile: Annotated[bool, ChoiceMark.TRAINING] = Field(
        default=False, description="train with torch.compile; needs a C++ compiler"
    )
    checkpoint_activations: Annotated[bool, ChoiceMark.TRAINING] = Field(
        default=False, description="recompute activations instead of keeping them: less memory, a third slower"
    )
    attention: Annotated[Attention | None, ChoiceMark.TRAINING] = Field(
        default=None,
        description="attention of transformers models: sdpa, eager or flash; default: the architecture's own",
    )
    optimizer_bits: Annotated[OptimizerBits, Shown("N"), ChoiceMark.TRAINING] = Field(
        default="32", description="bits of the AdamW state: 32, or 8 with bitsandbytes"
    )
    micro_batch: Annotated[int | None, ChoiceMark.TRAINING] = Field(
        default=None,
        ge=1,
        le=65_536,
        description="sequences in each backward pass per device; default: the run's batch, halved until it fits",
    )
    base: Annotated[Path | None, Shown("DIR"), AfterValidator(_at_home), ChoiceMark.TRAINING] = Field(
        default=None,
        strict=False,
        description="folder with the run's pretrained weights; default: downloaded from the hub",
    )
    base_bits: Annotated[BaseBits, ChoiceMark.TRAINING] = Field(
        default="full",
        description="bits of the pretrained weights under an adapter: full (unchanged), or 8 or 4 (bitsandbytes)",
    )
    max_steps: Annotated[int | None, ChoiceMark.TRAINING, ChoiceMark.ONCE] = Field(
        default=None, ge=1, le=10**12, description="leave the run after this many inner steps"
    )
    name: Annotated[str, Shown("TEXT"), AfterValidator(_seen)] = Field(
        default="",
        pattern=r"^[^\p{C}]*$",
        max_length=40,
        examples=["one line of printable text"],
        description="your public name; default: anonymous",
    )
    site: Annotated[str, Shown("NAME")] = Field(
        default="",
        pattern="^[a-z0-9-]{0,40}$",
        examples=["1 to 40 of a-z, 0-9 and -"],
        description="public name of this location; a mean crosses between two locations about once; default: none",
    )
    contributor_key: Annotated[Path | None, Shown("FILE"), AfterValidator(_at_home)] = Field(
        default=None,
        strict=False,
        description="key file of the person who gets the credit for this machine, from `peer profile set`",
    )
    join_timeout_seconds: Annotated[float, Shown("SECONDS")] = Field(
        default=300.0, ge=0, le=10**9, description="give up if no member answers for this long"
    )
    threads: Annotated[int | None, ChoiceMark.TRAINING] = Field(
        default=None, ge=1, le=4096, description="CPU threads of the trainer; default: all"
    )
    checkpoint_minutes: float = Field(
        default=10.0, gt=0, le=10**6, description="minutes between checkpoints; the first checkpoints come sooner"
    )
    track: Annotated[TrackerKind | None, ChoiceMark.TRAINING] = Field(
        default=None,
        description="record losses, tokens and rates: trackio, wandb or csv (in the data folder)",
    )
    upload_limit_mbit: Annotated[float | None, Shown("MBIT")] = Field(
        default=None, ge=0.2, le=10**6, description="highest upload rate in Mbit/s; default: no limit"
    )
    download_limit_mbit: Annotated[float | None, Shown("MBIT")] = Field(
        default=None, ge=0.2, le=10**6, description="highest download rate in Mbit/s; default: no limit"
    )
    serve_limit_mbit: Annotated[float | None, Shown("MBIT")] = Field(
        default=None,
        ge=0.2,
        le=10**6,
        description="maximum rate in Mbit/s for newcomers' downloads; default: the bandwidth that rounds leave free",
    )
    map_ports: bool = Field(
        default=False, description="ask the router to forward the port (UPnP, NAT-PMP: multicast in the local network)"
    )
    relay: bool = Field(default=True, description="use members as relays if this peer cannot be dialled")
    relay_for_others: bool | None = Field(
        default=None,
        description="relay for members that cannot be dialled; default: only seeds, and none in private runs",
    )
    output: Annotated[Literal["auto", "panel", "plain", "json"], ChoiceMark.OWN_TERMINAL] = Field(
        default="auto",
        description="auto: the panel on a terminal, otherwise plain: news and a line every 30 s",
    )

    @property
    def listen_addresses(self) -> tuple[str, ...]:
        """Multiaddrs at which this peer listens."""
        return self.listen or default_listen()

    @property
    def cached_peers_path(self) -> Path:
        """File with the addresses of earlier sessions."""
        return self.data_dir / "cached_peers.json"

    @property
    def run_record_path(self) -> Path:
        """File with the signed manifest of the run; absent on a volunteer's machine until it is downloaded."""
        return self.data_dir / RUN_RECORD_NAME

    @property
    def checkpoints_path(self) -> Path:
        """Folder of the checkpoints."""
        return self.data_dir / CHECKPOINTS_NAME

    @property
    def observer_path(self) -> Path:
        """Folder with the key and the pass of an observer of a private run."""
        return self.data_dir / OBSERVER_NAME

    @property
    def event_log_path(self) -> Path:
        """File with this peer's events as JSON lines."""
        return self.data_dir / "events.jsonl"


def load_config(flags: Mapping[str, object], path: str | Path | None = None) -> PeerConfig:
    """Combine flags, file and defaults.

    Args:
        flags: field name -> value of the flag; None if the flag is absent.
        path: a TOML file with any fields of `PeerConfig`.

    Raises:
        UsageFault: the file cannot be read, or a value is wrong; the message names the file's field or the flag.
    """
    from_file = read_toml(path, "file of a peer's choices") if path is not None else {}
    try:
        # Check the file alone first, so that a mistake in the file is not reported for a flag.
        PeerConfig.model_validate({"run_id": "any.aaaaaaaaaaaaaaaaaaaa", "data_dir": "any", **from_file})
    except ValidationError as error:
        raise UsageFault(f"{path}: {explain(error, PeerConfig)}") from error
    given = {name: value for name, value in flags.items() if value is not None}
    if "run_id" not in given and "run_id" not in from_file:
        raise UsageFault(
            "Which run? Expected RUN: its id, its page (https://...) or its murmuration:// link, as in `peer join "
            "RUN`; ask the run's owner for it. To train on your own: `peer demo`."
        )
    try:
        return PeerConfig.model_validate(from_file | given)
    except ValidationError as error:
        raise UsageFault(explain(error, PeerConfig, flag_of)) from error


def choices_with(mark: ChoiceMark) -> tuple[str, ...]:
    """Return the names of the fields of `PeerConfig` that have `mark`, in their order."""
    return tuple(name for name, field in PeerConfig.model_fields.items() if mark in field.metadata)


def flag_of(field_name: str) -> str:
    """Return the command line flag of a field of `PeerConfig`."""
    return "--" + field_name.removesuffix("_seconds").replace("_", "-")


def default_listen() -> tuple[str, ...]:
    """Return multiaddrs with port 0, one for each IP version of this machine."""
    return (IPV4_ANYWHERE, IPV6_ANYWHERE) if has_ipv6() else (IPV4_ANYWHERE,)


def has_ipv6() -> bool:
    """Return whether this machine has an IPv6 address; the loopback address is enough."""
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


def make_data_dir(config: PeerConfig) -> None:
    """Create this peer's data folder.

    Raises:
        LocalFault: the folder cannot be created.
    """
    make_secret_folder(config.data_dir, "give another --data-dir")


def other_run_in(config: PeerConfig) -> str:
    """Return a phrase if the data folder holds the manifest of a different run, which would be lost; otherwise ""."""
    from dht.records.signed_manifest import MAX_RUN_RECORD_BYTES, claimed_run_id

    try:
        claimed = claimed_run_id(read_regular(config.run_record_path, MAX_RUN_RECORD_BYTES))
    except OSError:
        return ""
    return "" if claimed in (None, config.run_id) else f"the data folder {config.data_dir} belongs to the run {claimed}"


def read_cached_peers(path: Path) -> list[str]:
    """Return the addresses of earlier sessions, most recently seen first; empty if there is no usable file.

    The file is only a convenience, so entries that are not dialable addresses are skipped without an error.
    """
    try:
        with open_regular(path) as file:
            data = file.read(MAX_CACHED_PEERS_BYTES + 1)
        entries = json.loads(data) if len(data) <= MAX_CACHED_PEERS_BYTES else []
    except (OSError, ValueError, RecursionError):
        return []
    if not isinstance(entries, list):
        return []
    return [entry for entry in entries if isinstance(entry, str) and _is_dialable(entry)][:MAX_CACHED_PEERS]


def write_cached_peers(path: Path, addresses: Iterable[str]) -> None:
    """Replace the file's contents with at most `MAX_CACHED_PEERS` of `addresses`, most recently seen first.

    The replacement is atomic: the earlier file survives a crash or a full disk.

    Raises:
        OSError: the folder cannot be written or the disk is full.
    """
    kept = list(dict.fromkeys(address for address in addresses if _is_dialable(address)))[:MAX_CACHED_PEERS]
    write_whole(path, json.dumps(kept, indent=1).encode())


def _is_dialable(address: str) -> bool:
    try:
        parse_peer_multiaddr(address)
    except UsageFault:
        return False
    return True
