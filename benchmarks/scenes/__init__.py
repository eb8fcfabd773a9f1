"""Made-up surroundings of benchmarks.

The files, each built on those above it:

    dashboard_history.py  a run of months, for the dashboard
    page_bytes.py         what the page sends, for `bench_dashboard`
    record_swarm.py       the DHT of `bench_records`
"""
