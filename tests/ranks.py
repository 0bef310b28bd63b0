"""Ranks for tests: processes with the environment that torchrun gives them, forked, so that they start at once."""

import multiprocessing
import os
import socket
import traceback
import warnings


def run_ranks(size, task, timeout=600.0):
    """What `task(rank)` returns in each of so many processes: ("done", result), or ("failed", text) of an error."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    context, found = multiprocessing.get_context("fork"), {}
    pipes, processes = [], []
    for rank in range(size):
        ours, theirs = context.Pipe(duplex=False)
        process = context.Process(target=_rank, args=(rank, size, port, task, theirs))
        with warnings.catch_warnings():
            # Python warns of threads, of which these processes use none.
            warnings.simplefilter("ignore", DeprecationWarning)
            process.start()
        theirs.close()
        pipes.append(ours)
        processes.append(process)
    for rank, pipe in enumerate(pipes):
        found[rank] = ("silent", "")
        if pipe.poll(timeout):
            try:
                found[rank] = pipe.recv()
            except EOFError:
                found[rank] = ("dead", "")
    for process in processes:
        process.join(5.0)
        process.kill()
    return [found[rank] for rank in range(size)]


def _rank(rank, size, port, task, pipe):
    told = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    os.environ.update({name: str(value) for name, value in told.items()}, TORCHELASTIC_RUN_ID="test")
    try:
        pipe.send(("done", task(rank)))
    except BaseException as error:
        pipe.send(("failed", f"{type(error).__name__}: {error}\n{traceback.format_exc()}"))
    pipe.close()
    # Neither pytest nor its plugins have anything to do here.
    os._exit(0)
