// SPDX-License-Identifier: Apache-2.0
//! The configuration of a loader: its data, its workers, and how it handles failures.
use std::ffi::{CString, OsStr};
use std::os::raw::c_char;
use std::path::Path;
use std::ptr::{null, null_mut, NonNull};
use std::sync::Arc;
use std::time::Duration;

use crate::args::{at_least_a_nanosecond, c_string};
use crate::callbacks::{dataset_table, shard_table, Dataset, Shard};
use crate::element::Element;
use crate::error::{call, check_abi, Error};
use crate::field::{c_fields, Field};
use crate::loader::Loader;
use crate::pool::Pool;
use crate::sampler::Sampler;
use crate::share::Share;
use crate::sys;

/// A [`prefetch_factor`](LoaderBuilder::prefetch_factor) that adapts: it starts at 2 and grows as long as that shortens
/// the trainer's waits, within [`arena_bytes`](LoaderBuilder::arena_bytes).
pub const PREFETCH_AUTO: i32 = sys::FEEDLANE_PREFETCH_AUTO;

/// The worker that gets the next batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Dispatch {
    /// The worker with the fewest unfinished tasks.
    #[default]
    LeastLoaded,
    /// Batch i goes to worker i mod workers.
    RoundRobin,
}

/// Configures a loader. Created by [`Loader::builder`]. Settings that are not set have the defaults of the C interface.
pub struct LoaderBuilder<'a> {
    config: sys::feedlane_loader_config,
    sampler: Option<&'a Sampler>,
    table: Option<sys::feedlane_dataset>,
    fields: Vec<Field>,
    argv: Option<Result<Vec<CString>, Error>>,
    envp: Option<Result<Vec<CString>, Error>>,
    worker_config: Vec<u8>,
    state: Vec<u8>,
    name: Option<Result<CString, Error>>,
    share_path: Option<Result<CString, Error>>,
    worker_cpus: Option<Result<CString, Error>>,
    memory_nodes: Option<Result<CString, Error>>,
    pool: Option<Arc<Pool>>,
}

impl Loader {
    pub fn builder<'a>() -> LoaderBuilder<'a> {
        LoaderBuilder::new()
    }
}

/// Setters that each set one member.
macro_rules! setters {
    ($($(#[$about:meta])* $name:ident: $type:ty => $convert:expr;)*) => { $(
        $(#[$about])*
        pub fn $name(mut self, $name: $type) -> Self {
            self.config.$name = $convert($name);
            self
        }
    )* };
}

impl<'a> LoaderBuilder<'a> {
    fn new() -> Self {
        LoaderBuilder {
            config: sys::feedlane_loader_config::new(),
            sampler: None,
            table: None,
            fields: Vec::new(),
            argv: None,
            envp: None,
            worker_config: Vec::new(),
            state: Vec::new(),
            name: None,
            share_path: None,
            worker_cpus: None,
            memory_nodes: None,
            pool: None,
        }
    }

    /// Required unless the data set is iterable. The sampler's definition is copied, not its position.
    pub fn sampler(mut self, sampler: &'a Sampler) -> Self {
        self.sampler = Some(sampler);
        self
    }

    /// The data set for batches that this process makes: inline (no workers), in forked workers, and in threads that
    /// call [`Handle::run_local`](crate::Handle::run_local). Worker programs name their data set themselves, in
    /// [`worker_main`](crate::worker_main).
    pub fn dataset<D: Dataset + Send>(mut self) -> Self {
        self.table = Some(dataset_table::<D>());
        self
    }

    /// As [`dataset`](LoaderBuilder::dataset), for an iterable data set. Makes the loader iterable.
    pub fn shards<S: Shard + Send>(mut self) -> Self {
        self.table = Some(shard_table::<S>());
        self.iterable(true)
    }

    /// Adds a field of a sample. Tensors come in the order in which fields were added.
    pub fn field<T: Element>(self, name: &str, shape: &[i64]) -> Self {
        self.add_field(Field::new::<T>(name, shape))
    }

    pub fn add_field(mut self, field: Field) -> Self {
        self.fields.push(field);
        self
    }

    /// The base seed of rows. Without this call, the system draws one.
    pub fn seed(mut self, seed: u64) -> Self {
        self.config.seed = seed;
        self.config.has_seed = 1;
        self
    }

    /// No batching: each task has one index, and tensors have no batch dimension.
    pub fn unbatched(self) -> Self {
        self.batch_size(sys::FEEDLANE_UNBATCHED)
    }

    setters! {
        /// Rows in a batch (default: 1).
        batch_size: i64 => i64::from;
        /// Drops an incomplete last batch.
        drop_last: bool => i32::from;
        /// Number of workers; 0: the data set runs inline, in the thread that calls `next`.
        workers: i32 => i32::from;
        /// Batches in flight per worker; 0: 2; or [`PREFETCH_AUTO`](crate::PREFETCH_AUTO).
        prefetch_factor: i32 => i32::from;
        /// Workers outlive the epoch.
        keep_workers: bool => i32::from;
        /// Batches that the trainer may hold at once without fewer batches in flight; 0: 1.
        held: i32 => i32::from;
        /// Limit from a worker's start to its attach (default: 60 s).
        start_timeout_ns: Duration => at_least_a_nanosecond;
        /// Time from the request to stop to SIGTERM (default: 5 s).
        stop_timeout_ns: Duration => at_least_a_nanosecond;
        /// Time from SIGTERM to SIGKILL (default: 1 s).
        term_timeout_ns: Duration => at_least_a_nanosecond;
        /// A worker that neither finishes nor starts a task for this long is killed and replaced.
        task_timeout_ns: Duration => at_least_a_nanosecond;
        /// Wait before the first retry, doubled before each further one (default: 10 ms).
        retry_backoff_ns: Duration => at_least_a_nanosecond;
        /// Maximum number of dead workers replaced in the loader's life; 0: 1000; -1: none.
        max_restarts: i32 => i32::from;
        /// Number of its workers' deaths after which a batch is E_QUARANTINED; 0: 3.
        max_kills_per_batch: i32 => i32::from;
        /// The trainer's death does not kill workers; they finish their current task, then end.
        no_lifeline: bool => i32::from;
        /// No sampler; each worker iterates its own shard.
        iterable: bool => i32::from;
        /// Iterable: a shard that is opened again yields the same samples.
        deterministic: bool => i32::from;
        /// Batches are yielded as they arrive.
        out_of_order: bool => i32::from;
        /// Iterable: expected number of samples; 0: unknown.
        iterable_length: i64 => i64::from;
        /// Address space of a slot, for tensors that the data set shapes and for metadata.
        slot_bytes: u64 => u64::from;
        /// A limit for the reserved memory of all slots; 0: none.
        arena_bytes: u64 => u64::from;
        /// Retries of a sample whose failure is [`Transient`](crate::Transient).
        retries: i32 => i32::from;
        /// [`Dataset::substitute`] names a sample to use in place of a failed one.
        substitute: bool => i32::from;
        /// Samples that an epoch may leave out; -1: no limit.
        skip_budget: i64 => i64::from;
        /// With [`pinned`](LoaderBuilder::pinned): slots are not registered. Instead, batches are copied to up to this
        /// many buffers of the pool, which must be more than `held`. The thread in
        /// [`Handle::run_stager`](crate::Handle::run_stager) makes the copies; inline, `next` does.
        staged: i32 => i32::from;
        /// Number of newest batches that the trace keeps, see [`Monitor::trace`](crate::Monitor::trace); 0: the value of
        /// the environment variable FEEDLANE_TRACE, or no trace.
        trace: u64 => u64::from;
        /// Iterable: number of ranks that share the data set; 0: 1. See [`Rank::detect`](crate::Rank::detect).
        world: i32 => i32::from;
        /// Iterable: 0 .. world - 1.
        rank: i32 => i32::from;
        /// Batches in an epoch, after which it ends; 0: no limit.
        max_batches: i64 => i64::from;
        /// [`Share::Every`]: maximum number of consumers at a time; [`Share::Deal`]: exact number. 0: 1.
        consumers: i32 => i32::from;
        /// [`Share::Deal`], for a last round of fewer than `consumers` batches: the first consumers get them. Otherwise
        /// they are left out, so that all consumers get the same number.
        share_tail: bool => i32::from;
        /// Consumers in other processes get the batches, see [`Loader::open_consumer`] and [`Loader::serve`].
        share: Share => Share::to_c;
    }

    pub fn dispatch(mut self, dispatch: Dispatch) -> Self {
        self.config.dispatch = match dispatch {
            Dispatch::LeastLoaded => sys::FEEDLANE_DISPATCH_LEAST_LOADED,
            Dispatch::RoundRobin => sys::FEEDLANE_DISPATCH_ROUND_ROBIN,
        };
        self
    }

    /// The workers' program, looked up in PATH, and its arguments (default: this program with its own arguments).
    pub fn argv<S: AsRef<OsStr>>(mut self, argv: impl IntoIterator<Item = S>) -> Self {
        self.argv = Some(c_strings("argv", argv));
        self
    }

    /// The workers' environment, as "NAME=value" (default: this process's environment).
    pub fn envp<S: AsRef<OsStr>>(mut self, envp: impl IntoIterator<Item = S>) -> Self {
        self.envp = Some(c_strings("envp", envp));
        self
    }

    /// Workers are threads of this process that call [`Handle::run_local`](crate::Handle::run_local) or
    /// [`Handle::local_worker`](crate::Handle::local_worker).
    pub fn threads(mut self) -> Self {
        self.config.start = sys::FEEDLANE_START_THREAD;
        self
    }

    /// Workers are processes that this program starts with descriptors of [`Loader::open_worker`].
    pub fn external(mut self) -> Self {
        self.config.start = sys::FEEDLANE_START_EXTERNAL;
        self
    }

    /// As [`external`](Self::external), for processes that this program starts as soon as it has their descriptors, such as forks.
    pub fn host(mut self) -> Self {
        self.config.start = sys::FEEDLANE_START_HOST;
        self
    }

    /// Workers are forked from this process, inside `begin` and `next`.
    ///
    /// # Safety
    /// At each of these calls, the data set must work in a copy of the process that has only the calling thread: locks
    /// that other threads hold stay locked there.
    pub unsafe fn fork(mut self) -> Self {
        self.config.start = sys::FEEDLANE_START_FORK;
        self
    }

    /// Passed to every worker unchanged. It must not contain pointers.
    pub fn worker_config(mut self, bytes: impl Into<Vec<u8>>) -> Self {
        self.worker_config = bytes.into();
        self
    }

    /// A state that [`Loader::state`] wrote: `begin` of its epoch resumes after it.
    pub fn state(mut self, state: impl Into<Vec<u8>>) -> Self {
        self.state = state.into();
        self
    }

    /// The name that monitors show, at most 63 bytes.
    pub fn name(mut self, name: &str) -> Self {
        self.name = Some(c_string("name", name));
        self
    }

    /// Processors for workers that the library starts: one list for all, "0-15", or one list per worker, "0-7;8-15".
    /// The lists are reused from the start if there are more workers than lists.
    pub fn worker_cpus(mut self, lists: &str) -> Self {
        self.worker_cpus = Some(c_string("worker_cpus", lists));
        self
    }

    /// Memory nodes for the batches' memory: one, "1", or several in turn, "0-1".
    pub fn memory_nodes(mut self, list: &str) -> Self {
        self.memory_nodes = Some(c_string("memory_nodes", list));
        self
    }

    /// A Unix socket to create, where consumers of this user may join with [`Loader::join_path`].
    pub fn share_path(mut self, path: impl AsRef<Path>) -> Self {
        self.share_path = Some(c_string("path", path.as_ref()));
        self
    }

    /// Registers the batches' memory with this pool. The loader and each of its batches keep the pool alive.
    pub fn pinned(mut self, pool: &Arc<Pool>) -> Self {
        self.pool = Some(pool.clone());
        self
    }

    /// Checks the configuration and reserves all memory. Workers start with the first epoch.
    pub fn build(self) -> Result<Loader, Error> {
        check_abi()?;
        let (_names, fields) = c_fields(&self.fields)?;
        let (argv, envp) = (self.argv.transpose()?, self.envp.transpose()?);
        let (argv, envp) = (argv.as_deref().map(pointers), envp.as_deref().map(pointers));

        let (name, share_path) = (self.name.transpose()?, self.share_path.transpose()?);
        let (worker_cpus, memory_nodes) = (self.worker_cpus.transpose()?, self.memory_nodes.transpose()?);

        let mut config = self.config;
        config.name = name.as_ref().map_or(null(), |name| name.as_ptr());
        config.share_path = share_path.as_ref().map_or(null(), |path| path.as_ptr());
        config.worker_cpus = worker_cpus.as_ref().map_or(null(), |lists| lists.as_ptr());
        config.memory_nodes = memory_nodes.as_ref().map_or(null(), |list| list.as_ptr());
        config.sampler = self.sampler.map_or(null(), Sampler::as_ptr);
        // Other workers are programs that name their data set themselves.
        let in_this_process =
            config.workers == 0 || matches!(config.start, sys::FEEDLANE_START_FORK | sys::FEEDLANE_START_THREAD);
        config.dataset = self.table.as_ref().filter(|_| in_this_process).map_or(null(), |table| table as *const _);
        config.fields = if fields.is_empty() { null() } else { fields.as_ptr() };
        config.field_count = fields.len() as u64;
        config.argv = argv.as_ref().map_or(null(), |list| list.as_ptr());
        config.envp = envp.as_ref().map_or(null(), |list| list.as_ptr());
        if !self.worker_config.is_empty() {
            config.worker_config = self.worker_config.as_ptr().cast();
            config.worker_config_bytes = self.worker_config.len() as u64;
        }
        if !self.state.is_empty() {
            config.state = self.state.as_ptr().cast();
            config.state_bytes = self.state.len() as u64;
        }
        config.pinned = self.pool.as_ref().map_or(null_mut(), |pool| pool.as_ptr());
        let mut raw = null_mut();
        // SAFETY: the configuration's pointers are valid until the end of this function, and the library copies their
        // contents. The callbacks have no user_data. A `D` that they create is Send, as the loader is.
        call(|err| unsafe { sys::feedlane_loader_create(&config, &mut raw, err) })?;
        let raw = NonNull::new(raw).expect("a handle on success");
        // SAFETY: nobody else has this handle.
        Ok(unsafe { Loader::new(raw, self.pool) })
    }
}

fn c_strings<S: AsRef<OsStr>>(what: &str, texts: impl IntoIterator<Item = S>) -> Result<Vec<CString>, Error> {
    texts.into_iter().map(|text| c_string(what, text)).collect()
}

/// A NULL-terminated table.
fn pointers(strings: &[CString]) -> Vec<*const c_char> {
    strings.iter().map(|s| s.as_ptr()).chain(Some(null())).collect()
}
