//! The figures for a person, and rows as points of a host's constants.

use std::io::{self, Write};

use thalweg_eval::{DrivePoint, DriveReader, HostConstants, Sustained};
use thalweg_store::io::ReaderKind;
use thalweg_store::probe::Row;

use crate::drive::Curve;

/// A row as the latency model reads it: every thread keeps one read under way, a ring several.
pub(crate) fn point(row: &Row) -> DrivePoint {
    let n = u32::try_from(row.n_threads.get()).unwrap_or(u32::MAX);
    let (n_threads, queue_depth) = match row.reader {
        Some(ReaderKind::Uring) => (1, n),
        _ => (n, 1),
    };
    let block_bytes = row.block_bytes.get() as u64;
    DrivePoint {
        cached: row.is_cached(),
        physical_ratio: row.physical_ratio(),
        reader: row.reader.and_then(reader),
        ..DrivePoint::new(n_threads, queue_depth, block_bytes, row.gb_per_s())
    }
}

/// A reader's name in the file; `None` for one that the format does not know.
fn reader(kind: ReaderKind) -> Option<DriveReader> {
    match kind {
        ReaderKind::Pread => Some(DriveReader::Pread),
        ReaderKind::Pool => Some(DriveReader::Pool),
        ReaderKind::Uring => Some(DriveReader::Uring),
        _ => None,
    }
}

pub(crate) fn print(
    host: &HostConstants,
    curve: Option<&Curve>,
    products: Option<&Sustained>,
) -> io::Result<()> {
    let mut out = io::stdout().lock();
    for (name, value) in &host.facts {
        writeln!(out, "{name:<16} {value}")?;
    }
    if let Some(curve) = curve {
        let gib = curve.size_bytes as f64 / f64::from(1 << 30);
        writeln!(
            out,
            "\ndrive: {} reads of a file of {gib:.2} GiB",
            curve.mode
        )?;
        let head = [
            "reader", "threads", "block", "GB/s", "MB read", "counted", "verdict",
        ];
        let [reader, threads, block, rate, read, counted, verdict] = head;
        writeln!(
            out,
            "{reader:<7} {threads:>7} {block:>9} {rate:>7} {read:>8} {counted:>8}  {verdict}"
        )?;
        for row in &curve.rows {
            let ratio = row.physical_ratio();
            writeln!(
                out,
                "{:<7} {:>7} {:>9} {:>7.3} {:>8.1} {:>8}  {}{}{}",
                row.reader.map_or("threads", ReaderKind::name),
                row.n_threads,
                row.block_bytes,
                row.gb_per_s(),
                row.bytes as f64 / 1e6,
                ratio.map_or_else(|| "n/a".to_owned(), |ratio| format!("{ratio:.4}")),
                if row.is_cached() {
                    "cached"
                } else {
                    "physical"
                },
                if row.mode == curve.mode {
                    String::new()
                } else {
                    format!(", {}", row.mode)
                },
                if row.fresh { "" } else { ", read again" },
            )?;
        }
    }
    if let Some(run) = products {
        let sag = run.sag();
        writeln!(
            out,
            "\ngemm: {:.2} GFLOP/s over {} s, sag {}",
            run.flops_per_s / 1e9,
            run.bucket_flops_per_s.len(),
            sag.map_or_else(|| "n/a".to_owned(), |sag| format!("{:.2} %", 100.0 * sag)),
        )?;
    }
    Ok(())
}
