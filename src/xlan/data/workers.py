"""How helper processes behave when signals arrive.

Ctrl-C, a scheduler's SIGTERM and the like reach a whole group of processes. The training process answers them in good
order; a helper that died at once would take that chance away. So helpers take orders from their parent alone, and leave
when it is gone.
"""

from __future__ import annotations

import os
import signal
import threading
from multiprocessing import parent_process


def obey_parent_only() -> None:
    """Call this at the start of a helper process: Ctrl-C is ignored, SIGTERM too unless the parent sent it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(signal, "sigwaitinfo"):  # not on macOS, where SIGTERM keeps its usual effect
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        threading.Thread(target=_wait_for_orders, daemon=True).start()
    threading.Thread(target=_leave_with_parent, daemon=True).start()


def _wait_for_orders() -> None:
    while signal.sigwaitinfo({signal.SIGTERM}).si_pid != os.getppid():
        pass
    os._exit(0)


def _leave_with_parent() -> None:
    """End this process when its parent is gone, however it went: a queue alone would not tell."""
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
