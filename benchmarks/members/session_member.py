"""One peer of `bench_stall.py` and `bench_footprint.py`: `peer.join.session.join` with all processes a volunteer has.

It is driven by lines of JSON on standard input and answers with lines of JSON on standard output:

    {"do": "join", "peers": [...]}   -> {"addresses"}             processes that it starts stay on the present cores
    {"do": "pin", "cores": [...]}    -> {"cores"}                 this thread and what it starts from now on
    {"do": "train", "seconds": s,
     "commits": n}                   -> steps and what they cost  for s seconds and until n commits of several peers
    {"do": "leave"}                  -> {}                        and trains alone from now on
    {"do": "usage"}                  -> {"processes"}             CPU seconds and memory of each
    {"do": "company",
     "step_seconds": s}              -> {}                        computes nothing in steps of s seconds, but takes part
                                                                  in every round until the input ends
    end of input                     -> leaves

Inner steps are those of the built-in GPT and its optimizer, on made-up tokens.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import sys
import threading
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from averaging.rounds.round_facts import RoundCommitted
from benchmarks.members.processes import family, role
from peer.config.manifest import RunManifest
from peer.events.peer_events import Event
from peer.join.session import Swarm, join
from peer.trainer.devices.device_choice import select_device
from peer.trainer.model.gpt import build_model
from peer.trainer.model.inner_optimizer import make_optimizer

BATCH_SIZE = 4


class Member:
    """A model, an optimizer and, after `join`, the swarm."""

    def __init__(
        self, manifest: RunManifest, run_id: str, folder: Path, ip: str, computes: bool, device: torch.device
    ) -> None:
        self._manifest = manifest
        self._run_id, self._folder, self._ip = run_id, folder, ip
        self.model = build_model(manifest.model, manifest.seed).to(device)
        if computes:
            is_fused = device.type == "cuda"
            self.optimizer = make_optimizer(self.model.named_parameters(), manifest.training, fused=is_fused)
        else:
            self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.0)
        context = manifest.model.context
        generator = torch.Generator().manual_seed(1)
        drawn = torch.randint(manifest.model.vocab_size, (BATCH_SIZE, context + 1), generator=generator)
        self._inputs, self._targets = drawn[:, :-1].to(device), drawn[:, 1:].to(device)
        self.swarm: Swarm | None = None
        self._lock = threading.Lock()
        self._commits: list[RoundCommitted] = []

    def join(self, peers: list[str]) -> tuple[str, ...]:
        """Become a member; returns this peer's addresses."""
        self.swarm = join(
            self._run_id,
            module=self.model,
            optimizer=self.optimizer,
            peers=peers,
            data_dir=self._folder,
            listen=(f"/ip4/{self._ip}/tcp/0",),
            on_event=self._on_event,
        )
        self.swarm.__enter__()
        return self.swarm.addresses

    def leave(self) -> None:
        """Say goodbye, if there is anybody."""
        if self.swarm is not None:
            self.swarm.__exit__(None, None, None)
            self.swarm = None

    def train(self, seconds: float, num_commits: int) -> dict[str, Any]:
        """Inner steps for the given time, and until so many commits with work of several peers were seen."""
        self._take_commits()
        before = self._counters()
        usage = {process.pid: process for process in family(os.getpid())}
        step_seconds = []
        commits: list[RoundCommitted] = []
        began = time.perf_counter()
        while (now := time.perf_counter()) - began < seconds or _num_common(commits) < num_commits:
            self._step()
            step_seconds.append(time.perf_counter() - now)
            commits += self._take_commits()
        wall = time.perf_counter() - began
        after = self._counters()
        cpu: dict[str, float] = {}
        for process in family(os.getpid()):
            past = usage.get(process.pid)
            gained = process.cpu_seconds - (past.cpu_seconds if past is not None else 0.0)
            cpu[role(process)] = cpu.get(role(process), 0.0) + gained
        return {
            "seconds": wall,
            "step_seconds": step_seconds,
            "num_parameters": sum(parameter.numel() for parameter in self.model.parameters()),
            "commits": len(commits),
            "values": sum(self.swarm.training.link.layout.sizes[one.fragment] for one in commits) if self.swarm else 0,
            "common_commits": _num_common(commits),
            "bytes": sum(one.bytes_up + one.bytes_down for one in commits),
            "round_seconds": [one.seconds for one in commits],
            "cpu_seconds": cpu,
            **{name: after[name] - before[name] for name in after},
        }

    def company(self, step_seconds: float) -> None:
        """Steps without computing until standard input ends."""
        parameter = next(self.model.parameters())
        while not select.select([sys.stdin], [], [], step_seconds)[0]:
            with torch.no_grad():
                parameter.view(-1)[:128] += 1e-4
            self.optimizer.step()

    def _step(self) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.model.loss(self._inputs, self._targets)
        loss.backward()  # type: ignore[no-untyped-call]
        if self.swarm is not None:
            # The tokens of a step weigh its work.
            self.swarm.training.next_positions(BATCH_SIZE, self._manifest.model.context, 1 << 20)
            self.swarm.report(float(loss.detach()))
        self.optimizer.step()
        if loss.device.type == "cuda":
            torch.cuda.synchronize(loss.device)  # the step's time is that of the device

    def _counters(self) -> dict[str, float]:
        if self.swarm is None:
            return {"wait_seconds": 0.0, "exchange_seconds": 0.0}
        counters = self.swarm.training.link.mailbox.trainer
        return {"wait_seconds": counters.wait_seconds, "exchange_seconds": counters.exchange_seconds}

    def _on_event(self, event: Event) -> None:
        if isinstance(event.fact, RoundCommitted):
            with self._lock:
                self._commits.append(event.fact)

    def _take_commits(self) -> list[RoundCommitted]:
        with self._lock:
            taken, self._commits = self._commits, []
        return taken


def _num_common(commits: list[RoundCommitted]) -> int:
    return sum(len(commit.contributors) > 1 for commit in commits)


def pin(cores: list[int]) -> None:
    """This thread, and threads and processes that it starts from now on, run on these cores only."""
    os.sched_setaffinity(0, cores)


def _say(**fields: Any) -> None:
    print(json.dumps(fields), flush=True)


def _do(member: Member, order: dict[str, Any]) -> None:
    if order["do"] == "join":
        _say(addresses=member.join(order["peers"]))
    elif order["do"] == "pin":
        pin(order["cores"])
        _say(cores=order["cores"])
    elif order["do"] == "train":
        _say(**member.train(order["seconds"], order.get("commits", 0)))
    elif order["do"] == "leave":
        member.leave()
        _say()
    elif order["do"] == "usage":
        _say(processes=[{"role": role(process), **asdict(process)} for process in family(os.getpid())])
    elif order["do"] == "company":
        _say()
        member.company(order["step_seconds"])
    else:
        raise ValueError(f"unknown order {order['do']!r}")


def main() -> None:
    parser = argparse.ArgumentParser(description="One peer of a benchmark; started by it.")
    parser.add_argument("--run-toml", type=Path, required=True)
    parser.add_argument("--run-id", required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--ip", default="127.0.0.1")
    parser.add_argument("--company", action="store_true")
    parser.add_argument("--cores", default="")
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    if options.cores:
        pin([int(core) for core in options.cores.split(",")])
    torch.set_num_threads(1)
    manifest = RunManifest.load_toml(options.run_toml, name=options.run_id.partition(".")[0])
    device = select_device(options.device)
    member = Member(manifest, options.run_id, options.folder, options.ip, not options.company, device)
    _say(ready=True)
    try:
        while line := sys.stdin.readline():
            _do(member, json.loads(line))
    finally:
        member.leave()


if __name__ == "__main__":
    main()
