# SPDX-License-Identifier: Apache-2.0
"""When guests are meant to be laid out otherwise than Nova does it."""

from tests.oracle.seen import Seen


def isolates_on_threads(seen: Seen) -> bool:
    """Cores to themselves where shared and dedicated processors differ."""
    return (
        _is_ours_alone(seen)
        and _policy(seen) == 'isolate'
        and _most_threads(seen) > 1
        and any(set(cell['cpuset']) != set(cell['pcpuset']) for cell in seen.host['numa'] or ())
    )


def emulator_has_a_core(seen: Seen) -> bool:
    """Cores to themselves, one of them for the emulator."""
    return (
        (seen.nova, seen.gantt) == ('p', 'r')
        and _policy(seen) == 'isolate'
        and _is_emulator_apart(seen)
        and _most_threads(seen) > 1
    )


def cores_differ(seen: Seen) -> bool:
    """Cores of a cell have different numbers of threads, or may have of free ones."""
    uneven = any(len(set(map(len, cell['siblings']))) > 1 for cell in seen.host['numa'] or ())
    by_policy = {'isolate': uneven, 'require': _most_threads(seen) > 2}
    return _is_ours_alone(seen) and by_policy.get(_policy(seen) or '', False)


def ordinary_pages_are_not_listed(seen: Seen) -> bool:
    """A size of pages is asked for, and some cell lists large ones only."""
    return bool(_wanted(seen, 'mem_page_size')) and any(
        cell['mempages'] and min(pages['size_kb'] for pages in cell['mempages']) > 64
        for cell in seen.host['numa'] or ()
    )


def pages_are_free(seen: Seen) -> bool:
    """The memory of some cell is used up, by whoever."""
    return (
        _is_ours_alone(seen)
        and bool(_wanted(seen, 'mem_page_size') or _wanted(seen, 'cpu_policy') == 'mixed')
        and any(
            cell['memory_usage'] + seen.request['flavor']['memory_mb']
            > cell['memory'] * seen.host['ram_allocation_ratio']
            for cell in seen.host['numa'] or ()
        )
    )


def has_both_kinds(seen: Seen) -> bool:
    """A guest with processors of both kinds, of which some cell may have one alone."""
    is_full = any(
        cell['cpu_usage'] > len(cell['cpuset']) * seen.host['cpu_allocation_ratio']
        for cell in seen.host['numa'] or ()
    )
    wants_cores = _policy(seen) in ('isolate', 'require') or _is_emulator_apart(seen)
    is_in_use = any(page['used'] for cell in seen.host['numa'] or () for page in cell['mempages'])
    cells = _wanted(seen, 'numa_nodes') or '1'
    return (
        _is_ours_alone(seen)
        and _wanted(seen, 'cpu_policy') == 'mixed'
        and (is_full or ((wants_cores or is_in_use) and cells != '1'))
    )


def pages_are_open(seen: Seen) -> bool:
    """Pages of any size, and several cells to have them on."""
    return (
        _is_ours_alone(seen)
        and _wanted(seen, 'mem_page_size') in ('any', 'large', 'small')
        and len(seen.host['numa'] or ()) > 1
    )


def cells_are_mixed_up(seen: Seen) -> bool:
    """A guest of several cells, each of which fits elsewhere."""
    if (seen.nova, seen.gantt) == ('p', 'r'):
        return seen.unfit
    return (
        _is_ours_alone(seen)
        and (_wanted(seen, 'numa_nodes') or '1') != '1'
        and (seen.request['network'] is not None or _wants_devices(seen) or _is_uneven(seen))
    )


def has_near_functions(seen: Seen) -> bool:
    """The host has whole functions or vDPA devices, which Nova looks at whatever is asked for."""
    kinds = {pool['tags'].get('dev_type') for pool in seen.host['pci']}
    return seen.nova == 'r' and seen.gantt == 'p' and bool(kinds & {'type-PF', 'vdpa'})


def devices_are_named(seen: Seen) -> bool:
    """Several ports and names of devices."""
    named = seen.request['flavor']['extra_specs'].get('pci_passthrough:alias', '')
    count = len(seen.request['ports']) + len([name for name in named.split(',') if name])
    return _is_ours_alone(seen) and count > 1


def image_requires_threads(seen: Seen) -> bool:
    """The flavor prefers threads, the image requires them."""
    return (
        _is_ours_alone(seen)
        and seen.request['flavor']['extra_specs'].get('hw:cpu_thread_policy') == 'prefer'
        and _wanted(seen, 'cpu_thread_policy', flavor=False) == 'require'
    )


def _is_ours_alone(seen: Seen) -> bool:
    return (seen.nova, seen.gantt) == ('r', 'p')


def _wanted(seen: Seen, name: str, flavor: bool = True) -> str | None:
    """What flavor or image say of a guest's hardware; without ``flavor`` the image alone."""
    image = (seen.request['image'] or {}).get('properties', {})
    value = seen.request['flavor']['extra_specs'].get(f'hw:{name}') if flavor else None
    return image.get(f'hw_{name}') if value is None else value


def _policy(seen: Seen) -> str | None:
    """The thread policy, which a trait may stand for."""
    trait = 'trait:HW_CPU_HYPERTHREADING'
    wish = seen.request['flavor']['extra_specs'].get(trait)
    if wish is None and trait in (seen.request['image'] or {}).get('properties', {}):
        wish = 'required'
    by_trait = {'required': 'require', 'forbidden': 'isolate'}.get(wish or '')
    return by_trait or _wanted(seen, 'cpu_thread_policy')


def _is_emulator_apart(seen: Seen) -> bool:
    return seen.request['flavor']['extra_specs'].get('hw:emulator_threads_policy') == 'isolate'


def _most_threads(seen: Seen) -> int:
    """Threads of the largest core."""
    cells = seen.host['numa'] or ()
    return max((len(core) for cell in cells for core in cell['siblings']), default=0)


def _wants_devices(seen: Seen) -> bool:
    """Whether flavor or ports ask for devices."""
    specs = seen.request['flavor']['extra_specs']
    return bool(seen.request['ports']) or 'pci_passthrough:alias' in specs


def _is_uneven(seen: Seen) -> bool:
    """Whether the cells of the guest differ."""
    return _wanted(seen, 'numa_mem.0') != _wanted(seen, 'numa_mem.1')
