# SPDX-License-Identifier: Apache-2.0
"""webdataset: shards by WebLoader and by torch's loader in the data set's own pipeline."""

import pytest
import torch
import webdataset


@pytest.fixture
def shards(tmp_path):
    for shard in range(4):
        with webdataset.TarWriter(str(tmp_path / f"{shard}.tar")) as writer:
            for i in range(6):
                writer.write({"__key__": f"{shard}{i}", "x.pth": torch.full((3,), float(10 * shard + i)), "cls": i, "json": {"at": [shard, i]}})
    return [str(tmp_path / f"{shard}.tar") for shard in range(4)]


def stream(shards, **settings):
    given = {"shardshuffle": 4, "seed": 5, **settings}
    return webdataset.WebDataset(shards, **given).shuffle(10, seed=3).decode().to_tuple("x.pth", "cls", "json")


@pytest.mark.parametrize("workers", (0, 2, 4))
@pytest.mark.parametrize("batched", (False, True))
def test_web_loader(seen, shards, workers, batched):
    rows = stream(shards)
    if batched:
        loader = webdataset.WebLoader(rows.batched(3), batch_size=None, num_workers=workers).unbatched().shuffle(5, seed=2).batched(4)
    else:
        loader = webdataset.WebLoader(rows, batch_size=3, num_workers=workers)
    for _ in range(2):
        for batch in loader:
            seen.step(batch)


def test_epochs(seen, shards):
    """An endless stream, cut into epochs by with_epoch, with persistent workers."""
    loader = webdataset.WebLoader(stream(shards, resampled=True, shardshuffle=False).with_epoch(8), batch_size=4, num_workers=2,
                                  persistent_workers=True)
    for _ in range(3):
        seen.value(sum(len(batch[0]) for batch in loader))
