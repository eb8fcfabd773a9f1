"""Which files of a data set of the hub are a split, by its README, which a child process with limits reads.

A README is a stranger's YAML, and its patterns can fit many names in endless many ways. The child's end is `prepare`,
which `peer.limited_child.process` calls.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from dht.ground.errors import Incompatible, LocalFault, UsageFault
from dht.ground.fields import clean_text
from peer.limited_child.limited_child import ChildLimits, LimitedChild
from peer.limited_child.parent_link import ParentLink
from peer.trainer.text.hub_layout import FORMATS, PACKINGS, SplitFiles, files_of_split

LIMITS = ChildLimits(memory_bytes=1 << 30, seconds=60.0)
"""A README of 1 MB takes some seconds, and so do 200,000 names."""


def split_by_readme(paths: Sequence[str], readme: bytes, name: str | None, split: str, where: str) -> SplitFiles:
    """The files of a split, as `files_of_split` finds them with the head of a README.

    Args:
        where: what messages call the data set.

    Raises:
        UsageFault: as from `files_of_split`, the head is no YAML, or it takes more than `LIMITS`.
    """
    question = {"paths": list(paths), "name": name, "split": split}
    with LimitedChild(__name__, {}, LIMITS, f"the README.md of {where}", "take another data set") as child:
        child.start()
        try:
            answer = child.ask(question, readme)[0]
        except (UsageFault, Incompatible):
            raise
        except LocalFault as fault:
            raise UsageFault(str(fault)) from fault
    numbers, form, packing = (answer.get(field) for field in ("numbers", "form", "packing"))
    if (
        not isinstance(numbers, list)
        or not all(type(number) is int and 0 <= number < len(paths) for number in numbers)
        or not (isinstance(form, str) and form in FORMATS.values())
        or not (isinstance(packing, str) and packing in ("", *PACKINGS))
    ):
        raise UsageFault(f"the README.md of {where} leads to no files; expected some; take another data set")
    return SplitFiles(tuple(paths[number] for number in sorted(set(numbers))), form, packing)


def prepare(setup: dict[str, Any], parent: ParentLink) -> Any:
    """Answer the question of `split_by_readme`."""

    def answer(question: dict[str, Any], body: bytes) -> dict[str, Any]:
        paths = question["paths"]
        found = files_of_split(paths, head_of(body), question["name"], question["split"])
        places = {path: number for number, path in enumerate(paths)}
        return {
            "numbers": [places[path] for path in found.paths],
            "form": found.form,
            "packing": found.packing,
        }

    return answer


def head_of(readme: bytes) -> dict[str, Any]:
    """What a README says in its head; empty: nothing that can be read."""
    text = readme.decode("utf-8", "replace").removeprefix("\ufeff")
    match = re.match(r"---[ \t]*\r?\n(.*?)^---", text, re.DOTALL | re.MULTILINE)
    if match is None:
        return {}
    import yaml  # comes with huggingface_hub

    class Plain(yaml.SafeLoader):  # type: ignore[misc]
        """Without aliases, with which a short text can stand for endless data."""

        def compose_node(self, parent: Any, index: Any) -> Any:
            if self.check_event(yaml.AliasEvent):
                raise yaml.YAMLError("it has aliases")
            return super().compose_node(parent, index)

    try:
        found = yaml.load(match[1], Plain)
    except MemoryError:
        raise
    except Exception as error:  # of tags that its values do not fit, which have no class in common
        raise UsageFault(
            f"the head of its README.md is not YAML that can be read ({clean_text(str(error), 100)}); expected the "
            "table of its configurations"
        ) from error
    return found if isinstance(found, dict) else {}
