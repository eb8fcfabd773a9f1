"""What the command line itself costs.

- `bench_cli.py`: help, mistakes and the first word of a join, in processor time
"""
