"""Safetensors files: written one tensor after the other as the format's own library reads them, nothing damaged."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from peer.checkpoint.checked_files import measure_file
from peer.checkpoint.tensor_files import TensorSpec, open_arrays, write_arrays, write_raw
from peer.trainer.loop.checkpoint_values import open_tensors, spec_of, write_tensors

DTYPES = (
    *(torch.float64, torch.int64, torch.float32, torch.int32, torch.bfloat16, torch.float16, torch.int16),
    *(torch.int8, torch.uint8, torch.bool),
)
"""Wider types first."""


def test_every_type_comes_back_here_and_in_the_formats_own_library(tmp_path: Path) -> None:
    tensors: dict[str, torch.Tensor] = {}
    for dtype in DTYPES:
        for shape in ((3, 5), (7,), (), (0, 4)):
            tensors[f"{dtype} {list(shape)}"] = torch.randint(0, 100, shape).to(dtype)
    specs = [spec_of(name, tensor.dtype, tensor.shape) for name, tensor in tensors.items()]
    path = tmp_path / "ours"
    assert write_tensors(path, specs, tensors.values()) == measure_file(path)
    file, theirs = open_tensors(path), load_file(path)
    assert file.names == theirs.keys() == tensors.keys()
    for name, tensor in tensors.items():
        file.check(spec_of(name, tensor.dtype, tensor.shape))
        for found in (file.get(name), theirs[name]):
            assert (found.dtype, found.shape) == (tensor.dtype, tensor.shape)
            assert torch.equal(found, tensor)


def test_arrays_come_back_and_changing_one_changes_nothing_on_disk(tmp_path: Path) -> None:
    arrays = {"anchor": np.arange(5, dtype=np.float32), "codes": np.arange(3, dtype=np.uint8)}
    arrays["none"] = np.empty(0, dtype=np.uint8)
    before = write_arrays(tmp_path / "x", arrays)
    file = open_arrays(tmp_path / "x")
    assert np.array_equal(file.get("anchor"), arrays["anchor"])
    assert np.array_equal(file.get("codes"), arrays["codes"])
    assert file.get("none").size == 0
    file.get("anchor").fill(7)
    assert measure_file(tmp_path / "x") == before
    with pytest.raises(ValueError, match="x has no tensor momentum"):
        file.get("momentum")
    with pytest.raises(ValueError, match=r"x has no anchor of \[4\] F32 values"):
        file.check(TensorSpec("anchor", "F32", (4,)))


def test_a_tensor_that_changes_while_it_is_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="a changed to 3 bytes while it was written"):
        write_raw(tmp_path / "x", [TensorSpec("a", "U8", (2,))], [np.zeros(3, dtype=np.uint8)])
    with pytest.raises(ValueError, match=r"a changed to torch.float32 \[3\] while it was written"):
        write_tensors(tmp_path / "y", [spec_of("a", torch.float32, (2,))], [torch.zeros(3)])


def header_of(header: bytes, num_bytes: int) -> bytes:
    return len(header).to_bytes(8, "little") + header + bytes(num_bytes)


DAMAGED: dict[str, bytes] = {
    "nothing": b"",
    "half a length": bytes(4),
    "a header behind the end": (100).to_bytes(8, "little") + b"{}",
    "a header without end": (2**63).to_bytes(8, "little") + b"{}",
    "no JSON": header_of(b"{       ", 0),
    "a shape of another size": header_of(b'{"a":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}}  ', 8),
    "bytes that are not there": header_of(b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}  ', 7),
}


@pytest.mark.parametrize("what", DAMAGED)
def test_what_is_damaged_is_refused(tmp_path: Path, what: str) -> None:
    (tmp_path / "x").write_bytes(DAMAGED[what])
    for opened in (open_arrays, open_tensors):
        with pytest.raises(ValueError, match="x is not a safetensors file"):
            opened(tmp_path / "x")
