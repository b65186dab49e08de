"""SIGTERM raises KeyboardInterrupt in `sigterm_interrupts`; the tests of worlds cover delayed signals."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from dsexplore._internal.interrupts import sigterm_interrupts


def test_sigterm_is_an_interrupt_until_the_block_ends() -> None:
    with pytest.raises(KeyboardInterrupt), sigterm_interrupts() as received:
        os.kill(os.getpid(), signal.SIGTERM)
        threading.Event().wait(240)
    assert received == [signal.SIGTERM]
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_ctrl_c_is_none() -> None:
    with pytest.raises(KeyboardInterrupt), sigterm_interrupts() as received:
        raise KeyboardInterrupt
    assert received == []


def test_a_handler_of_the_programs_own_stays() -> None:
    seen: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _frame: seen.append(number))
    try:
        with sigterm_interrupts() as received:
            os.kill(os.getpid(), signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert (seen, received) == ([signal.SIGTERM], [])


def test_outside_the_main_thread_nothing_changes() -> None:
    handlers: list[object] = []

    def enter() -> None:
        with sigterm_interrupts():
            handlers.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join(240)
    assert handlers == [signal.SIG_DFL]
