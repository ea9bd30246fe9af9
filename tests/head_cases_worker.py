"""One rank of laws/test_heads.py: puts its part of many heads through their training calls and writes down what it saw.

Heads on a part of the ranks are tried while the others do something else: what a head sends must stay in its group.
"""

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from head_cases import LOSSES, OPERATIONS, Case, generate_cases, run
from widemargin.head.backends import class_blocks


def cases_of(count: int, seed: int, world: int) -> list[tuple[Case, tuple[int, ...]]]:
    """Cases and the ranks that each is for: all of them, a group of two next to a third, or one rank alone.

    Every variant of every loss comes first, its classes split over all ranks; then `count` of any kind.
    """
    everyone = tuple(range(world))
    operations = tuple(operation for operation in OPERATIONS if operation != "pickle")  # no group comes out of a pickle
    variants = sum(len(variants) for variants in LOSSES.values())
    found = [(case, everyone) for case in generate_cases(variants, seed, backend=("sharded",), operation=operations)]
    some = generate_cases(count, seed + 1, backend=("sharded", "dense", "stream"), operation=operations)
    for number, case in enumerate(some):
        if number % 4 == 3:
            found.append((case, (0,)))  # the other ranks go on to the next case
        elif number % 4 == 2 and world == 3:
            found += [(case, (0, 1)), (replace(case, seed=case.seed + 1), (2,))]  # two heads at the same time
        else:
            found.append((case, everyone))
    return found


def main(folder: str, count: str, seed: str) -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    rank, world = dist.get_rank(), dist.get_world_size()
    groups = {tuple(members): dist.new_group(list(members)) for members in ((0, 1), (0,), (2,)) if max(members) < world}
    groups[tuple(range(world))] = dist.group.WORLD
    class_blocks.max_block_rows = lambda samples, dim: 2
    seen: list = []
    for case, members in cases_of(int(count), int(seed), world):
        if rank not in members:
            seen.append(None)
            continue
        try:
            # A head on one rank is given no group: it must not wait for anybody.
            group = None if members == (0,) and case.backend != "sharded" else groups[members]
            seen.append(run(case, members.index(rank), len(members), group))
        except Exception as error:
            seen.append(f"rank {rank}: {type(error).__name__}: {str(error)[:300]}")
    torch.save(seen, Path(folder, f"{world}-{rank}.pt"))
    dist.barrier()
    dist.destroy_process_group()
