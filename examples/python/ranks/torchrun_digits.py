# SPDX-License-Identifier: Apache-2.0
"""Trains on the digits, each rank a process of torchrun's, gradients and statistics summed by gloo. See README.md.
Usage: PYTHONPATH=capi/python torchrun --nproc-per-node RANKS torchrun_digits.py --folder FOLDER [--epochs N] [--batch N] ..."""
import datetime
import os

import torch.distributed as dist

import ranks


def main():
    options = ranks.arguments().parse_args()
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=60))
    names = "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE"  # a group: the ranks of one machine
    ranks.train(ranks.Place(*(int(os.environ[name]) for name in names)), options)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
