// SPDX-License-Identifier: Apache-2.0
//! What a worker may tell besides its rows, and how its waits end: with threads for workers.
use std::sync::mpsc;
use std::time::Duration;

use feedlane::{
    Ahead, Dataset, EventKind, Failure, Handle, Loader, Next, NextTask, Pool, PoolOptions, Receiver, RingConfig, Row,
    Sampler, Sender, Status, Transient, Work, Worker, WorkerInfo,
};

type Checked = Result<(), Failure>;

/// Sample 1 of each batch is left out, the last one is another.
struct Picky;

impl Dataset for Picky {
    const WHOLE_BATCHES: bool = true;

    fn open(_info: &WorkerInfo<'_>) -> Result<Self, Failure> {
        Ok(Picky)
    }

    fn get(&mut self, _row: &mut Row<'_>) -> Result<(), Failure> {
        unreachable!("fetch makes whole batches")
    }

    fn fetch(&mut self, work: &mut Work<'_>) -> Result<(), Failure> {
        let indices = work.indices().to_vec();
        assert_eq!(work.sample_failed(1, "unreadable", |_, _, _| None)?, None);
        let torn = || Transient("torn".into());
        let other = |failed, _, tries| if tries == 0 { Some(failed + 70) } else { panic!("asked twice") };
        let again = work.sample_failed(3, torn(), other)?.expect("a retry");
        assert_eq!((again.index, again.wait.as_millis()), (indices[3], 1));
        let again = work.sample_failed(3, torn(), other)?.expect("a substitute");
        assert_eq!((again.index, again.wait.as_millis()), (indices[3] + 70, 0));
        work.set_rows(3)?;
        let made = [indices[0], indices[2], again.index];
        (0..3).try_for_each(|row| work.write_at(0, row, &made[row..][..1]))?;
        Ok(())
    }
}

#[test]
fn a_data_set_that_runs_on_a_thread_says_what_became_of_its_samples() -> Checked {
    let mut loader = Loader::builder()
        .sampler(&Sampler::sequential(8)?)
        .dataset::<Picky>()
        .field::<i64>("index", &[])
        .batch_size(4)
        .substitute(true)
        .retries(1)
        .retry_backoff_ns(Duration::from_millis(1))
        .skip_budget(-1)
        .workers(1)
        .threads()
        .build()?;
    let handle = loader.handle();
    let thread = std::thread::spawn(move || handle.run_local());
    for (i, batch) in loader.epoch(0)?.enumerate() {
        let (batch, first) = (batch?, 4 * i as i64);
        assert_eq!(batch.indices(), [first, first + 2, first + 73]);
        assert_eq!(batch.skipped(), [first + 1]);
        assert_eq!(batch.tensor(0)?.values::<i64>()?.to_vec(), batch.indices());
    }
    let stats = loader.monitor()?.stats()?;
    assert_eq!((stats.skipped, stats.substituted), (2, 2));
    let mut told = Vec::new();
    while let Some(event) = loader.event()? {
        told.push((event.kind, event.what.text.clone()));
    }
    assert!(told.iter().any(|(kind, text)| *kind == EventKind::SampleSkipped && text.contains("unreadable")));
    loader.close()?;
    assert!(thread.join().expect("no panic")?);
    Ok(())
}

/// Makes each batch in scratch memory. Batch 1 is one that cannot be.
struct Scratched;

impl Dataset for Scratched {
    const WHOLE_BATCHES: bool = true;

    fn open(_info: &WorkerInfo<'_>) -> Result<Self, Failure> {
        Ok(Scratched)
    }

    fn get(&mut self, _row: &mut Row<'_>) -> Result<(), Failure> {
        unreachable!("fetch makes whole batches")
    }

    fn fetch(&mut self, work: &mut Work<'_>) -> Result<(), Failure> {
        if work.batch() == 1 {
            return Ok(work.set_rows(5)?);
        }
        let count = work.count();
        work.with_scratch(count, |work, made: &mut [i64]| {
            assert!(made.iter().all(|value| *value == 0));
            made.copy_from_slice(work.indices());
            let bytes = work.with_scratch(3, |_, bytes: &mut [u8]| bytes.len());
            assert_eq!(bytes, Some(3));
            work.write_at(0, 0, made)
        })
        .ok_or("too little memory")??;
        assert!(work.with_scratch(usize::MAX / 8, |_, _: &mut [i64]| ()).is_none());
        Ok(())
    }
}

#[test]
fn batches_are_made_in_scratch_memory_and_too_many_rows_are_a_failure() -> Checked {
    for workers in 0..2 {
        let builder = Loader::builder().dataset::<Scratched>().field::<i64>("index", &[]).batch_size(4);
        let builder = if workers == 0 { builder } else { builder.workers(workers).threads() };
        let mut loader = builder.sampler(&Sampler::sequential(12)?).build()?;
        let handle = loader.handle();
        let thread = (workers == 1).then(|| std::thread::spawn(move || handle.run_local()));
        for (i, batch) in loader.epoch(0)?.enumerate() {
            match batch {
                Ok(batch) => assert_eq!(batch.tensor(0)?.values::<i64>()?.to_vec(), batch.indices()),
                Err(error) => assert!(i == 1 && error.text.contains("fetch made 5 rows"), "{}", error),
            }
        }
        loader.close()?;
        thread.map_or(Ok(true), |thread| thread.join().expect("no panic"))?;
    }
    Ok(())
}

/// Notes what it sees ahead, and says whether a batch was among it.
struct Watching {
    announced: Vec<Ahead>,
}

impl Dataset for Watching {
    const WHOLE_BATCHES: bool = true;

    fn open(_info: &WorkerInfo<'_>) -> Result<Self, Failure> {
        Ok(Watching { announced: Vec::new() })
    }

    fn get(&mut self, _row: &mut Row<'_>) -> Result<(), Failure> {
        unreachable!("fetch makes whole batches")
    }

    fn fetch(&mut self, work: &mut Work<'_>) -> Result<(), Failure> {
        let seen = self.announced.iter().find(|a| a.id == work.id()).cloned();
        if let Some(a) = &seen {
            assert_eq!((a.epoch, a.batch, &a.indices[..]), (work.epoch(), work.batch(), work.indices()));
        }
        let mut newest = self.announced.last().map_or(0, |a| a.id);
        while let Some(next) = work.ahead(newest)? {
            assert!(next.id > newest && next.id > work.id());
            newest = next.id;
            self.announced.push(next);
        }
        let values = vec![i64::from(seen.is_some()); work.count()];
        Ok(work.write_at(0, 0, &values)?)
    }
}

#[test]
fn a_data_set_sees_the_tasks_behind_the_one_in_hand() -> Checked {
    let mut loader = Loader::builder()
        .sampler(&Sampler::sequential(80)?)
        .dataset::<Watching>()
        .field::<i64>("seen", &[])
        .batch_size(2)
        .prefetch_factor(5)
        .workers(1)
        .threads()
        .build()?;
    let handle = loader.handle();
    let thread = std::thread::spawn(move || handle.run_local());
    let mut seen = 0;
    for batch in loader.epoch(0)? {
        seen += batch?.tensor(0)?.values::<i64>()?.to_vec()[0];
    }
    assert!(seen >= 4, "{} batches", seen);
    loader.close()?;
    assert!(thread.join().expect("no panic")?);
    Ok(())
}

#[test]
fn placement_that_cannot_be_is_refused_by_name() -> Checked {
    let order = Sampler::sequential(8)?;
    let builder = || Loader::builder().sampler(&order).field::<i64>("index", &[]).workers(1);
    for (refused, argument) in [
        (builder().worker_cpus("8000").build(), "config.worker_cpus"),
        (builder().threads().worker_cpus("0").build(), "config.worker_cpus"),
        (builder().memory_nodes("first").build(), "config.memory_nodes"),
        (builder().worker_cpus("0\0").build(), "worker_cpus"),
        (builder().prefetch_factor(feedlane::PREFETCH_AUTO).build(), "config.arena_bytes"),
    ] {
        let error = refused.err().expect("refused");
        assert_eq!((error.status, error.argument.as_str()), (Status::ARGUMENT, argument));
    }
    let loader = builder().threads().prefetch_factor(feedlane::PREFETCH_AUTO).arena_bytes(1 << 20).build()?;
    assert_eq!(loader.monitor()?.info()?.prefetch_factor, 2);
    Ok(())
}

fn of_threads(length: i64) -> Result<Loader, Failure> {
    let order = Sampler::sequential(length)?;
    Ok(Loader::builder().sampler(&order).field::<i64>("index", &[]).workers(1).threads().build()?)
}

fn worker_of(handle: &Handle) -> Result<Worker, Failure> {
    Ok(handle.local_worker()?.ok_or("one is missing")?)
}

#[test]
fn a_worker_waits_in_a_loop_of_its_own() -> Checked {
    let mut loader = of_threads(3)?;
    let handle = loader.handle();
    let thread = std::thread::spawn(move || {
        let mut worker = worker_of(&handle).expect("a worker");
        worker.ready().expect("told");
        let mut made = 0;
        loop {
            if let Some(fd) = worker.arm().expect("armed") {
                poll(fd);
            }
            match worker.next_task(Some(Duration::ZERO)).expect("no error") {
                NextTask::Task(mut task) => {
                    let written = task.with_scratch(1, |work, made: &mut [i64]| {
                        made[0] = work.indices()[0];
                        work.write_at(0, 0, made)
                    });
                    written.expect("memory").expect("a row");
                    task.commit(1).expect("told");
                    made += 1;
                }
                NextTask::End => return made,
                NextTask::Timeout | NextTask::Interrupted => {}
            }
        }
    });
    for (i, batch) in loader.epoch(0)?.enumerate() {
        assert_eq!(batch?.tensor(0)?.values::<i64>()?.get(0), Some(i as i64));
    }
    loader.close()?;
    assert_eq!(thread.join().expect("no panic"), 3);
    Ok(())
}

/// Each outcome of a task that its worker does not end otherwise is a failure of its batch.
#[test]
fn a_task_that_is_not_committed_fails_its_batch() -> Checked {
    let mut loader = of_threads(3)?;
    let handle = loader.handle();
    let thread = std::thread::spawn(move || {
        let mut worker = worker_of(&handle).expect("a worker");
        worker.ready().expect("told");
        let mut refused = Vec::new();
        loop {
            match worker.next_task(None).expect("no error") {
                NextTask::Task(task) => {
                    let end = match task.batch() {
                        0 => task.commit(usize::MAX), // FEEDLANE_EXHAUSTED
                        1 => task.commit(2),
                        _ => task.exhausted(), // of a map-style loader
                    };
                    refused.push(end.unwrap_err());
                }
                NextTask::End => return refused,
                NextTask::Timeout | NextTask::Interrupted => {}
            }
        }
    });
    for batch in loader.epoch(0)? {
        let error = batch.err().ok_or("no batch was made")?;
        assert!(error.status == Status::SAMPLE && error.text.contains("the worker dropped the task"), "{}", error);
    }
    loader.close()?;
    let refused = thread.join().expect("no panic");
    let found: Vec<_> = refused.iter().map(|error| (error.status, error.argument.as_str(), error.needed)).collect();
    assert_eq!(found, [(Status::ARGUMENT, "rows", 1), (Status::ARGUMENT, "rows", 1), (Status::STATE, "", 0)]);
    Ok(())
}

fn poll(fd: std::os::unix::io::BorrowedFd<'_>) {
    #[repr(C)]
    struct PollFd {
        fd: i32,
        events: i16,
        revents: i16,
    }
    extern "C" {
        fn poll(fds: *mut PollFd, count: std::os::raw::c_ulong, timeout_ms: i32) -> i32;
    }
    let mut one = PollFd { fd: std::os::unix::io::AsRawFd::as_raw_fd(&fd), events: 1, revents: 0 };
    // SAFETY: one struct of ours.
    assert_eq!(unsafe { poll(&mut one, 1, 20_000) }, 1, "it is woken");
}

#[test]
fn shards_that_go_task_by_task_save_their_place() -> Checked {
    let builder = || Loader::builder().field::<i64>("i", &[]).iterable(true).workers(1).threads().seed(1);
    let run = |loader: &Loader| {
        let handle = loader.handle();
        std::thread::spawn(move || {
            let mut worker = worker_of(&handle).expect("a worker");
            worker.ready().expect("told");
            let mut next = 0i64;
            loop {
                match worker.next_task(None).expect("no error") {
                    NextTask::Task(mut task) => {
                        if task.is_first() {
                            next = task.state().try_into().map_or(0, i64::from_le_bytes);
                        }
                        task.write_at(0, 0, &[next]).expect("a row");
                        next += 10;
                        task.set_state(&next.to_le_bytes()).expect("room");
                        task.commit(1).expect("told");
                    }
                    NextTask::End => return,
                    _ => {}
                }
            }
        })
    };
    let mut loader = builder().build()?;
    let thread = run(&loader);
    let mut epoch = loader.epoch(0)?;
    let mut last = None;
    for wanted in [0, 10, 20] {
        let batch = epoch.next().ok_or("endless")??;
        assert_eq!(batch.tensor(0)?.values::<i64>()?.get(0), Some(wanted));
        last = Some(batch);
    }
    let state = epoch.loader().state(last.as_ref())?;
    drop(last);
    loader.close()?;
    thread.join().expect("no panic");

    let mut loader = builder().state(state).build()?;
    let thread = run(&loader);
    assert_eq!(loader.epoch(0)?.next().ok_or("endless")??.tensor(0)?.values::<i64>()?.get(0), Some(30));
    loader.close()?;
    thread.join().expect("no panic");
    Ok(())
}

#[test]
fn waits_end_from_another_thread() -> Checked {
    let mut loader = of_threads(3)?;
    let handle = loader.handle();
    let (tell, told) = mpsc::channel();
    let thread = std::thread::spawn(move || {
        let mut worker = worker_of(&handle).expect("a worker");
        worker.ready().expect("told");
        tell.send(worker.closer()).expect("somebody waits");
        worker.next_task(None).err().map(|error| error.status)
    });
    told.recv()?.close()?;
    assert_eq!(thread.join().expect("no panic"), Some(Status::STATE), "a worker's, before any epoch");

    let handle = loader.handle();
    loader.begin(0)?;
    let closing = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(20));
        handle.close().and_then(|()| handle.monitor().map(drop))
    });
    let end = loader.next(None).err().ok_or("it was closed")?;
    assert_eq!(end.status, Status::STATE, "{}", end);
    assert_eq!(closing.join().expect("no panic").unwrap_err().text, "the loader has ended");

    let mut receiver = Receiver::new(&RingConfig { message_bytes: 8, capacity: 2, ..RingConfig::default() })?;
    let mut sender = Sender::attach(receiver.offer()?, None)?;
    let (ends, wait) = ((receiver.closer(), sender.closer()), Duration::from_millis(20));
    let thread = std::thread::spawn(move || {
        std::thread::sleep(wait);
        ends.0.close().and_then(|()| ends.1.close())
    });
    assert_eq!(receiver.receive(1, None).err().ok_or("it was closed")?.status, Status::STATE);
    thread.join().expect("no panic")?;
    assert_eq!(sender.reserve(1, None).err().ok_or("it was closed")?.status, Status::STATE);
    Ok(())
}

#[test]
fn a_closer_does_not_keep_what_it_closes() -> Checked {
    let config = RingConfig { message_bytes: 8, capacity: 2, ..RingConfig::default() };
    let mut receiver = Receiver::new(&config)?;
    let mut sender = Sender::attach(receiver.offer()?, None)?;
    assert!(receiver.arm()?.is_some(), "it is let in");
    let closer = receiver.closer();
    drop(receiver);
    assert_eq!(sender.send(&[1; 24], None)?, 2, "as many as have room");
    assert_eq!(sender.send(&[1; 8], None).unwrap_err().status, Status::PEER_DEAD);
    closer.close()?;

    for _ in 0..50 {
        let loader = of_threads(1)?;
        let worker = worker_of(&loader.handle())?;
        let closer = worker.closer();
        let thread = std::thread::spawn(move || closer.close());
        drop(worker); // before the close, after it, or during it
        thread.join().expect("no panic")?;
    }
    Ok(())
}

#[test]
fn memory_of_ones_own_is_registered_and_let_go() -> Checked {
    let pool = Pool::new(&PoolOptions { backend: "none".into(), ..PoolOptions::default() })?;
    let mut memory = vec![0u16; 5000];
    let mut registered = pool.register(&mut memory)?;
    assert!(pool.stats()?.registered_bytes >= 10_000);
    registered[7] = 9;
    let (mut device, none) = ([0u16; 8], std::ptr::null_mut());
    // SAFETY: "none" copies at once, to memory of this function with room for eight.
    unsafe { pool.copy(device.as_mut_ptr().cast(), &registered[..8], none)? };
    assert_eq!(device, [0, 0, 0, 0, 0, 0, 0, 9]);
    drop(registered);
    assert_eq!((pool.stats()?.registered_bytes, memory[7]), (0, 9));
    Ok(())
}

#[test]
fn a_loader_that_is_dropped_does_not_wait() -> Checked {
    let mut loader = of_threads(1)?;
    loader.begin(0)?;
    assert!(matches!(loader.next(Some(Duration::ZERO))?, Next::Timeout), "nobody works");
    let (handle, monitor) = (loader.handle(), loader.monitor()?);
    drop(loader);
    assert_eq!(handle.monitor().err().ok_or("it has ended")?.status, Status::STATE);
    drop(handle);
    assert_eq!(monitor.workers()?.len(), 1, "a monitor keeps the memory");
    Ok(())
}
