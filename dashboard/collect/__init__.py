"""Data that the dashboard fetches from members besides their records.

The files, each built on those above it:

    commit_fetcher.py  signed commits, as far back as members have them
    profiles.py        contributors' profiles, accepted if their machines agree
"""
