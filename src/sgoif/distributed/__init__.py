"""The processes that train one model together: what the monitor asks of them, and how they are found."""

from sgoif.distributed.group import Group
from sgoif.distributed.joining import find_peers, unwrapped
from sgoif.distributed.peers import Alone, Peers
from sgoif.distributed.sharding import is_sharded, left_sharded

__all__ = ["Alone", "Group", "Peers", "find_peers", "is_sharded", "left_sharded", "unwrapped"]
