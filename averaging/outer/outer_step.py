"""The outer step, the overlay and the digest of an anchor: the effects of a commit on one fragment. Pure.

Sign: the outer gradient is start minus end of local training. The state of one fragment on one peer satisfies

    x = A - O - r - L

Here x are the live parameters, and A is the committed anchor. The overlay O is the visible part of own work that was
sent but not committed. The residual r is own work that is not sent: error feedback, returned work, waiting work. L is
the trainer's work since it last handed over work. Each function below preserves this sum: it returns the change of the
right side as one array to add to x.

Bit-identical on all machines: float32 on the CPU, with separate multiply and add (one rounding each). Contributions are
combined in PeerId order, and all peers apply the encoded bytes of the broadcast.

Sources: DiLoCo (arXiv 2311.08105) for the outer step. Streaming DiLoCo (arXiv 2501.18512) for blending. Eager Updates
(arXiv 2502.12996) for the overlay `eager`.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType

import numpy as np

from averaging.arrays import F32
from averaging.codec import compiled_kernels
from averaging.codec.digests import array_digest, digest_of
from averaging.outer.outer_settings import OuterRule

CHUNK_VALUES = 1 << 18
"""Values per pass (1 MiB of float32): the working set of a pass stays in the cache."""
DIGEST_CHUNK_BYTES = 1 << 20
"""Chunk size of a digest and of a transfer."""
HASHING_THREADS = 2
"""One thread each for anchor and momentum; hashing takes as long as the step."""


def outer_step_(anchor: F32, momentum: F32, gradient: F32, outer_lr: float, outer_momentum: float) -> F32:
    """Do a step of Nesterov SGD in place: m <- beta m + g; A <- A - eta (g + beta m). Return the change of A.

    All arrays: float32 [n]. Each operation rounds once, so the result does not depend on the machine.
    """
    momentum *= np.float32(outer_momentum)
    momentum += gradient
    step = momentum * np.float32(outer_momentum)
    step += gradient
    step *= np.float32(outer_lr)
    before = anchor.copy()
    anchor -= step
    return np.subtract(anchor, before, out=before)


def outer_step_into(
    anchor: F32, momentum: F32, gradient: F32, outer_lr: float, outer_momentum: float, change: F32
) -> None:
    """Do `outer_step_`, and write the change of A into `change`. Uses compiled kernels if possible; the bits are the
    same.

    All arrays: float32 [n], contiguous, without overlap.
    """
    kernels = compiled_kernels.kernels()
    if kernels is None:
        change[:] = outer_step_(anchor, momentum, gradient, outer_lr, outer_momentum)
    else:
        kernels.outer_step(anchor, momentum, gradient, outer_lr, outer_momentum, change)


def overlay_terms(rule: OuterRule, own_share: float) -> tuple[float, float]:
    """Return the coefficients a, b of the overlay O = a D + b u: for the work D under way, and for this peer's velocity
    u after it.

    The velocity after its k-th contribution is u_k = beta u_(k-1) + D_k.

    - sync, streaming: O = 0; sent work is not visible until its round is committed.
    - eager (arXiv 2502.12996, Algorithm 3 in anchor form): O = eta c (D + beta u), with this peer's share c of the
      weights.
    - carry: O = overlay_gain * D; local progress stays in the live parameters while the round travels.

    The live parameters of peers i and j that trained nothing since differ only by `O_j - O_i` and their residuals. The
    difference does not grow with the number of rounds, whatever eta, weights and members were from round to round. Let
    |.| be any norm, c_i this peer's share, and D_i^k its work of the k-th last round. D_i^0 is the work in flight; D is
    0 if it was not committed. For a peer without work in flight all D are 0, and so is O:

    - eager: |O_i - O_j| <= eta0 / (1 - beta) * max_k |c_i D_i^k - c_j D_j^k|. For O_i is the sum of the D_i^k,
      with coefficients of at most `eta0 c_i beta^k` for k > 0, and `eta0 c_i (1 + beta)` for k = 0.
    - carry: |O_i - O_j| <= overlay_gain * |D_i^0 - D_j^0|.
    """
    if rule.mode == "carry":
        return rule.overlay_gain, 0.0
    if rule.mode == "eager":
        on_work = rule.outer_lr * own_share
        return on_work, on_work * rule.outer_momentum
    return 0.0, 0.0


def overlay_of(rule: OuterRule, work: F32, velocity: F32 | None, own_share: float) -> F32 | None:
    """Return the overlay O, float32 [n], or None if it is zero.

    Args:
        work: own work that is sent but not committed, [n].
        velocity: own velocity u after the last committed own work, [n]; needed by eager.
    """
    on_work, on_velocity = overlay_terms(rule, own_share)
    if not on_work:
        return None
    overlay = work * np.float32(on_work)
    if on_velocity:
        assert velocity is not None, "eager overlays need this peer's velocity"
        after = velocity * np.float32(rule.outer_momentum)
        after += work
        after *= np.float32(on_velocity)
        overlay += after
    return overlay


def anchor_digest(anchor: F32, momentum: F32) -> bytes:
    """Return the 32-byte digest of (A, m): BLAKE3 over the BLAKE3 of each MiB of their little-endian float32 bytes.

    With two levels, a joiner can check each chunk as it arrives, and a step can hash each chunk while it is in the
    cache.

    Args:
        anchor, momentum: float32 [n], contiguous.
    """
    step = DIGEST_CHUNK_BYTES // 4
    chunks = (values[start : start + step] for values in (anchor, momentum) for start in range(0, values.size, step))
    return digest_of_chunks([array_digest(chunk) for chunk in chunks])


class RunningDigest:
    """Computes the `anchor_digest` of arrays that are stepped from their first value to their last.

    Other threads hash each MiB right after its step. Leave the `with` block before the arrays are released.
    """

    def __init__(self, anchor: F32, momentum: F32) -> None:
        self._arrays = anchor, momentum
        self._threads = ThreadPoolExecutor(HASHING_THREADS)
        self._hashed: list[tuple[Future[bytes], Future[bytes]]] = []

    def __enter__(self) -> RunningDigest:
        return self

    def __exit__(self, kind: type[BaseException] | None, fault: BaseException | None, at: TracebackType | None) -> None:
        self._threads.shutdown(cancel_futures=True)

    def stepped_to(self, end: int) -> None:
        """Note that values [0, end) are final."""
        step, (anchor, momentum) = DIGEST_CHUNK_BYTES // 4, self._arrays
        if anchor.size <= step:
            return  # faster than starting a thread
        while (start := len(self._hashed) * step) < anchor.size and min(start + step, anchor.size) <= end:
            chunks = anchor[start : start + step], momentum[start : start + step]
            self._hashed.append(
                (self._threads.submit(array_digest, chunks[0]), self._threads.submit(array_digest, chunks[1]))
            )

    def result(self) -> bytes:
        """Return the digest, after all values are stepped."""
        self.stepped_to(self._arrays[0].size)
        if not self._hashed:
            return anchor_digest(*self._arrays)
        return digest_of_chunks([pair[part].result() for part in (0, 1) for pair in self._hashed])


def digest_of_chunks(digests: Sequence[bytes]) -> bytes:
    """Return the anchor digest for these chunk digests."""
    return digest_of(b"".join(digests))
