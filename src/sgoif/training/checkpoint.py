"""A monitor's state in a shape that ``torch.save`` and ``torch.distributed.checkpoint`` (DCP) take alike.

DCP keeps one copy of a key, whichever rank gives it, and when it loads it asks for the keys that a fresh state has. So
what all ranks share is one entry, and what a rank has for itself has a place of its own. There is the same number of
places whatever the number of ranks: of ``n`` ranks the ``r``-th writes and asks for places ``r``, ``r + n``,
``r + 2n`` and so on, its own in the first and nothing in the others. A loading rank finds every place it asks for,
saved by however many, and each place is taken by one rank.

An entry is a *block*, not a nested dict: keys and shapes may differ from what is asked for, and later steps cannot
change what waits to be written. It is a tuple of one tensor of bytes: DCP writes tuples as they are, where it would
look into dicts and lists and ask for the shape of a tensor; and ``torch.load`` reads it without running code.

A block holds containers, numbers, strings and tensors only, which ``torch.load`` reads by default: an array in it would
make the user's checkpoint unreadable, where a framework puts our state into the same file.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from sgoif.distributed import Peers
from sgoif.errors import SgoifError

__all__ = ["from_plain", "gather_states", "pack", "to_plain", "unpack"]

# Empty ones take 0.15 s and 1.4 MB of a checkpoint by one process. Ranks beyond keep nothing of their own.
_PLACES = 1024

_KEYS = {"dtype", "shape", "bytes"}  # of an array as it is saved

State = Mapping[str, Any]
Block = tuple[Tensor]  # uint8, on the host; bytes would be written as text, in fifteen times the time


def pack(shared: State, own: State, peers: Peers) -> dict[str, Any]:
    """Make one state of what all processes share and what this one has for itself."""
    places = range(peers.rank, _PLACES, peers.size)
    ranks = {f"{place:04d}": _block(own) if place == peers.rank else None for place in places}
    return {"shared": _block(shared), "ranks": ranks}


def unpack(state: State, peers: Peers, device: torch.device) -> tuple[State, dict[int, State]]:
    """Return what all processes share, and by rank what those had for themselves whom this process takes over from."""
    if not {"shared", "ranks"} <= state.keys():
        raise SgoifError("this is no state of a monitor; pass what monitor.state_dict() returned.")
    filled = {int(place): block for place, block in state["ranks"].items() if block is not None}
    owned = {rank: _content(block, device) for rank, block in filled.items() if rank % peers.size == peers.rank}
    return _content(state["shared"], device), owned


def gather_states(peers: Peers, own: State) -> list[State]:
    """What each process has for itself, by rank; a collective, through the host."""
    (mine,) = _block(own)
    (lengths,) = peers.all_gather([torch.tensor([[len(mine)]], dtype=torch.float64)])
    room = 8 * -(-int(lengths.max()) // 8)
    padded = F.pad(mine, (0, room - len(mine)))
    (blocks,) = peers.all_gather([padded.view(torch.float64)[None]])  # eight bytes each, which pass as they are
    sizes = [int(length) for length in lengths[:, 0]]
    return [_content((block.view(torch.uint8)[:size],), torch.device("cpu")) for block, size in zip(blocks, sizes)]


def _block(state: State) -> Block:
    buffer = io.BytesIO()
    torch.save(to_plain(state), buffer)
    return (torch.frombuffer(buffer.getbuffer(), dtype=torch.uint8),)


def _content(block: Block, device: torch.device) -> State:
    buffer = io.BytesIO(block[0].numpy().tobytes())
    found: State = from_plain(torch.load(buffer, map_location=device, weights_only=True))  # runs no code
    return found


def to_plain(state: Any) -> Any:
    """Write arrays as the tensors of their bytes, and numpy's numbers as Python's. Shares memory with the arrays.

    >>> to_plain({"ids": np.array(["a", "b"])})["ids"]["dtype"]
    '<U1'
    """
    if isinstance(state, np.ndarray):
        array = np.asarray(state.tolist()) if state.dtype.kind == "O" else state  # ids as data frames give them
        flat = np.require(array.reshape(-1), requirements=["C", "W"])
        return {"dtype": array.dtype.str, "shape": list(array.shape), "bytes": torch.from_numpy(flat.view(np.uint8))}
    if isinstance(state, np.generic):
        return state.item()
    if isinstance(state, Mapping):
        return {key: to_plain(value) for key, value in state.items()}
    if isinstance(state, list | tuple):
        return [to_plain(value) for value in state]
    return state


def from_plain(state: Any) -> Any:
    """Undo :func:`to_plain`; tuples stay lists. A state that holds arrays passes through.

    >>> from_plain(to_plain({"ids": np.array(["a", "b"])}))["ids"].tolist()
    ['a', 'b']
    """
    if isinstance(state, Mapping):
        if state.keys() == _KEYS:
            flat = state["bytes"].cpu().numpy().view(state["dtype"])
            return flat.reshape(tuple(state["shape"]))
        return {key: from_plain(value) for key, value in state.items()}
    if isinstance(state, list | tuple):
        return [from_plain(value) for value in state]
    return state
