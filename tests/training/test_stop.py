from __future__ import annotations

import os
import signal
import threading

import pytest
import torch

from xlan.errors import TrainingError
from xlan.training.distributed import World, explain_lost_peers
from xlan.training.stop import Stopped, StopRequest

ALONE = World(0, 1, torch.device("cpu"))


def test_the_first_signal_is_a_request() -> None:
    stop = StopRequest()
    with stop.listening():
        assert not stop.wanted_anywhere(ALONE)
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.wanted_anywhere(ALONE)
    assert stop.reason == "stopped by SIGTERM"
    assert stop.status == 143
    with pytest.raises(Stopped):
        stop.check()


def test_a_second_interrupt_ends_at_once() -> None:
    stop = StopRequest()
    with stop.listening():
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.status == 130
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


def test_handlers_are_put_back() -> None:
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    with StopRequest().listening():
        pass
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before


def test_it_works_outside_the_main_thread_too() -> None:
    reached = []

    def work() -> None:
        with StopRequest().listening():
            reached.append(True)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert reached == [True]


def test_a_lost_peer_is_explained() -> None:
    with (
        pytest.raises(TrainingError, match=r"process 1 of 2 lost contact .* --resume auto"),
        explain_lost_peers(World(1, 2, torch.device("cpu"))),
    ):
        raise RuntimeError("[gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:1234")


@pytest.mark.parametrize(("size", "text"), [(1, "Connection closed by peer"), (2, "mat1 and mat2 shapes")])
def test_other_errors_pass(size: int, text: str) -> None:
    with pytest.raises(RuntimeError, match=text), explain_lost_peers(World(0, size, torch.device("cpu"))):
        raise RuntimeError(text)
