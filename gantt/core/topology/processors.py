# SPDX-License-Identifier: Apache-2.0
"""How the processors of a guest are to be had: shared or dedicated, with which threads.

Nova says it in two ways: by policies (``hw:cpu_policy``, ``hw:cpu_thread_policy``)
or by what Placement is asked for (``resources:PCPU``, ``trait:HW_CPU_HYPERTHREADING``).
Both are read here, by the one who asks for amounts as by the one who lays out.
"""

from gantt.core.messages.keys.topology_settings import (
    TopologySettings,
    cpus,
    in_flavor,
    in_image,
    refuse,
    truth,
)
from gantt.core.messages.topology_request import CpuPolicy, EmulatorPolicy, ThreadPolicy

HYPERTHREADING = 'HW_CPU_HYPERTHREADING'
#: Where a flavor, and where an image, name traits.
_TRAIT, _TRAITS = f'trait:{HYPERTHREADING}', 'traits_required'
_BY_TRAIT = {'required': ThreadPolicy.REQUIRE, 'forbidden': ThreadPolicy.ISOLATE}


def cpu_policy(settings: TopologySettings) -> CpuPolicy | None:
    """The policy that flavor or image name; None: neither does.

    :raises InvalidMessage: names the key and what was expected
    """
    name = 'cpu_policy'
    flavor, image = settings.choices_of_both(name, CpuPolicy)
    if flavor is None:
        return CpuPolicy(image) if image else None
    # The image may ask for less than the flavor gives, never for more.
    more = (CpuPolicy.DEDICATED, CpuPolicy.MIXED)[: 2 if flavor == CpuPolicy.SHARED else 1]
    if flavor != CpuPolicy.DEDICATED and image in more:
        refuse(in_image(name), f'the flavor gives {flavor} processors only')
    return CpuPolicy(flavor)


def thread_policy(settings: TopologySettings) -> tuple[ThreadPolicy | None, str]:
    """The thread policy and the field that says it; None: nothing does.

    A flavor's word counts, and an image may only repeat it, but where the flavor
    says ``prefer``: that stays, whatever the image has.

    :raises InvalidMessage: names the key and what was expected
    """
    name = 'cpu_thread_policy'
    flavor, image = settings.choices_of_both(name, ThreadPolicy)
    if flavor not in (None, ThreadPolicy.PREFER) and image not in (None, flavor):
        refuse(in_image(name), f'expected {flavor} as in the flavor, got {image}')
    field = in_flavor(name) if flavor else in_image(name)
    by_trait, trait = _threads_by_trait(settings)
    if not (flavor or image):
        return by_trait, trait
    if by_trait:
        refuse(trait, f'{field.rpartition(".")[2]} is there as well; expected one of them')
    return ThreadPolicy(flavor or image or ''), field


def _threads_by_trait(settings: TopologySettings) -> tuple[ThreadPolicy | None, str]:
    trait_value = settings.flavor.get(_TRAIT)
    if trait_value is not None:
        return _BY_TRAIT.get(trait_value), f'request.spec.flavor.extra_specs.{_TRAIT}'
    traits = settings.image.get(_TRAITS, '').split(',')
    found = ThreadPolicy.REQUIRE if HYPERTHREADING in map(str.strip, traits) else None
    return found, f'request.spec.image.properties.{_TRAITS}'


def emulator_policy(settings: TopologySettings) -> EmulatorPolicy | None:
    """Where the emulator's threads are to run, which flavors alone may say; None: they do not.

    :raises InvalidMessage: names the key and what was expected
    """
    name = 'emulator_threads_policy'
    policy = settings.choice(EmulatorPolicy, settings.of_flavor(name), in_flavor(name))
    return EmulatorPolicy(policy) if policy else None


def realtime(settings: TopologySettings, vcpus: int) -> tuple[tuple[int, ...], str]:
    """Real-time processors of a guest of so many, and the field that says it; (): none.

    :raises InvalidMessage: names the key and what was expected
    """
    switch = in_flavor('cpu_realtime')
    realtime_value = settings.of_flavor('cpu_realtime')
    if not (realtime_value and truth(realtime_value, switch)):
        return (), ''
    name = 'cpu_realtime_mask'
    text, field = settings.of_image(name), in_image(name)
    if not text:
        text, field = settings.of_flavor(name), in_flavor(name)
    found = cpus(text, field, vcpus) if text else tuple(range(vcpus))
    # Something has to run the emulator's threads.
    if len(found) == vcpus and emulator_policy(settings) is None:
        refuse(
            field if text else switch,
            'expected a cpu_realtime_mask that leaves a processor without, '
            'or an emulator_threads_policy',
        )
    return found, field if text else switch


def dedicated(settings: TopologySettings, policy: CpuPolicy, vcpus: int) -> tuple[int, ...]:
    """Processors that are pinned, of a guest of so many.

    :raises InvalidMessage: names the key and what was expected
    """
    name = 'cpu_dedicated_mask'
    text, field = settings.of_flavor(name), in_flavor(name)
    if policy is not CpuPolicy.MIXED:
        if text:
            refuse(field, f'is for cpu_policy mixed, not {policy}')
        return tuple(range(vcpus)) if policy is CpuPolicy.DEDICATED else ()
    by_time, where = realtime(settings, vcpus)
    if bool(text) == bool(by_time):
        refuse(field, 'mixed processors need it, or cpu_realtime with a mask; expected one of them')
    found = cpus(text, field, vcpus) if text else by_time
    # Those for real time may be all of them where the emulator has threads elsewhere.
    if text and len(found) == vcpus:
        refuse(field, 'expected a shared processor beside the dedicated ones')
    return found
