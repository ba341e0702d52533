// SPDX-License-Identifier: Apache-2.0
//! A feeder, and consumers in processes of their own. This program is its own worker and its own consumer, so it has its
//! own main.
mod checks;
mod numbers;

use std::io::{Read, Write};
use std::os::unix::io::{AsFd, OwnedFd};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::Duration;

use feedlane::{
    ConsumerOptions, ConsumerState, Error, EventKind, Lag, Loader, LoaderBuilder, Pool, PoolOptions, Sampler, Served, Share, StateInfo,
    Status,
};

use checks::{checks, Check, Checked};
use numbers::{check_batch, loader_of, Numbers, LENGTH, ROWS};

/// The argument in front of where a consumer joins: "-" is its standard input, anything else a path.
const CONSUMER: &str = "--consumer";
const EPOCHS: i64 = 2;
const BATCHES: i64 = LENGTH / ROWS as i64;
/// Batches of the first epoch after which a consumer asks for the state.
const STATE_AFTER: usize = 2;
const TIMEOUT: Option<Duration> = Some(Duration::from_secs(60));

fn feeder(share: Share, change: impl for<'a> FnOnce(LoaderBuilder<'a>) -> LoaderBuilder<'a>) -> Result<Loader, Error> {
    loader_of(LENGTH, |b| change(b.seed(5).workers(2).keep_workers(true).share(share).consumers(2)))
}

/// Starts this program as a consumer.
fn start(place: &str, input: Stdio) -> std::io::Result<Child> {
    Command::new(std::env::current_exe()?).args([CONSUMER, place]).stdin(input).stdout(Stdio::piped()).spawn()
}

/// What such a process does. It prints the numbers of each epoch's batches in a line, then the state.
fn consume(place: &str) -> Checked {
    let mut loader = match place {
        // A descriptor of its own, which the loader closes.
        "-" => Loader::join(std::io::stdin().as_fd().try_clone_to_owned()?, TIMEOUT)?,
        path => Loader::join_path(path, &ConsumerOptions::default(), TIMEOUT)?,
    };
    let mut state = Vec::new();
    let first = loader.next_epoch()?;
    for epoch in first..EPOCHS {
        let mut numbers = Vec::new();
        let mut batches = loader.epoch(epoch)?;
        while let Some(batch) = batches.next() {
            let mut batch = batch?;
            assert_eq!((batch.epoch(), batch.missed()), (epoch, 0));
            check_batch(&batch, batch.number())?;
            let refused = batch.tensor_mut(0).err().ok_or("a consumer's tensors are read-only")?;
            assert_eq!(refused.status, Status::STATE);
            numbers.push(batch.number().to_string());
            if epoch == 0 && numbers.len() == STATE_AFTER {
                state = batches.loader().state(Some(&batch))?;
            }
        }
        println!("{}", numbers.join(" "));
    }
    assert_eq!(loader.next_epoch()?, EPOCHS);
    println!("{}", state.iter().map(|byte| format!("{:02x}", byte)).collect::<String>());
    loader.close()?;
    Ok(())
}

/// The lines that a consumer printed, which ends without an error.
fn lines_of(mut child: Child) -> Result<Vec<String>, feedlane::Failure> {
    let mut said = String::new();
    child.stdout.take().ok_or("its output")?.read_to_string(&mut said)?;
    assert!(child.wait()?.success(), "{}", said);
    Ok(said.lines().map(String::from).collect())
}

fn serve_all(loader: &mut Loader) -> Checked {
    for epoch in 0..EPOCHS {
        loader.begin(epoch)?;
        assert_eq!(loader.serve(None)?, Served::End);
    }
    assert_eq!(loader.serve(TIMEOUT)?, Served::End, "all have left");
    Ok(())
}

fn numbers(list: impl Iterator<Item = i64>) -> String {
    list.map(|number| number.to_string()).collect::<Vec<_>>().join(" ")
}

/// A loader without consumers that begins with the state yields the batches from `first` on.
fn check_resumed(state: &str, first: i64) -> Checked {
    let bytes = (0..state.len()).step_by(2).map(|i| u8::from_str_radix(&state[i..i + 2], 16));
    let bytes = bytes.collect::<Result<Vec<_>, _>>()?;
    assert_eq!(StateInfo::read(&bytes)?.batch, first);
    let mut loader = loader_of(LENGTH, |b| b.seed(5).dataset::<Numbers>().state(bytes))?;
    let rest = loader.epoch(0)?.map(|batch| Ok(batch?.number())).collect::<Result<Vec<_>, Error>>()?;
    assert_eq!(rest, (first..BATCHES).collect::<Vec<_>>());
    Ok(())
}

/// Two consumers by descriptors, both epochs: `wanted` are the numbers of each one's batches.
fn shared(loader: &mut Loader, wanted: [String; 2], resumes_at: i64) -> Checked {
    let mut children = Vec::new();
    for id in 0..2 {
        let (given, fd) = loader.open_consumer(&ConsumerOptions::default())?;
        assert_eq!(given, id);
        children.push(start("-", Stdio::from(fd))?);
    }
    let full = loader.open_consumer(&ConsumerOptions::default()).err().ok_or("there are two places")?;
    assert_eq!(full.status, Status::LIMIT);
    assert_eq!(loader.consumers()?.len(), 2);
    serve_all(loader)?;
    let said = children.into_iter().map(lines_of).collect::<Result<Vec<_>, _>>()?;
    for (lines, wanted) in said.iter().zip(&wanted) {
        assert_eq!((lines.len(), &lines[0], &lines[1]), (3, wanted, wanted));
    }
    assert_eq!(said[0][2], said[1][2], "one state");
    check_resumed(&said[0][2], resumes_at)?;
    let events = std::iter::from_fn(|| loader.event().transpose()).collect::<Result<Vec<_>, _>>()?;
    assert_eq!(events.iter().filter(|event| event.kind == EventKind::ConsumerLeft).count(), 2);
    Ok(())
}

fn every_consumer_gets_every_batch() -> Checked {
    let mut loader = feeder(Share::Every, |b| b)?;
    shared(&mut loader, [numbers(0..BATCHES), numbers(0..BATCHES)], STATE_AFTER as i64)?;
    loader.close()?;
    Ok(())
}

fn batches_are_dealt_to_consumers() -> Checked {
    let whole = BATCHES - 1;
    let dealt = |end| [numbers((0..end).step_by(2)), numbers((1..end).step_by(2))];
    let mut loader = feeder(Share::Deal, |b| b)?;
    shared(&mut loader, dealt(whole), 2 * STATE_AFTER as i64)?;
    let mut loader = feeder(Share::Deal, |b| b.share_tail(true))?;
    shared(&mut loader, dealt(BATCHES), 2 * STATE_AFTER as i64)
}

fn consumers_join_by_a_path() -> Checked {
    let path = std::env::temp_dir().join(format!("feedlane-rust-{}", std::process::id()));
    let mut loader = feeder(Share::Every, |b| b.share_path(&path))?;
    let place = path.to_str().ok_or("a path of text")?;
    let children = [start(place, Stdio::null())?, start(place, Stdio::null())?];
    assert_eq!(loader.serve(TIMEOUT)?, Served::End, "both have joined");
    let consumers = loader.consumers()?;
    assert!(consumers.len() == 2 && consumers.iter().all(|consumer| consumer.state == ConsumerState::Attached));
    let pids = consumers.iter().filter_map(|consumer| consumer.pid).collect::<Vec<_>>();
    assert!(children.iter().all(|child| pids.contains(&i64::from(child.id()))), "{:?}", pids);
    serve_all(&mut loader)?;
    for child in children {
        assert_eq!(lines_of(child)?[..2], [numbers(0..BATCHES), numbers(0..BATCHES)]);
    }
    loader.close()?;
    let none = Loader::join_path(&path, &ConsumerOptions::default(), TIMEOUT).err().ok_or("nobody listens")?;
    assert_eq!(none.status, Status::PEER_DEAD, "{}", none);
    Ok(())
}

fn places_say_what_is_wrong_with_them() -> Checked {
    let mut loader = feeder(Share::Deal, |b| b)?;
    let observer = ConsumerOptions { lag: Lag::Observe, ..ConsumerOptions::default() };
    let refused = loader.open_consumer(&observer).err().ok_or("not with deal")?;
    assert_eq!(refused.status, Status::ARGUMENT, "{}", refused);
    let evicted = Lag::Evict { after: Some(Duration::from_secs(1)) };
    let (id, _fd) = loader.open_consumer(&ConsumerOptions { id: Some(1), lag: evicted })?;
    assert_eq!(id, 1);
    let found = loader.consumers()?.into_iter().find(|consumer| consumer.id == 1).ok_or("it is there")?;
    assert_eq!((found.state, found.pid, found.lag), (ConsumerState::Offered, None, feedlane::sys::FEEDLANE_LAG_EVICT));
    assert_eq!(loader.next_epoch().unwrap_err().status, Status::STATE);

    let order = Sampler::sequential(8)?;
    let mut alone = Loader::builder().sampler(&order).field::<i64>("x", &[]).dataset::<Numbers>().build()?;
    assert_eq!(alone.open_consumer(&ConsumerOptions::default()).unwrap_err().status, Status::STATE);
    let (nobody, _other) = std::os::unix::net::UnixStream::pair()?;
    let silent = Loader::join(OwnedFd::from(nobody), Some(Duration::from_millis(1))).err().ok_or("no feeder")?;
    assert_eq!(silent.status, Status::TIMEOUT, "{}", silent);
    Ok(())
}

/// A feeder that is killed is the end of an epoch, told once.
fn a_consumers_epoch_ends_with_its_feeder() -> Checked {
    let mut loader = feeder(Share::Every, |b| b.consumers(1))?;
    let (_, fd) = loader.open_consumer(&ConsumerOptions::default())?;
    let pool = Pool::new(&PoolOptions { backend: "none".into(), ..PoolOptions::default() })?;
    let theirs = pool.clone();
    let joined = std::thread::spawn(move || Loader::join_pinned(fd, &theirs, TIMEOUT));
    assert_eq!(loader.serve(TIMEOUT)?, Served::End, "it has joined");
    let mut consumer = joined.join().expect("no panic")?;
    assert!(pool.stats()?.registered_bytes > 0);
    let monitor = consumer.monitor()?;
    assert_eq!((monitor.info()?.next_epoch, monitor.stats()?.batches), (Some(0), 0));
    let refused = monitor.workers().unwrap_err();
    assert!(refused.status == Status::STATE && refused.text.contains("consumer"), "{}", refused);
    assert_eq!(monitor.trace(1).unwrap_err().argument, "monitor");
    loader.close()?;
    let ends = consumer.epoch(0)?.map(|item| item.unwrap_err().status).collect::<Vec<_>>();
    assert_eq!(ends, [Status::PEER_DEAD]);
    Ok(())
}

const CHECKS: &[Check] = checks! {
    every_consumer_gets_every_batch
    batches_are_dealt_to_consumers
    consumers_join_by_a_path
    places_say_what_is_wrong_with_them
    a_consumers_epoch_ends_with_its_feeder
};

fn main() -> ExitCode {
    if let Some(code) = feedlane::worker_main::<Numbers>() {
        return code;
    }
    let arguments: Vec<String> = std::env::args().collect();
    if let [_, flag, place] = arguments.as_slice() {
        if flag == CONSUMER {
            let end = consume(place);
            if let Err(error) = &end {
                let _ = writeln!(std::io::stderr(), "{}", error);
            }
            return end.map_or(ExitCode::FAILURE, |()| ExitCode::SUCCESS);
        }
    }
    checks::run(CHECKS)
}
