"""Made-up surroundings of benchmarks.

dashboard_history.py  a run of months, for the dashboard
record_swarm.py       the DHT of `bench_records`
"""
