"""`peer plan`: prints what a run asks of a home, in five lines, a table or JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from dht.ground.quantities import bytes_text, count_text, plural, seconds_text, share_text
from peer.config.data_source import TOKENS
from peer.config.manifest import RunManifest
from peer.config.model_shapes import seed_layout
from peer.config.peer_config import PeerConfig
from peer.config.training_section import check_optimizer_bits
from peer.console.plain_console import PlainConsole, console_of_output
from peer.console.word_wrap import fitting
from peer.memory.base_bits import check_base_bits
from peer.plan.homes import PlanProfile, load_profile, with_bits
from peer.plan.memory_needs import NetworkMemory, TrainerMemory
from peer.plan.plan_source import plan_of
from peer.plan.planning import RunPlan

HOURS_PER_DAY = 24


def run_plan(
    manifest: RunManifest, profile_path: Path | None, bits: Mapping[str, str | None], *, as_json: bool, is_full: bool
) -> int:
    """Print what a run asks of its homes: five lines, or with `is_full` the tables. Returns the exit code.

    Args:
        bits: `base_bits` and `optimizer_bits` of all homes; None: as the profile says.

    Raises:
        UsageFault: a file that cannot be used, or weights that cannot have so few bits.
        Incompatible: the run's model cannot be cut as its manifest says.
    """
    profile = with_bits(load_profile(profile_path), bits)
    for group in profile.peers:
        check_base_bits(manifest, group.base_bits)
        check_optimizer_bits(manifest.training.optimizer, group.optimizer_bits)
    seed_layout(manifest)
    plan = plan_of(manifest, profile)
    if as_json:
        print(json.dumps(plan_facts(manifest, profile, plan)))
    elif is_full:
        _print_plan(console_of_output(highlight=False), manifest, profile, plan)
    else:
        is_kept = not manifest.data.has_byte_tokens and manifest.data.source != TOKENS
        default: float = PeerConfig.model_fields["data_limit_gib"].default
        lines = [*lines_for_a_home(plan, default if is_kept else None), counted_for(profile)]
        print(fitting("\n".join(lines), sys.stdout))
    return 0


def lines_for_a_home(plan: RunPlan, data_limit_gib: float | None = None) -> list[str]:
    """Traffic, memory, disk and time, for people who want to join. Of several kinds of home the most that one needs.

    Args:
        data_limit_gib: disk for downloaded and tokenized data; None: the run's data takes none.
    """
    homes = plan.homes
    up, down = (
        HOURS_PER_DAY * max(getattr(home, f"{way}_bytes_per_hour") for home in homes) for way in ("upload", "download")
    )
    mbit_up, mbit_down = (
        max(getattr(home, f"needed_{way}_bits_per_second") for home in homes) / 1e6 for way in ("upload", "download")
    )
    memory = max(home.trainer_memory.total_bytes + home.network_memory.total_bytes for home in homes)
    together = f"{plural(plan.num_peers, 'such machine')}: {count_text(plan.tokens_per_second)} tokens/s together"
    return [
        f"Traffic     about {bytes_text(up)} up and {bytes_text(down)} down a day; {_two_digits(mbit_up)} Mbit/s up "
        f"and {_two_digits(mbit_down)} Mbit/s down are enough",
        f"Memory      about {bytes_text(memory)}, and what the model computes with",
        f"Disk        {bytes_text(plan.disk_bytes)} for checkpoints; joining downloads {bytes_text(plan.join_bytes)}"
        + ("" if data_limit_gib is None else f"; data at most {bytes_text(data_limit_gib * 2**30)} (--data-limit-gib)"),
        f"Time        {count_text(float(plan.goal_tokens))} tokens in {seconds_text(plan.goal_seconds)} with "
        f"{together}",
    ]


def counted_for(profile: PlanProfile) -> str:
    """Say which machines these lines are about."""
    step = seconds_text(min(group.step_seconds for group in profile.peers))
    return (
        f"Counted for machines that take {step} for a step; if the fastest takes half of that, all need twice the "
        "bandwidth."
    )


def _two_digits(number: float) -> str:
    """Two digits that count, written out: 0.27, 18, 150."""
    return f"{float(f'{number:.2g}'):,.10g}".replace(",", "")


def plan_facts(manifest: RunManifest, profile: PlanProfile, plan: RunPlan) -> dict[str, Any]:
    """The plan as plain values, for `--json`."""
    section = manifest.averaging
    facts = asdict(plan)
    for facts_of_home, home in zip(facts["homes"], plan.homes, strict=True):
        facts_of_home["upload_bytes_per_day"] = HOURS_PER_DAY * home.upload_bytes_per_hour
        facts_of_home["download_bytes_per_day"] = HOURS_PER_DAY * home.download_bytes_per_hour
        facts_of_home["trainer_memory"]["total_bytes"] = home.trainer_memory.total_bytes
        facts_of_home["network_memory"]["total_bytes"] = home.network_memory.total_bytes
    return {
        "schema": 1,
        "run": manifest.name,
        "mode": section.mode,
        "sync_every": section.sync_every,
        "num_fragments": section.num_fragments,
        "codec": section.codec,
        "goal": profile.goal.model_dump(),
        **facts,
    }


def _print_plan(console: PlainConsole, manifest: RunManifest, profile: PlanProfile, plan: RunPlan) -> None:
    section = manifest.averaging
    console.print(
        f"{manifest.name}  {count_text(float(plan.num_parameters))} parameters in "
        f"{plural(len(plan.fragment_sizes), 'fragment')}  mode {section.mode}  H {section.sync_every}  "
        f"codec {section.codec}  {plural(plan.num_peers, 'peer')}",
    )
    console.print(
        f"A round of each fragment every {seconds_text(plan.interval_seconds)}; from its last offer to its commit "
        f"{seconds_text(plan.round_seconds)} (codec not counted); {plan.contribution_bits_per_parameter:.3f} bits "
        f"per parameter there, {plan.result_bits_per_parameter:.3f} back.\n",
    )
    _print_homes(console, profile, plan)
    _print_memory(console, plan)
    console.print(
        f"disk {bytes_text(plan.disk_bytes)} for checkpoints   joining downloads {bytes_text(plan.join_bytes)}   "
        f"{count_text(plan.tokens_per_second)} tokens/s together: "
        f"{count_text(float(plan.goal_tokens))} tokens in "
        f"{seconds_text(plan.goal_seconds)}\n",
    )
    for sentence in plan.warnings:
        console.print(Text.assemble(("Note: ", "yellow"), f"{sentence}."))


def _print_homes(console: PlainConsole, profile: PlanProfile, plan: RunPlan) -> None:
    titles = ("homes", "step", "H", "computing", "in time", "Mbit/s up", "of line", "down", "of line")
    speeds = _table(titles, num_texts=1)
    volumes = _table(("bytes on the line", "up per hour", "down per hour", "up per day", "down per day"), num_texts=1)
    for home, group in zip(plan.homes, profile.peers, strict=True):
        speeds.add_row(
            f"{home.count} x {home.name}",
            seconds_text(group.step_seconds),
            str(home.sync_every),
            _percent(home.utilisation),
            _percent(home.in_time),
            f"{home.needed_upload_bits_per_second / 1e6:.3g}",
            _percent(home.upload_share),
            f"{home.needed_download_bits_per_second / 1e6:.3g}",
            _percent(home.download_share),
        )
        volumes.add_row(
            f"each {home.name}",
            bytes_text(home.upload_bytes_per_hour),
            bytes_text(home.download_bytes_per_hour),
            bytes_text(HOURS_PER_DAY * home.upload_bytes_per_hour),
            bytes_text(HOURS_PER_DAY * home.download_bytes_per_hour),
        )
    console.print(speeds)
    console.print()
    console.print(volumes)
    records = max(home.record_bytes_per_hour for home in plan.homes)
    console.print(
        f"Beside it records of members: at most {bytes_text(records)} an hour each way.\n", style="dim", highlight=False
    )


def _print_memory(console: PlainConsole, plan: RunPlan) -> None:
    table = _table(("memory", "trainer process", "network process", "of these, shared"), num_texts=1)
    for home in plan.homes:
        table.add_row(
            home.name,
            bytes_text(home.trainer_memory.total_bytes),
            bytes_text(home.network_memory.total_bytes),
            bytes_text(home.network_memory.mailbox_bytes),
        )
    console.print(table)
    console.print(
        f"trainer: {_parts(plan.homes[0].trainer_memory)}; activations not counted", style="dim", highlight=False
    )
    console.print(f"network: {_parts(plan.homes[0].network_memory)}\n", style="dim")


def _table(titles: Iterable[str], num_texts: int) -> Table:
    table = Table(box=None, pad_edge=False)
    for column, title in enumerate(titles):
        table.add_column(title, justify="left" if column < num_texts else "right")
    return table


def _parts(memory: TrainerMemory | NetworkMemory) -> str:
    sizes = asdict(memory).items()
    return ", ".join(f"{name.removesuffix('_bytes')} {bytes_text(size)}" for name, size in sizes if size)


def _percent(share: float) -> str:
    return share_text(share)
