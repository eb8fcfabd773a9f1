"""The `peer` command: arguments in, exit code out.

Everything heavy (torch, hivemind, aiohttp, pydantic) is imported by the command that needs it, so that help and
a mistyped flag are answered at once.

Exit codes: 0 well; 1 a fault of this machine or a bug; 2 a wrong flag, file or value; 3 nobody reachable;
4 incompatible; 5 device; 130 interrupted with Ctrl+C.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from dht.errors import UsageFault
from peer.address_flags import spread_peers
from peer.model_source import CheckpointSource, ModelFileSource, ModelSource, RunSource
from peer.outcome import reporting

app = typer.Typer(
    name="peer",
    help="Train one model together with volunteers over home internet lines.",
    epilog="\b\nExample:\n  peer join --run-id RUN --peers /ip4/203.0.113.5/tcp/4001/p2p/12D3KooW...",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

RunId = Annotated[str | None, typer.Option("--run-id", metavar="RUN", help="The run: NAME.FINGERPRINT.")]
Peers = Annotated[
    list[str] | None,
    typer.Option("--peers", metavar="MULTIADDR...", help="Addresses of members to dial first; several may follow."),
]
DataDir = Annotated[
    str | None, typer.Option("--data-dir", metavar="DIR", help="Where key, checkpoints and logs are kept.")
]
ConfigFile = Annotated[
    str | None, typer.Option("--config", metavar="FILE", help="A peer.toml with the same choices; flags beat it.")
]
IdentityFile = Annotated[
    str | None, typer.Option("--identity", metavar="FILE", help="Key file of this peer; made when it is missing.")
]
Listen = Annotated[
    list[str] | None,
    typer.Option("--listen", metavar="MULTIADDR", help="Where to listen; default /ip4/0.0.0.0/tcp/0 (any free port)."),
]
Announce = Annotated[
    list[str] | None,
    typer.Option("--announce", metavar="MULTIADDR", help="What to tell others, for a forwarded port."),
]
DisplayName = Annotated[
    str | None, typer.Option("--name", metavar="TEXT", help="A name shown to everybody; default: anonymous.")
]
JoinTimeout = Annotated[
    float | None,
    typer.Option("--join-timeout", metavar="SECONDS", help="Give up when nobody answers for so long; default 300."),
]
LookTimeout = Annotated[
    float, typer.Option("--timeout", min=0.1, max=3600, metavar="SECONDS", help="How long to look for members.")
]
ModelPath = Annotated[
    Path | None, typer.Option("--model", metavar="FILE", help="A model file that `peer export` wrote.")
]
CheckpointMinutes = Annotated[
    float | None, typer.Option("--checkpoint-minutes", metavar="N", help="Minutes between checkpoints; default 10.")
]
CheckpointsKept = Annotated[
    int | None, typer.Option("--checkpoints-kept", metavar="N", help="Checkpoints that stay on the disk; default 2.")
]
Checkpoint = Annotated[
    Path | None,
    typer.Option("--checkpoint", metavar="DIR", help="Data folder of a peer here, in place of live members."),
]
ModelDevice = Annotated[str, typer.Option("--device", metavar="DEVICE", help="auto, cpu, cuda, cuda:N or mps.")]
AsJson = Annotated[bool, typer.Option("--json", help="JSON on standard output.")]
AsPlain = Annotated[bool, typer.Option("--plain", help="One plain line per event, also on a terminal.")]
Port = Annotated[int, typer.Option("--port", min=0, max=65_535, help="Port of the page; 0 takes a free one.")]


def main() -> NoReturn:
    """Entry point of the `peer` script."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Run one command line (without the program's name) and return its exit code; prints, never raises."""
    command = typer.main.get_command(app)
    try:
        command.main(spread_peers(arguments), prog_name="peer")
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    return 0


@app.command(
    short_help="Make a run: owner key and signed manifest.",
    epilog="\b\nExample:\n  peer init tinybytes\n  peer init tinybytes --config run.toml --out ./tinybytes",
)
@reporting
def init(
    name: Annotated[str, typer.Argument(metavar="NAME", help="1 to 40 of a-z, 0-9 and '-'.", show_default=False)],
    config: Annotated[
        str | None, typer.Option("--config", metavar="FILE", help="A run.toml with fields of the run manifest.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="Where to write; default: the run's data folder.")
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Sign again over the run in DIR: same owner key, next revision.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Make a run: the owner's key and the signed manifest that all its peers follow."""
    from peer.new_run import create_run

    made = create_run(name, config, out, replace=force)
    seed_line = f"peer seed --run-id {made.run_id}"
    if out is not None:
        seed_line += f" --data-dir {out}"
    join_line = f"peer join --run-id {made.run_id} --peers ADDRESS"
    if as_json:
        facts = {
            "run_id": made.run_id,
            "manifest_hash": made.manifest.hash.hex(),
            "revision": made.manifest.revision,
            "owner_key": str(made.owner_key_path),
            "run_record": str(made.run_record_path),
            "seed": seed_line,
            "join": join_line,
        }
        print(json.dumps(facts))
        return
    print(f"Run id      {made.run_id}")
    print(f"Owner key   {made.owner_key_path}  (keep a copy: it alone can change the run)")
    print(f"Manifest    {made.run_record_path}")
    print()
    print(f"Start it:   {seed_line}")
    print(f"Join it:    {join_line}")
    print("            ADDRESS is any of those that `peer seed` prints when it is up.")


@app.command(
    short_help="Join a run and train.",
    epilog="\b\nExample:\n  peer join --run-id tinybytes.abcdefghij234567abcd \\\n"
    "            --peers /ip4/203.0.113.5/tcp/4001/p2p/12D3KooW... --device cuda",
)
@reporting
def join(
    run_id: RunId = None,
    peers: Peers = None,
    device: Annotated[
        str | None, typer.Option("--device", metavar="DEVICE", help="auto, cpu, cuda, cuda:N or mps; default auto.")
    ] = None,
    identity: IdentityFile = None,
    listen: Listen = None,
    announce: Announce = None,
    data: Annotated[
        str | None,
        typer.Option("--data", metavar="SOURCE", help="Own data: text:PATH, tokens:PATH or stdlib:."),
    ] = None,
    data_dir: DataDir = None,
    max_steps: Annotated[
        int | None, typer.Option("--max-steps", metavar="N", help="Leave after this many inner steps.")
    ] = None,
    name: DisplayName = None,
    join_timeout: JoinTimeout = None,
    threads: Annotated[
        int | None, typer.Option("--threads", metavar="N", help="CPU threads of the trainer; default: all.")
    ] = None,
    checkpoint_minutes: CheckpointMinutes = None,
    checkpoints_kept: CheckpointsKept = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
    plain: AsPlain = False,
) -> int:
    """Join a run and train: find the others, catch up, and share what this machine learns."""
    flags = {
        "run_id": run_id,
        "peers": peers or None,
        "device": device,
        "identity": identity,
        "listen": listen or None,
        "announce": announce or None,
        "data": data,
        "data_dir": data_dir,
        "max_steps": max_steps,
        "name": name,
        "join_timeout_seconds": join_timeout,
        "threads": threads,
        "checkpoint_minutes": checkpoint_minutes,
        "checkpoints_kept": checkpoints_kept,
        "output": _output_of(as_json, plain),
    }
    return _run_peer(flags, config, seed_only=False)


@app.command(
    short_help="Help a run without training.",
    epilog="\b\nExample:\n  peer seed --run-id tinybytes.abcdefghij234567abcd \\\n"
    "            --listen /ip4/0.0.0.0/tcp/4001",
)
@reporting
def seed(
    run_id: RunId = None,
    peers: Peers = None,
    identity: IdentityFile = None,
    listen: Listen = None,
    announce: Announce = None,
    data_dir: DataDir = None,
    name: DisplayName = None,
    join_timeout: JoinTimeout = None,
    checkpoint_minutes: CheckpointMinutes = None,
    checkpoints_kept: CheckpointsKept = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
    plain: AsPlain = False,
) -> int:
    """Help a run without training: be an address to join at, and serve its state to newcomers."""
    flags = {
        "run_id": run_id,
        "peers": peers or None,
        "identity": identity,
        "listen": listen or None,
        "announce": announce or None,
        "data_dir": data_dir,
        "name": name,
        "join_timeout_seconds": join_timeout,
        "checkpoint_minutes": checkpoint_minutes,
        "checkpoints_kept": checkpoints_kept,
        "output": _output_of(as_json, plain),
    }
    return _run_peer(flags, config, seed_only=True)


@app.command(
    short_help="Show a run from outside.",
    epilog="\b\nExample:\n  peer status --run-id tinybytes.abcdefghij234567abcd \\\n"
    "              --peers /ip4/203.0.113.5/tcp/4001/p2p/12D3KooW...",
)
@reporting
def status(
    run_id: RunId = None,
    peers: Peers = None,
    timeout: LookTimeout = 20.0,
    as_json: AsJson = False,
) -> int:
    """Show a run from outside: its peers, versions, rates and loss."""
    known, addresses = _checked_target(run_id, peers)
    from peer.status import show_status

    return show_status(known, addresses, as_json, timeout)


@app.command(
    short_help="Serve a web page about a run.",
    epilog="\b\nExample:\n  peer dashboard --run-id tinybytes.abcdefghij234567abcd \\\n"
    "                 --peers /ip4/203.0.113.5/tcp/4001/p2p/12D3KooW... --port 8470",
)
@reporting
def dashboard(
    run_id: RunId = None,
    peers: Peers = None,
    host: Annotated[
        str, typer.Option("--host", metavar="ADDRESS", help="Where to serve; 0.0.0.0 shows it to everybody.")
    ] = "127.0.0.1",
    port: Port = 8470,
) -> int:
    """Serve a web page that shows who contributes to a run and how it learns."""
    known, addresses = _checked_target(run_id, peers)
    from dashboard.app import serve_dashboard
    from peer.observing import open_commits

    return serve_dashboard(known, addresses, host, port, open_commits=open_commits)


@app.command(
    short_help="Take the model of a run home.",
    epilog="\b\nExample:\n  peer export --run-id tinybytes.abcdefghij234567abcd \\\n"
    "              --peers /ip4/203.0.113.5/tcp/4001/p2p/12D3KooW... \\\n"
    "              --out model.safetensors",
)
@reporting
def export(
    run_id: RunId = None,
    peers: Peers = None,
    checkpoint: Checkpoint = None,
    out: Annotated[
        Path, typer.Option("--out", metavar="FILE", help="Where the model goes; config.json goes beside it.")
    ] = Path("model.safetensors"),
    force: Annotated[bool, typer.Option("--force", help="Replace files that are there already.")] = False,
    timeout: LookTimeout = 20.0,
    as_json: AsJson = False,
) -> int:
    """Take the model of a run home: its parameters, confirmed by the members, as a safetensors file."""
    source = _model_source(None, checkpoint, run_id, peers, timeout)
    from peer.taking_home import export_model

    return int(export_model(source, out, force, as_json))


@app.command(
    short_help="Let a model say something.",
    epilog="\b\nExample:\n  peer sample --model model.safetensors --prompt hello --seed 7",
)
@reporting
def sample(
    prompt: Annotated[
        str, typer.Option("--prompt", metavar="TEXT", help="What the model goes on from.", show_default=False)
    ],
    model: ModelPath = None,
    run_id: RunId = None,
    peers: Peers = None,
    checkpoint: Checkpoint = None,
    max_tokens: Annotated[
        int, typer.Option("--max-tokens", min=1, max=10**6, metavar="N", help="Tokens to draw.")
    ] = 200,
    temperature: Annotated[
        float, typer.Option("--temperature", min=0, max=100, metavar="X", help="0 takes the likeliest every time.")
    ] = 0.8,
    seed: Annotated[
        int, typer.Option("--seed", min=0, max=2**53 - 1, metavar="N", help="Same seed, same text (on the CPU).")
    ] = 0,
    device: ModelDevice = "auto",
    timeout: LookTimeout = 20.0,
) -> int:
    """Let a model say something: from a file, from a checkpoint or from a live run."""
    source = _model_source(model, checkpoint, run_id, peers, timeout)
    from peer.taking_home import sample_model

    return int(sample_model(source, prompt, max_tokens, temperature, seed, device))


@app.command(
    short_help="Measure the held-out loss of a model.",
    epilog="\b\nExample:\n  peer evaluate --model model.safetensors --json",
)
@reporting
def evaluate(
    model: ModelPath = None,
    run_id: RunId = None,
    peers: Peers = None,
    checkpoint: Checkpoint = None,
    data: Annotated[
        str | None,
        typer.Option("--data", metavar="SOURCE", help="Measure on this: text:PATH, tokens:PATH or stdlib:."),
    ] = None,
    device: ModelDevice = "auto",
    timeout: LookTimeout = 20.0,
    as_json: AsJson = False,
) -> int:
    """Measure the held-out loss of a model: from a file, from a checkpoint or from a live run."""
    source = _model_source(model, checkpoint, run_id, peers, timeout)
    from peer.taking_home import evaluate_model

    return int(evaluate_model(source, data, device, as_json))


@app.command(
    short_help="Train with a local swarm of real peers.", epilog="\b\nExample:\n  peer demo --peers 4 --minutes 3"
)
@reporting
def demo(
    peers: Annotated[int, typer.Option("--peers", min=2, max=64, metavar="N", help="Peers at the start.")] = 3,
    minutes: Annotated[float, typer.Option("--minutes", min=0.1, max=1440, help="How long to train.")] = 2.0,
    as_json: Annotated[bool, typer.Option("--json", help="Summary as one JSON object on the last line.")] = False,
    dashboard: Annotated[bool, typer.Option("--dashboard/--no-dashboard", help="Serve the web page meanwhile.")] = True,
    port: Port = 8470,
) -> int:
    """Train with a swarm of real peers on this machine; one is killed, one comes late."""
    from peer.demo import run_demo

    return int(run_demo(peers, minutes, as_json, dashboard, port))


@app.command(
    short_help="Say what a run will ask of a home.", epilog="\b\nExample:\n  peer plan run.toml --peers homes.toml"
)
@reporting
def plan(
    run: Annotated[
        Path | None, typer.Argument(metavar="RUN_FILE", help="A run.toml or a manifest.", show_default=False)
    ] = None,
    peers: Annotated[
        Path | None, typer.Option("--peers", metavar="FILE", help="Homes: lines, speeds, a goal; see docs/planning.md.")
    ] = None,
    table: Annotated[bool, typer.Option("--table", help="Bandwidth needed, against published figures.")] = False,
    as_json: AsJson = False,
) -> int:
    """Say what a run will ask of a home: bytes, Mbit/s, round time, memory, disk, time to a number of tokens."""
    from peer.plan_report import run_plan

    return int(run_plan(run, peers, table, as_json))


@app.command(
    short_help="Run a swarm in virtual time.",
    epilog="\b\nExample:\n  peer simulate home --seed 7",
)
@reporting
def simulate(
    scenario: Annotated[
        str | None,
        typer.Argument(metavar="SCENARIO", help="A scenario's name, or a scenario.toml.", show_default=False),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option("--seed", min=0, max=2**53 - 1, metavar="N", help="Same seed, same trace; default: the file's."),
    ] = None,
    as_json: AsJson = False,
    list_them: Annotated[bool, typer.Option("--list", help="Show the scenarios that come with the program.")] = False,
    peers: Annotated[
        int | None,
        typer.Option("--peers", min=1, max=4096, metavar="N", help="Without SCENARIO: equal peers; default 32."),
    ] = None,
    steps: Annotated[
        int | None,
        typer.Option("--steps", min=1, max=10**6, metavar="N", help="Inner steps of the fastest; default 200."),
    ] = None,
    churn: Annotated[
        float | None,
        typer.Option("--churn", min=0, max=1, metavar="SHARE", help="Share that crashes or comes late; default 0.1."),
    ] = None,
) -> int:
    """Run a whole swarm in virtual time on a simulated network, to plan runs, to find faults and to replay them."""
    if list_them:
        from peer.simulating import list_scenarios

        return int(list_scenarios(as_json))
    if scenario is None:
        from peer.simulating import run_simulation

        num_peers, inner_steps = 32 if peers is None else peers, 200 if steps is None else steps
        return int(run_simulation(num_peers, inner_steps, seed or 0, 0.1 if churn is None else churn, as_json))
    if (peers, steps, churn) != (None, None, None):
        raise UsageFault("--peers, --steps and --churn are given beside a scenario; expected them in its file.")
    from peer.simulating import run_scenario

    return int(run_scenario(scenario, seed, as_json))


def _run_peer(flags: Mapping[str, object], config_path: str | None, *, seed_only: bool) -> int:
    from peer.config import load_config

    # Checked before torch is imported: a mistyped flag must not cost seconds.
    config = load_config(flags, config_path)
    from peer.joining import run_peer

    return int(run_peer(config, seed_only))


def _output_of(as_json: bool, plain: bool) -> str | None:
    if as_json and plain:
        raise UsageFault("--json and --plain are given together; expected one of them.")
    return "json" if as_json else "plain" if plain else None


def _model_source(
    model: Path | None, checkpoint: Path | None, run_id: str | None, peers: list[str] | None, timeout_seconds: float
) -> ModelSource:
    """The one place a model is taken from."""
    if model is not None:
        if checkpoint is not None or run_id is not None or peers:
            raise UsageFault("--model is given beside another source; expected --model alone, or --run-id.")
        return ModelFileSource(model)
    if checkpoint is not None:
        from peer.config import load_config

        if peers:
            raise UsageFault("--checkpoint and --peers are given together; expected one of them.")
        return CheckpointSource(load_config({"run_id": run_id}).run_id, checkpoint)
    if run_id is None:
        raise UsageFault("No model is named; expected --model FILE, or --run-id RUN with --peers or --checkpoint.")
    known, addresses = _checked_target(run_id, peers)
    return RunSource(known, tuple(addresses), timeout_seconds)


def _checked_target(run_id: str | None, peers: list[str] | None) -> tuple[str, list[str]]:
    """The run and the addresses an observer starts from; without `--peers`, those of earlier sessions here."""
    from peer.config import load_config, read_cached_peers

    config = load_config({"run_id": run_id, "peers": peers or None})
    addresses = list(config.peers) or read_cached_peers(config.cached_peers_path)
    if not addresses:
        raise UsageFault(
            f"No address of a member of {config.run_id} is known on this machine; expected --peers MULTIADDR; "
            "take one from the run's page or from what `peer seed` prints."
        )
    return config.run_id, addresses
