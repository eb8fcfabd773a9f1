"""`peer plan`: prints the needs of a run at home, in five lines, a table or JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.table import Table
from rich.text import Text

from dht.ground.quantities import bytes_text, count_text, plural, seconds_text, share_text
from peer.config.data_source import TOKENS
from peer.config.manifest import RunManifest
from peer.config.model_shapes import seed_layout
from peer.config.peer_config import BaseBits, OptimizerBits, PeerConfig
from peer.config.training_section import check_optimizer_bits
from peer.console.plain_console import PlainConsole, console_of_output
from peer.console.word_wrap import print_fitting
from peer.memory.base_bits import check_base_bits
from peer.plan.memory_needs import NetworkMemory, TrainerMemory
from peer.plan.plan_source import plan_of
from peer.plan.planning import NUM_HOMES, STEP_SECONDS, HomePlan, RunPlan

HOURS_PER_DAY = 24


def run_plan(
    manifest: RunManifest, base_bits: BaseBits, optimizer_bits: OptimizerBits, *, as_json: bool, is_full: bool
) -> int:
    """Print what a run needs at home, in five lines or, with `is_full`, as tables, and return the exit code.

    Raises:
        UsageFault: the weights cannot be stored in these few bits.
        Incompatible: the run's model cannot be cut as its manifest specifies.
    """
    check_base_bits(manifest, base_bits)
    check_optimizer_bits(manifest.training.optimizer, optimizer_bits)
    seed_layout(manifest)
    plan = plan_of(manifest, base_bits, optimizer_bits)
    if as_json:
        print(json.dumps(plan_facts(manifest, plan)))
    elif is_full:
        _print_plan(console_of_output(highlight=False), manifest, plan)
    else:
        is_kept = not manifest.has_byte_tokens and manifest.data.source != TOKENS
        default: float = PeerConfig.model_fields["data_limit_gib"].default
        lines = lines_for_a_home(plan, default if is_kept else None)
        print_fitting("\n".join(lines))
    return 0


def lines_for_a_home(plan: RunPlan, data_limit_gib: float | None = None) -> list[str]:
    """Describe traffic, memory, disk and time, for people who want to join.

    Args:
        data_limit_gib: disk for downloaded and tokenized data; None if the run's data needs none.
    """
    home = plan.home
    up, down = HOURS_PER_DAY * home.upload_bytes_per_hour, HOURS_PER_DAY * home.download_bytes_per_hour
    mbit_up, mbit_down = home.needed_upload_bits_per_second / 1e6, home.needed_download_bits_per_second / 1e6
    memory = home.trainer_memory.total_bytes + home.network_memory.total_bytes
    together = f"{plural(NUM_HOMES, 'such machine')}: {count_text(plan.tokens_per_second)} tokens/s together"
    step = seconds_text(STEP_SECONDS)
    return [
        f"Traffic     about {bytes_text(up)} up and {bytes_text(down)} down per day; {_two_digits(mbit_up)} Mbit/s up "
        f"and {_two_digits(mbit_down)} Mbit/s down are enough",
        f"Memory      about {bytes_text(memory)}, and the activations of the model",
        f"Disk        {bytes_text(plan.disk_bytes)} for checkpoints; joining downloads {bytes_text(plan.join_bytes)}"
        + ("" if data_limit_gib is None else f"; data at most {bytes_text(data_limit_gib * 2**30)} (--data-limit-gib)"),
        f"Time        {count_text(float(plan.goal_tokens))} tokens in {seconds_text(plan.goal_seconds)} with "
        f"{together}",
        f"Estimated for machines that take {step} per step; if the fastest takes half of that, all need twice the "
        "bandwidth.",
    ]


def _two_digits(number: float) -> str:
    """Format a number with two significant digits, without an exponent: 0.27, 18, 150."""
    return f"{float(f'{number:.2g}'):,.10g}".replace(",", "")


def plan_facts(manifest: RunManifest, plan: RunPlan) -> dict[str, Any]:
    """Return the plan as plain values, for `--json`."""
    section = manifest.averaging
    facts = asdict(plan)
    facts["home"]["upload_bytes_per_day"] = HOURS_PER_DAY * plan.home.upload_bytes_per_hour
    facts["home"]["download_bytes_per_day"] = HOURS_PER_DAY * plan.home.download_bytes_per_hour
    facts["home"]["trainer_memory"]["total_bytes"] = plan.home.trainer_memory.total_bytes
    facts["home"]["network_memory"]["total_bytes"] = plan.home.network_memory.total_bytes
    return {
        "schema": 1,
        "run": manifest.name,
        "mode": section.mode,
        "sync_every": section.sync_every,
        "num_fragments": section.num_fragments,
        "codec": section.codec,
        "num_peers": NUM_HOMES,
        **facts,
    }


def _print_plan(console: PlainConsole, manifest: RunManifest, plan: RunPlan) -> None:
    section = manifest.averaging
    console.print(
        f"{manifest.name}  {count_text(float(plan.num_parameters))} parameters in "
        f"{plural(len(plan.fragment_sizes), 'fragment')}  mode {section.mode}  H {section.sync_every}  "
        f"codec {section.codec}  {plural(NUM_HOMES, 'peer')}",
    )
    console.print(
        f"A round of each fragment every {seconds_text(plan.interval_seconds)}; from its last offer to its commit "
        f"{seconds_text(plan.round_seconds)} (without the codec); {plan.contribution_bits_per_parameter:.3f} bits "
        f"per parameter out, {plan.result_bits_per_parameter:.3f} back.\n",
    )
    _print_traffic(console, plan.home)
    _print_memory(console, plan.home)
    console.print(
        f"disk {bytes_text(plan.disk_bytes)} for checkpoints   joining downloads {bytes_text(plan.join_bytes)}   "
        f"{count_text(plan.tokens_per_second)} tokens/s together: "
        f"{count_text(float(plan.goal_tokens))} tokens in "
        f"{seconds_text(plan.goal_seconds)}\n",
    )
    for sentence in plan.warnings:
        console.print(Text.assemble(("Note: ", "yellow"), f"{sentence}."))


def _print_traffic(console: PlainConsole, home: HomePlan) -> None:
    table = _table(("each home", "Mbit/s", "of its line", "an hour", "a day"))
    for way, rate, share, hourly in (
        ("upload", home.needed_upload_bits_per_second, home.upload_share, home.upload_bytes_per_hour),
        ("download", home.needed_download_bits_per_second, home.download_share, home.download_bytes_per_hour),
    ):
        in_a_day = bytes_text(HOURS_PER_DAY * hourly)
        table.add_row(way, f"{rate / 1e6:.3g}", share_text(share), bytes_text(hourly), in_a_day)
    console.print(table)
    console.print(
        f"Computing {share_text(home.utilisation)} of the time, {share_text(home.in_time)} of the work in time. "
        f"Records of members: at most {bytes_text(home.record_bytes_per_hour)} an hour each way.\n",
        style="dim",
        highlight=False,
    )


def _print_memory(console: PlainConsole, home: HomePlan) -> None:
    table = _table(("memory", "in all", "its parts"))
    for process, memory in (("trainer", home.trainer_memory), ("network", home.network_memory)):
        table.add_row(process, bytes_text(memory.total_bytes), _parts(memory))
    console.print(table)
    console.print("Without activations.\n", style="dim", highlight=False)


def _table(titles: Sequence[str]) -> Table:
    table = Table(box=None, pad_edge=False)
    for column, title in enumerate(titles):
        table.add_column(title, justify="right" if column and title != titles[-1] else "left")
    return table


def _parts(memory: TrainerMemory | NetworkMemory) -> str:
    sizes = asdict(memory).items()
    return ", ".join(f"{name.removesuffix('_bytes')} {bytes_text(size)}" for name, size in sizes if size)
