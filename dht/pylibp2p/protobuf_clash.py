"""Load hivemind and py-libp2p in one process, although both register protobuf symbols of the package ``crypto.pb``.

They do so under different file names, so protobuf refuses the second one (``duplicate symbol 'crypto.pb.KeyType'``).
hivemind's copy has no dependants, so it can use a separate descriptor pool.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Final

from dht.ground.errors import LocalFault

_MODULE: Final = "hivemind.proto.crypto_pb2"


def make_room_for_libp2p() -> None:
    """Allow importing hivemind and py-libp2p into this process. Call this before either; a second call does nothing.

    Raises:
        LocalFault: hivemind is already loaded in a way that excludes py-libp2p.
    """
    # Not at the top: `peer --help` loads this module.
    from google.protobuf import descriptor_pool

    loaded = sys.modules.get(_MODULE)
    if loaded is not None:
        if loaded.DESCRIPTOR.pool is descriptor_pool.Default() and "libp2p" not in sys.modules:
            raise LocalFault(
                "hivemind was loaded before make_room_for_libp2p() in this process; expected it after; first call "
                "dht.pylibp2p.protobuf_clash.make_room_for_libp2p(), or use --host-backend p2pd"
            )
        return
    package = importlib.util.find_spec("hivemind")
    if package is None or not package.submodule_search_locations:
        return
    path = Path(package.submodule_search_locations[0], "proto", "crypto_pb2.py")
    spec = importlib.util.spec_from_file_location(_MODULE, path)
    if spec is None or spec.loader is None:
        raise LocalFault(f"cannot load {path}; expected hivemind 1.1.12; install it again")
    module = importlib.util.module_from_spec(spec)
    own_pool, default = descriptor_pool.DescriptorPool(), descriptor_pool.Default
    descriptor_pool.Default = lambda: own_pool
    try:
        spec.loader.exec_module(module)
    finally:
        descriptor_pool.Default = default
    sys.modules[_MODULE] = module
