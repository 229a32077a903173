# SPDX-License-Identifier: Apache-2.0
"""A waiter for an answer, for a thread of this process."""

import threading
from collections.abc import Sequence
from typing import Protocol

from gantt.core.messages.request import SelectDestinations
from gantt.core.records.decision import Answer, Outcome
from gantt.scheduler.request.queue import refusal


class Signal(Protocol):
    """The methods of ``threading.Event`` that are used here."""

    def set(self) -> None:
        """Wake the waiting threads."""

    def wait(self, timeout: float) -> bool:
        """Wait for it, for so many seconds at most."""


class Waiter:
    """A Replies that one thread waits on.

    :param event: object to wait on; None: a ``threading.Event``
    """

    def __init__(self, event: Signal | None = None) -> None:
        self._event: Signal = event or threading.Event()
        self._answer: Answer | None = None

    def send(self, answers: Sequence[tuple[object, Answer]]) -> None:
        for _, answer in answers:
            self._answer = answer
        self._event.set()

    send_soon = send

    def wait(self, request: SelectDestinations, seconds: float) -> Answer:
        """Return the answer, or "expired" after ``seconds``."""
        self._event.wait(seconds)
        return self._answer or refusal(request, Outcome.EXPIRED, 'no answer within the budget')
