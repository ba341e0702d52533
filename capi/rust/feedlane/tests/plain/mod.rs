// SPDX-License-Identifier: Apache-2.0
//! The data sets, trainers and numbers of the C examples, and what takes the bare C interface.
use std::ffi::c_void;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::ptr::{null, null_mut};
use std::sync::mpsc::{channel, Receiver, Sender};
use std::time::Duration;

use feedlane::{sys, Dataset, Failure, Loader, LoaderBuilder, Random, Row, Sampler, Status, WorkerInfo};

/// In the environment of workers that read the digits.
pub const DIGITS: &str = "FEEDLANE_TEST_DIGITS";
/// Where the programs of examples/c are.
const EXAMPLES: &str = "FEEDLANE_EXAMPLES_C";
const FEATURES: usize = 64;
const FNV_START: u64 = 0xcbf2_9ce4_8422_2325;

pub fn program(name: &str) -> Result<PathBuf, Failure> {
    let folder = std::env::var_os(EXAMPLES).ok_or_else(|| format!("{} names the folder of {}", EXAMPLES, name))?;
    Ok(Path::new(&folder).join(name))
}

/// The one line that a program prints.
pub fn line_of(command: &mut Command) -> Result<String, Failure> {
    let done = command.output()?;
    if !done.status.success() {
        return Err(format!("{:?}: {}", command, String::from_utf8_lossy(&done.stderr)).into());
    }
    Ok(String::from_utf8(done.stdout)?.trim_end().to_string())
}

/// The samples of examples/c/worker.c.
pub struct Sums;

impl Dataset for Sums {
    fn open(_info: &WorkerInfo<'_>) -> Result<Self, Failure> {
        Ok(Sums)
    }

    fn get(&mut self, row: &mut Row<'_>) -> Result<(), Failure> {
        let (index, shift) = (row.index(), (row.seed() % 5) as i64);
        row.field_mut::<f32>(0)?.copy_from_iter((0..FEATURES as i64).map(|i| ((index + i + shift) % 17) as f32 / 16.0));
        row.fill(1, index % 10)?;
        Ok(())
    }
}

fn fnv1a(loader: &mut Loader, epochs: i64) -> Result<u64, Failure> {
    let mut hash = FNV_START;
    for epoch in 0..epochs {
        for batch in loader.epoch(epoch)? {
            for byte in batch?.tensors().flat_map(|tensor| tensor.bytes().to_vec()) {
                hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
            }
        }
    }
    Ok(hash)
}

fn builder(order: &Sampler, batch_size: i64, seed: u64, workers: i32) -> LoaderBuilder<'_> {
    let builder = Loader::builder().sampler(order).batch_size(batch_size).seed(seed).workers(workers);
    builder.keep_workers(workers > 0)
}

/// What examples/c/trainer prints, of this language's trainer and that worker.
pub fn checksum_of(worker: &Path) -> Result<String, Failure> {
    let order = Sampler::random(Random { length: 1000, seed: 7, ..Random::default() })?;
    let builder = builder(&order, 32, 7, 2).field::<f32>("x", &[FEATURES as i64]).field::<i64>("label", &[]);
    let mut loader = builder.argv([worker]).build()?;
    Ok(format!("checksum: {:016x}", fnv1a(&mut loader, 3)?))
}

/// The digits as they are in the files.
pub struct Digits {
    images: Vec<u8>,
    labels: Vec<u8>,
}

impl Dataset for Digits {
    fn open(info: &WorkerInfo<'_>) -> Result<Self, Failure> {
        let folder = String::from_utf8(info.config().to_vec())?;
        let read = |name: &str| std::fs::read(format!("{}/optdigits-{}-ubyte", folder, name));
        Ok(Digits { images: read("images-idx3")?.split_off(16), labels: read("labels-idx1")?.split_off(8) })
    }

    fn get(&mut self, row: &mut Row<'_>) -> Result<(), Failure> {
        let index = row.index() as usize;
        row.write(0, &self.images[64 * index..][..64])?;
        row.fill(1, i64::from(self.labels[index]))?;
        Ok(())
    }
}

pub fn digest_of(folder: &str, workers: i32) -> Result<String, Failure> {
    let order = Sampler::random(Random { length: 1797, seed: 1, ..Random::default() })?;
    let builder = builder(&order, 64, 1, workers).field::<u8>("image", &[8, 8]).field::<i64>("label", &[]);
    let mut builder = builder.dataset::<Digits>().worker_config(folder);
    if workers > 0 {
        builder = builder.envp(std::env::vars().map(|(k, v)| format!("{}={}", k, v)).chain([format!("{}=1", DIGITS)]));
    }
    Ok(format!("digest: {:016x}", fnv1a(&mut builder.build()?, 10)?))
}

/// A data set whose one sample says that it is there, then waits.
struct Stuck {
    here: Sender<()>,
    until: Receiver<()>,
}

unsafe extern "C" fn wait(this: *mut c_void, _row: *const sys::feedlane_row, _err: *mut sys::feedlane_error) -> i32 {
    // SAFETY: what `second_in_next` gave, in the one thread that makes batches.
    let stuck = unsafe { &*this.cast::<Stuck>() };
    stuck.here.send(()).expect("somebody waits");
    let _ = stuck.until.recv_timeout(Duration::from_secs(20));
    sys::FEEDLANE_OK
}

/// What a thread is told that calls `feedlane_loader_next` while another one is in there.
pub fn second_in_next() -> Result<Status, Failure> {
    let ((here, is_here), (end, until)) = (channel(), channel());
    let mut stuck = Stuck { here, until };
    let (mut sampler, mut loader) = (null_mut(), null_mut());
    let mut dataset = sys::feedlane_dataset::new();
    dataset.user_data = (&mut stuck as *mut Stuck).cast();
    dataset.get = Some(wait);
    let mut field = sys::feedlane_field::new();
    field.name = b"i\0".as_ptr().cast();
    field.dtype = sys::feedlane_dtype { code: 1, bits: 8, lanes: 1 };
    let order =
        sys::feedlane_sampler_config { kind: sys::FEEDLANE_SAMPLER_SEQUENTIAL, length: 1, ..Default::default() };
    let mut config = sys::feedlane_loader_config::new();
    let next = |loader: usize| {
        let mut batch = sys::feedlane_batch::new();
        // SAFETY: the loader is there until both threads are back.
        unsafe { sys::feedlane_loader_next(loader as *mut _, sys::FEEDLANE_FOREVER, &mut batch, null_mut()) }
    };
    // SAFETY: structs of ours, as the C interface wants them; what they point to lives longer than the loader.
    unsafe {
        assert_eq!(sys::feedlane_sampler_create(&order, &mut sampler, null_mut()), 0);
        (config.sampler, config.dataset) = (sampler, &dataset);
        (config.fields, config.field_count, config.argv) = (&field, 1, null());
        assert_eq!(sys::feedlane_loader_create(&config, &mut loader, null_mut()), 0);
        sys::feedlane_sampler_destroy(&mut sampler);
        assert_eq!(sys::feedlane_loader_begin(loader, 0, null_mut()), 0);
        let shared = loader as usize;
        let first = std::thread::spawn(move || next(shared));
        is_here.recv()?;
        let second = next(shared);
        end.send(())?;
        assert_eq!(first.join().expect("no panic"), sys::FEEDLANE_OK);
        sys::feedlane_loader_destroy(&mut loader);
        Ok(Status(second))
    }
}
