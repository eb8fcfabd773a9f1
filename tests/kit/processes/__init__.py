"""Real processes on loopback, started in a temporary folder and never left behind.

The files, each built on those above it:

    unhurried_peer.py   the `peer` command on a slow machine
    process_swarm.py    real `peer` processes, watched through their event logs
    hostile_member.py   a member under the test's control: a real daemon that says whatever the test wants
    hostile_process.py  a hostile member in a process of its own
"""
