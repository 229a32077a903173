# SPDX-License-Identifier: Apache-2.0
"""A signature of a host covers one encoding, the same on every side, and nothing else's."""

import json
import struct

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gantt import ed25519
from gantt.core.resources import host_keys
from gantt.core.resources.host_keys import (
    KEY_BYTES,
    SIGNATURE_BYTES,
    ProofParts,
    SigningMode,
    SigningModes,
)
from gantt.ed25519 import PrivateKey

TEXT = st.text(st.characters(exclude_categories=('Cs',)), max_size=10)
SOME = settings(max_examples=60)
NUMBERS = st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False, allow_infinity=False)
SCALARS = st.none() | st.booleans() | NUMBERS | TEXT
VALUES = st.recursive(
    SCALARS,
    lambda inside: st.lists(inside, max_size=18) | st.dictionaries(TEXT, inside),
    max_leaves=8,
)
BODIES = st.dictionaries(TEXT, VALUES, max_size=5)
WORDS = st.tuples(TEXT, TEXT, st.integers(0, 2**53), st.integers(0, 2**53), BODIES)


def by_the_book(value):
    """Encode as the specification of MessagePack has it, each value as short as can be."""
    if value is None:
        return b'\xc0'
    if isinstance(value, bool):
        return b'\xc3' if value else b'\xc2'
    if isinstance(value, float):
        return b'\xcb' + struct.pack('>d', value)
    if isinstance(value, int):
        return integer(value)
    if isinstance(value, str):
        raw = value.encode()
        return head(len(raw), (0xA0, 32), ((0xD9, 'B', 2**8), (0xDA, 'H', 2**16))) + raw
    if isinstance(value, list):
        items = [by_the_book(item) for item in value]
        return head(len(items), (0x90, 16), ((0xDC, 'H', 2**16),)) + b''.join(items)
    pairs = sorted(value.items(), key=lambda pair: pair[0].encode())
    items = [by_the_book(item) for pair in pairs for item in pair]
    return head(len(pairs), (0x80, 16), ((0xDE, 'H', 2**16),)) + b''.join(items)


def head(size, short, longer):
    first, short_max = short
    if size < short_max:
        return bytes([first | size])
    code, form, _ = next(encoding for encoding in longer if size < encoding[2])
    return bytes([code]) + struct.pack(f'>{form}', size)


def integer(value):
    if -32 <= value < 128:
        return struct.pack('>b' if value < 0 else '>B', value)
    codes = zip((0xCC, 0xCD, 0xCE, 0xCF), 'BHIQ', strict=True)
    if value < 0:
        codes = zip((0xD0, 0xD1, 0xD2, 0xD3), 'bhiq', strict=True)
    for code, form in codes:
        try:
            return bytes([code]) + struct.pack(f'>{form}', value)
        except struct.error:
            continue
    raise AssertionError(value)


@given(WORDS)
@SOME
def test_the_bytes_are_those_that_another_encoder_makes_from_the_document(word):
    method, host, epoch, sequence, body = word
    signed = {k: v for k, v in body.items() if k not in ('signature', 'proof')}
    expected = by_the_book(['gantt message 1', method, host, epoch, sequence, signed])
    assert host_keys.signed_bytes(*word) == expected


@given(WORDS, st.randoms(use_true_random=False), st.booleans())
@SOME
def test_the_way_over_the_wire_changes_no_byte(word, dice, by_us):
    *around, body = word

    def shuffled(value):
        if isinstance(value, dict):
            keys = list(value)
            dice.shuffle(keys)
            return {key: shuffled(value[key]) for key in keys}
        return [shuffled(item) for item in value] if isinstance(value, list) else value

    wire = json.dumps(shuffled(body), indent=dice.choice((None, 2)), ensure_ascii=by_us)
    arrived = msgspec.json.decode(wire) if by_us else json.loads(wire)
    signed = {**arrived, 'signature': 'whatever', 'proof': None}
    assert host_keys.signed_bytes(*around, signed) == host_keys.signed_bytes(*word)


@given(WORDS, st.integers(0, 4), TEXT, st.integers(0, 2**53), SCALARS)
@SOME
def test_another_word_has_other_bytes(word, position, text, number, value):
    other = list(word)
    other[position] = (text, text, number, number, {**word[4], text: value})[position]
    is_signed = position < 4 or text not in host_keys.UNSIGNED_FIELDS
    # JSON distinguishes 0, 0.0 and -0.0, as the bytes do, and Python does not.
    is_same = json.dumps(other, sort_keys=True) == json.dumps(word, sort_keys=True)
    assert (host_keys.signed_bytes(*other) == host_keys.signed_bytes(*word)) == (
        is_same or not is_signed
    )


@pytest.mark.parametrize('body', [{'a': 2**64}, {'a': -(2**63) - 1}, {'a': '\ud800'}])
def test_what_cannot_be_encoded_is_no_word(body):
    with pytest.raises(ValueError):
        host_keys.signed_bytes('confirm_claims', 'cmp-1', 1, 1, body)


def test_the_example_of_the_documents():
    """The bytes and the signature in doc/source/admin/signatures.rst."""
    key = PrivateKey(bytes(range(32)))
    body = {'name': 'cmp-1', 'epoch': 3, 'sequence': 7, 'claim_ids': ['a'], 'signature': None}
    signed = host_keys.signed_bytes('confirm_claims', 'cmp-1', 3, 7, body)
    document = (host_keys.key_text(key.public), signed.hex(), host_keys.key_text(key.sign(signed)))
    assert document == EXAMPLE


EXAMPLE = (
    'A6EHv_POEL4dcN0Y50vAmWfk1jCbpQ1fHdyGZBJVMbg',
    '96af67616e7474206d6573736167652031ae636f6e6669726d5f636c61696d73a5636d702d31030784a9636c61696d'
    '5f69647391a161a565706f636803a46e616d65a5636d702d31a873657175656e636507',
    '657E16bVfPrAI5HUtawWuY35ZLSC_sSE5u9kd8ceEO1_M5ChvG-I1FdFHllqCH2Tx-fPlLi9JXHaPHAFO2IBBQ',
)


# -- proofs ------------------------------------------------------------------------------
def a_proof(older=1):
    keys = [PrivateKey() for _ in range(older + 1)]
    links = [
        (before.public, before.sign(host_keys.successor_bytes(after.public)))
        for after, before in zip(keys, keys[1:], strict=False)
    ]
    signed = b'a registration'
    parts = ProofParts(
        number=7, key=keys[0].public, signature=keys[0].sign(signed), older=tuple(links)
    )
    return parts, signed, [host_keys.key_text(key.public) for key in keys]


def test_a_proof_is_read_as_it_was_written():
    for older in range(host_keys.OLDER_KEYS_MAX + 1):
        parts, signed, keys = a_proof(older)
        text = host_keys.proof_text(parts)
        assert len(text) <= 1024  # what the field takes
        assert host_keys.parse_proof(text) == parts
        proven = ed25519.verify_proof(parts, signed)
        assert [proven.key, *proven.older] == keys
    assert (
        host_keys.parse_proof(host_keys.proof_text(a_proof(host_keys.OLDER_KEYS_MAX + 1)[0]))
        is None
    )


@given(st.data())
def test_a_proof_with_anything_changed_proves_nothing(data):
    parts, signed, _ = a_proof()
    text = host_keys.proof_text(parts)
    start = len('ed25519 ')
    at = data.draw(st.integers(start, len(text) - 1))
    other = data.draw(st.characters(codec='ascii').filter(lambda c: c != text[at]))
    changed = host_keys.parse_proof(text[:at] + other + text[at + 1 :])
    # The number is part of the signed bytes, see ``word``.
    if changed is not None and changed.number == parts.number:
        assert ed25519.verify_proof(changed, signed) is None


@given(st.text(max_size=300))
def test_any_text_is_a_proof_or_none(text):
    assert host_keys.parse_proof(text) is None
    assert host_keys.parse_proof(f'ed25519 {text}') is None


@given(st.binary(max_size=80))
def test_a_key_has_one_text(raw):
    for size in (KEY_BYTES, SIGNATURE_BYTES):
        assert host_keys.key_bytes(host_keys.key_text(raw), size) == (
            raw if len(raw) == size else None
        )


def test_the_first_pattern_counts():
    rules = SigningModes(of_hosts=(('a*', SigningMode.OFF), ('ab*', SigningMode.REQUIRED)))
    assert [rules.of(name) for name in ('ab', 'b')] == [SigningMode.OFF, SigningMode.KNOWN]
