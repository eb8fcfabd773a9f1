"""Emulated home lines between processes of one machine.

The files, each built on those above it:

    home_lines.py  lines with the rates and delays that were asked for; the emulator is a file of the user's
    ping.py        round trips over a line while rounds go on
"""
