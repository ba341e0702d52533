// SPDX-License-Identifier: Apache-2.0
// compiles: what the others do wrong, done right
use feedlane::{Batch, Error, Handle, Loader, Sampler};

fn shares<T: Send + Sync>(_: T) {}
fn moves<T: Send>(_: T) {}

pub fn trainer(mut loader: Loader, mut batch: Batch) -> Result<(), Error> {
    let values = batch.tensor(0)?.values::<f32>()?;
    // SAFETY: never run.
    let first = values.get(0).unwrap_or(unsafe { values.as_slice() }[0]);
    batch.tensor_mut(0)?.values_mut::<f32>()?.set(0, first);
    // SAFETY: never run.
    unsafe { batch.tensor_mut(0)?.values_mut::<f32>()?.as_mut_slice().fill(first) };
    batch.release();
    for batch in loader.epoch(0)? {
        println!("{:?}", batch?.tensor(0)?.values::<f32>()?);
    }
    if let Some(batch) = loader.epoch(1)?.next() {
        let (batch, mut memory) = (batch?, [0u8; 64]);
        let (address, stream) = (memory.as_mut_ptr().cast(), std::ptr::null_mut());
        // SAFETY: never run.
        unsafe { batch.to_device(0, address, memory.len(), stream)? };
        // SAFETY: never run.
        unsafe { batch.release_on(stream) }.map_err(|kept| kept.error)?;
    }
    let handle: Handle = loader.handle();
    moves(loader);
    shares(handle);
    Ok(())
}

pub fn arena(arena: feedlane::Arena, put: &feedlane::Put<'_>) -> Result<(), Error> {
    if let feedlane::GetOrMake::Make(right) = arena.get_or_make("key", None)? {
        let mut entry = right.reserve(put, None)?;
        entry.tensor_mut(0)?.into_values_mut::<f32>()?.fill(1.0);
        entry.write(0, &[1f32])?;
        entry.publish(None)?;
    }
    let batch = arena.receive(None)?;
    println!("{:?} {}", batch.tensor(0)?.values::<f32>()?, arena.arm()?.is_some());
    shares(arena);
    Ok(())
}

pub fn worker(mut worker: feedlane::Worker) -> Result<(), Error> {
    if let feedlane::NextTask::Task(mut task) = worker.next_task(None)? {
        let first = task.indices()[0] as f32 + task.seeds()[0] as f32 + task.state()[0] as f32;
        task.tensor_mut(0)?.values_mut::<f32>()?.fill(first);
        task.commit(1)?;
    }
    Sampler::sequential(1).map(drop)
}
