// SPDX-License-Identifier: Apache-2.0
//! Pools, and loaders whose batches lie in registered memory. The device is this process's own memory, so what a real one
//! would be told to do can be looked at. This program is its own worker.
mod checks;

use std::process::ExitCode;
use std::ptr::null_mut;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use feedlane::{
    Batch, Buffer, Dataset, Error, Failure, Handle, Loader, LoaderBuilder, Pool, PoolOptions, Row, Sampler, Status,
    WorkerInfo,
};

use checks::{checks, Check, Checked};

const LENGTH: i64 = 60;
const ROWS: i64 = 8;
const BUFFER_BYTES: usize = 1 << 20;

struct Numbers;

impl Dataset for Numbers {
    fn open(_info: &WorkerInfo<'_>) -> Result<Self, Failure> {
        Ok(Numbers)
    }

    fn get(&mut self, row: &mut Row<'_>) -> Result<(), Failure> {
        let (index, seed) = (row.index(), row.seed());
        row.write(0, &[index as f32, (seed % 1000) as f32])?;
        row.fill::<i64>(1, index)?;
        Ok(())
    }
}

fn pool(buffers: u32) -> Result<Arc<Pool>, Error> {
    Pool::new(&PoolOptions {
        backend: "none".into(),
        buffers,
        buffer_bytes: if buffers == 0 { 0 } else { BUFFER_BYTES as u64 },
        ..PoolOptions::default()
    })
}

fn loader_of(change: impl for<'a> FnOnce(LoaderBuilder<'a>) -> LoaderBuilder<'a>) -> Result<Loader, Error> {
    let order = Sampler::random(feedlane::Random { length: LENGTH, seed: 3, ..Default::default() })?;
    let builder = Loader::builder().sampler(&order).field::<f32>("x", &[2]).field::<i64>("label", &[]);
    change(builder.batch_size(ROWS).seed(5).workers(2)).build()
}

fn plain() -> Result<Loader, Error> {
    loader_of(|builder| builder)
}

fn pinned(pool: &Arc<Pool>) -> Result<Loader, Error> {
    loader_of(|builder| builder.pinned(pool))
}

fn staged(pool: &Arc<Pool>, buffers: i32) -> Result<Loader, Error> {
    loader_of(|builder| builder.pinned(pool).staged(buffers))
}

fn start_stager(handle: Handle) -> thread::JoinHandle<Result<(), Error>> {
    thread::spawn(move || handle.run_stager())
}

fn bytes_of(batch: &Batch) -> Vec<Vec<u8>> {
    batch.tensors().map(|tensor| tensor.bytes().to_vec()).collect()
}

/// Every batch of an epoch, as bytes.
fn epoch_of(loader: &mut Loader) -> Result<Vec<Vec<Vec<u8>>>, Error> {
    loader.epoch(1)?.map(|batch| Ok(bytes_of(&batch?))).collect()
}

fn pinned_and_staged_epochs_are_the_plain_one() -> Checked {
    let wanted = epoch_of(&mut plain()?)?;
    assert_eq!(wanted.len() as i64, (LENGTH + ROWS - 1) / ROWS);
    assert_ne!(wanted[0], wanted[1]);

    let registered = pool(0)?;
    let mut loader = pinned(&registered)?;
    assert!(registered.stats()?.registered_bytes > 0, "the slots are registered from the start");
    assert_eq!(epoch_of(&mut loader)?, wanted);
    drop(loader);
    assert_eq!(registered.stats()?.registered_bytes, 0);

    let buffers = pool(3)?;
    let mut loader = staged(&buffers, 3)?;
    assert_eq!(buffers.stats()?.in_use, 3);
    let stager = start_stager(loader.handle());
    assert_eq!(epoch_of(&mut loader)?, wanted);
    let first = loader.epoch(1)?.next().ok_or("a batch")??;
    assert!(first.worker().is_some(), "made by a worker, then copied here");
    drop((first, loader));
    stager.join().expect("no panic")?;
    assert_eq!(buffers.stats()?.in_use, 0, "all are given back");
    Ok(())
}

fn batches_go_to_a_device_and_back_when_its_stream_has_passed() -> Checked {
    let wanted = epoch_of(&mut plain()?)?;
    let registered = pool(0)?;
    let mut loader = pinned(&registered)?;
    let mut arrived = Vec::new();
    for batch in loader.epoch(1)? {
        let batch = batch?;
        let mut device: Vec<Vec<u8>> = batch.tensors().map(|tensor| vec![0; tensor.bytes().len()]).collect();
        for (i, memory) in device.iter_mut().enumerate() {
            let (address, room) = (memory.as_mut_ptr().cast(), memory.len());
            // SAFETY: "none" copies at once, to memory of this function with so much room.
            unsafe { batch.to_device(i, address, room, null_mut())? };
            // SAFETY: refused before anything is copied.
            let refused = unsafe { batch.to_device(i, address, room - 1, null_mut()) }.unwrap_err();
            assert_eq!((refused.argument.as_str(), refused.found), ("bytes", room as i64 - 1));
        }
        // SAFETY: as above: there is no stream to wait for.
        unsafe { batch.record_stream(null_mut())? };
        unsafe { batch.release_on(null_mut())? };
        arrived.push(device);
    }
    assert_eq!(arrived, wanted);
    assert_eq!(loader.monitor()?.stats()?.slots_held, 0);

    let mut unpinned = plain()?;
    let batch = unpinned.epoch(0)?.next().ok_or("a batch")??;
    // SAFETY: refused: there is no device.
    let refused = unsafe { batch.record_stream(null_mut()) }.unwrap_err();
    assert_eq!((refused.status, refused.argument.as_str()), (Status::STATE, "config.pinned"));
    // SAFETY: as above.
    let refused = unsafe { batch.release_on(null_mut()) }.unwrap_err();
    assert_eq!((refused.error.status, refused.error.argument.as_str()), (Status::STATE, "config.pinned"));
    assert_eq!(unpinned.monitor()?.stats()?.slots_held, 1, "it is still held");
    drop(refused.held);
    assert_eq!(unpinned.monitor()?.stats()?.slots_held, 0);
    Ok(())
}

fn a_pool_ends_after_everything_in_it() -> Checked {
    for buffers in [0, 3] {
        let pool = pool(buffers)?;
        let mut loader = loader_of(|builder| builder.pinned(&pool).staged(buffers as i32).held(2))?;
        let stager = start_stager(loader.handle());
        let mut epoch = loader.epoch(1)?;
        let (kept, second) = (epoch.next().ok_or("one")??, epoch.next().ok_or("two")??);
        let bytes = bytes_of(&kept);
        let tensors = second.into_dlpack()?;
        let last = Arc::downgrade(&pool);
        drop(pool);
        drop(loader);
        // Where nothing is copied it was told so, or came when all was over.
        let end = stager.join().expect("no panic").map_err(|error| error.status);
        assert_eq!(end, if buffers == 0 { Err(Status::STATE) } else { Ok(()) });
        let seen = last.upgrade().ok_or("batches keep their pool")?;
        let registered = seen.stats()?.registered_bytes;
        assert!(registered > 0 && seen.stats()?.in_use == u64::from(buffers));
        drop(seen);
        assert_eq!(bytes_of(&kept), bytes, "it lies where it lay");
        drop(kept);
        assert_eq!(last.upgrade().ok_or("DLPack tensors too")?.stats()?.registered_bytes, registered);
        drop(tensors);
        assert!(last.upgrade().is_none(), "the last one out ends it");
    }
    Ok(())
}

fn is_mapped(address: usize) -> Result<bool, Failure> {
    for line in std::fs::read_to_string("/proc/self/maps")?.lines() {
        let (start, end) = line.split(' ').next().and_then(|range| range.split_once('-')).ok_or("no range")?;
        if (usize::from_str_radix(start, 16)?..usize::from_str_radix(end, 16)?).contains(&address) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// A pool that the library still uses when the last `Arc` goes is put aside, and ended with the next one.
fn a_pool_may_go_before_a_tensor_that_nobody_here_owns() -> Checked {
    let pool = pool(2)?;
    let mut loader = staged(&pool, 2)?;
    let stager = start_stager(loader.handle());
    let batch = loader.epoch(1)?.next().ok_or("a batch")??;
    let labels = batch.tensor(1)?.values::<i64>()?.to_vec();
    let exported: Vec<_> = batch.into_dlpack()?.into_iter().map(|tensor| tensor.into_raw()).collect();
    drop((loader, pool));
    stager.join().expect("no panic")?;
    drop(self::pool(0)?);
    // SAFETY: as many labels, whose memory is there until the deleters are called.
    let there = unsafe {
        let data = (*exported[1]).dl_tensor.data as *const i64;
        std::slice::from_raw_parts(data, labels.len())
    };
    assert_eq!(there, labels);
    let address = there.as_ptr() as usize;
    assert!(is_mapped(address)?);
    for tensor in exported {
        // SAFETY: each is called once.
        unsafe { (*tensor).deleter.expect("a deleter")(tensor) };
    }
    drop(self::pool(0)?);
    assert!(!is_mapped(address)?, "the pool is gone, and its buffers with it");
    Ok(())
}

fn buffers_are_handed_out_once_and_come_back() -> Checked {
    let pool = pool(2)?;
    let (mut first, second) = (pool.acquire(None)?, pool.acquire(None)?);
    let none_left = pool.acquire(Some(Duration::ZERO)).unwrap_err();
    assert_eq!(none_left.status, Status::TIMEOUT);
    assert_eq!((first.bytes().len(), first.bytes().as_ptr() as usize % 4096), (BUFFER_BYTES, 0));
    first.bytes_mut()[..3].copy_from_slice(b"abc");
    let mut device = [0u8; 4];
    // SAFETY: "none" copies at once, to memory of this function with room for three.
    unsafe { first.to_device(device.as_mut_ptr().cast(), 3, null_mut())? };
    assert_eq!(&device, b"abc\0");
    // SAFETY: refused before anything is copied.
    let beyond = unsafe { first.to_device(device.as_mut_ptr().cast(), BUFFER_BYTES + 1, null_mut()) };
    assert_eq!(beyond.unwrap_err().argument, "bytes");

    let waiting = pool.clone();
    let third = thread::spawn(move || waiting.acquire(None));
    // SAFETY: nothing of the buffer is on its way.
    unsafe { first.release_on(null_mut())? };
    let third: Buffer = third.join().expect("no panic")?;
    let stats = pool.stats()?;
    assert_eq!((stats.in_use, stats.pending, stats.acquired, stats.failures), (2, 0, 3, 0));
    drop(second);
    assert_eq!(pool.stats()?.in_use, 1, "dropping gives back");
    drop(pool);
    assert_eq!(third.bytes().len(), BUFFER_BYTES, "a buffer keeps its pool");
    Ok(())
}

fn a_stager_ends_with_its_loader_wherever_it_is() -> Checked {
    let pool = pool(2)?;
    for _ in 0..200 {
        let loader = staged(&pool, 2)?;
        let stager = start_stager(loader.handle());
        drop(loader); // before the thread has come, in its way, or there
        match stager.join().expect("no panic") {
            Ok(()) => {}
            Err(error) => assert_eq!(error.status, Status::STATE, "{}", error),
        }
        assert_eq!(pool.stats()?.in_use, 0);
    }
    Ok(())
}

fn one_stager_at_a_time() -> Checked {
    let pool = pool(2)?;
    let mut loader = staged(&pool, 2)?;
    let stager = start_stager(loader.handle());
    drop(loader.epoch(0)?.next().ok_or("a batch that was copied")??);
    let second = loader.handle().run_stager().unwrap_err();
    assert_eq!(
        (second.status, second.text.as_str()),
        (Status::STATE, "another thread already runs feedlane_loader_run_stager for this loader")
    );
    let handle = loader.handle();
    drop(loader);
    stager.join().expect("no panic")?;
    assert_eq!(handle.run_stager().unwrap_err().status, Status::STATE);
    assert_eq!(plain()?.handle().run_stager().unwrap_err().argument, "config.staged");
    Ok(())
}

fn refusals_say_what_does_not_fit() -> Checked {
    let unknown = PoolOptions { backend: "abacus".into(), ..PoolOptions::default() };
    assert!(Pool::new(&unknown).unwrap_err().argument.contains("backend"));
    let zero = PoolOptions { backend: "no\0ne".into(), ..PoolOptions::default() };
    assert_eq!(Pool::new(&zero).unwrap_err().argument, "backend");
    assert_eq!(pool(0)?.acquire(None).unwrap_err().status, Status::STATE);
    let few = pool(2)?;
    assert_eq!(staged(&few, 3).err().ok_or("three of two")?.status, Status::LIMIT);
    assert_eq!(few.stats()?.in_use, 0, "what it took is given back");
    let unpinned = loader_of(|builder| builder.staged(2));
    assert_eq!(unpinned.err().ok_or("staged without a pool")?.status, Status::ARGUMENT);
    Ok(())
}

const CHECKS: &[Check] = checks! {
    pinned_and_staged_epochs_are_the_plain_one
    batches_go_to_a_device_and_back_when_its_stream_has_passed
    a_pool_ends_after_everything_in_it
    a_pool_may_go_before_a_tensor_that_nobody_here_owns
    buffers_are_handed_out_once_and_come_back
    a_stager_ends_with_its_loader_wherever_it_is
    one_stager_at_a_time
    refusals_say_what_does_not_fit
};

fn main() -> ExitCode {
    if let Some(code) = feedlane::worker_main::<Numbers>() {
        return code;
    }
    checks::run(CHECKS)
}
