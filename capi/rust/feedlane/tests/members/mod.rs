// SPDX-License-Identifier: Apache-2.0
//! Entries of arenas, and processes of their own that own or join one.
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::io::AsFd;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use feedlane::{Arena, ArenaOptions, Batch, Error, Failure, Field, Full, GetOrMake, Put, Status};

use crate::checks::Checked;

/// The argument in front of what a process does, and the path of its arena.
pub const PROCESS: &str = "--process";
pub const PATIENCE: Option<Duration> = Some(Duration::from_secs(60));
pub const AT_ONCE: Option<Duration> = Some(Duration::ZERO);
pub const MIB: u64 = 1 << 20;
/// Of a MiB arena, a little less than a quarter; in i64s.
pub const QUARTER: i64 = 30_000;
pub const SENT: i64 = 500;

fn path() -> PathBuf {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    std::env::temp_dir().join(format!("feedlane-rust-arena-{}-{}", std::process::id(), number))
}

pub fn options(when_full: Full) -> ArenaOptions {
    ArenaOptions { bytes: MIB, when_full, path: Some(path()), ..ArenaOptions::default() }
}

pub fn numbers(count: i64) -> [Field; 1] {
    [Field::new::<i64>("x", &[count])]
}

/// Puts `count` times `value`; without a key, sends it.
pub fn put(arena: &Arena, key: Option<&str>, value: i64, count: i64, timeout: Option<Duration>) -> Result<(), Error> {
    let fields = numbers(count);
    let what = Put::new(&fields);
    let mut entry = arena.reserve(&key.map_or(what, |key| what.key(key)), timeout)?;
    entry.tensor_mut(0)?.values_mut::<i64>()?.fill(value);
    Ok(entry.publish(timeout)?)
}

/// The value of an entry that `put` has made.
pub fn value_of(batch: &Batch) -> Result<i64, Error> {
    let values = batch.field("x")?.values::<i64>()?.to_vec();
    assert!(values.iter().all(|value| *value == values[0]), "an entry is complete");
    Ok(values[0])
}

pub fn look(arena: &Arena, key: &str, timeout: Option<Duration>) -> Result<Option<i64>, Error> {
    arena.get(key, timeout)?.map(|batch| value_of(&batch)).transpose()
}

/// Asks until it is so.
pub fn eventually(mut is_so: impl FnMut() -> Result<bool, Error>) -> Checked {
    let start = Instant::now();
    while !is_so()? {
        if start.elapsed() > PATIENCE.unwrap_or_default() {
            return Err("it has not come to this".into());
        }
        std::thread::yield_now();
    }
    Ok(())
}

/// Serves the members in another thread while `f` runs.
pub fn while_served<R>(arena: &Arena, f: impl FnOnce() -> R) -> R {
    let is_over = AtomicBool::new(false);
    struct End<'a>(&'a Arena, &'a AtomicBool);
    impl Drop for End<'_> {
        fn drop(&mut self) {
            self.1.store(true, Ordering::SeqCst);
            let _ = self.0.interrupt();
        }
    }
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::SeqCst) {
                match arena.serve(None) {
                    Err(error) if error.status != Status::INTERRUPTED => return,
                    _ => {}
                }
            }
        });
        let _end = End(arena, &is_over);
        f()
    })
}

/// Another process, which prints lines and waits for lines.
pub struct Process {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Process {
    pub fn start(role: &str, arena: &ArenaOptions) -> Result<Self, Failure> {
        let path = arena.path.as_ref().ok_or("a path")?;
        let mut command = Command::new(std::env::current_exe()?);
        command.args([PROCESS, role]).arg(path).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn()?;
        let (input, output) = (child.stdin.take().ok_or("its input")?, child.stdout.take().ok_or("its output")?);
        Ok(Process { child, input, output: BufReader::new(output) })
    }

    pub fn line(&mut self) -> Result<String, Failure> {
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        Ok(line.trim_end().into())
    }

    pub fn tell(&mut self, line: &str) -> Checked {
        Ok(writeln!(self.input, "{}", line)?)
    }

    pub fn pid(&self) -> i64 {
        self.child.id().into()
    }

    pub fn kill(mut self) -> Checked {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    /// It ends by itself, without an error.
    pub fn finish(mut self) -> Checked {
        drop(self.input);
        let mut rest = String::new();
        self.output.read_to_string(&mut rest)?;
        assert!(self.child.wait()?.success(), "{}", rest);
        Ok(())
    }
}

fn say(line: &str) -> Checked {
    println!("{}", line);
    Ok(std::io::stdout().flush()?)
}

fn hear() -> Result<String, Failure> {
    let mut line = String::new();
    std::io::stdin().read_line(&mut line)?;
    Ok(line.trim_end().into())
}

/// What another process does.
pub fn run_process(role: &str, path: &str) -> Checked {
    if role == "owner" {
        let options = ArenaOptions { bytes: MIB, path: Some(path.into()), ..ArenaOptions::default() };
        let arena = Arena::new(&options)?;
        put(&arena, Some("held"), 1, 10, None)?;
        put(&arena, Some("there"), 2, 10, None)?;
        say("ready")?;
        return Ok(arena.serve(None)?);
    }
    let arena = match role {
        // A descriptor of its own, which the arena closes.
        "offered" => Arena::join(std::io::stdin().as_fd().try_clone_to_owned()?, PATIENCE)?,
        _ => Arena::join_path(path, PATIENCE)?,
    };
    match role {
        "offered" | "put" => {
            assert_eq!(look(&arena, "of the owner", PATIENCE)?, Some(1));
            put(&arena, Some("of the member"), 2, 10, PATIENCE)?;
            assert_eq!(look(&arena, "of the member", AT_ONCE)?, Some(2), "its own put is found at once");
            assert_eq!(arena.offer().unwrap_err().status, Status::STATE, "only the owner offers");
            assert_eq!(look(&arena, "late", PATIENCE)?, Some(3));
        }
        "stream" => {
            say("joined")?;
            for k in 0..SENT {
                assert_eq!(value_of(&arena.receive(PATIENCE)?)?, k);
            }
            for k in 0..SENT {
                put(&arena, None, k, 1 + k % 50, PATIENCE)?;
            }
        }
        "make" => {
            match arena.get_or_make("key", PATIENCE)? {
                GetOrMake::Found(batch) => return say(&format!("found {}", value_of(&batch)?)),
                GetOrMake::Make(right) => {
                    say("makes")?;
                    if hear()? == "give up" {
                        drop(right);
                        return say("gave up");
                    }
                    let mut entry = right.reserve(&Put::new(&numbers(1)), PATIENCE)?;
                    entry.write(0, &[8i64])?;
                    entry.publish(PATIENCE)?;
                }
            };
            say("put")?;
        }
        "hold" => {
            let held = arena.get("held", PATIENCE)?.ok_or("it is there")?;
            say("holds")?;
            hear()?;
            assert_eq!(value_of(&held)?, 0);
        }
        other => return Err(format!("no such process: {}", other).into()),
    }
    Ok(())
}
