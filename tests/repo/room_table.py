"""The plan of the house: what each room may import, whether it is pure, which libraries it knows.

`tests/repo/layout_rules.py` has the rules that go by it.
"""

from __future__ import annotations

PACKAGES = ("dht", "averaging", "peer", "dashboard", "murmuration")
FRONT = "murmuration"
"""Its `__init__` gives the public names."""
GROUND = "dht.ground"
"""Errors, ports, checks and quantities: every room may import it."""

ROOMS: dict[str, tuple[str, bool, str]] = {
    # room or single file: (rooms that it may import, all of them named above; is it pure?; libraries)
    "dht": ("", False, ""),
    "dht.ground": ("", False, "msgpack"),
    "dht.identity": ("", False, "base58 cryptography"),
    "dht.streams": ("", False, ""),
    "dht.records": ("dht.identity", True, ""),
    "dht.admission": ("dht.identity dht.records", True, ""),
    "dht.p2pd": ("dht.identity dht.streams", False, "google hivemind"),
    "dht.pylibp2p": ("dht.identity dht.streams", False, "cryptography google libp2p noise"),
    "dht.simulated": ("dht.identity dht.records", False, ""),
    "dht.kademlia": (
        "dht.identity dht.streams dht.records dht.admission dht.p2pd",
        False,
        "google hivemind",
    ),
    "dht.observer": ("dht.*", False, ""),
    "averaging": ("", True, "numpy"),
    "averaging.codec": ("averaging", False, "blake3 numpy"),
    "averaging.wire": ("dht.records", True, "msgpack"),
    "averaging.signing": ("averaging.wire", True, "msgpack"),
    "averaging.outer": ("dht.records averaging averaging.codec averaging.wire", True, "numpy"),
    "averaging.lanes": ("dht.streams averaging.wire", False, ""),
    "averaging.rounds": ("averaging.wire averaging.signing", True, ""),
    "averaging.trust": (
        "averaging averaging.codec averaging.wire averaging.signing averaging.outer averaging.rounds",
        True,
        "numpy",
    ),
    "averaging.fragment": (
        "averaging.codec averaging.wire averaging.signing averaging.outer averaging.rounds",
        False,
        "",
    ),
    "averaging.exchange": ("dht.records averaging.*", False, "numpy"),
    "averaging.transfer": (
        "dht.streams dht.records averaging averaging.codec averaging.wire averaging.signing averaging.outer "
        "averaging.lanes averaging.rounds",
        False,
        "msgpack numpy",
    ),
    "peer": ("dht.identity", False, ""),
    "peer.console": ("", False, "rich"),
    "peer.limited_child": ("peer", False, ""),
    "peer.data_division": ("dht.records", True, "numpy"),
    "peer.mailbox": ("dht.records averaging averaging.wire peer.data_division", False, "numpy"),
    "peer.config": (
        "dht.identity dht.records averaging averaging.codec averaging.wire averaging.outer peer",
        False,
        "pydantic",
    ),
    "peer.sources": ("peer", False, "huggingface_hub"),
    "peer.data_folder_choice": ("peer peer.config", False, ""),
    "peer.hf_model_section": ("averaging.outer peer.config", True, ""),
    "peer.memory": ("peer peer.limited_child peer.mailbox peer.config", False, ""),
    "peer.files": (
        "averaging.codec averaging.wire averaging.lanes averaging.transfer peer.config",
        False,
        "blake3 pydantic",
    ),
    "peer.view": ("dht.records peer", True, ""),
    "peer.events": ("dht.identity dht.records averaging.rounds averaging.trust peer peer.view", False, ""),
    "peer.checkpoint": (
        "averaging averaging.codec averaging.wire averaging.signing averaging.outer averaging.fragment "
        "averaging.transfer peer",
        False,
        "msgpack numpy pydantic safetensors",
    ),
    "peer.trainer.devices": ("averaging.outer peer peer.mailbox", False, "numpy torch"),
    "peer.trainer.text": (
        "peer peer.limited_child peer.sources",
        False,
        "blake3 huggingface_hub numpy pyarrow yaml",
    ),
    "peer.trainer.examples": ("peer peer.config peer.trainer.text", True, "PIL numpy"),
    "peer.trainer.data": (
        "dht.records peer peer.config peer.sources peer.files peer.limited_child peer.trainer.text "
        "peer.trainer.examples",
        False,
        "blake3 numpy pydantic tokenizers torch",
    ),
    "peer.trainer.order": ("dht.records peer.data_division peer.trainer.data", True, "numpy"),
    "peer.trainer.prepare": ("peer peer.trainer.text peer.trainer.examples peer.trainer.data", False, ""),
    "peer.trainer.model": (
        "averaging averaging.outer peer peer.config peer.trainer.data",
        True,
        "bitsandbytes numpy torch",
    ),
    "peer.trainer.hf": (
        "peer peer.limited_child peer.config peer.sources peer.hf_model_section peer.memory peer.trainer.examples "
        "peer.trainer.data "
        "peer.trainer.model",
        False,
        "bitsandbytes blake3 numpy peft pydantic safetensors torch transformers",
    ),
    "peer.trainer.computing": ("peer.config peer.trainer.model", True, "numpy torch"),
    "peer.trainer.loop": (
        "averaging averaging.outer peer peer.console peer.mailbox peer.config peer.memory peer.checkpoint "
        "peer.trainer.*",
        False,
        "numpy torch",
    ),
    "peer.network.membership": (
        "dht.identity dht.streams dht.records dht.admission dht.p2pd dht.kademlia averaging.outer averaging.lanes "
        "averaging.rounds averaging.trust peer peer.config peer.events",
        False,
        "",
    ),
    "peer.network.reachability": (
        "dht.identity dht.streams dht.records dht.p2pd averaging.lanes averaging.rounds peer.events",
        False,
        "",
    ),
    "peer.network.anchors": (
        "dht.records averaging.wire averaging.signing averaging.rounds averaging.lanes averaging.transfer",
        False,
        "",
    ),
    "peer.network.node": (
        "dht.identity dht.streams dht.records averaging.* peer peer.data_division peer.mailbox peer.config peer.events "
        "peer.checkpoint peer.network.membership peer.network.anchors",
        False,
        "numpy",
    ),
    "peer.network.process": (
        "dht.identity dht.streams dht.records dht.admission dht.p2pd dht.kademlia averaging.wire averaging.lanes "
        "averaging.rounds peer peer.console peer.mailbox peer.config peer.files peer.events peer.checkpoint "
        "peer.network.*",
        False,
        "uvloop",
    ),
    "peer.panel.scene": ("dht.identity averaging.rounds peer peer.events", True, ""),
    "peer.panel.screens": ("peer peer.console peer.events peer.panel.scene", False, "rich"),
    "peer.panel": (
        "dht.identity peer peer.console peer.config peer.data_folder_choice peer.events peer.panel.*",
        False,
        "prometheus_client rich",
    ),
    "peer.tracking": (
        "averaging.rounds peer peer.config peer.events peer.panel.scene",
        False,
        "tensorboard trackio wandb",
    ),
    "peer.observe": (
        "dht.identity dht.records dht.admission dht.kademlia dht.observer averaging.signing averaging.transfer peer "
        "peer.console "
        "peer.config peer.sources peer.files peer.view peer.events peer.network.membership peer.network.anchors",
        False,
        "rich",
    ),
    "peer.owner": (
        "dht.identity dht.records dht.admission dht.kademlia dht.observer averaging.outer peer peer.console "
        "peer.config peer.hf_model_section peer.files peer.network.membership peer.observe peer.view",
        False,
        "blake3",
    ),
    "peer.plan": (
        "dht.records averaging.codec averaging.wire averaging.outer averaging.fragment averaging.rounds peer "
        "peer.console peer.mailbox peer.config peer.memory peer.checkpoint",
        True,
        "pydantic rich",
    ),
    "peer.join": (
        "dht.identity dht.streams dht.records dht.admission dht.p2pd averaging.outer averaging.rounds peer "
        "peer.mailbox peer.config peer.data_folder_choice peer.memory peer.files peer.events peer.checkpoint "
        "peer.trainer.* peer.network.membership peer.network.process peer.panel peer.panel.scene peer.tracking "
        "peer.observe peer.owner peer.plan",
        False,
        "numpy pydantic torch uvloop",
    ),
    "peer.export.formats": (
        "averaging averaging.outer peer peer.config peer.memory peer.files peer.trainer.data peer.trainer.model "
        "peer.trainer.hf",
        False,
        "jinja2 peft pydantic safetensors torch transformers",
    ),
    "peer.export": (
        "dht.identity dht.records averaging.signing averaging.outer peer peer.console peer.config peer.memory "
        "peer.files peer.limited_child peer.checkpoint peer.trainer.devices peer.trainer.data peer.trainer.model "
        "peer.observe "
        "peer.export.formats",
        False,
        "huggingface_hub lm_eval numpy safetensors torch transformers",
    ),
    "peer.doctor": (
        "dht.identity dht.records dht.p2pd averaging.codec peer peer.console peer.config peer.memory peer.view "
        "peer.trainer.examples "
        "peer.trainer.data peer.trainer.devices peer.trainer.hf peer.trainer.model "
        "peer.network.membership peer.network.reachability peer.observe peer.plan",
        False,
        "rich torch",
    ),
    "peer.simulation.scenarios": ("dht.simulated peer.config", False, "pydantic"),
    "peer.simulation.adversaries": (
        "dht.records dht.simulated averaging averaging.codec averaging.wire averaging.signing averaging.outer "
        "averaging.lanes averaging.rounds averaging.fragment averaging.exchange averaging.transfer "
        "peer.network.membership peer.network.node peer.simulation.scenarios",
        False,
        "numpy",
    ),
    "peer.simulation": (
        "dht.identity dht.records dht.admission dht.simulated averaging averaging.signing averaging.outer "
        "averaging.rounds peer peer.mailbox peer.config peer.events peer.trainer.data "
        "peer.trainer.model peer.trainer.loop peer.network.membership peer.network.node peer.simulation.*",
        False,
        "numpy torch",
    ),
    "peer.demo": (
        "dht.identity averaging averaging.rounds peer peer.console peer.config peer.files peer.events peer.export "
        "peer.export.formats peer.trainer.data peer.trainer.prepare peer.trainer.hf peer.trainer.model peer.observe "
        "peer.owner",
        False,
        "numpy rich torch",
    ),
    "dashboard": ("", False, "aiohttp"),
    "dashboard.observe": ("dht.identity dht.records peer peer.config peer.view peer.plan dashboard", False, ""),
    "dashboard.credit": ("averaging.wire averaging.signing dashboard", True, ""),
    "dashboard.people": ("dashboard", True, ""),
    "dashboard.history": (
        "dht.records averaging.signing dashboard dashboard.observe dashboard.credit dashboard.people",
        False,
        "aiosqlite",
    ),
    "dashboard.collect": (
        "dht.identity dht.records dht.observer averaging.signing peer.observe dashboard dashboard.observe "
        "dashboard.credit dashboard.history",
        False,
        "",
    ),
    "dashboard.samples": ("peer dashboard dashboard.observe", False, "pydantic"),
    "dashboard.share": ("dashboard", False, "PIL markupsafe segno"),
    "dashboard.page": (
        "dht.identity dht.records peer peer.events dashboard dashboard.observe dashboard.people dashboard.share",
        False,
        "jinja2 markupsafe",
    ),
    "dashboard.server": (
        "dht.identity dht.records dashboard dashboard.observe dashboard.history dashboard.people dashboard.share "
        "dashboard.page",
        False,
        "aiohttp prometheus_client pydantic",
    ),
    "dashboard.several_runs": (
        "dht.identity peer.config dashboard dashboard.observe dashboard.page dashboard.server",
        False,
        "aiohttp pydantic",
    ),
    "dashboard.web": ("", False, ""),
    "dashboard.app": ("dht.identity dht.records dht.observer peer peer.tracking dashboard.*", False, "aiohttp"),
    "peer.cli.usage": ("peer peer.console", False, "typer"),
    "peer.cli.arguments": (
        "dht.identity peer.config peer.network.membership peer.cli.usage",
        False,
        "typer",
    ),
    "peer.cli": ("dht.* peer.* dashboard.*", False, "pydantic typer"),
    "peer.__main__": ("peer peer.console peer.cli", False, ""),
    "murmuration": ("peer peer.__main__", False, ""),
    "murmuration.integrations": ("murmuration", False, "lightning torch transformers"),
}
"""A room may also import the standard library, its own files and `GROUND`. `x.*` is every row of `x` above this one."""

PURE_FILES = (
    *(
        "dht.ground.fields",
        "dht.ground.quantities",
        "dht.ground.sleep_detection",
        "averaging.codec.codec",
        "averaging.codec.blocks",
    ),
    *(
        "peer.network.membership.member_counts",
        "peer.network.node.own_round_times",
        "peer.network.reachability.probe_messages",
    ),
    *("peer.doctor.doctor_facts", "peer.doctor.findings", "peer.doctor.prediction", "peer.run_clock"),
    *("peer.events.peer_events", "peer.events.anchor_events", "peer.events.path_events"),
    *(
        "dashboard.history_facts",
        "dashboard.observe.dashboard_state",
        "dashboard.observe.listed_peers",
        "dashboard.observe.round_timeline",
    ),
    *(
        "dashboard.history.rows",
        "dashboard.history.thinned_curves",
        "dashboard.history.trend",
        "dashboard.samples.sample_schedule",
        "dashboard.samples.answer_check",
    ),
)
"""Pure ones in rooms that are not."""

TRAINS = (
    *("peer.trainer", "peer.join", "peer.export", "peer.doctor", "peer.simulation", "peer.demo"),
    "murmuration.integrations",
)
"""Rooms that may load torch."""
TRAINS_NOTHING = ("peer.join.seed", "peer.simulation.scenarios", "peer.simulation.adversaries")
"""In a room that may, and does not."""

TWO_MEANINGS = {
    "SwarmCallback",  # of one library or the other
    *("Event", "Fragment"),  # names of the dashboard's API
}
"""Public classes of one name in two modules, until one of them has another name."""

OWN_FILES = (
    *("dht.p2pd.congestion_control", "peer.memory.least_memory"),  # of the kernel
    *("averaging.codec.build_kernels", "dashboard.page.assets", "dashboard.web.build", "peer.installation"),  # of ours
    *("dht.ground.regular_files", "peer.import_path", "peer.demo.swarm"),
    "peer.limited_child.confinement",  # of the kernel
)
"""They open files that nobody else can have put there."""

LIBRARY_OBJECTS = (
    "averaging.codec.compiled_kernels",  # functions of C are told their types so
    *("dht.kademlia.dht_guards", "dht.pylibp2p.messages"),  # messages of protobuf
    *("dht.p2pd.lazy_hivemind", "dht.pylibp2p.protobuf_clash"),  # take a library's part while it is loaded
    "dht.kademlia.dht_node",  # hivemind's protocol keeps what it is given here
    "dashboard.log_limits",  # records of logging
    "peer.trainer.data.tokenizing",  # a tokenizer is put together so
    *("murmuration.integrations.transformers", "murmuration.integrations.lightning"),  # what callbacks are given
)
"""They set attributes of objects that a library made and that offer no other way."""
SHARED_MEMORY = ("network", "trainer", "shared", "states", "counters")
"""Names of what lies in the memory that trainer and network process share: an assignment is how one tells the other."""
