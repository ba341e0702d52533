// SPDX-License-Identifier: Apache-2.0
//! Arenas: an owner, and members in processes of their own. This program is its own member and its own owner, so it has
//! its own main.
mod checks;
mod members;

use std::collections::HashMap;
use std::io::Write;
use std::os::unix::io::AsRawFd;
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use feedlane::{Arena, ArenaInfo, ArenaOptions, Error, EventKind, Failure, Field, Full, GetOrMake, Put, Status};

use checks::{checks, Check, Checked};
use members::{
    eventually, look, numbers, options, put, run_process, value_of, while_served, Process, AT_ONCE, MIB, PATIENCE,
    PROCESS, QUARTER, SENT,
};

fn an_entry_is_got_as_it_was_put() -> Checked {
    let arena = Arena::new(&options(Full::Evict))?;
    let fields = [Field::new::<u8>("pixels", &[2, 3]), Field::new::<f32>("label", &[]), Field::new::<i8>("e", &[0, 5])];
    let mut entry = arena.reserve(&Put::new(&fields).key("key").metadata(b"meta"), None)?;
    entry.write(0, b"abcdef")?;
    entry.tensor_mut(1)?.values_mut::<f32>()?.set(0, 2.5);
    let wrong = entry.write(0, b"abc").unwrap_err();
    assert_eq!((wrong.argument.as_str(), wrong.found, wrong.needed), ("values", 3, 6), "{}", wrong);
    assert_eq!(entry.write(1, &[1i64]).unwrap_err().text, "the tensor's elements are float32, not int64");
    assert_eq!(entry.write(3, &[1i64]).unwrap_err().argument, "tensor");
    assert!(arena.get("key", AT_ONCE)?.is_none(), "not before it is published");
    entry.publish(None)?;

    let mut got = arena.get("key", AT_ONCE)?.ok_or("it is there")?;
    assert_eq!((got.tensor_count(), got.worker(), got.rows()), (3, Some(0), 0));
    assert_eq!(got.field("pixels")?.shape(), [2, 3]);
    assert_eq!(got.metadata().to_vec(), b"meta");
    assert_eq!(got.field("label")?.values::<f32>()?.to_vec(), [2.5]);
    assert_eq!(got.field("e")?.bytes().len(), 0);
    let refused = got.tensor_mut(0).err().ok_or("entries are read-only")?;
    assert_eq!(refused.status, Status::STATE, "{}", refused);
    put(&arena, Some("key"), 7, 10, None)?;
    assert_eq!(look(&arena, "key", AT_ONCE)?, Some(7), "replaced");
    arena.drop_key("key", None)?;
    assert_eq!(look(&arena, "key", AT_ONCE)?, None, "dropped");
    assert_eq!(got.field("pixels")?.bytes().to_vec(), b"abcdef", "what is held stays");
    let stats = arena.stats()?;
    assert_eq!((stats.bytes, stats.entries, stats.held, stats.published), (MIB, 1, 1, 2));
    drop(got);
    assert_eq!(arena.stats()?.held, 0);
    Ok(())
}

fn a_reservation_gives_its_memory_back() -> Checked {
    let arena = Arena::new(&options(Full::Wait))?;
    for _ in 0..100 {
        let entry = arena.reserve(&Put::new(&numbers(QUARTER)).key("key"), AT_ONCE)?;
        assert_eq!(arena.stats()?.held, 1);
        drop(entry);
    }
    assert_eq!((arena.stats()?.held, arena.stats()?.used_bytes), (0, 0));
    assert!(arena.get("key", AT_ONCE)?.is_none());
    Ok(())
}

fn members_get_what_others_have_put() -> Checked {
    let options = options(Full::Evict);
    let arena = Arena::new(&options)?;
    put(&arena, Some("of the owner"), 1, 10, None)?;
    let by_path = Process::start("put", &options)?;
    let mut offered = Command::new(std::env::current_exe()?);
    let mut offered = offered.args([PROCESS, "offered", "-"]).stdin(Stdio::from(arena.offer()?)).spawn()?;
    assert_eq!(look(&arena, "of the member", PATIENCE)?, Some(2));
    put(&arena, Some("late"), 3, 10, None)?;
    while_served(&arena, || -> Checked {
        by_path.finish()?;
        assert!(offered.wait()?.success());
        eventually(|| Ok(arena.stats()?.members == 1))
    })?;
    assert_eq!(look(&arena, "of the member", AT_ONCE)?, Some(2), "it stays after its maker's end");
    let events = std::iter::from_fn(|| arena.event().transpose()).collect::<Result<Vec<_>, _>>()?;
    assert_eq!(events.iter().filter(|event| event.kind == EventKind::ConsumerLeft).count(), 2, "{:?}", events);
    Ok(())
}

fn streams_are_in_order_both_ways() -> Checked {
    let options = options(Full::Wait);
    let arena = Arena::new(&options)?;
    let mut members = [Process::start("stream", &options)?, Process::start("stream", &options)?];
    while_served(&arena, || -> Checked {
        for member in &mut members {
            assert_eq!(member.line()?, "joined");
        }
        Ok(())
    })?;
    for k in 0..SENT {
        put(&arena, None, k, 1 + k % 50, PATIENCE)?;
    }
    let mut next = HashMap::new();
    for _ in 0..2 * SENT {
        let batch = arena.receive(PATIENCE)?;
        let wanted: &mut i64 = next.entry(batch.worker()).or_default();
        assert_eq!(value_of(&batch)?, *wanted);
        *wanted += 1;
    }
    assert_eq!(next, HashMap::from([(Some(1), SENT), (Some(2), SENT)]));
    assert_eq!(arena.receive(AT_ONCE).unwrap_err().status, Status::TIMEOUT);
    while_served(&arena, || members.into_iter().try_for_each(Process::finish))?;
    assert_eq!(arena.stats()?.entries, 0);
    Ok(())
}

/// The first maker is killed, the second gives up, the third makes the entry.
fn one_process_makes_an_entry_and_the_next_if_it_is_killed() -> Checked {
    let options = options(Full::Evict);
    let arena = Arena::new(&options)?;
    while_served(&arena, || -> Checked {
        let mut killed = Process::start("make", &options)?;
        assert_eq!(killed.line()?, "makes");
        let mut second = Process::start("make", &options)?;
        eventually(|| Ok(arena.stats()?.waiting == 1))?;
        let mut third = Process::start("make", &options)?;
        eventually(|| Ok(arena.stats()?.waiting == 2))?;
        killed.kill()?;
        assert_eq!(second.line()?, "makes", "the right of a killed process");
        second.tell("give up")?;
        assert_eq!(second.line()?, "gave up");
        assert_eq!(third.line()?, "makes", "the right that was dropped");
        third.tell("put")?;
        assert_eq!(third.line()?, "put");
        second.finish()?;
        third.finish()
    })?;
    assert_eq!(look(&arena, "key", PATIENCE)?, Some(8), "a used right leaves its entry");
    Ok(())
}

fn a_right_is_given_up_unless_its_entry_is_published() -> Checked {
    let arena = Arena::new(&options(Full::Evict))?;
    let right = |arena: &Arena| match arena.get_or_make("key", AT_ONCE) {
        Ok(GetOrMake::Make(right)) => Ok(right),
        other => Err(Failure::from(format!("a right, not {:?}", other))),
    };
    let first = right(&arena)?;
    assert_eq!(first.key(), b"key");
    let refused = arena.get_or_make("key", AT_ONCE).unwrap_err();
    assert_eq!(refused.status, Status::TIMEOUT, "{}", refused);
    drop(first);
    drop(right(&arena)?.reserve(&Put::new(&numbers(1)), None)?);
    // An interrupt that waits for the next call does not keep the right.
    let interrupted = right(&arena)?;
    arena.interrupt()?;
    drop(interrupted);
    let large = right(&arena)?.reserve(&Put::new(&numbers(MIB as i64)), None).unwrap_err();
    assert_eq!(large.status, Status::LIMIT);
    let mut entry = right(&arena)?.reserve(&Put::new(&numbers(1)).key("another"), None)?;
    entry.write(0, &[5i64])?;
    entry.publish(None)?;
    assert_eq!(look(&arena, "key", AT_ONCE)?, Some(5), "the key of the right");
    assert!(matches!(arena.get_or_make("key", AT_ONCE)?, GetOrMake::Found(_)));
    Ok(())
}

fn a_full_arena_evicts_what_nobody_uses() -> Checked {
    let arena = Arena::new(&options(Full::Evict))?;
    let fields = numbers(QUARTER);
    let mut pinned = arena.reserve(&Put::new(&fields).key("pinned").pinned(true), AT_ONCE)?;
    pinned.tensor_mut(0)?.values_mut::<i64>()?.fill(0);
    pinned.publish(AT_ONCE)?;
    for (value, key) in [(1, "held"), (2, "old"), (3, "used")] {
        put(&arena, Some(key), value, QUARTER, AT_ONCE)?;
    }
    let held = arena.get("held", AT_ONCE)?.ok_or("it is there")?;
    assert_eq!(look(&arena, "used", AT_ONCE)?, Some(3));
    put(&arena, Some("new"), 4, QUARTER, AT_ONCE)?;
    assert_eq!((look(&arena, "old", AT_ONCE)?, look(&arena, "used", AT_ONCE)?), (None, Some(3)));
    for k in 0..10 {
        put(&arena, Some(&k.to_string()), k, QUARTER, AT_ONCE)?;
    }
    assert_eq!(value_of(&held)?, 1);
    assert_eq!((look(&arena, "held", AT_ONCE)?, look(&arena, "pinned", AT_ONCE)?), (Some(1), Some(0)));
    assert_eq!(arena.stats()?.evicted, 11);
    Ok(())
}

fn a_full_arena_waits_for_another_process_or_fails() -> Checked {
    let waits = options(Full::Wait);
    let arena = Arena::new(&waits)?;
    for (k, key) in ["held", "1", "2", "3"].into_iter().enumerate() {
        put(&arena, Some(key), k as i64, QUARTER, AT_ONCE)?;
    }
    while_served(&arena, || -> Checked {
        let mut holder = Process::start("hold", &waits)?;
        assert_eq!(holder.line()?, "holds");
        arena.drop_key("held", PATIENCE)?;
        let late = put(&arena, Some("more"), 6, QUARTER, AT_ONCE).unwrap_err();
        assert!(late.status == Status::TIMEOUT && late.text.contains("drop batches"), "{}", late);
        std::thread::scope(|scope| -> Checked {
            let putter = scope.spawn(|| put(&arena, Some("more"), 6, QUARTER, PATIENCE));
            eventually(|| Ok(arena.stats()?.waiting == 1))?;
            holder.tell("release")?;
            holder.finish()?;
            Ok(putter.join().expect("no panic")?)
        })?;
        assert_eq!(look(&arena, "more", AT_ONCE)?, Some(6));
        Ok(())
    })?;

    let arena = Arena::new(&options(Full::Fail))?;
    for k in 0..4 {
        put(&arena, Some(&k.to_string()), k, QUARTER, AT_ONCE)?;
    }
    let full = put(&arena, Some("more"), 4, QUARTER, PATIENCE).unwrap_err();
    assert_eq!(full.status, Status::LIMIT, "{}", full);
    assert!(full.needed >= 8 * QUARTER && full.found < full.needed, "{}", full);
    let large = put(&arena, Some("large"), 4, MIB as i64 / 8, PATIENCE).unwrap_err();
    assert_eq!((large.status, large.found), (Status::LIMIT, MIB as i64 / 3), "{}", large);
    Ok(())
}

fn what_is_held_outlives_the_arena() -> Checked {
    let arena = Arena::new(&options(Full::Evict))?;
    put(&arena, Some("key"), 7, 10, None)?;
    let (held, exported) = (arena.get("key", None)?.ok_or("it")?, arena.get("key", None)?.ok_or("it")?);
    let exported = exported.into_dlpack()?;
    let mut entry = arena.reserve(&Put::new(&numbers(1)), None)?;
    let right = match arena.get_or_make("missing", None)? {
        GetOrMake::Make(right) => right,
        GetOrMake::Found(_) => return Err("there is no such entry".into()),
    };
    drop(arena);
    assert_eq!(value_of(&held)?, 7);
    entry.write(0, &[1i64])?;
    let late = entry.publish(None).unwrap_err();
    assert_eq!(late.error.status, Status::STATE, "{}", late);
    drop((late, right));
    // SAFETY: the tensor is held.
    let raw = unsafe { &*exported[0].as_ptr() };
    assert_eq!(raw.flags & 1, 1, "read-only, says DLPack");
    // SAFETY: ten numbers, which are held.
    assert_eq!(unsafe { raw.dl_tensor.data.cast::<i64>().add(9).read() }, 7);
    std::thread::spawn(move || drop((held, exported))).join().expect("any thread releases");
    Ok(())
}

fn members_know_of_their_owners_end() -> Checked {
    let options = options(Full::Evict);
    let mut owner = Process::start("owner", &options)?;
    assert_eq!(owner.line()?, "ready");
    let member = Arena::join_path(options.path.as_ref().ok_or("a path")?, PATIENCE)?;
    let held = member.get("held", PATIENCE)?.ok_or("it is there")?;
    assert_eq!(member.stats()?.bytes, MIB);
    let mut made = member.reserve(&Put::new(&numbers(1)).key("new"), PATIENCE)?;
    owner.kill()?;
    assert_eq!(member.get("missing", PATIENCE).unwrap_err().status, Status::PEER_DEAD);
    assert_eq!(member.receive(PATIENCE).unwrap_err().status, Status::PEER_DEAD);
    made.write(0, &[1i64])?;
    let mut kept = made.publish(PATIENCE).unwrap_err();
    assert_eq!(kept.error.status, Status::PEER_DEAD);
    kept.held.write(0, &[2i64])?;
    drop(kept);
    assert_eq!((value_of(&held)?, look(&member, "there", AT_ONCE)?), (1, Some(2)));
    drop(member);
    assert_eq!(value_of(&held)?, 1);
    std::fs::remove_file(options.path.ok_or("a path")?)?;
    Ok(())
}

fn waits_end_by_timeout_interrupt_and_close() -> Checked {
    let arena = Arena::new(&options(Full::Evict))?;
    assert!(arena.get("key", Some(Duration::from_millis(1)))?.is_none());
    arena.interrupt()?;
    let ended = arena.get("key", PATIENCE).unwrap_err();
    assert_eq!(ended.status, Status::INTERRUPTED, "{}", ended);
    assert!(!ended.text.is_empty());
    arena.serve(AT_ONCE)?;
    std::thread::scope(|scope| -> Checked {
        let waits = [scope.spawn(|| arena.get("key", None).map(drop)), scope.spawn(|| arena.receive(None).map(drop))];
        eventually(|| Ok(arena.stats()?.waiting == 1))?;
        arena.close()?;
        for wait in waits {
            assert_eq!(wait.join().expect("no panic").unwrap_err().status, Status::STATE);
        }
        Ok(())
    })?;
    let closed = arena.stats().unwrap_err();
    assert_eq!((closed.status, closed.text.as_str()), (Status::STATE, "the arena has ended"));
    assert_eq!(arena.arm().unwrap_err().text, "the arena has ended");
    Ok(())
}

fn an_event_loop_sleeps_on_one_descriptor() -> Checked {
    let arena = Arena::new(&options(Full::Evict))?;
    let fd = arena.arm()?.ok_or("there is nothing to do")?.as_raw_fd();
    let offered = arena.offer()?;
    // It joins and sends; the owner serves it between two sleeps.
    let member = std::thread::spawn(move || -> Result<(), Error> {
        let member = Arena::join(offered, PATIENCE)?;
        put(&member, None, 3, 1, PATIENCE)
    });
    let mut got = None;
    eventually(|| {
        if let Some(sleeps) = arena.arm()? {
            assert_eq!(sleeps.as_raw_fd(), fd);
            return Ok(false);
        }
        match arena.receive(AT_ONCE) {
            Ok(batch) => got = Some(value_of(&batch)?),
            Err(error) => assert_eq!(error.status, Status::TIMEOUT),
        }
        Ok(got.is_some())
    })?;
    assert_eq!(got, Some(3));
    member.join().expect("no panic")?;
    Ok(())
}

fn an_arena_is_read_from_outside() -> Checked {
    let options = options(Full::Evict);
    let arena = Arena::new(&options)?;
    put(&arena, Some("held"), 0, 10, None)?;
    while_served(&arena, || -> Checked {
        let mut holder = Process::start("hold", &options)?;
        assert_eq!(holder.line()?, "holds");
        let pid = i64::from(std::process::id());
        let read = || ArenaInfo::read(pid, 0).map(|info| info.expect("there is one arena"));
        eventually(|| Ok(read()?.stats.leased == 1))?;
        let info = read()?;
        assert_eq!((info.stats.owner, info.stats.members, info.stats.entries), (Some(pid), 2, 1));
        let found: Vec<_> = info.members.iter().map(|m| (m.number, m.pid, m.held, m.is_cut_off)).collect();
        assert_eq!(found, [(0, Some(pid), 0, false), (1, Some(holder.pid()), 1, false)]);
        assert_eq!(ArenaInfo::read(pid, 1)?, None);
        holder.finish()
    })
}

fn errors_say_what_is_wrong() -> Checked {
    let small = Arena::new(&ArenaOptions::default()).err().ok_or("without bytes")?;
    assert_eq!((small.status, small.argument.as_str()), (Status::ARGUMENT, "config.bytes"), "{}", small);
    let options = ArenaOptions { leases: 1, ..options(Full::Evict) };
    let arena = Arena::new(&options)?;
    for (key, bytes) in [(String::new(), 0), ("k".repeat(65), 65)] {
        let refused = [
            arena.get(&key, None).err(),
            arena.get_or_make(&key, None).err(),
            arena.drop_key(&key, None).err(),
            arena.reserve(&Put::new(&numbers(1)).key(&key), None).err(),
        ];
        for error in refused {
            let error = error.ok_or("a bad key")?;
            assert_eq!((error.status, error.found), (Status::ARGUMENT, bytes), "{}", error);
        }
    }
    let unstored = arena.reserve(&Put::new(&numbers(1)).pinned(true), None).unwrap_err();
    assert_eq!(unstored.argument, "put.pinned", "{}", unstored);
    let zero = arena.reserve(&Put::new(&[Field::new::<i64>("a\0b", &[1])]), None).unwrap_err();
    assert_eq!(zero.argument, "field.name");
    let held = arena.reserve(&Put::new(&numbers(1)), None)?;
    let full = arena.reserve(&Put::new(&numbers(1)), None).unwrap_err();
    assert!(full.status == Status::SLOTS_HELD && full.text.contains("config.leases"), "{}", full);
    drop(held);
    let path = options.path.as_ref().ok_or("a path")?;
    let twice = Arena::new(&options).err().ok_or("it is taken")?;
    assert_eq!(twice.status, Status::STATE, "{}", twice);
    drop(arena);
    let nobody = Arena::join_path(path, PATIENCE).err().ok_or("nobody listens")?;
    assert_eq!(nobody.status, Status::PEER_DEAD, "{}", nobody);
    Ok(())
}

const CHECKS: &[Check] = checks! {
    an_entry_is_got_as_it_was_put
    a_reservation_gives_its_memory_back
    members_get_what_others_have_put
    streams_are_in_order_both_ways
    one_process_makes_an_entry_and_the_next_if_it_is_killed
    a_right_is_given_up_unless_its_entry_is_published
    a_full_arena_evicts_what_nobody_uses
    a_full_arena_waits_for_another_process_or_fails
    what_is_held_outlives_the_arena
    members_know_of_their_owners_end
    waits_end_by_timeout_interrupt_and_close
    an_event_loop_sleeps_on_one_descriptor
    an_arena_is_read_from_outside
    errors_say_what_is_wrong
};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().collect();
    if let [_, flag, role, path] = arguments.as_slice() {
        if flag == PROCESS {
            let end = run_process(role, path);
            if let Err(error) = &end {
                let _ = writeln!(std::io::stderr(), "{}: {}", role, error);
            }
            return end.map_or(ExitCode::FAILURE, |()| ExitCode::SUCCESS);
        }
    }
    checks::run(CHECKS)
}
