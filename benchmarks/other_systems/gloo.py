"""Gloo's all-reduce over the same lines and in the same way as `bench_round`: what torch's own collectives take.

    python -m benchmarks.other_systems.gloo [--bits 32] [--values 25000000] [--peers 4] [--json]
    python -m benchmarks.other_systems.gloo --lab NETLAB.py --up 100 --bits 16      (root; see benchmarks/lines/)

One `torch.distributed.all_reduce` of one float32 (or, with 16 bits, float16) tensor, and the division by the number of
members. Casting counts. Gloo is part of torch; a cluster whose members are known and stay is its whole assumption.
"""

from __future__ import annotations

import argparse
import sys
import time
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.other_systems.swarm import PORT, bench, parser_of, serve
from benchmarks.other_systems.work import made_up_work, mean_of_heads, outcome


class GlooMember:
    """One rank."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._work = torch.empty(0)
        self._dtype = torch.float16 if options.bits == 16 else torch.float32
        self._expected = torch.empty(0)

    def do(self, order: dict[str, Any]) -> dict[str, Any]:
        """Obey one line."""
        options = self._options
        if order["do"] == "enter":
            dist.init_process_group(
                "gloo",
                init_method=f"tcp://{options.first}:{PORT}",
                rank=options.member,
                world_size=options.peers,
                timeout=timedelta(seconds=300),
            )
        elif order["do"] == "prepare":
            self._work = made_up_work(options.values, order["number"], options.member)
            self._expected = mean_of_heads(options.values, order["number"], options.peers)
        elif order["do"] == "round":
            began_at = time.monotonic()
            sent = self._work.to(self._dtype)
            try:
                dist.all_reduce(sent)
            except RuntimeError as error:
                return {"failed": str(error).splitlines()[0], "ended_at": time.monotonic()}
            mean = sent.to(torch.float32).div_(options.peers)
            ended_at = time.monotonic()
            return {"began_at": began_at, "ended_at": ended_at, **outcome(mean, self._expected)}
        return {}


def main() -> int:
    parser = parser_of("Gloo all-reduce over emulated lines.", [32, 16])
    options = parser.parse_args()
    if options.member is None:
        return bench("benchmarks.other_systems.gloo", "Gloo all-reduce", options)
    torch.set_num_threads(1)
    serve(GlooMember(options).do)
    return 0


if __name__ == "__main__":
    sys.exit(main())
