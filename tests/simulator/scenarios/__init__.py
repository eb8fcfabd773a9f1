"""What happens in a simulation. The scenarios that ship are the TOML files here.

The files, each built on those above it:

    spec.py              what a simulation is asked (pure)
    scenario.py          what a scenario file holds
    schedule.py          from a scenario and a seed to every peer's life (pure)
    random_swarms.py     small swarms under random faults (pure)
    hostile_scenario.py  a scenario with hostile peers of one kind
"""
