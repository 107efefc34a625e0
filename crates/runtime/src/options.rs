//! How an engine is to be opened.
//!
//! Owns the options and their defaults; what they cost is decided in `planning`. Memory: none.
//! Invariant: of all options only [`EngineOptions::moce`], [`EngineOptions::keep_experts`] and
//! [`EngineOptions::bf16_routers`] can change a result, and their defaults do not; the others
//! decide how fast the same bits are there.

use std::path::PathBuf;

use thalweg_cache::{Moce, PolicyKind};
use thalweg_model::RouterOptions;
use thalweg_store::io::ReaderKind;

use crate::WatchdogOptions;

/// How to open an engine. The default asks for three quarters of the available memory.
#[derive(Debug, Clone)]
#[expect(
    clippy::exhaustive_structs,
    reason = "callers write `EngineOptions { field, ..default }`"
)]
pub struct EngineOptions {
    /// Bytes for everything together; `None` is three quarters of what is available.
    pub budget_bytes: Option<u64>,
    /// Tokens of the longest sequence; prompts and replies must fit it.
    pub n_ctx: usize,
    /// Tokens that prefill takes in at once; `None` chooses by the budget.
    pub chunk_tokens: Option<usize>,
    /// Expert slots in each layer; `None` is as many as `arena_bytes` or the budget holds.
    pub slots_per_layer: Option<usize>,
    /// Most bytes for the layers' expert slots; `None` is what the budget leaves.
    pub arena_bytes: Option<u64>,
    /// Slots outside the layers, which a long prompt's experts pass through and read-ahead loads
    /// into; `None` chooses by the budget. At least 1 where a layer has fewer slots than experts.
    pub transit_slots: Option<usize>,
    /// Which expert makes room for another.
    pub policy: PolicyKind,
    /// Seed for policies that draw lots.
    pub policy_seed: u64,
    /// Cache-aware routing. Lossy unless its bias is off, which is the default: with it on, output
    /// depends on what is resident, hence on history.
    pub moce: Moce,
    /// Routes over these experts alone, ids by layer, as if the file had no others; `None` is all of
    /// them. Another model, hence another output; not together with `moce`.
    pub keep_experts: Option<Vec<Vec<u16>>>,
    /// Routers decide with weights rounded to bf16. Lossy unless the file stores them so: another
    /// expert may be chosen.
    pub bf16_routers: bool,
    /// Count how often bf16 routers and the copies that guess agree with the stored weights
    /// ([`Stats::router_agreement`](crate::Stats::router_agreement),
    /// [`Stats::guess_recall`](crate::Stats::guess_recall)). Keeps the stored weights besides, and
    /// computes them too.
    pub audit_routers: bool,
    /// How experts are read.
    pub reader: ReaderKind,
    /// Reads under way at the same time: threads of a pool, entries of a ring. `None` chooses by
    /// the budget, since each has a buffer.
    pub reads_under_way: Option<usize>,
    /// An `.experts` file that was packed from the model: each expert is one aligned read.
    pub sidecar: Option<PathBuf>,
    /// Reads of experts that the next layers may need.
    pub read_ahead: ReadAhead,
    /// Run experts that are resident while others are being read.
    pub expert_split: bool,
    /// Run the shared expert while routed ones are being read.
    pub shared_overlap: bool,
    /// Stops a run before the machine runs out of memory; `None` does not watch.
    pub watchdog: Option<WatchdogOptions>,
    /// Keep everything that the process has in memory once the engine is open: the system must
    /// neither swap it nor drop it. Where the limit is too low a [note](crate::Note) says so.
    pub lock_memory: bool,
    /// Touch every page of the arena and run every kernel once while the engine is opened, so that
    /// the first token does not pay for it.
    pub prewarm: bool,
}

impl Default for EngineOptions {
    fn default() -> Self {
        Self {
            budget_bytes: None,
            n_ctx: 4096,
            chunk_tokens: None,
            slots_per_layer: None,
            arena_bytes: None,
            transit_slots: None,
            policy: PolicyKind::Lru,
            policy_seed: 1,
            moce: Moce::default(),
            keep_experts: None,
            bf16_routers: false,
            audit_routers: false,
            reader: ReaderKind::Pool,
            reads_under_way: None,
            sidecar: None,
            read_ahead: ReadAhead::default(),
            expert_split: true,
            shared_overlap: true,
            watchdog: None,
            lock_memory: false,
            prewarm: false,
        }
    }
}

impl EngineOptions {
    /// The copies of routers that these options need.
    pub(crate) fn routers(&self) -> RouterOptions {
        RouterOptions {
            bf16: self.bf16_routers,
            guess_q8: self.read_ahead.q8_routers,
            keep_stored: self.audit_routers,
        }
    }
}

/// Which experts are read before they are asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(
    clippy::exhaustive_structs,
    reason = "callers write `ReadAhead { field, ..default }`"
)]
pub struct ReadAhead {
    /// The best experts, not resident, that the next layer's router sees in this layer's input.
    pub next: usize,
    /// The same for the layer behind it, after those.
    pub second: usize,
    /// While a prompt's experts stream through a layer, begin with those that its tokens will likely
    /// need in the next one as soon as there are slots for them.
    pub prompt: bool,
    /// Guess with a Q8_0 copy of the routers: less memory traffic a guess, somewhat other guesses.
    pub q8_routers: bool,
    /// Stop for a while when too few guesses are of use.
    pub may_pause: bool,
}

impl Default for ReadAhead {
    fn default() -> Self {
        Self {
            next: 0,
            second: 0,
            prompt: true,
            q8_routers: false,
            may_pause: true,
        }
    }
}

impl ReadAhead {
    /// Whether anything is read ahead in decode.
    pub fn is_on(&self) -> bool {
        self.next + self.second > 0
    }
}
