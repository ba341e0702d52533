// SPDX-License-Identifier: Apache-2.0
//! Misuse that doesn't compile. Each file of compile-fail/ is given to rustc; its second line says with which error, and
//! no other, it must be refused. The control case uses the same functions rightly, so that a file isn't refused for
//! something else.
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use feedlane::{Dataset, Loader, Row, Sampler, Status, WorkerInfo};

struct Scratch(PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn rustc() -> Command {
    Command::new(std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()))
}

/// Checks a source file as rustc does for a build, without making machine code.
fn check(source: &Path, name: &str, external: &[&str], scratch: &Path) -> Output {
    let mut rustc = rustc();
    rustc.args(["--edition=2021", "--crate-type=lib", "--emit=metadata", "--crate-name", name]);
    rustc.arg("-L").arg(scratch).arg("--out-dir").arg(scratch).arg(source);
    for dependency in external {
        let file = scratch.join(format!("lib{}.rmeta", dependency));
        rustc.arg("--extern").arg(format!("{}={}", dependency, file.display()));
    }
    rustc.output().expect("rustc, or $RUSTC")
}

/// Most misuse doesn't compile: a released batch, a loader that was closed. The rest is an error that names what is wrong.
#[test]
fn misuse() -> Result<(), feedlane::Failure> {
    misuse_is_refused_by_the_compiler();
    let order = Sampler::sequential(4)?;
    let builder = || Loader::builder().sampler(&order).dataset::<Nothing>().field::<f32>("x", &[]);
    let refused = builder().batch_size(-7).build().err().ok_or("a batch size of -7")?;
    let said = (refused.status, refused.argument.as_str(), refused.found);
    assert_eq!(said, (Status::ARGUMENT, "config.batch_size", -7), "{}", refused);

    let (mut loader, mut other) = (builder().build()?, builder().build()?);
    let handle = loader.handle();
    let batch = loader.epoch(0)?.next().ok_or("a batch")??;
    let wrong = batch.tensor(0)?.values::<i64>().unwrap_err();
    assert_eq!(
        (wrong.argument.as_str(), wrong.text.as_str()),
        ("dtype", "the tensor's elements are float32, not int64")
    );
    assert_eq!(batch.tensor(1).err().ok_or("there is one")?.text, "tensor 1 is out of range: the batch has 1");
    assert_eq!(other.state(Some(&batch)).unwrap_err().text, "the batch belongs to another loader");
    loader.close()?;
    let closed = handle.monitor().err().ok_or("it was closed")?;
    assert_eq!((closed.status, closed.text.as_str()), (Status::STATE, "the loader has ended"));
    let never = other.next(None).err().ok_or("no epoch was begun")?;
    assert_eq!(never.status, Status::STATE, "{}", never);
    Ok(())
}

struct Nothing;

impl Dataset for Nothing {
    fn open(_info: &WorkerInfo<'_>) -> Result<Self, feedlane::Failure> {
        Ok(Nothing)
    }

    fn get(&mut self, row: &mut Row<'_>) -> Result<(), feedlane::Failure> {
        let unfit = row.write(0, &[1f32, 2.0]).unwrap_err();
        assert_eq!((unfit.argument.as_str(), unfit.found, unfit.needed), ("values", 2, 1));
        Ok(())
    }
}

fn misuse_is_refused_by_the_compiler() {
    let scratch = Scratch(std::env::temp_dir().join(format!("feedlane-compile-fail-{}", std::process::id())));
    fs::create_dir_all(&scratch.0).expect("a folder of our own");
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    for (source, name, external) in [
        (here.join("../feedlane-sys/src/lib.rs"), "feedlane_sys", &[][..]),
        (here.join("src/lib.rs"), "feedlane", &["feedlane_sys"][..]),
    ] {
        let built = check(&source, name, external, &scratch.0);
        assert!(built.status.success(), "{}:\n{}", name, String::from_utf8_lossy(&built.stderr));
    }

    let (mut refused, mut wrong) = (0, Vec::new());
    let mut cases: Vec<PathBuf> = fs::read_dir(here.join("tests/compile-fail"))
        .expect("the cases")
        .map(|e| e.expect("an entry").path())
        .collect();
    cases.sort();
    for case in cases {
        let text = fs::read_to_string(&case).expect("a case");
        let wanted = text.lines().nth(1).and_then(|line| line.strip_prefix("// ")).expect("what is expected");
        let wanted = wanted.split(':').next().expect("a word").strip_prefix("error ");
        let name = case.file_stem().and_then(|n| n.to_str()).expect("a name").to_string();
        let said = check(&case, &name, &["feedlane"], &scratch.0);
        let errors = String::from_utf8_lossy(&said.stderr).into_owned();
        let mut codes: Vec<&str> =
            errors.lines().filter_map(|l| l.strip_prefix("error[")).filter_map(|l| l.split(']').next()).collect();
        codes.dedup();
        if codes != wanted.into_iter().collect::<Vec<_>>() || said.status.success() != wanted.is_none() {
            wrong.push(format!("{}: {:?} expected, {:?} found\n{}", name, wanted, codes, errors));
        }
        refused += i32::from(wanted.is_some());
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(refused >= 37, "{} cases", refused);
}
