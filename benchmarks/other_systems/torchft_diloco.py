"""torchft's Streaming DiLoCo over the same lines and in the same way as `bench_round`.

    python -m benchmarks.other_systems.torchft_diloco [--values 25000000] [--peers 4] [--json]
    python -m benchmarks.other_systems.torchft_diloco --lab NETLAB.py --up 100      (root; see benchmarks/lines/)

torchft is no dependency of ours: install it where torch is (`pip install torchft`; an environment of its own is best).
The model is `--values` float32 in five fragments, `sync_every` is 5. So every inner step synchronises one fragment and
blocks until it is there. A round is five of them. The first member runs the lighthouse. Inner steps compute nothing:
the work is written into the parameters. Gloo carries the bytes in float32.
"""

from __future__ import annotations

import argparse
import sys
import time
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from benchmarks.other_systems.swarm import PORT, bench, needs, parser_of, serve
from benchmarks.other_systems.work import made_up_work, mean_of_heads, outcome

NUM_FRAGMENTS = 5
TIMEOUT = timedelta(seconds=60)
"""Its own default, for every operation."""
JOIN_TIMEOUT_MS = 10_000
"""How long a quorum waits for members that live: what its guide starts the lighthouse with. With the class's default of
0.1 s it goes on without a member that ends a fragment that much later than the others. On a line of 100 Mbit/s that
happens.
"""


class _Vector(nn.Module):
    def __init__(self, num_values: int) -> None:
        super().__init__()
        self.values = nn.Parameter(torch.zeros(num_values))


class TorchftMember:
    """One replica group of one process."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        base, rest = divmod(options.values, NUM_FRAGMENTS)
        self._fragments = [_Vector(base + (index < rest)) for index in range(NUM_FRAGMENTS)]
        parameters = [fragment.values for fragment in self._fragments]
        self._inner = torch.optim.SGD(parameters, lr=0.0)
        self._outer = [torch.optim.SGD([parameter], lr=1.0) for parameter in parameters]
        self._lighthouse: Any = None
        self._manager: Any = None
        self._diloco: Any = None
        self._work = torch.empty(0)
        self._expected = torch.empty(0)

    def do(self, order: dict[str, Any]) -> dict[str, Any]:
        """Obey one line."""
        options = self._options
        if order["do"] == "meet":
            return {"lighthouse": self._start_lighthouse() if options.member == 0 else order["lighthouse"]}
        if order["do"] == "enter":
            self._enter()
        elif order["do"] == "prepare":
            self._work = made_up_work(options.values, order["number"], options.member)
            self._expected = mean_of_heads(options.values, order["number"], options.peers)
        elif order["do"] == "round":
            return self._round()
        return {}

    def _start_lighthouse(self) -> str:
        from torchft.coordination import LighthouseServer

        self._lighthouse = LighthouseServer(
            bind=f"0.0.0.0:{PORT}", min_replicas=self._options.peers - 1, join_timeout_ms=JOIN_TIMEOUT_MS
        )
        return f"http://{self._options.first}:{PORT}"

    def _enter(self) -> None:
        from torchft import Manager, ProcessGroupGloo
        from torchft.local_sgd import DiLoCo

        options = self._options
        port = PORT + 1 + options.member
        self._store = dist.TCPStore(options.ip, port, is_master=True, wait_for_workers=False)
        self._manager = Manager(
            pg=ProcessGroupGloo(timeout=TIMEOUT),
            load_state_dict=lambda state: None,
            state_dict=dict,
            min_replica_size=options.peers - 1,
            use_async_quorum=False,
            timeout=TIMEOUT,
            quorum_timeout=TIMEOUT,
            rank=0,
            world_size=1,
            store_addr=options.ip,
            store_port=port,
            lighthouse_addr=f"http://{options.first}:{PORT}",
            replica_id=f"member{options.member}",
            hostname=options.ip,
            init_sync=False,
        )
        self._diloco = DiLoCo(
            self._manager, list(self._fragments), self._inner, self._outer, NUM_FRAGMENTS, pin_memory=False
        )
        self._diloco.__enter__()

    @torch.no_grad()
    def _round(self) -> dict[str, Any]:
        before = [fragment.values.clone() for fragment in self._fragments]
        works = torch.split(self._work, [len(values) for values in before])
        began_at = time.monotonic()
        last_step = self._manager.current_step() + NUM_FRAGMENTS
        while self._manager.current_step() < last_step:
            index = self._manager.current_step() % NUM_FRAGMENTS
            # Start minus end is what it averages; a step that failed has put the old values back.
            self._fragments[index].values.sub_(works[index])
            try:
                self._inner.step()
            except (RuntimeError, TimeoutError) as error:
                return {"failed": str(error).splitlines()[0], "ended_at": time.monotonic()}
        ended_at = time.monotonic()
        changes = [old - fragment.values for old, fragment in zip(before, self._fragments, strict=True)]
        return {"began_at": began_at, "ended_at": ended_at, **outcome(torch.cat(changes), self._expected)}

    def close(self) -> None:
        """End its threads and servers."""
        if self._diloco is not None:
            self._diloco.__exit__(None, None, None)
        if self._manager is not None:
            self._manager.shutdown()
        if self._lighthouse is not None:
            self._lighthouse.shutdown()


def main() -> int:
    needs("torchft", "pip install torchft (Linux; in an environment of its own, which also has torch)")
    parser = parser_of("torchft's Streaming DiLoCo over emulated lines.", [32])
    options = parser.parse_args()
    if options.member is None:
        return bench("benchmarks.other_systems.torchft_diloco", "torchft Streaming DiLoCo, 5 fragments", options)
    torch.set_num_threads(1)
    member = TorchftMember(options)
    try:
        serve(member.do)
    finally:
        member.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
