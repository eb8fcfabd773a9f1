from dht.ground.errors import DeviceFault as DeviceFault
from dht.ground.errors import Incompatible as Incompatible
from dht.ground.errors import LocalFault as LocalFault
from dht.ground.errors import MurmurationError as MurmurationError
from dht.ground.errors import NobodyReachable as NobodyReachable
from dht.ground.errors import UsageFault as UsageFault
from peer.config.manifest import RunManifest as RunManifest
from peer.events.peer_events import Event as Event
from peer.export.formats.custom_module import load_export as load_export
from peer.export.formats.model_reading import ExportedModel as ExportedModel
from peer.export.formats.model_reading import read_model as read_model
from peer.join.session import Swarm as Swarm
from peer.join.session import join as join
from peer.owner.new_run import NewRun as NewRun
from peer.owner.new_run import create_custom_run as create_custom_run
from peer.owner.new_run import create_run as create_run

__all__: list[str]
__version__: str
