"""What training together does to a learning curve, an epoch and an inner loop.

- `bench_trainer.py`: tokens per second of our inner loop against a bare one
- `bench_schedule.py`: learning rates of all peers over time, and a peer that joins at the end of a cosine
- `epoch_coverage.py`: how much of an epoch a swarm with crashes reads, and what twice
"""
