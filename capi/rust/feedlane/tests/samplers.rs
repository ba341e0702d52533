// SPDX-License-Identifier: Apache-2.0
//! What samplers yield, save and load.
use feedlane::{Failure, Random, Rank, Sampler, Shuffle, Status, Weighted};

type Checked = Result<(), Failure>;

fn all(sampler: &mut Sampler) -> Result<Vec<i64>, Failure> {
    let (mut all, mut room) = (Vec::new(), [0; 3]);
    loop {
        match sampler.next_indices(&mut room)? {
            0 => return Ok(all),
            got => all.extend(&room[..got]),
        }
    }
}

#[test]
fn samplers_yield_what_they_are_made_for() -> Checked {
    assert_eq!(all(&mut Sampler::sequential(7)?)?, [0, 1, 2, 3, 4, 5, 6]);
    let mut random = Sampler::random(Random { length: 7, seed: 1, ..Random::default() })?;
    let first = all(&mut random)?;
    let mut sorted = first.clone();
    sorted.sort_unstable();
    assert_eq!(sorted, [0, 1, 2, 3, 4, 5, 6]);
    random.restart(0)?;
    assert_eq!(random.next_indices(&mut [0; 2])?, 2);
    let state = random.save()?;
    random.restart(0)?;
    random.load(&state)?;
    assert_eq!(all(&mut random)?, first[2..]);
    let torn = random.load(&state[..state.len() - 1]).unwrap_err();
    assert_eq!(torn.status, Status::CORRUPT);

    assert_eq!(all(&mut Sampler::subset(&[5, 3, 9], true, 0)?)?, [5, 3, 9]);
    let tokens = feedlane::Tokens { max_tokens: 10, max_rows: 4, world: 1, ..Default::default() };
    let mut batches = Sampler::tokens(&[9, 1, 5, 5], tokens)?;
    let (mut room, mut rows) = ([0; 4], 0);
    while let got @ 1.. = batches.next_indices(&mut room)? {
        rows += got;
    }
    assert_eq!(rows, 4);
    assert!(Sampler::tokens(&[11], tokens).is_err());
    let stages = feedlane::Mixture {
        num_samples: 6,
        window: 1,
        from: &[0, 4],
        no_shuffle: true,
        world: 1,
        ..Default::default()
    };
    assert_eq!(all(&mut Sampler::mixture(&[5, 2], &[1.0, 0.0, 0.0, 1.0], stages)?)?, [0, 1, 2, 3, 5, 6]);
    assert!(Sampler::mixture(&[5, 2], &[1.0, 0.0], stages).is_err());
    let weighted = Weighted { num_samples: 20, seed: 1, ..Weighted::default() };
    assert!(all(&mut Sampler::weighted(&[0.0, 1.0, 0.0], weighted)?)?.iter().all(|i| *i == 1));
    let batches = Sampler::sequential(7)?.batches(3, true)?;
    assert_eq!(batches.length()?, Some(2));
    let mut ranks = Vec::new();
    for rank in 0..2 {
        let config = feedlane::Distributed { length: 6, world: 2, rank, no_shuffle: true, ..Default::default() };
        ranks.push(all(&mut Sampler::distributed(config)?)?);
    }
    assert_eq!(ranks, [[0, 2, 4], [1, 3, 5]]);
    let refused = Sampler::random(Random { length: -1, shuffle: Shuffle::Feistel, ..Random::default() });
    let refused = refused.err().ok_or("a length of -1")?;
    assert_eq!((refused.status, refused.argument.as_str()), (Status::ARGUMENT, "config.length"));
    let shuffled = all(&mut Sampler::subset(&[5, 3, 9], false, 1)?)?;
    assert!(shuffled.len() == 3 && [5, 3, 9].iter().all(|index| shuffled.contains(index)), "{:?}", shuffled);
    assert!(Rank::detect()?.world >= 1);
    Ok(())
}
