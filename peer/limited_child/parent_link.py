"""A child's link to its parent: frames in both directions, and files whose bytes the parent reads."""

from __future__ import annotations

import contextlib
import io
import os
import queue
import shutil
import signal
import threading
from typing import Any, BinaryIO

from peer.limited_child.frames import Frame, frame_bytes, read_frame

MAX_READ_BYTES = 8 << 20
"""Most bytes of one read that a child requests from its parent."""


class ParentLink:
    """The child's end of the pipes. The process ends at once when its parent has ended.

    Args:
        folder: the working folder of this process, deleted when the parent has ended.
        max_bytes: most bytes of one frame from the parent, which is trusted.
    """

    def __init__(self, questions: BinaryIO, answers: BinaryIO, folder: str, max_bytes: int = 1 << 40) -> None:
        self._answers = answers
        self._arrived: queue.SimpleQueue[Frame] = queue.SimpleQueue()
        self._turn = threading.Lock()
        threading.Thread(target=self._receive, args=(questions, folder, max_bytes), daemon=True).start()

    def next_frame(self) -> Frame:
        return self._arrived.get()

    def send(self, fields: dict[str, Any], body: bytes = b"") -> None:
        self._answers.write(frame_bytes(fields, body))
        self._answers.flush()

    def read(self, offset: int, length: int) -> bytes:
        """Return bytes of the file that the parent gave with this question; fewer than `length` at its end."""
        parts: list[bytes] = []
        # A library may read from its own threads.
        with self._turn:
            while length > 0:
                self.send({"read": [offset, min(length, MAX_READ_BYTES)]})
                part = self.next_frame()[1]
                if not part:
                    break
                parts.append(part)
                offset, length = offset + len(part), length - len(part)
        return b"".join(parts)

    def file(self, num_bytes: int) -> io.BufferedReader:
        """Return that file, of `num_bytes`, as a Python file object."""
        return io.BufferedReader(_ParentFile(self, num_bytes), 1 << 20)

    def _receive(self, questions: BinaryIO, folder: str, max_bytes: int) -> None:
        with contextlib.suppress(OSError):
            while (frame := read_frame(questions.read, max_bytes)) is not None:
                self._arrived.put(frame)
        shutil.rmtree(folder, ignore_errors=True)
        os.killpg(0, signal.SIGKILL)


class _ParentFile(io.RawIOBase):
    def __init__(self, parent: ParentLink, num_bytes: int) -> None:
        self._parent, self._num_bytes, self._place = parent, num_bytes, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._place, os.SEEK_END: self._num_bytes}[whence]
        self._place = max(0, start + offset)
        return self._place

    def readall(self) -> bytes:
        content = self._parent.read(self._place, max(0, self._num_bytes - self._place))
        self._place += len(content)
        return content

    def readinto(self, buffer: Any) -> int:
        length = max(0, min(len(buffer), self._num_bytes - self._place))
        part = self._parent.read(self._place, length)
        buffer[: len(part)] = part
        self._place += len(part)
        return len(part)
