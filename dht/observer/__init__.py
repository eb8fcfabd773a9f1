"""The network of an observer, which announces nothing and serves no one.

The files, each built on those above it:

    host_choice.py  choice between the two hosts of an observer
    network.py      a host on that transport, and a store on the host
"""
