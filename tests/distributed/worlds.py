"""Real processes for the tests: started once, joined by gloo in worlds of any size, over files in a folder."""

import multiprocessing
import runpy
from itertools import count
from pathlib import Path

IMPORTED = ["torch.distributed.checkpoint", "torch.distributed.fsdp", "tests.distributed.loops"]  # once for all of them
SERVER = Path(__file__).with_name("server.py")


class Worlds:
    """Processes that wait for work.

    Args:
        most: how many.
        folder: for rendezvous files.
    """

    def __init__(self, most: int, folder: Path) -> None:
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(IMPORTED)
        self._members = [self._start() for _ in range(most)]
        self._folder, self._numbers = folder, count()
        self._shared = {}

    def _start(self):
        ours, theirs = self._context.Pipe()
        arguments = (str(SERVER), {"connection": theirs})
        process = self._context.Process(target=runpy.run_path, args=arguments, daemon=True)
        process.start()
        theirs.close()  # so that a dead process is seen as the end of its pipe
        return process, ours

    def run(self, size, function, *arguments, timeout_s=240, dies=None):
        """Run a function in a world of some processes and return what each gave; one may be meant to die."""
        place = self._folder / f"world-{next(self._numbers)}"
        for rank, (_, connection) in enumerate(self._members[:size]):
            connection.send((function, rank, size, str(place), arguments))
        answers = [self._answer(rank, timeout_s) for rank in range(size)]
        for rank, (_, trouble) in enumerate(answers):
            if trouble is not None and rank != dies:
                self._restart()  # late answers must not be taken for those of the next world
                raise AssertionError(f"rank {rank} of {size}: {trouble}")
            if trouble is not None:
                self._members[rank] = self._start()
        return [result for result, _ in answers]

    def share(self, size, function, *arguments):
        """The same, run once for all tests that only read what it gives; one rank is this process, without a group."""
        key = repr((size, function, arguments))
        if key not in self._shared:
            self._shared[key] = self.run(size, function, *arguments) if size > 1 else [function(*arguments)]
        return self._shared[key]

    def _answer(self, rank, timeout_s):
        connection = self._members[rank][1]
        try:
            return connection.recv() if connection.poll(timeout_s) else (None, "did not answer")
        except (EOFError, ConnectionError):
            return None, "died"

    def _restart(self):
        self.close()
        self._members = [self._start() for _ in self._members]

    def close(self):
        for process, _ in self._members:
            process.terminate()
            process.join()
