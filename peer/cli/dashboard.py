"""`peer dashboard`: serves a web page about a run."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from dht.ground.errors import Incompatible, LocalFault, NobodyReachable, UsageFault, writing
from dht.observer.host_choice import choose_backend
from peer.cli.options import PAGE_PORT, Backend, InviteFile, Peers, Port, Run, RunId
from peer.cli.usage.exit_codes import exits_with_sentence
from peer.cli.usage.plain_command import Commands
from peer.console.notices import notice
from peer.observe.named_run import named_run
from peer.observe.run_and_address import Target, checked_target
from peer.optional_libraries import check_page_extra

app = Commands()


MAX_INSTALL_LENGTH = 400


FIRST_LOOK_SECONDS = 2.0
"""Seconds that the start of a page waits for a member to answer."""


@app.command(
    epilog="\b\nExample:\n  peer dashboard --run-id tinybytes.abcdefghij234567abcd \\\n"
    "                 --peers /ip4/203.0.113.5/tcp/4001/p2p/12D3KooW... --port 8080",
)
@exits_with_sentence
def dashboard(
    run: Run = None,
    run_id: RunId = None,
    peers: Peers = None,
    invite: InviteFile = None,
    host: Annotated[
        str, typer.Option("--host", metavar="ADDRESS", help="Address to serve on; 0.0.0.0 makes it public.")
    ] = "127.0.0.1",
    port: Port = PAGE_PORT,
    db: Annotated[
        Path | None,
        typer.Option(
            "--db", metavar="FILE", help="File of the history; default: in the run's data folder; :memory: keeps none."
        ),
    ] = None,
    token_file: Annotated[
        Path | None, typer.Option("--token-file", metavar="FILE", help="Require the token in FILE from readers.")
    ] = None,
    join_address: Annotated[
        list[str] | None,
        typer.Option(
            "--join-address",
            metavar="MULTIADDR",
            help="A member's address to show to newcomers; default: the seeds in --peers.",
        ),
    ] = None,
    no_join_address: Annotated[bool, typer.Option("--no-join-address", help="Show no address to join at.")] = False,
    install: Annotated[
        str | None,
        typer.Option(
            "--install",
            metavar="COMMAND",
            help="Install command that the page shows; default: the origin of this copy.",
        ),
    ] = None,
    page_address: Annotated[
        str,
        typer.Option(
            "--page-address",
            metavar="URL",
            help="Public address of the page, for links and cards; default: the address that each visitor used.",
        ),
    ] = "",
    samples_every: Annotated[
        str,
        typer.Option(
            "--samples-every",
            metavar="TIME",
            help="Shortest time between samples of the model's text on the page, such as 90s, 20min, 1h, or never.",
        ),
    ] = "1h",
    prompt: Annotated[
        list[str] | None,
        typer.Option("--prompt", metavar="TEXT", help="Prompt for these samples; repeat for several."),
    ] = None,
    base: Annotated[
        Path | None,
        typer.Option("--base", metavar="DIR", help="Pretrained weights of an adapter, for these samples."),
    ] = None,
    evaluations: Annotated[
        Path | None,
        typer.Option(
            "--evaluations",
            metavar="FILE",
            help="File with lines of `peer evaluate --tasks ... --json`, to show as curves.",
        ),
    ] = None,
    track: Annotated[
        str | None,
        typer.Option(
            "--track",
            metavar="NAME",
            help="Record the run's values: trackio, wandb or csv (in the run's data folder).",
        ),
    ] = None,
    runs: Annotated[
        Path | None,
        typer.Option(
            "--runs", metavar="FILE", help="Several runs on one dashboard: a TOML file with one [[run]] per run."
        ),
    ] = None,
    host_backend: Backend = None,
) -> int:
    """Serve a web page that shows a run's contributors and its progress."""
    own = {"RUN": run, "--run-id": run_id, "--peers": peers, "--invite": invite, "--db": db, "--base": base}
    given = [name for name, value in {**own, "--join-address": join_address}.items() if value]
    if runs is not None and given:
        raise UsageFault(
            f"{given[0]} was given with --runs; expected only one of them; set it for each run in the file"
        )
    backend = choose_backend(host_backend)
    from dashboard.history.database import check_folder
    from dashboard.samples.sample_schedule import SamplePlan, sample_plan
    from dashboard.server.free_port import check_free
    from dashboard.several_runs.run_list import read_run_list
    from dht.identity.multiaddr import parse_peer_multiaddr
    from peer.observe.own_runs import is_page_here

    if join_address and no_join_address:
        raise UsageFault("--join-address and --no-join-address were given together; give one of them")

    # Checked before the import of the server, which takes a second.
    check_page_extra("`peer dashboard`")
    _check_host(host)
    its_address, its_install = _address(page_address), _line_of(install)
    its_samples = sample_plan(samples_every, prompt or (), base)
    several = None if runs is None else read_run_list(runs)
    named = named_run(run, run_id, peers)
    one = None if several is not None else checked_target(named.run_id, named.peers, invite, None, named.end)
    try:
        check_free(host, port)
    except UsageFault as fault:
        there = f"http://{'127.0.0.1' if host == '0.0.0.0' else host}:{port}"
        if one is None or not is_page_here(one.run_id, there):
            raise
        raise UsageFault(
            f"a dashboard of this run is already running at {there}/; open it, or give another port with --port"
        ) from fault
    if one is not None:
        if db is not None and str(db) != ":memory:":
            check_folder(db)
        _say_who_answers(one)
    from dashboard.app import Choices, ShownRun, serve_dashboards
    from peer.network.membership.members_here import addresses_here
    from peer.observe.observer_entry import observer_entry
    from peer.tracking.trackers import run_record

    def shown(target: Target, db: Path | None, addresses: Sequence[str], samples: SamplePlan | None) -> ShownRun:
        for address in addresses:
            parse_peer_multiaddr(address)
        known = target.run_id
        choices = Choices(
            host=host,
            port=port,
            page_address=its_address,
            db=_history_of(known, db),
            token_file=token_file,
            join_addresses=tuple(addresses),
            shows_seeds=not no_join_address,
            backend=backend,
            install=its_install,
            samples=samples,
            evaluations=evaluations,
            observer_folder=target.observer_folder,
            record=None if track is None else run_record(known, track),
        )
        entry = observer_entry(known, target.observer_folder)
        later = partial(addresses_here, known)
        return ShownRun(known, target.addresses, choices, entry, later)

    if one is not None:
        return serve_dashboards([shown(one, db, join_address or (), its_samples)], is_index=False)
    usable: list[ShownRun] = []
    unusable: dict[str, str] = {}
    for each in several or ():
        plan = sample_plan(samples_every, prompt or (), None if each.base is None else Path(each.base))
        try:
            target = checked_target(each.run_id, list(each.peers) or None, each.invite)
        except LocalFault as fault:
            unusable[each.run_id] = f"{fault} Add peers or invite to its entry in {runs}."
        else:
            usable.append(shown(target, None if each.db is None else Path(each.db), each.join_addresses, plan))
    if not usable:
        raise UsageFault("; ".join(f"{known} cannot be shown: {why}" for known, why in unusable.items()))
    return serve_dashboards(usable, unusable)


def _say_who_answers(target: Target) -> None:
    """Refuse the address of a different run; print a notice if no member answers or the run has ended."""
    try:
        target.look_first(FIRST_LOOK_SECONDS)
    except NobodyReachable:
        notice("No member answers yet; the page keeps looking.")
    except Incompatible as fault:
        notice(f"{fault} The page shows its history.")


def _line_of(install: str | None) -> str | None:
    """Return the install command without spaces around it.

    Raises:
        UsageFault: the command is empty, too long or not printable.
    """
    if install is not None and not (0 < len(install.strip()) <= MAX_INSTALL_LENGTH and install.isprintable()):
        raise UsageFault(
            f"--install has {len(install)} characters, or characters that cannot be printed; expected a line of 1 to "
            f"{MAX_INSTALL_LENGTH} characters, such as 'pip install git+https://...'"
        )
    return None if install is None else install.strip()


def _check_host(host: str) -> None:
    """Check the host, because an empty host would make the page public.

    Raises:
        UsageFault: the host is neither an address nor a name.
    """
    if re.fullmatch(r"[A-Za-z0-9_.:%-]{1,253}", host) is None or ".." in host:
        raise UsageFault(
            f"--host {host[:80]!a} is not an address; expected an address of this machine, such as 127.0.0.1 or ::1"
        )


def _address(text: str) -> str:
    from dashboard.share.page_address import checked_address

    try:
        return checked_address(text) if text else ""
    except ValueError as error:
        raise UsageFault(f"--page-address {text[:80]!r} is not the address of a page; {error}") from error


def _history_of(run_id: str, asked: Path | None) -> Path | None:
    """Return the given file, None for `:memory:`, or the default file, after creating its folder."""
    from peer.config.peer_config import load_config

    if asked is not None:
        return None if str(asked) == ":memory:" else asked
    folder = load_config({"run_id": run_id}).data_dir
    with writing(folder, "give a file with --db"):
        folder.mkdir(parents=True, exist_ok=True)
    return folder / "dashboard.sqlite"
