"""Paths to members: which kinds there are, how members measure them for each other, which one is taken.

The files, each built on those above it:

    path_and_relay_choice.py  which kind of path leads to a peer, whose relay to use (pure)
    probe_messages.py         what members tell each other of the line between them (pure)
    probe_server.py           the serving side of probes: bounded bytes, few dials
    probe_client.py           the asking side
    hole_punching.py          two homes hang up and dial again in turn
    paths.py                  the path manager: direct, a hole, a relay

Source: NTP (RFC 5905) for the offset of two clocks.
"""
