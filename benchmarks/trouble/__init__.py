"""What members that lie, hinder others or die cost the rest of a swarm.

- `bench_hostile.py`: liars, flooders and claimants beside honest peers, in virtual time
- `bench_free_records.py`: many keys of one host that publish right records for nothing, in virtual time
- `bench_record_keys.py`: the same with three real peers
- `bench_hindrance.py`: one real peer that is slow or broken in one way after the other
- `bench_kill.py`: a death in mid-round, with real peers or in virtual time
"""
