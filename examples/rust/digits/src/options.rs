// SPDX-License-Identifier: Apache-2.0
//! The command line.
use std::process::ExitCode;

const USAGE: &str = "\
Usage: digits [options]
Trains a small network on handwritten digits that workers decode into shared memory.

  --workers N               how many (default 2); 0: decode inline, in the trainer
  --epochs N                default 60
  --seed N                  of order and augmentation (default 1)
  --data DIR                where the two optdigits files are
  --losses FILE             write a line for each epoch: its number and its mean loss as a hexadecimal float
  --kill-worker-at-batch N  SIGKILL a worker process when batch N, counted from 0 over all epochs, is here
  --digest                  don't train: read 10 epochs in batches of 64 and print one number for all their bytes
  --worker COMMAND          with --digest: start this command's words as workers, in any language
  --feed PATH               with --digest: deliver the epochs to --consumers N (default 1) other programs that join at
                            this Unix socket
  --join PATH               with --digest: print the number of the batches of another program's --feed
  --quiet                   print the test accuracy only
  --help
";

pub struct Options {
    pub workers: i32,
    pub epochs: i64,
    pub seed: u64,
    pub data: String,
    pub losses: Option<String>,
    pub kill_worker_at: Option<i64>,
    pub digest: bool,
    pub worker: Option<String>,
    pub feed: Option<String>,
    pub consumers: i32,
    pub join: Option<String>,
    pub quiet: bool,
}

pub enum Parsed {
    Run(Options),
    Help(&'static str),
    Wrong(String),
}

/// Says what is wrong; the code to end with.
pub fn complain(why: &str, code: u8) -> ExitCode {
    eprintln!("digits: {}", why);
    ExitCode::from(code)
}

impl Options {
    fn new() -> Self {
        Options {
            workers: 2,
            epochs: 60,
            seed: 1,
            data: concat!(env!("CARGO_MANIFEST_DIR"), "/../../data").into(),
            losses: None,
            kill_worker_at: None,
            digest: false,
            worker: None,
            feed: None,
            consumers: 1,
            join: None,
            quiet: false,
        }
    }

    pub fn parse(mut arguments: impl Iterator<Item = String>) -> Parsed {
        let mut options = Options::new();
        while let Some(name) = arguments.next() {
            match name.as_str() {
                "--help" => return Parsed::Help(USAGE),
                "--digest" => options.digest = true,
                "--quiet" => options.quiet = true,
                _ => {
                    if let Err(complaint) = options.set(&name, arguments.next()) {
                        return Parsed::Wrong(format!("{}\n{}", complaint, USAGE));
                    }
                }
            }
        }
        let has_workers = options.workers > 0 && !options.digest;
        if options.kill_worker_at.is_some() && !has_workers {
            return Parsed::Wrong("--kill-worker-at-batch needs a worker of a training to kill".into());
        }
        if !options.digest && (options.worker.is_some() || options.feed.is_some() || options.join.is_some()) {
            return Parsed::Wrong("--worker, --feed and --join go with --digest only".into());
        }
        if options.join.is_some() && (options.worker.is_some() || options.feed.is_some()) {
            return Parsed::Wrong(
                "--join takes another program's batches: it goes with neither --feed nor --worker".into(),
            );
        }
        Parsed::Run(options)
    }

    fn set(&mut self, name: &str, value: Option<String>) -> Result<(), String> {
        let known = ["--workers", "--epochs", "--seed", "--data", "--losses", "--kill-worker-at-batch"];
        let of_digest = ["--worker", "--feed", "--consumers", "--join"];
        if !of_digest.contains(&name) && !known.contains(&name) {
            return Err(format!("unknown option '{}'", name));
        }
        let value = value.ok_or_else(|| format!("{} needs a value", name))?;
        let wrong = |wanted: &str| format!("{} '{}': must be {}", name, value, wanted);
        let number = |from: i64, to: i64, wanted: &str| {
            let number = value.parse().ok().filter(|n| (from..=to).contains(n));
            number.ok_or_else(|| wrong(wanted))
        };
        match name {
            "--workers" => self.workers = number(0, 256, "a number from 0 to 256")? as i32,
            "--epochs" => self.epochs = number(1, 1_000_000, "a number from 1 to 1000000")?,
            "--seed" => self.seed = value.parse().map_err(|_| wrong("a number from 0 to 2^64 - 1"))?,
            "--kill-worker-at-batch" => self.kill_worker_at = Some(number(0, i64::MAX, "a number from 0")?),
            "--consumers" => self.consumers = number(1, 1000, "a number from 1 to 1000")? as i32,
            "--worker" if value.trim().is_empty() => return Err(wrong("a command")),
            "--worker" => self.worker = Some(value),
            _ if value.is_empty() => return Err(wrong("a path")),
            "--feed" => self.feed = Some(value),
            "--join" => self.join = Some(value),
            "--data" => self.data = value,
            _ => self.losses = Some(value),
        }
        Ok(())
    }
}
