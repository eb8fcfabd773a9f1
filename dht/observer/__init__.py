"""The network of somebody who only looks: it announces nothing and serves nobody.

The files, each built on those above it:

    host_choice.py  which of the two hosts an observer uses
    network.py      a host on that transport, and a store on the host
"""
