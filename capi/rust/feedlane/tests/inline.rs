// SPDX-License-Identifier: Apache-2.0
//! What takes no worker process: inline loaders, threads, shards, rings.
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use feedlane::{
    Copied, Dataset, Failure, Field, Loader, NextTask, Receiver, RingConfig, Row, Sampler, Sender, Shard, Status,
    Transient, Work, WorkerInfo,
};

type Checked = Result<(), Failure>;

#[test]
fn statuses_have_their_names() {
    assert_eq!(Status::QUARANTINED.name(), "E_QUARANTINED");
    assert_eq!(format!("{:?}", Status::TIMEOUT), "TIMEOUT(2)");
    assert_eq!(Status(-1000).name(), "UNKNOWN");
    assert!(!Status::OS.text().is_empty());
    assert_eq!(feedlane::version().split('.').count(), 3);
}

/// Whole batches, of their own shape; every second try of batch 1 fails.
struct Whole {
    tries: i32,
}

static CLOSED: AtomicUsize = AtomicUsize::new(0);

impl Drop for Whole {
    fn drop(&mut self) {
        // One thread counts and looks: no order is needed.
        CLOSED.fetch_add(1, Ordering::Relaxed);
    }
}

impl Dataset for Whole {
    const WHOLE_BATCHES: bool = true;

    fn open(_info: &WorkerInfo<'_>) -> Result<Self, Failure> {
        Ok(Whole { tries: 0 })
    }

    fn get(&mut self, _row: &mut Row<'_>) -> Result<(), Failure> {
        unreachable!("fetch makes whole batches")
    }

    fn fetch(&mut self, work: &mut Work<'_>) -> Result<(), Failure> {
        self.tries += 1;
        if work.batch() == 1 && self.tries % 2 == 0 {
            return Err(Transient(format!("try {}", self.tries)).into());
        }
        let indices = work.indices().to_vec();
        work.tensor_mut(0)?.into_values_mut::<i64>()?.copy_from_slice(&indices);
        let added = work.tensor_count();
        let whole = Field::new::<u8>("added", &[2, 3]);
        work.reshape(added, &whole)?.bytes_mut().copy_from_slice(b"abcdef");
        assert_eq!(work.tensor_count(), added + 1);
        for far in [added + 2, 1 << 32] {
            let refused = work.reshape(far, &whole).err().ok_or("there is none")?;
            assert_eq!((refused.status, refused.found), (Status::ARGUMENT, far as i64));
        }
        work.set_metadata(format!("batch {}", work.batch()).as_bytes())?;
        Ok(())
    }
}

#[test]
fn an_inline_data_set_shapes_whole_batches_and_is_retried() -> Checked {
    let mut loader = Loader::builder()
        .sampler(&Sampler::sequential(5)?)
        .dataset::<Whole>()
        .field::<i64>("index", &[])
        .batch_size(2)
        .retries(1)
        .retry_backoff_ns(Duration::ZERO)
        .slot_bytes(1 << 16)
        .build()?;
    let mut seen = Vec::new();
    for batch in loader.epoch(0)? {
        let batch = batch?;
        assert_eq!(batch.worker(), None);
        assert_eq!(batch.tensor(0)?.values::<i64>()?.to_vec(), batch.indices());
        assert_eq!((batch.tensor(1)?.shape(), batch.tensor(1)?.bytes().to_vec()), (&[2, 3][..], b"abcdef".to_vec()));
        seen.push(String::from_utf8(batch.metadata().to_vec())?);
    }
    assert_eq!(seen, ["batch 0", "batch 1", "batch 2"]);
    assert_eq!(loader.monitor()?.stats()?.retried, 1);
    drop(loader);
    assert_eq!(CLOSED.load(Ordering::Relaxed), 1, "the data set is dropped, once");
    Ok(())
}

/// Panics when it is dropped, with another one: how many follow is its number. As text it panics too.
#[derive(Debug)]
struct Bomb(u32);

impl Drop for Bomb {
    fn drop(&mut self) {
        if self.0 > 0 {
            std::panic::panic_any(Bomb(self.0 - 1));
        }
    }
}

impl fmt::Display for Bomb {
    fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
        std::panic::panic_any(Bomb(2))
    }
}

impl std::error::Error for Bomb {}

/// Index 0 is a panic, index 1 an error; so is the data set's own end.
struct Mined {
    _last: Bomb,
}

impl Dataset for Mined {
    fn open(_info: &WorkerInfo<'_>) -> Result<Self, Failure> {
        Ok(Mined { _last: Bomb(2) })
    }

    fn get(&mut self, row: &mut Row<'_>) -> Result<(), Failure> {
        match row.index() {
            0 => std::panic::panic_any(Bomb(2)),
            1 => Err(Bomb(2).into()),
            index => Ok(row.fill(0, index)?),
        }
    }
}

#[test]
fn nothing_unwinds_into_c_when_what_failed_is_dropped() -> Checked {
    let mut loader =
        Loader::builder().sampler(&Sampler::sequential(3)?).dataset::<Mined>().field::<i64>("index", &[]).build()?;
    let ends: Vec<_> = loader.epoch(0)?.map(|batch| batch.map(|b| b.number()).map_err(|e| e.status)).collect();
    assert_eq!(ends, [Err(Status::SAMPLE), Err(Status::SAMPLE), Ok(2)]);
    loader.close()?;
    Ok(())
}

/// Its own cause.
#[derive(Debug)]
struct Ring;

impl fmt::Display for Ring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a ring")
    }
}

impl std::error::Error for Ring {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(self)
    }
}

#[test]
fn a_workers_run_goes_on_after_what_panics_when_it_is_told_or_dropped() -> Checked {
    let mut loader =
        Loader::builder().sampler(&Sampler::sequential(4)?).field::<i64>("index", &[]).workers(1).threads().build()?;
    let handle = loader.handle();
    let thread = std::thread::spawn(move || {
        let mut worker = handle.local_worker().expect("a loader").expect("one is missing");
        worker.run(|work| match work.batch() {
            0 => std::panic::panic_any(Bomb(2)),
            1 => Err(Bomb(2).into()),
            2 => Err(Ring.into()),
            _ => Ok(work.write_at(0, 0, &[3i64])?),
        })
    });
    let ends: Vec<_> = loader.epoch(0)?.map(|batch| batch.map(|b| b.number()).map_err(|e| e.text.clone())).collect();
    let panicked = Err("panicked: with a value that is not a string".to_string());
    assert_eq!(ends, [panicked.clone(), panicked, Err("a ring".to_string()), Ok(3)]);
    drop(loader);
    thread.join().expect("no panic")?;
    Ok(())
}

struct Letters {
    left: u8,
}

impl Shard for Letters {
    fn open(_info: &WorkerInfo<'_>) -> Result<Self, Failure> {
        Ok(Letters { left: 0 })
    }

    fn restart(&mut self, epoch: i64) -> Result<(), Failure> {
        self.left = 5 + epoch as u8;
        Ok(())
    }

    fn next(&mut self, row: &mut Row<'_>) -> Result<bool, Failure> {
        if self.left == 0 {
            return Ok(false);
        }
        self.left -= 1;
        row.fill(0, b'a' + self.left)?;
        Ok(true)
    }
}

#[test]
fn a_shard_is_iterated_to_its_end() -> Checked {
    let mut loader = Loader::builder().shards::<Letters>().field::<u8>("letter", &[]).batch_size(2).build()?;
    for (epoch, letters) in [(0, "edcba"), (2, "gfedcba")] {
        let mut read = Vec::new();
        for batch in loader.epoch(epoch)? {
            read.extend(batch?.tensor(0)?.values::<u8>()?.iter());
        }
        assert_eq!(String::from_utf8(read)?, letters);
    }
    Ok(())
}

#[test]
fn threads_work_task_by_task_and_their_panics_are_failures() -> Checked {
    let mut loader = Loader::builder()
        .sampler(&Sampler::sequential(12)?)
        .field::<i64>("index", &[])
        .batch_size(3)
        .workers(2)
        .threads()
        .build()?;
    let (here, both) = std::sync::mpsc::channel();
    let threads: Vec<_> = (0..2)
        .map(|_| {
            let (handle, here) = (loader.handle(), here.clone());
            std::thread::spawn(move || {
                let mut worker = handle.local_worker().expect("a loader").expect("one is missing");
                here.send(()).expect("somebody waits");
                assert_eq!(worker.info().expect("an id").count(), 2);
                worker.run(|work| {
                    assert!(work.batch() != 2, "not batch two");
                    let indices = work.indices().to_vec();
                    Ok(work.write_at(0, 0, &indices)?)
                })
            })
        })
        .collect();
    // One of them could do all the work, and the other come when the loader has ended.
    both.iter().take(2).for_each(drop);
    for (i, batch) in loader.epoch(0)?.enumerate() {
        match batch {
            Ok(batch) => assert_eq!(batch.tensor(0)?.values::<i64>()?.to_vec(), batch.indices()),
            Err(error) => assert!(i == 2 && error.text.contains("panicked: not batch two"), "{}", error),
        }
    }
    drop(loader);
    for thread in threads {
        thread.join().expect("no panic")?;
    }
    Ok(())
}

#[test]
fn a_dropped_task_fails_its_batch_and_a_refused_commit_too() -> Checked {
    let mut loader =
        Loader::builder().sampler(&Sampler::sequential(3)?).field::<i64>("index", &[]).workers(1).threads().build()?;
    let handle = loader.handle();
    let thread = std::thread::spawn(move || {
        let mut worker = handle.local_worker().expect("a loader").expect("one is missing");
        worker.ready().expect("told");
        loop {
            match worker.next_task(None).expect("no error") {
                NextTask::Task(task) if task.batch() == 0 => drop(task),
                NextTask::Task(task) if task.batch() == 1 => {
                    assert_eq!(task.commit(99).unwrap_err().status, Status::ARGUMENT);
                }
                NextTask::Task(task) => task.fail(Some(0), false, "the third", "and why").expect("told"),
                NextTask::End => break,
                _ => {}
            }
        }
    });
    let errors: Vec<_> =
        loader.epoch(0)?.map(|batch| batch.err().map(|e| (e.text.clone(), e.detail.clone(), e.sample))).collect();
    let said: Vec<_> = errors.into_iter().flatten().collect();
    assert_eq!(said.len(), 3);
    for (text, _, _) in &said[..2] {
        assert!(text.contains("the worker dropped the task"), "{}", text);
    }
    assert!(said[2].0.contains("the third") && said[2].1 == "and why" && said[2].2 == Some(2), "{:?}", said[2]);
    drop(loader);
    thread.join().expect("no panic");
    Ok(())
}

#[test]
fn a_shard_that_hangs_in_its_thread_is_told_once_and_the_others_go_on() -> Checked {
    let mut loader = Loader::builder()
        .field::<i64>("from", &[])
        .workers(2)
        .threads()
        .iterable(true)
        .task_timeout_ns(Duration::from_secs(2))
        .build()?;
    let (end_of_hang, hangs) = std::sync::mpsc::channel::<()>();
    let mut hangs = Some(hangs);
    let threads: Vec<_> = (0..2)
        .map(|_| {
            let mut worker = loader.handle().local_worker().expect("a loader").expect("one is missing");
            let (id, mut left) = (worker.info().expect("an id").id().expect("a number"), 5);
            let hangs = if id == 0 { hangs.take() } else { None };
            std::thread::spawn(move || {
                worker.ready().expect("told");
                loop {
                    match worker.next_task(None).expect("no error") {
                        NextTask::Task(task) if left == 0 => task.exhausted().expect("told"),
                        NextTask::Task(mut task) => {
                            // Its second one: until the test lets go of the other end.
                            if let (Some(until), 4) = (&hangs, left) {
                                let _ = until.recv();
                            }
                            left -= 1;
                            task.write_at(0, 0, &[i64::from(id)]).expect("a number");
                            task.commit(1).expect("told");
                        }
                        NextTask::End => break,
                        _ => {}
                    }
                }
            })
        })
        .collect();
    let (mut made, mut told) = ([0; 2], Vec::new());
    for batch in loader.epoch(0)? {
        match batch {
            Ok(batch) => made[batch.tensor(0)?.values::<i64>()?.get(0).ok_or("one")? as usize] += 1,
            Err(error) => told.push(error),
        }
    }
    assert_eq!(made, [1, 5]);
    assert_eq!(told.len(), 1, "{:?}", told);
    assert!(told[0].status == Status::HUNG && told[0].worker == Some(0) && told[0].may_go_on(), "{:?}", told);
    drop(end_of_hang);
    drop(loader);
    threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
    Ok(())
}

#[test]
fn a_ring_carries_messages_in_place() -> Checked {
    let mut receiver = Receiver::new(&RingConfig { message_bytes: 4, capacity: 8, lanes: 1, ..RingConfig::default() })?;
    let offer = receiver.offer()?;
    let sender = std::thread::spawn(move || -> Result<(), feedlane::Error> {
        let mut sender = Sender::attach(offer, None)?;
        let mut sent = 0u32;
        while sent < 100 {
            let mut room = sender.reserve(3, None)?;
            let count = (room.len() as u32).min(100 - sent);
            for i in 0..count {
                room.cell_mut(i as usize).write_at(0, &(sent + i).to_ne_bytes());
            }
            room.commit(count)?;
            sent += count;
        }
        Ok(())
    });
    let mut got = Vec::new();
    let end = loop {
        match receiver.receive(5, None) {
            Ok(received) => {
                assert_eq!((received.lane(), received.iter().count()), (0, received.len()));
                for message in received.iter() {
                    got.push(u32::from_ne_bytes(message.to_vec().as_slice().try_into()?));
                }
            }
            Err(end) => break end,
        }
    };
    assert_eq!(end.status, Status::END);
    assert!(got.iter().copied().eq(0..100), "{:?}", got);
    sender.join().expect("no panic")?;
    assert_eq!(receiver.receive(0, None).err().ok_or("none wanted")?.status, Status::ARGUMENT);
    Ok(())
}

#[test]
fn a_ring_carries_copies_of_messages() -> Checked {
    let mut receiver = Receiver::new(&RingConfig { message_bytes: 3, capacity: 4, ..RingConfig::default() })?;
    let mut sender = Sender::attach(receiver.offer()?, None)?;
    assert_eq!(sender.message_bytes(), 3);
    assert!(receiver.arm()?.is_some(), "it is let in");
    assert_eq!(sender.send(b"abcdefghijklmnopqr", Some(Duration::ZERO))?, 4, "so many have room");
    assert_eq!(sender.send(b"mno", Some(Duration::ZERO)).unwrap_err().status, Status::TIMEOUT);
    let mut buffer = [0; 8];
    let copied = receiver.receive_into(&mut buffer, None)?;
    assert_eq!((copied, &buffer), (Copied { count: 2, lane: 0 }, b"abcdef\0\0"));
    assert_eq!(sender.send(b"mno", None)?, 1);
    drop(sender);
    let mut rest = Vec::new();
    let end = loop {
        match receiver.receive_into(&mut buffer[..3], None) {
            Ok(copied) => rest.extend_from_slice(&buffer[..3 * copied.count as usize]),
            Err(end) => break end,
        }
    };
    assert_eq!((end.status, rest.as_slice()), (Status::END, &b"ghijklmno"[..]));
    let none = receiver.receive_into(&mut buffer[..2], None).unwrap_err();
    assert_eq!((none.status, none.argument.as_str()), (Status::ARGUMENT, "want"));
    Ok(())
}
