// SPDX-License-Identifier: Apache-2.0
//! Samplers of the user's own.
use std::io::{Read, Write};
use std::os::unix::io::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicUsize, Ordering};

use feedlane::{Dataset, Failure, Loader, Order, Row, Sampler, Status, WorkerInfo};

type Checked = Result<(), Failure>;

struct Echo;

impl Dataset for Echo {
    fn open(_info: &WorkerInfo<'_>) -> Result<Self, Failure> {
        Ok(Echo)
    }

    fn get(&mut self, row: &mut Row<'_>) -> Result<(), Failure> {
        let index = row.index();
        Ok(row.fill(0, index)?)
    }
}

fn loader(sampler: &Sampler) -> Result<Loader, Failure> {
    Ok(Loader::builder().sampler(sampler).dataset::<Echo>().field::<i64>("i", &[]).batch_size(2).seed(7).build()?)
}

fn epoch_of(loader: &mut Loader, epoch: i64) -> Result<Vec<Vec<i64>>, Failure> {
    loader.epoch(epoch)?.map(|batch| Ok(batch?.indices().to_vec())).collect()
}

/// Counts down from 10 * epoch + 4, three at a time at most; fails where it is told to, once.
struct Countdown {
    next: i64,
    last: i64,
    fails_at: Option<i64>,
    seed: u64,
}

static DROPPED: AtomicUsize = AtomicUsize::new(0);

impl Drop for Countdown {
    fn drop(&mut self) {
        DROPPED.fetch_add(1, Ordering::Relaxed);
    }
}

impl Order for Countdown {
    const SAVES: bool = true;

    fn restart(&mut self, epoch: i64, seed: u64) -> Result<(), Failure> {
        (self.next, self.last, self.seed) = (10 * epoch + 4, 10 * epoch, seed);
        Ok(())
    }

    fn next(&mut self, indices: &mut [i64]) -> Result<usize, Failure> {
        if self.fails_at == Some(self.next) {
            self.fails_at = None;
            panic!("{} is unlucky", self.next);
        }
        let mut written = 0;
        for to in indices.iter_mut().take(3) {
            if self.next < self.last {
                break;
            }
            *to = self.next;
            self.next -= 1;
            written += 1;
        }
        Ok(written)
    }

    fn length(&self) -> Option<i64> {
        Some(5)
    }

    fn save(&mut self) -> Result<Vec<u8>, Failure> {
        Ok(self.next.to_le_bytes().to_vec())
    }

    fn load(&mut self, state: &[u8]) -> Result<(), Failure> {
        self.next = i64::from_le_bytes(state.try_into()?);
        Ok(())
    }
}

#[test]
fn an_order_of_the_users_own_is_yielded_saved_and_dropped_once() -> Checked {
    let countdown = |fails_at| Sampler::custom(Countdown { next: 4, last: 0, fails_at, seed: 0 });
    let sampler = countdown(None)?;
    let mut first = loader(&sampler)?;
    assert_eq!(first.length()?, Some(3));
    assert_eq!(epoch_of(&mut first, 0)?, [vec![4, 3], vec![2, 1], vec![0]]);
    let state = {
        let mut epoch = first.epoch(1)?;
        let batch = epoch.next().ok_or("a batch")??;
        assert_eq!(batch.indices(), [14, 13]);
        epoch.loader().state(Some(&batch))?
    };
    drop((sampler, first));
    assert_eq!(DROPPED.load(Ordering::Relaxed), 1, "with the last copy, once");

    let again = countdown(None)?;
    let mut resumed = Loader::builder().sampler(&again).dataset::<Echo>().field::<i64>("i", &[]).batch_size(2);
    resumed = resumed.state(state);
    assert_eq!(epoch_of(&mut resumed.build()?, 1)?, [vec![12, 11], vec![10]]);

    let failing = countdown(Some(2))?;
    let mut loader = loader(&failing)?;
    loader.begin(0)?;
    let (mut seen, mut told) = (Vec::new(), Vec::new());
    loop {
        match loader.next(None) {
            Ok(feedlane::Next::Batch(batch)) => seen.extend(batch.indices().to_vec()),
            Ok(_) => break,
            Err(error) => told.push((error.status, error.text.clone())),
        }
    }
    assert_eq!(seen, [4, 3, 2, 1, 0], "asked again, it goes on");
    assert_eq!(told, [(Status::SAMPLE, "panicked: 2 is unlucky".to_string())]);
    Ok(())
}

#[test]
fn an_iterator_for_each_epoch_is_an_order() -> Checked {
    let sampler = Sampler::from_fn(None, |epoch, seed| (0..3 + epoch).map(move |i| i * 10 + seed as i64))?;
    let mut loader = loader(&sampler)?;
    assert_eq!(loader.length()?, None);
    assert_eq!(epoch_of(&mut loader, 0)?, [vec![7, 17], vec![27]]);
    assert_eq!(epoch_of(&mut loader, 1)?, [vec![7, 17], vec![27, 37]]);
    let unsaved = loader.state(None).unwrap_err();
    assert_eq!(unsaved.status, Status::UNSUPPORTED, "{}", unsaved);
    Ok(())
}

/// Whole batches: 1, then 2, then 3 rows.
struct Growing(i64);

impl Order for Growing {
    fn restart(&mut self, _epoch: i64, _seed: u64) -> Result<(), Failure> {
        self.0 = 0;
        Ok(())
    }

    fn next(&mut self, indices: &mut [i64]) -> Result<usize, Failure> {
        self.0 += 1;
        if self.0 > 3 {
            return Ok(0);
        }
        indices[..self.0 as usize].fill(self.0);
        Ok(self.0 as usize)
    }

    fn batch_rows(&self) -> Option<i64> {
        Some(3)
    }
}

#[test]
fn an_order_may_make_the_batches() -> Checked {
    let sampler = Sampler::custom(Growing(0))?;
    let mut loader = Loader::builder().sampler(&sampler).dataset::<Echo>().field::<i64>("i", &[]).build()?;
    assert_eq!(epoch_of(&mut loader, 0)?, [vec![1], vec![2, 2], vec![3, 3, 3]]);
    Ok(())
}

struct Wrong(Option<i64>, usize);

impl Order for Wrong {
    fn restart(&mut self, _epoch: i64, _seed: u64) -> Result<(), Failure> {
        Ok(())
    }

    fn next(&mut self, _indices: &mut [i64]) -> Result<usize, Failure> {
        Ok(self.1)
    }

    fn length(&self) -> Option<i64> {
        self.0
    }
}

#[test]
fn what_an_order_may_not_say_is_refused() -> Checked {
    let negative = Sampler::custom(Wrong(Some(-3), 0)).err().ok_or("a length of -3")?;
    assert_eq!((negative.status, negative.argument.as_str()), (Status::ARGUMENT, "length"));
    let mut sampler = Sampler::custom(Wrong(None, 9))?;
    let beyond = sampler.next_indices(&mut [0; 4]).unwrap_err();
    assert!(beyond.text.contains("wrote 9 indices, but there was room for only 4"), "{}", beyond);
    Ok(())
}

/// The bytes of a socket as indices. With `false` it does not name its descriptor.
struct Bytes(UnixStream, bool);

impl Order for Bytes {
    fn restart(&mut self, _epoch: i64, _seed: u64) -> Result<(), Failure> {
        Ok(())
    }

    fn next(&mut self, indices: &mut [i64]) -> Result<usize, Failure> {
        let mut bytes = [0];
        let made = self.0.read(&mut bytes)?;
        indices[0] = bytes[0].into();
        Ok(made)
    }

    fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
        self.1.then(|| self.0.as_fd())
    }
}

#[test]
fn a_live_order_may_have_no_index_now() -> Checked {
    let (mut requests, source) = UnixStream::pair()?;
    source.set_nonblocking(true)?;
    let sampler = Sampler::custom(Bytes(source, true))?;
    let mut loader = loader(&sampler)?;
    let mut epoch = loader.epoch(0)?;
    for batch in [[7, 8], [9, 9]] {
        let copy = requests.try_clone()?;
        let thread = std::thread::spawn(move || (&copy).write_all(&batch));
        assert_eq!(epoch.next().ok_or("a batch")??.indices(), batch.map(i64::from));
        thread.join().expect("no panic")?;
    }
    requests.write_all(&[1])?;
    drop(requests);
    assert_eq!(epoch.next().ok_or("a batch")??.indices(), [1]);
    assert!(epoch.next().is_none());

    let (_requests, source) = UnixStream::pair()?;
    source.set_nonblocking(true)?;
    let refused = Sampler::custom(Bytes(source, false))?.next_indices(&mut [0; 4]).unwrap_err();
    assert_eq!((refused.status, refused.argument.as_str()), (Status::ARGUMENT, "callbacks.wake_fd"));
    Ok(())
}

/// Holds its place for as long as the test says.
struct Slow(std::sync::mpsc::Receiver<()>, std::sync::mpsc::Sender<()>);

impl Order for Slow {
    fn restart(&mut self, _epoch: i64, _seed: u64) -> Result<(), Failure> {
        Ok(())
    }

    fn next(&mut self, indices: &mut [i64]) -> Result<usize, Failure> {
        self.1.send(())?;
        let _ = self.0.recv();
        indices[0] = 5;
        Ok(1)
    }
}

#[test]
fn two_copies_at_a_time_are_refused_not_raced() -> Checked {
    let ((end, until), (here, is_here)) = (std::sync::mpsc::channel(), std::sync::mpsc::channel());
    let mut sampler = Sampler::custom(Slow(until, here))?;
    let mut loader = loader(&sampler)?;
    let thread = std::thread::spawn(move || epoch_of(&mut loader, 0).is_ok());
    is_here.recv()?;
    let refused = sampler.next_indices(&mut [0; 4]).unwrap_err();
    assert!(refused.text.contains("in use by another copy"), "{}", refused);
    drop((end, is_here));
    assert!(!thread.join().expect("no panic"), "nobody hears it any more: its send fails");
    Ok(())
}
