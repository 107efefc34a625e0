//! Speed of a GPU's kernels beside what the same device reaches without them.
//!
//! Owns shapes, repetitions and the report; not clocks (`thalweg_wgpu`) nor kernels. Memory: on the
//! device the weights of one format at a time and two buffers to copy between, on the host one
//! matrix.

use anyhow::{Context, Result, bail};
use clap::Args;
use serde_json::{Value, json};
use thalweg_backend::{Backend, MatData};
use thalweg_examples_common::print_line;
use thalweg_quant::QuantType;
use thalweg_wgpu::{Arithmetic, FORMATS, WgpuBackend, WgpuBuffer, WgpuMatrix, WgpuRecorder};

use crate::median;

/// Flags of the kernels' bench.
#[derive(Debug, Args)]
pub(crate) struct KernelArgs {
    /// Measure the kernels of a GPU instead of a model (with --backend wgpu): products of one vector
    /// and of many with weights of each format, beside copies and plain arithmetic of the same
    /// minutes
    #[arg(long)]
    pub(crate) kernels: bool,

    /// Small matrices, for a look at whether it works; always so on a software driver
    #[arg(long, requires = "kernels")]
    pub(crate) quick: bool,

    /// Formats to measure, separated by commas [default: all that have kernels]
    #[arg(
        long,
        value_name = "TYPES",
        value_delimiter = ',',
        requires = "kernels"
    )]
    pub(crate) formats: Vec<String>,
}

/// Sizes of what is measured.
struct Sizes {
    /// Rows and columns of the matrices that a vector is multiplied with.
    matvec: &'static [(usize, usize)],
    /// The matrix that many vectors are multiplied with, and their number.
    matmul: (usize, usize, usize),
    /// Bytes of weights to go through before any of them comes again: more than caches hold.
    rotated_bytes: usize,
    /// Bytes of a copy.
    copied_bytes: usize,
    /// Workgroups and steps of plain arithmetic.
    arithmetic: (usize, usize),
}

const FULL: Sizes = Sizes {
    matvec: &[(4096, 4096), (16384, 8192)],
    matmul: (4096, 4096, 512),
    rotated_bytes: 1 << 30,
    copied_bytes: 512 << 20,
    arithmetic: (16384, 512),
};

const QUICK: Sizes = Sizes {
    matvec: &[(1024, 1024)],
    matmul: (512, 512, 64),
    rotated_bytes: 4 << 20,
    copied_bytes: 8 << 20,
    arithmetic: (64, 256),
};

/// Times of one thing, a number of work units a round.
struct Series {
    work: f64,
    seconds: Vec<f64>,
}

impl Series {
    fn new(work: f64) -> Self {
        Self {
            work,
            seconds: vec![],
        }
    }

    /// Units per second in the median round.
    fn rate(&self) -> Option<f64> {
        let mut sorted = self.seconds.clone();
        sorted.sort_by(f64::total_cmp);
        median(&sorted)
            .filter(|seconds| *seconds > 0.0)
            .map(|seconds| self.work / seconds)
    }
}

/// Matrices of one shape and a result of each.
struct Rotation {
    n_in: usize,
    n_out: usize,
    weights: Vec<WgpuMatrix>,
    results: Vec<WgpuBuffer>,
    x: WgpuBuffer,
    bytes: usize,
}

/// Measures and prints.
///
/// # Errors
/// Those of the device, and names of formats that there are not.
pub(crate) fn run(
    args: &KernelArgs,
    backend: &WgpuBackend,
    rounds: usize,
    json: bool,
) -> Result<()> {
    let is_software = backend.adapter().kind == "Cpu";
    let is_quick = args.quick || is_software;
    let sizes = if is_quick { &QUICK } else { &FULL };
    let formats = formats(&args.formats)?;
    let mut bench = Bench::new(backend, sizes, rounds)?;
    let ceilings = bench.ceilings()?;
    let mut report = Report::new(json, &ceilings)?;
    for ty in formats {
        for value in bench.format(ty, &ceilings)? {
            report.add(value)?;
        }
    }
    let adapter = backend.adapter();
    report.end(json!({
        "backend": "wgpu",
        "adapter": adapter.name,
        "api": adapter.api,
        "driver": adapter.driver,
        "features": backend.features().names(),
        "offered": adapter.features,
        "clock": backend.clock().name(),
        "quick": is_quick,
        "rounds": rounds,
        "copy_bytes": sizes.copied_bytes,
        "ceilings": ceilings.iter().map(|(kind, s)| {
            json!({ "arithmetic": kind.name(), "flop_per_s": s.rate() })
        }).collect::<Vec<_>>(),
    }))
}

fn formats(names: &[String]) -> Result<Vec<QuantType>> {
    if names.is_empty() {
        return Ok(FORMATS.to_vec());
    }
    let known = || FORMATS.iter().map(ToString::to_string);
    let find = |name: &String| {
        let found = FORMATS
            .iter()
            .find(|ty| ty.to_string().eq_ignore_ascii_case(name));
        found.copied().with_context(|| {
            let known = known().collect::<Vec<_>>().join(", ");
            format!("no kernels for a format {name}; there are {known}")
        })
    };
    names.iter().map(find).collect()
}

type Ceilings = Vec<(Arithmetic, Series)>;

struct Bench<'a> {
    backend: &'a WgpuBackend,
    rec: WgpuRecorder,
    sizes: &'a Sizes,
    rounds: usize,
    copied: [WgpuBuffer; 2],
}

impl<'a> Bench<'a> {
    fn new(backend: &'a WgpuBackend, sizes: &'a Sizes, rounds: usize) -> Result<Self> {
        let buffer = || {
            let buffer = backend.alloc(sizes.copied_bytes / 4);
            buffer.context("cannot hold the buffers that a copy is measured with (try --quick)")
        };
        let copied = [buffer()?, buffer()?];
        Ok(Self {
            backend,
            rec: backend.recorder(),
            sizes,
            rounds,
            copied,
        })
    }

    /// Seconds of what `work` records.
    fn seconds(
        &mut self,
        work: impl FnOnce(&mut WgpuRecorder) -> thalweg_backend::Result<()>,
    ) -> Result<f64> {
        Ok(self.backend.time(&mut self.rec, work)?.as_secs_f64())
    }

    /// What plain arithmetic reaches; the first of its rounds compiles and does not count.
    fn ceilings(&mut self) -> Result<Ceilings> {
        let mut kinds = vec![Arithmetic::F32];
        if self.backend.features().f16 {
            kinds.push(Arithmetic::F16);
        }
        let (n_groups, n_steps) = self.sizes.arithmetic;
        let mut out = self.backend.alloc(64 * n_groups)?;
        let mut all: Ceilings = kinds.iter().map(|k| (*k, Series::new(0.0))).collect();
        for round in 0..=self.rounds {
            for (kind, series) in &mut all {
                let mut flop = 0;
                let backend = self.backend;
                let seconds = self.seconds(|rec| {
                    flop = backend.arithmetic(rec, *kind, n_groups, n_steps, &mut out)?;
                    Ok(())
                })?;
                series.work = flop as f64;
                if round > 0 {
                    series.seconds.push(seconds);
                }
            }
        }
        Ok(all)
    }

    fn copy(&mut self) -> Result<f64> {
        let backend = self.backend;
        let len = self.sizes.copied_bytes / 4;
        let [from, to] = &mut self.copied;
        let time = backend.time(&mut self.rec, |rec| {
            backend.copy(rec, (from, 0), (to, 0), len)
        });
        Ok(time?.as_secs_f64())
    }

    /// All that is measured with weights of one format, copies in between.
    fn format(&mut self, ty: QuantType, ceilings: &Ceilings) -> Result<Vec<Value>> {
        let backend = self.backend;
        let rotations = self.sizes.matvec.iter();
        let mut rotations: Vec<Rotation> = rotations
            .map(|&(n_in, n_out)| self.rotation(ty, n_in, n_out))
            .collect::<Result<_>>()?;
        let (n_in, n_out, n_tokens) = self.sizes.matmul;
        let w = backend.load(matrix(ty, n_in, n_out)?)?;
        let x = self.vectors(n_tokens * n_in)?;
        let mut y = backend.alloc(n_tokens * n_out)?;

        let mut copies = Series::new(2.0 * self.sizes.copied_bytes as f64);
        let work = |r: &Rotation| r.bytes + 4 * r.weights.len() * (r.n_in + r.n_out);
        let series = |r: &Rotation| Series::new(work(r) as f64);
        let mut apart: Vec<Series> = rotations.iter().map(series).collect();
        let mut in_turn: Vec<Series> = rotations.iter().map(series).collect();
        let mut matmul = Series::new(2.0 * n_tokens as f64 * n_in as f64 * n_out as f64);
        // The first round compiles and fills nothing but caches.
        for round in 0..=self.rounds {
            let keep = |series: &mut Series, seconds| {
                if round > 0 {
                    series.seconds.push(seconds);
                }
            };
            keep(&mut copies, self.copy()?);
            for (i, rotation) in rotations.iter_mut().enumerate() {
                keep(&mut apart[i], self.matvecs(rotation, false)?);
                keep(&mut in_turn[i], self.matvecs(rotation, true)?);
            }
            let time = self.seconds(|rec| backend.matmul(rec, &w, &x, n_tokens, &mut y))?;
            keep(&mut matmul, time);
        }

        let mut found = vec![];
        for (op, all) in [("matvec", &apart), ("matvec-in-turn", &in_turn)] {
            for (rotation, series) in rotations.iter().zip(all) {
                let percent = |rate: f64| copies.rate().map(|copy| 100.0 * rate / copy);
                found.push(json!({
                    "op": op,
                    "type": ty.to_string(),
                    "n_in": rotation.n_in,
                    "n_out": rotation.n_out,
                    "columns": 1,
                    "matrices": rotation.weights.len(),
                    "bytes": series.work,
                    "seconds": series.seconds,
                    "bytes_per_s": series.rate(),
                    "copy_bytes_per_s": copies.rate(),
                    "percent_of_copy": series.rate().and_then(percent),
                }));
            }
        }
        let mut value = json!({
            "op": "matmul",
            "type": ty.to_string(),
            "n_in": n_in,
            "n_out": n_out,
            "columns": n_tokens,
            "flop": matmul.work,
            "seconds": matmul.seconds,
            "flop_per_s": matmul.rate(),
        });
        for (kind, ceiling) in ceilings {
            let rates = matmul.rate().zip(ceiling.rate());
            let percent = rates.map(|(rate, most)| 100.0 * rate / most);
            value[format!("percent_of_{}", kind.name())] = json!(percent);
        }
        found.push(value);
        Ok(found)
    }

    /// Multiplies every matrix of the rotation once: each result in a place of its own, or all in
    /// one, so that each product waits for the one before it, as in a model.
    fn matvecs(&mut self, rotation: &mut Rotation, in_turn: bool) -> Result<f64> {
        let backend = self.backend;
        let Rotation {
            weights,
            results,
            x,
            ..
        } = rotation;
        self.seconds(|rec| {
            for (i, w) in weights.iter().enumerate() {
                let y = &mut results[if in_turn { 0 } else { i }];
                backend.matmul(rec, w, x, 1, y)?;
            }
            Ok(())
        })
    }

    /// Matrices until there are enough bytes of them, or the device is full.
    fn rotation(&mut self, ty: QuantType, n_in: usize, n_out: usize) -> Result<Rotation> {
        let matrix = matrix(ty, n_in, n_out)?;
        let one = matrix.view().bytes().len();
        let (mut weights, mut results) = (vec![], vec![]);
        while weights.len() * one < self.sizes.rotated_bytes || weights.len() < 2 {
            match self.backend.load(matrix.clone()) {
                Err(thalweg_backend::Error::OutOfMemory { .. }) if !weights.is_empty() => break,
                loaded => weights.push(loaded?),
            }
            results.push(self.backend.alloc(n_out)?);
        }
        Ok(Rotation {
            n_in,
            n_out,
            bytes: one * weights.len(),
            weights,
            results,
            x: self.vectors(n_in)?,
        })
    }

    /// Vectors of small numbers.
    fn vectors(&mut self, len: usize) -> Result<WgpuBuffer> {
        let mut buffer = self.backend.alloc(len)?;
        let values: Vec<f32> = (0..len).map(|i| (i % 251) as f32 / 128.0 - 1.0).collect();
        self.backend.write(&mut self.rec, &mut buffer, 0, &values)?;
        self.backend.finish(&mut self.rec)?;
        Ok(buffer)
    }
}

/// A matrix of random blocks, the same rows over and over: speed does not depend on values.
fn matrix(ty: QuantType, n_in: usize, n_out: usize) -> Result<MatData> {
    const DISTINCT_ROWS: usize = 8;
    let row_bytes = ty.row_bytes(n_in)?;
    let mut state = 0x9E37_79B9_7F4A_7C15_u64;
    let mut random = || {
        // The generator of Marsaglia, "Xorshift RNGs", 2003.
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    };
    let mut weights = vec![0.0; ty.block_len()];
    let mut rows = Vec::with_capacity(DISTINCT_ROWS * row_bytes);
    while rows.len() < DISTINCT_ROWS * row_bytes {
        // Any bytes are a block; one whose scale is huge or no number is drawn again.
        let block: Vec<u8> = (0..ty.block_bytes()).map(|_| random()).collect();
        ty.decode_row(&block, &mut weights)?;
        if weights.iter().all(|w| w.abs() < 1e2) {
            rows.extend(block);
        }
    }
    let bytes = rows.iter().copied().cycle().take(n_out * row_bytes);
    Ok(MatData::new(ty, n_in, n_out, bytes.collect())?)
}

/// Rows of the table as they come, or one object in the end.
struct Report {
    json: bool,
    results: Vec<Value>,
}

impl Report {
    fn new(json: bool, ceilings: &Ceilings) -> Result<Self> {
        if !json {
            for (kind, series) in ceilings {
                let name = kind.name();
                print_line(&format!(
                    "plain {name:<9} {}",
                    rate(series.rate(), "FLOP/s")
                ))?;
            }
            print_line(
                "type     product            in    out  columns         rate    of the ceiling",
            )?;
        }
        Ok(Self {
            json,
            results: vec![],
        })
    }

    fn add(&mut self, value: Value) -> Result<()> {
        if !self.json {
            let number = |name: &str| value[name].as_f64();
            let text = |name: &str| value[name].as_str().unwrap_or("").to_owned();
            let size = |name: &str| value[name].as_u64().unwrap_or(0);
            let (rate, of) = match number("bytes_per_s") {
                Some(bytes) => (rate(Some(bytes), "B/s"), "copy"),
                None => (rate(number("flop_per_s"), "FLOP/s"), "f32"),
            };
            let percent = number(&format!("percent_of_{of}"));
            let percent = percent.map_or_else(|| "n/a".to_owned(), |p| format!("{p:.1} % of {of}"));
            print_line(&format!(
                "{:<8} {:<14} {:>6} {:>6} {:>8} {rate:>16}   {percent}",
                text("type"),
                text("op"),
                size("n_in"),
                size("n_out"),
                size("columns"),
            ))?;
        }
        self.results.push(value);
        Ok(())
    }

    fn end(self, mut about: Value) -> Result<()> {
        if !self.json {
            return Ok(());
        }
        let Some(object) = about.as_object_mut() else {
            bail!("a report is an object");
        };
        object.insert("results".to_owned(), Value::Array(self.results));
        print_line(&about.to_string())
    }
}

/// A rate with a prefix: `4.21 TB/s`.
fn rate(per_s: Option<f64>, unit: &str) -> String {
    let Some(per_s) = per_s else {
        return "n/a".to_owned();
    };
    let (scale, prefix) = match per_s {
        r if r >= 1e12 => (1e12, "T"),
        r if r >= 1e9 => (1e9, "G"),
        _ => (1e6, "M"),
    };
    format!("{:.2} {prefix}{unit}", per_s / scale)
}
