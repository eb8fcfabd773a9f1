"""Adapter: the membership rules of `dht.access` as the Doorkeeper of rounds and state transfer."""

from __future__ import annotations

from dataclasses import dataclass

from dht.access import AccessRule, check_hello, check_reply, make_hello, make_refusal, make_welcome
from dht.host import PeerId


@dataclass(frozen=True, slots=True)
class RunDoorkeeper:
    """Greets with this run's manifest hash and refuses whoever has another run, manifest or protocol version."""

    rule: AccessRule
    me: PeerId
    role: str

    def hello(self) -> bytes:
        return make_hello(self.rule, self.me, self.role)

    def admit(self, remote: PeerId, hello: bytes) -> str:
        return check_hello(self.rule, remote, hello).role

    def welcome(self) -> bytes:
        return make_welcome()

    def refusal(self, reason: str) -> bytes:
        return make_refusal(reason)

    def check_reply(self, remote: PeerId, reply: bytes) -> None:
        check_reply(remote, reply)
