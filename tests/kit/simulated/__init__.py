"""Simulated swarms of whole nodes with one peer that misbehaves.

The files, each built on those above it:

    light_work.py        a quadratic with the tokens of the built-in model's steps
    hostile_scenario.py  a scenario with hostile peers of one kind
    set_clocks.py        a peer whose wall clock is wrong, or set while it trains
    anchor_thieves.py    claims of a version that nobody signed for, with a constant state behind it
    hindering.py         a third peer that may hinder two good ones
"""
