//! `HostConstants`: what was measured on one machine, and the JSON file that carries it.
//!
//! Owns the schema (`docs/formats/host.md`) and its checks. Does not measure. Invariants of a value
//! that was read or passed `check`: 1. every rate is finite and positive; 2. threads, queue depth
//! and block size of a point are at least 1; 3. a point marked `cached` never enters a curve.
//! Cost: a few hundred bytes; reading is bounded by [`MAX_FILE_BYTES`].

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Read;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::error::{not_negative, positive};
use crate::latency::BandwidthCurve;
use crate::{Error, Result};

/// The `format` of the JSON object.
pub const HOST_FORMAT: &str = "thalweg-host";
/// The `version` of the JSON object.
pub const HOST_VERSION: u32 = 1;
/// A file above this size is refused: it is something else.
pub const MAX_FILE_BYTES: u64 = 1 << 20;

/// What one machine can do, as measured on it.
///
/// ```
/// use thalweg_eval::{DrivePoint, HostConstants};
/// let mut host = HostConstants::default();
/// host.drive.push(DrivePoint::new(4, 1, 1_392_640, 6.8));
/// host.decode_floor_ms = Some(12.0);
/// let text = host.to_json()?;
/// assert_eq!(HostConstants::from_json(&text)?, host);
/// # Ok::<(), thalweg_eval::Error>(())
/// ```
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(try_from = "HostFile", into = "HostFile")]
pub struct HostConstants {
    /// What the figures belong to, for a reader: `cpu`, `drive`, `os`, `date`, `command`, ... Not
    /// interpreted.
    pub facts: BTreeMap<String, String>,
    /// Bandwidth of the drive under several ways of reading.
    pub drive: Vec<DrivePoint>,
    /// Speed of dense matrix products, if measured.
    pub gemm: Option<Gemm>,
    /// Time of a decode token that misses no expert, in milliseconds, if measured.
    pub decode_floor_ms: Option<f64>,
    /// Prompt tokens a second when no expert has to be read, if measured.
    pub prefill_ceiling_tokens_per_s: Option<f64>,
}

/// Bandwidth of the drive under one way of reading.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DrivePoint {
    /// Threads that read at the same time.
    pub threads: u32,
    /// Reads that each thread keeps under way: 1 for plain positioned reads.
    pub queue_depth: u32,
    /// Bytes of one read.
    pub block_bytes: u64,
    /// Bytes read over time taken; 1 GB is 1e9 bytes.
    pub gb_per_s: f64,
    /// Whether some of it came from memory: bytes that the device counted differ from the bytes
    /// asked for by more than 1 %, or the device's count is not known.
    #[serde(default)]
    pub cached: bool,
    /// Bytes that the device counted over bytes asked for, where a count is to be had.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub physical_ratio: Option<f64>,
    /// What read: a backend of the store by name, or plain threads without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reader: Option<DriveReader>,
}

/// A way of reading that has a name of its own.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum DriveReader {
    /// One read at a time, through the page cache.
    Pread,
    /// Threads with a common queue.
    Pool,
    /// A ring of the Linux kernel.
    Uring,
}

impl DrivePoint {
    /// A point that was read from the device, without its count.
    #[must_use]
    pub const fn new(threads: u32, queue_depth: u32, block_bytes: u64, gb_per_s: f64) -> Self {
        Self {
            threads,
            queue_depth,
            block_bytes,
            gb_per_s,
            cached: false,
            physical_ratio: None,
            reader: None,
        }
    }

    /// Reads under way together: threads times queue depth.
    #[must_use]
    pub const fn outstanding(&self) -> u64 {
        // Two u32, so within u64.
        self.threads as u64 * self.queue_depth as u64
    }
}

/// Speed of dense matrix products.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Gemm {
    /// Floating point operations a second over the whole run; a multiply-add counts as two.
    pub flops_per_s: f64,
    /// 1 - (mean of the last five seconds / mean of the first five): what heat costs. Negative if
    /// the machine became faster.
    pub sag: f64,
}

impl HostConstants {
    /// Reads a file.
    ///
    /// # Errors
    /// [`Error::Io`], also for a file above [`MAX_FILE_BYTES`]; [`Error::NotAFile`];
    /// [`Error::InFile`] around what [`from_json`](Self::from_json) finds.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let fail = |action| {
            move |source| Error::Io {
                path: path.to_path_buf(),
                action,
                source,
            }
        };
        // Opening a pipe would wait for its other end.
        let metadata = fs::metadata(path).map_err(fail("open"))?;
        if !metadata.is_file() {
            return Err(Error::NotAFile {
                path: path.to_path_buf(),
            });
        }
        let file = File::open(path).map_err(fail("open"))?;
        let mut text = String::new();
        // One byte more than allowed, so that a longer file shows.
        file.take(MAX_FILE_BYTES + 1)
            .read_to_string(&mut text)
            .map_err(fail("read"))?;
        if text.len() as u64 > MAX_FILE_BYTES {
            return Err(fail("read all of")(std::io::ErrorKind::FileTooLarge.into()));
        }
        Self::from_json(&text).map_err(|source| Error::InFile {
            path: path.to_path_buf(),
            source: Box::new(source),
        })
    }

    /// Reads JSON text and checks it.
    ///
    /// # Errors
    /// [`Error::Json`] with line and column for text that is not such an object; for another
    /// format, version or a figure out of range its cause is the text of the error.
    pub fn from_json(text: &str) -> Result<Self> {
        let file: HostFile = serde_json::from_str(text).map_err(|source| Error::Json {
            what: "the file of a host's constants",
            source,
        })?;
        Self::try_from(file)
    }

    /// Writes JSON text, indented, with a newline at its end.
    ///
    /// # Errors
    /// What [`check`](Self::check) finds: JSON cannot carry infinities, and no reader would take
    /// the file.
    pub fn to_json(&self) -> Result<String> {
        self.check()?;
        let mut text = serde_json::to_string_pretty(self).map_err(|source| Error::Json {
            what: "the file of a host's constants",
            source,
        })?;
        text.push('\n');
        Ok(text)
    }

    /// Checks every figure.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] for the first that is out of range.
    pub fn check(&self) -> Result<()> {
        for (i, point) in self.drive.iter().enumerate() {
            let at = Some(i);
            positive("drive.threads", at, f64::from(point.threads))?;
            positive("drive.queue_depth", at, f64::from(point.queue_depth))?;
            positive("drive.block_bytes", at, point.block_bytes as f64)?;
            positive("drive.gb_per_s", at, point.gb_per_s)?;
            if let Some(ratio) = point.physical_ratio {
                not_negative("drive.physical_ratio", at, ratio)?;
            }
        }
        if let Some(gemm) = self.gemm {
            positive("gemm.flops_per_s", None, gemm.flops_per_s)?;
            // The last five seconds had some speed, so 1 - sag is above zero.
            positive("1 - gemm.sag", None, 1.0 - gemm.sag)?;
        }
        if let Some(floor) = self.decode_floor_ms {
            positive("decode_floor_ms", None, floor)?;
        }
        if let Some(ceiling) = self.prefill_ceiling_tokens_per_s {
            positive("prefill_ceiling_tokens_per_s", None, ceiling)?;
        }
        Ok(())
    }

    /// Bandwidth over reads under way, from the points whose block size is nearest to
    /// `block_bytes` (by ratio; the smaller of two equally near). Of several points with the same
    /// number of reads under way the median counts, whatever their readers.
    ///
    /// # Errors
    /// [`Error::MissingConstant`] when all points are cached or there are none; what
    /// [`check`](Self::check) finds.
    pub fn drive_curve(&self, block_bytes: u64) -> Result<BandwidthCurve> {
        self.check()?;
        let far = |point: &DrivePoint| {
            (point.block_bytes as f64 / block_bytes.max(1) as f64)
                .ln()
                .abs()
        };
        let physical = || self.drive.iter().filter(|point| !point.cached);
        let nearest = physical()
            .min_by(|a, b| {
                far(a)
                    .total_cmp(&far(b))
                    .then(a.block_bytes.cmp(&b.block_bytes))
            })
            .ok_or(Error::MissingConstant {
                what: "drive point that is not cached",
                needed_for: "the bandwidth",
            })?
            .block_bytes;
        let mut by_depth: BTreeMap<u64, Vec<f64>> = BTreeMap::new();
        for point in physical().filter(|point| point.block_bytes == nearest) {
            by_depth
                .entry(point.outstanding())
                .or_default()
                .push(point.gb_per_s);
        }
        let points: Vec<_> = by_depth
            .into_iter()
            .map(|(depth, rates)| (depth as f64, median(rates)))
            .collect();
        BandwidthCurve::new(&points)
    }
}

/// The object in the file.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct HostFile {
    format: String,
    version: u32,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    facts: BTreeMap<String, String>,
    drive: Vec<DrivePoint>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    gemm: Option<Gemm>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    decode_floor_ms: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    prefill_ceiling_tokens_per_s: Option<f64>,
}

impl From<HostConstants> for HostFile {
    fn from(host: HostConstants) -> Self {
        Self {
            format: HOST_FORMAT.into(),
            version: HOST_VERSION,
            facts: host.facts,
            drive: host.drive,
            gemm: host.gemm,
            decode_floor_ms: host.decode_floor_ms,
            prefill_ceiling_tokens_per_s: host.prefill_ceiling_tokens_per_s,
        }
    }
}

impl TryFrom<HostFile> for HostConstants {
    type Error = Error;

    fn try_from(file: HostFile) -> Result<Self> {
        if file.format != HOST_FORMAT {
            return Err(Error::UnknownFormat {
                expected: HOST_FORMAT,
                found: file.format,
            });
        }
        if file.version != HOST_VERSION {
            return Err(Error::UnknownVersion {
                format: HOST_FORMAT,
                expected: HOST_VERSION,
                found: file.version,
            });
        }
        let host = Self {
            facts: file.facts,
            drive: file.drive,
            gemm: file.gemm,
            decode_floor_ms: file.decode_floor_ms,
            prefill_ceiling_tokens_per_s: file.prefill_ceiling_tokens_per_s,
        };
        host.check()?;
        Ok(host)
    }
}

/// The middle value, or the mean of the two middle ones.
fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let (low, high) = (values[(values.len() - 1) / 2], values[values.len() / 2]);
    low.midpoint(high)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host() -> HostConstants {
        HostConstants {
            facts: BTreeMap::from([("drive".into(), "NVMe".into())]),
            drive: vec![
                DrivePoint::new(1, 1, 1 << 20, 2.0),
                DrivePoint::new(4, 1, 1 << 20, 6.0),
                DrivePoint::new(1, 4, 1 << 20, 7.0),
                DrivePoint::new(1, 1, 1 << 12, 0.5),
            ],
            gemm: Some(Gemm {
                flops_per_s: 1.4e13,
                sag: 0.0086,
            }),
            decode_floor_ms: Some(12.0),
            prefill_ceiling_tokens_per_s: None,
        }
    }

    fn message(text: &str) -> String {
        let error = HostConstants::from_json(text).expect_err("not usable");
        match std::error::Error::source(&error) {
            Some(source) => format!("{error}: {source}"),
            None => error.to_string(),
        }
    }

    #[test]
    fn json_carries_every_figure() {
        let text = host().to_json().expect("in range");
        assert_eq!(HostConstants::from_json(&text).expect("own text"), host());
        // Another serde format's derive goes through the same checks.
        let value = serde_json::to_value(host()).expect("in range");
        assert_eq!(value["format"], "thalweg-host");
        assert_eq!(
            serde_json::from_value::<HostConstants>(value).expect("own value"),
            host()
        );
    }

    #[test]
    fn a_point_names_its_reader_or_none() {
        let mut host = host();
        assert!(!host.to_json().expect("in range").contains("reader"));
        host.drive[1].reader = Some(DriveReader::Uring);
        let text = host.to_json().expect("in range");
        assert!(text.contains("\"reader\": \"uring\""), "{text}");
        assert_eq!(HostConstants::from_json(&text).expect("own text"), host);
        assert!(message(&text.replace("uring", "mmap")).contains("`mmap`"));
    }

    #[test]
    fn the_least_file_has_format_version_and_drive() {
        let text = r#"{"format":"thalweg-host","version":1,"drive":[]}"#;
        let host = HostConstants::from_json(text).expect("usable");
        assert_eq!(host, HostConstants::default());
    }

    #[test]
    fn what_is_wrong_is_named() {
        let message = |text: &str| message(&text.replace('\'', "\""));
        assert!(message("{").contains("line 1 column 1"));
        assert!(message("{'format':'x','version':1,'drive':[]}").contains("\"x\""));
        assert!(
            message("{'format':'thalweg-host','version':2,'drive':[]}")
                .contains("is 2, expected 1")
        );
        // A misspelled field would otherwise silently count for nothing.
        assert!(
            message("{'format':'thalweg-host','version':1,'drive':[],'decode_floor':1}")
                .contains("decode_floor")
        );
        let point = "{'format':'thalweg-host','version':1,'drive':[{'threads':T,'queue_depth':1,\
                     'block_bytes':4096,'gb_per_s':R}]}";
        let with = |t: &str, r: &str| message(&point.replace('T', t).replace('R', r));
        assert!(with("0", "1.0").contains("drive.threads of entry 0 is 0"));
        assert!(with("1", "-1.0").contains("drive.gb_per_s of entry 0 is -1"));
        assert!(with("1", "1e999").contains("number out of range"));
        assert!(
            message(
                "{'format':'thalweg-host','version':1,'drive':[],\
                 'gemm':{'flops_per_s':1.0,'sag':1.0}}"
            )
            .contains("1 - gemm.sag is 0")
        );
    }

    #[test]
    fn figures_that_json_cannot_carry_are_not_written() {
        for bad in [f64::NAN, f64::INFINITY, 0.0] {
            let mut host = host();
            host.decode_floor_ms = Some(bad);
            assert!(matches!(host.to_json(), Err(Error::OutOfRange { .. })));
        }
    }

    #[test]
    fn the_curve_is_of_the_nearest_block_and_leaves_out_cached_points() {
        let mut host = host();
        host.drive.push(DrivePoint {
            cached: true,
            ..DrivePoint::new(8, 1, 1_392_640, 90.0)
        });
        let curve = host.drive_curve(1_392_640).expect("has points");
        // 4 x 1 and 1 x 4 both keep four reads under way.
        assert_eq!(curve.points(), [(1.0, 2.0), (4.0, 6.5)]);
        let small = host.drive_curve(1).expect("has points");
        assert_eq!(small.points(), [(1.0, 0.5)]);
        host.drive.retain(|point| point.cached);
        let error = host.drive_curve(4096).expect_err("only cached");
        assert!(matches!(error, Error::MissingConstant { .. }));
    }

    #[test]
    fn a_huge_or_missing_file_is_refused_by_name() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let path = folder.path().join("host.json");
        let error = HostConstants::open(&path).expect_err("missing");
        assert!(error.to_string().contains("host.json"));
        fs::write(&path, " ".repeat(MAX_FILE_BYTES as usize + 1)).expect("writable");
        let error = HostConstants::open(&path).expect_err("too large");
        assert!(error.to_string().starts_with("cannot read all of"));
        fs::write(&path, "").expect("writable");
        let error = HostConstants::open(&path).expect_err("empty");
        assert!(error.to_string().contains("host.json"), "{error}");
        let error = HostConstants::open(folder.path()).expect_err("a folder");
        assert!(error.to_string().ends_with("is not a regular file"));
        fs::write(&path, host().to_json().expect("in range")).expect("writable");
        assert_eq!(HostConstants::open(&path).expect("whole"), host());
    }
}
