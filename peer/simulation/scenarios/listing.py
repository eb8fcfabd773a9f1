"""The scenarios that come with the program, for people; loads neither numpy nor torch."""

from __future__ import annotations

import json

from dht.quantities import plural, seconds_text
from peer.simulation.scenarios.scenario import SHIPPED, load_scenario


def list_scenarios(as_json: bool) -> int:
    """Print the scenarios that come with the program."""
    found = {name: load_scenario(name) for name in SHIPPED}
    if as_json:
        print(json.dumps({name: scenario.description for name, scenario in found.items()}))
        return 0
    for name, scenario in found.items():
        length = seconds_text(60 * scenario.duration_minutes)
        print(f"{name:12} {plural(scenario.num_peers, 'peer')}, {length}: {scenario.description}")
    return 0
