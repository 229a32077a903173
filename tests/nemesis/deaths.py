# SPDX-License-Identifier: Apache-2.0
"""Scenes in which a process dies at every point of what it does, and how each of them ends.

    every_death(site, Claiming, at_statements(site), (Scene.repeated, left_alone))

A scene prepares a store, has a ``verb`` of it with ``arguments``, and says what must be so
afterwards: ``kept`` at any moment, ``repeated`` where somebody asks again, and
``free_in_the_end``.
"""

import itertools
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

from tests.nemesis import commits, mortal

#: Far more than anything has statements.
MOST = 200

#: Of a scene, to its death at a number; whether it lived.
LifeOf = Callable[[Any, int], bool]


def every_death(
    site: Any,
    scene: Callable[[Any, int], Any],
    life: LifeOf,
    endings: Sequence[Callable[[Any], None]],
    step: int = 1,
) -> int:
    """Let it die at 1, 2, 3 … until it lives; after each of them the next ending.

    :param scene: made anew for each, of the site and a number
    :returns: how often it died
    """
    turns = itertools.cycle(endings)
    for number in range(1, MOST, step):
        prepared = scene(site, number)
        lived = life(prepared, number)
        prepared.kept(lived)
        next(turns)(prepared)
        prepared.free_in_the_end()
        if lived:
            print(f'{prepared.verb}: killed {number // step} times')
            return number // step
    raise AssertionError('it does not end')


def at_statements(site: Any, of_writes: bool = False) -> LifeOf:
    """Killed before each statement; COMMIT is one too.

    :param of_writes: not before those that only read or lock: nothing is written by then, or
        what was written before is not committed yet
    """

    def life(prepared: Any, number: int) -> bool:
        return mortal.run(
            site.database, prepared.verb, *prepared.arguments, dies_at=number, of_writes=of_writes
        )

    return life


def at_answers(site: Any, closing: ExitStack) -> LifeOf:
    """Killed when the server has committed, before it says so.

    Whatever it commits: words for its connections and what it reads at start are some.
    """
    proxy, watched = commits.proxy(site.database)
    closing.callback(proxy.close)

    def life(prepared: Any, number: int) -> bool:
        started, first = threading.Event(), watched.seen

        def answer(seen: int) -> None:
            started.wait(10)
            if seen - first == number:
                running.kill()

        watched.on_answer = answer
        running = mortal.Life(proxy.url(site.database), prepared.verb, *prepared.arguments)
        started.set()
        return running.end()

    return life


def left_alone(prepared: Any) -> None:
    """Nobody asks again."""
