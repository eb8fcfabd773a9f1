"""Emulated home lines between processes of one machine.

home_lines.py  lines with the rates and delays that were asked for; the emulator is a file of the user's
ping.py        round trips over a line while rounds go on
"""
