"""Home networks behind routers that translate addresses, in network namespaces: real masquerade by the kernel.

One namespace is the public network (a bridge). Each public machine and each router is another one on it, and behind
each router lies a home. Needs root, `ip` and `nft`, and a kernel with nf_tables' masquerade. Nothing leaves the
namespaces. The public addresses are from 45.67.89.0/24. Libp2p does not take the ranges for documentation (RFC
5737) for public ones. It then neither relays nor punches holes.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

PUBLIC: Final = "45.67.89"
ROUTER_FIRST: Final = 100
"""Last byte of the first router's public address; public machines have 10 and above."""
CLONE_NEWNET: Final = 0x40000000

Nat = Literal["public", "cone", "symmetric"]
NATS: Final[tuple[Nat, ...]] = ("public", "cone", "symmetric")

RULES: Final = """
table ip nat {{
  chain out {{
    type nat hook postrouting priority srcnat;
    oifname "wan" masquerade{how}
  }}
}}
table inet filter {{
  chain forward {{
    type filter hook forward priority filter; policy drop;
    ct state established,related accept
    iifname "lan" accept
  }}
  chain input {{
    type filter hook input priority filter; policy accept;
    iifname "wan" drop
  }}
}}
"""
"""A home router: whatever goes out may come back, nothing else comes in, and what knocks is dropped without a word.

`masquerade` keeps the port where it can, so a machine has one public port for all it talks to. That is "cone", though
what may come in depends on address and port. `fully-random` takes another one for each remote ("symmetric")."""


@dataclass(frozen=True, slots=True)
class Place:
    """One machine of the lab.

    Attributes:
        space: its namespace.
        ip: its own address.
        public_ip: where the others see it.
    """

    name: str
    space: str
    nat: Nat
    ip: str
    public_ip: str


def what_is_missing() -> str:
    """A sentence on why this machine cannot make home networks; empty: it can."""
    if os.geteuid() != 0:
        return "this user is not root; expected root, who may make network namespaces; run it with sudo"
    for tool, package in (("ip", "iproute2"), ("nft", "nftables")):
        if shutil.which(tool) is None:
            return f"the command {tool} is not there; expected it to lay lines and routers; install {package}"
    return ""


class NatLab:
    """Public machines and homes; a context manager that removes everything it made.

    Args:
        public: names of public machines.
        homes: name -> what kind of router stands before it.

    Raises:
        SystemExit: on entry: no privileges, no tool, or no masquerade in this kernel.
    """

    def __init__(self, public: Sequence[str], homes: dict[str, Nat]) -> None:
        self._tag = f"mmnat{os.getpid()}"
        self._public = list(public)
        self._homes = dict(homes)
        self._spaces: list[str] = []
        self.places: dict[str, Place] = {}

    def __enter__(self) -> NatLab:
        if missing := what_is_missing():
            raise SystemExit(f"nat_lab: {missing}.")
        try:
            self._open()
        except (OSError, subprocess.CalledProcessError) as error:
            self.close()
            said = (error.stderr or "").strip() if isinstance(error, subprocess.CalledProcessError) else str(error)
            raise SystemExit(
                f"nat_lab: home networks could not be laid ({said or error}); expected a kernel with network "
                "namespaces, veth, bridges and nf_tables masquerade."
            ) from error
        except BaseException:  # Ctrl+C, too: no network stays behind
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _open(self) -> None:
        net = self._space("net")
        _ip("-n", net, "link", "add", "name", "bridge0", "type", "bridge")
        _ip("-n", net, "link", "set", "bridge0", "up")
        for number, name in enumerate(self._public):
            space = self._space(name)
            ip = f"{PUBLIC}.{10 + number}"
            self._plug(net, space, "eth0", f"{ip}/24", f"p{number}")
            self.places[name] = Place(name, space, "public", ip, ip)
        for number, (name, nat) in enumerate(self._homes.items()):
            if nat == "public":
                space, ip = self._space(name), f"{PUBLIC}.{50 + number}"
                self._plug(net, space, "eth0", f"{ip}/24", f"h{number}")
                self.places[name] = Place(name, space, nat, ip, ip)
                continue
            router, home = self._space(f"{name}-router"), self._space(name)
            public_ip, inside = f"{PUBLIC}.{ROUTER_FIRST + number}", f"192.168.{1 + number}"
            self._plug(net, router, "wan", f"{public_ip}/24", f"r{number}")
            _ip("-n", home, "link", "add", "name", "eth0", "type", "veth", "peer", "name", "lan", "netns", router)
            for space, device, address in ((router, "lan", f"{inside}.1/24"), (home, "eth0", f"{inside}.100/24")):
                _ip("-n", space, "addr", "add", address, "dev", device)
                _ip("-n", space, "link", "set", device, "up")
            _ip("-n", home, "route", "add", "default", "via", f"{inside}.1")
            self._route(router, RULES.format(how=" fully-random" if nat == "symmetric" else ""))
            self.places[name] = Place(name, home, nat, f"{inside}.100", public_ip)

    def _space(self, name: str) -> str:
        space = f"{self._tag}-{name}"
        _ip("netns", "add", space)
        self._spaces.append(space)
        _ip("-n", space, "link", "set", "lo", "up")
        return space

    def _plug(self, net: str, space: str, device: str, address: str, port: str) -> None:
        _ip("-n", net, "link", "add", "name", port, "type", "veth", "peer", "name", device, "netns", space)
        _ip("-n", net, "link", "set", port, "master", "bridge0", "up")
        _ip("-n", space, "addr", "add", address, "dev", device)
        _ip("-n", space, "link", "set", device, "up")

    def _route(self, router: str, rules: str) -> None:
        with inside(router):
            Path("/proc/sys/net/ipv4/ip_forward").write_text("1", encoding="ascii")
        subprocess.run(
            ["ip", "netns", "exec", router, "nft", "-f", "-"], input=rules, text=True, check=True, capture_output=True
        )

    def cut(self, name: str) -> None:
        """The machine's line goes dead without a word."""
        _ip("-n", self.places[name].space, "link", "set", "eth0", "down")

    def run(self, name: str, command: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
        """Start a command on a machine of the lab; it ends with this process."""
        libc = ctypes.CDLL(None, use_errno=True)
        descriptor = os.open(f"/run/netns/{self.places[name].space}", os.O_RDONLY | os.O_CLOEXEC)

        def enter() -> None:
            libc.setns(descriptor, CLONE_NEWNET)
            libc.prctl(1, 9)

        try:
            return subprocess.Popen(command, preexec_fn=enter, start_new_session=True, **options)
        finally:
            os.close(descriptor)

    def close(self) -> None:
        """End what still runs in the namespaces, and remove them. Never raises."""
        for space in reversed(self._spaces):
            found = subprocess.run(["ip", "netns", "pids", space], check=False, capture_output=True, text=True)
            for process_id in found.stdout.split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(process_id), signal.SIGKILL)
            subprocess.run(["ip", "netns", "del", space], check=False, capture_output=True)
        self._spaces.clear()


@contextlib.contextmanager
def inside(space: str) -> Iterator[None]:
    """This thread is in the namespace while the block runs."""
    libc = ctypes.CDLL(None, use_errno=True)
    old = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    new = os.open(f"/run/netns/{space}", os.O_RDONLY | os.O_CLOEXEC)
    try:
        if libc.setns(new, CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "cannot enter a network namespace")
        yield
    finally:
        libc.setns(old, CLONE_NEWNET)
        os.close(old)
        os.close(new)


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)
