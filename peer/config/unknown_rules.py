"""The refusal of a run whose rules this software does not support; `averaging/rules.py` explains rules."""

from __future__ import annotations

from averaging.rules import RULES
from peer.version import software


class UnknownRules(ValueError):
    """The run follows different rules. The message states which side needs an update, and how to update."""

    def __init__(self, rules: int) -> None:
        if rules > RULES:
            from peer.installation import update_command  # reads the metadata of packages

            remedy = f"update this software: {update_command()}"
        else:
            remedy = "the run is older and needs an update by its owner: docs/organiser/update.md"
        named = f"follows rules {rules}" if rules else "follows rules from before they had numbers"
        super().__init__(
            f"the run {named}; expected rules {RULES}, the only ones that this software ({software()}) knows, because "
            f"members with different rules would compute different models; {remedy}"
        )


def check_rules(rules: int) -> None:
    """Refuse rules that this software does not support.

    Raises:
        UnknownRules: the rules differ; the message has both numbers and the command that updates this software.
    """
    if rules != RULES:
        raise UnknownRules(rules)
