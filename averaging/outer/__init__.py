"""The mathematics of one fragment: its layout, weights, the mean, the outer step, its state at one peer. Pure.

The files, each built on those above it:

    fragment_layout.py               maps parameters to fragments and back
    fragment_schedule.py             when a peer sends each fragment
    outer_settings.py                settings of the manifest that decide a commit
    contribution_weights.py          weights of contributions, outer rate and momentum under delay
    outer_step.py                    the outer step, the overlay, the digest of the anchor
    robust_mean.py                   combinations that a minority cannot control; limits on norms
    shard_mean.py                    averages a shard's contributions, encodes the mean, keeps the encoding error
    own_contributions.py             a peer's own contributions: in flight, committed
    change_buffers.py                memory for changes of the live parameters
    fragment_anchor_and_residual.py  anchor, momentum, residual and work in flight, and how a commit changes them

Sources: DiLoCo (arXiv 2311.08105) for the outer step. Streaming DiLoCo (arXiv 2501.18512) for fragments and blending.
Eager Updates (arXiv 2502.12996) for the overlay. Decoupled DiLoCo (arXiv 2604.21428) for token weights. Async Local-SGD
(arXiv 2401.09135) for staleness. For robust means, arXiv 1803.01498 and 2106.11257; arXiv 1901.09847 for error
feedback.
"""
