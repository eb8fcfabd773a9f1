"""Paths to members: their kinds, how members measure them for each other, and how one is chosen.

The files, each built on those above it:

    path_and_relay_choice.py  classifies the path to a peer, and chooses relays (pure)
    probe_messages.py         messages about the connection between two members (pure)
    probe_server.py           the serving side of probes: bounded bytes, few dials
    probe_client.py           the asking side
    hole_punching.py          two peers behind routers disconnect and redial in turn
    paths.py                  the path manager: direct, hole-punched, relayed

Source: NTP (RFC 5905) for the offset of two clocks.
"""
