//! Speed of a GPU's kernels beside what the same device reaches without them.
//!
//! Owns shapes, repetitions and the report; not clocks (`thalweg_wgpu`) nor kernels. Memory: on the
//! device the weights of one format at a time and two buffers to copy between, on the host one
//! matrix.
//! What is compared takes turns, a round each. Clocks of a GPU rise while it works, so a warm-up
//! comes before every comparison; it also compiles, and finds how often a short product is repeated
//! within one timing. A copy counts what it reads and what it writes, a product what it reads.

mod variants;

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::Args;
use serde_json::{Value, json};
use thalweg_backend::{Backend, MatData};
use thalweg_examples_common::print_line;
use thalweg_quant::QuantType;
use thalweg_wgpu::{Arithmetic, FORMATS, WgpuBackend, WgpuBuffer, WgpuMatrix, WgpuRecorder};

use crate::median;
use variants::Variant;

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

    /// Measure every kernel in other sizes, too: rows and groups of a workgroup, tiles
    #[arg(long, requires = "kernels")]
    pub(crate) variants: bool,

    /// Milliseconds of work before each comparison, for clocks to rise [default: 500, or 0 with
    /// small matrices]
    #[arg(long, value_name = "MS", requires = "kernels")]
    pub(crate) warm_up: Option<u64>,
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
    /// Seconds that a timing should take at least.
    timed: f64,
    /// Before each comparison, unless asked for otherwise.
    warm_up: Duration,
}

const FULL: Sizes = Sizes {
    matvec: &[(4096, 4096), (16384, 8192)],
    matmul: (4096, 4096, 512),
    rotated_bytes: 1 << 30,
    copied_bytes: 512 << 20,
    arithmetic: (16384, 512),
    timed: 5e-3,
    warm_up: Duration::from_millis(500),
};

const QUICK: Sizes = Sizes {
    matvec: &[(1024, 1024)],
    matmul: (512, 512, 64),
    rotated_bytes: 4 << 20,
    copied_bytes: 8 << 20,
    arithmetic: (64, 256),
    timed: 0.0,
    warm_up: Duration::ZERO,
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
    let warm_up = args.warm_up.map_or(sizes.warm_up, Duration::from_millis);
    let variants = variants::all(backend, args.variants)?;
    let mut bench = Bench::new(backend, &variants, sizes, rounds, warm_up)?;
    let ceilings = bench.ceilings()?;
    let mut report = Report::new(json, args.variants, &ceilings)?;
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
        "warm_up_ms": warm_up.as_millis() as u64,
        // Read once and written once; rates of copies count both.
        "copy_bytes": sizes.copied_bytes,
        "copy_bytes_counted": 2 * sizes.copied_bytes,
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
    variants: &'a [Variant],
    /// For each variant one, and one for copies and ceilings in the end.
    recs: Vec<WgpuRecorder>,
    sizes: &'a Sizes,
    rounds: usize,
    warm_up: Duration,
    copied: [WgpuBuffer; 2],
}

/// What one timing of a comparison is of.
#[derive(Clone, Copy)]
enum Work {
    /// Every matrix of a rotation times a vector, results apart from each other.
    Apart(usize),
    /// The same, each result where the last one is: each product waits for the one before it, as
    /// in a model.
    InTurn(usize),
    /// Products of one matrix and many vectors.
    Many,
}

/// A kernel's part of a comparison.
struct Case {
    work: Work,
    variant: usize,
    /// Products within a timing, where one is short.
    repeat: usize,
    series: Series,
}

/// What the kernels of one format are given.
struct Operands {
    rotations: Vec<Rotation>,
    w: WgpuMatrix,
    x: WgpuBuffer,
    y: WgpuBuffer,
}

impl<'a> Bench<'a> {
    fn new(
        backend: &'a WgpuBackend,
        variants: &'a [Variant],
        sizes: &'a Sizes,
        rounds: usize,
        warm_up: Duration,
    ) -> Result<Self> {
        let buffer = || {
            let buffer = backend.alloc(sizes.copied_bytes / 4);
            buffer.context("cannot hold the buffers that a copy is measured with (try --quick)")
        };
        let copied = [buffer()?, buffer()?];
        let backends = variants.iter().map(|v| &v.backend).chain([backend]);
        Ok(Self {
            backend,
            variants,
            recs: backends.map(WgpuBackend::recorder).collect(),
            sizes,
            rounds,
            warm_up,
            copied,
        })
    }

    /// Seconds of what `work` records on the usual kernels.
    fn seconds(
        &mut self,
        work: impl FnOnce(&mut WgpuRecorder) -> thalweg_backend::Result<()>,
    ) -> Result<f64> {
        let rec = &mut self.recs[self.variants.len()];
        Ok(self.backend.time(rec, work)?.as_secs_f64())
    }

    /// What plain arithmetic reaches.
    fn ceilings(&mut self) -> Result<Ceilings> {
        let mut kinds = vec![Arithmetic::F32];
        if self.backend.features().f16 {
            kinds.push(Arithmetic::F16);
        }
        let (n_groups, n_steps) = self.sizes.arithmetic;
        let mut out = self.backend.alloc(64 * n_groups)?;
        let mut all: Ceilings = kinds.iter().map(|k| (*k, Series::new(0.0))).collect();
        let start = Instant::now();
        let mut measured = 0;
        while measured < self.rounds {
            // The first round compiles.
            let counts = start.elapsed() > self.warm_up && all[0].1.work > 0.0;
            for (kind, series) in &mut all {
                let mut flop = 0;
                let backend = self.backend;
                let seconds = self.seconds(|rec| {
                    flop = backend.arithmetic(rec, *kind, n_groups, n_steps, &mut out)?;
                    Ok(())
                })?;
                series.work = flop as f64;
                if counts {
                    series.seconds.push(seconds);
                }
            }
            measured += usize::from(counts);
        }
        Ok(all)
    }

    fn copy(&mut self) -> Result<f64> {
        let len = self.sizes.copied_bytes / 4;
        let [from, to] = &mut self.copied;
        let rec = &mut self.recs[self.variants.len()];
        let backend = self.backend;
        let time = backend.time(rec, |rec| backend.copy(rec, (from, 0), (to, 0), len));
        Ok(time?.as_secs_f64())
    }

    /// All that is measured with weights of one format, copies in between.
    fn format(&mut self, ty: QuantType, ceilings: &Ceilings) -> Result<Vec<Value>> {
        let rotations = self.sizes.matvec.iter();
        let rotations: Vec<Rotation> = rotations
            .map(|&(n_in, n_out)| self.rotation(ty, n_in, n_out))
            .collect::<Result<_>>()?;
        let (n_in, n_out, n_tokens) = self.sizes.matmul;
        let mut operands = Operands {
            rotations,
            w: self.backend.load(matrix(ty, n_in, n_out)?)?,
            x: self.vectors(n_tokens * n_in)?,
            y: self.backend.alloc(n_tokens * n_out)?,
        };
        let mut cases = self.cases(&operands);
        let mut copies = Series::new(2.0 * self.sizes.copied_bytes as f64);

        // Compiles, and finds the number of repetitions.
        for case in &mut cases {
            self.time(case, &mut operands)?;
            let once = self.time(case, &mut operands)?;
            if let Work::Many = case.work {
                let times = (self.sizes.timed / once.max(1e-9)).ceil();
                case.repeat = times.clamp(1.0, 256.0) as usize;
                case.series.work *= case.repeat as f64;
            }
        }
        let start = Instant::now();
        while start.elapsed() < self.warm_up {
            self.copy()?;
            for case in &cases {
                self.time(case, &mut operands)?;
            }
        }
        for _ in 0..self.rounds {
            copies.seconds.push(self.copy()?);
            for case in &mut cases {
                let seconds = self.time(case, &mut operands)?;
                case.series.seconds.push(seconds);
            }
        }
        let value = |case: &Case| self.value(ty, case, &operands, &copies, ceilings);
        Ok(cases.iter().map(value).collect())
    }

    /// What is compared: everything with the usual sizes, the largest shapes with the others.
    fn cases(&self, operands: &Operands) -> Vec<Case> {
        let (n_in, n_out, n_tokens) = self.sizes.matmul;
        let flop = 2.0 * n_tokens as f64 * n_in as f64 * n_out as f64;
        let n = operands.rotations.len();
        let bytes = |i: usize| {
            let r = &operands.rotations[i];
            (r.bytes + 4 * r.weights.len() * (r.n_in + r.n_out)) as f64
        };
        let mut cases = vec![];
        for (variant, of) in self.variants.iter().enumerate() {
            let mut add = |work, amount| {
                cases.push(Case {
                    work,
                    variant,
                    repeat: 1,
                    series: Series::new(amount),
                });
            };
            if variant == 0 {
                (0..n).for_each(|i| add(Work::Apart(i), bytes(i)));
                (0..n).for_each(|i| add(Work::InTurn(i), bytes(i)));
            } else if of.changes_vectors {
                add(Work::Apart(n - 1), bytes(n - 1));
            }
            if variant == 0 || of.changes_tiles {
                add(Work::Many, flop);
            }
        }
        cases
    }

    /// Seconds of a case's work.
    fn time(&mut self, case: &Case, operands: &mut Operands) -> Result<f64> {
        let backend = &self.variants[case.variant].backend;
        let rec = &mut self.recs[case.variant];
        let n_tokens = self.sizes.matmul.2;
        let Operands { rotations, w, x, y } = operands;
        let time = backend.time(rec, |rec| {
            let (i, in_turn) = match case.work {
                Work::Many => {
                    for _ in 0..case.repeat {
                        backend.matmul(rec, w, x, n_tokens, y)?;
                    }
                    return Ok(());
                }
                Work::Apart(i) => (i, false),
                Work::InTurn(i) => (i, true),
            };
            let Rotation {
                weights,
                results,
                x,
                ..
            } = &mut rotations[i];
            for (i, w) in weights.iter().enumerate() {
                let y = &mut results[if in_turn { 0 } else { i }];
                backend.matmul(rec, w, x, 1, y)?;
            }
            Ok(())
        });
        Ok(time?.as_secs_f64())
    }

    fn value(
        &self,
        ty: QuantType,
        case: &Case,
        operands: &Operands,
        copies: &Series,
        ceilings: &Ceilings,
    ) -> Value {
        let series = &case.series;
        let mut value = json!({ "type": ty.to_string(), "seconds": series.seconds });
        if self.variants.len() > 1 {
            let variant = &self.variants[case.variant];
            value["variant"] = json!(match case.work {
                Work::Many => variant.tiles(),
                Work::Apart(_) | Work::InTurn(_) => variant.vectors(),
            });
        }
        let (op, i) = match case.work {
            Work::Apart(i) => ("matvec", i),
            Work::InTurn(i) => ("matvec-in-turn", i),
            Work::Many => {
                let (n_in, n_out, n_tokens) = self.sizes.matmul;
                value["op"] = json!("matmul");
                value["n_in"] = json!(n_in);
                value["n_out"] = json!(n_out);
                value["columns"] = json!(n_tokens);
                value["products"] = json!(case.repeat);
                value["flop"] = json!(series.work);
                value["flop_per_s"] = json!(series.rate());
                for (kind, ceiling) in ceilings {
                    let percent = percent(series, ceiling);
                    value[format!("percent_of_{}", kind.name())] = json!(percent);
                }
                return value;
            }
        };
        let rotation = &operands.rotations[i];
        value["op"] = json!(op);
        value["n_in"] = json!(rotation.n_in);
        value["n_out"] = json!(rotation.n_out);
        value["columns"] = json!(1);
        value["matrices"] = json!(rotation.weights.len());
        value["bytes"] = json!(series.work);
        value["bytes_per_s"] = json!(series.rate());
        value["copy_bytes_per_s"] = json!(copies.rate());
        value["percent_of_copy"] = json!(percent(series, copies));
        value
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
        let rec = &mut self.recs[self.variants.len()];
        self.backend.write(rec, &mut buffer, 0, &values)?;
        self.backend.finish(rec)?;
        Ok(buffer)
    }
}

/// The rate of one in percent of the other's.
fn percent(of: &Series, ceiling: &Series) -> Option<f64> {
    let rates = of.rate().zip(ceiling.rate());
    rates.map(|(rate, most)| 100.0 * rate / most)
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
    variants: bool,
    results: Vec<Value>,
}

impl Report {
    fn new(json: bool, variants: bool, ceilings: &Ceilings) -> Result<Self> {
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
            variants,
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
            let variant = match self.variants {
                true => format!("   {}", text("variant")),
                false => String::new(),
            };
            print_line(&format!(
                "{:<8} {:<14} {:>6} {:>6} {:>8} {rate:>16}   {percent:<15}{variant}",
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
