//! The flags that open a model, and what they do.
//!
//! Owns the names and the help of flags that several binaries have; not the engine's options
//! (`EngineOptions`). Memory: none.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::{Args, ValueEnum};
use thalweg::{
    Activations, Backend, Bias, CpuBackend, CpuOptions, Engine, EngineOptions, Gguf, Moce,
    PolicyKind, Profile, ReadAhead, ReaderKind, WatchdogOptions,
};

use crate::{CountBar, count, note, note_budget};

/// Flags that say which model to open and what it may use.
#[derive(Debug, Clone, Args)]
pub struct ModelArgs {
    /// Model file (any shard of a split one) [default: models/demo.gguf of this repository, looked
    /// for from the working folder upwards]
    #[arg(long, value_name = "FILE")]
    pub model: Option<PathBuf>,

    /// Memory for everything together: weights, expert slots, context, intermediates
    /// (24MiB, 3.4GB, 8GiB, or bytes) [default: 3/4 of the available memory]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub budget: Option<u64>,

    /// Prompt tokens taken in at once; does not change the output [default: chosen by the budget]
    #[arg(long, value_name = "TOKENS", value_parser = count)]
    pub chunk: Option<usize>,

    /// Compute threads; does not change the output [default: all cores]
    #[arg(long, value_name = "N", value_parser = count)]
    pub threads: Option<usize>,

    /// Precision of tokens' vectors in matrix products: f32 (the reference) or q8 (eight bits, much
    /// faster; logits differ by rounding, the same on every machine and for every setting)
    #[arg(long, value_name = "TYPE", default_value = "f32", value_parser = activations)]
    pub activations: Activations,

    /// Expert slots in each layer, at least the experts that a token uses; does not change the
    /// output [default: as many as the budget holds]
    #[arg(long, value_name = "N", value_parser = count)]
    pub slots: Option<usize>,

    /// Most bytes of expert slots, part of the budget [default: what the budget leaves]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub arena: Option<u64>,

    /// Slots that a long prompt's experts and read-ahead pass through [default: by the budget]
    #[arg(long, value_name = "N", value_parser = count)]
    pub transit: Option<usize>,

    /// An .experts file that `pack` made of the model: one aligned read an expert
    #[arg(long, value_name = "FILE")]
    pub sidecar: Option<PathBuf>,

    /// A warm profile (STRP) of the model: fill expert slots with its hottest experts first
    #[arg(long, value_name = "FILE")]
    pub profile: Option<PathBuf>,

    /// How experts are read: pool (threads), uring (Linux), pread (one at a time, buffered); does
    /// not change the output
    #[arg(long, value_name = "NAME", default_value = "pool", value_parser = reader)]
    pub reader: ReaderKind,

    /// Reads under way at the same time [default: as many as are of use, by the budget]
    #[arg(long, value_name = "N", value_parser = count)]
    pub reads: Option<usize>,

    /// While generating, read ahead the N likeliest missing experts of the next layer; does not
    /// change the output
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = count)]
    pub readahead: usize,

    /// The same for the layer behind the next
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = count)]
    pub readahead2: usize,

    /// While a prompt's experts stream through a layer, begin with the next layer's; does not
    /// change the output
    #[arg(long, value_name = "SWITCH", default_value = "on")]
    pub readahead_prompt: Switch,

    /// Whether read-ahead stops for a while when too few guesses are of use
    #[arg(long, value_name = "SWITCH", default_value = "on")]
    pub readahead_pause: Switch,

    /// Weights that guess what to read ahead: stored, or q8 (a copy in eight bits: less memory
    /// traffic a guess); does not change the output
    #[arg(long, value_name = "WEIGHTS", default_value = "stored")]
    pub guess: GuessWeights,

    /// Run resident experts while others are being read; does not change the output
    #[arg(long, value_name = "SWITCH", default_value = "on")]
    pub split: Switch,

    /// Run the shared expert while routed ones are being read; does not change the output
    #[arg(long, value_name = "SWITCH", default_value = "on")]
    pub overlap: Switch,

    /// Stop cleanly before the machine runs out of memory
    #[arg(long, value_name = "SWITCH", default_value = "on")]
    pub watchdog: Switch,

    /// Keep all memory of the program from being swapped (needs a high `ulimit -l`)
    #[arg(long)]
    pub mlock: bool,

    /// Touch all expert slots and run every kernel once before the first token; does not change the
    /// output
    #[arg(long)]
    pub prewarm: bool,

    /// Weights that choose experts: stored, or bf16 (rounded). Lossy unless the model stores them so
    #[arg(long, value_name = "WEIGHTS", default_value = "stored")]
    pub router: RouterWeights,

    /// Count how often `--router bf16` chooses and `--guess q8` guesses as the stored weights do
    #[arg(long)]
    pub audit_routers: bool,

    /// Which resident expert makes room for another; does not change the output
    #[arg(long, value_name = "NAME", default_value = "lru", value_parser = policy)]
    pub policy: PolicyKind,

    /// Prefer resident experts while generating: off, rel:0.09 (times the mean logit range) or
    /// abs:0.85 (nats). Lossy: the output then depends on what is resident
    #[arg(long, value_name = "BIAS", default_value = "off", value_parser = bias)]
    pub moce: Bias,

    /// So many of a token's best experts are chosen whatever is resident
    #[arg(long, value_name = "J", default_value_t = 3)]
    pub protect: u8,
}

impl ModelArgs {
    /// Opens the model file's header.
    ///
    /// # Errors
    /// When there is no such file, or it is not a usable GGUF file.
    pub fn file(&self) -> Result<Gguf> {
        let path = match &self.model {
            Some(path) => path.clone(),
            None => own_model()?,
        };
        // The error names the file.
        Gguf::open(&path).context("cannot open the model")
    }

    /// The engine's options for sequences of up to `n_ctx` tokens.
    pub fn options(&self, n_ctx: usize) -> EngineOptions {
        EngineOptions {
            budget_bytes: self.budget,
            n_ctx,
            chunk_tokens: self.chunk,
            slots_per_layer: self.slots,
            arena_bytes: self.arena,
            transit_slots: self.transit,
            policy: self.policy,
            moce: Moce::new(self.moce).with_protected(self.protect),
            reader: self.reader,
            reads_under_way: self.reads,
            sidecar: self.sidecar.clone(),
            read_ahead: ReadAhead {
                next: self.readahead,
                second: self.readahead2,
                prompt: self.readahead_prompt.is_on(),
                q8_routers: self.guess == GuessWeights::Q8,
                may_pause: self.readahead_pause.is_on(),
            },
            expert_split: self.split.is_on(),
            shared_overlap: self.overlap.is_on(),
            watchdog: self.watchdog.is_on().then(WatchdogOptions::default),
            lock_memory: self.mlock,
            prewarm: self.prewarm,
            bf16_routers: self.router == RouterWeights::Bf16,
            audit_routers: self.audit_routers,
            ..EngineOptions::default()
        }
    }

    /// Compute threads of the processor.
    pub fn n_threads(&self) -> usize {
        let cores = || std::thread::available_parallelism().map_or(1, usize::from);
        self.threads.unwrap_or_else(cores)
    }

    /// The backend that the flags ask for.
    ///
    /// # Errors
    /// For a number of threads that cannot be had.
    pub fn backend(&self) -> Result<CpuBackend> {
        let n_threads = self.n_threads();
        let backend = CpuBackend::new(CpuOptions { n_threads })?;
        Ok(backend.with_activations(self.activations))
    }

    /// Opens an engine for sequences of up to `n_ctx` tokens, says what was asked for in vain, and
    /// fills the arena from the profile.
    ///
    /// # Errors
    /// When the model is unusable or does not fit the budget, and for a profile that is not this
    /// model's.
    pub fn engine(&self, file: Gguf, n_ctx: usize) -> Result<Engine> {
        self.engine_on(self.backend()?, file, n_ctx)
    }

    /// As [`engine`](Self::engine), on a device that is open already.
    ///
    /// # Errors
    /// As [`engine`](Self::engine).
    pub fn engine_on<B: Backend>(&self, backend: B, file: Gguf, n_ctx: usize) -> Result<Engine<B>> {
        note_budget(self.budget);
        let mut engine = Engine::from_file(file, backend, self.options(n_ctx))?;
        for inert in engine.notes() {
            note(&format!("note: {inert}"));
        }
        if let Some(path) = &self.profile {
            warm(&mut engine, path)?;
        }
        Ok(engine)
    }
}

/// On or off.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[non_exhaustive]
pub enum Switch {
    /// It is done.
    On,
    /// It is not.
    Off,
}

impl Switch {
    /// Whether it is on.
    pub fn is_on(self) -> bool {
        self == Self::On
    }
}

/// Weights of routers that choose experts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[non_exhaustive]
pub enum RouterWeights {
    /// As in the file.
    Stored,
    /// Rounded to bf16.
    Bf16,
}

/// Weights of routers that guess.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[non_exhaustive]
pub enum GuessWeights {
    /// Those that choose.
    Stored,
    /// A Q8_0 copy.
    Q8,
}

/// Fills the arena from a profile and says how much of the calibration's picks it covers.
fn warm<B: Backend>(engine: &mut Engine<B>, path: &Path) -> Result<()> {
    let failed = || format!("cannot fill the arena from the profile {}", path.display());
    // The error names the file.
    let profile = Profile::open(path).context("cannot fill the arena from a profile")?;
    let bar = CountBar::new("filling the arena", "experts");
    let fill = engine.warm(&profile, |done, total| {
        bar.update(done, total);
        ControlFlow::Continue(())
    });
    bar.finish();
    let fill = fill.with_context(failed)?;
    let seconds = fill.time.as_secs_f64();
    let rate = match seconds > 0.0 {
        true => format!(", {:.2} GB/s", fill.bytes as f64 / seconds / 1e9),
        false => String::new(),
    };
    let n_slots: usize = engine.plan().slots.iter().sum();
    let covered = coverage(engine, &profile).map_or_else(String::new, |share| {
        format!(
            "; {:.1} % of the picks that the profile was made from",
            100.0 * share
        )
    });
    note(&format!(
        "warm     {} of {n_slots} slots filled in {:.0} ms ({:.1} MB{rate}){covered}",
        fill.experts,
        1e3 * seconds,
        fill.bytes as f64 / 1e6,
    ));
    Ok(())
}

/// Share of a profile's own picks whose experts are resident; `None` for one without counts.
fn coverage<B: Backend>(engine: &Engine<B>, profile: &Profile) -> Option<f64> {
    let hits = profile.hits_per_token()?;
    let ranked = profile.ranking().iter().zip(hits);
    let resident = ranked.filter(|(e, _)| engine.is_resident(e.layer.into(), e.expert));
    let covered: f64 = resident.map(|(_, hits)| f64::from(*hits)).sum();
    let picks: usize = engine.spec().experts.iter().map(|e| e.k).sum();
    (picks > 0).then(|| covered / picks as f64)
}

/// The model that comes with the repository: found from the working folder upwards, or where it was at build time.
fn own_model() -> Result<PathBuf> {
    const RELATIVE: &str = "models/demo.gguf";
    let here = std::env::current_dir().unwrap_or_default();
    let built = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    let mut folders = here.ancestors().chain([built.as_path()]);
    let found = folders.find_map(|f| Some(f.join(RELATIVE)).filter(|p| p.is_file()));
    found.with_context(|| format!("no {RELATIVE} here or above; name a model with --model FILE"))
}

pub(crate) fn size(text: &str) -> Result<u64, String> {
    thalweg::parse_bytes(text).map_err(|e| e.to_string())
}

fn bias(text: &str) -> Result<Bias, String> {
    text.parse::<Bias>().map_err(|e| e.to_string())
}

fn policy(text: &str) -> Result<PolicyKind, String> {
    text.parse::<PolicyKind>().map_err(|e| e.to_string())
}

fn activations(text: &str) -> Result<Activations, String> {
    text.parse::<Activations>().map_err(|e| e.to_string())
}

fn reader(text: &str) -> Result<ReaderKind, String> {
    text.parse::<ReaderKind>().map_err(|e| e.to_string())
}
