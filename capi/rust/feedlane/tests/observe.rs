// SPDX-License-Identifier: Apache-2.0
//! What a trainer sees of its own run: stamps, timings, the trace, the diagnosis and the report.
use feedlane::{Bound, Dataset, Failure, Loader, Row, Sampler, Stamps, Status, WorkerInfo};

struct Numbers;

impl Dataset for Numbers {
    fn open(_info: &WorkerInfo<'_>) -> Result<Self, Failure> {
        Ok(Numbers)
    }

    fn get(&mut self, row: &mut Row<'_>) -> Result<(), Failure> {
        let index = row.index();
        Ok(row.fill(0, index)?)
    }
}

fn assert_ordered(stamps: &Stamps) {
    let all = [stamps.dispatched_ns, stamps.begun_ns, stamps.committed_ns, stamps.swept_ns, stamps.yielded_ns];
    assert!(all[0] > 0 && all.windows(2).all(|pair| pair[0] <= pair[1]), "{:?}", stamps);
}

#[test]
fn a_run_says_how_it_went() -> Result<(), Failure> {
    let builder = Loader::builder().name("digits").trace(100).batch_size(5);
    let mut loader = builder.sampler(&Sampler::sequential(60)?).dataset::<Numbers>().field::<i64>("x", &[]).build()?;
    let mut yielded = Vec::new();
    for batch in loader.epoch(0)? {
        let batch = batch?;
        assert_ordered(&batch.stamps());
        yielded.push((batch.number(), batch.stamps()));
    }
    assert_eq!(yielded.len(), 12);

    let monitor = loader.monitor()?;
    let info = monitor.info()?;
    assert_eq!((info.name.as_str(), info.trace, info.batches, info.in_epoch), ("digits", 100, Some(12), false));
    let trace = monitor.trace(1)?;
    assert_eq!(trace.iter().map(|r| (r.batch, r.stamps)).collect::<Vec<_>>(), yielded, "a record for each batch");
    assert_eq!(trace.iter().map(|r| r.sequence).collect::<Vec<_>>(), (1..=12).collect::<Vec<_>>());
    assert_eq!(monitor.trace(12)?.len(), 1);
    assert!(monitor.trace(13)?.is_empty() && !monitor.slots()?.is_empty() && monitor.errors()?.is_empty());

    let timings = monitor.timings(None)?.ok_or("all workers")?;
    let work: u64 = yielded.iter().map(|(_, s)| s.committed_ns - s.begun_ns).sum();
    assert_eq!((timings.work.count, timings.work.sum_ns), (12, work));
    assert_eq!(timings.work.buckets.iter().sum::<u64>(), 12);
    assert_eq!((timings.start.count, timings.exposed.count), (1, 11));
    assert!(monitor.timings(Some(1))?.is_none(), "there is no such worker");

    let diagnosis = monitor.diagnose()?;
    assert_eq!((diagnosis.batches, diagnosis.samples), (12, 60));
    assert!(!matches!(diagnosis.bound, Bound::Other(_)) && !diagnosis.text.is_empty());
    let report = loader.report()?;
    assert!(report.contains("12 batches") && report.contains("digits") && report.contains("\nbound: "), "{}", report);
    assert_eq!(monitor.report()?, report);

    let stats = monitor.stats()?;
    loader.close()?;
    assert_eq!((monitor.stats()?, monitor.trace(1)?.len()), (stats, 12), "a monitor keeps the last values");
    Ok(())
}

#[test]
fn a_trace_that_is_off_is_an_error() -> Result<(), Failure> {
    let loader =
        Loader::builder().sampler(&Sampler::sequential(6)?).dataset::<Numbers>().field::<i64>("x", &[]).build()?;
    let refused = loader.monitor()?.trace(1).unwrap_err();
    assert_eq!((refused.status, refused.argument.as_str()), (Status::STATE, "config.trace"));
    Ok(())
}
