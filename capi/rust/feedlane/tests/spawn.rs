// SPDX-License-Identifier: Apache-2.0
//! What takes worker processes. This program is its own worker, so it has its own main.
mod checks;
mod numbers;
mod segment;

use std::io::Write;
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use feedlane::{Error, EventKind, Loader, Monitor, Next, Sampler, Status, WorkerState};

use checks::{checks, Check, Checked};
use numbers::{check_batch, loader_of, Numbers, LENGTH, ROWS};
use segment::data_segment;

fn loader(config: &str, workers: i32, held: i32) -> Result<Loader, Error> {
    loader_of_length(LENGTH, config, workers, held)
}

fn loader_of_length(length: i64, config: &str, workers: i32, held: i32) -> Result<Loader, Error> {
    loader_of(length, |builder| builder.seed(5).workers(workers).held(held).keep_workers(true).worker_config(config))
}

fn batches_come_in_order_from_spawned_workers() -> Checked {
    let mut loader = loader("", 2, 1)?;
    assert_eq!(loader.length()?, Some(5));
    for epoch in 0..3 {
        let mut count = 0;
        for batch in loader.epoch(epoch)? {
            let batch = batch?;
            assert!(batch.worker().is_some());
            check_batch(&batch, count)?;
            count += 1;
        }
        assert_eq!(count, 5);
    }
    assert_eq!(loader.stats()?.samples, 3 * LENGTH as u64);
    assert_eq!(loader.workers()?.iter().map(|w| w.samples).sum::<u64>(), 3 * LENGTH as u64);
    loader.close()?;
    Ok(())
}

fn tensors_are_the_shared_memory_itself() -> Checked {
    let mut loader = loader("", 1, 1)?;
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

fn a_trainer_may_write_to_its_batch() -> Checked {
    let mut loader = loader("", 1, 1)?;
    let mut batch = loader.epoch(0)?.next().ok_or("a batch")??;
    let before = batch.tensor(0)?.values::<f32>()?.to_vec();
    batch.tensor_mut(0)?.values_mut::<f32>()?.map_in_place(|x| -x - 1.0);
    batch.tensor_mut(1)?.bytes_mut().fill(0);
    assert!(batch.tensor(0)?.values::<f32>()?.iter().eq(before.iter().map(|x| -x - 1.0)));
    assert!(batch.tensor(1)?.values::<i64>()?.iter().all(|x| x == 0));
    let mut first = batch.tensor_mut(1)?;
    let mut label = first.values_mut::<i64>()?;
    label.slice_mut(2..4).copy_from_slice(&[8, 9]);
    assert_eq!((label.copy_from_iter(5..7), label.get(1), label.get(3)), (2, Some(6), Some(9)));
    Ok(())
}

fn a_wrong_dtype_is_an_error() -> Checked {
    let mut loader = loader("", 1, 1)?;
    let mut batch = loader.epoch(0)?.next().ok_or("a batch")??;
    for error in [
        batch.tensor(0)?.values::<i64>().unwrap_err(),
        batch.tensor(1)?.values::<u64>().unwrap_err(),
        batch.tensor_mut(1)?.values_mut::<f64>().unwrap_err(),
    ] {
        assert_eq!((error.status, error.argument.as_str()), (Status::ARGUMENT, "dtype"), "{}", error);
    }
    assert_eq!(batch.tensor(0)?.values::<i64>().unwrap_err().text, "the tensor's elements are float32, not int64");
    let beyond = batch.tensor(2).err().ok_or("there are two")?;
    assert_eq!((beyond.argument.as_str(), beyond.found, beyond.needed), ("tensor", 2, 2));
    assert_eq!(batch.field("y").err().ok_or("no y")?.argument, "name");
    Ok(())
}

fn failures_name_their_sample_and_the_next_batch_comes() -> Checked {
    for (config, text) in [
        ("error", "invalid digit found in string"),
        ("panic", "panicked: eleven is too much"),
        ("dtype", "dtype"),
        ("beyond", "field is 2, the sample has 2"),
    ] {
        let mut loader = loader(config, 1, 1)?;
        let results: Vec<Result<i64, Error>> = loader.epoch(0)?.map(|r| r.map(|batch| batch.number())).collect();
        assert_eq!(results.len(), 5, "{}", config);
        let error = results[1].as_ref().unwrap_err();
        assert_eq!(error.status, Status::SAMPLE);
        assert_eq!((error.batch, error.sample, error.worker), (Some(1), Some(11), Some(0)), "{}", error);
        assert!(error.text.contains(text), "{}: {}", config, error);
        assert!(error.to_string().contains("sample 11"), "{}", error);
        assert!(results.iter().enumerate().all(|(i, r)| i == 1 || *r == Ok(i as i64)));
    }
    Ok(())
}

fn a_data_set_that_cannot_be_opened_is_told_and_ends_the_epoch() -> Checked {
    let mut loader = loader("closed", 2, 1)?;
    let mut epoch = loader.epoch(0)?;
    let error = epoch.next().ok_or("an item")?.unwrap_err();
    assert_eq!(error.status, Status::INIT);
    assert!(error.text.contains("the numbers are closed"), "{}", error);
    assert!(epoch.next().is_none(), "not for ever");
    Ok(())
}

extern "C" {
    fn kill(pid: i32, signal: i32) -> i32;
}

fn a_killed_worker_is_replaced_and_nothing_is_lost() -> Checked {
    for workers in [1, 2] {
        // Far more batches than can be in flight: with all workers dead, somebody has to make the rest.
        let mut loader = loader_of_length(50 * ROWS as i64, "", workers, 1)?;
        let handle = loader.handle();
        let (mut killed, mut epoch) = (0, 0);
        // One that is left may be done with the epoch before the death is seen: the next one sees it.
        while epoch == 0 || handle.stats()?.restarts < killed {
            let mut count = 0;
            for batch in loader.epoch(epoch)? {
                check_batch(&batch?, count)?;
                let first = killed == 0;
                for worker in handle.workers()?.iter().filter(|w| first && w.state == WorkerState::Ready) {
                    // SAFETY: numbers only; a child of this process that has not been waited for.
                    assert_eq!(unsafe { kill(worker.pid.ok_or("a pid")? as i32, 9) }, 0);
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

fn batches_outlive_their_loader_and_go_on_other_threads() -> Checked {
    let mut loader = loader("", 2, 3)?;
    let held = loader.epoch(0)?.take(3).collect::<Result<Vec<_>, _>>()?;
    let handle = loader.handle();
    drop(loader);
    assert_eq!(handle.stats().unwrap_err().status, Status::STATE, "a handle doesn't keep its loader");
    assert_eq!(handle.interrupt().unwrap_err().status, Status::STATE);
    let threads: Vec<_> = held
        .into_iter()
        .enumerate()
        .map(|(i, batch)| std::thread::spawn(move || check_batch(&batch, i as i64).expect("as it was")))
        .collect();
    threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
    Ok(())
}

fn slots_held_is_an_error_that_ends_when_one_is_released() -> Checked {
    let mut loader = loader("", 1, 1)?;
    let mut epoch = loader.epoch(0)?;
    let mut held = Vec::new();
    let error = loop {
        match epoch.next().ok_or("the epoch has more")? {
            Ok(batch) => held.push(batch),
            Err(error) => break error,
        }
    };
    assert_eq!(error.status, Status::SLOTS_HELD, "{}", error);
    assert_eq!(error.found as usize, held.len(), "{}", error);
    let count = held.len() as i64;
    held.pop().ok_or("one")?.release();
    assert_eq!(epoch.next().ok_or("the next one")??.number(), count);
    Ok(())
}

fn another_thread_interrupts() -> Checked {
    let mut loader = loader("", 1, 1)?;
    let handle = loader.handle();
    let _ = loader.epoch(0)?.next().ok_or("a batch")??;
    std::thread::spawn(move || handle.interrupt()).join().expect("no panic")?;
    let interrupted = loop {
        match loader.next(None)? {
            Next::Interrupted => break true,
            Next::End => break false,
            _ => {}
        }
    };
    assert!(interrupted, "the interrupt holds until a wait sees it");
    Ok(())
}

fn dlpack_shares_the_memory_and_releases_it_at_last() -> Checked {
    let mut loader = loader("", 1, 1)?;
    let batch = loader.epoch(0)?.next().ok_or("a batch")??;
    let (address, held) = (batch.tensor(0)?.as_ptr(), loader.stats()?.slots_held);
    assert_eq!(held, 1);
    let mut exported = batch.into_dlpack()?;
    assert_eq!(loader.stats()?.slots_held, 1, "the batch object is gone, its memory is not");
    // SAFETY: the library's struct, which this program holds.
    let tensor = unsafe { &(*exported[0].as_ptr()).dl_tensor };
    assert_eq!((tensor.data.cast_const_u8(), tensor.ndim, tensor.device.device_type), (address, 2, 1));
    assert_eq!((tensor.dtype.code, tensor.dtype.bits), (2, 32));
    let label = exported.pop().ok_or("two")?.into_raw();
    drop(exported);
    assert_eq!(loader.stats()?.slots_held, 1);
    std::thread::scope(|scope| {
        let label = label as usize;
        scope.spawn(move || {
            let label = label as *mut feedlane::sys::DLManagedTensorVersioned;
            // SAFETY: the last reference, whose deleter is called this once.
            unsafe { (*label).deleter.expect("a deleter")(label) };
        });
    });
    assert_eq!(loader.stats()?.slots_held, 0, "the last one gave it back");

    let batch = loop {
        if let Next::Batch(batch) = loader.next(None)? {
            break batch;
        }
    };
    assert_eq!(batch.into_dlpack_legacy()?.len(), 2);
    assert_eq!(loader.stats()?.slots_held, 0);
    Ok(())
}

trait CastConst {
    fn cast_const_u8(self) -> *const u8;
}

impl CastConst for *mut std::ffi::c_void {
    fn cast_const_u8(self) -> *const u8 {
        self as *const u8
    }
}

fn a_saved_run_goes_on_with_the_remaining_batches() -> Checked {
    let state = {
        let mut loader = loader("", 2, 1)?;
        let mut epoch = loader.epoch(3)?;
        let _ = epoch.next().ok_or("a batch")??;
        let second = epoch.next().ok_or("a batch")??;
        epoch.loader().state(Some(&second))?
    };
    let info = feedlane::StateInfo::read(&state)?;
    assert_eq!((info.epoch, info.batch, info.samples, info.base_seed), (3, 2, 16, 5));
    assert_eq!(feedlane::StateInfo::read(&state[1..]).unwrap_err().status, Status::CORRUPT);
    let mut resumed = loader_of(LENGTH, |builder| builder.workers(1).state(state))?;
    for (i, batch) in resumed.epoch(3)?.enumerate() {
        check_batch(&batch?, i as i64 + 2)?;
    }
    assert_eq!(resumed.stats()?.batches, 3);
    Ok(())
}

fn a_monitor_sees_what_the_loader_says() -> Checked {
    let mut loader = loader("", 1, 1)?;
    let batches = loader.epoch(0)?.count();
    let monitor = Monitor::open(std::process::id().into(), 0)?.ok_or("this process has a loader")?;
    assert_eq!(monitor.stats()?, loader.stats()?);
    assert_eq!(monitor.stats()?.batches, batches as u64);
    assert_eq!(monitor.workers()?.len(), 1);
    assert!(Monitor::open(std::process::id().into(), 1)?.is_none());
    Ok(())
}

fn refusals_have_their_numbers() -> Checked {
    let sampler = Sampler::sequential(LENGTH)?;
    let build =
        |size: i64| Loader::builder().sampler(&sampler).field::<f32>("x", &[]).batch_size(size).workers(1).build();
    let error = build(-7).err().ok_or("a batch size of -7")?;
    assert_eq!((error.status, error.argument.as_str(), error.found), (Status::ARGUMENT, "config.batch_size", -7));
    let zero = Loader::builder().sampler(&sampler).field::<f32>("a\0b", &[]).workers(1).build();
    assert_eq!(zero.err().ok_or("a zero")?.argument, "field.name");
    let deep = Loader::builder().sampler(&sampler).field::<f32>("x", &[1; 9]).workers(1).build();
    assert_eq!(deep.err().ok_or("too deep")?.argument, "field.ndim");
    Ok(())
}

fn a_timeout_ends_a_wait() -> Checked {
    let mut loader = loader("", 1, 1)?;
    loader.begin(0)?;
    // Batches take no longer than they take: sooner or later one is there, and never an error before.
    loop {
        match loader.next(Some(Duration::from_millis(1)))? {
            Next::Timeout => {}
            Next::Batch(batch) => return check_batch(&batch, 0),
            other => panic!("{:?}", other),
        }
    }
}

const CHECKS: &[Check] = checks! {
    batches_come_in_order_from_spawned_workers
    tensors_are_the_shared_memory_itself
    a_trainer_may_write_to_its_batch
    a_wrong_dtype_is_an_error
    failures_name_their_sample_and_the_next_batch_comes
    a_data_set_that_cannot_be_opened_is_told_and_ends_the_epoch
    a_killed_worker_is_replaced_and_nothing_is_lost
    batches_outlive_their_loader_and_go_on_other_threads
    slots_held_is_an_error_that_ends_when_one_is_released
    another_thread_interrupts
    dlpack_shares_the_memory_and_releases_it_at_last
    a_saved_run_goes_on_with_the_remaining_batches
    a_monitor_sees_what_the_loader_says
    refusals_have_their_numbers
    a_timeout_ends_a_wait
};

fn main() -> ExitCode {
    if let Some(code) = feedlane::worker_main::<Numbers>() {
        return code;
    }
    checks::run(CHECKS)
}
