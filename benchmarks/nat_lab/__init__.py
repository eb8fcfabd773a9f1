"""`python -m benchmarks.nat_lab`: home routers that translate addresses, and what peers behind them can do.

The files, each built on those above it:

    spaces.py  routers and homes as network namespaces
    member.py  a light member: paths alone, without a DHT and training
"""
