// SPDX-License-Identifier: Apache-2.0
//! Trainers in processes of their own, which the tests kill, interrupt and let end in every way.
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdout, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use feedlane::{Error, Failure, Loader, Status};

use crate::numbers::{loader_of, LENGTH};

/// The argument in front of what a trainer does.
pub const TRAINER: &str = "--trainer";
pub const SIGINT: i32 = 2;
pub const SIGKILL: i32 = 9;
/// A second, where the machine has nothing else to do.
const GONE_WITHIN: Duration = Duration::from_secs(5);

extern "C" {
    fn kill(pid: i32, signal: i32) -> i32;
    fn signal(number: i32, handler: extern "C" fn(i32)) -> usize;
    fn _exit(code: i32) -> !;
    fn fork() -> i32;
    fn waitpid(pid: i32, status: *mut i32, options: i32) -> i32;
}

/// Sends a signal to a process that was started here, or by one that was.
pub fn send(pid: i64, number: i32) {
    // SAFETY: numbers only; a process of this test that has not been waited for.
    assert_eq!(unsafe { kill(pid as i32, number) }, 0, "kill {}", pid);
}

/// It has ended, waited for or not.
fn is_gone(pid: i64) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid));
    stat.map_or(true, |line| line.rsplit(") ").next().map_or(true, |rest| rest.starts_with(['Z', 'X'])))
}

pub fn assert_gone(pids: &[i64]) {
    let start = Instant::now();
    while !pids.iter().all(|pid| is_gone(*pid)) {
        assert!(start.elapsed() < GONE_WITHIN, "left: {:?}", pids.iter().filter(|p| !is_gone(**p)).collect::<Vec<_>>());
        std::thread::sleep(Duration::from_millis(5));
    }
}

pub fn pids_of(loader: &Loader) -> Result<Vec<i64>, Error> {
    Ok(loader.monitor()?.workers()?.iter().filter_map(|worker| worker.pid).collect())
}

/// Numbers by two workers. `config` is the data set's: with "stuck" sample 11 takes for ever.
pub fn loader(config: &str) -> Result<Loader, Error> {
    loader_of(LENGTH, |builder| builder.seed(5).workers(2).keep_workers(true).worker_config(config))
}

/// Runs `f` in a forked child and returns what it does there.
pub fn in_a_forked_child(f: impl FnOnce() -> i32) -> i32 {
    // SAFETY: this program has one thread; the child calls the library and ends as it is.
    let child = unsafe { fork() };
    if child == 0 {
        let end = std::panic::catch_unwind(std::panic::AssertUnwindSafe(f));
        // SAFETY: as above.
        unsafe { _exit(end.unwrap_or(255)) }
    }
    let mut status = 0;
    // SAFETY: this process's own child; room of ours for a number.
    assert_eq!(unsafe { waitpid(child, &mut status, 0) }, child);
    assert_eq!(status & 0xff, 0, "it ends by itself");
    status >> 8
}

/// A trainer of another process, whose workers are known.
pub struct Trainer {
    pub process: Child,
    pub workers: Vec<i64>,
    said: BufReader<ChildStdout>,
}

impl Trainer {
    /// Runs this program again as `run_trainer(how)`, until it has told of its workers.
    pub fn start(how: &str) -> Result<Self, Failure> {
        let mut command = Command::new(std::env::current_exe()?);
        let mut process = command.args([TRAINER, how]).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
        let mut said = BufReader::new(process.stdout.take().ok_or("its output")?);
        let mut line = String::new();
        said.read_line(&mut line)?;
        let workers = line.split_whitespace().map(str::parse).collect::<Result<Vec<_>, _>>()?;
        assert_eq!(workers.len(), 2, "{:?}", line);
        Ok(Trainer { process, workers, said })
    }

    /// The rest of what it printed.
    pub fn rest(&mut self) -> Result<String, Failure> {
        let mut rest = String::new();
        std::io::Read::read_to_string(&mut self.said, &mut rest)?;
        Ok(rest)
    }
}

extern "C" fn ignore(_signal: i32) {}

/// What such a trainer does: it tells of its workers, then ends in the way that its name says.
pub fn run_trainer(how: &str) -> Result<ExitCode, Failure> {
    let is_busy = matches!(how, "busy" | "interrupted" | "handled");
    let mut loader = loader(if is_busy { "stuck" } else { "" })?;
    if how == "handled" {
        // SAFETY: a handler that does nothing.
        unsafe { signal(SIGINT, ignore) };
    }
    let mut epoch = loader.epoch(0)?;
    let first = epoch.next().ok_or("a batch")??;
    let pids = pids_of(epoch.loader())?;
    println!("{}", pids.iter().map(i64::to_string).collect::<Vec<_>>().join(" "));
    std::io::stdout().flush()?;
    match how {
        "idle" => {
            drop(first);
            epoch.for_each(drop);
            std::thread::sleep(Duration::from_secs(100));
        }
        "busy" | "interrupted" => epoch.for_each(drop),
        "handled" => {
            drop(first);
            let end = epoch.next().ok_or("an item")?.err().map(|error| error.status);
            assert_eq!(end, Some(Status::INTERRUPTED));
            println!("interrupted");
        }
        "return" => {}
        "panic" => panic!("nobody catches this"),
        "exit" => std::process::exit(0),
        // SAFETY: ends the process as it is.
        "_exit" => unsafe { _exit(0) },
        other => return Err(format!("no such trainer: {}", other).into()),
    }
    Ok(ExitCode::SUCCESS)
}
