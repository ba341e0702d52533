# SPDX-License-Identifier: Apache-2.0
"""Trains on the digits, each rank an actor of Ray's, gradients and statistics summed by gloo. If ranks die, those that are left go
on from the checkpoint. See README.md.
Usage: PYTHONPATH=capi/python ray_digits.py --ranks RANKS --folder FOLDER [--address ADDRESS] [--epochs N] [--batch N] ..."""
import collections
import datetime
import os
import sys
import time

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

HERE = os.path.dirname(os.path.abspath(__file__))


@ray.remote(num_cpus=0, max_restarts=0)
class Rank:
    """One rank; torch is in its process alone."""

    def open_store(self):
        """Of rank 0: address and port, where the ranks meet."""
        import torch.distributed as dist
        address = ray.util.get_node_ip_address()
        self._store = dist.TCPStore(address, 0, is_master=True, wait_for_workers=False)
        return address, self._store.port

    def train(self, store, rank, world, place, options):
        """To the end. Raises if another rank dies."""
        sys.path.insert(0, HERE)
        import torch.distributed as dist

        import ranks
        timeout = datetime.timedelta(seconds=60)
        meeting = self._store if rank == 0 else dist.TCPStore(*store, is_master=False, timeout=timeout)
        dist.init_process_group("gloo", store=meeting, rank=rank, world_size=world, timeout=timeout)
        ranks.train(ranks.Place(*place), options)
        dist.barrier()  # rank 0 has the store
        dist.destroy_process_group()


def attempt(places, options):
    """One run with as many ranks on each machine as `places` says; how many of them are left. None: it has come to its end."""
    where = [(machine, local) for machine, node in enumerate(places) for local in range(places[node])]
    nodes = list(places)
    actors = [Rank.options(scheduling_strategy=NodeAffinitySchedulingStrategy(nodes[machine], soft=False)).remote()
              for machine, _ in where]
    try:
        store = ray.get(actors[0].open_store.remote())
        results = [actor.train.remote(store, rank, len(where), (local, places[nodes[machine]], machine, len(nodes)), options)
                   for rank, (actor, (machine, local)) in enumerate(zip(actors, where))]
        left, failures = collections.Counter(), []
        for result, (machine, _) in zip(results, where):
            try:
                ray.get(result)
            except ray.exceptions.RayActorError as died:
                failures.append(died)
                continue
            except ray.exceptions.RayTaskError as failed:
                failures.append(failed)
            left[nodes[machine]] += 1
        if not failures:
            return None
        if left == places:
            raise failures[0]  # no rank has died: a fault of the program
        return left
    finally:
        for actor in actors:
            ray.kill(actor)


def alive():
    """Machines of the cluster, by address."""
    found = sorted((node["NodeManagerAddress"], node["NodeID"]) for node in ray.nodes() if node["Alive"])
    return [node for _, node in found]


def main():
    sys.path.insert(0, HERE)
    import ranks
    parser = ranks.arguments()
    parser.add_argument("--ranks", type=int, default=2, help="on each machine")
    parser.add_argument("--address", help="of a cluster of Ray's; else this machine alone")
    parser.add_argument("--machines", type=int, default=1, help="to wait for")
    options = parser.parse_args()
    ray.init(address=options.address, include_dashboard=False)
    while len(alive()) < options.machines:
        time.sleep(0.1)
    places = collections.Counter({node: options.ranks for node in alive()})
    while places:
        print(f"machines with ranks: {sorted(places.values())}", flush=True)
        places = attempt(places, options)


if __name__ == "__main__":
    main()
