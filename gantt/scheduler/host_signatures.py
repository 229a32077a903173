# SPDX-License-Identifier: Apache-2.0
"""Verification of the signatures of messages in the name of hosts, before all else.

Nothing here runs in a transaction.  A message is verified with the key of its host known
in this process; one that does not match may be signed with a key that another scheduler has
just taken, so the database is read, rarely.  A registration is only parsed here: whether
its key is the host's is compared by the store, under the lock of the host's row.

The other direction is not protected here: builds and deletes that others send to a
host.  The permissions of the broker's users do that.
"""

import collections
import dataclasses
import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import cachetools
import msgspec

from gantt import ed25519, exceptions
from gantt.core.claims.host_facts import UpdateHostFacts, VerifiedFactsUpdate
from gantt.core.messages import quoting
from gantt.core.messages.report import ClaimUpdate, HostReport, RegisterHost
from gantt.core.resources import host_keys
from gantt.core.resources.host_keys import (
    HostKey,
    Proof,
    SigningMode,
    SigningModes,
    VerifiedRegistration,
)

LOG = logging.getLogger(__name__)

#: Seconds between two lines of the log about forged messages; those between are counted.
LOG_INTERVAL_SECONDS = 10.0
#: Seconds after the last forged message that an alarm is shown to operators.
ALARM_SHOWN_SECONDS = 3600.0
#: Hosts that one line names.
NAMED_HOSTS_MAX = 5
#: Seconds between two reads of one host's key, and reads of all hosts' keys a second.
LOOKUP_INTERVAL_SECONDS, LOOKUPS_A_SECOND = 1.0, 20
#: Hosts whose last read is remembered.
REMEMBERED_LOOKUPS_MAX = 10_000


class ForgeryAlarm:
    """A counter of forged messages, which logs them in a bounded number of lines."""

    def __init__(self, count: Callable[..., None], monotonic: Callable[[], float]) -> None:
        self._count = count
        self._monotonic = monotonic
        self._hosts: collections.Counter[str] = collections.Counter()
        self._logged_at = self._last_at = float('-inf')
        self._last_sentence = ''
        self._recent: collections.Counter[str] = collections.Counter()
        self._lock = threading.Lock()
        self.total = 0

    def raise_(self, method: str, error: exceptions.NotProven) -> None:
        """Count one more forged message."""
        self._count('gantt_signature_failures_total', method=method)
        host = str(error.kwargs.get('host', ''))
        with self._lock:
            self.total += 1
            now = self._monotonic()
            if now - self._last_at >= ALARM_SHOWN_SECONDS:
                self._recent.clear()
            self._last_at = now
            self._last_sentence = method
            for counted in (self._hosts, self._recent):
                if len(counted) < REMEMBERED_LOOKUPS_MAX or host in counted:
                    counted[host] += 1
            if now - self._logged_at < LOG_INTERVAL_SECONDS:
                return
            hosts, self._hosts, self._logged_at = self._hosts, collections.Counter(), now
        LOG.error(
            'Messages of hosts failed their signature check and changed nothing: count=%d '
            'hosts=%s last_method=%s error=%s',
            hosts.total(),
            _names(hosts),
            method,
            quoting.plain_text(str(error), 500),
        )

    def sentence(self) -> str:
        """Return a sentence on recent forged messages, for operators; '' after an hour without."""
        with self._lock:
            age = self._monotonic() - self._last_at
            if age >= ALARM_SHOWN_SECONDS:
                return ''
            return (
                'messages in the name of hosts that were not signed with their keys, and changed '
                f'nothing: {self._recent.total()} ({_names(self._recent)}); the last one, '
                f'{self._last_sentence}, {age / 60:.0f} min ago'
            )


def _names(hosts: collections.Counter[str]) -> str:
    host_names = ', '.join(quoting.quoted(host) for host, _ in hosts.most_common(NAMED_HOSTS_MAX))
    return f'{host_names}, ...' if len(hosts) > NAMED_HOSTS_MAX else host_names


class _SignedMessage(NamedTuple):
    """A message with its signature, and the fields that it covers."""

    method: str
    host: str
    epoch: int
    sequence: int
    signature: str | None
    body: Mapping[str, Any]

    @classmethod
    def of(
        cls, method: str, message: HostReport | ClaimUpdate, body: Mapping[str, Any]
    ) -> '_SignedMessage':
        return cls(method, message.name, message.epoch, message.sequence, message.signature, body)


@dataclasses.dataclass(eq=False)
class HostSignatures:
    """Verification of messages that come in the name of hosts.

    :ivar key: returns the key of a host, as far as it is known here
    :ivar look_up: returns the same from the database
    :ivar rules: returns the modes as they are now
    """

    key: Callable[[str], HostKey | None]
    look_up: Callable[[str], HostKey | None]
    rules: Callable[[], SigningModes]
    count: dataclasses.InitVar[Callable[..., None]]
    monotonic: Callable[[], float]

    def __post_init__(self, count: Callable[..., None]) -> None:
        self._lookups: cachetools.TTLCache[str, None] = cachetools.TTLCache(
            REMEMBERED_LOOKUPS_MAX, LOOKUP_INTERVAL_SECONDS, self.monotonic
        )
        self._lookup_second = 0.0
        self._lookups_in_second = 0
        self._lock = threading.Lock()
        self.alarm = ForgeryAlarm(count, self.monotonic)

    def mode(self, host: str) -> SigningMode:
        """Return the mode that selects which messages of a host are accepted."""
        return self.rules().of(host)

    def is_known(
        self, method: str, message: HostReport | ClaimUpdate, body: Mapping[str, Any]
    ) -> bool:
        """Return whether a message is accepted by what is known here; else :meth:`check` it.

        Never waits.

        :param message: the message
        :param body: the message as it was sent
        """
        return (
            self._problem(_SignedMessage.of(method, message, body), self.key(message.name)) is None
        )

    def is_free(self, host: str) -> bool:
        """Return whether messages of a host are accepted unsigned, by what is known here."""
        mode, key = self.mode(host), self.key(host)
        return mode is SigningMode.OFF or (
            mode is SigningMode.KNOWN and (key is None or not (key.public or key.is_revoked))
        )

    def check(
        self, method: str, message: HostReport | ClaimUpdate, body: Mapping[str, Any]
    ) -> None:
        """Check that a message is the host's.  May wait for the database.

        :raises NotProven: it is not; the alarm was raised
        """
        self._check(_SignedMessage.of(method, message, body))

    def check_unnumbered(
        self, method: str, host: str, signature: str | None, body: Mapping[str, Any]
    ) -> None:
        """Check that a message without epoch and sequence is of the host's reporter.

        May wait for the database.

        :raises NotProven: it is not; the alarm was raised
        """
        self._check(_SignedMessage(method, host, 0, 0, signature, body))

    def _check(self, signed: '_SignedMessage') -> None:
        known_key = self.key(signed.host)
        problem = self._problem(signed, known_key)
        if problem is not None and self._may_look_up(signed.host):
            stored_key = self.look_up(signed.host)
            if stored_key != known_key:
                problem = self._problem(signed, stored_key)
        if problem is not None:
            raise self._refused(signed.method, problem)

    def check_unsigned(self, method: str, host: str) -> None:
        """Check that a host need not sign, for messages without a field for a signature.

        :raises NotProven: it has to; the alarm was raised
        """
        if not self.is_free(host):
            raise self._refused(method, host_keys.unsigned_error(host, self.key(host)))

    def with_verified_registration(
        self, message: RegisterHost, body: Mapping[str, Any]
    ) -> RegisterHost:
        """Return a registration with its verified proof.  Never waits.

        :raises NotProven: its proof is wrong; the alarm was raised
        """
        mode = self.mode(message.name)
        if mode is SigningMode.OFF:
            return message
        proven = self._proven('register_host', message.name, message.proof, body)
        return VerifiedRegistration(**msgspec.structs.asdict(message), mode=mode, proven=proven)

    def with_verified_facts(
        self, message: UpdateHostFacts, body: Mapping[str, Any]
    ) -> UpdateHostFacts:
        """Return facts of an agent next to nova-compute, with their verified proof.  Never waits.

        :raises NotProven: its proof is wrong; the alarm was raised
        """
        mode = self.mode(message.host)
        if mode is SigningMode.OFF:
            return message
        if message.proof is None:
            self.check_unsigned('update_host_facts', message.host)
        proven = self._proven('update_host_facts', message.host, message.proof, body)
        if proven is not None and proven.number != message.sequence:
            raise self._refused('update_host_facts', _no_proof(message.host))
        return VerifiedFactsUpdate(**msgspec.structs.asdict(message), mode=mode, proven=proven)

    def _proven(
        self, method: str, host: str, proof: str | None, body: Mapping[str, Any]
    ) -> Proof | None:
        """Return the verified proof; None: there is none.

        :raises NotProven: the proof is wrong; the alarm was raised
        """
        if proof is None:
            return None
        parts = host_keys.parse_proof(proof)
        try:
            signed = host_keys.signed_bytes(method, host, 0, parts.number if parts else 0, body)
        except ValueError:
            parts = None
        proven = ed25519.verify_proof(parts, signed) if parts is not None else None
        if proven is None:
            raise self._refused(method, _no_proof(host))
        return proven

    def _refused(self, method: str, problem: exceptions.NotProven) -> exceptions.NotProven:
        self.alarm.raise_(method, problem)
        return problem

    def _problem(
        self, message: '_SignedMessage', key: HostKey | None
    ) -> exceptions.NotProven | None:
        mode = self.mode(message.host)
        if mode is SigningMode.OFF:
            return None
        if key is not None and key.is_revoked:
            return host_keys.revoked_key_error(message.host)
        if key is None or not key.public:
            return (
                host_keys.unsigned_error(message.host, key)
                if mode is SigningMode.REQUIRED
                else None
            )
        if message.signature is None:
            return host_keys.unsigned_error(message.host, key)
        try:
            signed = host_keys.signed_bytes(
                message.method, message.host, message.epoch, message.sequence, message.body
            )
        except ValueError:
            signed = None
        if signed is not None and ed25519.is_signed(key.public, message.signature, signed):
            return None
        return exceptions.NotProven(
            host=message.host,
            problem='the message is not signed with its key',
            fix='Has the host another key, it must register with it',
        )

    def _may_look_up(self, host: str) -> bool:
        now = self.monotonic()
        with self._lock:
            if now - self._lookup_second >= 1.0:
                self._lookup_second = now
                self._lookups_in_second = 0
            if self._lookups_in_second >= LOOKUPS_A_SECOND or host in self._lookups:
                return False
            self._lookups_in_second += 1
            self._lookups[host] = None
        return True


def _no_proof(host: str) -> exceptions.NotProven:
    return exceptions.NotProven(
        host=host,
        problem='its proof is not that of a key',
        fix='Are its agent and this scheduler of releases that know each other?',
    )
