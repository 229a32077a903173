# SPDX-License-Identifier: Apache-2.0
"""The verdict of a run, the same one each time."""

import contextlib
import hashlib
import logging
import random
import secrets
import uuid
from collections.abc import Iterator, Sequence

import msgspec


class SimVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """The verdict of one seed.

    :ivar digest: of the trace: two runs of a seed have the same
    :ivar planned: plans of groups that were created or changed
    """

    seed: int
    violations: list[str]
    digest: str
    events: int
    placed: int
    guests: int
    planned: int = 0
    trace: list[str] = []


def digest_of(lines: Sequence[str]) -> str:
    """Return the digest of a trace and the violations."""
    return hashlib.blake2b('\n'.join(lines).encode(), digest_size=16).hexdigest()


class TracebackCollector(logging.Handler):
    """Tracebacks that the production code logged and went on after."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info:
            self.lines.append(f'defect: {record.getMessage()}: {record.exc_info[1]!r}')


@contextlib.contextmanager
def seeded_randomness(seed: int) -> Iterator[TracebackCollector]:
    """Derive the chance of the production code from the seed: its periods, its tokens and ids."""
    before, uuid4, token_bytes = random.getstate(), uuid.uuid4, secrets.token_bytes
    random.seed(f'jitter {seed}')
    tokens = random.Random(f'tokens {seed}')
    complaints = TracebackCollector()
    logger = logging.getLogger('gantt')
    logger.addHandler(complaints)
    was, logger.propagate = logger.propagate, False
    secrets.token_bytes = lambda nbytes=None: tokens.randbytes(nbytes or 32)
    uuid.uuid4 = lambda: uuid.UUID(int=tokens.getrandbits(128), version=4)
    try:
        yield complaints
    finally:
        uuid.uuid4, secrets.token_bytes = uuid4, token_bytes
        logger.propagate = was
        logger.removeHandler(complaints)
        random.setstate(before)
