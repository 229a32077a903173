# SPDX-License-Identifier: Apache-2.0
"""Processor settings of a guest: shared or dedicated, and the policy of threads.

Nova has two forms: policies (``hw:cpu_policy``, ``hw:cpu_thread_policy``) or the request to
Placement (``resources:PCPU``, ``trait:HW_CPU_HYPERTHREADING``).  Both are read here, for the
amounts of a request and for its layout.
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
#: Keys under which a flavor, and an image, name traits.
_TRAIT, _TRAITS = f'trait:{HYPERTHREADING}', 'traits_required'
_BY_TRAIT = {'required': ThreadPolicy.REQUIRE, 'forbidden': ThreadPolicy.ISOLATE}


def cpu_policy(settings: TopologySettings) -> CpuPolicy | None:
    """Return the CPU policy that flavor or image name; None if neither does.

    :raises InvalidMessage: names the key and the expected value
    """
    name = 'cpu_policy'
    flavor, image = settings.choices_of_both(name, CpuPolicy)
    if flavor is None:
        return CpuPolicy(image) if image else None
    # The image may request less than the flavor allows, never more.
    stronger = (CpuPolicy.DEDICATED, CpuPolicy.MIXED)[: 2 if flavor == CpuPolicy.SHARED else 1]
    if flavor != CpuPolicy.DEDICATED and image in stronger:
        refuse(in_image(name), f'the flavor gives {flavor} processors only')
    return CpuPolicy(flavor)


def thread_policy(settings: TopologySettings) -> tuple[ThreadPolicy | None, str]:
    """Return the thread policy and the field that sets it; None if no field does.

    The flavor takes precedence, and an image may only repeat its policy, except where the
    flavor has ``prefer``: that stays, whatever the image has.

    :raises InvalidMessage: names the key and the expected value
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
    policy = ThreadPolicy.REQUIRE if HYPERTHREADING in map(str.strip, traits) else None
    return policy, f'request.spec.image.properties.{_TRAITS}'


def emulator_policy(settings: TopologySettings) -> EmulatorPolicy | None:
    """Return the policy of emulator threads, which only flavors may set; None if not set.

    :raises InvalidMessage: names the key and the expected value
    """
    name = 'emulator_threads_policy'
    policy = settings.choice(EmulatorPolicy, settings.of_flavor(name), in_flavor(name))
    return EmulatorPolicy(policy) if policy else None


def realtime(settings: TopologySettings, vcpus: int) -> tuple[tuple[int, ...], str]:
    """Return the real-time processors of a guest, and the field that sets them; (): none.

    :raises InvalidMessage: names the key and the expected value
    """
    switch = in_flavor('cpu_realtime')
    realtime_value = settings.of_flavor('cpu_realtime')
    if not (realtime_value and truth(realtime_value, switch)):
        return (), ''
    name = 'cpu_realtime_mask'
    text, field = settings.of_image(name), in_image(name)
    if not text:
        text, field = settings.of_flavor(name), in_flavor(name)
    cpu_numbers = cpus(text, field, vcpus) if text else tuple(range(vcpus))
    # One processor has to run the emulator's threads.
    if len(cpu_numbers) == vcpus and emulator_policy(settings) is None:
        refuse(
            field if text else switch,
            'expected a cpu_realtime_mask that leaves a processor without, '
            'or an emulator_threads_policy',
        )
    return cpu_numbers, field if text else switch


def dedicated(settings: TopologySettings, policy: CpuPolicy, vcpus: int) -> tuple[int, ...]:
    """Return the processors of a guest that are pinned.

    :raises InvalidMessage: names the key and the expected value
    """
    name = 'cpu_dedicated_mask'
    text, field = settings.of_flavor(name), in_flavor(name)
    if policy is not CpuPolicy.MIXED:
        if text:
            refuse(field, f'is for cpu_policy mixed, not {policy}')
        return tuple(range(vcpus)) if policy is CpuPolicy.DEDICATED else ()
    realtime_cpus, _field = realtime(settings, vcpus)
    if bool(text) == bool(realtime_cpus):
        refuse(field, 'mixed processors need it, or cpu_realtime with a mask; expected one of them')
    cpu_numbers = cpus(text, field, vcpus) if text else realtime_cpus
    # All may be real-time processors if the emulator's threads run elsewhere.
    if text and len(cpu_numbers) == vcpus:
        refuse(field, 'expected a shared processor beside the dedicated ones')
    return cpu_numbers
