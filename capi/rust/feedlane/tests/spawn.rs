// SPDX-License-Identifier: Apache-2.0
//! What takes worker processes. This program is its own worker, so it has its own main.
mod checks;
mod numbers;

use std::process::ExitCode;
use std::time::Duration;

use feedlane::{Error, Loader, Monitor, Next, Receiver, RingConfig, RingInfo, Sampler, Sender, Status};

use checks::{checks, Check, Checked};
use numbers::{check_batch, loader_of, Numbers, LENGTH};

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
    let monitor = loader.monitor()?;
    assert_eq!(monitor.stats()?.samples, 3 * LENGTH as u64);
    assert_eq!(monitor.workers()?.iter().map(|w| w.samples).sum::<u64>(), 3 * LENGTH as u64);
    loader.close()?;
    Ok(())
}

fn forked_workers_run_the_builders_data_set() -> Checked {
    // SAFETY: this program has one thread.
    let mut loader = loader_of(LENGTH, |b| unsafe { b.seed(5).workers(2).dataset::<Numbers>().fork() })?;
    for (i, batch) in loader.epoch(0)?.enumerate() {
        let batch = batch?;
        assert!(batch.worker().is_some());
        check_batch(&batch, i as i64)?;
    }
    loader.close()?;
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

fn a_data_set_that_cannot_be_opened_is_told_and_ends_the_epoch() -> Checked {
    let mut loader = loader("closed", 2, 1)?;
    let mut epoch = loader.epoch(0)?;
    let error = epoch.next().ok_or("an item")?.unwrap_err();
    assert_eq!(error.status, Status::INIT);
    assert!(error.text.contains("the numbers are closed"), "{}", error);
    assert!(epoch.next().is_none(), "not for ever");
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

fn dlpack_in_both_forms_releases_at_last() -> Checked {
    let mut loader = loader("", 1, 1)?;
    let batch = loader.epoch(0)?.next().ok_or("a batch")??;
    drop(batch.into_dlpack()?);
    assert_eq!(loader.monitor()?.stats()?.slots_held, 0);
    let batch = loop {
        if let Next::Batch(batch) = loader.next(None)? {
            break batch;
        }
    };
    assert_eq!(batch.into_dlpack_legacy()?.len(), 2);
    assert_eq!(loader.monitor()?.stats()?.slots_held, 0);
    Ok(())
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
    assert_eq!(resumed.monitor()?.stats()?.batches, 3);
    Ok(())
}

fn a_monitor_sees_what_the_loader_says() -> Checked {
    let mut loader = loader("", 1, 1)?;
    let batches = loader.epoch(0)?.count();
    let monitor = Monitor::open(std::process::id().into(), 0)?.ok_or("this process has a loader")?;
    assert_eq!(monitor.stats()?, loader.monitor()?.stats()?);
    assert_eq!(monitor.stats()?.batches, batches as u64);
    assert_eq!(monitor.workers()?.len(), 1);
    assert!(monitor.report()?.contains("\nbound: "));
    assert!(Monitor::open(std::process::id().into(), 1)?.is_none());
    Ok(())
}

fn a_ring_is_seen_from_outside() -> Checked {
    let wanted = RingConfig { message_bytes: 3, capacity: 8, lanes: 2, ..RingConfig::default() };
    let mut receiver = Receiver::new(&wanted)?;
    Sender::attach(receiver.offer()?, None)?.send(b"abcdef", None)?;
    receiver.receive_into(&mut [0; 3], None)?;
    let pid = i64::from(std::process::id());
    let seen = RingInfo::read(pid, 0)?.ok_or("this process has a ring")?;
    assert_eq!((seen.pid, seen.message_bytes, seen.capacity, seen.lanes, seen.received), (pid, 3, 8, 2, 1));
    assert!(RingInfo::read(pid, 1)?.is_none());
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
    forked_workers_run_the_builders_data_set
    a_trainer_may_write_to_its_batch
    a_wrong_dtype_is_an_error
    a_data_set_that_cannot_be_opened_is_told_and_ends_the_epoch
    another_thread_interrupts
    dlpack_in_both_forms_releases_at_last
    a_saved_run_goes_on_with_the_remaining_batches
    a_monitor_sees_what_the_loader_says
    a_ring_is_seen_from_outside
    refusals_have_their_numbers
    a_timeout_ends_a_wait
};

fn main() -> ExitCode {
    if let Some(code) = feedlane::worker_main::<Numbers>() {
        return code;
    }
    checks::run(CHECKS)
}
