"""What commands are given.

The files:

    options.py  flags made from the fields of PeerConfig, and those that several commands share
"""
