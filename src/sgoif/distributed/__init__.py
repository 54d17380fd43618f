"""The processes that train one model together: what the monitor asks of them, and how they are found."""

from sgoif.distributed.group import Group
from sgoif.distributed.joining import find_peers, unwrapped
from sgoif.distributed.peers import Peers, SingleProcess
from sgoif.distributed.sharding import is_sharded, left_sharded

__all__ = ["Group", "Peers", "SingleProcess", "find_peers", "is_sharded", "left_sharded", "unwrapped"]
