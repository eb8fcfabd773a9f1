"""Pronounceable names for keys without a name: `brave-heron 92`. Pure.

A name depends only on the key, so page, panel and command line show the same name. It helps the eye but proves nothing:
about 1.6 million names exist, and a patient stranger can find a key with your name.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from typing import Final

_DOMAIN: Final = b"murmuration speakable name\0"
_NUMBERS: Final = 100

_ADJECTIVES: Final = """
able agile airy alert amber amiable ample apt artful attentive awake balmy blithe bold bonny brave breezy
bright brisk bubbly buoyant calm candid careful cheerful chipper civil clear clever comely cool cordial cosy
courtly crisp curious dapper daring dauntless deft devoted dewy eager early earnest easy elated equable fair
faithful famous fearless fine firm fleet fluent fond frank free fresh friendly gallant generous genial
gentle genuine giving glad gleaming golden graceful grand grateful happy hardy hearty helpful honest hopeful
humble jaunty jolly jovial joyful keen kind lively loyal lucid lucky mellow merry mild mindful modest neat
nimble noble patient peaceful placid plucky polite prompt proud quick quiet radiant ready serene silver
sincere smiling spirited spritely spry steady stellar stoic sunny sure swift tidy true upbeat valiant warm
witty
"""
_BIRDS: Final = """
albatross avocet barbet bittern blackbird bluebird brambling bulbul bunting bustard canary caracara cardinal
catbird chaffinch chickadee chough condor coot cormorant crake crane crossbill curlew dipper dotterel dove
drongo dunlin dunnock eagle egret eider falcon fantail fieldfare finch firecrest flamingo flicker fulmar
gannet goldcrest goldfinch goshawk grackle grebe greenshank guillemot harrier heron hoopoe hornbill ibis
jacamar jacana jackdaw jay junco kea kestrel kingfisher kinglet kite kittiwake kiwi lapwing lark linnet
lorikeet lyrebird macaw magpie mallard martin merlin motmot myna nightingale nightjar nuthatch oriole osprey
owl parakeet partridge pelican penguin petrel pheasant phoebe pigeon pintail pipit plover puffin quail
quetzal raven razorbill redshank redstart redwing robin roller rosella sanderling sandpiper serin shearwater
siskin skylark snipe sparrow spoonbill starling stilt stonechat stork sunbird swallow swan tanager teal tern
thrush toucan turaco
"""
ADJECTIVES: Final = tuple(_ADJECTIVES.split())
BIRDS: Final = tuple(_BIRDS.split())


@lru_cache(maxsize=16_384)
def speakable_name(peer_id: str) -> str:
    """Return an adjective, a bird and two digits, always the same for one `peer_id` (any text is accepted)."""
    digest = hashlib.sha256(_DOMAIN + peer_id.encode(errors="surrogatepass")).digest()
    chosen, adjective = divmod(int.from_bytes(digest[:8], "big"), len(ADJECTIVES))
    chosen, bird = divmod(chosen, len(BIRDS))
    return f"{ADJECTIVES[adjective]}-{BIRDS[bird]} {chosen % _NUMBERS:02d}"
