// SPDX-License-Identifier: Apache-2.0
//! Shards that save where they stand, and those of several ranks.
use std::sync::atomic::{AtomicUsize, Ordering};

use feedlane::{Failure, Loader, LoaderBuilder, Row, Shard, WorkerInfo};

type Checked = Result<(), Failure>;

/// 0 to 7; its state is the next number.
struct Counted {
    next: i64,
}

static MADE: AtomicUsize = AtomicUsize::new(0);

impl Shard for Counted {
    const SAVES: bool = true;

    fn open(_info: &WorkerInfo<'_>) -> Result<Self, Failure> {
        Ok(Counted { next: 0 })
    }

    fn restart(&mut self, _epoch: i64) -> Result<(), Failure> {
        self.next = 0;
        Ok(())
    }

    fn next(&mut self, row: &mut Row<'_>) -> Result<bool, Failure> {
        if self.next == 8 {
            return Ok(false);
        }
        MADE.fetch_add(1, Ordering::Relaxed);
        row.fill(0, self.next)?;
        self.next += 1;
        Ok(true)
    }

    fn save(&mut self) -> Vec<u8> {
        self.next.to_le_bytes().to_vec()
    }

    fn load(&mut self, state: &[u8]) -> Result<(), Failure> {
        self.next = i64::from_le_bytes(state.try_into()?);
        Ok(())
    }
}

fn numbers(loader: &mut Loader) -> Result<Vec<i64>, Failure> {
    let mut all = Vec::new();
    for batch in loader.epoch(0)? {
        all.extend(batch?.tensor(0)?.values::<i64>()?.iter());
    }
    Ok(all)
}

fn builder<S: Shard + Send>() -> LoaderBuilder<'static> {
    Loader::builder().shards::<S>().field::<i64>("number", &[]).batch_size(2)
}

#[test]
fn a_shard_goes_on_from_what_it_saved() -> Checked {
    let mut first = builder::<Counted>().build()?;
    let state = {
        let mut epoch = first.epoch(0)?;
        let batch = epoch.nth(1).ok_or("a second batch")??;
        epoch.loader().state(Some(&batch))?
    };
    drop(first);
    let before = MADE.load(Ordering::Relaxed);
    assert_eq!(numbers(&mut builder::<Counted>().state(state).build()?)?, [4, 5, 6, 7]);
    assert_eq!(MADE.load(Ordering::Relaxed) - before, 4, "none is made again");
    Ok(())
}

/// Says more than there is room for.
struct Wordy;

impl Shard for Wordy {
    const SAVES: bool = true;

    fn open(_info: &WorkerInfo<'_>) -> Result<Self, Failure> {
        Ok(Wordy)
    }

    fn restart(&mut self, _epoch: i64) -> Result<(), Failure> {
        Ok(())
    }

    fn next(&mut self, row: &mut Row<'_>) -> Result<bool, Failure> {
        row.fill(0, 0i64)?;
        Ok(true)
    }

    fn save(&mut self) -> Vec<u8> {
        vec![0; 1 << 20]
    }
}

#[test]
fn a_state_that_is_too_long_is_a_failure() -> Checked {
    let refused = numbers(&mut builder::<Wordy>().build()?).unwrap_err().to_string();
    assert!(refused.contains("the shard's state has 1048576 bytes, but at most "), "{}", refused);
    Ok(())
}

/// The numbers s, s + n, s + 2n ... below 20 of shard s of n.
struct Striped {
    next: i64,
    shard: i64,
    shards: i64,
}

impl Shard for Striped {
    fn open(info: &WorkerInfo<'_>) -> Result<Self, Failure> {
        assert_eq!((info.shard(), info.shards()), (i64::from(info.rank()), i64::from(info.world())));
        Ok(Striped { next: 0, shard: info.shard(), shards: info.shards() })
    }

    fn restart(&mut self, _epoch: i64) -> Result<(), Failure> {
        self.next = self.shard;
        Ok(())
    }

    fn next(&mut self, row: &mut Row<'_>) -> Result<bool, Failure> {
        if self.next >= 20 {
            return Ok(false);
        }
        row.fill(0, self.next)?;
        self.next += self.shards;
        Ok(true)
    }
}

#[test]
fn ranks_share_the_data_and_end_together() -> Checked {
    let mut all = Vec::new();
    for rank in 0..3 {
        let ranked = || builder::<Striped>().world(3).rank(rank);
        all.extend(numbers(&mut ranked().build()?)?);
        assert_eq!(numbers(&mut ranked().max_batches(2).build()?)?.len(), 4);
    }
    all.sort_unstable();
    assert_eq!(all, (0..20).collect::<Vec<_>>());
    let refused = builder::<Striped>().world(3).rank(3).build().map(drop).unwrap_err();
    assert_eq!(refused.argument, "config.rank");
    Ok(())
}
