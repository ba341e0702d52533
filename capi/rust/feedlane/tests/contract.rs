// SPDX-License-Identifier: Apache-2.0
//! What the packages of all languages show, each by a test of the name in docs/integrating.md. Here are all but `record`
//! (feedlane-sys) and `misuse` (compile_fail.rs). This program is its own worker, so it has its own main.
#![deny(unsafe_op_in_unsafe_fn)]
mod checks;
mod numbers;
mod plain;
mod segment;
mod trainers;

use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use feedlane::{Error, EventKind, Next, Status, WorkerState};

use checks::{checks, Check, Checked};
use numbers::{check_batch, loader_of, Numbers, LENGTH, ROWS};
use plain::{checksum_of, digest_of, line_of, program, second_in_next, Sums};
use segment::data_segment;
use trainers::{assert_gone, in_a_forked_child, loader, pids_of, run_trainer, send, Trainer, SIGINT, SIGKILL, TRAINER};

const SUMS_WORKER: &str = "--worker-of-examples-c";

fn checksum() -> Checked {
    let (trainer, worker) = (program("trainer")?, program("worker")?);
    let wanted = line_of(Command::new(&trainer).arg(&worker))?;
    assert!(wanted.starts_with("checksum: "), "{}", wanted);
    let here = std::env::current_exe()?;
    assert_eq!(line_of(Command::new(&trainer).arg(&here).arg(SUMS_WORKER))?, wanted, "with this worker");
    assert_eq!(checksum_of(&worker)?, wanted, "of this trainer");
    Ok(())
}

fn digest() -> Checked {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../examples/data");
    let wanted = line_of(Command::new(program("digest")?).arg(folder))?;
    for workers in [0, 2] {
        assert_eq!(digest_of(folder, workers)?, wanted, "{} workers", workers);
    }
    Ok(())
}

fn zero_copy() -> Checked {
    let mut loader = loader("")?;
    let batch = loader.epoch(0)?.next().ok_or("a batch")??;
    let x = batch.tensor(0)?;
    let (offset, segment) = data_segment(&x)?;
    assert_eq!(offset, x.offset(), "the address lies in the arena, at the place that the tensor names");
    let values = x.values::<f32>()?;
    assert_eq!(values.as_ptr().cast(), x.as_ptr());
    // SAFETY: the worker has made this batch, and nobody writes to it yet.
    assert_eq!(unsafe { values.as_slice() }.as_ptr(), values.as_ptr());
    assert_eq!(values.get(3), Some(f32::from_ne_bytes(x.bytes().slice(12..16).to_vec().as_slice().try_into()?)));
    assert_ne!(values.get(3), Some(1234.5));

    // Another process changes four bytes of the segment.
    let dd = Command::new("dd")
        .arg(format!("of={}", segment))
        .args(["bs=1", "conv=notrunc", "status=none", &format!("seek={}", offset + 12)])
        .stdin(Stdio::piped())
        .spawn();
    let mut dd = dd?;
    dd.stdin.take().ok_or("its input")?.write_all(&1234.5f32.to_ne_bytes())?;
    assert!(dd.wait()?.success());
    assert_eq!((values.get(3), values.to_vec()[3]), (Some(1234.5), 1234.5), "a change from outside is seen");
    Ok(())
}

fn error() -> Checked {
    for (config, text, detail) in [
        ("error", "invalid digit found in string", ""),
        ("caused", "eleven can't be read", "caused by: invalid digit found in string"),
        ("panic", "panicked: eleven is too much", ""),
        ("dtype", "dtype", ""),
        ("beyond", "field 2 is out of range: the sample has 2", ""),
    ] {
        let mut loader = loader(config)?;
        let results: Vec<Result<i64, Error>> = loader.epoch(0)?.map(|r| r.map(|batch| batch.number())).collect();
        assert_eq!(results.len(), 5, "{}", config);
        let error = results[1].as_ref().unwrap_err();
        assert_eq!(error.status, Status::SAMPLE);
        assert_eq!((error.batch, error.sample), (Some(1), Some(11)), "{}", error);
        assert!(error.worker.is_some() && error.text.contains(text), "{}: {}", config, error);
        assert_eq!(error.detail, detail, "{}", config);
        assert!(error.to_string().contains("sample 11"), "{}", error);
        assert!(results.iter().enumerate().all(|(i, r)| i == 1 || *r == Ok(i as i64)));
    }
    Ok(())
}

fn worker_killed() -> Checked {
    for workers in [1, 2] {
        // Far more batches than can be in flight: with all workers dead, somebody has to make the rest.
        let mut loader = loader_of(50 * ROWS as i64, |builder| builder.seed(5).workers(workers).keep_workers(true))?;
        let monitor = loader.monitor()?;
        let (mut killed, mut epoch) = (0, 0);
        // One that is left may be done with the epoch before the death is seen: the next one sees it.
        while epoch == 0 || monitor.stats()?.restarts < killed {
            let mut count = 0;
            for batch in loader.epoch(epoch)? {
                check_batch(&batch?, count)?;
                let first = killed == 0;
                for worker in monitor.workers()?.iter().filter(|w| first && w.state == WorkerState::Ready) {
                    send(worker.pid.ok_or("a pid")?, SIGKILL);
                    killed += 1;
                }
                count += 1;
            }
            assert_eq!(count, 50);
            epoch += 1;
        }
        assert!(killed >= 1);
        let mut kinds = Vec::new();
        while let Some(event) = loader.event()? {
            kinds.push(event.kind);
        }
        assert!(kinds.contains(&EventKind::WorkerDied) && kinds.contains(&EventKind::WorkerStarted), "{:?}", kinds);
    }
    Ok(())
}

fn trainer_killed() -> Checked {
    for how in ["busy", "idle"] {
        let mut trainer = Trainer::start(how)?;
        std::thread::sleep(Duration::from_millis(100)); // until they are what its name says
        send(trainer.process.id().into(), SIGKILL);
        assert_eq!(trainer.process.wait()?.signal(), Some(SIGKILL));
        assert_gone(&trainer.workers);
    }
    Ok(())
}

fn interrupt() -> Checked {
    for (how, signal, said) in [("interrupted", Some(SIGINT), ""), ("handled", None, "interrupted\n")] {
        let mut trainer = Trainer::start(how)?;
        std::thread::sleep(Duration::from_millis(200)); // until it waits
        send(trainer.process.id().into(), SIGINT);
        assert_eq!(trainer.rest()?, said, "{}", how);
        let end = trainer.process.wait()?;
        assert_eq!((end.signal(), end.code()), (signal, signal.map_or(Some(0), |_| None)), "{}", how);
        assert_gone(&trainer.workers);
    }
    Ok(())
}

fn kept() -> Checked {
    let mut loader = loader("")?;
    let handle = loader.handle();
    let mut epoch = loader_of(20 * ROWS as i64, |b| b.seed(5).workers(1).held(1))?;
    let mut batches = epoch.epoch(0)?;
    let mut held = Vec::new();
    let error = loop {
        match batches.next().ok_or("the epoch has more")? {
            Ok(batch) => held.push(batch),
            Err(error) => break error,
        }
    };
    assert_eq!(error.status, Status::SLOTS_HELD, "{}", error);
    assert_eq!(error.found as usize, held.len(), "{}", error);
    let count = held.len() as i64;
    held.pop().ok_or("one")?.release();
    assert_eq!(batches.next().ok_or("the next one")??.number(), count);
    drop(epoch);
    held.iter().enumerate().try_for_each(|(i, batch)| check_batch(batch, i as i64))?;

    let outliving = loader.epoch(0)?.take(2).collect::<Result<Vec<_>, _>>()?;
    loader.close()?;
    let ended = handle.monitor().err().ok_or("a handle doesn't keep its loader")?;
    assert_eq!((ended.status, ended.text.as_str()), (Status::STATE, "the loader has ended"));
    let threads: Vec<_> = outliving
        .into_iter()
        .enumerate()
        .map(|(i, batch)| std::thread::spawn(move || check_batch(&batch, i as i64).expect("as it was")))
        .collect();
    threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
    Ok(())
}

/// Values and slices can't be kept: compile-fail/values_after_release.rs, slice_after_release.rs, slice_beyond_the_loop.rs.
/// DLPack tensors can.
fn view() -> Checked {
    let mut loader = loader("")?;
    let batch = loader.epoch(0)?.next().ok_or("a batch")??;
    let (address, labels) = (batch.tensor(0)?.as_ptr(), batch.tensor(1)?.values::<i64>()?.to_vec());
    assert_eq!(loader.monitor()?.stats()?.slots_held, 1);
    let mut exported = batch.into_dlpack()?;
    assert_eq!(loader.monitor()?.stats()?.slots_held, 1, "the batch object is gone, its memory is not");
    // SAFETY: the library's struct, which this program holds.
    let tensor = unsafe { &(*exported[0].as_ptr()).dl_tensor };
    assert_eq!((tensor.data as *const u8, tensor.ndim, tensor.device.device_type), (address, 2, 1));
    assert_eq!((tensor.dtype.code, tensor.dtype.bits), (2, 32));
    let label = exported.pop().ok_or("two")?.into_raw();
    drop(exported);
    assert_eq!(loader.monitor()?.stats()?.slots_held, 1);
    loader.close()?;
    // SAFETY: as many labels, which are there until the deleter is called.
    let there = unsafe { std::slice::from_raw_parts((*label).dl_tensor.data as *const i64, labels.len()) };
    assert_eq!(there, labels, "beyond the loader's end too");
    let label = label as usize;
    let deleted = std::thread::spawn(move || {
        let label = label as *mut feedlane::sys::DLManagedTensorVersioned;
        // SAFETY: the last reference, whose deleter is called this once, on any thread.
        unsafe { (*label).deleter.expect("a deleter")(label) };
    });
    deleted.join().expect("no panic");
    Ok(())
}

/// No safe code gets two threads into `next`: compile-fail/loader_in_two_threads.rs. The C interface refuses the second.
fn busy() -> Checked {
    assert_eq!(second_in_next()?, Status::BUSY);
    let mut loader = loader("")?;
    let mut epoch = loader.epoch(0)?;
    let batch = epoch.next().ok_or("a batch")??;
    std::thread::spawn(move || drop(batch)).join().expect("no panic");
    assert_eq!(epoch.loader().monitor()?.stats()?.slots_held, 0, "another thread gave it back");
    assert_eq!(epoch.count(), 4);
    Ok(())
}

fn close() -> Checked {
    let mut stuck = loader("stuck")?;
    let handle = stuck.handle();
    let mut epoch = stuck.epoch(0)?;
    drop(epoch.next().ok_or("a batch")??);
    let closer = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(50));
        handle.close()
    });
    let end = epoch.next().ok_or("an item")?.err().ok_or("it is stuck")?;
    assert_eq!(end.status, Status::STATE, "{}", end);
    assert!(epoch.next().is_none());
    closer.join().expect("no panic")?;
    drop(stuck);

    let (give, take) = std::sync::mpsc::channel::<feedlane::Handle>();
    let reader = std::thread::spawn(move || {
        for handle in take {
            let end = loop {
                if let Err(end) = handle.monitor().and_then(|monitor| monitor.workers()) {
                    break end;
                }
            };
            assert_eq!(end.status, Status::STATE, "{}", end);
        }
    });
    for round in 0..20 {
        let mut loader = loader_of(LENGTH, |builder| builder.dataset::<Numbers>())?;
        give.send(loader.handle())?;
        assert_eq!(loader.epoch(0)?.count(), 5);
        if round % 2 == 0 {
            loader.close()?;
        }
    }
    drop(give);
    reader.join().expect("no panic, no crash");
    Ok(())
}

/// What a finalizer is elsewhere is `drop` here.
fn finalizer() -> Checked {
    let mut loader = loader("stuck")?;
    drop(loader.epoch(0)?.next().ok_or("a batch")??);
    let workers = pids_of(&loader)?;
    let start = Instant::now();
    drop(loader);
    assert!(start.elapsed() < Duration::from_secs(2), "{:?}: the stop timeout is 5 s", start.elapsed());
    assert_gone(&workers);
    Ok(())
}

fn exits() -> Checked {
    for (how, code) in [("return", 0), ("panic", 101), ("exit", 0), ("_exit", 0)] {
        let mut trainer = Trainer::start(how)?;
        assert_eq!(trainer.rest()?, "", "{}", how);
        assert_eq!(trainer.process.wait()?.code(), Some(code), "{}", how);
        // The memory has no name: it is gone with the last process that has it.
        assert_gone(&trainer.workers);
    }
    Ok(())
}

fn fork() -> Checked {
    let mut loader = loader("")?;
    let handle = loader.handle();
    let first = loader.epoch(0)?.next().ok_or("a batch")??;
    let refused = in_a_forked_child(|| {
        let ends = [
            handle.monitor().err(),
            handle.clone().interrupt().err(),
            loader.next(Some(Duration::ZERO)).err(),
            loader.begin(1).err(),
        ];
        ends.iter().filter(|end| end.as_ref().map(|e| e.status) == Some(Status::FORKED)).count() as i32
    });
    assert_eq!(refused, 4, "calls of the child that say E_FORKED");
    let dropped = in_a_forked_child(|| {
        // SAFETY: the child's copies, which are forgotten here and nowhere else: it ends without them.
        drop(unsafe { (std::ptr::read(&first), std::ptr::read(&handle), std::ptr::read(&loader)) });
        7
    });
    assert_eq!(dropped, 7);
    check_batch(&first, 0)?;
    drop(first);
    let mut numbers = Vec::new();
    while let Next::Batch(batch) = loader.next(None)? {
        check_batch(&batch, batch.number())?;
        numbers.push(batch.number());
    }
    assert_eq!((numbers, handle.monitor()?.stats()?.restarts), (vec![1, 2, 3, 4], 0));
    Ok(())
}

const CHECKS: &[Check] = checks! {
    checksum digest zero_copy error worker_killed trainer_killed interrupt kept view busy close finalizer exits fork
};

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if words.first().map_or(false, |word| word == SUMS_WORKER) {
        return feedlane::worker_main::<Sums>().unwrap_or(ExitCode::FAILURE);
    }
    let code = if std::env::var_os(plain::DIGITS).is_some() {
        feedlane::worker_main::<plain::Digits>()
    } else {
        feedlane::worker_main::<Numbers>()
    };
    if let Some(code) = code {
        return code;
    }
    if let [first, how] = words.as_slice() {
        if first == TRAINER {
            return run_trainer(how).expect("a trainer");
        }
    }
    checks::run(CHECKS)
}
