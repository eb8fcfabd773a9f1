"""hivemind's `DecentralizedAverager` over the same lines and in the same way as `bench_round`.

    python -m benchmarks.other_systems.hivemind_averager [--bits 32] [--values 25000000] [--peers 4] [--json]
    python -m benchmarks.other_systems.hivemind_averager --lab NETLAB.py --up 100 --bits 8 (root; see benchmarks/lines/)

Bits: 32 `NoCompression`, 16 `Float16Compression`, 8 `Uniform8BitQuantization`. Groups are found before the clock starts
(`require_trigger`). The users of hivemind wait for that, and a round of ours contains it. From the trigger on the time
counts. Each member has its DHT, its averager process and its daemon.
"""

from __future__ import annotations

import argparse
import sys
import time
from typing import Any

import torch

from benchmarks.other_systems.swarm import bench, parser_of, serve
from benchmarks.other_systems.work import made_up_work, mean_of_heads, outcome

MATCHMAKING_SECONDS = 3.0
ROUND_SECONDS = 180.0


def compression_of(bits: int) -> Any:
    """hivemind's compression with so many bits a value."""
    from hivemind.compression import Float16Compression, NoCompression, Uniform8BitQuantization

    return {32: NoCompression, 16: Float16Compression, 8: Uniform8BitQuantization}[bits]()


def broken_with(bits: int) -> str:
    """Why these bits cannot be exchanged with what is installed; empty when they can."""
    from hivemind.compression import CompressionInfo
    from hivemind.utils import TensorDescriptor

    values = torch.linspace(-1.0, 1.0, 1000)
    compression = compression_of(bits)
    try:
        info = CompressionInfo(key=0, descriptor=TensorDescriptor.from_tensor(values))
        compression.extract(compression.compress(values, info))
    except (TypeError, ValueError, RuntimeError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


class HivemindMember:
    """One member: DHT and averager."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._dht: Any = None
        self._averager: Any = None
        self._step: Any = None
        self._expected = torch.empty(0)

    def do(self, order: dict[str, Any]) -> dict[str, Any]:
        """Obey one line."""
        if order["do"] == "meet":
            return self._meet(order.get("addresses", []))
        if order["do"] == "enter":
            self._enter()
        elif order["do"] == "prepare":
            return self._prepare(order["number"])
        elif order["do"] == "round":
            return self._round()
        return {}

    def _meet(self, addresses: list[str]) -> dict[str, Any]:
        import hivemind

        address = f"/ip4/{self._options.ip}/tcp/0"
        self._dht = hivemind.DHT(initial_peers=addresses, host_maddrs=[address], start=True, use_ipfs=False)
        return {"addresses": addresses or [str(address) for address in self._dht.get_visible_maddrs()]}

    def _enter(self) -> None:
        from hivemind.averaging import DecentralizedAverager

        self._averager = DecentralizedAverager(
            [torch.zeros(self._options.values)],
            self._dht,
            prefix="bench",
            target_group_size=self._options.peers,
            min_group_size=self._options.peers,
            min_matchmaking_time=MATCHMAKING_SECONDS,
            request_timeout=2.0,
            allreduce_timeout=ROUND_SECONDS,
            compression=compression_of(self._options.bits),
            start=True,
        )

    def _prepare(self, number: int) -> dict[str, Any]:
        from hivemind.averaging.control import AveragingStage

        options = self._options
        with self._averager.get_tensors() as tensors:
            tensors[0].copy_(made_up_work(options.values, number, options.member))
        self._expected = mean_of_heads(options.values, number, options.peers)
        self._step = self._averager.step(wait=False, require_trigger=True, timeout=ROUND_SECONDS)
        end = time.monotonic() + ROUND_SECONDS
        while self._step.stage != AveragingStage.AWAITING_TRIGGER and time.monotonic() < end:
            time.sleep(0.02)
        return {}

    def _round(self) -> dict[str, Any]:
        began_at = time.monotonic()
        self._step.allow_allreduce()
        try:
            self._step.result(ROUND_SECONDS)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is told and the benchmark ends
            return {"failed": repr(error), "began_at": began_at, "ended_at": time.monotonic()}
        ended_at = time.monotonic()
        with self._averager.get_tensors() as tensors:
            return {"began_at": began_at, "ended_at": ended_at, **outcome(tensors[0], self._expected)}

    def close(self) -> None:
        """End its processes."""
        if self._averager is not None:
            self._averager.shutdown()
        if self._dht is not None:
            self._dht.shutdown()


def main() -> int:
    parser = parser_of("hivemind's averager over emulated lines.", [32, 16, 8])
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.member is None:
        if reason := broken_with(options.bits):
            raise SystemExit(
                f"hivemind's {options.bits}-bit compression does not work with what is installed ({reason}), which is "
                "known of numpy 2.4 and newer; run this in an environment of its own with numpy<2.4"
            )
        return bench("benchmarks.other_systems.hivemind_averager", "hivemind averager", options)
    member = HivemindMember(options)
    try:
        serve(member.do)
    finally:
        member.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
