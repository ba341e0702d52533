// SPDX-License-Identifier: Apache-2.0
//! For test programs that are their own workers, and so have a main of their own: each check is a function.
use std::process::ExitCode;

use feedlane::Failure;

pub type Checked = Result<(), Failure>;
pub type Check = (&'static str, fn() -> Checked);

/// The functions of these names.
macro_rules! checks {
    ($($name:ident)*) => { &[$((stringify!($name), $name as fn() -> $crate::checks::Checked),)*] };
}
pub(crate) use checks;

/// Runs those that the program's arguments name, or all.
pub fn run(checks: &[Check]) -> ExitCode {
    let wanted: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with('-')).collect();
    let mut failed = 0;
    for (name, check) in checks {
        if !wanted.is_empty() && !wanted.iter().any(|word| name.contains(word.as_str())) {
            continue;
        }
        let outcome = std::panic::catch_unwind(check);
        let end = match outcome {
            Ok(Ok(())) => "ok".to_string(),
            Ok(Err(error)) => format!("FAILED: {}", error),
            Err(_) => "FAILED: panicked".to_string(),
        };
        failed += i32::from(end != "ok");
        println!("test {} ... {}", name, end);
    }
    println!("{} failed", failed);
    ExitCode::from(u8::from(failed > 0))
}
