"""What a run says about rows with labels: where text, picture and class are, and how long an example may be."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dht.ground.errors import Incompatible, UsageFault
from peer.config.hf_config import checked_config
from peer.config.manifest import RunManifest

MAX_LABELS = 65_535
"""Classes; the largest published sets of pictures have 21,841."""
HEAD_VALUES = 2
"""Of a stored row, before its tokens or pixels: the number of the class, and how many tokens follow."""
NUM_SHADES = 256
"""Values of a pixel's channel."""


@dataclass(frozen=True, slots=True)
class ExampleRules:
    """How a row becomes an example.

    Attributes:
        field: has the text, or the picture.
        label_field: has the class, as a number or by its name.
        labels: names of the classes, in the order of their numbers.
        num_values: tokens that are kept of a text, or pixel values of a picture.
        picture: (channels, height and width) of a picture; None: examples are texts.
    """

    field: str
    label_field: str
    labels: tuple[str, ...]
    num_values: int
    picture: tuple[int, int] | None = None

    @property
    def row_values(self) -> int:
        """Of each stored row."""
        return HEAD_VALUES + self.num_values

    def number_of(self, label: object) -> int | None:
        """Of a class, as a row says it; None: the run has none of that name or number."""
        if isinstance(label, str):
            if label in self.labels:
                return self.labels.index(label)
            label = int(label) if label.isdecimal() and len(label) < 10 else None
        if isinstance(label, float) and label.is_integer():
            label = int(label)
        return int(label) if isinstance(label, int) and 0 <= label < len(self.labels) else None

    def row(self, label: int, values: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
        """A stored row of `row_values` numbers: class, number of values (0: all), values, zeros."""
        row = np.zeros(self.row_values, dtype)
        row[0] = label
        row[1] = 0 if self.picture is not None else len(values)
        row[HEAD_VALUES : HEAD_VALUES + len(values)] = values
        return row


def rules_of(manifest: RunManifest) -> ExampleRules | None:
    """What a run says about labelled rows; None: it reads text without labels.

    Raises:
        Incompatible: it trains a classification and does not say where labels are, or has a single class.
    """
    model, data = manifest.model, manifest.data
    if model.task not in ("sequence-classification", "image-classification"):
        return None
    assert model.config is not None
    is_picture = model.task == "image-classification"
    missing = [
        name
        for name, value in (
            ("data.label_field", data.label_field),
            ("data.image_field", data.image_field or not is_picture),
            ("model.image_size", model.image_size or not is_picture),
        )
        if not value
    ]
    if missing:
        raise Incompatible(
            f"run {manifest.name} trains {model.task}, and its manifest lacks {' and '.join(missing)}; expected a run "
            "whose data has labels; train it in a loop of your own with murmuration.join, or ask its owner to make it "
            "with `peer init --task`"
        )
    labels = labels_of(model.config)
    if len(labels) < 2:
        raise Incompatible(f"run {manifest.name} has one class; expected two or more, as config.json's num_labels says")
    assert data.label_field is not None
    if not is_picture:
        return ExampleRules(data.text_field, data.label_field, labels, model.context)
    assert data.image_field is not None
    assert model.image_size is not None
    channels = model.picture_channels
    num_values = channels * model.image_size**2
    return ExampleRules(data.image_field, data.label_field, labels, num_values, (channels, model.image_size))


def labels_from(text: str) -> tuple[str, ...]:
    """Names of classes from a flag: their number, or the names themselves, separated by commas.

    Raises:
        UsageFault: fewer than two, or one of them twice.
    """
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    if text.isdecimal() and len(text) < 6:
        names = tuple(f"LABEL_{number}" for number in range(int(text)))
    if len(names) < 2 or len(set(names)) < len(names):
        raise UsageFault(
            f"--labels is {text[:60]!r}; expected two classes or more, each once: a number, or their names"
        )
    return names


def check_has_labels(source: str, kinds: tuple[str, ...]) -> None:
    """Before labelled rows are read.

    Raises:
        UsageFault: such a source has none.
    """
    if not source.startswith(kinds):
        raise UsageFault(
            f"{source} has no labels, and this run trains a classification; expected rows with a label; give --data "
            f"with one of {', '.join(kinds)}"
        )


def labels_of(text: str) -> tuple[str, ...]:
    """Names of a config's classes, in the order of their numbers; as the library, two without a word about them.

    A config with names has all of them, from 0 on; otherwise they are as many as it says.
    """
    fields = checked_config(text)
    names, number = fields.get("id2label"), fields.get("num_labels", 2)
    if isinstance(names, dict) and set(names) == {str(index) for index in range(len(names))}:
        return tuple(str(names[str(index)]) for index in range(len(names)))
    is_number = isinstance(number, int) and 0 < number <= MAX_LABELS
    return tuple(f"LABEL_{index}" for index in range(number if is_number else 0))
