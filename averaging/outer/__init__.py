"""The mathematics of one fragment: its layout, weights, the mean, the outer step, its state at one peer. Pure.

The files, each built on those above it:

    fragment_layout.py               parameters to fragments and back
    fragment_schedule.py             when a peer sends which fragment
    outer_settings.py                what of the manifest decides a commit
    contribution_weights.py          weights of contributions, outer rate and momentum under delay
    outer_step.py                    the outer step, the overlay, the digest of the anchor
    robust_mean.py                   combinations that a minority cannot steer; limits on norms
    shard_mean.py                    a shard's contributions to its encoded mean, and what that lost
    own_contributions.py             a peer's own contributions: announced, in flight, and in a commit
    change_buffers.py                the memory into which changes for the live parameters are written
    fragment_anchor_and_residual.py  anchor, momentum, residual, work in flight, and what a commit does to them

Sources: DiLoCo (arXiv 2311.08105) for the outer step. Streaming DiLoCo (arXiv 2501.18512) for fragments and blending.
Eager Updates (arXiv 2502.12996) for the overlay. Decoupled DiLoCo (arXiv 2604.21428) for token weights. Async Local-SGD
(arXiv 2401.09135) for staleness. For robust means, arXiv 1803.01498 and 2106.11257; arXiv 1901.09847 for error
feedback.
"""
