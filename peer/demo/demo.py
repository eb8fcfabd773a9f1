"""`peer demo`: a local swarm as volunteers would run it, with one peer killed and one that comes late.

Every peer is a real `peer join` process with its own libp2p daemon and DHT node on loopback, joined by the run id and
one bootstrap address alone. What the summary says is read from the peers' events and from the anchors themselves,
which are fetched at the end as any observer could.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from rich.table import Table
from torch import nn

from averaging.arrays import F32
from averaging.outer.layout import FragmentLayout
from dht.errors import LocalFault, MurmurationError
from dht.host import PeerId
from dht.identity.keys import Identity
from dht.quantities import count_text, short_peer
from peer.config.layouts import layout_of, trained_parameters
from peer.config.manifest import RunManifest
from peer.demo.llama import check_out, make_llama_run, take_home, text_of
from peer.demo.summary import PeerLogs, Summary, summarise
from peer.files.store import FILES_NAME
from peer.import_path import python_command, python_environment
from peer.observe.observer import observe
from peer.owner.new_run import create_run
from peer.plain_console import PlainConsole
from peer.trainer.data.corpus import open_run_corpus
from peer.trainer.hf.architecture import check_library
from peer.trainer.hf.run_model import build_run_model
from peer.trainer.model.evaluation import held_out_loss, load_anchors

DEMO_RUN = """
description = "peer demo: the text of the Python standard library, byte by byte"
organiser = "this machine"
seed = 1
[goal]
loss = 1.5
[model]
num_layers = 4
d_model = 128
num_heads = 4
context = 128
[training]
batch_size = 4
learning_rate = 0.003
warmup_steps = 20
[averaging]
sync_every = 20
num_fragments = 4
[network]
announce_seconds = 4.0
"""
PAGE_SAMPLES = ("--samples-every", "45s", "--prompt", "def ", "--prompt", "import ")
"""What the page has the model write: it learns the library's text."""
START_SECONDS = 60.0
"""For one process to import torch and join; several start at once on two cores."""
NUM_PORTS = 20
"""Tried for the page, from the one that was asked for."""
STOP_SECONDS = 30.0
SETTLED_SECONDS = 20.0
"""The late peer gets at least this long before the end, whatever --minutes says."""


@dataclass
class DemoPeer:
    """One `peer join` process and what it printed."""

    name: str
    peer_id: PeerId
    folder: Path
    process: subprocess.Popen[bytes]
    started_at: float
    is_killed: bool = False
    is_late: bool = False

    @property
    def is_alive(self) -> bool:
        return self.process.poll() is None


@dataclass
class Demo:
    """The swarm of one demo; everything it writes is below `folder`."""

    folder: Path
    run_id: str
    manifest: RunManifest
    console: PlainConsole
    data: str | None = None
    address: str = ""
    peers: list[DemoPeer] = field(default_factory=list)
    page: subprocess.Popen[bytes] | None = None

    def start_peer(self, name: str, *, is_late: bool = False) -> DemoPeer:
        """Start one volunteer; the first one holds the run's record and is everybody's bootstrap address."""
        folder = self.folder / name
        identity = Identity.load_or_create(folder / "identity.key")
        arguments = ["--run-id", self.run_id, "--data-dir", str(folder), "--json", "--threads", "1"]
        if self.data is not None:
            arguments += ["--data", self.data]
        if self.peers:
            arguments += ["--peers", self.address, "--listen", "/ip4/127.0.0.1/tcp/0"]
        else:
            shutil.copy(self.folder / "owner" / "run.record", folder / "run.record")
            if (self.folder / "owner" / FILES_NAME).is_dir():
                shutil.copytree(self.folder / "owner" / FILES_NAME, folder / FILES_NAME)
            listen = f"/ip4/127.0.0.1/tcp/{_free_port()}"
            self.address = f"{listen}/p2p/{identity.peer_id}"
            arguments += ["--listen", listen]
        with open(folder / "stderr.txt", "wb") as errors:
            process = subprocess.Popen(
                python_command("peer", "join", *arguments),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                # What a killed peer leaves in its temporary folder goes with the demo's.
                env={**python_environment(), "OMP_NUM_THREADS": "1", "TMPDIR": str(self.folder)},
                start_new_session=True,
            )
        peer = DemoPeer(name, identity.peer_id, folder, process, time.monotonic(), is_late=is_late)
        self.peers.append(peer)
        return peer

    def start_page(self, port: int) -> None:
        """Serve the dashboard beside the swarm."""
        target = ["--run-id", self.run_id, "--peers", self.address]
        history = ["--db", str(self.folder / "dashboard.sqlite"), "--join-address", self.address]
        with open(self.folder / "dashboard.txt", "wb") as output:
            self.page = subprocess.Popen(
                python_command("peer", "dashboard", *target, "--port", str(port), *history, *PAGE_SAMPLES),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=python_environment(),
                start_new_session=True,
            )

    def stop(self) -> None:
        """Ask everybody to leave, kill whoever does not, or all when interrupted; leaves no process behind."""
        running = [peer.process for peer in self.peers if peer.is_alive]
        if self.page is not None and self.page.poll() is None:
            running.append(self.page)
        for process in running:
            # Not SIGINT: a demo that runs in the background of a script has it ignored, and so have its children.
            process.send_signal(signal.SIGTERM)
        end = time.monotonic() + STOP_SECONDS
        try:
            for process in running:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(max(0.1, end - time.monotonic()))
        finally:
            for process in running:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()


def _temporary_folder() -> Path:
    try:
        return Path(tempfile.mkdtemp(prefix="murmuration-demo-"))
    except OSError as error:
        raise LocalFault(
            f"no folder for the demo could be made ({error.strerror}); expected one for temporary files that can be "
            "written; set TMPDIR to it"
        ) from error


def run_demo(num_peers: int, minutes: float, as_json: bool, page_port: int | None, out: Path | None = None) -> int:
    """Run the demo. Returns 0 only if the swarm really trained together; see `Summary.problems`.

    Args:
        page_port: of the dashboard; None: there is none.
        out: train a small Llama of transformers and take it home to this folder; None: the built-in model.
    """
    if out is not None:
        check_library()
        check_out(out)
    console = PlainConsole(stderr=as_json, highlight=False, soft_wrap=True)
    folder = _temporary_folder()
    try:
        if out is not None:
            made, data = make_llama_run(folder, console)
            demo = Demo(folder, made.run_id, made.manifest, console, data)
        else:
            (folder / "run.toml").write_text(DEMO_RUN)
            made = create_run("demo", folder / "run.toml", folder / "owner")
            demo = Demo(folder, made.run_id, made.manifest, console)
        try:
            began = time.monotonic()
            _play(demo, num_peers, minutes, page_port)
            seconds = time.monotonic() - began
            live = [peer.peer_id for peer in demo.peers if peer.is_alive]
            logs = PeerLogs.read([(peer.name, peer.peer_id, peer.folder) for peer in demo.peers])
            model = build_run_model(demo.manifest)
            layout = layout_of(demo.manifest, [(name, tuple(p.shape)) for name, p in trained_parameters(model)])
            anchors = asyncio.run(_fetch_anchors(demo, layout))
            if out is not None:
                take_home(demo.run_id, demo.address, out)
        finally:
            demo.stop()
        # Measured when the peers have gone: they leave no core free.
        losses = _measure(demo, model, layout, anchors)
        home = {} if out is None else {"model": str(out), "text": text_of(out)}
        late = [peer.peer_id for peer in demo.peers if peer.is_late]
        summary = summarise(logs, live, late, *losses, layout.num_values, seconds)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if as_json:
        print(json.dumps(summary.facts() | home))
    else:
        _print_summary(console, summary)
        if home:
            console.print(f"the model is in {home['model']}; AutoModelForCausalLM.from_pretrained loads it. It says:")
            console.print(home["text"], style="dim", markup=False)
    for problem in summary.problems():
        console.print(f"not as it should be: {problem}", style="red")
    return 1 if summary.problems() else 0


def _play(demo: Demo, num_peers: int, minutes: float, page_port: int | None) -> None:
    console = demo.console
    console.print(f"run {demo.run_id}: {num_peers} peers train for {minutes:g} min on this machine")
    first = demo.start_peer("peer-1")
    _wait_joined(demo, [first])
    console.print(f"peer-1 {short_peer(first.peer_id)} trains alone; the others join at {demo.address}")
    others = [demo.start_peer(f"peer-{number}") for number in range(2, num_peers + 1)]
    if page_port is not None:
        port = page_port_near(page_port)
        if page_port and port != page_port:
            console.print(f"port {page_port} is taken by another program, so the page is at port {port}")
        demo.start_page(port)
        console.print(f"dashboard: http://127.0.0.1:{port}/")
    _wait_joined(demo, others)
    began = time.monotonic()
    length = max(60.0 * minutes, 2 * SETTLED_SECONDS)
    _train(demo, began, began + length / 2, began + length)
    victim = others[-1]
    victim.is_killed = True
    os.killpg(victim.process.pid, signal.SIGKILL)
    victim.process.wait()
    console.print(f"killed {victim.name} {short_peer(victim.peer_id)} with SIGKILL; the others go on")
    late = demo.start_peer(f"peer-{num_peers + 1}", is_late=True)
    console.print(f"started {late.name} {short_peer(late.peer_id)}, which comes late and must catch up")
    _wait_joined(demo, [late])
    end = max(began + length, time.monotonic() + SETTLED_SECONDS)
    _train(demo, began, end, end)


def _train(demo: Demo, began: float, until: float, end: float) -> None:
    shown_at = 0.0
    while (now := time.monotonic()) < until:
        for peer in demo.peers:
            if not peer.is_alive and not peer.is_killed:
                raise LocalFault(f"{peer.name} ended by itself:\n{_last_lines(peer)}")
        if now - shown_at >= 10.0:
            shown_at = now
            logs = PeerLogs.read([(peer.name, peer.peer_id, peer.folder) for peer in demo.peers])
            demo.console.print(f"{now - began:4.0f} s of {end - began:.0f}  {logs.progress_line()}")
        time.sleep(0.25)


def _wait_joined(demo: Demo, peers: list[DemoPeer]) -> None:
    waiting = list(peers)
    end = time.monotonic() + START_SECONDS + 10.0 * len(peers)
    while waiting:
        waiting = [peer for peer in waiting if not _has_joined(peer)]
        for peer in waiting:
            if not peer.is_alive:
                raise LocalFault(f"{peer.name} did not join:\n{_last_lines(peer)}")
            if time.monotonic() >= end:
                raise LocalFault(
                    f"{peer.name} did not join within {time.monotonic() - peer.started_at:.0f} s; expected a few "
                    f"seconds; is the machine busy? Its last words:\n{_last_lines(peer)}"
                )
        time.sleep(0.1)


def _has_joined(peer: DemoPeer) -> bool:
    try:
        return '"JoinedRun"' in (peer.folder / "events.jsonl").read_text()
    except FileNotFoundError:
        return False


def _last_lines(peer: DemoPeer) -> str:
    lines = (peer.folder / "stderr.txt").read_text(errors="replace").splitlines()
    return "\n".join(lines[-8:]) or "(it printed nothing)"


async def _fetch_anchors(demo: Demo, layout: FragmentLayout) -> dict[int, F32]:
    """The anchors as any observer can fetch them; empty, and told, when nobody gives them."""
    try:
        async with observe(demo.run_id, [demo.address], 30.0) as observer:
            records = await observer.records()
            return {
                fragment.index: (await observer.fetch(fragment.index, fragment.num_values, records)).anchor
                for fragment in layout.fragments
            }
    except MurmurationError as error:
        demo.console.print(f"the anchors could not be fetched: {error}")
        return {}


def _measure(
    demo: Demo, model: nn.Module, layout: FragmentLayout, anchors: dict[int, F32]
) -> tuple[float, float | None]:
    """Held-out loss of the initial `model` and of the anchors (None without them)."""
    manifest = demo.manifest
    corpus = open_run_corpus(manifest, demo.data or manifest.data.source)
    batches, size = manifest.data.evaluation_batches, manifest.training.batch_size
    loss_first = held_out_loss(model, corpus, batches, size)
    if not anchors:
        return loss_first, None
    load_anchors(model, layout, anchors)
    return loss_first, held_out_loss(model, corpus, batches, size)


def page_port_near(wanted: int) -> int:
    """`wanted`, or the next port of this machine that nobody listens on; 0: any free one."""
    for port in range(wanted, min(wanted + NUM_PORTS, 1 << 16)) if wanted else ():
        with socket.socket() as probe:
            # As the page's own server: a port of a page that has just ended is free.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    return _free_port()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _print_summary(console: PlainConsole, summary: Summary) -> None:
    facts = summary.facts()
    table = Table(title="What each peer did", box=None, pad_edge=False, title_justify="left")
    for title in ("peer", "inner steps", "tokens", "rounds", "fate"):
        table.add_column(title, justify="left" if title in ("peer", "fate") else "right")
    for row in summary.rows:
        table.add_row(
            f"{row.name} {short_peer(row.peer_id)}",
            str(row.inner_steps),
            count_text(row.tokens),
            str(row.rounds),
            row.fate,
        )
    console.print(table)
    last = facts["loss_last"]
    console.print(
        f"held-out loss on the anchor   {facts['loss_first']:.3f} -> {'?' if last is None else f'{last:.3f}'}"
    )
    console.print(f"rounds committed / abandoned  {facts['rounds_committed']} / {facts['rounds_failed']}")
    console.print(
        f"bits per parameter            {facts['bits_per_parameter_up']:.3f} up, "
        f"{facts['bits_per_parameter_down']:.3f} down (contribution there, result back; all framing included)"
    )
    console.print(f"inner loop held up            {100 * facts['trainer_wait_fraction']:.2f} % of the time")
    console.print(f"anchors equal on all peers    {'yes' if facts['anchors_equal'] else 'NO'}")
    console.print(f"late joiner caught up         {'yes' if facts['late_joiner_caught_up'] else 'NO'}")
    console.print(f"seconds                       {facts['seconds']:.0f}")
