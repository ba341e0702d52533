// SPDX-License-Identifier: Apache-2.0
//! Workers that the host starts, and the descriptor that they are handed. This program is its own worker, so it has its own
//! main.
mod checks;
mod numbers;

use std::io::Read;
use std::os::unix::io::AsRawFd;
use std::process::{Command, ExitCode};
use std::time::Duration;

use feedlane::Worker;

use checks::{checks, Check, Checked};
use numbers::{check_batch, loader_of, Numbers, LENGTH};

const BY_ITSELF: &str = "FEEDLANE_TEST_BY_ITSELF";
const SECOND: i32 = 100;

fn external_workers_take_the_descriptor() -> Checked {
    fed_by_an_external_worker(|command| command)
}

fn a_worker_without_a_data_set_type_takes_the_descriptor_once() -> Checked {
    fed_by_an_external_worker(|command| command.env(BY_ITSELF, ""))
}

/// What that one runs. It has two descriptors of the trainer's.
fn by_itself() -> Checked {
    let mut worker = Worker::from_environment(None)?.ok_or("a trainer")?;
    worker.run(|work| {
        let (indices, seeds) = (work.indices().to_vec(), work.seeds().to_vec());
        for (row, (index, seed)) in indices.iter().zip(&seeds).enumerate() {
            work.write_at(0, 2 * row, &[*index as f32, (*index + (*seed % 7) as i64) as f32])?;
        }
        work.write_at(1, 0, &indices)?;
        Ok(())
    })?;
    std::env::set_var("FEEDLANE_WORKER_FD", SECOND.to_string());
    assert!(Worker::from_environment(Some(Duration::ZERO))?.is_none(), "once a process");
    Ok(())
}

fn fed_by_an_external_worker(change: impl FnOnce(&mut Command) -> &mut Command) -> Checked {
    let mut loader = loader_of(LENGTH, |builder| builder.seed(5).workers(1).external())?;
    let (id, fd) = loader.open_worker(None)?.ok_or("one is missing")?;
    assert_eq!(id, 0);
    let number = fd.as_raw_fd();
    let mut program = Command::new(std::env::current_exe()?);
    let command = change(program.env("FEEDLANE_WORKER_FD", number.to_string()));
    // SAFETY: between fork and exec, system calls that may be made there: the child alone keeps it open, and a copy.
    unsafe {
        extern "C" {
            fn fcntl(fd: i32, command: i32, ...) -> i32;
        }
        const F_DUPFD: i32 = 0;
        const F_SETFD: i32 = 2;
        std::os::unix::process::CommandExt::pre_exec(command, move || {
            match (fcntl(number, F_SETFD, 0), fcntl(number, F_DUPFD, SECOND)) {
                (0, SECOND) => Ok(()),
                _ => Err(std::io::Error::last_os_error()),
            }
        });
    }
    let mut worker = command.spawn()?;
    drop(fd);
    assert!(loader.open_worker(None)?.is_none());
    for (i, batch) in loader.epoch(0)?.enumerate() {
        check_batch(&batch?, i as i64)?;
    }
    loader.close()?;
    assert!(worker.wait()?.success());
    Ok(())
}

fn a_descriptor_of_this_process_is_not_taken() -> Checked {
    let mut file = std::fs::File::open(std::env::current_exe()?)?;
    for number in [file.as_raw_fd(), 1] {
        std::env::set_var("FEEDLANE_WORKER_FD", number.to_string());
        let ends = [
            std::panic::catch_unwind(|| feedlane::worker_main::<Numbers>().is_some()),
            std::panic::catch_unwind(|| Worker::from_environment(None).is_ok()),
        ];
        std::env::remove_var("FEEDLANE_WORKER_FD");
        for end in ends {
            let said = end.err().ok_or("it was taken")?;
            let said = said.downcast_ref::<String>().ok_or("a text")?;
            assert!(said.contains("was not inherited from a trainer"), "{}", said);
        }
    }
    file.read_exact(&mut [0; 8])?;
    Ok(())
}

const CHECKS: &[Check] = checks! {
    external_workers_take_the_descriptor
    a_worker_without_a_data_set_type_takes_the_descriptor_once
    a_descriptor_of_this_process_is_not_taken
};

fn main() -> ExitCode {
    if std::env::var_os(BY_ITSELF).is_some() {
        return by_itself().map_or(ExitCode::FAILURE, |()| ExitCode::SUCCESS);
    }
    if let Some(code) = feedlane::worker_main::<Numbers>() {
        return code;
    }
    checks::run(CHECKS)
}
