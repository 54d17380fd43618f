"""The processes that train one model together: what the monitor asks of them, and how they are found."""

from sgoif.distributed.group import Group
from sgoif.distributed.joining import find_peers, gather_pieces, is_sharded, keep_sharded, unwrap
from sgoif.distributed.peers import Peers, SingleProcess

__all__ = ["Group", "Peers", "SingleProcess", "find_peers", "gather_pieces", "is_sharded", "keep_sharded", "unwrap"]
